"""Listings: every object exactly once, sorted, however many threads ask for however small pages, in whatever order."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tartools.errors import StorageError, UsageError
from tartools.storage.names import keyspace, listing
from tartools.storage.names.expand import expand
from tartools.storage.names.keyspace import Keyspace
from tartools.storage.names.listing import listed, ls
from tartools.storage.objects import retry
from tartools.storage.objects.contract import Listed, Page
from tartools.storage.objects.retry import TransientError

PATIENCE = 60.0  # seconds for what happens at once


class Shelf:
    """A store of the objects *names*, listed by pages of *size*. Threads get their answers in a random order."""

    def __init__(self, names: Iterable[str], size: int = 3, seed: int = 0, end: str = "") -> None:
        self.names = sorted(names, key=str.encode)
        self.size = size
        self.end = end  # of all URLs
        self.starts: list[str] = []  # where listings began behind a name
        self.requests = 0
        self.served = 0  # objects
        self.LISTS_IN_PARALLEL = True
        self.before: Callable[[str], None] = lambda token: None  # runs before a page is given
        self._lock = threading.Lock()
        self._dice = random.Random(seed)

    def page(self, prefix: str, token: str, after: str, flat: bool) -> Page:
        """Return a page. A token is the place where it begins."""
        with self._lock:
            self.requests += 1
            self.starts += [after] if after and not token else []
            turns = self._dice.randrange(20)
        for _ in range(turns):
            time.sleep(0)  # lets others go first
        self.before(token)
        bucket, start = prefix[: prefix.index("/", 6) + 1], self._name(prefix)
        here = [name for name in self.names if name.startswith(start)]
        here = [name for name in here if not after or name.encode() > self._name(after).encode()]
        here = [name for name in here if not flat or "/" not in name[len(start) :]]
        place = int(token or 0)
        found = [Listed(f"{bucket}{name}{self.end}", 1, 0.0) for name in here[place : place + self.size]]
        with self._lock:
            self.served += len(found)
        return Page(found, str(place + self.size) if place + self.size < len(here) else "")

    def _name(self, url: str) -> str:
        assert url.endswith(self.end)
        return url[url.index("/", 6) + 1 :].removesuffix(self.end)


Shelve = Callable[[Shelf], Shelf]


@pytest.fixture
def shelve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelve]:
    """Return a function that makes a shelf the store, whose listings split early, in little memory.

    What is tried again is at once. At the end of the test, no thread may be left.
    """
    for name, value in (("BEYOND", 0), ("WORTH", -1), ("AHEAD", 100)):
        monkeypatch.setattr(keyspace, name, value)
    monkeypatch.setattr(retry, "FIRST_PAUSE", 0)
    before = set(threading.enumerate())

    def shelve(shelf: Shelf) -> Shelf:
        monkeypatch.setattr(listing, "store_of", lambda scheme: shelf)
        return shelf

    yield shelve
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def names_of(entries: Iterable[Listed], end: str = "") -> list[str]:
    return [entry.url.removeprefix("s3://b/").removesuffix(end) for entry in entries]


def several_at_once(shelf: Shelf, beyond: int) -> None:
    """See to it that nobody gets a second page of anything, *beyond* some names, before five have asked for a first."""
    asked = threading.Condition()

    def before(token: str) -> None:
        with asked:
            asked.notify_all()
            if token and shelf.served > beyond:
                assert asked.wait_for(lambda: len(shelf.starts) >= 5, PATIENCE)

    shelf.before = before


def numbered(count: int) -> list[str]:
    return [f"train-{number:06d}.tar" for number in range(count)]


crowded = st.text("ab", max_size=6)
numbers = st.integers(0, 400).map(lambda number: f"train/{number:06d}.jpg")
odd = st.text(st.sampled_from("a/é~\uffff\U0001f600 "), max_size=4)
keys = st.one_of(st.sets(crowded, max_size=60), st.sets(numbers, max_size=200), st.sets(odd | crowded, max_size=60))


@given(keys, st.integers(1, 7), st.integers(0, 99), st.sampled_from([1, 5, 12, 1000]))
@example({"", "a", "b"}, 1, 0, 12)
@settings(deadline=None, max_examples=100)
def test_every_name_once_in_order(names: set[str], size: int, seed: int, ahead: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("BEYOND", seed % 3 * 20), ("WORTH", seed % 5 - 1), ("AHEAD", ahead)):
            patch.setattr(keyspace, name, value)
        for prefix in ("", "a", "train/"):
            patch.setattr(listing, "store_of", lambda scheme: Shelf(names, size, seed))
            expected = sorted((name for name in names if name.startswith(prefix)), key=str.encode)
            assert names_of(listed(f"s3://b/{prefix}")) == expected
            flat = [name for name in expected if "/" not in name[len(prefix) :]]
            assert names_of(listed(f"s3://b/{prefix}", flat=True)) == flat


@pytest.mark.parametrize("seed", range(10))
def test_ranges_that_are_cut_at_names(seed: int, shelve: Shelve) -> None:
    names = ["".join(letters) for length in range(7) for letters in itertools.product("ab", repeat=length)]
    shelf = shelve(Shelf(names, 1 + seed % 3, seed))
    several_at_once(shelf, beyond=10)
    assert names_of(listed("s3://b/")) == shelf.names


@given(keys, st.integers(1, 7), st.integers(0, 99))
@settings(deadline=None, max_examples=30)
def test_a_store_that_begins_only_at_the_begin(names: set[str], size: int, seed: int) -> None:
    shelf = Shelf(names, size, seed)
    shelf.LISTS_IN_PARALLEL = False
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keyspace, "BEYOND", 0)
        patch.setattr(listing, "store_of", lambda scheme: shelf)
        assert names_of(listed("s3://b/")) == sorted(names, key=str.encode)
    assert shelf.starts == []
    assert shelf.requests == max(1, -(-len(names) // size))


def test_few_names_are_listed_page_by_page(shelve: Shelve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyspace, "BEYOND", 100)
    shelf = shelve(Shelf(numbered(99)))
    assert names_of(listed("s3://b/")) == shelf.names
    assert (shelf.requests, shelf.starts) == (33, [])


def test_many_names_are_listed_by_several_threads(shelve: Shelve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyspace, "BEYOND", 100)
    shelf = shelve(Shelf(numbered(1000)))
    several_at_once(shelf, beyond=100)
    assert names_of(listed("s3://b/")) == shelf.names


def test_names_end_with_their_provider(shelve: Shelve) -> None:
    shelve(Shelf(numbered(200), end="?provider=aws"))
    expected = [f"ais://b/{name}?provider=aws" for name in numbered(200)]
    assert [entry.url for entry in listed("ais://b?provider=aws")] == expected
    assert expand(["ais://b/train-00017?.tar?provider=aws"]) == expected[170:180]
    assert expand(["ais://b/t.tar?provider=aws"]) == ["ais://b/t.tar?provider=aws"]


@pytest.mark.parametrize("threads", [1, keyspace.WORKERS])
def test_memory_is_bounded(threads: int, shelve: Shelve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer waits after the first name until no thread finds anything to do."""
    shelf = shelve(Shelf(numbered(2000)))
    monkeypatch.setattr(keyspace, "AHEAD", 12)
    shelf.LISTS_IN_PARALLEL = threads > 1
    choose, keep = Keyspace._choose, Keyspace._keep
    idle: set[int] = set()
    quiet = threading.Event()
    most = 0

    def choosing(space: Keyspace) -> Any:
        part = choose(space)
        (idle.add if part is None else idle.discard)(threading.get_ident())
        if len(idle) == threads:
            quiet.set()
        return part

    def keeping(space: Keyspace, part: Any, page: Page) -> None:
        nonlocal most
        keep(space, part, page)
        most = max(most, space._waiting)

    monkeypatch.setattr(Keyspace, "_choose", choosing)
    monkeypatch.setattr(Keyspace, "_keep", keeping)
    for place, entry in enumerate(listed("s3://b/")):
        assert entry.url == f"s3://b/{shelf.names[place]}"
        assert quiet.wait(PATIENCE)
    assert place == 1999
    ahead = keyspace.AHEAD + threads * shelf.size if threads > 1 else 0
    assert most <= ahead + (keyspace.FRONT + 1) * shelf.size


