"""Which part of which shard belongs to which worker of which rank, so that each sample has one reader.

Every worker finds out alone, and all come to the same answer: it follows from the names of the shards, the number of
workers, and the bytes of the shards. Shards are dealt whole where there are many. Where there are few, plain shards and
tables are cut: a cut lies where a sample seems to begin (`tar.cut`), and whoever reads the part before it checks that.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

from tartools import storage
from tartools.errors import TarFormatError
from tartools.storage import files
from tartools.storage.url import Url
from tartools.tar import compression
from tartools.tar.cut import LOOKED_AT, WINDOW, Cut, Read, find_cut
from tartools.tar.fullheader import FullHeader, read_full_header
from tartools.tar.header import BLOCK
from tartools.train.ranks import this_worker

MANY = 8  # shards for each worker; if there are so many, none is cut
FOLLOWED = 1000  # members behind a cut that are looked at
FOLLOWED_FAR = 4 << 20  # bytes of an object behind a cut that are looked at
GLOBAL = b"g"  # type flag of a header that governs all members behind it


class Place(NamedTuple):
    """One of so many *readers*: a worker of a rank, or a rank without workers."""

    number: int
    readers: int


class Part(NamedTuple):
    """Part *number* of the *parts* of about equal size that shard number *shard* is cut into."""

    shard: int
    number: int
    parts: int


class Borders(NamedTuple):
    """Bytes *begin* up to *cut* of a shard, None for its end; of a table, rows *begin* up to *end*."""

    begin: int
    cut: Cut | None
    end: int | None = None


def place_of(rank: int, world: int) -> Place:
    """Return which reader this process is, on *rank* of *world*. Neighbours are on different ranks."""
    number, workers = this_worker()
    return Place(number * world + rank, workers * world)


def deal(shards: Sequence[int], place: Place) -> list[Part]:
    """Return what the reader *place* reads of *shards*, which are numbers of shards, in their order.

    All readers get equally many parts, unless there are 8 times as many shards as readers: then whole shards.
    """
    number, readers = place
    if len(shards) >= MANY * readers:
        return [Part(shard, 0, 1) for shard in shards[number::readers]]
    parts = readers // math.gcd(len(shards), readers)
    return [
        Part(shard, part, parts)
        for at, shard in enumerate(shards)
        for part in range(parts)
        # the first parts go to different readers, since a compressed shard is its first part
        if (at * parts + (part + at) % parts) % readers == number
    ]


def borders(url: str, part: Part) -> Borders | None:
    """Return which bytes or rows of the shard *url* are *part* of it; None if nothing is.

    All of a shard that can't be cut is its first part: what is compressed, a pipe, a server without ranges.
    Raises: StorageError.
    """
    if part.parts == 1 and not compression.is_table_name(url):
        return Borders(0, None)
    whole = Borders(0, None) if part.number == 0 else None
    if not storage.is_repeatable(url) or Url(url).read_command:
        return whole
    if compression.is_table(url):
        return _rows(url, part)
    with closing(files.reading(url)) as file:
        if not can_be_cut(url, file):
            return whole
        size = file.seek(0, io.SEEK_END)
        begin = _cut(file, size, part.number * size // part.parts) if part.number else Cut(0, b"")
        until = _cut(file, size, (part.number + 1) * size // part.parts) if part.number + 1 < part.parts else None
    if begin is None or (until is not None and until.offset <= begin.offset):
        return None
    return Borders(begin.offset, until)


def can_be_cut(url: str, file: io.BufferedReader) -> bool:
    """Tell whether parts of the shard *url*, opened as *file* by `files.reading`, can be read alone."""
    if storage.is_far(url) and isinstance(file.raw, io.FileIO):  # a copy, because the server has no ranges
        return False
    file.seek(0)
    head = file.read(BLOCK)
    return not compression.is_compressed(head) and head[156:157] != GLOBAL


def _rows(url: str, part: Part) -> Borders | None:
    from tartools.tables import source

    with source.opened(url) as table:
        begin, end = (table.rows * number // part.parts for number in (part.number, part.number + 1))
    return Borders(begin, None, end) if end > begin else None


def _cut(file: io.BufferedReader, size: int, near: int) -> Cut | None:
    """Return the first place from byte *near* on where *file* can be cut; None if that is its end."""

    def read(count: int, offset: int) -> bytes:
        file.seek(offset)
        return file.read(count)

    most = size if isinstance(file.raw, io.FileIO) else FOLLOWED_FAR
    while near < size:
        found = find_cut(read, near)
        if found is None:
            near += LOOKED_AT
            continue
        end = _early_end(read, found.offset, most, size)
        if end is None:
            return found
        near = end
    return None


def _early_end(read: Read, position: int, most: int, size: int) -> int | None:
    """Return where the archive ends that has a member at *position*, if it is not that of the whole file.

    It may be an archive in a payload. None if it does not end in the next 1000 members, or *most* bytes.
    """
    last = position + most
    for _ in range(FOLLOWED):
        held = read(WINDOW, position)
        if not held[:BLOCK].strip(b"\0"):
            rest = held.lstrip(b"\0")
            return position + len(held) - len(rest) if rest else position + BLOCK if _goes_on(read, position) else None
        try:
            header = read_full_header(memoryview(held), 0, {})
        except TarFormatError:
            return None  # damage: whoever reads it says so
        if not isinstance(header, FullHeader):
            return None
        position += header.end
        if position >= min(last, size):
            return None
    return None


def _goes_on(read: Read, position: int) -> bool:
    """Tell whether not only zeros follow at *position*."""
    while held := read(LOOKED_AT, position):
        if held.strip(b"\0"):
            return True
        position += len(held)
    return False
