"""Groups of members: what the reader yields, and the rule that makes groups: equal paths up to the first dot."""

from collections.abc import Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple

from tartools.tar.header import BLOCK
from tartools.tar.member import Member, Source


class Mark:
    """A mark in the stream between members."""


END: Final = Mark()  # of an archive


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


class ContiguousGroups(NamedTuple):
    """Adjacent groups of members that are contiguous in *source*, as columns.

    The members of group n share the key `keys[n]` and fill bytes `starts[n]` to `starts[n + 1]`; *starts* has one item
    more than *keys*. *members*, if listed, are plain tuples with the items of `Member`; those of group n begin at
    `firsts[n]`. If *members* is None, *alike* tells where they are, or `members_in` finds them.
    """

    source: Source
    keys: list[bytes]
    starts: list[int]
    members: list[Member] | None
    firsts: list[int]
    alike: Alike | None = None


class ScatteredGroup(NamedTuple):
    """A group whose members are not contiguous in one buffer or file.

    *offset* is the byte of the tar stream at which it begins, if the stream holds its members in one piece, with the
    headers that they have; else None.
    """

    key: bytes
    members: list[Member]
    offset: int | None = None


class Special(NamedTuple):
    """A member without sample data: its name, its kind, and whether it is skipped without a message (*silent*)."""

    name: str
    kind: str
    silent: bool


Parsed = ContiguousGroups | ScatteredGroup | Special | Mark

# type flag -> kind, silent; POSIX.1-2017 and GNU tar manual, "Basic Tar Format"
SPECIAL = {
    b"1": ("hard link", False),
    b"2": ("symbolic link", False),
    b"3": ("character device", False),
    b"4": ("block device", False),
    b"5": ("directory", True),
    b"6": ("fifo", False),
    b"D": ("directory", True),
    b"M": ("continuation of another volume", False),
    b"S": ("sparse file", False),
    b"V": ("volume label", True),
}
NO_PAYLOAD = b"123456"  # type flags of members without a payload, whatever their size field says


def split_path(path: bytes) -> tuple[bytes, bytes]:
    """Return (key, field) of a member's path: before and after the first dot of its base name.

    If the base name has no dot, or its first dot is its first or last character, the field is empty and the key is the
    whole path. This is the rule of WebDataset.

    >>> split_path(b"train/n01/a.seg.png"), split_path(b"v1.2/README"), split_path(b"d/.hid.jpg"), split_path(b"e.")
    ((b'train/n01/a', b'seg.png'), (b'v1.2/README', b''), (b'd/.hid.jpg', b''), (b'e.', b''))
    """
    base = path.rfind(b"/") + 1
    dot = path.find(b".", base)
    if base < dot < len(path) - 1:
        return path[:dot], path[dot + 1 :]
    return path, b""


def belongs(path: bytes, stem: bytes) -> bool:
    """Return whether *path* belongs to the group with this *stem*: its key and a dot."""
    return path.startswith(stem) and path.find(b"/", len(stem)) < 0 and len(path) > len(stem)
