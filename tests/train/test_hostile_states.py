"""A hostile state opens no file, starts no program and asks no server: docs/trust.md, the row of `load_state_dict`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tartools.errors import TarToolsError
from tartools.train import ObjectStream, StatefulSampler, TableDataset, WebDataset, loader, stream_map
from tests.conftest import Run, make_samples, make_tar
from tests.tiers import also
from tests.train.test_states import changed, key, keys, name, places

MARK = "hostile"  # in all names of the state, and in none of the data
PROGRAMS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect", "socket.getaddrinfo")
NAMES = ["hostile.tar", "hostile.parquet", "file:hostile.tar", "pipe:cat hostile.tar", "http://127.0.0.1:1/hostile.tar"]
KINDS: dict[str, Callable[[], Any]] = {
    "loader": lambda: loader("t.parquet", 4, collate_fn=keys),
    "StatefulSampler": lambda: StatefulSampler(TableDataset("t.parquet", "__key__"), 3, batch_size=4),
    "WebDataset": lambda: WebDataset("{0..2}.tar").map(key),
    "WebDataset, shuffled": lambda: WebDataset("{0..2}.tar", shuffle=6).map(key),
    "WebDataset, table": lambda: WebDataset("t.parquet", shuffle=6).map(key),
    "ObjectStream": lambda: ObjectStream("objects", name),
    "stream_map": lambda: stream_map(key, "t.parquet", chunk_size=6_000, workers=1),
}
_reports: list[int] = []  # the file that events are written to, by forks too


def _report(event: str, arguments: tuple[Any, ...]) -> None:
    """Write *event* of the interpreter down, if it opens a marked name, starts a program or connects."""
    if _reports and (event in PROGRAMS or (event in ("open", "os.listdir", "os.scandir") and MARK in repr(arguments))):
        os.write(_reports[0], f"{event} {arguments!r}\n".encode())


sys.addaudithook(_report)


@contextmanager
def reported(path: Path) -> Iterator[Path]:
    """Write what happens in the block to the file *path*."""
    path.touch()
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    _reports.append(file)
    try:
        yield path
    finally:
        _reports.clear()
        os.close(file)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, run: Run) -> Path:
    for number in range(3):
        Path(f"{number}.tar").write_bytes(make_tar(make_samples(7, 100 * number)))
    assert run("tarindex", "0.tar", "1.tar", "2.tar", "-o", "t.parquet").status == 0
    Path("hostile.tar").write_bytes(Path("0.tar").read_bytes())
    Path("hostile.parquet").write_bytes(Path("t.parquet").read_bytes())
    Path("objects").mkdir()
    for number in range(21):
        Path(f"objects/{number:02d}").write_bytes(b"%02d" % number)
    return tmp_path


@pytest.mark.parametrize("kind", ["WebDataset", *also(*(kind for kind in KINDS if kind != "WebDataset"))])
def test_names_in_a_state_are_not_opened(kind: str, tmp_path: Path) -> None:
    data = KINDS[kind]()
    iterator = iter(data)
    assert len([*islice(iterator, 2)]) == 2
    state = data.state_dict()
    tried = 0
    with reported(tmp_path / "events") as events:
        hostile = [changed(state, place, NAMES[number % len(NAMES)]) for number, place in enumerate(places(state))]
        hostile.append(state | {"shards": NAMES, "urls": NAMES, "table": NAMES[1], "url": NAMES[4]})
        for value in hostile:
            data = KINDS[kind]()
            try:
                data.load_state_dict(value)
                assert MARK not in str([*islice(iter(data), 2)])
            except TarToolsError:
                pass
            tried += 1
    assert tried > 5
    assert events.read_text() == ""


def test_what_a_state_must_not_do_is_reported(tmp_path: Path) -> None:
    with reported(tmp_path / "events") as events:
        assert len([*WebDataset("hostile.tar")]) == 7
        assert len([*WebDataset("pipe:cat hostile.tar")]) == 7
        with pytest.raises(TarToolsError):
            next(iter(WebDataset("http://127.0.0.1:1/hostile.tar")))
    text = events.read_text()
    assert all(event in text for event in ("open ('hostile.tar'", "subprocess.Popen", "socket.connect")), text
