"""Rows in another order, however many: they are spread over parts of the output, then each part is sorted."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import Any

from tartools.storage.scratch import scratch_file
from tartools.tables import schema
from tartools.tables.inputs import Inputs
from tartools.tar import read_range

SLOT, ROW = "\0slot", "\0row"  # columns of rows on their way: their place in the output, and in the input
PART = 1 << 16  # rows of the output that are sorted together, or more
PARTS = 256  # at most
CHUNK = 1 << 16  # positions taken at once
Piece = tuple[int, int]  # begin and end of a record batch in the temporary file


def in_order(
    inputs: Inputs, positions: Iterable[int], tmpdir: str | None = None, columns: Sequence[str] | None = None
) -> Iterator[Any]:
    """Yield the rows of *inputs* at *positions*, each of them at most once, in that order, in record batches.

    They have all columns, or *columns*, and then `ROW`: the position. All *positions* are read before this returns.

    Holds: 4 bytes for each row of *inputs*, and 65,536 rows, or 1/256 of them if that is more; the rows are in a
    temporary file in *tmpdir*.
    """
    slots, count = _slots(inputs.rows, positions)
    return _in_slots(inputs, slots, count, tmpdir, columns) if count else iter(())


def _in_slots(
    inputs: Inputs, slots: Any, count: int, tmpdir: str | None, columns: Sequence[str] | None
) -> Iterator[Any]:
    """Yield the *count* rows of *inputs* that have *slots* in the output, in that order, in record batches."""
    size = max(PART, -(-count // PARTS))
    with closing(scratch_file(tmpdir)) as file:
        pieces: list[list[Piece]] = [[] for _ in range(0, count, size)]
        layout = _spread(inputs.batches(columns), slots, size, file, pieces)
        for part in pieces:
            yield from _sorted(part, layout, file)


def _slots(rows: int, positions: Iterable[int]) -> tuple[Any, int]:
    """Return the place in the output of each of *rows*, -1 for those that are not in it; and how many are."""
    import numpy as np

    slots = np.zeros(0, np.int32)
    count = 0
    remaining = iter(positions)
    while len(chunk := np.fromiter(islice(remaining, CHUNK), np.int64)):
        if not count:  # not before all are sorted, which takes memory too
            slots = np.full(rows, -1, np.int32 if rows < 1 << 31 else np.int64)
        slots[chunk] = np.arange(count, count + len(chunk))
        count += len(chunk)
    return slots, count


def _spread(batches: Iterator[Any], slots: Any, size: int, file: io.FileIO, pieces: list[list[Piece]]) -> Any:
    """Write the rows of *batches* that have *slots* to *file*, in *pieces* for parts of *size*; return their schema."""
    import numpy as np

    pa = schema.arrow()
    layout = None
    first = end = 0
    for rows in batches:
        slot = slots[first : first + len(rows)]
        begin, first = first, first + len(rows)
        order = np.argsort(slot, kind="stable")[np.count_nonzero(slot < 0) :]
        if not len(order):
            continue
        slot = slot[order].astype(np.int64)
        taken = rows.take(pa.array(order))
        layout = rows.schema.append(pa.field(ROW, pa.int64())).append(pa.field(SLOT, pa.int64()))
        moved = pa.RecordBatch.from_arrays([*taken.columns, pa.array(begin + order), pa.array(slot)], schema=layout)
        parts = slot // size
        for part in range(int(parts[0]), int(parts[-1]) + 1):
            low, high = np.searchsorted(parts, [part, part + 1])
            if low < high:
                data = moved.slice(low, high - low).serialize()
                file.write(data)
                pieces[part].append((end, end + data.size))
                end += data.size
    return layout


def _sorted(pieces: list[Piece], layout: Any, file: io.FileIO) -> Iterator[Any]:
    """Yield the rows of one part of the output, which are in *pieces* of *file*, in record batches."""
    import numpy as np

    pa = schema.arrow()
    batches = [pa.ipc.read_record_batch(pa.py_buffer(read_range(file, begin, end)), layout) for begin, end in pieces]
    table = pa.Table.from_batches(batches, layout).combine_chunks()
    order = np.argsort(table.column(SLOT).to_numpy(), kind="stable")
    yield from table.drop_columns([SLOT]).take(pa.array(order)).combine_chunks().to_batches()
