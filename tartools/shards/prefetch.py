"""Several shards read at once: in order, by reading ahead, or as their samples come. For commands only.

Local files are read by forked processes: a thread that decompresses beside one that parses mostly waits for the
interpreter. As soon as one input is remote, a command or stdin, all are read by threads, which mostly wait for data.
"""

from __future__ import annotations

import select
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Protocol, TypeVar

from tartools import storage
from tartools.errors import TarFormatError, TarToolsError
from tartools.samples.account import Account, FirstKeys
from tartools.samples.sample import Batch
from tartools.shards.reading import Found, Reading, batches_of, first_keys, read_parts
from tartools.shards.stream import ShardStream
from tartools.shards.threads import ThreadedBytes, ThreadedParts, wait_for_parts
from tartools.storage.scratch import scratch_file


class AheadShard(Protocol):
    """A shard that a thread or a forked process reads, maybe before its turn.

    *parts* are what it holds: see `reading.read_parts`. They raise what opening or reading it raises.
    """

    url: str
    first: FirstKeys
    parts: Generator[list[Found], None, None]

    @property
    def busy(self) -> bool:
        """Whether a thread or process reads it."""
        ...

    def cancel(self) -> object:
        """Stop reading soon."""
        ...

    def close(self) -> None:
        """Stop reading, and wait for whoever reads it."""
        ...


Shard = TypeVar("Shard", bound=AheadShard)


