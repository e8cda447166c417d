"""`TableDataset`: the samples of a table, or of shards, for torch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torch.utils.data import Dataset

from tartools.storage.url import Name
from tartools.train.batches import Samples
from tartools.train.fields import Chooser, Decode, Fields
from tartools.train.tables import Source, table_of

if TYPE_CHECKING:
    from tartools.tables.bulk import RoomOf


class TableDataset(Dataset[Any]):
    """The samples of *source*, each by its number: a dataset for `torch.utils.data.DataLoader`.

        data = tartools.train.TableDataset("train.parquet", fields=("jpg;png", "cls"), decode="pil")
        picture, label = data[41]

    *source* is the URL of a table or a `tartools.Table`; or the URLs of shards, "train-{000..147}.tar", or of several
    tables: these are read to their ends now, for a table that is held. With *table*, the table of shards is kept at
    this URL; where it is there already, only shards that have changed are read, as by `tarindex --update`. Of several
    ranks the first makes it, and the others take it.

    *fields*, *decode* and *transform* are those of `fields.Chooser`: without them a sample is a dict of `__key__`,
    `__url__` and its fields as bytes.

    A batch is read at once (`__getitems__`, which DataLoader calls): samples near each other are joined, and requests
    are made side by side. It pickles as the table's URL, or with the rows of a table that is held, and may be used in
    forks and other processes.

    Holds: what `tartools.Table` holds, and a batch. Raises: what `tartools.Table` and `Chooser` raise.
    """

    def __init__(
        self,
        source: Source,
        fields: Fields = None,
        decode: Decode = None,
        transform: Any = None,
        *,
        table: Name | None = None,
    ) -> None:
        self.table = table_of(source, table)
        self.chooser = Chooser(fields, decode, transform)

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

    def batch(self, rows: list[int], room_of: RoomOf | None = None) -> Samples | list[Any]:
        """Return the samples of *rows* in one buffer, `room_of(size)` if given; a list of them if that can't be."""
        found = self.table.bulk(rows, room_of, self.chooser.needed)
        return list(map(self.chooser, self.table[rows])) if found is None else Samples(found, self.chooser)
