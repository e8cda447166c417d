"""The parts that the reader yields, and the rule by which it groups members."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from tartools.tar.header import Member, Source


class Mark(Enum):
    """What stands in the stream between members."""

    END = "end of archive"


END: Final = Mark.END


class Run(NamedTuple):
    """Adjacent groups of members, which lie one behind the other in *source*, as columns.

    The members of group n share the key `keys[n]` and fill bytes `starts[n]` to `starts[n + 1]`: there is one start
    more than there are keys. Where they were asked for, they are *members* from `firsts[n]` on, as plain tuples in
    the shape of `Member`; otherwise `members_in` finds them.
    """

    source: Source
    keys: list[bytes]
    starts: list[int]
    members: list[Member] | None
    firsts: list[int]


class Loose(NamedTuple):
    """A group whose members do not lie one behind the other in one buffer."""

    key: bytes
    members: list[Member]


class Special(NamedTuple):
    """A member that carries no sample data: its name, what it is, and whether that can go unsaid."""

    name: str
    kind: str
    silent: bool


Part = Run | Loose | Special | Mark

# type flag -> kind, unsaid; POSIX.1-2017 and GNU tar manual, "Basic Tar Format"
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
NO_PAYLOAD = b"123456"  # whatever their size field says


def split_path(path: bytes) -> tuple[bytes, bytes]:
    """Return (key, field) of a member's path: before and after the first dot of its base name.

    Without a usable dot (none, first, or last) the field is empty and the key is all of the path. This is the rule
    of WebDataset.

    >>> split_path(b"train/n01/a.seg.png"), split_path(b"v1.2/README"), split_path(b"d/.hid.jpg"), split_path(b"e.")
    ((b'train/n01/a', b'seg.png'), (b'v1.2/README', b''), (b'd/.hid.jpg', b''), (b'e.', b''))
    """
    base = path.rfind(b"/") + 1
    dot = path.find(b".", base)
    if base < dot < len(path) - 1:
        return path[:dot], path[dot + 1 :]
    return path, b""


def belongs(path: bytes, stem: bytes) -> bool:
    """Tell whether *path* is a member of the group whose key and a dot are *stem*."""
    return path.startswith(stem) and path.find(b"/", len(stem)) < 0 and len(path) > len(stem)
