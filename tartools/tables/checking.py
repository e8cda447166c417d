"""The bytes of samples to samples, if they are what the rows of a table say."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator
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

    def samples(self, rows: Piece, stream_of: Callable[[int], Stream], *, joined: bool) -> Iterator[Batch]:
        """Yield the samples of *rows*; `stream_of(n)` has the bytes of row n of these, and of those behind it.

        If they are *joined*, it has them one after the other; else it is the shard that all *rows* lie side by side in,
        from the begin of row n on.
        """
        at = 0
        while at < len(rows):
            low, at = yield from self._together(rows, at, stream_of, joined)
            yield from self._one_by_one(rows, low, at, stream_of)  # equal keys side by side, or damage

    def _together(
        self, rows: Piece, at: int, stream_of: Callable[[int], Stream], joined: bool
    ) -> Generator[Batch, None, tuple[int, int]]:
        """Yield the samples of *rows* from *at* on, up to the first that is not as its row says.

        Returns its number, and up to where they should be read one by one.
        """
        bounds: list[int]
        if joined:
            bounds = [0] * (at + 1) + (rows.ends[at:] - rows.begins[at:]).cumsum().tolist()
        else:
            bounds = [*rows.begins.tolist(), int(rows.ends[-1])]
        begin, until = bounds[at], bounds[-1]
        url = self._listing.table if joined else self._listing.urls[int(rows.numbers[0])]
        upto = 0
        try:
            for part in self._read(stream_of(at), url=url, begin=begin, until=until):
                found = matching(part, rows, at, bounds)
                if not found:
                    if isinstance(part, ContiguousGroups):
                        end = part.starts[-1] + getattr(part.source, "base", 0)
                        upto = min(max(at + 1, bisect_left(bounds, end)), len(rows))
                    break
                self.count(bounds[at + found] - bounds[at])
                batch = Batch(part, self._urls(rows, at, at + found))  # type: ignore[arg-type]
                at += found
                yield batch
        except TarFormatError:
            pass  # who reads this sample alone finds out what is wrong
        return at, upto or min(at + ALONE, len(rows))

    def _one_by_one(self, rows: Piece, low: int, high: int, stream_of: Callable[[int], Stream]) -> Iterator[Batch]:
        """Yield the samples *low* to *high* of *rows*. Raises: StorageError for one that is not as its row says."""
        for index in range(low, high):
            number, begin, end = rows.place(index)
            stream = stream_of(index)
            start = begin if stream.file is not None else 0
            try:
                parts = list(self._read(stream, url=self._listing.urls[number], begin=start, until=start + end - begin))
            except TarFormatError as error:
                raise self._listing.failure(rows, index, error.message) from error
            row = replace(rows.part(index, index + 1), keys=None)
            if len(parts) != 1 or matching(parts[0], row, 0, [start, start + end - begin]) != 1:
                raise self._listing.failure(rows, index, "this is not one sample")
            batch = Batch(parts[0], self._listing.urls[number])  # type: ignore[arg-type]
            if rows.keys is not None and batch.keys[0] != rows.keys[index]:
                what = "the key of the sample there is {!r}, not {!r}"
                keys = (key.decode("utf-8", "replace") for key in (batch.keys[0], rows.keys[index]))
                raise self._listing.failure(rows, index, what.format(*keys))
            self.count(end - begin)
            yield batch

    def _urls(self, rows: Piece, low: int, high: int) -> str | list[str]:
        """Return the URL of the shard of rows *low* to *high*, or those of each if they differ."""
        if high == low + 1:
            return self._listing.urls[int(rows.numbers[low])]
        numbers: list[int] = rows.numbers[low:high].tolist()
        if len(set(numbers)) == 1:
            return self._listing.urls[numbers[0]]
        return [self._listing.urls[number] for number in numbers]

    def count(self, size: int) -> None:
        """Count *size* bytes of samples as read."""
        self._account.bytes_in += size
        self._account.unpacked += size


class Chunks(Stream):
    """The bytes of *chunks*, one after the other as a stream."""

    def __init__(self, chunks: Iterable[bytes | memoryview]) -> None:
        self._chunks = iter(chunks)
        self._left = memoryview(b"")  # of the chunk that is being read

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes; 0 at the end. Raises what getting a chunk raises."""
        count = 0
        while count < len(view):
            if not self._left:
                self._left = memoryview(next(self._chunks, b""))
                if not self._left:
                    break
            some = self._left[: len(view) - count]
            view[count : count + len(some)] = some
            self._left = self._left[len(some) :]
            count += len(some)
        return count


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
