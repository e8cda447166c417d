"""Rows of samples: the extents of each sample and of its members in the shard.

Rows are sent in blocks of bytes, from the process that reads a shard to the one that writes the table. There they are
in a temporary file until all fields and types are known.
"""

from __future__ import annotations

import marshal
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tartools.errors import SampleError
from tartools.samples.batch import Batch
from tartools.samples.fieldcolumns import Combination, FieldColumn
from tartools.samples.sample import Sample
from tartools.storage.scratch import reopen_scratch, scratch_file
from tartools.tables import schema
from tartools.tables.catalog import ShardCatalog

ROWS_IN_BLOCK = 1 << 13  # in a block

Fact = tuple[str, str]  # a column of facts: its name, and that of its type; "" for one that its values show
Facts = Callable[[Batch], Iterable[Mapping[Fact, object]]]


class RowBlock:
    """Rows of adjacent samples of one *shard*, in columns: `add` batches, then get the bytes of all by `packed`.

    `keys`: of the samples. `begins`, `ends`: their extents in the shard, in bytes.
    `offsets`, `sizes`: of payloads, in bytes: field -> an array. An offset is -1 for an absent field, -2 for one that
    the sample has twice.
    `facts`: (name, type) of further columns -> values.
    Arrays and columns may be shorter than the block until it is packed: the last rows lack the field or the value.
    """

    def __init__(self, shard: str) -> None:
        self.shard = shard
        self.keys: list[bytes] = []
        self.begins = array("q")
        self.ends = array("q")
        self.offsets: dict[bytes, array[int]] = {}  # of payloads, by field; ABSENT_OFFSET, REPEATED_OFFSET
        self.sizes: dict[bytes, array[int]] = {}
        self.facts: dict[Fact, list[object]] = {}

    def __len__(self) -> int:
        return len(self.keys)

    def packed(self) -> bytes:
        """Return the block as bytes; `marshal.loads` returns (shard, keys, begins, ends, members, facts).

        `begins`, `ends`: int64 as bytes. `members`: field -> (offsets, sizes), int64 as bytes. `facts`: (name, type) ->
        values.
        """
        self._fill()
        for values in self.facts.values():
            values.extend([None] * (len(self) - len(values)))
        members = {field: (offsets.tobytes(), self.sizes[field].tobytes()) for field, offsets in self.offsets.items()}
        return marshal.dumps(
            (str(self.shard), self.keys, self.begins.tobytes(), self.ends.tobytes(), members, self.facts)
        )

    def columns(self) -> Iterator[tuple[bytes, Any, Any]]:
        """Yield (field, offsets, sizes) for each field: two numpy arrays of int64 with an item for each row.

        They are views of the block: rows can only be added once they are gone.
        """
        import numpy as np

        self._fill()
        for field, offsets in self.offsets.items():
            yield field, np.frombuffer(offsets, np.int64), np.frombuffer(self.sizes[field], np.int64)

    def _fill(self) -> None:
        """Extend the columns of each field to all rows: rows that were added without the field lack it."""
        for field in self.offsets:
            self._columns(field, len(self))

    def add(self, batch: Batch) -> None:
        """Add a row for each sample of *batch*, in order. A member without a field is in none of the columns.

        *batch*: samples of the shard of this block. Raises: SampleError if they are not adjacent in their shard, with
        their own headers.
        """
        bounds = batch.bounds()
        if bounds is None:
            raise _no_extent_error(batch[0])
        first = len(self)
        for same in batch.combinations():
            columns: dict[str, FieldColumn] = {}
            for column in same.columns:
                columns.setdefault(column.name, column)
            for name, column in columns.items():
                if name:
                    repeated = same.has_repeated_field and same.fields.count(name) > 1
                    self._add_column(first, len(batch), same, column, repeated)
        self.keys += batch.keys
        self.begins.extend(bounds[:-1])
        self.ends.extend(bounds[1:])

    def _add_column(self, first: int, count: int, same: Combination, column: FieldColumn, repeated: bool) -> None:
        """Add *column*, one field of the samples *same*, to *count* rows from *first* on.

        *same*: all of these rows, or some with the same fields. *repeated*: True if these samples have the field twice,
        so that its place is not known.
        """
        offsets, sizes = self._columns(column.name.encode("utf-8", "surrogateescape"), first)
        if len(same) == count and not repeated:
            column.append_to(offsets, sizes)
            return
        places = [schema.REPEATED_OFFSET] * len(same) if repeated else column.offsets()
        _fill(offsets, first + count, schema.ABSENT_OFFSET)
        _fill(sizes, first + count, 0)
        for number, offset, size in zip(same.numbers, places, column.sizes, strict=True):
            offsets[first + number], sizes[first + number] = offset, size

    def add_facts(self, facts: Iterable[Mapping[Fact, object]], first: int) -> None:
        """Add to row *first* and each one after it the next of *facts*: values by column, (name, type).

        A column without a value is null.
        """
        for number, values in enumerate(facts, first):
            for fact, value in values.items():
                column = self.facts.setdefault(fact, [])
                column.extend([None] * (number - len(column)))
                column.append(value)

    def _columns(self, field: bytes, count: int) -> tuple[array[int], array[int]]:
        """Return the arrays of offsets and sizes of *field*, with at least *count* rows.

        New or shorter arrays are extended by rows that lack the field.
        """
        offsets, sizes = self.offsets.setdefault(field, array("q")), self.sizes.setdefault(field, array("q"))
        _fill(offsets, count, schema.ABSENT_OFFSET)
        _fill(sizes, count, 0)
        return offsets, sizes


