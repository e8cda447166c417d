"""`Table`: the samples of a table by number and by key, for Python programs."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from tartools import storage
from tartools.errors import StorageError, TarFormatError
from tartools.samples.account import Account
from tartools.samples.sample import Sample
from tartools.storage import seekable
from tartools.storage.url import Name, name_of
from tartools.tables import schema, source
from tartools.tables.catalog import ShardCatalog
from tartools.tables.extents import UNKNOWN_KEY, Extents, key_checksums, raw_keys
from tartools.tables.verified import VerifiedReader
from tartools.tar.groups import Need

if TYPE_CHECKING:
    import numpy as np

    from tartools.tables.bulk import Bulk, GetBuffer

LOCATION_COLUMNS = (
    schema.SHARD_COLUMN,
    schema.VERSION_COLUMN,
    schema.KEY_COLUMN,
    schema.BEGIN_COLUMN,
    schema.END_COLUMN,
    schema.MEMBERS_COLUMN,
)
ROWS_IN_BATCH = 1 << 16  # rows
HASHED_ROWS_IN_CHUNK = 1 << 20  # rows that are hashed together
MAX_COMPARED_ROWS = 1 << 20  # whose keys are compared to find samples that were torn


class RowLocations:
    """The extents of the samples of some rows, from row *first* of the file on. Opens shards when needed.

    *key_checksums*, from `extents.key_checksums`: compared with the keys of samples read; UNKNOWN_KEY equals any.
    Threads, and forks, may use it. The shards of *extents* have numbers in *catalog*.
    """

    def __init__(self, catalog: ShardCatalog, extents: Extents, key_checksums: Any, first: int = 0) -> None:
        self.extents = extents
        self.key_checksums = key_checksums
        self.first = first
        self.catalog = catalog
        self._reader: tuple[int, VerifiedReader] | None = None  # and the process that opened them

    @classmethod
    def of(cls, url: str, batches: Iterable[Any], count: int, first: int = 0) -> RowLocations:
        """Return the locations of the *count* rows of *batches*, which begin with row *first* of the file."""
        import numpy as np

        catalog, at = ShardCatalog(url), 0
        columns: Any = [np.empty(count, kind) for kind in (np.int32, np.int64, np.int64, np.uint32)]
        for batch in batches:
            extents = catalog.extents(batch, first + at)
            sums = UNKNOWN_KEY if extents.keys is None else key_checksums(extents.keys)
            for column, part in zip(columns, (extents.numbers, extents.begins, extents.ends, sums), strict=True):
                column[at : at + len(extents)] = part
            at += len(extents)
        return cls(catalog, Extents(first, *columns[:3]), columns[3], first)

    def take(self, rows: Any) -> RowLocations:
        """Return the locations at the indexes *rows*, in that order."""
        extents = self.extents
        return RowLocations(
            self.catalog,
            Extents(0, extents.numbers[rows], extents.begins[rows], extents.ends[rows]),
            self.key_checksums[rows],
        )

    def samples(self, at: Any, rows: Any, keys: list[bytes] | None) -> list[Sample]:
        """Return the samples at the indexes *at* of these locations. Raises: StorageError if one differs from its row.

        *rows*: their row numbers in the file, for messages. *keys*: their keys, if known, to be compared.
        """
        extents = self.extents
        chosen = Extents(0, extents.numbers[at], extents.begins[at], extents.ends[at], keys, rows)
        samples = [sample.own() for batch in self._open_reader().samples(chosen) for sample in batch]
        mismatches = self._mismatches(at, [sample.raw_key for sample in samples])
        if len(mismatches):
            message = f"the key of the sample there is {samples[mismatches[0]].key!r}, and that of the row is another"
            raise self.catalog.failure(chosen, int(mismatches[0]), message)
        return samples

    def _mismatches(self, at: Any, keys: Sequence[bytes]) -> Any:
        """Return the indexes of *keys* whose checksums differ from those of the rows *at*; UNKNOWN_KEY equals any."""
        expected = self.key_checksums[at]
        return ((expected != key_checksums(keys)) & (expected != UNKNOWN_KEY)).nonzero()[0]

    def bulk(self, at: Any, rows: Any, room_of: GetBuffer | None, fields: Collection[str] | None) -> Bulk | None:
        """Return the samples at the indexes *at* as a `Bulk`; None if only `samples` can read them, or has the error.

        *rows*: their row numbers in the file. `room_of(size)` returns the buffer for payloads. *fields*: to read; None:
        all.
        """
        extents = self.extents
        chosen = Extents(0, extents.numbers[at], extents.begins[at], extents.ends[at], None, rows)
        bulk = self._open_reader().bulk(chosen, room_of, fields)
        if bulk is None or len(self._mismatches(at, bulk.keys)):
            return None
        bulk.urls = list(map(self.catalog.urls.__getitem__, chosen.numbers.tolist()))
        return bulk

    def digest(self) -> str:
        """Return a fingerprint of the rows in their order: shards, versions, extents and checksums of keys."""
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
        return digest.hexdigest()

    def _open_reader(self) -> VerifiedReader:
        """Return the reader, with files and connections that belong to this process."""
        if self._reader is None or self._reader[0] != os.getpid():
            self._reader = os.getpid(), VerifiedReader(self.catalog, Account(), need=Need.BYTES)
        return self._reader[1]

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        """End the threads that make requests; at interpreter exit they end with it, and modules are gone by then."""
        if self._reader is not None and not ending() and self._reader[0] == os.getpid():
            self._reader[1].close()


class Table:
    """The samples that the table *url* lists, each by its number.

        table = tartools.Table("s3://bucket/train.parquet")
        sample = table[41]                        # one range request
        batch = table[[7, 3, 99]]                 # ranges near each other are joined, requests made side by side
        easy = table.take(numpy.flatnonzero(table.column("score") > 0.5))

    A sample is compared with its row when it is read: the version of the shard, headers and their checksums, the
    key (by its CRC-32, because keys are not held), and the end of its members.
    Samples own their bytes; of a local shard, members above 1 MiB stay ranges of the file until they are asked for.

    It pickles as URL and rows. Forks and other processes may use it: each opens files and connections of its own. It
    starts no process. Several threads may read at once.

    Holds: 24 bytes a row, once samples of several row groups were read; 128 open files.
    Raises: StorageError if the table or a shard can't be read, or has changed; TarFormatError if the
    table is damaged; IndexError, KeyError.
    """

    def __init__(self, url: Name) -> None:
        self._set(name_of(url), None, None, "", 0)
        with self._open() as table:
            self._total = int(table.rows)

    @classmethod
    def from_arrow(cls, table: Any, url: Name = "") -> Table:
        """Return the table of the rows of *table*, a `pyarrow.Table` with `__shard__`, `__begin__` and `__end__`.

        Relative names of shards are relative to the folder of *url*, or else to the current directory. It pickles with
        all its rows.
        """
        url = name_of(url)
        for name in source.REQUIRED_COLUMNS:
            if name not in table.column_names:
                raise TarFormatError(f"this is not a table of samples: it has no column {name}", url=url)
        return cls._of(url, table, None, "", len(table))

    @classmethod
    def _of(cls, *state: Any) -> Table:
        """Make a table of its URL, Arrow table, chosen rows, version and row count; its file is not read.

        *state*: these five, in the order of `_set`. Unpickling calls this too.
        """
        table = cls.__new__(cls)
        table._set(*state)
        return table

    def _set(self, url: str, arrow_table: Any, rows: Any, version: str, total: int) -> None:
        """Set the URL, Arrow table or None, chosen rows or None, version of the file, and count of its rows."""
        self._url = url
        self._arrow_table = arrow_table  # a pyarrow.Table, if it is not a file
        self._rows = rows  # numbers of rows of the file, in the order of this table; None: all
        self._version = version  # of the file; "": not opened yet
        self._total = total  # rows of the file
        self._places: RowLocations | None = None  # all rows of this table
        self._first_group: RowLocations | None = None  # the first row group that was asked for
        self._digest = ""  # not known yet

    def __len__(self) -> int:
        return self._total if self._rows is None else len(self._rows)

    def __repr__(self) -> str:
        return f"<Table {self._url or 'from arrow'!r} of {len(self)} samples>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Table._of, (self._url, self._arrow_table, self._rows, self._version, self._total)

    # ---- samples ----

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | np.ndarray[Any, Any]) -> list[Sample]: ...
    def __getitem__(self, index: Any) -> Sample | list[Sample]:
        """Return the sample of a row, or the list of samples of many rows, in the given order."""
        if hasattr(index, "__index__") and not getattr(index, "ndim", 0):
            return self._samples([self._checked(operator.index(index))])[0]
        return self._samples(self._numbers(index))

    def __iter__(self) -> Iterator[Sample]:
        for first in range(0, len(self), 1 << 10):
            yield from self[first : first + (1 << 10)]

    def find(self, key: str) -> Sample:
        """Return the first sample with *key*. Reads keys up to it; after `take`, all keys. Raises: KeyError."""
        raw, first = key.encode("utf-8", "surrogateescape"), 0
        columns = (
            (batch.column(0) for batch in self._batches((schema.KEY_COLUMN,)))
            if self._rows is None
            else self._read([schema.KEY_COLUMN]).column(0).chunks
        )
        for column in columns:
            keys = raw_keys(column, first, self._url)
            if raw in keys:
                return self._samples([first + keys.index(raw)], [raw])[0]
            first += len(keys)
        raise KeyError(key)

    def _checked(self, row: int) -> int:
        """Return *row*, with a negative number counted from the end. Raises: IndexError."""
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of a table of {len(self)} rows")
        return row % len(self)

    def _numbers(self, rows: Any) -> Any:
        """Return *rows*, an index of `__getitem__` for many rows, as an array of numbers from 0 on."""
        import numpy as np

        if isinstance(rows, slice):
            return np.arange(*rows.indices(len(self)))
        numbers = np.asarray(rows if hasattr(rows, "__array__") else list(rows))
        if numbers.ndim != 1 or (numbers.dtype.kind not in "iu" and len(numbers)):
            raise TypeError(
                f"rows are whole numbers, as in table[7], table[2:9], table[[7, 3]], not {str(rows)[:60]!r}"
            )
        for wrong in numbers[(numbers >= len(self)) | (numbers < -len(self))][:1].tolist():
            self._checked(wrong)
        return np.where(numbers < 0, numbers + len(self), numbers).astype(np.int64)

    def _samples(self, rows: Any, keys: list[bytes] | None = None) -> list[Sample]:
        """Return the samples of *rows*, numbers from 0 on, in order; *keys*, if given, are compared with theirs."""
        if not len(rows):
            return []
        locations, at, row_numbers = self._locate(rows)
        return locations.samples(at, row_numbers, keys)

    def bulk(self, rows: Any, room_of: GetBuffer | None = None, fields: Collection[str] | None = None) -> Bulk | None:
        """Return the samples of *rows* as a `Bulk`: for callers that read many at a time.

        Payloads are in one buffer, `room_of(size)` if given, or in columns. Of large samples only *fields*, in
        lower case, are read. None if a header is unusual, or a sample differs from its row: then `table[rows]` returns
        the samples, or raises the error. Raises: the errors of `table[rows]`.
        """
        numbers = self._numbers(rows)
        if not len(numbers):
            return None
        locations, at, row_numbers = self._locate(numbers)
        return locations.bulk(at, row_numbers, room_of, fields)

    def _locate(self, rows: Any) -> tuple[RowLocations, Any, Any]:
        """Return (locations, indexes, row numbers in the file): the locations include *rows*, at the indexes."""
        import numpy as np

        rows = np.asarray(rows, np.int64)
        row_numbers = rows if self._rows is None else self._rows[rows]
        locations = self._first_group if self._places is None else self._places
        if locations is None and self._arrow_table is None:
            locations = self._first_group = self._group_of(int(row_numbers[0]))
        at = rows
        if self._places is None:
            at = row_numbers - (locations.first if locations else 0)
            if locations is None or at.min() < 0 or at.max() >= len(locations.extents):
                locations = self._all()
                at = rows
        assert locations is not None
        return locations, at, row_numbers

    def _group_of(self, row: int) -> RowLocations:
        """Return the locations of the row group of the file that has *row*."""
        with self._open() as table:
            for group, first, count in table.groups():
                if first <= row < first + count:
                    return RowLocations.of(
                        self._url, table.batches(LOCATION_COLUMNS, ROWS_IN_BATCH, [group]), count, first
                    )
        raise TarFormatError("this table is damaged: rows are missing", url=self._url)

    # ---- places ----

    def places(self) -> tuple[Any, Any, Any]:
        """Return for each row the number of its shard, and the offsets at which its sample begins and ends there.

        Three arrays, which are not to be changed. The shard with number n is item n of `shards()`.
        """
        extents = self._all().extents
        return extents.numbers, extents.begins, extents.ends

    def shards(self) -> list[str]:
        """Return the URLs of the shards, by their numbers."""
        return list(self._all().catalog.urls)

    def versions(self) -> list[str | None]:
        """Return the versions of the shards when the table was made, by their numbers; None if unknown."""
        return list(self._all().catalog.versions)

    def digest(self) -> str:
        """Return a fingerprint of the rows in their order, with their shards and versions.

        It stays the same if a data set is moved with its table. Reads the extents of all rows.
        """
        if not self._digest:
            self._digest = self._all().digest()
        return self._digest

    def _all(self) -> RowLocations:
        """Return the locations of all rows of this table."""
        if self._places is None:
            locations = RowLocations.of(self._url, self._batches(LOCATION_COLUMNS), self._total)
            self._places = locations if self._rows is None else locations.take(self._rows)
        return self._places

    # ---- columns ----

    def column(self, name: str, nulls: bool = False) -> np.ndarray[Any, Any]:
        """Return the values of the column *name*, in the order of the rows.

        Numbers with nulls become floats with NaN; with *nulls*, an array of objects, with None for each null.
        Raises: KeyError if there is no such column.
        """
        column = self._read([name]).column(0)
        values: np.ndarray[Any, Any] = column.to_numpy()
        if nulls and column.null_count and values.dtype.kind == "f":
            values = values.astype(object)
            values[:] = column.to_pylist()
        return values

    def returning_key(self) -> tuple[str, str] | None:
        """Return (key, shard) of a key that two samples of one shard have, at different offsets; None without one.

        Compares the first 2**20 rows. Reads the keys only if checksums are equal.
        """
        import numpy as np

        extents, sums = self._all().extents, self._all().key_checksums[:MAX_COMPARED_ROWS]
        numbers, begins = extents.numbers[:MAX_COMPARED_ROWS], extents.begins[:MAX_COMPARED_ROWS]
        marks = numbers.astype(np.uint64) << np.uint64(32) | sums
        order = np.lexsort((begins, marks))
        same = (marks[order][1:] == marks[order][:-1]) & (begins[order][1:] != begins[order][:-1])
        same &= sums[order][1:] != UNKNOWN_KEY
        if not same.any():
            return None
        keys = self.column(schema.KEY_COLUMN)
        for at in np.flatnonzero(same).tolist():
            first, second = order[at], order[at + 1]
            if keys[first] == keys[second]:
                return str(keys[first]), self.shards()[int(numbers[first])]
        return None

    def has_field(self, name: str) -> np.ndarray[Any, Any]:
        """Return an array: True for a row whose sample has the field *name*, ignoring case.

        Raises: StorageError if the table does not list the fields of its samples.
        """
        import numpy as np

        try:
            members = self._read([schema.MEMBERS_COLUMN]).column(0)
        except KeyError:
            text = f"this table does not say which fields samples have (column {schema.MEMBERS_COLUMN}): "
            text += "make it by tarindex"
            raise StorageError(text, url=self._url) from None
        has = np.zeros(len(self), bool)
        for number, field in enumerate(members.type):
            if field.name.lower() == name.lower():
                places = [chunk.flatten()[number] for chunk in members.chunks]
                has |= np.concatenate([np.asarray(place.is_valid()) for place in places] or [has])
        return has

    @property
    def arrow(self) -> Any:
        """The rows as a `pyarrow.Table`. Names of shards are as this process can open them, not as in the file."""
        return self._rename_shards(self._read(None), lambda name: name)

    def _read(self, names: list[str] | None) -> Any:
        """Return the columns *names*, None for all, of the rows of this table. Raises: KeyError."""
        if self._arrow_table is not None:
            rows = self._arrow_table
            all_names = rows.column_names
        else:
            with self._open() as table:
                all_names = table.names
                columns = names if names is None or names[0] in all_names else []
                rows = table.read(columns)
        for name in names or ():
            if name not in all_names:
                raise KeyError(f"the table has no column {name!r}; it has {' '.join(all_names)}")
        rows = rows if names is None else rows.select(names)
        return rows if self._rows is None else rows.take(self._rows)

    def take(self, rows: slice | Iterable[int] | np.ndarray[Any, Any]) -> Table:
        """Return the table of these *rows*, in the given order; a row may be repeated."""
        numbers = self._numbers(rows)
        rows = numbers if self._rows is None else self._rows[numbers]
        table = Table._of(self._url, self._arrow_table, rows, self._version, self._total)
        if self._places is not None:
            table._places = self._places.take(numbers)
        return table

    def write(self, url: Name, *, force: bool = False) -> None:
        """Write the rows as the table *url*, which appears when it is complete.

        Names of shards are relative to its folder where both can be moved together.
        Holds: all columns of the rows.
        Raises: StorageError if it exists, unless *force*, or is on a server and lists local shards.
        """
        from tartools.tables.tablewriter import SinkFile

        url = name_of(url)
        folder = schema.folder_of(url)
        rows = self._rename_shards(self._read(None), lambda name: schema.relative_name(name, folder))
        schema.check_names(rows.column(schema.SHARD_COLUMN).unique().to_pylist(), folder)
        pa = schema.arrow()
        with (
            storage.writing(url, force) as sink,
            pa.parquet.ParquetWriter(
                pa.PythonFile(SinkFile(sink), "w"), rows.schema, compression="zstd", write_page_checksum=True
            ) as writer,
        ):
            writer.write_table(rows, row_group_size=schema.ROW_GROUP_ROWS)

    def _rename_shards(self, rows: Any, name_of: Any) -> Any:
        """Return *rows* with `name_of(url)` in place of the name of each shard; `url` is its resolved URL."""
        pa = schema.arrow()
        column = rows.column(schema.SHARD_COLUMN)
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        chunks = encoded.unify_dictionaries().chunks
        old_names = chunks[0].dictionary.cast(pa.string()).to_pylist() if chunks else ()
        folder = schema.folder_of(self._url)
        names = pa.array([name and name_of(schema.resolve(name, folder)) for name in old_names], pa.string())
        arrays = [pa.DictionaryArray.from_arrays(chunk.indices.cast(pa.int32()), names) for chunk in chunks]
        shard_column = pa.chunked_array(arrays, pa.dictionary(pa.int32(), pa.string()))
        return rows.set_column(rows.column_names.index(schema.SHARD_COLUMN), schema.SHARD_COLUMN, shard_column)

    # ---- the file ----

    def _batches(self, names: Sequence[str]) -> Iterator[Any]:
        """Yield the columns *names* of all rows of the file. Raises: StorageError if the first one is absent."""
        missing = StorageError(f"this table has no column {names[0]}", url=self._url)
        if self._arrow_table is not None:
            existing = [name for name in names if name in self._arrow_table.column_names]
            if names[0] not in existing:
                raise missing
            yield from self._arrow_table.select(existing).to_batches(ROWS_IN_BATCH)
            return
        with self._open() as table:
            if names[0] not in table.names:
                raise missing
            yield from table.batches(names, ROWS_IN_BATCH)

    def _open(self) -> Any:
        """Open the file, for a `with` that gives its `ParquetSource`. Raises: StorageError if it was replaced."""
        if not storage.is_seekable(self._url):
            raise StorageError("a table is a file or an object: this can't be read in parts", url=self._url)
        file = seekable.reading(self._url)
        try:
            version = seekable.version(file)
            if self._version not in ("", version):
                raise StorageError("was replaced since it was opened", url=self._url)
            self._version = version
        except BaseException:
            file.close()
            raise
        return source.open_table(self._url, file)
