"""`Member`: one entry of an archive, with its path and the location of its bytes in memory or in a file."""

import io
import os
from typing import NamedTuple

from tartools.errors import StorageError
from tartools.storage.streams import SeekableFile, Stream, check_input_file
from tartools.tar.header import padded_size

MIN_VIEW_BYTES = 1 << 12  # bytes; to copy fewer twice is faster than to slice them through a view


class Chunk(bytearray):
    """A buffer with bytes of *stream* from byte *base* on, filled by the reader, which has verified the headers in it.

    It is made of *size* zeros, which the reader overwrites. If the stream is a plain file, the same bytes can be read
    from that file as long as it is open (`range_in_file`). Pickled, it becomes `bytes`.
    """

    __slots__ = ("base", "stream")

    def __init__(self, size: int, stream: Stream, base: int) -> None:
        super().__init__(size)
        self.stream = stream
        self.base = base

    def __reduce_ex__(self, _protocol: object) -> tuple[type[bytes], tuple[bytes]]:
        return bytes, (bytes(self),)  # another process has no stream


Source = bytes | bytearray | io.FileIO


class Member(NamedTuple):
    """One archive member: its path, and the location of its bytes. Offsets and sizes are in bytes.

    `path`: as in the archive, not decoded. `source`: a buffer or an open file.
    `start`: offset in the source of the header, extended headers included; means nothing if `head` is not None.
    `data`, `size`: offset and size of the payload, which the padding follows.
    `head`: if not None, it replaces the header: only the payload is taken from the source, and the padding is zeros.
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
        """All header blocks, extended headers first: `head` if that is not None.

        Raises: StorageError if the file has changed.
        """
        return self.head if self.head is not None else read_range(self.source, self.start, self.data)

    @property
    def end(self) -> int:
        """Offset in `source` of the end of the padding, which need not be there if `head` is not None."""
        return self.data + padded_size(self.size)

    @property
    def stored_size(self) -> int:
        """Bytes that the member takes in an archive: headers, payload, padding."""
        return (self.data - self.start if self.head is None else len(self.head)) + padded_size(self.size)

    def read(self) -> bytes:
        """Return the whole payload. Raises: StorageError if the file has changed."""
        return read_range(self.source, self.data, self.data + self.size)

    def open(self) -> io.BufferedReader:
        """Return a seekable binary file over the payload; holds one buffer, not the payload.

        Reading from it raises StorageError if the source is a file that has changed.
        """
        return io.BufferedReader(PayloadReader(self))


class PayloadReader(SeekableFile):
    """A raw, seekable file over the payload of *member*. Reading it raises StorageError if the source has changed."""

    def __init__(self, member: Member) -> None:
        super().__init__(member.size)
        self._member = member

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill *buffer* from the current position on; return the count of bytes, 0 at or behind the end."""
        _, source, _, data, size, _ = self._member
        count = max(0, min(len(buffer), size - self._position))
        buffer[:count] = read_range(source, data + self._position, data + self._position + count)
        self._position += count
        return count


def read_range(source: Source, start: int, end: int) -> bytes:
    """Return bytes *start* to *end* of *source*; fewer if a buffer ends before.

    Raises: StorageError if a file ends before *end*, or is an `InputFile` that has changed since it was opened;
    OSError if the system can't read it.
    """
    if not isinstance(source, io.FileIO):
        return bytes(source[start:end]) if end - start < MIN_VIEW_BYTES else bytes(memoryview(source)[start:end])
    part = os.pread(source.fileno(), end - start, start)
    if len(part) == end - start:
        check_input_file(source)
        return part
    parts = [part]
    start += len(part)
    while start < end:
        part = os.pread(source.fileno(), end - start, start)
        if not part:
            raise StorageError("the file became shorter while it was read", url=str(source.name), offset=start)
        parts.append(part)
        start += len(part)
    check_input_file(source)
    return b"".join(parts)


def range_in_file(source: Source, start: int, end: int) -> tuple[Source, int, int]:
    """Return (file, begin, end) for the bytes of a plain file that bytes *start* to *end* of *source* were read from.

    So that the kernel can copy them. If *source* is no `Chunk` of an open plain file, the arguments are returned: it is
    another buffer, or a file itself.
    """
    if isinstance(source, Chunk) and source.stream.file is not None:
        shift = source.stream.start + source.base
        return source.stream.file, start + shift, end + shift
    return source, start, end
