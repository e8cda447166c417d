"""A table as a file: its columns, and its rows in batches."""

from __future__ import annotations

import io
from base64 import b64decode
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from tartools.errors import TarFormatError, TruncatedError
from tartools.tables import schema

FOOTER = 8  # bytes at the end: the size of the metadata, and `schema.MAGIC`
ENCRYPTED = b"PARE"  # in place of `schema.MAGIC`, the first and the last bytes
NEEDED = (schema.SHARD, schema.BEGIN, schema.END)
ROWS = 1 << 13  # read from a table at a time


class ParquetSource:
    """The table *url*, opened. `names` are its columns, `rows` is how many it has, `parquet` is pyarrow's *file*.

    *what* it is, a "table" or another word, is for messages.
    """

    def __init__(self, url: str, file: io.BufferedReader, parquet: Any, what: str) -> None:
        self.url = url
        self.file = file
        self.parquet = parquet
        self._what = what
        self.names: list[str] = parquet.schema_arrow.names
        self.rows: int = parquet.metadata.num_rows

    def check_names(self) -> None:
        """Raise TarFormatError if the names of columns are not those of the copy of the schema that Arrow adds.

        Names have no checksum, and with a changed one a file is sound by its format.
        """
        with _arrow_errors(self.url, self._what):
            about = (self.parquet.metadata.metadata or {}).get(b"ARROW:schema")
            if about is None:
                return
            pa = schema.arrow()
            copy = pa.ipc.read_schema(pa.py_buffer(b64decode(about)))
            same = _names(copy) == _names(self.parquet.schema_arrow)
        if not same:
            raise self.failure("it has two names for one column")

    def failure(self, what: str) -> TarFormatError:
        """Return the failure of the metadata: *what* is wrong with them."""
        return TarFormatError(f"this {self._what} is damaged: {what}", url=self.url, offset=metadata_begin(self.file))

    @cached_property
    def fields(self) -> list[str] | None:
        """The fields that samples may have; None if not known."""
        found = self.parquet.schema_arrow
        if schema.MEMBERS not in found.names:
            return None
        kind = found.field(found.names.index(schema.MEMBERS)).type
        if not schema.arrow().types.is_struct(kind) or not all(schema.is_place(field.type) for field in kind):
            return None
        fields = [field.name for field in kind]
        return fields if len(fields) < schema.MOST_FIELDS and "\ufffd" not in "".join(fields) else None

    def batches(
        self, columns: Sequence[str], most: int = ROWS, groups: Sequence[int] | None = None
    ) -> Generator[Any, None, None]:
        """Yield those of *columns* that the table has, in record batches of up to *most* rows, in order.

        Only those of the row groups *groups*, if they are given.

        Holds: a row group of these columns. Raises: TarFormatError if the table is damaged.
        """
        wanted = [name for name in columns if name in self.names]
        expected = self.rows
        if groups is not None:
            expected = sum(self.parquet.metadata.row_group(group).num_rows for group in groups)
        found = 0
        with _arrow_errors(self.url, self._what):
            for batch in self.parquet.iter_batches(most, columns=wanted, row_groups=groups, use_threads=False):
                found += len(batch)
                if len(batch) and found <= expected:
                    batch.validate(full=True)  # a damaged table may have text and numbers that crash who uses them
                    yield batch
        if found != expected and wanted:
            raise TarFormatError(f"this {self._what} is damaged: it has {found} of {expected} rows", url=self.url)

    def slices(self, columns: Sequence[str], rows: range) -> Iterator[tuple[int, Any]]:
        """Yield *columns* of the rows with the numbers *rows*, in record batches with the number of their first row.

        Other row groups are not read. Raises: TarFormatError.
        """
        for group, first, count in self.groups():
            if first < rows.stop and first + count > rows.start:
                for batch in self.batches(columns, groups=[group]):
                    low, high = max(0, rows.start - first), min(len(batch), rows.stop - first)
                    if low < high:
                        yield first + low, batch.slice(low, high - low)
                    first += len(batch)

    def groups(self) -> Iterator[tuple[int, int, int]]:
        """Yield number, first row and number of rows of each row group."""
        first = 0
        about = self.parquet.metadata
        for group in range(about.num_row_groups):
            count = about.row_group(group).num_rows
            yield group, first, count
            first += count

    def read(self, columns: Sequence[str] | None) -> Any:
        """Return *columns*, None for all, of all rows, as a `pyarrow.Table`. Raises: TarFormatError."""
        with _arrow_errors(self.url, self._what):
            found = self.parquet.read(columns=columns)
            found.validate(full=True)
            return found


