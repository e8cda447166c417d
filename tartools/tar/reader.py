"""Bytes of a tar stream to members, in batches: the hot loop of the toolbox.

Where the speed is: one read fills what is left of a buffer of 1 MiB, which is never reused, members
are offsets into it, and only the tail of a full buffer is copied. One dictionary look-up checks a header and
that it is a plain file; everything else (extended headers, links, the end, damage) takes the slow path.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from typing import NoReturn

from tartools.errors import TarFormatError, TruncatedError
from tartools.streams import Stream
from tartools.tar.extended import Records
from tartools.tar.header import BLOCK, EXPECTED_SUMS, FAST, SIZES, Member, Source, adler32, read_range, regular_name
from tartools.tar.heading import BadChecksumError, GlobalHeader, Heading, Missing, read_heading
from tartools.tar.parts import END, Ahead, Mark, Part, Special
from tartools.tar.writer import write_all

READ = 1 << 20  # bytes a read: fewer, longer ones are faster, be it from a pipe or through a library
BUFFER = 1 << 20  # bytes; a member that fits is a view, one that does not is a range or gets a buffer of its own
LARGE = 16 << 20  # bytes; a larger member of a pipe goes to scratch, not to memory
ZEROS = bytes(BLOCK)


def read_members(
    stream: Stream, *, url: str, scratch: Callable[[], io.FileIO], ranges: bool = False, lax: bool = False
) -> Iterator[Part]:
    """Yield the members of *stream* in order: regular ones in lists, others one by one, END at each end of archive.

    The lists hold plain tuples in the shape of `Member`. Archives that follow one another are read on. What
    precedes a failure is yielded before it is raised. With *ranges*, and a *stream* that is a regular file, every
    member is a range of that file. Before a payload is waited for, an `Ahead` tells whose it is, so that those who
    want no more than what comes before need not wait.

    Holds: one buffer of 1 MiB, and those that consumers keep alive. Members above 16 MiB (of a regular file: above
    1 MiB) are ranges, of the input or of a file that *scratch* makes.
    Raises: TarFormatError and TruncatedError with *url* and byte offset. With *lax*, an input that ends between
    two members without an end of archive is accepted: a `Special` of kind "missing end" tells.
    """
    reader = _Reader(stream, url, scratch, ranges)
    while True:
        found = reader.parse()
        if reader.batch:
            yield reader.batch
            reader.batch = []
        if isinstance(found, TarFormatError):
            raise found
        if found is not None:
            yield found
            continue
        if reader.ahead is not None:
            yield reader.ahead
        if not reader.refill():
            break
    if not reader.sound_end(lax):
        yield Special(url, "missing end", False)
        yield END


def members_in(source: Source, start: int, end: int) -> tuple[Member, ...]:
    """Return the members that fill bytes *start* to *end* of *source*, which have been read as members before.

    Members of a file are read into memory with it up to 1 MiB in all, above that they are ranges.
    Raises: TarFormatError if the bytes have changed meanwhile.
    """
    if isinstance(source, io.FileIO) and end - start <= BUFFER:
        source, start, end = read_range(source, start, end), 0, end - start
    if isinstance(source, io.FileIO):
        reader = _Reader(_Window(source, start, end), str(source.name), _no_scratch, True)
    else:
        reader = _Reader(_Window(None, start, end), "", _no_scratch, False, source)
        reader.position, reader.filled = start, end
    found = reader.parse()
    while found is None and reader.stream.file and reader.refill():
        found = reader.parse()
    if found is not None or reader.position != reader.filled:
        raise TarFormatError("what was a sample before is none any more", url=reader.url, offset=start)
    return tuple(map(Member._make, reader.batch))


class _Window:
    """Bytes *start* to *end* of a file as a stream; without a file there is nothing to read."""

    def __init__(self, file: io.FileIO | None, start: int, end: int) -> None:
        self.file, self.start, self._position, self._end = file, start, start, end

    def readinto(self, view: memoryview, /) -> int:
        if self.file is None or self._position >= self._end:
            return 0
        count = os.preadv(self.file.fileno(), [view[: self._end - self._position]], self._position)
        self._position += count
        return count

    def skip(self, count: int, /) -> None:
        self._position += count


def _is_folder(name: bytes) -> bool:
    return name.rstrip(b"\0").endswith(b"/")


def _no_scratch() -> io.FileIO:
    raise AssertionError("ranges of files need no scratch")


class _Reader:
    """The state of one stream: a buffer, how far it is filled and parsed, and what the parser waits for."""

    def __init__(
        self,
        stream: Stream,
        url: str,
        scratch: Callable[[], io.FileIO],
        ranges: bool,
        buffer: bytes | bytearray | None = None,
    ) -> None:
        self.stream = stream
        self.url = url
        self.scratch = scratch
        self.ranges = ranges and stream.file is not None
        self.limit = BUFFER if stream.file is not None else LARGE
        self.buffer = bytearray(BUFFER) if buffer is None else buffer
        self.base = 0  # offset in the stream of buffer[0]
        self.position = 0  # parsed up to here, in the buffer
        self.filled = 0
        self.need = BLOCK  # bytes from position on without which parsing cannot go on
        self.waiting = "a header"  # for them
        self.ahead: Ahead | Special | None = None  # what to tell before they are read
        self.large: Member | Special | None = None  # what those bytes are, if they are too many for a buffer
        self.ended = False  # the last thing parsed was an end of archive
        self.globals: Records = {}
        self.batch: list[Member] = []

    def parse(self) -> Special | Mark | TarFormatError | None:
        """Put the plain members that the buffer holds into `batch`, up to something else; return that.

        None: more bytes are needed.
        """
        buffer, filled, position = self.buffer, self.filled, self.position
        self.ahead = None
        unpack, expected, sizes, append = FAST.unpack_from, EXPECTED_SUMS, SIZES, self.batch.append
        source, shift = self._origin()
        with memoryview(buffer) as view:
            while position + BLOCK <= filled:
                name, size_field, check, prefix = unpack(buffer, position)
                if adler32(view[position : position + BLOCK]) & 0xFFFF == expected[check]:
                    size = sizes[size_field]
                    data = position + BLOCK
                    end = data + ((size + 511) & -512)
                    if size >= 0 and end <= filled and not self.globals and (size or not _is_folder(name)):
                        nul = name.find(0)
                        if prefix:
                            name = regular_name(bytes(view[position:data]))
                        elif nul >= 0:
                            name = name[:nul]
                        append((name, source, position + shift, data + shift, size, None))  # type: ignore[arg-type]
                        position = end
                        continue
                self.ended = self.ended and position == self.position
                self.position = position
                try:
                    found = self._parse_slowly()
                except TarFormatError as error:
                    return self._explained(error)
                if not isinstance(found, bool):
                    return found
                position = self.position
        self.ended = self.ended and position == self.position
        self.position = position
        self.need, self.waiting = BLOCK, "a header"
        return None

    def refill(self) -> bool:
        """Read on, so that `parse` can; tell whether there was anything to read.

        A member that is too large for a buffer is put into `batch` as a range instead.
        """
        if self.large is not None:
            self._pass_over(self.large)
            self.large = None
            return True
        if self.filled == len(self.buffer) or self.position + self.need > len(self.buffer):
            fresh = bytearray(max(BUFFER, self.need))  # never the old one: views into it are about
            tail = self.filled - self.position
            fresh[:tail] = memoryview(self.buffer)[self.position : self.filled]
            self.base += self.position
            self.buffer, self.position, self.filled = fresh, 0, tail
        count = self.stream.readinto(memoryview(self.buffer)[self.filled : self.filled + READ])
        self.filled += count
        return count > 0

    def sound_end(self, lax: bool) -> bool:
        """Tell, at the end of the stream, whether it ended with an end of archive.

        Raises: TruncatedError if it did not and *lax* does not allow that, or if it ended inside something.
        """
        rest = bytes(memoryview(self.buffer)[self.position : self.filled])
        if self.ended and not rest.strip(b"\0"):
            return True
        here = self.base + self.filled
        if self.ended and len(rest) < BLOCK:
            raise TarFormatError(_TRAILING, url=self.url, offset=self.base + self.position)
        if here == 0:
            raise TruncatedError("the input is empty, not a tar archive", url=self.url, offset=0)
        if len(rest) < BLOCK and not rest.strip(b"\0"):
            if lax:
                return False
            raise TruncatedError(
                "the input ends without an end-of-archive block: it was cut, or its writer left it out "
                "(then use --lax)",
                url=self.url,
                offset=here,
            )
        missing = self.need - len(rest)
        raise TruncatedError(
            f"the input ends inside {self.waiting}: {missing} bytes are missing", url=self.url, offset=here
        )

    def _origin(self) -> tuple[Source, int]:
        """Return what members are offsets into, and what to add to a buffer offset."""
        if self.ranges and self.stream.file is not None:
            return self.stream.file, self.base + self.stream.start
        return self.buffer, 0

    def _parse_slowly(self) -> Special | Mark | bool | None:
        """Parse what is at `position`. Return what it is, True for a plain member, None if bytes are missing."""
        with memoryview(self.buffer)[: self.filled] as view:
            if view[self.position : self.position + BLOCK] == ZEROS:
                return self._end_block()
            heading = read_heading(view, self.position, self.globals)
        if isinstance(heading, Missing):
            self.need, self.waiting = heading.end - self.position, heading.what
            return None
        if isinstance(heading, GlobalHeader):  # in force up to the end of the archive
            self.globals = heading.governing
            self.position, self.ended = heading.end, False
            return True
        if heading.end > self.filled:
            self._wait_for(heading)
            return None
        special, self.globals = heading.special, heading.governing
        if special is None:
            self.batch.append(self._member(heading, *self._origin()))
        self.position, self.ended = heading.end, False
        return special or True

    def _end_block(self) -> Mark | bool:
        """Take the zero block at `position`; only the first of a row tells."""
        self.position += BLOCK
        if self.ended:
            return True
        self.ended, self.globals = True, {}
        return END

    def _member(self, heading: Heading, source: Source, shift: int) -> Member:
        """Return the member of *heading*, whose bytes are in *source*, *shift* further on than in the buffer."""
        return Member(heading.path, source, self.position + shift, heading.data + shift, heading.size, heading.head)

    def _wait_for(self, heading: Heading) -> None:
        """Take note of how much of a member is missing, and what to do if that is too much for a buffer."""
        special, self.globals = heading.special, heading.governing
        self.need = heading.end - self.position
        self.waiting = f"the payload of {heading.name!r}"
        self.ahead = None if special else Ahead(heading.path)
        if self.need > self.limit or (special and self.need > BUFFER):
            self.large = special or self._member(heading, self.buffer, 0)
            self.ahead = special or self.ahead

    def _explained(self, error: TarFormatError) -> TarFormatError:
        """Return *error* with its place in the stream; say what a block that is no header may be."""
        offset = self.base + (error.offset or 0)
        message = error.message
        if isinstance(error, BadChecksumError):
            message = _TRAILING if self.ended else message if offset else "this is not a tar archive"
        return TarFormatError(message, url=self.url, offset=offset)

    def _pass_over(self, large: Member | Special) -> None:
        """Pass `need` bytes by without holding them: a member becomes a range, a special is forgotten.

        Raises: TruncatedError if the stream has fewer.
        """
        need, held = self.need, self.filled - self.position
        source, start = self.stream.file, self.base + self.position
        if source is not None:
            start += self.stream.start
            missing = start + need - os.fstat(source.fileno()).st_size
            if missing > 0:
                self._cut(missing)
            self.stream.skip(need - held)
        else:
            source, start = self.scratch() if isinstance(large, Member) else None, 0
            self._spool(need, source)
        if isinstance(large, Member) and source is not None:
            data = start + large.data - self.position
            self.batch.append(Member(large.path, source, start, data, large.size, large.head))
        self.base += self.position + need
        self.buffer, self.position, self.filled, self.ended = bytearray(BUFFER), 0, 0, False

    def _spool(self, need: int, file: io.FileIO | None) -> None:
        """Copy *need* bytes of the stream to *file*, if there is one."""
        part = memoryview(self.buffer)[self.position : self.filled]
        room = memoryview(bytearray(BUFFER))
        while True:
            if file is not None:
                write_all(file, part)
            need -= len(part)
            if not need:
                return
            count = self.stream.readinto(room[: min(need, BUFFER)])
            if not count:
                self._cut(need)
            part = room[:count]

    def _cut(self, missing: int) -> NoReturn:
        total = self.base + self.position + self.need - missing
        raise TruncatedError(
            f"the input ends inside {self.waiting}: {missing} bytes are missing", url=self.url, offset=total
        )


_TRAILING = "what follows the end of the archive is neither zeros nor an archive"
