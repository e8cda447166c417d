"""Remote objects read by ranges, several ahead if the network is the bottleneck.

One connection to an object store brings some 80 MB/s after a round trip of 30 ms; several side by side bring several
times that. So an object is requested in ranges of 8 MiB, up to `TARTOOLS_READAHEAD` (8) of them at once, all of the
version of the first response; a range that is cut is resumed at the byte where it was cut. As long as one connection is
as fast as its reader there is only one, and no thread: passing bytes between threads takes longer than receiving them.
A server that ignores ranges gives one stream, whose length is checked if the server states it.
"""

from __future__ import annotations

import io
import os
import threading
import time
from collections import deque
from collections.abc import Iterator

from tartools.errors import StorageError
from tartools.storage.objects.budget import budget
from tartools.storage.objects.contract import Object, Reply
from tartools.storage.objects.pace import Pace
from tartools.storage.objects.retry import Attempts, TransientError, setting

RANGE = 8 << 20  # bytes
FIRST_READ, READ = 64 << 10, 1 << 20  # bytes a read, which double: short reads return soon
AHEAD, MOST_AHEAD = 8, 16  # ranges
WORTH = 256 << 10  # bytes; after an attempt that brought so many, attempts are counted from 0
GATHER = 0.05  # seconds to wait for a whole range before its first bytes are read


class _Range:
    """The bytes *start* to *end* (None: up to where the object ends) of an object."""

    def __init__(self, start: int, end: int | None) -> None:
        self.start = start
        self.end = end
        self.received = 0
        self.room: memoryview | None = None  # where bytes go that are received without a thread
        self.store: memoryview | None = None  # and those that are received by one: 8 MiB of the budget
        self.chunks: deque[memoryview] = deque()  # received, not yet read
        self.seconds = self.work = 0.0  # that receiving took, and of the processor
        self.done = False
        self.error: BaseException | None = None


