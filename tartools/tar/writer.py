"""Write members to a tar stream; the only module that encodes headers.

Why it is fast: adjacent members of one source are written as one piece, whatever their number. Long pieces are written
without a copy, short ones are collected to 1 MiB, and ranges of files go by `sendfile` where the system has it.
"""

import io
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tartools.errors import SampleError, StorageError
from tartools.storage.streams import Sink, check_input_file
from tartools.tar.header import (
    BLOCK,
    CHKSUM_SLICE,
    GNU,
    MAGIC_SLICE,
    NAME_SLICE,
    OWNER_NAMES_SLICE,
    PREFIX_SLICE,
    RECORD_BYTES,
    SIZE_SLICE,
    TYPE_SLICE,
    USTAR,
    BoundedCache,
    Records,
    adler32,
    byte_sum,
    format_records,
    padded_size,
    parse_number,
    parse_records,
)
from tartools.tar.member import Member, Source, range_in_file, read_range

MAX_UNWRITTEN_BYTES = 1 << 20  # bytes collected before they are written
MIN_DIRECT_BYTES = 1 << 16  # bytes; a longer piece is written directly, a shorter one is copied, which frees its buffer
COPY_BYTES_AT_ONCE = 1 << 20  # bytes of a range in memory at a time
MAX_OCTAL_SIZE = 8**11 - 1  # bytes; the largest size in a size field of octal digits


class Writer:
    """Writes an archive to *sink*: members, then its end.

    Call `add` and `add_range` any number of times, and then `end`; they and `flush` raise StorageError if a source is a
    file that has changed, and the errors of *sink*. The sink is not closed.
    Holds: up to 1 MiB of short pieces, and the source of the current piece. A piece is a range of bytes of one source.
    """

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self._closed = 0  # bytes in the pieces before the current one
        self._pending = bytearray()
        self._source: Source | None = None  # of the current piece
        self._start = 0
        self._end = 0

    @property
    def size(self) -> int:
        """Bytes of the archive so far, headers and padding included; some of them may not be in the sink yet."""
        return self._closed + self._end - self._start

    def add(self, members: Iterable[Member]) -> None:
        """Add *members* in order, byte for byte as they were read; a member with a new `head` gets that as header."""
        source, end = self._source, self._end
        for _, origin, start, data, size, head in members:
            last = data + ((size + 511) & -512)
            if head is None:
                if origin is not source or start != end:
                    self._end = end
                    self._begin_piece(origin, start)
                    source = origin
                end = last
            else:
                self._end = end
                self._begin_piece(head, 0)
                self._end = len(head)
                self._begin_piece(origin, data)
                self._end = data + size
                self._begin_piece(PADDING, 0)
                source, end = PADDING, last - data - size
        self._end = end
        if end - self._start >= MAX_UNWRITTEN_BYTES:
            self.flush()

    def add_range(self, source: Source, start: int, end: int) -> None:
        """Add bytes *start* to *end* of *source*: whole members, which are copied as they are."""
        if source is not self._source or start != self._end:
            self._begin_piece(source, start)
        self._end = end
        if end - self._start >= MAX_UNWRITTEN_BYTES:
            self.flush()

    def end(self) -> None:
        """Write all that is not in the sink yet, and the end of the archive.

        The end is two zero blocks, and zeros to a multiple of 10,240 bytes, as GNU tar does.
        """
        count = archive_size(self.size) - self.size
        self._begin_piece(bytes(count), 0)
        self._end = count
        self.flush()

    def flush(self) -> None:
        """Write all members that were added and are not in the sink yet. The archive is complete only after `end`."""
        self._begin_piece(None, 0)
        self._write_pending()

    def _begin_piece(self, origin: Source | None, begin: int) -> None:
        """End the current piece, by writing it or adding it to the pending ones; begin one at byte *begin* of *origin*.

        *origin*: the buffer or file of the next piece; None: there is none.
        """
        old, first, end = self._source, self._start, self._end
        self._source, self._start, self._end = origin, begin, begin
        if old is None or first == end:
            return
        self._closed += end - first
        if end - first < MIN_DIRECT_BYTES:
            self._pending += read_range(old, first, end) if isinstance(old, io.FileIO) else memoryview(old)[first:end]
            if len(self._pending) >= MAX_UNWRITTEN_BYTES:
                self._write_pending()
            return
        self._write_pending()
        source, start, stop = range_in_file(old, first, end) if isinstance(self.sink, io.FileIO) else (old, first, end)
        if isinstance(source, io.FileIO):
            copy_range(source, start, stop, self.sink)
        else:
            self.sink.write(memoryview(source)[start:stop])

    def _write_pending(self) -> None:
        """Write the collected pieces to the sink."""
        if self._pending:
            pending, self._pending = self._pending, bytearray()
            self.sink.write(pending)


