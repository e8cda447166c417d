"""Rows of a table as places in shards."""

from __future__ import annotations

from typing import Any, NamedTuple

from tartools.errors import StorageError, shown
from tartools.storage.url import Url
from tartools.tables import schema
from tartools.tables.fetching import Place

ADVICE = "tarindex makes the table anew"


class Piece(NamedTuple):
    """Adjacent rows of the table, the first of them row *first*: *places*, and *keys* unless the table has none."""

    first: int
    places: list[Place]
    keys: list[bytes] | None

    def part(self, low: int, high: int) -> Piece:
        """Return rows *low* to *high* of these."""
        return Piece(self.first + low, self.places[low:high], self.keys and self.keys[low:high])


class Listing:
    """The shards that the table *url* names: their *urls* and *versions* by number. A version is None if not known."""

    def __init__(self, url: str) -> None:
        self.table = url
        self.urls: list[Url] = []
        self.versions: list[str | None] = []
        self._folder = schema.folder_of(url)
        self._numbers: dict[tuple[str | None, str | None], int] = {}

    def piece(self, rows: Any, first: int) -> Piece:
        """Return the record batch *rows*, which begins with row *first*. Raises: StorageError for values of no use."""
        names = rows.schema.names
        column = {name: rows.column(name) for name in names}
        begins, ends = (self.numbers_in(column[name], name, first).to_pylist() for name in (schema.BEGIN, schema.END))
        shards = column[schema.SHARD].to_pylist()
        found = column[schema.VERSION].to_pylist() if schema.VERSION in column else [None] * len(shards)
        numbers = list(map(self._number, zip(shards, found, strict=True), range(first, first + len(rows))))
        keys = None
        if schema.KEY in column and not column[schema.KEY].null_count:
            keys = [key.encode() if isinstance(key, str) else key for key in column[schema.KEY].to_pylist()]
        places = list(map(Place, numbers, begins, ends))
        for row, place in enumerate(places, first):
            if not 0 <= place.begin < place.end:
                raise self.failure(row, place, f"the sample cannot begin at {place.begin} and end at {place.end}")
        return Piece(first, places, keys)

    def numbers_in(self, column: Any, name: str, first: int) -> Any:
        """Return *column*, called *name*, from row *first* on, as one of int64. Raises: StorageError if it can't be."""
        pa = schema.arrow()
        if column.null_count:
            row = first + column.is_null().to_pylist().index(True)
            raise StorageError(f"row {row}: {name} is null", url=self.table)
        try:
            return column.cast(pa.int64())
        except pa.ArrowException as error:
            raise StorageError(f"{name} is not a whole number: {str(error).splitlines()[0]}", url=self.table) from None

    def _number(self, named: tuple[str | None, str | None], row: int) -> int:
        """Return the number of the shard with this name and version."""
        name, version = named
        if not isinstance(name, str):
            raise self._nameless(row)
        number = self._numbers.setdefault((name, version), len(self.urls))
        if number == len(self.urls):
            self.urls.append(self.url(name, row))
            self.versions.append(version)
        return number

    def url(self, name: object, row: int) -> Url:
        """Return the URL of the shard that is called *name* in *row*. Raises: StorageError, UsageError."""
        if not isinstance(name, str) or not name:
            raise self._nameless(row)
        return Url(schema.resolved(name, self._folder))

    def _nameless(self, row: int) -> StorageError:
        return StorageError(f"row {row}: {schema.SHARD} is no name of a shard", url=self.table)

    def failure(self, row: int, place: Place, what: str) -> StorageError:
        """Return the failure of the sample that *row* says is at *place*."""
        return StorageError(
            f"{what} (row {row} of {shown(self.table)}; {ADVICE})", url=self.urls[place.number], offset=place.begin
        )
