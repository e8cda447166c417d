"""Which members a part of memory or of a file holds that was read before, and where they can be kept."""

from __future__ import annotations

import io
from collections.abc import Callable

from tartools.errors import TarFormatError
from tartools.streams import Stream
from tartools.tar.header import BLOCK, FAST, SIZES, Chunk, Member, Source, located, padded, read_range
from tartools.tar.heading import Heading, Missing, read_heading
from tartools.tar.writer import write_all

IN_MEMORY = 1 << 20  # bytes; the members of a smaller part of a file are read into memory
WINDOW = BLOCK  # bytes of a file that are looked at first for a header
PLAIN = b"0\0"  # type flags


def members_in(source: Source, start: int, end: int, *, ranges: bool = False) -> list[Member]:
    """Return the members that fill bytes *start* to *end* of *source*, which have been read as members before.

    They are plain tuples in the shape of `Member`. Members of a file are read into memory with it up to 1 MiB in
    all, above that, and with *ranges*, they are ranges.
    Raises: TarFormatError if the bytes have changed meanwhile; StorageError if a file has become shorter.
    """
    if isinstance(source, io.FileIO):
        if ranges or end - start > IN_MEMORY:
            return _ranges(source, start, end)
        source, start, end = read_range(source, start, end), 0, end - start
    members: list[Member] = []
    checked = isinstance(source, Chunk)  # by the reader, which never changes it
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
            heading = _sound(read_heading(view, position, {}), end)
        members.append(Member(heading.path, source, position, heading.data, heading.size))
        position = heading.end
    return members


def _ranges(file: io.FileIO, start: int, end: int) -> list[Member]:
    """Return the members of bytes *start* to *end* of *file* as ranges of it. Holds: the headers of one."""
    members = []
    while start < end:
        window = WINDOW
        while True:
            held = read_range(file, start, min(end, start + window))
            heading = read_heading(memoryview(held), 0, {})
            if not isinstance(heading, Missing) or len(held) == end - start:
                break
            window = max(2 * window, heading.end)
        found = _sound(heading, end - start)
        members.append(Member(found.path, file, start, start + found.data, found.size))
        start += found.end
    return members


def _sound(heading: object, end: int) -> Heading:
    """Return *heading* if it is that of a member that ends by *end*."""
    if isinstance(heading, Heading) and heading.special is None and heading.head is None and heading.end <= end:
        return heading
    raise TarFormatError("what was a sample before is none any more")


def spilled(members: list[Member], scratch: Callable[[], io.FileIO]) -> list[Member]:
    """Return *members* as ranges: of the plain file that they were read from, or else of one that *scratch* makes."""
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
        write_all(file, header)
        write_all(file, memoryview(source)[data : data + size])
        write_all(file, bytes(padded(size) - size))
        ranges.append(Member(path, file, first, first + len(header), size))
    return ranges


def spool(stream: Stream, held: memoryview, need: int, file: io.FileIO | None) -> int:
    """Copy *need* bytes, which are *held* and then those of *stream*, to *file* if there is one.

    Returns how many are missing. Holds: 1 MiB.
    """
    part, room = held, memoryview(bytearray(IN_MEMORY))
    while True:
        if file is not None:
            write_all(file, part)
        need -= len(part)
        count = stream.readinto(room[: min(need, IN_MEMORY)]) if need else 0
        if not count:
            return need
        part = room[:count]
