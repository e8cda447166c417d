"""Statistics of shards: count the samples of a batch, and add the counts of parts of the input.

All counts are exact, except quantiles, which are less than 1 % too small: numbers are counted in buckets that share
their first eight binary digits. As in DDSketch (Masson et al., PVLDB 12(12), 2019) the buckets do not depend on the
data, so the counts of parts add up to the same result however the input is divided.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import repeat
from operator import add, itemgetter
from typing import Any, NamedTuple, TypeVar

from tartools.samples.sample import Batch
from tartools.tar import BLOCK, Member, read_range

MOST = 1000  # distinct fields, combinations of fields, classes or sizes of pictures; more are not listed
LONGEST = 256  # bytes of a value that counts as a class
DIGITS = 8  # binary digits that the numbers of a bucket share
NEAR = 1 << 13  # bytes; payloads in a file that are this close on average are read at once

T = TypeVar("T")
Counts = dict[str, int] | None  # value -> count, in order of appearance; None if there are more than MOST values


class PictureSize(NamedTuple):
    """Format and size in pixels from the header of a picture, or why it is *broken*."""

    form: str = ""
    width: int = 0
    height: int = 0
    broken: str = ""


class FieldKinds(NamedTuple):
    """Which fields hold *classes*, which hold *pictures*, and the function that measures a picture."""

    classes: Callable[[str], bool]
    pictures: Callable[[str], bool]
    measure: Callable[[Member], PictureSize]


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


@dataclass
class Pictures:
    """Formats and sizes of pictures; how many are *broken*, and for the first of these why, and its key."""

    formats: Counts = field(default_factory=dict)
    sizes: Counts = field(default_factory=dict)
    widths: Distribution = field(default_factory=Distribution)
    heights: Distribution = field(default_factory=Distribution)
    broken: int = 0
    why: str | None = None
    example: str | None = None

    @classmethod
    def of(cls, measured: Sequence[tuple[str, PictureSize]]) -> Pictures:
        """Count *measured* pictures, given as (key, size)."""
        sound = [found for _, found in measured if not found.broken]
        broken = [(found.broken, key) for key, found in measured if found.broken]
        return cls(
            dict(Counter(found.form for found in sound)),
            bounded(dict(Counter(f"{found.width}x{found.height}" for found in sound))),
            Distribution.of(found.width for found in sound),
            Distribution.of(found.height for found in sound),
            len(broken),
            *(broken[0] if broken else ()),
        )

    def add(self, other: Pictures) -> None:
        """Add the counts of *other*, a later part of the input."""
        self.formats, self.sizes = joined(self.formats, other.formats), joined(self.sizes, other.sizes)
        self.widths.add(other.widths)
        self.heights.add(other.heights)
        if not self.broken:
            self.why, self.example = other.why, other.example
        self.broken += other.broken


@dataclass
class Field:
    """One field: counts of its members and of samples that have it, and the key of the first sample that lacks it."""

    members: int = 0
    samples: int = 0
    lacking: str | None = None
    sizes: Distribution = field(default_factory=Distribution)
    classes: Counts = field(default_factory=dict)
    long: int = 0  # values that are too long for a class
    pictures: Pictures | None = None

    def add(self, other: Field) -> None:
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
    names in the order of the archive, joined by "/".
    """

    samples: int = 0
    members: int = 0
    headers: int = 0
    payloads: int = 0
    padding: int = 0
    first: str | None = None
    shards: dict[str, list[int]] = field(default_factory=dict)
    fields: dict[str, Field] | None = field(default_factory=dict)
    combinations: Counts = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return all counts as values that JSON can hold."""
        return asdict(self)

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
        if other.samples:
            self.fields = self._fields_with(other)
        self.first = other.first if self.first is None else self.first
        self.samples += other.samples

    def _fields_with(self, other: Statistics) -> dict[str, Field] | None:
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


def field_from_dict(found: dict[str, Any]) -> Field:
    """Return the field that `as_dict` made *found* of."""
    pictures = found["pictures"]
    if pictures:
        widths, heights = Distribution(**pictures["widths"]), Distribution(**pictures["heights"])
        pictures = Pictures(**pictures | {"widths": widths, "heights": heights})
    return Field(**found | {"sizes": Distribution(**found["sizes"]), "pictures": pictures})


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


class Combination(NamedTuple):
    """Samples with the same combination of *fields*: their keys, and a column of members for each field."""

    fields: tuple[str, ...]
    keys: Sequence[bytes]
    columns: Sequence[Sequence[Member]]


def count_batch(batch: Batch, kinds: FieldKinds) -> Statistics:
    """Return the counts of *batch*. Only the payloads that *kinds* names are read.

    Raises: StorageError if the file that it was read from has become shorter.
    """
    found = Statistics(samples=len(batch), first=text(batch.keys[0]))
    if batch.groups is not None:
        _, keys, starts, members, firsts = batch.groups
        members = members or []
        found.headers = starts[-1] - starts[0]  # payloads and padding are subtracted below
    else:
        keys, members, firsts = batch.keys, list(batch[0].members), [0]
        found.headers = sum(data - start if head is None else BLOCK for _, _, start, data, _, head in members)
    found.members = len(members)
    for size, count in Counter(map(itemgetter(4), members)).items():
        found.payloads += size * count
        found.padding += -size % BLOCK * count
    found.headers -= 0 if batch.groups is None else found.payloads + found.padding
    found.shards = {batch.shard: [len(batch), found.headers + found.payloads + found.padding]}
    combinations = by_combination(keys, members, firsts)
    found.combinations = bounded({"/".join(group.fields): len(group.keys) for group in combinations})
    found.fields = count_fields(combinations, kinds)
    return found


def count_fields(combinations: Sequence[Combination], kinds: FieldKinds) -> dict[str, Field] | None:
    """Return the counts of each field in *combinations*; None if there are more than MOST fields."""
    columns: dict[str, list[tuple[Sequence[bytes], Sequence[Member]]]] = {}
    for group in combinations:
        for name, column in zip(group.fields, group.columns, strict=True):
            columns.setdefault(name, []).append((group.keys, column))
    if len(columns) > MOST:
        return None
    fields = {name: Field() for name in columns}
    for group in combinations:
        for name in set(group.fields):
            fields[name].samples += len(group.keys)
    for name, found in fields.items():
        if len(combinations) > 1:
            found.lacking = next((text(group.keys[0]) for group in combinations if name not in group.fields), None)
        for keys, column in columns[name]:
            found.add(count_field(name, keys, column, kinds))
    return fields


def count_field(name: str, keys: Sequence[bytes], column: Sequence[Member], kinds: FieldKinds) -> Field:
    """Return the counts of the members *column* of the field *name*; *keys* are those of their samples."""
    found = Field(len(column), sizes=Distribution.of(map(itemgetter(4), column)))
    if kinds.classes(name):
        short = (
            column if (found.sizes.greatest or 0) <= LONGEST else [member for member in column if member[4] <= LONGEST]
        )
        found.long = len(column) - len(short)
        classes: dict[str, int] = {}
        for payload, count in Counter(payloads(short)).items():
            value = text(payload).removesuffix("\n")
            classes[value] = classes.get(value, 0) + count
        found.classes = bounded(classes)
    if kinds.pictures(name):
        measured = zip(map(text, keys), map(kinds.measure, map(Member._make, column)), strict=True)
        found.pictures = Pictures.of(list(measured))
    return found


def payloads(members: Sequence[Member]) -> list[bytes]:
    """Return the payloads of *members*. If there are several, they are in one source, in order of their offsets."""
    if not members:
        return []
    _, source, _, start, _, _ = members[0]
    end = members[-1][3] + members[-1][4]
    if isinstance(source, io.FileIO) and end - start <= NEAR * len(members):
        held = read_range(source, start, end)
        return [held[data - start : data - start + size] for _, _, _, data, size, _ in members]
    return [read_range(source, data, data + size) for _, source, _, data, size, _ in members]


def text(raw: bytes) -> str:
    """Return *raw* as text; bytes that are not UTF-8 become surrogate escapes (PEP 383)."""
    return raw.decode("utf-8", "surrogateescape")


def by_combination(keys: Sequence[bytes], members: Sequence[Member], firsts: Sequence[int]) -> list[Combination]:
    """Return samples by their combination of fields, in order of appearance; those of sample n begin at `firsts[n]`."""
    each = len(members) // len(keys)
    if list(firsts) == list(range(0, len(members), each)):  # usually all samples are alike: then no loop over them
        columns = [members[number::each] for number in range(each)]
        fields = tuple(column[0][0][len(keys[0]) :] for column in columns)
        if all(
            list(map(itemgetter(0), column)) == list(map(add, keys, repeat(behind)))
            for behind, column in zip(fields, columns, strict=True)
        ):
            return [Combination(tuple([text(behind[1:]) for behind in fields]), keys, columns)]
    groups: dict[tuple[bytes, ...], list[int]] = {}
    for number, (key, first, last) in enumerate(zip(keys, firsts, [*firsts[1:], len(members)], strict=True)):
        length = len(key)
        groups.setdefault(tuple([member[0][length:] for member in members[first:last]]), []).append(number)
    return [
        Combination(
            tuple([text(behind[1:]) for behind in fields]),
            [keys[number] for number in numbers],
            [[members[firsts[number] + column] for number in numbers] for column in range(len(fields))],
        )
        for fields, numbers in groups.items()
    ]
