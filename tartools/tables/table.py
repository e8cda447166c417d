"""`Table`: the samples of a table by number and by key, for Python programs."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from typing import TYPE_CHECKING, Any, overload

from tartools import storage
from tartools.errors import StorageError, TarFormatError
from tartools.samples.sample import Sample
from tartools.storage import seekable
from tartools.storage.url import Name, name_of
from tartools.tables import schema, source
from tartools.tables.extents import UNKNOWN_KEY, raw_keys, valid_mask
from tartools.tables.locations import RowLocations

if TYPE_CHECKING:
    import numpy as np

    from tartools.tables.bulk import Bulk, GetBuffer

ROWS_IN_BATCH = 1 << 16  # rows
MAX_COMPARED_ROWS = 1 << 20  # whose keys are compared to find samples that were torn


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
    Raises: StorageError if the table or a shard can't be read, or has changed, a sample differs from its row, or
    pyarrow is missing; TarFormatError if the table is damaged or not a table; IndexError, KeyError.
    """

    def __init__(self, url: Name) -> None:
        self._set(name_of(url), None, None, "", 0)
        with self._open() as table:
            self._total = int(table.rows)

    @classmethod
    def from_arrow(cls, table: Any, url: Name = "") -> Table:
        """Return the table of the rows of *table*, a `pyarrow.Table` with `__shard__`, `__begin__` and `__end__`.

        Relative names of shards are relative to the folder of *url*, or else to the current directory. It pickles with
        all its rows. Raises: TarFormatError if one of these columns is missing.
        """
        url = name_of(url)
        for name in source.REQUIRED_COLUMNS:
            if name not in table.column_names:
                raise TarFormatError(f"this is not a table of samples: it has no column {name}", url=url)
        return cls._make(url, table, None, "", len(table))

    @classmethod
    def _make(cls, *arguments: Any) -> Table:
        """Make a table of its URL, Arrow table, chosen rows, version, row count and fields; its file is not read.

        *arguments*: these six, in this order; without the last all fields. Unpickling calls this too.
        """
        table = cls.__new__(cls)
        table._set(*arguments)
        return table

    def _set(
        self, url: str, arrow_table: Any, rows: Any, version: str, total: int, fields: Set[str] | None = None
    ) -> None:
        self._url = url
        self._arrow_table = arrow_table  # a pyarrow.Table, if it is not a file
        self._rows = rows  # numbers of rows of the file, in the order of this table; None: all
        self._version = version  # of the file; "": not opened yet
        self._total = total  # rows of the file
        self._fields = fields  # see `with_fields`; None: all
        self._places: RowLocations | None = None  # all rows of this table
        self._first_group: RowLocations | None = None  # the first row group that was asked for
        self._digest = ""  # not known yet

    def __len__(self) -> int:
        return self._total if self._rows is None else len(self._rows)

    def __repr__(self) -> str:
        return f"<Table {self._url or 'from arrow'!r} of {len(self)} samples>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Table._make, self._pickle_arguments

    @property
    def _pickle_arguments(self) -> tuple[Any, ...]:
        """The arguments of `_make` from which pickle makes this table again, without its caches."""
        return self._url, self._arrow_table, self._rows, self._version, self._total, self._fields

    # ---- samples ----

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | np.ndarray[Any, Any]) -> list[Sample]: ...
    def __getitem__(self, index: Any) -> Sample | list[Sample]:
        """Return the sample of the row *index*, or the list of samples of many rows, in the given order.

        *index*: a whole number, a slice, or a list or array of whole numbers; negative ones count from the end. Raises:
        IndexError for a row that does not exist; TypeError for another index.
        """
        if hasattr(index, "__index__") and not getattr(index, "ndim", 0):
            return self._samples([self._check_row(operator.index(index))])[0]
        return self._samples(self._numbers(index))

    def __iter__(self) -> Iterator[Sample]:
        for first in range(0, len(self), 1 << 10):
            yield from self[first : first + (1 << 10)]

    def find(self, key: str) -> Sample:
        """Return the sample of the first row with *key*. Reads keys up to it; after `take`, all keys.

        Raises: KeyError if no row has this key; StorageError, after `take` KeyError, if the table has no keys.
        """
        raw, first, example = key.encode("utf-8", "surrogateescape"), 0, b""
        columns = (
            (batch.column(0) for batch in self._batches((schema.KEY_COLUMN,)))
            if self._rows is None
            else self._read([schema.KEY_COLUMN]).column(0).chunks
        )
        for column in columns:
            keys = raw_keys(column, first, self._url)
            if raw in keys:
                return self._samples([first + keys.index(raw)], [raw])[0]
            first, example = first + len(keys), example or next(iter(keys), b"")
        hint = f"; keys look like {example.decode(errors='replace')!r}" if example else ""
        raise KeyError(f"none of {len(self)} samples has the key {key!r}{hint}")

    def _check_row(self, row: int) -> int:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of a table of {len(self)} rows")
        return row % len(self)

    def _numbers(self, rows: Any) -> Any:
        """Return *rows*, an index of `__getitem__` for many rows, as row numbers from 0 on, an array of int64.

        *rows*: a slice, or whole numbers, negative ones from the end. Raises: TypeError for other indexes; IndexError
        for a row that does not exist.
        """
        import numpy as np

        if isinstance(rows, slice):
            return np.arange(*rows.indices(len(self)))
        numbers = np.asarray(rows if hasattr(rows, "__array__") else list(rows))
        if numbers.ndim != 1 or (numbers.dtype.kind not in "iu" and len(numbers)):
            raise TypeError(
                f"rows are whole numbers, as in table[7], table[2:9], table[[7, 3]], not {str(rows)[:60]!r}"
            )
        for wrong in numbers[(numbers >= len(self)) | (numbers < -len(self))][:1].tolist():
            self._check_row(wrong)
        return np.where(numbers < 0, numbers + len(self), numbers).astype(np.int64)

    def _samples(self, rows: Any, keys: list[bytes] | None = None) -> list[Sample]:
        if not len(rows):
            return []
        locations, at, row_numbers = self._locate(rows)
        return locations.samples(at, row_numbers, keys, self._fields)

    def bulk(
        self, rows: Any, get_buffer: GetBuffer | None = None, fields: Collection[str] | None = None
    ) -> Bulk | None:
        """Return the samples of *rows*, an index for many rows as in `table[rows]`, as a `Bulk`: faster for many rows.

        Large samples are local ones of 16 KiB or more on average, in up to 64 shards. *get_buffer*: `get_buffer(size)`
        returns a memoryview of *size* bytes, into which the payloads of large samples, or all others whole, are read;
        None: `Bulk.columns` for large samples, else one new buffer. *fields*: of large samples only these are read,
        names in lower case; None: those of `with_fields`. Returns None without rows, and if the samples can't be read
        like this, such as for an unusual header, in local and remote shards at once, above 128 MiB from servers, or if
        one differs from its row; then `table[rows]` returns them, or raises the error. Raises: IndexError; TypeError;
        StorageError if a shard can't be read, or has changed.
        """
        numbers = self._numbers(rows)
        if not len(numbers):
            return None
        locations, at, row_numbers = self._locate(numbers)
        return locations.bulk(at, row_numbers, get_buffer, self._fields if fields is None else fields)

    def _locate(self, rows: Any) -> tuple[RowLocations, Any, Any]:
        """Return (locations, indexes, row numbers in the file) for *rows*, row numbers of this table, at least one.

        The `RowLocations` may have more rows; the indexes say where in it *rows* are. The results but the first are
        arrays of int64.
        """
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
        """Return the locations of the row group that has row *row* of the file, which may be another row of this table.

        Raises: TarFormatError if none has it.
        """
        with self._open() as table:
            for group, first, count in table.groups():
                if first <= row < first + count:
                    return RowLocations.from_batches(
                        self._url,
                        table.batches(schema.location_columns(table.names), ROWS_IN_BATCH, [group]),
                        count,
                        first,
                    )
        raise TarFormatError("this table is damaged: rows are missing", url=self._url)

    # ---- places ----

    def places(self) -> tuple[Any, Any, Any]:
        """Return for each row the number of its shard, and the offsets at which its sample begins and ends there.

        Three arrays (int32, int64, int64), which are not to be changed. The shard with number n is item n of
        `shards()`. In a joined table they are about the first set of shards only.
        """
        extents = self._all().extents
        return extents.numbers, extents.begins, extents.ends

    def sizes(self) -> Any:
        """Return for each row the bytes of its sample in its shards, headers included, an array of int64.

        In a joined table it is the sum of all sets of shards, whatever `with_fields` reads.
        """
        return self._all().extents.sizes

    def parts(self, row: int) -> list[tuple[str, str | None, int, int]]:
        """Return (URL of the shard, its version or None, begin, end) of each part of the sample of *row*.

        One part, unless the table is joined; then one for each set of shards that has it and that `with_fields` reads,
        or for each that has it if `with_fields` would read none. *row*: a negative one counts from the end. Raises:
        IndexError for a row that does not exist.
        """
        locations = self._all()
        extents = locations.choose([self._check_row(row)], [row], None, self._fields).parts
        catalog = locations.catalog
        places = map(extents.place, range(len(extents)))
        return [(catalog.urls[number], catalog.versions[number], begin, end) for number, begin, end in places]

    def shards(self) -> list[str]:
        """Return the URLs of the shards, by their numbers; after `take`, also of shards without a row in this table.

        A shard that the table lists in two versions is there twice. In a joined table they are the shards of all sets.
        """
        return list(self._all().catalog.urls)

    def versions(self) -> list[str | None]:
        """Return the versions of the shards when the table was made, by their numbers; None if unknown."""
        return list(self._all().catalog.versions)

    def digest(self) -> str:
        """Return a fingerprint of the rows in their order: extents, checksums of keys, shards and their versions.

        32 hex digits. Other columns do not count. It stays the same if a folder with the table and all shards is moved.
        Reads the extents of all rows.
        """
        if not self._digest:
            self._digest = self._all().digest()
        return self._digest

    def _all(self) -> RowLocations:
        """Return the locations of all rows of this table."""
        if self._places is None:
            locations = RowLocations.from_batches(self._url, self._batches(None), self._total)
            self._places = locations if self._rows is None else locations.take(self._rows)
        return self._places

    # ---- columns ----

    def column(self, name: str, nulls: bool = False) -> np.ndarray[Any, Any]:
        """Return the values of the column *name*, in the order of the rows.

        Numbers with nulls become floats with NaN; with *nulls*, an array of objects, with None for each null. In any
        case text is an array of objects, str or None, and a null in a column of times is NaT. `__shard__` has the names
        in the file, which may be relative. Raises: KeyError if there is no such column.
        """
        column = self._read([name]).column(0)
        values: np.ndarray[Any, Any] = column.to_numpy()
        if nulls and column.null_count and values.dtype.kind == "f":
            values = values.astype(object)
            values[:] = column.to_pylist()
        return values

    def returning_key(self) -> tuple[str, str] | None:
        """Return (key, shard URL) of a key that two samples of one shard have at different offsets; None if not found.

        Compares the first 2**20 rows, without rows whose key is null; in a joined table the first set of shards. Reads
        the keys only if checksums are equal.
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

        In a joined table a field in any set counts. False for a field beyond the first 1,000 of its set of shards
        (MAX_FIELDS_LISTED), which a table does not list. Raises: StorageError if a set lists no fields.
        """
        import numpy as np

        has = np.zeros(len(self), bool)
        for set_number in range(1, len(self._all().extents.others) + 2):
            column = schema.name_in_set(schema.MEMBERS_COLUMN, set_number)
            try:
                members = self._read([column]).column(0)
            except KeyError:
                text = f"this table does not say which fields samples have (column {column}): make it by tarindex"
                raise StorageError(text, url=self._url) from None
            for number, field in enumerate(members.type):
                if field.name.lower() == name.lower():
                    places = [chunk.flatten()[number] for chunk in members.chunks]
                    has |= np.concatenate([valid_mask(place) for place in places] or [has])
        return has

    @property
    def arrow(self) -> Any:
        """The rows as a `pyarrow.Table`. Names of shards are as this process can open them, not as in the file.

        Raises: StorageError if the table may not name one; UsageError for one with credentials.
        """
        return self._rename_shards(self._read(None), lambda name: name)

    def _read(self, names: list[str] | None) -> Any:
        """Return the columns *names*, None for all, of the rows of this table: a `pyarrow.Table`.

        Raises: KeyError if it lacks one of them.
        """
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
        """Return the table of these *rows*, in the given order; a row may be repeated.

        *rows*: a slice, or whole numbers, negative ones from the end. Raises: TypeError for other indexes; IndexError
        for a row that does not exist.
        """
        numbers = self._numbers(rows)
        rows = numbers if self._rows is None else self._rows[numbers]
        url, arrow_table, _, version, total, fields = self._pickle_arguments
        table = Table._make(url, arrow_table, rows, version, total, fields)
        if self._places is not None:
            table._places = self._places.take(numbers)
        return table

    def with_fields(self, names: Iterable[str] | None) -> Table:
        """Return a table of the same rows that reads the fields *names*, ignoring case; None: all. This one stays.

        Sets of shards of a joined table that have none of them are not read, except for a sample that no other set has.
        Samples may have other fields too.
        """
        table = Table._make(*self._pickle_arguments[:-1], None if names is None else frozenset(map(str.lower, names)))
        table._places, table._first_group, table._digest = self._places, self._first_group, self._digest
        return table

    def write(self, url: Name, *, force: bool = False) -> None:
        """Write the rows as the table *url*, which appears when it is complete.

        Names of shards are relative to its folder where both can be moved together.
        Holds: all columns of the rows.
        Raises: StorageError if it exists, unless *force*, can't be written, or may not name a shard, such as a local
        one if it is on a server; UsageError for a URL with credentials, or that can't be an output.
        """
        from tartools.tables.tablewriter import SinkFile

        url = name_of(url)
        folder = schema.folder_of(url)
        rows = self._rename_shards(self._read(None), lambda name: schema.relative_name(name, folder))
        for number in schema.sets_in(rows.column_names):
            shards = rows.column(schema.name_in_set(schema.SHARD_COLUMN, number)).unique().to_pylist()
            schema.check_names(filter(None, shards), folder)
        pa = schema.import_arrow()
        with (
            storage.open_sink(url, force) as sink,
            pa.parquet.ParquetWriter(
                pa.PythonFile(SinkFile(sink), "w"), rows.schema, compression="zstd", write_page_checksum=True
            ) as writer,
        ):
            writer.write_table(rows, row_group_size=schema.ROW_GROUP_ROWS)

    def _rename_shards(self, rows: Any, name_of: Any) -> Any:
        """Return *rows*, a `pyarrow.Table`, with `name_of(url)` in place of the name of each shard, in all sets.

        `url`: the resolved URL of the shard. Null and "" stay. Raises: StorageError if this table may not name a shard;
        UsageError for one with credentials.
        """
        for number in schema.sets_in(rows.column_names):
            rows = self._rename_column(rows, schema.name_in_set(schema.SHARD_COLUMN, number), name_of)
        return rows

    def _rename_column(self, rows: Any, column_name: str, name_of: Any) -> Any:
        """Return *rows*, a `pyarrow.Table`, with `name_of(url)` in place of each shard name in one column.

        *column_name*: of the column, which becomes dictionary<int32, string>. `url`: the resolved URL of the shard.
        Null and "" stay. Raises: StorageError if this table may not name a shard; UsageError for one with credentials.
        """
        pa = schema.import_arrow()
        column = rows.column(column_name)
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        chunks = encoded.unify_dictionaries().chunks
        old_names = chunks[0].dictionary.cast(pa.string()).to_pylist() if chunks else ()
        folder = schema.folder_of(self._url)
        names = pa.array([name and name_of(schema.resolve(name, folder)) for name in old_names], pa.string())
        arrays = [pa.DictionaryArray.from_arrays(chunk.indices.cast(pa.int32()), names) for chunk in chunks]
        shard_column = pa.chunked_array(arrays, pa.dictionary(pa.int32(), pa.string()))
        return rows.set_column(rows.column_names.index(column_name), column_name, shard_column)

    # ---- the file ----

    def _batches(self, names: Sequence[str] | None) -> Iterator[Any]:
        """Yield the columns *names* of all rows of the file or Arrow table, in batches; None: the columns of locations.

        Other names that the table does not have are left out. Raises: StorageError if the first of *names* is missing.
        """
        if self._arrow_table is not None:
            existing = self._arrow_table.column_names
            yield from self._arrow_table.select(self._existing(names, existing)).to_batches(ROWS_IN_BATCH)
            return
        with self._open() as table:
            yield from table.batches(self._existing(names, table.names), ROWS_IN_BATCH)

    def _existing(self, names: Sequence[str] | None, columns: Sequence[str]) -> list[str]:
        """Return the *names* that are among *columns*; None: the columns of locations.

        Raises: StorageError if the first of *names* is missing.
        """
        if names is None:
            return schema.location_columns(columns)
        if names[0] not in columns:
            raise StorageError(f"this table has no column {names[0]}", url=self._url)
        return [name for name in names if name in columns]

    def _open(self) -> Any:
        """Open the file, for a `with` that gives its `ParquetSource` and closes it.

        Raises: StorageError if it can't be opened, can't be read in parts, or was replaced since it was first opened;
        when the `with` begins, TarFormatError if it is damaged or not a table.
        """
        if not storage.is_seekable(self._url):
            raise StorageError("a table is a file or an object: this can't be read in parts", url=self._url)
        file = seekable.open_as_file(self._url)
        try:
            version = seekable.version_of_file(file)
            if self._version not in ("", version):
                raise StorageError("was replaced since it was opened", url=self._url)
            self._version = version
        except BaseException:
            file.close()
            raise
        return source.open_table(self._url, file)
