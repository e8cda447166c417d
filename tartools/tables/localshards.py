"""Samples of local shards that a table lists."""

from __future__ import annotations

import contextlib
import io
import os
import resource
from collections.abc import Iterator
from functools import partial
from operator import eq

from tartools import storage
from tartools.errors import StorageError, TarFormatError
from tartools.samples.sample import Batch
from tartools.storage.openfiles import OPEN_FILES, OpenFiles
from tartools.storage.streams import FileVersion, check_unchanged, size_of
from tartools.tables.bulk import sound
from tartools.tables.checking import Checker, Chunks
from tartools.tables.rowplaces import Listing, Piece
from tartools.tar import ContiguousGroups, split_path
from tartools.tar.rescan import Read, headers_in

GATHERED = 1 << 20  # bytes of small samples in a batch
RUN = 1 << 18  # bytes; samples side by side in a file that are more than these are read as one piece
WALKED = 1 << 16  # bytes; of a larger sample that lies alone only the headers are read
BEHIND = "the shard ends before this sample does"


class LocalShards:
    """The local shards of *listing*. With *ranges*, samples are ranges of them where that saves reading payloads.

    Several threads may read. Holds: 128 open files, less where it is one of several *sources*, or few may be open.
    """

    def __init__(self, listing: Listing, checker: Checker, ranges: bool, listed: bool, sources: int = 1) -> None:
        most = min(OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2 or 2)
        self.places = OpenFiles(max(most // sources, 2))
        self.together = max(most // 2, 1)  # shards of which samples are read at once
        self._listing = listing
        self._checker = checker
        self._ranges = ranges
        self._listed = listed

    def samples(self, rows: Piece) -> Iterator[Batch]:
        """Yield the samples of *rows*, in batches."""
        import numpy as np

        begins, ends, numbers = rows.begins, rows.ends, rows.numbers
        breaks = np.flatnonzero((begins[1:] != ends[:-1]) | (numbers[1:] != numbers[:-1])) + 1
        edges = np.concatenate(([0], breaks, [len(rows)]))
        sizes = ends[edges[1:] - 1] - begins[edges[:-1]]
        large = sizes > RUN
        if self._ranges:
            large |= (sizes > WALKED) & (np.diff(edges) == 1)
        low = 0
        for run in np.flatnonzero(large).tolist():
            begin, end = int(edges[run]), int(edges[run + 1])
            yield from self._gathered(rows.part(low, begin))
            yield from self._run(rows.part(begin, end))
            low = end
        yield from self._gathered(rows.part(low, len(rows)))

    def _run(self, rows: Piece) -> Iterator[Batch]:
        """Yield the samples of *rows*, which lie side by side in one file."""
        file = self.file(rows, 0)
        number, begin, end = rows.place(0)
        if size_of(file) < int(rows.ends[-1]):
            index = int(rows.ends.searchsorted(size_of(file), "right"))
            raise self._listing.failure(rows, index, BEHIND)
        if len(rows) == 1 and self._ranges:
            key = key_of(partial(os.pread, file.fileno()), begin, end)
            check_unchanged(file)
            if key is not None and rows.keys in (None, [key]):
                self._checker.count(end - begin)
                yield Batch(ContiguousGroups(file, [key], [begin, end], None, [0]), self._listing.urls[number])
                return
        yield from self._checker.samples(rows, lambda index: FileSpan(file, int(rows.begins[index])), joined=False)

    def _gathered(self, rows: Piece) -> Iterator[Batch]:
        """Yield the samples of *rows*, which are small."""
        low, bounds = 0, (rows.ends - rows.begins).cumsum()
        while low < len(rows):
            high = len(rows)
            quick = not self._listed and (rows.keys is not None or len(rows) == 1)
            if quick:
                before = int(bounds[low - 1]) if low else 0
                high = max(low + 1, int(bounds.searchsorted(before + GATHERED, "right")))
            part = rows.part(low, high)
            low = high
            if quick and not (part.keys and any(map(eq, part.keys, part.keys[1:]))):
                batch = self._together(part)
                if batch is not None:
                    yield batch
                    continue
            yield from self._checker.samples(part, partial(self._joined, part), joined=True)

    def _together(self, rows: Piece) -> Batch | None:
        """Return the samples of *rows* in one batch; None if that takes a closer look."""
        import numpy as np

        room = self.whole(rows, None)
        if not isinstance(room, bytes):
            return None
        starts = np.concatenate(([0], (rows.ends - rows.begins).cumsum()))
        keys = rows.keys
        if len(rows) == 1:
            key = key_of(lambda count, at: room[at : at + count], 0, len(room))
            keys = [key] if key is not None and keys in (None, [key]) else None
        elif keys is not None and not sound(room, starts, keys):
            keys = None
        if keys is None:
            return None
        self._checker.count(len(room))
        numbers = rows.numbers.tolist()
        urls = [self._listing.urls[number] for number in numbers]
        found = ContiguousGroups(room, keys, starts.tolist(), None, [])
        return Batch(found, urls[0] if len(set(numbers)) == 1 else urls)

    def _joined(self, rows: Piece, index: int) -> Chunks:
        """Return the bytes of *rows* from row *index* on, one after the other as a stream."""
        return Chunks(self._chunks(rows, index))

    def _chunks(self, rows: Piece, index: int) -> Iterator[bytes | memoryview]:
        bounds = (rows.ends - rows.begins).cumsum()
        while index < len(rows):
            before = int(bounds[index - 1]) if index else 0
            part = rows.part(index, max(index + 1, int(bounds.searchsorted(before + GATHERED, "right"))))
            data = self.whole(part, None)
            if data is None:
                raise self._too_short(part)
            yield data
            index += len(part)

    def whole(self, rows: Piece, room: memoryview | None) -> bytes | memoryview | None:
        """Return the bytes of *rows*, one after the other, in *room* if there is one; None if a shard ends before."""
        import numpy as np

        new = np.flatnonzero((rows.begins[1:] != rows.ends[:-1]) | (rows.numbers[1:] != rows.numbers[:-1])) + 1
        first, last = np.append(0, new), np.append(new, len(rows)) - 1
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
                check_unchanged(file)
        if room is not None:
            return room if done == sum(sizes) else None
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
        try:
            file = opened(self._listing.urls[number])
        except StorageError as error:
            raise self._listing.failure(rows, index, error) from error
        known = self._listing.versions[number]
        if known is not None and str(FileVersion.of(file)) != known:
            what = "this file was changed, or copied without its time, since the table was made"
            raise self._listing.failure(rows, index, what)
        return file

    def _too_short(self, rows: Piece) -> StorageError:
        """Return the failure of *rows*, whose bytes are not all there."""
        ends = rows.ends.tolist()
        short = (n for n, file in enumerate(self.files(rows, 0, len(rows))) if ends[n] > size_of(file))
        return self._listing.failure(rows, next(short, 0), BEHIND)

    def check(self) -> None:
        """Raise StorageError if a file has changed since it was opened."""
        self.places.check()


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
        check_unchanged(self.file)
        self._position += count
        return count

    def skip(self, count: int, /) -> None:
        """Skip *count* bytes."""
        self._position += count


def key_of(read: Read, begin: int, end: int) -> bytes | None:
    """Return the key of the sample in bytes *begin* to *end* of what `read` reads, if its headers are sound.

    None if its members are not side by side there, or not to be written as they are: the reader says what is there.
    """
    found: tuple[bytes, bool] | None = None
    with contextlib.suppress(TarFormatError):
        for at, header in headers_in(read, begin, end):
            key, field = split_path(header.path)
            if header.special is not None or header.head is not None or at + header.end > end:
                return None
            if found is not None and (not field or found != (key, True)):
                return None
            found = key, bool(field)
        return found[0] if found else None
    return None


def opened(url: str) -> io.FileIO:
    """Return the plain local file *url*. Raises: StorageError if it is none."""
    storage.check_regular(url)
    if file := storage.open_read(url).file:
        return file
    raise StorageError("this can't be read in parts", url=url)
