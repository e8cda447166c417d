"""Rows of several tables, and of indexed shards, as rows of one table: the same columns and types, in any order.

A unified record batch has `__shard__` as int32, a number in `ShardCatalog`, which stands for the version too; then
`__index__` as uint64, `__key__` as string, `__begin__` and `__end__` as uint64, `__members__` as a struct of places,
and columns of values. Rows of a joined table also have `__shard_2__`, `__begin_2__`, `__end_2__`, `__members_2__` of
the same types, for each further set of shards; null where a sample has no part in it. Shards are known by their URLs,
not by names that are relative to a table.
"""

from __future__ import annotations

import io
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from itertools import chain, islice, pairwise
from typing import Any, Protocol

from tartools.errors import StorageError
from tartools.samples.values import as_text
from tartools.storage.scratch import scratch_file
from tartools.tables import schema, source
from tartools.tables.catalog import ShardCatalog
from tartools.tables.extents import Extents, whole_numbers
from tartools.tar import read_range

INPUT_BATCH_ROWS = 1 << 16  # in a batch
SLOT_COLUMN, ROW_COLUMN = "\0slot", "\0row"  # columns of rows on their way: their place in the output, and in the input
MIN_SORTED_ROWS = 1 << 16  # rows of the output that are sorted together, or more
MAX_SORTED_PARTS = 256  # at most
POSITIONS_IN_CHUNK = 1 << 16  # positions taken at once
ROW_NUMBER_BITS = 32  # bits for the number of a row, and for its place in the output
Stored = tuple[int, int]  # begin and end of a record batch in the temporary file


class TablePart:
    """The rows of the table *url*, as a part of `RowInputs`; `batches` reads them, each time from the first one on.

    `rows`: their number. `schema`: their unified schema. *catalog*: gives numbers to their shards.
    """

    def __init__(self, url: str, catalog: ShardCatalog) -> None:
        self.url = url
        self._catalog = catalog.for_table(url)
        with source.open_table(url) as table:
            self.rows = table.rows
            self.schema = unified_schema(table.parquet.schema_arrow)

    @property
    def have_keys(self) -> bool:
        """True if each row has the key of its sample; reads all keys. False without a column of keys.

        Raises: TarFormatError for a damaged table; StorageError if it can't be read.
        """
        if schema.KEY_COLUMN not in self.schema.names:
            return False
        with source.open_table(self.url) as table:
            return not any(rows.column(0).null_count for rows in table.batches([schema.KEY_COLUMN], INPUT_BATCH_ROWS))

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield the rows, in order, in unified record batches. *columns*: names to read, if they exist; None: all.

        Raises: TarFormatError for a damaged table; StorageError for an invalid value, or if it can't be read.
        """
        selected = _select_columns(self.schema, columns)
        first = 0
        with source.open_table(self.url) as table:
            columns = [*schema.extent_columns(table.names), *selected.names]
            for rows in table.batches(columns, INPUT_BATCH_ROWS):
                yield unify_rows(rows, first, self._catalog, selected)
                first += len(rows)


class RowStream(Protocol):
    """Rows that can be read again and again: a `TablePart`, a `RowSpool` of indexed shards, or `RowInputs` of both.

    `rows`: their number. `schema`: their unified schema.
    """

    rows: int

    @property
    def schema(self) -> Any:
        """The unified schema, a `pyarrow.Schema`: see the top of this module."""

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield the rows, in order, in unified record batches. *columns*: names to read, if they exist; None: all.

        Each call begins with the first row. Raises: StorageError if rows can't be read, or have an invalid value.
        """


