"""Remote objects read by ranges, several ahead if the network is the bottleneck.

One connection to an object store brings some 80 MB/s after a round trip of 30 ms; several side by side bring several
times that. So an object is requested in ranges of 8 MiB, up to `TARTOOLS_READAHEAD` (8) of them at once, all of the
version of the first response; a range that is cut is resumed at the byte where it was cut. As long as one connection is
as fast as its reader there is only one, and no thread: passing bytes between threads takes longer than receiving them.
A server that ignores ranges gives one stream, whose length is checked if the server states it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from queue import SimpleQueue

from tartools.errors import StorageError
from tartools.storage.objects.contract import Object
from tartools.storage.objects.pinned import Pinned, Range
from tartools.storage.objects.retry import setting
from tartools.storage.streams import Input

RANGE = 8 << 20  # bytes
AHEAD, MOST_AHEAD = 8, 16  # ranges
BUSY = 4  # a range that took more than so many times its processor time was waited for
MOST_HELD = 32  # ranges that all open objects of this process share for what they read ahead


class Pace:
    """The *window*: how many ranges are requested at once, at most *most*. See docs/adr/0008.

    As many as at the *beginning*, until the reader has waited for two in a row; then twice as many after each that it
    waited for. More do not help a reader that is slower than one connection, and they take from the processor.
    """

    def __init__(self, most: int, beginning: int = 1) -> None:
        self.window = min(beginning, most)
        self.most = most
        self._slow = 0  # ranges in a row for which the reader waited
        self._waited, self._since = 0.0, time.monotonic()  # seconds of waiting for the current range, and its begin

    def waited(self, seconds: float) -> None:
        """Note that the reader has waited for the current range."""
        self._waited += seconds

    def done(self, seconds: float, work: float) -> None:
        """Decide after a range that was received in some *seconds*, *work* of the processor."""
        now = time.monotonic()
        slow = 2 * self._waited > now - self._since and seconds > BUSY * work
        self._slow = self._slow + 1 if slow else 0
        self._waited, self._since = 0.0, now
        if slow and (self.window > 1 or self._slow > 1):
            self.window = min(2 * self.window, self.most)


budget = threading.Semaphore(MOST_HELD)
os.register_at_fork(after_in_child=lambda: budget.__init__(MOST_HELD))  # type: ignore[misc]  # the parent holds what was taken


class _Part(Range):
    """A range, and what receiving it took: *seconds*, and of them *work* of the processor.

    *ready* brings what a thread has received of it; then None at its end, or an error.
    """

    seconds = work = 0.0

    def __init__(self, start: int, end: int) -> None:
        super().__init__(start, end)
        self.ready: SimpleQueue[memoryview | BaseException | None] = SimpleQueue()


class RangedInput(Input):
    """The bytes of a remote object from *start* on; failures are raised when it is read.

    *first* bytes are requested first, then twice as many, and so on up to 8 MiB. With *size* and *version*, any other
    version is a failure.

    Holds: up to 8 ranges, if `TARTOOLS_READAHEAD` is not set; all inputs together 256 MiB, and 1 MiB for each that
    waits for its next bytes.
    """

    def __init__(
        self,
        source: Object,
        start: int = 0,
        first: int = RANGE,
        size: int | None = None,
        version: str | None = None,
    ) -> None:
        self._source = Pinned(source, size, version)
        self._url = source.url
        self._next = start  # of the next part
        self._length = first  # of the next part
        beginning = 2 if os.environ.get("TARTOOLS_CACHE") else 1  # it gives a range when all of it has come
        self._pace = Pace(setting("TARTOOLS_READAHEAD", AHEAD, MOST_AHEAD), beginning)
        self._owner = os.getpid()
        self._flow = self._received()
        self._rest = memoryview(b"")  # of a chunk
        self._error: Exception | None = None
        self._parts: deque[_Part] = deque()  # received by threads
        self._spare: memoryview | None = None  # of a part that was read: memory that is new takes time
        self._changing = threading.Lock()  # of `_parts`
        self._stopped = threading.Event()
        self._receiving = False  # without a thread

    @property
    def framed(self) -> bool:
        """Tell whether the server states the length."""
        return self._source.framed

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes; 0 at the end.

        Raises: StorageError, with the byte where reading failed; also for an object that was replaced.
        """
        if self._owner != os.getpid():
            raise StorageError("opened before a fork, so this process cannot read it", url=self._url)
        if not self._rest:
            if self._error is not None:
                raise self._error
            try:
                self._rest = next(self._flow, self._rest)
            except BaseException as error:  # a generator that raised would only stop the next time
                interrupted = StorageError("reading was interrupted", url=self._url)
                self._error = error if isinstance(error, Exception) else interrupted
                raise
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def cancel(self) -> bool:
        """Stop all threads, and a `readinto` that waits for them, but not one that waits for a server."""
        self._stopped.set()
        with self._changing:
            for part in self._parts:
                part.ready.put(self._stop())
        return not self._receiving

    def close(self) -> None:
        """Stop reading. Threads that wait for a server end when it responds, or with the process."""
        self.cancel()
        self._drop(len(self._parts))
        self._error = self._error or self._stop()
        with suppress(ValueError):  # another thread is reading, and ends soon
            self._flow.close()  # which releases the connection

    def __del__(self) -> None:
        if getattr(self, "_parts", None):
            self.close()

    def _received(self) -> Generator[memoryview, None, None]:
        """Yield what is received, of one range after the other."""
        while True:
            self._ask()
            self._spare = None  # without budget it may not be kept
            if self._parts:
                part = self._parts[0]
                yield from self._from_thread(part)
                self._spare = part.store
                self._drop(1)
            elif self._has_more():
                part = self._new_part()
                yield from self._directly(part)
            else:
                return
            self._pace.done(part.seconds, part.work)

    def _directly(self, part: _Part) -> Iterator[memoryview]:
        """Receive *part* without a thread, as long as one connection is enough."""
        with closing(self._source.receive(part, self._pause)) as flow:
            more = True
            while more:
                if self._stopped.is_set():
                    raise self._stop()
                begin, work = time.monotonic(), time.thread_time()
                self._receiving = True
                try:
                    more = next(flow, 0) > 0
                finally:
                    self._receiving = False
                waited = time.monotonic() - begin
                self._pace.waited(waited)
                part.seconds += waited
                part.work += time.thread_time() - work
                if more:
                    yield memoryview(part.chunks.popleft())

    def _from_thread(self, part: _Part) -> Iterator[memoryview]:
        """Yield what a thread receives of *part*, the first one."""
        while True:
            begin = time.monotonic()
            found = part.ready.get()
            self._pace.waited(time.monotonic() - begin)
            if self._stopped.is_set():
                raise self._stop()
            if isinstance(found, BaseException):
                raise found
            if found is None:
                return
            yield found

    def _ask(self) -> None:
        """Start threads for as many parts as the window and the budget allow, once the version is known."""
        while len(self._parts) < self._pace.window > 1 and self._source.version is not None and self._has_more():
            with self._changing:
                if self._stopped.is_set() or not budget.acquire(blocking=False):
                    return  # without budget, the reader receives the next part without a thread
                part = self._new_part()
                part.store, self._spare = self._spare or memoryview(bytearray(RANGE)), None
                self._parts.append(part)
            try:
                threading.Thread(target=self._run, args=(part,), daemon=True).start()
            except RuntimeError:  # no more threads possible
                self._parts.pop()
                budget.release()
                self._next, self._pace.window = part.start, 1

    def _run(self, part: _Part) -> None:
        begin, end = time.monotonic(), None
        assert part.store is not None
        try:
            for count in self._source.receive(part, self._pause):
                part.ready.put(part.store[part.received - count : part.received])
                if self._stopped.is_set():
                    break
        except BaseException as error:  # raised where the bytes are read
            end = error
        part.seconds, part.work = time.monotonic() - begin, time.thread_time()
        part.ready.put(end)

    def _drop(self, count: int) -> None:
        """Forget the first *count* parts."""
        with self._changing:
            for _ in range(min(count, len(self._parts))):
                self._parts.popleft()
                budget.release()

    def _new_part(self) -> _Part:
        end, size = self._next + min(self._length, RANGE), self._source.size
        part = _Part(self._next, end if size is None else min(end, size))
        self._next, self._length = end, 2 * self._length
        return part

    def _has_more(self) -> bool:
        size = self._source.size
        return self._source.ranged and (size is None or self._next < size)

    def _stop(self) -> StorageError:
        return StorageError("reading was stopped", url=self._url)

    def _pause(self, seconds: float) -> None:
        """Wait before the next attempt. Raises: StorageError if reading is stopped."""
        if self._stopped.wait(seconds):
            raise self._stop()
