"""Too little of what the system gives: one line says what is short, and for which URL; or what is to be installed."""

from __future__ import annotations

import importlib.util
import lzma
import os
import resource
import sys
import zlib
from pathlib import Path

import pytest

from tartools.errors import how_to_install, shown
from tartools.shards.delivery import allow_open_files
from tartools.storage.streams import stream_file
from tests.archives import file_stream
from tests.conftest import FILES, Run, make_samples, make_tar, open_descriptors, start

TAR = make_tar(make_samples(3))
LIMIT = "ulimit -v 800000"  # KiB
FIVE_FILES = f"""{sys.executable} -c '
import resource
from tartools.commands.tarcat import tarcat  # how many files the start of Python needs depends on what is installed
resource.setrlimit(resource.RLIMIT_NOFILE, (5, 5))
tarcat()'"""


def greedy_xz(content: bytes) -> bytes:
    """Return *content* as xz data that needs a dictionary of 1 GiB (xz file format 1.1.0, 3.1 and 5.3.1)."""
    data = bytearray(lzma.compress(content))
    end = 12 + 4 * data[12]  # of the block header, without its checksum
    assert data[14:16] == b"\x21\x01"  # LZMA2, one byte of properties
    data[16] = 36
    data[end : end + 4] = zlib.crc32(data[12:end]).to_bytes(4, "little")
    return bytes(data)


def test_too_little_memory_to_decompress(shell: Run, tmp_path: Path) -> None:
    (tmp_path / "in.tar.xz").write_bytes(greedy_xz(TAR))
    assert shell("tarcat in.tar.xz") == (0, TAR, "")
    done = shell(f"{LIMIT}; tarcat in.tar.xz")
    assert done == (1, b"", "tarcat: in.tar.xz: there is too little memory to decompress its xz data\n")


@pytest.mark.parametrize("log", [28, 31])
def test_a_zstd_window_that_is_too_large(log: int, shell: Run, tmp_path: Path) -> None:
    zstd = pytest.importorskip("backports.zstd")
    descriptor = b"\x28\xb5\x2f\xfd" + bytes([0, (log - 10) << 3])  # RFC 8878, 3.1.1
    raw = len(TAR) << 3 | 1  # one block, the last one, as it is
    (tmp_path / "in.tar.zst").write_bytes(descriptor + raw.to_bytes(3, "little") + TAR)
    assert zstd.get_frame_info(descriptor + b"\0") is not None
    assert shell("tarcat in.tar.zst").failure() == (
        f"tarcat: in.tar.zst: its zstd data needs a window of {1 << log - 20} MiB, and 128 MiB are allowed: "
        "read it as 'pipe:zstd -dc --long=31 FILE'\n"
    )


@pytest.mark.parametrize(
    ("line", "url"),
    [
        (f"{FIVE_FILES} 'pipe:cat in.tar'", "pipe:cat in.tar"),
        (f"{FIVE_FILES} in.tar -o pipe:cat", "pipe:cat"),
        (f"exec 4</dev/null; {FIVE_FILES} in.tar -o out.tar", "in.tar"),
    ],
    ids=["input from a command", "output to a command", "file"],
)
def test_too_many_open_files(line: str, url: str, shell: Run, tmp_path: Path) -> None:
    """The message names the URL that could not be opened, and nothing is left behind."""
    (tmp_path / "in.tar").write_bytes(TAR)
    assert shell(line) == (1, b"", f"tarcat: {shown(url)}: Too many open files\n")
    assert [path.name for path in tmp_path.iterdir()] == ["in.tar"]


@pytest.mark.parametrize("size", [-1, 3, 100])
def test_what_a_stream_puts_into_a_part_of_its_room_is_read(size: int, tmp_path: Path) -> None:
    """`read` of a raw file brings a bytearray, and a part of that is a copy: with Python 3.14, zeros were read."""
    with file_stream(tmp_path / "a", b"abcdefg", step=2) as stream, stream_file(stream, "x", lambda: None) as file:
        assert file.read(size) == b"abcdefg"[: size if size >= 0 else None]


def test_what_is_open_already_does_not_count_as_an_output() -> None:
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(30)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(open_descriptors()) + 20, FILES[1]))
        allow_open_files(40)
        held += [os.open(os.devnull, os.O_RDONLY) for _ in range(40)]
    finally:
        for fd in held:
            os.close(fd)


@pytest.mark.parametrize("line", ["tarproc -p 2 -c true a.tar -o out.tar", "tarjob -p 2 --spec '{1..2}' -- touch"])
def test_no_more_threads(line: str, shell: Run, tmp_path: Path) -> None:
    """The stack of a thread takes 1 GB of the addresses, of which there are fewer."""
    (tmp_path / "a.tar").write_bytes(make_tar(make_samples(3)))
    done = shell(f"ulimit -s 1000000; ulimit -v 400000; {line}")
    assert (done.status, done.stdout, [path.name for path in tmp_path.iterdir()]) == (1, b"", ["a.tar"])
    name = line.partition(" ")[0]
    assert done.stderr == f"{name}: can't start new thread: no more processes or memory are allowed (see ulimit -a)\n"


def test_how_to_install_where_this_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert how_to_install("pyarrow", "smart_open[ssh]") == f"{sys.executable} -m pip install pyarrow 'smart_open[ssh]'"
    prefix = tmp_path / "pipx/venvs/tartools"
    prefix.mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(sys, "executable", f"{prefix}/bin/my python")
    assert how_to_install("ray") == f"'{prefix}/bin/my python' -m pip install ray"
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else found(name))
    assert how_to_install("ray") == f"uv pip install --python '{prefix}/bin/my python' ray"
    (prefix / "pipx_metadata.json").touch()
    assert how_to_install("torch", "pyarrow") == "pipx inject tartools torch pyarrow"


def test_the_command_is_one(tmp_path: Path) -> None:
    """As far as that can be told without a network."""
    done = start("sh", "-c", how_to_install("--dry-run", "--no-index", "--no-deps", "pytest"), folder=tmp_path)
    assert done.status == 0 and b"already satisfied: pytest" in done.stdout, done
