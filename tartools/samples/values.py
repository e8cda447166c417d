"""Values of samples, as columns, sort keys and expressions name them.

A column is a field (`cls`), a path into a field that holds JSON (`meta.json:size.0`), or a pseudo-field
(`__key__`, `__shard__`, `__index__`, `__size__`).
"""

import io
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tartools.errors import SampleError, UsageError, shown
from tartools.samples.encoding import split_codec
from tartools.samples.filetypes import FACT_FUNCTIONS, suffix_of
from tartools.samples.payloads import parse_json, unpack
from tartools.samples.sample import Sample, failure_of
from tartools.tar import Member, read_range

INDEX_NAME = "__index__"  # number of a sample, counted from the start of the input
PSEUDO_FIELDS = ("__key__", "__shard__", INDEX_NAME, "__size__")
JSON_SUFFIXES = ("json", "jsn")
NUMERIC_NAMES = (INDEX_NAME, "__size__")
DIGEST_CHUNK_BYTES = 1 << 20  # bytes of a large payload that are digested at once


class Column(NamedTuple):
    """The place of a value in a sample: a field, or a value inside of its JSON.

    `name`: of the column: the words of the user, or NEW of `NEW=...`.
    `choices`: fields or pseudo-fields; the first that the sample has counts.
    `path`: names and list indexes into the JSON of that field; () for the text of the field.
    """

    name: str
    choices: tuple[str, ...]
    path: tuple[str, ...]


def parse_column(text: str) -> Column:
    """Return the column that *text* describes: `a`, `a;b`, `new=a;b`, each with an optional `:path.into.json`.

    Raises: UsageError for an empty name or step.

    >>> parse_column("w=meta.json;json:size.0")
    Column(name='w', choices=('meta.json', 'json'), path=('size', '0'))
    """
    new, equals, choices_and_path = text.rpartition("=")
    names, colon, path = choices_and_path.partition(":")
    choices, steps = tuple(names.split(";")), tuple(path.split(".")) if colon else ()
    if not all(choices) or not all(steps) or (equals and not new):
        raise UsageError(f"not a column: {text!r}; write FIELD, FIELD:path.in.json, a;b, or new=FIELD")
    return Column(new if equals else choices_and_path, choices, steps)


def make_getter(column: Column, *, verbatim: bool = False) -> Callable[[Sample, int], str | None]:
    """Return a function (sample, index of the sample) -> value of *column* as text; None if the sample has no value.

    A field is UTF-8 text, unpacked if it ends in gz etc.; one final newline is removed. With *verbatim* it stays, and
    names of fields compare with case. At a path, a JSON string is its text, any other JSON value is written as JSON.
    The function raises SampleError, naming sample and field, if the field occurs twice, can't be unpacked, is not
    UTF-8, or is not JSON but should be; StorageError if the file of the payload has changed, or as `unpack` says.
    """

    def value(sample: Sample, index: int) -> str | None:
        """Return the value of the column as text; None if *sample*, number *index* of the input, has none.

        Raises: SampleError if the field occurs twice, can't be unpacked, is not UTF-8, or is not JSON but should be;
        StorageError if the file of the payload has changed, or as `unpack` says.
        """
        value_in_tuple = find_value(sample, column, index, verbatim=verbatim)
        if value_in_tuple is None or isinstance(value_in_tuple[0], str):
            return value_in_tuple and value_in_tuple[0]
        import json

        return json.dumps(value_in_tuple[0], ensure_ascii=False)

    return value


def find_value(sample: Sample, column: Column, index: int = 0, *, verbatim: bool = False) -> tuple[Any] | None:
    """Return (value of *column* with its JSON type,), a tuple of one item; None if the sample has no value.

    It is a number for `__index__` and `__size__`, the JSON value at a path, and otherwise text: of the field, the key
    or the URL of the shard. The first of `column.choices` that the sample has decides, even if the path is not in it; a
    pseudo-field is always there, and has no path: `column.path` is ignored.
    *index*: number of the sample in the input. *verbatim*: names compare with case, and a final newline is kept.

    Raises: SampleError, naming sample and field, if the field occurs twice, can't be unpacked, is not UTF-8, or is not
    JSON but should be; StorageError if the file of the payload has changed, or as `unpack` says.
    """
    for name in column.choices:
        if name in PSEUDO_FIELDS:
            return (pseudo_value(sample, name, index),)
        payload = sample.get(name, verbatim=verbatim)
        if payload is not None:
            if column.path:
                return _value_at_path(sample, name, payload, column.path)
            return (text_of(sample, name, payload, verbatim),)
    return None


def text_of(sample: Sample, field: str, payload: bytes, verbatim: bool) -> str:
    """Return *payload*, UTF-8, as text; remove one final newline unless *verbatim*.

    A payload of a *field* such as txt.gz is unpacked first. Raises: SampleError, naming *sample*, if it can't be
    unpacked or is not UTF-8; StorageError as `unpack` says.
    """
    try:
        text = unpack(field, payload).decode()
    except UnicodeDecodeError as error:
        raise failure_of(sample, f", field {field!r}: not UTF-8 text (byte {error.start})") from None
    except ValueError as error:
        raise failure_of(sample, f", field {field!r}: {error}") from None
    return text if verbatim else text.removesuffix("\n")


def as_text(value: object) -> str:
    """Return the text of *value*: a string as it is, a number as `repr` writes it, anything else as JSON.

    Raises: TypeError for a value that JSON does not have.

    >>> as_text("a"), as_text(7), as_text(0.5), as_text(True), as_text(["a"])
    ('a', '7', '0.5', 'true', '["a"]')
    """
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return repr(value)
    import json

    return json.dumps(value, ensure_ascii=False)


