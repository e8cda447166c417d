"""Samples to numbered shards: a series of them for each part of a data set."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from tartools import storage, tar
from tartools.errors import SampleError, StorageError, UsageError, several
from tartools.samples.account import Account
from tartools.shards.numbering import PartNames, check_numbered, existing_shards, replace_set
from tartools.shards.writing import Batches, BatchWriter, Destination
from tartools.storage.interrupts import defer_signals
from tartools.storage.pool import Threads
from tartools.storage.url import Url

MAX_SYNCING_SHARDS = 4  # full shards; the disk is not idle between two of them
MAX_PARTS_REPORTED = 20  # parts that are reported one by one


class Limits(NamedTuple):
    """The limits of numbered shards.

    `samples(k)`: the most samples in shard k, counted from 0; None: any number.
    `size`: the most bytes of its tar, end included, before compression; None: any number. A sample that alone is larger
    gets a shard of its own.
    `shards`: the most shards; None: any number.
    """

    samples: Callable[[int], int | None] = lambda _: None
    size: int | None = None
    shards: int | None = None


class Series:
    """Numbered shards, written one after the other.

    Up to *max_syncing* full local ones go to the disk while the next is written; 0: each is committed once it is full.

    `destination(k)`: returns the sink of shard k, from 0 on. `limits`: of the shards. `account`: counts samples as
    read, written or left out, and bytes as written.
    `shards`, `samples`: number of finished shards, and of the samples in them. `writer`: writes the current shard; None
    between two.
    Shards take their names in order; after one that could not, no later one does, or there would be a gap.
    To be called: `write` for each batch, `finish`, `complete`, and in any case `abort`. `write` and `complete` are
    generators: take all of their items.
    """

    def __init__(
        self,
        destination: Callable[[int], Destination],
        limits: Limits,
        account: Account,
        max_syncing: int = MAX_SYNCING_SHARDS,
    ) -> None:
        self.samples = 0  # in full shards
        self._destination = destination
        self._limits = limits
        self._account = account
        self.shards = 0  # full ones
        self.writer: BatchWriter | None = None
        self._last = ""  # that has its name
        self._syncing = max_syncing
        self._full: deque[tuple[BatchWriter, Callable[[], None]]] = deque()  # with what waits for the disk
        self._failed = False  # a shard could not get its name: no later one may, or the series would have a gap
        self._threads: Threads[Callable[[], None], None] = Threads(max(max_syncing, 1))

    @property
    def is_full(self) -> bool:
        """True if `limits.shards` shards are finished, so that no further sample is taken; False without this limit."""
        return self.shards == self._limits.shards

    def write(self, batch: Batches, first: int, last: int) -> Iterator[str]:
        """Write samples *first* to *last* (exclusive) of *batch*, up to the end of the last shard that may be written.

        Yields the URL of each shard that has appeared under its name meanwhile. Counts the samples that it takes as
        read and written; one that shows that the last shard is full, as read and left out. Does nothing if `is_full`.
        Raises: StorageError; SampleError for two adjacent samples with one key in a shard; UsageError for a shard that
        can't have this name; what `limits.samples` raises.
        """
        while first < last and not self.is_full:
            share = min(self._count_fitting(batch, first), last - first)
            if self.writer is not None and not share:
                yield from self._end_shard()
                if self.is_full:  # the sample that did not fit has been read
                    self._account.samples_in += 1
                    self._account.left_out += 1
                continue
            writer = self._write(batch, first, first + share)
            first += share
            if writer.samples == self._limits.samples(self.shards):
                yield from self._end_shard()

    def _end_shard(self) -> Iterator[str]:
        """End the current shard, and commit full shards until at most *max_syncing* are left; yield the URL of each.

        These go to the disk meanwhile. A remote one is committed at once, with all before it: its upload takes memory
        until its end. Raises: StorageError, as `finish`; the errors of committing.
        """
        yield from self._commit(max(self._syncing - 1, 0))
        self.finish()
        if not self._syncing or not Url(self._full[-1][0].url).is_local:  # an upload takes memory until its end
            yield from self._commit()

    def _commit(self, pending: int = 0) -> Iterator[str]:
        """Commit all full shards but the last *pending*, in order; yield the URL of each. After a failure, none.

        Waits for the disk. Raises: StorageError if a shard can't be synced or can't appear.
        """
        while len(self._full) > pending and not self._failed:
            writer, synced = self._full[0]
            self._failed = True
            synced()
            writer.commit()
            self._failed = False
            self._full.popleft()
            self._account.bytes_out += writer.bytes_written
            self._last = writer.url
            yield writer.url

    def complete(self) -> Iterator[str]:
        """Commit all full or finished shards, and sync their folder; yield the URL of each shard that now appears.

        The current shard is not ended: call `finish` before. After a failed commit no further shard is committed.
        Raises: StorageError if a shard can't be synced or can't appear.
        """
        yield from self._commit()
        if self._last:
            storage.sync_folder(self._last)

    def flush(self) -> None:
        """Write the samples of the current shard that wait in memory; its buffers are free then."""
        if self.writer is not None:
            self.writer.flush()

    def finish(self) -> None:
        """End the current shard, if there is one, and begin to bring it to the disk; `complete` makes it appear.

        Raises: StorageError if it can't be written, and after a failed commit, whose shard would be missing before this
        one; the errors of `account.check`, for an input that has changed.
        """
        if self._failed:
            raise StorageError("the shard could not be completed before; no later one is", url=self._full[0][0].url)
        if self.writer is not None:
            self._account.check()
            self.writer.finish()
            self._full.append((self.writer, self._threads.submit(partial(storage.sync, self.writer.output))))
            self.samples += self.writer.samples
            self.shards += 1
            self.writer = None

    def abort(self) -> None:
        """Drop all shards that have not appeared under their names, and end the threads."""
        self._threads.stop()
        for writer in [*(full for full, _ in self._full), *([self.writer] if self.writer else [])]:
            writer.abort()

    def _write(self, batch: Batches, first: int, last: int) -> BatchWriter:
        """Write samples *first* to *last* (exclusive) of *batch* to the current or a new shard; return its writer.

        Counts them as read before, and as written after that.
        """
        if self.writer is None:
            with defer_signals():
                self.writer = self._destination(self.shards).writer()
        self._account.samples_in += last - first
        self.writer.write_batch(batch, first, last)
        self._account.samples_out += last - first
        return self.writer

    def _count_fitting(self, batch: Batches, first: int) -> int:
        """Return how many samples of *batch*, from number *first* on, fit into the current shard by size and count.

        0 if the current shard is full. If there is none, how many fit into a new one: at least one. Raises what
        `limits.samples` raises.
        """
        fitting = len(batch) - first
        writer, limits = self.writer, self._limits
        if limits.size:
            free_bytes = tar.capacity_of_archive(limits.size) - (writer.size if writer else 0)
            fitting = min(fitting, max(batch.count_fitting(first, free_bytes), 0 if writer else 1))
        count = limits.samples(self.shards)
        if count is not None:
            fitting = min(fitting, count - (writer.samples if writer else 0))
        return fitting


# ---- a series for each part: where they go, and what is said of them ----


class Spread(NamedTuple):
    """An even division of *total* samples among *shards* shards, in order: numbers of samples differ by at most one."""

    total: int
    shards: int

    def samples(self, k: int) -> int:
        """Return the number of samples for shard *k*, from 0 on. Raises SampleError if *k* is behind the last shard."""
        if k >= self.shards:
            raise self.changed_error("more")
        return self.total // self.shards + (k < self.total % self.shards)

    def changed_error(self, now: str) -> SampleError:
        """Return the error of an input that had `total` samples when counted, and now has *now* ("more" or "fewer")."""
        return SampleError(f"the input has changed: there were {self.total} samples when they were counted, now {now}")


def input_changed_error() -> SampleError:
    """Return the error of an input whose keys or values have changed since they were counted."""
    return SampleError("the input has changed: keys or values differ from those counted before")


class PartOutputs(NamedTuple):
    """The options for the shards of all parts.

    `names`: gives the names of a part's shards. `limits`: of each part's shards.
    `even`: number of shards over which each part is spread evenly; None: as many as `limits` gives.
    `start`: number of the first shard, None if the user gave none (then 0).
    `force`: replace shards of an earlier run. `gzip`: compress the shards.
    """

    names: PartNames
    limits: Limits
    even: int | None
    start: int | None
    force: bool
    gzip: bool


class PartShards:
    """The shards of all parts: checks their names, begins a series of shards for each, and reports at the end.

    `outputs`: the options. `parts`: the parts that are known in advance; their outputs are checked now, those of other
    parts when they begin. A run without parts has one, named "". `urls`: the inputs of the run, none of which is
    overwritten. `account`: counts samples and bytes, and gets the report.
    To be called: `set_counts`, if `outputs.even` is set; `begin` once for each part; `report_and_prune` at the end.
    Raises: UsageError for a part that can't be in a name, and for names of another format; StorageError if an output
    exists that may not be replaced, is an input, or can't be looked up; OSError for a folder that can't be read.
    """

    def __init__(self, outputs: PartOutputs, parts: Sequence[str], urls: Sequence[str], account: Account) -> None:
        self._outputs = outputs
        self._parts = parts
        self._urls = urls
        self._account = account
        self._first = outputs.start or 0
        self._old: dict[str, dict[int, str]] = {}  # shards of an earlier run
        self._series: dict[str, Series] = {}
        self._spreads: dict[str, Spread] = {}
        for part in parts:
            try:
                outputs.names.check(part)
            except ValueError as error:
                raise UsageError(f"the name of the part {part!r} {error}") from None
            self._check_outputs(part)

    def _check_outputs(self, part: str) -> None:
        """Find existing shards of *part*, to be replaced or removed later.

        Raises: StorageError if one may not be replaced, is an input, or can't be looked up; OSError for a folder that
        can't be read; UsageError for a name of another format.
        """
        names = self._outputs.names.numbering_of(part)
        if self._outputs.names.single:
            is_present = Url(names.name(0)).scheme != "pipe" and storage.exists(names.name(0))
            self._old[part] = {0: names.name(0)} if is_present else {}
        else:
            self._old[part] = existing_shards(names)
        check_numbered(names, self._first, self._old[part], self._urls, self._outputs.force)

    def set_counts(self, counts: Mapping[str, int]) -> None:
        """Set how many samples each part has, from *counts*, to spread them evenly over its shards.

        Raises: SampleError if a part has fewer samples than shards.
        """
        even = self._outputs.even or 0
        for part, count in counts.items():
            if count < even:
                raise SampleError(f"{count} samples{f' of {part!r}' * bool(part)} are too few for {even} shards")
            self._spreads[part] = Spread(count, even)

    def begin(self, part: str, destination: Callable[[str], Destination]) -> Series:
        """Begin the series of shards of *part*, and return it; `destination(url)` returns the sink of a shard.

        A name that is not among the `parts` known in advance is not checked here: the caller calls `PartNames.check`.
        Raises, for a part that was not known in advance: StorageError if an output exists that may not be replaced, or
        can't be looked up; OSError for a folder that can't be read. SampleError for a part that was not counted though
        parts are spread.
        """
        if part not in self._old:
            self._check_outputs(part)
        outputs, limits = self._outputs, self._outputs.limits
        if outputs.even:
            if part not in self._spreads:
                raise input_changed_error()
            limits = limits._replace(samples=self._spreads[part].samples)
        names, syncing = outputs.names.numbering_of(part), 0 if part else MAX_SYNCING_SHARDS

        def shard(k: int) -> Destination:
            return destination(names.name(self._first + k))

        self._series[part] = Series(shard, limits, self._account, syncing)
        return self._series[part]

    def report_and_prune(self, noun: str) -> None:
        """At the end: report samples and shards of each part; then, with `outputs.force`, remove shards of older runs.

        `noun`: plural of "part" for a report of over 20, which has only totals; a run without parts is not reported.
        Removed are shards of each part of this run with numbers that it has not written, from `outputs.start` on; if
        that and a limit of shards are given, only up to the limit. If the input had no samples, a warning says so, and
        all stay; each that stays is an omission.
        Raises: SampleError if a part has fewer samples than were spread, unless a limit of shards has ended it.
        """
        account, limits = self._account, self._outputs.limits
        for part, spread in self._spreads.items():
            count = self._series[part].samples if part in self._series else 0
            if count < spread.total and (limits.shards is None or limits.shards >= spread.shards):
                raise spread.changed_error("fewer")
        if not account.samples_in:
            account.warn("no samples in the input; no shards written")
        elif "" not in self._series:
            self._report(noun)
        until = None if self._outputs.start is None or limits.shards is None else self._first + limits.shards
        for part, old in self._old.items() if self._outputs.force else ():
            written = self._series[part].shards if part in self._series else 0
            if not (self._outputs.names.single and written):
                span = range(self._first, self._first + written)
                replace_set(self._outputs.names.numbering_of(part), span, until, old, account, bool(account.samples_in))

    def _report(self, noun: str) -> None:
        """Put lines on each part before the lines of the report: samples and shards; one with totals for over 20 parts.

        `noun`: plural of "part" for that line. Warns of parts without samples.
        """
        parts = self._parts or list(self._series)
        counts = {part: (series.samples, series.shards) for part in parts if (series := self._series.get(part))}
        for part in parts:
            if part not in counts:
                self._account.warn(f"{part}: no samples; no shards written")
        if len(counts) > MAX_PARTS_REPORTED:
            samples, shards = map(sum, zip(*counts.values(), strict=True))
            counts = {f"{len(counts):,} {noun}": (samples, shards)}
        lines = [
            f"{part}: {several(samples, 'sample')} in {several(shards, 'shard')}"
            for part, (samples, shards) in counts.items()
        ]
        self._account.progress.totals = [*lines, *self._account.progress.totals]

    def samples(self) -> dict[str, int]:
        """Return part -> number of samples in its finished shards, for each part that `begin` was called with."""
        return {part: series.samples for part, series in self._series.items()}
