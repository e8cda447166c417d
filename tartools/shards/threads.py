"""Shards that threads read: as bytes that wait for their parser, or as parts that the thread has parsed itself."""

from __future__ import annotations

import io
import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import closing

from tartools.samples.account import Account
from tartools.shards.reading import Found, Reading, first_keys, read_parts
from tartools.shards.spill import SpillBuffer
from tartools.shards.stream import ShardStream
from tartools.storage.streams import chunks

LISTS = 2  # of parts that wait, each parsed from up to 1 MiB
PATIENCE = 10.0  # seconds for a thread to end; one that waits for stdin ends with the process


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


def wait_for_parts(changed: threading.Condition, shards: list[ThreadedParts]) -> list[ThreadedParts]:
    """Wait until parts of some of *shards* can be taken, or they have ended; return those."""
    with changed:
        changed.wait_for(lambda: any(shard.ready for shard in shards))
        return [shard for shard in shards if shard.ready]
