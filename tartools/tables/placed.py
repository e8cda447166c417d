"""Where the samples of rows of a table are, and the shards that they are in, opened when needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable
from typing import Any

from tartools.errors import TarFormatError
from tartools.samples.account import Account
from tartools.samples.sample import Sample
from tartools.tables import keysums, schema
from tartools.tables.bulk import Bulk, RoomOf
from tartools.tables.rowplaces import Listing, Piece
from tartools.tables.tablesamples import Shards

CHUNK = 1 << 20  # rows that are hashed together


class Placed:
    """Where the samples of some rows are: *piece* begins with row *first* of the file. Opens their shards when needed.

    *sums* stand for their keys (see `keysums`), and are compared with those that are read. Several threads, and forks,
    may use it.
    """

    def __init__(self, listing: Listing, piece: Piece, sums: Any, first: int = 0) -> None:
        self.piece = piece
        self.sums = sums
        self.first = first
        self.listing = listing
        self._shards: tuple[int, Shards] | None = None  # and the process that opened them

    @classmethod
    def of(cls, url: str, batches: Iterable[Any], count: int, first: int = 0) -> Placed:
        """Return the places of the *count* rows of *batches*. Raises: TarFormatError if they are not so many."""
        import numpy as np

        listing, at = Listing(url), 0
        columns: Any = [np.empty(count, kind) for kind in (np.int32, np.int64, np.int64, np.uint32)]
        for batch in batches:
            found = listing.piece(batch, first + at, keyed=False)
            sums = listing.key_sums(batch, first + at)
            if at + len(found) <= count:
                for column, part in zip(columns, (found.numbers, found.begins, found.ends, sums), strict=True):
                    column[at : at + len(found)] = part
            at += len(found)
        if at != count:
            raise TarFormatError(f"this table is damaged: it has {at} of {count} rows", url=url)
        return cls(listing, Piece(first, *columns[:3]), columns[3], first)

    def taken(self, rows: Any) -> Placed:
        """Return the places of *rows* of these."""
        held = self.piece
        return Placed(self.listing, Piece(0, held.numbers[rows], held.begins[rows], held.ends[rows]), self.sums[rows])

    def samples(self, at: Any, rows: Any, keys: list[bytes] | None) -> list[Sample]:
        """Return the samples of the rows *at* of these, which have these *keys* and are *rows* of the file.

        Raises: StorageError if one is not as its row says.
        """
        held = self.piece
        wanted = Piece(0, held.numbers[at], held.begins[at], held.ends[at], keys, rows)
        found = [sample.own() for batch in self._opened().samples(wanted) for sample in batch]
        others = self._others(at, keysums.of_list([sample.raw_key for sample in found]))
        if len(others):
            what = f"the key of the sample there is {found[others[0]].key!r}, and that of the row is another"
            raise self.listing.failure(wanted, int(others[0]), what)
        return found

    def _others(self, at: Any, sums: Any) -> Any:
        """Return which of the rows *at* have another key than those that *sums* stand for."""
        known = self.sums[at]
        return ((known != sums) & (known != keysums.UNKNOWN)).nonzero()[0]

    def bulk(self, at: Any, rows: Any, room_of: RoomOf | None, fields: Collection[str] | None) -> Bulk | None:
        """Return the same samples as a `Bulk`; None if `samples` has to read them. See `Table.bulk`."""
        held = self.piece
        wanted = Piece(0, held.numbers[at], held.begins[at], held.ends[at], None, rows)
        found = self._opened().bulk(wanted, room_of, fields)
        if found is None or len(self._others(at, found.key_sums())):
            return None
        found.shards, found.urls = wanted.numbers, self.listing.urls
        return found

    def digest(self) -> str:
        """Return what other rows, or another order of them, would change: other shards, versions and places."""
        from hashlib import blake2b

        import numpy as np

        held, known = self.piece, self.listing
        folder = schema.folder_of(known.table)
        names = [schema.relative(str(url), folder) for url in known.urls]
        shards = [blake2b(repr(one).encode(), digest_size=8) for one in zip(names, known.versions, strict=True)]
        each = np.frombuffer(b"".join(shard.digest() for shard in shards), np.uint64)
        found = blake2b(digest_size=16)
        for low in range(0, len(held), CHUNK):
            some = slice(low, low + CHUNK)
            for column in (each[held.numbers[some]], held.begins[some], held.ends[some], self.sums[some]):
                found.update(np.ascontiguousarray(column).data)
        return found.hexdigest()

    def _opened(self) -> Shards:
        """Return the shards, with files and connections of this process."""
        if self._shards is None or self._shards[0] != os.getpid():
            self._shards = os.getpid(), Shards(self.listing, Account(), listed=False)
        return self._shards[1]

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        """End the threads that make requests. When Python ends, they end with it; and modules are gone by then."""
        if self._shards is not None and not ending() and self._shards[0] == os.getpid():
            self._shards[1].close()
