"""Grouping: collect the members that a reader finds into groups."""

from __future__ import annotations

import io
from collections.abc import Callable

from tartools.tar.groups import ContiguousGroups, Parsed, ScatteredGroup, Special
from tartools.tar.header import padded_size
from tartools.tar.keys import NO_STEM, has_stem, split_path, stem_of
from tartools.tar.member import Member, Source

MAX_GROUP_IN_MEMORY = 16 << 20  # bytes; larger members and groups are ranges of files, not memory


class OpenGroup:
    """The group to which the next member of a stream may belong: its members so far.

    Its contiguous members are the last ones of `Grouper.members`. Members before them are in `scattered` if something
    separates them from these: a special member, a pax global header, or the end of a buffer.

    `key`: the key of its members; None if no group is open: then `stem` is `NO_STEM`, and the others have no meaning.
    `stem`: the paths of its members begin with this (`tar.keys`); `NO_STEM` if its only member has no field, so that
    no further member belongs to it.
    `begin`: offset in `Grouper.source` of its first contiguous member; without one, where the next one would begin.
    `first`: index of that member in `Grouper.members`.
    `scattered`: its earlier members, in order.
    `scattered_memory`: bytes of memory that these hold.
    `stream_begin`: offset in the stream of the first member in `scattered`.
    `stream_end`: offset in the stream of the end of the last member in `scattered`; not kept up to date for members
    with a replaced header (`Member.head`).
    """

    __slots__ = ("begin", "first", "key", "scattered", "scattered_memory", "stem", "stream_begin", "stream_end")

    def __init__(self) -> None:
        """Make the state in which no group is open."""
        self.key: bytes | None = None
        self.stem = NO_STEM
        self.begin = 0
        self.first = 0
        self.scattered: list[Member] = []
        self.scattered_memory = 0
        self.stream_begin = 0
        self.stream_end = 0

    def owns(self, path: bytes) -> bool:
        """True if a group is open to which a member named *path* belongs."""
        return self.stem is not NO_STEM and has_stem(path, self.stem)

    def add_scattered(self, member: Member, size: int, scratch: Callable[[], io.FileIO]) -> None:
        """Add *member* to `scattered`; *size*: bytes of memory that it holds.

        Once all of them together hold more than `MAX_GROUP_IN_MEMORY`, they become ranges of the plain file that they
        were read from, or of a file that *scratch* makes. Raises: StorageError if that can't be written.
        """
        self.scattered.append(member)
        self.scattered_memory += size
        if self.scattered_memory > MAX_GROUP_IN_MEMORY:
            from tartools.tar.rescan import spill_members

            self.scattered = spill_members(self.scattered, scratch)
            self.scattered_memory = 0

    def take_scattered(self) -> ScatteredGroup:
        """Empty `scattered`, and return its members as a group; a group must be open, without contiguous members."""
        assert self.key is not None
        members, self.scattered, self.scattered_memory = self.scattered, [], 0
        own = all(head is None for *_, head in members)  # no header is replaced
        stored = sum(data - start + padded_size(size) for _, _, start, data, size, _ in members)
        is_contiguous = own and stored == self.stream_end - self.stream_begin
        return ScatteredGroup(self.key, members, self.stream_begin if is_contiguous else None)


