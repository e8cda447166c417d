"""Files that are no tar archives: their format by the first bytes, and advice how to read them."""

from __future__ import annotations

from tartools.errors import several
from tartools.tar.header import BLOCK

_BSDTAR = "bsdtar -cf - @FILE makes a tar archive of it"
_TABLE = "tarcreate makes samples of a TSV or CSV table"
_FOLDER = "tarcreate --folder makes samples of a folder of files"
_ERROR_PAGE = "perhaps an error page of the server"
_RIFF_KINDS = {b"WEBP": "a WebP picture", b"WAVE": "a WAV sound", b"AVI ": "an AVI video"}

# first bytes of a file -> description, advice
_FORMATS = (
    (b"PK\x03\x04", "a zip archive", "tarcreate --zip FILE makes a tar archive of it"),
    (b"PK\x05\x06", "an empty zip archive", ""),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", _BSDTAR),
    (b"Rar!\x1a\x07", "a RAR archive", _BSDTAR),
    (b"070701", "a cpio archive", _BSDTAR),
    (b"070707", "a cpio archive", _BSDTAR),
    (b"!<arch>\n", "an ar archive", _BSDTAR),
    (b"\x1f\x8b\x08", "gzip data", "it was compressed twice: 'pipe:gzip -dc FILE' reads it"),
    (b"\x1f\x9d", "data of compress (.Z)", "'pipe:gzip -dc FILE' reads it"),
    (b"LZIP", "lzip data", "'pipe:lzip -dc FILE' reads it"),
    (b"\x5d\x00\x00", "LZMA data (.lzma)", "'pipe:xz -dc FILE' reads it"),
    (b"\x02\x21\x4c\x18", "lz4 data in the legacy format", "'pipe:lz4 -dc FILE' reads it"),
    (b"PAR1", "a Parquet table", _TABLE),
    (b"ARROW1", "an Arrow file", _TABLE),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file", ""),
    (b"SQLite format 3\0", "an SQLite database", ""),
    (b"\x93NUMPY", "a numpy array", _FOLDER),
    (b"version https://git-lfs", "a pointer of Git LFS", "git lfs pull fetches the file itself"),
    (b"\xff\xd8\xff", "a JPEG picture", _FOLDER),
    (b"\x89PNG\r\n\x1a\n", "a PNG picture", _FOLDER),
    (b"GIF8", "a GIF picture", _FOLDER),
    (b"OggS", "an Ogg sound", _FOLDER),
    (b"fLaC", "a FLAC sound", _FOLDER),
    (b"ID3", "an MP3 sound", _FOLDER),
    (b"%PDF-", "a PDF", ""),
    (b"<!doctype html", "an HTML page", _ERROR_PAGE),
    (b"<html", "an HTML page", _ERROR_PAGE),
    (b"<?xml", "an XML document", _ERROR_PAGE),
    (b"{", "JSON, by its first byte", ""),
    (b"[", "JSON, by its first byte", ""),
    (b"\xff\xfe", "text in UTF-16", "iconv -f UTF-16 -t UTF-8 FILE converts it"),
    (b"\xfe\xff", "text in UTF-16", "iconv -f UTF-16 -t UTF-8 FILE converts it"),
)
_OLD_NAME_BYTES = 100
_MODE_FIELD = slice(100, 108)
_OCTAL = b"01234567 \0"
_TEXT_BYTES = bytes({*range(32, 127), *b"\t\n\r\f", *range(128, 256)})


def describe_format(head: bytes) -> tuple[str, str]:
    r"""Return (format, advice) of a file that begins with *head*; both are "" if it is unknown; the advice may be "".

    The format is a noun phrase, "a zip archive" or "gzip data"; the advice says how to read or convert the file, FILE,
    or what it may be ("perhaps an error page of the server"). *head*: 23 bytes or more tell all formats; fewer may do.

    >>> describe_format(b"\x1f\x9d\x90")
    ('data of compress (.Z)', "'pipe:gzip -dc FILE' reads it")
    """
    if head[:4] == b"RIFF":
        return _RIFF_KINDS.get(head[8:12], "a RIFF file"), _FOLDER
    if head[4:8] == b"ftyp":
        return "an MPEG-4 file", _FOLDER
    for magic, description, advice in _FORMATS:
        if head[: len(magic)].lower() == magic.lower():
            return description, advice
    return "", ""


def not_tar_message(head: bytes) -> str:
    r"""Return the message for an input that is no tar archive; *head* is its first block, or all of a smaller one.

    If the format is unknown and *head* is no text: "this is not a tar archive", and for a smaller input its size,
    unless it is empty. Text is UTF-8 without control characters but tabs, line breaks and form feeds.

    >>> not_tar_message(b"PK\x03\x04")
    'this is not a tar archive but a zip archive (tarcreate --zip FILE makes a tar archive of it)'
    >>> not_tar_message(b"hello world")
    'this is not a tar archive but 11 bytes of text'
    """
    description, advice = describe_format(head)
    if not description and head and not head.translate(None, _TEXT_BYTES) and _is_utf_8(head):
        description = f"{several(len(head), 'byte')} of text" if len(head) < BLOCK else "text"
    if not description and 0 < len(head) < BLOCK:
        description = f"{several(len(head), 'other byte')}: fewer than the {BLOCK} of a header"
    return "this is not a tar archive" + (f" but {description}" if description else "") + (advice and f" ({advice})")


def _is_utf_8(head: bytes) -> bool:
    """True if *head* is UTF-8, but for a character that is cut at its end."""
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return True


def is_cut_header(head: bytes) -> bool:
    r"""True if *head*, fewer bytes than a block, may be the begin of a tar header: a name, zeros, and a mode.

    The mode may be missing or cut; bytes behind it are not looked at. A zero must follow the name, unless it fills its
    100 bytes and more bytes follow: a name alone is text.

    >>> is_cut_header(b"a.jpg" + bytes(95) + b"0000644"), is_cut_header(b"hello world"), is_cut_header(b"a\1\0\1")
    (True, False, False)
    """
    name, zero, padding = head[:_OLD_NAME_BYTES].partition(b"\0")
    if not name or min(name) < ord(" ") or (len(head) <= _OLD_NAME_BYTES and not zero) or padding.strip(b"\0"):
        return False
    return not head[_MODE_FIELD].translate(None, _OCTAL)
