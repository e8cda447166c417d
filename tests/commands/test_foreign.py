"""Archives written by others, and ours read by others: the same samples on both sides."""

from __future__ import annotations

import gc
import io
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tartools
from tartools.samples.sample import split_path
from tests.conftest import Run, has_end, members_of, start

webdataset = pytest.importorskip("webdataset")

SHORT = {"plain/a.jpg": b"1", "plain/a.cls": b"2", "README": b"3", "a.b/c.seg.png": b"4" * 1000, "._plain.jpg": b"5"}
EXACT = {"n" * 96 + ".jpg": b"100"}
LONG = {
    "n" * 97 + ".jpg": b"101",
    "d" * 100 + "/" + "e" * 100 + "/" + "n" * 49 + ".jpg": b"255",
    "d" * 100 + "/" + "e" * 100 + "/" + "n" * 50 + ".jpg": b"256",
    "d" * 100 + "/" + "e" * 100 + "/" + "n" * 94 + ".jpg": b"300",
}
NON_ASCII = {"größe/ö日本.jpg": b"6"}
USTAR_LONG = {"d" * 100 + "/" + "n" * 90 + ".jpg": b"195", "p" * 155 + "/" + "n" * 96 + ".jpg": b"256"}
OLD = -86400.0  # seconds: mtime of one member, before 1970

GNU_TAR = {
    "v7": SHORT | NON_ASCII,
    "oldgnu": SHORT | EXACT | LONG | NON_ASCII,
    "gnu": SHORT | EXACT | LONG | NON_ASCII,
    "ustar": SHORT | EXACT | USTAR_LONG | NON_ASCII,
    "posix": SHORT | EXACT | LONG | NON_ASCII,
}
BSDTAR = {
    "ustar": SHORT | EXACT | USTAR_LONG,
    "pax": SHORT | EXACT | LONG | NON_ASCII,
    "gnutar": SHORT | EXACT | LONG | NON_ASCII,
}
PYTHON = {
    tarfile.USTAR_FORMAT: SHORT | EXACT | USTAR_LONG | NON_ASCII,
    tarfile.GNU_FORMAT: SHORT | EXACT | LONG | NON_ASCII,
    tarfile.PAX_FORMAT: SHORT | EXACT | LONG | NON_ASCII,
}
HAS_OLD = ("oldgnu", "gnu", "posix", "pax", "gnutar")  # formats that hold times before 1970


def need(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}")


def tree(folder: Path, files: dict[str, bytes], old: bool) -> list[str]:
    """Write *files*, a directory, a symbolic and a hard link; return the names to archive, in order."""
    for name, payload in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(payload)
        os.utime(path, (OLD, OLD) if old and name == "plain/a.cls" else (1577836800, 1577836800))
    os.symlink("plain/a.jpg", folder / "link.jpg")
    os.link(folder / "plain/a.jpg", folder / "hard.jpg")
    (folder / "folder.d").mkdir()
    return ["folder.d", *files, "link.jpg", "hard.jpg"]


def check_reading(run: Run, archive: bytes, files: dict[str, bytes], specials: int) -> None:
    """Check that tarcat gives *files* in order, without metadata of macOS, reports links, and changes no byte."""
    done = run("tarcat", stdin=archive)
    assert done.status == (1 if specials else 0)
    macos = {name for name in files if name.startswith("._")}
    files = {name: payload for name, payload in files.items() if name not in macos}
    assert len(done.stderr.splitlines()) == min(specials, 2) + bool(macos)
    assert has_end(done.stdout)
    assert members_of(done.stdout) == list(files.items())
    sound = [info for info in _infos(archive) if info["type"] == b"0" and info["name"] not in macos]
    assert _infos(done.stdout) == sound
    quiet = run("tarcat", "--skip-special", "-v", stdin=archive)
    assert (quiet.status, quiet.stdout) == (0, done.stdout)
    keys = len({split_path(name.encode())[0] for name in files})
    assert f"{keys} samples in, {keys} out" in quiet.stderr