def _names(fields: Any) -> list[Any]:
    """Return the names of *fields*, each with those in it if it is a struct."""
    is_struct = schema.arrow().types.is_struct
    return [(each.name, _names(each.type) if is_struct(each.type) else []) for each in fields]


@contextmanager
def opened(url: str, file: io.BufferedReader | None = None) -> Iterator[ParquetSource]:
    """Give the table *url*, whose bytes *file* has if it is open already; *file* is closed at the end.

    Raises: StorageError without pyarrow, or if *url* can't be read; TarFormatError if it is damaged or no table.
    """
    with opened_any(url, file) as found:
        lacking = [name for name in NEEDED if name not in found.names]
        if lacking:
            raise TarFormatError(
                f"this Parquet file is not a table of samples: it has no column {lacking[0]} "
                "(tarcreate --parquet makes samples of its rows; tarindex makes a table of shards)",
                url=url,
            )
        if twice := next((name for name, count in Counter(found.names).items() if count > 1), None):
            raise TarFormatError(f"this table has two columns with the name {twice}", url=url)
        yield found


@contextmanager
def opened_any(
    url: str, file: io.BufferedReader | None = None, what: str = "table", buffer: int = 0
) -> Iterator[ParquetSource]:
    """Give the Parquet file *url*, whether it lists samples or not, as `opened` does. Messages say *what* it is.

    With *buffer*, a column is read in pieces of so many bytes, not all of a row group at once.
    """
    from tartools.storage import seekable  # and what servers need

    pa = schema.arrow()
    with file or seekable.seekable(url) as opened:
        try:
            with _arrow_errors(url, what):
                parquet = pa.parquet.ParquetFile(
                    opened,
                    buffer_size=buffer,
                    pre_buffer=False,  # threads that read end the process badly
                    page_checksum_verification=True,
                )
        except TarFormatError as error:
            raise _failure(opened, url, what, error) from error
        with parquet:
            yield ParquetSource(url, opened, parquet, what)


def _failure(file: io.BufferedReader, url: str, what: str, error: TarFormatError) -> TarFormatError:
    """Return the failure of *file*, a *what* that pyarrow does not open because of *error*, with its byte."""
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    if file.read(len(schema.MAGIC)) not in (schema.MAGIC, ENCRYPTED):
        return TarFormatError("this is not a Parquet file: it does not begin as one", url=url, offset=0)
    file.seek(max(len(schema.MAGIC), size - len(schema.MAGIC)))
    if file.read() not in (schema.MAGIC, ENCRYPTED):
        return TruncatedError(f"this {what} was cut: its end is missing", url=url, offset=size)
    return TarFormatError(error.message, url=url, offset=metadata_begin(file))


def metadata_begin(file: io.BufferedReader) -> int:
    """Return the byte of a Parquet *file* at which its metadata begin; that of their size, if that is wrong."""
    place = file.seek(-FOOTER, io.SEEK_END)
    begin = place - int.from_bytes(file.read(4), "little")
    return begin if begin > 0 else place


@contextmanager
def _arrow_errors(url: str, what: str) -> Iterator[None]:
    """Turn what pyarrow raises for a damaged file, a *what*, into a TarFormatError."""
    pa = schema.arrow()
    try:
        yield
    except (pa.ArrowException, EOFError, UnicodeDecodeError, OSError) as error:
        if getattr(error, "errno", None) is not None or isinstance(error, MemoryError):
            raise
        raise TarFormatError(f"this {what} is damaged: {str(error).splitlines()[0]}", url=url) from error
