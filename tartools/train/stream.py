"""`samples`: shards and tables to dicts, as webdataset makes them, each sample for one worker of one rank."""

from __future__ import annotations

import io
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

from torch.utils.data import IterableDataset

from tartools.errors import StorageError, TarFormatError
from tartools.samples.account import Account
from tartools.samples.sample import Batch, field_name
from tartools.shards.reading import Reading, check_shards, shard_batches
from tartools.shards.stream import ShardStream
from tartools.storage import files, is_repeatable
from tartools.storage.names.expand import expand
from tartools.storage.url import Url
from tartools.tables.reading import row_batches
from tartools.tar.member import VIEWED, Chunk, Member, read_range
from tartools.train import dealing
from tartools.train.dealing import Borders, Part, Place
from tartools.train.epochs import Epochs
from tartools.train.fields import KEY, URL, as_dict
from tartools.train.ranks import this_rank

Numbered = Callable[[int], Part | None]  # gives the part that is read n-th, None behind the last


def samples(urls: str | Sequence[str], shuffle: bool = False, seed: int = 0, resampled: bool = False) -> Samples:
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


class Position(NamedTuple):
    """Where a reader is: at part *number*, of which it has had so many samples.

    If *offset* is given, a sample begins at this byte of the shard, and *skip* of those from there on were had.
    """

    number: int = 0
    had: int = 0
    offset: int | None = None
    skip: int = 0


class Samples(IterableDataset[dict[str, Any]]):
    """What `samples` returns."""

    def __init__(self, urls: str | Sequence[str], shuffle: bool, seed: int, resampled: bool) -> None:
        self.urls = [*expand([urls] if isinstance(urls, str) else list(urls))] if urls else []
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
        """Let the next epoch be number *epoch*, from 0 on."""
        self.epochs.set(epoch)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(Reader(self.urls, self.parts((self.epochs.take(), 0), self.place())))

    def place(self) -> Place:
        """Return which reader this process is."""
        return dealing.place_of(*(self._rank or this_rank()))

    def parts(self, epoch: tuple[int, int], place: Place) -> Numbered:
        """Return what the reader *place* reads in *epoch*, its number and that of the repetition in it."""
        if self.resampled:
            count, name = len(self.urls), f"resampled {self.seed} {epoch} {place}"
            return lambda number: Part(Random(f"{name} {number}").randrange(count), 0, 1)
        order = list(range(len(self.urls)))
        if self.shuffled:
            Random(f"shards {self.seed} {epoch}").shuffle(order)
        dealt = dealing.deal(order, place)
        return lambda number: dealt[number] if number < len(dealt) else None


class Reader:
    """An iterator of the samples of the parts that *numbered* gives, from *start* on; `position` is where it is.

    With *wanted*, only these fields are read.
    """

    def __init__(
        self,
        urls: Sequence[str],
        numbered: Numbered,
        start: Position | None = None,
        wanted: Container[str] | None = None,
    ) -> None:
        self._urls = urls
        self._numbered = numbered
        self._start = start or Position()
        self._wanted = wanted
        self._number, self._count, _, _ = self._start
        self._anchor = self._start.offset, self._count - self._start.skip  # where a batch began, samples before it
        self._begun = self._iterated()

    def position(self) -> Position:
        """Return where this is."""
        offset, before = self._anchor
        return Position(self._number, self._count, offset, self._count - before if offset is not None else 0)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._begun

    def _iterated(self) -> Iterator[dict[str, Any]]:
        account, resumed = Account(), self._start if self._count else None
        while (part := self._numbered(self._number)) is not None:
            url = self._urls[part.shard]
            borders = dealing.borders(url, part)
            if borders is not None:
                batches, skip = _from(url, borders, resumed, account)
                with closing(batches):
                    for batch in batches:
                        if skip >= len(batch):
                            skip -= len(batch)
                            continue
                        self._note(batch, skip)
                        for sample in dicts(batch, skip, self._wanted):
                            self._count += 1
                            yield sample
                        skip = 0
                account.check()
            resumed = None
            self._number, self._count, self._anchor = self._number + 1, 0, (None, 0)

    def _note(self, batch: Batch, skip: int) -> None:
        """Note where *batch* begins, of which *skip* samples were had before, if that is known."""
        groups = batch.groups
        if batch.offset is not None:
            self._anchor = batch.offset, self._count - skip
        elif groups is not None and isinstance(groups.source, io.FileIO):
            self._anchor = groups.starts[0], self._count - skip
        elif groups is not None and isinstance(groups.source, Chunk):
            self._anchor = groups.source.base + groups.starts[0], self._count - skip


