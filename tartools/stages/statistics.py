"""What is in shards, counted; and how the counts of parts become those of the whole.

Counts are exact, but for quantiles. These come from buckets of numbers that share their first eight binary digits, so
that they are wrong by less than 1 %. As in DDSketch (Masson et al., PVLDB 12(12), 2019) the buckets do not depend on
the data, so counts of parts just add up: the result is the same wherever the input was cut, and there is no rounding.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import repeat
from operator import add, itemgetter
from typing import Any, NamedTuple, TypeVar

from tartools.sample import Batch
from tartools.tar import BLOCK, Member, read_range

MOST = 1000  # distinct fields, combinations of these, classes or sizes of pictures; more are not told one by one
LONGEST = 256  # bytes of a class
DIGITS = 8  # binary, that all numbers of a bucket begin with
NEAR = 1 << 13  # bytes; payloads in a file that are no further apart are read at once

Thing = TypeVar("Thing")
Counts = dict[str, int] | None  # how often something came, in order of appearance; None for more than MOST things


class Measured(NamedTuple):
    """What the header of a picture says; or why it could not be read."""

    form: str = ""
    width: int = 0
    height: int = 0
    broken: str = ""


class Wanted(NamedTuple):
    """Which fields are looked into: whose values are classes, and whose headers say the size of a picture."""

    classes: Callable[[str], bool]
    pictures: Callable[[str], bool]
    measure: Callable[[Member], Measured]


@dataclass
class Numbers:
    """Many numbers: their sum, least and greatest, and how many fell into the bucket that begins at a number."""

    total: int = 0
    least: int | None = None
    greatest: int | None = None
    buckets: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.buckets = {int(low): count for low, count in self.buckets.items()}  # JSON makes text of them

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Numbers:
        """Count *numbers*."""
        found, counts = cls(), Counter(numbers)
        for number, count in counts.items():
            shift = max(0, number.bit_length() - DIGITS)
            low = number >> shift << shift
            found.buckets[low] = found.buckets.get(low, 0) + count
            found.total += number * count
        found.least, found.greatest = min(counts, default=None), max(counts, default=None)
        return found

    def add(self, other: Numbers) -> None:
        """Add what *other* counted."""
        self.total += other.total
        for low, count in other.buckets.items():
            self.buckets[low] = self.buckets.get(low, 0) + count
        known = [n for n in (self.least, self.greatest, other.least, other.greatest) if n is not None]
        self.least, self.greatest = min(known, default=None), max(known, default=None)

    def quantile(self, percent: int) -> int:
        """Return a number, at most 1 % below the one that *percent* of all do not exceed; 0 if there are none."""
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
    """Pictures, by what their headers say; *broken* ones could not be read: why, of the first, and its key."""

    formats: Counts = field(default_factory=dict)
    sizes: Counts = field(default_factory=dict)
    widths: Numbers = field(default_factory=Numbers)
    heights: Numbers = field(default_factory=Numbers)
    broken: int = 0
    why: str | None = None
    example: str | None = None

    @classmethod
    def of(cls, measured: Sequence[tuple[str, Measured]]) -> Pictures:
        """Count what was *measured*, each with its key."""
        sound = [found for _, found in measured if not found.broken]
        broken = [(found.broken, key) for key, found in measured if found.broken]
        return cls(
            dict(Counter(found.form for found in sound)),
            bounded(dict(Counter(f"{found.width}x{found.height}" for found in sound))),
            Numbers.of(found.width for found in sound),
            Numbers.of(found.height for found in sound),
            len(broken),
            *(broken[0] if broken else ()),
        )

    def add(self, other: Pictures) -> None:
        """Add what *other* counted behind it."""
        self.formats, self.sizes = joined(self.formats, other.formats), joined(self.sizes, other.sizes)
        self.widths.add(other.widths)
        self.heights.add(other.heights)
        if not self.broken:
            self.why, self.example = other.why, other.example
        self.broken += other.broken


@dataclass
class Field:
    """One field: its members, the samples that have it, and the key of the first sample that lacks it."""

    members: int = 0
    samples: int = 0
    lacking: str | None = None
    sizes: Numbers = field(default_factory=Numbers)
    classes: Counts = field(default_factory=dict)
    long: int = 0  # values that are too long for a class
    pictures: Pictures | None = None

    def add(self, other: Field) -> None:
        """Add what *other* counted behind it."""
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
    """Samples, members, and what these take in an archive, in bytes: headers, payloads and padding.

    *first* is the key of the first sample; *shards* has samples and bytes of each URL; a combination of fields is
    their names in the order of the archive, joined by "/".
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

    def told(self) -> dict[str, Any]:
        """Return this in a form that JSON keeps."""
        return asdict(self)

    @classmethod
    def of(cls, told: dict[str, Any]) -> Statistics:
        """Return what was *told*, be it as it was or as JSON keeps it."""
        fields = told["fields"] and {name: field_of(each) for name, each in told["fields"].items()}
        return cls(**told | {"fields": fields})

    def add(self, other: Statistics) -> None:
        """Add what *other* counted behind it. Holds on to *other*."""
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


def field_of(told: dict[str, Any]) -> Field:
    """Return the field that was *told*."""
    pictures = told["pictures"]
    if pictures:
        widths, heights = Numbers(**pictures["widths"]), Numbers(**pictures["heights"])
        pictures = Pictures(**pictures | {"widths": widths, "heights": heights})
    return Field(**told | {"sizes": Numbers(**told["sizes"]), "pictures": pictures})


