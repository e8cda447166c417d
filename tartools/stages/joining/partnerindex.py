"""An index by key of the second data set of tarjoin, B, in memory or on disk.

 - `PartnersInMemory`: all of B in a dictionary.
 - `PartnersOnDisk`: B is sorted to a temporary file; a block of it is read for each key of A, in order if A is
   sorted.

A has any size and order, and is read once.
"""

from __future__ import annotations

import marshal
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import chain, count, islice
from typing import Any

from tartools.errors import SampleError
from tartools.stages.externalsort import external_sort, split_records, unpack_block
from tartools.storage.scratch import scratch_file
from tartools.tar import read_range

# keys of adjacent samples, and what B has for them
Pairs = Generator[tuple[Sequence[bytes], Sequence[Any]], None, None]

SAMPLE_NUMBER_BYTES = 8  # bytes of the number of a sample of B in a record
BLOCK_PLACE_BYTES = 120  # bytes of memory for the place of a block
MIN_BLOCK_RECORDS, MAX_BLOCK_RECORDS = 8, 1000  # records in a block
MAX_BLOCK_BYTES = 1 << 16  # bytes; no block is larger, unless one record is
SAMPLE_OVERHEAD_BYTES = (
    250  # bytes of memory for a sample in a dictionary beyond its own: three objects, slots in lists
)


def index_partners(batches: Pairs, memory: int, tmpdir: str | None) -> PartnersInMemory | PartnersOnDisk:
    """Read the second input (B); return an index of it: in memory if it fits into *memory* bytes, else in *tmpdir*.

    `batches`: (keys, values) of adjacent samples; a value is bytes, and no key has a NUL. Raises: SampleError if a key
    is there twice; StorageError if a temporary file can't be written; the errors of *batches*.
    """
    numbers: dict[bytes, int] = {}
    stored_values: list[bytes] = []
    size = 0
    for keys, values in batches:
        before = len(stored_values)
        numbers.update(zip(keys, count(before), strict=False))
        stored_values += values
        if len(numbers) != len(stored_values):
            raise _first_repeated_key_error(list(numbers)[:before], keys)
        size += sum(map(len, keys)) + sum(map(len, values)) + SAMPLE_OVERHEAD_BYTES * len(keys)
        if size > memory:
            break
    else:
        return PartnersInMemory(numbers, stored_values)
    pairs = list(zip(numbers, stored_values, strict=True))
    del numbers, stored_values
    remaining = ((key, value) for keys, values in batches for key, value in zip(keys, values, strict=True))
    return PartnersOnDisk(chain(_pop_all(pairs), remaining), memory, tmpdir)


class PartnersInMemory:
    """An index by key, in memory, of the values of B, the second input of tarjoin.

    *numbers*: key -> index in *values*. `example`: one of the keys; None if B is empty.
    """

    def __init__(self, numbers: dict[bytes, int], values: Sequence[bytes]) -> None:
        self.example = next(iter(numbers), None)
        self._numbers = numbers
        self._values = values
        self._marks = bytearray(len(values))

    def find(self, keys: Sequence[bytes]) -> Sequence[Any]:
        """Return the value in B, or None, for each of *keys*; mark their samples in B as used, for `unused_count`."""
        numbers = list(map(self._numbers.get, keys))
        marks, values = self._marks, self._values
        for number in numbers:
            if number is not None:
                marks[number] = 1
        return [None if number is None else values[number] for number in numbers]

    def has(self, key: bytes) -> bool:
        """True if B, the second input, has a sample with *key*. Unlike `find`, does not mark it as used."""
        return key in self._numbers

    @property
    def unused_count(self) -> int:
        """Number of samples of B, the second input, whose keys `find` has not been asked for."""
        return self._marks.count(0)


