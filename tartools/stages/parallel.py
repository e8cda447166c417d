"""Reading several shards at once: in order by reading ahead, or as samples come.

Threads do what waits or releases the interpreter (opening, reading, decompressing). Shards ahead are raw tar
bytes, in memory as far as a budget goes and then in files without a name.
"""

from __future__ import annotations

import io
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from tartools.account import Account
from tartools.sample import Sample
from tartools.storage.scratch import scratch_file
from tartools.streams import Input

CHUNK = 1 << 20  # bytes a read: many small ones would only have the threads wait for one another
LIVE = 4  # chunks that wait of a shard whose samples are being taken
BATCH = 256  # samples handed over at a time
PATIENCE = 10.0  # seconds for a thread to end that was told to; one that waits for stdin ends with the process


def read_ahead(
    urls: Sequence[str], opener: Callable[[str], Input], most: int, memory: int, folder: str | None
) -> Iterator[Input]:
    """Yield the stream of each of *urls* in order, while up to *most* of them are being read.

    Holds: *memory* bytes of shards ahead, what is more in scratch files in *folder*; 4 MiB of a shard being taken.
    What *opener* or a stream raises is raised when its place in the stream is reached.
    """
    desk = _Desk(memory, folder)
    waiting = iter(urls)
    ahead: deque[_Ahead] = deque()
    try:
        while True:
            while not ahead or desk.open < most:
                if (url := next(waiting, None)) is None:
                    break
                ahead.append(_Ahead(url, opener, desk))
            if not ahead:
                return
            yield ahead.popleft().ready()
    except BaseException:  # after a normal end, those that are still being taken close themselves
        desk.stop()
        raise


class _Desk:
    """What the readers share: a lock, a budget of memory, the word to stop."""

    def __init__(self, memory: int, folder: str | None) -> None:
        self.changed = threading.Condition()
        self.memory = memory
        self.folder = folder
        self.open = 0  # shards begun and not yet closed
        self.stopped = False
        self.readers: set[_Ahead] = set()

    def stop(self) -> None:
        """End all readers."""
        with self.changed:
            self.stopped = True
            self.changed.notify_all()
            readers = list(self.readers)
        for reader in [reader for reader in readers if reader.cancel()]:
            reader.thread.join(PATIENCE)


class _Ahead:
    """One shard that a thread reads ahead of its reader."""

    file: io.FileIO | None = None
    start = 0

    def __init__(self, url: str, opener: Callable[[str], Input], desk: _Desk) -> None:
        self._url = url
        self._opener = opener
        self._desk = desk
        self._stream: Input | None = None
        self._chunks: deque[memoryview] = deque()
        self._spill: io.FileIO | None = None
        self._spilled = self._taken = 0  # bytes written to the spill, and read back
        self._live = False  # its samples are being taken
        self._done = self._closed = False
        self._error: BaseException | None = None
        desk.open += 1
        desk.readers.add(self)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def ready(self) -> Input:
        """Wait until the shard is open; return its own stream if that is a plain file's, else this one."""
        desk = self._desk
        with desk.changed:
            self._live = True
            desk.changed.notify_all()
            desk.changed.wait_for(lambda: self._done or self._chunks or self._spill)
            if self._stream is not None and self._stream.file is not None:
                desk.open -= 1
                desk.readers.discard(self)
                return self._stream
        return self

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes; 0 at the end."""
        desk = self._desk
        with desk.changed:
            desk.changed.wait_for(lambda: self._done or self._chunks or self._taken < self._spilled)
            if self._chunks:
                return self._from_memory(view)
            if self._taken < self._spilled:
                assert self._spill is not None
                count = os.preadv(self._spill.fileno(), [view[: self._spilled - self._taken]], self._taken)
                self._taken += count
                return count
            if self._error is not None:
                raise self._error
            return 0

    def skip(self, count: int, /) -> None:
        """Never asked for: there is no file."""
        raise AssertionError("only files are skipped in")

    def cancel(self) -> bool:
        """Make the thread end, which must have been told so; tell whether it will."""
        with self._desk.changed:
            stream = self._stream
        return stream is None or stream.cancel()

    def close(self) -> None:
        """Stop reading; waits for the thread."""
        desk = self._desk
        with desk.changed:
            if self._closed:
                return
            self._closed = True
            desk.open -= 1
            desk.memory += sum(map(len, self._chunks))
            self._chunks.clear()
            desk.changed.notify_all()
        if self._done or self.cancel():
            self.thread.join(PATIENCE)
        desk.readers.discard(self)

    def _from_memory(self, view: memoryview) -> int:
        chunk = self._chunks[0]
        count = min(len(view), len(chunk))
        view[:count] = chunk[:count]
        if count == len(chunk):
            self._chunks.popleft()
        else:
            self._chunks[0] = chunk[count:]
        self._desk.memory += count
        self._desk.changed.notify_all()
        return count

    def _run(self) -> None:
        try:
            stream = self._opener(self._url)
            with self._desk.changed:
                self._stream = stream
                unwanted = self._desk.stopped or self._closed
            if unwanted:  # who said so could not cancel what was not there
                stream.cancel()
            if stream.file is None:
                try:
                    self._read(stream)
                finally:
                    stream.close()
        except BaseException as error:
            self._error = error
        with self._desk.changed:
            self._done = True
            self._desk.changed.notify_all()

    def _read(self, stream: Input) -> None:
        room = memoryview(bytearray(CHUNK))
        while not (self._desk.stopped or self._closed):
            count = stream.readinto(room)
            if not count:
                return
            self._keep(memoryview(bytes(room[:count])))  # no more memory than the budget counts

    def _keep(self, chunk: memoryview) -> None:
        """Put *chunk* behind what waits already: in memory if there is room, else on disk."""
        desk = self._desk
        with desk.changed:
            if self._taken == self._spilled:
                desk.changed.wait_for(
                    lambda: not self._live or len(self._chunks) < LIVE or desk.stopped or self._closed
                )
                if self._live or desk.memory >= len(chunk):
                    desk.memory -= len(chunk)
                    self._chunks.append(chunk)
                    desk.changed.notify_all()
                    return
        if self._spill is None:
            self._spill = scratch_file(desk.folder)
        self._spill.write(chunk)
        with desk.changed:
            self._spilled += len(chunk)
            desk.changed.notify_all()


Reader = Callable[[str, Account, Input], Iterator[Sample]]


def as_they_come(
    urls: Sequence[str], opener: Callable[[str], Input], reader: Reader, most: int, account: Account
) -> Iterator[Sample]:
    """Yield the samples of *urls* as they come from *most* threads that read: each whole, in no certain order.

    The samples of one shard keep their order. Holds: two batches of about 1 MiB a thread.
    Raises what *opener* and *reader* raise, after what was read before.
    """
    hub = _Hub(urls, opener, reader, account)
    threads = [threading.Thread(target=hub.run, daemon=True) for _ in range(min(most, len(urls)))]
    hub.running = len(threads)
    try:
        for thread in threads:
            thread.start()
        while (batch := hub.take()) is not None:
            for sample in batch:
                account.samples_in += 1
                yield sample
    finally:
        if hub.stop():
            for thread in threads:
                thread.join(PATIENCE)


class _Deputy(Account):
    """The account of one shard that a thread reads; what is to be said goes to the chief's."""

    def __init__(self, chief: Account, lock: threading.Condition) -> None:
        super().__init__(chief.say, chief.quiet)
        self._chief, self._lock = chief, lock

    def special(self, place: str, kind: str) -> None:
        with self._lock:
            self._chief.special(place, kind)

    def hand_over(self) -> None:
        """Add what was counted here to the chief's account; samples are counted where they are taken."""
        with self._lock:
            self._chief.directories += self.directories
            self._chief.shards_done += self.shards_done


