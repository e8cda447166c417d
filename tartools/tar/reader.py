"""Bytes of a tar stream to members, in batches: the hot loop of the toolbox.

Where the speed is: reads of 256 KiB go one behind the other into a buffer of 1 MiB that is never reused, members
are offsets into it, and only the tail of a full buffer is copied. One dictionary look-up checks a header and
that it is a plain file; everything else (extended headers, links, the end, damage) takes the slow path.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Final, NamedTuple, NoReturn, Protocol

from tartools.errors import TarFormatError, TruncatedError
from tartools.tar.extended import MAX_EXTENDED_HEADER, Records, long_name, parse_records
from tartools.tar.header import (
    BLOCK,
    EXPECTED_SUMS,
    FAST,
    SIZE,
    SIZES,
    TYPE,
    Member,
    Source,
    adler32,
    checksum_matches,
    padded,
    read_range,
    regular_name,
)
from tartools.tar.writer import extended_header, write_all

BUFFER = 1 << 20  # bytes; a member that fits is a view, one that does not is a range or gets a buffer of its own
READ = 1 << 18  # bytes a read: what was read is still in the processor's cache when it is parsed
LARGE = 16 << 20  # bytes; a larger member of a pipe goes to scratch, not to memory
ZEROS = bytes(BLOCK)


class ByteStream(Protocol):
    """What a tar stream is read from.

    *file* is the open regular file behind it where the stream is that file's bytes as they are, from byte
    *start* on; then large payloads are left in place.
    """

    file: io.FileIO | None
    start: int

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes; 0 at the end."""
        ...

    def skip(self, count: int, /) -> None:
        """Pass *count* bytes by; only asked for where there is a *file*."""
        ...


class Mark(Enum):
    """What stands in the stream between members."""

    END = "end of archive"


END: Final = Mark.END


class Ahead(NamedTuple):
    """A regular member whose header is sound, and whose payload has not been read yet; it may be told of again."""

    path: bytes


class Special(NamedTuple):
    """A member that carries no sample data: its name, what it is, and whether that can go unsaid."""

    name: str
    kind: str
    silent: bool


# type flag -> kind, unsaid; POSIX.1-2017 and GNU tar manual, "Basic Tar Format"
SPECIAL = {
    b"1": ("hard link", False),
    b"2": ("symbolic link", False),
    b"3": ("character device", False),
    b"4": ("block device", False),
    b"5": ("directory", True),
    b"6": ("fifo", False),
    b"D": ("directory", True),
    b"M": ("continuation of another volume", False),
    b"S": ("sparse file", False),
    b"V": ("volume label", True),
}
NO_PAYLOAD = b"123456"  # whatever their size field says


Part = list[Member] | Special | Ahead | Mark