class Grouper:
    """Collects the members of one stream into groups: complete groups, not yielded yet, and the open group.

    The reader's hot loop appends plain members to the columns itself. Before each other member the reader calls
    `start_or_join`; then it adds the member to `members` (if these are listed) or, if it is not contiguous, by
    `OpenGroup.add_scattered`. It calls `interrupt` where bytes begin that belong to no group, `complete_group` at an
    end of archive, and `drain`, which returns the complete parts. Positions are offsets in the reader's buffer.

    Methods that scatter members (all but `drain` and `cut_contiguous`) raise StorageError or TarFormatError if the
    input file has changed, and StorageError if a file of `scratch` can't be written.

    `source`: the buffer or file that holds the members.
    `shift`: what is added to a position to get the offset in `source`.
    `base`: offset of the reader's buffer in the stream.
    `uniform`: True if many groups with equal fields may come as `UniformGroups`, in place of their members.
    `scratch`: makes a file for groups above 16 MiB.
    `parts`: complete groups, special members and ends of archives, in order; the groups of the next attributes follow.
    `keys`, `starts`, `firsts`: of each complete group that is contiguous: key, offset in `source`, index of its first
    member in `members`.
    `members`: the members of these groups and then of the open one; None if members are not listed.
    `open`: the open group.
    """

    def __init__(self, scratch: Callable[[], io.FileIO], listed: bool, uniform: bool) -> None:
        """Begin without a group.

        *scratch*: makes a file for groups above 16 MiB. *listed*: True to list members; False if only the begins of
        groups are needed. *uniform*: with *listed*, allow `UniformGroups`.
        """
        self.source: Source = b""
        self.shift = 0
        self.base = 0
        self.scratch = scratch
        self.uniform = listed and uniform
        self.parts: list[Parsed] = []
        self.keys: list[bytes] = []
        self.starts: list[int] = []
        self.firsts: list[int] = []
        self.members: list[Member] | None = [] if listed else None
        self.open = OpenGroup()

    def drain(self, position: int) -> list[Parsed]:
        """Remove all complete parts, and return them in order: groups, special members and ends of archives.

        *position*: the offset up to which the buffer was parsed: the end of the last complete group if none is open.
        """
        self.cut_contiguous(position)
        parts, self.parts = self.parts, []
        return parts

    def start_or_join(self, path: bytes, position: int) -> None:
        """Unless the member *path* at *position* is in the open group: complete that, and open one that begins here.

        The caller adds the member.
        """
        group = self.open
        if not group.owns(path):
            self.complete_group(position)
            group.key, field = split_path(path)
            group.stem = stem_of(group.key, bool(field))
            group.begin = position + self.shift
            group.first = len(self.members or ())

    def complete_group(self, position: int) -> None:
        """Complete the open group, if there is one: it ends at *position*, and no group is open then."""
        group = self.open
        if group.key is None:
            return
        if group.scattered:
            self.scatter_open_group(position)
            self.parts.append(group.take_scattered())
        else:
            self.keys.append(group.key)
            self.starts.append(group.begin)
            self.firsts.append(group.first)
        group.key, group.stem = None, NO_STEM

    def cut_contiguous(self, position: int) -> None:
        """Move the complete contiguous groups, if there are any, to `parts`, as one `ContiguousGroups`.

        The last of them ends where the open group begins, or at *position* if no group is open.
        """
        if not self.keys:
            return
        group, members = self.open, self.members
        end = position + self.shift if group.key is None else group.begin
        if members is not None:
            first = len(members) if group.key is None else group.first
            members, self.members, group.first = members[:first], members[first:], 0
        self.parts.append(ContiguousGroups(self.source, self.keys, [*self.starts, end], members, self.firsts))
        self.keys, self.starts, self.firsts = [], [], []

    def scatter_open_group(self, position: int) -> None:
        """Move the members of the open group before *position* to its scattered ones: the next one is not contiguous.

        They are ranges of `source`, above 16 MiB of other files. The complete groups before them are moved to `parts`,
        also if no group is open.
        """
        self.cut_contiguous(position)
        group = self.open
        if group.key is not None:
            from tartools.tar.rescan import members_in

            if not group.scattered:
                group.stream_begin = self.base + group.begin - self.shift
            in_memory = not isinstance(self.source, io.FileIO)
            for member in members_in(self.source, group.begin, position + self.shift, ranges=True):
                group.add_scattered(member, in_memory * (member[3] - member[2] + member[4]), self.scratch)
                group.stream_end = self.base + position
            if self.members:
                self.members.clear()
        group.begin, group.first = position + self.shift, 0

    def interrupt(self, special: Special | None, position: int) -> None:
        """Record that bytes which belong to no group begin at *position*; *special*: the member there, which is added.

        The open group stays open; its members so far become scattered ones.
        *special*: None for a pax global header, or for a member that the caller adds itself.
        """
        self.scatter_open_group(position)
        if special is not None:
            self.parts.append(special)
