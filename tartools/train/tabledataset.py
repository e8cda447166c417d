"""`TableDataset`: the samples of a table, or of shards, for torch's DataLoader; `TableBatch`: a batch of them."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from tartools import storage
from tartools.errors import ExistsError, StorageError, TarFormatError, several
from tartools.samples.account import Account
from tartools.samples.sample import DICT_KEY, DICT_URL, Sample
from tartools.shards.reading import Reading
from tartools.shards.shardrows import Indexing, row_inputs, rows_at, update_rows, write_rows
from tartools.storage import seekable
from tartools.storage.expand import expand
from tartools.storage.objects import TABLE_OUTDATED
from tartools.storage.url import Name, name_of, names_of
from tartools.tables import schema
from tartools.tables.bulk import Bulk, GetBuffer
from tartools.tables.inputs import table_rows
from tartools.tables.schema import is_table
from tartools.tables.table import Table
from tartools.tar import Member, split_path
from tartools.tar.member import PayloadReader
from tartools.tar.rescan import headers_in
from tartools.train import fieldchooser
from tartools.train.fieldchooser import FieldChooser
from tartools.train.sampler import begin_epoch, log
from tartools.train.sending import CacheSetting
from tartools.train.workererrors import guard_worker

TableSource = Name | Iterable[Name] | Table
Columns = str | Sequence[str] | Mapping[str, str] | None
LIBRARY_INDEXING = Indexing(Reading(), 1)  # no other process
MIN_RANGE_SAMPLE_BYTES = 1 << 20  # bytes of a sample that is not read whole


class TableDataset(Dataset[Any]):
    """The samples of *source*, each by its number: a dataset for `torch.utils.data.DataLoader`.

        data = tartools.train.TableDataset("train.parquet", fields=("jpg;png", "cls"), decode="pil")
        picture, label = data[41]

    *source* is the URL of a table or a `tartools.Table`; or the URLs of shards, "train-{000..147}.tar", or of several
    tables: these are read to their ends now, for a table that is held. With *table*, the table of shards is kept at
    this URL; where it is there already, only shards that have changed are read, as by `tarindex --update`. Of several
    ranks the first makes it, and the others take it.

    *fields*: names for a tuple of these; None for a dict of `__key__`, `__url__` and all fields. *decode*: a decoder's
    name or function, several, or a dict of these by field; None for bytes. *transform*: a function of the result, or
    one for each field. *resize*: size of pictures. *exif*: True turns them as their EXIF data say. *classes*: names
    that become numbers. More on them: `FieldChooser`.

    *columns*: columns of the table that are fields of each sample, such as new captions or scores, without new shards:
    names, or `{field: column}`. A field of the same name is replaced, but where the column is null. Values are numbers,
    text and arrays, which are not decoded; *classes* holds for them too. With *fields*, columns that these don't name
    come behind them. *missing*: what a sample without one of *fields* is: "error"; None, which is then the value of the
    field, and no transform of it is called; or "skip", which leaves the sample out. A warning says how many were left
    out; `len` counts the others.

    *cache*, "/nvme/cache:500GB", keeps what is read of remote shards on the local disk, as `TARTOOLS_CACHE` does: for
    all that this process reads, and its workers. A batch is read at once (`__getitems__`, which DataLoader calls):
    samples near each other are joined, and requests are made side by side. It pickles as the table's URL, or with the
    rows of a table that is held, and may be used in forks and other processes.

    Holds: what `tartools.Table` holds, and a batch.
    Raises, when it is made: StorageError and TarFormatError for a table or shard that can't be read or is damaged;
    SampleError for a sample of a shard that a table can't list; UsageError for stdin and commands; ValueError and
    TypeError for arguments that don't fit; KeyError for a column that the table lacks. Later: StorageError, also if a
    shard has changed; SampleError, with shard, sample and field, for a missing field or a payload that can't be
    decoded; IndexError; the errors of transforms.
    """

    def __init__(
        self,
        source: TableSource,
        fields: fieldchooser.Fields = None,
        decode: fieldchooser.Decode = None,
        transform: Any = None,
        resize: fieldchooser.Size = None,
        classes: fieldchooser.Classes = None,
        *,
        table: Name | None = None,
        cache: str | None = None,
        columns: Columns = None,
        missing: str | None = "error",
        exif: bool = False,
    ) -> None:
        self._cache = CacheSetting(cache)  # first: what follows may read
        fields, transform = with_column_fields(fields, transform, column_fields(columns))
        self.chooser = FieldChooser(fields, decode, transform, resize, classes, missing=missing, exif=exif)
        self.table = table_of(source, table, keep_members=missing == "skip")
        if missing == "skip":
            self.table = complete_rows(self.table, self.chooser.fields or [], column_fields(columns))
        self.table = self.table.with_fields(self.chooser.needed)
        self._columns = ColumnFields(self.table, columns)
        self._is_compared = False  # whether keys that come back were looked for

    def __len__(self) -> int:
        return len(self.table)

    def set_epoch(self, epoch: int) -> None:
        """Have random transforms and clips get seeds for *epoch*; `StatefulSampler` and `loader` call this."""
        begin_epoch(self, None, epoch)

    def __getitem__(self, index: int) -> Any:
        guard_worker()
        return self.chooser(self._samples([index])[0])

    def __getitems__(self, indices: Sequence[int] | Iterable[int]) -> list[Any]:
        """Return the samples of the rows *indices*, in this order, chosen, decoded and transformed.

        Raises: IndexError; the errors that the class names for later.
        """
        guard_worker()
        return list(self.batch(list(indices)))

    def digest(self) -> str:
        """Return a fingerprint of the samples in their order: the fingerprint of the table."""
        return self.table.digest()

    def warn_of_returning_key(self) -> None:
        """Warn, at the first call only, if a key returns later in a shard: its rows are parts of one sample.

        The first 2**20 rows of the table are compared.
        """
        if not self._is_compared:
            self._is_compared = True
            if key_and_shard := self.table.returning_key():
                key, shard = key_and_shard
                Account().record_returning_key(key.encode("utf-8", "surrogateescape"), shard)

    def batch(self, rows: list[int], buffer_of: GetBuffer | None = None) -> TableBatch | list[Any]:
        """Return the samples of *rows*, in this order: a `TableBatch` of their payloads, or a list.

        `buffer_of(size)`: makes the buffer for the payloads, of *size* bytes or more; None: new memory. A `TableBatch`
        decodes its samples when they are asked for; in the list they are decoded. The result is a list if *rows* is
        empty, if a field is to be a file, or if `Table.bulk` can't read the rows. Raises: IndexError; StorageError,
        also if a shard has changed; for a list, the errors of decoding and transforms.
        """
        bulk = None if self.chooser.files else self.table.bulk(rows, buffer_of, self.chooser.needed)
        if bulk is not None:
            return TableBatch(bulk, self.chooser, self._columns.of(rows))
        return list(map(self.chooser, self._samples(rows)))

    def _samples(self, rows: list[int]) -> list[Any]:
        """Return the samples of *rows*, each a dict if it is read in ranges or columns add fields, else a `Sample`.

        None is decoded yet. Raises: IndexError; StorageError, also if a shard has changed; SampleError, for dicts, if
        two fields differ only in case or the name of one begins with two underscores.
        """
        files, needed = self.chooser.files, self.chooser.needed
        parts = [sample_in_ranges(self.table, row, files, needed) for row in rows] if files else [None] * len(rows)
        full_samples = iter(self.table[[row for row, part in zip(rows, parts, strict=True) if part is None]])
        all_samples = [next(full_samples) if part is None else part for part in parts]
        if not (values := self._columns.of(rows)):
            return all_samples
        dicts = (
            fieldchooser.as_dict(sample, None, files) if isinstance(sample, Sample) else sample
            for sample in all_samples
        )
        return list(overlay(dicts, values))


class ColumnFields:
    """The values of the columns of *table* that become fields of samples: `of` returns the values of some rows.

    *columns*: names of columns, or a dict, field -> column, as the argument of `TableDataset`. Holds: the values of
    these columns; a pickled copy has none, and reads them again. Raises: KeyError for a column that the table has not;
    ValueError for a field that begins with two underscores; TypeError and ValueError of `column_fields`; StorageError
    if the table can't be read.
    """

    def __init__(self, table: Table, columns: Columns) -> None:
        self._table, self._names = table, column_fields(columns)
        if wrong := [field for field in self._names if field.startswith(fieldchooser.RESERVED_PREFIX)]:
            raise ValueError(f"no field is called {wrong[0]!r}; name one: columns={{'shard': '__shard__'}}")
        self._values: dict[str, Any] = {}
        self.of([])  # what is not there is an error now

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_values": {}}

    def of(self, rows: list[int]) -> dict[str, list[Any]]:
        """Return a dict: field -> its values in *rows*, in this order; None for null; {} if there are no columns.

        Values are Python objects, such as int and str; arrays are copies. Raises: KeyError for a column that the table
        has not; IndexError for a row that it has not.
        """
        if not self._values:
            self._values = {field: self._table.column(column, nulls=True) for field, column in self._names.items()}
        lists = {field: _values_or_none(values[rows]) for field, values in self._values.items()}
        return {
            field: [value.copy() if isinstance(value, np.ndarray) else value for value in lists[field]]
            for field in lists
        }


def _values_or_none(values: np.ndarray[Any, Any]) -> list[Any]:
    """Return *values* as Python objects, None for null: a null of times in nanoseconds would be a negative number."""
    if values.dtype.kind in "mM":
        return [None if is_null else value for value, is_null in zip(values.tolist(), np.isnat(values), strict=True)]
    return list(values.tolist())


def column_fields(columns: Columns) -> dict[str, str]:
    """Return the argument *columns* of TableDataset as a dict: field, in lower case -> column of the table.

    Names, in a text with blanks between them or in a list, are both field and column: "Score b" -> {"score": "Score",
    "b": "b"}. None: {}. A dict may be empty. Of fields that differ only in case the last counts. Raises: TypeError for
    a name that is no text; ValueError for a text or list without names.
    """
    mapping = {} if columns is None else columns
    names = (
        mapping if isinstance(mapping, Mapping) else {name: name for name in fieldchooser.names_in(mapping, "columns")}
    )
    return {field.lower(): column for field, column in names.items()}


def with_column_fields(fields: fieldchooser.Fields, transform: Any, columns: dict[str, str]) -> tuple[Any, Any]:
    """Return (*fields* with the fields of *columns* that it lacks appended, *transform* with None for each of these).

    *transform* stays as it is unless it is a list or tuple with an item for each of *fields*. If *fields* is None, for
    all fields, both are returned unchanged. *columns*: field, in lower case -> column; a field that is one of several
    names, "jpg;png", is not lacking. Raises: TypeError and ValueError for other *fields*, as `fieldchooser.names_in`.
    """
    if fields is None:
        return None, transform
    names = fieldchooser.names_in(fields)
    field_names = {name.lower() for field in names for name in field.split(";")}
    added = [field for field in columns if field not in field_names]
    if isinstance(transform, (list, tuple)) and len(transform) == len(names):
        transform = [*transform, *[None] * len(added)]
    return [*names, *added], transform


def complete_rows(table: Table, fields: Sequence[Sequence[str]], columns: dict[str, str]) -> Table:
    """Return *table* without the rows whose samples lack one of *fields*; log a warning that counts them by field.

    If none lacks any, *table* itself is returned, without a warning. *fields*: for each field a list of its names, one
    of which is enough; names that begin with two underscores are in every sample. *columns*: field, in lower case ->
    column of the table; a row in which this is not null has the field. Raises: ValueError if *fields* is empty;
    KeyError for a column that the table has not; StorageError if it does not say which fields samples have, and this
    does not follow from *columns* alone.
    """
    if not fields:
        raise ValueError("missing='skip' leaves out samples without one of fields: give fields")
    lacking = np.zeros(len(table), bool)
    counts: dict[str, int] = {}
    for names in fields:
        has = np.zeros(len(table), bool)
        for name in map(str.lower, names):
            if name.startswith(fieldchooser.RESERVED_PREFIX):
                has[:] = True
            elif name in columns:
                values = table.column(columns[name], nulls=True)
                has |= np.array([value is not None for value in values.tolist()], bool)
            if not has.all():
                has |= table.has_field(name)
        counts[" or ".join(names)] = int((~has).sum())
        lacking |= ~has
    if count := int(lacking.sum()):
        why = ", ".join(f"{number:,} without {name}" for name, number in counts.items() if number)
        log.warning("%s of %s left out: %s", f"{count:,}", several(len(lacking), "sample"), why)
    return table.take(np.flatnonzero(~lacking)) if count else table


def overlay(samples: Iterable[dict[str, Any]], values: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Yield copies of *samples*; number n, from 0, gets each field `name` of *values* with the value `values[name][n]`.

    They replace fields of the same name; a value that is None changes nothing. *samples* are not changed.
    """
    for number, sample in enumerate(samples):
        present = {field: column[number] for field, column in values.items() if column[number] is not None}
        yield sample | present


