"""Whatever is trained from, damage comes out of torch's DataLoader as an exception that says where it is."""

from __future__ import annotations

import os
import re
import signal
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from tartools import Table
from tartools.errors import StorageError, TarFormatError
from tartools.train import ObjectDataset, TableDataset, WebDataset, ZipDataset, loader, samples
from tests.commands.test_zip import zipped
from tests.conftest import Run, make_samples, make_tar
from tests.storage.objects.faults import Fault, FaultServer

COUNT = 40  # samples of each shard
DATASETS: dict[str, tuple[str, Callable[[str], Any]]] = {  # what is damaged, and what reads it, from a place
    "samples": ("1.tar", lambda place: samples(place + "{0..2}.tar")),
    "WebDataset": ("1.tar", lambda place: WebDataset(place + "{0..2}.tar", shuffle=10)),
    "WebDataset of a table": ("1.tar", lambda place: WebDataset(place + "t.parquet", fields="jpg")),
    "TableDataset": ("1.tar", lambda place: TableDataset(place + "t.parquet")),
    "TableDataset without versions": ("1.tar", lambda place: TableDataset(without_versions(place + "t.parquet"))),
    "ZipDataset": ("a.zip", lambda place: ZipDataset(place + "a.zip")),
    "Objects": ("d/7", lambda place: ObjectDataset([f"{place}d/{number}" for number in range(9)])),
}


def without_versions(url: str) -> Table:
    """Return the table at *url* as one of other programs, which say nothing of versions."""
    return Table.from_arrow(Table(url).arrow.drop_columns("__version__"), url)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    """Make three shards, a zip file and loose files in the current directory."""
    for number in range(3):
        Path(f"{number}.tar").write_bytes(make_tar(make_samples(COUNT, COUNT * number)))
    Path("a.zip").write_bytes(zipped(make_samples(COUNT), zipfile.ZIP_STORED))
    Path("d").mkdir()
    for number in range(9):
        Path(f"d/{number}").write_bytes(b"%d" % number * 10_000)
    return tmp_path


def read(data: Any) -> list[Any]:
    """Return the batches of *data* by a worker."""
    return list(DataLoader(data, 4, num_workers=1, collate_fn=list))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 // 512 * 512 + 100)


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(b"60.cls") if path.suffix == ".tar" else len(data) // 2] ^= 1
    path.write_bytes(data)


def replaced(path: Path) -> None:
    data = path.read_bytes()
    other = data.replace(b"0000", b"0009")
    if path.suffix == ".tar":
        other = make_tar([(name.replace("0000", "0009"), data) for name, data in make_samples(COUNT, COUNT)])
    assert len(other) == len(data) and (other != data or path.suffix == "")
    path.write_bytes(other)


