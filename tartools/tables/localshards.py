"""Local shards: the bytes of the samples that rows list."""

from __future__ import annotations

import io
import os
import resource
from collections.abc import Generator, Iterator
from functools import partial

from tartools import storage
from tartools.errors import StorageError
from tartools.storage.openfiles import OPEN_FILES, OpenFileCache
from tartools.storage.streams import FileVersion, check_input_file, size_of
from tartools.tables.catalog import ShardCatalog
from tartools.tables.extents import Extents, SampleBytes

SMALL_SAMPLES_BYTES = 1 << 22  # bytes of small samples that are read together
MAX_RUN_BYTES = 1 << 18  # bytes; samples side by side in a file that are more than these are read as one piece
MAX_WALKED_BYTES = 1 << 16  # bytes; of a larger sample that lies alone only the headers are read


class LocalShards:
    """Reads samples from the local shards of *catalog*: `read` in parts, `read_all` at once. Several threads may read.

    *ranges*: True if payloads may stay unread in the file. *sources*: data sets that are read at the same time.
    `open_files`: cache of the open shards. `max_shards`: how many shards one read may use at once.
    Holds: 128 open files, fewer if it is one of several *sources*, or under a low limit of the system; during a read
    up to `max_shards`, if that is more.
    """

    def __init__(self, catalog: ShardCatalog, ranges: bool, sources: int) -> None:
        max_files = min(OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2 or 2)
        self.open_files = OpenFileCache(max(max_files // sources, 2))
        self.max_shards = max(max_files // 2, 1)  # shards of which samples are read at once
        self._catalog = catalog
        self._ranges = ranges

    def read(self, rows: Extents) -> Generator[SampleBytes, None, None]:
        """Yield the bytes of the samples of *rows*, in order, in parts.

        *rows*: at least one. Samples side by side in a shard that have up to 256 KiB together (MAX_RUN_BYTES) come in
        memory, larger ones as streams of the file; with *ranges* also a sample above 64 KiB that lies alone. Samples
        with parts in several sets come in memory.
        Raises: RowError if a shard can't be opened, has another version than in the table, or is truncated;
        StorageError if it changes meanwhile, which a stream raises when it is read; OSError if reading fails.
        """
        import numpy as np

        if rows.others:
            yield from self._read_small(rows)
            return
        edges = np.append(rows.runs(), len(rows))
        sizes = rows.ends[edges[1:] - 1] - rows.begins[edges[:-1]]
        large = sizes > MAX_RUN_BYTES
        if self._ranges:
            large |= (sizes > MAX_WALKED_BYTES) & (np.diff(edges) == 1)
        low = 0
        for run in np.flatnonzero(large).tolist():
            begin, end = int(edges[run]), int(edges[run + 1])
            if low < begin:
                yield from self._read_small(rows.part(low, begin))
            yield self._adjacent(rows.part(begin, end))
            low = end
        if low < len(rows):
            yield from self._read_small(rows.part(low, len(rows)))

    def _adjacent(self, rows: Extents) -> SampleBytes:
        """Return the samples of *rows*, which are adjacent in one file, as streams of that file.

        Raises: RowError if the file can't be opened, has another version than in the table, or ends before they do;
        StorageError if a shard that leaves the cache has changed. The streams raise StorageError if the file changes.
        """
        file = self.open_shard(rows, 0)
        bounds = [*rows.begins.tolist(), int(rows.ends[-1])]
        if size_of(file) < bounds[-1]:
            raise self.truncated_error(rows)
        return SampleBytes(rows, bounds, lambda index: FileSpan(file, bounds[index]))

    def _read_small(self, rows: Extents) -> Iterator[SampleBytes]:
        """Yield the samples of *rows*, which are small, in memory, up to 4 MiB at a time (SMALL_SAMPLES_BYTES).

        A sample above 4 MiB comes alone. The next part overwrites the memory. *rows*: at least one. Raises: RowError if
        a shard can't be opened, has another version than in the table, or is truncated; StorageError if it changes
        meanwhile; OSError if reading fails.
        """
        largest = max(SMALL_SAMPLES_BYTES, int(rows.sizes.max()))  # a larger sample is a window of its own
        buffer = memoryview(bytearray(min(rows.size, largest)))  # for all of them, since the reader copies
        for part in rows.windows(SMALL_SAMPLES_BYTES):
            data = self.read_all(part, buffer)
            if data is None:
                raise self.truncated_error(part)
            yield SampleBytes.in_memory(part, data)

    def read_all(self, rows: Extents, buffer: memoryview | None) -> bytes | memoryview | None:
        """Return the bytes of the samples of *rows*, at least one, joined in order; None if a shard is truncated.

        None, too, if more than 2 GiB of one shard are adjacent. *buffer*: where to read them, as large as all the
        samples or larger: the result is the part of it that they fill; None: new bytes. The parts of a sample in
        several sets are joined, too; without any part in *rows* the result is b"". Raises: RowError if a shard can't be
        opened, or has another version than in the table; StorageError if one changes meanwhile; OSError if reading
        fails.
        """
        import numpy as np

        rows = rows.parts
        if not len(rows):  # all parts of these samples are in other sets, on servers
            return b""
        first = rows.runs()
        last = np.append(first[1:], len(rows)) - 1
        row_numbers = rows.first + first if rows.rows is None else rows.rows[first]
        runs = Extents(rows.first, rows.numbers[first], rows.begins[first], rows.ends[last], None, row_numbers)
        begins, sizes = runs.begins.tolist(), (runs.ends - runs.begins).tolist()
        step = len(runs) if len(set(runs.numbers.tolist())) <= self.max_shards else self.max_shards
        parts: list[bytes] = []
        bytes_read = 0
        for low in range(0, len(runs), step):
            chunk = slice(low, low + step)
            files = self.open_shards(runs, low, min(low + step, len(runs)))
            if buffer is None:
                parts.append(self.open_files.read(files, begins[chunk], sizes[chunk]))
            else:
                bytes_read += self.open_files.read_into(files, begins[chunk], sizes[chunk], buffer[bytes_read:])
            for file in set(files):
                check_input_file(file)
        if buffer is not None:
            return buffer[:bytes_read] if bytes_read == sum(sizes) else None
        data = b"".join(parts)
        return data if len(data) == sum(sizes) else None

    def open_shards(self, rows: Extents, low: int, high: int) -> list[io.FileIO]:
        """Return the open shard of each of the rows *low* to *high* (exclusive) of *rows*.

        These rows may be in up to `max_shards` different shards. The files stay in the cache: the caller does not close
        them. Raises: RowError if a shard can't be opened, or has another version than in the table; StorageError if a
        shard that leaves the cache has changed.
        """
        numbers = rows.numbers[low:high].tolist()
        files_by_shard = {number: self.open_shard(rows, low + numbers.index(number)) for number in set(numbers)}
        return [files_by_shard[number] for number in numbers]

    def open_shard(self, rows: Extents, index: int) -> io.FileIO:
        """Return the open shard of row *index* of *rows*, from a cache of open files; the caller does not close it.

        Raises: RowError if it can't be opened, or has another version than in the table; StorageError if a shard that
        leaves the cache has changed since it was opened.
        """
        return self.open_files.open_file(int(rows.numbers[index]), partial(self._open, rows, index))

    def _open(self, rows: Extents, index: int) -> io.FileIO:
        number = int(rows.numbers[index])
        url = self._catalog.urls[number]
        try:
            storage.check_regular(url)
            file = storage.open_read(url).file
            if file is None:
                raise StorageError("this can't be read in parts", url=url)
        except StorageError as error:
            raise self._catalog.failure(rows, index, error) from error
        version = self._catalog.versions[number]
        if version is not None and str(FileVersion.of(file)) != version:
            message = "this file was changed, or copied without its time, since the table was made"
            raise self._catalog.failure(rows, index, message)
        return file

    def truncated_error(self, rows: Extents) -> StorageError:
        """Return the `RowError` for the first of *rows* whose shard ends before the sample does; else for the first.

        It names the part of a sample with parts in several sets. Raises: RowError or StorageError as `open_shard`.
        """
        rows = rows.parts
        short = (n for n, end in enumerate(rows.ends.tolist()) if end > size_of(self.open_shard(rows, n)))
        return self._catalog.failure(rows, next(short, 0), "the shard ends before this sample does")


class FileSpan:
    """A stream of the open plain *file* from byte *begin* on, with a position of its own."""

    start = 0

    def __init__(self, file: io.FileIO, begin: int) -> None:
        self.file: io.FileIO | None = file
        self._position = begin

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes into *view*; return how many, 0 at the end of the file.

        Raises: StorageError if the file has changed; OSError if reading fails.
        """
        assert self.file is not None
        count = os.preadv(self.file.fileno(), [view], self._position) if len(view) else 0
        check_input_file(self.file)
        self._position += count
        return count

    def skip(self, count: int, /) -> None:
        """Move the position *count* bytes on, without reading them, also beyond the end of the file."""
        self._position += count
