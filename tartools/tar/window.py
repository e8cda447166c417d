"""The part of a tar stream that is in memory: fill the buffer, and start a new one when it is full."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable

from tartools.errors import TruncatedError
from tartools.storage.streams import Stream, size_of, skip
from tartools.tar.fullheader import FullHeader
from tartools.tar.grouping import LARGE, Grouper
from tartools.tar.header import BLOCK, MAGIC, Records
from tartools.tar.member import Chunk, Member

READ = 1 << 20  # bytes per read; fewer and longer reads are faster, from pipes and from libraries
BUFFER = 1 << 20  # bytes; a member that fits is a view, a larger one is a range or gets a buffer of its own
CARRIED = 1 << 18  # bytes of a group that are copied to the next buffer, so that the group stays contiguous
DENSE = 256  # headers in a MiB
SKIPPED = 1 << 16  # bytes; if more than these are skipped in a file, the next read is short
NEXT = 1 << 13  # bytes of that short read, since more payloads to skip may follow


class Window:
    """The state of reading one stream: the buffer, how far it is filled and parsed, and the groups found."""

    def __init__(
        self,
        stream: Stream,
        url: str,
        scratch: Callable[[], io.FileIO],
        ranges: bool,
        listed: bool,
        alike: bool,
        begin: int,
        until: int | None,
    ) -> None:
        """Read *stream* from byte *begin* of its file on. The arguments are those of `read_members`."""
        self.stream = stream
        self.url = url
        self.scratch = scratch
        self.limit = BUFFER if stream.file is not None else LARGE
        self.size = 0 if stream.file is None else max(0, size_of(stream.file) - stream.start)
        self.until = sys.maxsize if until is None else until
        self.size = min(self.size, self.until)
        self.ranges = ranges and stream.file is not None
        if ranges and alike and stream.file is not None and self.size - begin >= LARGE:
            self.ranges = not is_dense(stream.file, stream.start + begin)  # to read small members is less than to skip
        self.position = 0  # offset in the buffer up to which it is parsed
        self.filled = 0
        self.need = BLOCK  # bytes from position on that are needed to go on parsing
        self.waiting = "a header"  # what these bytes are
        self.large: FullHeader | None = None  # a member whose payload is too large for a buffer
        self.ended = False  # the last thing parsed was an end of archive
        self.globals: Records = {}
        self.reach = NEXT if self.ranges and until is not None else READ  # bytes of the next read; a part may be short
        self.seen = 0  # groups
        self.takes_runs = until is not None and "numpy" in sys.modules  # of plain headers, by numpy
        self.failed = 0  # times in a row that there was no run
        self.groups = Grouper(scratch, listed, alike)
        # no larger than what is to be read: large buffers cost time
        end = self.until if stream.file is None else self.size
        self._begin_buffer(Chunk(max(0, min(BUFFER, end - begin + BLOCK)), stream, begin))

    def refill(self) -> bool:
        """Read on, so that `parse` can go on; return False at the end of the stream.

        A member that is too large for a buffer becomes a range instead.
        """
        if self.large is not None:
            self._pass_over(self.large)
            self.large = None
            return True
        if self.position > self.filled:  # the rest of a payload is not needed
            skipped = self.position - self.filled
            skip(self.stream, skipped)
            self.filled = self.position
            self.reach = NEXT if skipped > SKIPPED else self.reach
        if self.filled >= len(self.buffer) or self.position + self.need > len(self.buffer):
            self._shift()
        reach = max(0, min(self.reach, self.until - self.buffer.base - self.filled))
        count = self.stream.readinto(memoryview(self.buffer)[self.filled : self.filled + reach]) if reach else 0
        self.filled += count
        self.reach = min(READ, 2 * self.reach)
        return count > 0

    def _shift(self) -> None:
        """Make room: move the bytes that are not parsed, and those of the open group, to the start of a buffer."""
        groups, old = self.groups, self.buffer
        begin = self.position
        if not self.ranges and groups.key is not None:
            if self.position - groups.begin > CARRIED:
                groups.scatter(self.position)
            begin = groups.begin
        left = memoryview(old)[begin : self.filled]
        self.position -= begin
        self.filled = len(left)
        if self.ranges and self.position + self.need <= len(old):  # no view of this buffer exists
            old[: len(left)] = left
            old.base += begin
            self._begin_buffer(old)
        else:
            self._begin_buffer(Chunk(max(BUFFER, self.position + self.need), self.stream, old.base + begin))
            self.buffer[: len(left)] = left

    def available(self) -> int:
        """Return the offset in the buffer up to which payloads are available, in the buffer or in the file."""
        return max(self.filled, self.size - self.buffer.base) if self.ranges else self.filled

    def _pass_over(self, large: FullHeader) -> None:
        """Skip `need` bytes without holding them. A regular member becomes a range.

        Raises: TruncatedError if the stream has fewer bytes.
        """
        need, held, start = self.need, self.filled - self.position, self.buffer.base + self.position
        regular = large.special is None
        if regular:
            self.groups.admit(large.path, self.position)
        self.groups.scatter(self.position)
        source = self.stream.file
        if source is not None:
            missing = start + self.stream.start + need - os.fstat(source.fileno()).st_size
            if missing > 0:
                raise self.cut(missing)
            skip(self.stream, need - held)
            first = start + self.stream.start
        else:
            source, first = self.scratch() if regular else None, 0
            from tartools.tar.rescan import spool

            missing = spool(self.stream, memoryview(self.buffer)[self.position : self.filled], need, source)
            if missing:
                raise self.cut(missing)
        if regular and source is not None:
            data = first + large.data - self.position
            self.groups.keep(Member(large.path, source, first, data, large.size, large.head), 0)
            self.groups.last = start + need
        self._begin_buffer(Chunk(BUFFER if source is None else min(BUFFER, NEXT), self.stream, start + need))
        self.groups.begin = self.groups.shift
        self.position = self.filled = 0
        self.ended = False

    def _begin_buffer(self, buffer: Chunk) -> None:
        """Parse *buffer* from now on. The open group begins at its start, unless members are ranges of the file."""
        groups, self.buffer = self.groups, buffer
        groups.base = buffer.base
        if self.ranges and self.stream.file is not None:
            groups.source, groups.shift = self.stream.file, self.stream.start + buffer.base
        else:
            groups.source, groups.begin = buffer, 0

    def cut(self, missing: int) -> TruncatedError:
        """Return the failure of a stream that ends *missing* bytes too early."""
        total = self.buffer.base + self.position + self.need - missing
        return TruncatedError(
            f"the input ends inside {self.waiting}: {missing} bytes are missing", url=self.url, offset=total
        )


def is_dense(file: io.FileIO, at: int) -> bool:
    """Return whether the MiB of *file* that begins at byte *at* has many members."""
    head = os.pread(file.fileno(), 1 << 20, at)
    return sum(head[byte : byte + 5] == b"ustar" for byte in range(MAGIC.start, len(head), BLOCK)) > DENSE
