"""`TableDataset`: the samples of a table for torch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torch.utils.data import Dataset

from tartools.tables.table import Table
from tartools.train.batches import Samples
from tartools.train.fields import Chooser, Decode, Fields

if TYPE_CHECKING:
    from tartools.tables.bulk import RoomOf


class TableDataset(Dataset[Any]):
    """The samples that *table* lists, each by its number: a dataset for `torch.utils.data.DataLoader`.

        data = tartools.train.TableDataset("train.parquet", fields=("jpg;png", "cls"), decode="pil")
        picture, label = data[41]

    *table* is the URL of a table or a `tartools.Table`. *fields*, *decode* and *transform* are those of
    `fields.Chooser`: without them a sample is a dict of `__key__`, `__url__` and its fields as bytes.

    A batch is read at once (`__getitems__`, which DataLoader calls): samples near each other are joined, and requests
    are made side by side. It pickles as the table's URL, and may be used in forks and other processes.

    Holds: what `tartools.Table` holds, and a batch. Raises: what `tartools.Table` and `Chooser` raise.
    """

    def __init__(self, table: str | Table, fields: Fields = None, decode: Decode = None, transform: Any = None) -> None:
        self.table = table if isinstance(table, Table) else Table(table)
        self.chooser = Chooser(fields, decode, transform)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Any:
        return self.chooser(self.table[index])

    def __getitems__(self, indices: Sequence[int] | Iterable[int]) -> list[Any]:
        """Return the samples of the rows *indices*, in this order."""
        return list(self.batch(list(indices)))

    def batch(self, rows: list[int], room_of: RoomOf | None = None) -> Samples | list[Any]:
        """Return the samples of *rows* in one buffer, `room_of(size)` if given; a list of them if that can't be."""
        found = self.table.bulk(rows, room_of, self.chooser.needed)
        return list(map(self.chooser, self.table[rows])) if found is None else Samples(found, self.chooser)