def table_of(source: TableSource, table_url: Name | None = None, keep_members: bool = False) -> Table:
    """Return *source* as a table: itself, or a table of all samples of its shards and tables, in order.

    The URL of one table is opened. Else shards are read to their ends, and the table is held. With *table_url*, which
    goes with shards alone, it is written to this URL, and opened there; if it is there, only shards that have changed
    are read, as by `tarindex --update`. Of several processes, such as the ranks of a run, the first makes it, and the
    others take it. *keep_members*: also hold the places of fields, if the table is held.

    Raises: StorageError, also for shards that are compressed; TarFormatError; SampleError for a sample that a row can't
    list; UsageError for stdin and commands, and with a *table_url* that is there for a shard named twice, or if that
    table joins sets of shards; ValueError without a name, and for *table_url* if *source* is a table or names one;
    TypeError for another object.
    """
    if isinstance(source, Table):
        if table_url is not None:
            raise ValueError("this is a table already: its method write keeps it")
        return source
    urls = expand(names) if (names := [*filter(None, _names(source))]) else []
    if not urls:
        raise ValueError("no shard and no table is named")
    if table_url is not None:
        table_url = name_of(table_url)
        with storage.folder_lock(table_url):
            return _update_table(urls, table_url)
    if len(urls) == 1 and is_table(urls[0]):
        return Table(urls[0])
    inputs = row_inputs(urls, Account(), LIBRARY_INDEXING)
    names = [name for name in inputs.schema.names if keep_members or name != schema.MEMBERS_COLUMN]
    pa = schema.import_arrow()
    columns = pa.schema([inputs.schema.field(name) for name in names])
    rows = pa.Table.from_batches(inputs.batches(names), columns)
    return Table.from_arrow(table_rows(rows, inputs.catalog.shard))


