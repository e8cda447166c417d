"""The distribution of numbers in buckets that share their first eight binary digits, so that parts add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

DIGITS = 8  # binary digits that the numbers of a bucket share


@dataclass
class Distribution:
    """The distribution of numbers: sum, least and greatest, and lower bound of each bucket -> count of numbers."""

    total: int = 0
    least: int | None = None
    greatest: int | None = None
    buckets: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.buckets = {int(low): count for low, count in self.buckets.items()}  # JSON turns keys into text

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Distribution:
        """Count *numbers*."""
        found, counts = cls(), Counter(numbers)
        for number, count in counts.items():
            shift = max(0, number.bit_length() - DIGITS)
            low = number >> shift << shift
            found.buckets[low] = found.buckets.get(low, 0) + count
            found.total += number * count
        found.least, found.greatest = min(counts, default=None), max(counts, default=None)
        return found

    def add(self, other: Distribution) -> None:
        """Add the counts of *other*."""
        self.total += other.total
        for low, count in other.buckets.items():
            self.buckets[low] = self.buckets.get(low, 0) + count
        known = [n for n in (self.least, self.greatest, other.least, other.greatest) if n is not None]
        self.least, self.greatest = min(known, default=None), max(known, default=None)

    def quantile(self, percent: int) -> int:
        """Return the quantile at *percent*, at most 1 % too small; 0 if there are no numbers."""
        if self.least is None:
            return 0
        rank = max(1, -(-percent * sum(self.buckets.values()) // 100))
        for low in sorted(self.buckets):
            rank -= self.buckets[low]
            if rank <= 0:
                break
        return max(low, self.least)
