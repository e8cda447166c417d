"""Several shards read at once: in order, by reading ahead, or as their samples come. For commands only.

Local files are read by forked processes: a thread that decompresses beside one that parses mostly waits for the
interpreter. As soon as one input is remote, a command or stdin, all are read by threads, which mostly wait for data.
"""

from __future__ import annotations

import io
import select
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import TypeAlias, TypeVar

from tartools import storage
from tartools.errors import TarFormatError, TarToolsError
from tartools.samples.account import Account
from tartools.samples.sample import Batch
from tartools.shards.reading import Found, Reading, batches_of, first_keys, read_parts
from tartools.shards.spill import SpillBuffer
from tartools.shards.stream import ShardStream
from tartools.storage.scratch import scratch_file
from tartools.storage.streams import chunks

LISTS = 2  # of parts that wait, each parsed from up to 1 MiB
PATIENCE = 10.0  # seconds for a thread to end; one that waits for stdin ends with the process


# A shard that a thread or a forked process reads, maybe before its turn. Its *parts* are what it holds: see
# `reading.read_parts`. They raise what opening or reading it raises. It is *busy* while a thread or process reads it.
AheadShard: TypeAlias = "ForkedShard | ThreadedBytes | ThreadedParts"
Shard = TypeVar("Shard", "ForkedShard", "ThreadedParts")


def read_ahead(
    urls: Sequence[str], account: Account, reading: Reading, most: int, memory: int
) -> Generator[Iterator[Batch], None, None]:
    """Yield the samples of each of *urls* in order, while up to *most* of them are being read. Who takes them counts.

    Holds *memory* bytes of shards ahead, those beyond in unlinked files; 4 MiB of each shard being parsed.
    What opening or reading a shard raises is raised when its turn comes.
    """
    if reading.tmpdir is not None:
        scratch_file(reading.tmpdir).close()  # to fail now, not in the middle
    memory, files, changed = max(memory // max(most - 1, 1), 1), _are_files(urls), threading.Condition()

    def start(url: str) -> AheadShard:
        if files:
            return ForkedShard(url, account, reading, memory)
        return ThreadedBytes(url, account, reading, changed, memory)

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
        wait = partial(_wait_for_parts, changed)
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


class _Threaded:
    """The shard *url*, which a thread opens and reads. *changed* is the lock of all shards that are read at once."""

    def __init__(self, url: str, account: Account, reading: Reading, changed: threading.Condition) -> None:
        self.url = url
        self.first = first_keys(url, account, reading)
        self.parts = self._take()
        self.busy = True  # until it is closed, or found to be what no thread needs to read
        self._account = account
        self._reading = reading
        self._changed = changed
        self._stream: ShardStream | None = None  # once it is open
        self._failure: BaseException | None = None
        self._ended = self._unwanted = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cancel(self) -> bool:
        """Make the thread end soon; tell whether it will."""
        with self._changed:
            self._unwanted = True
            self._changed.notify_all()
            stream = self._stream
        return self._ended or stream is None or stream.cancel()

    def close(self) -> None:
        """Stop reading, and wait for the thread if it will end."""
        self.busy = False
        if self.cancel():
            self._thread.join(PATIENCE)
        if self._ended and self._stream is not None:
            self._stream.close()

    def _run(self) -> None:
        try:
            stream = self._open()
            with self._changed:
                self._stream = stream
                unwanted = self._unwanted
            if unwanted:  # `cancel` came before there was a stream
                stream.cancel()
            self._read(stream)
        except BaseException as error:
            self._failure = error
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _open(self) -> ShardStream:
        return ShardStream(self.url, self._account)

    def _read(self, stream: ShardStream) -> None:
        """Read *stream* to its end, or until it is unwanted; then close it."""
        raise NotImplementedError

    def _take(self) -> Generator[list[Found], None, None]:
        """Yield lists of parts; then raise what the thread raised."""
        raise NotImplementedError


class ThreadedBytes(_Threaded):
    """The shard *url*, whose bytes are read ahead: *memory* bytes in memory, those beyond in a scratch file.

    A plain file or a table is only opened, since its bytes need not be moved.
    """

    file: io.FileIO | None = None
    start = 0

    def __init__(self, url: str, account: Account, reading: Reading, changed: threading.Condition, memory: int) -> None:
        self._buffer = SpillBuffer(memory, reading.tmpdir)
        super().__init__(url, account, reading, changed)

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes; 0 at the end. Raises what the thread raised, after the bytes before."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._buffer.size)
            first = self._buffer.first()
            if first is None:
                if self._failure is not None:
                    raise self._failure
                return 0
            count = min(len(view), len(first))
            view[:count] = first[:count]
            self._buffer.drop(count)
            self._changed.notify_all()
            return count

    def _take(self) -> Generator[list[Found], None, None]:
        with self._changed:
            self._buffer.awaited = True
            self._changed.wait_for(lambda: self._ended or self._buffer.size)
        stream = self if self.busy else self._stream
        assert stream is not None
        for part in read_parts(self.url, stream, self._reading):
            yield [part]

    def _read(self, stream: ShardStream) -> None:
        if stream.file is not None or stream.is_table():
            self.busy = False
            return
        with closing(stream):
            for chunk in chunks(stream):  # of many small ones the threads would only wait for each other
                with self._changed:
                    self._changed.wait_for(lambda: self._unwanted or not self._buffer.full)
                    if self._unwanted:
                        return
                    self._buffer.append(bytes(chunk))
                    self._changed.notify_all()


class ThreadedParts(_Threaded):
    """The shard *url*, which the thread also parses into *parts*. Two lists of parts wait, each of up to 1 MiB."""

    def __init__(self, url: str, account: Account, reading: Reading, changed: threading.Condition) -> None:
        self._parsed: list[Found] = []  # only the thread uses it
        self._waiting: deque[list[Found]] = deque()
        super().__init__(url, account, reading, changed)

    @property
    def ready(self) -> bool:
        """Return whether parts wait, or the thread has ended."""
        return self._ended or bool(self._waiting)

    def _take(self) -> Generator[list[Found], None, None]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.ready)
                if not self._waiting:
                    break
                parts = self._waiting.popleft()
                self._changed.notify_all()
            yield parts
        if self._failure is not None:
            raise self._failure

    def _open(self) -> ShardStream:
        return _AnnouncedStream(self.url, self._account, self._hand_over)

    def _read(self, stream: ShardStream) -> None:
        with closing(stream):
            try:
                for part in read_parts(self.url, stream, self._reading):
                    self._parsed.append(part)
                    if self._unwanted:
                        return
            finally:
                self._hand_over()  # what precedes a failure, too

    def _hand_over(self) -> None:
        """Let what was parsed be taken; waits while two lists wait."""
        if not self._parsed:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._unwanted or len(self._waiting) < LISTS)
            self._waiting.append(self._parsed)
            self._parsed = []
            self._changed.notify_all()


class _AnnouncedStream(ShardStream):
    """A shard's stream that calls *before* each read, which may have to wait."""

    def __init__(self, url: str, account: Account, before: Callable[[], None]) -> None:
        super().__init__(url, account)
        self._before = before

    def readinto(self, view: memoryview, /) -> int:
        self._before()
        return super().readinto(view)


def _wait_for_parts(changed: threading.Condition, shards: list[ThreadedParts]) -> list[ThreadedParts]:
    """Wait until parts of some of *shards* can be taken, or they have ended; return those."""
    with changed:
        changed.wait_for(lambda: any(shard.ready for shard in shards))
        return [shard for shard in shards if shard.ready]