def read_members(
    stream: ByteStream, *, url: str, scratch: Callable[[], io.FileIO], ranges: bool = False, lax: bool = False
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
        if self.file is None or self._position == self._end:
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


class _Headers(NamedTuple):
    """What the header blocks of one member say; *data* is a buffer offset."""

    path: bytes
    kind: bytes
    size: int
    data: int
    head: bytes | None
    sparse: bool

    @property
    def name(self) -> str:
        return self.path.decode("utf-8", "surrogateescape")


class _Reader:
    """The state of one stream: a buffer, how far it is filled and parsed, and what the parser waits for."""

    def __init__(
        self,
        stream: ByteStream,
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
                if adler32(view[position : position + BLOCK]) & 0xFFFF == expected[check] and not prefix:
                    size = sizes[size_field]
                    data = position + BLOCK
                    end = data + ((size + 511) & -512)
                    if size >= 0 and end <= filled and not self.globals and (size or not _is_folder(name)):
                        nul = name.find(0)
                        if nul >= 0:
                            name = name[:nul]
                        append((name, source, position + shift, data + shift, size, None))  # type: ignore[arg-type]
                        position = end
                        continue
                self.ended = self.ended and position == self.position
                self.position = position
                try:
                    found = self._parse_slowly()
                except TarFormatError as error:
                    return error
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
            raise self._failure(_TRAILING, self.position)
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

    def _failure(self, what: str, at: int) -> TarFormatError:
        return TarFormatError(what, url=self.url, offset=self.base + at)

    def _origin(self) -> tuple[Source, int]:
        """Return what members are offsets into, and what to add to a buffer offset."""
        if self.ranges and self.stream.file is not None:
            return self.stream.file, self.base + self.stream.start
        return self.buffer, 0

    def _parse_slowly(self) -> Special | Mark | bool | None:
        """Parse what is at `position`. Return what it is, True for a plain member, None if bytes are missing."""
        block = bytes(memoryview(self.buffer)[self.position : self.position + BLOCK])
        if block == ZEROS:
            self.position += BLOCK
            if self.ended:
                return True
            self.ended = True
            self.globals = {}
            return END
        headers = self._headers()
        if not isinstance(headers, _Headers):
            return headers
        special = self._special(headers)
        length = 0 if special and headers.kind in NO_PAYLOAD else padded(headers.size)
        end = headers.data + length
        source, shift = self._origin()
        found = special or Member(
            headers.path, source, self.position + shift, headers.data + shift, headers.size, headers.head
        )
        if end > self.filled:
            self.need = end - self.position
            self.waiting = f"the payload of {headers.name!r}"
            self.ahead = None if special else Ahead(headers.path)
            if self.need > self.limit or (special and self.need > BUFFER):
                self.large = special or Member(
                    headers.path, self.buffer, self.position, headers.data, headers.size, headers.head
                )
                self.ahead = special or self.ahead
            return None
        self.position, self.ended = end, False
        if isinstance(found, Special):
            return found
        self.batch.append(found)
        return True

    def _headers(self) -> _Headers | bool | None:
        """Read the header at `position` with the extended headers before it; None if bytes are missing.

        A global header that comes first is taken into `globals`: True.
        """
        at = self.position
        records: Records = {}
        path: bytes | None = None
        kept = b""  # GNU extended headers, which stay when the others are rewritten
        rewrite = False
        while True:
            if not self._has(at + BLOCK, "a header"):
                return None
            block = bytes(memoryview(self.buffer)[at : at + BLOCK])
            if not checksum_matches(block):
                raise self._failure(self._explain(at), at)
            kind, size = block[TYPE], SIZES[block[SIZE]]
            if size < 0:
                raise self._failure("the size in the header is not a number", at)
            if kind not in b"xXgLK":
                break
            after = at + BLOCK + padded(size)
            if size > MAX_EXTENDED_HEADER or after - self.position > 4 * MAX_EXTENDED_HEADER:
                raise self._failure(f"extended headers above the limit of {MAX_EXTENDED_HEADER} bytes", at)
            if not self._has(after, "an extended header"):
                return None
            payload = bytes(memoryview(self.buffer)[at + BLOCK : at + BLOCK + size])
            if kind in b"LK":
                path = long_name(payload) if kind == b"L" else path
                kept += bytes(memoryview(self.buffer)[at:after])
            else:
                try:
                    parsed = parse_records(payload)
                except TarFormatError as error:
                    raise self._failure(error.message, at) from None
                if kind == b"g":
                    self._add_globals(parsed)
                    if at == self.position:
                        self.position, self.ended = after, False
                        return True
                    rewrite = True
                else:
                    records |= parsed
            at = after
        governed = self.globals | records
        if self.globals.keys() - records.keys():
            rewrite = True
        if digits := governed.get(b"size"):
            if not digits.isdigit() or len(digits) > 20:
                raise self._failure("the size in the extended header is not a number", self.position)
            size = int(digits)
        path = governed.get(b"GNU.sparse.name") or governed.get(b"path") or path or regular_name(block)
        head = kept + extended_header(governed, block) + block if rewrite else None
        sparse = kind == b"S" or any(key.startswith(b"GNU.sparse.") for key in governed)
        data = at + BLOCK
        more = kind == b"S" and block[482]
        while more:  # GNU tar manual, "Basic Tar Format": sparse map blocks follow the header
            if not self._has(data + BLOCK, "a sparse header"):
                return None
            more = self.buffer[data + 504]
            data += BLOCK
            if data - at > MAX_EXTENDED_HEADER:
                raise self._failure(f"a sparse map above the limit of {MAX_EXTENDED_HEADER} bytes", at)
        return _Headers(path, kind, size, data, head, sparse)

    def _has(self, end: int, what: str) -> bool:
        if end <= self.filled:
            return True
        self.need, self.waiting = end - self.position, what
        return False

    def _add_globals(self, parsed: Records) -> None:
        """Take the records of a global header (POSIX.1-2017, pax): they hold from here to the end of the archive."""
        self.globals = self.globals | {k: v for k, v in parsed.items() if k != b"comment"}

    def _special(self, headers: _Headers) -> Special | None:
        """Return what *headers* describe if it carries no sample data."""
        if headers.sparse:
            return Special(headers.name, "sparse file", False)
        if headers.kind in SPECIAL:
            return Special(headers.name, *SPECIAL[headers.kind])
        if headers.path.endswith(b"/") and headers.size == 0:  # how pre-POSIX tars write one
            return Special(headers.name, *SPECIAL[b"5"])
        return None

    def _explain(self, at: int) -> str:
        """Say what a block that is no header may be."""
        if self.ended:
            return _TRAILING
        return "header checksum does not match" if self.base + at else "this is not a tar archive"

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
