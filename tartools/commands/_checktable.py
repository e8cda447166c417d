"""Whether the rows of a table fit the shards that they list."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from tartools.errors import StorageError, TarFormatError
from tartools.samples.account import Account
from tartools.stages.checking.found import Place, Summary
from tartools.storage.versions import look
from tartools.tables import reading, source
from tartools.tables.places import Listing, Piece


class TableCheck:
    """Checks the table *url*, input *number*; adds to *summary* what is wrong, and to *shards* those that are there."""

    def __init__(self, url: str, number: int, summary: Summary, tmpdir: str | None) -> None:
        self.url = url
        self.number = number
        self.summary = summary
        self.tmpdir = tmpdir
        self.listing = Listing(url)
        self.shards: list[str] = []
        self._good: dict[int, bool] = {}  # shards: are they there, and as they were?

    def run(self) -> None:
        """Read all rows. Raises: StorageError if the table can't be opened."""
        first = 0
        try:
            with source.opened(self.url) as table:
                for rows in table.batches(reading.COLUMNS):
                    self._check(rows, first)
                    first += len(rows)
                if first != table.rows:
                    self._note("table-damaged", f"it has {first} of {table.rows} rows")
        except TarFormatError as error:
            self._note("table-damaged", error.message)

    def _check(self, rows: Any, first: int) -> None:
        try:
            piece = self.listing.piece(rows, first)
        except StorageError as error:
            if len(rows) == 1:
                self._note("table-row", error.message)
                return
            middle = len(rows) // 2  # each half alone, down to the row
            self._check(rows.slice(0, middle), first)
            self._check(rows.slice(middle), first + middle)
            return
        for low, high in self._runs(piece):
            part = piece.part(low, high)
            if self._fails(part):
                for row in range(len(part)):
                    why = self._fails(part.part(row, row + 1))
                    if why is not None:
                        key = part.keys[row].decode("utf-8", "surrogateescape") if part.keys else ""
                        self._note("table-row", why.message, key)

    def _fails(self, piece: Piece) -> StorageError | TarFormatError | None:
        """Return why the samples of *piece* are not as their rows say; None if they are."""
        quiet = Account(lambda _: None)
        try:
            with closing(reading.Shards(self.listing, quiet, ranges=True, tmpdir=self.tmpdir)) as shards:
                for _ in shards.samples(piece):
                    pass
        except (StorageError, TarFormatError) as error:
            return error
        return None

    def _runs(self, piece: Piece) -> Iterator[tuple[int, int]]:
        """Yield from where to where rows of *piece* follow each other whose shards are as they were."""
        low = 0
        numbers = piece.numbers.tolist()
        for at, number in enumerate(numbers):
            if not self._is_good(number):
                if low < at:
                    yield low, at
                low = at + 1
        if low < len(numbers):
            yield low, len(numbers)

    def _is_good(self, number: int) -> bool:
        if number not in self._good:
            url, version = self.listing.urls[number], self.listing.versions[number]
            try:
                found = look(url).version
            except StorageError as error:
                self._note("missing-shard", f"{url}: {error.message}")
                self._good[number] = False
            else:
                self.shards.append(url)
                self._good[number] = version is None or found == version
                if not self._good[number]:
                    self._note("table-stale", str(url))
        return self._good[number]

    def _note(self, code: str, what: str, key: str = "") -> None:
        self.summary.note(code, Place(self.number, -1, key, what))
