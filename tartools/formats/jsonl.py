"""JSON lines as plans of samples: an object for each sample, with its fields as values or as places to read.

`jsonlwrite.lines` writes what `samples` reads back.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from tartools.errors import SampleError
from tartools.formats.build import PlannedMember, PlannedSample
from tartools.formats.plan import Plan
from tartools.samples.encoding import text_payload
from tartools.samples.sample import checked_path
from tartools.samples.values import PSEUDO, checked_key

BASE64 = "@base64"  # the name in an object that stands for a payload
URL = "@url"  # that of a range of a file, which is no longer read
BOM = b"\xef\xbb\xbf"

# Lines that may name something to read: a name that begins with @, as it is or escaped, and is not @base64.
may_read = re.compile(rb'"(?:@|\\u0040)(?!base64")').search


class Number(str):
    """A number as it is written."""

    __slots__ = ()


def title(field: str) -> str:
    r"""Return the name of *field* in an object. @NAME would be a place to read, and __key__ is the key.

    >>> title("@txt"), title("__key__"), title("\\__key__"), title("jpg")
    ('\\@txt', '\\__key__', '\\\\__key__', 'jpg')
    """
    return "\\" + field if re.match(r"\\*(@|__)", field) else field


def titled(name: str) -> tuple[str, bool]:
    r"""Return the field that *name* is for, and whether its value is a place to read; inverse of `title`.

    >>> titled("@jpg"), titled("\\@txt"), titled("jpg")
    (('jpg', True), ('@txt', False), ('jpg', False))
    """
    if name.startswith("@"):
        return name[1:], True
    return name[1:] if re.match(r"\\+(@|__)", name) else name, False


def samples(file: Iterable[bytes], plan: Plan, template: str) -> Iterator[PlannedSample]:
    """Yield the samples of the JSON lines in *file*; the *template* makes the keys that are missing, of the number.

    Holds: one sample. Raises: SampleError, naming line and name, for what is no sample; UsageError for a bad URL.
    """
    last: tuple[str, bool] | None = None
    last_line = 0
    for index, (line, found) in enumerate(objects(file, plan)):
        try:
            key = checked_key(_key(found, template, index))
        except SampleError as error:
            raise plan.failure(line, error.message, "__key__") from None
        parts = tuple(_parts(key, found, plan, line))
        if not parts:
            raise plan.failure(line, f"the sample {key!r} has no field, so an archive cannot hold it")
        raw = key.encode()
        grouped = any(len(part.path) > len(raw) for part in parts)
        if len(parts) > 1 and any(part.path == raw for part in parts):
            raise plan.failure(line, "a member without a field is a sample of its own, and this has other fields", "")
        if grouped and (key, True) == last:
            what = f"the key {key!r} is that of line {last_line} too, and readers would take both for one sample"
            raise plan.failure(line, what, "__key__")
        last, last_line = (key, grouped), line
        yield PlannedSample(raw, parts)


def sources(file: Iterable[bytes], plan: Plan) -> Iterator[PlannedMember]:
    """Yield what the JSON lines in *file* name to be read. Raises: as `samples`, but only for lines that name some."""
    for line, found in objects(file, plan, may_read):
        for part in _parts("key", found, plan, line):
            if part.url is not None:
                yield part


def objects(file: Iterable[bytes], plan: Plan, wanted: Any = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects in *file*, each with the number of its line; only of lines that are *wanted*, if it is given.

    Raises: SampleError for what is no JSON object, and for a file without any line.
    """
    line = 0
    for line, text in enumerate(file, 1):
        if line == 1:
            text = text.removeprefix(BOM)
        if text.isspace() or not text or (wanted is not None and not wanted(text)):
            continue
        try:
            found = parsed(text)
        except SampleError as error:
            raise plan.failure(line, error.message) from None
        yield line, found
    if not line:
        raise SampleError("the plan is empty: it has no line", url=plan.name)


