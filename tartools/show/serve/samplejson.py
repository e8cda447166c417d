"""Samples as JSON for the page: a row for the grid and the list, and all fields of one sample."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from tartools.errors import TarToolsError
from tartools.samples.encoding import split_codec
from tartools.samples.filetypes import MAGIC_BYTES, OTHER, type_of_file
from tartools.samples.kinds import describe
from tartools.samples.kinds.arrays import array_header
from tartools.samples.kinds.documents import JSON_LIMIT
from tartools.samples.payloads import parse_json, unpack_member
from tartools.show.serve.members import MemberPlace, SampleRow, SampleSource, members_by_field
from tartools.show.serve.pagepayloads import kind_of_name
from tartools.tar import Member

ROW_TEXT_CHARS = 300  # characters of the text of a row
ROW_TEXT_BYTES = 4 * ROW_TEXT_CHARS  # bytes that are read for it
MAX_SHOWN_CHARS = 200_000  # characters of a text or of JSON of one sample
MAX_SHOWN_FIELDS = 200  # fields of one sample that are described
READABLE_KINDS = ("text", "json", "number")


def plain_json(value: object) -> object:
    """Return *value* as JSON can have it: text, booleans, whole and finite numbers and None; all others as text."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value)


def row_json(source: SampleSource, row: SampleRow) -> dict[str, Any]:
    """Return *row* as the page gets it in a list: a dict.

    "position", "key", "shard", "offset" (of the sample in its shard), "size": as in `SampleRow`
    "fields": a list of {"name", "size", "kind"}, the kind by `kind_of_name`; [] if the data set does not say its fields
    "text": the beginning of its text, which may be read from the shard, by `row_text`
    "columns": name -> value
    Raises: TarToolsError if the text can't be read.
    """
    fields = row.fields
    return {
        "position": row.position,
        "key": row.key,
        "shard": row.shard,
        "offset": row.begin,
        "size": row.size,
        "fields": [{"name": name, "size": size, "kind": kind_of_name(name)} for name, size in (fields or {}).items()],
        "text": row_text(source, row),
        "columns": {name: plain_json(value) for name, value in row.columns.items()},
    }


def row_text(source: SampleSource, row: SampleRow) -> str:
    """Return the first 300 characters (ROW_TEXT_CHARS) of a field of *row* with text or JSON; "" if there is none.

    They come from a column of text with the name of such a field; if there is none, or it is null, from the payload of
    such a field that is not compressed, and whose place in a local shard the index has. In both cases the first field
    of plain text goes before JSON. Raises: TarToolsError if the payload can't be read.
    """
    names = sorted((name for name in row.fields or () if kind_of_name(name) in READABLE_KINDS[:2]), key=_text_rank)
    for name in names:
        value = row.columns.get(name)
        if isinstance(value, str):
            return value[:ROW_TEXT_CHARS]
    for name in names:
        if split_codec(name)[1] is None and name in row.places and source.is_local(row.places[name]):
            return _beginning(source, row.places[name])
    return ""


def _text_rank(name: str) -> int:
    """Return a number by which names of fields with text are sorted: 0 for plain text, 1 for JSON."""
    return 1 if kind_of_name(name) == "json" else 0


def _beginning(source: SampleSource, place: MemberPlace) -> str:
    """Return the first 300 characters (ROW_TEXT_CHARS) of the text at *place*, read from *source*.

    Bytes that are not UTF-8 become replacement characters. Raises: TarToolsError if it can't be read.
    """
    data = source.read(place, 0, min(place.size, ROW_TEXT_BYTES))
    return data.decode("utf-8", "replace")[:ROW_TEXT_CHARS]


def sample_json(source: SampleSource, position: int) -> dict[str, Any]:
    """Return the sample at *position* as JSON: {"position", "key", "shard", "offset", "size", "columns", "fields"}.

    "fields" is a list with the description of each field by `field_json`, up to 200 (MAX_SHOWN_FIELDS); "columns" is
    name -> value; "offset" is the offset of the sample in its shard. The others are as in `SampleRow`. Of a field that
    comes twice, the first member is described. *position*: exists. Raises: TarToolsError if the sample can't be read,
    or if a payload on a server has over 256 MiB and the index has its place; QuestionError if DuckDB takes too long.
    """
    row = source.rows([position])[0]
    if row.fields is not None and set(row.fields) == set(row.places):
        members = [(name, source.placed_member(place)) for name, place in row.places.items()]
    else:
        members = list(members_by_field(source.sample(position)))
    return {
        "position": position,
        "key": row.key,
        "shard": row.shard,
        "offset": row.begin,
        "size": row.size,
        "columns": {name: plain_json(value) for name, value in row.columns.items()},
        "fields": [field_json(position, name, member) for name, member in members[:MAX_SHOWN_FIELDS]],
    }


