"""A pass: one reading of all inputs, for outputs that are known. `DataSet.to` decides which pass it is, once.

A `SamplePass` reads samples and writes shards. A `RowPass` (module `rowpass`) has rows that list the samples, because
an output is a table. Both have the same verbs, so that who computes flags, an order or labels asks neither what the
inputs are, nor what the outputs are:

    copy()                  all samples
    select(flags)           those with a flag, and the others to a second output
    order(items)            what `items` gave, in another order: samples, or the numbers of rows
    sort(sorter)            all, sorted by rows if these tell the order
    split(labels, shards)   each sample to the shards of its part

Some read the inputs twice. Then the `Snapshot` of the pass has the samples of both readings the same.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from tartools import storage
from tartools.errors import SampleError, StorageError
from tartools.samples.account import Account, Phase
from tartools.samples.batch import Batch
from tartools.samples.sample import Sample
from tartools.shards.reading import (
    Reading,
    ShardStream,
    chain_shards,
    check_shards,
    close_at_end,
    count_samples,
    iterate_samples,
    shard_batches,
)
from tartools.shards.snapshot import Snapshot
from tartools.shards.writing import Batches, Destination, write_batches, write_samples
from tartools.storage.outputformats import PARQUET_MAGIC, is_table_name
from tartools.tar.groups import Need

if TYPE_CHECKING:
    from tartools.shards.series import PartShards
    from tartools.shards.workers import ShardTask, Tasks, Work
    from tartools.tables.inputs import RowInputs

Item = TypeVar("Item")  # a sample, or the number of the row that lists it
Result = TypeVar("Result")
Answer = TypeVar("Answer")
ReadShards = Callable[[Sequence[str], Account, Reading], Iterator[Iterator[Batch]]]
Watch = Callable[[Iterator[Any], Callable[[Any], Iterable["bytes | None"]]], Iterator[Any]]


class PassInputs(NamedTuple):
    """The shards and tables that a pass reads, and how.

    `urls`: in the order of the samples.
    `account`: gets counts and warnings about the samples, each once, also if they are read twice.
    `reading`: how they are read, unless a method of the pass is given another way.
    `max_workers`: limit of worker processes, which read where that pays.
    `read_shards(urls, account, reading)`: returns an iterator of batches for each shard, reading later ones ahead; or
    a single iterator, of the batches of all shards, mixed as they come. None: they are read one after the other.
    """

    urls: Sequence[str]
    account: Account
    reading: Reading
    max_workers: int
    read_shards: ReadShards | None = None


class Outputs(NamedTuple):
    """The outputs of a pass: *urls*, None for one that is not wanted. *force* replaces files, *gzip* compresses shards.

    `sums`: an `OutputSums`, which gets the checksum of each output once it has appeared; None: none is computed.
    """

    urls: Sequence[str | None]
    force: bool
    gzip: bool
    sums: Any = None  # OutputSums; a name in quotes would be compiled at the start


class ItemSource(NamedTuple):
    """One of several sources of items, which are samples or row numbers.

    `urls`: the inputs that it reads. `read()`: returns an iterator of `Batch`es of samples, or ranges of row numbers;
    the consumer counts them. `is_indexed`: True for row numbers, whose rows exist already: reading them costs nothing.
    """

    urls: Sequence[str]
    read: Callable[[], Iterator[Any]]
    is_indexed: bool


class UnsortableRowsError(SampleError):
    """Rows can't be sorted without the samples: several have members of one sample, to be joined, or one has no key."""


class Sorter(Protocol):
    """The order in which `Pass.sort` writes samples: as row numbers where columns have the values, else as samples.

    A `RowPass` calls `positions`, and if that returns None `positions_by_samples`. A `SamplePass` calls `positions` if
    all its inputs are tables; if they are not, or that returns None or raises UnsortableRowsError, it calls `batches`.
    """

    @property
    def needs_values(self) -> bool:
        """True if the order depends on keys or values, in columns or in the samples; False for a shuffle."""

    def positions(self, inputs: "RowInputs", account: Account) -> Iterator[int] | None:
        """Return the row numbers of *inputs* in sorted order; None if columns lack the values.

        The iterator counts samples in *account* as read. It raises UnsortableRowsError if rows can't be sorted without
        the samples; SampleError for a value that is not of its kind, or is missing though it may not be.
        """

    def positions_by_samples(self, run: "Pass[int]", inputs: "RowInputs") -> Iterator[int]:
        """Return the row numbers of *inputs* in sorted order, by values read from the samples of the pass *run*.

        Counts the samples in the account of *run* as read. Raises UnsortableRowsError and SampleError as `positions`.
        """

    def batches(self) -> Iterator[Batch]:
        """Return the samples to write, in sorted order, in batches; read the inputs, and count them as read."""


