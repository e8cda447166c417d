"""`Batch`: adjacent samples as the reader finds them, and questions about many samples at once.

A batch answers by columns: where its samples are, and which fields they have. It may hold lists of members, arrays of
offsets and sizes, bytes that are not parsed yet, or rows of a table; only this module and `tables.listed` know which.

    batch.keys, batch.shards          of each sample
    batch.bounds()                    bytes of the shard        | one list of n + 1 numbers for n samples:
    batch.file()                      bytes of a local file     | sample n fills bounds[n] to bounds[n + 1]
    batch.data()                      bytes of a buffer         |
    batch.combinations()              samples with the same fields, with a `FieldColumn` for each field:
        [0].numbers, .keys, .fields
        [0].columns[0]                its sizes, offsets, members, payloads

The bounds differ because a stream may begin within a file, and a buffer within a stream. Usually all samples have the
same fields, so that there is one combination and no loop over samples is needed.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice, pairwise, repeat
from typing import Any, Protocol, TypeGuard, TypeVar

from tartools.samples.fieldcolumns import ArrayColumn, Combination, FileBuffer, group_members, group_samples
from tartools.samples.sample import Sample, sample_in_span
from tartools.tar import (
    BLOCK,
    ContiguousGroups,
    Member,
    ScatteredGroup,
    Source,
    Writer,
    padded_size,
    range_in_file,
    read_range,
)
from tartools.tar.member import Chunk

Label = TypeVar("Label")


class SampleColumns(Protocol):
    """The interface to the values that a table has of samples, by column; no sample is read for them.

    `len()`: number of samples. `url`: of the table. `first`: number in the table of the first sample's row.
    `names`: of all columns of the table.
    `fields`: names of the fields that samples of the table may have; None if it does not list them.
    """

    url: str  # of the table
    first: int  # number of the first row
    names: Sequence[str]  # of all columns of the table
    fields: Sequence[str] | None  # of all samples of the table, if it has them

    def __len__(self) -> int: ...

    def column(self, name: str) -> Any | None:
        """Return the column *name*, a `pyarrow.Array` with a value for each sample; None if there is no such column."""

    def values(self, name: str) -> Sequence[Any] | None:
        """Return the value of the column *name* for each sample, None for null; None if there is no such column.

        `__key__`: the keys; None also if a key is null. `__shard__`: URLs as they are shown. `__size__`: bytes of the
        samples, which the table has in other columns. Raises: StorageError for invalid values.
        """

    def members(self) -> tuple[list[str], Any, Any] | None:
        """Return (fields, offsets, sizes): names, and int64 arrays with a row for each sample, a column for each field.

        Offsets and sizes are in bytes. An offset is of the payload in its shard; -1 for an absent field, -2 for one
        that is there twice; the size is 0 then. None if the table does not list members. Raises: StorageError if an
        offset or size is not a whole number.
        """

    def members_in_set(self, number: int) -> tuple[list[str], Any, Any] | None:
        """Return (fields, offsets, sizes) of the members in set *number*, from 1 on, of the shards of a joined table.

        Names, and two int64 arrays with a row for each sample and a column for each field, in bytes; an offset is -1
        for an absent field, -2 for one that is there twice; the size is 0 then. None if the table does not list members
        of such a set. Raises: StorageError if an offset or size is not a whole number.
        """

    def lacks_field(self, field: str) -> bool:
        """True if the table says that no sample has *field*, ignoring case; False also if it does not say."""


class Batch:
    """Samples that are adjacent in a buffer or file, mostly from one shard, or one sample that stands alone.

    `keys`: of the samples, as bytes. `columns`: `SampleColumns`, if rows of a table list the samples; None if they were
    read.
    `shard`: the URL that all were read from; "" if *shard* has one URL for each of them: then see `shards`.
    *content*: groups from the reader, or one sample: a `ScatteredGroup`, which is one group, or a `Sample`.
    `len()`: number of samples. Iteration and `batch[number]`, from 0 on, return `Sample` objects.
    Holds: the buffer or file that the samples are in.
    """

    __slots__ = ("_groups", "_lone", "_offset", "_shards", "keys", "shard")

    keys: Sequence[bytes]
    columns: SampleColumns | None = None  # the values that a table has of the samples; None if they were read

    def __init__(self, content: ContiguousGroups | ScatteredGroup | Sample, shard: str | Sequence[str]) -> None:
        self.shard = shard if isinstance(shard, str) else ""
        self._shards = None if isinstance(shard, str) else shard
        self._groups: ContiguousGroups | None = None
        self._offset: int | None = None  # of a lone sample in its shard, if it is in one piece there
        if isinstance(content, ContiguousGroups):
            self._groups, self.keys = content, content.keys
            return
        if isinstance(content, ScatteredGroup):
            self._offset = content.offset
            content = Sample(content.key, content.members, self.shard)
        self._lone, self.keys = content, [content.raw_key]

    @classmethod
    def from_sample(cls, sample: Sample, begin: int | None = None) -> Batch:
        """Return a batch of *sample* alone.

        *begin*: the byte of its shard at which it begins; None if unknown, or if its members are not in one piece
        there.
        """
        batch = cls(sample, sample.shard)
        batch._offset = begin
        return batch

    @classmethod
    def from_buffer(cls, data: bytes, keys: Sequence[bytes], bounds: list[int], shard: str | Sequence[str]) -> Batch:
        """Return a batch of the samples *keys*, adjacent in *data*: sample n fills `bounds[n]` to `bounds[n + 1]`.

        Their members are parsed on first use. *shard*: the URL of all, or one for each.
        """
        return cls(ContiguousGroups(data, list(keys), bounds, None, []), shard)

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Sample]:
        if self._groups is None:
            return iter((self[0],))
        source, keys, starts, members, firsts, uniform = self._groups
        if uniform is not None:
            members, firsts = uniform.members(source, keys), uniform.first_indexes()
        shards = repeat(self.shard) if self._shards is None else self._shards
        lists = repeat(None) if members is None else map(members.__getitem__, map(slice, firsts, [*firsts[1:], None]))
        return map(sample_in_span, keys, shards, lists, repeat(source), starts, islice(starts, 1, None))

    def __getitem__(self, number: int) -> Sample:
        if self._groups is None:
            return self._lone
        source, keys, starts, *_ = self._groups
        shard = self.shard if self._shards is None else self._shards[number]
        return sample_in_span(keys[number], shard, None, source, starts[number], starts[number + 1])

    @property
    def shards(self) -> Sequence[str]:
        """The URLs of the shards of the samples: one for each sample, or a single one if all are from one shard."""
        return (self.shard,) if self._shards is None else self._shards

    # ---- where the samples are ----

    def bounds(self) -> list[int] | None:
        """Return the offset in the shard at which each sample begins, and the one at which the last ends.

        None if that is unknown: the samples are not adjacent in their shard, have other headers than there, or are in a
        buffer or scratch file that the reader did not fill from it.
        """
        if self._groups is not None:
            source, starts = self._groups.source, self._groups.starts
            if isinstance(source, Chunk):
                base = source.base
                return [start + base for start in starts] if base else starts
            return starts if _is_input(source) else None
        begin = self._offset
        if begin is None:
            members = self._lone.members
            is_contiguous = all(a.source is b.source and a.end == b.start for a, b in pairwise(members))
            has_own_headers = all(member.head is None for member in members)
            if not (members and is_contiguous and has_own_headers and _is_input(members[0].source)):
                return None
            begin = members[0].start
        return [begin, begin + self._lone.size]

    def member_begins(self) -> Any:
        """Return the offset in the shard at which each member begins, an array of int64, sample by sample.

        Only right if `bounds` does not return None; for one sample that stands alone, only if its begin was given.
        Members that the reader did not list are parsed for this.
        """
        import numpy as np

        groups = self._groups
        if groups is not None and groups.uniform is not None:
            begins = groups.uniform.begins.ravel()
            return begins + groups.source.base if isinstance(groups.source, Chunk) else begins
        if groups is None:
            sizes = [member.end - member.start for member in self._lone.members]
            return (self._offset or 0) + np.cumsum([0, *sizes[:-1]])
        members = groups.members
        if members is None:
            members = [member for sample in self for member in sample.members]
        sources = {id(member[1]): member[1] for member in members}
        bases = {name: source.base if isinstance(source, Chunk) else 0 for name, source in sources.items()}
        return np.fromiter((member[2] + bases[id(member[1])] for member in members), np.int64, len(members))

    def file(self) -> tuple[io.FileIO, list[int]] | None:
        """Return (file, bounds) if one plain local file has all samples: sample n fills `bounds[n]` to `bounds[n + 1]`.

        None if no plain local file has all of them, and for one sample that stands alone. Bounds are offsets in the
        file; it may be a file from which samples in memory were read.
        """
        if self._groups is None:
            return None
        file, shift, _ = range_in_file(self._groups.source, 0, 0)
        if not _is_input(file):
            return None
        starts = self._groups.starts
        return file, [start + shift for start in starts] if shift else starts

    def data(self) -> tuple[memoryview, list[int]] | None:
        """Return (bytes, bounds) of all samples: sample n fills `bounds[n]` to `bounds[n + 1]` of the bytes.

        There may be other bytes before and behind the samples. Samples in a file are read into memory. None for one
        sample that stands alone. Raises: StorageError if a file has changed.
        """
        if self._groups is None:
            return None
        source, starts = self._groups.source, self._groups.starts
        if not isinstance(source, io.FileIO):
            return memoryview(source), starts
        return memoryview(read_range(source, starts[0], starts[-1])), [start - starts[0] for start in starts]

    def stored_size(self) -> int:
        """Return the bytes that the samples take where they were read: headers, payloads, padding.

        A sample that is written may take more: see `Sample.size`; a new header counts as 512 bytes here.
        """
        if self._groups is not None:
            return self._groups.starts[-1] - self._groups.starts[0]
        return sum(padded_size(m.size) + (m.data - m.start if m.head is None else BLOCK) for m in self._lone.members)

    def stored_sizes_by_shard(self) -> dict[str, list[int]]:
        """Return URL -> [number of samples, bytes] for each shard that the samples were read from."""
        if len(self.shards) == 1:
            return {self.shards[0]: [len(self), self.stored_size()]}
        totals: dict[str, list[int]] = {}
        for sample in self:
            shard_totals = totals.setdefault(sample.shard, [0, 0])
            shard_totals[0] += 1
            shard_totals[1] += sample.size
        return totals

    # ---- what the samples have ----

    def combinations(self) -> list[Combination]:
        """Return the samples grouped by their fields, a `Combination` for each group, in order of appearance."""
        if self._groups is None:
            bounds = self.bounds()
            return group_members(self.keys, self._lone.members, [0], begin=bounds[0] if bounds else None)
        source, keys, starts, members, firsts, uniform = self._groups
        buffer = FileBuffer(source, starts[0], starts[-1]) if isinstance(source, io.FileIO) else None
        if uniform is not None:
            columns = [ArrayColumn(self._groups, number, buffer) for number in range(uniform.width)]
            return [Combination(range(len(keys)), keys, columns)]
        return group_samples(self) if members is None else group_members(keys, members, firsts, buffer)

    def with_known_fields(self) -> Iterator[Batch]:
        """Yield the samples in batches whose fields are known without reading a sample: here this batch itself.

        A batch of table rows overrides this: it reads the samples whose fields its rows do not list.
        """
        yield self

    def member_lists(self, first: int) -> Iterator[tuple[bytes, str, Sequence[Member]]]:
        """Yield (key, shard URL, members) for each sample from number *first* of the batch on.

        Members may be plain tuples with the items of `Member`.
        """
        groups = self._groups
        if groups is None or groups.members is None:
            return (
                (sample.raw_key, sample.shard, sample.members)
                for sample in map(self.__getitem__, range(first, len(self)))
            )
        firsts = groups.firsts[first:]
        lists = map(groups.members.__getitem__, map(slice, firsts, [*firsts[1:], None]))
        shards = repeat(self.shard) if self._shards is None else self._shards[first:]
        return zip(groups.keys[first:], shards, lists, strict=False)

    # ---- parts of it ----

    def count_fitting(self, first: int, max_bytes: int) -> int:
        """Return how many samples, from number *first* on, fit into *max_bytes* bytes of members; it may be 0."""
        if self._groups is None:
            return int(self[0].size <= max_bytes)
        from bisect import bisect_right

        starts = self._groups.starts
        return bisect_right(starts, starts[first] + max_bytes, first) - 1 - first

    def memory_size(self, first: int, last: int) -> int:
        """Return the bytes of samples *first* to *last* (exclusive) in memory, or in the file that has them."""
        return self[0].size if self._groups is None else self._groups.starts[last] - self._groups.starts[first]

    def split(self, labels: Sequence[Label], skipped: Label | None = None) -> Iterator[tuple[Label, Batch, int, int]]:
        """Yield (label, batch, first, last) for each run of equal *labels*, except for the label *skipped*.

        *labels* has one for each sample; a run is samples `first` to `last` (exclusive) of `batch`, which is this
        batch; a batch of table rows yields batches that it reads. If *skipped* is None, runs with the label None are
        skipped.
        """
        for first, last, label in runs_of_labels(labels):
            if label != skipped:
                yield label, self, first, last

    def write_to(self, writer: Writer, first: int, last: int) -> None:
        """Add samples number *first* to *last* (exclusive) to *writer*, with their bytes as they are.

        Raises: the errors of writing, and StorageError if a file has changed; perhaps only when *writer* is flushed.
        """
        if self._groups is None:
            self[0].write_to(writer)
        else:
            writer.add_range(self._groups.source, self._groups.starts[first], self._groups.starts[last])


def _is_input(source: Source) -> TypeGuard[io.FileIO]:
    """True if *source* is a plain input file; False for a buffer, and for a scratch file, which is writable."""
    return isinstance(source, io.FileIO) and not source.writable()


def runs_of_labels(labels: Iterable[Label]) -> Iterator[tuple[int, int, Label]]:
    """Yield (begin, end, label) for each run of equal *labels*; end is exclusive.

    >>> list(runs_of_labels([True, True, False]))
    [(0, 2, True), (2, 3, False)]
    """
    first = 0
    for label, same in groupby(labels):
        last = first + sum(1 for _ in same)
        yield first, last, label
        first = last
