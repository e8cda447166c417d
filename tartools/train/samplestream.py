"""`samples`: shards and tables to dicts, as webdataset makes them, each sample for one worker of one rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from random import Random
from typing import Any

from torch.utils.data import IterableDataset

from tartools.samples.account import Account
from tartools.shards.reading import check_shards
from tartools.storage.expand import expand
from tartools.storage.url import Name, names_of
from tartools.train import slices
from tartools.train.ranks import ReaderId, SharedEpoch, this_rank
from tartools.train.slicereader import NumberedSlices, SliceReader, numbered
from tartools.train.slices import ShardSlice


def samples(urls: Name | Iterable[Name], shuffle: bool = False, seed: int = 0, resampled: bool = False) -> SampleStream:
    """Return the samples of shards or tables as the first stage of a pipeline of webdataset.

        wds.DataPipeline(tartools.train.samples("train-{000..147}.tar"), wds.decode("pil"), wds.to_tuple("jpg", "cls"))

    Each is a dict of `__key__`, `__url__`, and its fields as bytes. *urls* are as for `tartools.read`. All local files
    are checked before this returns.

    Each sample comes once an epoch, whatever the number of workers and ranks: shards are dealt to them, and cut where
    there are few of them. Ranks are those of torch.distributed, or else RANK and WORLD_SIZE in the environment. With
    *shuffle*, shards come in an order that follows from *seed* and the epoch: call `set_epoch` before each epoch, as
    for torch's DistributedSampler. *resampled*: shards are drawn at random, without an end, by each worker for itself.

    Holds: one read buffer of 1 MiB. Raises: StorageError and TarFormatError, with URL and byte offset, after the
    samples before the damage, in the process that trains.
    """
    return SampleStream(urls, shuffle, seed, resampled)


class SampleStream(IterableDataset[dict[str, Any]]):
    """What `samples` returns."""

    def __init__(
        self, urls: Name | Iterable[Name], shuffle: bool, seed: int, resampled: bool, checked: bool = True
    ) -> None:
        self.urls = [*expand(names)] if (names := [*filter(None, names_of(urls))]) else []
        if not self.urls:
            raise ValueError("there are no shards to read")
        if checked:
            check_shards(self.urls, Account())
        self.shuffled, self.seed, self.resampled = shuffle, seed, resampled
        self.epoch = SharedEpoch()
        self._rank: tuple[int, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A process that is started for a worker doesn't know the rank."""
        return self.__dict__ | {"_rank": self._rank or this_rank()}

    def set_epoch(self, epoch: int) -> None:
        """Make *epoch* the number of the next epoch, counted from 0, also for workers that are there already."""
        self.epoch.number = epoch

    def be_read_by_all_ranks(self) -> None:
        """Let each rank read all samples."""
        self._rank = 0, 1

    @cached_property
    def identities(self) -> list[str]:
        """What tells each of the shards from another of its name: see `slices.shard_identity`."""
        return [*map(slices.shard_identity, self.urls)]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(SliceReader(self.urls, self.slices((self.epoch.number, 0), self.reader())))

    def reader(self) -> ReaderId:
        """Return which reader this process is."""
        return ReaderId.of_this(self._rank)

    def slices(self, epoch: tuple[int, int], reader: ReaderId) -> NumberedSlices:
        """Return what *reader* reads in *epoch*, its number and that of the repetition in it."""
        if self.resampled:
            count, name = len(self.urls), f"resampled {self.seed} {epoch} {reader}"
            return lambda number: ShardSlice(Random(f"{name} {number}").randrange(count))
        return numbered(self.dealt(epoch, reader))

    def dealt(self, epoch: tuple[int, int], reader: ReaderId) -> list[ShardSlice]:
        """Return all that *reader* reads in *epoch*, if shards are not resampled."""
        order = [*map(ShardSlice, range(len(self.urls)))]
        if self.shuffled:
            Random(f"shards {self.seed} {epoch}").shuffle(order)
        return slices.deal(order, reader)
