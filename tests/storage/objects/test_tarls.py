"""tarls and wildcards in stores: what is listed is what there is, each once, sorted, in however small pages."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tartools.errors import StorageError, UsageError, shown
from tartools.storage import listing
from tartools.storage.expand import expand
from tartools.storage.listing import find_existing, list_objects, ls
from tartools.storage.objects.contract import ListedObject, Page
from tests.conftest import Run, make_tar, members_of
from tests.storage.objects.faults import Fault, FaultServer
from tests.storage.objects.sites import Site
from tests.tiers import also, by_turns, exhaustive

NAMES = [
    *(f"train-{number:03d}.tar" for number in (*range(8, 12), 13)),
    *("train/a.tgz", "train/b c.tar", "train/.h.tar", "train/x[1].tar", "train/x1.tar", "train/é~.tar"),
    *("train/{0..9}.tar", "train/{a,b}*.tar", "train/a{b.tar", "v-10.tar", "v-9.tar"),
]
OTHERS = ["train-note", "train/", "train/a.tgz.idx"]


@pytest.fixture(scope="module")
def filled() -> dict[str, Site]:
    """Return the places that have the objects already, by scheme."""
    return {}


@pytest.fixture
def place(listed: Site, filled: dict[str, Site]) -> Site:
    """Return a place with an archive of one sample for each name, which is its text, and other objects."""
    if listed.scheme in filled:
        return filled[listed.scheme]
    filled[listed.scheme] = listed
    for name in NAMES:
        listed.put(name, make_tar([("x.txt", name.encode())]))
    for name in OTHERS:
        listed.put(name, b"12345")
    return listed


def names_in(site: Site, output: bytes) -> list[str]:
    """Return the names of the objects whose URLs are the lines of *output*."""
    return [line.removeprefix(site.url("")) for line in output.decode().splitlines()]


def behind(prefix: str, *others: str) -> list[str]:
    return sorted((name for name in (*NAMES, *others) if name.startswith(prefix)), key=str.encode)


def is_plain(name: str) -> bool:
    """Tell whether a name is listed as it is."""
    return not re.search(r"\{.*\}", name)


@by_turns("listed")
@pytest.mark.parametrize("prefix", ["", "train", "train-", "train-00", "train/", "train/b c", "v-9.tar"])
def test_objects_behind_a_prefix(prefix: str, place: Site, run: Run) -> None:
    found = names_in(place, run("tarls", place.url(prefix), env=place.env).output())
    assert len(found) == len(behind(prefix))
    assert list(filter(is_plain, found)) == list(filter(is_plain, behind(prefix)))
    out = run("tarls", "--all", "--json", place.url(prefix), env=place.env).output()
    objects = [json.loads(line) for line in out.splitlines()]
    assert [entry["url"] for entry in objects] == [place.url(name) for name in behind(prefix, *OTHERS)]
    for entry in objects:
        name = entry["url"].removeprefix(place.url(""))
        assert entry["size"] == (5 if name in OTHERS else 10240)
        assert place.scheme == "ais" or re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", entry["modified"])


@by_turns("listed")
@pytest.mark.parametrize("options", [[], ["--brace", "--null"], *also(["--brace"], ["-0"])], ids=" ".join)
def test_what_is_listed_is_what_is_read(options: list[str], place: Site, shell: Run) -> None:
    zero = "-0" if options and options[-1] in ("-0", "--null") else ""
    line = f"tarls {' '.join(options)} {place.url('')} | tarcat {zero} -T - --rekey '{{index}}'"
    assert [payload.decode() for _, payload in members_of(shell(line, env=place.env).output())] == behind("")


@by_turns("listed")
def test_braces(place: Site, run: Run) -> None:
    done = run("tarls", "--brace", "-v", place.url("train-"), place.url("v"), env=place.env)
    assert names_in(place, done.stdout) == ["train-{008..011}.tar", "train-013.tar", "v-10.tar", "v-9.tar"]
    assert (done.status, done.stderr) == (0, "tarls: 7 shards, 71.7 kB\n")


PATTERNS = {
    "train-*.tar": ["train-008.tar", "train-009.tar", "train-010.tar", "train-011.tar", "train-013.tar"],
    "train-0[01][19].tar": ["train-009.tar", "train-011.tar"],
    "*/?.tgz": ["train/a.tgz"],
    "train/x[1].tar": ["train/x[1].tar"],
    "train/x[1]*": ["train/x1.tar"],
    "train/.*": ["train/.h.tar"],
    "**/[!.]*[c~].tar": ["train/b c.tar", "train/é~.tar"],
    "{v,train}-*1*.tar": ["v-10.tar", "train-010.tar", "train-011.tar", "train-013.tar"],
}


@by_turns("listed")
@pytest.mark.parametrize(("pattern", "names"), PATTERNS.items())
def test_objects_that_match_are_those_that_would_here(
    pattern: str, names: list[str], place: Site, run: Run, tmp_path: Path
) -> None:
    done = run("tarls", place.url(pattern), env=place.env)
    assert (done.status, names_in(place, done.stdout), done.stderr) == (0, names, "")
    out = run("tarcat", place.url(pattern), "--rekey", "{index}", env=place.env).output()
    assert [payload.decode() for _, payload in members_of(out)] == names
    (tmp_path / "train").mkdir()
    for name in NAMES:
        (tmp_path / name).write_bytes(make_tar([("x.txt", name.encode())]))
    assert run("tarcat", pattern, "--rekey", "{index}").output() == out


NOTHING = {
    "nope": "no shard is listed under this; --all lists every object",
    "train-note": "no shard is listed under this; --all lists every object",
    "nope/*": "no object matches",
    "train/*.zip": "no object matches",
    "train/*/*.tar": "no object matches",
}


@by_turns("listed")
@pytest.mark.parametrize(("name", "message"), NOTHING.items())
def test_nothing_to_list_is_a_failure(name: str, message: str, place: Site, run: Run) -> None:
    for command in ("tarls", "tarcat")[: 1 + ("*" in name)]:
        assert run(command, place.url(name), env=place.env) == (1, b"", f"{command}: {place.url(name)}: {message}\n")


@by_turns("listed")
@pytest.mark.parametrize("name", ["", "x", "x/*.tar"])
def test_a_bucket_that_is_not_there(name: str, listed: Site, run: Run) -> None:
    url = f"{listed.scheme}://no-such-bucket/{name}"
    reads = "*" in name or (name and listed.scheme == "s3")  # others only say that there is no such object
    for command in ("tarls", "tarcat") if reads else ("tarls",):
        said = run(command, url, env=listed.env).failure()
        assert re.fullmatch(rf"{command}: {re.escape(url)}: no such bucket: [^\n]+\n", said)


@by_turns("listed")
@pytest.mark.parametrize("name", ["buck*/a.tar", "b*", "b*/x", "?/x*", "[a]/x?provider=aws"])
def test_a_bucket_has_no_wildcards(name: str, listed: Site, run: Run) -> None:
    url = f"{listed.scheme}://{name}"
    said = f"tarls: {shown(url)}: wildcards in the name of a bucket do not expand\n"
    assert run("tarls", url, env=listed.env) == (1, b"", said)


def test_an_object_of_a_web_server(run: Run) -> None:
    with FaultServer() as server:
        server.objects.update({"a-1.tar": bytes(7), "a-2.tar": b"", "note": b""})
        url = server.url("http", "a-1.tar")
        assert run("tarls", f"{url}?x=1") == (0, f"{url}?x=1\n".encode(), "")
        assert run("tarls", "-l", url).stdout.split()[0] == b"7"
        base = url.removesuffix("1.tar")
        assert run("tarls", "--brace", f"{base}{{1..2}}.tar") == (0, f"{base}{{1..2}}.tar\n".encode(), "")
        assert run("tarls", f"{base}3.tar") == (1, b"", f"tarls: {base}3.tar: no such object\n")
        hint = "web servers cannot be listed; give the URLs with braces, or in a file (-T)"
        assert run("tarls", f"{base}*.tar") == (1, b"", f"tarls: {base}*.tar: {hint}\n")
        message = "no shard is listed under this; --all lists every object"
        note = server.url("http", "note")
        assert run("tarls", note) == (1, b"", f"tarls: {note}: {message}\n")
        assert {request.method for request in server.requests} == {"HEAD"}


@pytest.mark.parametrize("scheme", ["s3", "gs", "ais", "azure"])
def test_pages_that_fail_are_asked_for_again(scheme: str, run: Run) -> None:
    names = [f"{number:04d}.tar" for number in range(25)]
    with FaultServer() as server:
        server.objects.update(dict.fromkeys(names, b""))
        server.bucket.page = 10
        part = {"s3": "list-type", "gs": "/o?", "ais": "/v1/buckets", "azure": "comp=list"}[scheme]
        server.faults = [
            Fault(has=part, status=503),
            Fault(has=part, skip=1, status=503),
            Fault(has=part, dropped=True, skip=1),
        ]
        done = run("tarls", "--brace", server.url(scheme, ""), env=server.env)
        assert done == (0, f"{server.url(scheme, '')}{{0000..0024}}.tar\n".encode(), "")
        assert len(server.requests) == 6
        server.faults = [Fault(has=part, skip=2, status=503, times=None)]
        done = run("tarls", server.url(scheme, ""), env=server.env | {"TARTOOLS_TRIES": "2"})
        assert done.status == 1
        assert re.fullmatch(rf"tarls: {server.url(scheme, '')}: [^\n]+ \(2 tries\)\n", done.stderr)


# ---- Many shards: names that are listed and expanded as the shell does it here, and thousands of them ----


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


class Shelf:
    """A store of the objects *names*, listed by pages of *size*."""

    def __init__(self, names: Iterable[str], size: int = 3, end: str = "") -> None:
        self.names = sorted(names, key=str.encode)
        self.size = size
        self.end = end  # of all URLs
        self.requests = 0

    def page(self, prefix: str, token: str, flat: bool) -> Page:
        """Return a page. A token is the place where it begins."""
        self.requests += 1
        bucket, start = prefix[: prefix.index("/", 6) + 1], self._name(prefix)
        here = [name for name in self.names if name.startswith(start)]
        here = [name for name in here if not flat or "/" not in name[len(start) :]]
        place = int(token or 0)
        found = [ListedObject(f"{bucket}{name}{self.end}", 1, 0.0) for name in here[place : place + self.size]]
        return Page(found, str(place + self.size) if place + self.size < len(here) else "")

    def _name(self, url: str) -> str:
        assert url.endswith(self.end)
        return url[url.index("/", 6) + 1 :].removesuffix(self.end)


Shelve = Callable[[Shelf], Shelf]


@pytest.fixture
def shelve(monkeypatch: pytest.MonkeyPatch) -> Shelve:
    """Return a function that makes a shelf the store."""

    def shelve(shelf: Shelf) -> Shelf:
        monkeypatch.setattr(listing, "store_of", lambda scheme: shelf)
        return shelf

    return shelve


def names_of(entries: Iterable[ListedObject], end: str = "") -> list[str]:
    return [entry.url.removeprefix("s3://b/").removesuffix(end) for entry in entries]


def numbered(count: int) -> list[str]:
    return [f"train-{number:06d}.tar" for number in range(count)]


crowded = st.text("ab", max_size=6)
numbers = st.integers(0, 400).map(lambda number: f"train/{number:06d}.jpg")
odd = st.text(st.sampled_from("a/é~\uffff\U0001f600 "), max_size=4)
keys = st.one_of(st.sets(crowded, max_size=60), st.sets(numbers, max_size=200), st.sets(odd | crowded, max_size=60))


@given(keys, st.integers(1, 7))
@example({"", "a", "b"}, 1)
@settings(deadline=None, max_examples=100)
def test_every_name_once_in_order(names: set[str], size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for prefix in ("", "a", "train/"):
            shelf = Shelf(names, size)
            patch.setattr(listing, "store_of", lambda scheme, shelf=shelf: shelf)
            expected = sorted((name for name in names if name.startswith(prefix)), key=str.encode)
            assert names_of(list_objects(f"s3://b/{prefix}")) == expected
            assert shelf.requests == max(1, -(-len(expected) // size))
            flat = [name for name in expected if "/" not in name[len(prefix) :]]
            assert names_of(list_objects(f"s3://b/{prefix}", flat=True)) == flat


def test_names_end_with_their_provider(shelve: Shelve) -> None:
    shelve(Shelf(numbered(200), end="?provider=aws"))
    expected = [f"ais://b/{name}?provider=aws" for name in numbered(200)]
    assert [entry.url for entry in list_objects("ais://b?provider=aws")] == expected
    assert expand(["ais://b/train-00017?.tar?provider=aws"]) == expected[170:180]
    assert expand(["ais://b/t.tar?provider=aws"]) == ["ais://b/t.tar?provider=aws"]
    assert find_existing([*expected, "ais://b/x?provider=aws"]) == {*expected}


@pytest.mark.parametrize("taken", [0, 1, 50])
def test_no_page_is_asked_for_before_it_is_wanted(taken: int, shelve: Shelve) -> None:
    shelf = shelve(Shelf(numbered(1000)))
    assert names_of(itertools.islice(list_objects("s3://b/"), taken)) == shelf.names[:taken]
    assert shelf.requests == -(-taken // shelf.size)


def test_a_store_that_does_not_sort(shelve: Shelve) -> None:
    """As S3's directory buckets, and rclone's server: all is read, and sorted then."""
    shelf = shelve(Shelf(numbered(100)))
    random.Random(1).shuffle(shelf.names)
    assert names_of(list_objects("s3://b/")) == numbered(100)


@pytest.mark.parametrize("disorder", [[7, 6], [5, 5], [0]])
def test_disorder_that_shows_too_late_is_a_failure(disorder: list[int], shelve: Shelve) -> None:
    shelf = shelve(Shelf(numbered(6)))
    shelf.names += [numbered(9)[place] for place in disorder]
    with pytest.raises(StorageError, match="out of order"):
        list(list_objects("s3://b/"))


def test_a_bucket_needs_no_slash(shelve: Shelve) -> None:
    shelve(Shelf(["a", "b/c"]))
    assert names_of(list_objects("s3://b")) == ["a", "b/c"]
    with pytest.raises(UsageError, match="write s3://BUCKET/PREFIX"):
        list(list_objects("s3://"))


WILDCARDS = {
    "s3://b/*": ["a.tar", "a1.tar", "a[1].tar", "x{1,2}.tar"],
    "s3://b/a[1].tar": ["a[1].tar"],
    "s3://b/a[1]?tar": ["a1.tar"],
    "s3://b/{a,d/b}*.tar": ["a.tar", "a1.tar", "a[1].tar", "d/b.tar"],
    "s3://b/**/b.tar": ["d/b.tar"],
    "s3://b/[{{]*": [],
    "s3://b/x[{{]1,2}.tar": ["x{1,2}.tar"],
    "s3://b/x{1,2}.tar": ["x1.tar", "x2.tar"],
    "s3://b/.*": [".h.tar"],
}


@pytest.mark.parametrize(("pattern", "names"), WILDCARDS.items())
def test_what_patterns_stand_for(pattern: str, names: list[str], shelve: Shelve) -> None:
    """Wildcards are looked up; what braces make is not, and names that a listing gave are not expanded again."""
    shelve(Shelf(["a.tar", "a[1].tar", "a1.tar", "d/", "d/b.tar", "d/.h.tar", "x{1,2}.tar", ".h.tar"], 1))
    if not names:
        with pytest.raises(StorageError, match="no object matches"):
            expand([pattern])
        return
    assert [name.removeprefix("s3://b/") for name in expand([pattern])] == names


def test_one_level_is_listed_where_one_is_enough(shelve: Shelve) -> None:
    shelf = shelve(Shelf(["a/b/c.tar", "a/x.tar", "a/y.tar", *(f"a/z/{n}" for n in range(1000))], 2))
    assert expand(["s3://b/a/*.tar"]) == ["s3://b/a/x.tar", "s3://b/a/y.tar"]
    assert shelf.requests < 10


def test_a_prefix_is_no_pattern_to_ls(shelve: Shelve) -> None:
    shelve(Shelf(["a.tar", "a/b.tar", "b.tar"]))
    assert names_of(ls("s3://b/a")) == ["a.tar", "a/b.tar"]
    assert names_of(ls("s3://b/?.tar")) == ["a.tar", "b.tar"]
    assert names_of(ls("s3://b/{b,a/}")) == ["b.tar", "a/b.tar"]
    assert names_of(ls("s3://b/c")) == []