def read_ahead(
    urls: Sequence[str], account: Account, reading: Reading, most: int, memory: int
) -> Generator[Iterator[Batch], None, None]:
    """Yield the samples of each of *urls* in order, while up to *most* of them are being read. Who takes them counts.

    Holds *memory* bytes of shards ahead, those beyond in unlinked files; 4 MiB of each shard being parsed.
    What opening or reading a shard raises is raised when its turn comes.
    """
    if reading.tmpdir is not None:
        scratch_file(reading.tmpdir).close()  # to fail now, not in the middle
    start = _starter(urls, account, reading, max(memory // max(most - 1, 1), 1))
    waiting = iter(urls)
    ahead: deque[AheadShard] = deque()
    busy: list[AheadShard] = []
    try:
        while True:
            busy = [shard for shard in busy if shard.busy]
            while not ahead or (len(busy) < most and len(ahead) < most):
                if (url := next(waiting, None)) is None:
                    break
                ahead.append(start(url))
                if ahead[-1].busy:
                    busy.append(ahead[-1])
            if not ahead:
                return
            yield _batches(ahead.popleft(), account, reading)
    except BaseException:  # after a normal end, the shards that are still being parsed are closed by their parsers
        _close(busy)
        raise


def _starter(urls: Sequence[str], account: Account, reading: Reading, memory: int) -> Callable[[str], AheadShard]:
    """Return the function that starts to read a shard ahead."""
    if _are_files(urls):
        return lambda url: ForkedShard(url, account, reading, memory)
    changed = threading.Condition()
    return lambda url: ThreadedBytes(url, account, reading, changed, memory)


def _are_files(urls: Sequence[str]) -> bool:
    """Tell whether forked processes can read all of *urls*: they are regular local files."""
    return all(storage.plain_size(url) is not None for url in urls)


def _batches(shard: AheadShard, account: Account, reading: Reading) -> Iterator[Batch]:
    """Yield the samples of *shard*, and close it."""
    with closing(shard):
        while (parts := _next_parts(shard, account)) is not None:
            yield from batches_of(parts, shard.url, account, reading, shard.first)
    account.shards_done += 1


def _next_parts(shard: AheadShard, account: Account) -> list[Found] | None:
    """Return the next parts of *shard*; None at its end."""
    try:
        return next(shard.parts, None)
    except TarFormatError:
        account.check()  # what looks like damage may be two versions of a file
        raise


def as_they_come(
    urls: Sequence[str], account: Account, reading: Reading, most: int
) -> Generator[Iterator[Batch], None, None]:
    """Yield, in one iterator, the samples of *urls* as they come from *most* shards that are read at once.

    The samples of one shard keep their order. Whoever takes them counts them.
    Holds 4 MiB of each of these shards. Raises what reading a shard raises, after its samples before that point.
    """
    changed = threading.Condition()
    if _are_files(urls):
        merged = _merged(urls, lambda url: ForkedShard(url, account, reading), _wait_for_data, most, account)
    else:
        wait = partial(wait_for_parts, changed)
        merged = _merged(urls, lambda url: ThreadedParts(url, account, reading, changed), wait, most, account)

    def batches() -> Iterator[Batch]:
        for shard, parts in merged:
            yield from batches_of(parts, shard.url, account, reading, shard.first)

    with closing(merged):
        yield batches()


def _merged(
    urls: Sequence[str],
    start: Callable[[str], Shard],
    wait: Callable[[list[Shard]], list[Shard]],
    most: int,
    account: Account,
) -> Generator[tuple[AheadShard, list[Found]], None, None]:
    """Yield the parts of *urls* as they come, each list with its shard.

    *start* starts to read a shard, *wait* waits until some of those that are being read have parts, or have ended.
    """
    waiting = iter(urls)
    open: list[Shard] = []
    try:
        while True:
            while len(open) < most and (url := next(waiting, None)) is not None:
                open.append(start(url))
            if not open:
                return
            for shard in wait(list(open)):
                parts = _next_parts(shard, account)
                if parts is not None:
                    yield shard, parts
                else:
                    open.remove(shard)
                    shard.close()
                    account.shards_done += 1
    finally:
        _close(open)


def _close(shards: Sequence[AheadShard]) -> None:
    """Stop reading *shards*; cancel all before waiting for any."""
    for shard in shards:
        shard.cancel()
    for shard in shards:
        shard.close()


class ForkedShard:
    """The shard *url*, read by a forked process if it is compressed and large enough, else when it is parsed.

    The process holds *memory* bytes, those beyond in a scratch file; without *memory* only a pipe of 1 MiB.
    """

    def __init__(self, url: str, account: Account, reading: Reading, memory: int | None = None) -> None:
        self.url = url
        self.first = first_keys(url, account, reading)
        self.parts = self._parse(reading)
        self._failure: TarToolsError | None = None
        self._stream: ShardStream | None = None
        try:
            self._stream = ShardStream(url, account, forks=True)
        except TarToolsError as error:
            self._failure = error
        if self._stream is not None and self._stream.forked is not None:
            self._stream.forked.start_ahead(memory, reading.tmpdir)

    @property
    def busy(self) -> bool:
        """Return whether a process reads it."""
        return self.descriptor is not None

    @property
    def descriptor(self) -> int | None:
        """What is readable when the process has written something; None without a process."""
        forked = self._stream.forked if self._stream is not None else None
        return forked.fileno() if forked is not None and forked.running else None

    def _parse(self, reading: Reading) -> Generator[list[Found], None, None]:
        if self._failure is not None:
            raise self._failure
        assert self._stream is not None
        for part in read_parts(self.url, self._stream, reading):
            yield [part]

    def cancel(self) -> None:
        """Do nothing: `close` kills the process, which takes no time."""

    def close(self) -> None:
        """Stop reading."""
        self.parts.close()
        if self._stream is not None:
            self._stream.close()


def _wait_for_data(open: list[ForkedShard]) -> list[ForkedShard]:
    """Wait until some of *open* can be read; return those."""
    ready = [shard for shard in open if shard.descriptor is None]
    poll = select.poll()
    waiting: dict[int, ForkedShard] = {}
    for shard in open:
        if (fd := shard.descriptor) is not None:
            waiting[fd] = shard
            poll.register(fd, select.POLLIN)
    return ready + [waiting[fd] for fd, _ in poll.poll(0 if ready else None)]
