"""The texts of samples as columns, for shards that have no table: words are searched in them, classes counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tartools.samples.batch import Batch
from tartools.samples.encoding import without_codec
from tartools.samples.filetypes import NUMBER_SUFFIXES, TEXTS, suffix_of
from tartools.samples.payloads import parse_json
from tartools.samples.sample import Sample, field_name
from tartools.tables.facts import TableFacts, value_of
from tartools.tables.rows import Fact

MAX_VALUE_TEXT_BYTES = 1 << 14  # bytes of a text that becomes a value; of a longer one it is the beginning
MAX_JSON_COLUMNS = 32  # values inside JSON that become columns, of each field
CLASS_SUFFIXES = NUMBER_SUFFIXES | {"label", "labels"}  # of short texts, which become numbers where all of them are


class TextFacts(TableFacts):
    """The facts of `TableFacts`, and the texts of all fields that hold some: up to 16 KiB of each.

    A field of JSON has its text, and its values in columns such as `json:width`, unless they are lists or objects.
    """

    __slots__ = ()

    @property
    def any(self) -> bool:
        """True: there are texts in any case."""
        return True

    def of(self, batch: Batch) -> Iterable[Mapping[Fact, object]]:
        """Return the facts of each sample of *batch*: (name, type) of a column -> value.

        A field that is not UTF-8 has replacement characters. Nothing is said of JSON that can't be parsed.
        """
        facts = super().of(batch) if super().any else ({} for _ in batch)
        json_names: dict[str, dict[str, None]] = {}
        for sample, values in zip(batch, facts, strict=True):
            yield {**values, **dict(text_facts(sample, json_names))}


def text_facts(sample: Sample, json_names: dict[str, dict[str, None]]) -> Iterator[tuple[Fact, object]]:
    """Yield ((name, type), value) for each text of *sample*. *json_names*: by field, names that have columns so far."""
    fields = [field_name(member) for member in sample.members]
    for name, member in zip(fields, sample.members, strict=True):
        suffix = suffix_of(name)
        if not name or suffix not in TEXTS or without_codec(name)[1] is not None or fields.count(name) > 1:
            continue
        column = name.encode("utf-8", "replace").decode()
        with member.open() as file:
            text = file.read(MAX_VALUE_TEXT_BYTES).decode("utf-8", "replace").replace("\0", "\ufffd").removesuffix("\n")
        if suffix in CLASS_SUFFIXES:
            yield (column, ""), value_of(text)
            continue
        yield (column, "string"), text
        if suffix == "json" and member.size <= MAX_VALUE_TEXT_BYTES:
            yield from json_facts(column, member.read(), json_names.setdefault(column, {}))


def json_facts(column: str, payload: bytes, names: dict[str, None]) -> Iterator[tuple[Fact, object]]:
    """Yield ((name, type), value) for each plain value of the JSON object *payload*, of the field *column*.

    *names*: those that have columns so far, at most 32.
    """
    try:
        document = parse_json(payload)
    except ValueError:
        return
    for name, value in document.items() if isinstance(document, dict) else ():
        if isinstance(value, (str, int, float, bool)) and "." not in name:
            if name not in names and len(names) < MAX_JSON_COLUMNS:
                names[name] = None
            if name in names:
                yield (f"{column}:{name}".encode("utf-8", "replace").decode(), ""), value
