"""Sort rows of tables: as samples are sorted, but what comes out are the numbers of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing

from tartools.errors import SampleError
from tartools.samples.account import Account
from tartools.samples.sortkeys import Order, decoder, directed, shuffled
from tartools.stages.sorting.externalsort import external_sort
from tartools.stages.sorting.joining import choose_equal_values, join_equal_keys
from tartools.stages.sorting.records import IMPLIED, LOCATION, LONE, POSITION, Entry, unpacked
from tartools.storage.scratch import scratch_file
from tartools.tar import read_range

UNKNOWN = (1 << 32) - 1  # the fields of a sample, if the table does not say
AT_ONCE = 1 << 16  # sort keys that are made or read at once
TOGETHER = 1 << 20  # sort keys that are sorted at once


class UntoldError(SampleError):
    """Rows do not tell all: several have members of one sample, which would have to be joined, or one has no key."""


def row_record(sort_key: bytes, row: int, key: bytes, fields: int, order: Order, *, lone: bool) -> bytes:
    """Return a record for the *row* of the sample *key*; equal numbers *fields* stand for equal fields.

    *lone* tells whether it is a member without a field, which is never joined.
    """
    flags = LONE if lone else 0
    if order.by_key and order.kind == "text":
        flags |= IMPLIED
    kept = key if order.by_key and not flags & IMPLIED else b""
    return sort_key + row.to_bytes(POSITION, "big") + kept + LOCATION.pack(row, 0, fields, len(kept), flags)


def sorted_rows(
    records: Iterable[bytes], order: Order, account: Account, memory: int, tmpdir: str | None
) -> Iterator[int]:
    """Yield the rows of *records*, which `row_record` made, sorted by *order*. The sort is stable.

    Holds: *memory* bytes of records, beyond that unnamed files in *tmpdir*.
    Raises: UntoldError if rows have one key and different fields; what *records* raises.
    """
    arrange = join_equal_keys if order.by_key else choose_equal_values
    entries = unpacked(external_sort(records, memory, tmpdir), decoder(order))
    for parts in arrange(entries, order, account):
        yield (parts[0] if len(parts) == 1 else _one_of(parts, order, account)).start


def shuffled_rows(count: int, order: Order, tmpdir: str | None) -> Iterator[int]:
    """Yield the numbers of *count* rows, shuffled by *order* as samples are.

    Holds: some 40 MB; the sort keys are in an unnamed file in *tmpdir*.
    """
    import numpy as np

    of = shuffled(order.seed)
    with closing(scratch_file(tmpdir)) as file:
        for first in range(0, count, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, count))
            file.write(directed(b"".join(map(of, numbers)), order))
        steps = -(-count // TOGETHER)
        for step in range(steps):  # the keys of each step are 1/steps of all keys there can be
            low, high = ((each << 64) // steps for each in (step, step + 1))
            found = []
            for first in range(0, count, AT_ONCE):
                keys = np.frombuffer(read_range(file, 8 * first, 8 * min(first + AT_ONCE, count)), ">u8")
                here = np.flatnonzero((keys >= low) & (keys <= high - 1))
                found.append((keys[here].astype(np.uint64), here + first))
            keys, rows = (np.concatenate(column) for column in zip(*found, strict=True))
            rows = rows[np.argsort(keys, kind="stable")]
            for first in range(0, len(rows), AT_ONCE):
                yield from rows[first : first + AT_ONCE].tolist()


def _one_of(parts: list[Entry], order: Order, account: Account) -> Entry:
    """Return the one of the *parts* of a sample that *order* keeps: all have the same fields."""
    fields = {part.shard for part in parts}
    if order.unique is None or len(fields) > 1 or UNKNOWN in fields:
        raise UntoldError(
            f"{len(parts)} rows have the key {parts[0].key.decode('utf-8', 'replace')!r}, and a table can't list their "
            "members as one sample: -u first or -u last keeps one of rows with equal fields; an OUTPUT that is a shard "
            "joins them"
        )
    account.left_out += len(parts) - 1
    return parts[0 if order.unique == "first" else -1]
