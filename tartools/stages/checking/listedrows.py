"""The samples that a table lists, and which of its rows do not fit their shards."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Container, Iterator, Sequence
from typing import Any

from tartools.errors import StorageError, TarFormatError, shown
from tartools.samples.account import Account
from tartools.samples.sample import Batch
from tartools.stages.checking.codes import Trouble
from tartools.stages.checking.samples import Rows, rows_of_batch
from tartools.stages.combinations import text
from tartools.storage import is_missing
from tartools.storage.checks import look
from tartools.storage.local import identity
from tartools.tables import schema, source, tablesamples
from tartools.tables.listed import TableColumns
from tartools.tables.rowplaces import Listing, Piece, RowError, runs_of_equal
from tartools.tables.rows import RowBlock

TOGETHER, FAR = 1024, 256  # rows that are read together, and of shards on servers, whose payloads are held meanwhile


class TableRows:
    """The rows of the table *url*, input *number*.

    Those of shards that are among *others* (see `identity`) are only compared.

    Holds: 12 bytes for each row, and the samples of up to 1,024.
    """

    def __init__(self, url: str, number: int, others: Container[str], tmpdir: str | None) -> None:
        self.url = url
        self._number = number
        self._listing = Listing(url)
        self._others = others
        self._tmpdir = tmpdir
        self._firsts: list[int] = []  # rows with which the pieces begin
        self._places: list[tuple[Any, Any]] = []  # of pieces: numbers of shards, and bytes
        self._known: dict[int, str] = {}  # shards -> what is wrong with them, "" if nothing
        self._said: set[int] = set()  # shards, that something is wrong with them
        self._shards: tablesamples.Shards | None = None
        self._table: Any = None
        self._members: tuple[list[str], Any, Any] | None = None  # of the piece that was read last

    @property
    def urls(self) -> Sequence[str]:
        """The shards that the rows read so far list."""
        return self._listing.urls

    @property
    def shards(self) -> set[str]:
        """As `urls`, but not those among the others; see `identity`."""
        return {name for url in self.urls if (name := identity(url)) not in self._others}

    def place(self, row: int) -> tuple[str, int]:
        """Return the shard and the byte of the sample that *row*, which has been read, lists."""
        piece = bisect_right(self._firsts, row) - 1
        numbers, begins = self._places[piece]
        index = row - self._firsts[piece]
        return self._listing.urls[numbers[index]], int(begins[index])

    def read(self) -> Iterator[Trouble | Rows]:
        """Yield the samples, in order, and what is wrong; its code is empty if it was said before.

        Raises: StorageError if the table can't be opened, or a server fails.
        """
        self._firsts, self._places, self._known, self._said = [], [], {}, set()
        first = 0
        try:
            with source.opened(self.url) as self._table:
                table = self._table
                for rows in table.batches(tablesamples.COLUMNS):
                    yield from self._read(rows, first)
                    first += len(rows)
        except TarFormatError as error:
            yield Trouble("table-damaged", -1, "", error.message)
        finally:
            self._close()

    def _close(self) -> None:
        if self._shards is not None:
            self._shards.close()
            self._shards = None

    def _read(self, rows: Any, first: int) -> Iterator[Trouble | Rows]:
        """As `read`, for the record batch *rows*, which begins with row *first*."""
        try:
            piece = self._listing.piece(rows, first)
        except StorageError as error:
            if len(rows) == 1:
                yield Trouble("table-row", -1, "", error.message, 1)
                return
            middle = len(rows) // 2  # each half alone, down to the row
            yield from self._read(rows.slice(0, middle), first)
            yield from self._read(rows.slice(middle), first + middle)
            return
        self._members = TableColumns(rows, first, self._listing, self._table).members()
        self._firsts.append(first)
        self._places.append((piece.numbers, piece.begins))
        for part in itertools.starmap(piece.part, runs_of_equal(piece.numbers)):
            number = part.place(0)[0]
            if code := self._wrong_with(number):
                again = number in self._said
                self._said.add(number)
                what = f"{code}: {shown(self._listing.urls[number])}"
                yield Trouble("" if again else code, -1, "", what, len(part))
                continue
            most = FAR if self._listing.far[number] else TOGETHER
            for low in range(0, len(part), most):
                yield from self._samples(part.part(low, min(low + most, len(part))))

    def _samples(self, piece: Piece) -> Iterator[Trouble | Rows]:
        """As `read`, for the rows *piece* of one shard, which is there."""
        if self._shards is None:
            quiet = Account(lambda _: None)
            self._shards = tablesamples.Shards(self._listing, quiet, ranges=True, tmpdir=self._tmpdir)
        try:
            batches = list(self._shards.samples(piece))
            self._compare(batches, piece)
        except (RowError, TarFormatError) as error:
            self._close()
            if len(piece) == 1:
                yield Trouble("table-row", -1, text(piece.keys[0]) if piece.keys else "", error.message, 1)
                return
            middle = len(piece) // 2
            yield from self._samples(piece.part(0, middle))
            yield from self._samples(piece.part(middle, len(piece)))
            return
        if identity(self._listing.urls[piece.place(0)[0]]) not in self._others:
            row = piece.first
            for batch in batches:
                rows = rows_of_batch(batch, self._number, row)
                assert rows is not None
                yield rows
                row += len(batch)

    def _compare(self, batches: list[Batch], piece: Piece) -> None:
        """Raise RowError if the rows *piece* have other places of members than their samples, which are *batches*."""
        import numpy as np

        if self._members is None:
            return
        block = RowBlock("")
        for batch in batches:
            if batch.groups is not None:
                block.add(batch)
            else:
                block.add_sample(batch[0], 0)
        shift = piece.begins - np.frombuffer(block.begins, np.int64)
        low, count = piece.first - self._firsts[-1], len(piece)
        fields, offsets, sizes = self._members
        absent = np.full(count, schema.ABSENT), np.zeros(count, np.int64)
        said = {field: (offsets[low : low + count, n], sizes[low : low + count, n]) for n, field in enumerate(fields)}
        found = {
            field.decode("utf-8", "replace"): (np.where(places >= 0, places + shift, places), lengths)
            for field, places, lengths in block.columns()
        }
        for field in {**said, **found}:
            (at, size), (place, length) = said.get(field, absent), found.get(field, absent)
            wrong = np.flatnonzero((at != place) | ((at >= 0) & (size != length)))
            if len(wrong):
                what = f"__members__ of this row and the shard differ in the field {field!r}"
                raise self._listing.failure(piece, int(wrong[0]), what)

    def _wrong_with(self, number: int) -> str:
        """Return the code of what is wrong with shard *number* as a whole; empty if it is there, as it was."""
        if number not in self._known:
            url, version = self._listing.urls[number], self._listing.versions[number]
            try:
                found = look(url).version
            except StorageError as error:
                if not is_missing(error):
                    raise
                self._known[number] = "missing-shard"
            else:
                self._known[number] = "" if version is None or found == version else "table-stale"
        return self._known[number]