DAMAGE = (cut, flipped, replaced, Path.unlink)


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", DATASETS)
def test_damage(name: str, damage: Callable[[Path], None], run: Run) -> None:
    """Nobody can know that a shard without a table was replaced; all else is told, with the byte where there is one."""
    damaged, make = DATASETS[name]
    if "able" in name:
        assert run("tarindex", "{0..2}.tar", "-o", "t.parquet").status == 0
    data, path = make(""), Path(damaged)
    before, sound = path.stat(), path.read_bytes()
    damage(path)
    if damage is replaced and "versions" in name:
        path.write_bytes(sound[::-1])  # headers have to tell
    if damage is replaced and damaged == "1.tar" and "able" not in name:
        keys = [sample["__key__"] for batch in read(data) for sample in batch]
        there = [f"{number:06d}" for number in range(3 * COUNT)]
        there[COUNT : 2 * COUNT] = [key.replace("0000", "0009") for key in there[COUNT : 2 * COUNT]]
        assert sorted(keys) == sorted(there)
        return
    where = r"at byte \d+: "
    if name in ("samples", "WebDataset") and path.exists():
        where = f"at byte {path.stat().st_size if damage is cut else sound.index(b'000060.cls')}: "
    if damage is Path.unlink:
        if "able" not in name:
            with pytest.raises(StorageError, match=rf"{damaged}: .*No such file"):
                make("")
        where = rf"({where})?.*No such file"
    elif name == "ZipDataset" and damage is cut:
        where = "was changed or replaced"
    elif name == "ZipDataset" and damage is replaced:  # a worker that is no fork reads the directory, and knows it
        where = r"(at byte \d+: |was changed or replaced)"
    elif name == "ZipDataset" and damage is flipped:
        begin = sound.rindex(b"PK\3\4", 0, len(sound) // 2)
        where = rf"at byte {begin}: the member '\d+\.jpg' is damaged: its checksum \(CRC\) differs"
    by_time = name == "Objects" or (name == "TableDataset" and damage is replaced)  # keys are not compared
    if by_time and path.exists():
        where = rf"({where})?.*(changed|replaced)"
    elif path.exists():
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # the bytes have to tell
    with pytest.raises((StorageError, TarFormatError), match=rf"{re.escape(damaged)}: {where}") as caught:
        read(data)
    assert "\nOriginal Traceback" in str(caught.value)  # the worker's, in lines
    assert "able" not in name or re.search(r"row \d+ of t\.parquet", str(caught.value))


@pytest.mark.parametrize("name", DATASETS)
def test_dropped_connections(name: str, server: FaultServer, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes at the next try is no news; what never comes is."""
    monkeypatch.setenv("TARTOOLS_TRIES", "3")
    place = server.url("http", "")
    for path in ("0.tar", "1.tar", "2.tar", "a.zip", *(f"d/{number}" for number in range(9))):
        server.objects[path] = Path(path).read_bytes()
    if "able" in name:
        assert run("tarindex", place + "{0..2}.tar", "-o", "far.parquet").status == 0
        server.objects["t.parquet"] = Path("far.parquet").read_bytes()
    damaged, make = DATASETS[name]
    data = make(place)
    whole = read(make(place))
    server.faults = [Fault(damaged, "GET", cut=1000, reset=True), Fault(damaged, "GET", dropped=True)]
    assert read(data) == whole
    server.faults = [Fault(damaged, "GET", cut=1000, reset=True, times=None)]
    with pytest.raises(StorageError, match=rf"{re.escape(place + damaged)}: "):
        read(data)


def killed(item: Any, *_: Any) -> Any:
    if item != (b"0",):  # of the first row
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def raising(_: Any) -> Any:
    raise EOFError("my own")


def by_ours(data: Any) -> list[Any]:
    return list(loader(data, 4, shuffle=False, num_workers=1, prefetch_factor=1))


ROWS = "the next one has rows 0, 1, 2, 3, and begins at byte 0 of 0.tar"
KILLED: dict[str, tuple[Callable[[], Any], str]] = {
    "WebDataset": (lambda: read(WebDataset("{0..2}.tar").map(killed)), ""),
    "ZipDataset": (lambda: read(ZipDataset("a.zip", transform=killed)), ""),
    "Objects": (lambda: read(ObjectDataset("d", killed)), ""),
    "TableDataset, loader": (
        lambda: by_ours(TableDataset("0.tar", "cls", transform=killed)),
        rf"; 1 batch under way, from 0\.tar; {ROWS}$",
    ),
    "Objects, loader": (
        lambda: by_ours(ObjectDataset("d", killed)),
        "; 1 batch under way; the next one has items 0, 1, 2, 3$",
    ),
}


@pytest.mark.parametrize("name", KILLED)
def test_killed_workers(name: str) -> None:
    make, under_way = KILLED[name]
    ended = r"killed by signal: Killed|exited unexpectedly" + "|a worker has ended" * bool(under_way)
    with pytest.raises(RuntimeError, match=ended) as caught:
        make()
    said = "".join(traceback.format_exception_only(caught.value))
    assert re.search(under_way, said.splitlines()[-1])
    if "Table" in name:  # what a worker raises is no end of it
        with pytest.raises(EOFError, match="my own"):
            by_ours(TableDataset("0.tar", "cls", transform=raising))