def bounded(things: dict[str, Thing] | None) -> dict[str, Thing] | None:
    """Return *things*, or None if there are too many."""
    return None if things is None or len(things) > MOST else things


def joined(one: Counts, other: Counts) -> Counts:
    """Return the sum of two counts, of which neither can be used any more."""
    if one is None or other is None:
        return None
    if not one:
        return other
    for value, count in other.items():
        one[value] = one.get(value, 0) + count
    return bounded(one)


class Shape(NamedTuple):
    """Samples with the same *fields*: their keys, and a column of members for each field."""

    fields: tuple[str, ...]
    keys: Sequence[bytes]
    columns: Sequence[Sequence[Member]]


def of_batch(batch: Batch, wanted: Wanted) -> Statistics:
    """Return the counts of the samples of *batch*. Of payloads no more is read than is *wanted*.

    Raises: StorageError if the file that it was read from has become shorter.
    """
    found = Statistics(samples=len(batch), first=text(batch.keys[0]))
    if batch.run is not None:
        _, keys, starts, members, firsts = batch.run
        members = members or []
        found.headers = starts[-1] - starts[0]  # here still with payloads and padding
    else:
        keys, members, firsts = batch.keys, list(batch[0].members), [0]
        found.headers = sum(data - start if head is None else BLOCK for _, _, start, data, _, head in members)
    found.members = len(members)
    for size, count in Counter(map(itemgetter(4), members)).items():
        found.payloads += size * count
        found.padding += -size % BLOCK * count
    found.headers -= 0 if batch.run is None else found.payloads + found.padding
    found.shards = {batch.shard: [len(batch), found.headers + found.payloads + found.padding]}
    shapes = shapes_of(keys, members, firsts)
    found.combinations = bounded({"/".join(shape.fields): len(shape.keys) for shape in shapes})
    found.fields = fields_of(shapes, wanted)
    return found


def fields_of(shapes: Sequence[Shape], wanted: Wanted) -> dict[str, Field] | None:
    """Return the counts of the fields of *shapes*; None if there are too many."""
    columns: dict[str, list[tuple[Sequence[bytes], Sequence[Member]]]] = {}
    for shape in shapes:
        for name, column in zip(shape.fields, shape.columns, strict=True):
            columns.setdefault(name, []).append((shape.keys, column))
    if len(columns) > MOST:
        return None
    fields = {name: Field() for name in columns}
    for shape in shapes:
        for name in set(shape.fields):
            fields[name].samples += len(shape.keys)
    for name, found in fields.items():
        if len(shapes) > 1:
            found.lacking = next((text(shape.keys[0]) for shape in shapes if name not in shape.fields), None)
        for keys, column in columns[name]:
            found.add(field_in(name, keys, column, wanted))
    return fields


def field_in(name: str, keys: Sequence[bytes], column: Sequence[Member], wanted: Wanted) -> Field:
    """Return the counts of the members *column* of the field *name*, each that of the sample whose key is in *keys*."""
    found = Field(len(column), sizes=Numbers.of(map(itemgetter(4), column)))
    if wanted.classes(name):
        short = (
            column if (found.sizes.greatest or 0) <= LONGEST else [member for member in column if member[4] <= LONGEST]
        )
        found.long = len(column) - len(short)
        classes: dict[str, int] = {}
        for payload, count in Counter(payloads(short)).items():
            value = text(payload).removesuffix("\n")
            classes[value] = classes.get(value, 0) + count
        found.classes = bounded(classes)
    if wanted.pictures(name):
        measured = zip(map(text, keys), map(wanted.measure, map(Member._make, column)), strict=True)
        found.pictures = Pictures.of(list(measured))
    return found


def payloads(members: Sequence[Member]) -> list[bytes]:
    """Return the payloads of *members*, which, if they are several, lie one behind the other in one source."""
    if not members:
        return []
    _, source, _, start, _, _ = members[0]
    end = members[-1][3] + members[-1][4]
    if isinstance(source, io.FileIO) and end - start <= NEAR * len(members):
        held = read_range(source, start, end)
        return [held[data - start : data - start + size] for _, _, _, data, size, _ in members]
    return [read_range(source, data, data + size) for _, source, _, data, size, _ in members]


def text(raw: bytes) -> str:
    """Return *raw* as text; what is not UTF-8 is surrogate escapes (PEP 383)."""
    return raw.decode("utf-8", "surrogateescape")


def shapes_of(keys: Sequence[bytes], members: Sequence[Member], firsts: Sequence[int]) -> list[Shape]:
    """Return the samples whose *members* are those from *firsts* on by their fields, in order of appearance."""
    each = len(members) // len(keys)
    if list(firsts) == list(range(0, len(members), each)):  # most of the time all are alike: no step for each of them
        columns = [members[number::each] for number in range(each)]
        fields = tuple(column[0][0][len(keys[0]) :] for column in columns)
        if all(
            list(map(itemgetter(0), column)) == list(map(add, keys, repeat(behind)))
            for behind, column in zip(fields, columns, strict=True)
        ):
            return [Shape(tuple([text(behind[1:]) for behind in fields]), keys, columns)]
    groups: dict[tuple[bytes, ...], list[int]] = {}
    for number, (key, first, last) in enumerate(zip(keys, firsts, [*firsts[1:], len(members)], strict=True)):
        length = len(key)
        groups.setdefault(tuple([member[0][length:] for member in members[first:last]]), []).append(number)
    return [
        Shape(
            tuple([text(behind[1:]) for behind in fields]),
            [keys[number] for number in numbers],
            [[members[firsts[number] + column] for number in numbers] for column in range(len(fields))],
        )
        for fields, numbers in groups.items()
    ]
