"""Find an offset at which an archive can be cut, so that two workers can read its parts at the same time."""

import contextlib
import io
import os
import sys
from functools import partial
from itertools import islice
from typing import NamedTuple

from tartools.errors import TarFormatError
from tartools.tar.groups import split_path
from tartools.tar.header import BLOCK, MAGIC
from tartools.tar.rescan import Read, headers_in

LOOKED_AT = 1 << 20  # bytes that are searched for a header
MOST = 1000  # members that are read to find the start of a group
WINDOW = 1 << 13  # bytes that are read for the headers of a member


class Cut(NamedTuple):
    """An offset in a file, in bytes, and the key of the group that begins at it."""

    offset: int
    key: bytes


def find_cut(source: io.FileIO | Read, near: int) -> Cut | None:
    """Return an offset after byte *near* of *source* at which a group of members seems to begin; None if none is found.

    It is looked for in 1 MiB. It may be wrong, because a payload can hold bytes that look like members. The worker that
    reads the part before it verifies it: that part must end exactly at this offset, and with another key.

    Holds: 1 MiB.
    """
    read = partial(os.pread, source.fileno()) if isinstance(source, io.FileIO) else source
    near = -(-near // BLOCK) * BLOCK
    window = read(LOOKED_AT, near)
    at = window.find(b"ustar")
    while at >= 0:
        if at % BLOCK == MAGIC.start:
            found = _next_group(read, near + at - MAGIC.start)
            if found is not None:
                return found
        at = window.find(b"ustar", at + 1)
    return None


def _next_group(read: Read, position: int) -> Cut | None:
    """Return the start of the first group after that of the second member from *position* on.

    The first member is skipped, because *position* may be after its extended headers. None if the bytes are no members.
    """
    keys: list[bytes] = []
    with contextlib.suppress(TarFormatError):
        for at, header in islice(headers_in(read, position, sys.maxsize, WINDOW), MOST):
            if header.special is None:
                keys.append(split_path(header.path)[0])
                if len(keys) > 2 and keys[-1] != keys[-2]:
                    return Cut(at, keys[-1])
    return None
