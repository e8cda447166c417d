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
from tartools.tar.foreign import no_tar
from tartools.tar.groups import NAME_BYTES, NO_STEM
from tartools.tar.header import BLOCK, EXPECTED_SUMS, FAST, RECORD, SIZES, Member, adler32, regular_name
from tartools.tar.heading import BadChecksumError, GlobalHeader, Heading, Missing, read_heading
from tartools.tar.parts import END, Part, Special, belongs
from tartools.tar.window import Window

ZEROS = bytes(BLOCK)


def read_members(
    stream: Stream,
    *,
    url: str,
    scratch: Callable[[], io.FileIO],
    ranges: bool = False,
    listed: bool = True,
    lax: bool = False,
    begin: int = 0,
    until: int | None = None,
) -> Iterator[Part]:
    """Yield what is in *stream*, in order: groups of regular members, others one by one, END at each end of archive.

    A group is adjacent members that share the key that `split_path` gives; links and the like among them do not end
    it, an end of archive does. It is yielded when the header that ends it has been read and is sound, whose payload
    nobody waits for. Archives that follow one another are read on. What precedes a failure is yielded before it is
    raised, but for the group in which it lies. With *ranges*, and a *stream* that is a regular file, groups are ranges
    of that file, and large payloads are not read. Whoever needs no members of most groups says so by *listed*, and
    gets runs without them.

    A *stream* that is a regular file, and stands at byte *begin* of it, is read from there on, and with *until* up to
    there, where it has to be between two members that no global header governs: what is behind can be read alone then.

    Holds: one buffer of 1 MiB, and those that consumers keep alive. Members above 16 MiB (of a regular file: above
    1 MiB) are ranges, of the input or of a file that *scratch* makes; so are those of groups above 16 MiB.
    Raises: TarFormatError and TruncatedError with *url* and byte offset. With *lax*, an input that ends between
    two members without an end of archive is accepted: a `Special` of kind "missing end" tells.
    """
    reader = _Reader(stream, url, scratch, ranges, listed, begin, until)
    while True:
        failure = reader.parse()
        yield from reader.groups.taken(reader.position)
        if failure is not None:
            raise failure
        if not reader.refill():
            break
    if until is not None:
        reader.end_piece(until)
        yield from reader.groups.taken(reader.position)
    elif not reader.sound_end(lax):
        yield Special(url, "missing end", False)
        yield from reader.groups.taken(reader.position)
        yield END


class _Reader(Window):
    """What parses the window of a stream."""

    def parse(self) -> TarFormatError | None:  # noqa: PLR0912, PLR0915  # in one piece, because calls cost
        """Parse what the buffer holds, up to damage, which is returned, or to where more bytes are needed."""
        buffer, filled, position, groups = self.buffer, self.filled, self.position, self.groups
        unpack, expected, sizes = FAST.unpack_from, EXPECTED_SUMS, SIZES
        source, shift, there = groups.source, groups.shift, self.there()
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
        if here == len(rest) < BLOCK and len(told := no_tar(rest)) > len(no_tar(b"")):
            raise TarFormatError(told, url=self.url, offset=0)
        raise self.cut(self.need - len(rest))

    def end_piece(self, until: int) -> None:
        """Complete what is open at byte *until*, where reading was to end. Raises: TarFormatError if it can't."""
        if self.globals or self.position != self.filled or self.buffer.base + self.filled != until:
            raise TarFormatError("here the archive can't be cut", url=self.url, offset=until)
        self.groups.complete(self.position)

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
        elif heading.end > self.there():
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
        if not self.fits(special is not None):
            self.large = heading
            if special:
                self._go_past(self.position, special)

    def _explained(self, error: TarFormatError) -> TarFormatError:
        """Return *error* with its place in the stream; say what a block that is no header may be."""
        offset = self.buffer.base + (error.offset or 0)
        message = error.message
        if isinstance(error, BadChecksumError):
            message = _TRAILING if self.ended else message if offset else no_tar(bytes(self.buffer[:32]))
        return TarFormatError(message, url=self.url, offset=offset)


_TRAILING = "what follows the end of the archive is neither zeros nor an archive"
