"""Write rows to a table, which appears under its name when it is complete."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tartools import storage
from tartools.samples.batch import Label
from tartools.storage.streams import Sink
from tartools.tables import schema
from tartools.tables.catalog import ShardCatalog
from tartools.tables.inputs import extents_of_unified, table_rows, table_schema

if TYPE_CHECKING:
    from tartools.storage.checksums import OutputSums

ROW_WEIGHT_BYTES = 32  # bytes of memory for a row that is held
SMALL_BATCHES = 256  # record batches that are held before they are joined


class RowBatch:
    """Some *rows*, a record batch of the unified schema, with the methods of `samples.batch.Batch` that writing needs.

    *numbers*: the row number of each, an array, for messages; None if they have none.
    """

    def __init__(self, rows: Any, numbers: Any = None) -> None:
        self.rows = rows
        self.numbers = numbers
        extents = extents_of_unified(rows.select(schema.extent_columns(rows.schema.names)), 0, None)
        self._ends = extents.bounds()[1:]  # bytes of archives with the first, the first two ... samples

    def __len__(self) -> int:
        return len(self.rows)

    def size(self, first: int, last: int) -> int:
        """Return the bytes that samples *first* to *last* (exclusive, more than *first*) take in an archive."""
        return int(self._ends[last - 1]) - (int(self._ends[first - 1]) if first else 0)

    @property
    def keys(self) -> list[bytes]:
        """The keys of the samples, None for null; [] without a column of keys."""
        has_keys = schema.KEY_COLUMN in self.rows.schema.names
        return schema.encode_texts(self.rows.column(schema.KEY_COLUMN)).to_pylist() if has_keys else []

    def memory_size(self, first: int, last: int) -> int:
        """Return the bytes that rows *first* to *last* (exclusive) take in memory, by estimate: 32 a row."""
        return ROW_WEIGHT_BYTES * (last - first)

    def split(
        self, labels: Sequence[Label], skipped: Label | None = None
    ) -> Iterator[tuple[Label, RowBatch, int, int]]:
        """Yield (label, batch, 0, number of its rows), one batch for each label, in order of appearance.

        *labels*: one for each row; rows with one label need not be adjacent, and keep their order. *skipped*: label of
        rows to leave out; if it is None, rows with the label None are left out.
        """
        import numpy as np

        codes: dict[Label, int] = {}
        label_codes = np.fromiter((codes.setdefault(label, len(codes)) for label in labels), np.int32, len(labels))
        for label, code in codes.items():
            if label != skipped:
                indexes = np.flatnonzero(label_codes == code)
                numbers = None if self.numbers is None else self.numbers[indexes]
                part = (
                    self
                    if len(indexes) == len(self)
                    else RowBatch(self.rows.take(schema.import_arrow().array(indexes)), numbers)
                )
                yield label, part, 0, len(part)

    def count_fitting(self, first: int, max_bytes: int) -> int:
        """Return how many samples, from number *first* on, fit into *max_bytes* of an archive; it may be 0."""
        before = int(self._ends[first - 1]) if first else 0
        return int(self._ends[first:].searchsorted(before + max_bytes, "right"))


class SinkFile:
    """A file object for pyarrow that writes to *sink*. `written`: bytes so far. `closed`: True if writes are discarded.

    The caller closes it after an error: pyarrow writes the end of the file whenever its writer is deleted.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.closed = False
        self.written = 0

    def write(self, data: bytes) -> int:
        """Write *data* to the sink, unless closed; return its length in any case. Raises: the errors of the sink."""
        if not self.closed:
            self._sink.write(data)
            self.written += len(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing: nothing is held here."""

    def close(self) -> None:
        """Discard all further writes."""
        self.closed = True


class TableContent(Protocol):
    """The facts about all rows that a `TableWriter` needs before the first row, such as `RowInputs` has them.

    `schema`: the unified schema of the rows. `catalog`: the shards that they name, by number.
    """

    schema: Any  # unified
    catalog: ShardCatalog  # of the shards that the rows name


class TableWriter:
    """Writes the table *url*: `write_batch` adds rows, in any order; then `commit` or `abort`.

    *rows*: schema of the rows, and the shards that they name.
    `samples`: rows added so far. `size`: bytes that these samples take in an archive, without its end.
    `output`: the open output, for `storage.sync`.
    *sums*: gets the checksum of the table once it has appeared.
    Names of shards are relative to the table if both can be moved together. Holds: a row group of 65,536 rows.
    Raises: StorageError without pyarrow, or if *url* exists, unless *force*, or can't be written; UsageError if it
    can't be an output, or with *sums* if it is a command or the list itself.
    """

    def __init__(self, url: str, force: bool, rows: TableContent, sums: OutputSums | None = None) -> None:
        pa = schema.import_arrow()
        self.url = url
        self._shards = rows.catalog
        self._folder = schema.folder_of(url)
        self._columns = rows.schema
        self._waiting: list[Any] = []  # record batches of the next row group, the first of them joined
        self._joined = 0  # how many are
        self._count = 0  # rows held
        self._finished = False
        self.samples = 0
        self.size = 0  # bytes of the tar that the samples would be, without its end
        full_schema = table_schema(rows.schema)
        values = [name for name in full_schema.names if not name.startswith("__")]
        shards = [schema.name_in_set(schema.SHARD_COLUMN, number) for number in schema.sets_in(full_schema.names)]
        if sums:
            sums.check_output(url)
        self.output = storage.open_write(url, force)  # `storage.sync` takes it
        self._hashed = sums.hash_sink(url, self.output.sink) if sums else None
        self._file = SinkFile(self._hashed or self.output.sink)
        try:
            self._parquet = pa.parquet.ParquetWriter(
                pa.PythonFile(self._file, "w"),
                full_schema,
                compression="zstd",
                write_statistics=[*shards, *values],
                write_page_checksum=True,
            )
        except BaseException:
            self.abort()
            raise

    @property
    def bytes_written(self) -> int:
        """Bytes of the table so far; rows that wait for the next row group are not counted."""
        return self._file.written

    def write_batch(self, batch: Any, first: int, last: int) -> None:
        """Add the rows *first* to *last* (exclusive, more than *first*) of *batch*, a `RowBatch`.

        They are written once 65,536 rows wait, or by `flush`. Raises: StorageError if the table can't be written, or
        may not name a shard.
        """
        self._waiting.append(batch.rows.slice(first, last - first))
        self._count += last - first
        self.samples += last - first
        self.size += batch.size(first, last)
        while self._count >= schema.ROW_GROUP_ROWS:
            self._write_row_group(schema.ROW_GROUP_ROWS)
        if len(self._waiting) - self._joined >= SMALL_BATCHES:
            self._join_batches()

    def _join_batches(self) -> None:
        """Join the record batches that were added last, which are small, into one, since each takes 9 KB."""
        joined = schema.import_arrow().Table.from_batches(self._waiting[self._joined :], self._columns).combine_chunks()
        self._waiting[self._joined :] = joined.to_batches()
        self._joined = len(self._waiting)

    def _write_row_group(self, count: int) -> None:
        """Write a row group of the first *count* waiting rows; the others wait on.

        Raises: StorageError if the table can't be written, or may not name a shard.
        """
        rows = schema.import_arrow().Table.from_batches(self._waiting, self._columns)
        self._parquet.write_table(table_rows(rows.slice(0, count), self._shard))
        self._waiting = rows.slice(count).to_batches()
        self._joined = 0
        self._count -= count

    def _shard(self, number: int) -> tuple[str, str | None]:
        """Return the name in the table, and the version, of the shard *number*.

        Raises: StorageError if the table may not name it.
        """
        url, version = self._shards.shard(number)
        name = schema.relative_name(url, self._folder)
        schema.check_names([name], self._folder)
        return name, version

    def flush(self) -> None:
        """Write the waiting rows, if there are any, as a row group that is smaller than others.

        Raises: StorageError if the table can't be written, or may not name a shard.
        """
        if self._count:
            self._write_row_group(self._count)

    def finish(self) -> None:
        """Write the waiting rows and the end of the table; only `commit` or `abort` may follow.

        Raises: StorageError if it can't be written, or may not name a shard.
        """
        self.flush()
        self._parquet.close()
        self._finished = True

    def commit(self) -> None:
        """Finish the table, if it is not, and let it appear under its name; then add its checksum to *sums*.

        Raises: StorageError if it can't be written, may not name a shard, or if *url* exists by now, unless *force*.
        """
        if not self._finished:
            self.finish()
        self.output.commit()
        if self._hashed:
            self._hashed.record()

    def abort(self, *, flush: bool = True) -> None:
        """Drop the table: no file appears, and one that existed stays. *flush* has no effect: it is for shards."""
        self._file.close()
        self.output.abort()
