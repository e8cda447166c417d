"""Several shards read at once, by threads: in order, by reading ahead, or as their samples come. For commands only."""

from __future__ import annotations

import io
import os
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing

from tartools.errors import TarFormatError
from tartools.samples.account import Account
from tartools.samples.sample import Batch
from tartools.shards.reading import Found, Reading, ShardStream, batches_of, first_keys, read_parts
from tartools.storage.scratch import scratch_file
from tartools.storage.streams import chunks

PARTS = 4  # that wait
PATIENCE = 10.0  # seconds for a thread to end; one that waits for stdin ends with the process
AWAITED = 4 << 20  # bytes that wait in memory once the parser has come
UNSPILL = 128 << 10  # bytes that are read back at a time


def read_ahead(
    urls: Sequence[str], account: Account, reading: Reading, most: int, memory: int
) -> Generator[Iterator[Batch], None, None]:
    """Yield the samples of each of *urls* in order, while up to *most* of them are being read. Who takes them counts.

    Holds *memory* bytes of shards ahead, those beyond in unlinked files; 4 MiB of each shard being parsed.
    What opening or reading a shard raises is raised when its turn comes.
    """
    if reading.tmpdir is not None:
        scratch_file(reading.tmpdir).close()  # to fail now, not in the middle
    memory, changed = max(memory // max(most - 1, 1), 1), threading.Condition()
    waiting = iter(urls)
    ahead: deque[ThreadedBytes] = deque()
    busy: list[ThreadedBytes] = []
    try:
        while True:
            busy = [shard for shard in busy if shard.busy]
            while not ahead or (len(busy) < most and len(ahead) < most):
                if (url := next(waiting, None)) is None:
                    break
                ahead.append(ThreadedBytes(url, account, reading, changed, memory))
                busy.append(ahead[-1])
            if not ahead:
                return
            yield _batches(ahead.popleft(), account, reading)
    except BaseException:  # after a normal end, the shards that are still being parsed are closed by their parsers
        _close(busy)
        raise


def _batches(shard: AheadShard, account: Account, reading: Reading) -> Iterator[Batch]:
    """Yield the samples of *shard*, and close it."""
    with closing(shard):
        while (part := _next_part(shard, account)) is not None:
            yield from batches_of([part], shard.url, account, reading, shard.first)
    account.shards_done += 1


def _next_part(shard: AheadShard, account: Account) -> Found | None:
    """Return the next part of *shard*; None at its end."""
    try:
        return next(shard.parts, None)
    except TarFormatError:
        account.check()  # what looks like damage may be two versions of a file
        raise


def as_they_come(urls: Sequence[str], account: Account, reading: Reading, most: int) -> Generator[Batch, None, None]:
    """Yield the samples of *urls* as they come from *most* shards that are read at once.

    The samples of one shard keep their order. Whoever takes them counts them.
    Holds 4 MiB of each of these shards. Raises what reading a shard raises, after its samples before that point.
    """
    changed = threading.Condition()
    waiting = iter(urls)
    open: list[ThreadedParts] = []
    try:
        while True:
            while len(open) < most and (url := next(waiting, None)) is not None:
                open.append(ThreadedParts(url, account, reading, changed))
            if not open:
                return
            with changed:
                changed.wait_for(lambda: any(shard.ready for shard in open))
                ready = [shard for shard in open if shard.ready]
            for shard in ready:
                if (part := _next_part(shard, account)) is not None:
                    yield from batches_of([part], shard.url, account, reading, shard.first)
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


class AheadShard:
    """The shard *url*, which a thread opens and reads, maybe before its turn.

    *changed* is the lock of all shards that are read at once. Its *parts* are what it holds: see `reading.read_parts`.
    They raise what opening or reading it raises.
    """

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
            stream = ShardStream(self.url, self._account)
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

    def _read(self, stream: ShardStream) -> None:
        """Read *stream* to its end, or until it is unwanted; then close it."""
        raise NotImplementedError

    def _take(self) -> Generator[Found, None, None]:
        """Yield the parts; then raise what the thread raised."""
        raise NotImplementedError


class SpillBuffer:
    """A queue of bytes: up to *memory* bytes in memory, those beyond in an unlinked scratch file in *folder*.

    Until the parser has come it takes whatever is read. Once it is *awaited* it is *full* at 4 MiB, all in memory but
    for what was spilled before. It has no lock: threads that share it bring their own.
    """

    def __init__(self, memory: int, folder: str | None) -> None:
        self.awaited = False
        self._memory = memory
        self._folder = folder
        self._chunks: deque[memoryview] = deque()
        self._held = 0  # bytes in these chunks
        self._file: io.FileIO | None = None
        self._written = self._read = 0  # bytes of the file

    @property
    def size(self) -> int:
        """Bytes in the queue."""
        return self._held + self._written - self._read

    @property
    def full(self) -> bool:
        """Return whether the reader should wait."""
        return self.awaited and self.size >= AWAITED

    def append(self, chunk: bytes) -> None:
        """Add *chunk* at the end. Raises StorageError if the scratch file can't be written."""
        if self._written == self._read and (self.awaited or self._held + len(chunk) <= self._memory):
            self._chunks.append(memoryview(chunk))
            self._held += len(chunk)
            return
        if self._file is None:
            self._file = scratch_file(self._folder)
        self._file.write(chunk)
        self._written += len(chunk)

    def first(self) -> memoryview | None:
        """Return some of the bytes at the begin; None if the queue is empty."""
        if not self._chunks and self._read < self._written:
            assert self._file is not None
            data = os.pread(self._file.fileno(), min(UNSPILL, self._written - self._read), self._read)
            self._chunks.append(memoryview(data))
            self._read += len(data)
            self._held += len(data)
        return self._chunks[0] if self._chunks else None

    def drop(self, count: int) -> None:
        """Remove the first *count* bytes, all of which `first` has returned."""
        self._held -= count
        rest = self._chunks[0][count:]
        if rest:
            self._chunks[0] = rest
        else:
            self._chunks.popleft()


class ThreadedBytes(AheadShard):
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
            count = 0
            while count < len(view) and (first := self._buffer.first()) is not None:
                some = first[: len(view) - count]
                view[count : count + len(some)] = some
                self._buffer.drop(len(some))
                count += len(some)
            if not count and self._failure is not None:
                raise self._failure
            self._changed.notify_all()
            return count

    def _take(self) -> Generator[Found, None, None]:
        with self._changed:
            self._buffer.awaited = True
            self._changed.wait_for(lambda: self._ended or self._buffer.size)
        stream = self if self.busy else self._stream
        assert stream is not None
        yield from read_parts(self.url, stream, self._reading)

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


class ThreadedParts(AheadShard):
    """The shard *url*, which the thread also parses into *parts*. Up to four of them wait, each of up to 1 MiB."""

    def __init__(self, url: str, account: Account, reading: Reading, changed: threading.Condition) -> None:
        self._waiting: deque[Found] = deque()
        super().__init__(url, account, reading, changed)

    @property
    def ready(self) -> bool:
        """Return whether parts wait, or the thread has ended."""
        return self._ended or bool(self._waiting)

    def _take(self) -> Generator[Found, None, None]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.ready)
                if not self._waiting:
                    break
                part = self._waiting.popleft()
                self._changed.notify_all()
            yield part
        if self._failure is not None:
            raise self._failure

    def _read(self, stream: ShardStream) -> None:
        with closing(stream):
            for part in read_parts(self.url, stream, self._reading):
                with self._changed:
                    self._changed.wait_for(lambda: self._unwanted or len(self._waiting) < PARTS)
                    if self._unwanted:
                        return
                    self._waiting.append(part)
                    self._changed.notify_all()
