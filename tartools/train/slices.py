"""Slices of shards and tables: which belongs to which worker of which rank, so that each sample has one reader.

Every worker finds out alone, and all come to the same answer: it follows from the names of the shards, the number of
workers, and the bytes of the shards. Shards are dealt whole where there are many. Where there are few, plain shards and
tables are cut: a cut lies where a sample seems to begin (`tar.cut`), and whoever reads the slice before it checks that.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from hashlib import file_digest
from typing import NamedTuple

from tartools import storage
from tartools.errors import TarFormatError
from tartools.storage import seekable
from tartools.storage.url import Url
from tartools.tables import schema
from tartools.tar import compression
from tartools.tar.cut import LOOKED_AT, WINDOW, Cut, find_cut
from tartools.tar.fullheader import FullHeader, read_full_header
from tartools.tar.header import BLOCK
from tartools.tar.rescan import Read
from tartools.train.ranks import ReaderId

MANY = 8  # shards for each worker; if there are so many, none is cut
FOLLOWED = 1000  # members behind a cut that are looked at
FOLLOWED_FAR = 4 << 20  # bytes of an object behind a cut that are looked at
GLOBAL = b"g"  # type flag of a header that governs all members behind it


class ShardSlice(NamedTuple):
    """Slice *number* of *slices*, about equal, into which bytes *begin* to *end* of shard number *shard* are cut.

    *end* is None for the end of the shard; else a sample of *key* begins there. In a table they are rows, as *rows*
    says once that is known. The first *skip* samples were had; such a slice is not cut.
    """

    shard: int
    number: int = 0
    slices: int = 1
    begin: int = 0
    end: int | None = None
    key: str = ""
    skip: int = 0
    rows: bool = False

    def cut_into(self, slices: int) -> Iterator[ShardSlice]:
        """Yield so many slices of this one."""
        first = self.number * slices
        return (self._replace(number=first + n, slices=self.slices * slices) for n in range(slices))

    @property
    def cut(self) -> Cut | None:
        """Where the bytes end; None for the end of the shard."""
        return None if self.end is None else Cut(self.end, self.key.encode(errors="surrogateescape"))


def shard_identity(url: str) -> str:
    """Return what tells the shard or table *url* from others of its name, without a request.

    It is the size of a local shard, a digest of a local table, and "" for what is on a server. The time of a file does
    not count, because each host may have a copy. Raises: StorageError.
    """
    size = storage.plain_size(url)
    if size is None or not schema.is_table(url):
        return "" if size is None else str(size)
    with seekable.reading(url) as file:
        return file_digest(file, "sha256").hexdigest()


def deal(slices: Sequence[ShardSlice], reader: ReaderId) -> list[ShardSlice]:
    """Return what *reader* reads of *slices*, in their order.

    All readers get equally many slices of them, unless there are 8 times as many as readers: then they are not cut.
    """
    number, readers = reader
    if len(slices) >= MANY * readers:
        return [*slices[number::readers]]
    count = readers // math.gcd(len(slices), readers)
    return [
        piece
        for at, one in enumerate(slices)
        for n, piece in enumerate([one] if one.skip else one.cut_into(count))
        # the first ones go to different readers, since a compressed shard is its first slice
        if (at * count + (n + at) % count) % readers == number
    ]


def found_in(url: str, piece: ShardSlice) -> ShardSlice | None:
    """Return *piece* with the bytes or rows of the shard *url* that it has; None if these are none.

    All of a shard that can't be cut is its first slice: what is compressed, a pipe, a server without ranges.
    Raises: StorageError.
    """
    if piece.begin == piece.end:
        return None
    if schema.is_table(url):
        return _rows(url, piece)
    whole = piece._replace(slices=1) if piece.number == 0 else None
    if piece.slices == 1 or not storage.is_repeatable(url) or Url(url).read_command:
        return whole
    with closing(seekable.reading(url)) as file:
        if not can_be_cut(url, file):
            return whole
        size = file.seek(0, io.SEEK_END)
        begin, until = (_cut(file, size, piece, number) for number in (piece.number, piece.number + 1))
    if begin is None or (until is not None and until.offset <= begin.offset):
        return None
    found = ShardSlice(piece.shard, begin=begin.offset)
    return found if until is None else found._replace(end=until.offset, key=until.key.decode(errors="surrogateescape"))


def can_be_cut(url: str, file: io.BufferedReader) -> bool:
    """Tell whether slices of the shard *url*, opened as *file* by `seekable.reading`, can be read alone."""
    if storage.is_far(url) and isinstance(file.raw, io.FileIO):  # a copy, because the server has no ranges
        return False
    file.seek(0)
    head = file.read(BLOCK)
    return not compression.is_compressed(head) and head[156:157] != GLOBAL


def _rows(url: str, piece: ShardSlice) -> ShardSlice | None:
    from tartools.tables import source

    with source.opened(url) as table:
        begin, end = (_share(piece, table.rows, number) for number in (piece.number, piece.number + 1))
    return ShardSlice(piece.shard, begin=begin, end=end, rows=True) if end > begin else None


def _share(piece: ShardSlice, size: int, number: int) -> int:
    """Return the byte or row of a shard of *size* near which slice *number* of those of *piece* begins."""
    end = size if piece.end is None else piece.end
    return piece.begin + (end - piece.begin) * number // piece.slices


def _cut(file: io.BufferedReader, size: int, piece: ShardSlice, number: int) -> Cut | None:
    """Return where slice *number* of those of *piece* begins; None if that is the end of *file*."""
    if number == 0:
        return Cut(piece.begin, b"")
    if number == piece.slices:
        return piece.cut
    found = _next_cut(file, size, _share(piece, size, number))
    return piece.cut if piece.end is not None and (found is None or found.offset > piece.end) else found


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
