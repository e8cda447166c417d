"""The account of what is in samples: their fields, who lacks one, sizes, classes, pictures, and what is wrong.

tarstat, tarcheck and tarshow keep it. Counts are exact and add up, however the input is divided, but for quantiles,
which are less than 1 % too small: numbers are counted in buckets that share their first eight binary digits. As in
DDSketch (Masson et al., PVLDB 12(12), 2019) the buckets do not depend on the data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from typing import Any

MOST = 1000  # distinct fields, combinations of fields, classes or sizes of pictures; more are not listed
LISTED = 1_000_000  # keys of broken pictures, or of samples without a field; more are counted, and not listed
EXTREMES = 20  # largest and smallest payloads of a field that are remembered; samples of rare combinations of fields
DIGITS = 8  # binary digits that the numbers of a bucket share

Counts = dict[str, int] | None  # value -> count, in order of appearance; None if there are more than MOST values


@dataclass
class Distribution:
    """The distribution of numbers: sum, least and greatest, and lower bound of each bucket -> count of numbers."""

    total: int = 0
    least: int | None = None
    greatest: int | None = None
    buckets: dict[int, int] = field(default_factory=dict)

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


class Tally:
    """How many of something there are, and the *first* of these: tuples that sort in the order of the input."""

    __slots__ = ("count", "first")

    def __init__(self, count: int = 0, first: Iterable[Any] = ()) -> None:
        self.count = count
        self.first = list(first)

    def add(self, count: int, first: Sequence[Any], most: int) -> None:
        """Add *count* more, of which these are the *first*; remember up to *most* in all."""
        self.count += count
        self.first += first[: max(0, most - len(self.first))]


@dataclass
class PictureCounts:
    """Formats and sizes of pictures; the keys of those that are *broken*, and why the first of these is."""

    formats: Counts = field(default_factory=dict)
    sizes: Counts = field(default_factory=dict)
    widths: Distribution = field(default_factory=Distribution)
    heights: Distribution = field(default_factory=Distribution)
    broken: Tally = field(default_factory=Tally)
    why: str | None = None

    @classmethod
    def of(cls, pictures: Sequence[tuple[str, tuple[Any, ...]]]) -> PictureCounts:
        """Count *pictures*, given as (key, `decoding.facts`) in the order of the input."""
        sound = [found for _, found in pictures if found[-1] is None]
        broken = [(key, found[-1]) for key, found in pictures if found[-1] is not None]
        return cls(
            dict(Counter(form for _, _, form, *_ in sound)),
            bounded(dict(Counter(f"{width}x{height}" for width, height, *_ in sound))),
            Distribution.of(width for width, *_ in sound),
            Distribution.of(height for _, height, *_ in sound),
            Tally(len(broken), [key for key, _ in broken]),
            broken[0][1] if broken else None,
        )

    def add(self, other: PictureCounts) -> None:
        """Add the counts of *other*, a later part of the input."""
        self.formats, self.sizes = sum_of_counts(self.formats, other.formats), sum_of_counts(self.sizes, other.sizes)
        self.widths.add(other.widths)
        self.heights.add(other.heights)
        self.why = other.why if self.why is None else self.why
        self.broken.add(other.broken.count, other.broken.first, LISTED)


@dataclass
class FieldSummary:
    """One field: counts of its members and of samples that have it, and the key of the first sample that lacks it.

    *small* and *large* are sizes and places of its smallest and largest payloads, if these are asked for.
    """

    members: int = 0
    samples: int = 0
    lacking: str | None = None
    sizes: Distribution = field(default_factory=Distribution)
    classes: Counts = field(default_factory=dict)
    long: int = 0  # values that are too long for a class
    pictures: PictureCounts | None = None
    small: list[tuple[int, Any]] = field(default_factory=list)
    large: list[tuple[int, Any]] = field(default_factory=list)

    def add(self, other: FieldSummary) -> None:
        """Add the counts of *other*, a later part of the input."""
        self.members += other.members
        self.samples += other.samples
        self.lacking = other.lacking if self.lacking is None else self.lacking
        self.sizes.add(other.sizes)
        self.classes = sum_of_counts(self.classes, other.classes)
        self.long += other.long
        if self.pictures and other.pictures:
            self.pictures.add(other.pictures)
        else:
            self.pictures = self.pictures or other.pictures
        if other.small:
            self.small = sorted(self.small + other.small)[:EXTREMES]
        if other.large:
            self.large = sorted(self.large + other.large, key=largest)[:EXTREMES]


def largest(found: tuple[int, Any]) -> tuple[int, Any]:
    """Return what sorts the largest first, and the first of those that are equal."""
    return -found[0], found[1]


class Summary:
    """What there is in *samples*: of members and bytes, fields, combinations of fields, and findings.

    They take *stored* bytes, with headers and padding. *first* is the key of the first one; *shards* has
    [samples, bytes] for each URL. *combinations* are names of fields in the order of the archive, joined by "/", with
    their first samples; *findings* are codes of what is wrong, with their first places. Of each as many are remembered
    as are *listed*; of combinations, once there are more than *usual*, 20. The first 1,000 fields and combinations are
    told apart; *many_fields* and *many_combinations* say that there are more.
    """

    def __init__(self, listed: int = LISTED, usual: int = MOST) -> None:
        self.listed = listed
        self.usual = usual
        self.samples = 0
        self.members = 0
        self.stored = 0
        self.payloads = 0
        self.padding = 0
        self.first: str | None = None
        self.shards: dict[str, list[int]] = {}
        self.fields: dict[str, FieldSummary] = {}
        self.many_fields = False
        self.combinations: dict[str, Tally] = {}
        self.many_combinations = False
        self.findings: dict[str, Tally] = {}
        self.undecoded: set[str] = set()  # fields with payloads that were to be decoded, and are too large

    def lists(self, code: str) -> bool:
        """Tell whether the place of one more finding of *code* would be remembered."""
        return code not in self.findings or len(self.findings[code].first) < self.listed

    def note(self, code: str, place: Any, count: int = 1) -> None:
        """Add a finding, which may stand for several others."""
        self.findings.setdefault(code, Tally()).add(count, (place,), self.listed)

    def combined(self, combination: str, count: int, first: Sequence[Any]) -> None:
        """Add *count* samples with a *combination* of fields, of which these are the *first*."""
        known = self.combinations.get(combination)
        if known is None:
            if len(self.combinations) >= MOST:
                self.many_combinations = True
                for place in first[:1]:
                    self.note("many-fields", place, count)
                return
            known = self.combinations[combination] = Tally()
        known.add(count, first, self.listed if len(self.combinations) <= self.usual else EXTREMES)

    def counted(self, name: str, found: FieldSummary) -> None:
        """Add what was *found* in the field *name* of later samples."""
        if name in self.fields:
            self.fields[name].add(found)
        elif len(self.fields) < MOST:
            self.fields[name] = found
        else:
            self.many_fields = True

    def add(self, other: Summary, shift: int = 0) -> None:
        """Add *other*, of later samples, which must not be used any more; *shift* is added to the numbers of these."""
        for name in ("members", "stored", "payloads", "padding"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for url, (samples, size) in other.shards.items():
            before = self.shards.get(url, (0, 0))
            self.shards[url] = [before[0] + samples, before[1] + size]
        for code, found in other.findings.items():
            self.findings.setdefault(code, Tally()).add(found.count, found.first, self.listed)
        for combination, found in other.combinations.items():
            first = [(shift + number, key) for number, key in found.first] if shift else found.first
            self.combined(combination, found.count, first)
        for name, known in self.fields.items():
            if name not in other.fields and known.lacking is None:
                known.lacking = other.first
        for name, more in other.fields.items():
            if name not in self.fields and self.samples:
                more.lacking = self.first
            self.counted(name, more)
        self.undecoded |= other.undecoded
        self.many_fields |= other.many_fields
        self.many_combinations |= other.many_combinations
        self.first = other.first if self.first is None else self.first
        self.samples += other.samples

    def lacking(self, name: str) -> list[str] | None:
        """Return the keys of the first samples, up to *listed*, without the field *name*; None if not known.

        Places in combinations must be (number, key).
        """
        without = [tally for fields, tally in self.combinations.items() if name not in fields.split("/")]
        if self.many_combinations or any(len(tally.first) < min(tally.count, self.listed) for tally in without):
            return None
        return [key for _, key in islice(merge(*(tally.first for tally in without)), self.listed)]


def bounded(counts: Counts) -> Counts:
    """Return *counts*, or None if there are more than MOST."""
    return None if counts is None or len(counts) > MOST else counts


def sum_of_counts(one: Counts, other: Counts) -> Counts:
    """Return the sum of two counts. Neither of them must be used any more."""
    if one is None or other is None:
        return None
    if not one:
        return other
    for value, count in other.items():
        one[value] = one.get(value, 0) + count
    return bounded(one)
