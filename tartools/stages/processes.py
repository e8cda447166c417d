"""Reading several local shards at once, each in a process of its own: as `parallel`, without threads.

A thread that decompresses beside one that parses waits for it most of the time; a process does not.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol

from tartools.account import Account
from tartools.errors import TarToolsError
from tartools.sample import Sample
from tartools.storage.scratch import scratch_file
from tartools.streams import Input

BATCH = 256  # samples that are taken from a shard before another one has its turn


class Process(Protocol):
    """What reads a shard."""

    @property
    def running(self) -> bool:
        """Tell whether it still does."""
        ...

    def ahead(self, hold: int | None = None, folder: str | None = None) -> bool:
        """Begin, if it is worth that, and hold so many bytes in memory and the others in *folder*; tell whether."""
        ...

    def fileno(self) -> int:
        """Return a descriptor that can be read when there is something to take."""
        ...


class Shard(Input, Protocol):
    """An open shard."""

    @property
    def forked(self) -> Process | None:
        """What reads it or may do so, if it is not plain."""
        ...


def read_ahead(
    urls: Sequence[str], opener: Callable[[str], Shard], most: int, memory: int, folder: str | None
) -> Iterator[Input]:
    """Yield the stream of each of *urls* in order, while up to *most* of them are being read.

    Holds: *memory* bytes of shards ahead, what is more in scratch files in *folder*; 4 MiB of a shard being taken.
    What *opener* raises is raised when its turn comes.
    """
    if folder is not None:
        scratch_file(folder).close()  # better now than in the middle
    hold = max(memory // max(most - 1, 1), 1)
    waiting = iter(urls)
    ahead: deque[Shard | TarToolsError] = deque()
    begun: list[Shard] = []
    try:
        while True:
            begun = [shard for shard in begun if _runs(shard)]
            while not ahead or (len(begun) < most and len(ahead) < most):
                if (url := next(waiting, None)) is None:
                    break
                try:
                    shard = opener(url)
                except TarToolsError as error:
                    ahead.append(error)
                    continue
                ahead.append(shard)
                if shard.forked is not None and shard.forked.ahead(hold, folder):
                    begun.append(shard)
            if not ahead:
                return
            first = ahead.popleft()
            if isinstance(first, TarToolsError):
                raise first
            yield first
    except BaseException:  # after a normal end, those that are still being taken close themselves
        _end(begun)
        raise


Reader = Callable[[str, Account, Input], Iterator[Sample]]
Open = tuple[Shard, Iterator[Sample]]


def as_they_come(
    urls: Sequence[str], opener: Callable[[str], Shard], reader: Reader, most: int, account: Account
) -> Iterator[Sample]:
    """Yield the samples of *urls* as they come from *most* shards that are being read, in no certain order.

    The samples of one shard keep their order. Holds: a pipe of 1 MiB and a read buffer a shard.
    Raises what *opener* and *reader* raise, after what was taken before.
    """
    waiting = iter(urls)
    open: list[Open] = []
    try:
        while True:
            while len(open) < most and (url := next(waiting, None)) is not None:
                shard = opener(url)
                if shard.forked is not None:
                    shard.forked.ahead()
                open.append((shard, reader(url, account, shard)))
            if not open:
                return
            for shard, samples in _ready(open):
                taken = 0
                for sample in islice(samples, BATCH):
                    taken += 1
                    yield sample
                if taken < BATCH:
                    open.remove((shard, samples))
    finally:
        for _, samples in open:
            samples.close()  # type: ignore[attr-defined]  # a generator, which closes its shard if it has begun
        _end([shard for shard, _ in open])


def _ready(open: list[Open]) -> list[Open]:
    """Return those of *open* from which something can be taken; waits until there are some."""
    ready = [pair for pair in open if not _runs(pair[0])]
    poll = select.poll()
    waiting: dict[int, Open] = {}
    for pair in open:
        if (process := pair[0].forked) is not None and process.running:
            waiting[process.fileno()] = pair
            poll.register(process.fileno(), select.POLLIN)
    return ready + [waiting[fd] for fd, _ in poll.poll(0 if ready else None)]


def _runs(shard: Shard) -> bool:
    return shard.forked is not None and shard.forked.running


def _end(shards: Iterable[Shard]) -> None:
    """Close those of *shards* that are still being read."""
    for shard in shards:
        if _runs(shard):
            shard.close()
