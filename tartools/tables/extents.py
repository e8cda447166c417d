"""The extents of samples in shards, for rows of a table, as arrays; and values of columns as arrays.

Row n of `Extents` is the sample in bytes `begins[n]` to `ends[n]` of the shard with the number `numbers[n]`, which a
`ShardCatalog` gave it:

    row      0     1     2       3       <- `first` + n, for messages; `rows` if rows are in another order
    numbers  0     0     0       7
    bytes    |--0--|--1--|       |--3--|
                         |--2--|         <- 0, 1 and 2 are adjacent: one of `runs`, read together

Rows of a joined table have extents in several sets of shards: `others` are those in the second and further sets.
`parts` is the same as one list, in the order in which the members of a copy would be:

    set 1   |--0--|--1--|           set 2   |-1-|-0-|            parts   0 of 1, 0 of 2, 1 of 1, 1 of 2
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple
from zlib import crc32

from tartools.storage.streams import Stream
from tartools.tables import schema
from tartools.tar.compression import PrependedStream

MAX_OFFSET = (1 << 63) - 1  # bytes of a shard
UNKNOWN_KEY = 0  # in place of the checksum of the key, for a row that has none


@dataclass
class Extents:
    """The places of samples in shards, with an item for each row: numpy arrays of shard numbers, begins and ends.

    `numbers`: of the shards in a catalog (int32). `begins`, `ends`: bytes of the shard (int64); both
        are 0 for a part that `with_parts` has left out.
    `keys`: of the samples, as bytes; None if they are unknown, or not to be compared.
    `first`: number of the first row in the table; the others follow by one, unless `rows` has the row numbers.
    `others`: extents of the same rows in further sets of shards, without keys and row numbers; where a sample has no
        part in that set, begin and end are 0, and the number of the shard means nothing.
    """

    first: int
    numbers: Any
    begins: Any
    ends: Any
    keys: list[bytes] | None = None
    rows: Any = None
    others: tuple[Extents, ...] = ()

    def __len__(self) -> int:
        return len(self.begins)

    @property
    def sizes(self) -> Any:
        """The bytes of each sample in its shards, an array; of a sample with parts in several sets their sum."""
        sizes = self.ends - self.begins
        for further_set in self.others:
            sizes = sizes + (further_set.ends - further_set.begins)
        return sizes

    @property
    def size(self) -> int:
        """The sum of the sizes of all samples, in bytes."""
        return int(self.sizes.sum())

    @property
    def sets(self) -> tuple[Extents, ...]:
        """The extents in each set of shards, set by set; each has the keys and row numbers, and no further sets."""
        return replace(self, others=()), *(
            replace(set_extents, keys=self.keys, rows=self.rows) for set_extents in self.others
        )

    @property
    def parts(self) -> Extents:
        """The extents of the parts of all samples, a row for each part that exists: sample by sample, then set by set.

        Each has the key and row number of its sample. Without further sets these are the extents themselves.
        """
        return self.parts_and_sets()[0] if self.others else self

    def parts_and_sets(self) -> tuple[Extents, Any, Any]:
        """Return (`parts`, samples, sets): for each part the index of its sample and the index of its set.

        Both are arrays of integers from 0 on.
        """
        import numpy as np

        sets = (self, *self.others)
        columns = (
            [set_extents.numbers for set_extents in sets],
            [set_extents.begins for set_extents in sets],
            [set_extents.ends for set_extents in sets],
        )
        numbers, begins, ends = (np.stack(column, axis=1).ravel() for column in columns)
        present = np.flatnonzero(ends)
        samples, set_indexes = np.divmod(present, len(sets))
        keys = None if self.keys is None else [self.keys[sample] for sample in samples.tolist()]
        rows = self.first + samples if self.rows is None else self.rows[samples]
        extents = Extents(self.first, numbers[present], begins[present], ends[present], keys, rows)
        return extents, samples, set_indexes

    def with_parts(self, masks: Sequence[Any]) -> Extents:
        """Return the same rows without the parts that a mask excludes: their begin and end are 0.

        *masks*: for each set of shards an array with an item for each row: False if its part in this set is left out.
        """
        import numpy as np

        first, *others = (
            replace(set_extents, begins=np.where(mask, set_extents.begins, 0), ends=np.where(mask, set_extents.ends, 0))
            for set_extents, mask in zip((self, *self.others), masks, strict=True)
        )
        return replace(first, others=tuple(others))

    def bounds(self) -> Any:
        """Return the offsets of the samples in their bytes joined in order, then the total size: an array of int64."""
        import numpy as np

        return np.concatenate(([0], self.sizes.cumsum()))

    def runs(self) -> Any:
        """Return the indexes of the rows at which runs of adjacent samples begin: an ascending array, from 0 on.

        A run goes on as long as each sample begins where the one before it ends, in the same shard of the first set.
        Without rows the array is [0].
        """
        import numpy as np

        is_begin = (self.begins[1:] != self.ends[:-1]) | (self.numbers[1:] != self.numbers[:-1])
        return np.append(0, np.flatnonzero(is_begin) + 1)

    def windows(self, max_bytes: int) -> Iterator[Extents]:
        """Yield the extents in parts with up to *max_bytes* bytes of samples; a larger sample is a part of its own."""
        bounds, low = self.bounds(), 0
        while low < len(self):
            high = max(int(bounds.searchsorted(bounds[low] + max_bytes, "right")) - 1, low + 1)
            yield self.part(low, high)
            low = high

    def part(self, low: int, high: int) -> Extents:
        """Return the extents of the rows with indexes *low* to *high* (exclusive); they keep their row numbers."""
        return Extents(
            self.first + low,
            self.numbers[low:high],
            self.begins[low:high],
            self.ends[low:high],
            None if self.keys is None else self.keys[low:high],
            None if self.rows is None else self.rows[low:high],
            tuple(further_set.part(low, high) for further_set in self.others),
        )

    def take(self, indexes: Any) -> Extents:
        """Return the extents at these *indexes*, a list or an array, in that order; they keep their row numbers."""
        import numpy as np

        chosen = np.asarray(indexes, np.int64)
        keys = None if self.keys is None else [self.keys[index] for index in chosen.tolist()]
        rows = self.first + chosen if self.rows is None else self.rows[chosen]
        others = tuple(further_set.take(chosen) for further_set in self.others)
        return Extents(self.first, self.numbers[chosen], self.begins[chosen], self.ends[chosen], keys, rows, others)

    def place(self, index: int) -> tuple[int, int, int]:
        """Return (shard number, begin, end) of the sample at *index*, in the first set of shards."""
        return int(self.numbers[index]), int(self.begins[index]), int(self.ends[index])


def runs_of_equal(values: Any) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of each run of equal *values*, an array; (0, 0) if it is empty: 7 7 5 gives (0, 2), (2, 3)."""
    import numpy as np

    return pairwise([0, *(np.flatnonzero(values[1:] != values[:-1]) + 1).tolist(), len(values)])


