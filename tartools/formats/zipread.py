"""The directory at the end of a zip file, and the payloads that it lists.

`zipfile` of Python makes an object for each member when it opens a file: 600,000 of them take 4 s and
355 MB. Here the directory is held as it is in the file, and an entry is parsed when it is needed.
"""

from __future__ import annotations

import io
import struct
import zlib
from array import array
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from tartools import tar
from tartools.errors import SampleError, TarFormatError, TruncatedError
from tartools.formats.build import kept
from tartools.samples.values import checked_key
from tartools.tar import Member

CENTRAL = struct.Struct("<4s4x4H3L5H2L")  # without what made it and what it needs; then name, extra fields, comment
LENGTHS = struct.Struct("<4s24x3H")  # of those three
LOCAL = struct.Struct("<4s2x2H4x3L2H")
QUICK = struct.Struct("<5xB2x2H16xH8xL")
END = struct.Struct("<4s6xH2LH")
END64 = struct.Struct("<4s28xQQQ")
LOCATOR = struct.Struct("<4s16x")
MEMBER = b"PK\3\4"  # begins the header of a member, and so most files
COMMENT = 0xFFFF  # bytes at most
ABSENT, ABSENT16 = 0xFFFFFFFF, 0xFFFF  # in a field of 32 or 16 bits whose value is among the extra fields
ENCRYPTED, DESCRIBED, UTF8 = 1, 8, 1 << 11  # flags; described: sizes stand behind the payload, and in the directory
STORED, DEFLATED = 0, 8
UNIX, REGULAR = (3, 19), 8  # systems that made a file: Unix, macOS; kind of a regular file
METHODS = {1: "shrink", 6: "implode", 9: "deflate64", 12: "bzip2", 14: "LZMA", 93: "zstd", 95: "xz", 98: "PPMd"}
READ = 1 << 18  # bytes


class Entry(NamedTuple):
    """A member of a zip file: *packed* bytes, which are *size* bytes unpacked, behind the header at byte *at*."""

    path: bytes  # in UTF-8
    raw: bytes  # the name as it is in the file
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    mode: int  # of Unix; 0 if it is not known
    at: int


