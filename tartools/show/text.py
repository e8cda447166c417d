"""Describe samples in words: the key, and for each field its size, its type, and the beginning of text.

Nothing is executed or unpickled. Of a large member only a part is read, unless it is a picture, which is decoded.
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tartools.errors import TarToolsError, printable
from tartools.samples import decoding
from tartools.samples.filetypes import FIRST, PICTURES, SOUND, is_picture, suffix_of, type_of_file
from tartools.samples.sample import Sample, field_name
from tartools.show import sound
from tartools.tar import Member

HEAD = 1 << 16  # bytes of a member that are read
JSON_LIMIT = 1 << 20  # bytes; longer JSON is shown as plain text
ARRAY_LIMIT = 16 << 20  # bytes; longer arrays are shown without their range of values
ARRAY_HEADER = 10_000  # bytes; numpy's own limit
DIMENSIONS = 64  # numpy's own limit
COUNTED = 10_000  # lines of JSON that are counted
LINES, WIDTH = 12, 100  # of a text; longer ones are cut

ARRAY = b"\x93NUMPY"  # numpy.lib.format, "Format Version 1.0"
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
KINDS = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}


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
        head = file.read(HEAD)
    kind = suffix_of(field_name(member))
    if not head:
        return Description("empty", kind="broken" if kind in PICTURES or kind in sound.KINDS else "")
    if head.startswith(ARRAY):
        return array_in_words(head, member)
    if is_picture(kind, head):
        return picture_in_words(member, decode=decode)
    if sound.is_sound(kind, head):
        return heard(member, kind)
    if kind == "json" and member.size <= JSON_LIMIT:
        return document(member)
    return cut_text(head, whole=member.size <= HEAD) or guess_type(head)


def may_sound(member: Member) -> bool:
    """Return whether *member* is or should be a sound, by its first bytes and its field."""
    kind, head = _first_look(member)
    return sound.is_sound(kind, head) or guess_type(head).kind == "sound"


def may_be_picture(member: Member) -> bool:
    """Return whether *member* is or should be a picture, by its first bytes and its field."""
    return is_picture(*_first_look(member))


def _first_look(member: Member) -> tuple[str, bytes]:
    with member.open() as file:
        return suffix_of(field_name(member)), file.read(FIRST)


def picture_in_words(member: Member, *, decode: bool) -> Description:
    """Return format, size and mode of a picture, from its header; or why it is broken."""
    header, why = decoding.described(member, decode)
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
        name = f"{printable(kind.upper())[:WIDTH]} " if kind in sound.KINDS else "sound "
        return Description(f"{name}that cannot be read: {printable(why)[:WIDTH]}", kind="broken")
    if peaks and not any(peaks):
        what += ", silent"
    return Description(what, [sound.line(peaks)] if any(peaks) else (), kind="sound")


def array_in_words(head: bytes, member: Member) -> Description:
    """Return dtype, shape and range of values of the .npy file *member*, which begins with *head*.

    The header is parsed as a literal, and numpy gets plain numbers only, never the pickles that an array may hold.
    """
    import ast

    wide = head[6:7] > b"\x01"  # numpy.lib.format: from version 2.0 on the length has four bytes
    start = 12 if wide else 10
    length = int.from_bytes(head[8:start], "little")
    try:
        if length > ARRAY_HEADER:
            raise ValueError(f"it has {length} bytes")
        header = ast.literal_eval(head[start : start + length].decode("utf-8" if head[6] > 2 else "latin-1").strip())
        kind, shape = header["descr"], tuple(int(n) for n in header["shape"])
        if len(shape) > DIMENSIONS or not all(0 <= n < 1 << 63 for n in shape):
            raise ValueError("its shape is not one that an array can have")
    except (ValueError, SyntaxError, TypeError, LookupError, ArithmeticError, MemoryError, RecursionError) as error:
        # the header is short: MemoryError is of Python's parser, whose stack is full, and its text that of a version
        deep = isinstance(error, MemoryError | RecursionError)
        why = "it is nested too deeply" if deep else printable(str(error))
        return Description(f"array whose header cannot be read: {why[:WIDTH]}")
    what = f"array {dtype(kind)} {'x'.join(map(str, shape)) or 'scalar'}"
    numeric = re.fullmatch(r"[<>|=]?([biufc])(\d{1,3})", kind) if isinstance(kind, str) else None
    if numeric is None:
        return Description(what)
    found, expected = member.size - start - length, math.prod(shape) * int(numeric[2])
    if found != expected:
        return Description(f"{what}, but it has {found:,} bytes of data instead of {expected:,}")
    if found and found <= ARRAY_LIMIT and numeric[1] in "iuf":
        what += extent_in_words(member.read()[start + length :], kind)
    return Description(what)


def extent_in_words(data: bytes, kind: str) -> str:
    """Return in words the minimum and maximum of *data*, numbers of the dtype *kind*.

    >>> extent_in_words(bytes([3, 0, 9]), "|u1")
    ', from 0 to 9'
    """
    import numpy as np

    try:
        values = np.frombuffer(data, np.dtype(kind))
    except TypeError:  # a width that this machine does not have
        return ""
    unknown = int(np.isnan(values).sum())
    if unknown:
        values = values[~np.isnan(values)]
    form = ".4g" if values.dtype.kind == "f" else ""
    known = f", from {values.min():{form}} to {values.max():{form}}" if values.size else ""
    return known + (f", {unknown:,} NaN" if unknown else "")


def dtype(kind: object) -> str:
    """Return the name of the dtype *kind* of a .npy header.

    >>> dtype("<f4"), dtype(">i2"), dtype("|O")
    ('float32', 'big-endian int16', 'of pickled objects (not opened)')
    """
    found = re.fullmatch(r"([<>|=]?)([biufc])(\d{1,3})", kind) if isinstance(kind, str) else None
    if found:
        bits = "" if found[2] == "b" else str(8 * int(found[3]))
        return ("big-endian " if found[1] == ">" else "") + KINDS[found[2]] + bits
    return "of pickled objects (not opened)" if kind == "|O" else printable(str(kind))[:WIDTH]


def document(member: Member) -> Description:
    """Return JSON with indentation, cut. Holds: the value, and the lines that are shown."""
    import json

    payload = member.read()
    try:
        value = json.loads(payload)
        lines, more = first_lines(json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(value))
    except (ValueError, RecursionError) as error:
        shown = cut_text(payload[:HEAD], whole=len(payload) <= HEAD) or guess_type(payload)
        return Description(f"not JSON ({printable(str(error))[:WIDTH]}), {shown.what}", shown.lines)
    if len(lines) == 1 and len(lines[0]) <= WIDTH:
        return Description(f"JSON: {printable(lines[0])}")
    rest = [f"… {more} more lines" if more < COUNTED else "…"] if more else []
    return Description("JSON", [*cut(lines, whole=True), *rest])


def first_lines(parts: Iterable[str]) -> tuple[list[str], int]:
    """Return the first lines of the text in *parts*, each cut to the width shown, and the count of further lines.

    Counting stops at a limit, because each line of nested JSON takes time.
    """
    lines: list[str] = []
    line, more = "", 0
    for part in parts:
        *full, rest = part.split("\n")
        for end in full:
            if len(lines) < LINES:
                lines.append((line + end)[: WIDTH + 1])
                line = ""
            else:
                more += 1
        line = (line + rest)[: WIDTH + 1]
        if more >= COUNTED:
            break
    if len(lines) < LINES:
        return [*lines, line], more
    return lines, more + 1


def cut_text(head: bytes, *, whole: bool) -> Description | None:
    """Return the text that begins with *head*, cut; None if it is not text. *whole*: *head* is all of it."""
    try:
        found = codecs.getincrementaldecoder("utf-8")().decode(head, final=whole)
    except UnicodeDecodeError:
        return None
    if "\0" in found:
        return None
    lines = found.removesuffix("\n").split("\n")
    if whole and len(lines) == 1 and len(lines[0]) <= WIDTH:
        kind, value = "number" if NUMBER.fullmatch(lines[0]) else "text", printable(lines[0])
        return Description(f"{kind}: {value}", kind=kind, value=value)
    return Description("text", cut(lines, whole=whole), kind="text")


def cut(lines: Sequence[str], *, whole: bool) -> list[str]:
    """Return the first of *lines*, cut and with control characters escaped, and a mark if there are more."""
    shown = [printable(line[:WIDTH]) + ("…" if len(line) > WIDTH else "") for line in lines[:LINES]]
    if not whole:
        shown.append("…")
    elif len(lines) > LINES:
        shown.append(f"… {len(lines) - LINES} more lines")
    return shown


def guess_type(head: bytes) -> Description:
    """Return what a file that begins with *head* probably is."""
    found = type_of_file(head)
    return Description(found.brief if found else "binary", kind="sound" if found and found.kind == SOUND else "")
