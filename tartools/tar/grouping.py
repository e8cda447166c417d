"""Grouping: collect the members that a reader finds into groups."""

from __future__ import annotations

import io
from collections.abc import Callable

from tartools.tar.groups import ContiguousGroups, Parsed, ScatteredGroup, Special
from tartools.tar.header import padded_size
from tartools.tar.keys import NO_STEM, has_stem, split_path, stem_of
from tartools.tar.member import Member, Source

MAX_GROUP_IN_MEMORY = 16 << 20  # bytes; larger members and groups are ranges of files, not memory


class Grouper:
    """Collects the members of one stream into groups: complete groups, not yielded yet, and the open group.

    The reader's hot loop appends plain members to the columns itself. `source` is the buffer or file that holds the
    members; positions are offsets in the reader's buffer, which in `source` are `shift` bytes higher.
    *scratch*: makes a file for groups above 16 MiB. *listed*: True to list members; else only the begins of groups are
    known. *uniform*: with *listed*, many groups with equal fields may come as `UniformGroups`, in place of their
    members.
    """

    def __init__(self, scratch: Callable[[], io.FileIO], listed: bool, uniform: bool) -> None:
        self.source: Source = b""
        self.shift = 0
        self._scratch = scratch
        self.uniform = listed and uniform
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

    def drain(self, position: int) -> list[Parsed]:
        """Remove the complete parts before the offset *position* of the buffer, and return them in order.

        Parts are groups, special members and ends of archives.
        """
        self.cut_contiguous(position)
        parts, self.parts = self.parts, []
        return parts

    def is_in_open_group(self, path: bytes) -> bool:
        """True if the member *path* belongs to the open group."""
        return self.stem is not NO_STEM and has_stem(path, self.stem)

    def start_or_join(self, path: bytes, position: int) -> None:
        """Unless the member *path* at *position* is in the open group: complete that, and open one that begins here."""
        if not self.is_in_open_group(path):
            self.complete_group(position)
            self.key, field = split_path(path)
            self.stem = stem_of(self.key, bool(field))
            self.begin = position + self.shift
            self.first = len(self.members or ())

    def complete_group(self, position: int) -> None:
        """Complete the open group, if there is one: it ends at *position*."""
        if self.key is None:
            return
        if self.scattered:
            self.scatter_open_group(position)
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

    def cut_contiguous(self, position: int) -> None:
        """Move the complete contiguous groups to `parts`, as one `ContiguousGroups`.

        The last of them ends where the open group begins, or at *position* if no group is open.
        """
        if not self.keys:
            return
        end, members = position + self.shift if self.key is None else self.begin, self.members
        if members is not None:
            first = len(members) if self.key is None else self.first
            members, self.members, self.first = members[:first], members[first:], 0
        self.parts.append(ContiguousGroups(self.source, self.keys, [*self.starts, end], members, self.firsts))
        self.keys, self.starts, self.firsts = [], [], []

    def scatter_open_group(self, position: int) -> None:
        """Move the members of the open group before *position* to `scattered`: the next one will not be contiguous.

        They are ranges of `source`. The complete groups before them are moved to `parts`.
        """
        self.cut_contiguous(position)
        if self.key is not None:
            from tartools.tar.rescan import members_in

            if not self.scattered:
                self.origin = self.base + self.begin - self.shift
            in_memory = not isinstance(self.source, io.FileIO)
            for member in members_in(self.source, self.begin, position + self.shift, ranges=True):
                self.add_scattered(member, in_memory * (member[3] - member[2] + member[4]))
                self.last = self.base + position
            if self.members:
                self.members.clear()
        self.begin, self.first = position + self.shift, 0

    def add_scattered(self, member: Member, size: int) -> None:
        """Add *member* to the scattered members of the open group; *size*: bytes of memory that it holds.

        Once they hold more than `MAX_GROUP_IN_MEMORY`, they become ranges of a scratch file.
        """
        self.scattered.append(member)
        self.held += size
        if self.held > MAX_GROUP_IN_MEMORY:
            from tartools.tar.rescan import spill_members

            self.scattered = spill_members(self.scattered, self._scratch)
            self.held = 0

    def interrupt(self, special: Special | None, position: int) -> None:
        """Record that bytes which belong to no group begin at *position*; *special*: the member there, which is added.

        *special*: None for an extended header or a member that is added elsewhere.
        """
        self.scatter_open_group(position)
        if special is not None:
            self.parts.append(special)
