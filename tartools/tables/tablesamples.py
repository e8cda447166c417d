"""Read the samples of a table, in the order of its rows.

Reading checks the version of each shard once, and of each sample the headers, the key, and that its members
end where the row says. A difference is an error with row, shard and byte; no other sample is returned in its place.
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
from tartools.samples.batch import Batch
from tartools.samples.sample import Sample
from tartools.storage.scratch import scratch_file
from tartools.tables import schema, source
from tartools.tables.bulk import Bulk, GetBuffer, bulk_from_buffer, bulk_from_files
from tartools.tables.listed import ListedBatch, TableColumns
from tartools.tables.localshards import LocalShards
from tartools.tables.rowplaces import Checker, Extents, Listing, raw_keys, runs_of_equal
from tartools.tar.groups import Need

if TYPE_CHECKING:
    from tartools.tables.remote import RemoteShards

# bytes; payloads of samples that are larger, on average, are read one by one and not copied again
MAX_COPIED_PAYLOAD = 1 << 14
READ_COLUMNS = (
    schema.SHARD_COLUMN,
    schema.VERSION_COLUMN,
    schema.KEY_COLUMN,
    schema.BEGIN_COLUMN,
    schema.END_COLUMN,
    schema.MEMBERS_COLUMN,
)


def table_batches(
    url: str,
    file: io.BufferedReader,
    account: Account,
    need: Need = Need.PAYLOADS,
    tmpdir: str | None = None,
    columns: Sequence[str] = (),
    sources: int = 1,
) -> Iterator[Batch]:
    """Yield the samples of the table *url*, opened as *file*, in batches, in the order of its rows.

    *need*, *tmpdir*, *columns* and *sources*: see `shards.reading.Reading`.

    Holds: a row group of the columns that are needed; 1 MiB of samples, from servers up to 256 MiB.
    Raises: StorageError if a shard has another version than in the table; TarFormatError if *url* is not a table.
    """
    shards = ShardReaders(Listing(url), account, need=need, tmpdir=tmpdir, sources=sources)
    with source.open_table(url, file) as table, closing(shards):
        first = 0
        for rows in table.batches([*READ_COLUMNS, *columns]):
            if columns:
                yield ListedBatch(TableColumns(rows, first, shards.listing, table), shards.samples)
            else:
                yield from shards.samples(shards.listing.extents(rows, first))
            first += len(rows)
        shards.check()


def row_batches(url: str, rows: range, account: Account) -> Iterator[Batch]:
    """Yield the samples of *rows* of the table *url* in batches, in order. Other row groups are not read."""
    count = 0
    with source.open_table(url) as table, closing(ShardReaders(Listing(url), account)) as shards:
        for first, batch in table.slices(READ_COLUMNS, rows):
            yield from shards.samples(shards.listing.extents(batch, first))
            count += len(batch)
        if count != len(rows):
            raise TarFormatError(f"this table is damaged: it has {count} of {len(rows)} rows", url=url)
        shards.check()


def find_samples(
    urls: Sequence[str], account: Account, place: int | None, key: str | None
) -> Iterator[tuple[int, Sample]]:
    """Yield (row number, sample) of the rows of the tables *urls* with number *place* and with *key*, if given.

    Rows are counted through all tables. Rows without a key in the table are included. Each sample is read
    in its turn, from a server by one request. *account* counts the rows that were examined.

    Holds: a row group of keys and places.
    Raises: StorageError if a sample differs from its row; TarFormatError for a damaged table.
    """
    before = 0  # rows of earlier tables
    for url in urls:
        with source.open_table(url) as table, closing(ShardReaders(Listing(url), account)) as shards:
            for row in _matching_rows(table, None if place is None else place - before, key):
                account.samples_in = before + row + 1
                for at, rows in table.slices(READ_COLUMNS, range(row, row + 1)):
                    for batch in shards.samples(shards.listing.extents(rows, at)):
                        yield before + at, batch[0]
            before += table.rows
            account.samples_in = before
            if place is not None and place < before:
                account.samples_in = place + 1
                return
            account.shards_done += 1


def _matching_rows(table: source.ParquetSource, place: int | None, key: str | None) -> Iterator[int]:
    """Yield the numbers of the rows of *table* with number *place* and with *key* or none, if given, in order."""
    rows = range(table.rows) if place is None else range(table.rows)[place : place + 1]
    if key is None or schema.KEY_COLUMN not in table.names:
        yield from rows
        return
    raw = key.encode("utf-8", "surrogateescape")
    for first, keys in table.slices((schema.KEY_COLUMN,), rows):
        keys_of_rows = raw_keys(keys.column(0), first, table.url)
        yield from (row for row, row_key in enumerate(keys_of_rows, first) if row_key is None or row_key == raw)


class ShardReaders:
    """Readers of the shards of *listing*. Options: see `table_batches`."""

    def __init__(
        self,
        listing: Listing,
        account: Account,
        *,
        need: Need = Need.PAYLOADS,
        tmpdir: str | None = None,
        sources: int = 1,
    ) -> None:
        self.listing = listing
        self._sources = sources
        read: Any = partial(tar.read_members, need=need, scratch=lambda: scratch_file(tmpdir))
        self._checker = Checker(listing, account, read)
        self._local = LocalShards(self._checker, need.leaves_payloads, sources)
        self._remote: RemoteShards | None = None

    def close(self) -> None:
        """Stop all requests."""
        if self._remote is not None:
            self._remote.close()

    def samples(self, rows: Extents) -> Iterator[Batch]:
        """Yield the samples of *rows*, in batches. Raises: StorageError if a sample differs from its row."""
        import numpy as np

        is_remote = np.array(self.listing.is_remote)[rows.numbers]
        for low, high in runs_of_equal(is_remote):
            yield from (self._servers() if is_remote[low] else self._local).samples(rows.part(low, high))

    def bulk(self, rows: Extents, room_of: GetBuffer | None, fields: Collection[str] | None) -> Bulk | None:
        """Return the samples of *rows* as a `Bulk`; None if `samples` has to read them. See `Table.bulk`.

        Raises: StorageError if a shard has changed, or can't be read.
        """
        import numpy as np

        is_remote, sizes = np.array(self.listing.is_remote)[rows.numbers], rows.ends - rows.begins
        if is_remote.any() and not is_remote.all():
            return None
        if (
            not is_remote.any()
            and sizes.mean() >= MAX_COPIED_PAYLOAD
            and len(set(rows.numbers.tolist())) <= self._local.max_shards
        ):
            files = self._local.files(rows, 0, len(rows))
            return bulk_from_files(files, rows.begins, rows.ends, room_of, fields)
        source = self._servers() if is_remote.any() else self._local
        data = source.read_all(rows, None if room_of is None else room_of(int(sizes.sum())))
        return None if data is None else bulk_from_buffer(data, sizes)

    def _servers(self) -> RemoteShards:
        if self._remote is None:
            from tartools.tables.remote import RemoteShards

            self._remote = RemoteShards(self._checker, self._sources)
        return self._remote

    def check(self) -> None:
        """Raise StorageError if a file has changed since it was opened."""
        self._local.open_files.check()
