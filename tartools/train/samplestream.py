"""`samples`: shards and tables to dicts, as webdataset makes them, each sample for one worker of one rank."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from functools import cached_property
from random import Random
from typing import Any

from torch.utils.data import IterableDataset

from tartools import storage
from tartools.samples.account import Account
from tartools.shards.reading import check_shards
from tartools.storage.expand import expand
from tartools.storage.outputformats import is_table_name
from tartools.storage.url import Name, names_of
from tartools.train import slices
from tartools.train.cursor import ShardSlice
from tartools.train.ranks import ReaderId, ReaderRank, SharedEpoch, SingleResume
from tartools.train.slices import NumberedSlices, SliceReader, by_number
from tartools.train.workererrors import guard_worker

MAX_SHARE_RATIO = 1.5  # of the largest share of a rank to the smallest; above, a warning
MAX_COMPARED_SHARDS = 10_000  # whose sizes are looked at for that


def samples(urls: Name | Iterable[Name], shuffle: bool = False, seed: int = 0, resampled: bool = False) -> SampleStream:
    """Return the samples of shards or tables as the first stage of a pipeline of webdataset.

        wds.DataPipeline(tartools.train.samples("train-{000..147}.tar"), wds.decode("pil"), wds.to_tuple("jpg", "cls"))

    Each is a dict of `__key__`, `__url__`, and its fields as bytes. *urls*: a name, or several, of shards and tables;
    braces and wildcards expand. All local files are checked before this returns. Each sample comes once an epoch
    (unless *resampled*), whatever the number of workers and ranks: shards are dealt to them, and cut where they are
    few. Ranks are those of torch.distributed, or else RANK and WORLD_SIZE in the environment. With *shuffle*,
    shards come in an order that follows from *seed* and the epoch: each iteration is the next epoch, unless `set_epoch`
    says otherwise.
    *resampled*: shards are drawn at random, without an end, by each worker for itself.

    Holds: one read buffer of 1 MiB. Raises: ValueError without a name; UsageError for a name that is no input or has a
    password; StorageError for a local file that can't be read, and a wildcard without a match. While it is iterated
    over: StorageError and TarFormatError, with URL and byte offset, after the samples before the damage, in the process
    that trains; SampleError for fields that differ only in case, or begin with two underscores.
    """
    return SampleStream(urls, shuffle, seed, resampled)


class SampleStream(IterableDataset[dict[str, Any]]):
    """A stream of the samples of shards and tables as dicts, which `samples` makes; each iteration is an epoch.

    `urls`: of the shards and tables, expanded; `shuffled`: the shards come in an order by `seed` and epoch
    `resampled`: shards are drawn at random, without an end
    `last_dot`: keys end at the last dot of names, dots before it become underscores: a.2.jpg has the key a_2
    `epoch`, `rank`, `resume`: the `SharedEpoch`, `ReaderRank` and `SingleResume`, which workers share
    *check*: check local shards now. Raises: ValueError without shards; StorageError if a checked one can't be read,
    or a wildcard has no match; UsageError for a URL that holds credentials, and a checked one that names no input.
    """

    def __init__(
        self,
        urls: Name | Iterable[Name],
        shuffle: bool,
        seed: int,
        resampled: bool,
        check: bool = True,
        last_dot: bool = False,
    ) -> None:
        self.urls = [*expand(names)] if (names := [*filter(None, names_of(urls))]) else []
        if not self.urls:
            raise ValueError("there are no shards to read")
        if check:
            check_shards(self.urls, Account())
        self.shuffled, self.seed, self.resampled, self.last_dot = shuffle, seed, resampled, last_dot
        self.epoch, self.rank, self.resume = SharedEpoch(), ReaderRank(), SingleResume()

    def set_epoch(self, epoch: int) -> None:
        """Make *epoch* the number of the next epoch, counted from 0, also for workers that are there already."""
        self.epoch.number = epoch

    @cached_property
    def identities(self) -> list[str]:
        """The fingerprints of `urls`, in order: size of a local shard as text, SHA-256 of a local table in hex, or "".

        They are computed once. Raises: StorageError if a local table can't be read.
        """
        return [*map(slices.shard_identity, self.urls)]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        guard_worker()
        number = self.epoch.begin()
        slice_at = self.slices((number, 0), self.rank.reader())
        return iter(SliceReader(self.urls, slice_at, last_dot=self.last_dot))

    def slices(self, epoch: tuple[int, int], reader: ReaderId) -> NumberedSlices:
        """Return a function: n -> slice that *reader* reads n-th, from 0 on; None behind the last.

        If the stream is `resampled`, there is no last one. *epoch*: (epoch, repetition in it).
        """
        if self.resampled:
            count, name = len(self.urls), f"resampled {self.seed} {epoch} {reader}"
            return lambda number: ShardSlice(Random(f"{name} {number}").randrange(count))
        return by_number(self.assign_slices(epoch, reader))

    def assign_slices(self, epoch: tuple[int, int], reader: ReaderId) -> list[ShardSlice]:
        """Return the slices that *reader* reads in *epoch*, in order; for streams that are not `resampled`.

        *epoch*: (epoch, repetition in it).
        """
        order = [*map(ShardSlice, range(len(self.urls)))]
        if self.shuffled:
            Random(f"shards {self.seed} {epoch}").shuffle(order)
        return slices.assign(order, reader)


def warn_of_unequal_ranks(source: SampleStream, readers: int) -> None:
    """Warn if the largest share of a rank of *source* has MAX_SHARE_RATIO times as many bytes as the smallest, or more.

    *readers*: number of readers of all ranks. Shares are estimates, of epoch 0. Compares nothing for one rank, for
    tables mixed with shards, whose bytes differ, or for more than MAX_COMPARED_SHARDS; if one is no regular local file,
    all count as equally large. Raises: StorageError if a local shard can't be read.
    """
    urls, ranks = source.urls, source.rank.rank_and_size()[1]
    if ranks == 1 or len(urls) > MAX_COMPARED_SHARDS or len({*map(is_table_name, urls)}) > 1:
        return
    plain_sizes = [*map(storage.plain_size, urls)]
    sizes = [1 if None in plain_sizes else size or 0 for size in plain_sizes]
    shares = [0.0] * ranks
    for number in range(readers):
        shares[number % ranks] += slices.estimate_share(
            urls, sizes, source.assign_slices((0, 0), ReaderId(number, readers))
        )
    low, high = min(shares), max(shares)
    if high > 0 and high >= MAX_SHARE_RATIO * low:
        warnings.warn(
            f"rank {shares.index(low)} gets about {low / high:.0%} of the share of rank {shares.index(high)}, and "
            "ranks that wait for each other stop with the smallest share: unpack compressed shards, make more and "
            "smaller ones (tarsplit), give all ranks equally many by with_epoch(n), or train from the table of the "
            "shards by tartools.train.loader",
            stacklevel=2,
        )
