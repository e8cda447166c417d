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
from collections.abc import Iterator

from tartools.errors import StorageError
from tartools.storage.objects.contract import Object
from tartools.storage.objects.pinned import FIRST_READ_SIZE, Pinned, Range
from tartools.storage.objects.retry import read_setting
from tartools.storage.streams import Input

RANGE_BYTES = 8 << 20  # bytes
RANGES_AHEAD, MAX_RANGES_AHEAD = 8, 16  # ranges
BUSY_RATIO = 4  # a range that took longer than this many times its processor time was waited for
MAX_SHARED_RANGES = 32  # ranges that all open objects of this process share for what they read ahead
GATHER_SECONDS = 0.05  # seconds to wait for a whole range before its first bytes are read


class Pace:
    """Decides how many ranges are requested at once: `window`. See docs/adr/0008.

    *beginning*: the first window; *max_window*: the largest. A window of 1 doubles when the reader has waited for two
    ranges in a row, a larger one after each range that it waited for; it never shrinks. Call `record_wait` each time
    the reader has waited, and `record` at the end of each range.
    """

    # A range "was waited for" if two things hold. The reader spent more than half of the time between two ranges
    # waiting: else it is slower than the connection, and more ranges would only use memory. And receiving took more
    # than BUSY_RATIO times its processor time: else the processor is the bottleneck (decryption, checksums, a server on
    # this machine), and a second thread would take from the reader. The window never shrinks: once ranges are read
    # ahead, a reader that no longer waits says nothing about the network.

    def __init__(self, max_window: int, beginning: int = 1) -> None:
        self.window = min(beginning, max_window)
        self.max_window = max_window
        self._slow = 0  # ranges in a row for which the reader waited
        self._waited, self._since = 0.0, time.monotonic()  # seconds of waiting for the current range, and its begin

    def record_wait(self, seconds: float) -> None:
        """Add *seconds* to the time that the reader has waited for the current range."""
        self._waited += seconds

    def record(self, seconds: float, work: float) -> None:
        """Adapt the window after a range that took *seconds* to receive, with *work* seconds of processor time.

        The range was waited for if *seconds* are more than BUSY_RATIO times *work*, and the seconds of `record_wait`
        are more than half of the time since the last call, or since this object was made.
        """
        now = time.monotonic()
        slow = 2 * self._waited > now - self._since and seconds > BUSY_RATIO * work
        self._slow = self._slow + 1 if slow else 0
        self._waited, self._since = 0.0, now
        if slow and (self.window > 1 or self._slow > 1):
            self.window = min(2 * self.window, self.max_window)


# One slot for each buffer of 8 MiB that any input of this process holds. Who gets none reads without a thread, so a
# hundred open objects need no more memory than a few, and no input ever waits for another one's buffers.
budget = threading.Semaphore(MAX_SHARED_RANGES)
os.register_at_fork(after_in_child=lambda: budget.__init__(MAX_SHARED_RANGES))  # type: ignore[misc]  # the parent holds what was taken


class _Part(Range):
    """A range, and how receiving it went.

    `seconds`: the time that it took; `work`: the processor time of that, in seconds.
    `is_done`: True when the thread that received it has ended.
    `error`: the exception that ended receiving it; None if there is none.
    """

    seconds = work = 0.0
    is_done = False
    error: BaseException | None = None


