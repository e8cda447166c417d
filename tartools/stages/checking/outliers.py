"""Sizes that are far from the rest: of payloads in their field, and of shards."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low

from tartools.errors import in_units
from tartools.stages.checking.found import Place, Sizes, Summary

ENOUGH = 100  # payloads of a field, below which none is far from the rest
FAR = 100  # times the size that one in twenty exceeds, or a part of the size that one in twenty stays below
LARGE = 1 << 16  # bytes; a smaller payload is never too large
SHARDS = 4  # fewer are not compared
UNLIKE = 10  # times as large as the median, or a part of it


def note_payloads(summary: Summary) -> None:
    """Add to *summary* the payloads that are far larger or smaller than most of their field."""
    for field, found in summary.fields.items():
        counts = found.sizes.buckets
        if sum(counts.values()) < ENOUGH:
            continue
        high = max(LARGE, FAR * found.sizes.quantile(95))
        low = found.sizes.quantile(5) // FAR
        note_far(summary, field, found, low, high)


def note_far(summary: Summary, field: str, found: Sizes, low: int, high: int) -> None:
    """Add the payloads of *field* that are larger than *high*, or smaller than *low* and not empty."""
    counts = found.sizes.buckets
    for places, far in (
        ([each for each in found.large if each[0] > high], sum(n for size, n in counts.items() if size > high)),
        ([each for each in found.small if 0 < each[0] < low], sum(n for size, n in counts.items() if 0 < size < low)),
    ):
        for number, (size, place) in enumerate(places):
            more = max(far - len(places), 0) if number == len(places) - 1 else 0
            summary.note("size-outlier", place._replace(what=f"{field}: {in_units(size)}"), 1 + more)


def note_shards(summary: Summary, shards: Sequence[tuple[int, int]]) -> None:
    """Add to *summary* the shards that are far larger or smaller than most; *shards* are their numbers and bytes.

    The last may be small: it has what was left.
    """
    if len(shards) < SHARDS:
        return
    middle = median_low(size for _, size in shards)
    for number, size in shards:
        small = size * UNLIKE < middle and number != shards[-1][0] and size
        if small or size > middle * UNLIKE:
            summary.note("shard-size", Place(number, 0, "", f"{in_units(size)}; the median is {in_units(middle)}"))
