"""Find members without the reader: in bytes that it has parsed before, and where an archive can be cut.

Also move members out of memory to scratch files.
"""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from typing import NamedTuple

from tartools.errors import TarFormatError
from tartools.storage.streams import Stream, chunks
from tartools.tar.fullheader import FullHeader, GlobalHeader, NeedMore, read_full_header
from tartools.tar.groups import split_path
from tartools.tar.header import BLOCK, FAST, MAGIC, SIZES, Records, padded
from tartools.tar.member import Chunk, Member, Source, located, read_range

IN_MEMORY = 1 << 20  # bytes; members of a shorter range of a file are read into memory
WINDOW = 1 << 13  # bytes that are read for the headers of a member, to find a cut
LOOKED_AT = 1 << 20  # bytes that are searched for a header, to find a cut
MOST = 1000  # members that are read to find the start of a group
PLAIN = b"0\0"  # type flags


Read = Callable[[int, int], bytes]  # how many bytes, and from which on; gives fewer only at the end


def header_at(
    read: Read, position: int, end: int, window: int, governing: Records
) -> FullHeader | GlobalHeader | NeedMore:
    """Return the full header at *position*, looked for in *window* bytes, and in more if it has more, up to *end*.

    *governing* are the records of global headers before it. Raises: TarFormatError if there is none.
    """
    while True:
        held = read(min(window, end - position), position)
        header = read_full_header(memoryview(held), 0, governing)
        if not isinstance(header, NeedMore) or len(held) < window:
            return header
        window = max(2 * window, header.end)


def headers_in(read: Read, position: int, end: int, window: int = BLOCK) -> Iterator[tuple[int, FullHeader]]:
    """Yield the full headers that `read` finds from *position* on, and where they are, up to *end*.

    Each is looked for in *window* bytes, and in more if it has more. Raises: TarFormatError where there is none.
    """
    while position < end:
        header = header_at(read, position, end, window, {})
        if not isinstance(header, FullHeader):
            raise TarFormatError("no member begins here")
        yield position, header
        position += header.end


def members_in(source: Source, start: int, end: int, *, ranges: bool = False) -> list[Member]:
    """Return the members in bytes *start* to *end* of *source*, which the reader has parsed before.

    They are plain tuples with the items of `Member`. Up to 1 MiB of a file is read into memory; if it is more, or with
    *ranges*, the members are ranges of the file.
    Raises: TarFormatError if the bytes have changed meanwhile; StorageError if the file has become shorter.
    """
    if isinstance(source, io.FileIO):
        if ranges or end - start > IN_MEMORY:
            return _ranges(source, start, end)
        source, start, end = read_range(source, start, end), 0, end - start
    members: list[Member] = []
    checked = isinstance(source, Chunk)  # the reader has verified its headers, and they never change
    unpack = FAST.unpack_from
    position = start
    while position < end:
        if checked:
            name, size_field, check, prefix = unpack(source, position)
            if check[8] in PLAIN and not prefix:
                data, size, nul = position + BLOCK, SIZES[size_field], name.find(0)
                if nul >= 0:
                    name = name[:nul]
                members.append((name, source, position, data, size, None))  # type: ignore[arg-type]
                position = data + ((size + 511) & -512)
                continue
        with memoryview(source)[:end] as view:
            header = _sound(read_full_header(view, position, {}), end)
        members.append(Member(header.path, source, position, header.data, header.size))
        position = header.end
    return members


def _ranges(file: io.FileIO, start: int, end: int) -> list[Member]:
    """Return the members in bytes *start* to *end* of *file* as ranges of it. Holds: the headers of one member."""
    members = []
    for at, header in headers_in(lambda count, at: read_range(file, at, at + count), start, end):
        _sound(header, end - at)
        members.append(Member(header.path, file, at, at + header.data, header.size))
    return members


def _sound(header: object, end: int) -> FullHeader:
    """Return *header* if it is that of a regular member that ends at *end* or before. Raises: TarFormatError."""
    if isinstance(header, FullHeader) and header.special is None and header.head is None and header.end <= end:
        return header
    raise TarFormatError("the bytes of a sample changed while they were in use")


def spilled(members: list[Member], scratch: Callable[[], io.FileIO]) -> list[Member]:
    """Return *members* as ranges of the plain file that they were read from, or else of a file that *scratch* makes."""
    file: io.FileIO | None = None
    ranges: list[Member] = []
    for path, source, start, data, size, head in members:
        origin, first, _ = located(source, start, data)
        if isinstance(origin, io.FileIO):
            ranges.append(Member(path, origin, first, first + data - start, size, head))
            continue
        assert not isinstance(source, io.FileIO)
        file = file or scratch()
        first = file.tell()
        header = Member(path, source, start, data, size, head).header
        file.write(header)
        file.write(memoryview(source)[data : data + size])
        file.write(bytes(padded(size) - size))
        ranges.append(Member(path, file, first, first + len(header), size))
    return ranges


def spool(stream: Stream, held: memoryview, need: int, file: io.FileIO | None) -> int:
    """Read *need* bytes, first those *held*, then those of *stream*, and write them to *file* unless it is None.

    Returns how many bytes are missing at the end of the stream. Holds: 1 MiB.
    """
    for part in chain([held], chunks(stream, need - len(held))):
        if file is not None:
            file.write(part)
        need -= len(part)
    return need


class Cut(NamedTuple):
    """An offset in a file, in bytes, and the key of the group that begins at it."""

    offset: int
    key: bytes


def find_cut(source: io.FileIO | Read, near: int) -> Cut | None:
    """Return an offset after byte *near* of *source* at which a group of members seems to begin; None if none is found.

    It is looked for in 1 MiB. It may be wrong, because a payload can hold bytes that look like members. The worker that
    reads the part before it verifies it: that part must end exactly at this offset, and with another key.

    Holds: 1 MiB.
    """
    read = partial(os.pread, source.fileno()) if isinstance(source, io.FileIO) else source
    near = -(-near // BLOCK) * BLOCK
    window = read(LOOKED_AT, near)
    at = window.find(b"ustar")
    while at >= 0:
        if at % BLOCK == MAGIC.start:
            found = _next_group(read, near + at - MAGIC.start)
            if found is not None:
                return found
        at = window.find(b"ustar", at + 1)
    return None


def _next_group(read: Read, position: int) -> Cut | None:
    """Return the start of the first group after that of the second member from *position* on.

    The first member is skipped, because *position* may be after its extended headers. None if the bytes are no members.
    """
    keys: list[bytes] = []
    with contextlib.suppress(TarFormatError):
        for at, header in islice(headers_in(read, position, sys.maxsize, WINDOW), MOST):
            if header.special is None:
                keys.append(split_path(header.path)[0])
                if len(keys) > 2 and keys[-1] != keys[-2]:
                    return Cut(at, keys[-1])
    return None
