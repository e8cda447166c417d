"""`TableDataset`: the samples of a table, or of shards, for torch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from torch.utils.data import Dataset

from tartools import storage
from tartools.errors import ExistsError
from tartools.samples.account import Account
from tartools.shards import updating
from tartools.shards.reading import Reading
from tartools.shards.shardrows import Indexing, TableDestination, listed, row_batches, rows_at
from tartools.shards.writing import write_batches
from tartools.storage.expand import expand
from tartools.storage.url import Name, name_of, names_of
from tartools.tables import schema, unified
from tartools.tables.table import Table
from tartools.tar.compression import is_table
from tartools.train.fieldchooser import Decode, FieldChooser, Fields
from tartools.train.tablebatch import TableBatch

if TYPE_CHECKING:
    from tartools.tables.bulk import RoomOf

TableSource = Name | Iterable[Name] | Table
INDEXING = Indexing(Reading(), 1)  # no other process


class TableDataset(Dataset[Any]):
    """The samples of *source*, each by its number: a dataset for `torch.utils.data.DataLoader`.

        data = tartools.train.TableDataset("train.parquet", fields=("jpg;png", "cls"), decode="pil")
        picture, label = data[41]

    *source* is the URL of a table or a `tartools.Table`; or the URLs of shards, "train-{000..147}.tar", or of several
    tables: these are read to their ends now, for a table that is held. With *table*, the table of shards is kept at
    this URL; where it is there already, only shards that have changed are read, as by `tarindex --update`. Of several
    ranks the first makes it, and the others take it.

    *fields*, *decode* and *transform* are those of `FieldChooser`: without them a sample is a dict of `__key__`,
    `__url__` and its fields as bytes.

    A batch is read at once (`__getitems__`, which DataLoader calls): samples near each other are joined, and requests
    are made side by side. It pickles as the table's URL, or with the rows of a table that is held, and may be used in
    forks and other processes.

    Holds: what `tartools.Table` holds, and a batch. Raises: what `tartools.Table` and `FieldChooser` raise.
    """

    def __init__(
        self,
        source: TableSource,
        fields: Fields = None,
        decode: Decode = None,
        transform: Any = None,
        *,
        table: Name | None = None,
    ) -> None:
        self.table = table_of(source, table)
        self.chooser = FieldChooser(fields, decode, transform)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Any:
        return self.chooser(self.table[index])

    def __getitems__(self, indices: Sequence[int] | Iterable[int]) -> list[Any]:
        """Return the samples of the rows *indices*, in this order."""
        return list(self.batch(list(indices)))

    def digest(self) -> str:
        """Return what tells these samples, in their order, from others: that of the table."""
        return self.table.digest()

    def batch(self, rows: list[int], buffer_of: RoomOf | None = None) -> TableBatch | list[Any]:
        """Return the samples of *rows* in one buffer, `buffer_of(size)` if given; a list of them if that can't be."""
        found = self.table.bulk(rows, buffer_of, self.chooser.needed)
        return list(map(self.chooser, self.table[rows])) if found is None else TableBatch(found, self.chooser)


def table_of(source: TableSource, kept: Name | None = None) -> Table:
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
        order = "batch_sampler=StatefulSampler(data, batch_size=64)"
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
