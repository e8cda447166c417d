"""Rows in another order, however many: they are spread over parts of the output, then each part is sorted."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import Any

from tartools.storage.scratch import scratch_file
from tartools.tables import schema
from tartools.tables.inputs import RowInputs
from tartools.tar import read_range

SLOT, ROW = "\0slot", "\0row"  # columns of rows on their way: their place in the output, and in the input
PART = 1 << 16  # rows of the output that are sorted together, or more
PARTS = 256  # at most
CHUNK = 1 << 16  # positions taken at once
Piece = tuple[int, int]  # begin and end of a record batch in the temporary file


def in_order(
    inputs: RowInputs, positions: Iterable[int], tmpdir: str | None = None, columns: Sequence[str] | None = None
) -> Iterator[Any]:
    """Yield the rows of *inputs* at *positions*, in that order, in record batches.

    They have all columns, or *columns*, and then `ROW`: the position. All *positions* are read before this returns.

    Holds: 4 bytes for each row of *inputs*, 16 for each position that comes again, and 65,536 rows, or 1/256 of them if
    that is more; the rows are in a temporary file in *tmpdir*.
    """
    slots = Slots(inputs.rows, positions)
    return _in_slots(inputs, slots, tmpdir, columns) if slots.count else iter(())


def _in_slots(inputs: RowInputs, slots: Slots, tmpdir: str | None, columns: Sequence[str] | None) -> Iterator[Any]:
    """Yield the rows of *inputs* that have *slots* in the output, in that order, in record batches."""
    size = max(PART, -(-slots.count // PARTS))
    with closing(scratch_file(tmpdir)) as file:
        pieces: list[list[Piece]] = [[] for _ in range(0, slots.count, size)]
        layout = _spread(inputs.batches(columns), slots, size, file, pieces)
        for part in pieces:
            yield from _sorted(part, layout, file)


class Slots:
    """The places in the output of *rows*, which are to come at *positions*. *count* is how many places there are."""

    def __init__(self, rows: int, positions: Iterable[int]) -> None:
        import numpy as np

        self.count = 0
        self._slots = np.zeros(0, np.int32)  # the last place of each row, -1 for none
        again: list[Any] = []  # rows that have other places too, and these
        remaining = iter(positions)
        while len(chunk := np.fromiter(islice(remaining, CHUNK), np.int64)):
            if not self.count:  # not before all are sorted, which takes memory too
                self._slots = np.full(rows, -1, np.int32 if rows < 1 << 31 else np.int64)
            numbers = np.arange(self.count, self.count + len(chunk))
            before = self._slots[chunk]
            self._slots[chunk] = numbers
            last = self._slots[chunk] == numbers
            both = last & (before >= 0)
            if both.any() or not last.all():
                again += [np.stack((chunk[both], before[both])), np.stack((chunk[~last], numbers[~last]))]
            self.count += len(chunk)
        rest = np.concatenate(again, axis=1) if again else np.zeros((2, 0), np.int64)
        self._again = rest[:, np.argsort(rest[0], kind="stable")]

    def of(self, first: int, last: int) -> Iterator[tuple[Any, Any]]:
        """Yield the places of rows *first* to *last* (exclusive), ascending, up to 65,536 at a time.

        They come as arrays: the number of the row among these, and its place.
        """
        import numpy as np

        slots = self._slots[first:last]
        rows = np.flatnonzero(slots >= 0)
        low, high = np.searchsorted(self._again[0], [first, last])
        slots = np.concatenate((slots[rows], self._again[1, low:high]))
        rows = np.concatenate((rows, self._again[0, low:high] - first))
        order = np.argsort(slots, kind="stable")
        for begin in range(0, len(order), CHUNK):
            part = order[begin : begin + CHUNK]
            yield rows[part], slots[part].astype(np.int64)


def _spread(batches: Iterator[Any], slots: Slots, size: int, file: io.FileIO, pieces: list[list[Piece]]) -> Any:
    """Write the rows of *batches* that have *slots* to *file*, in *pieces* for parts of *size*; return their schema."""
    import numpy as np

    pa = schema.arrow()
    layout = None
    first = end = 0
    for rows in batches:
        begin, first = first, first + len(rows)
        for order, slot in slots.of(begin, first):
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
