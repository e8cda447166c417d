"""How tarsplit reads its inputs twice: to count samples, and then to write them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import NoReturn, TypeVar

from tartools import cli, storage
from tartools.errors import SampleError
from tartools.samples.account import Account, Phase
from tartools.samples.sample import Batch
from tartools.shards.gathering import WORKERS, gather
from tartools.shards.reading import Reading, check_shards, counted, one_by_one, shard_batches
from tartools.shards.stream import ShardStream
from tartools.storage.copies import Copy

Result = TypeVar("Result")
Work = Callable[[Iterator[Batch], int, bool], Generator[bytes, None, Result]]


class Twice:
    """The shards *urls*, to be read more than once, as *reading* says.

    Those that can be read only once are copied to the temporary directory of *reading*. Shows that in *account*.
    Raises: StorageError.
    """

    def __init__(self, urls: Sequence[str], reading: Reading, account: Account) -> None:
        storage.check_inputs(urls)
        self._urls = urls
        self._reading = reading
        self._account = account
        copying = Account()
        account.phase = Phase("copying", account=copying)

        def count_copied(count: int) -> None:
            copying.bytes_in += count

        once = {at: url for at, url in enumerate(urls) if not storage.is_repeatable(url)}
        self._copies = {at: Copy(url, reading.tmpdir, count_copied) for at, url in once.items()}

    def batches(self, account: Account) -> Iterator[Batch]:
        """Return all samples, in batches. Whoever takes them counts them."""
        check_shards(self._urls, account)
        return one_by_one(self._shard(at, url, account) for at, url in enumerate(self._urls))

    def _shard(self, at: int, url: str, account: Account) -> Iterator[Batch]:
        copied = self._copies[at].open() if at in self._copies else None
        stream = ShardStream(url, account, self._reading.forks, copied)
        return shard_batches(url, account, self._reading, stream)

    def gathered(
        self, work: Work[Result], collect: Callable[[Result], object], *, remote: bool = False
    ) -> Generator[bytes, None, None]:
        """Yield what *work* yields for the samples, in order, and *collect* its results: as `gathering.gather`."""
        silent = Account(lambda _: None)
        self._account.phase = Phase("counting", account=silent)

        def counting(batches: Iterator[Batch], number: int, forked: bool) -> Generator[bytes, None, Result]:
            return work(counted(batches, silent), number, forked)

        if self._copies:  # other processes could not open these
            collect((yield from counting(self.batches(silent), 0, False)))
            return
        most = min(cli.workers(0), WORKERS)
        yield from gather(self._urls, silent, self._reading, counting, collect, most=most, remote=remote)

    def results(self, work: Callable[[Iterator[Batch]], Result]) -> list[Result]:
        """Return what *work* returns for the samples of each task, in order."""

        def without_output(batches: Iterator[Batch], _number: int, _forked: bool) -> Generator[bytes, None, Result]:
            yield from ()
            return work(batches)

        found: list[Result] = []
        with closing(self.gathered(without_output, found.append, remote=True)) as outputs:
            for _ in outputs:
                pass
        return found


def even_counts(urls: Sequence[str], shards: int, reading: Reading, account: Account) -> tuple[Spread, Iterator[Batch]]:
    """Return how many samples each of *shards* shards gets, and the samples: *urls* are read again for them.

    Raises StorageError; SampleError if there are too few samples.
    """
    inputs = Twice(urls, reading, account)
    total = sum(inputs.results(lambda found: sum(map(len, found))))
    account.phase = Phase("writing", total, lambda: account.samples_out)
    return evenly(total, shards), inputs.batches(account)


def evenly(count: int, shards: int, part: str = "") -> Spread:
    """Return *count* samples, of *part* if there are parts, spread over *shards* shards.

    Raises SampleError if they are too few.
    """
    if count < shards:
        of = f" of {part!r}" if part else ""
        raise SampleError(f"{count} samples{of} are too few for {shards} shards")
    return Spread(count, shards)


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
