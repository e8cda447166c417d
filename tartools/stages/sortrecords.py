"""The records that tarsort sorts: of samples, or of rows of tables; and which records of equal sort keys go together.

A record is bytes that C compares in sort order. Its head decides the order; its tail says where the sample or the row
is. Sorting never looks into a record, and both kinds are packed and unpacked only here:

    sample    sort key | position | key | begin end shard in_scratch | size of the key | never_joined
    row       sort key | row      | key | fields                     | size of the key | never_joined

`position`, the number of the sample in the input, and `row` are 8 bytes, big-endian: they make the sort stable. A sort
key needs no size, since it is what precedes the rest.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import count, groupby, islice
from operator import itemgetter
from struct import Struct
from typing import NamedTuple, TypeVar

from tartools.samples import sortkeys
from tartools.samples.account import Account
from tartools.samples.sortkeys import Order
from tartools.stages.samplefiles import Location

SORT_POSITION_BYTES = 8
SAMPLE_TAIL = Struct(">QQI?I?")  # begin, end, shard, in_scratch, size of the key, never_joined
ROW_TAIL = Struct(">II?")  # fields, size of the key, never_joined


class SampleRecord(NamedTuple):
    """The record of a sample, unpacked.

    `sort_key`: encoded value by which it is sorted.
    `key`: key of the sample.
    `begin`, `end`, `shard`, `in_scratch`: its `location`.
    `never_joined`: True if its members have no field, so that none of another sample belongs to it.
    """

    sort_key: bytes
    key: bytes
    begin: int
    end: int
    shard: int
    in_scratch: bool
    never_joined: bool

    @property
    def location(self) -> Location:
        """The location of the sample's bytes, in a plain file or the scratch file."""
        return Location(self.begin, self.end, self.shard, self.in_scratch)

    def pack(self, position: int) -> bytes:
        """Return the record as bytes that compare in sort order; *position*: number of the sample in the input."""
        sort_key, key, begin, end, shard, in_scratch, never_joined = self
        tail = SAMPLE_TAIL.pack(begin, end, shard, in_scratch, len(key), never_joined)
        return sort_key + position.to_bytes(SORT_POSITION_BYTES, "big") + key + tail


class RowRecord(NamedTuple):
    """The record of a row, unpacked.

    `sort_key`: encoded value by which it is sorted.
    `key`: key of the sample; b"" if the table has none.
    `row`: number of the row.
    `fields`: a number that stands for the fields of the sample, the same for the same fields; 2**32 - 1 if unknown.
    `never_joined`: True if the sample has no field, so that none of another row belongs to it.
    """

    sort_key: bytes
    key: bytes
    row: int
    fields: int
    never_joined: bool

    def pack(self) -> bytes:
        """Return the record as bytes that compare in sort order."""
        sort_key, key, row, fields, never_joined = self
        tail = ROW_TAIL.pack(fields, len(key), never_joined)
        return sort_key + row.to_bytes(SORT_POSITION_BYTES, "big") + key + tail


Record = TypeVar("Record", SampleRecord, RowRecord)


def pack_samples(
    sort_keys: Iterable[bytes],
    position: int,
    keys: Sequence[bytes],
    bounds: Sequence[int],
    shard: int,
    never_joined: Sequence[bool],
) -> Iterator[bytes]:
    """Yield the packed `SampleRecord` of each of the samples that are adjacent in a plain file, without making objects.

    `sort_keys`, `keys`, `never_joined`: of each sample. `position`: number of the first in the input. `bounds`: the
    byte at which each begins, then the end of the last. `shard`: number of the shard in `SampleFiles`. `in_scratch` of
    the records is False.
    """
    pack, size = SAMPLE_TAIL.pack, SORT_POSITION_BYTES
    samples = zip(sort_keys, count(position), keys, bounds, islice(bounds, 1, None), never_joined, strict=False)
    for sort_key, at, key, begin, end, lone in samples:
        yield sort_key + at.to_bytes(size, "big") + key + pack(begin, end, shard, False, len(key), lone)


