"""Records of the index: what a sample sorts by, its position in the input, and where its bytes are.

A record is bytes that C compares in sort order: the sort key, the position (so that the sort is stable), the key of the
sample unless the sort key implies it, and the location: a range of a plain local file, or of the scratch file.
"""

from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from typing import NamedTuple

POSITION = 8  # bytes, big-endian, after the sort key; the key of the sample and its location follow
LOCATION = Struct(">QQIIB")  # start, end, shard, length of the key in the record, flags
POSITIONED = Struct(">QQQIIB")  # position and location, for records without a key between them
LONE, COPIED, IMPLIED = 1, 2, 4  # flags: never joined; in the scratch file; the sort key implies the key


class Entry(NamedTuple):
    """A record of the index, unpacked: the sort key, and where the sample *key* is stored."""

    sort_key: bytes
    key: bytes
    start: int
    end: int
    shard: int
    flags: int


def unpacked(records: Iterable[bytes], text_of: Callable[[bytes], bytes]) -> Iterator[Entry]:
    """Yield *records* as entries, in their order. *text_of* gives the key that a sort key implies."""
    unpack, make, size = LOCATION.unpack_from, tuple.__new__, LOCATION.size  # half of what Entry(...) costs
    for packed in records:
        behind = len(packed) - size
        start, end, shard, length, flags = unpack(packed, behind)
        behind -= length
        sort_key = packed[: behind - POSITION]
        key = text_of(sort_key) if flags & IMPLIED else packed[behind : behind + length]
        yield make(Entry, (sort_key, key, start, end, shard, flags))
