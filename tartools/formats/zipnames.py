"""Names of members of zip files: in UTF-8, or in the encoding of the system that wrote them."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Sequence
from zlib import crc32

from tartools.errors import SampleError, several, shown
from tartools.formats.encodings import guess_encodings

UTF8_FLAG = 1 << 11  # flag: the name is UTF-8
UNIX_SYSTEMS = (3, 19)  # systems that made a file, on which a backslash is part of a name: Unix, macOS
UNICODE_PATH = 0x7075  # extra field of Info-ZIP, which 7-Zip and WinRAR write too (APPNOTE 4.6.9)
EXTRA_FIELD = struct.Struct("<2H")  # of an extra field: its id, and the length of what follows
MAX_GUESSED_NAMES = 1000  # names by which an encoding is guessed


def raw_name(info: zipfile.ZipInfo) -> bytes:
    """Return the bytes of the name of *info* as they are in the zip file."""
    return info.orig_filename.encode("utf-8" if info.flag_bits & UTF8_FLAG else "cp437")


def path_of_member(info: zipfile.ZipInfo) -> bytes:
    """Return the path of *info* in UTF-8; `ZipNames.set_filenames` has to be called before."""
    return info.filename.encode()


class ZipNames:
    """Decodes the names of members of the zip file *url*: in *encoding* where they do not say that they are UTF-8.

    A name says so by a flag; it is also UTF-8, in any *encoding*, if all its bytes are ASCII. For any other name the
    extra fields of the member may have one in UTF-8, which comes first. If *encoding* is None, a name that happens to
    be UTF-8 is read so, and others as code page 437, as the format says. Call `set_filenames`, then `warnings`.

    *url*: for messages.
    `guessed`: the first MAX_GUESSED_NAMES that were read as code page 437, as bytes.
    `backslashes`: the names in which backslashes separate folders, before they were replaced.
    """

    def __init__(self, url: str, encoding: str | None) -> None:
        self._url = url
        self._encoding = encoding
        self.guessed: list[bytes] = []
        self.backslashes: list[str] = []

    def set_filenames(self, infos: Sequence[zipfile.ZipInfo]) -> None:
        """Set the `filename` of each of *infos* to its name, decoded, with "/" between folders.

        Backslashes become "/" in a name without "/" that no Unix system wrote.
        Raises: SampleError for a name that is not in the encoding of this `ZipNames`.
        """
        for info in infos:
            name = info.orig_filename
            if not name.isascii() and not info.flag_bits & UTF8_FLAG:
                name = self._decode_name(info)
            if "\\" in name and "/" not in name and info.create_system not in UNIX_SYSTEMS:  # as unzip and bsdtar do
                self.backslashes.append(name)
                name = name.replace("\\", "/")
            info.filename = name

    def _decode_name(self, info: zipfile.ZipInfo) -> str:
        """Return the name of *info*, which is not ASCII and does not say that it is UTF-8.

        That is the Unicode path in its extra fields, else the name in the encoding of this `ZipNames`; if that is None,
        the name in UTF-8, or, if it is not UTF-8, in code page 437: its bytes are added to `guessed` then, as long as
        there are fewer than MAX_GUESSED_NAMES.

        Raises: SampleError if it is not in the encoding of this `ZipNames`.
        """
        raw = raw_name(info)
        if name := unicode_path(info.extra, raw):
            return name
        try:
            return raw.decode(self._encoding or "utf-8")
        except UnicodeDecodeError:
            if self._encoding:
                reason = f"the name {info.orig_filename!r} is not {self._encoding}"
                raise SampleError(reason, url=self._url) from None
        if len(self.guessed) < MAX_GUESSED_NAMES:
            self.guessed.append(raw)
        return info.orig_filename

    def warnings(self) -> list[str]:
        """Return up to two warnings about the names so far: code page 437 was assumed; backslashes separate folders.

        Each is one message about all such names, with the URL and the first of them; empty if there are none. There is
        none about code page 437 if that is the likeliest encoding of the names read so.
        """
        where, lines = shown(self._url), []
        likely = guess_encodings(self.guessed) if self.guessed else []
        if self.guessed and likely[:1] != ["cp437"]:
            names = [name for name in likely if name != "cp437"][:2]
            first = self.guessed[0]
            advice = ", ".join(f"--encoding {name} reads {first.decode(name)!r}" for name in names)
            lines.append(
                f"{where}: {first.decode('cp437')!r} is not UTF-8, and is read as code page 437: "
                f"{advice or '--encoding NAME reads another'}"
            )
        if self.backslashes:
            suffix = f", as in {several(len(self.backslashes) - 1, 'more name')}" if self.backslashes[1:] else ""
            lines.append(f"{where}: backslashes in {self.backslashes[0]!r} separate folders{suffix}")
        return lines


def unicode_path(extra: bytes, raw: bytes) -> str:
    """Return the name that a Unicode path in the *extra* fields of a member gives for its *raw* name; "" if none does.

    The first Unicode path of version 1 that has the CRC-32 of *raw* counts; if it is not UTF-8, "" is returned.

    >>> data = bytes([1]) + crc32(b"?").to_bytes(4, "little") + "é".encode()
    >>> unicode_path(EXTRA_FIELD.pack(UNICODE_PATH, len(data)) + data, b"?"), unicode_path(b"", b"?")
    ('é', '')
    """
    at = 0
    while at + EXTRA_FIELD.size <= len(extra):
        kind, length = EXTRA_FIELD.unpack_from(extra, at)
        data = extra[at + EXTRA_FIELD.size : at + EXTRA_FIELD.size + length]
        if kind == UNICODE_PATH and len(data) > 5 and data[0] == 1 and data[1:5] == crc32(raw).to_bytes(4, "little"):
            try:
                return data[5:].decode()
            except UnicodeDecodeError:
                return ""
        at += EXTRA_FIELD.size + length
    return ""
