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
from tartools.tables.rowplaces import UNKNOWN_KEY, Listing, Piece, key_sums, raw_keys
from tartools.tables.tablesamples import Shards

if TYPE_CHECKING:
    import numpy as np

    from tartools.tables.bulk import Bulk, RoomOf

PLACES = (schema.SHARD, schema.VERSION, schema.KEY, schema.BEGIN, schema.END, schema.MEMBERS)
BATCH = 1 << 16  # rows
CHUNK = 1 << 20  # rows that are hashed together
MAX_COMPARED_ROWS = 1 << 20  # whose keys are compared to find samples that were torn


class Placed:
    """Where the samples of some rows are: *piece* begins with row *first* of the file. Opens their shards when needed.

    *sums* stand for their keys (see `key_sums`), and are compared with those that are read. Several threads, and forks,
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
        """Return the places of the *count* rows of *batches*."""
        import numpy as np

        listing, at = Listing(url), 0
        columns: Any = [np.empty(count, kind) for kind in (np.int32, np.int64, np.int64, np.uint32)]
        for batch in batches:
            found = listing.piece(batch, first + at)
            sums = UNKNOWN_KEY if found.keys is None else key_sums(found.keys)
            for column, part in zip(columns, (found.numbers, found.begins, found.ends, sums), strict=True):
                column[at : at + len(found)] = part
            at += len(found)
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
        others = self._others(at, [sample.raw_key for sample in found])
        if len(others):
            what = f"the key of the sample there is {found[others[0]].key!r}, and that of the row is another"
            raise self.listing.failure(wanted, int(others[0]), what)
        return found

    def _others(self, at: Any, keys: Sequence[bytes]) -> Any:
        """Return which of the rows *at* have other keys than *keys*."""
        known = self.sums[at]
        return ((known != key_sums(keys)) & (known != UNKNOWN_KEY)).nonzero()[0]

    def bulk(self, at: Any, rows: Any, room_of: RoomOf | None, fields: Collection[str] | None) -> Bulk | None:
        """Return the same samples as a `Bulk`; None if `samples` has to read them. See `Table.bulk`."""
        held = self.piece
        wanted = Piece(0, held.numbers[at], held.begins[at], held.ends[at], None, rows)
        found = self._opened().bulk(wanted, room_of, fields)
        if found is None or len(self._others(at, found.keys)):
            return None
        found.urls = list(map(self.listing.urls.__getitem__, wanted.numbers.tolist()))
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


class Table:
    """The samples that the table *url* lists, each by its number.

        table = tartools.Table("s3://bucket/train.parquet")
        sample = table[41]                        # one range request
        batch = table[[7, 3, 99]]                 # ranges near each other are joined, requests made side by side
        easy = table.take(numpy.flatnonzero(table.column("score") > 0.5))

    A row is compared with its shard when its sample is read: the version of the shard, headers and their checksums, the
    key (by four bytes that stand for it, because keys are not held), and that the members end where the row says.
    Samples own their bytes; of a local shard, members above 1 MiB stay ranges of the file until they are asked for.

    It pickles as URL and rows. Forks and other processes may use it: each opens files and connections of its own. It
    starts no process. Several threads may read at once.

    Holds: 24 bytes a row, once samples of several row groups were asked for; 128 open files.
    Raises: StorageError if the table or a shard can't be read, or has changed; TarFormatError if the
    table is damaged; IndexError, KeyError.
    """

    def __init__(self, url: Name) -> None:
        self._set(name_of(url), None, None, "", 0)
        with self._opened() as table:
            self._total = int(table.rows)

    @classmethod
    def from_arrow(cls, table: Any, url: Name = "") -> Table:
        """Return the table of the rows of *table*, a `pyarrow.Table` with `__shard__`, `__begin__` and `__end__`.

        Relative names of shards are relative to the folder of *url*, or else to the current directory. It pickles with
        all its rows.
        """
        url = name_of(url)
        for name in source.NEEDED:
            if name not in table.column_names:
                raise TarFormatError(f"this is not a table of samples: it has no column {name}", url=url)
        return cls._of(url, table, None, "", len(table))

    @classmethod
    def _of(cls, *state: Any) -> Table:
        """Return the table in this *state*: see `_set`."""
        made = cls.__new__(cls)
        made._set(*state)
        return made

    def _set(self, url: str, held: Any, rows: Any, version: str, total: int) -> None:
        self._url = url
        self._held = held  # a pyarrow.Table, if it is not a file
        self._rows = rows  # numbers of rows of the file, in the order of this table; None: all
        self._version = version  # of the file; "": not opened yet
        self._total = total  # rows of the file
        self._places: Placed | None = None  # all rows of this table
        self._near: Placed | None = None  # the first row group that was asked for
        self._digest = ""  # not known yet

    def __len__(self) -> int:
        return self._total if self._rows is None else len(self._rows)

    def __repr__(self) -> str:
        return f"<Table {self._url or 'from arrow'!r} of {len(self)} samples>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Table._of, (self._url, self._held, self._rows, self._version, self._total)

    # ---- samples ----

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | np.ndarray[Any, Any]) -> list[Sample]: ...
    def __getitem__(self, index: Any) -> Sample | list[Sample]:
        """Return the sample of a row, or the list of samples of many rows, in the order that they are given in."""
        if hasattr(index, "__index__") and not getattr(index, "ndim", 0):
            return self._samples([self._checked(operator.index(index))])[0]
        return self._samples(self._numbers(index))

    def __iter__(self) -> Iterator[Sample]:
        for first in range(0, len(self), 1 << 10):
            yield from self[first : first + (1 << 10)]

    def find(self, key: str) -> Sample:
        """Return the first sample with *key*. Reads the column of keys up to it, or all of a choice of rows."""
        raw, first = key.encode("utf-8", "surrogateescape"), 0
        columns = (
            (batch.column(0) for batch in self._batches((schema.KEY,)))
            if self._rows is None
            else self._read([schema.KEY]).column(0).chunks
        )
        for column in columns:
            keys = raw_keys(column, first, self._url)
            if raw in keys:
                return self._samples([first + keys.index(raw)], [raw])[0]
            first += len(keys)
        raise KeyError(key)

    def _checked(self, row: int) -> int:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of a table of {len(self)} rows")
        return row % len(self)

    def _numbers(self, rows: Any) -> Any:
        """Return *rows*, which are what `__getitem__` takes, as an array of numbers from 0 on."""
        import numpy as np

        if isinstance(rows, slice):
            return np.arange(*rows.indices(len(self)))
        found = np.asarray(rows if hasattr(rows, "__array__") else list(rows))
        if found.ndim != 1 or (found.dtype.kind not in "iu" and len(found)):
            raise TypeError(
                f"rows are whole numbers, as in table[7], table[2:9], table[[7, 3]], not {str(rows)[:60]!r}"
            )
        for wrong in found[(found >= len(self)) | (found < -len(self))][:1].tolist():
            self._checked(wrong)
        return np.where(found < 0, found + len(self), found).astype(np.int64)

    def _samples(self, rows: Any, keys: list[bytes] | None = None) -> list[Sample]:
        if not len(rows):
            return []
        held, at, wanted = self._found(rows)
        return held.samples(at, wanted, keys)

    def bulk(self, rows: Any, room_of: RoomOf | None = None, fields: Collection[str] | None = None) -> Bulk | None:
        """Return the samples of *rows* together: for callers that read many at a time.

        Payloads are in one buffer, `room_of(size)` if it is given, or in columns. Of large samples only *fields*, in
        lower case, are read. None if a sample is not as most are, or is not as its row says: then `table[rows]` gives
        them, or says what is wrong. Raises: what `table[rows]` raises.
        """
        numbers = self._numbers(rows)
        if not len(numbers):
            return None
        held, at, wanted = self._found(numbers)
        return held.bulk(at, wanted, room_of, fields)

    def _found(self, rows: Any) -> tuple[Placed, Any, Any]:
        """Return the places that *rows* are among, their numbers there, and those in the file."""
        import numpy as np

        rows = np.asarray(rows, np.int64)
        wanted = rows if self._rows is None else self._rows[rows]
        held = self._near if self._places is None else self._places
        if held is None and self._held is None:
            held = self._near = self._group_of(int(wanted[0]))
        at = rows
        if self._places is None:
            at = wanted - (held.first if held else 0)
            if held is None or at.min() < 0 or at.max() >= len(held.piece):
                held = self._all()
                at = rows
        assert held is not None
        return held, at, wanted

    def _group_of(self, row: int) -> Placed:
        """Return the places of the rows of the file that are in one row group with *row*."""
        with self._opened() as table:
            for group, first, count in table.groups():
                if first <= row < first + count:
                    return Placed.of(self._url, table.batches(PLACES, BATCH, [group]), count, first)
        raise TarFormatError("this table is damaged: rows are missing", url=self._url)

    # ---- places ----

    def places(self) -> tuple[Any, Any, Any]:
        """Return for each row the number of its shard, and the bytes at which its sample begins and ends there.

        Three arrays, which are not to be changed. The shard with number n is item n of `shards()`.
        """
        held = self._all().piece
        return held.numbers, held.begins, held.ends

    def shards(self) -> list[str]:
        """Return the URLs of the shards, by their numbers."""
        return list(self._all().listing.urls)

    def versions(self) -> list[str | None]:
        """Return the versions of the shards when the table was made, by their numbers; None if it does not say."""
        return list(self._all().listing.versions)

    def digest(self) -> str:
        """Return what another order or choice of rows would change, and other shards or versions of them.

        A data set that is moved as a whole, with its table, keeps it. Reads the places of all rows.
        """
        if not self._digest:
            self._digest = self._all().digest()
        return self._digest

    def _all(self) -> Placed:
        """Return the places of all rows of this table."""
        if self._places is None:
            whole = Placed.of(self._url, self._batches(PLACES), self._total)
            self._places = whole if self._rows is None else whole.taken(self._rows)
        return self._places

    # ---- columns ----

    def column(self, name: str, nulls: bool = False) -> np.ndarray[Any, Any]:
        """Return the values of the column *name*, in the order of the rows.

        Numbers with nulls become floats with NaN; or, if *nulls* are told, objects as they are, and None for each null.
        Raises: KeyError if there is no such column.
        """
        found = self._read([name]).column(0)
        values: np.ndarray[Any, Any] = found.to_numpy()
        if nulls and found.null_count and values.dtype.kind == "f":
            values = values.astype(object)
            values[:] = found.to_pylist()
        return values

    def returning_key(self) -> tuple[str, str] | None:
        """Return key and shard of a sample whose key another sample of the shard has, at another place; None without.

        Looks at the first 2**20 rows. Reads the keys only if some seem to be equal.
        """
        import numpy as np

        held, sums = self._all().piece, self._all().sums[:MAX_COMPARED_ROWS]
        numbers, begins = held.numbers[:MAX_COMPARED_ROWS], held.begins[:MAX_COMPARED_ROWS]
        marks = numbers.astype(np.uint64) << np.uint64(32) | sums
        order = np.lexsort((begins, marks))
        same = (marks[order][1:] == marks[order][:-1]) & (begins[order][1:] != begins[order][:-1])
        same &= sums[order][1:] != UNKNOWN_KEY
        if not same.any():
            return None
        keys = self.column(schema.KEY)
        for at in np.flatnonzero(same).tolist():
            first, second = order[at], order[at + 1]
            if keys[first] == keys[second]:
                return str(keys[first]), self.shards()[int(numbers[first])]
        return None

    def has_field(self, name: str) -> np.ndarray[Any, Any]:
        """Return for each row whether its sample has the field *name*, in whatever case.

        Raises: StorageError if the table does not list the fields of its samples.
        """
        import numpy as np

        try:
            members = self._read([schema.MEMBERS]).column(0)
        except KeyError:
            text = f"this table does not say which fields samples have (column {schema.MEMBERS}): make it by tarindex"
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
        return self._named(self._read(None), lambda name: name)

    def _read(self, names: list[str] | None) -> Any:
        """Return the columns *names*, None for all, of the rows of this table."""
        if self._held is not None:
            found = self._held
            known = found.column_names
        else:
            with self._opened() as table:
                known = table.names
                wanted = names if names is None or names[0] in known else []
                found = table.read(wanted)
        for name in names or ():
            if name not in known:
                raise KeyError(f"the table has no column {name!r}; it has {' '.join(known)}")
        found = found if names is None else found.select(names)
        return found if self._rows is None else found.take(self._rows)

    def take(self, rows: slice | Iterable[int] | np.ndarray[Any, Any]) -> Table:
        """Return the table of these *rows*, in the order that they are given in; a row may come several times."""
        wanted = self._numbers(rows)
        rows = wanted if self._rows is None else self._rows[wanted]
        made = Table._of(self._url, self._held, rows, self._version, self._total)
        if self._places is not None:
            made._places = self._places.taken(wanted)
        return made

    def write(self, url: Name, *, force: bool = False) -> None:
        """Write the rows as the table *url*, which appears when it is complete.

        Names of shards are relative to its folder where both can be moved together.
        Holds: all columns of the rows.
        Raises: StorageError if it exists, unless *force*, or is on a server and lists local shards.
        """
        from tartools.tables.tablewriter import SinkFile

        url = name_of(url)
        folder = schema.folder_of(url)
        rows = self._named(self._read(None), lambda name: schema.relative(name, folder))
        schema.check_names(rows.column(schema.SHARD).unique().to_pylist(), folder)
        pa = schema.arrow()
        with (
            storage.writing(url, force) as sink,
            pa.parquet.ParquetWriter(
                pa.PythonFile(SinkFile(sink), "w"), rows.schema, compression="zstd", write_page_checksum=True
            ) as writer,
        ):
            writer.write_table(rows, row_group_size=schema.ROW_GROUP)

    def _named(self, rows: Any, name_of: Any) -> Any:
        """Return *rows* with the names of their shards resolved, and given by `name_of(url)`."""
        pa = schema.arrow()
        column = rows.column(schema.SHARD)
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        chunks = encoded.unify_dictionaries().chunks
        known = chunks[0].dictionary.cast(pa.string()).to_pylist() if chunks else ()
        folder = schema.folder_of(self._url)
        names = pa.array([name and name_of(schema.resolved(name, folder)) for name in known], pa.string())
        made = [pa.DictionaryArray.from_arrays(chunk.indices.cast(pa.int32()), names) for chunk in chunks]
        named = pa.chunked_array(made, pa.dictionary(pa.int32(), pa.string()))
        return rows.set_column(rows.column_names.index(schema.SHARD), schema.SHARD, named)

    # ---- the file ----

    def _batches(self, names: Sequence[str]) -> Iterator[Any]:
        """Yield the columns *names* of all rows of the file, in record batches. Raises: StorageError without keys."""
        missing = StorageError(f"this table has no column {names[0]}", url=self._url)
        if self._held is not None:
            known = [name for name in names if name in self._held.column_names]
            if names[0] not in known:
                raise missing
            yield from self._held.select(known).to_batches(BATCH)
            return
        with self._opened() as table:
            if names[0] not in table.names:
                raise missing
            yield from table.batches(names, BATCH)

    def _opened(self) -> Any:
        """Open the file. Raises: StorageError if another file has its name now."""
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
        return source.opened(self._url, file)
