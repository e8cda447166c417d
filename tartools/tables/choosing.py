"""Single samples of tables, by number and by key: only theirs are read of the shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

from tartools.errors import TarFormatError
from tartools.samples.account import Account
from tartools.samples.sample import Sample
from tartools.tables import schema, source
from tartools.tables.rowplaces import Listing
from tartools.tables.tablesamples import COLUMNS, Shards


def chosen(urls: Sequence[str], account: Account, place: int | None, key: str | None) -> Iterator[tuple[int, Sample]]:
    """Yield number and sample of the rows of the tables *urls* that have number *place* and *key*, if they are given.

    Rows are counted through all tables. Rows whose keys the table does not tell are among them. Each sample is read
    when it is its turn, from a server by one request. In *account* are the rows that were looked at.

    Holds: a row group of keys and places.
    Raises: StorageError if a sample is not as its row says; TarFormatError for a damaged table.
    """
    before = 0  # rows of earlier tables
    for url in urls:
        with source.opened(url) as table:
            listing = Listing(url)
            with closing(Shards(listing, account)) as shards:
                for group, first, count in table.groups():
                    account.samples_in = before + first
                    for row in _rows(table, group, count, None if place is None else place - before - first, key):
                        account.samples_in = before + first + row + 1
                        at = 0
                        for rows in table.batches(COLUMNS, groups=[group]):
                            if at <= row < at + len(rows):
                                only = listing.piece(rows.slice(row - at, 1), first + row)
                                for batch in shards.samples(only):
                                    yield before + first + row, batch[0]
                            at += len(rows)
                    account.samples_in = before + first + count
                    if place is not None and place < account.samples_in:
                        account.samples_in = place + 1
                        return
            before += table.rows
            account.shards_done += 1


def _rows(table: source.ParquetSource, group: int, count: int, place: int | None, key: str | None) -> Iterator[int]:
    """Yield the numbers in row group *group*, of *count* rows, of those with *place* and perhaps *key*, in order."""
    if place is not None and not 0 <= place < count:
        return
    if key is None or schema.KEY not in table.names:
        yield from range(count) if place is None else (place,)
        return
    raw, at = key.encode("utf-8", "surrogateescape"), 0
    for rows in table.batches((schema.KEY,), groups=[group]):
        found = schema.raw(rows.column(0)).to_pylist()
        for row in [row for row, each in enumerate(found, at) if each is None or each == raw]:
            if place in (None, row):
                yield row
        at += len(rows)
    if at != count:
        raise TarFormatError(f"this table is damaged: a row group has {at} of {count} rows", url=table.url)
