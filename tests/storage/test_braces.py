"""Names that count up as braces, and wildcards in remote names: what is written is what is read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from glob import glob
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tartools.storage.names import Pattern, escape_name, expand_braces, fold_numbers, has_wildcards
from tartools.storage.url import Url
from tests.tiers import also

FOLDS = {
    "a run": (["a-0.tar", "a-1.tar", "a-2.tar"], ["a-{0..2}.tar"]),
    "padded": (["a-008", "a-009", "a-010"], ["a-{008..010}"]),
    "padded, and full": (["98", "99", "100"], ["{98..100}"]),
    "padded, and over": (["08", "09", "10"] + [f"{n}" for n in range(11, 101)], ["{08..99}", "100"]),
    "zero is not padded": (["a0", "a1"], ["a{0..1}"]),
    "two zeros are": (["a00", "a01"], ["a{00..01}"]),
    "a gap": (["a1", "a2", "a4", "a5"], ["a{1..2}", "a{4..5}"]),
    "one alone": (["a1"], ["a1"]),
    "none": ([], []),
    "twice the same": (["a1", "a1"], ["a1", "a1"]),
    "downwards": (["a2", "a1"], ["a2", "a1"]),
    "as listings sort": (["a10", "a11", "a8", "a9"], ["a{10..11}", "a{8..9}"]),
    "wider and wider": (["a9", "a10", "a11"], ["a{9..11}"]),
    "another width": (["a9", "a010"], ["a9", "a010"]),
    "the last number": (["v1/a-0-of-9.tar", "v1/a-1-of-9.tar"], ["v1/a-{0..1}-of-9.tar"]),
    "the one that varies": (["p0/x7", "p1/x7", "p1/x8"], ["p{0..1}/x7", "p1/x8"]),
    "two at once": (["a0-0", "a1-1"], ["a0-0", "a1-1"]),
    "another name": (["a1.tar", "b2.tar", "b2.tgz"], ["a1.tar", "b2.tar", "b2.tgz"]),
    "braces in names": (["{a}1", "{a}2", "a{1", "a{2", "a}1", "a}2"], ["{a}1", "{a}2", "a{1", "a{2", "a}1", "a}2"]),
    "wildcards in names": (["s3://b/[x]-1", "s3://b/[x]-2"], ["s3://b/[x]-{1..2}"]),
    "a provider": (["ais://b/1?provider=aws", "ais://b/2?provider=aws"], ["ais://b/{1..2}?provider=aws"]),
    "other digits": (["a\u0661", "a\u0662"], ["a\u0661", "a\u0662"]),
    "many digits": (["9" * 5000, "9" * 5000 + "x"], ["9" * 5000, "9" * 5000 + "x"]),
}


@pytest.mark.parametrize(("names", "texts"), FOLDS.values(), ids=FOLDS)
def test_names_that_count_up_are_one(names: list[str], texts: list[str]) -> None:
    assert list(fold_numbers(names)) == texts


def test_a_pattern_that_is_a_name_is_not_used() -> None:
    assert list(fold_numbers(["a1", "a2", "b1", "b2"], {"a{1..2}"}.__contains__)) == ["a1", "a2", "b{1..2}"]


def test_names_are_folded_as_they_come() -> None:
    seen = []

    def names() -> Iterator[str]:
        for name in ("a1", "a2", "b", "c"):
            seen.append(name)
            yield name

    assert next(fold_numbers(names())) == "a{1..2}"
    assert seen == ["a1", "a2", "b"]


runs = st.builds(
    lambda head, first, count, width, tail: [
        f"{head}{number:0{width}d}{tail}" for number in range(first, first + count)
    ],
    st.sampled_from(["", "a", "a-", "0", "1x"]),
    st.sampled_from([0, 1, 8, 9, 98, 99, 999]),
    st.integers(1, 4),
    st.integers(0, 3),
    st.sampled_from(["", ".tar", "0", "-of-3"]),
)
numbered = st.lists(runs | st.text("019-a{},.", max_size=4).map(lambda text: [text]), max_size=6)


@given(numbered.map(lambda found: [name for run in found for name in run]))
@settings(deadline=None)
def test_what_is_folded_unfolds_to_the_same_names(names: list[str]) -> None:
    texts = list(fold_numbers(names))
    braced = [text for text in texts if text not in names]
    assert [name for text in texts for name in (expand_braces(text) if text in braced else [text])] == names
    assert len(texts) <= len(names)


letters = st.text("a0{},.*?[]!^-", max_size=8)


@given(letters, letters)
@settings(deadline=None, max_examples=500)
def test_a_quoted_name_is_read_as_that_name(name: str, other: str) -> None:
    for end in ("", "?provider=aws"):
        url, beside = f"ais://b/{name}x{end}", f"ais://b/{other}x{end}"
        text = escape_name(url)
        assert expand_braces(text) == [text]
        if text != url:
            assert Pattern(text).matches(url)
            assert Pattern(text).matches(beside) == (url == beside)


def test_only_names_of_objects_are_quoted() -> None:
    """Local names go before what they could stand for; of a web server's names, wildcards are letters."""
    for url in ("{a,b}.tar", "file:///{a,b}", "http://h/{a", "s3://b/a*.tar", "s3://b/{a.tar"):
        assert escape_name(url) == url


