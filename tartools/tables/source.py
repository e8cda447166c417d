"""Parquet files: opening a table, its columns, and its rows in batches."""

from __future__ import annotations

import binascii
import io
from base64 import b64decode
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from tartools.errors import TarFormatError, TruncatedError
from tartools.storage.outputformats import PARQUET_MAGIC
from tartools.tables import schema

FOOTER_BYTES = 8  # bytes at the end: the size of the metadata, and `PARQUET_MAGIC`
ENCRYPTED_MAGIC = b"PARE"  # in place of `PARQUET_MAGIC`, the first and the last bytes
REQUIRED_COLUMNS = (schema.SHARD_COLUMN, schema.BEGIN_COLUMN, schema.END_COLUMN)
TABLE_READ_ROWS = 1 << 13  # read from a table at a time


class ParquetSource:
    """The Parquet file *url*, opened by `open_table` or `open_parquet`, which close it too.

    *noun*: "table", or another noun for messages.
    `file`: the open file.
    `parquet`: its `ParquetFile`, of pyarrow.
    `names`: of the columns.
    `rows`: number of rows.
    """

    def __init__(self, url: str, file: io.BufferedReader, parquet: Any, noun: str) -> None:
        self.url = url
        self.file = file
        self.parquet = parquet
        self._noun = noun
        self.names: list[str] = parquet.schema_arrow.names
        self.rows: int = parquet.metadata.num_rows

    def check_names(self) -> None:
        """Raise TarFormatError if names of columns differ from the copy of the schema that Arrow writes.

        Names of the fields of structs are compared, too, unless these are in lists. Names have no checksum: a file with
        a changed name is valid. A file without that copy passes. Raises: TarFormatError, too, for a damaged copy.
        """
        with _arrow_errors(self.url, self._noun):
            encoded = (self.parquet.metadata.metadata or {}).get(b"ARROW:schema")
            if encoded is None:
                return
            pa = schema.import_arrow()
            copy = pa.ipc.read_schema(pa.py_buffer(b64decode(encoded)))
            same = _column_names(copy) == _column_names(self.parquet.schema_arrow)
        if not same:
            raise self.failure("it has two names for one column")

    def failure(self, reason: str) -> TarFormatError:
        """Return the error that the metadata of the file are damaged, with *reason* and their offset."""
        return TarFormatError(f"this {self._noun} is damaged: {reason}", url=self.url, offset=metadata_begin(self.file))

    @cached_property
    def fields(self) -> list[str] | None:
        """The fields that samples may have, in all sets of shards; None if the table does not list them all."""
        by_set = [schema.listed_fields(self.parquet.schema_arrow, number) for number in schema.sets_in(self.names)]
        return None if None in by_set else list(dict.fromkeys(name for names in by_set for name in names or ()))

    def batches(
        self, columns: Sequence[str], max_rows: int = TABLE_READ_ROWS, groups: Sequence[int] | None = None
    ) -> Generator[Any, None, None]:
        """Yield record batches of up to *max_rows* rows, in order, with the *columns* that the file has.

        *groups*: numbers of the row groups to read; None: all. Columns that the file lacks are left out.

        Holds: a row group of these columns. Raises: TarFormatError if the file is damaged; the errors of reading it.
        """
        selected = [name for name in columns if name in self.names]
        expected = self.rows
        if groups is not None:
            expected = sum(self.parquet.metadata.row_group(group).num_rows for group in groups)
        count = 0
        with _arrow_errors(self.url, self._noun):
            for batch in self.parquet.iter_batches(max_rows, columns=selected, row_groups=groups, use_threads=False):
                count += len(batch)
                if len(batch) and count <= expected:
                    batch.validate(full=True)  # a damaged table may have text and numbers that crash who uses them
                    yield batch
        if count != expected and selected:
            raise TarFormatError(f"this {self._noun} is damaged: it has {count} of {expected} rows", url=self.url)

    def slices(self, columns: Sequence[str], rows: range) -> Iterator[tuple[int, Any]]:
        """Yield (row number, record batch) with *columns* of the rows with numbers *rows*, a range without a step.

        The row number is the number of the first row of the batch. Columns and rows that do not exist are left out; row
        groups before and after *rows* are not read. Raises: TarFormatError if the file is damaged; the errors of
        reading it.
        """
        for group, first, count in self.groups():
            if first < rows.stop and first + count > rows.start:
                for batch in self.batches(columns, groups=[group]):
                    low, high = max(0, rows.start - first), min(len(batch), rows.stop - first)
                    if low < high:
                        yield first + low, batch.slice(low, high - low)
                    first += len(batch)

    def groups(self) -> Iterator[tuple[int, int, int]]:
        """Yield (number of the row group, number of its first row, count of its rows), in order."""
        first = 0
        metadata = self.parquet.metadata
        for group in range(metadata.num_row_groups):
            count = metadata.row_group(group).num_rows
            yield group, first, count
            first += count

    def read(self, columns: Sequence[str] | None) -> Any:
        """Return *columns*, None for all, of all rows, as a `pyarrow.Table`; columns that the file lacks are left out.

        Raises: TarFormatError if the file is damaged; the errors of reading it.
        """
        with _arrow_errors(self.url, self._noun):
            # a thread of pyarrow that still holds this file aborts a process that ends meanwhile
            rows = self.parquet.read(columns=columns, use_threads=False)
            rows.validate(full=True)
            return rows


