"""Rows of several tables, and of shards that were indexed, as rows of one: the same columns and types, in any order.

A unified record batch has `__shard__` as int32, a number in `KnownShards`, which stands for the version too; then
`__index__` as uint64, `__key__` as string, `__begin__` and `__end__` as uint64, `__members__` as a struct of places,
and columns of values. Shards are known by their URLs, not by names that are relative to a table.
"""

from __future__ import annotations

import io
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import cached_property
from itertools import islice, pairwise
from typing import Any

from tartools.errors import StorageError
from tartools.samples.values import as_text
from tartools.storage.scratch import scratch_file
from tartools.tables import schema, source
from tartools.tables.rowplaces import KnownShards, Listing, Piece
from tartools.tables.rows import RowSpool
from tartools.tar import read_range

ROWS = 1 << 16  # in a batch
SLOT, ROW = "\0slot", "\0row"  # columns of rows on their way: their place in the output, and in the input
PART = 1 << 16  # rows of the output that are sorted together, or more
PARTS = 256  # at most
CHUNK = 1 << 16  # positions taken at once
HALF = 32  # bits for the number of a row, and for its place in the output
Stored = tuple[int, int]  # begin and end of a record batch in the temporary file


class TablePart:
    """The rows of the table *url*. `schema` is their unified schema."""

    def __init__(self, url: str, shards: KnownShards) -> None:
        self.url = url
        self._shards = shards
        with source.opened(url) as table:
            self.rows = table.rows
            self.schema = unified_schema(table.parquet.schema_arrow)

    @property
    def have_keys(self) -> bool:
        """Whether each row has the key of its sample."""
        if schema.KEY not in self.schema.names:
            return False
        with source.opened(self.url) as table:
            return not any(rows.column(0).null_count for rows in table.batches([schema.KEY], ROWS))

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield the rows, in order, in unified record batches; only those of *columns* that there are, if given."""
        wanted = _some(self.schema, columns)
        listing = Listing(self.url, self._shards)
        first = 0
        with source.opened(self.url) as table:
            for rows in table.batches([*source.NEEDED, schema.VERSION, *wanted.names], ROWS):
                yield unified(rows, first, listing, wanted)
                first += len(rows)


RowSource = TablePart | RowSpool  # some of the rows: their number, unified schema, and batches


class RowInputs:
    """The rows of *parts*, whose shards have numbers in *shards*."""

    def __init__(self, parts: Sequence[RowSource], shards: KnownShards) -> None:
        self.parts = parts
        self.shards = shards
        self.schema = joined_schema([part.schema for part in parts])
        self.rows = sum(part.rows for part in parts)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield all rows, in order, in record batches of `schema`; only those of *columns* that there are, if given.

        Holds: a row group. Raises: TarFormatError for a damaged table; StorageError for a value of no use.
        """
        wanted = _some(self.schema, columns)
        for part in self.parts:
            for rows in part.batches(columns):
                yield conforming(rows, wanted)

    @cached_property
    def have_keys(self) -> bool:
        """Whether each row has the key of its sample; the keys of tables are read for that."""
        return all(part.have_keys for part in self.parts if isinstance(part, TablePart))

    def spans(self, apart: bool) -> Iterator[range]:
        """Yield the numbers of the rows of each part, or, if *apart*, of each table and each shard that was indexed."""
        first = 0
        for part in self.parts:
            cuts = [first, first + part.rows]
            if apart and not isinstance(part, TablePart):
                cuts[:1] = [first + begin for begin in _begins(part)]
            yield from (range(begin, end) for begin, end in pairwise(cuts))
            first += part.rows


def _some(found: Any, columns: Sequence[str] | None) -> Any:
    """Return the schema *found*; only those of *columns* that it has, if given."""
    return schema.arrow().schema([field for field in found if columns is None or field.name in columns])


def _begins(part: RowSource) -> list[int]:
    """Return the numbers of the rows of *part* with which a shard begins."""
    import numpy as np

    found: list[int] = []
    first = 0
    for rows in part.batches([schema.INDEX]):
        found += (first + np.flatnonzero(np.asarray(rows.column(schema.INDEX)) == 0)).tolist()
        first += len(rows)
    return found


# ---- types ----


def unified_schema(found: Any) -> Any:
    """Return the columns of a table whose schema is *found*, in our types.

    Columns that tartools needs keep their place; whether they can be converted shows when they are.
    """
    pa, own = schema.arrow(), schema.own_types()
    fields = []
    for field in found:
        if field.name in own:
            fields.append((field.name, own[field.name]))
        elif field.name == schema.MEMBERS:
            fields += schema.members_column(
                [each.name for each in field.type] if pa.types.is_struct(field.type) else []
            )
        elif field.name != schema.VERSION:
            fields.append((field.name, plain_type(field.type)))
    return pa.schema(fields)


