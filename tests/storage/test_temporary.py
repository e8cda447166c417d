"""What killed runs leave beside their outputs is removed by the next run; what a live one writes is not."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tartools import storage
from tartools.errors import StorageError
from tests.conftest import BIN, Run, make_samples, make_tar, members_of, python, running

TAR = make_tar(make_samples(5))


def begun(tmp_path: Path, output: str) -> list[str | Path]:
    """Return a command line that begins to write *output*, and says so by ending to wait for the fifo `begun`."""
    (tmp_path / "a.tar").write_bytes(TAR)
    os.mkfifo(tmp_path / "begun")
    return [BIN / "tarcat", "a.tar", "pipe:echo > begun; sleep 1000", "-o", output]


def hidden(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.startswith("."))


@pytest.mark.parametrize("output", ["out.tar", "d/out.tar", "x" * 120 + ".tar"])
def test_the_next_run_removes_what_a_killed_one_left(output: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    folder = (tmp_path / output).parent
    with running(begun(tmp_path, output), cwd=tmp_path) as process:
        (tmp_path / "begun").read_bytes()
        (left,) = hidden(folder)
        other = folder / f".other{left}"
        other.write_bytes(b"of another output")
        assert run("tarcat", "a.tar", "-o", output).status == 0  # while the first one lives
        assert hidden(folder) == sorted([left, other.name])
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert hidden(folder) == sorted([left, other.name])
        assert run("tarcat", "a.tar", "-o", output, "--force").status == 0
    assert hidden(folder) == [other.name]
    assert members_of((tmp_path / output).read_bytes()) == make_samples(5)


def test_only_files_of_this_host_and_of_this_output_are_looked_at(run: Run, tmp_path: Path) -> None:
    host = os.uname().nodename
    kept = [f".out.tar.another-{host}.1-00000000.tmp", ".out.tar.1-00000000.tmp", f".out.tar.gz.{host}.1-00000000.tmp"]
    kept += [f".out.tar.{host}.mine.tmp", f".out.tar.{host}.1-00000000.tmp~.tmp"]
    for name in [*kept, left := f".out.tar.{host}.1-00000000.tmp"]:
        (tmp_path / name).write_bytes(b"part")
    (tmp_path / "a.tar").write_bytes(TAR)
    assert run("tarcat", "a.tar", "-o", "out.tar").status == 0
    assert hidden(tmp_path) == sorted(kept) and left not in kept


def test_a_file_that_cannot_be_locked_is_written_all_the_same(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(TAR)
    (tmp_path / "sitecustomize.py").write_text(
        "import fcntl\ndef flock(fd, how):\n    raise OSError(37, 'No locks available')\nfcntl.flock = flock\n"
    )
    done = run("tarcat", "a.tar", "-o", "out.tar", env={"PYTHONPATH": str(tmp_path)}, real=True)
    assert (done.status, done.stderr, hidden(tmp_path)) == (0, "", [])
    assert (tmp_path / "out.tar").read_bytes() == TAR


def test_a_name_that_is_taken_is_not_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "urandom", bytes)
    with storage.writing(str(tmp_path / "one")) as sink:
        sink.write(b"1")
    taken = tmp_path / f".two.{os.uname().nodename}.{os.getpid()}-00000000.tmp"
    taken.write_bytes(b"somebody's")
    with pytest.raises(StorageError, match="File exists"), storage.writing(str(tmp_path / "two")):
        pass
    assert taken.read_bytes() == b"somebody's"


STRUCK = """
import os, signal, sys
from tartools.storage.scratch import scratch_file
real = os.open

def opened(*arguments):
    fd = real(*arguments)
    os.kill(os.getpid(), signal.SIGTERM)
    return fd

signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
os.open = opened
scratch_file()
"""


def test_a_signal_while_a_folder_is_tried(tmp_path: Path) -> None:
    """Python makes and removes a file in the default one, to see that it can."""
    (tmp_path / "tmp").mkdir()
    done = python(STRUCK, folder=tmp_path, env={"TMPDIR": "tmp"})
    assert (done.status, done.stderr, os.listdir(tmp_path / "tmp")) == (3, "", [])