class RangedInput:
    """The bytes of a remote object from *start* on; failures are raised when it is read.

    *first* bytes are requested first, then twice as many, and so on up to 8 MiB. With *size* and *version*, any other
    version is a failure.

    Holds: up to 9 ranges, if `TARTOOLS_READAHEAD` is not set; all inputs together 256 MiB, and 1 MiB for each that
    waits for its next bytes.
    """

    file: io.FileIO | None = None
    start = 0
    framed = True  # the server states the length

    def __init__(
        self,
        source: Object,
        start: int = 0,
        first: int = RANGE,
        size: int | None = None,
        version: str | None = None,
    ) -> None:
        self._source = source
        self._next = start  # of the next part
        self._length = first  # of the next part
        self._size = size
        self._version = version  # None: no response yet
        self._ranged = True
        self._read = FIRST_READ
        self._pace = Pace(setting("TARTOOLS_READAHEAD", AHEAD, MOST_AHEAD))
        self._owner = os.getpid()
        self._own: tuple[_Range, Iterator[int]] | None = None  # received without a thread
        self._rest = memoryview(b"")  # of a chunk
        self._changed = threading.Condition()
        self._parts: deque[_Range] = deque()  # received by threads
        self._stores: list[memoryview] = []  # one to be used again, since memory that is new takes time
        self._receiving = self._hungry = self._stopped = False

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes; 0 at the end.

        Raises: StorageError, with the byte where reading failed; also for an object that was replaced.
        """
        if self._owner != os.getpid():
            raise StorageError("opened before a fork, so this process cannot read it", url=self._source.url)
        while not self._rest:
            if self._stopped:
                raise StorageError("reading was stopped", url=self._source.url)
            if self._parts:
                self._rest = self._from_thread()
            elif self._own is not None or (self._ranged and (self._size is None or self._next < self._size)):
                if count := self._receive_directly(view):
                    return count
            else:
                return 0
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def cancel(self) -> bool:
        """Stop all threads, and a `readinto` that waits for them, but not one that waits for a server."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        return not self._receiving

    def close(self) -> None:
        """Stop reading. Threads that wait for a server end when it responds, or with the process."""
        with self._changed:
            self._stopped = True
            budget.give((len(self._parts) + len(self._stores)) * RANGE)
            self._parts.clear()
            self._stores.clear()
            self._changed.notify_all()
        if self._own is not None and not self._receiving:
            self._own[1].close()  # type: ignore[attr-defined]  # a generator, which releases the connection
            self._own = None

    def __del__(self) -> None:
        if getattr(self, "_parts", None) or getattr(self, "_stores", None):
            self.close()

    # ---- while one connection is enough ----

    def _receive_directly(self, view: memoryview) -> int:
        """Receive the next bytes of the range that needs no thread into *view*; return how many.

        0 at its end, and where the bytes are in `_rest`, because *view* is short.
        """
        if self._own is None:
            part = self._new_part()
            self._own = part, self._bytes_of(part)
        part, flow = self._own
        if part.error is not None:
            raise part.error
        begin, work = time.monotonic(), time.thread_time()
        self._receiving, part.room = True, view if len(view) >= FIRST_READ else None  # short reads take too long
        try:
            count = next(flow, 0)
        except BaseException as error:  # a generator that raised would only stop the next time
            interrupted = StorageError("reading was interrupted", url=self._source.url)
            part.error = error if isinstance(error, Exception) else interrupted
            raise
        finally:
            self._receiving, part.room = False, None
        waited = time.monotonic() - begin
        self._pace.waited(waited)
        part.seconds += waited
        part.work += time.thread_time() - work
        if not count:
            self._own = None
            self._done_with(part)
        if part.chunks:
            self._rest = part.chunks.popleft()
            return 0
        return count

    # ---- several ranges ahead ----

    def _from_thread(self) -> memoryview:
        """Return the next bytes of the first part that threads receive; none at its end."""
        part = self._parts[0]
        if not part.chunks:
            begin = time.monotonic()
            with self._changed:  # waking up for each chunk would take longer than reading
                self._changed.wait_for(lambda: part.done or self._stopped, GATHER)
                self._hungry = True
                self._changed.wait_for(lambda: part.chunks or part.done or self._stopped)
                self._hungry = False
            self._pace.waited(time.monotonic() - begin)
        if part.chunks and not self._stopped:
            return part.chunks.popleft()
        if part.error is not None:
            raise part.error
        if not self._stopped:
            with self._changed:
                self._parts.popleft()
                if part.store is not None:
                    self._stores.append(part.store)
                self._done_with(part)
        return memoryview(b"")

    def _done_with(self, part: _Range) -> None:
        """Decide how many ranges are requested at once, and request them."""
        self._pace.done(part.seconds, part.work, alone=part.store is None)
        with self._changed:
            self._ask()
            while len(self._stores) > (self._pace.window > 1 and self._next < (self._size or 0)):
                self._stores.pop()
                budget.give(RANGE)

    def _ask(self) -> None:
        """Start threads for as many parts as the window and the budget allow."""
        window = self._pace.window
        while window > 1 and not self._stopped and self._ranged and self._next < (self._size or 0):
            under_way = sum(not part.done for part in self._parts)
            if under_way >= window or len(self._parts) > window:
                return
            if not self._stores and not budget.take(RANGE):
                return  # then the reader receives the next part without a thread
            part = self._new_part()
            part.store = self._stores.pop() if self._stores else memoryview(bytearray(RANGE + 1))
            thread = threading.Thread(target=self._run, args=(part,), daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads possible
                budget.give(RANGE)
                self._next, self._pace.window = part.start, 1
                return
            self._parts.append(part)

    def _run(self, part: _Range) -> None:
        """Receive *part* in a thread."""
        begin = time.monotonic()
        try:
            for _ in self._bytes_of(part):
                if self._hungry:
                    with self._changed:
                        self._changed.notify_all()
        except BaseException as error:  # raised where the bytes are read
            part.error = error
        part.seconds, part.work = time.monotonic() - begin, time.thread_time()
        with self._changed:
            part.done = True
            if part.error is None:
                self._ask()
            self._changed.notify_all()

    # ---- one range ----

    def _new_part(self) -> _Range:
        """Return the part that comes next."""
        end = self._next + min(self._length, RANGE)
        part = _Range(self._next, end if self._size is None else min(end, self._size))
        self._next, self._length = end, 2 * self._length
        return part

    def _bytes_of(self, part: _Range) -> Iterator[int]:
        """Receive the bytes of *part*, up to 1 MiB at a time, and resume where it was cut; yield how many each time.

        They are in the room that the part has, or else in new chunks.
        """
        attempts = Attempts(self._source.url)
        while not self._stopped:
            before = part.received
            try:
                for count in self._one_attempt(part):
                    part.received += count
                    yield count
                return
            except TransientError as error:
                if part.received - before >= WORTH:
                    attempts.restart()
                self._read = FIRST_READ  # a reset discards what a read has so far
                pause = attempts.failed(error, part.start + part.received)
            with self._changed:
                self._changed.wait_for(lambda: self._stopped, pause)

    def _one_attempt(self, part: _Range) -> Iterator[int]:
        """Receive the missing bytes of *part* from one response, as `_bytes_of` does.

        Raises: TransientError, StorageError.
        """
        position = part.start + part.received
        reply = self._source.get(position, part.end, self._version or "")
        try:
            if self._version is None:
                reply = self._first(reply, part)
            else:
                self._check(reply, part, position)
            surplus = position - reply.start  # if the server began at 0
            while not self._stopped:
                missing = READ if part.end is None else part.end - position
                most = min(self._read, missing, surplus or READ) or 1
                room = part.room if part.store is None else part.store[part.received :]
                data = memoryview(reply.body.read(most) if room is None else b"")
                count = len(data) if room is None else reply.body.readinto(room[:most])
                self._read = min(2 * self._read, READ)
                if not count:
                    break
                if not missing:
                    raise StorageError(
                        "the server sent more bytes than it stated", url=self._source.url, offset=position
                    )
                if surplus:
                    surplus -= count
                else:
                    position += count
                    if part.room is None:
                        part.chunks.append(data if room is None else room[:count])
                    yield count
            else:
                return
        finally:
            reply.body.close()
        if position < (part.end if part.end is not None else self._size or 0):
            raise TransientError("the connection was cut")

    def _first(self, reply: Reply, part: _Range) -> Reply:
        """Learn from the first response the object's size and version, and whether the server has ranges.

        Return the response to read: one of the whole object if no version pins the parts.
        """
        assert part.end is not None
        if reply.size is not None and reply.start == part.start:
            rest = max(reply.size - part.start, 0)
            if reply.length == min(part.end - part.start, rest) and (reply.version or reply.length == rest):
                part.end = part.start + reply.length
                self._size, self._version = reply.size, reply.version
                return reply
        if reply.start or (reply.length is not None and reply.size != reply.length):
            reply.body.close()
            reply = self._source.get(0, None, "")
        self._ranged, part.end, self.framed = False, None, reply.framed
        self._size, self._version = reply.size, reply.version
        return reply

    def _check(self, reply: Reply, part: _Range, position: int) -> None:
        """Check a later response against the first. Raises: TransientError, StorageError."""
        other = self._version and reply.version != self._version  # without a version, no byte of this was read yet
        if other or reply.size not in (None, self._size):
            raise StorageError("was replaced while it was being read", url=self._source.url, offset=position)
        if not self._version and position > part.start:
            raise StorageError(
                "the connection was cut, and the server gives no version (ETag) to resume",
                url=self._source.url,
                offset=position,
            )
        if reply.start not in ((position,) if self._ranged else (0, position)):
            raise TransientError("the server ignored the range of the request")
        if self._ranged and reply.length not in (None, (part.end or 0) - position):
            raise TransientError("the server sent another range than the requested one")