def _column_names(fields: Any) -> list[Any]:
    """Return (name, names of its own fields) for each of *fields*, of an Arrow schema or struct type.

    The names of its own fields are such a list, too; [] if it is no struct.
    """
    is_struct = schema.import_arrow().types.is_struct
    return [(field.name, _column_names(field.type) if is_struct(field.type) else []) for field in fields]


@contextmanager
def open_table(url: str, file: io.BufferedReader | None = None) -> Iterator[ParquetSource]:
    """Open the table *url*, or its open *file*, for the body of `with`; the file is closed at its end.

    *url*: with *file*, only for messages. Raises: StorageError without pyarrow (then *file* stays open), or if *url*
    can't be read; OSError if *file*, or a local file after it was opened, can't be read; TarFormatError if it is
    damaged, not a table, or has two columns with one name; its subclass TruncatedError if its end is missing.
    """
    with open_parquet(url, file) as parquet:
        missing = [name for name in REQUIRED_COLUMNS if name not in parquet.names]
        if missing:
            raise TarFormatError(
                f"this Parquet file is not a table of samples: it has no column {missing[0]} "
                "(tarcreate --parquet makes samples of its rows; tarindex makes a table of shards)",
                url=url,
            )
        if repeated := next((name for name, count in Counter(parquet.names).items() if count > 1), None):
            raise TarFormatError(f"this table has two columns with the name {repeated}", url=url)
        yield parquet


@contextmanager
def open_parquet(
    url: str, file: io.BufferedReader | None = None, noun: str = "table", buffer: int = 0
) -> Iterator[ParquetSource]:
    """Open the Parquet file *url*, a table of samples or not, or its open *file*, for the body of `with`.

    *url*: with *file*, only for messages. *noun*: for the file, in messages. *buffer*: bytes of a column to read at
    once; 0: all of a row group. The file is closed at the end, also if it is no Parquet file. Raises: StorageError
    without pyarrow (then *file* stays open), or if *url* can't be read; OSError if *file*, or a local file after it was
    opened, can't be read; TarFormatError if it is no Parquet file, or damaged; its subclass TruncatedError if its end
    is missing.
    """
    from tartools.storage import seekable  # and what servers need

    pa = schema.import_arrow()
    with file or seekable.open_seekable(url) as open_file:
        try:
            with _arrow_errors(url, noun):
                parquet = pa.parquet.ParquetFile(
                    open_file,
                    buffer_size=buffer,
                    pre_buffer=False,  # threads that read end the process badly
                    page_checksum_verification=True,
                )
        except TarFormatError as error:
            raise _open_error(open_file, url, noun, error) from error
        with parquet:
            yield ParquetSource(url, open_file, parquet, noun)


def _open_error(file: io.BufferedReader, url: str, noun: str, error: TarFormatError) -> TarFormatError:
    """Return the error for the *file* that pyarrow can't open because of *error*: no Parquet, truncated, or damaged.

    If it is damaged, the message is that of *error*. *url*: of the file; *noun*: the noun for it in messages.
    """
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    if file.read(len(PARQUET_MAGIC)) not in (PARQUET_MAGIC, ENCRYPTED_MAGIC):
        return TarFormatError("this is not a Parquet file: it does not begin as one", url=url, offset=0)
    file.seek(max(len(PARQUET_MAGIC), size - len(PARQUET_MAGIC)))
    if file.read() not in (PARQUET_MAGIC, ENCRYPTED_MAGIC):
        return TruncatedError(f"this {noun} is truncated: its end is missing", url=url, offset=size)
    return TarFormatError(error.message, url=url, offset=metadata_begin(file))


def metadata_begin(file: io.BufferedReader) -> int:
    """Return the offset of the metadata in a Parquet *file*, from the field with their size near its end.

    If that size is more than the file has, return the offset of the field. *file*: of 8 bytes or more.
    """
    place = file.seek(-FOOTER_BYTES, io.SEEK_END)
    begin = place - int.from_bytes(file.read(4), "little")
    return begin if begin > 0 else place


@contextmanager
def _arrow_errors(url: str, noun: str) -> Iterator[None]:
    """For the body of `with`: turn errors of pyarrow about a damaged file into a TarFormatError with *url*.

    These are ArrowException, EOFError, UnicodeDecodeError, binascii.Error, and OSError without an errno; a lack of
    memory, and an error of the system, are raised as they are. *noun*: the word for the file in the message.
    """
    pa = schema.import_arrow()
    try:
        yield
    except (pa.ArrowException, EOFError, UnicodeDecodeError, binascii.Error, OSError) as error:
        if getattr(error, "errno", None) is not None or isinstance(error, MemoryError):
            raise
        raise TarFormatError(f"this {noun} is damaged: {str(error).splitlines()[0]}", url=url) from error
