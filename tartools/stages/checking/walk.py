"""Go through a shard that is not sound, header by header, and on behind damage where a header can be found.

Slower than the reader of the package `tar`, which stops at damage, and used only for shards that it does not accept.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator

from tartools.errors import TarFormatError, several
from tartools.samples.sample import decode_name
from tartools.stages.checking.codes import SPECIAL_CODES, ShardFinding
from tartools.tar import BLOCK, Member, encode_header, padded_size, split_path
from tartools.tar.foreign import is_cut_header, not_tar_message
from tartools.tar.fullheader import EXTENDED_TYPES, BadChecksumError, FullHeader, GlobalHeader, IncompleteHeader
from tartools.tar.header import (
    MAGIC_SLICE,
    PARSED_SIZES,
    SIZE_SLICE,
    TYPE_SLICE,
    Records,
    checksum_matches,
    has_foreign_prefix,
    regular_name,
)
from tartools.tar.rescan import HEADER_READ_BYTES, header_at

MAX_SEARCH_BYTES = 1 << 20  # bytes that are searched for a header at a time, at most
KNOWN_TYPE_FLAGS = b"\x000123456789DgxXLKMSV"  # type flags of headers
PAX_RECORD = re.compile(rb"\d+ [\w.]+=")  # the begin of the payload of a pax header


class MemberGroup:
    """Adjacent members of one *key* in a shard that is read header by header.

    `byte`: offset of the first header. `doubtful`: True if damage is beside or among them, or a missing end of archive
    right behind them. `members`: the complete members. `lost`: names of members whose payload is truncated.
    """

    def __init__(self, key: bytes, byte: int, doubtful: bool) -> None:
        self.key = key
        self.byte = byte
        self.doubtful = doubtful
        self.members: list[Member] = []
        self.lost: list[str] = []  # members that are cut


class Walk:
    """Reads the tar archive *file* header by header; iterating once yields its member groups, and findings, in order.

    `lax`: True if the archive needs no end. `complete`: False if decompression failed in the middle, so that a missing
        end or a truncated member is no finding.
    `size`: bytes of the file. `position`: the offset of the next header. `governing`: the global pax records that apply
        to it.
    `after_end`: True behind an end of archive, or if the walk has ended at damage. `after_damage`: True if damage lies
        before `position`, and no member between them.
    `group`: the group to which the next member may belong; None if there is none.
    `last_key`: key of the group that ended last.

    Holds: the members of one group. Raises: OSError if the file can't be read.
    """

    def __init__(self, file: io.FileIO, lax: bool = False, complete: bool = True) -> None:
        self.file = file
        self.lax = lax
        self.complete = complete
        self.size = os.fstat(file.fileno()).st_size
        self.position = 0
        self.governing: Records = {}
        self.after_end = False
        self.group: MemberGroup | None = None
        self.after_damage = False  # damage was just passed
        self.last_key = b""  # the key of the last group

    def read(self, count: int, position: int) -> bytes:
        """Return *count* bytes of the file from byte *position* on, fewer at its end."""
        return os.pread(self.file.fileno(), count, position)

    def __iter__(self) -> Iterator[ShardFinding | MemberGroup]:
        """Yield groups of members in order, and between them findings: damage, special members, a missing end, others.

        A finding comes when it is found; the group that it lies in comes after it. May be called once.
        """
        while self.position < self.size:
            block = self.read(BLOCK, self.position)
            if not block.strip(b"\0") and (len(block) == BLOCK or self.after_end):
                yield from self.close_group()
                self.after_end, self.governing = True, {}
                self.position = self.end_of_zeros()
                continue
            if not block.strip(b"\0"):
                break  # an end that is cut
            try:
                header = header_at(self.read, self.position, self.size, HEADER_READ_BYTES, self.governing)
            except TarFormatError as error:
                yield from self.skip_damage(error)
                continue
            if isinstance(header, GlobalHeader):
                self.governing = header.governing
                self.position += header.end
            elif isinstance(header, IncompleteHeader):
                if self.position == 0 and self.size < BLOCK and self.complete and not is_cut_header(block):
                    yield self.make_finding("not-tar", not_tar_message(block))
                    return
                yield from self.end_truncated(header.unit)
                return
            else:
                yield from self.add_member(header)
        yield from self.end_file()

    def end_file(self) -> Iterator[ShardFinding | MemberGroup]:
        """Yield the findings about the end of the file, then the open group.

        If the end of the archive is missing: "empty-shard" for a file of 0 bytes, else "no-end", unless `lax` or right
        behind damage; neither if not `complete`. The group is doubtful then, unless `lax`.
        """
        if not self.after_end and self.position <= self.size:
            if self.size == 0 and self.complete:
                yield self.make_finding("empty-shard", "")
            elif self.complete and not self.lax and not self.after_damage:
                yield self.make_finding("no-end", "")
            if self.group is not None and not self.lax:
                self.group.doubtful = True
        yield from self.close_group()

    def add_member(self, header: FullHeader) -> Iterator[ShardFinding | MemberGroup]:
        """Add the member of *header* to its group; yield the group that it ends, and findings about the member.

        Moves `position` behind the member. The first one behind an end of archive gives a finding. A special member
        gives a finding (a `silent` one none), and ends no group. Where the file ends inside a member, the walk ends as
        `end_truncated` says: if its payload is truncated, it is only a name in `lost` of the group; if only its padding
        is, it is a member of the group.
        """
        start = self.position
        if self.after_end:
            yield self.make_finding("archive-after-end", "")
        self.after_end, self.governing = False, header.governing
        special = header.special
        if special is not None:
            if not special.silent:
                yield self.make_finding(SPECIAL_CODES[special.kind], f"{special.name}: {special.kind}")
            if start + header.end > self.size:
                yield from self.end_truncated(special.name)
            self.position = min(start + header.end, self.size)
            return
        key, field = split_path(header.path)
        if self.group is None or self.group.key != key or not field:
            yield from self.close_group()
            self.group = MemberGroup(key, start, self.after_damage)
        self.after_damage = False
        data = start + header.data
        head = header.head
        block = (head or self.read(BLOCK, data - BLOCK))[-BLOCK:]
        if has_foreign_prefix(block) and header.path == regular_name(block):
            yield self.make_finding("foreign-prefix", header.name)
            member = Member(header.path, self.file, start, data, header.size, head)
            head = encode_header(header.path, header.size, member)
        if data + header.size > self.size:
            self.group.lost.append(header.name)
            yield from self.end_truncated(f"the payload of {header.name!r}")
            self.position = self.size
            return
        if data + padded_size(header.size) > self.size:
            head = head or self.read(header.data, start)  # so that its padding is written anew
            self.group.members.append(Member(header.path, self.file, start, data, header.size, head))
            yield from self.end_truncated(f"the padding of {header.name!r}")
            self.position = self.size
            return
        self.group.members.append(Member(header.path, self.file, start, data, header.size, head))
        self.position = start + header.end

    def end_truncated(self, part: str) -> Iterator[ShardFinding | MemberGroup]:
        """Yield the finding that the file ends inside *part*, in words, then the open group, doubtful; end the walk.

        The code is "cut-shard"; there is no finding if not `complete`. Behind an end of archive it is always
        "garbage-after-end": so many bytes were passed over.
        """
        if self.after_end:
            yield self.make_finding("garbage-after-end", several(self.size - self.position, "byte") + " passed over")
        elif self.complete:
            yield self.make_finding("cut-shard", f"inside {part}")
        if self.group is not None:
            self.group.doubtful = True
        yield from self.close_group()
        self.after_damage, self.after_end, self.position = True, True, self.size

    def skip_damage(self, error: TarFormatError) -> Iterator[ShardFinding | MemberGroup]:
        """Yield the finding for *error*, of the header at `position`, and move to the next header, or to the end.

        The open group becomes doubtful, and the next one, unless this is behind an end of archive; if no header
        follows, the open group is yielded. Codes: "bad-size", "bad-extended"; for a wrong checksum "bad-header", behind
        an end of archive "garbage-after-end", in a file without any header "not-tar".
        """
        next_offset = self.next_header()
        block = self.read(BLOCK, self.position)
        if isinstance(error, BadChecksumError):
            code = "garbage-after-end" if self.after_end else "bad-header"
            if self.position == 0 and next_offset is None:
                code = "not-tar"
        else:
            code = "bad-size" if error.message.startswith("the size in the header") else "bad-extended"
        skipped_bytes = (self.size if next_offset is None else next_offset) - self.position
        detail = not_tar_message(block) if code == "not-tar" else several(skipped_bytes, "byte") + " passed over"
        yield self.make_finding(code, detail)
        if self.group is not None:
            self.group.doubtful = True
        if self.after_end:
            yield from self.close_group()
        self.after_damage = not self.after_end
        if next_offset is None:
            yield from self.close_group()
            self.after_end = True
        elif self.after_end:
            self.after_end = False
        self.position = self.size if next_offset is None else next_offset

    def next_header(self) -> int | None:
        """Return the offset of the next ustar header behind damage at `position`; None if there is none.

        If the damage seems to be in an extended header, the header of the member that it belongs to is passed over, as
        its name is not known; but not if another extended header comes next.
        """
        block = self.read(BLOCK + 64, self.position)
        offset = self.search_header(self.position + 1)
        unnamed = (
            block[TYPE_SLICE] in EXTENDED_TYPES or PAX_RECORD.match(block[BLOCK:]) or block.startswith(b"././@LongLink")
        )
        if offset is not None and unnamed and block[TYPE_SLICE]:
            kind = self.read(BLOCK, offset)[TYPE_SLICE]
            if kind not in EXTENDED_TYPES:
                offset = self.search_header(offset + 1)
        return offset

    def search_header(self, start: int) -> int | None:
        """Return the offset of the first ustar header that begins at byte *start* or later; None if there is none.

        It may begin at any byte, not only a multiple of 512. It has the magic number, a name, a type flag of tar, a
        size and a matching checksum, and is not truncated.
        """
        size = HEADER_READ_BYTES  # usually the next header is near
        while start < self.size:
            data = self.read(size, start)
            at = data.find(b"ustar")
            while at >= 0:
                begin = at - MAGIC_SLICE.start
                block = data[max(begin, 0) : begin + BLOCK]
                is_candidate = (
                    begin >= 0 and len(block) == BLOCK and block[:1] != b"\0" and block[TYPE_SLICE] in KNOWN_TYPE_FLAGS
                )
                if is_candidate and PARSED_SIZES[block[SIZE_SLICE]] >= 0 and checksum_matches(block):
                    return start + begin
                at = data.find(b"ustar", at + 1)
            if len(data) < size:
                return None
            size = min(4 * size, MAX_SEARCH_BYTES)
            start += len(data) - 2 * BLOCK
        return None

    def end_of_zeros(self) -> int:
        """Return the offset behind the zero blocks that begin at `position`; at most the end of the file."""
        position = self.position
        while position < self.size:
            data = self.read(MAX_SEARCH_BYTES, position)
            zeros = len(data) - len(data.lstrip(b"\0"))
            if zeros < len(data):
                return position + zeros // BLOCK * BLOCK
            position += len(data)
        return self.size

    def close_group(self) -> Iterator[MemberGroup]:
        """Yield the open group, if there is one; no group is open then, and `last_key` is its key."""
        if self.group is not None:
            self.last_key = self.group.key
            yield self.group
            self.group = None

    def make_finding(self, code: str, detail: str) -> ShardFinding:
        """Return a finding with *code* and description *detail* at `position`.

        Its key is that of the open group, or else of the group that ended last; "" if there was none.
        """
        key = self.group.key if self.group is not None else self.last_key
        return ShardFinding(code, self.position, decode_name(key), detail)
