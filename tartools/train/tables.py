"""What a dataset is given, a table or shards, as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from tartools import storage
from tartools.errors import ExistsError
from tartools.samples.account import Account
from tartools.shards import updating
from tartools.shards.listing import Indexing, TableDestination, listed, row_batches, rows_at
from tartools.shards.reading import Reading
from tartools.shards.writing import write_batches
from tartools.storage.names.expand import expand
from tartools.storage.url import Name, name_of, names_of
from tartools.tables import schema, unified
from tartools.tables.table import Table
from tartools.tar.compression import is_table

Source = Name | Iterable[Name] | Table
INDEXING = Indexing(Reading(), 1)  # no other process


def table_of(source: Source, kept: Name | None = None) -> Table:
    """Return *source* as a table: itself, or that of all samples of the shards and tables that it names, in order.

    Shards are read to their ends for that, and the table is held. With *kept*, which goes with shards alone, it is
    written to this URL; if it is there, only shards that have changed are read, as by `tarindex --update`. Of several
    processes, such as the ranks of a run, the first makes it, and the others take it.

    Raises: StorageError, TarFormatError; UsageError for stdin and commands, and for shards that are compressed.
    """
    if isinstance(source, Table):
        if kept is not None:
            raise ValueError("this is a table already: its method write keeps it")
        return source
    urls = expand(names) if (names := [*filter(None, _names(source))]) else []
    if not urls:
        raise ValueError("no shard and no table is named")
    if kept is not None:
        kept = name_of(kept)
        with storage.alone(kept):
            return _kept(urls, kept)
    if len(urls) == 1 and is_table(urls[0]):
        return Table(urls[0])
    inputs = listed(urls, Account(), INDEXING)
    names = [name for name in inputs.schema.names if name != schema.MEMBERS]
    pa = schema.arrow()
    columns = pa.schema([inputs.schema.field(name) for name in names])
    rows = pa.Table.from_batches(inputs.batches(names), columns)
    return Table.from_arrow(unified.table_rows(rows, inputs.shards.since(0)))


def _names(source: Any) -> list[str]:
    """Return the URLs that *source* is. Raises: TypeError for another dataset, which says what reads it."""
    if hasattr(source, "__getitem__") and not isinstance(source, Iterable):
        order = "batch_sampler=Order(data, batch_size=64)"
    elif hasattr(source, "set_epoch"):
        order = "batch_size=64"
    else:
        return names_of(source)
    kind = type(source).__name__
    raise TypeError(
        f"a table, shards or a TableDataset are expected, not {kind}, which DataLoader(data, {order}) reads"
    )


def _kept(urls: Sequence[str], kept: str) -> Table:
    """Return the table *kept* of the shards *urls*; make it, or make it anew, if it is not that."""
    if found := [url for url in urls if is_table(url)]:
        raise ValueError(f"table= keeps the table of shards, and this is a table: {found[0]}")
    if not storage.exists(kept):
        inputs = listed(urls, Account(), INDEXING)
        with suppress(ExistsError):  # a rank on another machine was faster: its table is looked at
            write_batches(row_batches(inputs), TableDestination(kept, False, lambda: inputs), Account())
            return Table(kept)
    import numpy as np

    update = updating.updated(urls, kept, Account(), INDEXING)
    table = Table(kept)
    rows = np.fromiter(update.rows, np.int64)
    if np.array_equal(rows, np.arange(len(table))):
        return table
    anew = rows_at(update.inputs, rows.tolist(), None)
    write_batches(anew, TableDestination(kept, True, lambda: update.inputs), Account())
    return Table(kept)