@pytest.mark.parametrize("taken", [0, 1, 50])
def test_threads_end_when_the_consumer_does(taken: int, shelve: Shelve) -> None:
    shelf = shelve(Shelf(numbered(1000)))
    with closing(listed("s3://b/")) as entries:
        assert names_of(itertools.islice(entries, taken)) == shelf.names[:taken]


def test_threads_end_in_a_pause(shelve: Shelve) -> None:
    shelf = shelve(Shelf(numbered(10)))
    failed = threading.Event()

    def before(token: str) -> None:
        if shelf.requests > 1:
            failed.set()
            raise TransientError("busy", after=100)

    shelf.before = before
    with closing(listed("s3://b/")) as entries:
        next(entries)
        assert failed.wait(PATIENCE)


def test_pages_are_tried_again(shelve: Shelve) -> None:
    shelf = shelve(Shelf(numbered(100)))
    failures: dict[tuple[int, str], int] = {}

    def before(token: str) -> None:
        asked = threading.get_ident(), token
        failures[asked] = failures.get(asked, 0) + 1
        if failures[asked] % 5:
            raise TransientError("busy")

    shelf.before = before
    assert names_of(listed("s3://b/")) == shelf.names


@pytest.mark.parametrize("first", [1, 2, 20])
def test_a_page_that_never_comes_is_a_failure(first: int, shelve: Shelve) -> None:
    shelf = shelve(Shelf(numbered(1000)))

    def before(token: str) -> None:
        if shelf.requests >= first:
            raise TransientError("the server is busy")

    shelf.before = before
    with pytest.raises(StorageError, match=r"s3://b/: the server is busy \(5 tries\)"):
        list(listed("s3://b/"))


def test_what_a_thread_raises_is_raised_where_names_are_taken(shelve: Shelve) -> None:
    shelf = shelve(Shelf(numbered(1000)))

    def before(token: str) -> None:
        if shelf.requests > 20:
            raise StorageError("no permission", url="s3://b/")

    shelf.before = before
    with pytest.raises(StorageError, match="no permission"):
        list(listed("s3://b/"))


def test_a_store_that_does_not_sort(shelve: Shelve) -> None:
    """As S3's directory buckets, and rclone's server: all is read, and sorted then."""
    shelf = shelve(Shelf(numbered(100)))
    random.Random(1).shuffle(shelf.names)
    assert names_of(listed("s3://b/")) == numbered(100)
    assert shelf.starts == []


@pytest.mark.parametrize("disorder", [[7, 6], [5, 5], [0]])
def test_disorder_that_shows_too_late_is_a_failure(disorder: list[int], shelve: Shelve) -> None:
    shelf = shelve(Shelf(numbered(6)))
    shelf.names += [numbered(9)[place] for place in disorder]
    shelf.LISTS_IN_PARALLEL = False
    with pytest.raises(StorageError, match="out of order"):
        list(listed("s3://b/"))


def test_a_server_that_ignores_where_to_go_on_is_a_failure(shelve: Shelve) -> None:
    shelf = shelve(Shelf(numbered(6)))
    page = shelf.page
    shelf.page = lambda prefix, token, after, flat: page(prefix, "", "", flat)  # type: ignore[method-assign]
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
