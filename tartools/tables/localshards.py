"""Samples of local shards that a table lists."""

from __future__ import annotations

import io
import os
import resource
from collections.abc import Iterator
from functools import partial

from tartools import storage
from tartools.errors import StorageError
from tartools.samples.sample import Batch
from tartools.storage.openfiles import OPEN_FILES, OpenFiles
from tartools.storage.streams import FileVersion, check_input_file, size_of
from tartools.tables.rowplaces import Checker, Piece

WINDOW = 1 << 22  # bytes of small samples that are read together
RUN = 1 << 18  # bytes; samples side by side in a file that are more than these are read as one piece
WALKED = 1 << 16  # bytes; of a larger sample that lies alone only the headers are read


class LocalShards:
    """The local shards that *checker* reads: ranges of them, with *ranges*, where that saves reading payloads.

    Several threads may read. Holds: 128 open files, less where it is one of several *sources*, or few may be open.
    """

    def __init__(self, checker: Checker, ranges: bool, sources: int) -> None:
        most = min(OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2 or 2)
        self.places = OpenFiles(max(most // sources, 2))
        self.together = max(most // 2, 1)  # shards of which samples are read at once
        self._listing = checker.listing
        self._checker = checker
        self._ranges = ranges

    def samples(self, rows: Piece) -> Iterator[Batch]:
        """Yield the samples of *rows*, in batches."""
        import numpy as np

        edges = np.append(rows.runs(), len(rows))
        sizes = rows.ends[edges[1:] - 1] - rows.begins[edges[:-1]]
        large = sizes > RUN
        if self._ranges:
            large |= (sizes > WALKED) & (np.diff(edges) == 1)
        low = 0
        for run in np.flatnonzero(large).tolist():
            begin, end = int(edges[run]), int(edges[run + 1])
            if low < begin:
                yield from self._gathered(rows.part(low, begin))
            yield from self._run(rows.part(begin, end))
            low = end
        if low < len(rows):
            yield from self._gathered(rows.part(low, len(rows)))

    def _run(self, rows: Piece) -> Iterator[Batch]:
        """Return the samples of *rows*, which lie side by side in one file."""
        file = self.file(rows, 0)
        bounds = [*rows.begins.tolist(), int(rows.ends[-1])]
        if size_of(file) < bounds[-1]:
            raise self.too_short(rows)
        return self._checker.samples(rows, bounds, lambda index: FileSpan(file, bounds[index]))

    def _gathered(self, rows: Piece) -> Iterator[Batch]:
        """Yield the samples of *rows*, which are small."""
        room = memoryview(bytearray(min(rows.size, WINDOW)))  # for all of them, since the reader copies
        for part in rows.windows(WINDOW):
            data = self.whole(part, room)
            if data is None:
                raise self.too_short(part)
            yield from self._checker.in_memory(part, data)

    def whole(self, rows: Piece, room: memoryview | None) -> bytes | memoryview | None:
        """Return the bytes of *rows*, one after the other, in *room* if there is one; None if a shard ends before."""
        import numpy as np

        first = rows.runs()
        last = np.append(first[1:], len(rows)) - 1
        known = rows.first + first if rows.rows is None else rows.rows[first]
        runs = Piece(rows.first, rows.numbers[first], rows.begins[first], rows.ends[last], None, known)
        begins, sizes = runs.begins.tolist(), (runs.ends - runs.begins).tolist()
        step = len(runs) if len(set(runs.numbers.tolist())) <= self.together else self.together
        parts: list[bytes] = []
        done = 0
        for low in range(0, len(runs), step):
            some = slice(low, low + step)
            files = self.files(runs, low, min(low + step, len(runs)))
            if room is None:
                parts.append(self.places.read(files, begins[some], sizes[some]))
            else:
                done += self.places.read_into(files, begins[some], sizes[some], room[done:])
            for file in set(files):
                check_input_file(file)
        if room is not None:
            return room[:done] if done == sum(sizes) else None
        data = b"".join(parts)
        return data if len(data) == sum(sizes) else None

    def files(self, rows: Piece, low: int, high: int) -> list[io.FileIO]:
        """Return the open shard of each of the rows *low* to *high* (exclusive) of *rows*, if they are not too many."""
        numbers = rows.numbers[low:high].tolist()
        known = {number: self.file(rows, low + numbers.index(number)) for number in set(numbers)}
        return [known[number] for number in numbers]

    def file(self, rows: Piece, index: int) -> io.FileIO:
        """Return the shard of row *index* of *rows*; check its version when it is opened."""
        return self.places.file(int(rows.numbers[index]), partial(self._opened, rows, index))

    def _opened(self, rows: Piece, index: int) -> io.FileIO:
        number = int(rows.numbers[index])
        url = self._listing.urls[number]
        try:
            storage.check_regular(url)
            file = storage.open_read(url).file
            if file is None:
                raise StorageError("this can't be read in parts", url=url)
        except StorageError as error:
            raise self._listing.failure(rows, index, error) from error
        known = self._listing.versions[number]
        if known is not None and str(FileVersion.of(file)) != known:
            what = "this file was changed, or copied without its time, since the table was made"
            raise self._listing.failure(rows, index, what)
        return file

    def too_short(self, rows: Piece) -> StorageError:
        """Return the failure of *rows*, whose bytes are not all there."""
        short = (n for n, end in enumerate(rows.ends.tolist()) if end > size_of(self.file(rows, n)))
        return self._listing.failure(rows, next(short, 0), "the shard ends before this sample does")


class FileSpan:
    """The bytes of an open plain file as a stream, from byte *begin* on. It has a position of its own."""

    start = 0

    def __init__(self, file: io.FileIO, begin: int) -> None:
        self.file: io.FileIO | None = file
        self._position = begin

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes; 0 at the end. Raises: StorageError if the file has changed."""
        assert self.file is not None
        count = os.preadv(self.file.fileno(), [view], self._position) if len(view) else 0
        check_input_file(self.file)
        self._position += count
        return count

    def skip(self, count: int, /) -> None:
        """Skip *count* bytes."""
        self._position += count
