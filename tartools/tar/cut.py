"""Where an archive in a file can be cut, so that its pieces can be read beside one another."""

from __future__ import annotations

import io
import os
from typing import NamedTuple

from tartools.errors import TarFormatError
from tartools.tar.header import BLOCK, MAGIC
from tartools.tar.heading import Heading, read_heading
from tartools.tar.parts import split_path

LOOKED_AT = 1 << 20  # bytes in which there is a header, or else none is looked for
MOST = 1000  # members that are gone past
WINDOW = 1 << 13  # bytes of a file that are looked at for a member's headers


class Cut(NamedTuple):
    """A place in a file, in bytes, and the key of the group that begins there."""

    place: int
    key: bytes


def find_cut(file: io.FileIO, near: int) -> Cut | None:
    """Return a place behind byte *near* of *file* where a group of members seems to begin; None if none is found.

    It only seems so: payloads may hold what looks like members. Whoever reads what is before finds out, when that
    ends there and with another group.

    Holds: 1 MiB.
    """
    near = -(-near // BLOCK) * BLOCK
    window = os.pread(file.fileno(), LOOKED_AT, near)
    at = window.find(b"ustar")
    while at >= 0:
        if at % BLOCK == MAGIC.start:
            found = _next_group(file, near + at - MAGIC.start)
            if found is not None:
                return found
        at = window.find(b"ustar", at + 1)
    return None


def _next_group(file: io.FileIO, position: int) -> Cut | None:
    """Return where the first group begins behind the one of the second member from *position* on.

    Of the first one the extended headers may have been missed. None if what is there can't be understood.
    """
    keys: list[bytes] = []
    for _ in range(MOST):
        held = os.pread(file.fileno(), WINDOW, position)
        try:
            heading = read_heading(memoryview(held), 0, {})
        except TarFormatError:
            return None
        if not isinstance(heading, Heading):
            return None
        if heading.special is None:
            keys.append(split_path(heading.path)[0])
            if len(keys) > 2 and keys[-1] != keys[-2]:
                return Cut(position, keys[-1])
        position += heading.end
    return None
