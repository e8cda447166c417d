"""Grouping: collect the members that a reader finds into groups."""

from __future__ import annotations

import io
from collections.abc import Callable

from tartools.tar.groups import ContiguousGroups, Parsed, ScatteredGroup, Special
from tartools.tar.header import padded_size
from tartools.tar.keys import NO_STEM, belongs, split_path, stem_of
from tartools.tar.member import Member, Source

MAX_GROUP_IN_MEMORY = 16 << 20  # bytes; larger members and groups are ranges of files, not memory


class Grouper:
    """The complete groups of one stream that have not been yielded, and the group that is still open.

    The reader's hot loop appends plain members to the columns itself. `source` is the buffer or file that holds the
    members; positions are offsets in the reader's buffer, which in `source` are `shift` bytes higher.
    *scratch*: makes a file for groups above 16 MiB. With *listed*, members are listed; otherwise only the starts of
    groups are. With *uniform* too, those of many groups with the same fields may come as `UniformGroups`.
    """

    def __init__(self, scratch: Callable[[], io.FileIO], listed: bool, uniform: bool) -> None:
        self.source: Source = b""
        self.shift = 0
        self._scratch = scratch
        self.alike = listed and uniform
        self.parts: list[Parsed] = []  # complete, not yet yielded
        self.keys: list[bytes] = []  # columns of the complete groups that are contiguous
        self.starts: list[int] = []
        self.firsts: list[int] = []  # index of the first member of each
        self.members: list[Member] | None = [] if listed else None  # of these groups and of the open one
        self.key: bytes | None = None  # of the open group; None if no group is open
        self.stem = NO_STEM  # the paths of its members begin with this
        self.begin = 0  # start of the open group in the source
        self.first = 0  # index of its first member
        self.scattered: list[Member] = []  # its earlier members, which are not contiguous with the rest
        self.held = 0  # bytes of memory that these hold
        self.base = 0  # offset of the reader's buffer in the stream
        self.origin = 0  # offset of the open group in the stream, once it has scattered members
        self.last = 0  # where in the stream the last of these ends

    def taken(self, position: int) -> list[Parsed]:
        """Remove the parts that are complete before the offset *position* of the buffer, and return them in order."""
        self.cut(position)
        parts, self.parts = self.parts, []
        return parts

    def takes(self, path: bytes) -> bool:
        """True if the member *path* belongs to the open group."""
        return self.stem is not NO_STEM and belongs(path, self.stem)

    def admit(self, path: bytes, position: int) -> None:
        """Begin a group with the member *path* at *position*, unless it belongs to the open group."""
        if not self.takes(path):
            self.complete(position)
            self.key, field = split_path(path)
            self.stem = stem_of(self.key, bool(field))
            self.begin = position + self.shift
            self.first = len(self.members or ())

    def complete(self, position: int) -> None:
        """Complete the open group, if any; it ends at *position*."""
        if self.key is None:
            return
        if self.scattered:
            self.scatter(position)
            own = all(head is None for *_, head in self.scattered)  # no header is replaced
            stored = sum(data - start + padded_size(size) for _, _, start, data, size, _ in self.scattered)
            is_contiguous = own and stored == self.last - self.origin
            self.parts.append(ScatteredGroup(self.key, self.scattered, self.origin if is_contiguous else None))
            self.scattered, self.held = [], 0
        else:
            self.keys.append(self.key)
            self.starts.append(self.begin)
            self.firsts.append(self.first)
        self.key, self.stem = None, NO_STEM

    def cut(self, position: int) -> None:
        """Move the complete contiguous groups to `parts`, as one item.

        They end where the open group starts, or at *position* if no group is open.
        """
        if not self.keys:
            return
        end, members = position + self.shift if self.key is None else self.begin, self.members
        if members is not None:
            first = len(members) if self.key is None else self.first
            members, self.members, self.first = members[:first], members[first:], 0
        self.parts.append(ContiguousGroups(self.source, self.keys, [*self.starts, end], members, self.firsts))
        self.keys, self.starts, self.firsts = [], [], []

    def scatter(self, position: int) -> None:
        """Set aside the members of the open group before *position*: the next one is not contiguous with them."""
        self.cut(position)
        if self.key is not None:
            from tartools.tar.rescan import members_in

            if not self.scattered:
                self.origin = self.base + self.begin - self.shift
            in_memory = not isinstance(self.source, io.FileIO)
            for member in members_in(self.source, self.begin, position + self.shift, ranges=True):
                self.keep(member, in_memory * (member[3] - member[2] + member[4]))
                self.last = self.base + position
            if self.members:
                self.members.clear()
        self.begin, self.first = position + self.shift, 0

    def keep(self, member: Member, size: int) -> None:
        """Add *member*, with *size* bytes of memory, to the scattered members of the open group.

        Above 16 MiB of memory these become ranges of files.
        """
        self.scattered.append(member)
        self.held += size
        if self.held > MAX_GROUP_IN_MEMORY:
            from tartools.tar.rescan import spilled

            self.scattered = spilled(self.scattered, self._scratch)
            self.held = 0

    def interrupt(self, special: Special | None, position: int) -> None:
        """Record that the bytes at *position* belong to no group; they may be a *special* member, which is added."""
        self.scatter(position)
        if special is not None:
            self.parts.append(special)
