"""The columns of a table as values of samples, and those of any Parquet file as fields that are added to samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from tartools.errors import SampleError, StorageError, shown
from tartools.samples.columnfields import RowFormat, check_words, key_column, packed_row
from tartools.samples.values import as_text
from tartools.tables import schema
from tartools.tables.rowplaces import Listing, Piece, whole_numbers
from tartools.tables.source import ParquetSource

ABSENT, UNKNOWN = -1, -2  # offset of a field that a sample lacks, and of one that it has twice
ROWS = 1 << 10  # of fields that are held at once


class TableColumns:
    """The columns of *rows*, a record batch that begins with row *first* of the table that *listing* is of.

    *rows* has some of the columns of *table*; *names* are those of all, *fields* those that its samples have, or None.
    """

    def __init__(self, rows: Any, first: int, listing: Listing, table: ParquetSource) -> None:
        self.url = listing.table
        self.first = first
        self.names: Sequence[str] = table.names
        self.fields: Sequence[str] | None = table.fields
        self._rows = rows
        self._listing = listing
        self._known: dict[str, Sequence[Any]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def column(self, name: str) -> Any | None:
        """Return the column *name*, an array of Arrow; None if the table has none."""
        names = self._rows.schema.names
        return self._rows.column(names.index(name)) if name in names else None

    def values(self, name: str) -> Sequence[Any] | None:
        """Return a value for each row: str, int, float, bool, list or dict, or None if there is none.

        Of `__key__`, `__shard__` and `__size__` these are the values of the samples. None if the table has no such
        column, or no key for some sample.
        """
        if name not in self._known:
            column = self.column(schema.BEGIN if name == "__size__" else name)
            if column is None or (name == schema.KEY and column.null_count):
                return None
            self._known[name] = self._values(name, column)
        return self._known[name]

    def keys(self, rows: Sequence[int]) -> list[str]:
        """Return the keys of *rows*."""
        return list(self.taken(schema.KEY, rows) or ())

    def taken(self, name: str, rows: Sequence[int]) -> Sequence[Any] | None:
        """Return the values of the column *name* for *rows*, as `values` does."""
        column = self.column(name)
        return None if column is None else self._values(name, column.take(schema.arrow().array(rows, "int64")))

    def counts(self, name: str, rows: Sequence[int]) -> dict[str, int] | None:
        """Return how often the column *name* has each value in *rows*, as text, in order of appearance.

        None if there is no such column.
        """
        found = self.taken(name, rows)
        return None if found is None else dict(Counter(map(as_text, (value for value in found if value is not None))))

    def members(self) -> tuple[list[str], Any, Any] | None:
        """Return the fields of the samples, and arrays with a column for each field: offset of the payload, and size.

        An offset is -1 where the sample lacks the field, and less where it is not known. None if the table does not
        tell.
        """
        import numpy as np

        column = self.column(schema.MEMBERS)
        if column is None or self.fields is None:
            return None
        pa = schema.arrow()
        places = column.flatten()
        offsets, sizes = np.empty((2, len(self), len(places)), np.int64)
        for number, place in enumerate(places):
            try:
                (offset, known), (size, sized) = map(whole_numbers, place.flatten())
            except pa.ArrowException:
                raise StorageError(f"{schema.MEMBERS}: not all offsets and sizes are numbers", url=self.url) from None
            offsets[:, number] = np.where(np.asarray(place.is_valid()), np.where(known, offset, UNKNOWN), ABSENT)
            sizes[:, number] = np.where(sized, size, 0)
        return [field.name for field in column.type], offsets, sizes

    def lacks(self, field: str) -> bool:
        """Return whether it is known that no sample of the table has *field*, whatever the case."""
        return self.fields is not None and field.lower() not in map(str.lower, self.fields)

    @cached_property
    def piece(self) -> Piece:
        """The rows as places in shards. Raises: StorageError if they can't be."""
        return self._listing.piece(self._rows, self.first)

    def shards(self) -> tuple[Sequence[str], Any]:
        """Return the URLs of shards, and for each row the number of one of these.

        The same URL may be there more than once. Raises: StorageError if a row has none.
        """
        return self._listing.urls, self.piece.numbers

    def _values(self, name: str, column: Any) -> Sequence[Any]:
        if name == "__size__":
            return (self.piece.ends - self.piece.begins).tolist()  # type: ignore[no-any-return]
        if name == schema.SHARD:
            numbers = self.piece.numbers.tolist()
            named = {number: shown(self._listing.urls[number]) for number in set(numbers)}
            return [named[number] for number in numbers]
        pa = schema.arrow()
        try:
            if name == schema.KEY:
                return [raw.decode("utf-8", "surrogateescape") for raw in schema.raw(column).to_pylist()]
            return plain(column)
        except (UnicodeDecodeError, pa.ArrowException):
            raise StorageError(f"the column {name} is not text", url=self.url) from None


def plain(column: Any) -> Sequence[Any]:
    """Return the values of *column* as str, int, float, bool, list or dict; None for null.

    Bytes are written in hex. A single-precision number is the one with the fewest digits. Anything else (dates,
    decimals) is the text that Arrow makes of it.

    Raises: UnicodeDecodeError for strings that are not UTF-8.
    """
    pa = schema.arrow()
    is_a = pa.types
    if is_a.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if is_a.is_floating(kind) and not is_a.is_float64(kind):
        column = column.cast(pa.float32()).cast(pa.string()).cast(pa.float64())
    elif is_a.is_timestamp(kind):
        column = column.cast(pa.string())
    values: list[Any] = column.to_pylist()
    if is_a.is_integer(kind) or is_a.is_floating(kind) or is_a.is_boolean(kind) or is_a.is_string(kind):
        return values
    return list(map(_simple, values))


def _simple(value: Any) -> Any:
    """Return *value* as something that JSON can hold."""
    if isinstance(value, dict):
        return {name: _simple(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return list(map(_simple, value))
    if isinstance(value, bytes):
        return value.hex()
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


# ---- rows of fields ----


def field_rows(table: ParquetSource, rows: RowFormat) -> Iterator[tuple[Sequence[bytes], Sequence[bytes]]]:
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
        fields = [(field, _field_values(found[name], name, url)) for name, field in taken]
        keys, values = [], []
        for number, name in enumerate(_field_values(found[key], key, url)):
            try:
                packed = packed_row(name, ((field, column[number]) for field, column in fields), rows.packed)
            except SampleError as error:
                raise SampleError(f"row {first + number}: {error.message}", url=url) from None
            keys.append(packed[0])
            values.append(packed[1])
        yield keys, values
        first += len(keys)


def _field_values(column: Any, name: str, url: str) -> Sequence[Any]:
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
