"""`Batch`: adjacent samples as the reader finds them, and questions about many samples at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice, repeat
from typing import TypeVar

from tartools.samples.sample import Sample, sample_in_span
from tartools.tar import ContiguousGroups, ScatteredGroup, Writer

Label = TypeVar("Label")


class Batch:
    """Adjacent samples from one reader call: contiguous *groups* in one source, or one other sample.

    Groups hold lists of members, arrays of members (all samples have the same fields), or extents alone. Tables have
    subclasses: `ListedBatch` holds rows of a table, and reads shards when members are asked for.
    *shard* is the URL that they were read from; if they come from several, one URL for each is given. Of a sample that
    is not contiguous in memory, *offset* is the byte of the shard at which it begins; None if it is not in one piece.
    `Sample` objects are made on demand. Holds: the source.
    """

    __slots__ = ("_lone", "_shards", "groups", "keys", "offset", "shard")

    def __init__(self, content: ContiguousGroups | ScatteredGroup | Sample, shard: str | Sequence[str]) -> None:
        self.shard = shard if isinstance(shard, str) else ""
        self._shards = None if isinstance(shard, str) else shard
        self.groups: ContiguousGroups | None = None
        self.offset: int | None = None
        if isinstance(content, ContiguousGroups):
            self.groups, self.keys = content, content.keys
            return
        if isinstance(content, ScatteredGroup):
            self.offset = content.offset
            content = Sample(content.key, content.members, self.shard)
        self._lone, self.keys = content, [content.raw_key]

    @classmethod
    def of(cls, sample: Sample) -> Batch:
        """Return a batch of *sample* alone."""
        return cls(sample, sample.shard)

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Sample]:
        if self.groups is None:
            return iter((self[0],))
        source, keys, starts, members, firsts, alike = self.groups
        if alike is not None:
            members, firsts = alike.members(source, keys), alike.firsts()
        shards = repeat(self.shard) if self._shards is None else self._shards
        lists = repeat(None) if members is None else map(members.__getitem__, map(slice, firsts, [*firsts[1:], None]))
        return map(sample_in_span, keys, shards, lists, repeat(source), starts, islice(starts, 1, None))

    def __getitem__(self, number: int) -> Sample:
        if self.groups is None:
            return self._lone
        source, keys, starts, *_ = self.groups
        shard = self.shard if self._shards is None else self._shards[number]
        return sample_in_span(keys[number], shard, None, source, starts[number], starts[number + 1])

    @property
    def shards(self) -> Sequence[str]:
        """The URLs of the shards that the samples were read from: one for all of them, or one for each."""
        return (self.shard,) if self._shards is None else self._shards

    def fitting(self, first: int, room: int) -> int:
        """Return the number of samples, from number *first* on, that fit into *room* bytes of an archive."""
        if self.groups is None:
            return int(self[0].size <= room)
        from bisect import bisect_right

        starts = self.groups.starts
        return bisect_right(starts, starts[first] + room, first) - 1 - first

    def weight(self, first: int, last: int) -> int:
        """Return the bytes of memory that hold samples *first* to *last* (exclusive)."""
        return self[0].size if self.groups is None else self.groups.starts[last] - self.groups.starts[first]

    def apart(self, labels: Sequence[Label], skipped: Label | None = None) -> Iterator[tuple[Label, Batch, int, int]]:
        """Yield (label, batch, first, last) for each run of equal *labels*, except for the label *skipped*.

        *labels* has one for each sample; a run is samples *first* to *last* (exclusive) of the batch.
        """
        for first, last, label in runs_of_labels(labels):
            if label != skipped:
                yield label, self, first, last

    def write_to(self, writer: Writer, first: int, last: int) -> None:
        """Add samples number *first* to *last* (exclusive) to *writer*."""
        if self.groups is None:
            self[0].write_to(writer)
        else:
            writer.add_range(self.groups.source, self.groups.starts[first], self.groups.starts[last])


def runs_of_labels(labels: Iterable[Label]) -> Iterator[tuple[int, int, Label]]:
    """Yield begin, end (exclusive) and value of each run of equal *labels*.

    >>> list(runs_of_labels([True, True, False]))
    [(0, 2, True), (2, 3, False)]
    """
    first = 0
    for label, same in groupby(labels):
        last = first + sum(1 for _ in same)
        yield first, last, label
        first = last
