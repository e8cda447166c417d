"""Samples that a table lists, with what the table has of them; they are read only if they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from tartools.samples.sample import Batch, Label, Sample
from tartools.tar import Writer

if TYPE_CHECKING:
    from tartools.samples.columns import Columns


class ListedBatch(Batch):
    """*count* samples whose values *columns* has. `read(numbers)` gives some, in batches; the numbers ascend."""

    __slots__ = ("_count", "_read", "columns")
    columns: Columns

    def __init__(self, columns: Columns, count: int, read: Callable[[Sequence[int]], Iterator[Batch]]) -> None:
        self.columns: Columns = columns
        self._count = count
        self._read = read
        self._shards = self.groups = self._lone = self.offset = None
        self.shard = ""

    @property
    def keys(self) -> list[bytes]:  # type: ignore[override]  # the others have them
        """The keys of the samples."""
        return [sample.raw_key for sample in self]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sample]:
        for batch in self.batches():
            yield from batch

    def __getitem__(self, number: int) -> Sample:
        (batch,) = self.batches(number, number + 1)
        return batch[0]

    def batches(self, first: int = 0, last: int | None = None) -> Iterator[Batch]:
        """Yield samples number *first* to *last* (exclusive; None: to the end) as they are read, each time anew."""
        return self._read(range(first, self._count if last is None else last))

    def apart(self, labels: Sequence[Label], skipped: Label | None = None) -> Iterator[tuple[Label, Batch, int, int]]:
        """As `Batch.apart`; those *skipped* are not read."""
        numbers = [number for number, label in enumerate(labels) if label != skipped]
        at = 0
        for few in self._read(range(len(self)) if len(numbers) == len(self) else numbers):
            yield from few.apart([labels[number] for number in numbers[at : at + len(few)]])
            at += len(few)

    def fitting(self, first: int, room: int) -> int:
        """Return how many samples, from number *first* on, fit into *room* bytes of an archive."""
        fitting = 0
        for sample in islice(self, first, None):
            room -= sample.size
            if room < 0:
                break
            fitting += 1
        return fitting

    def write_to(self, writer: Writer, first: int, last: int) -> None:
        """Add samples number *first* to *last* (exclusive) to *writer*."""
        for sample in islice(self, first, last):
            sample.write_to(writer)


def keys_of(batch: Batch) -> Sequence[bytes]:
    """Return the keys of *batch*; of samples that a table lists, those in the table, if it has them."""
    known = None if batch.columns is None else batch.columns.values("__key__")
    return batch.keys if known is None else [key.encode("utf-8", "surrogateescape") for key in known]
