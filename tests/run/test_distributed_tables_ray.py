"""A shuffle larger than one machine: 200 shards in S3 are indexed, shuffled and split as tables, and copied on Ray."""

from __future__ import annotations

import hashlib
import os
import random
import re
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import BIN, Result, Run, make_tar, members_of
from tests.processes import PATIENCE, until
from tests.run.conftest import Cluster, started, without_ray
from tests.run.test_ray import SLOTS, closed, commands, parent, waiting
from tests.storage.objects import servers
from tests.storage.objects.sites import S3Site
from tests.tiers import exhaustive

SHARDS, SAMPLES = 200, 4
LIMIT = 220_000  # bytes of an output shard
BLOCK = 512


def shard(number: int) -> bytes:
    """Return a shard of some samples of different sizes."""
    draw = random.Random(number)
    return make_tar(
        [
            member
            for n in range(SAMPLES)
            for member in (
                (f"{number:03d}/{n}.cls", b"%d" % draw.randrange(10)),
                (f"{number:03d}/{n}.bin", draw.randbytes(draw.randrange(100, 3000))),
            )
        ]
    )


def digests(archive: bytes) -> list[str]:
    """Return a digest of each sample of *archive*, in order: of its names and payloads."""
    found: dict[str, hashlib.blake2b] = {}
    for name, payload in members_of(archive):
        found.setdefault(name.partition(".")[0], hashlib.blake2b()).update(
            b"%s\0%d\0%s" % (name.encode(), len(payload), payload)
        )
    return [one.hexdigest() for one in found.values()]


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3Site]:
    """Give a bucket, on a server of its own, that has the shards."""
    with servers.process(tmp_path / ".s3", "s3") as url:
        site = S3Site(url, "bucket")
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda n: site.put(f"raw-{n:03d}.tar", shard(n)), range(SHARDS)))
        yield site


@pytest.fixture
def cluster(s3: S3Site) -> Iterator[Cluster]:
    """Give a cluster whose nodes have the credentials of the bucket."""
    with started(2, **s3.env) as cluster:
        yield cluster


@contextmanager
def copying(folder: Path, cluster: Cluster, s3: S3Site, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Give tarjob, which copies the parts on *cluster*. Each copy waits in the middle while `closed` runs."""
    line = "tarcat {} | { head -c 50000; flock -s gate true; cat; } | tarcat -o s3://bucket/train/{/.}.tar"
    words = ["bash", "-o", "pipefail", "-c", line]
    where = ["-v", "--engine", "ray", "--address", cluster.address, "-o", "s3://bucket/train/{/.}.tar", *options]
    with subprocess.Popen(
        [BIN / "tarjob", *where, "-s", "part-*.parquet", "--", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=without_ray() | s3.env,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
            process.communicate()
            until(lambda: not commands(folder))


@exhaustive
def test_every_sample_is_copied_once(s3: S3Site, cluster: Cluster, run: Run, tmp_path: Path) -> None:
    def good(*line: str) -> Result:
        done = run(*line, env=s3.env)
        assert (done.status, done.stderr) == (0, "")
        return done

    good("tarindex", "-p", "1", "-f", "cls", "s3://bucket/raw-*.tar", "-o", "t.parquet")
    good("tarsort", "-S", "shuffle", "--seed", "7", "t.parquet", "-o", "epoch.parquet")
    parts = good("tarsplit", "-s", str(LIMIT), "epoch.parquet", "-o", "part-%06d.parquet").stdout.decode().split()
    assert len(parts) > 2 * SLOTS
    with copying(tmp_path, cluster, s3) as process:
        with closed(tmp_path):
            until(lambda: len(waiting(tmp_path)) == SLOTS)
            before = set(waiting(tmp_path))
            os.kill(worker_of(min(before)), signal.SIGKILL)
            until(lambda: len(before & set(waiting(tmp_path))) == SLOTS - 1)
            until(lambda: len(waiting(tmp_path)) == SLOTS)
        printed, said = process.communicate(timeout=5 * PATIENCE)
    assert (printed, process.returncode) == ("", 0), said
    assert re.fullmatch(rf"tarjob: {len(parts)} items: {len(parts)} done, 0 failed, .*\n", said)

    names = [f"train/{Path(part).stem}.tar" for part in parts]
    assert [name for name in s3.names() if name.startswith("train/")] == names
    made = [s3.get(name) or b"" for name in names]
    expected = [one for number in range(SHARDS) for one in digests(shard(number))]
    found = [one for archive in made for one in digests(archive)]
    assert len(found) == len(set(found)) == SHARDS * SAMPLES
    assert set(found) == set(expected) and found != expected
    assert max(map(len, made)) <= LIMIT
    assert min(map(len, made[:-1])) > LIMIT - 10240 - largest_sample()
    assert s3.pending() <= 1  # of the worker that was killed

    stamps = [(name, s3.get(name)) for name in names]
    with copying(tmp_path, cluster, s3) as process:
        printed, said = process.communicate(timeout=5 * PATIENCE)
    assert (printed, process.returncode) == ("", 0), said
    assert f"\ntarjob: {len(parts)} items: 0 done, {len(parts)} there before, 0 failed, " in said
    assert [(name, s3.get(name)) for name in names] == stamps


def worker_of(number: int) -> int:
    """Return the number of the Ray worker that runs process *number*."""
    while "ray::" not in Path(f"/proc/{number}/cmdline").read_text():
        number = parent(number)
    return number


def largest_sample() -> int:
    """Return how many bytes the largest sample takes in an archive."""
    return 2 * BLOCK + BLOCK + -(-3000 // BLOCK) * BLOCK
