"""Go through a shard that is not sound, header by header, and on behind damage where a header can be found.

Slower than the reader of the room `tar`, which stops at damage, and used only for shards that it does not accept.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator

from tartools.errors import TarFormatError, several
from tartools.stages.checking.codes import SPECIAL, Trouble
from tartools.stages.combinations import text
from tartools.tar import BLOCK, Member, encode_header, padded, split_path
from tartools.tar.foreign import is_cut_header, not_tar_message
from tartools.tar.fullheader import EXTENDED, BadChecksumError, FullHeader, GlobalHeader, NeedMore
from tartools.tar.header import (
    MAGIC,
    SIZE,
    SIZES,
    TYPE,
    Records,
    checksum_matches,
    has_foreign_prefix,
    regular_name,
)
from tartools.tar.rescan import WINDOW, header_at

SEARCHED = 1 << 20  # bytes that are searched for a header at a time, at most
TYPES = b"\x000123456789DgxXLKMSV"  # type flags of headers
PAX = re.compile(rb"\d+ [\w.]+=")  # the begin of the payload of a pax header


class MemberGroup:
    """Adjacent members of one key, which begin at *byte*. If *doubtful*, damage is beside them or among them."""

    def __init__(self, key: bytes, byte: int, doubtful: bool) -> None:
        self.key = key
        self.byte = byte
        self.doubtful = doubtful
        self.members: list[Member] = []
        self.lost: list[str] = []  # members that are cut


class Walk:
    """The groups of members of the tar archive *file*, and what is wrong with it, as they come; to be iterated once.

    With *lax*, the archive needs no end. If the file is not *whole*, because it has what could be decompressed, where
    it ends says nothing. Holds: the members of one group. Raises: StorageError.
    """

    def __init__(self, file: io.FileIO, lax: bool = False, whole: bool = True) -> None:
        self.file = file
        self.lax = lax
        self.whole = whole
        self.size = os.fstat(file.fileno()).st_size
        self.position = 0
        self.governing: Records = {}
        self.ended = False
        self.group: MemberGroup | None = None
        self.beside = False  # damage was just passed
        self.last = b""  # the key of the last group

    def read(self, count: int, position: int) -> bytes:
        """Return *count* bytes from *position* on, or as many as there are."""
        return os.pread(self.file.fileno(), count, position)

    def __iter__(self) -> Iterator[Trouble | MemberGroup]:
        """Yield groups and troubles, in order."""
        while self.position < self.size:
            block = self.read(BLOCK, self.position)
            if not block.strip(b"\0") and (len(block) == BLOCK or self.ended):
                yield from self.closed()
                self.ended, self.governing = True, {}
                self.position = self.after_zeros()
                continue
            if not block.strip(b"\0"):
                break  # an end that is cut
            try:
                header = header_at(self.read, self.position, self.size, WINDOW, self.governing)
            except TarFormatError as error:
                yield from self.damaged(error)
                continue
            if isinstance(header, GlobalHeader):
                self.governing = header.governing
                self.position += header.end
            elif isinstance(header, NeedMore):
                if self.position == 0 and self.size < BLOCK and self.whole and not is_cut_header(block):
                    yield self.trouble("not-tar", not_tar_message(block))
                    return
                yield from self.cut(header.what)
                return
            else:
                yield from self.member(header)
        yield from self.end()

    def end(self) -> Iterator[Trouble | MemberGroup]:
        """Yield what is left where the file ends."""
        if not self.ended and self.position <= self.size:
            if self.size == 0 and self.whole:
                yield self.trouble("empty-shard", "")
            elif self.whole and not self.lax and not self.beside:
                yield self.trouble("no-end", "")
            if self.group is not None and not self.lax:
                self.group.doubtful = True
        yield from self.closed()

    def member(self, header: FullHeader) -> Iterator[Trouble | MemberGroup]:
        """Add the member of *header* to its group, or yield what it is instead."""
        start = self.position
        if self.ended:
            yield self.trouble("archive-after-end", "")
        self.ended, self.governing = False, header.governing
        special = header.special
        if special is not None:
            if not special.silent:
                yield self.trouble(SPECIAL[special.kind], f"{special.name}: {special.kind}")
            if start + header.end > self.size:
                yield from self.cut(special.name)
            self.position = min(start + header.end, self.size)
            return
        key, field = split_path(header.path)
        if self.group is None or self.group.key != key or not field:
            yield from self.closed()
            self.group = MemberGroup(key, start, self.beside)
        self.beside = False
        data = start + header.data
        head = header.head
        block = (head or self.read(BLOCK, data - BLOCK))[-BLOCK:]
        if has_foreign_prefix(block) and header.path == regular_name(block):
            yield self.trouble("foreign-prefix", header.name)
            member = Member(header.path, self.file, start, data, header.size, head)
            head = encode_header(header.path, header.size, member)
        if data + header.size > self.size:
            self.group.lost.append(header.name)
            yield from self.cut(f"the payload of {header.name!r}")
            self.position = self.size
            return
        if data + padded(header.size) > self.size:
            head = head or self.read(header.data, start)  # so that its padding is written anew
            self.group.members.append(Member(header.path, self.file, start, data, header.size, head))
            yield from self.cut(f"the padding of {header.name!r}")
            self.position = self.size
            return
        self.group.members.append(Member(header.path, self.file, start, data, header.size, head))
        self.position = start + header.end

    def cut(self, what: str) -> Iterator[Trouble | MemberGroup]:
        """Yield that the file ends inside *what*."""
        if self.ended:
            yield self.trouble("garbage-after-end", several(self.size - self.position, "byte") + " passed over")
        elif self.whole:
            yield self.trouble("cut-shard", f"inside {what}")
        if self.group is not None:
            self.group.doubtful = True
        yield from self.closed()
        self.beside, self.ended, self.position = True, True, self.size

    def damaged(self, error: TarFormatError) -> Iterator[Trouble | MemberGroup]:
        """Yield the damage at the position, and go on at the next header."""
        found = self.next_header()
        block = self.read(BLOCK, self.position)
        if isinstance(error, BadChecksumError):
            code = "garbage-after-end" if self.ended else "bad-header"
            if self.position == 0 and found is None:
                code = "not-tar"
        else:
            code = "bad-size" if error.message.startswith("the size in the header") else "bad-extended"
        passed = (self.size if found is None else found) - self.position
        what = not_tar_message(block) if code == "not-tar" else several(passed, "byte") + " passed over"
        yield self.trouble(code, what)
        if self.group is not None:
            self.group.doubtful = True
        if self.ended:
            yield from self.closed()
        self.beside = not self.ended
        if found is None:
            yield from self.closed()
            self.ended = True
        elif self.ended:
            self.ended = False
        self.position = self.size if found is None else found

    def next_header(self) -> int | None:
        """Return where the next header behind the position is; None if there is none.

        If the damage is in an extended header, the member that it belongs to is passed over: its name is not known.
        """
        block = self.read(BLOCK + 64, self.position)
        found = self.search(self.position + 1)
        unnamed = block[TYPE] in EXTENDED or PAX.match(block[BLOCK:]) or block.startswith(b"././@LongLink")
        if found is not None and unnamed and block[TYPE]:
            kind = self.read(BLOCK, found)[TYPE]
            if kind not in EXTENDED:
                found = self.search(found + 1)
        return found

    def search(self, start: int) -> int | None:
        """Return where the first header from byte *start* on is, whose checksum is right; None if there is none."""
        size = WINDOW  # usually the next header is near
        while start < self.size:
            held = self.read(size, start)
            at = held.find(b"ustar")
            while at >= 0:
                begin = at - MAGIC.start
                block = held[max(begin, 0) : begin + BLOCK]
                known = begin >= 0 and len(block) == BLOCK and block[:1] != b"\0" and block[TYPE] in TYPES
                if known and SIZES[block[SIZE]] >= 0 and checksum_matches(block):
                    return start + begin
                at = held.find(b"ustar", at + 1)
            if len(held) < size:
                return None
            size = min(4 * size, SEARCHED)
            start += len(held) - 2 * BLOCK
        return None

    def after_zeros(self) -> int:
        """Return where the zero blocks at the position end."""
        position = self.position
        while position < self.size:
            held = self.read(SEARCHED, position)
            zeros = len(held) - len(held.lstrip(b"\0"))
            if zeros < len(held):
                return position + zeros // BLOCK * BLOCK
            position += len(held)
        return self.size

    def closed(self) -> Iterator[MemberGroup]:
        """Yield the group that is open, which is complete."""
        if self.group is not None:
            self.last = self.group.key
            yield self.group
            self.group = None

    def trouble(self, code: str, what: str) -> Trouble:
        """Return what is wrong at the position."""
        key = self.group.key if self.group is not None else self.last
        return Trouble(code, self.position, text(key), what)
