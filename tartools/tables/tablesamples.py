"""A table to the samples that it lists, in the order of its rows.

What is read is checked: the version of each shard once, and of each sample the headers, the key, and that its members
end where the row says. What differs is a failure with row, shard and byte, and nothing else is passed on in its place.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from tartools import tar
from tartools.errors import TarFormatError
from tartools.samples.account import Account
from tartools.samples.sample import Batch, Sample
from tartools.storage.scratch import scratch_file
from tartools.tables import schema, source
from tartools.tables.bulk import Bulk, RoomOf, in_buffer, in_files
from tartools.tables.listed import ListedBatch, TableColumns
from tartools.tables.localshards import LocalShards
from tartools.tables.rowplaces import Checker, Listing, Piece, raw_keys, runs_of_equal

if TYPE_CHECKING:
    from tartools.tables.remote import RemoteShards

APART = 1 << 14  # bytes; payloads of samples that are larger, on average, are read one by one and not copied again
COLUMNS = (schema.SHARD, schema.VERSION, schema.KEY, schema.BEGIN, schema.END, schema.MEMBERS)


def table_batches(
    url: str,
    file: io.BufferedReader,
    account: Account,
    ranges: bool = False,
    listed: bool = True,
    tmpdir: str | None = None,
    columns: Sequence[str] = (),
    sources: int = 1,
) -> Iterator[Batch]:
    """Yield the samples that the table *url*, opened as *file*, lists: in batches, in the order of its rows.

    *ranges*, *listed*, *tmpdir*, *columns* and *sources* are those of `shards.reading.Reading`.

    Holds: a row group of the columns that are needed; 1 MiB of samples, from servers up to 256 MiB.
    Raises: StorageError if a shard has another version than the table says; TarFormatError for what is no table.
    """
    how: Any = {"ranges": ranges, "listed": listed, "tmpdir": tmpdir, "sources": sources}
    with source.opened(url, file) as table, closing(Shards(Listing(url), account, **how)) as shards:
        first = 0
        for rows in table.batches([*COLUMNS, *columns]):
            if columns:
                yield ListedBatch(TableColumns(rows, first, shards.listing, table), shards.samples)
            else:
                yield from shards.samples(shards.listing.piece(rows, first))
            first += len(rows)
        shards.check()


def row_batches(url: str, rows: range, account: Account) -> Iterator[Batch]:
    """Yield the samples of *rows* of the table *url*, as `table_batches`. Other row groups are not read."""
    done = 0
    with source.opened(url) as table, closing(Shards(Listing(url), account)) as shards:
        for first, found in table.slices(COLUMNS, rows):
            yield from shards.samples(shards.listing.piece(found, first))
            done += len(found)
        if done != len(rows):
            raise TarFormatError(f"this table is damaged: it has {done} of {len(rows)} rows", url=url)
        shards.check()


def chosen(urls: Sequence[str], account: Account, place: int | None, key: str | None) -> Iterator[tuple[int, Sample]]:
    """Yield number and sample of the rows of the tables *urls* that have number *place* and *key*, if they are given.

    Rows are counted through all tables. Rows whose keys the table does not tell are among them. Each sample is read
    when it is its turn, from a server by one request. In *account* are the rows that were looked at.

    Holds: a row group of keys and places.
    Raises: StorageError if a sample is not as its row says; TarFormatError for a damaged table.
    """
    before = 0  # rows of earlier tables
    for url in urls:
        with source.opened(url) as table, closing(Shards(Listing(url), account)) as shards:
            for row in _rows_with(table, None if place is None else place - before, key):
                account.samples_in = before + row + 1
                for at, rows in table.slices(COLUMNS, range(row, row + 1)):
                    for batch in shards.samples(shards.listing.piece(rows, at)):
                        yield before + at, batch[0]
            before += table.rows
            account.samples_in = before
            if place is not None and place < before:
                account.samples_in = place + 1
                return
            account.shards_done += 1


def _rows_with(table: source.ParquetSource, place: int | None, key: str | None) -> Iterator[int]:
    """Yield the numbers of the rows of *table* with number *place* and perhaps *key*, if they are given, in order."""
    rows = range(table.rows) if place is None else range(table.rows)[place : place + 1]
    if key is None or schema.KEY not in table.names:
        yield from rows
        return
    raw = key.encode("utf-8", "surrogateescape")
    for first, keys in table.slices((schema.KEY,), rows):
        found = raw_keys(keys.column(0), first, table.url)
        yield from (row for row, each in enumerate(found, first) if each is None or each == raw)


class Shards:
    """The shards of *listing*, and the samples in them. The others are as in `table_batches`."""

    def __init__(
        self,
        listing: Listing,
        account: Account,
        *,
        ranges: bool = False,
        listed: bool = True,
        tmpdir: str | None = None,
        sources: int = 1,
    ) -> None:
        self.listing = listing
        self._sources = sources
        read: Any = partial(tar.read_members, ranges=ranges, listed=listed, scratch=lambda: scratch_file(tmpdir))
        self._checker = Checker(listing, account, read)
        self._local = LocalShards(self._checker, ranges, sources)
        self._remote: RemoteShards | None = None

    def close(self) -> None:
        """Stop all requests."""
        if self._remote is not None:
            self._remote.close()

    def samples(self, rows: Piece) -> Iterator[Batch]:
        """Yield the samples of *rows*, in batches. Raises: StorageError if one is not as its row says."""
        import numpy as np

        far = np.array(self.listing.far)[rows.numbers]
        for low, high in runs_of_equal(far):
            yield from (self._servers() if far[low] else self._local).samples(rows.part(low, high))

    def bulk(self, rows: Piece, room_of: RoomOf | None, fields: Collection[str] | None) -> Bulk | None:
        """Return the samples of *rows* together; None if `samples` has to read them. See `Table.bulk`.

        Raises: StorageError if a shard is not what it was, or can't be read.
        """
        import numpy as np

        far, sizes = np.array(self.listing.far)[rows.numbers], rows.ends - rows.begins
        if far.any() and not far.all():
            return None
        if not far.any() and sizes.mean() >= APART and len(set(rows.numbers.tolist())) <= self._local.together:
            files = self._local.files(rows, 0, len(rows))
            return in_files(files, rows.begins, rows.ends, room_of, fields)
        source = self._servers() if far.any() else self._local
        data = source.whole(rows, None if room_of is None else room_of(int(sizes.sum())))
        return None if data is None else in_buffer(data, sizes)

    def _servers(self) -> RemoteShards:
        if self._remote is None:
            from tartools.tables.remote import RemoteShards

            self._remote = RemoteShards(self._checker, self._sources)
        return self._remote

    def check(self) -> None:
        """Raise StorageError if a file has changed since it was opened."""
        self._local.places.check()
