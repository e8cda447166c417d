"""A sample in words: its key, and for each field the size and what it is.

Nothing is executed or unpickled, pictures are not decoded, and of a large member only the beginning is read.
"""

from __future__ import annotations

import codecs
import math
import re
import warnings
from collections.abc import Sequence
from typing import NamedTuple

from tartools.errors import TarToolsError, printable
from tartools.sample import Sample, field_name
from tartools.tar import Member

HEAD = 1 << 16  # bytes of a member that are looked at
JSON_LIMIT = 1 << 20  # bytes; longer JSON is shown as the text it is
ARRAY_HEADER = 10_000  # bytes; numpy's own limit
DIMENSIONS = 64  # numpy's own limit
LINES, WIDTH = 12, 100  # of a text, beyond which it is cut

PICTURES = frozenset(
    ("bmp", "gif", "jpe", "jpeg", "jpg", "jp2", "pbm", "pgm", "png", "pnm", "ppm", "tif", "tiff", "webp")
)
ARRAY = b"\x93NUMPY"  # numpy.lib.format, "Format Version 1.0"
KINDS = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}

# what a file begins with -> what that is
PICTURE_MAGIC = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*")
MAGIC = (
    (b"\x1f\x8b", "gzip data"),
    (b"PK\x03\x04", "zip archive"),
    (b"\x28\xb5\x2f\xfd", "zstd data"),
    (b"BZh", "bzip2 data"),
    (b"\xfd7zXZ", "xz data"),
    (b"%PDF-", "PDF"),
    (b"ID3", "MP3"),
    (b"\xff\xfb", "MP3"),
    (b"fLaC", "FLAC"),
    (b"OggS", "Ogg"),
    (b"\x1aE\xdf\xa3", "Matroska or WebM"),
    (b"\x89HDF\r\n\x1a\n", "HDF5"),
    (b"~TenBin~", "tensors"),
    (b"PAR1", "Parquet"),
    (b"SQLite format 3\0", "SQLite database"),
    *((b"\x80" + bytes([version]), "pickle, not opened") for version in range(2, 6)),
)


class Description(NamedTuple):
    """What a member is, and *lines* of what is in it."""

    what: str
    lines: Sequence[str] = ()


def block(sample: Sample, *, bold: bool = False) -> str:
    """Return the lines that describe *sample*, and an empty one; with *bold*, the key by a terminal's escape codes.

    Control characters of keys, fields and texts are escaped, so that showing a file can't drive the terminal.

    Holds: 64 KiB of a member at a time; JSON up to 1 MiB as a whole.
    """
    title = printable(sample.key)
    rows = [(printable(field_name(m)) or "-", f"{m.size:,} B", describe(m)) for m in sample.members]
    names, sizes = max(len(row[0]) for row in rows), max(len(row[1]) for row in rows)
    lines = [f"\x1b[1m{title}\x1b[0m" if bold else title]
    for name, size, found in rows:
        lines.append(f"  {name:<{names}}  {size:>{sizes}}  {found.what}")
        lines += ["    " + line for line in found.lines]
    return "\n".join(lines) + "\n\n"


def describe(member: Member) -> Description:
    """Return what *member* is: by its first bytes where they tell, else by its field."""
    with member.open() as file:
        head = file.read(HEAD)
    kind = field_name(member).rpartition(".")[2].lower()
    if not head:
        return Description("empty")
    if head.startswith(ARRAY):
        return array(head, member.size)
    if kind in PICTURES or head.startswith(PICTURE_MAGIC) or (head[:4] == b"RIFF" and head[8:12] == b"WEBP"):
        return picture(member)
    if kind == "wav" or (head[:4] == b"RIFF" and head[8:12] == b"WAVE"):
        return sound(member)
    if kind == "json" and member.size <= JSON_LIMIT:
        return document(member)
    return text(head, whole=member.size <= HEAD) or guess(head)


def picture(member: Member) -> Description:
    """Return format, size and mode of a picture, from its header."""
    from PIL import Image

    try:
        with warnings.catch_warnings(), member.open() as file:
            warnings.simplefilter("ignore")  # of large ones, which are no danger as long as nobody decodes them
            with Image.open(file) as opened:
                return Description(f"{opened.format} {opened.width}x{opened.height} {opened.mode}")
    except TarToolsError:
        raise
    except Exception as error:  # each format has its own
        why = re.sub(r" <.*>$", "", str(error))  # Pillow names our file object, which tells nobody anything
        return Description(f"a picture that Pillow does not open: {printable(why)[:WIDTH]}")


