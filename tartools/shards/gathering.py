"""Work on all samples of the input, whose results are gathered in order: in several processes where that pays.

For commands that make something small of every sample.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

from tartools import storage
from tartools.samples.account import Account
from tartools.samples.sample import Batch
from tartools.shards.reading import Reading, check_shards, one_by_one, shard_batches

if TYPE_CHECKING:
    from tartools.shards.workers import Work

WORKERS = 4  # by default; more would wait for this process, which gathers what they make
MUCH = 256 << 20  # bytes; a shard above this may be worth an import before workers start
SMALL = 64 << 20  # bytes of input; it takes longer to start workers than to read less

Result = TypeVar("Result")


def gather(
    urls: Sequence[str],
    account: Account,
    reading: Reading,
    work: Work[Result],
    collect: Callable[[Result], object],
    *,
    most: int,
    remote: bool = False,
    plain: bool = False,
) -> Generator[bytes, None, None]:
    """Yield what *work* yields for the samples of *urls*, in order; call *collect* with each result that it returns.

    All local files are checked before this returns a generator. There are up to *most* workers at a time. With
    *remote*, they read remote shards too: only for work that yields nothing. With *plain*, they do not read compressed
    shards.

    *work* is called for each task: with its samples, which it counts in *account*, its number from 0 on, and whether
    this is in a worker. There its result is pickled, and if it raises anything but a failure of a server, it is
    called again in this process.

    Holds 1 MiB, and each worker up to 64 MiB of output. Raises what `read_samples` raises.
    """
    size = check_shards(urls, account)
    if most == 1 or (size is not None and size < SMALL):
        return _in_this_process(urls, account, reading, work, collect)
    from tartools.shards import workers

    if urls and (storage.plain_size(urls[0]) or 0) > MUCH:
        _prepare(urls[0])
    return workers.Gathering(urls, account, reading, work, workers.Sharing(most, remote, plain)).run(size, collect)


def _prepare(url: str) -> None:
    """Import numpy, so that not each worker does, if the shard *url* is of small members."""
    with closing(storage.open_read(url)) as stream:
        if stream.file is not None:
            from tartools.tar import reader, runs

            if reader.is_dense(stream.file, 0):
                runs.imported()


def _in_this_process(
    urls: Sequence[str],
    account: Account,
    reading: Reading,
    work: Work[Result],
    collect: Callable[[Result], object],
) -> Generator[bytes, None, None]:
    batches = one_by_one(shard_batches(url, account, reading) for url in urls)
    collect((yield from work(batches, 0, False)))


def without_output(work: Callable[[Iterator[Batch]], Result]) -> Work[Result]:
    """Return *work*, which only has a result, as `gather` calls it; `to_the_end` takes what that returns."""

    def found(batches: Iterator[Batch], _number: int, _forked: bool) -> Generator[bytes, None, Result]:
        yield from ()
        return work(batches)

    return found


def to_the_end(outputs: Generator[bytes, None, None]) -> None:
    """Take all of *outputs*, of which there are none, so that the results are collected."""
    with closing(outputs):
        for _ in outputs:
            pass
