"""Listings: every object exactly once, sorted, in however small pages."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tartools.errors import StorageError, UsageError
from tartools.storage import listing
from tartools.storage.expand import expand
from tartools.storage.listing import listed, ls
from tartools.storage.objects.contract import ListedObject, Page


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
            assert names_of(listed(f"s3://b/{prefix}")) == expected
            assert shelf.requests == max(1, -(-len(expected) // size))
            flat = [name for name in expected if "/" not in name[len(prefix) :]]
            assert names_of(listed(f"s3://b/{prefix}", flat=True)) == flat


def test_names_end_with_their_provider(shelve: Shelve) -> None:
    shelve(Shelf(numbered(200), end="?provider=aws"))
    expected = [f"ais://b/{name}?provider=aws" for name in numbered(200)]
    assert [entry.url for entry in listed("ais://b?provider=aws")] == expected
    assert expand(["ais://b/train-00017?.tar?provider=aws"]) == expected[170:180]
    assert expand(["ais://b/t.tar?provider=aws"]) == ["ais://b/t.tar?provider=aws"]


@pytest.mark.parametrize("taken", [0, 1, 50])
def test_no_page_is_asked_for_before_it_is_wanted(taken: int, shelve: Shelve) -> None:
    shelf = shelve(Shelf(numbered(1000)))
    assert names_of(itertools.islice(listed("s3://b/"), taken)) == shelf.names[:taken]
    assert shelf.requests == -(-taken // shelf.size)


def test_a_store_that_does_not_sort(shelve: Shelve) -> None:
    """As S3's directory buckets, and rclone's server: all is read, and sorted then."""
    shelf = shelve(Shelf(numbered(100)))
    random.Random(1).shuffle(shelf.names)
    assert names_of(listed("s3://b/")) == numbered(100)


@pytest.mark.parametrize("disorder", [[7, 6], [5, 5], [0]])
def test_disorder_that_shows_too_late_is_a_failure(disorder: list[int], shelve: Shelve) -> None:
    shelf = shelve(Shelf(numbered(6)))
    shelf.names += [numbered(9)[place] for place in disorder]
    with pytest.raises(StorageError, match="out of order"):
        list(listed("s3://b/"))


def test_a_bucket_needs_no_slash(shelve: Shelve) -> None:
    shelve(Shelf(["a", "b/c"]))
    assert names_of(listed("s3://b")) == ["a", "b/c"]
    with pytest.raises(UsageError, match="write s3://BUCKET/PREFIX"):
        list(listed("s3://"))


PATTERNS = {
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


@pytest.mark.parametrize(("pattern", "names"), PATTERNS.items())
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
