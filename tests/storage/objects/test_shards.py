"""Many shards: names that are listed and expanded as the shell does it here, and thousands of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Run, make_tar
from tests.storage.objects.sites import Site
from tests.tiers import by_turns, exhaustive

NAMES = [
    *("d/a-1.tar", "d/a-10.tar", "d/a-2.tar", "d/B-1.tar", "d/é-1.tar", "d/z.tgz", "d/e/x.tar", "d/e/f/x.tar"),
    *("x.tar", "y/x.tar", "d/a+ 1.tar", "d/{b,c}.tar", "d/[s].tar"),
]
PATTERNS = [
    "d/*.tar",
    "d/?-?.tar",
    "d/[a-z]-1*.tar",
    "d/[!a]-1.tar",
    "*/x.tar",
    "*.tar",
    "d/*/x.tar",
    "d/**/x.tar",
    "**/x.tar",
    "d/{a,B}-*.tar",
    "d/a-{1..2}.tar",
    "d/a-{2,10}*.tar",
]


@pytest.fixture(scope="module")
def filled() -> dict[str, Site]:
    """Return the places that have the shards already, by scheme."""
    return {}


@pytest.fixture
def shards(listed: Site, filled: dict[str, Site], tmp_path: Path) -> Site:
    """Return a place with an object, of one sample that is called by its number, for each of `NAMES`; so is here."""
    place = filled.setdefault(listed.scheme, listed)
    for number, name in enumerate(NAMES):
        data = make_tar([(f"{number}.txt", name.encode())])
        if place is listed:
            place.put(name, data)
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return place


@by_turns("listed")
@pytest.mark.parametrize("pattern", PATTERNS)
def test_names_expand_as_they_do_here(pattern: str, shards: Site, run: Run) -> None:
    here = run("tar2tsv", "--no-header", "-f", "txt", pattern)
    there = run("tar2tsv", "--no-header", "-f", "txt", shards.url(pattern), env=shards.env)
    assert (here.status, here.stderr) == (0, "")
    assert there == here


@by_turns("listed")
@pytest.mark.parametrize("pattern", ["d/no*.tar", "no/*.tar", "d/*.zip"])
def test_no_match_is_a_failure(pattern: str, shards: Site, run: Run) -> None:
    done = run("tarcat", shards.url(pattern), env=shards.env)
    assert done.status == 1 and done.stdout == b""
    assert done.stderr.startswith(f"tarcat: {shards.url(pattern)}: ") and done.stderr.count("\n") == 1


@by_turns("listed")
def test_a_list_may_be_remote(listed: Site, run: Run) -> None:
    listed.put("a.tar", make_tar([("a.txt", b"1")]))
    listed.put("names.txt", f"{listed.url('a.tar')}\n".encode())
    done = run("tar2tsv", "--no-header", "-f", "txt", "-T", listed.url("names.txt"), env=listed.env)
    assert done == (0, b"a\t1\n", "")


@pytest.mark.parametrize(
    ("listed", "count"),
    [("ais", 1100), *(pytest.param(kind, 2500, marks=exhaustive) for kind in ("s3", "gs", "ais"))],
    indirect=["listed"],
)
def test_many_shards(listed: Site, count: int, run: Run) -> None:
    """More than a page of a listing."""
    for number in range(count):
        listed.put(f"train-{number:06d}.tar", make_tar([(f"{number:04d}.x", b"")]))
    expected = b"__key__\n" + b"".join(b"%04d\n" % number for number in range(count))
    assert run("tar2tsv", listed.url("train-*.tar"), env=listed.env) == (0, expected, "")
    some = run("tar2tsv", listed.url("train-0009[5-9]?.tar"), listed.url("train-0010[0-4]?.tar"), env=listed.env)
    assert run("tar2tsv", listed.url("train-{000950..001049}.tar"), env=listed.env) == some
    assert some.stdout == b"__key__\n" + expected[8 + 5 * 950 : 8 + 5 * 1050]


@by_turns("listed")
def test_shards_of_an_earlier_run_are_found(listed: Site, run: Run) -> None:
    archive = make_tar([(f"{number}.x", b"1") for number in range(6)])
    listed.put("d/train-000007.tar", b"old")
    listed.put("d/train-x/000001.tar", b"no shard of ours")
    done = run("tarsplit", "-n", 2, "-o", listed.url("d/train"), stdin=archive, env=listed.env)
    assert (done.status, done.stdout) == (1, b"") and "train-000007.tar" in done.stderr
    assert listed.names() == ["d/train-000007.tar", "d/train-x/000001.tar"]
    done = run("tarsplit", "--force", "-n", 2, "-o", listed.url("d/train"), stdin=archive, env=listed.env)
    said = f"tarsplit: {listed.url('d/train-000007.tar')}: removed, because this run did not write it\n"
    assert (done.status, done.stderr) == (0, said)
    assert listed.names() == [*(f"d/train-{n:06d}.tar" for n in range(3)), "d/train-x/000001.tar"]