def _names(source: Any) -> list[str]:
    """Return *source*, a name or several, as a list of URLs and paths.

    Raises: TypeError for a name that is neither text nor a Path, and for a dataset of another class, with a message
    that says by which of our classes to read it.
    """
    if hasattr(source, "__getitem__") and not isinstance(source, Iterable):
        reader = "loader"
    elif hasattr(source, "set_epoch"):
        reader = "DataLoader"
    else:
        return names_of(source)
    kind = type(source).__name__
    raise TypeError(f"a table or shards are expected, not {kind}, which {reader}(data, batch_size=64) reads")


def _update_table(urls: Sequence[str], table_url: str) -> Table:
    """Return the table of the shards *urls* that is kept at *table_url*; write it if it is missing or out of date.

    The caller holds the lock of its folder. Raises: ValueError if one of *urls* is a table; StorageError and
    TarFormatError if a shard can't be read, or the table can't be written; the other errors of `row_inputs` and
    `update_rows`.
    """
    if tables := [url for url in urls if is_table(url)]:
        raise ValueError(f"table= keeps the table of shards, and this is a table: {tables[0]}")
    if not storage.exists(table_url):
        inputs = row_inputs(urls, Account(), LIBRARY_INDEXING)
        with suppress(ExistsError):  # a rank on another machine was faster: its table is looked at
            write_rows(inputs, table_url)
            return Table(table_url)
    update = update_rows(urls, table_url, Account(), LIBRARY_INDEXING)
    table = Table(table_url)
    rows = np.fromiter(update.rows, np.int64)
    if np.array_equal(rows, np.arange(len(table))):
        return table
    write_rows(update.inputs, table_url, force=True, batches=rows_at(update.inputs, rows.tolist(), None))
    return Table(table_url)


