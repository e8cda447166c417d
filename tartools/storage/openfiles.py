"""A cache of open local files, reads of many places in them at once, and the share of files in the page cache."""

import contextlib
import io
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter

from tartools.storage.streams import check_input_file

OPEN_FILES = 128  # at once; macOS allows 256
COLD_READ_SECONDS = 20e-6  # seconds to read a place from disk; from the page cache it takes 2e-6
READS_BEFORE_ADVICE = 64  # reads before which the kernel is asked for all places, once a read had to wait for the disk


class OpenFileCache:
    """A thread-safe LRU cache of up to *max_files* open local files, by a number that the caller gives each.

    `open_file` returns the files that `read` and `read_into` take; `check` at the end raises an error if one has
    changed. Once reads have had to wait for the disk, the kernel is asked for all places before the first of them is
    read.
    """

    def __init__(self, max_files: int = OPEN_FILES) -> None:
        self._max_files = max_files
        self._open: dict[int, io.FileIO] = {}  # least recently used first
        self._opening = threading.Lock()
        self._cold_reads = 0  # reads to come of places that are taken not to be in the page cache

    def open_file(self, number: int, open_new: Callable[[], io.FileIO]) -> io.FileIO:
        """Return the open file for *number*; `open_new()` opens it if it is not in the cache.

        If the cache is full, the file that was used least recently is dropped from it, and closed when nobody uses it.
        Raises: StorageError if that one is an `InputFile` that has changed since it was opened; the errors of
        `open_new()`.
        """
        with self._opening:
            file = self._open.pop(number, None)
            self._open[number] = file = open_new() if file is None else file
            if len(self._open) > self._max_files:
                check_input_file(self._open.pop(next(iter(self._open))))
        return file

    def check(self) -> None:
        """Raise StorageError if one of the files in the cache has changed since it was opened.

        Only files of the class `InputFile` are compared; dropped ones were compared by `open_file`.
        """
        for file in list(self._open.values()):
            check_input_file(file)

    def read(self, files: Sequence[io.FileIO], begins: Sequence[int], sizes: Sequence[int]) -> bytes:
        """Return the bytes of many places, joined: `sizes[i]` bytes of `files[i]` from byte `begins[i]` on.

        There are fewer if a file ends earlier. Raises: OSError.
        """
        started = self._start_read(files, begins, sizes)
        data = b"".join(map(os.pread, [file.fileno() for file in files], sizes, begins))
        self._judge_disk(started, len(files))
        return data

    def read_into(
        self, files: Sequence[io.FileIO], begins: Sequence[int], sizes: Sequence[int], buffer: memoryview
    ) -> int:
        """Read many places into *buffer*, one behind the other: `sizes[i]` bytes of `files[i]` from `begins[i]` on.

        Returns the number of bytes that were read. If a file ends earlier, the rest of its `sizes[i]` bytes in *buffer*
        stays as it was, and the next place follows behind these. Raises: OSError.
        """
        started = self._start_read(files, begins, sizes)
        offset = count = 0
        for file, begin, size in zip(files, begins, sizes, strict=True):
            count += os.preadv(file.fileno(), [buffer[offset : offset + size]], begin)
            offset += size
        self._judge_disk(started, len(files))
        return count

    def _start_read(self, files: Sequence[io.FileIO], begins: Sequence[int], sizes: Sequence[int]) -> float:
        """Ask the kernel to read all places ahead if reads have lately been slow; return the time of perf_counter then.

        Without `posix_fadvise` (macOS) it asks nothing.
        """
        if self._cold_reads and hasattr(os, "posix_fadvise"):
            for file, begin, size in zip(files, begins, sizes, strict=True):
                os.posix_fadvise(file.fileno(), begin, size, os.POSIX_FADV_WILLNEED)
        return perf_counter()

    def _judge_disk(self, started: float, count: int) -> None:
        """Decide whether the reads to come ask the kernel for all their places first: if this one was slow.

        *started*: time of perf_counter before the read; *count*: places that it read. A read is slow if it took more
        than COLD_READ_SECONDS a place. Then the next READS_BEFORE_ADVICE reads ask, and are not judged.
        """
        if self._cold_reads:
            self._cold_reads -= 1
        else:
            self._cold_reads = READS_BEFORE_ADVICE * (perf_counter() - started > COLD_READ_SECONDS * count)


def drop(paths: Iterable[str]) -> None:
    """Ask the system to drop the files *paths* from the page cache; it need not do that (`share_cached` tells).

    Bytes that are not on the disk yet are written first, because they can't be dropped before. Without `posix_fadvise`
    (macOS) nothing is dropped. Raises: OSError if a file can't be opened.
    """
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            with contextlib.suppress(OSError):  # a file system that has nothing to write
                os.fdatasync(file.fileno())
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def share_cached(paths: Iterable[str]) -> float:
    """Return the share of the files' pages that are in the page cache, from 0 to 1; 0.0 if there are no pages.

    *paths*: files of any size, also empty ones. A file whose pages the system does not tell counts as cached. Raises:
    OSError.
    """
    import ctypes  # 5 ms
    import mmap

    pages = cached = 0
    mincore = ctypes.CDLL(None).mincore
    for path in filter(os.path.getsize, paths):
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as content:
            size = len(content)
            residency = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
            first = ctypes.c_char.from_buffer(content)
            failed = mincore(ctypes.byref(first), ctypes.c_size_t(size), residency)
            del first  # or the file can't be closed
            pages += len(residency)
            cached += len(residency) if failed else sum(page & 1 for page in residency)
    return cached / pages if pages else 0.0
