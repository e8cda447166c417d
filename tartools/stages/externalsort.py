"""External sorting: sort more records than fit into memory as sorted runs in scratch files, then merge the runs.

    records ─► buffer ─full─► sort ─► run 0 ┐
                       ─full─► sort ─► run 1 ├─ merge of up to 64 runs ─► records in order
                       ─end──► sort ────────┘

A record is bytes that compare as the samples sort, with its payload (a position, a location) behind the sort key; so
neither sorting nor merging calls a comparison of ours. Runs consist of blocks of 256 KiB: a merge holds one block of
each. If there are more runs than one merge may hold, groups of adjacent runs are merged to longer ones first, which
keeps the order of equal records. Runs share an unnamed file: a sort needs one descriptor, two while it merges groups.
"""

import io
import marshal
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import accumulate
from typing import NamedTuple

from tartools.storage.scratch import scratch_file
from tartools.tar import read_range

RECORD_OVERHEAD_BYTES = (
    64  # bytes of memory for a record beyond its own: the object, a slot in the list, a share of the sort
)
MAX_RUNS_MERGED = 64  # runs merged at once
RECORDS_IN_BLOCK = 1000  # in a block of a run
RECORDS_PER_WORKER = 1 << 14  # records that a worker sorts together
LENGTH_BYTES = 8  # bytes
POSITION_SHIFT = 40  # bits of the position of a sample; the bits above are the number of the slice of the input
WRITE_BYTES = 1 << 20  # bytes collected before they are written to a run
BLOCK_BYTES = 256 << 10  # bytes of records in a block, unless one record has more
MERGE_BYTES = 32 << 20  # bytes of blocks held by a merge: fewer runs at once, if their records are large


class SortedRun(NamedTuple):
    """A run of records, sorted (of a `Spool`: as added): bytes *start* to *end* of *file*, as `write_run` wrote them.

    They are blocks of `pack_blocks`, each after its length in 8 bytes. *file*: a scratch file. *largest*: bytes of the
    largest block.
    """

    file: io.FileIO
    start: int
    end: int
    largest: int


class Spool:
    """A list of records (bytes) that may exceed memory; it can be iterated any number of times, in the order of adding.

    Holds: up to *memory* bytes, 64 counted for each record beyond its own (RECORD_OVERHEAD_BYTES); further records are
    in an unnamed file in *tmpdir*. `add` and `extend` raise StorageError if that can't be written.
    """

    def __init__(self, memory: int, tmpdir: str | None) -> None:
        self._memory = memory
        self._tmpdir = tmpdir
        self._buffer: list[bytes] = []
        self._size = 0
        self._runs: list[SortedRun] = []

    def add(self, record: bytes) -> None:
        """Append *record*; write the records in memory to the file if they exceed the limit."""
        self._buffer.append(record)
        self._size += len(record) + RECORD_OVERHEAD_BYTES
        if self._size > self._memory:
            self._write_buffer()

    def extend(self, records: Collection[bytes]) -> None:
        """Append *records*, in their order; write the records in memory to the file if they exceed the limit."""
        self._buffer += records
        self._size += sum(map(len, records)) + RECORD_OVERHEAD_BYTES * len(records)
        if self._size > self._memory:
            self._write_buffer()

    def _write_buffer(self) -> None:
        self._runs.append(write_run(self._buffer, self._runs[0].file if self._runs else scratch_file(self._tmpdir)))
        self._buffer, self._size = [], 0

    def __iter__(self) -> Iterator[bytes]:
        for run in self._runs:
            yield from read_run(run)
        yield from self._buffer


def external_sort(records: Iterable[bytes], memory: int, tmpdir: str | None) -> Iterator[bytes]:
    """Yield *records* (bytes) sorted, once all have been read.

    Holds: *memory* bytes, 64 counted for each record beyond its own, and 32 MiB while it merges, or two records if they
    are larger. Records that do not fit into *memory* are written to an unnamed file in *tmpdir*, which is closed at the
    end, also if the iteration is stopped. Raises: StorageError if that can't be written or read.
    """
    buffer: list[bytes] = []
    runs: list[SortedRun] = []
    size = 0
    try:
        for record in records:
            buffer.append(record)
            size += len(record) + RECORD_OVERHEAD_BYTES
            if size > memory:
                buffer.sort()
                runs.append(write_run(buffer, runs[0].file if runs else scratch_file(tmpdir)))
                buffer, size = [], 0
        buffer.sort()
        if not runs:
            yield from buffer
            return
        from heapq import merge

        while len(groups := group_runs(runs)) > 1:
            before, after = runs[0].file, scratch_file(tmpdir)
            runs = [write_run(merge(*map(read_run, group)), after) for group in groups]
            before.close()
        yield from merge(buffer, *map(read_run, runs))
    finally:
        if runs:
            runs[0].file.close()


