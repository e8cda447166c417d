"""Where the samples of rows of a table are, and the shards that they are in, opened when needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable
from typing import Any

from tartools.errors import TarFormatError
from tartools.samples.account import Account
from tartools.samples.sample import Sample
from tartools.tables.bulk import Bulk, RoomOf
from tartools.tables.places import Listing, Piece
from tartools.tables.reading import Shards


class Placed:
    """Where the samples of some rows are: *piece* begins with row *first* of the file. Opens their shards when needed.

    Several threads, and forks, may use it.
    """

    def __init__(self, listing: Listing, piece: Piece, first: int = 0) -> None:
        self.piece = piece
        self.first = first
        self.listing = listing
        self._shards: tuple[int, Shards] | None = None  # and the process that opened them

    @classmethod
    def of(cls, url: str, batches: Iterable[Any], count: int, first: int = 0) -> Placed:
        """Return the places of the *count* rows of *batches*. Raises: TarFormatError if they are not so many."""
        import numpy as np

        listing, at = Listing(url), 0
        columns: Any = (np.empty(count, np.int32), np.empty(count, np.int64), np.empty(count, np.int64))
        for batch in batches:
            found = listing.piece(batch, first + at, keyed=False)
            if at + len(found) <= count:
                for column, part in zip(columns, (found.numbers, found.begins, found.ends), strict=True):
                    column[at : at + len(found)] = part
            at += len(found)
        if at != count:
            raise TarFormatError(f"this table is damaged: it has {at} of {count} rows", url=url)
        return cls(listing, Piece(first, *columns), first)

    def taken(self, rows: Any) -> Placed:
        """Return the places of *rows* of these."""
        held = self.piece
        return Placed(self.listing, Piece(0, held.numbers[rows], held.begins[rows], held.ends[rows]))

    def samples(self, at: Any, rows: Any, keys: list[bytes] | None) -> list[Sample]:
        """Return the samples of the rows *at* of these, which have these *keys* and are *rows* of the file."""
        held = self.piece
        wanted = Piece(0, held.numbers[at], held.begins[at], held.ends[at], keys, rows)
        return [sample.own() for batch in self._opened().samples(wanted) for sample in batch]

    def bulk(self, at: Any, rows: Any, room_of: RoomOf | None, fields: Collection[str] | None) -> Bulk | None:
        """Return the same samples as a `Bulk`; None if `samples` has to read them. See `Table.bulk`."""
        held = self.piece
        wanted = Piece(0, held.numbers[at], held.begins[at], held.ends[at], None, rows)
        found = self._opened().bulk(wanted, room_of, fields)
        if found is not None:
            found.shards, found.urls = wanted.numbers, self.listing.urls
        return found

    def _opened(self) -> Shards:
        """Return the shards, with files and connections of this process."""
        if self._shards is None or self._shards[0] != os.getpid():
            self._shards = os.getpid(), Shards(self.listing, Account(), listed=False)
        return self._shards[1]

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        """End the threads that make requests. When Python ends, they end with it; and modules are gone by then."""
        if self._shards is not None and not ending() and self._shards[0] == os.getpid():
            self._shards[1].close()
