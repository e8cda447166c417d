"""Many local files that stay open, reads of many places in them at once, and what of files is in the page cache."""

import contextlib
import ctypes
import io
import mmap
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter

from tartools.storage.streams import check_input_file

OPEN_FILES = 128  # at once; macOS allows 256
COLD = 20e-6  # seconds to read a place from disk; from the page cache it takes 2e-6
ASKED = 64  # reads before which the kernel is asked for all places, once a read had to wait for the disk


class OpenFiles:
    """Files by number, of which those that were used last stay open: *most*. Several threads may use them.

    Once reads have had to wait for the disk, the kernel is asked for all places before the first of them is read.
    """

    def __init__(self, most: int = OPEN_FILES) -> None:
        self._most = most
        self._open: dict[int, io.FileIO] = {}  # least recently used first
        self._opening = threading.Lock()
        self._cold = 0  # reads to come of places that are taken not to be in the page cache

    def file(self, number: int, opened: Callable[[], io.FileIO]) -> io.FileIO:
        """Return the file *number*, which `opened()` opens if it is not open.

        Raises: StorageError if the file that is forgotten for it has changed since it was opened.
        """
        with self._opening:
            file = self._open.pop(number, None)
            self._open[number] = file = opened() if file is None else file
            if len(self._open) > self._most:
                check_input_file(self._open.pop(next(iter(self._open))))
        return file

    def check(self) -> None:
        """Raise StorageError if one of the open files has changed since it was opened."""
        for file in list(self._open.values()):
            check_input_file(file)

    def read(self, files: Sequence[io.FileIO], begins: Sequence[int], sizes: Sequence[int]) -> bytes:
        """Return *sizes* bytes of each of *files* from *begins* on, one after the other; less if a read has less."""
        started = self._started(files, begins, sizes)
        found = b"".join(map(os.pread, [file.fileno() for file in files], sizes, begins))
        self._note(started, len(files))
        return found

    def read_into(
        self, files: Sequence[io.FileIO], begins: Sequence[int], sizes: Sequence[int], room: memoryview
    ) -> int:
        """Read as `read`, into *room*. Return how many bytes came; those of each place are where all would be."""
        started = self._started(files, begins, sizes)
        at = count = 0
        for file, begin, size in zip(files, begins, sizes, strict=True):
            count += os.preadv(file.fileno(), [room[at : at + size]], begin)
            at += size
        self._note(started, len(files))
        return count

    def _started(self, files: Sequence[io.FileIO], begins: Sequence[int], sizes: Sequence[int]) -> float:
        """Ask the kernel for what will be read, if the files are cold; return the time."""
        if self._cold and hasattr(os, "posix_fadvise"):
            for file, begin, size in zip(files, begins, sizes, strict=True):
                os.posix_fadvise(file.fileno(), begin, size, os.POSIX_FADV_WILLNEED)
        return perf_counter()

    def _note(self, started: float, count: int) -> None:
        """Note whether *count* reads that *started* then had to wait."""
        if self._cold:
            self._cold -= 1
        else:
            self._cold = ASKED * (perf_counter() - started > COLD * count)


def drop(paths: Iterable[str]) -> None:
    """Ask the system to drop the files *paths* from the page cache. It may not do that: see `share_cached`.

    Bytes that are not on the disk yet are written first, because they can't be dropped before. Raises: OSError.
    """
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            with contextlib.suppress(OSError):  # a file system that has nothing to write
                os.fdatasync(file.fileno())
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def share_cached(paths: Iterable[str]) -> float:
    """Return which share of the pages of the files *paths* is in the page cache, 0 to 1; 0 without any bytes.

    Where the system does not tell, as of files of other users, all count as cached. Raises: OSError.
    """
    pages = there = 0
    mincore = ctypes.CDLL(None).mincore
    for path in filter(os.path.getsize, paths):
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as content:
            size = len(content)
            found = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
            first = ctypes.c_char.from_buffer(content)
            unknown = mincore(ctypes.byref(first), ctypes.c_size_t(size), found)
            del first  # or the file can't be closed
            pages += len(found)
            there += len(found) if unknown else sum(page & 1 for page in found)
    return there / pages if pages else 0.0
