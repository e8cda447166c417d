"""What killed runs leave beside their outputs is removed by the next run; what a live one writes is not."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import nullcontext
from pathlib import Path

import pytest

from tartools import storage
from tartools.errors import StorageError
from tartools.storage.interrupts import allow_signals, defer_signals
from tartools.storage.scratch import remove_tree
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
    with storage.open_sink(str(tmp_path / "one")) as sink:
        sink.write(b"1")
    taken = tmp_path / f".two.{os.uname().nodename}.{os.getpid()}-00000000.tmp"
    taken.write_bytes(b"somebody's")
    with pytest.raises(StorageError, match="File exists"), storage.open_sink(str(tmp_path / "two")):
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


# ---- outputs that wait for a reader: a signal ends the wait ----


PARTNER = "wait_for_partner"  # where Linux waits for the other end of a fifo
LINES = ["tarcat -o fifo in.tar", "tar2tsv -o fifo in.tar", "tarsort -o fifo in.tar"]


@pytest.mark.skipif(not Path("/proc/self/wchan").exists(), reason="this system does not tell where a process waits")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("line", LINES)
def test_a_fifo_that_nobody_reads(line: str, number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "in.tar").write_bytes(make_tar(make_samples(3)))
    os.mkfifo(tmp_path / "fifo")
    name, *arguments = line.split()
    with running([BIN / name, *arguments], cwd=tmp_path, stderr=subprocess.PIPE) as process:
        waits = Path(f"/proc/{process.pid}/wchan")
        while waits.read_text() != PARTNER:
            assert process.poll() is None
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        assert (process.returncode, said) == (-number, b"")
    assert sorted(os.listdir(tmp_path)) == ["fifo", "in.tar"]


class CameError(Exception):
    """What the handlers of these tests raise."""


@pytest.fixture
def came(request: pytest.FixtureRequest) -> list[int]:
    """Return the list of the signals that were handled; their handlers raise, and set others, as ours do."""
    found: list[int] = []

    def handler(number: int, _: object) -> None:
        found.append(number)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        raise CameError

    for number in (signal.SIGTERM, signal.SIGHUP):
        old = signal.signal(number, handler)
        request.addfinalizer(lambda number=number, old=old: signal.signal(number, old))
    return found


def test_signals_are_handled_again_inside_a_block_that_defers_them(came: list[int]) -> None:
    with pytest.raises(CameError), defer_signals(), defer_signals(), allow_signals():
        signal.raise_signal(signal.SIGTERM)
        pytest.fail("it was deferred")
    assert came == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN  # what the handler has set stays


def test_a_signal_that_was_deferred_ends_the_wait_before_it_begins(came: list[int]) -> None:
    with pytest.raises(CameError), defer_signals():
        signal.raise_signal(signal.SIGTERM)
        assert came == []
        with allow_signals():
            pytest.fail("it would wait")
    assert came == [signal.SIGTERM]


def test_of_two_deferred_signals_the_first_is_handled(request: pytest.FixtureRequest) -> None:
    """Also where its handler returns, at the begin of a block that allows signals and at the end of one that defers."""
    came: list[int] = []
    for number in (signal.SIGTERM, signal.SIGHUP):
        old = signal.signal(number, lambda number, _: came.append(number))
        request.addfinalizer(lambda number=number, old=old: signal.signal(number, old))
    for is_allowed in (True, False):
        with defer_signals():
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGTERM)
            with allow_signals() if is_allowed else nullcontext():
                assert came == [signal.SIGHUP] * is_allowed
        assert came == [signal.SIGHUP]
        came.clear()


def test_after_the_wait_signals_are_deferred_again(came: list[int]) -> None:
    with pytest.raises(CameError), defer_signals():
        with allow_signals():
            pass
        signal.raise_signal(signal.SIGTERM)
        assert came == []
    assert came == [signal.SIGTERM]


def test_the_target_of_a_link_that_stays_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object) -> None:
        raise PermissionError(path)

    (tmp_path / "target/inner").mkdir(parents=True)
    (tmp_path / "target/inner").chmod(0o555)
    (tmp_path / "target").chmod(0o755)
    (tmp_path / "link").symlink_to("target")
    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refuse)  # as a folder that others own does, but not for root
        remove_tree(os.fsencode(tmp_path / "link"))
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("target", "target/inner")]
    assert modes == [0o755, 0o555] and (tmp_path / "link").is_symlink()
