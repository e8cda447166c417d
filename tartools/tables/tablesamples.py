"""Read the samples of a table, in the order of its rows.

Reading checks the version of each shard once, and of each sample the headers, the key, and that its members
end where the row says. A difference is an error with row, shard and byte; no other sample is returned in its place.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import closing

from tartools.errors import TarFormatError
from tartools.samples.account import Account
from tartools.samples.batch import Batch
from tartools.samples.sample import Sample
from tartools.tables import schema, source
from tartools.tables.catalog import ShardCatalog
from tartools.tables.extents import raw_keys
from tartools.tables.listed import ListedBatch, TableColumns
from tartools.tables.verified import VerifiedReader
from tartools.tar.groups import Need


def table_batches(
    url: str,
    file: io.BufferedReader,
    account: Account,
    need: Need = Need.PAYLOADS,
    tmpdir: str | None = None,
    columns: Sequence[str] = (),
    sources: int = 1,
) -> Iterator[Batch]:
    """Yield the samples of the table *url*, opened as *file*, in batches, in the order of its rows; then close *file*.

    *account*: counts bytes read. *need*: the parts of a sample that the caller uses.
    *tmpdir*: folder of scratch files for large members (default `$TMPDIR`, else /tmp).
    *columns*: if not empty, batches are `ListedBatch`es with the existing ones of these columns, and samples are read
    only when asked for.
    *sources*: data sets that are read at once; each keeps so many times fewer files open, and reads less ahead.

    Holds: a row group of the columns that are needed; 1 MiB of samples, from servers up to 256 MiB.
    Raises: StorageError if the table or a shard can't be read, a shard has another version than in the table or changes
    meanwhile, or a sample differs from its row; TarFormatError if *url* is not a table, or damaged.
    """
    reader = VerifiedReader(ShardCatalog(url), account, need=need, tmpdir=tmpdir, sources=sources)
    with source.open_table(url, file) as table, closing(reader):
        first = 0
        for rows in table.batches([*schema.location_columns(table.names), *columns]):
            if columns:
                yield ListedBatch(TableColumns(rows, first, reader.catalog, table), reader.samples)
            else:
                yield from reader.samples(reader.catalog.extents(rows, first))
            first += len(rows)
        reader.check()


def row_batches(url: str, rows: range, account: Account) -> Iterator[Batch]:
    """Yield the samples of the table *url* with row numbers *rows*, in batches, in order.

    Row groups without these rows are not read. *account*: counts bytes read. Raises: TarFormatError if *url* is not a
    table, is damaged or has fewer rows, then after the samples that exist; StorageError if the table or a shard can't
    be read, a shard has another version than in the table or changes meanwhile, or a sample differs from its row.
    """
    count = 0
    with source.open_table(url) as table, closing(VerifiedReader(ShardCatalog(url), account)) as reader:
        for first, batch in table.slices(schema.location_columns(table.names), rows):
            yield from reader.samples(reader.catalog.extents(batch, first))
            count += len(batch)
        if count != len(rows):
            raise TarFormatError(f"this table is damaged: it has {count} of {len(rows)} rows", url=url)
        reader.check()


def find_samples(
    urls: Sequence[str], account: Account, place: int | None, key: str | None
) -> Iterator[tuple[int, Sample]]:
    """Yield (row number, sample) for the rows of the tables *urls* that match *place* and *key*; None matches any row.

    Row numbers, *place* too, count from 0 through all tables. *key*: the key of the sample; a row without a key in the
    table matches too, so the caller compares. Each sample is read in its turn, not together with the next. *account*
    counts the rows that were examined, the tables that were finished, and bytes read.

    Holds: a row group of keys and places. Raises: StorageError if a table or a shard can't be read, or has changed, or
    a sample differs from its row; TarFormatError for a table that is damaged, or not a table.
    """
    before = 0  # rows of earlier tables
    for url in urls:
        with source.open_table(url) as table, closing(VerifiedReader(ShardCatalog(url), account)) as reader:
            for row in _matching_rows(table, None if place is None else place - before, key):
                account.samples_in = before + row + 1
                for at, rows in table.slices(schema.location_columns(table.names), range(row, row + 1)):
                    for batch in reader.samples(reader.catalog.extents(rows, at)):
                        yield before + at, batch[0]
            before += table.rows
            account.samples_in = before
            if place is not None and place < before:
                account.samples_in = place + 1
                return
            account.shards_done += 1


def _matching_rows(table: source.ParquetSource, place: int | None, key: str | None) -> Iterator[int]:
    """Yield, in order, the numbers, from 0, of the rows of *table* that are number *place* and have *key*.

    None matches any row, and a row without a key in the table any *key*. *place*: the number of a row of this table,
    not negative; nothing is yielded if the table has no such row. Raises: StorageError if keys are not text;
    TarFormatError for a damaged table; the errors of reading it.
    """
    rows = range(table.rows) if place is None else range(table.rows)[place : place + 1]
    if key is None or schema.KEY_COLUMN not in table.names:
        yield from rows
        return
    raw = key.encode("utf-8", "surrogateescape")
    for first, keys in table.slices((schema.KEY_COLUMN,), rows):
        keys_of_rows = raw_keys(keys.column(0), first, table.url)
        yield from (row for row, row_key in enumerate(keys_of_rows, first) if row_key is None or row_key == raw)
