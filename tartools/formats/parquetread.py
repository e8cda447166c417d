"""Parquet files that hold payloads: their rows as samples, or as fields that are added to samples."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tartools import storage, tar
from tartools.errors import SampleError, TarFormatError, shown
from tartools.formats.parquetvalues import (
    FileInList,
    check_no_bytes,
    column_payloads,
    encode_column,
    has_bytes,
    is_bytes_type,
    is_file_type,
    is_list_of_files,
    is_list_type,
    plain_column,
)
from tartools.samples import columnfields
from tartools.samples.account import Account, RepeatedKeyDetector
from tartools.samples.columnfields import ChosenColumns, EmptyRows, RowFormat, pack_row, with_key_column
from tartools.samples.encoding import split_codec, text_payload
from tartools.samples.filekeys import Dots, sample_key
from tartools.samples.rowchoice import RowChoice, key_text
from tartools.samples.sample import Sample, make_path
from tartools.samples.values import comma_advice, field_list
from tartools.storage import seekable
from tartools.tables import schema
from tartools.tables.schema import KEY_COLUMN
from tartools.tables.source import REQUIRED_COLUMNS, ParquetSource, open_parquet
from tartools.tar.keys import field_from_ending, join_path

FILE_KIND = "Parquet file"
BATCH_BYTES, BATCH_ROWS = 4 << 20, 1 << 12  # bytes and rows of a batch, by the average of its row group
# bytes of a column that are read at once; from servers, where each is a request
COLUMN_READ_BYTES, REMOTE_COLUMN_READ_BYTES = 1 << 20, 4 << 20


def samples(urls: Iterable[str], account: Account, choice: RowChoice, dots: Dots = None) -> Iterator[Sample]:
    """Yield a sample for each row of Parquet files, file by file. Members are new: mode 0644, owner and time 0.

    *choice*: the columns that become fields, in order, and the keys; without words each column is a field, but not
    names between two pairs of underscores. Null is no field. The keys are in the column `choice.key`, or the one that a
    word calls `__key__`. If there is neither, and the template of `choice.keys` names columns, it makes keys of these;
    else they are in the column `__key__`; without that, it makes them of the number of the row in all files, from 0.
    *dots*: where a key ends that is the name of a file: at its "first" or "last" dot; None: at its only dot, before a
    known suffix. Rows without any field are left out, and reported as an omission. Samples are counted in *account*,
    which also records keys that return in a file.

    Holds: a batch of 4 MiB, or a row, and the memory of pyarrow for a page of each column.
    Raises: SampleError, naming row or column, for a file that `PayloadRows` refuses, a bad key or payload;
    TarFormatError for a damaged file; StorageError.
    """
    index, empty = 0, EmptyRows("row")
    for url in urls:
        begin = index
        with open_parquet(url, seekable.open_seekable(url), FILE_KIND, column_buffer_bytes(url)) as table:
            rows = PayloadRows(table, choice, dots)
            keys = RepeatedKeyDetector(lambda key, url=url: account.record_returning_key(key, url))  # type: ignore[misc]
            for sample in rows.samples(index):
                account.bytes_in += sum(member.size for member in sample.members)
                account.samples_in += 1
                index += 1
                if not sample.members:
                    empty.add(account, f"row {index - begin} of {shown(url)}")
                    continue
                if keys.remaining:
                    keys.add([sample.raw_key])
                yield sample
        account.shards_done += 1
    empty.report(account)


def column_buffer_bytes(url: str) -> int:
    """Return how many bytes of each column of the Parquet file *url* are read at once: 1 MiB, or 4 MiB on a server."""
    return REMOTE_COLUMN_READ_BYTES if storage.is_stored_object(url) else COLUMN_READ_BYTES


def read_small_batches(table: ParquetSource, columns: Sequence[str]) -> Iterator[Any]:
    """Yield *columns* of all rows of *table* as a `pyarrow.RecordBatch` each of some BATCH_BYTES, and up to BATCH_ROWS.

    Rows are in order. A batch may have more bytes if the rows of a row group differ in size. Names that the file does
    not have are left out. Raises: TarFormatError for a damaged file, also if it has another number of rows than it
    says; StorageError.
    """
    rows = 0
    for group, _, count in table.groups():
        size = table.parquet.metadata.row_group(group).total_byte_size  # to ask for a column may end the process
        yield from table.batches(columns, max(1, min(BATCH_ROWS, BATCH_BYTES * count // max(size, 1))), [group])
        rows += count
    if rows != table.rows:
        raise table.failure(f"it has {rows} of {table.rows} rows")


class PayloadRows:
    """Reads the rows of the Parquet file *table* as samples: a column is a field, a null in it no member.

    A column of lists of pictures, sounds or bytes is a field for each file of the list: images.0.png. `samples` yields
    them. *choice*: the columns to take, in this order, with new names, and the keys. *dots*: the dot
    that ends a key, "first" or "last", if keys are names of files; None: the only one, before a known suffix.
    Raises: SampleError if a column can't be a field, is there twice or is missing, if no column is left for a field, or
    if it is a table of samples in shards; TarFormatError if the names of its columns are damaged.
    """

    def __init__(self, table: ParquetSource, choice: RowChoice, dots: Dots) -> None:
        self._table, self._dots, self._keys = table, dots, choice.keys
        names = table.names
        table.check_names()
        self._check(set(REQUIRED_COLUMNS) <= set(names), "is a table that lists samples of shards: tarcat reads it")
        twice = next((name for name in names if names.count(name) > 1), None)
        self._check(twice is not None, f"has two columns {twice!r}")
        try:
            self._key, self._fields = _choose_columns(names, choice)
        except SampleError as error:
            raise SampleError(error.message, url=table.url) from None
        self._check(not self._fields, f"has no column for a field; its columns are: {field_list(names)}")

    def _check(self, is_wrong: bool, fault: str) -> None:
        """Raise SampleError with this *fault* of the file if *is_wrong*."""
        if is_wrong:
            raise SampleError(f"this {FILE_KIND} {fault}", url=self._table.url)

    def samples(self, index: int) -> Iterator[Sample]:
        """Yield a sample for each row, in order; one without a field has no members.

        *index*: the number of the first sample among those of all files, from 0, for keys. Raises: SampleError, naming
        the row, for a bad key or payload; TarFormatError for a damaged file; StorageError.
        """
        row = 1
        for batch in self._batches():
            yield from self._samples_of_batch(batch, index + row - 1, row)
            row += len(batch)

    def _batches(self) -> Iterator[Any]:
        """Yield the columns of fields and keys in record batches of pyarrow, of some BATCH_BYTES each.

        Raises: StorageError; TarFormatError. The byte of a failure is up to where the file was read: where the columns
        of a damaged file begin can't be asked, because pyarrow may end the process.
        """
        keys = [self._key] if self._key is not None else self._keys.columns
        columns = list(dict.fromkeys([*keys, *(name for name, _ in self._fields)]))
        count = 0
        try:
            for batch in read_small_batches(self._table, columns):
                yield batch
                count += len(batch)
        except TarFormatError as error:
            message = f"in the data read up to this byte, after row {count}: {error.message}"
            raise TarFormatError(message, url=self._table.url, offset=self._table.file.tell()) from error

    def _samples_of_batch(self, batch: Any, index: int, row: int) -> Iterator[Sample]:
        """Yield the samples of *batch*. The first is number *row* of the file, from 1, and *index* of all, from 0.

        Raises: SampleError, naming the row, for a bad key or payload.
        """
        at = 0
        try:
            columns = [(ending, self._payloads(batch[name], name, row, ending)) for name, ending in self._fields]
            keys = None if self._key is None else encode_column(batch[self._key], self._key)
            if keys is None:
                texts = {name: encode_column(batch[name], name) for name in self._keys.columns}

                def text_of_column(name: str) -> str:
                    """Return the text of the column *name* in row `at` of the batch, for a key.

                    Raises: SampleError for null, or bytes that are not UTF-8.
                    """
                    return key_text(texts[name][at], name)

            for at in range(len(batch)):
                name = self._keys(index + at, text_of_column).encode() if keys is None else keys[at]
                key = sample_key(name, self._dots)
                members = []
                for ending, values in columns:
                    payload = values[at]
                    if type(payload) is list:
                        files = [(file.field(os.fsdecode(field_from_ending(ending))), file.payload) for file in payload]
                        members += [tar.new_member(join_path(key, os.fsencode(field)), data) for field, data in files]
                    elif payload is not None:
                        members.append(tar.new_member(key + ending, payload))
                yield Sample(key, members, self._table.url)
        except SampleError as error:
            number = row + at if error.offset is None else error.offset
            raise SampleError(f"row {number}: {error.message}", url=self._table.url) from None

    def _payloads(self, column: Any, name: str, row: int, ending: bytes) -> Sequence[Any]:
        """Return the payload of each row of *column*, a `pyarrow.Array` called *name*, from row *row* on.

        It is bytes, a list of FileInList, or None for null. *ending*: of the member's path, after the key; if it names
        a codec, values that are not bytes are compressed. Raises: SampleError for a picture or sound that is only a
        path, and for bytes inside of lists or objects.
        """
        column = plain_column(column)
        payloads = column_payloads(column, name, row)
        field = os.fsdecode(field_from_ending(ending))
        if split_codec(field)[1] is None or has_bytes(column.type):
            return payloads
        return [None if value is None else text_payload(field, value) for value in payloads]


def _choose_columns(names: Sequence[str], choice: RowChoice) -> tuple[str | None, list[tuple[str, bytes]]]:
    """Return (key column or None, [(column, ending)] of the columns that *choice* takes from *names*).

    Without words (option -f) these are all columns but the key and names that begin and end with __; a column that
    becomes `__key__` is the key. An ending is the end of the path of a member after the key: b".jpg".
    Raises: SampleError if a word names no column, or the key column, or one that the template of keys names, is
    missing; for two columns for one field; for a name that can't be a field.
    """
    words = choice.words
    key = choice.key_in(names) if choice.key is not None or choice.keys.columns else None
    names = [name for name in names if name != key]
    fold = str if words is None else str.lower
    hidden = [
        name for name in names if words is None and name.startswith("__") and name.endswith("__") and name != KEY_COLUMN
    ]
    if lost := " ".join(ChosenColumns(words, (), fold).missing_words(names)):
        raise SampleError(f"no column {lost}{comma_advice(lost)}; the columns are: {field_list(names)}")
    has_keys = choice.key is not None or choice.keys.columns
    words = words if has_keys else with_key_column(words, names)
    chosen = ChosenColumns(
        words, [*hidden, *[KEY_COLUMN] * bool(has_keys and words is None)], fold, skip_underscored=False
    )
    fields = []
    for place, field in chosen.choose({name: place for place, name in enumerate(names)}):
        try:
            if field == KEY_COLUMN:
                key = names[place]
            else:
                fields.append((names[place], make_path("k", field or "/")[1:]))
        except SampleError:
            raise SampleError(
                f"the column {field!r} can't be a field: -f names the columns to take, 'new=old' renames one"
            ) from None
    return key, fields


# ---- rows as fields that are added to samples ----


def field_rows(table: ParquetSource, rows: RowFormat) -> Iterator[tuple[Sequence[bytes], Sequence[bytes]]]:
    """Yield (keys, packed fields) of adjacent rows of *table*: for each row its key, and its fields as bytes.

    *rows*: which columns are the key and the fields, and where keys end. The bytes are marshalled pairs (field,
    payload). Null is no field. Bytes are payloads as they are; text, numbers and booleans are text, compressed in
    fields such as txt.gz; lists of numbers are .npy files of the column's type, other lists and objects JSON: their
    fields get .npy or .json behind their names, unless they end so. Each file of a list of pictures or sounds is a
    field of its own.

    Holds: a batch of BATCH_BYTES, or a row. Raises: SampleError for a column that is missing or there twice, two
    columns for one field, and, naming the row or the column, for a bad key or value; TarFormatError for a damaged file;
    StorageError.
    """
    url = table.url
    key = table.names[columnfields.key_column(table.names, rows.key, url)]
    columns = {name: place for place, name in enumerate(table.names) if name != key}
    columnfields.check_words(list(columns), rows, url)
    if len(set(table.names)) < len(table.names):
        twice = next(name for name in table.names if table.names.count(name) > 1)
        raise SampleError(f"two columns are called {twice!r}", url=url)
    try:
        chosen = [(table.names[place], field) for place, field in rows.chosen.choose(columns)]
    except SampleError as error:
        raise SampleError(error.message, url=url) from None
    first = 1
    for batch in read_small_batches(table, list(dict.fromkeys([key, *(name for name, _ in chosen)]))):
        arrays = {name: batch.column(number) for number, name in enumerate(batch.schema.names)}
        fields = [(field, _field_values(arrays[name], name, url, first)) for name, field in chosen]
        keys, values = [], []
        for number, name in enumerate(_field_values(arrays[key], key, url, first)):
            try:
                packed = pack_row(name, _row_fields(fields, number), rows.dots)
            except SampleError as error:
                raise SampleError(f"row {first + number}: {error.message}", url=url) from None
            keys.append(packed[0])
            values.append(packed[1])
        yield keys, values
        first += len(keys)


def _row_fields(fields: Sequence[tuple[str, Sequence[Any]]], number: int) -> Iterator[tuple[str, Any]]:
    """Yield (field, value) for the row *number*, from 0; *fields*: pairs (field, values of all rows).

    Each file of a list of pictures or sounds is a field of its own. A null is yielded as None.
    """
    for field, column in fields:
        value = column[number]
        if type(value) is list and value and type(value[0]) is FileInList:
            yield from ((file.field(field), file.payload) for file in value)
        else:
            yield field, value


def _field_values(column: Any, name: str, url: str, row: int) -> Sequence[Any]:
    """Return the value of each row of *column*, a `pyarrow.Array` called *name*; None for null.

    *row*: number of its first row in *url*, for messages. Lists of numbers are NumPy arrays; other values are bytes,
    text, numbers, booleans, lists, objects, or a list of FileInList that is not empty.
    Raises: SampleError for a null in a list of numbers, bytes inside of objects, a picture or sound that is only a
    path, and text that is not UTF-8.
    """
    column = plain_column(column)
    is_a, kind = schema.import_arrow().types, column.type
    if is_list_type(kind) and (is_a.is_integer(kind.value_type) or is_a.is_floating(kind.value_type)):
        return [_numpy_array(value, name, url) for value in column]
    return plain_field_values(column, name, url, row)


def plain_field_values(column: Any, name: str, url: str, row: int) -> Sequence[Any]:
    """Return the value of each row of *column*, a `pyarrow.Array` called *name*; None for null.

    *row*: number of its first row in *url*, for messages. Values are bytes, text (dates and times too), numbers,
    booleans, lists and objects. A picture or sound is its bytes; a list of pictures, sounds or bytes is a list of
    FileInList, or None if that is empty. Raises: SampleError for bytes inside of objects, a picture or sound that is
    only a path, and text that is not UTF-8.
    """
    column = plain_column(column)
    kind = column.type
    try:
        if is_list_of_files(kind):
            return [files or None for files in column_payloads(column, name, row)]
        if is_bytes_type(kind) or is_file_type(kind):
            return column_payloads(column, name, row)
        check_no_bytes(kind, name)
    except SampleError as error:
        place = f"row {error.offset}: " if error.offset is not None else ""
        raise SampleError(f"{place}{error.message}", url=url) from None
    try:
        return schema.plain_values(column)
    except UnicodeDecodeError:
        raise SampleError(f"column {name!r}: not all of it is UTF-8", url=url) from None


def _numpy_array(value: Any, name: str, url: str) -> Any:
    """Return *value*, a `pyarrow.ListScalar` of numbers, as an array of numpy; None for null.

    Raises: SampleError, naming *url* and the column *name*, if one of the numbers is null.
    """
    if not value.is_valid:
        return None
    if value.values.null_count:
        raise SampleError(f"column {name!r}: a list of numbers has a null in it", url=url)
    return value.values.to_numpy(zero_copy_only=False)
