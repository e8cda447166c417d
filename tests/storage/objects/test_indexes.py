"""tarindex of shards on servers: digests of payloads, and indexes for other tools, written beside the shards."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.archives import encoded
from tests.conftest import Run, make_samples, make_tar
from tests.storage.objects.faults import SCHEMES, Fault
from tests.storage.objects.inside import OBJECT, Inside
from tests.storage.objects.sites import Site
from tests.tiers import by_turns

pytestmark = by_turns("site", "scheme")
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
    done = run("tarindex", "--for", name, *shards, env=site.env)
    assert (done.status, done.stdout, done.stderr) == (0, b"", "")
    assert run("tarindex", "--for", name, "t/d/a.tar", "t/d/b.tar").status == 0
    found = [path for path in (tmp_path / "t").rglob("*") if path.is_file()]
    local = {str(path.relative_to(tmp_path / "t")): path.read_bytes() for path in found}
    assert len(local) == {"dali": 4, "wids": 3, "webshart": 4, "energon": 8}[name]
    for file, content in local.items():
        assert site.get(file) == content
    again = run("tarindex", "--for", name, *shards, env=site.env)
    assert again.status == 1 and "--force" in again.stderr
    assert run("tarindex", "--force", "--for", name, *shards, env=site.env).status == 0


@by_turns("skip")
@pytest.mark.parametrize("skip", [1, 2, 3])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["dali", "wids", "webshart", "energon"])
def test_a_shard_that_is_replaced(
    name: str,
    scheme: str,
    skip: int,
    empty: Inside,
) -> None:
    faulty = empty.server
    url = faulty.url(scheme, OBJECT)
    faulty.objects[OBJECT] = make_tar(FIRST)
    faulty.faults = [fault := Fault(OBJECT, method="GET", skip=skip, replace=make_tar(LAST))]
    line = ["tarindex", "--for", name, url]
    done = empty.run(*line)
    assert (done.status, done.stdout, fault.played) == (1, b"", 1)
    assert done.stderr.startswith(f"tarindex: {url}: ") and done.stderr.count("\n") == 1
    assert re.search("changed while it was read|was (replaced|deleted) while it was being read", done.stderr)
    assert ([*faulty.objects], faulty.pending) == ([OBJECT], 0)
    assert empty.run(*line).status == 0


def test_facts_of_remote_shards(site: Site, run: Run, tmp_path: Path) -> None:
    picture = encoded(Image.linear_gradient("L").resize((90, 60)))
    members = [(f"{n}.png", picture[: None if n else -30]) for n in range(3)]
    members += [("2.bin", bytes(range(256)) * 100_000), ("2.cls", b"7")]
    site.put("a.tar", make_tar(members))
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    found = []
    for shard in ("a.tar", site.url("a.tar")):
        facts = ("--decode", "--dhash", "png", "--hash", "png bin", "-f", "cls")
        run("tarindex", *facts, shard, "-o", "t.parquet", "--force", env=site.env).output()
        found.append(pq.read_table(tmp_path / "t.parquet").drop_columns(["__shard__", "__version__"]).to_pylist())
    assert found[0] == found[1]
    assert [row["png.broken"] is None for row in found[0]] == [False, True, True]
    assert [row["png.dhash"] is None for row in found[0]] == [True, False, False]
    assert [row["png.width"] for row in found[0]] == [90] * 3
