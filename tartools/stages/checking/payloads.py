"""Payloads by their first bytes: do they say the same as the suffix of the field?"""

from __future__ import annotations

import re

from tartools.samples.encoding import NUMBERS

FIRST = 16  # bytes of a payload that are looked at

_MP4 = (b"ftyp", b"moov", b"mdat", b"free", b"wide", b"skip", b"styp")  # at byte 4; ISO/IEC 14496-12

# kind of file -> its first bytes
KINDS = {
    "a JPEG picture": (b"\xff\xd8",),
    "a PNG picture": (b"\x89PNG\r\n\x1a\n",),
    "a GIF picture": (b"GIF87a", b"GIF89a"),
    "a BMP picture": (b"BM",),
    "a TIFF picture": (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
    "a PNM picture": tuple(b"P%d" % number for number in range(1, 8)),
    "a JPEG 2000 picture": (b"\0\0\0\x0cjP", b"\xff\x4f\xff\x51"),
    "a numpy array": (b"\x93NUMPY",),
    "a zip archive": (b"PK\x03\x04", b"PK\x05\x06"),
    "a FLAC sound": (b"fLaC", b"ID3"),
    "an Ogg sound": (b"OggS",),
    "an MP3 sound": (b"ID3", *(b"\xff" + bytes([second]) for second in range(0xE0, 0x100) if second >> 1 & 3)),
    "a Matroska video": (b"\x1aE\xdf\xa3",),
    "gzip data": (b"\x1f\x8b",),
    "zstd data": (b"\x28\xb5\x2f\xfd",),
    "bzip2 data": (b"BZh",),
    "xz data": (b"\xfd7zXZ\0",),
}
SUFFIXES = {
    **dict.fromkeys(("jpg", "jpeg", "jpe"), "a JPEG picture"),
    "png": "a PNG picture",
    "gif": "a GIF picture",
    "bmp": "a BMP picture",
    **dict.fromkeys(("tif", "tiff"), "a TIFF picture"),
    **dict.fromkeys(("pbm", "pgm", "pnm", "ppm"), "a PNM picture"),
    "jp2": "a JPEG 2000 picture",
    "webp": "a WebP picture",
    "npy": "a numpy array",
    **dict.fromkeys(("npz", "zip"), "a zip archive"),
    "flac": "a FLAC sound",
    **dict.fromkeys(("oga", "ogg", "opus"), "an Ogg sound"),
    "mp3": "an MP3 sound",
    "wav": "a WAV sound",
    "avi": "an AVI video",
    **dict.fromkeys(("avif", "heic", "m4a", "m4v", "mov", "mp4"), "an MPEG-4 file"),
    **dict.fromkeys(("mkv", "webm"), "a Matroska video"),
    "gz": "gzip data",
    "zst": "zstd data",
    "bz2": "bzip2 data",
    "xz": "xz data",
}
TEXTS = NUMBERS | {"caption", "csv", "html", "json", "jsonl", "label", "md", "text", "tsv", "txt", "yaml"}
BEGINS_AS_NUMBER = re.compile(rb"[\s\d_+-]*")
PICKLES = frozenset(("pickle", "pkl", "pyd"))
# what text does not begin with
CLEAR = tuple(
    (magic, kind)
    for kind, magics in KINDS.items()
    for magic in magics
    if (len(magic) > 3 and not magic.isalnum()) or magic[0] > 127 or magic[:1] < b"\t"
)
CLEAR_MAGICS = tuple(magic for magic, _ in CLEAR)


def suffix_of(field: str) -> str:
    """Return the last part of *field*, in lower case."""
    return field.rpartition(".")[2].lower()


def kind_of(head: bytes) -> str:
    """Return what a file that begins with *head* is; empty if that is not known.

    >>> kind_of(b"GIF89a..."), kind_of(b"hello")
    ('a GIF picture', '')
    """
    if head[4:8] in _MP4:
        return "an MPEG-4 file"
    if head[:4] in (b"RIFF", b"RF64"):
        return {b"WEBP": "a WebP picture", b"WAVE": "a WAV sound", b"AVI ": "an AVI video"}.get(head[8:12], "")
    return next((kind for kind, magics in KINDS.items() if head.startswith(magics)), "")


def lie(suffix: str, head: bytes) -> str:
    """Return what is wrong with a payload that begins with *head* in a field that ends in *suffix*; empty if nothing.

    >>> lie("jpg", b"GIF89a..."), lie("jpg", b"hello"), lie("txt", b"hello")
    ('it is a GIF picture, not a JPEG picture', 'it does not begin as a JPEG picture', '')
    """
    if suffix in TEXTS:
        found = next((kind for magic, kind in CLEAR if head.startswith(magic)), "")
        return f"it is {found}, not text" if found else ""
    said = SUFFIXES.get(suffix)
    if said is None or not head or head.startswith(KINDS.get(said, ())) or kind_of(head) == said:
        return ""
    found = kind_of(head)
    return f"it is {found}, not {said}" if found else f"it does not begin as {said}"


def no_number(head: bytes, size: int) -> str:
    """Return what is wrong with a payload of *size* bytes that begins with *head*, and should be a number for `int`.

    >>> no_number(b"-5", 3), no_number(b"1.5", 3), no_number(b"an oak in autumn", 20)
    ('', "'1.5' is not a whole number", "'an oak in autumn...' is not a whole number")
    """
    try:
        if size > len(head) and BEGINS_AS_NUMBER.fullmatch(head):
            return ""
        int(head)
    except ValueError:
        text = head.decode(errors="replace")
        return f"{text + '...' * (size > len(head))!r} is not a whole number"
    return ""


def expected(suffix: str) -> tuple[bytes, ...]:
    """Return first bytes that prove that a payload is what *suffix* says; none if there are others too."""
    return KINDS.get(SUFFIXES.get(suffix, ""), ())
