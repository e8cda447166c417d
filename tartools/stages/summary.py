"""The summary of samples: fields, samples that lack one, sizes, classes, pictures, and findings of a check.

tarstat, tarcheck and tarshow use it. Counts are exact and add up, however the input is divided, but for quantiles,
which are less than 1 % too small: numbers are counted in buckets that share their first eight binary digits. As in
DDSketch (Masson et al., PVLDB 12(12), 2019) the buckets do not depend on the data.

The records are plain classes: dataclasses takes 10 ms to import, a third of what Python takes to start.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any

MAX_DISTINCT_VALUES = 1000  # distinct fields, combinations of fields, classes or sizes of pictures; more are not listed
MAX_REMEMBERED_KEYS = (
    1_000_000  # keys of broken pictures, or of samples without a field; more are counted, and not listed
)
MAX_EXTREMES = (
    20  # largest and smallest payloads of a field that are remembered; samples of rare combinations of fields
)
BUCKET_BITS = 8  # binary digits that the numbers of a bucket share
MAX_FIRST_SAMPLES = 5  # samples of a shard by which readers know its fields

# value -> count, in order of appearance; None if there are more than MAX_DISTINCT_VALUES values
Counts = dict[str, int] | None


class Distribution:
    """The distribution of numbers, counted in buckets of less than 1 % width.

    The numbers are whole ones from 0 on; up to 255 each has a bucket of its own. `total`: their sum. `minimum`,
    `maximum`: None if there are no numbers. `buckets`: lower bound -> count of numbers.
    """

    __slots__ = ("buckets", "maximum", "minimum", "total")

    def __init__(self) -> None:
        self.total = 0
        self.minimum: int | None = None
        self.maximum: int | None = None
        self.buckets: dict[int, int] = {}

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Distribution:
        """Return the distribution of *numbers*, whole ones from 0 on, such as sizes in bytes."""
        distribution, counts = cls(), Counter(numbers)
        for number, count in counts.items():
            shift = max(0, number.bit_length() - BUCKET_BITS)
            low = number >> shift << shift
            distribution.buckets[low] = distribution.buckets.get(low, 0) + count
            distribution.total += number * count
        distribution.minimum, distribution.maximum = min(counts, default=None), max(counts, default=None)
        return distribution

    def add(self, later: Distribution) -> None:
        """Add the numbers that *later* counts to this distribution."""
        self.total += later.total
        for low, count in later.buckets.items():
            self.buckets[low] = self.buckets.get(low, 0) + count
        bounds = [n for n in (self.minimum, self.maximum, later.minimum, later.maximum) if n is not None]
        self.minimum, self.maximum = min(bounds, default=None), max(bounds, default=None)

    def quantile(self, percent: int) -> int:
        """Return the least number that *percent* % of all do not exceed, at most 1 % too small; 0 without numbers."""
        if self.minimum is None:
            return 0
        rank = max(1, -(-percent * sum(self.buckets.values()) // 100))
        for low in sorted(self.buckets):
            rank -= self.buckets[low]
            if rank <= 0:
                break
        return max(low, self.minimum)


class Tally:
    """A *count* of findings or samples, and *first*, a list: places or keys of the first ones, in input order."""

    __slots__ = ("count", "first")

    def __init__(self, count: int = 0, first: Iterable[Any] = ()) -> None:
        self.count = count
        self.first = list(first)

    def add(self, count: int, first: Sequence[Any], limit: int) -> None:
        """Add *count* things that come later than all so far; *first*: places of the first of them.

        Places of *first* are kept until there are *limit* in all; the ones that were kept before stay, even if there
        are more.
        """
        self.count += count
        self.first += first[: max(0, limit - len(self.first))]


class PictureCounts:
    """Counts of the pictures in one field.

    `formats`: format, such as JPEG -> number of sound pictures; None if over 1,000 after an `add`.
    `sizes`: WIDTHxHEIGHT, such as 640x480 -> number of sound pictures; None for over 1,000 sizes.
    `widths`, `heights`: `Distribution`s of sound pictures, in pixels.
    `broken`: `Tally` of broken pictures, with the keys of the first ones. `why`: the reason for the first one, or None.
    """

    __slots__ = ("broken", "formats", "heights", "sizes", "why", "widths")

    def __init__(
        self,
        formats: Counts,
        sizes: Counts,
        widths: Distribution,
        heights: Distribution,
        broken: Tally,
        why: str | None,
    ) -> None:
        self.formats = formats
        self.sizes = sizes
        self.widths = widths
        self.heights = heights
        self.broken = broken
        self.why = why

    @classmethod
    def of(cls, pictures: Sequence[tuple[str, tuple[Any, ...]]]) -> PictureCounts:
        """Return the counts of *pictures*, (key, (width, height, format, mode, fault)), in the order of the input.

        A picture whose fault is not None is broken, and counts only as that. The keys of all broken ones are kept.
        """
        sound = [facts for _, facts in pictures if facts[-1] is None]
        broken = [(key, facts[-1]) for key, facts in pictures if facts[-1] is not None]
        return cls(
            dict(Counter(form for _, _, form, *_ in sound)),
            bound_counts(dict(Counter(f"{width}x{height}" for width, height, *_ in sound))),
            Distribution.of(width for width, *_ in sound),
            Distribution.of(height for _, height, *_ in sound),
            Tally(len(broken), [key for key, _ in broken]),
            broken[0][1] if broken else None,
        )

    def add(self, later: PictureCounts) -> None:
        """Add the counts of *later*, a later part of the input; *later* must not be used any more.

        Keys of broken pictures are added until there are 1,000,000 (MAX_REMEMBERED_KEYS).
        """
        self.formats, self.sizes = sum_of_counts(self.formats, later.formats), sum_of_counts(self.sizes, later.sizes)
        self.widths.add(later.widths)
        self.heights.add(later.heights)
        self.why = later.why if self.why is None else self.why
        self.broken.add(later.broken.count, later.broken.first, MAX_REMEMBERED_KEYS)


class LengthCounts:
    """Lengths of the sounds or videos in one field.

    `microseconds`: `Distribution` of the lengths, where they can be told, of payloads that are not broken; whole
    numbers, so that sums do not depend on their order.
    `broken`: `Tally` of broken ones, with the keys of the first ones. `why`: the reason for the first one, or None.
    """

    __slots__ = ("broken", "microseconds", "why")

    def __init__(self, microseconds: Distribution, broken: Tally, why: str | None) -> None:
        self.microseconds = microseconds
        self.broken = broken
        self.why = why

    @classmethod
    def of(cls, lengths: Sequence[tuple[str, tuple[float | None, str | None]]]) -> LengthCounts:
        """Return the counts of *lengths*, (key, (seconds, fault)), in the order of the input.

        A payload whose fault is not None is broken, and its length does not count; nor does what is no finite number,
        such as None for an unknown one. The keys of all broken ones are kept.
        """
        broken = [(key, fault) for key, (_, fault) in lengths if fault is not None]
        known = [seconds for _, (seconds, fault) in lengths if fault is None and isinstance(seconds, (int, float))]
        whole = [round(seconds * 1_000_000) for seconds in known if math.isfinite(seconds)]
        return cls(
            Distribution.of(whole),
            Tally(len(broken), [key for key, _ in broken]),
            broken[0][1] if broken else None,
        )

    def add(self, later: LengthCounts) -> None:
        """Add the counts of *later*, a later part of the input.

        Keys of broken payloads are added until there are 1,000,000 (MAX_REMEMBERED_KEYS).
        """
        self.microseconds.add(later.microseconds)
        self.why = later.why if self.why is None else self.why
        self.broken.add(later.broken.count, later.broken.first, MAX_REMEMBERED_KEYS)


class FieldSummary:
    """Counts of one field.

    `members`: number of members. `samples`: number of samples that have it. `lacking`: key of the first that lacks it,
        or None.
    `sizes`: of payloads, in bytes. `classes`: value -> count, None for over 1,000 values; {} if values are not counted.
        `long`: number of values too long for a class.
    `pictures`: `PictureCounts`, None if pictures were not measured. `lengths`: `LengthCounts` of sounds or videos, None
        if they were not measured.
    `small`, `large`: (size, place) of its smallest payloads, ascending, and its largest, descending, up to 20 each
        (MAX_EXTREMES); [] if they are not asked for.
    """

    __slots__ = ("classes", "lacking", "large", "lengths", "long", "members", "pictures", "samples", "sizes", "small")

    def __init__(self, members: int = 0, sizes: Distribution | None = None) -> None:
        self.members = members
        self.samples = 0
        self.lacking: str | None = None
        self.sizes = Distribution() if sizes is None else sizes
        self.classes: Counts = {}
        self.long = 0
        self.pictures: PictureCounts | None = None
        self.lengths: LengthCounts | None = None
        self.small: list[tuple[int, Any]] = []
        self.large: list[tuple[int, Any]] = []

    def add(self, later: FieldSummary) -> None:
        """Add the counts of *later*, the same field in a later part of the input; *later* must not be used any more.

        If only one of the two has `pictures` or `lengths`, these stay as they are.
        """
        self.members += later.members
        self.samples += later.samples
        self.lacking = later.lacking if self.lacking is None else self.lacking
        self.sizes.add(later.sizes)
        self.classes = sum_of_counts(self.classes, later.classes)
        self.long += later.long
        if self.pictures and later.pictures:
            self.pictures.add(later.pictures)
        else:
            self.pictures = self.pictures or later.pictures
        if self.lengths and later.lengths:
            self.lengths.add(later.lengths)
        else:
            self.lengths = self.lengths or later.lengths
        if later.small:
            self.small = sorted(self.small + later.small)[:MAX_EXTREMES]
        if later.large:
            self.large = sorted(self.large + later.large, key=extreme_sort_key)[:MAX_EXTREMES]


def extreme_sort_key(extreme: tuple[int, Any]) -> tuple[int, Any]:
    """Return a sort key of *extreme*, (size, place): the largest size sorts first, of equal sizes the first place."""
    return -extreme[0], extreme[1]


class Summary:
    """Counts of samples, and findings of a check about them. Parts of the input are summed by `add`.

    `samples`, `members`: their numbers. `stored`: bytes of the samples in the archive; `payloads`, `padding`: of these.
    `first`: key of the first sample, None without samples. `shards`: URL -> [samples, bytes].
    `fields`: name -> `FieldSummary`. `values`: name of a column -> `FieldSummary` of its values, of which only these
        are counted: `samples` that have one, `lacking` (key of the first sample without, or None), `classes` (value ->
        number) and `long` (number of values too long for a class).
    `combinations`: fields of a sample in the order of the archive, joined by "/" -> `Tally` of such samples.
    `findings`: code -> `Tally`, with the first places. `undecoded`: fields with payloads too large to decode.
    `types`: field -> type of its values -> `Tally` of samples; the type None stands for all types after the first
        1,000.
    `first_samples`: number of an input -> its first five samples (MAX_FIRST_SAMPLES), tuples that begin with the place.
    `listed`: up to so many places or samples are kept of each finding and combination; once there are more than
        *usual* combinations, samples are added to one only up to 20 (MAX_EXTREMES).
    `many_fields`, `many_combinations`: True if there are over 1,000 (MAX_DISTINCT_VALUES); then `fields` or
        `combinations` do not have all.
    """

    def __init__(self, listed: int = MAX_REMEMBERED_KEYS, usual: int = MAX_DISTINCT_VALUES) -> None:
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
        self.values: dict[str, FieldSummary] = {}
        self.many_fields = False
        self.combinations: dict[str, Tally] = {}
        self.many_combinations = False
        self.findings: dict[str, Tally] = {}
        self.undecoded: set[str] = set()  # fields with payloads that were to be decoded, and are too large
        self.types: dict[str, dict[Hashable, Tally]] = {}
        self.first_samples: dict[int, list[Any]] = {}

    def keeps_place(self, code: str) -> bool:
        """True if `note` would keep the place of one more finding with *code*, so that a description of it is of use.

        That is, fewer than `listed`, which is at least 1, are kept.
        """
        return code not in self.findings or len(self.findings[code].first) < self.listed

    def note(self, code: str, place: Any, count: int = 1) -> None:
        """Add *count* findings with *code*; keep *place*, of the first of them, if fewer than `listed` are kept."""
        self.findings.setdefault(code, Tally()).add(count, (place,), self.listed)

    def add_combination(self, combination: str, count: int, first: Sequence[Any]) -> None:
        """Add *count* samples with the fields *combination*, names joined by "/"; *first*: places of the first of them.

        Places are kept until the combination has `listed`, or 20 (MAX_EXTREMES) if there are more than *usual*
        combinations. After 1,000 combinations (MAX_DISTINCT_VALUES) a new one only sets `many_combinations`, and is
        noted, with the first place in *first*, as *count* findings "many-fields"; without places it is not noted.
        """
        tally = self.combinations.get(combination)
        if tally is None:
            if len(self.combinations) >= MAX_DISTINCT_VALUES:
                self.many_combinations = True
                for place in first[:1]:
                    self.note("many-fields", place, count)
                return
            tally = self.combinations[combination] = Tally()
        tally.add(count, first, self.listed if len(self.combinations) <= self.usual else MAX_EXTREMES)

    def add_field(self, name: str, field_summary: FieldSummary) -> None:
        """Add *field_summary*, counts of the field *name* in later samples; a 1,001st field only sets `many_fields`.

        *field_summary* must not be used any more.
        """
        if name in self.fields:
            self.fields[name].add(field_summary)
        elif len(self.fields) < MAX_DISTINCT_VALUES:
            self.fields[name] = field_summary
        else:
            self.many_fields = True

    def add_type(self, name: str, kind: Hashable, count: int, first: Sequence[Any]) -> None:
        """Add *count* samples whose field *name* has values of type *kind*; *first*: places of the first of them.

        Up to 20 places are kept (MAX_EXTREMES). Once a field has 1,000 types, a new type counts as None.
        """
        types = self.types.setdefault(name, {})
        if kind not in types and len(types) >= MAX_DISTINCT_VALUES:
            kind = None
        types.setdefault(kind, Tally()).add(count, first, MAX_EXTREMES)

    def add_first_samples(self, number: int, samples: Sequence[Any]) -> None:
        """Add *samples* of input *number*, tuples that begin with their place; keep the five with the lowest places."""
        self.first_samples[number] = sorted([*self.first_samples.get(number, ()), *samples], key=itemgetter(0))[
            :MAX_FIRST_SAMPLES
        ]

    def add(self, later: Summary, shift: int = 0) -> None:
        """Add the counts of *later*, the summary of samples that follow; *later* must not be used any more.

        `shift`: added to the numbers of samples in the places of combinations, which are (number, key) then; 0: the
        places may have any form. Places of findings stay as they are.
        """
        for name in ("members", "stored", "payloads", "padding"):
            setattr(self, name, getattr(self, name) + getattr(later, name))
        for url, (samples, size) in later.shards.items():
            before = self.shards.get(url, (0, 0))
            self.shards[url] = [before[0] + samples, before[1] + size]
        for code, tally in later.findings.items():
            self.findings.setdefault(code, Tally()).add(tally.count, tally.first, self.listed)
        for combination, tally in later.combinations.items():
            first = [(shift + number, key) for number, key in tally.first] if shift else tally.first
            self.add_combination(combination, tally.count, first)
        for name, own_field in self.fields.items():
            if name not in later.fields and own_field.lacking is None:
                own_field.lacking = later.first
        for name, later_field in later.fields.items():
            if name not in self.fields and self.samples:
                later_field.lacking = self.first
            self.add_field(name, later_field)
        for name, later_values in later.values.items():
            if name in self.values:
                self.values[name].add(later_values)
            else:
                self.values[name] = later_values
        self.undecoded |= later.undecoded
        self._add_types(later)
        self.many_fields |= later.many_fields
        self.many_combinations |= later.many_combinations
        self.first = later.first if self.first is None else self.first
        self.samples += later.samples

    def _add_types(self, later: Summary) -> None:
        """Add the types of values, and the first samples of inputs, in *later*."""
        for name, types in later.types.items():
            for kind, tally in types.items():
                self.add_type(name, kind, tally.count, tally.first)
        for number, first in later.first_samples.items():
            self.add_first_samples(number, first)

    def keys_lacking(self, name: str) -> list[str] | None:
        """Return the keys of the first samples, up to `listed`, without the field *name*.

        They are in the order of the numbers; [] if all samples have it. None if a combination without the field keeps
        fewer of its samples than that, or there were over 1,000 combinations, so that some keys are missing. Places in
        combinations must be (number, key). *name*: with case.
        """
        without = [tally for fields, tally in self.combinations.items() if name not in fields.split("/")]
        if self.many_combinations or any(len(tally.first) < min(tally.count, self.listed) for tally in without):
            return None
        return [key for _, key in islice(merge(*(tally.first for tally in without)), self.listed)]


def bound_counts(counts: Counts) -> Counts:
    """Return *counts*; None, which stands for too many values, if it has over 1,000 (MAX_DISTINCT_VALUES)."""
    return None if counts is None or len(counts) > MAX_DISTINCT_VALUES else counts


def sum_of_counts(counts: Counts, later_counts: Counts) -> Counts:
    """Return the sum of *counts* and *later_counts*, value -> number; None if either is None, or for over 1,000 values.

    If *counts* is empty, *later_counts* is returned as it is, however many values it has. Neither may be used after the
    call: one is changed and returned.
    """
    if counts is None or later_counts is None:
        return None
    if not counts:
        return later_counts
    for value, count in later_counts.items():
        counts[value] = counts.get(value, 0) + count
    return bound_counts(counts)
