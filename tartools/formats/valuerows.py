"""Rows of values by key, of TSV, CSV, JSON lines and Parquet, as columns for a table: see `tables.inputs.RowStream`."""

from __future__ import annotations

import io
import marshal
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from tartools.errors import SampleError
from tartools.formats.parquetread import column_buffer_bytes, read_small_batches
from tartools.formats.parquetvalues import encode_column
from tartools.samples import columnfields
from tartools.samples.columnfields import RowFormat, pack_row
from tartools.samples.kinds.arrays import NPY_MAGIC
from tartools.samples.payloads import parse_json
from tartools.storage.scratch import reopen_scratch, scratch_file
from tartools.tables import schema
from tartools.tables.facts import typed_value
from tartools.tables.inputs import plain_type
from tartools.tables.source import open_parquet


class TextValues:
    """The rows of tables of text, as columns for a table: `add` all rows, then read `rows`, `schema` and `batches`.

    The rows are in a temporary file, because only all of them give the types of the columns; it is deleted with this
    object. *tmpdir*: its folder; None: `$TMPDIR`, else /tmp. `rows`: their number. `schema`: the columns so far, of the
    types int64, double, string, list and struct. Integers and floats are double; values of other different types, such
    as numbers and text, are strings; true and false of JSON lines too, unless inside of a list or object.
    Raises: StorageError if the file can't be made.
    """

    def __init__(self, tmpdir: str | None) -> None:
        self._file = scratch_file(tmpdir)
        self._types: dict[str, Any] = {}
        self.rows = 0

    def add(self, packed: Sequence[bytes], single: bytes | None, form: str) -> None:
        """Add rows, as `textrows.read_packed_rows` yields them.

        *packed*: for each row the marshalled pairs (field, payload), or the payload alone if *single*, the name of the
        only field, is not None. *form*: tsv, csv or jsonl. Raises: SampleError for a value that is not UTF-8
        (nor, in JSON lines, in NumPy's format), for two fields of a row that are one column, such as `a` and `a.json`
        of JSON lines, and for text in a field *.json of JSON lines; StorageError if the temporary file can't be
        written.
        """
        rows = [_row_values(row, single, form) for row in packed]
        names = dict.fromkeys(chain.from_iterable(rows))
        columns = {name: [row.get(name) for row in rows] for name in names}
        for name, values in columns.items():
            kind = schema.json_type(values)
            self._types[name] = schema.join_types(self._types.get(name, kind), kind)
        data = marshal.dumps((len(rows), columns))
        self._file.write(len(data).to_bytes(8, "big") + data)
        self.rows += len(rows)

    @property
    def schema(self) -> Any:
        """The columns of the rows that were added, in order of appearance, as a `pyarrow.Schema`."""
        return schema.import_arrow().schema([(name, schema.stored_type(kind)) for name, kind in self._types.items()])

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield the rows, in order, a `pyarrow.RecordBatch` for each `add`.

        *columns*: names to read, if they exist; None: all. A batch has them in the order of `schema`, with null for
        rows without a value. They can be read again, but only one iterator at a time, and no row can be added then.
        """
        fields = [field for field in self.schema if columns is None or field.name in columns]
        with reopen_scratch(self._file) as file:
            while length := file.read(8):
                count, values = marshal.loads(file.read(int.from_bytes(length, "big")))  # noqa: S302  # our own
                arrays = [schema.column_of(values.get(field.name) or [None] * count, field.type) for field in fields]
                yield schema.import_arrow().RecordBatch.from_arrays(arrays, schema=schema.import_arrow().schema(fields))


def _row_values(packed: bytes, single: bytes | None, form: str) -> dict[str, Any]:
    """Return the values of the row *packed* by column, as `_column_value` returns them; an empty payload is no value.

    *packed*: marshalled pairs (field, payload), or the payload of the field *single*, if that is not None. *form*: tsv,
    csv or jsonl. Raises: SampleError for a value that is not UTF-8, text in a field for JSON, or two fields for one
    column.
    """
    fields = marshal.loads(packed) if single is None else [(single, packed)]  # noqa: S302  # from our own process
    values: dict[str, Any] = {}
    for name, payload in fields:
        if payload:
            column, value = _column_value(name.decode("utf-8", "surrogateescape"), payload, form)
            if column in values:
                raise SampleError(f"two values of one row are for the column {column!r}")
            values[column] = value
    return values


def _column_value(name: str, payload: bytes, form: str) -> tuple[str, Any]:
    """Return (column, value) for the field *name* with this *payload*, in a table of the format *form*.

    In JSON lines, a payload in NumPy's format is a list, and the payload of a field *.json a JSON value, such as an
    object: the column is called without .npy or .json at its end. Any other value, also in a field called just json, is
    an int or float if it has the form of a number in JSON (7, 0.5, not 007) and is between -2**63 and 2**63, or else
    text. Raises: SampleError for a value that is not UTF-8, and for text in JSON lines in a field *.json.
    """
    if form == "jsonl" and payload.startswith(NPY_MAGIC):
        import numpy as np

        return name.removesuffix(".npy"), np.load(io.BytesIO(payload), allow_pickle=False).tolist()
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        raise SampleError(f"the column {name!r} has a value that is not text, which a table can't hold") from None
    if form == "jsonl" and name.endswith(".json"):
        try:
            return name.removesuffix(".json"), parse_json(payload)
        except ValueError:
            raise SampleError(f"the column {name!r} has text, and must have lists or objects") from None
    return name, typed_value(text)


class ParquetValues:
    """The columns of the Parquet file *url* that *row_format* chooses, under their new names, as columns for a table.

    `rows`: number of rows. `schema`: the columns, without the keys, as a `pyarrow.Schema`; dictionaries and extension
    types are replaced by the types of their values. The file is opened anew by `keys` and by `batches`.
    Raises: SampleError for a missing key column, a word without a column, two columns of one name or for one field;
    TarFormatError for a damaged file, or one that is not Parquet; StorageError.
    """

    def __init__(self, url: str, row_format: RowFormat) -> None:
        self._url, self._dots = url, row_format.dots
        with self._open() as table:
            names = table.names
            self._key = names[columnfields.key_column(names, row_format.key, url)]
            places = {name: place for place, name in enumerate(names) if name != self._key}
            columnfields.check_words(list(places), row_format, url)
            if twice := next((name for name in names if names.count(name) > 1), None):
                raise SampleError(f"two columns are called {twice!r}", url=url)
            try:
                self._columns = {field: names[place] for place, field in row_format.chosen.choose(places)}
            except SampleError as error:
                raise SampleError(error.message, url=url) from None
            kinds: Mapping[str, Any] = {field.name: plain_type(field.type) for field in table.parquet.schema_arrow}
            self.schema = schema.import_arrow().schema([(field, kinds[name]) for field, name in self._columns.items()])
            self.rows = table.rows

    def _open(self) -> Any:
        """Return a context manager for the open Parquet file, a `ParquetSource`."""
        return open_parquet(self._url, buffer=column_buffer_bytes(self._url))

    def keys(self) -> Iterator[list[bytes]]:
        """Yield the keys of adjacent rows, in order; keys that are names of files end where `row_format.dots` says.

        Raises: SampleError, naming the row, for a key that is null, empty or has a NUL, and for keys with bytes inside
        of lists or objects; TarFormatError for a damaged file; StorageError.
        """
        first = 1
        with self._open() as table:
            for batch in read_small_batches(table, [self._key]):
                keys = []
                for row, key in enumerate(encode_column(batch.column(0), self._key), first):
                    try:
                        keys.append(pack_row(key, (), self._dots)[0])
                    except SampleError as error:
                        raise SampleError(f"row {row}: {error.message}", url=self._url) from None
                yield keys
                first += len(keys)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield the rows in order, in record batches of pyarrow. *columns*: names to read, if they exist; None: all.

        A batch has them in the order of `schema`, with its types. Raises: TarFormatError for a damaged file;
        StorageError.
        """
        pa = schema.import_arrow()
        fields = [field for field in self.schema if columns is None or field.name in columns]
        with self._open() as table:
            for batch in read_small_batches(table, [self._columns[field.name] for field in fields]):
                arrays = [_cast_column(batch.column(self._columns[field.name]), field.type) for field in fields]
                yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _cast_column(column: Any, kind: Any) -> Any:
    """Return *column*, an Arrow array, with the type *kind*: without a dictionary, and cast if it has another type."""
    if schema.import_arrow().types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column if column.type == kind else column.cast(kind)
