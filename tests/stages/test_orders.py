"""Orders, from Python: mixing by shares in every stretch, the shuffle buffer, and sorting records at any memory."""

from __future__ import annotations

import io
import itertools
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tartools.errors import StorageError
from tartools.samples.account import Account
from tartools.shards.passes import ItemSource
from tartools.stages import externalsort, shares
from tartools.stages.externalsort import BLOCK_BYTES, SortedRun, external_sort, group_runs, pack_blocks, unpack_block
from tartools.stages.mixing import MixedSource, Mixture, Stop
from tartools.stages.shuffle import shuffle_buffer

COUNT = 100_000
SHARES = [[7, 3], [1, 1], [999, 1], [1, 1, 1], [6, 3, 1], [1] * 50]


def mixing(sources: Sequence[Any], shares: Sequence[int], stop: Stop, seed: int) -> Mixture[Any]:
    """Return the mixture of *sources*."""
    return Mixture(sources, shares, stop, seed, None, None, Account())


def draw_items(
    sources: Sequence[Iterable[Any]], shares: Sequence[int], stop: Stop = "first", seed: int = 0
) -> Iterator[Any]:
    """Yield the items of *sources* as they are mixed."""
    return (item for item, _, _ in mixing(sources, shares, stop, seed).draw_items())


@pytest.mark.parametrize("shares", SHARES, ids=lambda shares: f"{shares[:3]}")
def test_shares_hold_in_every_stretch(shares: list[int]) -> None:
    """Counts ahead of the shares, at their most and least: any stretch is off by no more than their difference."""
    parts = [share / sum(shares) for share in shares]
    ahead, most, least = ([0.0] * len(shares) for _ in range(3))
    last = [0] * len(shares)  # place behind which `ahead` is known
    found = itertools.islice(draw_items([itertools.repeat(n) for n in range(len(shares))], shares, seed=3), COUNT)
    for place, source in enumerate(found, 1):
        ahead[source] -= (place - 1 - last[source]) * parts[source]
        least[source] = min(least[source], ahead[source] - parts[source])
        ahead[source] += 1 - parts[source]
        most[source] = max(most[source], ahead[source])
        last[source] = place
    assert max(high - low for high, low in zip(most, least, strict=True)) < 8


@pytest.mark.parametrize("step", [1, 2, 8, 13, 89])
def test_who_takes_every_nth_sample_gets_the_shares(step: int) -> None:
    found = itertools.islice(draw_items([itertools.repeat(0), itertools.repeat(1)], [7, 3], seed=1), COUNT)
    mine = list(found)[::step]
    count = sum(mine)
    assert abs(count - 0.3 * len(mine)) < 3 * (len(mine) * 0.3 * 0.7) ** 0.5 + 1
    longest = max(len(list(group)) for _, group in itertools.groupby(mine))
    assert longest < 40  # by chance: 0.7 to the power of 40 is less than one in a million


@pytest.mark.parametrize("place", [0, 1, 5, 8, 40])
def test_the_chance_of_a_source_is_its_share_at_every_place(place: int) -> None:
    counts = Counter(
        next(itertools.islice(draw_items([itertools.repeat(n) for n in range(3)], [5, 3, 2], seed=seed), place, None))
        for seed in range(4000)
    )
    for source, share in enumerate((0.5, 0.3, 0.2)):
        assert abs(counts[source] - 4000 * share) < 3.5 * (4000 * share * (1 - share)) ** 0.5


def test_ends() -> None:
    sources = [[("a", n) for n in range(7)], [("b", n) for n in range(3)]]
    assert Counter(item[0] for item in draw_items(sources, [1, 1], stop="all")) == {"a": 7, "b": 3}
    mixture = mixing(sources, [1, 1], "longest", 0)
    for item, number, again in mixture.draw_items():
        assert item == ("ab"[number], (mixture.item_counts[number] - 1) % (7, 3)[number])
        assert again == (mixture.item_counts[number] - 1) // (7, 3)[number] == mixture.rounds[number]
    assert (mixture.item_counts[0], mixture.ended_sources) == (7, [1, 0])
    assert (
        list(draw_items([[]], [1])) == list(draw_items([], [])) == list(draw_items([[], []], [1, 2], stop="all")) == []
    )
    found = iter([["ab", "c"], ["a"]])  # batches of each time
    other = MixedSource(ItemSource(["s3://b/a.tar"], lambda: iter(next(found)), False), Account(), needed=True)
    assert [*other] == ["a", "b", "c"]
    with pytest.raises(StorageError, match=r"s3://b/a\.tar: changed while it was read: it had 3 samples, now 1"):
        list(other)


def test_shares_are_exact() -> None:
    sources, large = [itertools.repeat(0), itertools.repeat(1)], [10**36, 2 * 10**36]  # as tarmix has them
    assert list(itertools.islice(draw_items(sources, large), 500)) == list(
        itertools.islice(draw_items(sources, [1, 2]), 500)
    )
    assert shares.upper_bounds([1] * 3)[-1] == shares.HASH_RANGE


def test_a_shuffle_buffer_holds_what_it_was_told_to() -> None:
    read: list[int] = []
    found = shuffle_buffer((read.append(n) or n for n in range(10)), 3, 0, Account())  # type: ignore[func-returns-value]
    first = next(found)
    assert read == [0, 1, 2, 3]
    assert sorted([first, *found]) == [*range(10)]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=400), st.integers(100, 20000))
def test_records_sort_at_any_memory(records: list[bytes], memory: int) -> None:
    assert list(external_sort(iter(records), memory, None)) == sorted(records)


def test_more_runs_than_are_merged_at_once() -> None:
    records = [b"%06d" % (n * 7919 % 100_003) + bytes(n % 50) for n in range(20_000)]
    assert list(external_sort(iter(records), 300, None)) == sorted(records)


def test_large_records_are_merged_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(externalsort, "MERGE_BYTES", 10_000)
    sizes = [3000] * 7 + [90_000] * 3
    with io.FileIO(os.devnull) as file:
        groups = group_runs([SortedRun(file, n, n + 1, largest) for n, largest in enumerate(sizes)])
    assert [[run.largest for run in group] for group in groups] == [
        [3000] * 3,
        [3000] * 3,
        [3000, 90_000],
        [90_000] * 2,
    ]
    records = [bytes([n * 7 % 50]) * 4000 for n in range(50)]
    assert list(external_sort(iter(records), 1000, None)) == sorted(records)


def test_a_block_has_as_many_records_as_fit_into_it() -> None:
    held = [bytes(size) for size in (3 << 20, *[700_000] * 20, *[100] * 3000, 5, 1 << 20, 0)]
    taken = 0

    def records() -> Iterator[bytes]:
        nonlocal taken
        for record in held:
            taken += len(record)
            yield record

    found: list[bytes] = []
    for block in pack_blocks(records()):
        begun = sum(map(len, found))
        found += unpack_block(block)
        assert taken <= sum(map(len, found)) + (3 << 20) and sum(map(len, found)) <= begun + max(
            BLOCK_BYTES, len(found[-1])
        )
    assert found == held


def test_records_longer_than_a_buffer() -> None:
    records = [bytes([n]) * 200_000 for n in (3, 1, 2)]
    assert list(external_sort(iter(records), 1000, None)) == sorted(records)
