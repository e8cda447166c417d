"""Archives that were split, in stores and on web servers: read in one pass, each part when its turn comes."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Run, make_samples, make_tar, members_of
from tests.storage.objects.fake_hf import Repository
from tests.storage.objects.hubserver import Hub
from tests.storage.objects.sites import Site
from tests.tiers import by_turns

SAMPLES = make_samples(30)
WHOLE = make_tar(SAMPLES)
PACKED = gzip.compress(WHOLE, 0, mtime=0)
TOKENS = ("aa", "ab", "ac", "ad")
STEP = -(-len(PACKED) // len(TOKENS))
PARTS = {f"x.tar.gz.part{token}": PACKED[n * STEP : (n + 1) * STEP] for n, token in enumerate(TOKENS)}


@pytest.fixture
def hub() -> Iterator[Hub]:
    """Give a hub with a data set that is one archive in parts."""
    with Hub() as hub:
        hub.data_sets["org/set"] = Repository()
        hub.data_sets["org/set"].objects |= PARTS
        yield hub
    assert hub.errors == []


def named(site: Site) -> list[str]:
    """Return arguments that name all parts: a wildcard where the store lists objects, else braces."""
    return [site.url("x.tar.gz.part") + ("{ad,aa,ac,ab}" if site.scheme == "http" else "*")]


@by_turns("source")
def test_parts_in_stores_are_read_as_one_shard(source: Site, run: Run) -> None:
    for name, data in PARTS.items():
        source.put(name, data)
    assert run("tarcat", *named(source), env=source.env).output() == WHOLE
    assert run("tarpcat", "-p", 3, *named(source), env=source.env).output() == WHOLE
    assert run("tarsort", "-s", "__key__", *named(source), env=source.env).output() == WHOLE  # reads twice
    lines = "".join(f"{source.url(name)}\n" for name in reversed(PARTS)).encode()
    assert run("tarcat", "-T", "-", stdin=lines, env=source.env).output() == WHOLE


@by_turns("source")
def test_errors_name_the_part(source: Site, run: Run) -> None:
    for name, data in PARTS.items():
        source.put(name, data)
    first, second, third, _ = map(source.url, PARTS)
    said = run("tarcat", first, third, env=source.env).failure(lines=1)
    assert said.startswith(
        f"tarcat: {source.url('x.tar.gz')}: these are the parts aa, ac of an archive that was split, "
    )
    assert "'ab', is missing: name all parts, " in said
    broken = bytearray(PARTS["x.tar.gz.partab"])
    broken[100:3000] = bytes(2900)
    source.put("x.tar.gz.partab", bytes(broken))
    said = run("tarcat", "-o", "o.tar", *named(source), env=source.env).failure(lines=1)
    assert f" of {second})" in said or f" of {third})" in said, said
    missing = source.url("x.tar.gz.partae")
    said = run("tarcat", "-o", "o.tar", *map(source.url, PARTS), missing, env=source.env).failure(lines=1)
    assert said.startswith(f"tarcat: {missing}: ") or f" of {second})" in said or f" of {third})" in said, said


def test_an_archive_on_the_hub_becomes_shards_without_a_copy(hub: Hub, shell: Run, tmp_path: Path) -> None:
    env = hub.env(tmp_path)
    line = "tarcat 'hf://datasets/org/set/x.tar.gz.part*' | tarsplit -n 20 -o new"
    assert shell(line, env=env).output() == b"new-000000.tar\nnew-000001.tar\n"
    shards = [(tmp_path / f"new-00000{n}.tar").read_bytes() for n in range(2)]
    assert [member for shard in shards for member in members_of(shard)] == SAMPLES