def _pop_all(pairs: list[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Yield *pairs* in order, and remove each from the list, so that its memory is freed."""
    pairs.reverse()
    while pairs:
        yield pairs.pop()


def _first_repeated_key_error(before: list[bytes], keys: Sequence[bytes]) -> SampleError:
    """Return the error of the first of *keys* that is among *before*, the keys of earlier samples, or repeated."""
    numbers_by_key = {key: number for number, key in enumerate(before)}
    for number, key in enumerate(keys, len(before)):
        if numbers_by_key.setdefault(key, number) != number:
            return repeated_key_error(key, numbers_by_key[key], number)
    raise AssertionError("all keys are distinct")


class PartnersOnDisk:
    """An index by key, on disk, of the values of B, the second input of tarjoin: sorted records in blocks of a file.

    *pairs*: (key, value), in any order, keys without NUL; all are read by the constructor. *memory*: bytes for sorting,
    and for the first keys of the blocks. *tmpdir*: folder of the file, which has no name; None: the system's.
    `example`: the least key; None if B is empty. Raises: SampleError if a key is there twice; StorageError if the file
    can't be written; the errors of *pairs*.
    """

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]], memory: int, tmpdir: str | None) -> None:
        self._count = 0
        self._memory = memory
        self._file = scratch_file(tmpdir)
        self._firsts: list[bytes] = []
        self._places: list[int] = [0]
        self._cached_block: tuple[int, list[bytes]] = -1, []  # a block
        self._write(external_sort(self._records(pairs), memory // 2, tmpdir))
        self._marks = bytearray((self._count + 7) // 8)  # which were asked for; a bit for each
        self.example = self._firsts[0] if self._firsts else None

    def find(self, keys: Sequence[bytes]) -> Sequence[Any]:
        """Return the value in B, or None, for each of *keys*; mark their samples in B as used, for `unused_count`."""
        return [self._value(key) for key in keys]

    def has(self, key: bytes) -> bool:
        """True if B, the second input, has a sample with *key*. Unlike `find`, does not mark it as used."""
        return self._record(key) is not None

    @property
    def unused_count(self) -> int:
        """Number of samples of B, the second input, whose keys `find` has not been asked for."""
        return self._count - int.from_bytes(self._marks, "little").bit_count()

    def _records(self, pairs: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
        for number, (key, value) in enumerate(pairs):
            self._count += 1
            yield key + b"\0" + number.to_bytes(SAMPLE_NUMBER_BYTES, "big") + value

    def _write(self, records: Iterator[bytes]) -> None:
        """Write sorted *records* to the file in blocks of up to 1,000 records and 64 KiB (MAX_BLOCK_BYTES).

        A larger record is a block of its own. Up to 8 records (MIN_BLOCK_RECORDS) are in a block, more only if the
        places of all blocks would else exceed a quarter of the memory. The first keys and places of the blocks are kept
        in memory. Raises: SampleError if a key is there twice; StorageError if the file can't be written.
        """
        first = list(islice(records, 1))  # now all are counted
        max_records = min(
            max(MIN_BLOCK_RECORDS, self._count * BLOCK_PLACE_BYTES * 4 // self._memory), MAX_BLOCK_RECORDS
        )
        last: tuple[bytes, int] | None = None
        for block in split_records(chain(first, records), max_records, MAX_BLOCK_BYTES):
            for record in block:
                key = record[: record.index(b"\0")]
                number = int.from_bytes(record[len(key) + 1 : len(key) + 1 + SAMPLE_NUMBER_BYTES], "big")
                if last is not None and key == last[0]:
                    raise repeated_key_error(*last, number)
                last = key, number
            self._firsts.append(block[0][: block[0].index(b"\0")])
            data = marshal.dumps(block)
            self._file.write(data)
            self._places.append(self._places[-1] + len(data))

    def _value(self, key: bytes) -> bytes | None:
        """Return the value of *key* in B, or None; mark the key as used, for `unused_count`."""
        record = self._record(key)
        if record is None:
            return None
        begin = len(key) + 1
        number = int.from_bytes(record[begin : begin + SAMPLE_NUMBER_BYTES], "big")
        self._marks[number >> 3] |= 1 << (number & 7)
        return record[begin + SAMPLE_NUMBER_BYTES :]

    def _record(self, key: bytes) -> bytes | None:
        at = bisect_right(self._firsts, key) - 1
        if at < 0:
            return None
        begin = key + b"\0"
        block = self._block(at)
        number = bisect_left(block, begin)
        if number == len(block) or not block[number].startswith(begin):
            return None
        return block[number]

    def _block(self, number: int) -> list[bytes]:
        """Return the records of block *number*; the last block that was read is cached."""
        if self._cached_block[0] != number:
            data = read_range(self._file, self._places[number], self._places[number + 1])
            self._cached_block = number, unpack_block(data)
        return self._cached_block[1]


def repeated_key_error(key: bytes, first: int, second: int) -> SampleError:
    """Return the error that samples number *first* and *second* (from 0) of the second input both have *key*."""
    name = key.decode("utf-8", "surrogateescape")
    return SampleError(
        f"B has the key {name!r} twice, so what to add is not clear: its samples number {first + 1:,} and "
        f"{second + 1:,} (tarsort -u first keeps one of each key of shards; make a table without them)"
    )