class SampleBytes(NamedTuple):
    """The bytes of the samples of *rows*, from `LocalShards` or `RemoteShards`; valid until the next ones are taken.

    `bounds`: offsets in one file or buffer at which the samples begin, then the end of the last one.
    `stream(index)`: returns a stream that begins with the sample at this index of *rows*, and does not end with it.
    `is_streamed`: True for one sample that a server sends while it is parsed; errors of that stream name no row.
    `data`: all bytes, joined, if they are in memory; else None.
    """

    rows: Extents
    bounds: list[int]
    stream: Callable[[int], Stream]
    is_streamed: bool = False
    data: memoryview | None = None

    @classmethod
    def in_memory(cls, rows: Extents, data: bytes | memoryview) -> SampleBytes:
        """Return the `SampleBytes` of *rows*; *data*: the bytes of all their samples, joined in order."""
        bounds: list[int] = rows.bounds().tolist()
        view = memoryview(data)
        return cls(rows, bounds, lambda index: PrependedStream(None, view[bounds[index] :]), data=view)


def merge_parts(is_second: Any, sizes: Any, first: memoryview, second: memoryview) -> bytes:
    """Return the parts of two buffers joined in order: part n is the next `sizes[n]` bytes of one of them.

    *is_second*: an array of bool, True for a part from *second*, False for one from *first*. *sizes*: an array of
    integers.
    """
    positions = [0, 0]
    pieces = []
    for source, size in zip(is_second.tolist(), sizes.tolist(), strict=True):
        begin = positions[source]
        positions[source] = begin + size
        pieces.append((second if source else first)[begin : begin + size])
    return b"".join(pieces)


