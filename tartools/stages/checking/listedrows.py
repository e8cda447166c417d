"""Read the samples that a table lists, and compare its rows with their shards."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Container, Iterator, Sequence
from typing import Any

from tartools.errors import StorageError, TarFormatError, shown
from tartools.samples.account import Account
from tartools.samples.batch import Batch
from tartools.samples.sample import Sample, decode_name
from tartools.stages.checking.codes import ShardFinding
from tartools.stages.checking.samples import Rows, rows_of_batch, rows_of_samples
from tartools.storage import is_missing
from tartools.storage.checks import probe
from tartools.storage.local import canonical_name
from tartools.tables import schema, source
from tartools.tables.catalog import RowError, ShardCatalog
from tartools.tables.extents import Extents, runs_of_equal
from tartools.tables.listed import TableColumns
from tartools.tables.rows import RowBlock
from tartools.tables.verified import VerifiedReader
from tartools.tar.groups import Need

# rows that are read together, and of shards on servers, whose payloads are held meanwhile
ROWS_IN_READ, REMOTE_ROWS_IN_READ = 1024, 256


class TableRows:
    """Reads the samples that the table *url*, input *number* of the check, lists, and compares rows and shards.

    `read` yields them; `place`, `urls` and `shards` are about the rows that it has read so far.
    `named_inputs`: identities (see `canonical_name`) of the inputs; samples in these (in the first set of
    shards) are compared, but not yielded, since they are checked there. `tmpdir`: folder of temporary files for large
    members; None: the system's.
    Holds: 12 bytes for each row, and the samples of up to 1,024 (ROWS_IN_READ), of remote shards 256
    (REMOTE_ROWS_IN_READ).
    """

    def __init__(self, url: str, number: int, named_inputs: Container[str], tmpdir: str | None) -> None:
        self.url = url
        self._number = number
        self._catalog = ShardCatalog(url)
        self._named_inputs = named_inputs
        self._tmpdir = tmpdir
        self._firsts: list[int] = []  # rows with which the pieces begin
        self._places: list[tuple[Any, Any]] = []  # of pieces: numbers of shards, and bytes
        self._shard_codes: dict[int, str] = {}  # shard -> code of its finding, "" if there is none
        self._reported: set[int] = set()  # shards whose finding has been reported
        self._reader: VerifiedReader | None = None
        self._table: Any = None
        self._members: list[tuple[list[str], Any, Any] | None] = []  # in each set, of the piece that was read last

    @property
    def urls(self) -> Sequence[str]:
        """The URLs of the shards that the rows read so far list."""
        return self._catalog.urls

    @property
    def shards(self) -> set[str]:
        """The identities (see `canonical_name`) of the shards in `urls`, without the named inputs."""
        return {name for url in self.urls if (name := canonical_name(url)) not in self._named_inputs}

    def place(self, row: int) -> tuple[str, int]:
        """Return (shard URL, byte) of the sample that *row* lists, in the first set of shards if there are several.

        *row*: number of a row that has been read.
        """
        piece = bisect_right(self._firsts, row) - 1
        numbers, begins = self._places[piece]
        index = row - self._firsts[piece]
        return self._catalog.urls[numbers[index]], int(begins[index])

    def read(self) -> Iterator[ShardFinding | Rows]:
        """Yield the samples that the table lists, as `Rows`, and findings about rows and shards, in order.

        Samples in named inputs, and those of rows with a finding, are left out. A finding about a whole shard that was
        reported before has the code "". A damaged table ends with the finding "table-damaged". Raises: StorageError if
        the table or a shard can't be read; a missing shard is a finding.
        """
        self._firsts, self._places, self._shard_codes, self._reported = [], [], {}, set()
        first = 0
        try:
            with source.open_table(self.url) as self._table:
                table = self._table
                for rows in table.batches(schema.location_columns(table.names)):
                    yield from self._read(rows, first)
                    first += len(rows)
        except TarFormatError as error:
            yield ShardFinding("table-damaged", -1, "", error.message)
        finally:
            self._close()

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _read(self, rows: Any, first: int) -> Iterator[ShardFinding | Rows]:
        """Yield the samples and findings of *rows*, a record batch whose first row has the number *first*.

        A row whose extent, key or places of members are invalid gives the finding "table-row"; rows of a shard that is
        missing or has changed are left out, with the finding of `_finding_of_shard`. Raises: StorageError if a shard
        can't be read.
        """
        import numpy as np

        try:
            piece = self._catalog.extents(rows, first)
        except StorageError as error:
            if len(rows) == 1:
                yield ShardFinding("table-row", -1, "", error.message, 1)
                return
            middle = len(rows) // 2  # each half alone, down to the row
            yield from self._read(rows.slice(0, middle), first)
            yield from self._read(rows.slice(middle), first + middle)
            return
        columns = TableColumns(rows, first, self._catalog, self._table)
        self._members = [columns.members_in_set(number) for number in schema.sets_in(self._table.names)]
        self._firsts.append(first)
        self._places.append((piece.numbers, piece.begins))
        for part in itertools.starmap(piece.part, runs_of_equal(piece.numbers)):
            is_unreadable = np.zeros(len(part), bool)
            for set_extents in part.sets:
                for number in np.unique(set_extents.numbers[set_extents.ends > 0]).tolist():
                    if code := self._shard_code(number):
                        rows_of_shard = (set_extents.numbers == number) & ~is_unreadable
                        is_unreadable |= rows_of_shard
                        yield self._finding_of_shard(number, code, int(rows_of_shard.sum()))
            max_rows = REMOTE_ROWS_IN_READ if any(self._catalog.is_remote) else ROWS_IN_READ
            for begin, end in runs_of_equal(is_unreadable):
                if not is_unreadable[begin]:
                    for low in range(begin, end, max_rows):
                        yield from self._samples(part.part(low, min(low + max_rows, end)))

    def _finding_of_shard(self, number: int, code: str, samples: int) -> ShardFinding:
        """Return the finding *code* about shard *number*; its code is "" if it was reported before.

        *samples*: number of rows whose samples can't be read because of it.
        """
        is_repeated = number in self._reported
        self._reported.add(number)
        return ShardFinding(
            "" if is_repeated else code, -1, "", f"{code}: {shown(self._catalog.urls[number])}", samples
        )

    def _samples(self, piece: Extents) -> Iterator[ShardFinding | Rows]:
        """Yield the samples and findings of the rows *piece*, whose shards exist in the versions that the table lists.

        In the first set of shards they are of one shard. Where a row and a shard differ, each half is read alone, down
        to the row, which gives the finding "table-row". Samples in named inputs are not yielded. Raises: StorageError
        if a shard can't be read.
        """
        if self._reader is None:
            quiet = Account(lambda _: None)
            self._reader = VerifiedReader(self._catalog, quiet, need=Need.FIELDS, tmpdir=self._tmpdir)
        try:
            batches_by_set = [self._read_set(number, piece) for number in range(1, len(piece.sets) + 1)]
        except (RowError, TarFormatError) as error:
            self._close()
            if len(piece) == 1:
                description = error.message
                if error.url != self._catalog.urls[piece.place(0)[0]]:  # a shard of a further set
                    description = f"{shown(error.url)}, byte {error.offset}: {description}"
                yield ShardFinding("table-row", -1, decode_name(piece.keys[0]) if piece.keys else "", description, 1)
                return
            middle = len(piece) // 2
            yield from self._samples(piece.part(0, middle))
            yield from self._samples(piece.part(middle, len(piece)))
            return
        if canonical_name(self._catalog.urls[piece.place(0)[0]]) in self._named_inputs:
            return
        if piece.others:
            samples = list(_joined_samples(batches_by_set, piece))
            yield rows_of_samples(samples, self._number, range(piece.first, piece.first + len(piece)))
            return
        row = piece.first
        for batch in batches_by_set[0]:
            rows = rows_of_batch(batch, self._number, row)
            assert rows is not None
            yield rows
            row += len(batch)

    def _read_set(self, number: int, piece: Extents) -> list[Batch]:
        """Return the members in set *number* (from 1) of shards, for the rows *piece*, in batches.

        Rows without a member in this set are left out. Raises: RowError if samples or members lie elsewhere than the
        rows say; TarFormatError for a damaged shard; StorageError if a shard can't be read.
        """
        import numpy as np

        assert self._reader is not None
        set_extents = piece.sets[number - 1]
        indexes = np.flatnonzero(set_extents.ends)
        if len(indexes) < len(set_extents):
            set_extents = set_extents.take(indexes)
        batches = list(self._reader.samples(set_extents)) if len(set_extents) else []
        members = self._members[number - 1]
        if members is not None and batches:
            fields, offsets, sizes = members
            rows = indexes + (piece.first - self._firsts[-1])
            self._compare(
                batches, set_extents, {name: (offsets[rows, n], sizes[rows, n]) for n, name in enumerate(fields)}
            )
        return batches

    def _compare(self, batches: list[Batch], piece: Extents, in_table: dict[str, tuple[Any, Any]]) -> None:
        """Raise RowError if fields, offsets or sizes of the samples *batches* differ from the rows *piece*.

        This checks all members of the samples, which *batches* have in the order of the rows. *in_table*: field ->
        (offsets, sizes), arrays of int64 from the column of members, one item a row.
        """
        import numpy as np

        block = RowBlock("")
        for batch in batches:
            block.add(batch)
        shift = piece.begins - np.frombuffer(block.begins, np.int64)
        absent = np.full(len(piece), schema.ABSENT_OFFSET), np.zeros(len(piece), np.int64)
        in_shard = {
            field.decode("utf-8", "replace"): (np.where(places >= 0, places + shift, places), lengths)
            for field, places, lengths in block.columns()
        }
        for field in {**in_table, **in_shard}:
            (at, size), (place, length) = in_table.get(field, absent), in_shard.get(field, absent)
            wrong = np.flatnonzero((at != place) | ((at >= 0) & (size != length)))
            if len(wrong):
                difference = f"__members__ of this row and the shard differ in the field {field!r}"
                raise self._catalog.failure(piece, int(wrong[0]), difference)

    def _shard_code(self, number: int) -> str:
        """Return the code of the finding about all of shard *number*, "missing-shard" or "table-stale"; "" for none.

        A shard whose version the table does not have is not stale. Raises: StorageError if its server fails.
        """
        if number not in self._shard_codes:
            url, version = self._catalog.urls[number], self._catalog.versions[number]
            try:
                version_now = probe(url).version
            except StorageError as error:
                if not is_missing(error):
                    raise
                self._shard_codes[number] = "missing-shard"
            else:
                self._shard_codes[number] = "" if version is None or version_now == version else "table-stale"
        return self._shard_codes[number]


def _joined_samples(batches_by_set: Sequence[list[Batch]], piece: Extents) -> Iterator[Sample]:
    """Yield the samples of the rows *piece*, each with its members in all sets.

    *batches_by_set*: for each set the batches of `TableRows._read_set`, in which rows without a member in it are
    absent.
    """
    iterators = [itertools.chain.from_iterable(batches) for batches in batches_by_set]
    present = [(set_extents.ends > 0).tolist() for set_extents in piece.sets]
    for has_part in zip(*present, strict=True):
        parts = [next(iterator) for iterator, has in zip(iterators, has_part, strict=True) if has]
        yield parts[0].with_members(itertools.chain.from_iterable(part.members for part in parts))
