"""What the second data set, B, has for each key of the first, A: in memory if it fits, else on disk.

 - `Held`: all of B in a dictionary.
 - `Spilled`: B is sorted to a temporary file; a block of it is read for each key of A, one after the other if A is
   sorted.

A has any size and order, and is read once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count
from typing import Any

from tartools.errors import SampleError
from tartools.stages.externalsort import external_sort, new_file, packed, unpack_block
from tartools.tar import read_range

# keys of adjacent samples of B, and what it has for them, as bytes
Batches = Iterator[tuple[Sequence[bytes], Sequence[Any]]]

NUMBER = 8  # bytes of the number of a sample of B in a record
PLACE = 120  # bytes of memory for the place of a block
LEAST, MOST = 8, 1000  # records in a block
LARGE = 1 << 16  # bytes; no block is larger, unless one record is
OVERHEAD = 250  # bytes of memory for a sample in a dictionary beyond its own: three objects, slots in lists


def partners_of(batches: Batches, memory: int, tmpdir: str | None) -> Held | Spilled:
    """Read *batches* of B, and return what finds partners in them.

    Holds: *memory* bytes. Raises: SampleError if a key is there twice; what *batches* raise.
    """
    numbers: dict[bytes, int] = {}
    held: list[bytes] = []
    size = 0
    for keys, values in batches:
        before = len(held)
        numbers.update(zip(keys, count(before), strict=False))
        held += values
        if len(numbers) != len(held):
            raise _twice_in(list(numbers)[:before], keys)
        size += sum(map(len, keys)) + sum(map(len, values)) + OVERHEAD * len(keys)
        if size > memory:
            break
    else:
        return Held(numbers, held)
    pairs = list(zip(numbers, held, strict=True))
    del numbers, held
    rest = ((key, value) for keys, values in batches for key, value in zip(keys, values, strict=True))
    return Spilled(chain(_emptied(pairs), rest), memory, tmpdir)


class Held:
    """All of B is in memory: *values*, and the *numbers* of these by key. *example* is a key of B, if it has one."""

    def __init__(self, numbers: dict[bytes, int], values: Sequence[bytes]) -> None:
        self.example = next(iter(numbers), None)
        self._numbers = numbers
        self._values = values
        self._marks = bytearray(len(values))

    def find(self, keys: Sequence[bytes]) -> Sequence[Any]:
        """Return what B has for the *keys* of the next samples of A, None for what it lacks."""
        numbers = list(map(self._numbers.get, keys))
        marks, values = self._marks, self._values
        if None not in numbers:
            for number in numbers:
                marks[number] = 1  # type: ignore[index]
            return list(map(values.__getitem__, numbers))  # type: ignore[arg-type]
        found: list[bytes | None] = []
        for number in numbers:
            if number is None:
                found.append(None)
            else:
                marks[number] = 1
                found.append(values[number])
        return found

    @property
    def left(self) -> int:
        """How many samples of B no key was asked for."""
        return self._marks.count(0)


def _emptied(pairs: list[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Yield *pairs*, in order, and free each."""
    pairs.reverse()
    while pairs:
        yield pairs.pop()


def _twice_in(before: list[bytes], keys: Sequence[bytes]) -> SampleError:
    """Return the failure that one of *keys*, behind those *before*, is there twice."""
    known = {key: number for number, key in enumerate(before)}
    for number, key in enumerate(keys, len(before)):
        if known.setdefault(key, number) != number:
            return twice(key, known[key], number)
    raise AssertionError("all keys are distinct")


class Spilled:
    """B is in a temporary file, sorted by key, in blocks; the first key of each block is in memory."""

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]], memory: int, tmpdir: str | None) -> None:
        self._count = 0
        self._memory = memory
        self._file = new_file(tmpdir)
        self._firsts: list[bytes] = []
        self._places: list[int] = [0]
        self._blocks: OrderedDict[int, list[bytes]] = OrderedDict()  # least recently used first
        self._size = 0  # of these
        self._write(external_sort(self._records(pairs), memory // 2, tmpdir))
        self._marks = bytearray((self._count + 7) // 8)  # which were asked for; a bit for each
        self.example = self._firsts[0] if self._firsts else None

    def find(self, keys: Sequence[bytes]) -> Sequence[Any]:
        """As `Held.find`."""
        return [self._value(key) for key in keys]

    @property
    def left(self) -> int:
        """As `Held.left`."""
        return self._count - int.from_bytes(self._marks, "little").bit_count()

    def _records(self, pairs: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
        for number, (key, value) in enumerate(pairs):
            self._count += 1
            yield key + b"\0" + number.to_bytes(NUMBER, "big") + value

    def _write(self, records: Iterator[bytes]) -> None:
        """Write sorted *records* in blocks: as few as their places need to fit into a quarter of the memory."""
        block: list[bytes] = []
        size = most = 0
        last, last_number = b"", 0
        for record in records:
            most = most or min(max(LEAST, self._count * PLACE * 4 // self._memory), MOST)
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
        data = packed(block)
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
        found = list(unpack_block(read_range(self._file, begin, end)))
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