class Directory:
    """The directory of the zip file *url*, which is open as *file*.

    Holds: the directory as it is in the file, some 80 bytes and a name for each member, and 8 bytes more.
    Raises: TarFormatError if this is no zip file or is damaged; StorageError.
    """

    def __init__(self, file: BinaryIO, url: str) -> None:
        self.url = url
        count, self.start, end, self._shift = self._found(file)
        file.seek(self.start)
        self._data = file.read(end - self.start)
        self._places = array("q", self._walk())
        if (len(self._places) - count) & ABSENT16:  # the 16 lowest bits, if it has no 64-bit end
            raise self.failure(f"the directory lists {len(self._places)} members, and its end says {count}", end)

    def __len__(self) -> int:
        return len(self._places)

    def failure(self, what: str, at: int) -> TarFormatError:
        """Return the failure of what is at byte *at*."""
        return TarFormatError(what, url=self.url, offset=at)

    def _found(self, file: BinaryIO) -> tuple[int, int, int, int]:
        """Return what the end of the file says: how many members, where the directory begins and ends, and the shift.

        The shift is the number of bytes before the first of the zip file, as of a program that unpacks itself.
        """
        length = file.seek(0, io.SEEK_END)
        first = max(0, length - COMMENT - END.size - END64.size - LOCATOR.size - 20)
        file.seek(first)
        tail = file.read(length - first)
        at = len(tail)
        while (at := tail.rfind(b"PK\5\6", 0, at)) >= 0:
            if len(tail) - at >= END.size and at + END.size + END.unpack_from(tail, at)[4] == len(tail):
                break
        else:
            file.seek(0)
            if file.read(len(MEMBER)) == MEMBER:
                raise TruncatedError("this zip file was cut: its end is missing", url=self.url, offset=length)
            raise self.failure("this is no zip file: it neither begins nor ends as one", 0)
        _, count, size, offset, _ = END.unpack_from(tail, at)
        end = at
        locator = at - LOCATOR.size
        if locator >= END64.size and tail.startswith(b"PK\6\7", locator):
            end = locator - END64.size
            if not tail.startswith(b"PK\6\6", end):
                raise self.failure("the 64-bit end of the directory is damaged", first + end)
            _, count, size, offset = END64.unpack_from(tail, end)
        end += first
        start = end - size
        if start - offset < 0:
            raise self.failure("the directory is not where its end says: the file is damaged or was cut", end)
        return count, start, end, start - offset

    def _walk(self) -> Iterator[int]:
        """Yield where each entry begins in the directory."""
        data, at, end, lengths = self._data, 0, len(self._data), LENGTHS.unpack_from
        while at + CENTRAL.size <= end:
            signature, name, extra, comment = lengths(data, at)
            if signature != b"PK\1\2":
                break
            yield at
            at += CENTRAL.size + name + extra + comment
        if at != end:
            raise self.failure("the directory is damaged: here no entry begins", self.start + min(at, end))

    def names(self) -> Iterator[tuple[bytes, int, int, int]]:
        """Yield the name, as in the file, the flags, the method, and the kind (0: unknown) of each entry."""
        data, parsed = self._data, QUICK.unpack_from
        for at in self._places:
            system, flags, method, named, mode = parsed(data, at)
            begin = at + CENTRAL.size
            yield data[begin : begin + named], flags, method, mode >> 28 if system in UNIX else 0

    def __getitem__(self, number: int) -> Entry:
        """Return entry *number*. Raises: TarFormatError if it is damaged."""
        at = self._places[number]
        _, flags, method, _, _, crc, packed, size, named, extra, _, _, _, mode, where = CENTRAL.unpack_from(
            self._data, at
        )
        begin = at + CENTRAL.size
        raw = self._data[begin : begin + named]
        if ABSENT in (packed, size, where):
            packed, size, where = self._large(begin + named, extra, [size, packed, where])
        unix = mode >> 16 if self._data[at + 5] in UNIX else 0
        return Entry(self._path(raw, flags, at), raw, flags, method, crc, packed, size, unix, where + self._shift)

    def _large(self, at: int, length: int, values: list[int]) -> tuple[int, int, int]:
        """Return packed size, size and place of an entry, some of which are in the extra fields at *at*."""
        end = at + length
        while at + 4 <= end:
            kind, size = struct.unpack_from("<2H", self._data, at)
            if kind == 1:
                found = iter(struct.unpack_from(f"<{size // 8}Q", self._data[:end], at + 4))
                size, packed, where = (next(found, -1) if value == ABSENT else value for value in values)
                if min(size, packed, where) >= 0:
                    return packed, size, where
            at += 4 + size
        raise self.failure("the directory is damaged: an entry lacks its 64-bit sizes", self.start + at)

    def _path(self, raw: bytes, flags: int, at: int) -> bytes:
        """Return the name *raw* in UTF-8: it says so itself, or it happens to be, or it is in code page 437."""
        if raw.isascii():
            return raw
        try:
            raw.decode()
        except UnicodeDecodeError:
            if flags & UTF8:
                raise self.failure("the directory is damaged: a name is not UTF-8", self.start + at) from None
            return raw.decode("cp437").encode()
        return raw

    def checked(self, entry: Entry) -> Entry:
        """Return *entry* if its payload can be read. Raises: SampleError."""
        name = entry.path.decode()
        try:
            checked_key(name)
            if "\0" in name:
                raise SampleError(f"not a member name: {name!r}")
            if entry.flags & ENCRYPTED:
                raise SampleError(f"the member {name!r} is encrypted: unpack the file with its password")
            if entry.method not in (STORED, DEFLATED):
                method = METHODS.get(entry.method, f"method {entry.method}")
                raise SampleError(
                    f"the member {name!r} is compressed by {method}: only stored and deflated ones are read"
                )
        except SampleError as error:
            raise SampleError(error.message, url=self.url) from None
        return entry

    def begin(self, file: BinaryIO, entry: Entry) -> None:
        """Set *file* to the first byte of the payload of *entry*.

        Raises: TarFormatError if the header before it is not that of *entry*.
        """
        file.seek(entry.at)
        head = file.read(LOCAL.size)
        if len(head) < LOCAL.size or not head.startswith(MEMBER):
            raise self.failure(f"here the member {entry.path.decode()!r} should begin", entry.at)
        _, flags, method, crc, packed, size, named, extra = LOCAL.unpack(head)
        raw = file.read(named + extra)[:named]
        known = flags & DESCRIBED or crc == entry.crc
        for found, listed in ((packed, entry.packed), (size, entry.size)):
            known = known and (flags & DESCRIBED or found in (listed, ABSENT))
        if raw != entry.raw or method != entry.method or not known:
            what = f"the header of the member {entry.path.decode()!r} differs from the directory"
            raise self.failure(what, entry.at)

    def quickly(self, data: bytes, base: int, entry: Entry) -> bytes | None:
        """Return the payload of *entry* from *data*, the bytes of the file from *base* on.

        None if not all of it is there, or if anything may differ from the directory: `chunks` tells what.
        """
        at = entry.at - base
        if not 0 <= at <= len(data) - LOCAL.size:
            return None
        signature, flags, method, crc, packed, size, named, extra = LOCAL.unpack_from(data, at)
        name = at + LOCAL.size
        begin = name + named + extra
        payload = data[begin : begin + entry.packed]
        known = flags & DESCRIBED or (crc == entry.crc and packed == entry.packed and size == entry.size)
        if signature != MEMBER or method != entry.method or not known or data[name : name + named] != entry.raw:
            return None
        if len(payload) == entry.packed and method == DEFLATED:
            unpack = zlib.decompressobj(-zlib.MAX_WBITS)
            try:
                payload = unpack.decompress(payload, entry.size + 1)
            except zlib.error:
                return None
            if not unpack.eof or unpack.unused_data:
                return None
        return payload if len(payload) == entry.size and zlib.crc32(payload) == entry.crc else None

    def chunks(self, file: BinaryIO, entry: Entry) -> Iterator[bytes]:
        """Yield the payload of *entry*, in pieces. Raises: TarFormatError if it is not what the directory says."""
        self.begin(file, entry)
        crc = done = 0
        for chunk in self._unpacked(file, entry):
            crc, done = zlib.crc32(chunk, crc), done + len(chunk)
            if done > entry.size:
                break
            yield chunk
        if done != entry.size or crc != entry.crc:
            what = "its checksum (CRC) differs" if done == entry.size else "it is not as long as the directory says"
            raise self.failure(f"the member {entry.path.decode()!r} is damaged: {what}", entry.at)

    def _unpacked(self, file: BinaryIO, entry: Entry) -> Iterator[bytes]:
        left = entry.packed
        unpack: Any = zlib.decompressobj(-zlib.MAX_WBITS) if entry.method == DEFLATED else None
        while left:
            packed = file.read(min(left, READ))
            if not packed:
                raise TruncatedError("the file ends in a payload", url=self.url, offset=entry.at)
            left -= len(packed)
            while packed:
                if unpack is None:
                    yield packed
                    break
                try:
                    yield unpack.decompress(packed, READ)
                except zlib.error:
                    what = f"the member {entry.path.decode()!r} is damaged: it does not unpack"
                    raise self.failure(what, entry.at) from None
                packed = unpack.unconsumed_tail
                if unpack.eof and (packed or unpack.unused_data or left):
                    raise self.failure(f"the member {entry.path.decode()!r} is damaged: it ends early", entry.at)
        if unpack is not None:
            yield unpack.flush()

    def member(self, file: BinaryIO, entry: Entry) -> Member:
        """Return *entry* as the member of an archive: mode 0644, owner and time 0.

        Holds: its payload, above 16 MiB in a scratch file. Raises: TarFormatError, StorageError.
        """
        source = kept(self.chunks(file, entry))
        return Member(entry.path, source, 0, 0, entry.size, tar.encode_header(entry.path, entry.size))
