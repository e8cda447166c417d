"""What tar2jsonl, tar2tfrecord, tar2zip and tar2parquet, and tarcreate of what they write, have in common."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.test_conservation import FEED, peak_memory
from tests.commands.test_tfrecord import example, framed, of_bytes
from tests.conftest import Run, has_end, make_samples, make_tar, members_of
from tests.storage.objects.faults import Fault, FaultServer
from tests.tiers import by_turns

BACK = {
    "tar2jsonl": ("--format", "jsonl"),
    "tar2tfrecord": ("--tfrecord",),
    "tar2zip": ("--zip",),
    "tar2zip --deflate": ("--zip",),
    "tar2parquet": ("--parquet",),
}
MEMBERS = make_samples(30)
ARCHIVE = make_tar(MEMBERS)
each = pytest.mark.parametrize("line", BACK)


@each
def test_there_and_back_by_file_and_pipe(line: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(ARCHIVE)
    command, *options = line.split()
    done = run(command, "-v", *options, "a.tar", "-o", "a")
    assert (done.status, done.stdout) == (0, b"") and done.stderr.startswith(f"{command}: 30 samples in, 30 out, ")
    content = (tmp_path / "a").read_bytes()
    assert run(command, *options, stdin=ARCHIVE) == (0, content, "")
    back = run("tarcreate", "-v", *BACK[line], "a")
    assert back.status == 0 and back.stderr.startswith("tarcreate: 30 samples in, 30 out, ")
    assert members_of(back.stdout) == MEMBERS and has_end(back.stdout)
    assert run("tarcreate", *BACK[line], "-", stdin=content) == (0, back.stdout, "")
    assert run("tarcreate", *BACK[line], "pipe:cat a") == (0, back.stdout, "")
    assert run(command, *options, stdin=back.stdout).stdout == content


@each
@pytest.mark.parametrize("scheme", ["s3", "http"])
@by_turns("scheme")
def test_on_a_server(line: str, scheme: str, run: Run) -> None:
    command, *options = line.split()
    with FaultServer() as server:
        url = server.url(scheme, "d/a")
        assert run(command, *options, "-o", url, stdin=ARCHIVE, env=server.env) == (0, b"", "")
        assert server.objects["d/a"] == run(command, *options, stdin=ARCHIVE).stdout
        server.faults.append(Fault(name="d/a", method="GET", cut=100))
        done = run("tarcreate", *BACK[line], url, env=server.env)
        assert (done.status, members_of(done.stdout), server.faults[0].played) == (0, MEMBERS, 1)
        assert run(command, *options, "-o", server.url(scheme, "b"), stdin=ARCHIVE[:900], env=server.env).status == 1
        assert "b" not in server.objects


@pytest.mark.parametrize("line", ["tar2zip", "tar2parquet"])
def test_one_key_twice_side_by_side(line: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("a.jpg", b"1")]))
    (tmp_path / "b.tar").write_bytes(make_tar([("a.cls", b"2")]))
    assert "two samples with the key 'a' side by side" in run(line, "a.tar", "b.tar", "-o", "out").failure()


FEED_JSON = """
import sys
for n in range(800):
    sys.stdout.write('{"bin": {"@base64": "%s"}}\\n' % ('////' * 25000))
"""
FEED_PARQUET = """
import os, sys
import pyarrow as pa, pyarrow.parquet as pq
pictures = pa.array([os.urandom(100_000) for n in range(1500)], pa.binary())
table = pa.table({"cls": [str(n) for n in range(1500)], "jpg": pictures})
pq.write_table(table, pa.PythonFile(sys.stdout.buffer, "w"))  # as it is by default: pages of 1,024 values
"""
RECORD = framed(example(("x", of_bytes(b"\xff" * 15_000))))
FEEDS = {  # and the most memory that is taken
    "tar2jsonl": (FEED.format(sizes="[102_400] * 800"), 70),
    "tar2tfrecord": (FEED.format(sizes="[102_400] * 800"), 70),
    "tarcreate --format jsonl": (FEED_JSON, 70),
    "tarcreate --tfrecord -": (f"import sys\nfor n in range(5300): sys.stdout.buffer.write({RECORD!r})", 70),
    "tar2parquet": (FEED.format(sizes="[100_000] * 3000"), 300),
    "tarcreate --parquet -": (FEED_PARQUET, 600),  # what pyarrow takes for a page of 100 MB
}


@pytest.mark.parametrize("line", FEEDS)
def test_memory_is_bounded(line: str, tmp_path: Path) -> None:
    """80 MB of samples; for Parquet 300 MB, in row groups, and a single one of 150 MB."""
    feeder, most = FEEDS[line]
    assert peak_memory(line.split(), feeder, tmp_path) < most * 1_000_000