def _infos(archive: bytes) -> list[dict[str, Any]]:
    """Return what Python's tarfile says about the members of *archive*, directories and links included."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        infos = [{**info.get_info(), "pax": info.pax_headers} for info in opened]
    for info in infos:
        info["type"] = b"0" if info["type"] == b"\0" else info["type"]
    return infos


@pytest.mark.parametrize(
    ("program", "format"), [*(("tar", format) for format in GNU_TAR), *(("bsdtar", format) for format in BSDTAR)]
)
def test_other_programs(program: str, format: str, run: Run, tmp_path: Path) -> None:
    need(program)
    if program == "tar" and b"GNU" not in start("tar", "--version").stdout:
        pytest.skip("needs GNU tar")
    files = (GNU_TAR if program == "tar" else BSDTAR)[format]
    names = tree(tmp_path / "t", files, format in HAS_OLD)
    alone = "--no-recursion" if program == "tar" else "-n"
    line = (program, f"--format={format}", "-cf", "-", alone, "-C", tmp_path / "t", "--", *names)
    check_reading(run, start(*line).output(), files, 2)


@pytest.mark.parametrize("format", PYTHON, ids=["ustar", "gnu", "pax"])
def test_python(format: int, run: Run, tmp_path: Path) -> None:
    files = PYTHON[format]
    names = tree(tmp_path / "t", files, format != tarfile.USTAR_FORMAT)
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as archive:
        for name in names:
            archive.add(tmp_path / "t" / name, name, recursive=False)
    check_reading(run, file.getvalue(), files, 2)


def wds_samples() -> Iterator[dict[str, Any]]:
    for n in range(20):
        yield {"__key__": f"d/{n:04d}", "txt": f"text {n}", "cls": n % 3, "seg.bin": bytes([n]) * n * 100}


EXPECTED = [
    (s["__key__"], {"cls": b"%d" % s["cls"], "seg.bin": s["seg.bin"], "txt": s["txt"].encode()}) for s in wds_samples()
]


def read_by_webdataset(path: Path) -> list[tuple[str, dict[str, bytes]]]:
    """Return the samples of *path* as webdataset sees them."""
    found = webdataset.WebDataset(str(path), shardshuffle=False, empty_check=False)
    samples = [
        (sample["__key__"], {k: v for k, v in sample.items() if not k.startswith("__")})  # fields in lower case
        for sample in found
    ]
    del found
    gc.collect()
    return samples


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # webdataset leaves its files to the garbage collector
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("suffix", ["tar", "tgz", "tar.gz"])
def test_we_write_webdataset_reads(suffix: str, run: Run, tmp_path: Path) -> None:
    path = tmp_path / f"a.{suffix}"
    with tartools.TarWriter(str(path)) as sink:
        for sample in wds_samples():
            sink.write(sample)
    assert [(key, dict(sorted(fields.items()))) for key, fields in read_by_webdataset(path)] == EXPECTED
    assert run("tarcat", "--rekey", "{key}x", "-f", "label=cls txt", path, "-o", f"new.{suffix}").status == 0
    assert [(key, sorted(fields)) for key, fields in read_by_webdataset(tmp_path / f"new.{suffix}")] == [
        (f"{key}x", ["label", "txt"]) for key, _ in EXPECTED
    ]


READERS: dict[str, Callable[[Path, Path], list[str]]] = {
    "tar": lambda archive, folder: ["tar", "-xf", str(archive), "-C", str(folder)],
    "bsdtar": lambda archive, folder: ["bsdtar", "-xf", str(archive), "-C", str(folder)],
}


@pytest.mark.parametrize("program", READERS)
def test_tars_read_what_we_write(program: str, run: Run, tmp_path: Path) -> None:
    """New names and old ones, short and long."""
    need(program)
    files = SHORT | EXACT | LONG | NON_ASCII
    names = {name: payload for name, payload in files.items() if name not in ("README", "._plain.jpg")}
    with tartools.TarWriter(str(tmp_path / "a.tar")) as sink:
        for name, payload in names.items():
            key, field = split_path(name.encode())
            sink.write(
                {"__key__": key.decode(), field.decode(): payload}
                if name != "plain/a.cls"
                else {"__key__": "other/a", "cls": payload}
            )
    assert run("tarcat", "--rekey", "new/{key}", "a.tar", "-o", "b.tar").status == 0
    for archive, prefix in (("a.tar", ""), ("b.tar", "new/")):
        folder = tmp_path / f"x-{archive}"
        folder.mkdir()
        start(*READERS[program](tmp_path / archive, folder)).output()
        found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        expected = {prefix + (n if n != "plain/a.cls" else "other/a.cls"): payload for n, payload in names.items()}
        assert found == expected
