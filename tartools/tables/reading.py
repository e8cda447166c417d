"""A table to the samples that it lists, in the order of its rows.

What is read is checked: the version of each shard once, and of each sample the headers, the key, and that its members
end where the row says. What differs is a failure with row, shard and byte, and nothing else is passed on in its place.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import accumulate
from typing import Any

from tartools import tar
from tartools.errors import StorageError, TarFormatError, TarToolsError
from tartools.samples.account import Account
from tartools.samples.listed import Listed
from tartools.samples.sample import Batch
from tartools.storage import versions
from tartools.storage.objects import object_at
from tartools.storage.objects.ranges import RANGE, RangedInput
from tartools.storage.scratch import scratch_file
from tartools.storage.streams import Stream, check_unchanged
from tartools.tables import schema, source
from tartools.tables.columns import TableColumns
from tartools.tables.fetching import Bytes, FileSpan, fetched, opened, requests_at_once, spans
from tartools.tables.places import Listing, Piece
from tartools.tables.requests import Requests
from tartools.tar import ContiguousGroups, ScatteredGroup

GATHERED = 1 << 20  # bytes of samples that are parsed together
RUN = 1 << 18  # bytes; samples side by side in a file that are more than these are read as one piece
LARGE = 16 << 20  # bytes; a larger sample on a server is read as a stream
OPEN_FILES = 64
WINDOW = 32 << 20  # bytes of samples that are requested from servers together


def table_batches(
    url: str,
    file: io.BufferedReader,
    account: Account,
    ranges: bool = False,
    listed: bool = True,
    tmpdir: str | None = None,
    columns: Sequence[str] = (),
) -> Iterator[Batch]:
    """Yield the samples that the table *url*, opened as *file*, lists: in batches, in the order of its rows.

    *ranges*, *listed*, *tmpdir* and *columns* are those of `shards.reading.Reading`.

    Holds: a row group of the columns that are needed; 1 MiB of samples, from servers up to 256 MiB.
    Raises: StorageError if a shard is another one than the table says; TarFormatError for what is no table.
    """
    with source.opened(url, file) as table:
        shards = _Shards(url, account, ranges=ranges, listed=listed, tmpdir=tmpdir)
        first = 0
        with closing(shards):
            for rows in table.batches((schema.SHARD, schema.VERSION, schema.KEY, schema.BEGIN, schema.END, *columns)):
                if columns:
                    yield shards.listed(rows, first, table)
                else:
                    yield from shards.samples(rows, first)
                first += len(rows)
            shards.check()


class _Shards:
    """The shards that the table *url* names, and the samples in them."""

    def __init__(self, url: str, account: Account, *, ranges: bool, listed: bool, tmpdir: str | None) -> None:
        self._account = account
        self._rows = Listing(url)
        self._urls, self._versions = self._rows.urls, self._rows.versions
        self._open: dict[int, io.FileIO] = {}  # least recently used first
        self._requests: Requests | None = None
        self._read = partial(tar.read_members, ranges=ranges, listed=listed, scratch=lambda: scratch_file(tmpdir))

    def close(self) -> None:
        """Stop all requests."""
        if self._requests is not None:
            self._requests.close()

    def listed(self, rows: Any, first: int, table: source.Source) -> Listed:
        """Return the samples of the record batch *rows* of *table*, which begins with row *first*, with its columns."""

        def read(low: int, high: int) -> Iterator[Batch]:
            return self.samples(rows.slice(low, high - low), first + low)

        return Listed(TableColumns(rows, first, self._rows, table), len(rows), read)

    # ---- samples ----

    def samples(self, batch: Any, first: int) -> Iterator[Batch]:
        """Yield the samples of the record batch *batch*, which begins with row *first*."""
        rows = self._rows.piece(batch, first)
        far = [self._is_far(place.number) for place in rows.places]
        low = 0
        for high in [n for n in range(1, len(far)) if far[n] != far[n - 1]] + [len(far)]:
            yield from (self._from_servers if far[low] else self._from_files)(rows.part(low, high))
            low = high

    def _is_far(self, number: int) -> bool:
        url = self._urls[number]
        return not url.is_local or bool(url.read_command)

    def _from_files(self, rows: Piece) -> Iterator[Batch]:
        small, size, places = 0, 0, rows.places  # rows from number small on are gathered, size bytes
        low = 0
        for high in range(1, len(places) + 1):
            if high < len(places) and places[high][0] == places[low][0] and places[high][1] == places[high - 1][2]:
                continue
            run = places[high - 1].end - places[low].begin
            if size and (run > RUN or size + run > GATHERED):
                yield from self._gathered(rows.part(small, low))
                size = 0
            if run > RUN:
                yield from self._contiguous(rows.part(low, high), self._file(rows, low))
            else:
                small = low if not size else small
                size += run
            low = high
        if size:
            yield from self._gathered(rows.part(small, len(places)))

    def _gathered(self, rows: Piece) -> Iterator[Batch]:
        data = [
            tar.read_range(self._file(rows, number), place.begin, place.end) for number, place in enumerate(rows.places)
        ]
        yield from self._checked(data, rows)

    def _contiguous(self, rows: Piece, stream: io.FileIO | RangedInput) -> Iterator[Batch]:
        """Yield the samples of *rows*, which are side by side in the file or stream of one shard."""
        begin, end, number = rows.places[0].begin, rows.places[-1].end, rows.places[0].number
        url = self._urls[number]
        found: Stream = FileSpan(stream, begin) if isinstance(stream, io.FileIO) else stream
        at = 0
        try:
            for part in self._read(found, url=url, begin=begin, until=end):
                if not isinstance(part, (ContiguousGroups, ScatteredGroup)):
                    raise self._rows.failure(rows.first + at, rows.places[at], "something else than samples is there")
                batch = Batch(part, url)
                at = self._compare(batch, rows, at)
                yield batch
        except TarFormatError as error:
            at = min(at, len(rows.places) - 1)
            raise self._rows.failure(rows.first + at, rows.places[at], error.message) from error
        if at < len(rows.places):
            raise self._rows.failure(rows.first + at, rows.places[at], "the sample is not there")
        self._count(end - begin)

    def _compare(self, batch: Batch, rows: Piece, at: int) -> int:
        """Raise StorageError unless *batch* has the samples of *rows* from number *at* on; return the next number."""
        upto = at + len(batch)
        places = rows.places[at:upto]
        if batch.groups is not None:
            source, keys, starts, _, _ = batch.groups
            base = getattr(source, "base", 0)
            same = [place.begin - base for place in places] == starts[:-1]
            same = same and len(places) == len(keys) and places[-1].end - base == starts[-1]
        else:
            keys, same = batch.keys, bool(places) and batch.offset in (None, places[0].begin)
        if same and (rows.keys is None or rows.keys[at:upto] == keys):
            return upto
        for number, key in enumerate(keys, at):
            if number >= len(rows.places):
                break
            if rows.keys is not None and rows.keys[number] != key:
                raise self._rows.failure(
                    rows.first + number,
                    rows.places[number],
                    f"the key of the sample there is {key.decode('utf-8', 'replace')!r}, "
                    f"not {rows.keys[number].decode('utf-8', 'replace')!r}",
                )
        raise self._rows.failure(
            rows.first + at, places[0] if places else rows.places[-1], "samples begin and end elsewhere"
        )

    def _checked(self, data: Sequence[bytes], rows: Piece) -> Iterator[Batch]:
        """Yield the samples of *rows*, whose bytes are *data*."""
        self._count(sum(map(len, data)))
        urls = [self._urls[place.number] for place in rows.places]
        starts = list(accumulate(map(len, data), initial=0))
        found: list[ContiguousGroups] = []
        try:
            whole = b"".join(data)
            parts = self._read(Bytes(whole), url=self._rows.table, until=len(whole))
            found += (part for part in parts if isinstance(part, ContiguousGroups))
        except TarFormatError:
            found = []
        spans = [[start + part.source.base for start in part.starts] for part in found]  # type: ignore[union-attr]
        begins, ends = ([at for span in spans for at in span[cut]] for cut in (slice(-1), slice(1, None)))
        keys = [key for part in found for key in part.keys]
        if begins != starts[:-1] or ends != starts[1:] or (rows.keys is not None and keys != rows.keys):
            yield from self._one_by_one(data, rows)
            return
        first = 0
        for part in found:
            upto = first + len(part.keys)
            here = urls[first:upto]
            yield Batch(part, here[0] if len(set(here)) == 1 else here)
            first = upto

    def _one_by_one(self, data: Sequence[bytes], rows: Piece) -> Iterator[Batch]:
        """Yield the samples of *rows* alone: together they are not what the table says, or have one key."""
        for number, (content, place) in enumerate(zip(data, rows.places, strict=True)):
            try:
                url = self._urls[place.number]
                parts = list(self._read(Bytes(content), url=url, until=len(content)))
            except TarFormatError as error:
                raise self._rows.failure(rows.first + number, place, error.message) from error
            if len(parts) != 1 or not isinstance(parts[0], ContiguousGroups) or len(parts[0].keys) != 1:
                raise self._rows.failure(rows.first + number, place, "this is not one sample")
            batch = Batch(parts[0], url)
            if rows.keys is not None and batch.keys[0] != rows.keys[number]:
                self._compare(batch, Piece(rows.first + number, [place], rows.keys[number : number + 1]), 0)
            yield batch

    def _count(self, size: int) -> None:
        self._account.bytes_in += size
        self._account.unpacked += size

    # ---- files ----

    def _file(self, rows: Piece, number: int) -> io.FileIO:
        """Return the file of row *number* of *rows*; check its version when it is opened."""
        place = rows.places[number]
        file = self._open.pop(place.number, None)
        if file is None:
            file = opened(self._urls[place.number])
            known = self._versions[place.number]
            if known is not None and versions.file_version(os.fstat(file.fileno())) != known:
                raise self._rows.failure(rows.first + number, place, "this file was changed since the table was made")
        self._open[place.number] = file
        if len(self._open) > OPEN_FILES:
            check_unchanged(self._open.pop(next(iter(self._open))))
        return file

    def check(self) -> None:
        """Raise StorageError if a file has changed since it was opened."""
        for file in self._open.values():
            check_unchanged(file)

    # ---- servers ----

    def _from_servers(self, rows: Piece) -> Iterator[Batch]:
        if self._requests is None:
            self._requests = Requests(requests_at_once())
        waiting: list[tuple[Piece, list[Any], list[Any]]] = []
        low, size = 0, 0
        for high, place in enumerate(rows.places, 1):
            if place.end - place.begin > LARGE:
                if low < high - 1:
                    waiting.append(self._ask(rows.part(low, high - 1)))
                while waiting:
                    yield from self._received(*waiting.pop(0))
                yield from self._streamed(rows.part(high - 1, high))
                low, size = high, 0
                continue
            size += place.end - place.begin
            if size >= WINDOW or high == len(rows.places):
                waiting.append(self._ask(rows.part(low, high)))
                low, size = high, 0
                if len(waiting) > 2:  # three windows are under way
                    yield from self._received(*waiting.pop(0))
        while waiting:
            yield from self._received(*waiting.pop(0))

    def _streamed(self, rows: Piece) -> Iterator[Batch]:
        """Yield the sample of *rows*, which is too large for one request."""
        number, begin, end = rows.places[0]
        size, _, tag = self._version(number).partition(" ")
        source = object_at(self._urls[number])
        stream = RangedInput(source, begin, min(RANGE, end - begin), int(size), tag)
        try:
            yield from self._contiguous(rows, stream)
        except StorageError as error:
            raise self._rows.failure(rows.first, rows.places[0], error.message) from error
        finally:
            stream.close()

    def _version(self, number: int) -> str:
        """Return the version of the shard *number*: that of the table, or else what the shard is now."""
        known = self._versions[number]
        if known is None:
            known = self._versions[number] = versions.version_of(self._urls[number])
        return known

    def _ask(self, rows: Piece) -> tuple[Piece, list[Any], list[Any]]:
        """Request the bytes of *rows*."""
        assert self._requests is not None
        wanted = spans(rows.places)
        tasks = [
            partial(fetched, self._urls[span.number], span.begin, span.end, self._version(span.number))
            for span in wanted
        ]
        return rows, wanted, [self._requests.ask(task) for task in tasks]

    def _received(self, rows: Piece, wanted: list[Any], answers: list[Any]) -> Iterator[Batch]:
        """Yield the samples of *rows*, whose bytes were requested."""
        data: list[bytes] = [b""] * len(rows.places)
        for span, answer in zip(wanted, answers, strict=True):
            try:
                content = answer()
            except TarToolsError as error:
                row = min(span.wanted)
                raise self._rows.failure(rows.first + row, rows.places[row], error.message) from error
            for index in span.wanted:
                place = rows.places[index]
                data[index] = content[place.begin - span.begin : place.end - span.begin]
        low, size = 0, 0
        for high, content in enumerate(data, 1):
            size += len(content)
            if size >= GATHERED or high == len(data):
                yield from self._checked(data[low:high], rows.part(low, high))
                low, size = high, 0