def _from(url: str, borders: Borders, resumed: Position | None, account: Account) -> tuple[Any, int]:
    """Return the batches of the part *borders* of the shard *url*, and how many samples of them to skip.

    If *resumed* is given, as many as it has had are left out, by skipping bytes where that is possible.
    """
    count = resumed.had if resumed else 0
    if borders.end is not None:
        return row_batches(url, range(borders.begin + count, borders.end), account), 0
    if resumed is None or resumed.offset is None or not is_repeatable(url) or Url(url).read_command:
        return part_batches(url, borders, account), count
    with closing(files.reading(url)) as file:
        if not dealing.can_be_cut(url, file) or file.seek(0) or file.read(4) == b"PAR1":
            return part_batches(url, borders, account), count
    return part_batches(url, borders._replace(begin=resumed.offset), account), resumed.skip


def part_batches(url: str, borders: Borders, account: Account) -> Iterator[Batch]:
    """Yield the samples of the part *borders* of the shard *url*.

    Raises: TarFormatError, also if no sample begins at its end.
    """
    begin, cut, _ = borders
    until = None if cut is None else cut.offset
    stream: Any = None
    if begin and Url(url).is_local:
        stream = ShardStream(url, account)
        stream.start_at(begin)
    elif begin:
        stream = _Ranged(url, begin)
    last = b""
    try:
        for batch in shard_batches(url, account, Reading(), stream, begin=begin, until=until):
            yield batch
            last = batch.keys[-1]
    except TarFormatError as error:
        if until is None or error.offset != until:
            raise
        raise _wrong_cut(url, until) from error
    if cut is not None and last in (b"", cut.key):
        raise _wrong_cut(url, cut.offset)


def _wrong_cut(url: str, offset: int) -> StorageError:
    return StorageError(
        "no sample begins here, though it looks like it (an archive in a payload?), so workers can't share this shard: "
        "train from its table, which tarindex makes",
        url=url,
        offset=offset,
    )


class _Ranged:
    """The bytes of the object *url* from *begin* on, as a stream."""

    file: io.FileIO | None = None
    start = 0

    def __init__(self, url: str, begin: int) -> None:
        self._file = files.reading(url)
        self._file.seek(begin)

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes; 0 at the end."""
        return self._file.readinto1(view)

    def cancel(self) -> bool:
        """No other thread reads this."""
        return False

    def close(self) -> None:
        """Stop reading."""
        self._file.close()


_names: dict[bytes, str] = {}  # fields that were seen, by their bytes


def _name(field: bytes, member: Member) -> str:
    """Return the name of *field* in a dict; it is remembered."""
    name = field_name(Member._make(member)).lower()
    if len(_names) < 1000:
        _names[field] = name
    return name


def dicts(batch: Batch, first: int = 0, wanted: Container[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the samples of *batch* from number *first* on as `fields.as_dict` does; if given, only fields *wanted*."""
    groups = batch.groups
    if groups is None or groups.members is None:
        for number in range(first, len(batch)):
            yield as_dict(batch[number])
        return
    shards, members, firsts = batch.shards, groups.members, [*groups.firsts, len(groups.members)]
    known, url = _names.get, shards[0]
    for number, (low, high) in enumerate(pairwise(firsts[first:]), first):
        key = groups.keys[number]
        if len(shards) > 1:
            url = shards[number]
        behind = len(key) + 1
        sample: dict[str, Any] = {KEY: key.decode("utf-8", "surrogateescape"), URL: url}
        for member in members[low:high]:
            path, source, _, data, size, _ = member
            field = path[behind:]
            name = known(field) or _name(field, member)
            if name in sample:
                as_dict(batch[number])  # raises
            if wanted is not None and name not in wanted:
                continue
            if size < VIEWED and type(source) is Chunk:
                sample[name] = bytes(source[data : data + size])
            else:
                sample[name] = read_range(source, data, data + size)
        yield sample
