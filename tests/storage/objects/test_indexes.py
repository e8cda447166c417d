"""tarindex of shards on servers: digests of payloads, and indexes for other tools, written beside the shards."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.conftest import Run, make_samples, make_tar
from tests.storage.objects.sites import Site

FIRST, LAST = make_samples(40), make_samples(30, 40)


@pytest.mark.parametrize("name", ["dali", "wids", "webshart", "energon"])
def test_indexes_beside_the_shards(name: str, site: Site, run: Run, tmp_path: Path) -> None:
    """The same bytes as those of the indexes of local files."""
    for folder in ("t", "t/d"):
        (tmp_path / folder).mkdir()
    for shard, members in (("d/a.tar", FIRST), ("d/b.tar", LAST)):
        (tmp_path / "t" / shard).write_bytes(make_tar(members))
        site.put(shard, make_tar(members))
    shards = [site.url("d/a.tar"), site.url("d/b.tar")]
    done = run("tarindex", "--format", name, *shards, env=site.env)
    assert (done.status, done.stdout, done.stderr) == (0, b"", "")
    assert run("tarindex", "--format", name, "t/d/a.tar", "t/d/b.tar").status == 0
    found = [path for path in (tmp_path / "t").rglob("*") if path.is_file()]
    local = {str(path.relative_to(tmp_path / "t")): path.read_bytes() for path in found}
    assert len(local) == {"dali": 4, "wids": 3, "webshart": 4, "energon": 8}[name]
    for file, content in local.items():
        assert site.get(file) == content
    again = run("tarindex", "--format", name, *shards, env=site.env)
    assert again.status == 1 and "--force" in again.stderr
    assert run("tarindex", "--force", "--format", name, *shards, env=site.env).status == 0


def test_digests_of_remote_payloads(site: Site, run: Run, tmp_path: Path) -> None:
    data = bytes(range(256)) * 100_000
    site.put("a.tar", make_tar([("a.bin", data), ("a.cls", b"7"), ("b.cls", b"8")]))
    done = run("tarindex", "--hash", "bin", "-f", "cls", site.url("a.tar"), "-o", "t.parquet", env=site.env)
    assert (done.status, done.stderr) == (0, "")
    table = pq.read_table(tmp_path / "t.parquet")
    assert table.column("bin.blake2b").to_pylist() == [hashlib.blake2b(data, digest_size=16).digest(), None]
    assert table.column("cls").to_pylist() == [7, 8]
