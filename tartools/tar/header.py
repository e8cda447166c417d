"""One 512-byte header block: its fields, numbers and checksum; and the records of extended headers.

An extended header describes the member that follows it. Sources: POSIX.1-2017, pax, "ustar Interchange Format" and
"pax Extended Header"; GNU tar manual, "Basic Tar Format".
"""

import zlib
from collections.abc import Callable
from struct import Struct
from typing import TypeVar

from tartools.errors import TarFormatError

BLOCK = 512
RECORD_BYTES = 20 * BLOCK  # archives end on a multiple of this, as GNU tar's do
MAX_EXTENDED_HEADER = 1 << 20  # bytes; as in libarchive and Go's archive/tar

Key = TypeVar("Key")
CachedValue = TypeVar("CachedValue")
Records = dict[bytes, bytes]  # of a pax extended header

# POSIX.1-2017, pax, "ustar Interchange Format"
NAME_SLICE, SIZE_SLICE = slice(0, 100), slice(124, 136)
CHKSUM_SLICE, TYPE_SLICE = slice(148, 156), slice(156, 157)
MAGIC_SLICE, OWNER_NAMES_SLICE, PREFIX_SLICE = slice(257, 265), slice(265, 345), slice(345, 500)
USTAR = b"ustar\x0000"  # only headers with this magic have a prefix
GNU = b"ustar  \0"

# the fields that the fast path needs: name, size, checksum with type flag, first byte of the prefix
FAST_HEADER = Struct("100s24x12s12x9s188xB166x")

# The low half of an Adler-32 sum is 1 + the sum of the bytes, modulo 65521 (RFC 1950, 8.2), at a tenth of the cost of a
# sum in Python. The bytes of half a header sum up to at most 65280, those of a whole one can exceed the modulus.
# So a header that is not ASCII needs a second sum, of half of it: 0.2 us more a member in the reader's loop. Two checks
# that link name and prefix are zeros, which bound the sum as well, take as long.
adler32 = zlib.adler32
ADLER_MODULUS = 65521
HALF_BLOCK = BLOCK // 2


def padded_size(size: int) -> int:
    """Return *size*, in bytes, rounded up to whole blocks of 512 bytes.

    >>> padded_size(0), padded_size(1), padded_size(512)
    (0, 512, 512)
    """
    return (size + BLOCK - 1) & -BLOCK


def parse_number(field: bytes) -> int:
    r"""Return the value of a numeric field: octal digits, or GNU's base-256. Raises: TarFormatError for anything else.

    Blanks may precede the octal digits and follow them; what follows the first NUL is ignored; a field of blanks and
    NULs is 0. Base-256 (GNU tar manual, "Basic Tar Format"): the first bit is set, the rest is a big-endian two's
    complement, which may be negative.

    >>> parse_number(b"0000644\0"), parse_number(b"\x80\0\0\x02\0\0\0\0")
    (420, 8589934592)
    """
    if field[0] & 0x80:
        value = int.from_bytes(field, "big", signed=False) & ((1 << (8 * len(field) - 1)) - 1)
        return value - (1 << (8 * len(field) - 1)) if field[0] & 0x40 else value
    digits = field.partition(b"\0")[0].strip(b" ")
    if not digits:
        return 0
    if not digits.isdigit() or b"8" in digits or b"9" in digits:
        raise TarFormatError(f"not a number: {digits.decode('latin-1')!r}")
    return int(digits, 8)


def byte_sum(block: bytes | memoryview) -> int:
    """Return the checksum that the header *block* should have: the sum of its unsigned bytes, that field as blanks."""
    halves = (adler32(block[:HALF_BLOCK]) & 0xFFFF) + (adler32(block[HALF_BLOCK:]) & 0xFFFF) - 2
    return halves - sum(block[CHKSUM_SLICE]) + 8 * 0x20


