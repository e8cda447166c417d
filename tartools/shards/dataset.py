"""Shards and tables as one source: of samples, and of rows that list them where the output is a table.

What is read twice has the same samples both times: it is copied if it can be read only once, and its version is
compared if not.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, TypeVar

from tartools import storage
from tartools.errors import StorageError, UsageError
from tartools.samples.account import Account, Phase
from tartools.samples.sample import Batch, Sample
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
    from tartools.shards.workers import Work
    from tartools.storage.scratch import Copy
    from tartools.tables.inputs import RowInputs

Result = TypeVar("Result")
Answer = TypeVar("Answer")


class DataSet:
    """The samples of the shards and tables *urls*, read as *reading* says, by up to *most* workers where that pays.

    Once a `sink` is a table it *lists* them: then rows stand for samples in all that is passed on. *account* gets what
    is to be said of the samples, once.
    """

    def __init__(self, urls: Sequence[str], account: Account, reading: Reading, most: int) -> None:
        self.urls = urls
        self.account = account
        self.reading = reading
        self.most = most
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
        """Return what writes the shard *destination*, of samples or of those that rows list."""
        if not self.lists:
            return SampleWriter(destination)
        from tartools.shards.shardrows import RowWriter, listed_shards

        reading = self.reading._replace(ranges=True, listed=False)
        return RowWriter(destination, listed_shards(self.rows(), self.account, reading))

    @property
    def are_tables(self) -> bool:
        """Whether all are tables, by their names and their first bytes."""
        if not self.urls or not all(map(is_table_name, self.urls)):
            return False
        from tartools.storage.checks import looks
        from tartools.tables.schema import MAGIC

        return all(found.first == MAGIC for found in looks(self.urls).values())

    def rows(self) -> RowInputs:
        """Return the rows of the samples: of tables, and of shards, which are read and indexed the first time.

        Raises: see `shardrows.row_inputs`.
        """
        if self._rows is None:
            self.rows_apart([self.urls])
        assert self._rows is not None
        return self._rows

    def rows_apart(self, sources: Sequence[Sequence[str]]) -> list[range]:
        """As `rows`; return the numbers of those of each of *sources*, which are URLs, together those of all."""
        from tartools.shards import shardrows

        indexing = shardrows.Indexing(self.reading._replace(forks=False), self.most)
        self._rows, found = shardrows.row_inputs_apart(sources, self.account, indexing)
        return found

    def keep(self) -> None:
        """Let all be read again: copy what can be read only once, and note the versions of the others.

        Shows the copying in the account. Raises: StorageError.
        """
        if self._versions is not None:
            return
        from tartools.storage.checks import looks

        storage.check_inputs(self.urls)
        once = {at: url for at, url in enumerate(self.urls) if not storage.is_repeatable(url)}
        again = [Url(url) for url in self.urls if storage.is_seekable(url)]
        self._versions = {url: found.version for url, found in looks(again).items()}
        if once:
            from tartools.storage.scratch import Copy

            copying = Account()
            self.account.progress.phase = Phase("copying", account=copying)

            def count_copied(count: int) -> None:
                copying.bytes_in += count

            self._copies = {
                at: Copy(storage.open_read(url), url, self.reading.tmpdir, count_copied) for at, url in once.items()
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
        again = Account(lambda _: None)  # all has been said before
        if self._rows is not None:
            from tartools.shards.shardrows import samples_at

            batches = samples_at(self._rows, positions, again, self.reading._replace(forks=False))
            with closing_upstream(batches):
                yield from (sample.own() for sample in one_by_one(map(iter, batches)))
            return
        first, wanted = 0, iter(positions)
        position = next(wanted)
        with closing_upstream(batches := self.read(again, self.reading._replace(ranges=True))):
            for batch in batches:
                while position < first + len(batch):
                    yield batch[position - first].own()
                    position = next(wanted, -1)
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
        """Yield the samples in batches, or rows that list them, each with what *answers* says of them.

        They are read as *reading* says. For rows, shards are read again, unless *of_keys* says it of keys alone.
        Raises: StorageError if the samples have changed.
        """
        if not self.lists:
            with closing_upstream(batches := self._checked(self.read(reading=reading))):
                for batch in batches:
                    yield batch, answers(batch)
            return
        from tartools.shards.shardrows import all_rows
        from tartools.storage.checks import changed_since

        if of_keys is None:
            self.keep()
        rows = self.rows()
        if of_keys is not None and rows.have_keys:
            for each in all_rows(rows):
                said = of_keys(each.keys)
                if len(said) < len(each):
                    raise changed_since(self.urls[0])
                yield each, said
            self._check(rows.rows)
            return
        self.keep()
        self.samples = rows.rows
        quiet = Account(lambda _: None)  # what is to be said of the shards was said when they were indexed
        with closing_upstream(again := self._checked(self.read(quiet, reading))):
            found = chain.from_iterable(map(answers, again))
            for each in all_rows(rows):
                said = list(islice(found, len(each)))
                if len(said) == len(each):  # otherwise *again* has raised why
                    yield each, said
            for _ in found:
                pass

    def gather(
        self,
        work: Work[Result],
        collect: Callable[[Result], object],
        account: Account,
        *,
        most: int,
        remote: bool = False,
    ) -> Generator[bytes, None, None]:
        """Yield what *work* yields for the samples, in order, and *collect* its results: as `workers.gather`.

        The samples can be read again afterwards, or were indexed before, and then may not have changed since. *account*
        is told of what is no sample.
        """
        from tartools.shards.workers import gather

        again = self._rows is not None
        self.keep()
        if self._copies:  # which other processes can't open
            collect((yield from work(self.read(account), 0, False)))
        else:
            most = min(self.most, most)
            yield from gather(self.urls, account, self.reading, work, collect, most=most, remote=remote)
        if again:
            self._check()

    def counted_gather(
        self, work: Work[Result], collect: Callable[[Result], object] = lambda _: None, *, remote: bool = False
    ) -> Generator[bytes, None, None]:
        """As `gather`, for what is read to be counted, in silence."""
        from tartools.shards.workers import WORKERS

        self.keep()
        silent = Account(lambda _: None)
        self.account.progress.phase = Phase("counting", account=silent)

        def counting(batches: Iterator[Batch], number: int, forked: bool) -> Generator[bytes, None, Result]:
            return work(counted(batches, silent), number, forked)

        return self.gather(counting, collect, silent, most=WORKERS, remote=remote)

    def results(self, work: Callable[[Iterator[Batch]], Result]) -> list[Result]:
        """Return what *work* returns for the samples of each task, in order. They are counted in silence."""
        from tartools.shards.workers import to_the_end, without_output

        found: list[Result] = []
        to_the_end(self.counted_gather(without_output(work), found.append, remote=True))
        return found

    def count(self) -> int:
        """Return how many samples there are."""
        return self.rows().rows if self.lists else sum(self.results(lambda found: sum(map(len, found))))
