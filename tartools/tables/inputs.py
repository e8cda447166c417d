"""Rows of several tables, and of shards that were indexed, as rows of one: the same columns and types for all.

A unified record batch has `__shard__` as int32, a number in `ShardNumbers`, which stands for the version too; then
`__index__` as uint64, `__key__` as string, `__begin__` and `__end__` as uint64, `__members__` as a struct of places,
and columns of values. Shards are known by their URLs, not by names that are relative to a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice, pairwise
from typing import Any

from tartools.errors import StorageError
from tartools.samples.values import as_text
from tartools.tables import schema, source
from tartools.tables.columnvalues import plain
from tartools.tables.rowplaces import Listing, ShardNumbers
from tartools.tables.rows import RowSpool

ROWS = 1 << 16  # in a batch


class TablePart:
    """The rows of the table *url*. `schema` is their unified schema."""

    def __init__(self, url: str, shards: ShardNumbers) -> None:
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

    @property
    def fields(self) -> list[str]:
        """The fields that samples have."""
        return schema.fields_of(self.schema)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield the rows, in order, in unified record batches; only those of *columns* that there are, if given."""
        wanted = _some(self.schema, columns)
        unifier = Unifier(self.url, wanted, self._shards)
        first = 0
        with source.opened(self.url) as table:
            for rows in table.batches([*source.NEEDED, schema.VERSION, *wanted.names], ROWS):
                yield unifier.unified(rows, first)
                first += len(rows)


RowSource = TablePart | RowSpool  # some of the rows: their number, unified schema, and batches


class RowInputs:
    """The rows of *parts*, whose shards have numbers in *shards*."""

    def __init__(self, parts: Sequence[RowSource], shards: ShardNumbers) -> None:
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
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_large_string(kind) or str(kind) == "string_view":
        return pa.string()
    if pa.types.is_large_binary(kind) or str(kind) == "binary_view":
        return pa.binary()
    return kind


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
            values = plain(column)
            column = pa.array([None if value is None else as_text(value) for value in values], field.type)
        columns.append(column if column.type == field.type else column.cast(field.type, safe=False))
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


# ---- rows of a table ----


class Unifier:
    """Makes rows of the table *url* unified ones, with *columns*: those that are wanted of its `unified_schema`."""

    def __init__(self, url: str, columns: Any, shards: ShardNumbers) -> None:
        self._listing = Listing(url)
        self._columns = columns
        self._shards = shards
        self._numbers: list[int] = []  # in *shards*, of the shards of the listing

    def unified(self, rows: Any, first: int) -> Any:
        """Return the record batch *rows*, which begins with row *first* of the table.

        Raises: StorageError, with the row, for a value of no use.
        """
        import numpy as np

        pa = schema.arrow()
        piece = self._listing.piece(rows, first, keyed=False)
        known = zip(self._listing.urls, self._listing.versions, strict=True)
        self._numbers += [self._shards.number(*shard) for shard in islice(known, len(self._numbers), None)]
        ours = {
            schema.SHARD: np.array(self._numbers, np.int32)[piece.numbers],
            schema.BEGIN: piece.begins.astype(np.uint64),
            schema.END: piece.ends.astype(np.uint64),
        }
        columns = [
            pa.array(ours[field.name])
            if field.name in ours
            else self._taken_over(rows.column(field.name), field, first)
            for field in self._columns
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._columns)

    def _taken_over(self, column: Any, field: Any, first: int) -> Any:
        pa = schema.arrow()
        try:
            if field.name == schema.KEY:
                column = schema.raw(column)
            elif pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            return column if column.type == field.type else column.cast(field.type)
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise StorageError(
                f"rows {first} to {first + len(column) - 1}: {field.name} has values that are not "
                f"{'places' if field.name == schema.MEMBERS else field.type}: {str(error).splitlines()[0]}",
                url=self._listing.table,
            ) from None


def table_schema(rows: Any) -> Any:
    """Return the columns of the table that holds rows of the unified schema *rows*."""
    pa = schema.arrow()
    name = pa.dictionary(pa.int32(), pa.string())
    return pa.schema(
        [(schema.SHARD, name), (schema.VERSION, name), *(field for field in rows if field.name != schema.SHARD)]
    )


def table_rows(rows: Any, shards: Sequence[tuple[str, str | None]]) -> Any:
    """Return unified *rows*, a record batch or table, as rows for a table: *shards* are name and version by number."""
    import numpy as np

    pa = schema.arrow()
    column = rows.column(schema.SHARD)
    numbers = np.asarray(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
    used, first, place = np.unique(numbers, return_index=True, return_inverse=True)
    order = np.argsort(first)  # so that equal rows make equal bytes, whatever the numbers of the shards
    which = pa.array(np.argsort(order).astype(np.int32)[place])
    named = [shards[number] for number in used[order].tolist()]
    encoded = [
        pa.DictionaryArray.from_arrays(which, pa.array([name for name, _ in named], pa.string())),
        _versions(which, [version for _, version in named]),
    ]
    others = [rows.column(name) for name in rows.schema.names if name != schema.SHARD]
    return pa.Table.from_arrays([*encoded, *others], schema=table_schema(rows.schema))


def _versions(which: Any, versions: Sequence[str | None]) -> Any:
    """Return the column of *versions*; None becomes null."""
    pa = schema.arrow()
    return pa.array(versions, pa.string()).take(which).dictionary_encode()
