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
from tartools.train import dealing, same
from tartools.train.dealing import Part, Place
from tartools.train.epochs import Epochs
from tartools.train.ranks import this_rank
from tartools.train.reader import Numbered, Reader, numbered


def samples(urls: Name | Iterable[Name], shuffle: bool = False, seed: int = 0, resampled: bool = False) -> Samples:
    """Return the samples of shards or tables as the first stage of a pipeline of webdataset.

        wds.DataPipeline(tartools.train.samples("train-{000..147}.tar"), wds.decode("pil"), wds.to_tuple("jpg", "cls"))

    Each is a dict of `__key__`, `__url__`, and its fields as bytes. *urls* are as for `tartools.read`. All local files
    are checked before this returns.

    Each sample comes once an epoch, whatever the number of workers and ranks: shards are dealt to them, and cut where
    there are few of them. Ranks are those of torch.distributed, or else RANK and WORLD_SIZE in the environment.
    With *shuffle*, shards come in another order in each epoch, which follows from *seed*; epochs are counted, or
    `set_epoch` says which is next. *resampled*: shards are drawn at random, without an end, by each worker for itself.

    Holds: one read buffer of 1 MiB. Raises: StorageError and TarFormatError, with URL and byte offset, after the
    samples before the damage, in the process that trains.
    """
    return Samples(urls, shuffle, seed, resampled)


class Samples(IterableDataset[dict[str, Any]]):
    """What `samples` returns."""

    def __init__(self, urls: Name | Iterable[Name], shuffle: bool, seed: int, resampled: bool) -> None:
        self.urls = [*expand(names)] if (names := [*filter(None, names_of(urls))]) else []
        if not self.urls:
            raise ValueError("there are no shards to read")
        check_shards(self.urls, Account())
        self.shuffled, self.seed, self.resampled = shuffle, seed, resampled
        self.epochs = Epochs()
        self._rank: tuple[int, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A process that is started for a worker doesn't know the rank."""
        return self.__dict__ | {"_rank": self._rank or this_rank()}

    def set_epoch(self, epoch: int) -> None:
        """Make *epoch* the number of the next epoch, counted from 0."""
        self.epochs.set(epoch)

    @cached_property
    def known(self) -> list[str]:
        """What tells each of the shards from another of its name: see `same.known`."""
        return [*map(same.known, self.urls)]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(Reader(self.urls, self.parts((self.epochs.take(), 0), self.place())))

    def place(self) -> Place:
        """Return which reader this process is."""
        return dealing.place_of(*(self._rank or this_rank()))

    def parts(self, epoch: tuple[int, int], place: Place) -> Numbered:
        """Return what the reader *place* reads in *epoch*, its number and that of the repetition in it."""
        if self.resampled:
            count, name = len(self.urls), f"resampled {self.seed} {epoch} {place}"
            return lambda number: Part(Random(f"{name} {number}").randrange(count))
        return numbered(self.dealt(epoch, place))

    def dealt(self, epoch: tuple[int, int], place: Place) -> list[Part]:
        """Return all parts that the reader *place* reads in *epoch*, if shards are not resampled."""
        order = [*map(Part, range(len(self.urls)))]
        if self.shuffled:
            Random(f"shards {self.seed} {epoch}").shuffle(order)
        return dealing.deal(order, place)
