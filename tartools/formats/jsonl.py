"""JSON lines: an object for each sample, with its fields as values or as places to read.

`json_lines` writes what `samples` reads back as a plan: text as strings, other payloads in base64.
"""

from __future__ import annotations

import json
import re
from binascii import b2a_base64
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from tartools.errors import SampleError
from tartools.formats.plan import PlannedMember, PlannedSample, PlanOrigin
from tartools.formats.textrows import Number, column_title, parse_title, read_objects
from tartools.samples.account import Account
from tartools.samples.columnfields import ChosenColumns, with_suffix
from tartools.samples.encoding import split_codec, text_payload
from tartools.samples.filekeys import Dots, key_of_file
from tartools.samples.rowchoice import RowChoice, key_text
from tartools.samples.sample import Sample, failure_of, field_name, make_path
from tartools.samples.values import PSEUDO_FIELDS, comma_advice, field_list, require_safe_key
from tartools.tar import Member

BASE64_NAME = "@base64"  # the name in an object that stands for a payload
URL_NAME = "@url"  # that of a range of a file, which is no longer read

# Lines that may name something to read: a name that begins with @, as it is or escaped, and is not @base64.
may_read = re.compile(rb'"(?:@|\\u0040)(?!base64")').search


def samples(file: Iterable[bytes], plan: PlanOrigin, choice: RowChoice, dots: Dots = None) -> Iterator[PlannedSample]:
    """Yield the samples that the JSON lines in *file*, a plan, describe; payloads to read are only named.

    A line is {"__key__": "n01", "txt": "a dog", "@jpg": "b.jpg"}: text or JSON of a field, @ and a path or URL to read.

    *plan*: its name, and how paths are resolved. *choice*: the names that become fields, and the keys. *dots*: the dot
    that ends a key that is a file name, "first" or "last"; None: the only one, before a known suffix.
    Holds: one sample. Raises: SampleError, naming the line, for a line that is no JSON object, a bad key, the key of
    the object before it, a value that can't be a payload, a field twice, an object without a field, or an input that
    *plan* may not name; SampleError for a chosen name that no object has, and a file without a line; UsageError for a
    bad URL.
    """
    last: tuple[str, bool] | None = None
    last_line = 0
    names = _ChosenNames(choice)
    for index, (line, values) in enumerate(read_objects(file, plan.name, "plan", exact=True)):
        try:
            key = require_safe_key(_make_key(values, choice, index, dots))
        except SampleError as error:
            raise plan.failure(line, error.message, choice.key or "__key__") from None
        try:
            values = names.choose(values)
        except SampleError as error:
            raise plan.failure(line, error.message) from None
        parts = tuple(_plan_members(key, values, plan, line))
        if not parts:
            names.check_words(plan.name)
            raise plan.failure(line, f"the sample {key!r} has no field, so an archive cannot hold it")
        raw = key.encode()
        grouped = any(len(part.path) > len(raw) for part in parts)
        if len(parts) > 1 and any(part.path == raw for part in parts):
            raise plan.failure(line, "a member without a field is a sample of its own, and this has other fields", "")
        if grouped and (key, True) == last:
            reason = f"the key {key!r} is that of line {last_line} too, and readers would take both for one sample"
            raise plan.failure(line, reason, "__key__")
        last, last_line = (key, grouped), line
        yield PlannedSample(raw, parts)
    names.check_words(plan.name)


def find_sources(file: Iterable[bytes], plan: PlanOrigin, choice: RowChoice) -> Iterator[PlannedMember]:
    """Yield the members of the JSON lines in *file* whose payloads are read from URLs, to check these URLs first.

    URLs are the values of names with @. Lines without such a name are not parsed. *plan*: its name, and how paths are
    resolved. *choice*: the names that become fields. The paths of the members have "key" in place of their keys, which
    are not checked. Raises: SampleError for a parsed line that is no JSON object, or has a field twice, a value that
    can't be a payload, or an input that *plan* may not name; for a file without a line; UsageError for a bad URL.
    """
    names = _ChosenNames(choice)
    for line, values in read_objects(file, plan.name, "plan", exact=True, is_read=may_read):
        try:
            values = names.choose(values)
        except SampleError as error:
            raise plan.failure(line, error.message) from None
        for part in _plan_members("key", values, plan, line):
            if part.url is not None:
                yield part