def resolve_positions(numbers: Iterable[int], counts: Sequence[int]) -> Iterator[int]:
    """Yield the position in the whole input for each of *numbers*: task << POSITION_SHIFT, plus position in the task.

    The shift is 40 bits: with *counts* [3, 2], the number (1 << 40) + 1 gives 4.
    `counts`: number of samples of each task. It is read when the first number comes, and has to be complete then.
    """
    begins: list[int] = []
    for number in numbers:
        begins = begins or list(accumulate(counts, initial=0))  # complete once the first number is there
        yield begins[number >> POSITION_SHIFT] + (number & ((1 << POSITION_SHIFT) - 1))


def group_runs(runs: list[SortedRun]) -> list[list[SortedRun]]:
    """Return *runs* in groups of adjacent ones that can be merged at once.

    A group has up to 64 runs (MAX_RUNS_MERGED), and the largest blocks of its runs (`largest`) have up to 32 MiB in all
    (MERGE_BYTES). Each group but the last has two runs or more, even if their blocks are larger.
    """
    groups: list[list[SortedRun]] = []
    block_bytes = 0
    for run in runs:
        if (
            not groups
            or len(groups[-1]) == MAX_RUNS_MERGED
            or (len(groups[-1]) > 1 and block_bytes + run.largest > MERGE_BYTES)
        ):
            groups.append([])
            block_bytes = 0
        groups[-1].append(run)
        block_bytes += run.largest
    return groups


def write_run(records: Iterable[bytes], file: io.FileIO) -> SortedRun:
    """Append *records*, in their order, to the scratch *file* as blocks; return the run that they make.

    Holds: 1 MiB, and a block. Raises: StorageError if they can't be written.
    """
    start, largest = file.tell(), 0
    writer = io.BufferedWriter(file, WRITE_BYTES)
    for block in pack_blocks(records):
        largest = max(largest, len(block))
        writer.write(len(block).to_bytes(LENGTH_BYTES, "big") + block)
    writer.detach()
    return SortedRun(file, start, file.tell(), largest)


def pack_blocks(records: Iterable[bytes]) -> Iterator[bytes]:
    """Yield *records* in blocks of up to 1,000 records and 256 KiB, each as bytes for `unpack_block`.

    A larger record is alone in its block.
    """
    return map(marshal.dumps, split_records(records, RECORDS_IN_BLOCK, BLOCK_BYTES))


def split_records(records: Iterable[bytes], max_records: int, max_bytes: int) -> Iterator[list[bytes]]:
    """Yield *records* in lists of up to *max_records* records and *max_bytes* bytes; a larger record is alone."""
    part: list[bytes] = []
    size = 0
    for record in records:
        if part and (size + len(record) > max_bytes or len(part) == max_records):
            yield part
            part, size = [], 0
        part.append(record)
        size += len(record)
    if part:
        yield part


def presort_blocks(groups: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """Yield all records of *groups* in packed blocks (see `unpack_block`), sorted 16,384 or more at a time.

    At the end, the remaining ones are sorted, however few. Workers call this before the external sort, which is faster
    on records that are partly sorted. A group is not divided between two sorts. Holds: 16,384 records
    (RECORDS_PER_WORKER) and one group.
    """
    buffer: list[bytes] = []
    for group in groups:
        buffer += group
        if len(buffer) >= RECORDS_PER_WORKER:
            yield from pack_blocks(sorted(buffer))
            buffer = []
    yield from pack_blocks(sorted(buffer))


def unpack_block(block: bytes) -> list[bytes]:
    """Return the records in *block*, which `pack_blocks` made in a process of ours."""
    return marshal.loads(block)  # type: ignore[no-any-return]  # noqa: S302


def unpack_blocks(blocks: Generator[bytes, None, None]) -> Iterator[bytes]:
    """Yield the records in *blocks*, a generator of blocks of `pack_blocks`; close it, even if stopped early."""
    with closing(blocks):
        for block in blocks:
            yield from unpack_block(block)


def read_run(run: SortedRun) -> Iterator[bytes]:
    """Yield the records of *run*, in order, from its file. Holds: one block."""
    file, start, end, _ = run
    while start < end:
        size = int.from_bytes(read_range(file, start, start + LENGTH_BYTES), "big")
        start += LENGTH_BYTES + size
        yield from unpack_block(read_range(file, start - size, start))