def _fill(column: array[int], count: int, value: int) -> None:
    """Extend *column* to *count* rows with *value*; a longer one stays as it is."""
    if len(column) < count:
        column.extend([value] * (count - len(column)))


def pack_rows(batches: Iterable[Batch], facts: Facts | None = None) -> Iterator[bytes]:
    """Yield the rows of the samples of *batches* in packed blocks, in order. A block is bytes: see `RowBlock.packed`.

    A block has rows of one shard, with which another block may go on. `facts(batch)`: returns for each sample of a
    batch its values for further columns: (name, type) -> value; None: no such columns. Holds: 8,192 rows
    (ROWS_IN_BLOCK), and a batch.
    Raises: SampleError if a sample is not in one piece with its own headers; the errors of *batches* and *facts*.
    """
    block: RowBlock | None = None
    for batch in batches:
        if block is not None and (batch.shard != block.shard or len(block) >= ROWS_IN_BLOCK):
            yield block.packed()
            block = None
        block = block or RowBlock(batch.shard)
        first = len(block)
        block.add(batch)
        if facts is not None:
            block.add_facts(facts(batch), first)
    if block is not None:
        yield block.packed()


def _no_extent_error(sample: Sample) -> SampleError:
    """Return the error that *sample* can't be in a table: it is not in one piece in its shard, with its own headers."""
    return SampleError(
        f"sample {sample.key!r}, with {sample.fields[0]!r}, is not in one piece with its own headers, so a "
        "table can't say where it is; tarcat makes a copy that a table can list",
        url=sample.shard,
    )


