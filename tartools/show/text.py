"""Describe samples in words: the key, and for each field its size, its type, and the beginning of text.

Nothing is executed or unpickled. Of a large member only a part is read, unless it is a picture, which is decoded.
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from tartools.errors import TarToolsError, printable
from tartools.samples import decoding
from tartools.samples.encoding import without_codec
from tartools.samples.filetypes import MAGIC_BYTES, PICTURES, SOUND, is_picture, suffix_of, type_of_file
from tartools.samples.payloads import parse_json, unpacked_member
from tartools.samples.sample import Sample, field_name
from tartools.show import sound
from tartools.tar import Member

if TYPE_CHECKING:
    import numpy

SHOWN_BYTES = 1 << 16  # bytes of a member that are read
JSON_LIMIT = 1 << 20  # bytes; longer JSON is shown as plain text
ARRAY_LIMIT = 16 << 20  # bytes; longer arrays are shown without their range of values
MAX_JSON_LINES_COUNTED = 10_000  # lines of JSON that are counted
MAX_TEXT_LINES, MAX_TEXT_COLUMNS = 12, 100  # of a text; longer ones are cut

NPY_MAGIC = b"\x93NUMPY"  # numpy.lib.format, "Format Version 1.0"
NUMBER_TEXT = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)


class Description(NamedTuple):
    """The description of a member, and *lines* of its contents.

    *kind* is "picture", "sound", "text" or "number" if it could be read as one, "broken" for a picture or sound that
    could not; *value* is the whole text if it is short.
    """

    what: str
    lines: Sequence[str] = ()
    kind: str = ""
    value: str = ""


def block(sample: Sample, described: Iterable[tuple[Member, Description]], *, bold: bool = False) -> str:
    """Return the lines that show *sample*, as *described*, and an empty line; *bold* sets the key in bold.

    Control characters in keys, fields and texts are escaped, so that a file cannot control the terminal.
    """
    title = printable(sample.key)
    return "\n".join([f"\x1b[1m{title}\x1b[0m" if bold else title, *described_fields(described)]) + "\n\n"


def described_fields(described: Iterable[tuple[Member, Description]]) -> list[str]:
    """Return the lines of the *described* fields: name, size and description, in columns."""
    named = [(printable(field_name(member)) or "-", f"{member.size:,} B", found) for member, found in described]
    names, sizes = (max((len(row[column]) for row in named), default=0) for column in (0, 1))
    lines = []
    for name, size, found in named:
        lines.append(f"  {name:<{names}}  {size:>{sizes}}  {found.what}")
        lines += ["    " + line for line in found.lines]
    return lines


def describe(member: Member, *, decode: bool = False) -> Description:
    """Return the description of *member*, by its first bytes if they are known, else by its field.

    With *decode*, a picture is decoded to find out whether it is broken; otherwise only its header is read, for those
    who draw it and will see.

    Holds: 64 KiB of the member; JSON up to 1 MiB as a whole; what `decoding.described` says.
    """
    with member.open() as file:
        head = file.read(SHOWN_BYTES)
    field = field_name(member)
    kind = suffix_of(field)
    codec = without_codec(field)[1]
    if codec is not None and 0 < member.size <= JSON_LIMIT:
        return unpacked_in_words(member, codec.name, decode=decode)
    if not head:
        return Description("empty", kind="broken" if kind in PICTURES or kind in sound.DECODABLE_SOUNDS else "")
    if head.startswith(NPY_MAGIC):
        return array_in_words(member)
    if is_picture(kind, head):
        return picture_in_words(member, decode=decode)
    if sound.is_sound(kind, head):
        return heard(member, kind)
    if kind == "json" and member.size <= JSON_LIMIT:
        return document(member)
    return cut_text(head, whole=member.size <= SHOWN_BYTES) or guess_type(head)


def unpacked_in_words(member: Member, codec: str, *, decode: bool) -> Description:
    """Return the description of what the compressed *member* has, or why it can't be unpacked."""
    try:
        content = describe(unpacked_member(member), decode=decode)
    except ValueError as error:
        return Description(
            f"{codec} data that cannot be unpacked: {printable(str(error))[:MAX_TEXT_COLUMNS]}", kind="broken"
        )
    kind = "" if content.kind in ("picture", "sound") else content.kind  # nobody draws or plays it
    return Description(f"{codec}, {content.what}", content.lines, kind, content.value)


