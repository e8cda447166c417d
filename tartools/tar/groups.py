"""Groups of members as a reader finds them: those that are complete, and the one that is open."""

from __future__ import annotations

import io
from collections.abc import Callable

from tartools.tar.header import BLOCK, Member, Source
from tartools.tar.members import members_in, spilled
from tartools.tar.parts import Loose, Part, Run, Special, belongs, split_path

LARGE = 16 << 20  # bytes; larger members and groups are ranges of files, not memory
NAME_BYTES = 100  # in a header block
NO_STEM = bytes(BLOCK)  # with which no name in a header begins


class Groups:
    """Groups in one stream. The reader's hot loop adds those that are plain to the columns itself.

    *source* is what they lie in, *shift* bytes further on than in the reader's buffer, of which positions are.
    With *listed*, the members are written down, not only where groups begin.
    """

    def __init__(self, scratch: Callable[[], io.FileIO], listed: bool) -> None:
        self.source: Source = b""
        self.shift = 0
        self._scratch = scratch
        self.parts: list[Part] = []  # complete, and not yet taken
        self.keys: list[bytes] = []  # columns of a run: of groups that are complete and lie one behind the other
        self.starts: list[int] = []
        self.firsts: list[int] = []  # in members, of each
        self.members: list[Member] | None = [] if listed else None  # of these, and of the open one in this run
        self.key: bytes | None = None  # of the group that is open; None if there is none
        self.stem = NO_STEM  # with which the paths of its members begin
        self.begin = 0  # where it begins, in the source
        self.first = 0  # in members
        self.loose: list[Member] = []  # its members before that, elsewhere
        self.held = 0  # bytes of these in memory

    def taken(self, position: int) -> list[Part]:
        """Return what was found before *position*, and is not to be given again."""
        self.cut(position)
        parts, self.parts = self.parts, []
        return parts

    @property
    def plain_stem(self) -> bool:
        """Tell whether the stem can be compared with the name field of a header."""
        return len(self.stem) < NAME_BYTES and b"\0" not in self.stem

    def takes(self, path: bytes) -> bool:
        """Tell whether the member *path* belongs to the group that is open."""
        return self.stem is not NO_STEM and belongs(path, self.stem)

    def admit(self, path: bytes, position: int) -> None:
        """Have the member *path* at *position* begin a group, unless it belongs to the one that is open."""
        if not self.takes(path):
            self.complete(position)
            self.key, field = split_path(path)
            self.stem = self.key + b"." if field else NO_STEM
            self.begin = position + self.shift
            self.first = len(self.members or ())

    def complete(self, position: int) -> None:
        """Complete the open group, which ends at *position*, if there is one."""
        if self.key is None:
            return
        if self.loose:
            self.loosen(position)
            self.parts.append(Loose(self.key, self.loose))
            self.loose, self.held = [], 0
        else:
            self.keys.append(self.key)
            self.starts.append(self.begin)
            self.firsts.append(self.first)
        self.key, self.stem = None, NO_STEM

    def cut(self, position: int) -> None:
        """End the run of groups, which goes up to the open one, or to *position* if there is none."""
        if not self.keys:
            return
        end, members = position + self.shift if self.key is None else self.begin, self.members
        if members is not None:
            first = len(members) if self.key is None else self.first
            members, self.members, self.first = members[:first], members[first:], 0
        self.parts.append(Run(self.source, self.keys, [*self.starts, end], members, self.firsts))
        self.keys, self.starts, self.firsts = [], [], []

    def loosen(self, position: int) -> None:
        """Have the open group go on without its part before *position*, since it will not lie in one piece."""
        self.cut(position)
        if self.key is not None:
            held = not isinstance(self.source, io.FileIO)
            for member in members_in(self.source, self.begin, position + self.shift, ranges=True):
                self.keep(member, held * (member[3] - member[2] + member[4]))
            if self.members:
                self.members.clear()
        self.begin, self.first = position + self.shift, 0

    def keep(self, member: Member, held: int) -> None:
        """Add *member*, with *held* bytes in memory, to those of the open group that lie elsewhere."""
        self.loose.append(member)
        self.held += held
        if self.held > LARGE:
            self.loose = spilled(self.loose, self._scratch)
            self.held = 0

    def tell(self, special: Special | None, position: int) -> None:
        """Take note of what is at *position*, which is part of no group and may be *special*."""
        self.loosen(position)
        if special is not None:
            self.parts.append(special)
