"""Several shards read at once: in order, by reading ahead, or as their samples come. For commands only.

Local files are read by forked processes: a thread that decompresses beside one that parses mostly waits for the
interpreter. As soon as one input is remote, a command or stdin, all are read by threads, which mostly wait for data.
"""

from __future__ import annotations

import select
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import TypeVar

from tartools.errors import ParquetError, TarToolsError
from tartools.samples.account import Account, FirstKeys
from tartools.samples.sample import Batch
from tartools.shards.reading import Reading, batches_of, first_keys, read_parts, table_batches, table_file
from tartools.shards.stream import ShardStream
from tartools.shards.threads import ThreadedParts, ThreadedStream, wait_for_parts
from tartools.storage.scratch import scratch_file
from tartools.storage.streams import Input
from tartools.tar import Parsed

Source = TypeVar("Source", "ForkedShard", "ThreadedParts")


def read_ahead(
    urls: Sequence[str], account: Account, most: int, memory: int, folder: str | None
) -> Generator[Input, None, None]:
    """Yield the stream of each of *urls* in order, while up to *most* of them are being read.

    Holds *memory* bytes of shards ahead, those beyond in unlinked files in *folder*; 4 MiB of each shard being parsed.
    What opening or reading a shard raises is raised when its turn comes.
    """
    if folder is not None:
        scratch_file(folder).close()  # to fail now, not in the middle
    start = _starter(account, max(memory // max(most - 1, 1), 1), folder)
    waiting = iter(urls)
    ahead: deque[ForkedShard | ThreadedStream] = deque()
    busy: list[ForkedShard | ThreadedStream] = []
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
            yield ahead.popleft().opened()
    except BaseException:  # after a normal end, the streams that are still being parsed are closed by their parsers
        _close(busy)
        raise


def _starter(account: Account, memory: int, folder: str | None) -> Callable[[str], ForkedShard | ThreadedStream]:
    """Return the function that starts to read a shard ahead."""
    if account.expected is not None:  # all are local files
        return lambda url: ForkedShard(url, account, memory=memory, folder=folder)
    changed = threading.Condition()
    return lambda url: ThreadedStream(url, account, changed, memory, folder)


def as_they_come(urls: Sequence[str], account: Account, reading: Reading, most: int) -> Generator[Batch, None, None]:
    """Yield the samples of *urls* as they come from *most* shards that are being read, in no certain order.

    The samples of one shard keep their order. Whoever takes them counts them.
    Holds 4 MiB of each of these shards. Raises what reading a shard raises, after its samples before that point.
    """
    if account.expected is not None:  # all are local files
        parts = _merged(urls, lambda url: ForkedShard(url, account, reading), _wait_for_data, most)
    else:
        changed = threading.Condition()
        parts = _merged(
            urls,
            lambda url: ThreadedParts(url, account, changed, reading),
            lambda shards: wait_for_parts(shards, changed),
            most,
        )
    with closing(parts):
        for url, first, found in parts:
            if found is None:
                account.shards_done += 1
            elif isinstance(found, ParquetError):
                yield from table_batches(url, table_file(url, found.stream), account, reading)
                account.shards_done += 1
            else:
                yield from batches_of(found, url, account, reading, first)


def _merged(
    urls: Sequence[str], start: Callable[[str], Source], wait: Callable[[list[Source]], list[Source]], most: int
) -> Generator[tuple[str, FirstKeys, list[Parsed] | ParquetError | None], None, None]:
    """Yield lists of the parts of *urls* as they come, each with the URL and `first` of its shard; None at its end.

    Of a table, its error.

    *start* starts to read a shard, *wait* waits until some of those that are being read have parts, or have ended.
    """
    waiting = iter(urls)
    open: list[Source] = []
    try:
        while True:
            while len(open) < most and (url := next(waiting, None)) is not None:
                open.append(start(url))
            if not open:
                return
            for shard in wait(list(open)):
                parts: list[Parsed] | ParquetError | None
                try:
                    parts = next(shard.parts, None)
                except ParquetError as found:
                    parts = found
                if parts is None or isinstance(parts, ParquetError):
                    open.remove(shard)
                yield shard.url, shard.first, parts
    finally:
        _close(open)


def _close(shards: Sequence[ForkedShard | ThreadedStream | ThreadedParts]) -> None:
    """Stop reading *shards*; cancel all before waiting for any."""
    for shard in shards:
        shard.cancel()
    for shard in shards:
        shard.close()


class ForkedShard:
    """The shard *url*, read by a forked process if it is compressed and large enough, else when it is parsed.

    The process holds *memory* bytes, those beyond in a scratch file in *folder*; without *memory* 4 MiB.
    """

    def __init__(
        self,
        url: str,
        account: Account,
        reading: Reading | None = None,
        memory: int | None = None,
        folder: str | None = None,
    ) -> None:
        self.url = url
        self._failure: TarToolsError | None = None
        self._stream: ShardStream | None = None
        reading = reading or Reading()
        self.first = first_keys(url, account, reading)
        self.parts = self._parse(reading)
        try:
            self._stream = ShardStream(url, account, forks=True)
        except TarToolsError as error:
            self._failure = error
        if self._stream is not None and self._stream.forked is not None:
            self._stream.forked.start_ahead(memory, folder)

    @property
    def busy(self) -> bool:
        """Return whether a process reads it."""
        return self.descriptor is not None

    @property
    def descriptor(self) -> int | None:
        """What is readable when the process has written something; None without a process."""
        forked = self._stream.forked if self._stream is not None else None
        return forked.fileno() if forked is not None and forked.running else None

    def opened(self) -> ShardStream:
        """Return its stream. Raises what opening it raised."""
        if self._failure is not None:
            raise self._failure
        assert self._stream is not None
        return self._stream

    def _parse(self, reading: Reading) -> Generator[list[Parsed], None, None]:
        with closing(self.opened()) as stream:
            for part in read_parts(self.url, stream, reading):
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
