"""Sorting records at any memory."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tartools.stages import externalsort
from tartools.stages.externalsort import (
    BLOCK,
    SortedRun,
    external_sort,
    mergeable,
    pack_blocks,
    unpack_block,
)


@given(st.lists(st.binary(max_size=40), max_size=400), st.integers(100, 20000))
def test_records_sort_at_any_memory(records: list[bytes], memory: int) -> None:
    assert list(external_sort(iter(records), memory, None)) == sorted(records)


def test_more_runs_than_are_merged_at_once() -> None:
    records = [b"%06d" % (n * 7919 % 100_003) + bytes(n % 50) for n in range(20_000)]
    assert list(external_sort(iter(records), 300, None)) == sorted(records)


def test_large_records_are_merged_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(externalsort, "MERGING", 10_000)
    sizes = [3000] * 7 + [90_000] * 3
    with io.FileIO(os.devnull) as file:
        groups = mergeable([SortedRun(file, n, n + 1, largest) for n, largest in enumerate(sizes)])
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
        assert taken <= sum(map(len, found)) + (3 << 20) and sum(map(len, found)) <= begun + max(BLOCK, len(found[-1]))
    assert found == held


def test_records_longer_than_a_buffer() -> None:
    records = [bytes([n]) * 200_000 for n in (3, 1, 2)]
    assert list(external_sort(iter(records), 1000, None)) == sorted(records)
