"""One 512-byte header block, and the member that it describes."""

from __future__ import annotations

import io
import os
import zlib
from struct import Struct
from typing import NamedTuple

from tartools.errors import StorageError, TarFormatError
from tartools.streams import Stream

BLOCK = 512
VIEWED = 1 << 12  # bytes; to copy fewer twice is faster than to look at them through a view
RECORD = 20 * BLOCK  # archives end on a multiple of this, as GNU tar's do

# POSIX.1-2017, pax, "ustar Interchange Format"
NAME, SIZE = slice(0, 100), slice(124, 136)
CHKSUM, TYPE = slice(148, 156), slice(156, 157)
MAGIC, OWNER_NAMES, PREFIX = slice(257, 265), slice(265, 345), slice(345, 500)
USTAR = b"ustar\x0000"  # with this magic, and only with it, there is a prefix
GNU = b"ustar  \0"

# name, size, checksum and type together, first byte of the prefix: all that the fast path looks at
FAST = Struct("100s24x12s12x9s188xB")


class Chunk(bytearray):
    """A buffer that a reader fills: bytes of *stream*, of which the first is byte *base*. Its headers are checked.

    As long as the stream is open and a plain file's, the same bytes are in that file.
    """

    __slots__ = ("base", "stream")

    def __init__(self, size: int, stream: Stream, base: int) -> None:
        super().__init__(size)
        self.stream = stream
        self.base = base

    def __reduce_ex__(self, _protocol: object) -> tuple[type[bytes], tuple[bytes]]:
        return bytes, (bytes(self),)  # elsewhere there is no stream


Source = bytes | bytearray | io.FileIO
adler32 = zlib.adler32


class Member(NamedTuple):
    """One archive member: its path, and where its bytes are.

    *source* holds the member from byte *start* (first header block, extended headers included) over *data*
    (payload) to the end of the padding. It is memory, or an open file in which these are offsets. Where
    *head* is given, it stands for the header: only the payload is taken from *source*, padding is zeros.
    The memory of a source is never overwritten; a member keeps it alive.
    """

    path: bytes
    source: Source
    start: int
    data: int
    size: int
    head: bytes | None = None

    @property
    def name(self) -> str:
        """The path as text; bytes that are not UTF-8 are surrogate escapes (PEP 383)."""
        return self.path.decode("utf-8", "surrogateescape")

    @property
    def header(self) -> bytes:
        """All header blocks, extended headers first."""
        return self.head if self.head is not None else read_range(self.source, self.start, self.data)

    @property
    def end(self) -> int:
        """Where the padding ends in *source*."""
        return self.data + padded(self.size)

    @property
    def stored(self) -> int:
        """Bytes in an archive: headers, payload, padding."""
        return (self.data - self.start if self.head is None else len(self.head)) + padded(self.size)

    def read(self) -> bytes:
        """Return the whole payload."""
        return read_range(self.source, self.data, self.data + self.size)

    def open(self) -> io.BufferedReader:
        """Return a seekable binary file over the payload; holds one buffer, not the payload."""
        return io.BufferedReader(PayloadReader(self))


