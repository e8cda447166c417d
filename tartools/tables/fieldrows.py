"""Parquet files whose rows add fields to samples that exist."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tartools.errors import SampleError
from tartools.samples.columnfields import RowFormat, check_words, key_column, packed_row
from tartools.tables import schema
from tartools.tables.columnvalues import plain
from tartools.tables.source import ParquetSource

ROWS = 1 << 10  # that are held at once


def batches(table: ParquetSource, rows: RowFormat) -> Iterator[tuple[Sequence[bytes], Sequence[bytes]]]:
    """Yield keys and packed fields of the rows of *table*. Null is no field.

    Bytes are payloads as they are, lists of numbers are NumPy arrays of the column's type, other values have the text
    that tar2tsv writes.

    Holds: a row group of the columns that are taken. Raises: SampleError, naming the row; TarFormatError.
    """
    url = table.url
    key = table.names[key_column(table.names, rows.key, url)]
    columns = {name: place for place, name in enumerate(table.names) if name != key}
    check_words(list(columns), rows, url)
    if len(set(table.names)) < len(table.names):
        twice = next(name for name in table.names if table.names.count(name) > 1)
        raise SampleError(f"two columns are called {twice!r}", url=url)
    try:
        taken = [(table.names[place], field) for place, field in rows.chosen.of(columns)]
    except SampleError as error:
        raise SampleError(error.message, url=url) from None
    first = 1
    for batch in table.batches(list(dict.fromkeys([key, *(name for name, _ in taken)])), ROWS):
        found = {name: batch.column(number) for number, name in enumerate(batch.schema.names)}
        fields = [(field, _values(found[name], name, url)) for name, field in taken]
        keys, values = [], []
        for number, name in enumerate(_values(found[key], key, url)):
            try:
                packed = packed_row(name, ((field, column[number]) for field, column in fields), rows.packed)
            except SampleError as error:
                raise SampleError(f"row {first + number}: {error.message}", url=url) from None
            keys.append(packed[0])
            values.append(packed[1])
        yield keys, values
        first += len(keys)


def _values(column: Any, name: str, url: str) -> Sequence[Any]:
    """Return the values of *column*, called *name*, for `payloads.field_of`."""
    pa = schema.arrow()
    is_a = pa.types
    kind = column.type
    if is_a.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if is_a.is_binary(kind) or is_a.is_large_binary(kind) or is_a.is_fixed_size_binary(kind):
        return column.to_pylist()  # type: ignore[no-any-return]
    if is_a.is_list(kind) or is_a.is_large_list(kind) or is_a.is_fixed_size_list(kind):
        inner = kind.value_type
        if is_a.is_integer(inner) or is_a.is_floating(inner):
            return [_array(value, name, url) for value in column]
    try:
        return plain(column)
    except UnicodeDecodeError:
        raise SampleError(f"column {name!r}: not all of it is UTF-8", url=url) from None


def _array(value: Any, name: str, url: str) -> Any:
    """Return a list of numbers in Arrow as an array; None for null. Raises: SampleError if a number is null."""
    if not value.is_valid:
        return None
    if value.values.null_count:
        raise SampleError(f"column {name!r}: a list of numbers has a null in it", url=url)
    return value.values.to_numpy(zero_copy_only=False)
