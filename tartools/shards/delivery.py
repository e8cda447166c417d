"""Delivery of selections and labels: batches of samples, or of rows that list them, to their outputs in one pass."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from tartools.errors import several, shown
from tartools.samples.account import Account
from tartools.shards.reading import close_at_end
from tartools.shards.writing import Batches, BatchWriter, Destination, shard_writer

if TYPE_CHECKING:
    from tartools.shards.series import Series

# bytes that are added to shards, then all are written: each shard holds some of them in memory
MAX_PENDING_BYTES = 64 << 20


def deliver_flags(
    flagged: Iterable[tuple[Batches, Sequence[bool]]], chosen: Destination, rest: Destination | None, account: Account
) -> None:
    """Write the samples of *flagged* to *chosen* if their flag is True, to *rest* if it is False.

    `flagged`: batches, each with one flag a sample. `rest`: None drops its samples.
    `account`: counts the samples as read, and as written or left out, and the bytes as written; its report says how
    many samples each of two outputs got.
    Order: that of the input, in one pass. Both outputs are written to their ends before the first of them appears.
    Raises what *flagged* and `account.check` raise; StorageError; SampleError if two samples with one key would be
    adjacent in an output.
    """
    with close_at_end(flagged), ExitStack() as stack:
        writers: dict[bool, BatchWriter] = {True: stack.enter_context(shard_writer(chosen))}
        if rest is not None:
            writers[False] = stack.enter_context(shard_writer(rest))
        skipped = None if rest is not None else False
        counts = {True: 0, False: 0}
        for batch, flags in flagged:
            account.samples_in += len(batch)
            unwritten = len(batch)
            for flag, part, first, last in batch.split(flags, skipped):
                writers[flag].write_batch(part, first, last)
                account.samples_out += last - first
                counts[flag] += last - first
                unwritten -= last - first
            account.left_out += unwritten
        account.check()
        for flag in (False, True):
            if flag in writers:
                writers[flag].finish()
                account.bytes_out += writers[flag].bytes_written
        if rest is not None:
            urls = ("stdout" if url == "-" else shown(url) for url in (chosen.url, rest.url))
            account.progress.totals = [
                *account.progress.totals,
                *(f"{url}: {several(counts[flag], 'sample')}" for url, flag in zip(urls, (True, False), strict=True)),
            ]


class Selection:
    """The samples at the ascending *positions* of a pass, from 0 on; with *invert*, all others.

    *positions*: an iterator, taken one item further than the batches need, the first at once; positions behind the last
    sample select nothing.
    `flags(batch)`, called with every batch of the pass, in order, returns a flag for each sample.
    """

    def __init__(self, positions: Iterator[int], *, invert: bool = False) -> None:
        self._positions = positions
        self._invert = invert
        self._next = next(positions, -1)
        self._first = 0

    def flags(self, batch: Sequence[object] | Batches) -> list[bool]:
        """Return one flag for each sample of *batch*: True if it is selected.

        To be called once with every batch of the pass, in order: the lengths of the batches before give the position of
        its first sample. Nothing but `len(batch)` is used.
        """
        flags = [self._invert] * len(batch)
        while self._first <= self._next < self._first + len(batch):
            flags[self._next - self._first] = not self._invert
            self._next = next(self._positions, -1)
        self._first += len(batch)
        return flags


def deliver_labels(labelled: Iterable[tuple[Batches, Sequence[str]]], begin: Callable[[str], Series]) -> Iterator[str]:
    """Write each sample to the part that its label names; yield the URL of each shard once it has appeared.

    `labelled`: batches, each with one label a sample. `begin(part)`: returns the `Series` of shards of a part; called
    at its first sample; it counts the samples. The last shards of all parts are written completely before the first of
    these appears. When a part has its maximal number of shards, no more samples are read.

    Order: in each part that of the input. Holds: a file for each part, and 64 MiB of samples.
    Raises what *labelled*, `begin` and `account.check` of a series raise; StorageError; SampleError if two samples with
    one key would be adjacent in a shard. Shards that were yielded stay, no other does; of a single part, shards that
    were full when an exception came are completed and yielded before it is raised.
    """
    parts: dict[str, Series] = {}
    held_bytes = 0
    with ExitStack() as stack:
        stack.enter_context(close_at_end(labelled))
        try:
            for part, batch_of_run, first, last in (run for batch, labels in labelled for run in batch.split(labels)):
                series = parts.get(part)
                if series is None:
                    series = parts[part] = begin(part)
                    stack.callback(series.abort)
                yield from series.write(batch_of_run, first, last)
                if series.is_full:
                    break
                held_bytes += batch_of_run.memory_size(first, last)
                if held_bytes > MAX_PENDING_BYTES:
                    for open_series in parts.values():
                        open_series.flush()
                    held_bytes = 0
            for series in parts.values():
                series.finish()
        except Exception:
            for series in parts.values() if len(parts) == 1 else ():  # those that were full before
                yield from series.complete()
            raise
        for series in parts.values():
            yield from series.complete()


def allow_open_files(count: int) -> None:
    """Raise this process's limit of open files to *count* more than are open now, as far as the hard limit allows.

    Never lowers it. Raises no error if the system refuses. To *count* alone if the open files can't be listed.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError):  # a system without /dev/fd
        count += len(os.listdir("/dev/fd"))
    limit = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