PARTS = [
    *("a", "b", ".a", "ab", "a[b", "[a", "*", "?", "*b", "a*", "[ab]", "[!a]", "[^a]", "[]a]", ".*", "[.]a"),
    *("**", "a**"),
]
NAMES = st.sampled_from(["a", "b", ".a", "ab", "a[b", "[a", "^", "]"])
trees = st.lists(st.lists(NAMES, min_size=1, max_size=3).map("/".join), max_size=6, unique=True)


patterns = st.lists(st.sampled_from(PARTS), min_size=1, max_size=4).map("/".join).filter(has_wildcards)


@pytest.mark.parametrize("examples", [60, *also(300)])
def test_wildcards_match_as_they_do_here(examples: int) -> None:
    settings(deadline=None, max_examples=examples)(given(trees, patterns)(check_matches))()


def check_matches(names: list[str], pattern: str) -> None:
    """Check that *pattern* matches those of *names* that it does as files."""
    files = [name for name in names if not any(other.startswith(f"{name}/") for other in names)]
    with tempfile.TemporaryDirectory() as folder:
        for name in files:
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        found = glob(pattern, root_dir=folder, recursive=True)
        here = {name for name in found if os.path.isfile(os.path.join(folder, name))}  # not so a file with a slash
    there = Pattern(f"s3://b/{pattern}")
    listed = [name for name in files if f"s3://b/{name}".startswith(there.prefix)]
    assert {name for name in listed if there.matches(f"s3://b/{name}")} == here
    for name in here:
        assert not there.flat or "/" not in f"s3://b/{name}"[len(there.prefix) :]


@pytest.mark.parametrize(
    ("url", "prefix", "flat"),
    [
        ("s3://b/a-*.tar", "s3://b/a-", True),
        ("s3://b/d/*/x", "s3://b/d/", False),
        ("s3://b/d/**", "s3://b/d/", False),
        ("s3://b/d**", "s3://b/d", True),
        ("gs://b/?", "gs://b/", True),
        ("ais://b/a?.tar?provider=gcp", "ais://b/a?provider=gcp", True),
        ("ais://b/a?.tar?provider=nobody", "ais://b/a", True),
    ],
)
def test_what_is_listed_for_a_pattern(url: str, prefix: str, flat: bool) -> None:
    pattern = Pattern(url)
    assert (pattern.prefix, pattern.flat) == (prefix, flat)


def test_a_directory_marker_matches_no_pattern() -> None:
    assert not Pattern("s3://b/**").matches("s3://b/d/")
    assert not Pattern("s3://b/d/*").matches("s3://b/d/")
    assert Pattern("s3://b/**").matches("s3://b/d//x")


def test_what_is_no_wildcard() -> None:
    assert not has_wildcards("ais://b/x.tar?provider=aws")
    assert (Url("aws://b/x?provider=aws").name, Url("aws://b/x?provider=aws").query) == ("aws://b/x?provider=aws", "")
    assert has_wildcards("s3://b/x.tar?provider=aws")
    assert os.fsencode(escape_name("s3://b/é")) == "s3://b/é".encode()
