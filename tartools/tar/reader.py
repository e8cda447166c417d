"""Bytes of a tar stream to groups of members: the hot loop of the toolbox.

Where the speed is: one read fills what is left of a buffer of 1 MiB, which is never reused. One look-up checks a header
and that it is a plain file, one comparison that it belongs to the group before it; only where groups begin is written
down. All else (extended headers, links, the end, damage) takes the slow path. What is copied is the tail of a full
buffer, so that groups lie in one piece.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator

from tartools.errors import StorageError, TarFormatError, TruncatedError
from tartools.streams import Stream
from tartools.tar.extended import Records
from tartools.tar.groups import LARGE, NAME_BYTES, NO_STEM, Groups
from tartools.tar.header import BLOCK, EXPECTED_SUMS, FAST, RECORD, SIZES, Chunk, Member, adler32, regular_name
from tartools.tar.heading import BadChecksumError, GlobalHeader, Heading, Missing, read_heading
from tartools.tar.members import spool
from tartools.tar.parts import END, Part, Special, belongs

READ = 1 << 20  # bytes a read: fewer, longer ones are faster, be it from a pipe or through a library
BUFFER = 1 << 20  # bytes; a member that fits is a view, one that does not is a range or gets a buffer of its own
CARRIED = 1 << 18  # bytes of a group that are copied to the next buffer, so that it stays in one piece
SKIPPED = 1 << 16  # bytes; where a file has more that nobody asked for, they are not read
NEXT = 1 << 13  # bytes that are read behind these: more of the kind may follow
ZEROS = bytes(BLOCK)


def read_members(
    stream: Stream,
    *,
    url: str,
    scratch: Callable[[], io.FileIO],
    ranges: bool = False,
    listed: bool = True,
    lax: bool = False,
) -> Iterator[Part]:
    """Yield what is in *stream*, in order: groups of regular members, others one by one, END at each end of archive.

    A group is adjacent members that share the key that `split_path` gives; links and the like among them do not end
    it, an end of archive does. It is yielded when the header that ends it has been read and is sound, whose payload
    nobody waits for. Archives that follow one another are read on. What precedes a failure is yielded before it is
    raised, but for the group in which it lies. With *ranges*, and a *stream* that is a regular file, groups are ranges
    of that file, and large payloads are not read. Whoever needs no members of most groups says so by *listed*, and
    gets runs without them.

    Holds: one buffer of 1 MiB, and those that consumers keep alive. Members above 16 MiB (of a regular file: above
    1 MiB) are ranges, of the input or of a file that *scratch* makes; so are those of groups above 16 MiB.
    Raises: TarFormatError and TruncatedError with *url* and byte offset. With *lax*, an input that ends between
    two members without an end of archive is accepted: a `Special` of kind "missing end" tells.
    """
    reader = _Reader(stream, url, scratch, ranges, listed)
    while True:
        failure = reader.parse()
        yield from reader.groups.taken(reader.position)
        if failure is not None:
            raise failure
        if not reader.refill():
            break
    if not reader.sound_end(lax):
        yield Special(url, "missing end", False)
        yield from reader.groups.taken(reader.position)
        yield END


class _Reader:
    """The state of one stream: a buffer, how far it is filled and parsed, the group that is open, and what is found."""

    def __init__(self, stream: Stream, url: str, scratch: Callable[[], io.FileIO], ranges: bool, listed: bool) -> None:
        self.stream = stream
        self.url = url
        self.scratch = scratch
        self.limit = BUFFER if stream.file is not None else LARGE
        self.size = 0 if stream.file is None else max(0, os.fstat(stream.file.fileno()).st_size - stream.start)
        self.ranges = ranges and stream.file is not None
        self.position = 0  # parsed up to here, in the buffer
        self.filled = 0
        self.need = BLOCK  # bytes from position on without which parsing cannot go on
        self.waiting = "a header"  # for them
        self.large: Heading | None = None  # whose payload is those bytes, which are too many for a buffer
        self.ended = False  # the last thing parsed was an end of archive
        self.globals: Records = {}
        self.reach = READ  # bytes that are read next
        self.groups = Groups(scratch, listed)
        # no more than the file has, since large buffers cost time
        self._begin_buffer(Chunk(BUFFER if stream.file is None else min(BUFFER, self.size + BLOCK), stream, 0))

    def parse(self) -> TarFormatError | None:  # noqa: PLR0912, PLR0915  # in one piece, because calls cost
        """Parse what the buffer holds, up to damage, which is returned, or to where more bytes are needed."""
        buffer, filled, position, groups = self.buffer, self.filled, self.position, self.groups
        unpack, expected, sizes = FAST.unpack_from, EXPECTED_SUMS, SIZES
        source, shift, there = groups.source, groups.shift, self._there()
        with memoryview(buffer) as view:
            while position + BLOCK <= filled:
                plain, loose = not self.globals, bool(groups.loose)
                keys, starts, firsts, members = groups.keys, groups.starts, groups.firsts, groups.members
                key, stem, begin, first = groups.key, groups.stem, groups.begin, groups.first
                short, length = (stem, len(stem)) if groups.plain_stem else (NO_STEM, 0)
                while position + BLOCK <= filled:
                    name, size_field, check, prefix = unpack(buffer, position)
                    if adler32(view[position : position + BLOCK]) & 0xFFFF != expected[check] or not plain:
                        break
                    size = sizes[size_field]
                    data = position + BLOCK
                    end = data + ((size + 511) & -512)
                    if end > there or size < 0 or (not size and (prefix or b"/" in name)):
                        break
                    if name.startswith(short) and name[length] and name.find(b"/", length) < 0 and not prefix:
                        if members is not None:  # it belongs to the group
                            path = name.partition(b"\0")[0]
                            members.append((path, source, position + shift, data + shift, size, None))  # type: ignore[arg-type]
                        position = end
                        continue
                    path = regular_name(bytes(view[position:data])) if prefix else name.partition(b"\0")[0]
                    if not (path.startswith(stem) and belongs(path, stem)):
                        if loose:
                            break
                        if key is not None:
                            keys.append(key)
                            starts.append(begin)
                            firsts.append(first)
                        begin = position + shift
                        base = path.rfind(b"/") + 1  # from here on as in `split_path`, but for the call
                        dot = path.find(b".", base)
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
                self.position, groups.key, groups.stem, groups.begin, groups.first = position, key, stem, begin, first
                if position + BLOCK > filled:
                    break
                try:
                    if not self._parse_slowly():
                        return None
                except TarFormatError as error:
                    return self._explained(error)
                position = self.position
        self.need, self.waiting = BLOCK, "a header"
        return None

    def refill(self) -> bool:
        """Read on, so that `parse` can; tell whether there was anything to read.

        A member that is too large for a buffer becomes a range instead.
        """
        if self.large is not None:
            self._pass_over(self.large)
            self.large = None
            return True
        if self.position > self.filled:  # a payload is left where it is
            skipped = self.position - self.filled
            self.stream.skip(skipped)
            self.filled = self.position
            self.reach = NEXT if skipped > SKIPPED else self.reach
        if self.filled >= len(self.buffer) or self.position + self.need > len(self.buffer):
            self._shift()
        count = self.stream.readinto(memoryview(self.buffer)[self.filled : self.filled + self.reach])
        self.filled += count
        self.reach = min(READ, 2 * self.reach)
        return count > 0

    def _shift(self) -> None:
        """Make room in the buffer behind what is left of it, and of the group that is open: mostly in another one."""
        groups, old = self.groups, self.buffer
        begin = self.position
        if not self.ranges and groups.key is not None:
            if self.position - groups.begin > CARRIED:
                groups.loosen(self.position)
            begin = groups.begin
        left = memoryview(old)[begin : self.filled]
        self.position -= begin
        self.filled = len(left)
        if self.ranges and self.position + self.need <= len(old):  # nobody has a view of it
            old[: len(left)] = left
            old.base += begin
            self._begin_buffer(old)
        else:
            self._begin_buffer(Chunk(max(BUFFER, self.position + self.need), self.stream, old.base + begin))
            self.buffer[: len(left)] = left

    def _there(self) -> int:
        """Return the offset in the buffer up to which payloads are there, in it or in the file."""
        return max(self.filled, self.size - self.buffer.base) if self.ranges else self.filled

    def sound_end(self, lax: bool) -> bool:
        """Tell, at the end of the stream, whether it ended with an end of archive.

        Raises: TruncatedError if it did not and *lax* does not allow that, or if it ended inside something;
        TarFormatError for what is behind the end; StorageError for a file that is shorter than what was passed over.
        """
        if self.ranges and self.stream.file is not None:
            size = max(0, os.fstat(self.stream.file.fileno()).st_size - self.stream.start)
            if size < min(self.buffer.base + self.filled, self.size):
                raise StorageError("the file became shorter while it was read", url=self.url, offset=size)
        rest = bytes(memoryview(self.buffer)[self.position : self.filled])
        if self.ended and not rest.strip(b"\0"):
            return True
        here = self.buffer.base + self.filled
        if self.ended and len(rest) < BLOCK:
            raise TarFormatError(_TRAILING, url=self.url, offset=self.buffer.base + self.position)
        if here == 0:
            raise TruncatedError("the input is empty, not a tar archive", url=self.url, offset=0)
        if len(rest) < BLOCK and not rest.strip(b"\0"):
            if lax:
                self.groups.complete(self.position)
                return False
            raise TruncatedError(
                "the input ends without an end-of-archive block: it was cut, or its writer left it out "
                "(then use --lax)",
                url=self.url,
                offset=here,
            )
        raise self._cut(self.need - len(rest))

    def _parse_slowly(self) -> bool:
        """Parse what is at `position`, whatever it is; tell whether all of it was there."""
        with memoryview(self.buffer)[: self.filled] as view:
            if view[self.position : self.position + BLOCK] == ZEROS:
                self._end_block()
                return True
            heading = read_heading(view, self.position, self.globals)
        if isinstance(heading, Missing):
            self.need, self.waiting = heading.end - self.position, heading.what
            return False
        if isinstance(heading, GlobalHeader):  # in force up to the end of the archive
            self.globals = heading.governing
            self._go_past(heading.end)
        elif heading.end > self._there():
            self._wait_for(heading)
            return False
        else:
            self.globals = heading.governing
            if heading.special is not None:
                self._go_past(heading.end, heading.special)
            else:
                self._take(heading)
        self.ended = False
        return True

    def _take(self, heading: Heading) -> None:
        """Take the regular member of *heading*, all of which is in the buffer."""
        groups, start = self.groups, self.position
        groups.admit(heading.path, start)
        shift = groups.shift
        member = Member(heading.path, groups.source, start + shift, heading.data + shift, heading.size, heading.head)
        if heading.head is not None:  # what is to be written is not what is here
            self._go_past(heading.end)
            groups.keep(member, 0 if self.ranges else heading.size)
        elif groups.members is not None:
            groups.members.append(member)
        self.position = heading.end

    def _end_block(self) -> None:
        """Take the zero block at `position`, and those behind it; only the first of a row tells."""
        if not self.ended:
            self.groups.complete(self.position)
            self.groups.cut(self.position)
            self.groups.parts.append(END)
            self.ended, self.globals = True, {}
        record = bytes(memoryview(self.buffer)[self.position : min(self.position + RECORD, self.filled)])
        zeros = len(record) if record == bytes(len(record)) else len(record) - len(record.lstrip(b"\0"))
        self.position += zeros // BLOCK * BLOCK

    def _go_past(self, end: int, special: Special | None = None) -> None:
        """Move on to *end*, past what is no part of a group; it may be *special*."""
        self.groups.tell(special, self.position)
        self.position, self.groups.begin = end, end + self.groups.shift

    def _wait_for(self, heading: Heading) -> None:
        """Take note of how much of a member is missing, and what to do if that is too much for a buffer."""
        self.globals = heading.governing
        self.need = heading.end - self.position
        self.waiting = f"the payload of {heading.name!r}"
        special = heading.special
        if special is None and not self.groups.takes(heading.path):
            self.groups.complete(self.position)
        if self.need > (BUFFER if special else self.limit):
            self.large = heading
            if special:
                self._go_past(self.position, special)

    def _explained(self, error: TarFormatError) -> TarFormatError:
        """Return *error* with its place in the stream; say what a block that is no header may be."""
        offset = self.buffer.base + (error.offset or 0)
        message = error.message
        if isinstance(error, BadChecksumError):
            message = _TRAILING if self.ended else message if offset else "this is not a tar archive"
        return TarFormatError(message, url=self.url, offset=offset)

    def _pass_over(self, large: Heading) -> None:
        """Pass `need` bytes by without holding them: a member becomes a range, a special is forgotten.

        Raises: TruncatedError if the stream has fewer.
        """
        need, held, start = self.need, self.filled - self.position, self.buffer.base + self.position
        regular = large.special is None
        if regular:
            self.groups.admit(large.path, self.position)
        self.groups.loosen(self.position)
        source = self.stream.file
        if source is not None:
            missing = start + self.stream.start + need - os.fstat(source.fileno()).st_size
            if missing > 0:
                raise self._cut(missing)
            self.stream.skip(need - held)
            first = start + self.stream.start
        else:
            source, first = self.scratch() if regular else None, 0
            missing = spool(self.stream, memoryview(self.buffer)[self.position : self.filled], need, source)
            if missing:
                raise self._cut(missing)
        if regular and source is not None:
            data = first + large.data - self.position
            self.groups.keep(Member(large.path, source, first, data, large.size, large.head), 0)
        self._begin_buffer(Chunk(BUFFER if source is None else min(BUFFER, NEXT), self.stream, start + need))
        self.groups.begin = self.groups.shift
        self.position = self.filled = 0
        self.ended = False

    def _begin_buffer(self, buffer: Chunk) -> None:
        """Parse *buffer* from now on. What is open in the one before begins where that begins in it."""
        groups, self.buffer = self.groups, buffer
        if self.ranges and self.stream.file is not None:
            groups.source, groups.shift = self.stream.file, self.stream.start + buffer.base
        else:
            groups.source, groups.begin = buffer, 0

    def _cut(self, missing: int) -> TruncatedError:
        total = self.buffer.base + self.position + self.need - missing
        return TruncatedError(
            f"the input ends inside {self.waiting}: {missing} bytes are missing", url=self.url, offset=total
        )


_TRAILING = "what follows the end of the archive is neither zeros nor an archive"
