"""Whether two files have the same bytes."""

from __future__ import annotations

from contextlib import closing

from tartools.storage import open_read, plain_size
from tartools.storage.streams import FileVersion

CHUNK = 1 << 20  # bytes that are compared at once


def same_bytes(first: str, second: str) -> bool:
    """Tell whether *first* and *second* are regular local files with the same bytes. Raises: StorageError.

    Holds: 2 MiB.
    """
    size = plain_size(first)
    if size is None or size != plain_size(second):
        return False
    with closing(open_read(first)) as a, closing(open_read(second)) as b:
        if a.file is None or b.file is None:
            return False
        if FileVersion.of(a.file) == FileVersion.of(b.file):
            return True
        left, right = bytearray(CHUNK), bytearray(CHUNK)
        while (count := a.readinto(memoryview(left))) == b.readinto(memoryview(right)) and left == right:
            if not count:
                return True
    return False
