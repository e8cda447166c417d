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
from tartools.tar.cut import LOOKED_AT, WINDOW, Cut, find_cut
from tartools.tar.fullheader import FullHeader, read_full_header
from tartools.tar.header import BLOCK
from tartools.tar.rescan import Read
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
    """Part *number* of *parts* of about equal size, into which bytes *begin* to *end* of shard number *shard* are cut.

    *end* is None for the end of the shard; else a sample of *key* begins there. In a table they are rows. The first
    *skip* samples were had; such a part is not cut.
    """

    shard: int
    number: int = 0
    parts: int = 1
    begin: int = 0
    end: int | None = None
    key: str = ""
    skip: int = 0

    def piece(self, number: int, pieces: int) -> Part:
        """Return piece *number* of so many of this part."""
        return self._replace(number=self.number * pieces + number, parts=self.parts * pieces)

    def rest(self, begin: int, cut: Cut | None, skip: int = 0) -> Part:
        """Return what is left of this from *begin* up to *cut*, but for *skip* samples."""
        if cut is None:
            return Part(self.shard, begin=begin, skip=skip)
        key = cut.key.decode("utf-8", "surrogateescape")
        return Part(self.shard, begin=begin, end=cut.offset, key=key, skip=skip)

    @property
    def cut(self) -> Cut | None:
        """Where the bytes end; None for the end of the shard."""
        return None if self.end is None else Cut(self.end, self.key.encode("utf-8", "surrogateescape"))


class Borders(NamedTuple):
    """Bytes *begin* up to *cut* of a shard, None for its end; of a table, rows *begin* up to *end*."""

    begin: int
    cut: Cut | None
    end: int | None = None


def place_of(rank: int, world: int) -> Place:
    """Return which reader this process is, on *rank* of *world*. Neighbours are on different ranks."""
    number, workers = this_worker()
    return Place(number * world + rank, workers * world)


def deal(parts: Sequence[Part], place: Place) -> list[Part]:
    """Return what the reader *place* reads of *parts*, in their order.

    All readers get equally many pieces of them, unless there are 8 times as many as readers: then whole parts.
    """
    number, readers = place
    if len(parts) >= MANY * readers:
        return [*parts[number::readers]]
    pieces = readers // math.gcd(len(parts), readers)
    return [
        part if part.skip else part.piece(piece, pieces)
        for at, part in enumerate(parts)
        for piece in range(1 if part.skip else pieces)
        # the first pieces go to different readers, since a compressed shard is its first piece
        if (at * pieces + (piece + at) % pieces) % readers == number
    ]


def borders(url: str, part: Part) -> Borders | None:
    """Return which bytes or rows of the shard *url* are *part* of it; None if nothing is.

    All of a shard that can't be cut is its first part: what is compressed, a pipe, a server without ranges.
    Raises: StorageError.
    """
    if part.begin == part.end or (part.parts == 1 and not compression.is_table(url)):
        return None if part.begin == part.end else Borders(part.begin, part.cut)
    whole = Borders(part.begin, part.cut) if part.number == 0 else None
    if not storage.is_repeatable(url) or Url(url).read_command:
        return whole
    if compression.is_table(url):
        return _rows(url, part)
    with closing(files.reading(url)) as file:
        if not can_be_cut(url, file):
            return whole
        size = file.seek(0, io.SEEK_END)
        begin, until = (_cut(file, size, part, number) for number in (part.number, part.number + 1))
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
        begin, end = (_share(part, table.rows, number) for number in (part.number, part.number + 1))
    return Borders(begin, None, end) if end > begin else None


def _share(part: Part, size: int, number: int) -> int:
    """Return the byte or row of a shard of *size* near which piece *number* of *part* begins."""
    end = size if part.end is None else part.end
    return part.begin + (end - part.begin) * number // part.parts


def _cut(file: io.BufferedReader, size: int, part: Part, number: int) -> Cut | None:
    """Return where piece *number* of *part* begins; None if that is the end of *file*."""
    if number == 0:
        return Cut(part.begin, b"")
    if number == part.parts:
        return part.cut
    found = _next_cut(file, size, _share(part, size, number))
    return part.cut if part.end is not None and (found is None or found.offset > part.end) else found


def _next_cut(file: io.BufferedReader, size: int, near: int) -> Cut | None:
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