def field_json(position: int, name: str, member: Member) -> dict[str, Any]:
    """Return the *member*, field *name* of the sample at *position*, as the page gets it: a dict.

    "name", "kind", "size": of the field; the kind by `kind_of_member`, the size in bytes
    "description", "lines": the payload in words, one line, and lines of its contents
    "broken": why the payload is broken; None if it is not
    "text", "json": as `text_json` returns them; "shape", "heatmap": as `array_json` does; None if they are not there
    "waveform": address of a picture; left out unless it is a sound that is not broken
    Raises: TarToolsError if the payload can't be read.
    """
    description = describe(member, decode=True)
    kind = kind_of_member(name, member)
    shown: dict[str, Any] = {"name": name, "kind": kind, "size": member.size, "description": description.what}
    shown |= {
        "broken": description.what if description.kind == "broken" else None,
        "text": None,
        "json": None,
        "shape": None,
        "heatmap": None,
    }
    shown["lines"] = list(description.lines)
    if kind in READABLE_KINDS:
        shown |= text_json(kind, member)
    elif kind == "array":
        shown |= array_json(position, name, member)
    elif kind == "sound" and description.kind == "sound":
        shown["waveform"] = f"/api/thumbnail?{urlencode({'position': position, 'field': name, 'size': 1024})}"
    return shown


def kind_of_member(name: str, member: Member) -> str:
    """Return the kind of *member*, field *name*, such as "picture" or "text" (see `kind_of_name`).

    It is the kind of the name for text, JSON and numbers; else the kind of the first bytes of the payload, if these are
    of a picture, sound, video or array, or else the kind of the name. Raises: TarToolsError if it can't be read.
    """
    with member.open() as file:
        file_type = type_of_file(file.read(MAGIC_BYTES))
    by_name = kind_of_name(name)
    return by_name if file_type is None or file_type.kind == OTHER or by_name in READABLE_KINDS else file_type.kind


def text_json(kind: str, member: Member) -> Mapping[str, Any]:
    """Return {"text"} of *member*, and if *kind* is "json" also "json", its value as text with indentation.

    Above 200,000 characters (MAX_SHOWN_CHARS) both are cut to these and "…"; bytes that are not UTF-8 become
    replacement characters. {} if it can't be decompressed; no "json" if it can't be parsed, or is larger than 1 MiB
    (JSON_LIMIT) decompressed. Raises: TarToolsError if it can't be read.
    """
    try:
        content = unpack_member(member)
    except ValueError:
        return {}
    with content.open() as file:
        text = file.read(4 * MAX_SHOWN_CHARS + 1).decode("utf-8", "replace")  # a character has up to four bytes
    shown = {"text": text[:MAX_SHOWN_CHARS] + ("…" if len(text) > MAX_SHOWN_CHARS else "")}
    if kind == "json" and content.size <= JSON_LIMIT:
        try:
            pretty = json.dumps(parse_json(content.read()), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            return shown
        shown["json"] = pretty[:MAX_SHOWN_CHARS] + ("…" if len(pretty) > MAX_SHOWN_CHARS else "")
    return shown


def array_json(position: int, name: str, member: Member) -> Mapping[str, Any]:
    """Return {"shape", "heatmap"} of the array *member*; {} if its header is broken.

    "shape" is a list of lengths; "heatmap" is the address of a picture, for booleans or real numbers in two dimensions
    or more, none of length 0, else None. *position*, *name*: of the sample and field, for the address. Raises:
    TarToolsError if it can't be read.
    """
    try:
        with member.open() as file:
            shape, dtype = array_header(file)
    except (TarToolsError, MemoryError):
        raise
    except Exception:  # numpy does not document all of them
        return {}
    has_map = len(shape) >= 2 and dtype.kind in "biuf" and 0 not in shape
    address = "/api/heatmap?" + urlencode({"position": position, "field": name}) if has_map else None
    return {"shape": list(shape), "heatmap": address}
