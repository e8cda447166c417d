"""Shards and tables as one source: of samples, and of rows that list them where the output is a table.

A second reading has the same samples as the first: inputs that can be read only once are spooled, and versions are
compared for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain, islice
from typing import TYPE_CHECKING, TypeVar

from tartools import storage
from tartools.errors import StorageError, UsageError
from tartools.samples.account import Account, Phase
from tartools.samples.batch import Batch
from tartools.samples.sample import Sample
from tartools.shards.reading import (
    Reading,
    ShardStream,
    check_shards,
    closing_upstream,
    counted,
    one_by_one,
    shard_batches,
)
from tartools.shards.writing import NO_LIST, Batches, Destination, SampleWriter
from tartools.storage.url import Url
from tartools.tables.schema import is_table_name

if TYPE_CHECKING:
    from tartools.shards.workers import ShardTask, Tasks, Work
    from tartools.storage.scratch import Copy
    from tartools.tables.inputs import RowInputs

Result = TypeVar("Result")
Answer = TypeVar("Answer")


class DataSet:
    """The samples of the shards and tables *urls*, read by up to *max_workers* workers where that pays.

    Once a `sink` is a table it *lists* them: then rows stand for samples in all that is passed on. *account* gets what
    is to be said of the samples, once.
    """

    def __init__(self, urls: Sequence[str], account: Account, reading: Reading, max_workers: int) -> None:
        self.urls = urls
        self.account = account
        self.reading = reading
        self.max_workers = max_workers
        self.lists = False
        self._copies: dict[int, Copy] = {}
        self.samples: int | None = None  # how many there were when they were read before
        self._versions: dict[str, str | None] | None = None  # of what is read twice
        self._rows: RowInputs | None = None

    def sink(
        self, url: str, force: bool = False, gzip: bool = False, changing: Mapping[str, object] | None = None
    ) -> Destination:
        """Return where samples go: a table that lists them if *url* has the name of one, otherwise a shard.

        *changing* are options, with their values, that make new samples, which no table can list.
        Raises: UsageError for these, for *gzip*, and for stdin and commands among the inputs of a table; StorageError
        without pyarrow.
        """
        if not is_table_name(url):
            return Destination(url, force, gzip, self._shard_writer)
        if gzip:
            raise UsageError("-z excludes an OUTPUT that ends in .parquet")
        for option, value in (changing or {}).items():
            if value:
                raise UsageError(f"{NO_LIST}: {option} excludes an OUTPUT that ends in .parquet")
        from tartools.shards import shardrows
        from tartools.tables import schema

        schema.check_pyarrow()
        shardrows.check_stored(self.urls)
        self.lists = True
        return shardrows.table_destination(url, force, self.rows)

    def _shard_writer(self, destination: Destination) -> SampleWriter:
        """Return a writer of the shard *destination*: of samples, or of samples that rows list."""
        if not self.lists:
            return SampleWriter(destination)
        from tartools.shards.shardrows import RowWriter, listed_shards

        reading = self.reading._replace(ranges=True, listed=False)
        return RowWriter(destination, listed_shards(self.rows(), self.account, reading))

    @property
    def are_tables(self) -> bool:
        """True if all inputs are tables, by their names and their first bytes."""
        if not self.urls or not all(map(is_table_name, self.urls)):
            return False
        from tartools.storage.checks import probe_all
        from tartools.tables.schema import PARQUET_MAGIC

        return all(probe.first == PARQUET_MAGIC for probe in probe_all(self.urls).values())

    def rows(self) -> RowInputs:
        """Return the rows of the samples: of tables, and of shards, which are read and indexed the first time.

        Raises: see `shardrows.row_inputs`.
        """
        if self._rows is None:
            self.rows_apart([self.urls])
        assert self._rows is not None
        return self._rows

    def rows_apart(self, sources: Sequence[Sequence[str]]) -> list[range]:
        """Index all *sources*, lists of URLs that together are the input; return the range of row numbers of each."""
        from tartools.shards import shardrows

        indexing = shardrows.Indexing(self.reading._replace(forks=False), self.max_workers)
        self._rows, ranges = shardrows.row_inputs_apart(sources, self.account, indexing)
        return ranges

    def keep(self) -> None:
        """Take a snapshot: spool inputs that can be read only once; record the versions of the others.

        Shows the copying in the account. Raises: StorageError.
        """
        if self._versions is not None:
            return
        from tartools.storage.checks import probe_all

        storage.check_inputs(self.urls)
        one_pass = {at: url for at, url in enumerate(self.urls) if not storage.is_repeatable(url)}
        seekable = [Url(url) for url in self.urls if storage.is_seekable(url)]
        self._versions = {url: probe.version for url, probe in probe_all(seekable).items()}
        if one_pass:
            from tartools.storage.scratch import Copy

            copying = Account()
            self.account.progress.phase = Phase("copying", account=copying)

            def count_copied(count: int) -> None:
                copying.bytes_in += count

            self._copies = {
                at: Copy(storage.open_read(url), url, self.reading.tmpdir, count_copied) for at, url in one_pass.items()
            }

    def _check(self, count: int | None = None) -> None:
        """Raise StorageError if an input has changed since `keep`, or if there were not *count* samples before."""
        if self._versions is not None:
            from tartools.storage.checks import check_unchanged

            check_unchanged(self._versions)
        if count is not None and self.samples not in (None, count):
            raise StorageError(f"the input has changed: it had {self.samples} samples, now {count}")

    def read(self, account: Account | None = None, reading: Reading | None = None) -> Iterator[Batch]:
        """Return all samples, in batches; as *reading* says, if it is given. Whoever takes them counts them.

        *account* is told of what is no sample. Raises: see `reading.read_samples`.
        """
        return one_by_one(self.shards(account, reading))

    def _shard(self, at: int, url: str, account: Account, reading: Reading) -> Iterator[Batch]:
        stream = ShardStream(url, account, reading.forks, self._copies[at].open()) if at in self._copies else None
        return shard_batches(url, account, reading, stream)

    def batches(self) -> Iterator[Batches]:
        """Return all samples, or the rows that list them, in batches; after the last one nothing may have changed.

        Whoever takes them counts them.
        """
        if self.lists:
            from tartools.shards.shardrows import all_rows

            return all_rows(self.rows())
        return self._checked(self.read())

    def _checked(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        count = 0
        with closing_upstream(batches):
            for batch in batches:
                count += len(batch)
                yield batch
        self._check(count)

    def samples_at(self, positions: Sequence[int]) -> Iterator[Sample]:
        """Yield the samples at *positions*, which ascend, owned. Reads no further than the last."""
        if not positions:
            return
        quiet = Account(lambda _: None)  # all has been said before
        if self._rows is not None:
            from tartools.shards.shardrows import samples_at

            batches = samples_at(self._rows, positions, quiet, self.reading._replace(forks=False))
            with closing_upstream(batches):
                yield from (sample.own() for sample in one_by_one(map(iter, batches)))
            return
        first, ascending = 0, iter(positions)
        position = next(ascending)
        with closing_upstream(batches := self.read(quiet, self.reading._replace(ranges=True))):
            for batch in batches:
                while position < first + len(batch):
                    yield batch[position - first].own()
                    position = next(ascending, -1)
                    if position < 0:
                        return
                first += len(batch)
        raise StorageError("the input has changed: it has fewer samples now")

    def shards(self, account: Account | None = None, reading: Reading | None = None) -> Iterator[Iterator[Batch]]:
        """Return the samples of each shard, in batches; as `read`."""
        account, reading = account or self.account, reading or self.reading
        check_shards(self.urls, account)
        return (self._shard(at, url, account, reading) for at, url in enumerate(self.urls))

    def numbers(self, apart: bool) -> Iterator[Iterator[int]]:
        """Return the numbers of the rows, of each shard and table if *apart*, and count their samples as read."""

        def counted_numbers(span: range) -> Iterator[int]:
            for number in span:
                self.account.samples_in += 1
                yield number

        return map(counted_numbers, self.rows().spans(apart))

    def answered(
        self,
        answers: Callable[[Batch], Sequence[Answer]],
        of_keys: Callable[[Sequence[bytes]], Sequence[Answer]] | None = None,
        reading: Reading | None = None,
    ) -> Iterator[tuple[Batches, Sequence[Answer]]]:
        """Yield batches of samples, or of rows that list them, each with the result of *answers* for it.

        They are read as *reading* says. For rows, shards are read again, unless *of_keys* says it of keys alone.
        Raises: StorageError if the samples have changed.
        """
        if not self.lists:
            with closing_upstream(batches := self._checked(self.read(reading=reading))):
                for batch in batches:
                    yield batch, answers(batch)
            return
        from tartools.shards.shardrows import all_rows
        from tartools.storage.checks import changed_error

        if of_keys is None:
            self.keep()
        rows = self.rows()
        if of_keys is not None and rows.have_keys:
            for row_batch in all_rows(rows):
                values = of_keys(row_batch.keys)
                if len(values) < len(row_batch):
                    raise changed_error(self.urls[0])
                yield row_batch, values
            self._check(rows.rows)
            return
        self.keep()
        self.samples = rows.rows
        quiet = Account(lambda _: None)  # what is to be said of the shards was said when they were indexed
        with closing_upstream(reread := self._checked(self.read(quiet, reading))):
            all_values = chain.from_iterable(map(answers, reread))
            for row_batch in all_rows(rows):
                values = list(islice(all_values, len(row_batch)))
                if len(values) == len(row_batch):  # otherwise *again* has raised why
                    yield row_batch, values
            for _ in all_values:
                pass

    def gather(
        self,
        work: Work[Result],
        account: Account,
        *,
        max_workers: int,
        remote: bool = False,
    ) -> Tasks[Result]:
        """Yield the tasks of *work* over the samples, in order: see `workers.gather`.

        The samples can be read again afterwards, or were indexed before, and then may not have changed since. *account*
        is told of what is no sample.
        """
        from tartools.shards.workers import gather, gather_here

        is_repeated = self._rows is not None
        self.keep()
        if self._copies:  # which other processes can't open
            yield from gather_here(self.read(account), work)
        else:
            max_workers = min(self.max_workers, max_workers)
            yield from gather(self.urls, account, self.reading, work, max_workers=max_workers, remote=remote)
        if is_repeated:
            self._check()

    def counted_gather(self, work: Work[Result], *, remote: bool = False) -> Tasks[Result]:
        """Yield the tasks of *work* as `gather` does, with all samples counted but nothing reported."""
        from tartools.shards.workers import DEFAULT_WORKERS

        self.keep()
        silent = Account(lambda _: None)
        self.account.progress.phase = Phase("counting", account=silent)

        def counting(task: ShardTask[Result]) -> Iterable[bytes]:
            task.batches = counted(task.batches, silent)
            return work(task)

        return self.gather(counting, silent, max_workers=DEFAULT_WORKERS, remote=remote)

    def results(self, work: Callable[[Iterator[Batch]], Result]) -> list[Result]:
        """Return the results of *work* for the samples of each task, in order. Nothing is reported."""

        def work_on(task: ShardTask[Result]) -> Iterable[bytes]:
            task.result = work(task.batches)
            return ()

        with closing(self.counted_gather(work_on, remote=True)) as tasks:
            return [task.result for task in tasks]

    def count(self) -> int:
        """Return how many samples there are."""
        return self.rows().rows if self.lists else sum(self.results(lambda batches: sum(map(len, batches))))