def plain_type(kind: Any) -> Any:
    """Return the type of values that the type *kind* stores, which may be a dictionary or a large form of it."""
    pa = schema.arrow()
    is_a = pa.types
    if is_a.is_dictionary(kind):
        return plain_type(kind.value_type)
    if is_a.is_large_string(kind) or is_a.is_string_view(kind):
        return pa.string()
    if is_a.is_large_binary(kind) or is_a.is_binary_view(kind):
        return pa.binary()
    if is_a.is_list(kind) or is_a.is_large_list(kind):
        return pa.list_(plain_type(kind.value_type))
    return pa.struct([(each.name, plain_type(each.type)) for each in kind]) if is_a.is_struct(kind) else kind


def joined_schema(schemas: Sequence[Any]) -> Any:
    """Return one schema for rows of unified *schemas*: all their columns, in types that hold the values of all."""
    types: dict[str, Any] = {}
    members: dict[str, None] = {}
    for one in schemas:
        members.update(dict.fromkeys(schema.fields_of(one)))
        for field in one:
            types[field.name] = schema.joined_type(types.get(field.name, field.type), field.type)
    types.update(schema.members_column(list(members)[: schema.MOST_FIELDS]))
    order = [*schema.own_types(), schema.MEMBERS]
    names = [name for name in order if name in types] + [name for name in types if name not in order]
    return schema.arrow().schema([(name, types[name]) for name in names])


def conforming(rows: Any, wanted: Any) -> Any:
    """Return the unified record batch *rows* with the columns of the joined schema *wanted*.

    Null is in columns that it has not. What is not text becomes text as `samples.values.as_text` makes it; a whole
    number that a double can't hold exactly is rounded.
    """
    pa = schema.arrow()
    if rows.schema == wanted:
        return rows
    columns = []
    for field in wanted:
        if field.name not in rows.schema.names:
            columns.append(pa.nulls(len(rows), field.type))
            continue
        column = rows.column(field.name)
        if pa.types.is_string(field.type) and not pa.types.is_string(column.type):
            values = schema.plain_values(column)
            column = pa.array([None if value is None else as_text(value) for value in values], field.type)
        columns.append(column if column.type == field.type else column.cast(field.type, safe=False))
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


# ---- rows of a table ----


def unified(rows: Any, first: int, listing: Listing, columns: Any) -> Any:
    """Return the record batch *rows*, which begins with row *first* of the table of *listing*, as a unified one.

    It gets *columns*: those that are wanted of the `unified_schema` of the table.
    Raises: StorageError, with the row, for a value of no use.
    """
    import numpy as np

    pa = schema.arrow()
    piece = listing.piece(rows, first, keyed=False)
    ours = {
        schema.SHARD: piece.numbers,
        schema.BEGIN: piece.begins.astype(np.uint64),
        schema.END: piece.ends.astype(np.uint64),
    }
    found = [
        pa.array(ours[field.name]) if field.name in ours else _taken_over(rows, field, first, listing.table)
        for field in columns
    ]
    return pa.RecordBatch.from_arrays(found, schema=columns)


def _taken_over(rows: Any, field: Any, first: int, url: str) -> Any:
    """Return the column *field* of *rows* in its type."""
    pa, column = schema.arrow(), rows.column(field.name)
    try:
        if field.name == schema.KEY:
            column = schema.raw(column)
        elif pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        return column if column.type == field.type else column.cast(field.type)
    except pa.ArrowMemoryError:
        raise
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise StorageError(
            f"rows {first} to {first + len(column) - 1}: {field.name} has values that are not "
            f"{'places' if field.name == schema.MEMBERS else field.type}: {str(error).splitlines()[0]}",
            url=url,
        ) from None


def unified_piece(rows: Any, first: int, numbers: Any) -> Piece:
    """Return the unified record batch *rows* as places; the first is row *first*, unless *numbers* has that of each."""
    import numpy as np

    shards, begins, ends = (np.asarray(rows.column(name)) for name in (schema.SHARD, schema.BEGIN, schema.END))
    keys = rows.column(schema.KEY) if schema.KEY in rows.schema.names else None
    known = None if keys is None or keys.null_count else schema.raw(keys).to_pylist()
    return Piece(first, shards, begins.astype(np.int64), ends.astype(np.int64), known, numbers)


def table_schema(rows: Any) -> Any:
    """Return the columns of the table that holds rows of the unified schema *rows*."""
    pa = schema.arrow()
    name = pa.dictionary(pa.int32(), pa.string())
    return pa.schema(
        [(schema.SHARD, name), (schema.VERSION, name), *(field for field in rows if field.name != schema.SHARD)]
    )