class Pass(ABC, Generic[Item]):
    """One reading of *inputs*, for *outputs*. Its items are samples (`SamplePass`) or row numbers (`RowPass`).

    `copy`, `order`, `select`, `sort` and `split` write the outputs; each of the other methods only reads.
    `urls`: the inputs, in order. `account`: gets counts and warnings. `reading`: how they are read.
    `max_workers`: limit of worker processes.
    `snapshot`: versions and copies of the inputs, for methods that read them twice. `own` (of the class): a function
        that copies an item which holds a read buffer, so that it may be kept; None if every item may be kept.
    """

    # makes an item that may be held, in place of one that may keep a buffer alive; None if all items may
    own: Callable[[Any], Any] | None = None

    def __init__(self, inputs: PassInputs, outputs: Outputs) -> None:
        self.urls, self.account, self.reading, self.max_workers, self._read_shards = inputs
        self.snapshot = Snapshot(self.urls, self.reading.tmpdir, self.account)
        self._outputs = outputs

    # ---- outputs ----

    @abstractmethod
    def destination(self, url: str) -> Destination:
        """Return the sink of the output *url*: it takes batches of samples or rows, as `batches` of this pass gives.

        Nothing is opened yet.
        """

    def _destinations(self) -> list[Destination | None]:
        return [None if url is None else self.destination(url) for url in self._outputs.urls]

    def _only_destination(self) -> Destination:
        (destination,) = self._destinations()
        assert destination is not None
        return destination

    # ---- the verbs ----

    @abstractmethod
    def copy(self) -> None:
        """Copy all samples to the only output, in order (but see `read_shards`); count them as read and written."""

    @abstractmethod
    def items(self, by_shard: bool) -> Iterator[Iterator[Item]]:
        """Return iterators of items: one for each shard and table. Taking an item counts a sample as read.

        Items that are rows of adjacent shards come as one iterator, unless *by_shard*.
        """

    @abstractmethod
    def order(self, items: Iterator[Item], watch: Watch | None = None) -> None:
        """Write the samples that *items* stand for, in the order of *items*, to the only output.

        Counts them in `account` as written; taking the items has counted them as read.
        `items`: samples, or row numbers, as `items` of this pass yields them.
        `watch(outputs, keys)`: if given, a generator that passes on *outputs* (samples, or batches of rows) and looks
        at them; `keys(output)` returns the keys of one, None for a sample without a key.
        """

    @abstractmethod
    def sort(self, sorter: Sorter) -> None:
        """Write the samples that *sorter* gives, in its order, to the only output; count them as written."""

    def select(
        self,
        flags: Callable[[Batch], Sequence[bool]],
        of_keys: Callable[[Sequence[bytes]], Sequence[bool]] | None = None,
        reading: Reading | None = None,
    ) -> None:
        """Write the samples whose flag is True to the first output, all other samples to the second, if there is one.

        `flags(batch)`: returns a flag for each sample. `of_keys(keys)`: the same by keys alone: a pass over rows calls
        it instead, if all rows have keys, and reads no samples for it. `reading`: how samples are read; None: as by the
        pass. Counts samples as read, and as written or left out. Raises: StorageError; TarFormatError; SampleError if
        two samples with one key would be adjacent in a shard; what `flags` and `of_keys` raise.
        """
        from tartools.shards.delivery import deliver_flags

        chosen, rest = [*self._destinations(), None][:2]
        assert chosen is not None
        deliver_flags(self.evaluate(flags, of_keys, reading), chosen, rest, self.account)

    def split(self, labelled: Iterable[tuple[Batches, Sequence[str]]], shards: "PartShards") -> Iterator[str]:
        """Write each sample to the *shards* of the part that its label names; yield the URL of each complete shard.

        `labelled`: batches of this pass, each with one label a sample. Order: that of the input, in each part. It ends
        when a part has its maximal number of shards. Counts samples as read, and as written or left out. Raises what
        *labelled* raises; StorageError; SampleError if two samples with one key would be adjacent in a shard.
        """
        from tartools.shards.delivery import deliver_labels

        return deliver_labels(labelled, partial(shards.begin, destination=self.destination))

    # ---- what is computed of the samples ----

    @abstractmethod
    def batches(self) -> Iterator[Batches]:
        """Return all samples, or the rows that list them, in order, in batches. The consumer counts them.

        Samples: after the last batch, StorageError is raised if an input has changed since the snapshot was taken.
        """

    @abstractmethod
    def evaluate(
        self,
        answers: Callable[[Batch], Sequence[Answer]],
        of_keys: Callable[[Sequence[bytes]], Sequence[Answer]] | None = None,
        reading: Reading | None = None,
    ) -> Iterator[tuple[Batches, Sequence[Answer]]]:
        """Yield batches of samples, or of rows that list them, each with the results of *answers*: one a sample.

        `answers(batch)`: returns the results for a batch of samples. `of_keys(keys)`: the same by keys alone, for rows;
        without it, or if a row has no key, the samples of rows are read again. `reading`: how samples are read; None:
        as those of the pass. The consumer counts them. Raises: StorageError, at the latest after the last batch, if the
        inputs have changed since the snapshot; the errors of reading.
        """

    @abstractmethod
    def sources(
        self, groups: Sequence[Sequence[str]], reading: Reading, begin: Callable[[int | None], object]
    ) -> list[ItemSource]:
        """Return a source of items for each of *groups*: lists of URLs that together are the inputs of the pass.

        `reading`: how samples are read. `begin(size)`: called now if samples will be read while items are taken, with
        the bytes of all inputs (None if unknown); not called for rows, which are indexed now.
        """

    def prepare(self, *, reread: bool) -> None:
        """Index the shards now, if this is a pass over rows; a pass over samples does nothing.

        *reread*: True to take a snapshot before, because the caller will read the samples again.
        """

    def count(self) -> int:
        """Return the number of samples in the inputs."""
        return sum(self.results(lambda batches: sum(map(len, batches))))

    def label_counts(
        self,
        label: Callable[[Batch], Sequence[str]],
        of_keys: Callable[[Sequence[bytes]], Sequence[str]] | None = None,  # for rows
    ) -> Iterator[Mapping[str, int]]:
        """Yield mappings from label to number of samples, whose sums are the counts of the whole input.

        `label(batch)`: returns the label of each sample. `of_keys(keys)`: the same by keys alone; a pass over rows uses
        it, if given and if all rows have keys, and reads no samples.
        """
        yield from self.results(lambda batches: dict(Counter(chain.from_iterable(map(label, batches)))))

    # ---- reading samples ----

    def shards(self, account: Account | None = None, reading: Reading | None = None) -> Iterator[Iterator[Batch]]:
        """Return an iterator of batches for each shard and table, in order. The consumer counts the samples.

        `account`: gets reports of members that are no samples; `reading`: how they are read; None: those of the pass.
        Raises: StorageError at once for local files that can't be read; later TarFormatError and StorageError, after
        the samples before the damage.
        """
        account, reading = account or self.account, reading or self.reading
        check_shards(self.urls, account)
        return (self._shard(at, url, account, reading) for at, url in enumerate(self.urls))

    def read(self, account: Account | None = None, reading: Reading | None = None) -> Iterator[Batch]:
        """Return all samples in order, in batches. The consumer counts them.

        `account`: gets reports of members that are no samples; `reading`: how they are read; None: those of the pass.
        Raises StorageError at once for local files that can't be read; later TarFormatError and StorageError, after the
        samples before the damage.
        """
        return chain_shards(self.shards(account, reading))

    def _shard(self, at: int, url: str, account: Account, reading: Reading) -> Iterator[Batch]:
        copy = self.snapshot.open(at)
        stream = None if copy is None else ShardStream(url, account, copy)
        return shard_batches(url, account, reading, stream)

    def _check_snapshot(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield *batches*, which have all samples; then raise StorageError if inputs differ from the snapshot.

        Their versions are compared if it was taken, the number of samples if `snapshot.samples` is not None.
        """
        count = 0
        with close_at_end(batches):
            for batch in batches:
                count += len(batch)
                yield batch
        self.snapshot.check(count)

    def samples_at(self, positions: Sequence[int]) -> Iterator[Sample]:
        """Yield the samples at the ascending *positions* of the data set; their bytes are copied: they may be kept.

        Reads no further than the last. Raises: StorageError if the inputs have fewer samples; the errors of reading.
        """
        if not positions:
            return
        quiet = Account(lambda _: None)  # all has been said before
        first, ascending = 0, iter(positions)
        position = next(ascending)
        with close_at_end(batches := self.read(quiet, self.reading.with_need(Need.FIELDS))):
            for batch in batches:
                while position < first + len(batch):
                    yield batch[position - first].own()
                    position = next(ascending, -1)
                    if position < 0:
                        return
                first += len(batch)
        raise StorageError("the input has changed: it has fewer samples now")

    def gather(
        self, work: "Work[Result]", account: Account, *, max_workers: int | None = None, remote: bool = False
    ) -> "Tasks[Result]":
        """Yield each task of *work* over the samples, in order; read its `output` to the end, then its `result`.

        `work(task)`: reads `task.batches` or `task.shards`, counts the samples in *account*, returns an iterator of
        output bytes, and sets `task.result`.
        Takes the snapshot first, so that the samples can be read again. Close this generator, or use `workers.outputs`.
        *max_workers*: limit of worker processes; None: that of the pass. This process does everything as one task if it
        is below 2, for inputs below 64 MiB, and if the snapshot has copies. *remote*: workers read remote shards, too:
        only for work without output. *account*: gets reports of members that are no samples. Raises: the errors of
        reading and of *work*; StorageError at the end, from a pass over rows indexed before, if they have changed.
        """
        from tartools.shards.workers import gather, gather_here

        self.snapshot.take()
        if self.snapshot.has_copies:
            yield from gather_here(self.read(account), work)
        else:
            max_workers = self.max_workers if max_workers is None else max_workers
            yield from gather(self.urls, account, self.reading, work, max_workers=max_workers, remote=remote)

    def gather_counting(self, work: "Work[Result]", *, remote: bool = False) -> "Tasks[Result]":
        """Yield each task of *work* over the samples, in order, for a reading that reports nothing.

        `work(task)`: reads `task.batches`, returns an iterator of output bytes, and sets `task.result`. Reading counts
        the samples in an account of the phase "counting", not in that of the pass. `remote`: workers read remote
        shards, too. Read the `output` of each task to the end, then its `result`; close the generator.
        """
        self.snapshot.take()
        silent = Account(lambda _: None)
        self.account.progress.phase = Phase("counting", account=silent)

        def counting(task: "ShardTask[Result]") -> Iterable[bytes]:
            task.batches = count_samples(task.batches, silent)
            return work(task)

        return self.gather(counting, silent, remote=remote)

    def results(self, work: Callable[[Iterator[Batch]], Result]) -> list[Result]:
        """Return the list of results of *work*, called once with the batches of each part of the inputs, in order.

        A part is what one worker reads: of a large shard some bytes, or several small shards. Results of workers are
        pickled. Members that are no samples are not reported.
        """

        def work_on(task: "ShardTask[Result]") -> Iterable[bytes]:
            task.result = work(task.batches)
            return ()

        with closing(self.gather_counting(work_on, remote=True)) as tasks:
            return [task.result for task in tasks]


class SamplePass(Pass[Sample]):
    """A pass over samples, whose outputs are all shards. A table's samples are read from the shards that it lists."""

    own = staticmethod(Sample.own)

    def destination(self, url: str) -> Destination:
        """Return the sink that writes samples to the shard *url*. Nothing is opened yet."""
        return Destination(url, self._outputs.force, self._outputs.gzip, sums=self._outputs.sums)

    def copy(self) -> None:
        """Copy all samples to the only output, in order (but see `read_shards`); count them as read and written."""
        with close_at_end(shards := self._shards_ahead()):
            write_batches(count_samples(chain_shards(shards), self.account), self._only_destination(), self.account)

    def items(self, by_shard: bool) -> Iterator[Iterator[Sample]]:  # they come shard by shard
        """Return iterators of samples, one a shard, or as `read_shards`; taking one counts it. *by_shard*: unused."""
        return self._samples_of_shards(self._shards_ahead())

    def _samples_of_shards(self, shards: Iterator[Iterator[Batch]]) -> Iterator[Iterator[Sample]]:
        with close_at_end(shards):
            for batches in shards:
                yield iterate_samples(batches, self.account)

    def _shards_ahead(self) -> Iterator[Iterator[Batch]]:
        """Return the iterators of batches of `PassInputs.read_shards`; if it is None, one for each shard, in order."""
        if self._read_shards is None:
            return self.shards()
        check_shards(self.urls, self.account)
        return self._read_shards(self.urls, self.account, self.reading)

    def order(self, items: Iterator[Sample], watch: Watch | None = None) -> None:
        """Write the samples *items*, in their order, to the only output; count them as written.

        `watch(samples, keys)`: if given, a generator that passes the samples on and looks at them; `keys(sample)` is a
        tuple of its key.
        """
        samples = items if watch is None else watch(items, lambda sample: (sample.raw_key,))
        write_samples(samples, self._only_destination(), self.account)

    def sort(self, sorter: Sorter) -> None:
        """Write the samples in the order of *sorter*, to the only output; count them as written.

        If all inputs are tables whose columns have the values, rows are sorted; else the samples are read for it.
        """
        if not (self._are_tables() and self._sort_by_rows(sorter)):
            write_batches(sorter.batches(), self._only_destination(), self.account)

    def _are_tables(self) -> bool:
        """True if all inputs are tables, by their names and their first bytes; False without inputs."""
        if not self.urls or not all(map(is_table_name, self.urls)):
            return False
        from tartools.storage.checks import probe_all

        return all(probe.first == PARQUET_MAGIC for probe in probe_all(self.urls).values())

    def _sort_by_rows(self, sorter: Sorter) -> bool:
        """Write the samples that the rows of the input tables list, in the order of *sorter*, and return True.

        Return False, with nothing written, if rows don't tell the order: if members have to be joined to samples, a row
        has no key, or a value is in no column; then no sample is counted. Raises: errors of *sorter* and of reading.
        """
        from tartools.shards import shardrows

        counting = Account(self.account.say, self.account.quiet)  # dropped, if the samples are read after all
        try:
            rows = shardrows.row_inputs(self.urls, self.account, shardrows.Indexing(self.reading, self.max_workers))
            positions = sorter.positions(rows, counting)
            if positions is None:
                return False
            reading = self.reading.with_need(Need.PLACES)
            batches = shardrows.samples_at(rows, positions, self.account, reading)
        except UnsortableRowsError:  # before anything is written: all positions have been taken
            return False
        write_batches(batches, self._only_destination(), self.account)
        self.account.add(counting.counts())
        return True

    def batches(self) -> Iterator[Batch]:
        """Yield all samples in order, in batches; then raise StorageError if inputs have changed since the snapshot."""
        return self._check_snapshot(self.read())

    def evaluate(
        self,
        answers: Callable[[Batch], Sequence[Answer]],
        of_keys: Callable[[Sequence[bytes]], Sequence[Answer]] | None = None,  # samples are read anyway
        reading: Reading | None = None,
    ) -> Iterator[tuple[Batches, Sequence[Answer]]]:
        """Yield batches of samples, each with `answers(batch)`: one result a sample. *of_keys* is not used.

        `reading`: how samples are read; None: as those of the pass. The consumer counts them. Raises: StorageError,
        after the last batch, if the inputs have changed since the snapshot; the errors of reading.
        """
        with close_at_end(batches := self._check_snapshot(self.read(reading=reading))):
            for batch in batches:
                yield batch, answers(batch)

    def sources(
        self, groups: Sequence[Sequence[str]], reading: Reading, begin: Callable[[int | None], object]
    ) -> list[ItemSource]:
        """Return a source of samples for each of *groups*, lists of URLs that together are the inputs.

        They are read as *reading* says. Calls `begin(size)` now, with the bytes of all inputs, None if unknown.
        """

        def read(urls: Sequence[str]) -> Iterator[Batch]:
            return chain_shards(shard_batches(url, self.account, reading) for url in urls)

        begin(storage.check_inputs(self.urls))
        return [ItemSource(urls, partial(read, urls), False) for urls in groups]
