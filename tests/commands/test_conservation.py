"""Memory and open files are bounded, whatever comes, through the installed commands.

That accounts add up: `tests.samples.test_account`, `test_every_command`; what a failure leaves: `test_nothing_left`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import BIN, clean_environment, make_tar, members_of, start
from tests.tiers import also, exhaustive

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
        done = start("bash", "-c", 'ulimit -n 40; exec "$@"', "bash", *line, folder=tmp_path)
        assert (done.status, done.stderr) == (0, "")
        assert len(members_of(done.stdout)) == (60 if len(line) > 50 else 1500)