def table_rows(rows: Any, shard: Callable[[int], tuple[str, str | None]]) -> Any:
    """Return unified *rows*, a record batch or table, as rows for a table; `shard(number)` gives name and version."""
    import numpy as np

    pa = schema.arrow()
    column = rows.column(schema.SHARD)
    numbers = np.asarray(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
    used, first, place = np.unique(numbers, return_index=True, return_inverse=True)
    order = np.argsort(first)  # so that equal rows make equal bytes, whatever the numbers of the shards
    which = pa.array(np.argsort(order).astype(np.int32)[place])
    named = list(map(shard, used[order].tolist()))
    encoded = [
        pa.DictionaryArray.from_arrays(which, pa.array([name for name, _ in named], pa.string())),
        pa.array([version for _, version in named], pa.string()).take(which).dictionary_encode(),  # None becomes null
    ]
    others = [rows.column(name) for name in rows.schema.names if name != schema.SHARD]
    return pa.Table.from_arrays([*encoded, *others], schema=table_schema(rows.schema))


# ---- rows in another order, however many: they are spread over parts of the output, then each part is sorted ----


def rows_in_order(
    inputs: RowInputs, positions: Iterable[int], tmpdir: str | None = None, columns: Sequence[str] | None = None
) -> Iterator[Any]:
    """Yield the rows of *inputs* at *positions*, in that order, in record batches.

    They have all columns, or *columns*, and then `ROW`: the position. All *positions* are read before this returns.

    Holds: 8 bytes for each position, and 65,536 rows, or 1/256 of them if that is more; the rows are in a temporary
    file in *tmpdir*.
    """
    places = places_by_row(positions)
    return _in_places(inputs, places, tmpdir, columns) if len(places) else iter(())


def _in_places(inputs: RowInputs, places: Any, tmpdir: str | None, columns: Sequence[str] | None) -> Iterator[Any]:
    """Yield the rows of *inputs* that have *places* in the output, in that order, in record batches."""
    size = max(PART, -(-len(places) // PARTS))
    with closing(scratch_file(tmpdir)) as file:
        pieces: list[list[Stored]] = [[] for _ in range(0, len(places), size)]
        layout = _spread(inputs.batches(columns), places, size, file, pieces)
        for part in pieces:
            yield from _sorted(part, layout, file)


def places_by_row(positions: Iterable[int]) -> Any:
    """Return the number of a row and its place in the output, in the halves of one number, for each of *positions*.

    They ascend. Raises: StorageError if a half is too small for them.
    """
    import numpy as np

    found = array("Q")
    remaining = iter(positions)
    while len(rows := np.fromiter(islice(remaining, CHUNK), np.uint64)):
        places = np.arange(len(found), len(found) + len(rows), dtype=np.uint64)
        if max(int(rows.max()), int(places[-1])) >> HALF:
            raise StorageError("these are too many rows to bring into another order")
        found.frombytes((rows << HALF | places).tobytes())
    all_places = np.frombuffer(found, np.uint64)
    all_places.sort()
    return all_places


def places_between(places: Any, first: int, last: int) -> Iterator[tuple[Any, Any]]:
    """Yield the *places*, as `places_by_row` has them, of rows *first* to *last* (exclusive), up to 65,536 at a time.

    They come as arrays, the places ascending: the number of the row among these, and its place.
    """
    import numpy as np

    low, high = np.searchsorted(places, np.array([first << HALF, last << HALF], np.uint64))
    slots = places[low:high] & ((1 << HALF) - 1)
    order = np.argsort(slots)
    for begin in range(0, len(order), CHUNK):
        some = order[begin : begin + CHUNK]
        yield (places[low:high][some] >> HALF).astype(np.int64) - first, slots[some].astype(np.int64)


def _spread(batches: Iterator[Any], places: Any, size: int, file: io.FileIO, pieces: list[list[Stored]]) -> Any:
    """Write the rows of *batches* that have *places* to *file*, in *pieces* for parts of *size*; return the schema."""
    import numpy as np

    pa = schema.arrow()
    layout = None
    first = end = 0
    for rows in batches:
        begin, first = first, first + len(rows)
        for order, slot in places_between(places, begin, first):
            taken = rows.take(pa.array(order))
            layout = rows.schema.append(pa.field(ROW, pa.int64())).append(pa.field(SLOT, pa.int64()))
            moved = pa.RecordBatch.from_arrays([*taken.columns, pa.array(begin + order), pa.array(slot)], schema=layout)
            parts = slot // size
            for part in range(int(parts[0]), int(parts[-1]) + 1):
                low, high = np.searchsorted(parts, [part, part + 1])
                if low < high:
                    data = moved.slice(low, high - low).serialize()
                    file.write(data)
                    pieces[part].append((end, end + data.size))
                    end += data.size
    return layout


def _sorted(pieces: list[Stored], layout: Any, file: io.FileIO) -> Iterator[Any]:
    """Yield the rows of one part of the output, which are in *pieces* of *file*, in record batches."""
    import numpy as np

    pa = schema.arrow()
    batches = [pa.ipc.read_record_batch(pa.py_buffer(read_range(file, begin, end)), layout) for begin, end in pieces]
    table = pa.Table.from_batches(batches, layout).combine_chunks()
    order = np.argsort(table.column(SLOT).to_numpy(), kind="stable")
    yield from table.drop_columns([SLOT]).take(pa.array(order)).combine_chunks().to_batches()