class RowInputs:
    """The rows of several *parts*, one part after the other, in one schema.

    `parts`: tables, and spools of indexed shards. `catalog`: has the shards that all of them name, by number.
    `schema`: the joined unified schema. `rows`: the number of all rows.
    """

    def __init__(self, parts: Sequence[RowStream], catalog: ShardCatalog) -> None:
        self.parts = parts
        self.catalog = catalog
        self.schema = join_schemas([part.schema for part in parts])
        self.rows = sum(part.rows for part in parts)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield all rows, in order, in record batches of `schema`. *columns*: names to read, if they exist; None: all.

        A column that a part lacks is null in its rows. Holds: a row group. Raises: TarFormatError for a damaged table;
        StorageError for an invalid value, or if a table can't be read.
        """
        selected = _select_columns(self.schema, columns)
        for part in self.parts:
            for rows in part.batches(columns):
                yield convert_to_schema(rows, selected)

    @cached_property
    def have_keys(self) -> bool:
        """True if each row has the key of its sample, as all rows of indexed shards have.

        The keys of tables are read, once. Raises: TarFormatError for a damaged table; StorageError if it can't be read.
        """
        return all(part.have_keys for part in self.parts if isinstance(part, TablePart))

    def spans(self, by_shard: bool) -> Iterator[range]:
        """Yield the range of row numbers of each part, in order.

        With *by_shard*, a part of indexed shards gives a range for each shard that has samples, so none if it has no
        rows; a table always gives one, which may be empty.
        """
        first = 0
        for part in self.parts:
            cuts = [first, first + part.rows]
            if by_shard and not isinstance(part, TablePart):
                cuts[:1] = [first + begin for begin in _shard_begins(part)]
            yield from (range(begin, end) for begin, end in pairwise(cuts))
            first += part.rows


def _select_columns(full_schema: Any, columns: Sequence[str] | None) -> Any:
    """Return *full_schema* with only the columns named in *columns*, in the order of the schema; all if None.

    Names that the schema lacks are ignored.
    """
    return schema.import_arrow().schema([field for field in full_schema if columns is None or field.name in columns])


def _shard_begins(part: RowStream) -> list[int]:
    """Return the indexes of the rows of *part* that list the first sample of a shard: their `__index__` is 0."""
    import numpy as np

    begins: list[int] = []
    first = 0
    for rows in part.batches([schema.INDEX_COLUMN]):
        begins += (first + np.flatnonzero(np.asarray(rows.column(schema.INDEX_COLUMN)) == 0)).tolist()
        first += len(rows)
    return begins


# ---- types ----


def unified_schema(table_schema: Any) -> Any:
    """Return the unified schema (see the top of this module) of the rows of a table with the schema *table_schema*.

    Columns keep their order, without the columns of versions, and without a column of members that has no fields or is
    no struct. A column that can't be converted fails when it is read.
    """
    sets = schema.sets_in(table_schema.names)
    pa, own = schema.import_arrow(), schema.own_types(sets)
    members = {schema.name_in_set(schema.MEMBERS_COLUMN, number): number for number in sets}
    versions = {schema.name_in_set(schema.VERSION_COLUMN, number) for number in sets}
    fields = []
    for field in table_schema:
        if field.name in own:
            fields.append((field.name, own[field.name]))
        elif field.name in members:
            fields += schema.members_column(
                [member.name for member in field.type] if pa.types.is_struct(field.type) else [], members[field.name]
            )
        elif field.name not in versions:
            fields.append((field.name, plain_type(field.type)))
    return pa.schema(fields)


def plain_type(kind: Any) -> Any:
    """Return the Arrow type *kind* in its plain form: int64 for dictionary<int64>, string for large_string.

    In the same way binary stands for large_binary, list for large_list, string and binary for their views. The types
    inside of lists and structs are plain, too; any other type is returned as it is, such as a list of fixed size.
    """
    pa = schema.import_arrow()
    is_a = pa.types
    if is_a.is_dictionary(kind):
        return plain_type(kind.value_type)
    if is_a.is_large_string(kind) or is_a.is_string_view(kind):
        return pa.string()
    if is_a.is_large_binary(kind) or is_a.is_binary_view(kind):
        return pa.binary()
    if is_a.is_list(kind) or is_a.is_large_list(kind):
        return pa.list_(plain_type(kind.value_type))
    return pa.struct([(member.name, plain_type(member.type)) for member in kind]) if is_a.is_struct(kind) else kind


def join_schemas(schemas: Sequence[Any]) -> Any:
    """Return one schema for rows of unified *schemas*: all their columns, in types that hold the values of all.

    The type of a column is `schema.join_types` of its types: text for a column of numbers in one and text in another.
    The columns of places and keys come first, then those of values, in order of appearance. Columns of members list up
    to 1,000 fields (MAX_FIELDS_LISTED).
    """
    types: dict[str, Any] = {}
    for part_schema in schemas:
        for field in part_schema:
            types[field.name] = schema.join_types(types.get(field.name, field.type), field.type)
    order = [*schema.own_types()]
    for number in schema.sets_in(types):
        fields = dict.fromkeys(
            chain.from_iterable(schema.fields_in_set(part_schema, number) for part_schema in schemas)
        )
        types.update(schema.members_column(list(fields)[: schema.MAX_FIELDS_LISTED], number))
        own_columns = (schema.SHARD_COLUMN, schema.BEGIN_COLUMN, schema.END_COLUMN, schema.MEMBERS_COLUMN)
        names = [schema.name_in_set(name, number) for name in own_columns]
        order += [name for name in names if name not in order]
    names = [name for name in order if name in types] + [name for name in types if name not in order]
    return schema.import_arrow().schema([(name, types[name]) for name in names])


def convert_to_schema(rows: Any, target: Any) -> Any:
    """Return the unified record batch *rows* with the columns of the joined schema *target*.

    Missing columns are null, and columns that *target* lacks are dropped. In a column of text, other values become text
    by `samples.values.as_text`; a whole number that a double can't hold exactly is rounded.
    """
    pa = schema.import_arrow()
    if rows.schema == target:
        return rows
    columns = []
    for field in target:
        if field.name not in rows.schema.names:
            columns.append(pa.nulls(len(rows), field.type))
            continue
        column = rows.column(field.name)
        if pa.types.is_string(field.type) and not pa.types.is_string(column.type):
            values = schema.plain_values(column)
            column = pa.array([None if value is None else as_text(value) for value in values], field.type)
        columns.append(column if column.type == field.type else column.cast(field.type, safe=False))
    return pa.RecordBatch.from_arrays(columns, schema=target)


# ---- rows of a table ----


def unify_rows(rows: Any, first: int, catalog: ShardCatalog, columns: Any) -> Any:
    """Return the record batch *rows* of a table in unified form: the columns *columns*, with shards by their numbers.

    *first*: number of its first row. *catalog*: of that table; gives numbers to new shards. *columns*: the schema of
    the result, of columns of the `unified_schema` of the table. *rows* must have them and all columns of extents.
    Raises: StorageError for an invalid value, with the row, or with the first and last of *rows*.
    """
    import numpy as np

    pa = schema.import_arrow()
    extents = catalog.extents(rows, first, keyed=False)
    ours = {}
    for number, set_extents in enumerate((extents, *extents.others), 1):
        absent = set_extents.ends == 0 if number > 1 else None
        for name, values in (
            (schema.SHARD_COLUMN, set_extents.numbers),
            (schema.BEGIN_COLUMN, set_extents.begins.astype(np.uint64)),
            (schema.END_COLUMN, set_extents.ends.astype(np.uint64)),
        ):
            ours[schema.name_in_set(name, number)] = pa.array(values, mask=absent)
    arrays = [
        ours[field.name] if field.name in ours else _convert_column(rows, field, first, catalog.table)
        for field in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _convert_column(rows: Any, field: Any, first: int, url: str) -> Any:
    """Return the column *field* of the record batch *rows*, converted to the type of *field*, of an Arrow schema.

    *rows* begins with row *first* of the table *url*, for messages. Raises: StorageError for a value that does not fit.
    """
    pa, column = schema.import_arrow(), rows.column(field.name)
    try:
        if field.name == schema.KEY_COLUMN:
            column = schema.encode_texts(column)
        elif pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        return column if column.type == field.type else column.cast(field.type)
    except pa.ArrowMemoryError:
        raise
    except (pa.ArrowException, UnicodeDecodeError) as error:
        kind = "places" if field.name.startswith(schema.MEMBERS_COLUMN[:-2]) else field.type
        raise StorageError(
            f"rows {first} to {first + len(column) - 1}: {field.name} has values that are not "
            f"{kind}: {str(error).splitlines()[0]}",
            url=url,
        ) from None


def extents_of_unified(rows: Any, first: int, numbers: Any) -> Extents:
    """Return the extents of the samples in *rows*, a unified record batch (see the top of this module).

    *first*: number of its first row. *numbers*: an array of the numbers of all rows if they are not adjacent; else
    None. Without a column of keys, or if a key is null, `Extents.keys` is None. An absent part in a further set has the
    shard number -1, begin and end 0.
    """
    import numpy as np

    sets = []
    for number in schema.sets_in(rows.schema.names):
        arrays: list[Any] = []
        for base, absent in ((schema.SHARD_COLUMN, -1), (schema.BEGIN_COLUMN, 0), (schema.END_COLUMN, 0)):
            values, is_valid = whole_numbers(rows.column(schema.name_in_set(base, number)))
            arrays.append(np.where(is_valid, values, absent))
        shard_numbers, begins, ends = arrays
        sets.append(Extents(first, shard_numbers, begins, ends))
    keys = rows.column(schema.KEY_COLUMN) if schema.KEY_COLUMN in rows.schema.names else None
    key_list = None if keys is None or keys.null_count else schema.encode_texts(keys).to_pylist()
    return replace(sets[0], keys=key_list, rows=numbers, others=tuple(sets[1:]))


def table_schema(rows: Any) -> Any:
    """Return the schema to write for rows of the unified schema *rows*: shards by name and version, not by number.

    Both are columns of dictionary<int32, string>, the version after the name.
    """
    pa = schema.import_arrow()
    name = pa.dictionary(pa.int32(), pa.string())
    shards = {schema.name_in_set(schema.SHARD_COLUMN, number): number for number in schema.sets_in(rows.names)}
    fields = []
    for field in rows:
        if field.name in shards:
            version = schema.name_in_set(schema.VERSION_COLUMN, shards[field.name])
            fields += [(field.name, name), (version, name)]
        else:
            fields.append(field)
    return pa.schema(fields)


def table_rows(rows: Any, shard: Callable[[int], tuple[str, str | None]]) -> Any:
    """Return unified *rows*, a record batch or table, as a `pyarrow.Table` to write.

    Its schema is `table_schema` of theirs. `shard(number)` returns name and version of a shard for the table; a version
    None becomes null. A null in place of a number, of an absent part, gives a null name and version.
    """
    import numpy as np

    pa = schema.import_arrow()
    shards = {schema.name_in_set(schema.SHARD_COLUMN, number) for number in schema.sets_in(rows.schema.names)}
    arrays = []
    for column_name in rows.schema.names:
        column = rows.column(column_name)
        if column_name not in shards:
            arrays.append(column)
            continue
        values, is_valid = whole_numbers(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
        numbers = np.where(is_valid, values, -1)
        used, first, place = np.unique(numbers, return_index=True, return_inverse=True)
        order = np.argsort(first)  # so that equal rows make equal bytes, whatever the numbers of the shards
        indexes = np.argsort(order).astype(np.int32)[place]
        shard_indexes = pa.array(indexes, mask=numbers < 0)
        names_and_versions = [("", None) if number < 0 else shard(number) for number in used[order].tolist()]
        names = pa.array([name for name, _ in names_and_versions], pa.string())
        versions = pa.array([version for _, version in names_and_versions], pa.string())
        arrays.append(pa.DictionaryArray.from_arrays(shard_indexes, names))
        arrays.append(versions.take(shard_indexes).dictionary_encode())  # None becomes null
    return pa.Table.from_arrays(arrays, schema=table_schema(rows.schema))


# ---- rows in another order, however many: they are spread over parts of the output, then each part is sorted ----


def rows_in_order(
    inputs: RowInputs, positions: Iterable[int], tmpdir: str | None = None, columns: Sequence[str] | None = None
) -> Iterator[Any]:
    """Yield the rows of *inputs* at *positions*, in that order, in record batches.

    *positions*: row numbers, in any order, each of an existing row; one that comes twice gives its row twice. All are
    read before this returns; the rows at the first step of the iterator. The batches have all columns, or the existing
    ones of *columns*, and then `ROW_COLUMN`: the position, int64.
    Holds: 8 bytes a position, and 65,536 rows (MIN_SORTED_ROWS), or 1/256 of the positions if that is more; the rows
    are in a temporary file in *tmpdir*, None for the system's folder. Raises: StorageError for a position of 2**32 or
    more, or more than 2**32 of them; the iterator the errors of `RowInputs.batches`, and StorageError for the file.
    """
    places = places_by_row(positions)
    return _rows_in_places(inputs, places, tmpdir, columns) if len(places) else iter(())


def _rows_in_places(inputs: RowInputs, places: Any, tmpdir: str | None, columns: Sequence[str] | None) -> Iterator[Any]:
    """Yield the rows of *inputs* in the order that *places*, from `places_by_row`, give, in record batches.

    They have *columns*, None for all, and `ROW_COLUMN`, the row number. *tmpdir*: folder of the temporary file; None:
    the system's. *places*: at least one, each of an existing row.
    """
    size = max(MIN_SORTED_ROWS, -(-len(places) // MAX_SORTED_PARTS))
    with closing(scratch_file(tmpdir)) as file:
        stored: list[list[Stored]] = [[] for _ in range(0, len(places), size)]
        layout = _write_parts(inputs.batches(columns), places, size, file, stored)
        for part in stored:
            yield from _sort_part(part, layout, file)


def places_by_row(positions: Iterable[int]) -> Any:
    """Return a sorted array of uint64: for each of *positions* its row number, and its place in the output.

    The row number is in the high 32 bits; the place in the output, the index in *positions*, in the low ones.
    Raises: StorageError for a row number of 2**32 or more, or more than 2**32 positions.
    """
    import numpy as np

    packed = array("Q")
    remaining = iter(positions)
    while len(rows := np.fromiter(islice(remaining, POSITIONS_IN_CHUNK), np.uint64)):
        places = np.arange(len(packed), len(packed) + len(rows), dtype=np.uint64)
        if max(int(rows.max()), int(places[-1])) >> ROW_NUMBER_BITS:
            raise StorageError("these are too many rows to bring into another order")
        packed.frombytes((rows << ROW_NUMBER_BITS | places).tobytes())
    all_places = np.frombuffer(packed, np.uint64)
    all_places.sort()
    return all_places


def places_between(places: Any, first: int, last: int) -> Iterator[tuple[Any, Any]]:
    """Yield the *places*, from `places_by_row`, of rows *first* to *last* (exclusive), up to 65,536 at a time.

    Each item is two arrays of int64: row numbers counted from *first*, and places in the output, which ascend from the
    first item to the last. No items if no place is of these rows.
    """
    import numpy as np

    low, high = np.searchsorted(places, np.array([first << ROW_NUMBER_BITS, last << ROW_NUMBER_BITS], np.uint64))
    slots = places[low:high] & ((1 << ROW_NUMBER_BITS) - 1)
    order = np.argsort(slots)
    for begin in range(0, len(order), POSITIONS_IN_CHUNK):
        chunk = order[begin : begin + POSITIONS_IN_CHUNK]
        yield (places[low:high][chunk] >> ROW_NUMBER_BITS).astype(np.int64) - first, slots[chunk].astype(np.int64)


def _write_parts(batches: Iterator[Any], places: Any, size: int, file: io.FileIO, stored: list[list[Stored]]) -> Any:
    """Write the rows of *batches* that *places* name to *file*, by part of the output; return their schema.

    None if there are no such rows. *places*: from `places_by_row`. A part is *size* rows of the output. The record
    batches have two more columns, `ROW_COLUMN` and `SLOT_COLUMN`; `stored[part]` gets their extents in *file*.
    """
    import numpy as np

    pa = schema.import_arrow()
    layout = None
    first = end = 0
    for rows in batches:
        begin, first = first, first + len(rows)
        for order, slot in places_between(places, begin, first):
            chosen = rows.take(pa.array(order))
            layout = rows.schema.append(pa.field(ROW_COLUMN, pa.int64())).append(pa.field(SLOT_COLUMN, pa.int64()))
            moved = pa.RecordBatch.from_arrays(
                [*chosen.columns, pa.array(begin + order), pa.array(slot)], schema=layout
            )
            parts = slot // size
            for part in range(int(parts[0]), int(parts[-1]) + 1):
                low, high = np.searchsorted(parts, [part, part + 1])
                if low < high:
                    data = moved.slice(low, high - low).serialize()
                    file.write(data)
                    stored[part].append((end, end + data.size))
                    end += data.size
    return layout


def _sort_part(stored: list[Stored], layout: Any, file: io.FileIO) -> Iterator[Any]:
    """Yield the rows of one part of the output, sorted by `SLOT_COLUMN` and without it, in record batches.

    *stored*: extents of the record batches of the part in *file*, one or more; *layout*: their schema.
    """
    import numpy as np

    pa = schema.import_arrow()
    batches = [pa.ipc.read_record_batch(pa.py_buffer(read_range(file, begin, end)), layout) for begin, end in stored]
    table = pa.Table.from_batches(batches, layout).combine_chunks()
    order = np.argsort(table.column(SLOT_COLUMN).to_numpy(), kind="stable")
    yield from table.drop_columns([SLOT_COLUMN]).take(pa.array(order)).combine_chunks().to_batches()
