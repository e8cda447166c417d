"""Progress on a terminal: only the last command of a pipe draws, beside it everything works as without, and it ends."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.archives import END, entry
from tests.conftest import BIN, clean_environment, make_samples, make_tar

ESCAPE = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """A pseudo-terminal, and a shell line that runs on it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ours, self._theirs = pty.openpty()
        self._process: subprocess.Popen[bytes] | None = None
        self.seen = b""

    def start(self, line: str, **environment: str) -> subprocess.Popen[bytes]:
        """Run *line* in bash with stdin, stdout and stderr on the terminal."""
        self._process = subprocess.Popen(
            ["bash", "-c", line],
            cwd=self._folder,
            env=clean_environment() | {"TERM": "xterm", "COLUMNS": "80"} | environment,
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            start_new_session=True,
        )
        return self._process

    def read_until(self, wanted: Callable[[bytes], object]) -> None:
        """Read what is drawn until it is *wanted*; a minute without anything is a failure."""
        while not wanted(self.seen):
            assert select.select([self._ours], [], [], 60)[0], self.seen
            self.seen += os.read(self._ours, 65536)

    def finish(self) -> int:
        """Wait for the line to end, and read the rest; return the status."""
        assert self._process is not None
        status = self._process.wait(60)
        while select.select([self._ours], [], [], 0)[0]:
            self.seen += os.read(self._ours, 65536)
        return status

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._ours)
        os.close(self._theirs)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A terminal in `tmp_path`, where there is a fifo `slow`."""
    os.mkfifo(tmp_path / "slow")
    found = Terminal(tmp_path)
    yield found
    found.close()


@pytest.fixture
def fed(tmp_path: Path) -> Iterator[threading.Event]:
    """An event; the fifo has an archive of 100 samples, of which the second half comes when it is set."""
    go = threading.Event()
    archive = make_tar(make_samples(100))

    def feed() -> None:
        with contextlib.suppress(BrokenPipeError), (tmp_path / "slow").open("wb") as file:
            file.write(archive[: len(archive) // 2])
            file.flush()
            go.wait(60)
            file.write(archive[len(archive) // 2 :])

    writer = threading.Thread(target=feed, daemon=True)
    writer.start()
    yield go
    go.set()
    writer.join(60)


def test_only_the_last_of_a_pipe_draws(terminal: Terminal, fed: threading.Event, tmp_path: Path) -> None:
    terminal.start("set -o pipefail; tarcat slow | tarpcat | tarproc -c true > out.tar")
    terminal.read_until(lambda seen: seen.count(b" samples, ") > 2)
    fed.set()
    assert terminal.finish() == 0
    drawn = ESCAPE.sub(b"", terminal.seen)
    assert set(re.findall(rb"tar[a-z]+", drawn)) == {b"tarproc"}
    assert re.search(rb"[0-9]+ samples, [0-9.]+ k?B, [0-9.]+ k?B/s", drawn)
    assert terminal.seen.endswith((b"\x1b[2K", b"\x1b[?25h\r\x1b[1A\x1b[2K"))  # nothing of it stays
    assert (tmp_path / "out.tar").read_bytes() == make_tar(make_samples(100))


def test_nothing_is_drawn_where_a_person_reads(terminal: Terminal, fed: threading.Event) -> None:
    """A line that draws beside it shows when the second second has begun."""
    terminal.start(
        "mkfifo other; tarcat slow | tee other | tarshow -f cls & tarcat --progress other -o /dev/null; wait"
    )
    terminal.read_until(lambda seen: seen.count(b"tarcat") > 1)
    fed.set()
    assert terminal.finish() == 0
    assert b"tarshow" not in terminal.seen
    assert b"000099" in terminal.seen


def test_what_remains_is_told(terminal: Terminal, tmp_path: Path) -> None:
    """Of two shards, of which the second one is slow: it is a file, and its filter waits."""
    for name in ("a.tar", "b.tar"):
        (tmp_path / name).write_bytes(make_tar(make_samples(50)))
    terminal.start("tarcat a.tar b.tar -o 'pipe:cat < slow > /dev/null; cat > out.tar' > /dev/null")
    terminal.read_until(lambda seen: seen.count(b"shards") > 1)
    (tmp_path / "slow").open("wb").close()
    assert terminal.finish() == 0
    drawn = ESCAPE.sub(b"", terminal.seen)
    assert re.search(rb"100 samples, 2 of 2 shards, [0-9.]+ of [0-9.]+ kB", drawn) or b"all is read" in drawn


def test_a_dumb_terminal_gets_lines(terminal: Terminal, fed: threading.Event) -> None:
    terminal.start("tarcat slow > out.tar", TERM="dumb")
    terminal.read_until(lambda seen: b"so far" in seen)
    fed.set()
    assert terminal.finish() == 0
    assert b"\x1b" not in terminal.seen
    assert re.search(rb"tarcat: [0-9]+ samples, .* so far", terminal.seen)


def test_a_signal_takes_it_away(terminal: Terminal, fed: threading.Event, tmp_path: Path) -> None:
    process = terminal.start("exec tarcat slow > out.tar")
    terminal.read_until(lambda seen: b" samples, " in seen)
    os.kill(process.pid, signal.SIGTERM)
    assert terminal.finish() == -signal.SIGTERM
    assert b"\x1b[?25h" in terminal.seen  # the cursor is back


def test_processes_are_forked_beside_it(tmp_path: Path) -> None:
    with (tmp_path / "a.tar").open("wb") as file:
        for n in range(800):
            file.write(entry(b"%06d.bin" % n, b"x" * 100_000) + entry(b"%06d.cls" % n, b"1"))
        file.write(END)
    program = """
import os, sys
from tartools.commands.tar2tsv import tar2tsv
from tartools.cli import progress
progress.FIRST_SIGN = 0.01
os.sched_getaffinity = lambda _: range(2)
fork, forks = os.fork, []
os.fork = lambda: forks.append(fork()) or forks[-1]
status = tar2tsv.main(["--progress", "-f", "cls", "a.tar", "-o", "out.tsv"])
print(status, len(forks))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "0 2\n"
    assert "so far" in done.stderr
    assert (tmp_path / "out.tsv").read_text().count("\n") == 801


def test_no_progress_without_a_main_thread(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar(make_samples(3)))
    program = """
import threading
from tartools.commands.tarcat import tarcat
found = []
thread = threading.Thread(target=lambda: found.append(tarcat.main(["--progress", "a.tar", "-o", "b.tar"])))
thread.start()
thread.join()
print(found)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=clean_environment(), capture_output=True, check=True
    )
    assert done.stdout == b"[0]\n"
    assert BIN.is_dir()