def unpack_samples(records: Iterable[bytes]) -> Iterator[SampleRecord]:
    """Yield a `SampleRecord` for each of *records*, packed ones of samples, in their order."""
    make = tuple.__new__  # half of what SampleRecord(...) costs
    unpack, size = SAMPLE_TAIL.unpack_from, SAMPLE_TAIL.size
    for packed in records:
        tail = len(packed) - size
        begin, end, shard, in_scratch, key_size, never_joined = unpack(packed, tail)
        at = tail - key_size
        sort_key, key = packed[: at - SORT_POSITION_BYTES], packed[at:tail]
        yield make(SampleRecord, (sort_key, key, begin, end, shard, in_scratch, never_joined))


def unpack_rows(records: Iterable[bytes]) -> Iterator[RowRecord]:
    """Yield a `RowRecord` for each of *records*, packed ones of rows, in their order."""
    unpack, make, size = ROW_TAIL.unpack_from, tuple.__new__, ROW_TAIL.size
    for packed in records:
        tail = len(packed) - size
        fields, key_size, never_joined = unpack(packed, tail)
        at = tail - key_size
        row = int.from_bytes(packed[at - SORT_POSITION_BYTES : at], "big")
        yield make(RowRecord, (packed[: at - SORT_POSITION_BYTES], packed[at:tail], row, fields, never_joined))


# ---- records of equal sort keys ----


def choose_equal_values(records: Iterable[Record], order: Order, account: Account) -> Iterator[list[Record]]:
    """Yield each of *records*, which are sorted, in a list of its own; with `order.unique`, one record of each value.

    It keeps the first or last of the records with equal sort keys, and counts the other ones in *account* as left out.
    Samples without a value are never equal. Holds: one record.
    """
    for value, equal in groupby(records, itemgetter(0)):
        if order.unique is None or value in (sortkeys.MISSING_FIRST, sortkeys.MISSING_LAST):
            yield from ([record] for record in equal)
            continue
        remaining = iter(equal)
        chosen = next(remaining)
        for record in remaining:
            account.left_out += 1
            chosen = record if order.unique == "last" else chosen
        yield [chosen]


def join_equal_keys(records: Iterable[Record], order: Order, account: Account) -> Iterator[list[Record]]:
    """Yield a list for each sample: the sorted *records* that have its key, in their order.

    A record that is `never_joined`, a member without a field, is a sample of its own. With `order.unique`, of different
    samples with one sort key, such as 1 and 01 as numbers, only the first or last is yielded (these records do not
    compete with samples that have fields); the records of the other ones are counted in *account* as left out. The
    lists are in the order of their first records, but with `unique` as `parts_by_sample` returns them. Holds: the
    records of equal sort keys.
    """
    for _, same in groupby(records, itemgetter(0)):
        equal = list(same)
        yield from [equal] if len(equal) == 1 else parts_by_sample(equal, order, account)


def parts_by_sample(equal: list[Record], order: Order, account: Account) -> list[list[Record]]:
    """Return the records *equal*, of one sort key, in a list for each sample, whose parts have one key.

    Lists are in the order of their first records. Different keys may have one sort key, such as 1 and 01 as numbers:
    with `order.unique`, only the first or last of these samples is kept, and the records of the others are counted in
    *account* as left out. A member without a field is a sample of its own, even if its name is the key of another
    sample; with `order.unique`, one of these is kept beside one sample with fields. Of the two kept, the first is the
    one whose kind, with or without fields, came first in *equal*.
    """
    samples: dict[tuple[bytes, int], list[Record]] = {}
    for number, record in enumerate(equal):
        lone_number = number if record.never_joined else -1
        samples.setdefault((record.key, lone_number), []).append(record)
    if order.unique is None:
        return list(samples.values())
    parts_by_kind: dict[bool, list[Record]] = {}
    for parts in samples.values():
        kind = parts[0].never_joined
        if order.unique == "last" or kind not in parts_by_kind:
            parts_by_kind[kind] = parts
    account.left_out += len(equal) - sum(map(len, parts_by_kind.values()))
    return list(parts_by_kind.values())
