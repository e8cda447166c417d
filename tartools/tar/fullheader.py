"""The full header of one member: its header block and the extended headers before it."""

from typing import NamedTuple

from tartools.errors import TarFormatError
from tartools.tar.groups import MACOS_METADATA, NO_PAYLOAD, SPECIAL_TYPES, Special
from tartools.tar.header import (
    BLOCK,
    MAX_EXTENDED_HEADER,
    PARSED_SIZES,
    SIZE_SLICE,
    TYPE_SLICE,
    Records,
    checksum_matches,
    padded_size,
    parse_records,
    regular_name,
)
from tartools.tar.keys import is_macos_metadata
from tartools.tar.writer import extended_header

PAX_TYPES, GLOBAL_TYPE, LONG_NAME_TYPE, LONG_LINK_TYPE = b"xX", b"g", b"L", b"K"  # X is that of old Solaris
EXTENDED_TYPES = PAX_TYPES + GLOBAL_TYPE + LONG_NAME_TYPE + LONG_LINK_TYPE
MAX_GLOBAL_BYTES = 1 << 16  # of all global records that are in force together
PAX_RECORD_OVERHEAD_BYTES = 64  # of memory that a record takes besides its keyword and value, about
MORE_MAP, MORE_MAP_AFTER = 482, 504  # offsets in a GNU sparse header and in the blocks that follow it


class BadChecksumError(TarFormatError):
    """The checksum of a block does not match, so it is not a header."""


class ExtendedHeaders:
    """The extended headers before one member, parsed so far. They take `size` bytes of the archive.

    Begin with the global records *governing*; `add` adds one header after the other.
    `records`: the member's own pax records. `governing`: the global records in force. `path`: a GNU long name, or b"".
    `gnu`: all blocks of GNU extended headers. `has_global_header`: True if a global one was added.
    Each header is parsed once, even if the buffer gets few bytes at a time: a hostile shard may have thousands of them.
    """

    __slots__ = ("gnu", "governing", "has_global_header", "path", "records", "size")

    def __init__(self, governing: Records) -> None:
        self.size = 0
        self.records: Records = {}
        self.governing = governing  # global records in force
        self.path = b""
        self.gnu = bytearray()  # GNU extended headers, which are kept when pax headers are rewritten
        self.has_global_header = False

    def add(self, kind: bytes, payload: bytes, raw: memoryview, at: int) -> None:
        """Add one extended header: its type flag *kind*, one of EXTENDED_TYPES, its *payload*, all its blocks *raw*.

        A keyword or long name that occurred before is replaced; `gnu` keeps all blocks. *at*: its offset, for errors.
        Raises: TarFormatError for malformed records, or global ones above 64 KiB (MAX_GLOBAL_BYTES) together.
        """
        if kind == GLOBAL_TYPE:
            self.governing = _merge_governing(self.governing, parse_records(payload, at), at)
            self.has_global_header = True
        elif kind in PAX_TYPES:
            self.records |= parse_records(payload, at)
        else:
            self.path = payload.partition(b"\0")[0] if kind == LONG_NAME_TYPE else self.path
            self.gnu += raw
        self.size += len(raw)


class IncompleteHeader(NamedTuple):
    """The result of parsing a header whose last bytes are not in the buffer yet.

    `end`: the offset in the buffer up to which bytes are needed. `unit`: the name, for messages, of the header that
    ends there: "a header", "an extended header", "a sparse header".
    `parsed`: the extended headers so far, for the next call of `read_full_header`.
    """

    end: int
    unit: str
    parsed: ExtendedHeaders


class GlobalHeader(NamedTuple):
    """A pax global header that ends at offset *end* of the buffer.

    *governing*: the global records in force after it, without comments.
    """

    governing: Records
    end: int


class FullHeader(NamedTuple):
    """The properties of one member, from its header and the extended headers before it.

    `path`: of the member, as bytes: from pax records or a GNU long name, if there are any.
    `kind`: its type flag.
    `size`: bytes of its payload in the archive, as the header or a pax record states it.
    `data`: offset of its payload in the buffer.
    `head`: bytes that replace its header when it is written; None if the header stays as it is.
    `sparse`: True for a sparse file, in any of GNU's formats.
    `governing`: the global records in force after it.
    """

    path: bytes
    kind: bytes
    size: int
    data: int
    head: bytes | None
    sparse: bool
    governing: Records

    @property
    def name(self) -> str:
        """The path as text; bytes that are not UTF-8 are surrogate escapes."""
        return self.path.decode("utf-8", "surrogateescape")

    @property
    def special(self) -> Special | None:
        """The `Special` to yield in place of this member; None if it may be part of a sample.

        Special are links, devices, fifos and other types of SPECIAL_TYPES, folders (also an empty member with a path
        that ends in a slash), sparse files, and the metadata files of macOS.
        """
        if self.sparse:
            return Special(self.name, *SPECIAL_TYPES[b"S"])
        if self.kind in SPECIAL_TYPES:
            return Special(self.name, *SPECIAL_TYPES[self.kind])
        if self.path.endswith(b"/") and self.size == 0:  # how pre-POSIX tars write a directory
            return Special(self.name, *SPECIAL_TYPES[b"5"])
        if is_macos_metadata(self.path):
            return Special(self.name, MACOS_METADATA, False)
        return None

    @property
    def end(self) -> int:
        """Offset in the buffer at which the member ends, padding included.

        Links, devices, fifos and folders (type 5) end where `data` is, whatever `size` says.
        """
        return self.data if self.special and self.kind in NO_PAYLOAD else self.data + padded_size(self.size)


