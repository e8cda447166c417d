"""Decompressing in a child process: the same bytes, the same failures, and nothing is left of it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tartools.errors import shown
from tartools.tar.compression import CODECS
from tests.conftest import BIN, Result, has_end, make_tar, members_of, python, running
from tests.processes import alive, until
from tests.shards.counted import PROGRAM
from tests.tar.test_compression import compress
from tests.tiers import by_turns

SAMPLES = 600  # of 17 KiB: 10 MiB, of which a child reads the last six
NAMES = [f"big{codec.suffixes[0]}" for codec in CODECS]


def payload(number: int) -> bytes:
    """Return up to 26 KiB, 12 on average, of which one does not compress."""
    return random.Random(number).randbytes(1024) + bytes(range(number % 200, 256)) * 99


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one archive in all compressions."""
    folder = tmp_path_factory.mktemp("big")
    tar = make_tar([(f"{n:06d}.bin", payload(n)) for n in range(SAMPLES)])
    (folder / "big.tar").write_bytes(tar)
    for codec, name in zip(CODECS, NAMES, strict=True):
        (folder / name).write_bytes(compress(codec, tar))
    return folder


Counted = Callable[..., Result]


@pytest.fixture
def counted(big: Path) -> Counted:
    """Return a function that runs a command in the folder *big*: `counted("count", "tarcat", "big.tgz")`."""

    return partial(python, PROGRAM, folder=big)


@pytest.fixture
def tarcat(big: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Return a function that starts tarcat in the folder *big*; what still runs at the end is killed."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True}
    with ExitStack() as started:
        yield lambda *arguments, **options: started.enter_context(
            running([BIN / "tarcat", *arguments], cwd=big, **pipes, **options)
        )


def child_of(process: subprocess.Popen[bytes], read: int = 5 << 20) -> int:
    """Read some MiB of what *process* writes; return its child, when there is one."""
    assert process.stdout is not None
    while read > 0 and (data := process.stdout.read1(read)):  # type: ignore[attr-defined]
        read -= len(data)
    ours = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    while process.poll() is None:
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                after = (place / "stat").read_text().rpartition(")")[2].split()
                if int(after[1]) == process.pid and (place / "cmdline").read_bytes() == ours:
                    return int(place.name)
    raise AssertionError(f"it ended with {process.returncode} and no child")


linux = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="children are found in /proc")


@by_turns("source")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("source", ["file", "stdin", "command"])
def test_the_bytes_are_the_same(counted: Counted, big: Path, name: str, source: str) -> None:
    url = {"file": name, "stdin": "-", "command": f"pipe:cat {name}"}[source]
    done = counted("count", "tarcat", url, stdin=(big / name).read_bytes() if source == "stdin" else b"")
    assert (done.status, done.stderr) == (0, "1\n")
    assert done.stdout == (big / "big.tar").read_bytes()


@pytest.mark.parametrize(
    ("way", "url"), [("count", "big.tar"), ("count", "-"), ("thread", "big.tgz"), ("refuse", "big.tgz")]
)
def test_there_is_no_child_for_what_is_plain_beside_threads_or_where_none_can_be_had(
    counted: Counted, big: Path, way: str, url: str
) -> None:
    done = counted(way, "tarcat", url, stdin=(big / "big.tar").read_bytes() if url == "-" else b"")
    assert (done.status, done.stderr) == (0, "0\n")
    assert done.stdout == (big / "big.tar").read_bytes()


def test_there_is_no_child_for_what_is_small(counted: Counted, big: Path, tmp_path: Path) -> None:
    small = make_tar([(f"{n:06d}.bin", payload(n)) for n in range(100)])
    names = []
    for codec in CODECS:
        names.append(str(tmp_path / f"small{codec.suffixes[0]}"))
        Path(names[-1]).write_bytes(compress(codec, small))
    done = counted("count", "tarcat", "--rekey", "{index}", *names)
    assert (done.status, done.stderr, len(members_of(done.stdout))) == (0, "0\n", 500)


@pytest.mark.parametrize(("count", "forks"), [(100, 0), (500, 1)])
def test_there_is_no_child_before_enough_was_read_and_none_after(counted: Counted, count: int, forks: int) -> None:
    done = counted("count", "tarcat", "-c", count, "pipe:while cat big.tgz; do :; done" if forks else "big.tgz")
    assert (done.status, done.stderr, len(members_of(done.stdout))) == (0, f"{forks}\n", count)


