"""The bytes of samples to samples, if they are what the rows of a table say."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import replace

from tartools.errors import TarFormatError
from tartools.samples.account import Account
from tartools.samples.sample import Batch
from tartools.storage.streams import Stream
from tartools.tables.rowplaces import Listing, Piece
from tartools.tar import ContiguousGroups, Parsed, ScatteredGroup, padded

ALONE = 64  # rows that are read one by one behind damage, before the next are read together again


class Checker:
    """Reads samples that *listing* has the shards of; *read* is `tar.read_members` with its options.

    Headers, keys, and where samples begin and end are compared with the rows.
    """

    def __init__(self, listing: Listing, account: Account, read: Callable[..., Iterator[Parsed]]) -> None:
        self._listing = listing
        self._account = account
        self._read = read

    def in_memory(self, rows: Piece, data: bytes | memoryview) -> Iterator[Batch]:
        """Yield the samples of *rows*, which are in *data* one after the other."""
        bounds: list[int] = rows.bounds().tolist()
        view = memoryview(data)
        return self.samples(rows, bounds, lambda index: MemoryStream(view[bounds[index] :]))

    def samples(self, rows: Piece, bounds: list[int], stream_of: Callable[[int], Stream]) -> Iterator[Batch]:
        """Yield the samples of *rows*, which begin and end at *bounds* of a file or of other bytes.

        `stream_of(n)` has these bytes from row n of them on.
        """
        at = 0
        while at < len(rows):
            low = yield from self._together(rows, at, bounds, stream_of)
            at = min(low + ALONE, len(rows))
            yield from self._one_by_one(rows, range(low, at), bounds, stream_of)  # equal keys side by side, or damage

    def _together(
        self, rows: Piece, at: int, bounds: list[int], stream_of: Callable[[int], Stream]
    ) -> Generator[Batch, None, int]:
        """Yield the samples of *rows* from *at* on, up to the first that is not as its row says; return its number."""
        with suppress(TarFormatError):  # who reads this sample alone finds out what is wrong
            for part in self._read(stream_of(at), url=self._listing.table, begin=bounds[at], until=bounds[-1]):
                found = matching(part, rows, at, bounds)
                if not found:
                    break
                self._count(bounds[at + found] - bounds[at])
                batch = Batch(part, self._urls(rows, at, at + found))  # type: ignore[arg-type]
                at += found
                yield batch
        return at

    def _one_by_one(
        self, rows: Piece, indexes: range, bounds: list[int], stream_of: Callable[[int], Stream]
    ) -> Iterator[Batch]:
        """Yield the samples *indexes* of *rows*. Raises: StorageError for one that is not as its row says."""
        for index in indexes:
            begin, end = bounds[index : index + 2]
            try:
                parts = [*self._read(stream_of(index), url=self._listing.table, begin=begin, until=end)]
            except TarFormatError as error:
                raise self._listing.failure(rows, index, error.message) from error
            row = replace(rows.part(index, index + 1), keys=None)
            if len(parts) != 1 or matching(parts[0], row, 0, [begin, end]) != 1:
                raise self._listing.failure(rows, index, "this is not one sample")
            batch = Batch(parts[0], self._urls(rows, index, index + 1))  # type: ignore[arg-type]
            if rows.keys is not None and batch.keys[0] != rows.keys[index]:
                what = "the key of the sample there is {!r}, not {!r}"
                keys = (key.decode("utf-8", "replace") for key in (batch.keys[0], rows.keys[index]))
                raise self._listing.failure(rows, index, what.format(*keys))
            self._count(end - begin)
            yield batch

    def _urls(self, rows: Piece, low: int, high: int) -> str | list[str]:
        """Return the URL of the shard of rows *low* to *high*, or those of each if they differ."""
        if high == low + 1:
            return self._listing.urls[int(rows.numbers[low])]
        numbers: list[int] = rows.numbers[low:high].tolist()
        if len(set(numbers)) == 1:
            return self._listing.urls[numbers[0]]
        return [self._listing.urls[number] for number in numbers]

    def _count(self, size: int) -> None:
        """Count *size* bytes of samples as read."""
        self._account.bytes_in += size
        self._account.unpacked += size


class MemoryStream(Stream):
    """The bytes *data* as a stream."""

    def __init__(self, data: memoryview) -> None:
        self._left = data

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes; 0 at the end."""
        some, self._left = self._left[: len(view)], self._left[len(view) :]
        view[: len(some)] = some
        return len(some)


def matching(part: Parsed, rows: Piece, at: int, bounds: list[int]) -> int:
    """Return how many samples *part* has, if they are those of *rows* from *at* on, which begin at *bounds*; else 0."""
    if isinstance(part, ContiguousGroups):
        keys, starts, base = part.keys, part.starts, getattr(part.source, "base", 0)
    elif isinstance(part, ScatteredGroup) and part.offset is not None:
        keys, base = [part.key], 0
        starts = [
            part.offset,
            part.offset + sum(data - start + padded(size) for _, _, start, data, size, _ in part.members),
        ]
    else:
        return 0
    upto = at + len(keys)
    if upto > len(rows) or bounds[at : upto + 1] != ([start + base for start in starts] if base else starts):
        return 0
    return len(keys) if rows.keys is None or rows.keys[at:upto] == keys else 0
