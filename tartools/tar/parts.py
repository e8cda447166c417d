"""The parts that the reader yields."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from tartools.tar.header import Member


class Mark(Enum):
    """What stands in the stream between members."""

    END = "end of archive"


END: Final = Mark.END


class Ahead(NamedTuple):
    """A regular member whose header is sound, and whose payload has not been read yet; it may be told of again."""

    path: bytes


class Special(NamedTuple):
    """A member that carries no sample data: its name, what it is, and whether that can go unsaid."""

    name: str
    kind: str
    silent: bool


Part = list[Member] | Special | Ahead | Mark

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
