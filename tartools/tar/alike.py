"""Members of groups with the same fields, as arrays: nothing is made for each member until it is asked for."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from itertools import repeat
from typing import Any

from tartools.tar.header import BLOCK, MAGIC
from tartools.tar.member import Member, Source

DENSE = 256  # headers in a MiB


class Alike:
    """The members of groups with the same fields: *each* of a group, which *behind* names by what follows the key.

    Headers *begin* at these bytes of the source of the groups, payloads are one block behind that, and *sizes* are
    theirs: arrays of int64, with a row for each group and a column for each of its members.
    """

    __slots__ = ("begins", "behind", "each", "sizes")

    def __init__(self, behind: list[bytes], begins: Any, sizes: Any) -> None:
        self.behind = behind
        self.each = len(behind)
        self.begins = begins.reshape(-1, self.each)
        self.sizes = sizes.reshape(-1, self.each)

    def members(self, source: Source, keys: Sequence[bytes]) -> list[Member]:
        """Return the members of the groups *keys* in *source*, as plain tuples."""
        paths = [key + behind for key in keys for behind in self.behind]
        begins = self.begins.ravel()
        places = begins.tolist(), (begins + BLOCK).tolist(), self.sizes.ravel().tolist()
        found: Any = zip(paths, repeat(source), *places, repeat(None))
        return list(found)

    def firsts(self) -> list[int]:
        """Return the numbers of those that are the first of their group."""
        return list(range(0, self.sizes.size, self.each))

    def payloads(self, source: bytes | bytearray, column: int) -> list[bytes | bytearray]:
        """Return the payloads of one *column*, in *source*."""
        begins = self.begins[:, column] + BLOCK
        ends = begins + self.sizes[:, column]
        return [source[at:end] for at, end in zip(begins.tolist(), ends.tolist(), strict=True)]


def is_dense(file: io.FileIO, at: int) -> bool:
    """Return whether the MiB of *file* that begins at byte *at* has many members."""
    head = os.pread(file.fileno(), 1 << 20, at)
    return sum(head[byte : byte + 5] == b"ustar" for byte in range(MAGIC.start, len(head), BLOCK)) > DENSE
