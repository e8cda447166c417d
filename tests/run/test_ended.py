"""tarjob that is ended, in whatever way: nothing that it has started runs on, and what was written is whole."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import BIN, Run, clean_environment, make_samples, make_tar
from tests.processes import PATIENCE, until
from tests.run.conftest import records
from tests.tiers import also, by_turns

MARK = "TARJOB_TEST"  # in the environment of all that a test starts
COMMANDS = {  # each is to have begun when there are so many processes that sleep
    "a child": (1, ["sleep", "1000"]),
    "children in the background": (3, ["bash", "-c", "sleep 1000 & (sleep 1000; true) & sleep 1000; true"]),
    "groups of their own": (2, ["bash", "-c", "timeout 900 sleep 1000 & timeout 900 sleep 1000; true"]),
    "sessions of their own": (2, ["bash", "-c", "setsid sleep 1000 & setsid -w bash -c 'sleep 1000; true'; true"]),
    "daemons": (3, ["bash", "-c", "setsid bash -c 'sleep 1000 & exit'; (setsid sleep 1000 &); sleep 1000; true"]),
    "samples": (2, ["tarproc", "-p", "2", "-c", "sleep 1000; true", "in.tar", "-o", "out-{}"]),
    "what does not listen": (1, ["bash", "-c", "trap '' TERM INT HUP; sleep 1000; sleep 1000"]),
}
Started = Callable[..., subprocess.Popen[bytes]]


def alive(mark: Path) -> dict[int, bytes]:
    """Return the processes with *mark* in their environment that have not ended, with their command lines."""
    found = {}
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and f"{MARK}={mark}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found[int(process.name)] = (process / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended, or is somebody else's
    return found


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Started]:
    """Return a function that starts tarjob in `tmp_path`, with a mark that all its children inherit."""
    (tmp_path / "in.tar").write_bytes(make_tar(make_samples(4)))

    def start(*arguments: object, stdout: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [BIN / "tarjob", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            env=clean_environment() | {MARK: str(tmp_path), "TMPDIR": str(tmp_path)},
        )

    yield start
    left = alive(tmp_path)
    for number in left:
        os.kill(number, signal.SIGKILL)
    assert left == {}


def sleepers(mark: Path) -> int:
    """Return how many processes sleep."""
    return sum(line.startswith(b"sleep\0") for line in alive(mark).values())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("name", COMMANDS)
@by_turns("number")
def test_nothing_runs_on(number: signal.Signals, name: str, start: Started, tmp_path: Path) -> None:
    count, words = COMMANDS[name]
    with start("-v", "--log", "log", "--retries", 3, "--spec", "{1..5}", "-j", 2, "--", *words) as process:
        until(lambda: sleepers(tmp_path) == 2 * count)
        process.send_signal(number)
        said = b"tarjob: 0 of 5 items done\n" if number == signal.SIGINT else b""
        assert process.communicate(timeout=PATIENCE) == (b"", said)
    assert process.returncode == -number
    if number == signal.SIGKILL:
        until(lambda: not alive(tmp_path))  # the guards, of tarproc too, end all and remove its directories
    assert alive(tmp_path) == {}
    left = sorted(path.name for path in tmp_path.iterdir())
    if number == signal.SIGKILL:  # tarproc had no time to remove its output, where the file system wants a name for it
        left = [name for name in left if not name.startswith(".out-")]
    assert left == ["in.tar", "log"]
    assert records(tmp_path / "log") == []  # nothing has ended by itself


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_log_knows_of_tries_that_failed_when_the_next_is_ended(
    number: signal.Signals, start: Started, tmp_path: Path
) -> None:
    """The first leaves half of its output."""
    rules = ("-v", "--log", "log", "-o", "out-{}", "--spec", 1, "--")
    line = "test -e out-{} && exec sleep 1000; echo half > out-{}; false"
    with start("--retries", 1, *rules, "bash", "-c", line) as process:
        until(lambda: sleepers(tmp_path) == 1)
        process.send_signal(number)
        assert process.communicate(timeout=PATIENCE) == (b"", b"")
    until(lambda: not alive(tmp_path))
    (said,) = records(tmp_path / "log")
    assert (said["status"], said["tries"], said["failure"]) == ("failed", 1, "ended with status 1")
    with start(*rules, "bash", "-c", "echo whole > out-{}") as process:
        said = process.communicate(timeout=PATIENCE)[1].decode()
    assert said.startswith("tarjob: 1 item: 1 done, 0 failed, ")
    assert (tmp_path / "out-1").read_text() == "whole\n"


def test_ctrl_c_says_how_to_go_on(start: Started, tmp_path: Path) -> None:
    rules = ("-j", 1, "--log", "log", "-o", "out-{}", "--spec", "{1..5}", "--")
    with start(*rules, "bash", "-c", "test {} = 1 || exec sleep 1000; echo whole > out-{}") as process:
        until(lambda: sleepers(tmp_path) == 1 and len(records(tmp_path / "log")) == 1)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=PATIENCE)
    assert said == (b"", b"tarjob: 1 of 5 items done; the same command line does the rest\n")
    assert process.returncode == -signal.SIGINT
    for expected in (b"", b"tarjob: nothing to do: 5 items were done before (--redo does them again)\n"):
        with start(*rules, "bash", "-c", "echo whole > out-{}") as process:
            assert process.communicate(timeout=PATIENCE) == (b"", expected)
        assert process.returncode == 0


@pytest.mark.parametrize("name", [*also(*list(COMMANDS)[:3]), "sessions of their own", *also(*list(COMMANDS)[5:])])
def test_nothing_of_what_takes_too_long_runs_on(name: str, start: Started, tmp_path: Path) -> None:
    """The other item sees what is left of the first, once that is in the log. Daemons are ended at a signal alone."""
    _, words = COMMANDS[name]
    with start("--timeout", 1, "--log", "log", "--spec", 1, "--", *words) as process:
        said = process.communicate(timeout=PATIENCE)[1]
    assert said.startswith(b"tarjob: 1: took longer than 1 seconds and was stopped")
    assert process.returncode == 1
    assert alive(tmp_path) == {}


def test_what_starts_more_and_more_is_ended_when_tarjob_is_killed(start: Started, tmp_path: Path) -> None:
    """Each process starts its successor in a session of its own, and ends soon: a list of them is soon outdated."""
    work = tmp_path / "work"
    work.write_text("#!/bin/bash\ntouch begun-$$\nsetsid ./work &\nexec sleep 0.1\n")
    work.chmod(0o755)
    with start("--spec", 1, "--", "bash", "-c", "./work; sleep 1000 # {}") as process:
        until(lambda: len(list(tmp_path.glob("begun-*"))) > 10)
        process.kill()
        assert process.communicate(timeout=PATIENCE) == (b"", b"")
    until(lambda: not alive(tmp_path))


def test_commands_have_time_to_clean_up(start: Started, tmp_path: Path) -> None:
    """Be it behind a shell, which dies at once."""
    work = tmp_path / "work"
    work.write_text("#!/bin/bash\ntrap 'sleep 0.5; echo clean > cleaned-$1; exit' TERM\nsleep 1000 & wait\n")
    work.chmod(0o755)
    with start("--spec", "{1..2}", "-j", 2, "--", "bash", "-c", "./work {}; true") as process:
        until(lambda: sleepers(tmp_path) == 2)
        process.terminate()
        assert process.communicate(timeout=PATIENCE) == (b"", b"")
    assert [(tmp_path / f"cleaned-{n}").read_text() for n in (1, 2)] == ["clean\n"] * 2


def test_what_a_command_leaves_in_the_background_ends_with_it(start: Started, tmp_path: Path) -> None:
    """The second item is begun when the first has ended, and looks for what that has left."""
    first = "sleep 1000 & echo $! > left"
    runs = "grep -qs '^State:.[^Z]' /proc/$(cat left)/status"  # one read: it may go at any time
    second = f"for look in $(seq 300); do {runs} || exit 0; sleep .1; done; exit 1"  # what is killed ends a bit later
    with start(
        "-j", 1, "--spec", "{1..2}", "--", "bash", "-c", f"if test {{}} = 1; then {first}; else {second}; fi; true"
    ) as process:
        assert process.communicate(timeout=PATIENCE)[1] == b""
    assert process.returncode == 0


def test_the_next_run_does_the_rest(start: Started, tmp_path: Path) -> None:
    """Two are done, two under way, two not begun when it is killed."""
    line = ["tarproc", "-c", "test -e {} || exec sleep 1000", "in.tar", "-o", "out-{}"]
    words = [word.replace("test -e {}", f"test -e {tmp_path}/ready-{{}}") for word in line]
    for n in (1, 2):
        (tmp_path / f"ready-{n}").touch()
    with start("-v", "-j", 2, "--spec", "{1..6}", "--", *words) as process:
        until(lambda: sleepers(tmp_path) == 2)
        process.kill()
    until(lambda: not alive(tmp_path))
    assert sorted(path.name for path in tmp_path.glob("out-*")) == ["out-1", "out-2"]
    before = [(tmp_path / f"out-{n}").stat() for n in (1, 2)]
    for n in range(3, 7):
        (tmp_path / f"ready-{n}").touch()
    with start("-v", "--spec", "{1..6}", "--", *words) as process:
        said = process.communicate(timeout=PATIENCE)[1].decode()
    assert said.startswith("tarjob: 6 items: 4 done, 2 already done, 0 failed, ")
    assert [(tmp_path / f"out-{n}").stat() for n in (1, 2)] == before
    assert {(tmp_path / f"out-{n}").read_bytes() for n in range(1, 7)} == {(tmp_path / "in.tar").read_bytes()}


def test_a_stdout_that_was_closed(start: Started, tmp_path: Path) -> None:
    """The first item has printed a line that nobody reads; others run, and are ended."""
    reading, writing = os.pipe()
    os.close(reading)
    with start(
        "-j", 2, "--spec", "{1..9}", "--", "bash", "-c", "test {} = 1 || sleep 1000; echo", stdout=writing
    ) as process:
        os.close(writing)
        assert process.communicate(timeout=PATIENCE)[1] == b""
    assert process.returncode == -signal.SIGPIPE


@pytest.mark.parametrize("count", [7, *also(20)])
def test_two_at_once_leave_whole_outputs(count: int, start: Started, tmp_path: Path) -> None:
    """Who comes too late says so; each output is there once, and whole."""
    words = ("--spec", f"{{1..{count}}}", "--", "tarcat", "in.tar", "-o", "out-{}")
    with start(*words) as one, start(*words) as other:
        said = (one.communicate(timeout=PATIENCE)[1] + other.communicate(timeout=PATIENCE)[1]).decode()
    assert {path.read_bytes() for path in tmp_path.glob("out-*")} == {(tmp_path / "in.tar").read_bytes()}
    assert len(list(tmp_path.glob("out-*"))) == count
    for line in said.splitlines():
        assert ": already exists; --force replaces it" in line


def test_a_directory_that_is_gone(shell: Run) -> None:
    done = shell("mkdir gone && cd gone && rmdir ../gone && tarjob --spec '{1..2}' -j 1 -- echo", real=True)
    assert (done.status, done.stdout) == (0, b"1\n2\n")


@pytest.mark.parametrize(
    ("sh", "why"),
    [(None, "No such file or directory"), ("#!/bin/bash\necho 'Cannot fork' >&2\nexit 2\n", "sh ended with status 2")],
)
@pytest.mark.parametrize(
    "line", ["tarproc -c true in.tar -o out", "tarproc -s /dev/null in.tar -o out", "tarjob --spec 1 -- cat"]
)
def test_a_guard_that_does_not_start(sh: str | None, why: str, line: str, run: Run, tmp_path: Path) -> None:
    """Without `sh`, and with one that can start no process."""
    (tmp_path / "in.tar").write_bytes(make_tar(make_samples(1)))
    (tmp_path / "programs").mkdir()
    (tmp_path / "tmp").mkdir()
    for name in ("bash", "cat"):
        (tmp_path / "programs" / name).symlink_to(shutil.which(name) or "")
    if sh is not None:
        (tmp_path / "programs/sh").write_text(sh)
        (tmp_path / "programs/sh").chmod(0o755)
    name, *words = line.split()
    environment = {"PATH": str(tmp_path / "programs"), "TMPDIR": str(tmp_path / "tmp")}
    said = run(name, *words, env=environment, real=True).failure()
    assert re.fullmatch(f"{name}: cannot start `sh`, .*: {why}\n", said)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.tar", "programs", "tmp"]
    assert list((tmp_path / "tmp").iterdir()) == []