class RowSpool:
    """The rows of shards in a temporary file: `add` blocks of them, then read `batches`.

    *facts*: (name, type) of columns that the table has in any case, before those that blocks bring.
    *versions*: of the shards, by URL; they get numbers in *catalog*, in this order; `add_shard` adds further ones.
    *tmpdir*: folder of the file; None: the system's.
    `rows`: the number of rows so far. `counts`: the number of rows of each shard that has some, by URL.
    Holds: one block; disk: about 60 bytes a sample.
    """

    def __init__(
        self,
        facts: Sequence[Fact],
        versions: Mapping[str, str],
        catalog: ShardCatalog,
        tmpdir: str | None = None,
    ) -> None:
        self._catalog = catalog
        self._numbers = {url: catalog.number(url, version) for url, version in versions.items()}
        self._file = scratch_file(tmpdir)
        self._fields: dict[bytes, None] = {}
        self._types = {fact: _type_of(fact, ()) for fact in facts}
        self.rows = 0
        self.counts: dict[str, int] = {}  # of rows, by URL

    def add_shard(self, url: str, version: str) -> None:
        """Register the shard *url* and its *version*, which `batches` needs for the rows of this shard."""
        self._numbers[url] = self._catalog.number(url, version)

    def add(self, block: bytes) -> None:
        """Add the rows of *block*, from `pack_rows`.

        Raises: SampleError for a key that is not UTF-8; StorageError if the temporary file can't be written.
        """
        shard, keys, _, _, columns, facts = marshal.loads(block)  # noqa: S302  # from our own process
        for key in keys:
            try:
                key.decode()
            except UnicodeDecodeError:
                raise SampleError(f"the key {key!r} is not UTF-8, which tables need", url=shard) from None
        self._fields.update(dict.fromkeys(columns))
        for fact, values in facts.items():
            kind = _type_of(fact, values)
            self._types[fact] = schema.join_types(self._types.get(fact, kind), kind)
        self.rows += len(keys)
        self.counts[shard] = self.counts.get(shard, 0) + len(keys)
        self._file.write(len(block).to_bytes(8, "big") + block)

    @property
    def empty_columns(self) -> list[str]:
        """The names of the columns whose type the values decide, and that have no value in any row so far."""
        null = schema.import_arrow().null()
        return [name for (name, _), type_ in self._types.items() if type_ == null]

    @property
    def schema(self) -> Any:
        """The unified `pyarrow.Schema` of the rows that were added.

        `__members__` lists the first 1,000 fields (MAX_FIELDS_LISTED); there is no such column without any field.
        Raises: SampleError if two columns of values would have one name.
        """
        names = [name for name, _ in self._types]
        if repeated := next((name for name in names if names.count(name) > 1), None):
            raise SampleError(f"two columns would have the name {repeated!r}")
        fields = [field.decode("utf-8", "replace") for field in list(self._fields)[: schema.MAX_FIELDS_LISTED]]
        values = [(name, schema.stored_type(kind)) for (name, _), kind in self._types.items()]
        return schema.import_arrow().schema([*schema.own_types().items(), *schema.members_column(fields), *values])

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield the rows as `pyarrow.RecordBatch`es with the columns of `schema`, in the order of `add`.

        A batch has the rows of one block. `__shard__` is the number in the catalog. *columns*: names to include, if
        they exist; None: all. Raises: SampleError if two columns of values would have one name; KeyError for a shard
        that was not registered.
        """
        import numpy as np

        pa = schema.import_arrow()
        full_schema = self.schema
        fields = list(self._fields)[: schema.MAX_FIELDS_LISTED]
        types = {fact: full_schema.field(fact[0]).type for fact in self._types}
        index, end, previous_shard = 0, 0, ""
        for block in self._blocks():
            shard, keys, begins, ends, members_by_field, facts = marshal.loads(block)  # noqa: S302  # from our own process
            count = len(keys)
            begin, stop = (np.frombuffer(column, np.int64) for column in (begins, ends))
            # numbers go on from the block before, if that was of the same shard
            numbered = _number_samples(begin, stop, *((index, end) if shard == previous_shard else (0, 0)))
            places = [_places(members_by_field.get(field), count) for field in fields]
            members = (
                [pa.StructArray.from_arrays(places, type=full_schema.field(schema.MEMBERS_COLUMN).type)]
                if fields
                else []
            )
            rows = pa.RecordBatch.from_arrays(
                [
                    pa.array(np.full(count, self._numbers[shard], np.int32)),
                    pa.array(numbered),
                    pa.array([key.decode() for key in keys], pa.string()),
                    pa.array(begin.astype(np.uint64)),
                    pa.array(stop.astype(np.uint64)),
                    *members,
                    *(schema.column_of(facts.get(fact) or [None] * count, type_) for fact, type_ in types.items()),
                ],
                schema=full_schema,
            )
            yield rows if columns is None else rows.select([name for name in full_schema.names if name in columns])
            index, end, previous_shard = int(numbered[-1]) + 1, int(stop[-1]), shard

    def _blocks(self) -> Iterator[bytes]:
        """Yield the packed blocks, from the file, in the order of `add`."""
        with reopen_scratch(self._file) as file:
            while length := file.read(8):
                yield file.read(int.from_bytes(length, "big"))


def _type_of(fact: Fact, values: Sequence[object]) -> Any:
    """Return the Arrow type for the column *fact*, (name, type): of that type, or if it is "", for *values*.

    The type is null if *values* decide it, and there are none but None.
    """
    return schema.named_type(fact[1]) if fact[1] else schema.json_type(values)


def _number_samples(begins: Any, ends: Any, first: int, end: int) -> Any:
    """Return the number of each sample in its shard: from *first* on, an array of uint64.

    *begins*, *ends*: extents of adjacent samples; *end*: the end of the sample before them. Numbers start from 0 again
    at a sample that begins before the one before it ends: there the shard is read again.
    """
    import numpy as np

    number = np.arange(first, first + len(begins), dtype=np.int64)
    for restart in np.flatnonzero(begins < np.concatenate(([end], ends[:-1]))):
        number[restart:] = np.arange(len(begins) - restart)
    return number.astype(np.uint64)


def _places(packed: tuple[bytes, bytes] | None, count: int) -> Any:
    """Return the Arrow column of offset and size of one field for *count* rows; null where a sample lacks it.

    *packed*: bytes of the offsets and of the sizes, as int64; None if no sample of the block has the field.
    Where a sample has the field twice, offset and size are null.
    """
    import numpy as np

    pa = schema.import_arrow()
    if packed is None:
        return pa.nulls(count, schema.place_type())
    offsets, sizes = (np.frombuffer(column, np.int64) for column in packed)
    unknown = offsets < 0
    return pa.StructArray.from_arrays(
        [pa.array(offsets.astype(np.uint64), mask=unknown), pa.array(sizes.astype(np.uint64), mask=unknown)],
        ["offset", "size"],
        mask=pa.array(offsets == schema.ABSENT_OFFSET),
    )
