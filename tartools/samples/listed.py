"""Samples that a table lists, with what the table has of them; they are read only if they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from tartools.samples.sample import Batch, Sample
from tartools.tar import Writer

if TYPE_CHECKING:
    from tartools.samples.columns import Columns


class Listed(Batch):
    """*count* samples whose values *columns* has. *read* gives the samples themselves, in batches, each time anew."""

    __slots__ = ("_count", "_read", "columns")

    def __init__(self, columns: Columns, count: int, read: Callable[[], Iterator[Batch]]) -> None:
        self.columns = columns
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
        return next(islice(self, number, None))

    def batches(self) -> Iterator[Batch]:
        """Yield the samples as they are read."""
        return self._read()

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