def read_full_header(
    view: memoryview, start: int, governing: Records, parsed: ExtendedHeaders | None = None
) -> FullHeader | GlobalHeader | IncompleteHeader:
    """Return the full header at offset *start* of *view*; *governing* are the global records in force.

    `GlobalHeader` if a pax global header is there; `IncompleteHeader` if *view* ends before the header does: then call
    this again with more bytes, *start* at the same header, and its `parsed` as *parsed*, so that nothing is parsed
    twice. If a global record has a keyword that the member's own records lack, or a global header is among its extended
    headers, `head` is a new header with the global records and its own, and its GNU extended headers.
    Sources: POSIX.1-2017, pax, "pax Interchange Format"; GNU tar manual, "Basic Tar Format".
    Raises: TarFormatError with the offset in *view*, also for extended headers above 1 MiB each or 4 MiB together; if a
    checksum does not match, its subclass BadChecksumError.
    """
    extended = parsed or ExtendedHeaders(governing)
    while True:
        at = start + extended.size
        if at + BLOCK > len(view):
            return IncompleteHeader(at + BLOCK, "a header", extended)
        block = bytes(view[at : at + BLOCK])
        kind, size = _parse_block(block, at)
        if kind not in EXTENDED_TYPES:
            break
        end = at + BLOCK + padded_size(size)
        if size > MAX_EXTENDED_HEADER or end - start > 4 * MAX_EXTENDED_HEADER:
            raise TarFormatError(f"extended headers above the limit of {MAX_EXTENDED_HEADER} bytes", offset=at)
        if end > len(view):
            return IncompleteHeader(end, "an extended header", extended)
        extended.add(kind, bytes(view[at + BLOCK : at + BLOCK + size]), view[at:end], at)
        if kind == GLOBAL_TYPE and at == start:
            return GlobalHeader(extended.governing, end)
    governing = extended.governing
    governed = governing | extended.records
    rewrite = extended.has_global_header or governing.keys() - extended.records.keys()
    head = bytes(extended.gnu) + extended_header(governed, block) + block if rewrite else None
    header = FullHeader(
        governed.get(b"GNU.sparse.name") or governed.get(b"path") or extended.path or regular_name(block),
        kind,
        _size_in_records(governed, start) if governed.get(b"size") else size,
        at + BLOCK,
        head,
        kind == b"S" or any(key.startswith(b"GNU.sparse.") for key in governed),
        governing,
    )
    return _skip_sparse_map(view, header, block[MORE_MAP], extended) if kind == b"S" else header


def _merge_governing(before: Records, added: Records, at: int) -> Records:
    """Return the global records in force: the records *before*, then the records *added*, without comments.

    A keyword that occurred before is replaced. Raises: TarFormatError with offset *at* if they take more than 64 KiB
    (MAX_GLOBAL_BYTES). They become part of the header of each member behind them, so the members of one buffer would
    take a thousand times this memory.
    """
    records = before | added
    records.pop(b"comment", None)
    if (
        sum(map(len, records)) + sum(map(len, records.values())) + PAX_RECORD_OVERHEAD_BYTES * len(records)
        > MAX_GLOBAL_BYTES
    ):
        raise TarFormatError(f"global extended headers above the limit of {MAX_GLOBAL_BYTES} bytes", offset=at)
    return records


def _parse_block(block: bytes, at: int) -> tuple[bytes, int]:
    """Return (type flag, size of the payload in bytes) of a header *block* of 512 bytes.

    Raises: BadChecksumError for a wrong checksum, TarFormatError for a size that is negative or no number; *at* is the
    offset of the error.
    """
    if not checksum_matches(block):
        raise BadChecksumError("header checksum does not match", offset=at)
    size = PARSED_SIZES[block[SIZE_SLICE]]
    if size < 0:
        raise TarFormatError("the size in the header is not a number", offset=at)
    return block[TYPE_SLICE], size


def _size_in_records(records: Records, at: int) -> int:
    """Return the size in bytes that the pax *records* of a member state; they must have the keyword b"size".

    Raises: TarFormatError, with offset *at*, if it is not 1 to 20 decimal digits.
    """
    digits = records[b"size"]
    if not digits.isdigit() or len(digits) > 20:
        raise TarFormatError("the size in the extended header is not a number", offset=at)
    return int(digits)


def _skip_sparse_map(
    view: memoryview, header: FullHeader, has_more: int, extended: ExtendedHeaders
) -> FullHeader | IncompleteHeader:
    """Return *header*, of an old GNU sparse file, with `data` moved past the extra blocks of its sparse map.

    *has_more*: not 0 if such a block follows the header. *extended*: the extended headers, for the `IncompleteHeader`
    that is returned if the buffer *view* ends before the map does.
    Raises: TarFormatError for a map above 1 MiB.
    """
    data = header.data
    while has_more:
        if data - header.data >= MAX_EXTENDED_HEADER:
            raise TarFormatError(f"a sparse map above the limit of {MAX_EXTENDED_HEADER} bytes", offset=header.data)
        if data + BLOCK > len(view):
            return IncompleteHeader(data + BLOCK, "a sparse header", extended)
        has_more = view[data + MORE_MAP_AFTER]
        data += BLOCK
    return header._replace(data=data)