def require_safe_key(key: str) -> str:
    """Return *key* unchanged.

    Raises: SampleError if it is empty, or would lead out of the folder in which the archive is unpacked.
    """
    if not key:
        raise SampleError("the key is empty")
    if key.startswith("/") or ".." in key.split("/"):
        raise SampleError(
            f"the key {key!r} is absolute or contains '..', so that it would leave the folder when unpacked"
        )
    return key


def field_list(fields: Iterable[str]) -> str:
    """Return the names of *fields*, joined by blanks, for a message; "" is left out; "none (...)" if no other is there.

    >>> field_list(["jpg", "cls"]), field_list([""])[:25]
    ('jpg cls', 'none (no name has a dot: ')
    """
    names = " ".join(field for field in fields if field)
    return names or "none (no name has a dot: a sample n01 with a field jpg is a file n01.jpg)"


def comma_advice(words: str) -> str:
    """Return advice, to end a message that *words* name no field, if there are commas in *words*; else "".

    >>> comma_advice("cls,jpg"), comma_advice("cls")
    (" (blanks separate fields: 'cls jpg')", '')
    """
    return f" (blanks separate fields: '{' '.join(words.replace(',', ' ').split())}')" if "," in words else ""


def path_advice(name: str, fields: Iterable[str] | None = None) -> str:
    """Return advice for a column *name* that is none of *fields*; "" if there is none.

    The advice is how to name a value inside the JSON of one of *fields*, or a fact about the payload of one, if *name*
    looks like that. *name*: one name; for values in JSON also several, joined by blanks, as NEW=NAME or with
    alternatives: the first that looks so counts. *fields*: of the samples, in any case; None: any field.

    >>> path_advice("json.class", ["jpg", "json"]), path_advice("seg.png", ["seg"])
    (' (a value inside JSON is json:class)', '')
    >>> path_advice("width(jpg)", ["jpg"])
    ' (tarindex --facts makes a table with the column jpg.width)'
    """
    folded = None if fields is None else {field.lower() for field in fields}
    for word in name.split():
        for choice in word.rpartition("=")[2].split(";"):
            parts = choice.split(".")
            for end in range(len(parts) - 1, 0, -1):
                field = ".".join(parts[:end])
                is_json = suffix_of(split_codec(field)[0]) in JSON_SUFFIXES
                if is_json and (folded is None or field.lower() in folded):
                    return f" (a value inside JSON is {field}:{'.'.join(parts[end:])})"
    if match := re.fullmatch(r"(?:(\w+)\('?([\w.]+)'?\)|([\w.]+)\.(\w+))", name):
        fact, field = match[1] or match[4], match[2] or match[3]
        if fact in FACT_FUNCTIONS and (folded is None or field.lower() in folded):
            return f" (tarindex --facts makes a table with the column {field}.{fact})"
    return ""


def missing_value_text(name: str, fields: Iterable[str]) -> str:
    """Return the end of a message that *name* was not found: advice, if there is any, and the *fields* of the sample.

    >>> missing_value_text("json.a", ["json", "cls"])
    ' (a value inside JSON is json:a); its fields are: json cls'
    """
    have = list(fields)
    return f"{comma_advice(name)}{path_advice(name, have)}; its fields are: {field_list(have)}"


def absent_field_error(absent: str, fields: Iterable[str]) -> SampleError:
    """Return the error that no sample had the fields *absent*, words joined by blanks; it lists *fields* of samples."""
    have = list(fields)
    advice = comma_advice(absent) + path_advice(absent, have)
    return SampleError(f"no sample had the field {absent}{advice}; the fields were: {field_list(have)}")


def pseudo_value(sample: Sample, name: str, index: int) -> str | int:
    """Return the value of the pseudo-field *name* (`__key__`, `__shard__`, `__index__`, `__size__`) of *sample*.

    Text for `__key__` and `__shard__` (the URL to show); numbers for `__index__`, which is *index*, the number of the
    sample in the input, and `__size__` (bytes in an archive).
    """
    if name == "__key__":
        return sample.key
    if name == "__shard__":
        return shown(sample.shard)
    return index if name == INDEX_NAME else sample.size


def _value_at_path(sample: Sample, field: str, payload: bytes, path: tuple[str, ...]) -> tuple[Any] | None:
    """Return (value at *path* in the JSON *payload*,), a tuple of one item; None if the path does not exist.

    A step of *path* is a name in an object, or an index in a list, "0" the first. A payload of a *field* such as
    json.gz is unpacked first. Raises: SampleError, naming *sample* and *field*, if it can't be unpacked or is not JSON;
    StorageError as `unpack` says.
    """
    try:
        value = parse_json(unpack(field, payload))
    except ValueError as error:
        raise failure_of(sample, f", field {field!r}: not JSON: {error}") from None
    for step in path:
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and len(step) < 20 and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return (value,)


def payload_digests(members: Iterable[Member], size: int) -> list[bytes]:
    """Return the BLAKE2b digests, of *size* bytes each, of the payloads of *members*, in order.

    *size*: 1 to 64. Holds: 1 MiB of a payload that is in a file. Raises: StorageError if the file has changed.
    """
    from tartools.samples.digests import blake2b

    digests = []
    source: object = None
    view = memoryview(b"")
    for _, payload_source, _, data, count, _ in members:
        if isinstance(payload_source, io.FileIO):
            digest = blake2b(digest_size=size)
            for start in range(data, data + count, DIGEST_CHUNK_BYTES):
                digest.update(read_range(payload_source, start, min(start + DIGEST_CHUNK_BYTES, data + count)))
        else:
            if payload_source is not source:
                source, view = payload_source, memoryview(payload_source)
            digest = blake2b(view[data : data + count], digest_size=size)
        digests.append(digest.digest())
    return digests
