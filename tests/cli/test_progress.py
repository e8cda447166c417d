"""Progress on a terminal: who draws it, what it says, what is printed beside it, and that it ends."""

from __future__ import annotations

import contextlib
import os
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
from tests.conftest import clean_environment, make_samples, make_tar, members_of, python
from tests.show import test_pager as pager
from tests.tiers import exhaustive

ESCAPE = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")
DRAWING = re.compile(rb"(?:\x1bD\x1b\[A)?\x1b7.*?\x1b8(?:\x1b\[J)?", re.DOTALL)  # leaves the cursor where it was
TAKEN, GIVEN_BACK = b"\x1b[1;23r", b"\x1b7\x1b[r\x1b[24H\x1b[m\x1b[2K\x1b8"  # the last of 24 lines
QUICK = f"""#!{sys.executable}
import importlib, sys
from tartools.cli import progress
progress.FIRST_DRAW_SECONDS = progress.DRAW_SECONDS = 0.1
name = sys.argv[0].rpartition("/")[2]
sys.exit(getattr(importlib.import_module("tartools.commands." + name), name)())
"""


class Terminal(pager.Terminal):
    """A pseudo-terminal, and a shell line that runs on it; all that is drawn stays in `output`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        quick = folder / ".quick"  # the commands, with a progress that does not wait for a second
        quick.mkdir()
        (quick / "tarcat").write_text(QUICK)
        (quick / "tarcat").chmod(0o755)
        for name in ("tarpcat", "tarproc", "tarfirst", "tar2tsv", "tarsplit", "tarsort", "tarshow", "tarjob"):
            (quick / name).symlink_to("tarcat")

    def start(self, line: str, **environment: str) -> subprocess.Popen[bytes]:
        """Run *line* in bash, with stdin, stdout and stderr on the terminal."""
        path = f"{self._folder}/.quick{os.pathsep}{clean_environment()['PATH']}"
        super().__init__(line, self._folder, {"TERM": "xterm", "PATH": path} | environment, (80, 24))
        return self.process

    def read_until(self, wanted: Callable[[bytes], object]) -> None:
        """Read what is drawn until it is *wanted*; a minute without anything is a failure."""
        while not wanted(self.output):
            assert select.select([self.fd], [], [], 60)[0], self.output
            self.output += os.read(self.fd, 65536)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A terminal in `tmp_path`, where there are two fifos, `slow` and `clock`."""
    os.mkfifo(tmp_path / "slow")
    os.mkfifo(tmp_path / "clock")
    found = Terminal(tmp_path)
    yield found
    found.close()