class RangedInput(Input):
    """The bytes of the remote object *source* from byte *start* on; a failure to read it is raised by `readinto`.

    *first*: bytes of the first request; each later one has twice as many as the one before, up to RANGE_BYTES. *size*,
    *version*: the size in bytes and the version to read, any other is a failure; both None for those of the first
    response.

    Nothing is requested before the first `readinto`. Holds: up to RANGES_AHEAD + 1 ranges, if `TARTOOLS_READAHEAD` is
    not set; all inputs together MAX_SHARED_RANGES, and up to 1 MiB for each that waits for its next bytes. Raises:
    UsageError for an invalid `TARTOOLS_READAHEAD`.
    """

    def __init__(
        self,
        source: Object,
        start: int = 0,
        first: int = RANGE_BYTES,
        size: int | None = None,
        version: str | None = None,
    ) -> None:
        self._source = Pinned(source, size, version)
        self._url = source.url
        self._next = start  # of the next part
        self._length = first  # of the next part
        beginning = 2 if os.environ.get("TARTOOLS_CACHE") else 1  # it gives a range when all of it has come
        self._pace = Pace(read_setting("TARTOOLS_READAHEAD", RANGES_AHEAD, MAX_RANGES_AHEAD), beginning)
        self._owner = os.getpid()
        self._direct: tuple[_Part, Iterator[int]] | None = None  # received without a thread
        self._rest = memoryview(b"")  # of a chunk
        self._changed = threading.Condition()
        self._parts: deque[_Part] = deque()  # received by threads
        self._stores: list[memoryview] = []  # one to be used again, since memory that is new takes time
        self._receiving = self._reader_waiting = self._stopped = False

    @property
    def is_framed(self) -> bool:
        """False if the server does not state where the object ends, so that a truncated one is not noticed.

        True before the first response.
        """
        return self._source.is_framed

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes into *view*; return how many, 0 at the end.

        Raises: StorageError, if the transfer failed with the byte where; also for an object that was replaced, in a
        fork of the process that opened it, and after `cancel` or `close`, when the rest of the last chunk was read.
        """
        if self._owner != os.getpid():
            raise StorageError("opened before a fork, so this process cannot read it", url=self._url)
        while not self._rest:
            if self._stopped:
                raise self._stop_error()
            if self._parts:
                self._rest = self._take_received()
            elif self._direct is not None or self._has_more():
                if count := self._receive_directly(view):
                    return count
            else:
                return 0
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def cancel(self) -> bool:
        """Stop all threads, and a `readinto` in another thread that waits for them; later reads fail.

        Bytes of the last chunk that are in memory can still be read. Returns True; False if a `readinto` waits for the
        server itself, which can't be interrupted.
        """
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        return not self._receiving

    def close(self) -> None:
        """Stop reading, and give back the memory; do nothing in a fork of the process that opened it.

        Threads that wait for a server end when it responds, or with the process. So does a connection by which another
        thread is reading.
        """
        if self._owner != os.getpid():  # where these threads are not, and one of them may have had the lock
            return
        with self._changed:
            self._stopped = True
            if slots := len(self._parts) + len(self._stores):
                budget.release(slots)
            self._parts.clear()
            self._stores.clear()
            self._changed.notify_all()
        if self._direct is not None and not self._receiving:
            self._direct[1].close()  # type: ignore[attr-defined]  # a generator, which releases the connection
            self._direct = None

    def __del__(self) -> None:
        """Give back the memory of ranges read ahead."""
        if getattr(self, "_parts", None) or getattr(self, "_stores", None):
            self.close()

    # An input is in one of two states, and changes between them only where a range ends:
    #
    #     direct   window 1: the reader's own thread receives range after range; no thread, no buffer, no lock
    #     ahead    window n: n threads receive the next n ranges; the reader takes the first one's chunks as they come
    #
    #     position ─► [ part 0: read here ][ part 1: receiving ][ part 2: receiving ] _next ─► not requested
    #
    # `record` widens the window at the end of a range; `_start_ranges` then requests the following ones. It is called
    # where a thread has ended, too, so that the connections stay busy while the reader works. If the budget is
    # exhausted no part is started, and the reader is in the direct state again when it has used up what there is.

    # ---- direct: while one connection is enough ----

    def _receive_directly(self, view: memoryview) -> int:
        """Receive the next bytes of the range that needs no thread into *view*; return how many.

        Returns 0 at the end of the range, or if the bytes are in `_rest`, because *view* is short. Raises: the errors
        of `Pinned.receive`, and the same error at each later call; StorageError at calls after an interrupt.
        """
        if self._direct is None:
            part = self._make_part()
            self._direct = part, self._source.receive(part, self._pause)
        part, flow = self._direct
        if part.error is not None:
            raise part.error
        begin, work = time.monotonic(), time.thread_time()
        self._receiving = True
        part.destination = view if len(view) >= FIRST_READ_SIZE else None  # short reads take too long
        try:
            count = next(flow, 0)
        except BaseException as error:  # a generator that raised would only stop the next time
            interrupted = StorageError("reading was interrupted", url=self._url)
            part.error = error if isinstance(error, Exception) else interrupted
            raise
        finally:
            self._receiving, part.destination = False, None
        waited = time.monotonic() - begin
        self._pace.record_wait(waited)
        part.seconds += waited
        part.work += time.thread_time() - work
        if not count:
            self._direct = None
            self._finish_part(part)
        if part.chunks:
            self._rest = part.chunks.popleft()
            return 0
        return count

    # ---- ahead: several ranges at once ----

    def _take_received(self) -> memoryview:
        """Wait until a thread has received bytes of the first part; return a chunk. Empty at its end, or after a stop.

        At its end the part is dropped, and the next ranges are started. Raises: the error with which the thread ended,
        when all its chunks were returned.
        """
        part = self._parts[0]
        if not part.chunks:
            begin = time.monotonic()
            with self._changed:  # waking up for each chunk would take longer than reading
                self._changed.wait_for(lambda: part.is_done or self._stopped, GATHER_SECONDS)
                self._reader_waiting = True
                self._changed.wait_for(lambda: part.chunks or part.is_done or self._stopped)
                self._reader_waiting = False
            self._pace.record_wait(time.monotonic() - begin)
        if part.chunks and not self._stopped:
            return part.chunks.popleft()
        if part.error is not None:
            raise part.error
        if not self._stopped:
            with self._changed:
                self._parts.popleft()
                if part.buffer is not None:
                    self._stores.append(part.buffer)
                self._finish_part(part)
        return memoryview(b"")

    def _finish_part(self, part: _Part) -> None:
        """Record the times of *part*, which was read to its end, adapt the window, and start the next ranges.

        Buffers that are not needed any more go back to the budget.
        """
        self._pace.record(part.seconds, part.work)
        with self._changed:
            self._start_ranges()
            while len(self._stores) > (self._pace.window > 1 and self._has_more()):
                self._stores.pop()
                budget.release()

    def _start_ranges(self) -> None:
        """Start threads for as many ranges as the window and the budget allow, none for a window of 1.

        If no thread can be started, or no memory is left for its range, the window becomes 1. The caller holds
        `_changed`.
        """
        window = self._pace.window
        while window > 1 and not self._stopped and self._has_more():
            under_way = sum(not part.is_done for part in self._parts)
            if under_way >= window or len(self._parts) > window:
                return
            if not self._stores and not budget.acquire(blocking=False):
                return  # then the reader receives the next part without a thread
            begin = self._next
            try:
                part = self._make_part()
                part.buffer = self._stores.pop() if self._stores else memoryview(bytearray(RANGE_BYTES))
                threading.Thread(target=self._run, args=(part,), daemon=True).start()
            except (RuntimeError, MemoryError):  # no more threads possible, or too little memory for the range
                budget.release()
                self._next, self._pace.window = begin, 1
                return
            self._parts.append(part)

    def _run(self, part: _Part) -> None:
        """Receive the bytes of *part* in this thread, and wake the reader; then start the next ranges.

        An error is kept in `part.error`, and starts none. Once reading is stopped, the bytes that still come are not
        received.
        """
        begin = time.monotonic()
        try:
            for _ in self._source.receive(part, self._pause):
                if self._stopped:
                    break
                if self._reader_waiting:
                    with self._changed:
                        self._changed.notify_all()
        except BaseException as error:  # raised where the bytes are read
            part.error = error
        part.seconds, part.work = time.monotonic() - begin, time.thread_time()
        with self._changed:
            part.is_done = True
            if part.error is None:
                self._start_ranges()
            self._changed.notify_all()

    def _make_part(self) -> _Part:
        """Return the next range: `_length` bytes, up to RANGE_BYTES and the end of the object, from `_next` on.

        Moves `_next` behind it, and doubles `_length`.
        """
        end, size = self._next + min(self._length, RANGE_BYTES), self._source.size
        part = _Part(self._next, end if size is None else min(end, size))
        self._next, self._length = end, 2 * self._length
        return part

    def _has_more(self) -> bool:
        """True if ranges remain that were not requested yet, or may; False if the server ignores ranges."""
        size = self._source.size
        return self._source.has_ranges and (size is None or self._next < size)

    def _stop_error(self) -> StorageError:
        """Return the error that reading was stopped."""
        return StorageError("reading was stopped", url=self._url)

    def _pause(self, seconds: float) -> None:
        """Wait *seconds* before the next attempt. Raises: StorageError if reading is stopped meanwhile."""
        with self._changed:
            if self._changed.wait_for(lambda: self._stopped, seconds):
                raise self._stop_error()
