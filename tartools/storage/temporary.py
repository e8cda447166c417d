"""Temporary files beside an output: made under a lock, and removed by a later run if this one is killed.

The lock tells whether a file's process lives: it ends with the process, whatever ends that, and no other process can be
taken for it, as by a number that is used again. Only files of this host are looked at, because not every shared
directory tells one host of another's locks.
"""

from __future__ import annotations

import fcntl
import os
import re
from contextlib import suppress
from functools import cache

from tartools.storage.streams import FileSink

LONGEST = 100  # bytes of the output's name in that of the temporary file; file systems allow 255


def create(path: str, url: str) -> tuple[str, FileSink]:
    """Return the name of a new file beside *path*, and the file, after removing what killed runs left for *path*.

    Raises: OSError.
    """
    folder, name = os.path.split(path)
    begin = f".{os.fsdecode(os.fsencode(name)[:LONGEST])}.{os.uname().nodename}."
    for found in _temporary_files(folder):
        if found.startswith(begin) and re.fullmatch(r"\d+-[0-9a-f]{8}\.tmp", found[len(begin) :]):
            _remove_if_left(os.path.join(folder, found))
    while True:
        temporary = os.path.join(folder, f"{begin}{os.getpid()}-{os.urandom(4).hex()}.tmp")
        sink = FileSink(temporary, url, os.O_CREAT | os.O_EXCL)
        try:
            fcntl.flock(sink.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another run has just found the file, and removes it
            sink.close()
            continue
        except OSError:  # a file system without locks: nobody gets one, so nobody removes the file
            return temporary, sink
        if os.fstat(sink.fileno()).st_nlink:
            return temporary, sink
        sink.close()


@cache
def _temporary_files(folder: str) -> tuple[str, ...]:
    """Return the hidden temporary files in *folder*, as they were when this process first wrote there."""
    with suppress(OSError):
        return tuple(name for name in os.listdir(folder or ".") if name[:1] == "." and name.endswith(".tmp"))
    return ()


def _remove_if_left(path: str) -> None:
    """Remove the file *path* if no process holds its lock. What can't be opened for writing or locked stays."""
    with suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
        finally:
            os.close(fd)
