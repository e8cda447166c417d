"""The full header of one member: its header block and the extended headers before it."""

from typing import NamedTuple

from tartools.errors import TarFormatError
from tartools.tar.groups import MACOS_METADATA, NO_PAYLOAD, SPECIAL, Special
from tartools.tar.header import (
    BLOCK,
    MAX_EXTENDED_HEADER,
    SIZE,
    SIZES,
    TYPE,
    Records,
    checksum_matches,
    padded,
    parse_records,
    regular_name,
)
from tartools.tar.keys import is_macos_metadata
from tartools.tar.writer import extended_header

PAX, GLOBAL, LONG_NAME, LONG_LINK = b"xX", b"g", b"L", b"K"  # X is that of old Solaris
EXTENDED = PAX + GLOBAL + LONG_NAME + LONG_LINK
MORE_MAP, MORE_MAP_AFTER = 482, 504  # offsets in a GNU sparse header and in the blocks that follow it


class BadChecksumError(TarFormatError):
    """The checksum of a block does not match, so it is not a header."""


class NeedMore(NamedTuple):
    """The buffer is too short: it must reach offset *end*, the end of *what*."""

    end: int
    what: str


class GlobalHeader(NamedTuple):
    """A pax global header that ends at offset *end*; *governing* are the records now in force, without comments."""

    governing: Records
    end: int


class FullHeader(NamedTuple):
    """The properties of one member. *data* is the offset of its payload; *head* replaces its header if not None.

    *governing* are the global records in force after it.
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
        """The path as text."""
        return self.path.decode("utf-8", "surrogateescape")

    @property
    def special(self) -> Special | None:
        """What to yield instead of a member, if this one carries no sample data."""
        if self.sparse:
            return Special(self.name, *SPECIAL[b"S"])
        if self.kind in SPECIAL:
            return Special(self.name, *SPECIAL[self.kind])
        if self.path.endswith(b"/") and self.size == 0:  # how pre-POSIX tars write a directory
            return Special(self.name, *SPECIAL[b"5"])
        if is_macos_metadata(self.path):
            return Special(self.name, MACOS_METADATA, False)
        return None

    @property
    def end(self) -> int:
        """Offset of the end of the padding."""
        return self.data if self.special and self.kind in NO_PAYLOAD else self.data + padded(self.size)


def read_full_header(view: memoryview, start: int, governing: Records) -> FullHeader | GlobalHeader | NeedMore:
    """Return the full header at offset *start* of *view*; *governing* are the global records in force.

    If a global record has a keyword that the member's own records lack, the header is rewritten to contain it.
    Sources: POSIX.1-2017, pax, "pax Interchange Format"; GNU tar manual, "Basic Tar Format".
    Raises: TarFormatError with the offset in *view*.
    """
    at = start
    records: Records = {}
    path = b""
    kept = b""  # GNU extended headers, which are kept when pax headers are rewritten
    dropped = False  # a global header among the member's own
    while True:
        if at + BLOCK > len(view):
            return NeedMore(at + BLOCK, "a header")
        block = bytes(view[at : at + BLOCK])
        kind, size = _checked(block, at)
        if kind not in EXTENDED:
            break
        end = at + BLOCK + padded(size)
        if size > MAX_EXTENDED_HEADER or end - start > 4 * MAX_EXTENDED_HEADER:
            raise TarFormatError(f"extended headers above the limit of {MAX_EXTENDED_HEADER} bytes", offset=at)
        if end > len(view):
            return NeedMore(end, "an extended header")
        payload = bytes(view[at + BLOCK : at + BLOCK + size])
        if kind == GLOBAL:
            governing = governing | {k: v for k, v in parse_records(payload, at).items() if k != b"comment"}
            if at == start:
                return GlobalHeader(governing, end)
            dropped = True
        elif kind in PAX:
            records |= parse_records(payload, at)
        else:
            path = payload.partition(b"\0")[0] if kind == LONG_NAME else path
            kept += bytes(view[at:end])
        at = end
    governed = governing | records
    rewrite = dropped or governing.keys() - records.keys()
    head = kept + extended_header(governed, block) + block if rewrite else None
    header = FullHeader(
        governed.get(b"GNU.sparse.name") or governed.get(b"path") or path or regular_name(block),
        kind,
        _stated_size(governed, start) if governed.get(b"size") else size,
        at + BLOCK,
        head,
        kind == b"S" or any(key.startswith(b"GNU.sparse.") for key in governed),
        governing,
    )
    return _past_map(view, header, block[MORE_MAP]) if kind == b"S" else header


def _checked(block: bytes, at: int) -> tuple[bytes, int]:
    """Return type flag and size of a header block. Raises: TarFormatError if the checksum or the size is wrong."""
    if not checksum_matches(block):
        raise BadChecksumError("header checksum does not match", offset=at)
    size = SIZES[block[SIZE]]
    if size < 0:
        raise TarFormatError("the size in the header is not a number", offset=at)
    return block[TYPE], size


def _stated_size(records: Records, at: int) -> int:
    digits = records[b"size"]
    if not digits.isdigit() or len(digits) > 20:
        raise TarFormatError("the size in the extended header is not a number", offset=at)
    return int(digits)


def _past_map(view: memoryview, header: FullHeader, more: int) -> FullHeader | NeedMore:
    """Return *header*, of an old GNU sparse file, with *data* moved past the extra blocks of its sparse map."""
    data = header.data
    while more:
        if data - header.data >= MAX_EXTENDED_HEADER:
            raise TarFormatError(f"a sparse map above the limit of {MAX_EXTENDED_HEADER} bytes", offset=header.data)
        if data + BLOCK > len(view):
            return NeedMore(data + BLOCK, "a sparse header")
        more = view[data + MORE_MAP_AFTER]
        data += BLOCK
    return header._replace(data=data)