def test_there_are_not_too_many_children(counted: Counted, big: Path) -> None:
    done = counted("count", "tarcat", "--interleave", 18, "--rekey", "{index}", *["big.tgz"] * 18)
    assert (done.status, done.stderr) == (0, "16\n")
    assert [data for _, data in members_of(done.stdout)] == [payload(n) for n in range(SAMPLES) for _ in range(18)]


def test_the_python_functions_never_fork(big: Path) -> None:
    program = "import os, sys, tartools\nos.fork = None\nprint(sum(1 for _ in tartools.read(sys.argv[1])))"
    for name in NAMES:
        done = python(program, big / name)
        assert (done.stdout, done.stderr) == (b"%d\n" % SAMPLES, "")


@by_turns("source", "cut")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("source", ["file", "command"])
@pytest.mark.parametrize("cut", [1 / 3, 100, 1])
def test_a_cut_is_the_same_failure(counted: Counted, big: Path, name: str, source: str, cut: float) -> None:
    """Of a third, or of so many bytes."""
    whole = (big / name).read_bytes()
    (big / "cut").write_bytes(whole[: -int(cut if cut >= 1 else cut * len(whole))])
    url = "cut" if source == "file" else "pipe:cat cut"
    check_same_failure(counted, url, shown(url))


@by_turns("place")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("place", [2 / 3, 3 / 4, 1])
def test_damage_is_the_same_failure(counted: Counted, big: Path, name: str, place: float) -> None:
    damaged = bytearray((big / name).read_bytes())
    at = min(int(len(damaged) * place), len(damaged) - 3)
    damaged[at : at + 2] = bytes(byte ^ 0x55 for byte in damaged[at : at + 2])
    (big / "damaged").write_bytes(damaged)
    check_same_failure(counted, "damaged", "at byte")


def check_same_failure(counted: Counted, url: str, said: str) -> None:
    """Check that tarcat of *url* fails with and without a child in the same way."""
    here, there = counted("refuse", "tarcat", url), counted("count", "tarcat", url)
    assert there.stderr == here.stderr.replace("\n0\n", "\n1\n") and said in here.stderr
    assert there.status == here.status == 1
    assert there.stdout == here.stdout and not has_end(there.stdout)


@pytest.mark.parametrize("tail", ["", "; head -c 5 big.tar", "; head -c 50 big.tar"], ids=["end", "scrap", "garbage"])
@pytest.mark.parametrize("command", ["cat big.tgz", "head -c 600000 big.tgz"], ids=["whole", "cut"])
def test_a_command_that_fails_at_its_end_is_the_same_failure(counted: Counted, command: str, tail: str) -> None:
    url = f"pipe:{command}{tail}; exit 3"
    here, there = counted("refuse", "tarcat", url), counted("count", "tarcat", url)
    assert there.stderr == here.stderr.replace("\n0\n", "\n1\n")
    assert tail or "the command ended with status 3" in there.stderr
    assert there.status == here.status == 1 and not has_end(there.stdout)


@pytest.mark.parametrize("name", NAMES)
def test_a_child_that_is_killed_is_a_failure(counted: Counted, big: Path, name: str) -> None:
    before = set(os.listdir(big))
    assert counted("kill", "tarcat", name, "-o", "new.tar").status == 1 and set(os.listdir(big)) == before
    done = counted("kill", "tarcat", name)
    assert done.status == 1 and not has_end(done.stdout)
    assert done.stderr.startswith(f"tarcat: {name}: the process that reads this was ended by SIGKILL")
    assert done.stderr.count("\n") == 2


def test_a_bug_in_the_child_shows_its_traceback(counted: Counted) -> None:
    done = counted("break", "tarcat", "big.tgz")
    assert done.status == 1 and not has_end(done.stdout)
    assert "RuntimeError: " in done.stderr and "ZeroDivisionError" in done.stderr


def test_what_the_child_reads_is_counted(big: Path) -> None:
    program = """
import os, sys
from tartools.errors import in_command
from tartools.shards import reading
from tartools.samples.account import Account
with in_command():
  for url in sys.argv[1:]:
    account = Account()
    stream = reading.ShardStream(url, account)
    room = memoryview(bytearray(1 << 20))
    while stream.readinto(room):
        assert account.bytes_in <= os.path.getsize(url)
    assert stream.readinto(room) == 0
    assert account.bytes_in == os.path.getsize(url), (account.bytes_in, url)
    assert stream._forked._child is not None
    stream.close()
"""
    python(program, *NAMES, folder=big).output()


