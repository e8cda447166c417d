"""One bad shard of ten is a failure; memory and open files are bounded, whatever comes, through the installed commands.

That accounts add up: `tests.samples.test_account`, `test_every_command`; what a failure leaves: `test_nothing_left`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tartools.errors import shown
from tests.conftest import BIN, Run, clean_environment, has_end, make_samples, make_tar, members_of, start
from tests.tiers import also, by_turns, exhaustive

READERS = ["tarcat", "tarpcat -p 1", "tarpcat -p 3", "tarpcat -p 16", "tarpcat -p 3 --unordered"]


def ten_shards(folder: Path) -> list[str]:
    """Make ten shards of three samples each; return their names."""
    for n in range(10):
        (folder / f"s{n}.tar").write_bytes(make_tar(make_samples(3, 3 * n)))
    return [f"s{n}.tar" for n in range(10)]


TROUBLES = {
    "missing": "nope.tar",
    "cut": "cut.tar",
    "empty": "empty.tar",
    "garbage": "garbage.tar",
    "pipe fails": "pipe:cat s5.tar; exit 3",
    "pipe fails at once": "pipe:exit 3",
    "pipe fails early": "pipe:head -c 700 s5.tar; exit 3",
    "pipe is killed": "pipe:cat s5.tar; kill -9 $$",
}


@pytest.mark.parametrize("line", [*READERS, "tarsort"])
@pytest.mark.parametrize("bad", TROUBLES.values(), ids=TROUBLES)
@by_turns("line")
def test_one_of_ten_shards_fails(line: str, bad: str, run: Run, tmp_path: Path) -> None:
    """Status 1, no end, no -o output, no hang, and no process of a `pipe:` left."""
    shards = ten_shards(tmp_path)
    (tmp_path / "cut.tar").write_bytes((tmp_path / "s5.tar").read_bytes()[:2000])
    (tmp_path / "empty.tar").write_bytes(b"")
    (tmp_path / "garbage.tar").write_bytes(b"garbage" * 1000)
    mark = f"8{os.getpid()}.5"
    waiting = f"pipe:cat s9.tar; exec sleep {mark}"  # the last shard would keep its reader waiting
    inputs = [*shards[:5], bad, *shards[6:9], waiting]
    for output in ([], ["-o", "out.tar"]):
        done = run(*line.split(), *output, *inputs)
        assert done.status == 1, done.stderr
        assert re.fullmatch(rf"{line.split(maxsplit=1)[0]}: {re.escape(shown(bad))}: [^\n]+\n", done.stderr)
        assert not has_end(done.stdout)
        assert not (tmp_path / "out.tar").exists()
        running = subprocess.run(["pgrep", "-f", f"sleep {mark}"], capture_output=True, check=False).stdout
        assert running == b""
        if line.startswith("tarpcat") and "--unordered" not in line:
            assert done.stdout == run("tarcat", *output, *inputs).stdout


MEASURE = """
import os, subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(child.pid, 0)
print(status, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))
"""


def peak_memory(line: list[str], feeder: str, folder: Path) -> int:
    """Run *line* on what the Python program *feeder* writes; return its peak of resident memory in bytes.

    A small process in between starts it: the peak of a child counts what its parent held when it was forked.
    """
    source = subprocess.Popen([sys.executable, "-c", feeder], stdout=subprocess.PIPE)
    with source:
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, BIN / line[0], *line[1:]],
            stdin=source.stdout,
            stdout=subprocess.PIPE,
            cwd=folder,
            env=clean_environment() | {"TMPDIR": str(folder)},
            check=True,
        )
    status, peak = map(int, done.stdout.split())
    assert (status, source.returncode) == (0, 0)
    return peak


FEED = """
import sys, tarfile
sizes = {sizes}
block = bytes(1 << 20)
for n, size in enumerate(sizes):
    info = tarfile.TarInfo("%06d.bin" % n)
    info.size = size
    sys.stdout.buffer.write(info.tobuf(tarfile.GNU_FORMAT))
    for _ in range(size >> 20):
        sys.stdout.buffer.write(block)
    sys.stdout.buffer.write(block[: size & 0xFFFFF])
    sys.stdout.buffer.write(bytes(-size % 512))
sys.stdout.buffer.write(bytes(10240))
"""
MANY, SMALL, ONE = "[1 << 20] * ({mib} * 2)", "[100_000] * ({mib} * 20)", "[5, {mib} << 20, 7]"
LIMIT = 200_000_000  # bytes of resident memory


@pytest.mark.parametrize(
    ("line", "sizes"),
    [
        (["tarcat"], MANY),
        (["tarcat"], SMALL),
        (["tarcat"], ONE),
        (["tarcat", "--shuffle", "2"], ONE),
        (["tarpcat", "-p", "2", "-M", "20M"], ONE),
        pytest.param(["tarpcat", "-p", "2"], ONE, marks=exhaustive),
    ],
    ids=["tarcat", "tarcat small", "tarcat one", "tarcat --shuffle", "tarpcat", "tarpcat as it is"],
)
@pytest.mark.parametrize("mib", [250, *also(1024)])
def test_memory_is_bounded(line: list[str], sizes: str, mib: int, tmp_path: Path) -> None:
    """That of one member of *mib* MiB, or of many that are twice as much."""
    limit = LIMIT + (256 << 20 if line == ["tarpcat", "-p", "2"] else 0)  # -M
    assert peak_memory(line, FEED.format(sizes=sizes.format(mib=mib)), tmp_path) < limit


def test_thousands_of_shards_need_no_more_descriptors(tmp_path: Path) -> None:
    """Under a limit of 40 open files, from files and from commands."""
    for n in range(1500):
        (tmp_path / f"{n:04d}.tar").write_bytes(make_tar([(f"{n:04d}.x", b"1" * 10)]))
    for line in (
        [BIN / "tarcat", "*.tar"],
        [BIN / "tarcat", "--shuffle", "100", "*.tar"],
        [BIN / "tarcat", "--slice", "0:", "*.tar"],
        [BIN / "tarcat", *(f"pipe:cat {n:04d}.tar" for n in range(60))],
        [BIN / "tarpcat", "-p", "3", "*.tar"],
    ):
        out = start("bash", "-c", 'ulimit -n 40; exec "$@"', "bash", *line, folder=tmp_path).output()
        assert len(members_of(out)) == (60 if len(line) > 50 else 1500)