@pytest.fixture
def fed(tmp_path: Path) -> Iterator[threading.Event]:
    """An event; each fifo has an archive of 100 samples, of which the second half comes when it is set."""
    go = threading.Event()
    archive = make_tar(make_samples(100))

    def feed(name: str) -> None:
        with contextlib.suppress(BrokenPipeError), (tmp_path / name).open("wb") as file:
            file.write(archive[: len(archive) // 2])
            file.flush()
            go.wait(60)
            file.write(archive[len(archive) // 2 :])

    writers = [threading.Thread(target=feed, args=[name], daemon=True) for name in ("slow", "clock")]
    for writer in writers:
        writer.start()
    yield go
    go.set()
    for name in ("slow", "clock"):  # a test may read but one of them
        os.close(os.open(tmp_path / name, os.O_RDONLY | os.O_NONBLOCK))
    for writer in writers:
        writer.join(60)


CLOCK = "tarfirst --progress -k 000099 -f cls clock > /dev/null & "  # what it draws shows that the time is over


@pytest.mark.parametrize(
    ("line", "who"),
    [
        ("tarcat slow | tarpcat | tarproc -c true > out.tar", "tarproc"),
        ("tarcat slow > out.tar", "tarcat"),
        ("tarcat slow -o out.tar", "tarcat"),
        ("tarcat slow | head -c 1000000 > out.tar", ""),
        ("tarcat slow -o 'pipe:cat > out.tar'", ""),
        ("tarcat slow -o >(cat > out.tar)", ""),
        ("tarcat slow -o out.tar 2> log", ""),
        ("tarcat --progress slow | cat > out.tar", "tarcat"),
        ("tar2tsv -f cls slow", ""),
        ("tarsplit -n 9 slow -o out", "tarsplit"),
        ("tarshow -f cls --html page.html slow", "tarshow"),
        ("tarjob --spec slow -- cksum", "tarjob"),
        pytest.param("tarcat slow | tarpcat -o out.tar", "tarpcat", marks=exhaustive),
        pytest.param("tarcat slow -o out.tar | cat", "tarcat", marks=exhaustive),
        pytest.param("tarcat slow -o file:out.tar", "tarcat", marks=exhaustive),
        pytest.param("tarcat slow -o /dev/null", "tarcat", marks=exhaustive),
        pytest.param("tarcat -q slow -o out.tar", "", marks=exhaustive),
        pytest.param("tarsplit -n 9 slow -o out | cat", "tarsplit", marks=exhaustive),
        pytest.param("tarshow -f cls slow", "", marks=exhaustive),
        pytest.param("tarjob --spec slow -- cksum | cat > out.tar", "tarjob", marks=exhaustive),
    ],
)
def test_who_draws(line: str, who: str, terminal: Terminal, fed: threading.Event) -> None:
    terminal.start(f"set -o pipefail; {CLOCK}{line}; status=$?; wait; exit $status")
    drawn = {name for name in ("tarfirst", who) if name}
    terminal.read_until(lambda seen: all(seen.count(b"\x1b[2K%b" % name.encode()) > 2 for name in drawn))
    fed.set()
    assert terminal.end()[0] == 0
    assert {name.decode() for name in re.findall(rb"tar[a-z0-9]+", b"".join(DRAWING.findall(terminal.output)))} == drawn
    assert terminal.output.count(GIVEN_BACK) == len(drawn)


def test_outputs_in_stores_are_files(terminal: Terminal) -> None:
    urls = "'s3://b/a.tar', 'https://h/a?b', '-'"
    program = f"from tartools.cli.progress import is_shown_by_default as shown; print(*map(shown, [{urls}]))"
    terminal.start(f'{sys.executable} -c "{program}"')
    terminal.read_until(lambda seen: b"\n" in seen)
    assert terminal.end()[0] == 0
    assert terminal.output == b"True True False\r\n"


def test_a_pipe_to_a_file(terminal: Terminal, fed: threading.Event, tmp_path: Path) -> None:
    terminal.start("set -o pipefail; cat slow | tarproc -c true > out.tar")
    terminal.read_until(lambda seen: b" samples, " in seen)
    fed.set()
    assert terminal.end()[0] == 0
    assert re.search(rb"tarproc [0-9]+ samples, [0-9.]+ k?B, [0-9.]+ [kM]?B/s", ESCAPE.sub(b"", terminal.output))
    assert DRAWING.sub(b"", terminal.output) == b""
    assert terminal.output.endswith(GIVEN_BACK)
    assert (tmp_path / "out.tar").read_bytes() == make_tar(make_samples(100))


def test_what_commands_print_stands_above(terminal: Terminal, fed: threading.Event) -> None:
    """Those of tarjob by way of tarjob, those of tarproc on their own: nothing draws over it."""
    lines = [b"line 0\r\n", b"line 1\r\n", b"tarjob: 2: ended with status 3: bad\r\n", b"line 3"]
    terminal.start(
        "tarjob -j 1 --spec '{0..3}' -- "
        'bash -c \'test {} != 3 || cat slow > /dev/null; test {} != 2 || { echo bad >&2; exit 3; }; printf "line {}";'
        "test {} = 3 || echo'"
    )
    terminal.read_until(lambda seen: b"0 left" in ESCAPE.sub(b"", seen))
    fed.set()
    assert terminal.end()[0] == 1
    assert "2 done, 1 running, 1 failed, 0 left, " in ESCAPE.sub(b"", terminal.output).decode()
    assert TAKEN in terminal.output
    assert DRAWING.sub(b"", terminal.output) == b"".join(lines)


def test_what_runs_in_tarproc_prints_above(terminal: Terminal, fed: threading.Event, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar(make_samples(4)))
    line = f"echo sample \\$TAR_INDEX >&2; test \\$TAR_INDEX != 2 || cat {tmp_path}/slow > /dev/null"
    terminal.start(f'tarproc -c "{line}" --count 3 a.tar -o out.tar')
    terminal.read_until(lambda seen: b"2 of 3 samples, " in ESCAPE.sub(b"", seen))  # -c and --count are the total
    fed.set()
    assert terminal.end()[0] == 0
    assert DRAWING.sub(b"", terminal.output) == b"".join(b"sample %d\r\n" % n for n in range(3))
    assert members_of((tmp_path / "out.tar").read_bytes()) == make_samples(3)


def test_a_new_size(terminal: Terminal, fed: threading.Event) -> None:
    terminal.start("tarcat slow > out.tar")
    terminal.read_until(lambda seen: TAKEN in seen)
    terminal.resize(30, 10)
    terminal.read_until(lambda seen: b"\x1b[1;9r" in seen)
    terminal.resize(30, 2)  # too few: what is drawn may go wrong, but the run does not
    fed.set()
    assert terminal.end()[0] == 0
    last = ESCAPE.sub(b"", terminal.output[terminal.output.rindex(b"\x1b[1;9r") :])
    assert all(len(text.decode()) < 30 for text in re.findall(rb"tarcat[^\x1b]*", last))


def test_nothing_is_drawn_in_the_background(terminal: Terminal, fed: threading.Event) -> None:
    """Of two, the one that has the terminal draws."""
    terminal.start("set -m; tarcat slow > out.tar & tarpcat clock > other.tar; wait")
    terminal.read_until(lambda seen: seen.count(b"tarpcat") > 2)
    fed.set()
    assert terminal.end()[0] == 0
    assert b"tarcat" not in b"".join(DRAWING.findall(terminal.output))


def test_phases(terminal: Terminal, fed: threading.Event, tmp_path: Path) -> None:
    terminal.start("tarsort slow -o 'pipe:until test -e go; do sleep 0.05; done; cat > out.tar' --progress")
    terminal.read_until(lambda seen: b"tarsort: reading 56 samples, " in ESCAPE.sub(b"", seen))
    fed.set()
    terminal.read_until(lambda seen: b"tarsort: writing " in ESCAPE.sub(b"", seen))
    (tmp_path / "go").touch()
    assert terminal.end()[0] == 0
    assert b" of 100 samples" in ESCAPE.sub(b"", terminal.output)
    assert members_of((tmp_path / "out.tar").read_bytes()) == make_samples(100)


def test_phases_of_tarsplit(terminal: Terminal, fed: threading.Event, tmp_path: Path) -> None:
    """The first shard waits to be sent away, when four more are full."""
    terminal.start("cat slow | tarsplit --shards 10 -o out --post 'until test -e go; do sleep 0.05; done # {}'")
    terminal.read_until(lambda seen: re.search(rb"tarsplit: copying [0-9.]+ kB, ", ESCAPE.sub(b"", seen)))
    fed.set()
    terminal.read_until(lambda seen: b" 50 of 100 samples" in ESCAPE.sub(b"", seen))
    (tmp_path / "go").touch()
    assert terminal.end()[0] == 0
    assert b"tarsplit: writing " in ESCAPE.sub(b"", terminal.output)
    names = [f"out-{n:06d}.tar" for n in range(10)]
    assert DRAWING.sub(b"", terminal.output) == b"".join(name.encode() + b"\r\n" for name in names)
    assert [members_of((tmp_path / name).read_bytes()) for name in names] == [
        make_samples(10, 10 * n) for n in range(10)
    ]


def test_what_remains_is_told(terminal: Terminal, tmp_path: Path) -> None:
    """Of two shards, of which the second one is slow: it is a file, and its filter waits."""
    for name in ("a.tar", "b.tar"):
        (tmp_path / name).write_bytes(make_tar(make_samples(50)))
    terminal.start("tarcat a.tar b.tar -o 'pipe:cat < slow > /dev/null; cat > out.tar' --progress")
    terminal.read_until(lambda seen: seen.count(b"shards") > 1)
    (tmp_path / "slow").open("wb").close()
    assert terminal.end()[0] == 0
    drawn = ESCAPE.sub(b"", terminal.output)
    assert re.search(rb"100 samples, 2 of 2 shards, [0-9.]+ of [0-9.]+ kB", drawn) or b"all is read" in drawn


def test_a_dumb_terminal_gets_lines(terminal: Terminal, fed: threading.Event) -> None:
    terminal.start("tarcat slow > out.tar", TERM="dumb")
    terminal.read_until(lambda seen: b"so far" in seen)
    fed.set()
    assert terminal.end()[0] == 0
    assert b"\x1b" not in terminal.output
    assert re.search(rb"tarcat: [0-9]+ samples, .* so far", terminal.output)


def test_a_signal_takes_it_away(terminal: Terminal, fed: threading.Event, tmp_path: Path) -> None:
    process = terminal.start("exec tarcat slow > out.tar")
    terminal.read_until(lambda seen: b" samples, " in seen)
    os.kill(process.pid, signal.SIGTERM)
    assert terminal.end()[0] == -signal.SIGTERM
    assert terminal.output.endswith(GIVEN_BACK)


def test_processes_are_forked_beside_it(tmp_path: Path) -> None:
    """With the real sizes of pieces: an archive of 80 MB."""
    with (tmp_path / "a.tar").open("wb") as file:
        for n in range(800):
            file.write(entry(b"%06d.bin" % n, bytes([n % 256]) * 100_000) + entry(b"%06d.cls" % n, b"%d" % n))
        file.write(END)
    program = """
import os, sys
from tartools.commands.tar2tsv import tar2tsv
from tartools.cli import progress
progress.FIRST_DRAW_SECONDS = progress.DRAW_SECONDS = 0.01
os.sched_getaffinity = lambda _: range(2)
fork, forks = os.fork, []
os.fork = lambda: forks.append(fork()) or forks[-1]
status = tar2tsv.main(["--progress", "-f", "cls __size__", "a.tar", "-o", "out.tsv"])
print(status, len(forks))
"""
    done = python(program, folder=tmp_path)
    assert (done.status, done.stdout) == (0, b"0 2\n")
    assert "so far" in done.stderr
    rows = b"".join(b"%06d\t%d\t101888\n" % (n, n) for n in range(800))
    assert (tmp_path / "out.tsv").read_bytes() == b"__key__\tcls\t__size__\n" + rows


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
    assert python(program, folder=tmp_path) == (0, b"[0]\n", "")
