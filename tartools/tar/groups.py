"""Groups of members, which the reader yields, and members without sample data."""

from collections.abc import Sequence
from enum import Enum
from itertools import repeat
from typing import Any, Final, NamedTuple

from tartools.tar.header import BLOCK
from tartools.tar.member import Member, Source


class Need(Enum):
    """The parts of a sample that the caller of a reader uses. The less it uses, the less is read and parsed.

    PLACES: key and extent. FIELDS: members and their sizes. BYTES: all bytes, in memory; members are parsed on use.
    PAYLOADS: members and most payloads, in memory.
    Payloads are left unread only in plain local files; all bytes of other inputs are read anyway. Members and groups
    too large for memory are ranges of files in any case (`reader.read_members`).
    """

    PLACES = "its key and its extent: to copy, move or count samples"
    FIELDS = "its members and their sizes: payloads stay in plain files, where single ones can be read"
    BYTES = "its bytes, in memory: its members are parsed on first use"
    PAYLOADS = "its members and most of its payloads, in memory"

    @property
    def lists_members(self) -> bool:
        """True (FIELDS, PAYLOADS) if the reader lists members of groups; else `rescan.members_in` parses them on use.

        To parse them later takes longer if most of them are used.
        """
        return self in (Need.FIELDS, Need.PAYLOADS)

    @property
    def leaves_payloads(self) -> bool:
        """True (PLACES, FIELDS) if payloads may stay in plain files."""
        return self in (Need.PLACES, Need.FIELDS)


class Mark:
    """A mark that the reader yields between members: the end of an archive. The only one is ARCHIVE_END."""


ARCHIVE_END: Final = Mark()  # of an archive


class UniformGroups:
    """Adjacent groups with equal fields, as arrays with a row for each group and a column for each of its members.

    `endings`: of the paths of the members, after the key: b".jpg". `width`: members of a group.
    `begins`: offsets of the headers in the source of the groups, int64; a payload begins one block (512 bytes) later.
    `sizes`: bytes of the payloads, int64. *begins* and *sizes* may be flat, with the members group by group.
    """

    __slots__ = ("begins", "endings", "sizes", "width")

    def __init__(self, endings: list[bytes], begins: Any, sizes: Any) -> None:
        self.endings = endings
        self.width = len(endings)
        self.begins = begins.reshape(-1, self.width)
        self.sizes = sizes.reshape(-1, self.width)

    def members(self, source: Source, keys: Sequence[bytes]) -> list[Member]:
        """Return the members of all groups, group by group, as plain tuples with the items of `Member`.

        Making tuples is faster; `Member._make` gives one its attributes. *source*: the buffer or file in which `begins`
        are offsets. *keys*: one for each group, in order.
        """
        paths = [key + ending for key in keys for ending in self.endings]
        begins = self.begins.ravel()
        places = begins.tolist(), (begins + BLOCK).tolist(), self.sizes.ravel().tolist()
        members: Any = zip(paths, repeat(source), *places, repeat(None))
        return list(members)

    def first_indexes(self) -> list[int]:
        """Return for each group the index of its first member in the list that `members` returns."""
        return list(range(0, self.sizes.size, self.width))


class ContiguousGroups(NamedTuple):
    """Adjacent groups of members that are contiguous in `source`, as columns.

    The members of group n share the key `keys[n]` and fill bytes `starts[n]` to `starts[n + 1]`; `starts` has one item
    more than `keys`. `members`, if listed, are plain tuples with the items of `Member`; those of group n begin at
    `firsts[n]`. If `members` is None, `firsts` means nothing, and `uniform` has the members as arrays, or if that is
    None too, `rescan.members_in` finds them.

    A listed member has its own source. That may be an older buffer than `source`: the members of a group that was open
    at the end of a buffer keep it, while the bytes of the group were copied to the next one, where `starts` are.
    So slice `source` by `starts`, and read a payload by its own member.
    """

    source: Source
    keys: list[bytes]
    starts: list[int]
    members: list[Member] | None
    firsts: list[int]
    uniform: UniformGroups | None = None


class ScatteredGroup(NamedTuple):
    """A group whose members need not be contiguous in one buffer or file: `members` with the key `key`.

    `members`: each has its own source; some may be plain tuples with the items of `Member`.
    `offset`: the byte of the tar stream at which it begins, if the stream holds its members in one piece, with their
    own headers; else None.
    """

    key: bytes
    members: list[Member]
    offset: int | None = None


class Special(NamedTuple):
    """A member that is no part of a sample: its `name`, and its `kind` in words, such as "hard link" or "directory".

    `silent`: True if it is skipped without a message. Two kinds are notes, and skip nothing: `FOREIGN_PREFIX`, about a
    member that is a sample's, and "missing end", about the archive, with its URL as `name`.
    """

    name: str
    kind: str
    silent: bool


Parsed = ContiguousGroups | ScatteredGroup | Special | Mark

FOREIGN_PREFIX = "prefix that is no ustar prefix"  # see `header.has_foreign_prefix`; the member itself is a sample's
MACOS_METADATA = "macOS metadata file"  # see `keys.is_macos_metadata`; counted, not reported one by one

# type flag -> kind, silent; POSIX.1-2017 and GNU tar manual, "Basic Tar Format"
SPECIAL_TYPES = {
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
