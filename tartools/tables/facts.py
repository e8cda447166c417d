"""Facts about samples for columns of a table: values of fields, facts about payloads, digests and picture hashes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from tartools.errors import UsageError
from tartools.samples import decoding
from tartools.samples.batch import Batch
from tartools.samples.kinds import measured_kind
from tartools.samples.kinds.pictures import PICTURE_KIND, STORED_PICTURE_FACTS
from tartools.samples.sample import Sample, field_name
from tartools.samples.values import Column, absent_field_error, find_value, parse_column, payload_digests
from tartools.tables import schema
from tartools.tables.rows import Fact
from tartools.tar import Member

NUMBER_PATTERN = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?"
ROW_COLUMNS = (
    schema.SHARD_COLUMN,
    schema.VERSION_COLUMN,
    schema.INDEX_COLUMN,
    schema.KEY_COLUMN,
    schema.BEGIN_COLUMN,
    schema.END_COLUMN,
    schema.MEMBERS_COLUMN,
)
HASH_BYTES = 16  # bytes
PICTURE_COLUMNS_ONLY = "pictures"  # of `TableFacts.measured`
MAX_INTEGER_CHARS = 20  # characters of a whole number of 64 bits, at most


class TableFacts(NamedTuple):
    """The facts about samples that a table stores in columns; `facts_of` finds them in a batch of samples.

    `columns`: values of fields, by `find_value`.
    `hashed`: fields whose payloads get a digest, 16 bytes of BLAKE2b.
    `likened`: fields of pictures, for a picture hash, colours, width and height.
    `measured`: "all" for facts of all pictures, sounds and videos; "pictures" for width, height, format, mode and fault
        of pictures; "" for none.
    `decoded`: True to decode the measured pictures, and sounds in WAV, FLAC and Ogg, so that broken ones are found;
        otherwise only headers are checked.
    """

    columns: Sequence[Column]
    hashed: Sequence[str] = ()
    likened: Sequence[str] = ()
    measured: str = ""
    decoded: bool = False

    @property
    def named_columns(self) -> list[Fact]:
        """The (name, type) of all columns except `measured`, whose columns are unknown before samples are read.

        A type is a name of `schema`, such as "digest" or "int64"; "" if the values decide it.
        """
        return [
            *((column.name, "") for column in self.columns),
            *((f"{field}.blake2b", "digest") for field in self.hashed),
            *(fact for field in self.likened for fact in _likeness_facts(field)),
        ]

    @property
    def has_facts(self) -> bool:
        """True if at least one fact was asked for."""
        return bool(self.named_columns or self.measured)

    def facts_of(self, batch: Batch) -> Iterable[Mapping[Fact, object]]:
        """Return the facts of each sample of *batch*: (name, type) of a column -> value, None if the sample lacks it.

        Values that look like numbers are converted by `typed_value`. The four facts of a likened picture that can't be
        decoded are None, unless `measured` gives width and height. Columns of `measured` are left out if the sample
        lacks the field, or has it twice. Payloads that are ranges of files are read only if they are needed, and large
        ones in parts, except values and decoded pictures. Raises, when the item of a sample is taken: SampleError if a
        field of another column occurs twice, or that of a value can't be unpacked, is not UTF-8, or is not JSON but
        should be; TarToolsError if a payload can't be read, or PyAV is missing for a measured video or MPEG-4 sound.
        """
        return map(self._facts_of_sample, batch)

    def _facts_of_sample(self, sample: Sample) -> dict[Fact, object]:
        """Return the facts of *sample*: (name, type) of a column -> value, None for a value that it lacks.

        The four facts of a likened picture that can't be decoded are None, unless `measured` gives width and height.
        Facts of `measured` are only there for fields that the sample has once. Raises: SampleError if a field of any
        other column occurs twice, or that of a value can't be unpacked, is not UTF-8, or is not JSON but should be;
        TarToolsError if a payload can't be read, or PyAV is missing for a measured video or MPEG-4 sound.
        """
        facts: dict[Fact, object] = {}
        for column in self.columns:
            value = find_value(sample, column)
            facts[column.name, ""] = value and typed_value(value[0])
        for field in self.hashed:
            member = sample.member(field)
            facts[f"{field}.blake2b", "digest"] = member and payload_digests([member], HASH_BYTES)[0]
        for field in self.likened:
            member = sample.member(field)
            likeness = (member and decoding.likeness_or_none(member)) or (None,) * 4
            facts.update(zip(_likeness_facts(field), likeness, strict=True))
        if self.measured:
            names = [field_name(member) for member in sample.members]
            for name, member in zip(names, sample.members, strict=True):
                fact_names = fact_columns(name, self.measured)
                if fact_names and names.count(name) == 1:  # no facts of a field twice
                    facts.update(zip(fact_names, _measure(name, member, self.decoded), strict=False))
        return facts

    def check_seen(self, fields: Iterable[str]) -> None:
        """Raise SampleError if no sample had a field for one of the columns: an option that names it is a mistake.

        *fields*: all fields that samples had. One of the choices of a column (a;b) is enough. Case is ignored; names
        that begin with `__`, such as `__key__`, always pass, and so do columns of `measured`.
        """
        present = list(fields)
        lower_names = {field.lower() for field in present}
        field_choices = [(field,) for field in (*self.hashed, *self.likened)]
        for choices in (*(column.choices for column in self.columns), *field_choices):
            if not any(name.lower() in lower_names or name.startswith("__") for name in choices):
                missing = ";".join(choices)
                raise absent_field_error(missing, present)


def parse_facts(specs: Iterable[str], hashed: Iterable[str] = (), likened: Iterable[str] = ()) -> TableFacts:
    """Return the facts of options: *specs* have words for `parse_column`, *hashed* and *likened* names of fields.

    Each option is a text of words with blanks between: "cls w=json:width". `measured` and `decoded` are not set.
    Raises: UsageError for a word of *specs* that is no column, and if two columns would have one name, or one that of a
    column that tables have in any case (ROW_COLUMNS). Names in *hashed* and *likened* are not checked otherwise.
    """
    facts = TableFacts([parse_column(word) for word in _words(specs)], list(_words(hashed)), list(_words(likened)))
    names = [name for name, _ in facts.named_columns]
    for name in names:
        if name in ROW_COLUMNS or names.count(name) > 1:
            raise UsageError(f"two columns would have the name {name!r}; NEW={name} gives one another name")
    return facts


def _words(options: Iterable[str]) -> Iterable[str]:
    """Yield the blank-separated words of all *options*."""
    return (word for option in options for word in option.split())


def _likeness_facts(field: str) -> list[Fact]:
    """Return (name, type) of the four columns for a likened *field*: picture hash, colours, width, height.

    The names for jpg are "jpg.dhash", "jpg.colours", "jpg.width" and "jpg.height".
    """
    sides = (f"{field}.width", "int64"), (f"{field}.height", "int64")
    return [(f"{field}.dhash", "uint64"), (f"{field}.colours", "colours"), *sides]


@lru_cache(1000)
def fact_columns(name: str, measured: str) -> list[Fact]:
    """Return (column, type) of the columns of facts about payloads of the field *name*; [] if its kind has none.

    A column is the field, a dot and the fact: ("jpg.width", "int64"); bytes of the name that are not UTF-8 become "?".
    Pictures, sounds and videos have facts, by the suffix of the field; compressed ones (wav.gz) have none. *measured*:
    "pictures" for width, height, format, mode and fault of pictures only; any other text, such as "all", for all. The
    list is cached: the caller must not change it.
    """
    kind = measured_kind(name)
    if kind is None or (measured == PICTURE_COLUMNS_ONLY and kind is not PICTURE_KIND):
        return []
    name = name.encode("utf-8", "replace").decode()
    count = STORED_PICTURE_FACTS if measured == PICTURE_COLUMNS_ONLY else len(kind.facts)
    return [(f"{name}.{fact}", type_name) for fact, type_name in kind.facts[:count]]


def _measure(name: str, member: Member, decode: bool) -> Sequence[object]:
    """Return the facts of *member*, of the field *name*, whose kind must have facts: a picture, sound or video.

    They are in the order of `fact_columns(name, "all")`; one says why a broken payload is broken, and the others may be
    None then. *decode*: decode a picture, WAV, FLAC or Ogg, so that a broken one is found; else, and for other
    payloads, only the header is read. Raises: TarToolsError if the bytes can't be read, or PyAV is missing for a video
    or MPEG-4 sound.
    """
    kind = measured_kind(name)
    assert kind is not None
    assert kind.measure is not None
    return kind.measure(member, decode)


def typed_value(text: object) -> object:
    """Return *text* as an int or float if it has the form of a number in JSON; any other value unchanged.

    It is a float if it has a point or an exponent. Numbers from 2**63 on, and up to -2**63, are unchanged.

    >>> [typed_value(text) for text in ("7", "0.50", "007", "seven")], typed_value("9" * 5000) == "9" * 5000
    ([7, 0.5, '007', 'seven'], True)
    """
    if not isinstance(text, str) or not re.fullmatch(NUMBER_PATTERN, text):
        return text
    number = float(text) if set(text) & set(".eE") or len(text) > MAX_INTEGER_CHARS else int(text)
    return number if abs(number) < 1 << 63 else text  # else an id, or the like