def raw_keys(column: Any, first: int, url: str) -> list[Any]:
    """Return the keys in *column* as bytes; None for null.

    *column*: an Arrow array of text or bytes that begins with row *first* of the table *url*, for messages. Raises:
    StorageError if it is neither.
    """
    with schema.value_errors(f"row {first}: {schema.KEY_COLUMN} is not text", url):
        return schema.encode_texts(column).to_pylist()  # type: ignore[no-any-return]


def whole_numbers(column: Any) -> tuple[Any, Any]:
    """Return *column*, an Arrow array, as an array of int64, and a mask: True if not null.

    The mask is the scalar True if there are no nulls; a null is any number in the array, which may share the memory of
    *column*. Other types are cast by Arrow: "7" and 7.0 to 7, true to 1. Raises: ArrowException for a value that does
    not become a whole number of 64 bits.
    """
    import numpy as np

    pa = schema.import_arrow()
    if pa.types.is_integer(column.type):  # `cast` takes 0.05 s to import
        numbers, valid = numbers_and_mask(column)
        if numbers.dtype.kind == "i" or numbers.max(initial=0) <= MAX_OFFSET:
            return numbers.astype(np.int64, copy=False), valid
    return numbers_and_mask(column.cast(pa.int64()))


def numbers_and_mask(column: Any) -> tuple[Any, Any]:
    """Return *column*, an Arrow array of integers, as a numpy array of the same type, and a mask: True if not null.

    A null is any number in the array, which shares the memory of *column*: don't change it. The mask is the scalar
    True if there are no nulls. `to_numpy` and `fill_null` of pyarrow import pandas where it is installed, which takes
    0.2 s.
    """
    import numpy as np

    bits, numbers = column.buffers()
    without_nulls = column.from_buffers(column.type, len(column), [None, numbers], offset=column.offset)
    return np.from_dlpack(without_nulls), np.True_ if bits is None else valid_mask(column)


def valid_mask(column: Any) -> Any:
    """Return an array of bool, an item for each row of *column*, an Arrow array of any type: True if not null.

    `is_valid` of pyarrow and the conversion of its result import pyarrow.compute and pandas, which takes 0.3 s.
    """
    import numpy as np

    types = schema.import_arrow().types
    if types.is_null(column.type) or types.is_union(column.type) or types.is_run_end_encoded(column.type):
        return np.asarray(column.is_valid())  # these have no bit for each row
    bits = column.buffers()[0]
    if bits is None:
        return np.ones(len(column), bool)
    first, last = column.offset // 8, (column.offset + len(column) + 7) // 8
    valid = np.unpackbits(np.frombuffer(bits, np.uint8, last - first, first), bitorder="little").astype(bool)
    return valid[column.offset % 8 :][: len(column)]


def key_checksums(keys: Sequence[bytes]) -> Any:
    """Return the CRC-32 of each of *keys*, an array of uint32, so that keys can be compared without being held.

    One of 4 billion pairs of different keys has equal checksums.
    """
    import numpy as np

    return np.fromiter(map(crc32, keys), np.uint32, len(keys))