def test_a_fork_does_not_fork_again(big: Path) -> None:
    program = """
import os, sys
from tartools.errors import in_command
from tartools.shards import forks, reading
from tartools.samples.account import Account
def read(pipe):
    stream = reading.ShardStream(sys.argv[1], Account())
    count, room = 0, memoryview(bytearray(1 << 20))
    while size := stream.readinto(room):
        count += size
    os.write(pipe, b"%d %d" % (count, stream._forked._child is not None))
with in_command():
    fork = forks.Fork(read)
    print(fork.pipe.read(100).decode())
    fork.end()
"""
    done = python(program, "big.tgz", folder=big)
    assert (done.stdout, done.stderr) == (b"%d 0\n" % os.path.getsize(big / "big.tar"), "")


@linux
@by_turns("to")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
@pytest.mark.parametrize("to", ["us", "all"])
def test_signals(tarcat: Callable[..., subprocess.Popen[bytes]], number: int, to: str) -> None:
    process = tarcat("big.tgz")
    child = child_of(process)
    assert alive(child)  # for nobody reads what we write
    (os.kill if to == "us" else os.killpg)(process.pid, number)
    assert process.communicate(timeout=60)[1] == b""
    assert process.returncode == -number
    until(lambda: not alive(child), "the end of the child")


@linux
def test_signals_are_not_for_the_child(tarcat: Callable[..., subprocess.Popen[bytes]], big: Path) -> None:
    process = tarcat("big.tgz")
    child = child_of(process)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(child, number)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (0, b"")
    assert (big / "big.tar").read_bytes().endswith(stdout)


@linux
def test_a_reader_that_leaves(tarcat: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = tarcat("big.tgz")
    child = child_of(process)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.wait(60) == -signal.SIGPIPE
    assert not alive(child)
    assert process.stderr.read() == b""


@linux
def test_a_child_that_waits_for_stdin_ends_with_us(tarcat: Callable[..., subprocess.Popen[bytes]], big: Path) -> None:
    process = tarcat(stdin=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    data = (big / "big.tgz").read_bytes()
    process.stdin.write(data[: len(data) * 9 // 10])
    process.stdin.flush()
    child = child_of(process, 6 << 20)
    assert alive(child)  # it waits for the last tenth
    process.kill()
    until(lambda: not alive(child), "the end of the child")


@linux
def test_the_child_holds_nothing_but_what_it_needs(tarcat: Callable[..., subprocess.Popen[bytes]], big: Path) -> None:
    process = tarcat("-o", "pipe:cat > held", stdin=subprocess.PIPE)
    assert process.stdin is not None
    data = (big / "big.tgz").read_bytes()
    process.stdin.write(data[: len(data) * 9 // 10])
    process.stdin.flush()
    deadline = time.monotonic() + 60
    while not (big / "held").exists() and time.monotonic() < deadline:
        os.sched_yield()  # what would become the command is no child that we mean
    child = child_of(process, 0)  # it waits for the last tenth
    source = os.readlink(f"/proc/{process.pid}/fd/0")
    while len(held := [place for place in held_by(child) if place != "/dev/null"]) > 2 and time.monotonic() < deadline:
        os.sched_yield()
    assert source in held and len(held) == 2 and all(place.startswith("pipe:") for place in held)
    process.stdin.write(data[len(data) * 9 // 10 :])
    process.stdin.close()
    assert process.wait(60) == 0 and not alive(child)
    assert (big / "held").read_bytes() == (big / "big.tar").read_bytes()


def held_by(pid: int) -> list[str]:
    """Return what the descriptors of *pid* lead to."""
    places = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            places.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return places


@pytest.mark.parametrize("options", [[], ["-c", "500"]], ids=["all", "some"])
def test_an_output_that_is_a_command_sees_its_end(counted: Counted, big: Path, options: list[str]) -> None:
    done = counted("count", "tarcat", *options, "-o", "pipe:cat > out", "big.tgz")
    assert (done.status, done.stderr) == (0, "1\n")
    assert (
        members_of((big / "out").read_bytes()) == members_of((big / "big.tar").read_bytes())[: 500 if options else None]
    )
