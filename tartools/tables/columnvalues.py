"""The columns of a table as values of samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from tartools.errors import StorageError, shown
from tartools.samples.values import as_text
from tartools.tables import schema
from tartools.tables.rowplaces import Listing, Piece
from tartools.tables.source import ParquetSource

ABSENT, UNKNOWN = -1, -2  # offset of a field that a sample lacks, and of one that it has twice


class TableColumns:
    """The columns of *rows*, a record batch that begins with row *first* of the table that *listing* is of.

    *rows* has some of the columns of *table*. See `samples.columns.Columns`.
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
        """Return the values of the column *name*: see `samples.columns.Columns`."""
        if name not in self._known:
            column = self.column(schema.BEGIN if name == "__size__" else name)
            if column is None or (name == schema.KEY and column.null_count):
                return None
            self._known[name] = self._values(name, column)
        return self._known[name]

    def keys(self, rows: Sequence[int]) -> list[str]:
        """Return the keys of *rows*."""
        column = self.column(schema.KEY)
        assert column is not None
        return list(self._values(schema.KEY, column.take(schema.arrow().array(rows, "int64"))))

    def taken(self, name: str, rows: Sequence[int]) -> Sequence[Any] | None:
        """Return the values of the column *name* for *rows*, as `values` does."""
        column = self.column(name)
        return None if column is None else self._values(name, column.take(schema.arrow().array(rows, "int64")))

    def counts(self, name: str, rows: Sequence[int]) -> dict[str, int] | None:
        """Return how often the column *name* has each value in *rows*: see `samples.columns.Columns`."""
        found = self.taken(name, rows)
        return None if found is None else dict(Counter(map(as_text, (value for value in found if value is not None))))

    def members(self) -> tuple[list[str], Any, Any] | None:
        """Return where the members of samples are: see `samples.columns.Columns`."""
        import numpy as np

        column = self.column(schema.MEMBERS)
        if column is None or self.fields is None:
            return None
        pa = schema.arrow()
        places = column.flatten()
        offsets, sizes = np.empty((2, len(self), len(places)), np.int64)
        for number, place in enumerate(places):
            try:
                offset, size = (part.cast(pa.int64()) for part in place.flatten())
            except pa.ArrowException:
                raise StorageError(f"{schema.MEMBERS}: not all offsets and sizes are numbers", url=self.url) from None
            known = offset.fill_null(UNKNOWN).to_numpy(zero_copy_only=False)
            offsets[:, number] = np.where(np.asarray(place.is_valid()), known, ABSENT)
            sizes[:, number] = size.fill_null(0).to_numpy(zero_copy_only=False)
        return [field.name for field in column.type], offsets, sizes

    def lacks(self, field: str) -> bool:
        """Return whether it is known that no sample of the table has *field*, whatever the case."""
        return self.fields is not None and field.lower() not in map(str.lower, self.fields)

    @cached_property
    def piece(self) -> Piece:
        """The rows as places in shards. Raises: StorageError if they can't be."""
        return self._listing.piece(self._rows, self.first)

    def spans(self) -> tuple[Any, Any]:
        """Return at which bytes of their shards the samples begin and end: see `samples.columns.Columns`."""
        return self.piece.begins, self.piece.ends

    def shards(self) -> tuple[Sequence[str], Any]:
        """Return the URLs of shards, and for each row the number of one of these: see `samples.columns.Columns`."""
        return self._listing.urls, self.piece.numbers

    def _values(self, name: str, column: Any) -> Sequence[Any]:
        if name == "__size__":
            begins, ends = self.spans()
            return (ends - begins).tolist()  # type: ignore[no-any-return]
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
