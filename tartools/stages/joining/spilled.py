"""The second data set of a join in a temporary file, sorted by key."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tartools.errors import SampleError
from tartools.storage.scratch import scratch_file
from tartools.tar import read_range

Sort = Callable[[Iterable[bytes]], Iterator[bytes]]  # records, any number of them

NUMBER = 8  # bytes of the number of a sample of B in a record
PLACE = 120  # bytes of memory for the place of a block
LEAST, MOST = 8, 1000  # records in a block
LARGE = 1 << 16  # bytes; no block is larger, unless one record is


class Spilled:
    """B is in a temporary file, sorted by key, in blocks; the first key of each block is in memory."""

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]], memory: int, sort: Sort, tmpdir: str | None) -> None:
        self.samples = 0
        self.example: bytes | None = None
        self._memory = memory
        self._file = scratch_file(tmpdir)
        self._firsts: list[bytes] = []
        self._places: list[int] = [0]
        self._blocks: OrderedDict[int, list[bytes]] = OrderedDict()  # least recently used first
        self._size = 0  # of these
        self._write(sort(self._records(pairs)))
        self._marks = bytearray((self.samples + 7) // 8)  # which were asked for; a bit for each
        self.example = self._firsts[0] if self._firsts else None

    def find(self, keys: Sequence[bytes]) -> Sequence[Any]:
        """As `partners.Partners.find`."""
        return [self._value(key) for key in keys]

    @property
    def left(self) -> int:
        """As `partners.Partners.left`."""
        return self.samples - int.from_bytes(self._marks, "little").bit_count()

    def _records(self, pairs: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
        for number, (key, value) in enumerate(pairs):
            self.samples += 1
            yield key + b"\0" + number.to_bytes(NUMBER, "big") + value

    def _write(self, records: Iterator[bytes]) -> None:
        """Write sorted *records* in blocks: as few as their places need to fit into a quarter of the memory."""
        block: list[bytes] = []
        size = most = 0
        last, last_number = b"", 0
        for record in records:
            most = most or min(max(LEAST, self.samples * PLACE * 4 // self._memory), MOST)
            key = record[: record.index(b"\0")]
            number = int.from_bytes(record[len(key) + 1 : len(key) + 1 + NUMBER], "big")
            if key == last and (block or self._firsts):
                raise twice(key, last_number, number)
            last, last_number = key, number
            if block and (len(block) == most or size + len(record) > LARGE):
                self._add(block)
                block, size = [], 0
            block.append(record)
            size += len(record)
        if block:
            self._add(block)

    def _add(self, block: list[bytes]) -> None:
        self._firsts.append(block[0][: block[0].index(b"\0")])
        data = b"".join([part for record in block for part in (len(record).to_bytes(NUMBER, "big"), record)])
        self._file.write(data)
        self._places.append(self._places[-1] + len(data))

    def _value(self, key: bytes) -> bytes | None:
        at = bisect_right(self._firsts, key) - 1
        if at < 0:
            return None
        begin = key + b"\0"
        block = self._block(at)
        number = bisect_left(block, begin)
        if number == len(block) or not block[number].startswith(begin):
            return None
        record = block[number]
        asked = int.from_bytes(record[len(begin) : len(begin) + NUMBER], "big")
        self._marks[asked >> 3] |= 1 << (asked & 7)
        return record[len(begin) + NUMBER :]

    def _block(self, number: int) -> list[bytes]:
        """Return the records of block *number*; the last ones that were asked for are in memory."""
        if number in self._blocks:
            self._blocks.move_to_end(number)
            return self._blocks[number]
        begin, end = self._places[number], self._places[number + 1]
        data = read_range(self._file, begin, end)
        found = []
        at = 0
        while at < len(data):
            size = int.from_bytes(data[at : at + NUMBER], "big")
            at += NUMBER + size
            found.append(data[at - size : at])
        self._blocks[number] = found
        self._size += end - begin
        while self._size > self._memory // 8 and len(self._blocks) > 1:
            old, _ = self._blocks.popitem(last=False)
            self._size -= self._places[old + 1] - self._places[old]
        return found


def twice(key: bytes, first: int, second: int) -> SampleError:
    """Return the failure that samples number *first* and *second* of B both have *key*."""
    name = key.decode("utf-8", "surrogateescape")
    return SampleError(
        f"B has the key {name!r} twice, so what to add is not clear: its samples number {first + 1:,} and "
        f"{second + 1:,} (tarsort -u first keeps one of each key of shards; make a table without them)"
    )
