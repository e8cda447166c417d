"""What was decided of the samples of a data set, carried out: as bytes of shards, or as rows of tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack

from tartools.samples.account import Account
from tartools.shards.dataset import DataSet
from tartools.shards.reading import closing_upstream
from tartools.shards.writing import Batches, Destination, Writer, shard_writer, write_batches


def deliver_flags(
    flagged: Iterable[tuple[Batches, Sequence[bool]]], chosen: Destination, rest: Destination | None, account: Account
) -> None:
    """Write the samples of *flagged* whose flag is set to *chosen*, the others to *rest*, or leave them out.

    Order: that of the input, in one pass. Both outputs are written to their ends before the first of them appears.
    Raises what *flagged* raises; StorageError; SampleError for two adjacent samples with one key.
    """
    with closing_upstream(flagged), ExitStack() as stack:
        writers: dict[bool, Writer] = {True: stack.enter_context(shard_writer(chosen))}
        if rest is not None:
            writers[False] = stack.enter_context(shard_writer(rest))
        skipped = None if rest is not None else False
        for batch, flags in flagged:
            account.samples_in += len(batch)
            left = len(batch)
            for flag, part, first, last in batch.apart(flags, skipped):
                writers[flag].write_batch(part, first, last)
                account.samples_out += last - first
                left -= last - first
            account.left_out += left
        account.check()
        for flag in (False, True):
            if flag in writers:
                writers[flag].finish()
                account.bytes_out += writers[flag].written


class Picked:
    """Samples by their *positions*, which ascend: each one's flag is *picked*, that of all others is not."""

    def __init__(self, positions: Iterator[int], picked: bool) -> None:
        self._positions = positions
        self._picked = picked
        self._next = next(positions, -1)
        self._first = 0

    def of(self, batch: Sequence[object] | Batches) -> list[bool]:
        """Return the flags of *batch*, the next samples."""
        flags = [not self._picked] * len(batch)
        while self._first <= self._next < self._first + len(batch):
            flags[self._next - self._first] = self._picked
            self._next = next(self._positions, -1)
        self._first += len(batch)
        return flags


def deliver_order(data: DataSet, positions: Iterable[int], destination: Destination, account: Account) -> None:
    """Write the samples of *data* at *positions* to *destination*, in that order.

    All *positions* are taken before anything is written. Raises: StorageError if a sample is not as its row says.
    """
    write_batches(in_order(data, positions, account), destination, account)


def in_order(data: DataSet, positions: Iterable[int], account: Account) -> Iterator[Batches]:
    """Return the samples that the rows of *data* at *positions* list, in that order; or these rows, if it lists them.

    All *positions* are read before this returns.
    """
    from tartools.shards.listing import rows_at, samples_at

    if data.lists:
        return rows_at(data.rows(), positions, data.reading.tmpdir)
    return samples_at(data.rows(), positions, account, data.reading._replace(ranges=True, listed=False))