class _ChosenNames:
    """Renames and drops the values of JSON objects as *choice* says: `choose` for each, and then `check_words`."""

    def __init__(self, choice: RowChoice) -> None:
        self._choice = choice
        self._columns = ChosenColumns(
            choice.words, (), str if choice.words is None else str.lower, skip_underscored=False
        )
        self._chosen: dict[tuple[str, ...], list[tuple[str, str]]] = {}  # names of objects -> (name, new name)
        self._seen: dict[str, None] = {}

    def choose(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values of the object *values* that become fields, by new name, with @ if it is a file to read.

        Any other name is escaped as by `column_title`. The key, unless it names a file to read, and pseudo-fields
        (`__key__`) are left out; a word whose name the object lacks is skipped. If the choice has neither words nor a
        key, *values* itself is returned. Raises: SampleError if two words give one field, or if jpg and @jpg of one
        object both have a value.
        """
        if self._choice.words is None and self._choice.key is None:
            return values
        for file_name in [name for name in values if name.startswith("@") and name[1:] in values]:
            empty = [name for name in (file_name, file_name[1:]) if values[name] is None]
            if not empty:
                raise SampleError(f"two values are for the field {file_name[1:]!r}")
            values = {name: value for name, value in values.items() if name not in empty}
        names = tuple(values)
        if names not in self._chosen:
            fields = {parse_title(name, "jsonl")[0]: at for at, name in enumerate(names) if self._is_field(name)}
            self._seen.update(dict.fromkeys(fields))
            pairs = ((names[at], field) for at, field in self._columns.choose(fields))
            self._chosen[names] = [
                (name, f"@{field}" if parse_title(name, "jsonl")[1] else column_title(field, "jsonl"))
                for name, field in pairs
            ]
        return {new: values[name] for name, new in self._chosen[names]}

    def _is_field(self, name: str) -> bool:
        """True if *name* stands for a field: no pseudo-field, and not the key, unless that names a file to read."""
        return (name != self._choice.key or parse_title(name, "jsonl")[1]) and name not in PSEUDO_FIELDS

    def check_words(self, url: str) -> None:
        """Raise SampleError, with *url*, if no object had a field for a word of the choice.

        Without words, or if no object had any field, it does nothing.
        """
        if self._seen and (lost := " ".join(self._columns.missing_words(self._seen))):
            raise SampleError(
                f"no object has {lost}{comma_advice(lost)}; the names are: {field_list(self._seen)}", url=url
            )


def _make_key(values: dict[str, Any], choice: RowChoice, index: int, dots: Dots) -> str:
    """Return the key of the object *values*, number *index* (from 0), as *choice* says.

    It is one of the values, or made by `choice.keys` of several or of the number. *dots*: the dot that ends a key that
    is a file name, "first" or "last"; None: the only one, before a known suffix.
    Raises: SampleError if a value that it is made of is missing or null, a list or an object, or has a lone surrogate;
    for a single value also if it is true or false.
    """
    name = choice.key_in(values)
    if name is None:
        key = choice.keys(index, lambda column: key_text(values[column], column))
        _encode_utf8(key)
        return key
    key = values[name]
    if not isinstance(key, str):
        raise SampleError(f"the key is {compact_json(key)}, and must be text or a number")
    return key_of_file(_encode_utf8(key), dots).decode()


def _plan_members(key: str, values: dict[str, Any], plan: PlanOrigin, line: int) -> Iterator[PlannedMember]:
    """Yield the members of the sample *key*: one for each of *values* that is not null, and no pseudo-field.

    *values*: by the name in the JSON object. The field of a list or object that is a payload, but not in base64, gets
    the suffix json. There is no member for an empty path or URL of a payload to read.
    Raises: SampleError, naming *plan*, *line* and name, for a field twice or a value that can't be one; UsageError for
    a bad URL.
    """
    fields: set[str] = set()
    for name, value in values.items():
        if value is None or name in PSEUDO_FIELDS:
            continue
        field, reads = parse_title(name, "jsonl")
        if isinstance(value, list) or (isinstance(value, dict) and not {BASE64_NAME, URL_NAME} & value.keys()):
            field = field if reads else with_suffix(field, "json")
        try:
            if field in fields:
                raise SampleError(f"two values are for the field {field!r}")
            fields.add(field)
            _encode_utf8(field)
            path = make_path(key, field)
            if reads and value == "":
                continue
            yield _plan_member(path, name, value, reads, plan, line)
        except SampleError as error:
            raise error if error.url else plan.failure(line, error.message, name) from None


def _plan_member(path: bytes, name: str, value: Any, reads: bool, plan: PlanOrigin, line: int) -> PlannedMember:
    """Return the member *path*, with the payload that *value* is.

    Text, numbers and JSON are compressed if *path* ends in the suffix of a codec: txt.gz; base64 is not. If *reads*,
    *value* is the path or URL to read it from. *name*: of the value in its object; *line*: of the plan.
    Raises: SampleError for a value that can't be a payload, or an input that *plan* may not name; UsageError for a bad
    URL.
    """
    if isinstance(value, dict) and URL_NAME in value:
        raise SampleError('a range of a file, {"@url": ...}, is not read: a table that tarindex makes lists samples so')
    if not reads:
        data = payload_of_json(value)
        return PlannedMember(
            path, data if isinstance(value, dict) and BASE64_NAME in value else text_payload(path, data)
        )
    if not isinstance(value, str) or isinstance(value, Number):
        raise SampleError("the value must be a path or a URL, as text")
    _encode_utf8(value)
    return PlannedMember(path, b"", plan.resolve_cell(value, line, name), line, name)


def payload_of_json(value: Any) -> bytes:
    """Return the payload for *value*: the text of a string or `Number`, the bytes of {"@base64": TEXT}, else JSON.

    JSON has no blanks, and escapes only if it has a lone surrogate.

    Raises: SampleError for bad base64, or another name beside it in the object; for a string with a lone surrogate; for
    brackets that are nested too deeply.
    """
    if isinstance(value, str):
        return _encode_utf8(value)
    if isinstance(value, dict) and BASE64_NAME in value:
        from binascii import Error, a2b_base64

        text = value[BASE64_NAME]
        try:
            if len(value) > 1 or type(text) is not str:
                raise SampleError('bytes are {"@base64": TEXT}, with nothing else in the object')
            return a2b_base64(text, strict_mode=True)
        except (Error, ValueError) as error:
            raise SampleError(f"not base64: {error}") from None
    try:
        try:
            return compact_json(value).encode()
        except UnicodeEncodeError:  # a lone surrogate, which JSON can hold as an escape
            return compact_json(value, ascii=True).encode()
    except RecursionError:
        raise SampleError("brackets are nested too deeply") from None


def compact_json(value: Any, ascii: bool = False) -> str:
    """Return *value* as JSON without blanks; if *ascii*, with escapes. A `Number` or `JsonText` in it stays as it is.

    Raises: TypeError for bytes and other values that JSON does not have; RecursionError if it is nested too deeply.

    >>> from tartools.formats.textrows import parse_object
    >>> compact_json(parse_object(b'{"a": [1.50, null]}', exact=True))
    '{"a":[1.50,null]}'
    """
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, dict):
        members = (f"{compact_json(name, ascii)}:{compact_json(item, ascii)}" for name, item in value.items())
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(compact_json(item, ascii) for item in value) + "]"
    return json.dumps(value, ensure_ascii=ascii)


def _encode_utf8(text: str) -> bytes:
    """Return *text* in UTF-8. Raises: SampleError if it has a lone surrogate."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise SampleError(f"the lone surrogate {text[error.start]!a} can't be written as UTF-8") from None


# ---- samples to JSON lines ----


def json_lines(samples: Iterable[Sample], account: Account) -> Iterator[bytes]:
    """Yield a JSON line for each of *samples*, in order, counted in *account*: an object of its key, then its fields.

    {"__key__": "n01", "txt": "a dog", "jpg": {"@base64": "/9j/4AAQ..."}}: a payload in UTF-8 is a string, unless its
    field ends in the suffix of a codec; any other is in base64.
    Holds: one sample. Raises: SampleError for a name that is not UTF-8, and two members of one name; the errors of
    *samples* and of reading payloads.
    """
    for sample in samples:
        yield json_line(sample)
        account.samples_out += 1


def json_line(sample: Sample) -> bytes:
    """Return *sample* as a JSON object on a line, with its newline: `__key__`, then the payloads by field.

    Names of fields are escaped as by `column_title`. A payload in UTF-8 is a string, unless its field ends in the
    suffix of a codec; any other is {"@base64": TEXT}. Raises: SampleError for a name that is not UTF-8, and two members
    of one name; the errors of reading payloads.
    """
    parts = [b'{"__key__": ', _quote_name(sample, sample.key)]
    fields: set[str] = set()
    for member in sample.members:
        field = field_name(member)
        if field in fields:
            raise SampleError(f"the sample {sample.key!r} has the field {field!r} twice", url=sample.shard)
        fields.add(field)
        parts += b", ", _quote_name(sample, column_title(field, "jsonl")), b": ", *_payload_json(member)
    parts.append(b"}\n")
    return b"".join(parts)


def _quote_name(sample: Sample, name: str) -> bytes:
    """Return *name*, of *sample*, as a JSON string. Raises: SampleError if it is not UTF-8."""
    try:
        return json.dumps(name, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        advice = "(--rekey of tarcat gives new keys, -f 'new=old' new names)"
        raise failure_of(sample, f": {name!r} is not UTF-8, so JSON cannot hold it {advice}") from None


def _payload_json(member: Member) -> tuple[bytes, ...]:
    """Return the JSON for the payload of *member*, in pieces: a string if it is UTF-8, else an object with base64.

    The payload of a field with the suffix of a codec, such as txt.gz, is always in base64.
    """
    payload = member.read()
    if split_codec(field_name(member))[1] is None:  # a string for txt.gz would be compressed when it is read back
        with suppress(UnicodeDecodeError):
            return (json.dumps(payload.decode(), ensure_ascii=False).encode(),)
    return b'{"%s": "' % BASE64_NAME.encode(), b2a_base64(payload, newline=False), b'"}'
