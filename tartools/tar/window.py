"""The part of a tar stream that is in memory: what is read next, what stays when there is no more room."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable

from tartools.errors import TruncatedError
from tartools.streams import Stream
from tartools.tar.extended import Records
from tartools.tar.groups import LARGE, Groups
from tartools.tar.header import BLOCK, Chunk, Member
from tartools.tar.heading import Heading
from tartools.tar.members import spool

READ = 1 << 20  # bytes a read: fewer, longer ones are faster, be it from a pipe or through a library
BUFFER = 1 << 20  # bytes; a member that fits is a view, one that does not is a range or gets a buffer of its own
CARRIED = 1 << 18  # bytes of a group that are copied to the next buffer, so that it stays in one piece
SKIPPED = 1 << 16  # bytes; where a file has more that nobody asked for, they are not read
NEXT = 1 << 13  # bytes that are read behind these: more of the kind may follow


class Window:
    """The state of one stream: a buffer, how far it is filled and parsed, the group that is open, and what is found."""

    def __init__(
        self,
        stream: Stream,
        url: str,
        scratch: Callable[[], io.FileIO],
        ranges: bool,
        listed: bool,
        begin: int,
        until: int | None,
    ) -> None:
        """Read *stream* as `read_members` has it, from byte *begin* of its file on."""
        self.stream = stream
        self.url = url
        self.scratch = scratch
        self.limit = BUFFER if stream.file is not None else LARGE
        self.size = 0 if stream.file is None else max(0, os.fstat(stream.file.fileno()).st_size - stream.start)
        self.until = sys.maxsize if until is None else until
        self.size = min(self.size, self.until)
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
        self._begin_buffer(Chunk(BUFFER if stream.file is None else min(BUFFER, self.size + BLOCK), stream, begin))

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
        reach = max(0, min(self.reach, self.until - self.buffer.base - self.filled))
        count = self.stream.readinto(memoryview(self.buffer)[self.filled : self.filled + reach]) if reach else 0
        self.filled += count
        self.reach = min(READ, 2 * self.reach)
        return count > 0

    def fits(self, special: bool) -> bool:
        """Tell whether the bytes that are needed, of a member which may be *special*, are to be in the buffer."""
        return self.need <= (BUFFER if special else self.limit)

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

    def there(self) -> int:
        """Return the offset in the buffer up to which payloads are there, in it or in the file."""
        return max(self.filled, self.size - self.buffer.base) if self.ranges else self.filled

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
                raise self.cut(missing)
            self.stream.skip(need - held)
            first = start + self.stream.start
        else:
            source, first = self.scratch() if regular else None, 0
            missing = spool(self.stream, memoryview(self.buffer)[self.position : self.filled], need, source)
            if missing:
                raise self.cut(missing)
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

    def cut(self, missing: int) -> TruncatedError:
        """Return the failure of a stream that ends *missing* bytes before what has to come."""
        total = self.buffer.base + self.position + self.need - missing
        return TruncatedError(
            f"the input ends inside {self.waiting}: {missing} bytes are missing", url=self.url, offset=total
        )