@dataclass(eq=False, repr=False)
class TableBatch:
    """A batch of samples, as a sequence: `len`, an index, iteration; each is decoded whenever it is asked for.

    `bulk`: the payloads, as `Table.bulk` returns them, often in one buffer
    `chooser`: chooses, decodes and transforms the fields of a sample
    `columns`: field -> a value for each sample, from a column of the table, None for null; {} without columns

    Holds: the payloads; a sample that is made of a buffer has copies of its own.
    """

    bulk: Bulk
    chooser: FieldChooser
    columns: dict[str, list[Any]]

    def __len__(self) -> int:
        return len(self.bulk)

    def __repr__(self) -> str:
        return f"<TableBatch: {len(self)} with {' '.join(self.bulk.fields)}>"

    def __getitem__(self, index: int) -> Any:
        """Return sample *index* (negative: from the end), as the iteration gives it: chosen, decoded and transformed.

        Raises: IndexError; SampleError for a missing field or a payload that can't be decoded; the errors of
        transforms.
        """
        number = range(len(self))[index]
        one_row = slice(number, number + 1)
        columns = {field: values[one_row] for field, values in self.columns.items()}
        return next(iter(TableBatch(self.bulk.part(one_row), self.chooser, columns)))

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the samples, each chosen, decoded and transformed by `chooser` when it is asked for.

        If that has no fields, decoder, classes and transform: dicts of `__key__`, `__url__`, bytes and values of
        columns. Raises: SampleError for a missing field or a payload that can't be decoded; the errors of transforms.
        """
        samples = overlay(self._stored_samples(), self.columns) if self.columns else self._stored_samples()
        return samples if self.chooser.raw and self.chooser.fields is None else map(self.chooser, samples)

    def _stored_samples(self) -> Iterator[dict[str, Any]]:
        """Yield each sample as a dict: `__key__`, `__url__`, payloads (bytes) by field; None for a field not needed.

        Fields that the sample does not have are left out. Values of columns are not in it.
        """
        bulk, needed = self.bulk, self.chooser.needed
        payloads = (
            bulk.payloads(n) if needed is None or name in needed else repeat(None) for n, name in enumerate(bulk.fields)
        )
        keys = (key.decode("utf-8", "surrogateescape") for key in bulk.keys)
        names = (DICT_KEY, DICT_URL, *bulk.fields)
        samples = map(dict, map(zip, repeat(names), zip(keys, bulk.urls, *payloads, strict=False)))
        return samples if bulk.uniform else map(_drop_absent, samples, repeat(bulk.fields), bulk.offsets.T.tolist())


def _drop_absent(sample: dict[str, Any], fields: list[str], offsets: list[int]) -> dict[str, Any]:
    """Return a dict with `__key__` and `__url__` of *sample*, then its payloads of *fields*, in archive order.

    *offsets*: numbers that sort the payloads of *fields*, such as the bytes where they begin; a field with a negative
    one (-1: absent) is left out.
    """
    order = sorted(zip(offsets, fields, strict=True))
    return {DICT_KEY: sample[DICT_KEY], DICT_URL: sample[DICT_URL]} | {
        name: sample[name] for offset, name in order if offset >= 0
    }


def sample_in_ranges(table: Table, row: int, files: Set[str], needed: Set[str] | None) -> dict[str, Any] | None:
    """Return the sample of *row* as a dict, with the fields *files* (lower case) as files that can seek.

    The dict has `__key__`, `__url__`, and payloads by field. Reads the headers, and the payloads of the other fields
    that are *needed* (None: all); values not needed are None. Returns None, so that the caller reads the sample whole,
    if all its parts are small (below 1 MiB) or local, if the table does not have the version of its shard, or if its
    headers are damaged or not those of plain files with one key and a field each. Raises: StorageError, also if the
    shard was replaced; SampleError if two fields to be read are equal but for case, or one begins with two underscores.
    """
    parts = table.parts(row)
    if any(version is None for _, version, _, _ in parts) or not any(
        storage.is_stored_object(url) and end - begin >= MIN_RANGE_SAMPLE_BYTES for url, _, begin, end in parts
    ):
        return None
    fields: list[tuple[str, Any]] = []
    keys: set[bytes] = set()
    for url, version, begin, end in parts:
        file = seekable.open_as_file(url)
        if seekable.version_of_file(file) != version:
            raise StorageError(TABLE_OUTDATED, url=url)
        try:
            for at, header in headers_in(partial(_read_range, file), begin, end):
                key, field = split_path(header.path)
                member = Member(header.path, b"", at, at + header.data, header.size)
                name = field.decode("utf-8", "surrogateescape")
                if header.special is not None or header.head is not None or not field or at + header.end > end:
                    return None
                keys.add(key)
                fields.append((name, partial(_field, file, member, name.lower() in files)))
        except TarFormatError:
            return None  # what reads it whole says what is there
    if len(keys) != 1:
        return None
    url = table.shards()[int(table.places()[0][row])]
    return fieldchooser.make_dict(keys.pop().decode("utf-8", "surrogateescape"), url, fields, needed)


def _read_range(file: io.BufferedReader, count: int, at: int) -> bytes:
    """Return *count* bytes of *file* from byte *at* on, fewer at its end; the position of *file* moves."""
    file.seek(at)
    return file.read(count)


def _field(file: io.BufferedReader, member: Member, as_file: bool) -> Any:
    """Return the payload of *member* in *file*: a file that reads it in ranges if *as_file*, else its bytes.

    *member*: its `data` is an offset in *file*.
    """
    return io.BufferedReader(RangedPayload(file, member)) if as_file else _read_range(file, member.size, member.data)


class RangedPayload(PayloadReader):
    """A raw file of the payload of *member*, which can seek; each read reads its bytes from the open *file*.

    *member*: its `data` is an offset in *file*.
    """

    def __init__(self, file: io.BufferedReader, member: Member) -> None:
        super().__init__(member)
        self._file = file

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read bytes of the payload into *buffer*; return their number, 0 at the end."""
        count = max(0, min(len(buffer), self._member.size - self._position))
        data = _read_range(self._file, count, self._member.data + self._position)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
