"""The rows of samples: where each sample and each of its members are in the shard.

Rows travel in blocks of bytes, from the process that reads a shard to the one that writes the table.
"""

from __future__ import annotations

import marshal
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tartools.samples.places import begin_of, payloads_of
from tartools.samples.sample import Batch, Sample
from tartools.tar import BLOCK, ContiguousGroups, split_path
from tartools.tar.member import Chunk

ROWS = 1 << 13  # in a block
ABSENT = -1  # offset of a member that a sample lacks

TWICE = -2  # offset of a field that a sample has more than once, so that its name does not say which is meant

Fact = tuple[str, str]  # a column of facts: its name, and its kind; "" for one that its values show (see `kinds`)
Facts = Callable[[Batch], Iterable[Mapping[Fact, object]]]


class RowBlock:
    """Rows of adjacent samples of one *shard*: keys, bytes *begins* to *ends*, and members by field."""

    def __init__(self, shard: str) -> None:
        self.shard = shard
        self.keys: list[bytes] = []
        self.begins = array("q")
        self.ends = array("q")
        self.offsets: dict[bytes, array[int]] = {}  # of payloads, by field; ABSENT or TWICE
        self.sizes: dict[bytes, array[int]] = {}
        self.facts: dict[Fact, list[object]] = {}

    def __len__(self) -> int:
        return len(self.keys)

    def packed(self) -> bytes:
        """Return the block as bytes for `unpacked`."""
        self._fill()
        for values in self.facts.values():
            values.extend([None] * (len(self) - len(values)))
        places = {field: (found.tobytes(), self.sizes[field].tobytes()) for field, found in self.offsets.items()}
        return marshal.dumps(
            (str(self.shard), self.keys, self.begins.tobytes(), self.ends.tobytes(), places, self.facts)
        )

    def columns(self) -> Iterator[tuple[bytes, Any, Any]]:
        """Yield each field with the offsets and the sizes of its payloads: numpy arrays, with an item for each row."""
        import numpy as np

        self._fill()
        for field, offsets in self.offsets.items():
            yield field, np.frombuffer(offsets, np.int64), np.frombuffer(self.sizes[field], np.int64)

    def _fill(self) -> None:
        """Note that the last rows lack the fields that were not added to them."""
        for columns, missing in ((self.offsets, ABSENT), (self.sizes, 0)):
            for column in columns.values():
                column.extend([missing] * (len(self) - len(column)))

    def add(self, batch: Batch) -> None:
        """Add the samples of *batch*. Raises: SampleError if one of them can't be read alone."""
        groups = batch.groups
        if groups is None or not (self._add_arrays(groups) if groups.alike is not None else self._add_lists(groups)):
            for number, sample in enumerate(batch):
                self.add_sample(sample, begin_of(sample, batch, number))

    def add_facts(self, found: Iterable[Mapping[Fact, object]], first: int) -> None:
        """Add what was *found* of samples number *first* and on; what is not found of a sample is null."""
        for number, values in enumerate(found, first):
            for fact, value in values.items():
                column = self.facts.setdefault(fact, [])
                column.extend([None] * (number - len(column)))
                column.append(value)

    def _add_arrays(self, groups: ContiguousGroups) -> bool:
        """Add *groups*, whose members are in arrays, if none lacks a field or has it twice; tell whether that is so."""
        alike = groups.alike
        fields = [behind[1:] for behind in alike.behind]
        if not all(fields) or len(set(fields)) < alike.each:
            return False
        payloads = alike.begins + BLOCK + base_of(groups)
        for number, field in enumerate(fields):
            offsets, sizes = self._columns(field)
            offsets.frombytes(payloads[:, number].tobytes())
            sizes.frombytes(alike.sizes[:, number].tobytes())
        self._add_places(groups)
        return True

    def _add_lists(self, groups: ContiguousGroups) -> bool:
        """Add *groups* if all have the same fields in the same order, and members are listed; tell whether so."""
        source, keys, _, members, firsts, _ = groups
        if members is None:
            return False
        width = len(members) // len(keys)
        shift = base_of(groups)
        if len(members) != width * len(keys) or firsts[-1] != len(members) - width:
            return False
        fields = [member[0][len(keys[0]) + 1 :] for member in members[:width]]
        if not all(fields) or len(set(fields)) < width:
            return False
        for number, field in enumerate(fields):
            ending = b"." + field
            if [member[0] for member in members[number::width]] != [key + ending for key in keys]:
                return False
        for number, field in enumerate(fields):
            offsets, sizes = self._columns(field)
            offsets.extend([member[3] + shift for member in members[number::width]])
            sizes.extend([member[4] for member in members[number::width]])
            origin = members[number][1]  # of the first sample, a part may be in the buffer before
            if origin is not source and isinstance(origin, Chunk):
                offsets[-len(keys)] = members[number][3] + origin.base
        self._add_places(groups)
        return True

    def _add_places(self, groups: ContiguousGroups) -> None:
        """Add the keys of *groups*, and where they are."""
        shift, starts = base_of(groups), groups.starts
        self.keys += groups.keys
        self.begins.extend([start + shift for start in starts[:-1]] if shift else starts[:-1])
        self.ends.extend([start + shift for start in starts[1:]] if shift else starts[1:])

    def _columns(self, field: bytes) -> tuple[array[int], array[int]]:
        """Return offsets and sizes of *field*, filled up to the rows that there are."""
        offsets, sizes = self.offsets.setdefault(field, array("q")), self.sizes.setdefault(field, array("q"))
        if len(offsets) < len(self.keys):
            offsets.extend([ABSENT] * (len(self.keys) - len(offsets)))
            sizes.extend([0] * (len(self.keys) - len(sizes)))
        return offsets, sizes

    def add_sample(self, sample: Sample, begin: int) -> None:
        """Add *sample*, which is in the shard from byte *begin* on."""
        seen: set[bytes] = set()
        for member, data in payloads_of(sample, begin):
            field = split_path(member.path)[1]
            if field and field not in seen:
                offsets, sizes = self._columns(field)
                offsets.append(data)
                sizes.append(member.size)
            elif field:
                self.offsets[field][-1] = TWICE
            seen.add(field)
        self.keys.append(sample.raw_key)
        self.begins.append(begin)
        self.ends.append(begin + sum(member.stored for member in sample.members))


def base_of(groups: ContiguousGroups) -> int:
    """Return the byte of the shard at which the source of *groups* begins."""
    return groups.source.base if isinstance(groups.source, Chunk) else 0


def blocks(batches: Iterable[Batch], facts: Facts | None = None) -> Iterator[bytes]:
    """Yield the rows of the samples of *batches* in blocks for `unpacked`, in order.

    *facts* gives the values of the samples of a batch for further columns. Holds: 8,192 rows.
    Raises: SampleError if a sample is not in one piece with its own headers.
    """
    block: RowBlock | None = None
    for batch in batches:
        if block is not None and (batch.shard != block.shard or len(block) >= ROWS):
            yield block.packed()
            block = None
        block = block or RowBlock(batch.shard)
        first = len(block)
        block.add(batch)
        if facts is not None:
            block.add_facts(facts(batch), first)
    if block is not None:
        yield block.packed()