class _Hub:
    """Where the threads put batches of samples, and one consumer takes them."""

    def __init__(self, urls: Sequence[str], opener: Callable[[str], Input], reader: Reader, account: Account) -> None:
        self.running = 0
        self._changed = threading.Condition()
        self._waiting = iter(urls)
        self._opener, self._reader, self._account = opener, reader, account
        self._batches: deque[list[Sample]] = deque()
        self._streams: set[Input] = set()
        self._error: BaseException | None = None
        self._stopped = False

    def run(self) -> None:
        """Read shards until there are no more, or somebody failed."""
        try:
            while (url := self._next()) is not None:
                self._read(url)
        except BaseException as error:
            with self._changed:
                self._error = self._error or error
        with self._changed:
            self.running -= 1
            self._changed.notify_all()

    def take(self) -> list[Sample] | None:
        """Return the next batch; None at the end. Raises: what a thread raised."""
        with self._changed:
            self._changed.wait_for(lambda: self._batches or self._error or not self.running)
            self._changed.notify_all()
            if self._batches:
                return self._batches.popleft()
            if self._error:
                raise self._error
            return None

    def stop(self) -> bool:
        """End all threads; tell whether they will, or one may wait for what can't be cancelled."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            streams = list(self._streams)
        cancelled = [stream.cancel() for stream in streams]
        return all(cancelled)

    def _next(self) -> str | None:
        with self._changed:
            return None if self._stopped or self._error else next(self._waiting, None)

    def _read(self, url: str) -> None:
        stream = self._opener(url)
        with self._changed:
            self._streams.add(stream)
            unwanted = self._stopped
        if unwanted:
            stream.cancel()
        deputy = _Deputy(self._account, self._changed)
        batch: list[Sample] = []
        size = 0
        try:
            for sample in self._reader(url, deputy, stream):
                batch.append(sample.own())
                size += sample.size
                if size >= CHUNK or len(batch) == BATCH:
                    full, batch, size = batch, [], 0
                    if not self._put(full):
                        return
        finally:
            self._put(batch)  # what precedes a failure too
        deputy.hand_over()
        with self._changed:
            self._streams.discard(stream)

    def _put(self, batch: list[Sample]) -> bool:
        """Hand over *batch*; tell whether to go on."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._batches) < 2 * self.running or self._stopped or self._error)
            self._batches.append(batch)
            self._changed.notify_all()
            return not (self._stopped or self._error)
