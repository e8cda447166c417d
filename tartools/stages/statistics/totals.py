"""Counts of samples, fields and pictures, and how the counts of parts of the input add up.

All counts are exact, except quantiles, which are less than 1 % too small: numbers are counted in buckets that share
their first eight binary digits. As in DDSketch (Masson et al., PVLDB 12(12), 2019) the buckets do not depend on the
data, so the counts of parts add up to the same result however the input is divided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from heapq import merge
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from tartools.samples.distribution import Distribution

MOST = 1000  # distinct fields, combinations of fields, classes or sizes of pictures; more are not listed
LISTED = 1_000_000  # keys of broken pictures, or of samples without a field; more are counted, and not listed

T = TypeVar("T")
Counts = dict[str, int] | None  # value -> count, in order of appearance; None if there are more than MOST values


class PictureSize(NamedTuple):
    """Format and size in pixels from the header of a picture, or why it is *broken*."""

    form: str = ""
    width: int = 0
    height: int = 0
    broken: str = ""


@dataclass
class PictureCounts:
    """Formats and sizes of pictures; how many are *broken*, why the first of these is, and the keys of the first."""

    formats: Counts = field(default_factory=dict)
    sizes: Counts = field(default_factory=dict)
    widths: Distribution = field(default_factory=Distribution)
    heights: Distribution = field(default_factory=Distribution)
    broken: int = 0
    why: str | None = None
    broken_keys: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, measured: Sequence[tuple[str, PictureSize]]) -> PictureCounts:
        """Count *measured* pictures, given as (key, size) in the order of the input."""
        sound = [found for _, found in measured if not found.broken]
        broken = [(key, found.broken) for key, found in measured if found.broken]
        return cls(
            dict(Counter(found.form for found in sound)),
            bounded(dict(Counter(f"{found.width}x{found.height}" for found in sound))),
            Distribution.of(found.width for found in sound),
            Distribution.of(found.height for found in sound),
            len(broken),
            broken[0][1] if broken else None,
            [key for key, _ in broken],
        )

    def add(self, other: PictureCounts) -> None:
        """Add the counts of *other*, a later part of the input."""
        self.formats, self.sizes = joined(self.formats, other.formats), joined(self.sizes, other.sizes)
        self.widths.add(other.widths)
        self.heights.add(other.heights)
        self.why = other.why if self.why is None else self.why
        self.broken += other.broken
        self.broken_keys += other.broken_keys[: LISTED - len(self.broken_keys)]


@dataclass
class FieldStatistics:
    """One field: counts of its members and of samples that have it, and the key of the first sample that lacks it."""

    members: int = 0
    samples: int = 0
    lacking: str | None = None
    sizes: Distribution = field(default_factory=Distribution)
    classes: Counts = field(default_factory=dict)
    long: int = 0  # values that are too long for a class
    pictures: PictureCounts | None = None

    def add(self, other: FieldStatistics) -> None:
        """Add the counts of *other*, a later part of the input."""
        self.members += other.members
        self.samples += other.samples
        self.lacking = other.lacking if self.lacking is None else self.lacking
        self.sizes.add(other.sizes)
        self.classes = joined(self.classes, other.classes)
        self.long += other.long
        if self.pictures and other.pictures:
            self.pictures.add(other.pictures)
        else:
            self.pictures = self.pictures or other.pictures


@dataclass
class Statistics:
    """Counts of samples and members, and of the bytes of headers, payloads and padding.

    *first* is the key of the first sample; *shards* has [samples, bytes] for each URL; a combination of fields is their
    names in the order of the archive, joined by "/". Of each combination *keys* has the numbers and keys of the first
    samples, up to *listed*.
    """

    samples: int = 0
    members: int = 0
    headers: int = 0
    payloads: int = 0
    padding: int = 0
    first: str | None = None
    shards: dict[str, list[int]] = field(default_factory=dict)
    fields: dict[str, FieldStatistics] | None = field(default_factory=dict)
    combinations: Counts = field(default_factory=dict)
    listed: int = 0
    keys: dict[str, list[tuple[int, str]]] | None = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return all counts as values that JSON can hold."""
        keys, self.keys = self.keys, {}  # not copied one by one
        return asdict(self) | {"keys": keys}

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> Statistics:
        """Return the statistics that `as_dict` made *found* of, directly or through JSON."""
        fields = found["fields"] and {name: field_from_dict(each) for name, each in found["fields"].items()}
        return cls(**found | {"fields": fields})

    def add(self, other: Statistics) -> None:
        """Add the counts of *other*, a later part of the input, which must not be used any more."""
        for name in ("members", "headers", "payloads", "padding"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for url, (samples, size) in other.shards.items():
            before = self.shards.get(url, (0, 0))
            self.shards[url] = [before[0] + samples, before[1] + size]
        self.combinations = joined(self.combinations, other.combinations)
        self.keys = self._keys_with(other)
        if other.samples:
            self.fields = self._fields_with(other)
        self.first = other.first if self.first is None else self.first
        self.samples += other.samples

    def _keys_with(self, other: Statistics) -> dict[str, list[tuple[int, str]]] | None:
        if self.keys is None or other.keys is None:
            return None
        for combination, found in other.keys.items():
            known = self.keys.setdefault(combination, [])
            known += [(self.samples + number, key) for number, key in found[: self.listed - len(known)]]
        return bounded(self.keys)

    def lacking(self, name: str) -> list[str] | None:
        """Return the keys of the first samples, up to *listed*, without the field *name*; None if not known."""
        if self.keys is None or self.combinations is None:
            return None
        without = [each for each in self.keys if name not in each.split("/")]
        if any(len(self.keys[each]) < min(self.combinations[each], self.listed) for each in without):
            return None
        found = (self.keys[each] for each in without)
        return [key for _, key in islice(merge(*found), self.listed)]

    def _fields_with(self, other: Statistics) -> dict[str, FieldStatistics] | None:
        if self.fields is None or other.fields is None:
            return None
        for name, known in self.fields.items():
            if name not in other.fields and known.lacking is None:
                known.lacking = other.first
        for name, found in other.fields.items():
            if name in self.fields:
                self.fields[name].add(found)
            else:
                found.lacking = self.first if self.samples else found.lacking
                self.fields[name] = found
        return bounded(self.fields)


def field_from_dict(found: dict[str, Any]) -> FieldStatistics:
    """Return the field that `as_dict` made *found* of."""
    pictures = found["pictures"]
    if pictures:
        widths, heights = Distribution(**pictures["widths"]), Distribution(**pictures["heights"])
        pictures = PictureCounts(**pictures | {"widths": widths, "heights": heights})
    return FieldStatistics(**found | {"sizes": Distribution(**found["sizes"]), "pictures": pictures})


def bounded(things: dict[str, T] | None) -> dict[str, T] | None:
    """Return *things*, or None if there are more than MOST."""
    return None if things is None or len(things) > MOST else things


def joined(one: Counts, other: Counts) -> Counts:
    """Return the sum of two counts. Neither of them must be used any more."""
    if one is None or other is None:
        return None
    if not one:
        return other
    for value, count in other.items():
        one[value] = one.get(value, 0) + count
    return bounded(one)