PADDING = bytes(BLOCK)


def archive_size(size: int) -> int:
    """Return the bytes of an archive whose members take *size* bytes: with its end, a multiple of 10,240.

    >>> archive_size(0), archive_size(9216), archive_size(9728)
    (10240, 10240, 20480)
    """
    return size + 2 * BLOCK + -(size + 2 * BLOCK) % RECORD_BYTES


def capacity_of_archive(size: int) -> int:
    """Return the bytes of members that fit into an archive of *size* bytes; negative if not even its end fits.

    >>> capacity_of_archive(20479), capacity_of_archive(20480)
    (9216, 19456)
    """
    return size // RECORD_BYTES * RECORD_BYTES - 2 * BLOCK


def copy_payload(member: Member, sink: Sink) -> None:
    """Write the payload of *member* to *sink*. Holds: 1 MiB of one that is in a file.

    Raises: StorageError if that file has become shorter, or has changed since it was opened; the errors of *sink*.
    """
    _, source, _, data, size, _ = member
    if isinstance(source, io.FileIO):
        copy_range(source, data, data + size, sink)
    else:
        sink.write(memoryview(source)[data : data + size])


def copy_range(source: io.FileIO, start: int, end: int, sink: Sink) -> None:
    """Write bytes *start* to *end* of *source* to *sink*. Holds: 1 MiB.

    It uses `sendfile` where it can. Bytes that `sendfile` has put into a pipe are no copy: they change with the file
    until they are read. With TARTOOLS_COPY=1 it is not used.

    Raises: StorageError if the file has become shorter, or has changed since it was opened; the errors of *sink*.
    """
    if isinstance(sink, io.FileIO) and hasattr(os, "sendfile") and os.environ.get("TARTOOLS_COPY") != "1":
        start = _send_file(source, start, end, sink)
        check_input_file(source)
    while start < end:
        part = read_range(source, start, min(end, start + COPY_BYTES_AT_ONCE))
        sink.write(part)
        start += len(part)


def _send_file(source: io.FileIO, start: int, end: int, sink: io.FileIO) -> int:
    """Copy bytes of *source* from *start* on to *sink* with `sendfile`, as far as the kernel can.

    Returns the offset in *source* that was reached: *end* if all is copied. Raises: StorageError if the file has become
    shorter.
    """
    while start < end:
        try:
            count = os.sendfile(sink.fileno(), source.fileno(), start, min(end - start, 1 << 30))
        except OSError:
            return start  # not supported for these files, or an error that writing will show too
        if not count:
            raise StorageError("the file became shorter while it was read", url=str(source.name), offset=start)
        start += count
    return start


def new_member(path: bytes, payload: bytes | memoryview, like: Member | None = None) -> Member:
    """Return a member with this *path* and *payload*; mode, owner, times and pax records are taken from *like*.

    Without *like*: mode 0644, owner and time 0, so that equal contents give equal bytes.
    Raises: SampleError if the path is empty or contains a NUL; StorageError if the file of *like* has changed.
    """
    size = len(payload)
    head = encode_header(path, size, like)
    if size < MIN_DIRECT_BYTES:  # one piece is written faster than three
        return Member(path, b"".join((head, payload, PADDING[: -size % BLOCK])), 0, len(head), size)
    source = payload if isinstance(payload, bytes) else bytes(payload)
    return Member(path, source, 0, 0, size, head)


def rename_member(member: Member, path: bytes) -> Member:
    """Return a member like *member* with another *path*; mode, owner, times and pax records stay.

    *member* itself if the path is the same.
    Raises: SampleError if the path is empty or contains a NUL; StorageError if the file of *member* has changed.
    """
    return member if path == member.path else member._replace(path=path, head=encode_header(path, member.size, member))


