"""Rows to a table, which appears under its name when it is complete."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tartools import storage
from tartools.samples.sample import Label
from tartools.storage.streams import Sink
from tartools.tables import schema
from tartools.tables.inputs import RowInputs, table_rows, table_schema

WEIGHT = 32  # bytes of memory for a row that is held
SMALL_BATCHES = 256  # record batches that are held before they are joined


class RowBatch:
    """Some *rows* of the unified schema, in place of the samples that they list: see `samples.sample.Batch`.

    *numbers* are theirs, for messages.
    """

    def __init__(self, rows: Any, numbers: Any = None) -> None:
        import numpy as np

        self.rows = rows
        self.numbers = numbers
        sizes = (np.asarray(rows.column(name)).astype(np.int64) for name in (schema.END, schema.BEGIN))
        self._ends = np.cumsum(next(sizes) - next(sizes))  # of archives with the first, the first two ... samples

    def __len__(self) -> int:
        return len(self.rows)

    def size(self, first: int, last: int) -> int:
        """Return the bytes that samples *first* to *last* - 1 fill in an archive."""
        return int(self._ends[last - 1]) - (int(self._ends[first - 1]) if first else 0)

    @property
    def keys(self) -> list[bytes]:
        """The keys of the samples; none if there is no column for them."""
        named = schema.KEY in self.rows.schema.names
        return schema.raw(self.rows.column(schema.KEY)).to_pylist() if named else []

    def weight(self, first: int, last: int) -> int:
        """Return the bytes that rows *first* to *last* (exclusive) may take in memory."""
        return WEIGHT * (last - first)

    def apart(
        self, labels: Sequence[Label], skipped: Label | None = None
    ) -> Iterator[tuple[Label, RowBatch, int, int]]:
        """As `samples.sample.Batch.apart`, but one run for each label: rows can be moved together."""
        import numpy as np

        codes: dict[Label, int] = {}
        of = np.fromiter((codes.setdefault(label, len(codes)) for label in labels), np.int32, len(labels))
        for label, code in codes.items():
            if label != skipped:
                some = np.flatnonzero(of == code)
                numbers = None if self.numbers is None else self.numbers[some]
                part = self if len(some) == len(self) else RowBatch(self.rows.take(schema.arrow().array(some)), numbers)
                yield label, part, 0, len(part)

    def fitting(self, first: int, room: int) -> int:
        """Return how many samples, from number *first* on, fit into *room* bytes of an archive."""
        before = int(self._ends[first - 1]) if first else 0
        return int(self._ends[first:].searchsorted(before + room, "right"))


class SinkFile:
    """What pyarrow writes to: *sink*, until it is `closed`, and the count of bytes `written`.

    After a failure it is closed first: pyarrow writes the end of a file whenever its writer is dropped.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.closed = False
        self.written = 0

    def write(self, data: bytes) -> int:
        """Add *data*."""
        if not self.closed:
            self._sink.write(data)
            self.written += len(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing: nothing is held here."""

    def close(self) -> None:
        """Drop what is written from now on."""
        self.closed = True


class TableWriter:
    """Writes the table *url*: rows of *rows*, some of them or all, in any order.

    Names of shards are relative to the table where both can be moved together. Holds: a row group of 65,536 rows.
    Raises: StorageError if *url* exists, unless *force*, or can't be written.
    """

    def __init__(self, url: str, force: bool, rows: RowInputs) -> None:
        pa = schema.arrow()
        self.url = url
        self._shards = rows.shards
        self._folder = schema.folder_of(url)
        self._columns = rows.schema
        self._held: list[Any] = []  # record batches of the next row group, the first of them joined
        self._joined = 0  # how many are
        self._count = 0  # rows held
        self._finished = False
        self.samples = 0
        self.size = 0  # bytes of the tar that the samples would be, without its end
        whole = table_schema(rows.schema)
        values = [name for name in whole.names if not name.startswith("__")]
        self.output = storage.open_write(url, force)  # `storage.sync` takes it
        self._file = SinkFile(self.output.sink)
        try:
            self._parquet = pa.parquet.ParquetWriter(
                pa.PythonFile(self._file, "w"),
                whole,
                compression="zstd",
                write_statistics=[schema.SHARD, *values],
                write_page_checksum=True,
            )
        except BaseException:
            self.abort()
            raise

    @property
    def written(self) -> int:
        """Bytes of the table so far."""
        return self._file.written

    def write_batch(self, batch: Any, first: int, last: int) -> None:
        """Add the rows *first* to *last* - 1 of *batch*, a `RowBatch`. Raises: StorageError, as all others do."""
        self._held.append(batch.rows.slice(first, last - first))
        self._count += last - first
        self.samples += last - first
        self.size += batch.size(first, last)
        while self._count >= schema.ROW_GROUP:
            self._write_held(schema.ROW_GROUP)
        if len(self._held) - self._joined >= SMALL_BATCHES:
            self._join_batches()

    def _join_batches(self) -> None:
        """Join the record batches that are not joined yet: there is one for each shard, which takes 9 KB."""
        joined = schema.arrow().Table.from_batches(self._held[self._joined :], self._columns).combine_chunks()
        self._held[self._joined :] = joined.to_batches()
        self._joined = len(self._held)

    def _write_held(self, count: int) -> None:
        """Write a row group of the first *count* rows held."""
        held = schema.arrow().Table.from_batches(self._held, self._columns)
        self._parquet.write_table(table_rows(held.slice(0, count), self._shard))
        self._held = held.slice(count).to_batches()
        self._joined = 0
        self._count -= count

    def _shard(self, number: int) -> tuple[str, str | None]:
        """Return name and version of the shard *number*. Raises: StorageError if the table can't list it."""
        url, version = self._shards.shard(number)
        name = schema.relative(url, self._folder)
        schema.check_names([name], self._folder)
        return name, version

    def flush(self) -> None:
        """Write the rows held, as a row group that is smaller than others. Raises: StorageError."""
        if self._count:
            self._write_held(self._count)

    def finish(self) -> None:
        """Write the rest of the table; only `commit` may follow. Raises: StorageError."""
        self.flush()
        self._parquet.close()
        self._finished = True

    def commit(self) -> None:
        """Write the rest of the table, unless `finish` has, and let it appear under its name. Raises: StorageError."""
        if not self._finished:
            self.finish()
        self.output.commit()

    def abort(self, *, flush: bool = True) -> None:
        """Drop the table: no file appears."""
        self._file.close()
        self.output.abort()