def parsed(text: bytes) -> dict[str, Any]:
    """Return the JSON object *text*, its numbers as `Number`. Raises: SampleError for anything else."""
    try:
        found = _decoder().decode(text.decode())
    except UnicodeDecodeError as error:
        raise SampleError(f"not UTF-8 text (byte {error.start} of the line)") from None
    except json.JSONDecodeError as error:
        raise SampleError(f"not JSON: {error.msg} (character {error.pos + 1})") from None
    except RecursionError:
        raise SampleError("not JSON that can be read: too many brackets inside each other") from None
    if not isinstance(found, dict):
        raise SampleError("not a JSON object, with a name for each value")
    return found


@functools.cache
def _decoder() -> json.JSONDecoder:
    return json.JSONDecoder(object_pairs_hook=_object, parse_float=Number, parse_int=Number, parse_constant=Number)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise SampleError(f"the name {twice!r} stands twice in one object")
    return found


def _key(found: dict[str, Any], template: str, index: int) -> str:
    if "__key__" not in found:
        return template.format(index, index=index)
    key = found["__key__"]
    if not isinstance(key, str):
        raise SampleError(f"the key is {compact(key)}, and it has to be text or a number")
    _encoded(key)
    return key


def _parts(key: str, found: dict[str, Any], plan: Plan, line: int) -> Iterator[PlannedMember]:
    """Yield the members of the sample *key*."""
    fields: set[str] = set()
    for name, value in found.items():
        if value is None or name in PSEUDO:
            continue
        field, reads = titled(name)
        try:
            if field in fields:
                raise SampleError(f"two values are for the field {field!r}")
            fields.add(field)
            _encoded(field)
            path = checked_path(key, field)
            if reads and value == "":
                continue
            yield _part(path, name, value, reads, plan, line)
        except SampleError as error:
            raise error if error.url else plan.failure(line, error.message, name) from None


def _part(path: bytes, name: str, value: Any, reads: bool, plan: Plan, line: int) -> PlannedMember:
    if isinstance(value, dict) and URL in value:
        raise SampleError('a range of a file, {"@url": ...}, is not read: a table that tarindex makes lists samples so')
    if not reads:
        data = payload(value)
        return PlannedMember(path, data if isinstance(value, dict) and BASE64 in value else text_payload(path, data))
    if not isinstance(value, str) or isinstance(value, Number):
        raise SampleError("the value has to be a path or a URL, as text")
    _encoded(value)
    return PlannedMember(path, b"", plan.cell_source(value, line, name), line, name)


def payload(value: Any) -> bytes:
    """Return the payload that *value* stands for: text, bytes in base64, or JSON. Raises: SampleError."""
    if isinstance(value, str):
        return _encoded(value)
    if isinstance(value, dict) and BASE64 in value:
        from binascii import Error, a2b_base64

        text = value[BASE64]
        try:
            if len(value) > 1 or type(text) is not str:
                raise SampleError('bytes are {"@base64": TEXT}, with nothing else in the object')
            return a2b_base64(text, strict_mode=True)
        except (Error, ValueError) as error:
            raise SampleError(f"not base64: {error}") from None
    try:
        try:
            return compact(value).encode()
        except UnicodeEncodeError:  # a lone surrogate, which JSON can hold as an escape
            return compact(value, ascii=True).encode()
    except RecursionError:
        raise SampleError("too many brackets inside each other") from None


def compact(value: Any, ascii: bool = False) -> str:
    """Return *value* as JSON without blanks, its numbers as they were written; if *ascii*, with escapes.

    >>> compact(parsed(b'{"a": [1.50, null]}'))
    '{"a":[1.50,null]}'
    """
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, dict):
        members = (f"{compact(name, ascii)}:{compact(each, ascii)}" for name, each in value.items())
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(compact(each, ascii) for each in value) + "]"
    return json.dumps(value, ensure_ascii=ascii)


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise SampleError(f"the lone surrogate {text[error.start]!a} can't be written as UTF-8") from None