def rewrite_member(member: Member, path: bytes, source: Source, size: int) -> Member:
    """Return a member like *member* with another *path*, and the first *size* bytes of *source* as payload.

    If neither path nor size changes, the header stays byte for byte; else mode, owner, times and pax records stay.
    Raises: SampleError if the path is empty or contains a NUL; StorageError if the file of *member* has changed.
    """
    same = path == member.path and size == member.size
    head = member.header if same else encode_header(path, size, member)
    return Member(path, source, 0, 0, size, head)


def encode_header(path: bytes, size: int, like: Member | None = None) -> bytes:
    """Return the header blocks of a regular member *path*: a pax header for values beyond ustar, then a ustar block.

    *size*: bytes of its payload. *like*: the member whose mode, owner, times and pax records it gets, but for the
    records of path, size and charset; its GNU headers of long names are left out. None: mode 0644, owner and time 0.

    Raises: SampleError if the path is empty or contains a NUL; StorageError if the file of *like* has changed.
    """
    if like is None and fits_one_block(path, size):
        head = path.ljust(100, b"\0") + _MIDDLES[size][0]
        return head + _TAILS[adler32(head) & 0xFFFF]
    if not path or b"\0" in path:
        raise SampleError(f"not a member name: {path.decode('utf-8', 'surrogateescape')!r}")
    if like is None:
        records: Records = {}
        block = bytearray(NEW_BLOCK)
    else:
        header = like.header
        records = _records_of(header)
        block = bytearray(header[-BLOCK:])
        if block[MAGIC_SLICE] not in (USTAR, GNU):
            block[OWNER_NAMES_SLICE] = bytes(80)  # meaningless before POSIX
        block[MAGIC_SLICE] = USTAR
        if block[TYPE_SLICE] != b"7":
            block[TYPE_SLICE] = b"0"
    records.pop(b"path", None)
    records.pop(b"size", None)
    records.pop(b"hdrcharset", None)
    prefix, name = _split_name(path)
    if prefix is None or not path.isascii():
        try:
            path.decode()
        except UnicodeDecodeError:
            records[b"hdrcharset"] = b"BINARY"
        records[b"path"] = path
    if size > MAX_OCTAL_SIZE:
        records[b"size"] = b"%d" % size
    block[NAME_SLICE] = name[-100:].ljust(100, b"\0")
    block[PREFIX_SLICE] = (prefix or b"").ljust(155, b"\0")  # in the GNU format this field held times
    block[SIZE_SLICE] = b"%011o\0" % (size if size <= MAX_OCTAL_SIZE else 0)
    _set_checksum(block)
    return extended_header(records, bytes(block)) + bytes(block)


def extended_header(records: Records, block: bytes) -> bytes:
    """Return the blocks of a pax header with *records* for the member with header *block*; empty if there are none."""
    if not records:
        return b""
    payload = format_records(records)
    head = bytearray(NEW_BLOCK)
    head[NAME_SLICE] = (b"PaxHeaders/" + block[NAME_SLICE].partition(b"\0")[0].rpartition(b"/")[2])[:100].ljust(
        100, b"\0"
    )
    head[TYPE_SLICE] = b"x"
    head[SIZE_SLICE] = b"%011o\0" % len(payload)
    _set_checksum(head)
    return bytes(head) + payload + bytes(-len(payload) % BLOCK)


def _set_checksum(block: bytearray) -> None:
    """Set the checksum in the header *block*."""
    block[CHKSUM_SLICE] = b"%06o\0 " % byte_sum(bytes(block))


def _split_name(path: bytes) -> tuple[bytes | None, bytes]:
    """Return (prefix, name): *path* as these two fields of ustar; (None, *path*) if it does not fit into them.

    The prefix is b"" for up to 100 bytes; else it ends at the first slash that leaves a name of at most 100. It does
    not fit if the prefix is not 1 to 155 bytes long then, or the name is empty.
    """
    if len(path) <= 100:
        return b"", path
    slash = path.find(b"/", len(path) - 101)
    if 0 < slash <= 155 and slash < len(path) - 1:
        return path[:slash], path[slash + 1 :]
    return None, path


def _records_of(header: bytes) -> Records:
    """Return the pax records in *header*, all header blocks of one member; global ones and GNU long names are left out.

    If a keyword occurs twice, the later record counts. Raises: TarFormatError if a record is malformed.
    """
    records: Records = {}
    at = 0
    while at < len(header) - BLOCK:
        size = parse_number(header[at:][SIZE_SLICE])
        if header[at:][TYPE_SLICE] in (b"x", b"X"):
            records |= parse_records(header[at + BLOCK : at + BLOCK + size])
        at += BLOCK + padded_size(size)
    return records


