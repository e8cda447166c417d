"""The texts of samples as columns, for shards that have no table: words are searched in them, classes counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import repeat
from typing import NamedTuple

from tartools.samples.batch import Batch
from tartools.samples.encoding import split_codec
from tartools.samples.filetypes import NUMBER_SUFFIXES, TEXTS, suffix_of
from tartools.samples.payloads import parse_json
from tartools.samples.sample import Sample, field_name
from tartools.tables.facts import TableFacts, typed_value
from tartools.tables.rows import Fact
from tartools.tar import Member

MAX_VALUE_TEXT_BYTES = 1 << 14  # bytes of a text that becomes a value; of a longer one it is the beginning
MAX_JSON_COLUMNS = 32  # values inside JSON that become columns, of each field
CLASS_SUFFIXES = NUMBER_SUFFIXES | {"label", "labels"}  # of short texts, which become numbers where all of them are


class TextFacts(TableFacts):
    """The facts of `TableFacts`, and the texts of all fields that hold some: `facts_of` yields them for a batch.

    A text is cut to 16 KiB (MAX_VALUE_TEXT_BYTES). A field of JSON has its text, and the texts, numbers and booleans of
    its object in columns such as `json:width`, up to 32 a field in a batch (MAX_JSON_COLUMNS), unless the text is
    longer than that.
    """

    __slots__ = ()

    @property
    def has_facts(self) -> bool:
        """True: there are texts in any case."""
        return True

    def facts_of(self, batch: Batch) -> Iterable[Mapping[Fact, object]]:
        """Yield the facts of each sample of *batch*, in order: a dict (name, type) of a column -> value.

        A field that is not UTF-8 has replacement characters. JSON that can't be parsed has its text, but no values.
        Raises: SampleError for a field or value that was asked for, as `TableFacts` raises it; StorageError if a
        payload can't be read.
        """
        facts: Iterable[Mapping[Fact, object]] = super().facts_of(batch) if super().has_facts else repeat({})
        json_names: dict[str, dict[str, Fact]] = {}
        for sample, values in zip(batch, facts, strict=False):
            yield {**values, **dict(text_facts(sample, json_names))}


class TextField(NamedTuple):
    """The columns of a field with texts. `fact`: (name, type) of the column of its text; `is_json`: True for JSON.

    The type is "string", or "" for classes (cls, label), whose column becomes one of numbers if all of them are.
    """

    fact: Fact
    is_json: bool


@lru_cache(1000)
def text_field(name: str) -> TextField | None:
    """Return the columns of the field *name*; None if it holds no texts by its suffix, is compressed, or ""."""
    suffix = suffix_of(name)
    if not name or suffix not in TEXTS or split_codec(name)[1] is not None:
        return None
    column = name.encode("utf-8", "replace").decode()
    return TextField((column, "" if suffix in CLASS_SUFFIXES else "string"), suffix == "json")


def text_facts(sample: Sample, json_names: dict[str, dict[str, Fact]]) -> Iterator[tuple[Fact, object]]:
    """Yield ((name, type), value) for each text of *sample*, and for values inside its JSON (`json_facts`).

    A text longer than 16 KiB (MAX_VALUE_TEXT_BYTES) is cut to that, and JSON as long gives no values; a newline at the
    end is left out; NUL, and bytes that are not UTF-8, become replacement characters. A text of a class (cls, label)
    that is a number has that as its value. Fields that occur twice are left out. *json_names*: field -> {name in JSON:
    (name, type) of its column}, of the samples of a batch so far; new names are added. Raises: StorageError if a
    payload can't be read.
    """
    members = sample.members
    fields = [field_name(member) for member in members]
    for name, member in zip(fields, members, strict=True):
        field = text_field(name)
        if field is None or fields.count(name) > 1:
            continue
        payload = beginning_of(member, MAX_VALUE_TEXT_BYTES)
        text = payload.decode("utf-8", "replace").replace("\0", "\ufffd").removesuffix("\n")
        yield field.fact, text if field.fact[1] else typed_value(text)
        if field.is_json and member.size <= MAX_VALUE_TEXT_BYTES:
            yield from json_facts(field.fact[0], payload, json_names.setdefault(name, {}))


def beginning_of(member: Member, max_bytes: int) -> bytes:
    """Return the payload of *member*, or its first *max_bytes* bytes if it is longer."""
    if member.size <= max_bytes:
        return member.read()
    with member.open() as file:
        return file.read(max_bytes)


def json_facts(column: str, payload: bytes, names: dict[str, Fact]) -> Iterator[tuple[Fact, object]]:
    """Yield ((name, type), value) for each text, number or boolean of the JSON object *payload*, of the field *column*.

    The name is that of its column, `json:width` for "width" in the field json; the type is "": found later from all
    values. Nothing if it is no object, or can't be parsed. *names*: name in JSON -> (name, type) of its column, for the
    names that have one so far; new ones are added, up to 32 (MAX_JSON_COLUMNS). Further names, and names with a dot,
    are left out.
    """
    try:
        document = parse_json(payload)
    except ValueError:
        return
    for name, value in document.items() if isinstance(document, dict) else ():
        if isinstance(value, (str, int, float, bool)) and "." not in name:
            fact = names.get(name)
            if fact is None and len(names) < MAX_JSON_COLUMNS:
                fact = names[name] = (f"{column}:{name}".encode("utf-8", "replace").decode(), "")
            if fact is not None:
                yield fact, value
