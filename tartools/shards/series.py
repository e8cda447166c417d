"""Samples to numbered shards."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, NoReturn

from tartools import tar
from tartools.errors import SampleError
from tartools.samples.account import Account
from tartools.shards.reading import closing_upstream
from tartools.shards.writing import Batches, BatchWriter, Destination
from tartools.storage.interrupts import deferred_signals


class Limits(NamedTuple):
    """When a shard is full and when all is done.

    Shard k, from 0 on, gets up to `samples(k)` samples (None: any number), and its tar, end included, up to *size*
    bytes; a sample that alone is larger gets a shard of its own. There are up to *shards* shards.
    """

    samples: Callable[[int], int | None] = lambda _: None
    size: int | None = None
    shards: int | None = None


def write_shards(
    batches: Iterable[Batches], destination: Callable[[int], Destination], limits: Limits, account: Account
) -> Iterator[str]:
    """Write the samples of *batches* to numbered shards; yield the URL of each once it is complete and has its name.

    Shard k, from 0 on, goes to `destination(k)`. After the last one no more samples are asked for. No shard is empty.

    Order: input order. Holds one batch.
    Raises what *batches* raises, StorageError and SampleError. Shards that were yielded stay, the current one does not.
    """
    series = Series(destination, limits, account)
    with closing_upstream(batches):
        try:
            for batch in batches if not series.done else ():
                yield from series.write(batch)
                if series.done:
                    return
            if series.writer is not None:
                yield series.complete(series.writer)
        finally:
            series.abort()


class Series:
    """Numbered shards, written one after the other; *writer* writes the current one."""

    def __init__(self, destination: Callable[[int], Destination], limits: Limits, account: Account) -> None:
        self.samples = 0  # in complete shards
        self._destination = destination
        self._limits = limits
        self._account = account
        self.shards = 0  # complete ones
        self.writer: BatchWriter | None = None

    @property
    def done(self) -> bool:
        """Return whether all shards that are wanted are complete."""
        return self.shards == self._limits.shards

    def write(self, batch: Batches, first: int = 0, last: int | None = None) -> Iterator[str]:
        """Write samples *first* to *last* (exclusive; None: to the end) of *batch*, up to the end of the last shard.

        Yields the URL of each shard that is full.
        """
        end = len(batch) if last is None else last
        while first < end and not self.done:
            share = min(self._fitting(batch, first), end - first)
            if self.writer is not None and not share:
                yield self.complete(self.writer)
                if self.done:  # the sample that did not fit has been read
                    self._account.samples_in += 1
                    self._account.left_out += 1
                continue
            writer = self._write(batch, first, first + share)
            first += share
            if writer.samples == self._limits.samples(self.shards):
                yield self.complete(writer)

    def complete(self, writer: BatchWriter) -> str:
        """Commit the current shard; return its URL."""
        self._account.check()
        writer.commit()
        self._account.bytes_out += writer.written
        self.samples += writer.samples
        self.writer = None
        self.shards += 1
        return writer.url

    def flush(self) -> None:
        """Write what the current shard holds in memory."""
        if self.writer is not None:
            self.writer.flush()

    def finish(self) -> None:
        """Write the end of the current shard; only `complete` may follow."""
        if self.writer is not None:
            self.writer.finish()

    def abort(self) -> None:
        """Drop the current shard."""
        if self.writer is not None:
            self.writer.abort()

    def _write(self, batch: Batches, first: int, last: int) -> BatchWriter:
        """Write the samples *first* to *last* - 1 of *batch* to the current shard, or to a new one."""
        if self.writer is None:
            with deferred_signals():
                self.writer = self._destination(self.shards).writer()
        self._account.samples_in += last - first
        self.writer.write_batch(batch, first, last)
        self._account.samples_out += last - first
        return self.writer

    def _fitting(self, batch: Batches, first: int) -> int:
        """Return how many samples of *batch*, from number *first* on, fit into the current shard, or into a new one.

        0 if the current shard is full; a new one takes at least one sample.
        """
        fitting = len(batch) - first
        writer, limits = self.writer, self._limits
        if limits.size:
            room = tar.room_in(limits.size) - (writer.size if writer else 0)
            fitting = min(fitting, max(batch.fitting(first, room), 0 if writer else 1))
        count = limits.samples(self.shards)
        if count is not None:
            fitting = min(fitting, count - (writer.samples if writer else 0))
        return fitting


class Spread:
    """*total* samples spread over *shards* shards, whose numbers of samples differ by at most one."""

    def __init__(self, total: int, shards: int) -> None:
        self.total = total
        self.shards = shards

    def samples(self, k: int) -> int:
        """Return how many samples shard *k*, from 0 on, gets. Raises SampleError if there are no more shards."""
        if k >= self.shards:
            self._fail("more")
        return self.total // self.shards + (k < self.total % self.shards)

    def check(self, count: int, most: int | None) -> None:
        """Raise SampleError if only *count* samples were read for up to *most* shards, and that is too few."""
        if count < self.total and (most is None or most >= self.shards):
            self._fail("fewer")

    def _fail(self, what: str) -> NoReturn:
        raise SampleError(f"the input has changed: there were {self.total} samples when they were counted, now {what}")


def evenly(count: int, shards: int, part: str = "") -> Spread:
    """Return *count* samples, of *part* if there are parts, spread over *shards* shards.

    Raises SampleError if they are too few.
    """
    if count < shards:
        of = f" of {part!r}" if part else ""
        raise SampleError(f"{count} samples{of} are too few for {shards} shards")
    return Spread(count, shards)
