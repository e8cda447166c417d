"""Find members without the reader: in bytes that it has parsed before, and where an archive can be cut.

Also move members out of memory to scratch files.
"""

import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple

from tartools.errors import TarFormatError
from tartools.tar.fullheader import FullHeader, GlobalHeader, IncompleteHeader, read_full_header
from tartools.tar.header import BLOCK, FAST_HEADER, MAGIC_SLICE, PARSED_SIZES, Records, padded_size
from tartools.tar.keys import split_path
from tartools.tar.member import Chunk, Member, Source, range_in_file, read_range
from tartools.tar.writer import Writer

MAX_MEMBER_READ_BYTES = 1 << 20  # bytes; members of a shorter range of a file are read into memory
HEADER_READ_BYTES = 1 << 13  # bytes that are read for the headers of a member, to find a cut
MAX_CUT_SEARCH_BYTES = 1 << 20  # bytes that are searched for a header, to find a cut
MAX_MEMBERS_REREAD = 1000  # members that are read to find the start of a group
FILE_TYPES = b"0\0"  # type flags


Read = Callable[[int, int], bytes]  # how many bytes, and from which on; gives fewer only at the end


def header_at(
    read: Read, position: int, end: int, window: int, governing: Records
) -> FullHeader | GlobalHeader | IncompleteHeader:
    """Return the full header at byte *position*, or the pax global header if there is one.

    Its offsets, and the offset of an error, count from *position*.
    `read(count, offset)` returns bytes of the source. *window* bytes are read at first, and more if the header is
    longer, up to byte *end*; `IncompleteHeader` is returned if all bytes end before the header does. *governing*:
    records of global headers before it.
    Raises: TarFormatError if no sound header is there; the errors of *read*.
    """
    while True:
        data = read(min(window, end - position), position)
        header = read_full_header(memoryview(data), 0, governing)
        if not isinstance(header, IncompleteHeader) or len(data) < window:
            return header
        window = max(2 * window, header.end)


def headers_in(read: Read, position: int, end: int, window: int = BLOCK) -> Iterator[tuple[int, FullHeader]]:
    """Yield (offset, full header) of each member that begins between byte *position* and *end* (exclusive).

    Special members come, too. `data` and `end` of the header count from that offset. `read(count, offset)`
    returns bytes of the source; *window*: how many are read at first for a header.
    Raises: TarFormatError where no member begins, as at an end of archive, or a global header does; the errors of
    *read*.
    """
    while position < end:
        header = header_at(read, position, end, window, {})
        if not isinstance(header, FullHeader):
            raise TarFormatError("no member begins here")
        yield position, header
        position += header.end


def members_in(source: Source, start: int, end: int, *, ranges: bool = False) -> list[Member]:
    """Return the members in bytes *start* to *end* of *source*, which the reader has parsed before.

    Some are plain tuples with the items of `Member`. Up to 1 MiB of a file is read into memory; if it is more, or with
    *ranges*, the members are ranges of the file. Of a buffer they are ranges of that.
    Raises: TarFormatError if the bytes have changed meanwhile; StorageError if the file has changed or become shorter.
    """
    if isinstance(source, io.FileIO) and not ranges and end - start <= MAX_MEMBER_READ_BYTES:
        source, start, end = read_range(source, start, end), 0, end - start
    members: list[Member] = []
    checked = isinstance(source, Chunk)  # the reader has verified its headers, and they never change
    unpack, read = FAST_HEADER.unpack_from, partial(_read, source)
    position = start
    while position < end:
        if checked:
            name, size_field, check, prefix = unpack(source, position)  # type: ignore[arg-type]
            if check[8] in FILE_TYPES and not prefix:
                data, size, nul = position + BLOCK, PARSED_SIZES[size_field], name.find(0)
                if nul >= 0:
                    name = name[:nul]
                members.append((name, source, position, data, size, None))  # type: ignore[arg-type]
                position = data + ((size + 511) & -512)
                continue
        header = header_at(read, position, end, BLOCK, {})
        if not isinstance(header, FullHeader) or header.special or header.head or header.end > end - position:
            raise TarFormatError("the bytes of a sample changed while they were in use")
        members.append(Member(header.path, source, position, position + header.data, header.size))
        position += header.end
    return members


def _read(source: Source, count: int, at: int) -> bytes:
    """Return *count* bytes of *source* from byte *at* on; fewer if a buffer ends before. Raises: StorageError."""
    return read_range(source, at, at + count)


def spill_members(members: list[Member], scratch: Callable[[], io.FileIO]) -> list[Member]:
    """Return *members* as ranges of files, so that they hold no memory.

    The file is the plain one that they were read from; other members in memory are copied to one that *scratch* makes.
    *members*: may be plain tuples. Raises: StorageError if the copy can't be written; the errors of *scratch*.
    """
    writer: Writer | None = None
    ranges: list[Member] = []
    for member in map(Member._make, members):
        origin, start, data = range_in_file(member.source, member.start, member.data)
        if isinstance(origin, io.FileIO):
            ranges.append(member._replace(source=origin, start=start, data=data))
            continue
        if writer is None:
            file = scratch()
            writer = Writer(file)
        begin = writer.size
        writer.add([member])
        ranges.append(Member(member.path, file, begin, writer.size - padded_size(member.size), member.size))
    if writer is not None:
        writer.flush()
    return ranges


class Boundary(NamedTuple):
    """The boundary of two groups in a file: its byte `offset`, and the `key` of the group that begins there."""

    offset: int
    key: bytes


def find_boundary(read: Read, near: int) -> Boundary | None:
    """Return a boundary after byte *near* at which a group seems to begin; None if none is found.

    It is sought from the headers with the magic "ustar" in the MiB after *near*: about 1,000 members from each.
    `read(count, offset)` returns bytes of the file; its errors pass. The boundary may be wrong, because a payload can
    hold bytes that look like members. Whoever reads the part before it verifies it: that part must end exactly there,
    and with another key.

    Holds: 1 MiB.
    """
    near = -(-near // BLOCK) * BLOCK
    window = read(MAX_CUT_SEARCH_BYTES, near)
    at = window.find(b"ustar")
    while at >= 0:
        if at % BLOCK == MAGIC_SLICE.start:
            cut = _next_group(read, near + at - MAGIC_SLICE.start)
            if cut is not None:
                return cut
        at = window.find(b"ustar", at + 1)
    return None


def _next_group(read: Read, position: int) -> Boundary | None:
    """Return the start of the first group after the group of the second regular member from *position* on, or None.

    `read(count, offset)`: returns bytes of the file; its errors pass. The first member is skipped, because *position*
    may be after its extended headers. None if bytes before that start are no members, as at an end of archive, or no
    group begins among the next 1,000 members, special ones included.
    """
    keys: list[bytes] = []
    with contextlib.suppress(TarFormatError):
        for at, header in islice(headers_in(read, position, sys.maxsize, HEADER_READ_BYTES), MAX_MEMBERS_REREAD):
            if header.special is None:
                keys.append(split_path(header.path)[0])
                if len(keys) > 2 and keys[-1] != keys[-2]:
                    return Boundary(at, keys[-1])
    return None
