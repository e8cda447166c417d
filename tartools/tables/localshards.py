"""Samples of local shards that a table lists."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import threading
from collections.abc import Iterator
from functools import partial
from operator import eq
from time import perf_counter

from tartools import storage
from tartools.errors import StorageError, TarFormatError
from tartools.samples.account import Account
from tartools.samples.sample import Batch
from tartools.storage.streams import FileVersion, check_unchanged, size_of
from tartools.tables.checking import Checker
from tartools.tables.headers import sound
from tartools.tables.rowplaces import Listing, Piece
from tartools.tar import ContiguousGroups, split_path
from tartools.tar.rescan import Read, headers_in

GATHERED = 1 << 20  # bytes of small samples in a batch
RUN = 1 << 18  # bytes; samples side by side in a file that are more than these are read as one piece
WALKED = 1 << 16  # bytes; of a larger sample that lies alone only the headers are read
OPEN_FILES = 128  # at once; macOS allows 256
BEHIND = "the shard ends before this sample does"
COLD = 20e-6  # seconds to read a sample from disk; from the page cache it takes 2e-6
ASKED = 64  # batches for which the kernel is asked in advance once a batch had to wait for the disk


class LocalShards:
    """The local shards of *listing*. With *ranges*, samples are ranges of them where that saves reading payloads.

    Several threads may read. Holds: 128 open files, less where it is one of several *sources*, or few may be open.
    """

    def __init__(
        self, listing: Listing, account: Account, checker: Checker, ranges: bool, listed: bool, sources: int = 1
    ) -> None:
        most = min(OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2 or 2)
        self._kept = max(most // sources, 2)
        self.together = max(most // 2, 1)  # shards of which samples are read at once
        self._listing = listing
        self._account = account
        self._checker = checker
        self._ranges = ranges
        self._listed = listed
        self._open: dict[int, io.FileIO] = {}  # least recently used first
        self._opening = threading.Lock()
        self.cold = 0  # batches to come that are taken not to be in the page cache

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
                self._account.bytes_in += end - begin
                self._account.unpacked += end - begin
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
            yield from self._checker.samples(part, partial(Gathered, self, part), joined=True)

    def _together(self, rows: Piece) -> Batch | None:
        """Return the samples of *rows* in one batch; None if that takes a closer look."""
        import numpy as np

        starts = np.concatenate(([0], (rows.ends - rows.begins).cumsum()))
        room = Gathered(self, rows, 0).whole()
        keys = rows.keys
        if len(rows) == 1:
            key = key_of(lambda count, at: bytes(room[at : at + count]), 0, len(room))
            keys = [key] if key is not None and keys in (None, [key]) else None
        elif keys is not None and not sound(room, starts, keys):
            keys = None
        if keys is None:
            return None
        self._account.bytes_in += len(room)
        self._account.unpacked += len(room)
        numbers = rows.numbers.tolist()
        urls = [self._listing.urls[number] for number in numbers]
        found = ContiguousGroups(room, keys, starts.tolist(), None, [])
        return Batch(found, urls[0] if len(set(numbers)) == 1 else urls)

    def files(self, rows: Piece) -> list[io.FileIO] | None:
        """Return the open shard of each of *rows*; None if they are too many to be open at once."""
        if len(set(rows.numbers.tolist())) > self.together:
            return None
        return Gathered(self, rows, 0).files(0, len(rows))

    def whole(self, rows: Piece, room: memoryview | None) -> bytes | memoryview | None:
        """Return the bytes of *rows*, one after the other, in *room* if there is one; None if a shard ends before."""
        import numpy as np

        begins, ends, numbers = rows.begins, rows.ends, rows.numbers
        new = np.flatnonzero((begins[1:] != ends[:-1]) | (numbers[1:] != numbers[:-1])) + 1
        first, last = np.append(0, new), np.append(new, len(rows)) - 1
        known = None if rows.rows is None else rows.rows[first]
        return Gathered(self, Piece(rows.first, numbers[first], begins[first], ends[last], None, known), 0).at_once(
            room
        )

    def file(self, rows: Piece, index: int) -> io.FileIO:
        """Return the shard of row *index* of *rows*; check its version when it is opened."""
        number = int(rows.numbers[index])
        with self._opening:
            file = self._open.pop(number, None)
            if file is None:
                try:
                    file = opened(self._listing.urls[number])
                except StorageError as error:
                    raise self._listing.failure(rows, index, error) from error
                known = self._listing.versions[number]
                if known is not None and str(FileVersion.of(file)) != known:
                    what = "this file was changed, or copied without its time, since the table was made"
                    raise self._listing.failure(rows, index, what)
            self._open[number] = file
            if len(self._open) > self._kept:
                check_unchanged(self._open.pop(next(iter(self._open))))
        return file

    def failure(self, rows: Piece, index: int, what: str) -> StorageError:
        """Return the failure of the sample that row *index* of *rows* is about."""
        return self._listing.failure(rows, index, what)

    def check(self) -> None:
        """Raise StorageError if a file has changed since it was opened."""
        for file in list(self._open.values()):
            check_unchanged(file)


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


class Gathered:
    """The bytes of *rows*, from row *index* on, one after the other as a stream.

    Once reads have had to wait for the disk, the kernel is asked for all samples before the first is read.
    """

    file: io.FileIO | None = None
    start = 0

    def __init__(self, shards: LocalShards, rows: Piece, index: int) -> None:
        import numpy as np

        self._shards = shards
        self._rows = rows
        self._next = index
        self._done = 0  # bytes of that row that were read
        self._bounds = np.cumsum(rows.ends - rows.begins)

    def at_once(self, room: memoryview | None) -> bytes | memoryview | None:
        """Return all the bytes, in *room* if there is one; None if a shard ends before."""
        rows = self._rows
        sizes = (rows.ends - rows.begins).tolist()
        most = self._shards.together
        step = len(rows) if len(set(rows.numbers.tolist())) <= most else most
        parts: list[bytes] = []
        done = at = 0
        for low in range(0, len(rows), step):
            files, begins = self.files(low, min(low + step, len(rows))), rows.begins[low : low + step].tolist()
            started = self._before(files, begins, sizes[low : low + step])
            if room is None:
                parts += map(os.pread, [file.fileno() for file in files], sizes[low : low + step], begins)
            else:
                for file, begin, size in zip(files, begins, sizes[low : low + step], strict=True):
                    done += os.preadv(file.fileno(), [room[at : at + size]], begin)
                    at += size
            self._after(files, started)
        if room is not None:
            return room if done == sum(sizes) else None
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        return data if len(data) == sum(sizes) else None

    def whole(self) -> bytes | bytearray:
        """Return all the bytes."""
        rows = self._rows
        begins, sizes = rows.begins.tolist(), (rows.ends - rows.begins).tolist()
        if len(set(rows.numbers.tolist())) <= self._shards.together:
            files = self.files(0, len(rows))
            started = self._before(files, begins, sizes)
            data = b"".join(map(os.pread, [file.fileno() for file in files], sizes, begins))
            self._after(files, started)
            if len(data) == sum(sizes):
                return data
        room = bytearray(sum(sizes))
        with memoryview(room) as view:
            at = 0
            while count := self.readinto(view[at:]):
                at += count
        return room

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes; 0 at the end. Raises: StorageError if a file has changed."""
        rows, low = self._rows, self._next
        if low == len(rows) or not len(view):
            return 0
        before = int(self._bounds[low - 1]) if low else 0
        high = int(self._bounds.searchsorted(before + self._done + len(view), "right"))
        if self._done or high == low:  # a part of one sample
            _, begin, end = rows.place(low)
            count = self._read(low, low + 1, [begin + self._done], [min(len(view), end - begin - self._done)], view)
            self._done += count
            if begin + self._done == end:
                self._next, self._done = low + 1, 0
            return count
        if len(set(rows.numbers[low:high].tolist())) > self._shards.together:
            high = min(high, low + self._shards.together)
        begins = rows.begins[low:high]
        count = self._read(low, high, begins.tolist(), (rows.ends[low:high] - begins).tolist(), view)
        self._next = high
        return count

    def _read(self, low: int, high: int, begins: list[int], sizes: list[int], view: memoryview) -> int:
        """Read *sizes* bytes from *begins* on, of the shards of rows *low* to *high*, into *view*; return their sum."""
        files, at = self.files(low, high), 0
        started = self._before(files, begins, sizes)
        for index, (file, begin, size) in enumerate(zip(files, begins, sizes, strict=True), low):
            if os.preadv(file.fileno(), [view[at : at + size]], begin) != size:
                raise self._short(index, file)
            at += size
        self._after(files, started)
        return at

    def _before(self, files: list[io.FileIO], begins: list[int], sizes: list[int]) -> float:
        """Ask the kernel for what will be read, if the files are cold; return the time."""
        if self._shards.cold and hasattr(os, "posix_fadvise"):
            for file, begin, size in zip(files, begins, sizes, strict=True):
                os.posix_fadvise(file.fileno(), begin, size, os.POSIX_FADV_WILLNEED)
        return perf_counter()

    def _after(self, files: list[io.FileIO], started: float) -> None:
        """Note whether reads that *started* then had to wait. Raises: StorageError if a file has changed."""
        shards = self._shards
        if shards.cold:
            shards.cold -= 1
        else:
            shards.cold = ASKED * (perf_counter() - started > COLD * len(files))
        for file in set(files):
            check_unchanged(file)

    def files(self, low: int, high: int) -> list[io.FileIO]:
        """Return the open shard of each of the rows *low* to *high*."""
        numbers = self._rows.numbers[low:high].tolist()
        known = {number: self._shards.file(self._rows, low + numbers.index(number)) for number in set(numbers)}
        return [known[number] for number in numbers]

    def _short(self, index: int, file: io.FileIO) -> StorageError:
        """Return the failure of row *index*, whose bytes are not all there."""
        check_unchanged(file)
        return self._shards.failure(self._rows, index, BEHIND)


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
