"""Parse a tar stream to groups of members: the hot loop of the toolbox.

`refill` reads up to 1 MiB into a buffer, `parse` goes over its headers, in turn. One look-up verifies that a header is
that of a plain regular file, one comparison tells whether it belongs to the open group; only the start of each group is
recorded. `runs` does this for many members at once, by numpy, where that pays. All else (extended headers, links, the
end, damage) takes the slow path. A buffer is used again only where members are ranges of a file: else samples hold
views of it. At the end of a full buffer the bytes of the open group are copied to the next one; if too many, its
members are set aside (`Grouper.scatter_open_group`). A member too large for a buffer becomes a range of a file.

Offsets are of three kinds; without a word about it, they are in the buffer:

    stream    0 ......... buffer.base ......................................... the end of the tar
    buffer                0 ................. position .......... filled        as far as it was parsed, and read
    source    0 ......... groups.shift                                          where the consumer finds the members

The source of members is the buffer itself, and then `groups.shift` is 0; or, if payloads may stay in a plain file, that
file, in which the stream begins at byte `stream.start`: then `groups.shift` is `buffer.base + stream.start`. In the
source are the starts of groups, `begin` of the open group, and `start` and `data` of members; in the stream are
`stream_begin` and `stream_end` of the open group, and the offsets that errors have.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from itertools import chain

from tartools.errors import TarFormatError, TruncatedError, option
from tartools.storage.streams import Stream, chunks, size_of, skip
from tartools.tar.fullheader import (
    BadChecksumError,
    ExtendedHeaders,
    FullHeader,
    GlobalHeader,
    IncompleteHeader,
    read_full_header,
)
from tartools.tar.grouping import MAX_GROUP_IN_MEMORY, Grouper
from tartools.tar.groups import ARCHIVE_END, FOREIGN_PREFIX, Need, Parsed, Special
from tartools.tar.header import (
    BLOCK,
    EXPECTED_SUMS,
    FAST_HEADER,
    HALF_BLOCK,
    MAGIC_SLICE,
    NO_SUMS,
    PARSED_SIZES,
    RECORD_BYTES,
    Records,
    adler32,
    has_foreign_prefix,
    regular_name,
)
from tartools.tar.keys import NAME_BYTES, NO_STEM, has_stem, is_macos_metadata
from tartools.tar.member import Chunk, Member

BUFFER_BYTES = 1 << 20  # bytes of a buffer and of a read: fewer and longer ones are faster; a larger member is a range
MAX_CARRY_BYTES = 1 << 18  # bytes of a group that are copied to the next buffer, so that the group stays contiguous
DENSE_HEADERS_PER_MIB = 256  # headers in a MiB
MIN_SKIP_BYTES = 1 << 16  # bytes; if more than these are skipped in a file, the next read is short
FIRST_READ_BYTES = 1 << 13  # bytes of that short read, since more payloads to skip may follow
ZERO_BLOCK = bytes(BLOCK)
GROUPS_BEFORE_RUNS = 200  # groups that are parsed before runs are looked for
NUMPY_MIN_GROUPS = 40_000  # groups; to parse them takes about as long as to import numpy
MAX_RUN_MISSES = 4  # to find a run in a window
_TRAILING = "the bytes after the end of the archive are neither zeros nor an archive"


def read_members(
    stream: Stream,
    *,
    url: str,
    scratch: Callable[[], io.FileIO],
    need: Need = Need.PAYLOADS,
    uniform: bool = False,
    lax: bool = False,
    begin: int = 0,
    until: int | None = None,
) -> Iterator[Parsed]:
    """Yield groups of regular members, each special member, and ARCHIVE_END at each archive end, in order of *stream*.

    A group is adjacent members with the same key (`tar.keys`). Special members do not end a group, but come before it;
    an end of archive ends it. A group comes once the next header was verified, without waiting for its payload. An
    archive behind an end is read too. Damage is raised after all groups before it, but the one that it interrupts.
    If *stream* is a regular file, and *need* leaves payloads there, groups are ranges of it and large payloads are not
    read. Contiguous groups list their members if *need* says so. With *uniform*, groups that numpy finds to have equal
    fields come as `UniformGroups` in place of members, and a large file that begins with small members is read as if
    payloads were needed: for callers that hold no samples.
    A regular file can be read in parts: *begin* is the offset at which *stream* stands, *until* the offset to stop at,
    which must be between two members that no global header governs.
    Holds: one buffer, of 1 MiB or as long as a member, and older ones that consumers keep alive. Members above 16 MiB
    (in a regular file: 1 MiB) and those of groups above 16 MiB are ranges of the input or of a file that *scratch*
    makes, whose `write` writes all. Raises: TarFormatError and TruncatedError with *url* and byte offset; StorageError.
    With *lax*, an input that is not empty may end between two members without an end of archive: then a `Special` of
    kind "missing end", the last group and ARCHIVE_END are yielded.
    """
    reader = Reader(stream, url, scratch, need, uniform, begin, until)
    while reader.refill():
        if reader.lacks_bytes:
            continue
        reader.take_run()
        failure = reader.parse()
        reader.count_groups()
        yield from reader.groups.drain(reader.position)
        if failure is not None:
            raise failure
    if until is not None:
        reader.end_part(until)
        yield from reader.groups.drain(reader.position)
    elif not reader.check_end(lax):
        yield Special(url, "missing end", False)
        yield from reader.groups.drain(reader.position)
        yield ARCHIVE_END


class Reader:
    """The state of reading one stream: the buffer, how far it is filled and parsed, the groups found in it.

    After each `refill`: `take_run`, `parse`, `count_groups`, `groups.drain`; at the end: `check_end` or `end_part`.
    """

    def __init__(
        self,
        stream: Stream,
        url: str,
        scratch: Callable[[], io.FileIO],
        need: Need,
        uniform: bool,
        begin: int,
        until: int | None,
    ) -> None:
        """Begin to read *stream*, the tar of *url*, which stands at byte *begin* of that tar. *need*: the parts used.

        *scratch*: makes files. *uniform*: allow `UniformGroups`. *until*: byte of the tar to stop at; None: its end.
        """
        self.stream = stream
        self.url = url
        self.scratch = scratch
        self.limit = BUFFER_BYTES if stream.file is not None else MAX_GROUP_IN_MEMORY
        self.size = 0 if stream.file is None else max(0, size_of(stream.file) - stream.start)
        self.until = sys.maxsize if until is None else until
        self.size = min(self.size, self.until)
        self.ranges = need.leaves_payloads and stream.file is not None
        if self.ranges and stream.file is not None and uniform and self.size - begin >= MAX_GROUP_IN_MEMORY:
            self.ranges = not is_dense(stream.file, stream.start + begin)  # to read small members is less than to skip
        self.position = 0  # offset in the buffer up to which it is parsed
        self.filled = 0
        self.need = BLOCK  # bytes from position on that are needed to go on parsing
        self.waiting = "a header"  # what these bytes are
        self.extended: ExtendedHeaders | None = None  # those at position, if more bytes are needed for the header
        self.large: FullHeader | None = None  # a member whose payload is too large for a buffer
        self.ended = False  # the last thing parsed was an end of archive
        self.foreign_prefix = False  # a header with one was noted
        self.globals: Records = {}
        # bytes to read next; a part may be short
        self.reach = FIRST_READ_BYTES if self.ranges and until is not None else BUFFER_BYTES
        self.seen = 0  # groups
        self.takes_runs = until is not None and "numpy" in sys.modules  # of plain headers, by numpy
        self.failed = 0  # times in a row that there was no run
        self.groups = Grouper(scratch, need.lists_members, uniform)
        # no larger than what is to be read: large buffers cost time
        end = self.until if stream.file is None else self.size
        self._begin_buffer(Chunk(max(0, min(self.reach, end - begin + BLOCK)), stream, begin))

    # One long function on purpose. Its inner loop runs for every member, in about a microsecond: there each call of
    # another Python function, and each access to an attribute instead of a local variable, would be measurable.
    def parse(self) -> TarFormatError | None:  # noqa: PLR0912, PLR0915
        """Parse the buffer into `groups` until more bytes are needed, and return None; at damage, return the error."""
        buffer, filled, position, groups = self.buffer, self.filled, self.position, self.groups
        source, shift, limit, group = groups.source, groups.shift, self.payload_limit(), groups.open
        unpack, sizes = FAST_HEADER.unpack, PARSED_SIZES
        while position + BLOCK <= filled:
            expected, loose = NO_SUMS if self.globals else EXPECTED_SUMS, bool(group.scattered)
            keys, starts, firsts, members = groups.keys, groups.starts, groups.firsts, groups.members
            key, stem, begin, first = group.key, group.stem, group.begin, group.first  # `short`: fits a name field
            short, length = (stem, len(stem)) if len(stem) < NAME_BYTES and b"\0" not in stem else (NO_STEM, 0)
            while position + BLOCK <= filled:
                data = position + BLOCK
                block = buffer[position:data]
                name, size_field, check, prefix = unpack(block)
                low = adler32(block) & 0xFFFF
                if low != expected[check] or not (block.isascii() or adler32(block[HALF_BLOCK:]) & 0xFFFF <= low):
                    break
                size = sizes[size_field]
                end = data + ((size + 511) & -512)
                if end > limit or size < 0 or (not size and (prefix or b"/" in name)):
                    break
                if name.startswith(short) and name[length] and name.find(b"/", length) < 0 and not prefix:
                    if members is not None:  # the same group
                        path = name.partition(b"\0")[0]
                        members.append((path, source, position + shift, data + shift, size, None))  # type: ignore[arg-type]
                    position = end
                    continue
                path = self._prefixed_name(bytes(block)) if prefix else name.partition(b"\0")[0]
                if not (path.startswith(stem) and has_stem(path, stem)):
                    base = path.rfind(b"/") + 1  # `keys.split_path`, inlined
                    dot = path.find(b".", base)
                    if loose or (dot == base and is_macos_metadata(path)):
                        break
                    if key is not None:
                        keys.append(key)
                        starts.append(begin)
                        firsts.append(first)
                    begin = position + shift
                    if base < dot < len(path) - 1:
                        key, stem, length = path[:dot], path[: dot + 1], dot + 1
                        short = stem if length < NAME_BYTES else NO_STEM
                    else:
                        key, stem, short = path, NO_STEM, NO_STEM
                    if members is not None:
                        first = len(members)
                if members is not None:
                    members.append((path, source, position + shift, data + shift, size, None))  # type: ignore[arg-type]
                position = end
            self.ended = self.ended and position == self.position
            self.position, group.key, group.stem, group.begin, group.first = position, key, stem, begin, first
            if position + BLOCK > filled:
                break
            try:
                if not self._parse_slowly():
                    return None
            except TarFormatError as error:
                return self._explain(error)
            position = self.position
        self.need, self.waiting = BLOCK, "a header"
        return None

    @property
    def lacks_bytes(self) -> bool:
        """True if `need` is above 512 and the buffer lacks some of it: to parse it once more would be in vain."""
        return self.need > BLOCK and self.position + self.need > self.filled

    def take_run(self) -> None:
        """If `takes_runs`, parse a run of 64 plain headers or more by numpy; 4 tries in a row without one clear it.

        No try: with global records, scattered members of the open group, or less than 32 KiB to parse.
        """
        if not self.takes_runs or self.globals or self.groups.open.scattered:
            return
        from tartools.tar import runs

        if self.filled - self.position >= runs.MIN_RUN_BLOCKS * BLOCK:
            self.failed = 0 if runs.take_run(self) else self.failed + 1
            self.takes_runs = self.failed < MAX_RUN_MISSES

    def count_groups(self) -> None:
        """Add the length of `groups.keys` to `seen`; from 200 on, unless a try has failed, set `takes_runs` if it pays.

        It does if numpy is imported, or over 80,000 more groups are expected (40,000 after as many, or without a size).
        """
        self.seen += len(self.groups.keys)
        if self.failed or self.takes_runs or self.seen < GROUPS_BEFORE_RUNS:
            return
        parsed_bytes = self.buffer.base + self.position
        expected = self.seen * (self.size - parsed_bytes) // parsed_bytes if self.size else self.seen
        # what is expected is less sure at the begin
        enough = NUMPY_MIN_GROUPS if self.seen > NUMPY_MIN_GROUPS or not self.size else 2 * NUMPY_MIN_GROUPS
        self.takes_runs = "numpy" in sys.modules or (expected > enough)

    def check_end(self, lax: bool) -> bool:
        """Check the bytes after the last member of the stream; return True if it ends with an end of archive.

        False if that is missing, which *lax* allows; then the open group is completed. Raises: TruncatedError if it is
        missing and not *lax*, inside of a member or header, or in an empty input; TarFormatError if up to 511 other
        bytes are behind it, or are the whole input and no part of a tar header.
        """
        remaining = bytes(memoryview(self.buffer)[self.position : self.filled])
        if self.ended and not remaining.strip(b"\0"):
            return True
        end = self.buffer.base + self.filled
        if self.ended and len(remaining) < BLOCK:
            raise TarFormatError(_TRAILING, url=self.url, offset=self.buffer.base + self.position)
        if end == 0:
            raise TruncatedError("the input is empty, not a tar archive", url=self.url, offset=0)
        if len(remaining) < BLOCK and not remaining.strip(b"\0"):
            if lax:
                self.groups.complete_group(self.position)
                return False
            raise TruncatedError(
                "the input ends without an end-of-archive block: it is truncated, or its writer omitted it "
                f"(then use {option('lax')})",
                url=self.url,
                offset=end,
            )
        if end == len(remaining) < BLOCK:
            from tartools.tar.foreign import is_cut_header, not_tar_message

            if not is_cut_header(remaining):
                raise TarFormatError(not_tar_message(remaining), url=self.url, offset=0)
        raise self.truncated_error(self.need - len(remaining))

    def end_part(self, until: int) -> None:
        """Complete the open group at stream offset *until*, where the part to read ends.

        Raises: TarFormatError if no member ends exactly there, or a global header governs the next one.
        """
        if self.globals or self.position != self.filled or self.buffer.base + self.filled != until:
            raise TarFormatError("no member begins at this byte", url=self.url, offset=until)
        self.groups.complete_group(self.position)

    def _prefixed_name(self, block: bytes) -> bytes:
        """Return the path in *block*, whose prefix field is not empty; a first foreign prefix adds FOREIGN_PREFIX."""
        path = regular_name(block)
        if not self.foreign_prefix and has_foreign_prefix(block):
            self.foreign_prefix = True
            self.groups.parts.append(Special(path.decode("utf-8", "surrogateescape"), FOREIGN_PREFIX, True))
        return path

    def _parse_slowly(self) -> bool:
        """Move past a member, header or end block at `position`; False if bytes are missing. Raises: TarFormatError."""
        with memoryview(self.buffer)[: self.filled] as view:
            if view[self.position : self.position + BLOCK] == ZERO_BLOCK:
                self._end_block()
                return True
            header = read_full_header(view, self.position, self.globals, self.extended)
        self.extended = None
        if isinstance(header, IncompleteHeader):
            self.need, self.waiting = header.end - self.position, header.unit
            self.extended = header.parsed if header.parsed.size else None
            return False
        if isinstance(header, GlobalHeader):  # governs members up to the end of the archive
            self.globals = header.governing
            self._skip_to(header.end)
        elif header.end > self.payload_limit():
            self._request_member(header)
            return False
        else:
            self.globals = header.governing
            if header.special is not None:
                self._skip_to(header.end, header.special)
            else:
                self._add_member(header)
        self.ended = False
        return True

    def _add_member(self, header: FullHeader) -> None:
        """Add the regular member of *header*, which is complete, and move `position` to its end."""
        groups, start = self.groups, self.position
        groups.start_or_join(header.path, start)
        shift = groups.shift
        member = Member(header.path, groups.source, start + shift, header.data + shift, header.size, header.head)
        if header.head is not None:  # it is written with another header than the one in the source
            self._skip_to(header.end)
            groups.open.add_scattered(member, 0 if self.ranges else header.size, self.scratch)
        elif groups.members is not None:
            groups.members.append(member)
        self.position = header.end

    def _end_block(self) -> None:
        """Skip zero blocks at `position`, up to 10 KiB of them; the first ends the open group and adds ARCHIVE_END."""
        if not self.ended:
            self.groups.complete_group(self.position)
            self.groups.cut_contiguous(self.position)
            self.groups.parts.append(ARCHIVE_END)
            self.ended, self.globals = True, {}
        record = bytes(memoryview(self.buffer)[self.position : min(self.position + RECORD_BYTES, self.filled)])
        zeros = len(record) if record == bytes(len(record)) else len(record) - len(record.lstrip(b"\0"))
        self.position += zeros // BLOCK * BLOCK

    def _skip_to(self, end: int, special: Special | None = None) -> None:
        """Set `position` to *end*; the members of the open group, which stays open, become scattered ones.

        *special*: the member up to *end*, which is added; None: a global header, or a member that the caller adds.
        """
        self.groups.interrupt(special, self.position)
        self.position, self.groups.open.begin = end, end + self.groups.shift

    def _request_member(self, header: FullHeader) -> None:
        """Set `need` for the incomplete member of *header*, `large` if no buffer holds it; end another key's group."""
        self.globals = header.governing
        self.need = header.end - self.position
        self.waiting = f"the payload of {header.name!r}"
        special = header.special
        if special is None and not self.groups.open.owns(header.path):
            self.groups.complete_group(self.position)
        if self.need > (self.limit if special is None else BUFFER_BYTES):
            self.large = header
            if special:
                self._skip_to(self.position, special)

    def _explain(self, error: TarFormatError) -> TarFormatError:
        """Return *error* with its offset in the stream; its message tells if the input, or its end, is no archive."""
        offset = self.buffer.base + (error.offset or 0)
        message = error.message
        if isinstance(error, BadChecksumError):
            from tartools.tar.foreign import not_tar_message

            message = _TRAILING if self.ended else message if offset else not_tar_message(bytes(self.buffer[:BLOCK]))
        return TarFormatError(message, url=self.url, offset=offset)

    # ---- the part of the stream that is in memory ----

    def refill(self) -> bool:
        """Read on, or skip `large`; False at the end of the stream or part. Raises: TruncatedError, StorageError."""
        if self.large is not None:
            self._skip_large(self.large)
            self.large, self.need, self.waiting = None, BLOCK, "a header"
            return True
        if self.position > self.filled:  # the rest of a payload is not needed
            skipped = self.position - self.filled
            skip(self.stream, skipped)
            self.filled = self.position
            self.reach = FIRST_READ_BYTES if skipped > MIN_SKIP_BYTES else self.reach
        reach = min(self.reach, self.until - self.buffer.base - self.filled)
        if reach <= 0:
            return False
        if self.filled >= len(self.buffer) or self.position + self.need > len(self.buffer):
            self._shift()
        count = self.stream.readinto(memoryview(self.buffer)[self.filled : self.filled + reach])
        self.filled += count
        self.reach = min(BUFFER_BYTES, 2 * self.reach)
        return count > 0

    def _shift(self) -> None:
        """Move unparsed bytes, and an open group in memory, to the begin of a buffer; scatter a group above 256 KiB."""
        groups, old = self.groups, self.buffer
        begin = self.position
        if not self.ranges and groups.open.key is not None:
            if self.position - groups.open.begin > MAX_CARRY_BYTES:
                groups.scatter_open_group(self.position)
            begin = groups.open.begin
        remaining = memoryview(old)[begin : self.filled]
        self.position -= begin
        self.filled = len(remaining)
        # while headers are parsed, any number of others may follow: to grow by each of them would take quadratic time
        size = max(self.reach, self.position + (self.need if self.extended is None else 2 * self.need))
        if self.ranges and size <= len(old):  # no view of this buffer exists
            old.base += begin
            self._begin_buffer(old)
        else:
            self._begin_buffer(Chunk(size, self.stream, old.base + begin))
        self.buffer[: len(remaining)] = remaining

    def payload_limit(self) -> int:
        """Return the offset in the buffer up to which payloads can be used, in the buffer or in the file."""
        return max(self.filled, self.size - self.buffer.base) if self.ranges else self.filled

    def _skip_large(self, large: FullHeader) -> None:
        """Move past the member of the header *large*, `need` bytes from `position` on, without holding its bytes.

        A regular member joins its group as a range of the input file, or of a scratch file to which it is copied;
        others, added before, are dropped. Raises: TruncatedError if the stream has fewer bytes; StorageError.
        """
        need, in_buffer, start = self.need, self.filled - self.position, self.buffer.base + self.position
        regular = large.special is None
        if regular:
            self.groups.start_or_join(large.path, self.position)
        self.groups.scatter_open_group(self.position)
        source = self.stream.file
        if source is not None:
            missing = start + self.stream.start + need - os.fstat(source.fileno()).st_size
            if missing > 0:
                raise self.truncated_error(missing)
            skip(self.stream, need - in_buffer)
            first = start + self.stream.start
        else:
            source, first, missing = self.scratch() if regular else None, 0, need
            view = memoryview(self.buffer)[self.position : self.filled]
            for part in chain([view], chunks(self.stream, need - in_buffer)):
                if source is not None:
                    source.write(part)
                missing -= len(part)
            if missing:
                raise self.truncated_error(missing)
        if regular and source is not None:
            data = first + large.data - self.position
            member = Member(large.path, source, first, data, large.size, large.head)
            self.groups.open.add_scattered(member, 0, self.scratch)
            self.groups.open.stream_end = start + need
        self._begin_buffer(Chunk(FIRST_READ_BYTES, self.stream, start + need))
        self.groups.open.begin = self.groups.shift
        self.position = self.filled = 0
        self.ended = False

    def _begin_buffer(self, buffer: Chunk) -> None:
        """Make *buffer* the current one. The open group begins at its start, unless members are ranges of the file."""
        groups, self.buffer = self.groups, buffer
        groups.base = buffer.base
        if self.ranges and self.stream.file is not None:
            groups.source, groups.shift = self.stream.file, self.stream.start + buffer.base
        else:
            groups.source, groups.open.begin = buffer, 0

    def truncated_error(self, missing: int) -> TruncatedError:
        """Return the error for a stream that ends *missing* bytes before the end of a header or member."""
        total = self.buffer.base + self.position + self.need - missing
        return TruncatedError(
            f"the input ends inside {self.waiting}: {missing} bytes are missing", url=self.url, offset=total
        )


def is_dense(file: io.FileIO, at: int) -> bool:
    """True if the MiB of *file* that begins at byte *at* has more than 256 header blocks with the magic "ustar"."""
    head = os.pread(file.fileno(), 1 << 20, at)
    return (
        sum(head[byte : byte + 5] == b"ustar" for byte in range(MAGIC_SLICE.start, len(head), BLOCK))
        > DENSE_HEADERS_PER_MIB
    )
