"""Rows of different tables as rows of one: the same columns and types for all, and shards as numbers.

A unified record batch has `__shard__` as int32, a number in `ShardNumbers`, which stands for the version too; then
`__index__` as uint64, `__key__` as string, `__begin__` and `__end__` as uint64, `__members__` as a struct of places,
and columns of values. Shards are known by their URLs, not by names that are relative to a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from tartools.errors import StorageError
from tartools.samples.values import as_text
from tartools.tables import schema
from tartools.tables.columnvalues import plain
from tartools.tables.rowplaces import Listing


class ShardNumbers:
    """A number for each shard; a shard is a URL and a version, which may be None: not known."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str | None], int] = {}
        self._all: list[tuple[str, str | None]] = []

    def number(self, url: str, version: str | None) -> int:
        """Return the number of this shard; the next one if it is new."""
        number = self._numbers.setdefault((url, version), len(self._all))
        if number == len(self._all):
            self._all.append((url, version))
        return number

    def url(self, number: int) -> str:
        """Return the URL of the shard *number*."""
        return self._all[number][0]

    def since(self, number: int) -> list[tuple[str, str | None]]:
        """Return URL and version of the shards from *number* on."""
        return self._all[number:]


def place_type() -> Any:
    """Return the type of a place in `__members__`."""
    pa = schema.arrow()
    return pa.struct([("offset", pa.uint64()), ("size", pa.uint64())])


def unified_schema(found: Any) -> Any:
    """Return the columns of a table whose schema is *found*, in our types.

    Columns that tartools needs keep their place; whether they can be converted shows when they are.
    """
    pa = schema.arrow()
    types = {
        schema.SHARD: pa.int32(),
        schema.INDEX: pa.uint64(),
        schema.KEY: pa.string(),
        schema.BEGIN: pa.uint64(),
        schema.END: pa.uint64(),
    }
    fields = []
    for field in found:
        if field.name in types:
            fields.append((field.name, types[field.name]))
        elif field.name == schema.MEMBERS:
            fields += members_column([each.name for each in field.type] if pa.types.is_struct(field.type) else [])
        elif field.name != schema.VERSION:
            fields.append((field.name, plain_type(field.type)))
    return pa.schema(fields)


def members_column(fields: Sequence[str]) -> list[tuple[str, Any]]:
    """Return name and type of the column of places of *fields*; nothing without one: Parquet has no empty structs."""
    pa = schema.arrow()
    return [(schema.MEMBERS, pa.struct([(field, place_type()) for field in fields]))] if fields else []


def fields_of(found: Any) -> list[str]:
    """Return the fields that samples have by the unified schema *found*."""
    return [field.name for field in found.field(schema.MEMBERS).type] if schema.MEMBERS in found.names else []


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
    pa = schema.arrow()
    order = (schema.SHARD, schema.INDEX, schema.KEY, schema.BEGIN, schema.END, schema.MEMBERS)
    types: dict[str, Any] = {}
    members: dict[str, None] = {}
    for one in schemas:
        for field in one:
            if field.name == schema.MEMBERS:
                members.update(dict.fromkeys(each.name for each in field.type))
            else:
                types[field.name] = joined_type(types.get(field.name, field.type), field.type)
    types.update(members_column(list(members)[: schema.MOST_FIELDS]))
    names = [name for name in order if name in types] + [name for name in types if name not in order]
    return pa.schema([(name, types[name]) for name in names])


def joined_type(one: Any, other: Any) -> Any:
    """Return a type that holds the values of both types: the same, or a number, or text."""
    pa = schema.arrow()
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if pa.types.is_signed_integer(one) and pa.types.is_signed_integer(other):
        return pa.int64()
    numbers = (pa.types.is_integer, pa.types.is_floating)
    if all(any(is_one(kind) for is_one in numbers) for kind in (one, other)):
        return pa.float64()
    return pa.string()


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
            schema.BEGIN: piece.begins,
            schema.END: piece.ends,
        }
        columns = []
        for field in self._columns:
            if field.name in ours:
                columns.append(pa.array(ours[field.name]).cast(field.type))
            else:
                columns.append(self._taken_over(rows.column(field.name), field, first))
        return pa.RecordBatch.from_arrays(columns, schema=self._columns)

    def _taken_over(self, column: Any, field: Any, first: int) -> Any:
        pa = schema.arrow()
        try:
            if field.name == schema.KEY:
                return schema.raw(column).cast(field.type)
            return places(column, field.type) if field.name == schema.MEMBERS else converted(column, field.type)
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise StorageError(
                f"rows {first} to {first + len(column) - 1}: {field.name} has values that are not "
                f"{'places' if field.name == schema.MEMBERS else field.type}: {str(error).splitlines()[0]}",
                url=self._listing.table,
            ) from None


def places(column: Any, wanted: Any) -> Any:
    """Return the struct *column* of places with the fields of the type *wanted*."""
    pa = schema.arrow()
    have = dict(zip([field.name for field in column.type], column.flatten(), strict=True))
    nothing = pa.nulls(len(column), place_type())
    arrays = [converted(have[field.name], field.type) if field.name in have else nothing for field in wanted]
    return pa.StructArray.from_arrays(arrays, fields=list(wanted))


def converted(column: Any, kind: Any) -> Any:
    """Return the array *column* in the type *kind*. What is not text becomes text as `samples.values.as_text` makes it.

    Raises: ArrowException; UnicodeDecodeError.
    """
    pa = schema.arrow()
    if column.type == kind:
        return column
    if pa.types.is_dictionary(column.type):
        return converted(column.dictionary_decode(), kind)
    if pa.types.is_string(kind) and not pa.types.is_string(plain_type(column.type)):
        return pa.array([None if value is None else as_text(value) for value in plain(column)], kind)
    return column.cast(kind, safe=not pa.types.is_floating(kind))


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
