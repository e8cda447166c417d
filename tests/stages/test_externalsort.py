"""Sorting records at any memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tartools.stages.sorting.externalsort import external_sort


@given(st.lists(st.binary(max_size=40), max_size=400), st.integers(100, 20000))
def test_records_sort_at_any_memory(records: list[bytes], memory: int) -> None:
    assert list(external_sort(iter(records), memory, None)) == sorted(records)


def test_more_runs_than_are_merged_at_once() -> None:
    records = [b"%06d" % (n * 7919 % 100_003) + bytes(n % 50) for n in range(20_000)]
    assert list(external_sort(iter(records), 300, None)) == sorted(records)


def test_records_longer_than_a_buffer() -> None:
    records = [bytes([n]) * 200_000 for n in (3, 1, 2)]
    assert list(external_sort(iter(records), 1000, None)) == sorted(records)