def sound(member: Member) -> Description:
    """Return length, rate and channels of a WAV file, from its header."""
    import wave

    try:
        with member.open() as file, wave.open(file) as opened:
            rate, channels = opened.getframerate(), opened.getnchannels()
            seconds, bits = opened.getnframes() / rate, 8 * opened.getsampwidth()
    except TarToolsError:
        raise
    except Exception as error:  # of the many ways to fail, the library names two
        return Description(f"WAV that cannot be read: {printable(str(error)) or 'it ends too early'}")
    return Description(f"WAV {seconds:.2f} s, {rate} Hz, {channels} channel{'s' * (channels > 1)}, {bits} bit")


def array(head: bytes, size: int) -> Description:
    """Return dtype and shape of a .npy file of *size* bytes, of which *head* is the beginning.

    The header is read as a literal: numpy, and the pickles that an array may hold, are not touched.
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
            raise ValueError("its shape is none that an array can have")
    except (ValueError, SyntaxError, TypeError, LookupError, ArithmeticError, MemoryError, RecursionError) as error:
        return Description(f"array whose header cannot be read: {printable(str(error))[:WIDTH]}")
    what = f"array {dtype(kind)} {'x'.join(map(str, shape)) or 'scalar'}"
    width = re.fullmatch(r"[<>|=]?[biufc](\d{1,3})", kind) if isinstance(kind, str) else None
    expected = math.prod(shape) * int(width[1]) if width else None
    if expected is not None and expected != size - start - length:
        what += f", but it has {size - start - length:,} bytes of data instead of {expected:,}"
    return Description(what)


def dtype(kind: object) -> str:
    """Return the name of the dtype that a .npy header calls *kind*.

    >>> dtype("<f4"), dtype(">i2"), dtype("|O")
    ('float32', 'big-endian int16', 'of pickled objects (not opened)')
    """
    found = re.fullmatch(r"([<>|=]?)([biufc])(\d{1,3})", kind) if isinstance(kind, str) else None
    if found:
        bits = "" if found[2] == "b" else str(8 * int(found[3]))
        return ("big-endian " if found[1] == ">" else "") + KINDS[found[2]] + bits
    return "of pickled objects (not opened)" if kind == "|O" else printable(str(kind))[:WIDTH]


def document(member: Member) -> Description:
    """Return JSON with indentation, cut."""
    import json

    payload = member.read()
    try:
        value = json.loads(payload)
        lines = json.dumps(value, indent=2, ensure_ascii=False).split("\n")
    except (ValueError, RecursionError) as error:
        shown = text(payload[:HEAD], whole=len(payload) <= HEAD) or guess(payload)
        return Description(f"not JSON ({printable(str(error))[:WIDTH]}), {shown.what}", shown.lines)
    if len(lines) == 1 and len(lines[0]) <= WIDTH:
        return Description(f"JSON: {printable(lines[0])}")
    return Description("JSON", cut(lines, whole=True))


def text(head: bytes, *, whole: bool) -> Description | None:
    """Return the text that *head* is the beginning of, cut; None if it is none. *whole*: there is no more."""
    try:
        found = codecs.getincrementaldecoder("utf-8")().decode(head, final=whole)
    except UnicodeDecodeError:
        return None
    if "\0" in found:
        return None
    lines = found.removesuffix("\n").split("\n")
    if whole and len(lines) == 1 and len(lines[0]) <= WIDTH:
        return Description(f"text: {printable(lines[0])}")
    return Description("text", cut(lines, whole=whole))


def cut(lines: Sequence[str], *, whole: bool) -> list[str]:
    """Return the first of *lines*, each up to a width, control characters escaped, and a sign that there were more."""
    shown = [printable(line[:WIDTH]) + ("…" if len(line) > WIDTH else "") for line in lines[:LINES]]
    if not whole:
        shown.append("…")
    elif len(lines) > LINES:
        shown.append(f"… {len(lines) - LINES} more lines")
    return shown


def guess(head: bytes) -> Description:
    """Return what a file that begins with *head* may be."""
    if head[4:8] == b"ftyp":
        return Description("MP4")
    return Description(next((what for magic, what in MAGIC if head.startswith(magic)), "binary"))
