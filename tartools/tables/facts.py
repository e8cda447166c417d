"""What columns of a table say of samples: values of fields, what pictures are, and digests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from tartools.errors import UsageError
from tartools.samples import decoding
from tartools.samples.filetypes import is_picture_field
from tartools.samples.sample import Batch, Sample, field_name
from tartools.samples.values import Column, lookup, no_sample_has, parse_column, payload_digests
from tartools.tables import schema
from tartools.tables.rows import Fact

NUMBER = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?"
OWN = (schema.SHARD, schema.VERSION, schema.INDEX, schema.KEY, schema.BEGIN, schema.END, schema.MEMBERS)
DIGEST = 16  # bytes
DIGITS = 20  # characters of a whole number of 64 bits, at most
PICTURE = (("width", "int64"), ("height", "int64"), ("format", "string"), ("mode", "string"), ("broken", "string"))


class WantedFacts(NamedTuple):
    """Which facts a table has: *columns* of values, digests of the fields *hashed*, hashes of the pictures *likened*.

    With *pictures*, what all pictures are; they are broken only by their headers, unless all are to be *decoded*.
    """

    columns: Sequence[Column]
    hashed: Sequence[str] = ()
    likened: Sequence[str] = ()
    pictures: bool = False
    decoded: bool = False

    @property
    def known(self) -> list[Fact]:
        """The columns that the table has whatever the samples are."""
        return [
            *((column.name, "") for column in self.columns),
            *((f"{field}.blake2b", "digest") for field in self.hashed),
            *(fact for field in self.likened for fact in _likeness_facts(field)),
        ]

    @property
    def any(self) -> bool:
        """Whether anything is wanted."""
        return bool(self.known or self.pictures)

    def of(self, batch: Batch) -> Iterable[Mapping[Fact, object]]:
        """Return the facts of each sample of *batch*.

        Payloads that are ranges of files are read only if they are needed, and large ones in pieces, but for values and
        decoded pictures. Raises: SampleError as `samples.values.lookup`.
        """
        return map(self._found, batch)

    def _found(self, sample: Sample) -> dict[Fact, object]:
        found: dict[Fact, object] = {}
        for column in self.columns:
            value = lookup(sample, column)
            found[column.name, ""] = value and value_of(value[0])
        for field in self.hashed:
            member = sample.member(field)
            found[f"{field}.blake2b", "digest"] = member and payload_digests([member], DIGEST)[0]
        for field in self.likened:
            member = sample.member(field)
            likeness = (member and decoding.likeness_or_none(member)) or (None,) * 4
            found.update(zip(_likeness_facts(field), likeness, strict=True))
        if self.pictures:
            names = [field_name(member) for member in sample.members]
            for name, member in zip(names, sample.members, strict=True):
                if is_picture_field(name) and names.count(name) == 1:  # nothing for a field that it has twice
                    found.update(zip(_picture_facts(name), decoding.facts(member, self.decoded), strict=True))
        return found

    def check_seen(self, fields: Iterable[str]) -> None:
        """Raise SampleError if no sample had a field that is named here; *fields* are those that samples had."""
        have = list(fields)
        known = {field.lower() for field in have}
        named = [(field,) for field in (*self.hashed, *self.likened)]
        for choices in (*(column.choices for column in self.columns), *named):
            if not any(name.lower() in known or name.startswith("__") for name in choices):
                lost = ";".join(choices)
                raise no_sample_has(lost, have)


def wanted_facts(specs: Iterable[str], hashed: Iterable[str] = (), likened: Iterable[str] = ()) -> WantedFacts:
    """Return the facts that options name: *specs* are words for columns, the others names of fields, in any number.

    Raises: UsageError for a word that is no column, and if two columns would have one name.
    """
    found = WantedFacts([parse_column(word) for word in _words(specs)], list(_words(hashed)), list(_words(likened)))
    names = [name for name, _ in found.known]
    for name in names:
        if name in OWN or names.count(name) > 1:
            raise UsageError(f"two columns would have the name {name!r}; NEW={name} gives one another name")
    return found


def _words(options: Iterable[str]) -> Iterable[str]:
    return (word for option in options for word in option.split())


def _likeness_facts(field: str) -> list[Fact]:
    sides = (f"{field}.width", "int64"), (f"{field}.height", "int64")
    return [(f"{field}.dhash", "uint64"), (f"{field}.colours", "colours"), *sides]


@lru_cache(1000)
def _picture_facts(name: str) -> list[Fact]:
    name = name.encode("utf-8", "replace").decode()
    return [(f"{name}.{what}", kind) for what, kind in PICTURE]


def value_of(text: object) -> object:
    """Return *text* as a whole number or a number if it is the plain form of one; any other value as it is.

    >>> value_of("7"), value_of("0.50"), value_of("007"), value_of("seven"), value_of("9" * 5000) == "9" * 5000
    (7, 0.5, '007', 'seven', True)
    """
    if not isinstance(text, str) or not re.fullmatch(NUMBER, text):
        return text
    number = float(text) if set(text) & set(".eE") or len(text) > DIGITS else int(text)
    return number if abs(number) < 1 << 63 else text  # else an id, or the like
