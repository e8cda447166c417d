"""`RowLocations`: where the samples of the rows of a `Table` are, and the reader that reads them from there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tartools.samples.account import Account
from tartools.samples.sample import Sample
from tartools.tables import schema
from tartools.tables.catalog import ShardCatalog
from tartools.tables.extents import UNKNOWN_KEY, Extents, key_checksums
from tartools.tables.verified import VerifiedReader
from tartools.tar.groups import Need

if TYPE_CHECKING:
    from tartools.tables.bulk import Bulk, GetBuffer

HASHED_ROWS_IN_CHUNK = 1 << 20  # rows that are hashed together


class RowLocations:
    """The extents of the samples of some rows of a table, which can be read from their shards.

    *extents*: of the samples, whose shards have numbers in *catalog*. *first*: number of the first row in the table.
    *key_checksums*: from `extents.key_checksums`, compared with the keys of samples read; UNKNOWN_KEY equals any.
    *fields_by_set*: the fields of each set of shards, in lower case; None for one whose fields are unknown.
    `samples` and `bulk` read samples. Shards are opened when they are needed. Threads and forks may use it.
    """

    def __init__(
        self,
        catalog: ShardCatalog,
        extents: Extents,
        key_checksums: Any,
        first: int = 0,
        fields_by_set: Sequence[Set[str] | None] = (),
    ) -> None:
        self.extents = extents
        self.key_checksums = key_checksums
        self.first = first
        self.catalog = catalog
        self.fields_by_set = fields_by_set
        self._reader: tuple[int, VerifiedReader] | None = None  # and the process that opened them

    @classmethod
    def from_batches(cls, url: str, batches: Iterable[Any], count: int, first: int = 0) -> RowLocations:
        """Return the locations of the *count* rows of *batches*: record batches from row *first* of the table *url* on.

        The batches have the columns `schema.location_columns`. Keys are not held, but their checksums: UNKNOWN_KEY for
        all rows of a batch without a column of keys, or with a null in it. Raises: StorageError for an invalid value.
        """
        import numpy as np

        catalog, at = ShardCatalog(url), 0
        sums = np.empty(count, np.uint32)
        all_extents = _empty_extents(first, count)
        fields: list[Set[str] | None] = []
        for batch in batches:
            extents = catalog.extents(batch, first + at)
            sums[at : at + len(extents)] = UNKNOWN_KEY if extents.keys is None else key_checksums(extents.keys)
            if not at:
                all_extents.others = tuple(_empty_extents(first, count) for _ in extents.others)
                fields = _fields_by_set(batch.schema)
            for target, set_extents in zip((all_extents, *all_extents.others), (extents, *extents.others), strict=True):
                for column, part in (
                    (target.numbers, set_extents.numbers),
                    (target.begins, set_extents.begins),
                    (target.ends, set_extents.ends),
                ):
                    column[at : at + len(extents)] = part
            at += len(extents)
        return cls(catalog, all_extents, sums, first, fields)

    def take(self, rows: Any) -> RowLocations:
        """Return the locations at the indexes *rows*, an array, in that order; their row numbers begin with 0."""
        extents = replace(self.extents, first=0, rows=None).take(rows)
        return RowLocations(
            self.catalog, replace(extents, rows=None), self.key_checksums[rows], fields_by_set=self.fields_by_set
        )

    def choose(self, at: Any, rows: Any, keys: list[bytes] | None, fields: Collection[str] | None) -> Extents:
        """Return the extents of the samples at the indexes *at*, as far as they have to be read for *fields*.

        *at*: array of indexes. *rows*: their row numbers in the file, for messages. *keys*: their keys, to be compared;
        None: unknown. *fields*: names in lower case; None for all. Parts in sets of shards that have none of these are
        left out, but a sample that would have no part keeps all, so that its key is read.
        """
        import numpy as np

        extents = replace(self.extents.take(at), first=0, rows=np.asarray(rows), keys=keys)
        if not extents.others or fields is None:
            return extents
        needed = [names is None or not names.isdisjoint(fields) for names in self.fields_by_set]
        if all(needed):
            return extents
        sets = (extents, *extents.others)
        is_read = [(set_extents.ends > 0) & is_needed for set_extents, is_needed in zip(sets, needed, strict=True)]
        is_empty = ~np.logical_or.reduce(is_read)
        return extents.with_parts([mask | is_empty for mask in is_read])

    def samples(
        self, at: Any, rows: Any, keys: list[bytes] | None, fields: Collection[str] | None = None
    ) -> list[Sample]:
        """Return the samples at the indexes *at* of these locations, in that order, read from their shards.

        *at*: array of indexes, at least one. *rows*: their row numbers in the file, for messages. *keys*: their keys,
        to be compared; None: only the checksums are. *fields*: names in lower case; nothing is read from sets of shards
        that have none of these, but a sample without a part in other sets is read whole. None: all. Raises:
        StorageError if a sample differs from its row, or its shard can't be read or has changed.
        """
        chosen = self.choose(at, rows, keys, fields)
        samples = [sample.own() for batch in self._open_reader().samples(chosen) for sample in batch]
        mismatches = self._mismatches(at, [sample.raw_key for sample in samples])
        if len(mismatches):
            message = f"the key of the sample there is {samples[mismatches[0]].key!r}, and that of the row is another"
            raise self.catalog.failure(chosen, int(mismatches[0]), message)
        return samples

    def _mismatches(self, at: Any, keys: Sequence[bytes]) -> Any:
        """Return the indexes of *keys*, an array, whose checksums differ from the checksums of the rows *at*.

        UNKNOWN_KEY equals any.
        """
        expected = self.key_checksums[at]
        return ((expected != key_checksums(keys)) & (expected != UNKNOWN_KEY)).nonzero()[0]

    def bulk(self, at: Any, rows: Any, get_buffer: GetBuffer | None, fields: Collection[str] | None) -> Bulk | None:
        """Return the samples at the indexes *at* as a `Bulk`; None if only `samples` can read them, or a key differs.

        Only `samples` reads unusual headers, samples in local and remote shards at once, and more than 128 MiB from
        servers. *at*: array of indexes, at least one. *rows*: their row numbers in the file, for messages.
        `get_buffer(size)`: returns the buffer for payloads; None: new memory or columns. *fields*: names in lower case
        to read of local samples of 16 KiB or more on average, while others are read whole, but without the parts in
        sets of shards that have none of these; None: all. Raises: StorageError if a shard can't be read, or has
        changed.
        """
        chosen = self.choose(at, rows, None, fields)
        bulk = self._open_reader().bulk(chosen, get_buffer, fields)
        if bulk is None or len(self._mismatches(at, bulk.keys)):
            return None
        bulk.urls = list(map(self.catalog.urls.__getitem__, chosen.numbers.tolist()))
        return bulk

    def digest(self) -> str:
        """Return a fingerprint of the rows in their order, 32 hex digits: shards, versions, extents, checksums of keys.

        Names of shards count relative to the table, so that it stays the same if both are moved together.
        """
        from hashlib import blake2b

        import numpy as np

        extents, catalog = self.extents, self.catalog
        folder = schema.folder_of(catalog.table)
        names = [schema.relative_name(str(url), folder) for url in catalog.urls]
        shards = [blake2b(repr(shard).encode(), digest_size=8) for shard in zip(names, catalog.versions, strict=True)]
        shard_digests = np.frombuffer(b"".join(shard.digest() for shard in shards), np.uint64)
        digest = blake2b(digest_size=16)
        for low in range(0, len(extents), HASHED_ROWS_IN_CHUNK):
            chunk = slice(low, low + HASHED_ROWS_IN_CHUNK)
            for column in (
                shard_digests[extents.numbers[chunk]],
                extents.begins[chunk],
                extents.ends[chunk],
                self.key_checksums[chunk],
            ):
                digest.update(np.ascontiguousarray(column).data)
            for further_set in extents.others:
                ends = further_set.ends[chunk]
                numbered = np.where(
                    ends > 0, shard_digests[further_set.numbers[chunk]], 0
                )  # an absent part has number -1
                for column in (numbered, further_set.begins[chunk], ends):
                    digest.update(np.ascontiguousarray(column).data)
        return digest.hexdigest()

    def _open_reader(self) -> VerifiedReader:
        """Return the reader, with files and connections that belong to this process: a new one after a fork."""
        if self._reader is None or self._reader[0] != os.getpid():
            self._reader = os.getpid(), VerifiedReader(self.catalog, Account(), need=Need.BYTES)
        return self._reader[1]

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        """End the threads that make requests, unless a process that this was forked from has made them.

        Does nothing if `ending()`: at interpreter exit they end with it, and modules are gone by then.
        """
        if self._reader is not None and not ending() and self._reader[0] == os.getpid():
            self._reader[1].close()


def _empty_extents(first: int, count: int) -> Extents:
    """Return extents of *count* rows from row *first* on, with any numbers, for values to be assigned to."""
    import numpy as np

    return Extents(first, np.empty(count, np.int32), np.empty(count, np.int64), np.empty(count, np.int64))


def _fields_by_set(table_schema: Any) -> list[Set[str] | None]:
    """Return the fields, in lower case, of each set of shards in a table with *table_schema*; None if unknown."""
    listed = [schema.listed_fields(table_schema, number) for number in schema.sets_in(table_schema.names)]
    return [None if fields is None else frozenset(map(str.lower, fields)) for fields in listed]