def may_sound(member: Member) -> bool:
    """Return whether *member* is or should be a sound, by its first bytes and its field."""
    kind, head = _first_look(member)
    return sound.is_sound(kind, head) or guess_type(head).kind == "sound"


def may_be_picture(member: Member) -> bool:
    """Return whether *member* is or should be a picture, by its first bytes and its field."""
    return is_picture(*_first_look(member))


def _first_look(member: Member) -> tuple[str, bytes]:
    with member.open() as file:
        return suffix_of(field_name(member)), file.read(MAGIC_BYTES)


def picture_in_words(member: Member, *, decode: bool) -> Description:
    """Return format, size and mode of a picture, from its header; or why it is broken."""
    header, why, _ = decoding.described(member, decode)
    if header is None or why is not None:
        return Description(f"a broken picture: {why}", kind="broken")
    return Description(f"{header.form} {header.width}x{header.height} {header.mode}", kind="picture")


def heard(member: Member, kind: str) -> Description:
    """Return length, rate, channels and waveform of a sound, whose field ends in *kind*."""
    try:
        what, peaks = sound.read_sound(member)
    except (TarToolsError, MemoryError):
        raise
    except Exception as error:  # the library does not document all its exceptions
        why = re.sub(
            r"^(Error (opening <.*>|in \w+ file\.|:)[: ]*)+", "", str(error)
        )  # without the name of our file object
        name = f"{printable(kind.upper())[:MAX_TEXT_COLUMNS]} " if kind in sound.DECODABLE_SOUNDS else "sound "
        return Description(f"{name}that cannot be read: {printable(why)[:MAX_TEXT_COLUMNS]}", kind="broken")
    if peaks and not any(peaks):
        what += ", silent"
    return Description(what, [sound.line(peaks)] if any(peaks) else (), kind="sound")


def array_header(file: IO[bytes]) -> tuple[tuple[int, ...], numpy.dtype[Any]]:
    """Return shape and dtype that the .npy *file* says it has; it stands at its data then, which may be pickles.

    Raises: ValueError, and what else numpy raises for a header that can't be read.
    """
    from numpy.lib import format as npy

    first = npy.read_magic(file) == (1, 0)  # 3.0 is 2.0 with names in UTF-8
    try:
        shape, _, dtype = npy.read_array_header_1_0(file) if first else npy.read_array_header_2_0(file)
    except (MemoryError, RecursionError):  # the header is short: this is of Python's parser, whose stack is full
        raise ValueError("it is nested too deeply") from None
    if not all(length >= 0 for length in shape) or max((*shape, math.prod(shape))) >= 1 << 63:
        raise ValueError("its shape is not one that an array can have")
    return shape, dtype


def array_in_words(member: Member) -> Description:
    """Return dtype, shape and range of values of the .npy file *member*. Pickles that it may hold are not opened."""
    with member.open() as file:
        try:
            shape, dtype = array_header(file)
        except (TarToolsError, MemoryError):
            raise
        except Exception as error:  # numpy does not document all of them
            return Description(f"array whose header cannot be read: {printable(str(error))[:MAX_TEXT_COLUMNS]}")
        what = f"array {dtype_in_words(dtype)} {'x'.join(map(str, shape)) or 'scalar'}"
        if dtype.kind not in "biufc":
            return Description(what)
        found, expected = member.size - file.tell(), math.prod(shape) * dtype.itemsize
        if found != expected:
            return Description(f"{what}, but it has {found:,} bytes of data instead of {expected:,}")
        if found and found <= ARRAY_LIMIT and dtype.kind in "iuf":
            what += extent_in_words(file.read(), dtype)
    return Description(what)


