"""Sorting more records than fit into memory: sorted runs in scratch files, which are merged."""

from __future__ import annotations

import io
from array import array
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import accumulate, islice
from typing import NamedTuple

from tartools.storage.scratch import scratch_file
from tartools.tar import read_range

OVERHEAD = 64  # bytes that a record takes beyond its own: a bytes object, a place in a list, a share of sorting
FAN_IN = 64  # runs that are merged at once
RECORDS = 1000  # in a block of a run
NUMBER = 8  # bytes
WRITE = 1 << 20  # bytes that are collected before they are written to a run


def external_sort(records: Iterable[bytes], memory: int, tmpdir: str | None) -> Iterator[bytes]:
    """Yield *records* sorted as bytes, after all have been read.

    Holds: *memory* bytes. More are written to files without a name in *tmpdir*. Raises: StorageError.
    """
    held: list[bytes] = []
    runs: list[Run] = []
    size = 0
    try:
        for record in records:
            held.append(record)
            size += len(record) + OVERHEAD
            if size > memory:
                held.sort()
                runs.append(write_run(held, runs[0].file if runs else scratch_file(tmpdir)))
                held, size = [], 0
        held.sort()
        while len(runs) > FAN_IN:
            runs = fewer(runs, scratch_file(tmpdir))
        yield from merge(held, *map(read_run, runs)) if runs else held
    finally:
        if runs:
            runs[0].file.close()


def fewer(runs: list[Run], file: io.FileIO) -> list[Run]:
    """Return *runs*, all of one file, merged into fewer and longer ones in *file*; theirs is closed."""
    groups = [runs[at : at + FAN_IN] for at in range(0, len(runs), FAN_IN)]
    longer = [write_run(merge(*map(read_run, group)), file) for group in groups]
    runs[0].file.close()
    return longer


class Run(NamedTuple):
    """Sorted records in a scratch file, in blocks: how many they are, the length of each, and then they themselves."""

    file: io.FileIO
    start: int
    end: int


def write_run(records: Iterable[bytes], file: io.FileIO) -> Run:
    """Write sorted *records* at the end of *file*, and return where they are. Holds: 1 MiB."""
    start = file.tell()
    pending = bytearray()
    for block in blocks(records):
        pending += block
        if len(pending) >= WRITE:
            file.write(pending)
            pending = bytearray()
    file.write(pending)
    return Run(file, start, file.tell())


def blocks(records: Iterable[bytes]) -> Iterator[bytes]:
    """Yield *records* in blocks of up to 1,000 and 1 MiB, or one; each says how many, their lengths, and them."""
    waiting = iter(records)
    while found := list(islice(waiting, RECORDS)):
        for part in [found] if sum(map(len, found)) <= WRITE else [[record] for record in found]:
            yield array("Q", (len(part), *map(len, part))).tobytes() + b"".join(part)


def records_in(block: bytes) -> Iterator[bytes]:
    """Return the records of *block*, one of `blocks`."""
    count = NUMBER + NUMBER * array("Q", block[:NUMBER])[0]
    return _split(block[count:], array("Q", block[NUMBER:count]))


def _split(joined: bytes, lengths: Iterable[int]) -> Iterator[bytes]:
    return map(joined.__getitem__, map(slice, accumulate(lengths, initial=0), accumulate(lengths)))


def read_run(run: Run) -> Iterator[bytes]:
    """Yield the records of *run*. Holds: a block, of 1 MiB or one record."""
    file, start, end = run
    while start < end:
        count = array("Q", read_range(file, start, start + NUMBER))[0]
        lengths = array("Q", read_range(file, start + NUMBER, start + NUMBER * (1 + count)))
        start += NUMBER * (1 + count)
        block = read_range(file, start, start + sum(lengths))
        start += len(block)
        yield from _split(block, lengths)
