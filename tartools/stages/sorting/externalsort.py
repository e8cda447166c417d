"""External sorting: sort more records than fit into memory as sorted runs in scratch files, then merge the runs."""

import io
from collections.abc import Iterable, Iterator
from itertools import accumulate, islice
from struct import pack, unpack, unpack_from

from tartools.tar import read_range

OVERHEAD = 64  # bytes of memory for a record beyond its own: the object, a slot in the list, a share of the sort
FAN_IN = 64  # runs merged at once
RECORDS = 1000  # in a block of a run
NUMBER = 8  # bytes
WRITE = 1 << 20  # bytes collected before they are written to a run


class SortedRun:
    """Bytes *start* to *end* of a scratch file: blocks of sorted records, as `pack_blocks` makes them."""

    def __init__(self, file: io.FileIO, start: int, end: int) -> None:
        self.file = file
        self.start = start
        self.end = end


def external_sort(records: Iterable[bytes], memory: int, tmpdir: str | None) -> Iterator[bytes]:
    """Yield *records* sorted as bytes, once all have been read.

    Holds: *memory* bytes; more are written to an unnamed file in *tmpdir*. Raises: StorageError.
    """
    held: list[bytes] = []
    runs: list[SortedRun] = []
    size = 0
    try:
        for record in records:
            held.append(record)
            size += len(record) + OVERHEAD
            if size > memory:
                held.sort()
                runs.append(write_run(held, runs[0].file if runs else new_file(tmpdir)))
                held, size = [], 0
        held.sort()
        while len(runs) > FAN_IN:
            runs = merge_runs(runs, new_file(tmpdir))
        if not runs:
            yield from held
            return
        from heapq import merge

        yield from merge(held, *map(read_run, runs))
    finally:
        if runs:
            runs[0].file.close()


def new_file(tmpdir: str | None) -> io.FileIO:
    """Return a scratch file. Its module is imported only if the records do not fit into memory."""
    from tartools.storage.scratch import scratch_file

    return scratch_file(tmpdir)


def merge_runs(runs: "list[SortedRun]", file: io.FileIO) -> "list[SortedRun]":
    """Merge *runs*, all of one file, into fewer and longer ones in *file*; close the old file."""
    from heapq import merge

    groups = [runs[at : at + FAN_IN] for at in range(0, len(runs), FAN_IN)]
    longer = [write_run(merge(*map(read_run, group)), file) for group in groups]
    runs[0].file.close()
    return longer


def write_run(records: Iterable[bytes], file: io.FileIO) -> SortedRun:
    """Append sorted *records* to *file*; return the run that they make. Holds: 1 MiB."""
    start = file.tell()
    pending = bytearray()
    for block in pack_blocks(records):
        pending += block
        if len(pending) >= WRITE:
            file.write(pending)
            pending = bytearray()
    file.write(pending)
    return SortedRun(file, start, file.tell())


def pack_blocks(records: Iterable[bytes]) -> Iterator[bytes]:
    """Yield *records* in blocks: the count, the lengths, the records. A block has 1,000 records, 1 MiB, or 1 record."""
    waiting = iter(records)
    while found := list(islice(waiting, RECORDS)):
        for part in [found] if sum(map(len, found)) <= WRITE else [[record] for record in found]:
            yield pack(f"{len(part) + 1}Q", len(part), *map(len, part)) + b"".join(part)


def unpack_block(block: bytes) -> Iterator[bytes]:
    """Return the records of *block*, which `pack_blocks` made."""
    (count,) = unpack_from("Q", block)
    return _split(block[NUMBER * (1 + count) :], unpack_from(f"{count}Q", block, NUMBER))


def _split(joined: bytes, lengths: Iterable[int]) -> Iterator[bytes]:
    return map(joined.__getitem__, map(slice, accumulate(lengths, initial=0), accumulate(lengths)))


def read_run(run: SortedRun) -> Iterator[bytes]:
    """Yield the records of *run*, in order. Holds: one block."""
    file, start, end = run.file, run.start, run.end
    while start < end:
        (count,) = unpack("Q", read_range(file, start, start + NUMBER))
        lengths = unpack(f"{count}Q", read_range(file, start + NUMBER, start + NUMBER * (1 + count)))
        start += NUMBER * (1 + count)
        block = read_range(file, start, start + sum(lengths))
        start += len(block)
        yield from _split(block, lengths)