def extent_in_words(data: bytes, dtype: numpy.dtype[Any]) -> str:
    """Return in words the minimum and maximum of *data*, numbers of this *dtype*."""
    import numpy as np

    values = np.frombuffer(data, dtype)
    unknown = int(np.isnan(values).sum())
    values = values[~np.isnan(values)] if unknown else values
    form = ".4g" if dtype.kind == "f" else ""
    known = f", from {values.min():{form}} to {values.max():{form}}" if values.size else ""
    return known + (f", {unknown:,} NaN" if unknown else "")


def dtype_in_words(dtype: numpy.dtype[Any]) -> str:
    """Return the name of *dtype*, without what Python objects would be made of."""
    if dtype.kind in "biufc":
        return ("big-endian " if dtype.str[0] == ">" else "") + dtype.name
    return (
        "of pickled objects (not opened)"
        if dtype.kind == "O"
        else printable(str(dtype.descr if dtype.names else dtype.str))[:MAX_TEXT_COLUMNS]
    )


def document(member: Member) -> Description:
    """Return JSON with indentation, cut. Holds: the value, and the lines that are shown."""
    import json

    payload = member.read()
    try:
        lines = first_lines(json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(parse_json(payload)))
    except (ValueError, RecursionError) as error:
        shown = cut_text(payload[:SHOWN_BYTES], whole=len(payload) <= SHOWN_BYTES) or guess_type(payload)
        return Description(f"not JSON ({printable(str(error))[:MAX_TEXT_COLUMNS]}), {shown.what}", shown.lines)
    if len(lines) == 1 and len(lines[0]) <= MAX_TEXT_COLUMNS:
        return Description(f"JSON: {printable(lines[0])}")
    return Description("JSON", cut(lines, whole=len(lines) < MAX_TEXT_LINES + MAX_JSON_LINES_COUNTED))


def first_lines(parts: Iterable[str]) -> list[str]:
    """Return the first lines of the text in *parts*, no more than are counted: each line of nested JSON takes time."""
    text, ends = [], 0
    for part in parts:
        text.append(part)
        ends += part.count("\n")
        if ends >= MAX_TEXT_LINES + MAX_JSON_LINES_COUNTED:
            break
    return "".join(text).split("\n")


def cut_text(head: bytes, *, whole: bool) -> Description | None:
    """Return the text that begins with *head*, cut; None if it is not text. *whole*: *head* is all of it."""
    try:
        found = codecs.getincrementaldecoder("utf-8")().decode(head, final=whole)
    except UnicodeDecodeError:
        return None
    if "\0" in found:
        return None
    lines = found.removesuffix("\n").split("\n")
    if whole and len(lines) == 1 and len(lines[0]) <= MAX_TEXT_COLUMNS:
        kind, value = "number" if NUMBER_TEXT.fullmatch(lines[0]) else "text", printable(lines[0])
        return Description(f"{kind}: {value}", kind=kind, value=value)
    return Description("text", cut(lines, whole=whole), kind="text")


def cut(lines: Sequence[str], *, whole: bool) -> list[str]:
    """Return the first of *lines*, cut and with control characters escaped, and a mark if there are more."""
    shown = [
        printable(line[:MAX_TEXT_COLUMNS]) + ("…" if len(line) > MAX_TEXT_COLUMNS else "")
        for line in lines[:MAX_TEXT_LINES]
    ]
    if not whole:
        shown.append("…")
    elif len(lines) > MAX_TEXT_LINES:
        shown.append(f"… {len(lines) - MAX_TEXT_LINES} more lines")
    return shown


def guess_type(head: bytes) -> Description:
    """Return what a file that begins with *head* probably is."""
    found = type_of_file(head)
    return Description(found.brief if found else "binary", kind="sound" if found and found.kind == SOUND else "")
