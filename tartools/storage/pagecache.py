"""Local files in the page cache of the system: drop them from it, and find out how much of them is there."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections.abc import Iterable

NOT_MAPPED = ctypes.c_void_p(-1).value


def drop(paths: Iterable[str]) -> None:
    """Ask the system to drop the files *paths* from the page cache. It may not do that: see `cached`.

    Bytes that are not on the disk yet are written first, because they can't be dropped before. Raises: OSError.
    """
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # a file system that has nothing to write
                os.fdatasync(fd)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def cached(paths: Iterable[str]) -> float:
    """Return which share of the pages of the files *paths* is in the page cache, 0 to 1; 0 without any bytes.

    Where the system does not tell, as of files of other users, all count as cached. Raises: OSError.
    """
    pages = there = 0
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            size = os.fstat(fd).st_size
            count = -(-size // mmap.PAGESIZE)
            pages += count
            there += _resident(fd, size, count) if size else 0
        finally:
            os.close(fd)
    return there / pages if pages else 0.0


def _resident(fd: int, size: int, pages: int) -> int:
    """Return how many of the *pages* of the file *fd* of *size* bytes are in memory (mincore(2))."""
    system = ctypes.CDLL(None, use_errno=True)
    system.mmap.restype = ctypes.c_void_p
    system.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    at = system.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if at in (None, NOT_MAPPED):
        return pages
    try:
        found = (ctypes.c_ubyte * pages)()
        if system.mincore(ctypes.c_void_p(at), ctypes.c_size_t(size), found):
            return pages
        return sum(page & 1 for page in bytes(found))
    finally:
        system.munmap(ctypes.c_void_p(at), ctypes.c_size_t(size))
