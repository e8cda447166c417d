"""Explain what an input is that is not a tar archive, and how to convert it."""

from __future__ import annotations

CONVERTED = "bsdtar -cf - @FILE makes a tar archive of it"
TABLE = "tarcreate makes samples of a TSV or CSV table"

# first bytes of a file -> what it is, advice
FOREIGN = (
    (b"PK\x03\x04", "a zip archive", "tarcreate --zip FILE makes a tar archive of it"),
    (b"PK\x05\x06", "an empty zip archive", ""),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", CONVERTED),
    (b"Rar!\x1a\x07", "a RAR archive", CONVERTED),
    (b"070701", "a cpio archive", CONVERTED),
    (b"070707", "a cpio archive", CONVERTED),
    (b"PAR1", "a Parquet table", TABLE),
    (b"ARROW1", "an Arrow file", TABLE),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file", ""),
    (b"version https://git-lfs", "a pointer of Git LFS", "git lfs pull fetches the file itself"),
    (b"\xff\xd8\xff", "a JPEG picture", "tarcreate --folder makes samples of a folder of files"),
    (b"\x89PNG\r\n\x1a\n", "a PNG picture", "tarcreate --folder makes samples of a folder of files"),
    (b"<!doctype html", "an HTML page", "perhaps an error page of the server"),
    (b"<html", "an HTML page", "perhaps an error page of the server"),
    (b"<?xml", "an XML document", "perhaps an error page of the server"),
    (b"{", "JSON, by its first byte", ""),
)


def no_tar(head: bytes) -> str:
    r"""Return the message for an input that begins with *head* and is not a tar archive: what it is, and advice.

    >>> no_tar(b"PK\x03\x04")
    'this is not a tar archive but a zip archive (tarcreate --zip FILE makes a tar archive of it)'
    """
    for magic, what, help in FOREIGN:
        if head[: len(magic)].lower() == magic.lower():
            return f"this is not a tar archive but {what}{f' ({help})' if help else ''}"
    return "this is not a tar archive"