def checksum_matches(block: bytes) -> bool:
    """True if the stored checksum of *block* is right, summed over unsigned or (old Sun tars) signed bytes."""
    try:
        stored = parse_number(block[CHKSUM_SLICE])
    except TarFormatError:
        return False
    unsigned = byte_sum(block)
    return stored == unsigned or stored == unsigned - 256 * sum(b > 127 for b in block[:148] + block[156:])


def regular_name(block: bytes) -> bytes:
    """Return the path in the header *block*: prefix, slash and name if the magic is ustar and there is a prefix.

    Else the name alone. Both end at their first NUL.
    """
    name = block[NAME_SLICE].partition(b"\0")[0]
    prefix = block[PREFIX_SLICE].partition(b"\0")[0] if block[MAGIC_SLICE] == USTAR else b""
    return prefix + b"/" + name if prefix else name


def has_foreign_prefix(block: bytes) -> bool:
    """True if *block* is no ustar header, but has a byte other than NUL where the prefix of a name begins in ustar.

    GNU tar -g has times there. Readers that ignore the magic, such as Python's tarfile, so webdataset and datasets,
    take them for a prefix: `13627467000/a.jpg`.
    """
    return block[PREFIX_SLICE.start] != 0 and block[MAGIC_SLICE] != USTAR


class BoundedCache(dict[Key, CachedValue]):
    """A dict that fills itself: `cache[key]` calls *make(key)* for a key that is not there, and keeps the result.

    A new key empties it first if it has more than 65,536, since forged headers may have any number of them.
    """

    def __init__(self, make: Callable[[Key], CachedValue]) -> None:
        self._make = make

    def __missing__(self, key: Key) -> CachedValue:
        if len(self) > 1 << 16:
            self.clear()
        value = self[key] = self._make(key)
        return value


def _expected_sum(field: bytes) -> int:
    """Return the low 16 bits of the Adler-32 sum that a sound header of a regular file has; -1 for other headers.

    *field*: its checksum field and type flag, from which the sum follows. -1 also if the checksum is no number, or the
    sum is not below the modulus of Adler-32. So one comparison verifies both the type and the checksum.
    """
    if field[8:] not in (b"0", b"\0"):
        return -1
    try:
        total = parse_number(field[:8]) - 8 * 0x20 + sum(field[:8]) + 1
    except TarFormatError:
        return -1
    return total if total < ADLER_MODULUS else -1


def _parse_size(field: bytes) -> int:
    """Return the number of bytes in the size field *field* of a header: negative if that is; -1 if it is malformed."""
    try:
        return parse_number(field)
    except TarFormatError:
        return -1


EXPECTED_SUMS, PARSED_SIZES = BoundedCache(_expected_sum), BoundedCache(_parse_size)
NO_SUMS: BoundedCache[bytes, int] = BoundedCache(lambda _: -1)  # where no header may take the fast path


def parse_records(payload: bytes, offset: int | None = None) -> Records:
    r"""Return the records in *payload*, the data of a pax extended header, in order: keyword -> value.

    If a keyword occurs twice, the later record counts. Raises: TarFormatError with *offset*, that of the header, if a
    record is malformed.

    >>> parse_records(b"12 path=abc\n")
    {b'path': b'abc'}
    """
    records: Records = {}
    position = 0
    while position < len(payload):
        digits, blank, _ = payload[position : position + 20].partition(b" ")
        end = position + int(digits) if blank and digits.isdigit() else 0
        keyword, equals, value = payload[position + len(digits) + 1 : end - 1].partition(b"=")
        if not position < end <= len(payload) or payload[end - 1 : end] != b"\n" or not equals or not keyword:
            raise TarFormatError("pax record is malformed", offset=offset)
        records[keyword] = value
        position = end
    return records


def format_records(records: Records) -> bytes:
    r"""Return *records* as the payload of a pax extended header.

    >>> format_records({b"path": b"abc"})
    b'12 path=abc\n'
    """
    lines = []
    for keyword, value in records.items():
        size = len(keyword) + len(value) + 3
        length = size + len(str(size))
        length = size + len(str(length))  # the length counts its own digits
        lines.append(b"%d %b=%b\n" % (length, keyword, value))
    return b"".join(lines)