def _new_block() -> bytes:
    """Return the block that new headers start from: a regular file, mode 0644, owner and times 0."""
    block = bytearray(BLOCK)
    block[100:148] = b"0000644\0" + 2 * b"0000000\0" + 2 * b"00000000000\0"
    block[TYPE_SLICE] = b"0"
    block[MAGIC_SLICE] = USTAR
    block[329:345] = 2 * b"0000000\0"
    return bytes(block)


NEW_BLOCK = _new_block()


# ---- many new members at once: a header is made of a template, in which only path, size and checksum differ ----


class NewMembers(NamedTuple):
    """The bytes of new members, as columns with an item for each member.

    `heads`, `tails`: the header in two parts; `tails` has b"" for a long header, which is all in `heads`.
    `payloads`: the payloads. `paddings`: zeros that fill the last block of each payload.
    `sizes`: bytes that the member takes in the archive, all together.
    """

    heads: list[bytes]
    tails: list[bytes]
    payloads: Sequence[bytes]
    paddings: list[bytes]
    sizes: list[int]


def new_members(paths: Sequence[bytes], payloads: Sequence[bytes]) -> NewMembers:
    """Return the bytes of a new member for each of *paths* and *payloads*: mode 0644, owner and time 0.

    Equal to what `new_member` makes one by one. Raises: SampleError if a path is empty or contains a NUL.
    """
    sizes = list(map(len, payloads))
    middles = list(map(_MIDDLES.__getitem__, sizes))
    heads = [path.ljust(100, b"\0") + middle for path, (middle, _, _) in zip(paths, middles, strict=True)]
    tails = [_TAILS[adler32(head) & 0xFFFF] for head in heads]
    paddings, stored = [padding for _, padding, _ in middles], [size for _, _, size in middles]
    for number in _indexes_of_long(paths, sizes):
        heads[number], tails[number] = encode_header(paths[number], sizes[number]), b""
        stored[number] += len(heads[number]) - BLOCK
    return NewMembers(heads, tails, payloads, paddings, stored)


def _indexes_of_long(paths: Sequence[bytes], sizes: Sequence[int]) -> list[int]:
    """Return the indexes of the members that `fits_one_block` refuses; usually there are none.

    *paths*: of the members. *sizes*: of their payloads in bytes.
    """
    joined = b"".join(paths)
    short = len(max(paths, key=len, default=b"")) <= 100 and max(sizes, default=0) <= MAX_OCTAL_SIZE
    if short and joined.isascii() and b"\0" not in joined and all(paths):
        return []
    return [number for number, member in enumerate(zip(paths, sizes, strict=True)) if not fits_one_block(*member)]


def fits_one_block(path: bytes, size: int) -> bool:
    """True if one plain header block is enough for a new member with this *path* and a payload of *size* bytes.

    The path must be ASCII, of 1 to 100 bytes, without NUL, the size less than 8 GiB.
    """
    return 0 < len(path) <= 100 and path.isascii() and b"\0" not in path and size <= MAX_OCTAL_SIZE


def _header_middle(size: int) -> tuple[bytes, bytes, int]:
    """Return (part of a header from mode to time, padding, size of the member) for a payload of *size* bytes.

    The padding is zeros up to a whole block; the size of the member is bytes of header, payload and padding. From 8 GiB
    on the part of a header has the largest octal size, and is not used.
    """
    middle = NEW_BLOCK[100:124] + b"%011o\0" % min(size, MAX_OCTAL_SIZE) + NEW_BLOCK[136:148]
    return middle, PADDING[: -size % BLOCK], BLOCK + padded_size(size)


def _header_tail(low: int) -> bytes:
    """Return the part of a new header from its checksum on.

    *low*: the low 16 bits of the Adler-32 sum of the 148 bytes before it, which are 1 + the sum of these bytes: see
    `header`. (A longer path gets another header, so there the result is not used.)
    """
    tail = NEW_BLOCK[156:]
    return b"%06o\0 " % (low - 1 + 8 * 0x20 + sum(tail)) + tail


_MIDDLES, _TAILS = BoundedCache(_header_middle), BoundedCache(_header_tail)