class PayloadReader(io.RawIOBase):
    """Raw, seekable reading of one member's payload."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._position = 0

    def readable(self) -> bool:
        """Payloads can be read."""
        return True

    def seekable(self) -> bool:
        """Payloads can be sought in."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill *buffer* from the current position; 0 at the end."""
        _, source, _, data, size, _ = self._member
        count = max(0, min(len(buffer), size - self._position))
        buffer[:count] = read_range(source, data + self._position, data + self._position + count)
        self._position += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to *offset* from the start, the position or the end."""
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._member.size}[whence]
        if origin + offset < 0:
            raise ValueError(f"negative seek position {origin + offset}")
        self._position = origin + offset
        return self._position

    def tell(self) -> int:
        """Return the position in bytes."""
        return self._position


def read_range(source: Source, start: int, end: int) -> bytes:
    """Return bytes *start* to *end* of *source*.

    Raises: StorageError if a file has become shorter than that.
    """
    if not isinstance(source, io.FileIO):
        return bytes(source[start:end]) if end - start < VIEWED else bytes(memoryview(source)[start:end])
    part = os.pread(source.fileno(), end - start, start)
    if len(part) == end - start:
        return part
    parts = [part]
    start += len(part)
    while start < end:
        part = os.pread(source.fileno(), end - start, start)
        if not part:
            raise StorageError("the file became shorter while it was read", url=str(source.name), offset=start)
        parts.append(part)
        start += len(part)
    return b"".join(parts)


def located(source: Source, start: int, end: int) -> tuple[Source, int, int]:
    """Return where bytes *start* to *end* of *source* lie in a plain file, if they do and it is open; else them."""
    if isinstance(source, Chunk) and source.stream.file is not None:
        shift = source.stream.start + source.base
        return source.stream.file, start + shift, end + shift
    return source, start, end


def padded(size: int) -> int:
    """Return *size* rounded up to whole blocks.

    >>> padded(0), padded(1), padded(512)
    (0, 512, 512)
    """
    return (size + BLOCK - 1) & -BLOCK


def parse_number(field: bytes) -> int:
    r"""Return the value of a numeric field: octal digits, or GNU's base-256.

    Octal digits may have blanks before and blanks or NULs behind; an empty field is 0.
    Base-256 (GNU tar manual, "Basic Tar Format"): first bit set, the rest a big-endian two's complement.

    >>> parse_number(b"0000644\0"), parse_number(b"\x80\0\0\x02\0\0\0\0")
    (420, 8589934592)
    """
    if field[0] & 0x80:
        value = int.from_bytes(field, "big", signed=False) & ((1 << (8 * len(field) - 1)) - 1)
        return value - (1 << (8 * len(field) - 1)) if field[0] & 0x40 else value
    digits = field.partition(b"\0")[0].strip(b" ")
    if not digits:
        return 0
    if not digits.isdigit() or b"8" in digits or b"9" in digits:
        raise TarFormatError(f"not a number: {digits.decode('latin-1')!r}")
    return int(digits, 8)


def byte_sum(block: bytes | memoryview) -> int:
    """Return the sum of the bytes of *block* as its checksum counts them: the field itself as blanks."""
    return sum(block) - sum(block[CHKSUM]) + 8 * 0x20


def checksum_matches(block: bytes) -> bool:
    """Tell whether the stored checksum is that of *block*, over unsigned or (old Sun tars) signed bytes."""
    try:
        stored = parse_number(block[CHKSUM])
    except TarFormatError:
        return False
    if adler32(block) & 0xFFFF == (stored - 8 * 0x20 + sum(block[CHKSUM]) + 1) % 65521:  # as in _ExpectedSums
        return True
    return stored == byte_sum(block) - 256 * sum(b > 127 for b in block[:148] + block[156:])


def regular_name(block: bytes) -> bytes:
    """Return the path that *block* itself gives: prefix and name where the magic is ustar's, else the name."""
    name = block[NAME].partition(b"\0")[0]
    prefix = block[PREFIX].partition(b"\0")[0] if block[MAGIC] == USTAR else b""
    return prefix + b"/" + name if prefix else name


class _ExpectedSums(dict[bytes, int]):
    """Checksum field and type flag -> low half of the Adler-32 sum that the block must have, -1 if not plain.

    The low half of Adler-32 is 1 + byte sum, modulo 65521 (RFC 1950, 8.2), at a tenth of the cost of a sum in
    Python. So one comparison checks the block and that its type is a regular file. At most 7-digit checksums
    of two types exist; a stream of made-up ones is bounded all the same.
    """

    def __missing__(self, field: bytes) -> int:
        if len(self) > 1 << 16:
            self.clear()
        expected = -1
        if field[8:] in (b"0", b"\0"):
            try:
                expected = (parse_number(field[:8]) - 8 * 0x20 + sum(field[:8]) + 1) % 65521
            except TarFormatError:
                pass
        self[field] = expected
        return expected


class _Sizes(dict[bytes, int]):
    """Size field -> bytes; a negative or malformed one is -1. Bounded."""

    def __missing__(self, field: bytes) -> int:
        if len(self) > 1 << 16:
            self.clear()
        try:
            size = parse_number(field)
        except TarFormatError:
            size = -1
        self[field] = size
        return size


EXPECTED_SUMS = _ExpectedSums()
SIZES = _Sizes()
