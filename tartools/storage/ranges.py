"""Remote objects read by ranges, several ahead where the network is what one waits for.

One connection of an object store brings some 80 MB/s after a round trip of 30 ms; several side by side bring several
times that. So an object is asked for in ranges of 8 MiB, up to `TARTOOLS_READAHEAD` (8) of them at once, all of the
version that the first answer had, each tried again from the byte where it was cut. As long as one connection is as fast
as its reader there is only one, and no thread: handing bytes from thread to thread takes longer than receiving them.
A server that ignores ranges gives one stream, checked as far as it says how long it is.
"""

from __future__ import annotations

import io
import os
import threading
import time
from collections import deque
from collections.abc import Iterator

from tartools.errors import StorageError
from tartools.storage.stores import Object, Reply
from tartools.storage.tries import Passing, Tries, setting

RANGE = 8 << 20  # bytes
FIRST_READ, READ = 64 << 10, 1 << 20  # bytes a read, which double: who wants little does not wait for much
AHEAD, MOST_AHEAD = 8, 16  # ranges
BUDGET = 256 << 20  # bytes that all open objects of this process may hold ahead
WORTH = 256 << 10  # bytes; a try that brought so much was not in vain
BUSY = 4  # times the processor's part in receiving a range: one that took longer was waited for
GATHER = 0.05  # seconds to wait for a whole range before what is there of it is read


class _Budget:
    """Bytes of memory that the open objects share."""

    def __init__(self, free: int) -> None:
        self._lock = threading.Lock()
        self._free = free

    def take(self, count: int) -> bool:
        """Take *count* bytes, if there are so many."""
        with self._lock:
            enough = self._free >= count
            self._free -= count * enough
            return enough

    def give(self, count: int) -> None:
        """Give *count* bytes back."""
        with self._lock:
            self._free += count


budget = _Budget(BUDGET)
os.register_at_fork(after_in_child=lambda: budget.__init__(BUDGET))  # type: ignore[misc]  # what it holds is not ours


class _Piece:
    """The bytes *start* to *end* (None: up to where the object ends) of an object."""

    def __init__(self, start: int, end: int | None, held: int = 0) -> None:
        self.start = start
        self.end = end
        self.held = held  # bytes of the budget
        self.received = 0
        self.chunks: deque[memoryview] = deque()  # that a thread received, and nobody has read yet
        self.seconds = self.work = 0.0  # that receiving took, and of them the processor's
        self.done = False
        self.error: BaseException | None = None


class RangedInput:
    """The bytes of a remote object from *start* on; what is wrong with it shows when it is read.

    *first* bytes are asked for first, then twice as many, and so on up to 8 MiB. Who knows its *size* and *version*
    gets no other.

    Holds: up to 9 ranges, if `TARTOOLS_READAHEAD` is not set; all inputs together 256 MiB, and those that wait for
    their next bytes 1 MiB each.
    """

    file: io.FileIO | None = None
    start = 0
    framed = True  # the end that the server tells is the end

    def __init__(
        self,
        source: Object,
        start: int = 0,
        first: int = RANGE,
        size: int | None = None,
        version: str | None = None,
    ) -> None:
        self._source = source
        self._next = start  # of the next piece
        self._length = first  # of the next piece
        self._size = size
        self._version = version  # None: nobody has answered yet
        self._ranged = True
        self._read = FIRST_READ
        self._ahead = setting("TARTOOLS_READAHEAD", AHEAD, MOST_AHEAD)
        self._owner, self._window = os.getpid(), 1  # process; ranges that are asked for at once
        self._slow = 0  # ranges in a row that the network kept the reader waiting for
        self._waited, self._since = 0.0, time.monotonic()  # seconds of waiting for the range that is read, since when
        self._own: tuple[_Piece, Iterator[bytes]] | None = None  # what the reader receives itself
        self._rest = memoryview(b"")  # of what it received
        self._changed = threading.Condition()
        self._pieces: deque[_Piece] = deque()  # that threads receive
        self._receiving = self._hungry = self._stopped = False

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes; 0 at the end.

        Raises: StorageError with the byte where the object could not be read on, or for an object that was replaced.
        """
        if self._owner != os.getpid():
            raise StorageError("this was opened by the process that this one was forked from", url=self._source.url)
        while not self._rest:
            if self._stopped:
                raise StorageError("reading was stopped", url=self._source.url)
            if self._pieces:
                self._rest = self._from_thread()
            elif self._own is not None or (self._ranged and (self._size is None or self._next < self._size)):
                self._rest = self._receive_own()
            else:
                return 0
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def skip(self, count: int, /) -> None:
        """Never asked for: there is no file."""
        raise AssertionError("only files are skipped in")

    def cancel(self) -> bool:
        """Stop all threads, and a `readinto` that waits for them; not one that waits for a server itself."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        return not self._receiving

    def close(self) -> None:
        """Stop reading. Threads that wait for their server end with it, or with the process."""
        with self._changed:
            self._stopped = True
            while self._pieces:
                budget.give(self._pieces.popleft().held)
            self._changed.notify_all()
        if self._own is not None and not self._receiving:
            self._own[1].close()  # type: ignore[attr-defined]  # a generator, which lets go of the connection
            self._own = None

    def __del__(self) -> None:
        if getattr(self, "_pieces", None):
            self.close()

    # ---- while one connection is enough ----

    def _receive_own(self) -> memoryview:
        """Return the next bytes of the range that the reader receives itself; none at its end."""
        if self._own is None:
            piece = self._new_piece(0)
            self._own = piece, self._bytes_of(piece)
        piece, flow = self._own
        if piece.error is not None:
            raise piece.error
        begin, work = time.monotonic(), time.thread_time()
        self._receiving = True
        try:
            data = next(flow, b"")
        except BaseException as error:  # an iterator that failed would end the next time
            interrupted = StorageError("reading was interrupted", url=self._source.url)
            piece.error = error if isinstance(error, Exception) else interrupted
            raise
        finally:
            self._receiving = False
        waited = time.monotonic() - begin
        self._waited += waited
        piece.seconds += waited
        piece.work += time.thread_time() - work
        if not data:
            self._own = None
            self._done_with(piece)
        return memoryview(data)

    # ---- several ranges ahead ----

    def _from_thread(self) -> memoryview:
        """Return the next bytes of the first piece that threads receive; none at its end."""
        piece = self._pieces[0]
        if not piece.chunks:
            begin = time.monotonic()
            with self._changed:  # waking up for each read would take longer than reading
                self._changed.wait_for(lambda: piece.done or self._stopped, GATHER)
                self._hungry = True
                self._changed.wait_for(lambda: piece.chunks or piece.done or self._stopped)
                self._hungry = False
            self._waited += time.monotonic() - begin
        if piece.chunks and not self._stopped:
            return piece.chunks.popleft()
        if piece.error is not None:
            raise piece.error
        if not self._stopped:
            with self._changed:
                self._pieces.popleft()
                budget.give(piece.held)
                self._done_with(piece)
        return memoryview(b"")

    def _done_with(self, piece: _Piece) -> None:
        """Double the window if the network kept the reader waiting for *piece*, and ask for what it allows.

        More connections do not help a reader that is slower than one, and slow down one that shares its processor.
        """
        now = time.monotonic()
        slow = 2 * self._waited > now - self._since and piece.seconds > BUSY * piece.work
        self._slow = self._slow + 1 if slow else 0
        if self._slow > (self._window == 1):  # twice before there are threads: that may have been chance
            self._window = min(2 * self._window, self._ahead)
        self._waited, self._since = 0.0, now
        if self._window > 1:
            with self._changed:
                self._ask()

    def _ask(self) -> None:
        """Have threads receive as many pieces as the window and the budget allow."""
        while not self._stopped and self._ranged and self._next < (self._size or 0):
            under_way = sum(not piece.done for piece in self._pieces)
            if under_way >= self._window or len(self._pieces) > self._window:
                return
            if not budget.take(RANGE):
                return  # the reader receives the next one itself, if it has nothing else
            piece = self._new_piece(RANGE)
            thread = threading.Thread(target=self._run, args=(piece,), daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads are to be had
                budget.give(RANGE)
                self._next, self._window = piece.start, 1
                return
            self._pieces.append(piece)

    def _run(self, piece: _Piece) -> None:
        """Receive *piece* in a thread."""
        begin = time.monotonic()
        try:
            for data in self._bytes_of(piece):
                piece.chunks.append(memoryview(data))
                if self._hungry:
                    with self._changed:
                        self._changed.notify_all()
        except BaseException as error:  # raised where the bytes are read
            piece.error = error
        piece.seconds, piece.work = time.monotonic() - begin, time.thread_time()
        with self._changed:
            piece.done = True
            if piece.error is None:
                self._ask()
            self._changed.notify_all()

    # ---- one range ----

    def _new_piece(self, held: int) -> _Piece:
        """Return the piece that comes next."""
        end = self._next + min(self._length, RANGE)
        piece = _Piece(self._next, end if self._size is None else min(end, self._size), held)
        self._next, self._length = end, 2 * self._length
        return piece

    def _bytes_of(self, piece: _Piece) -> Iterator[bytes]:
        """Yield the bytes of *piece*, up to 1 MiB at a time, trying again where it was cut."""
        tries = Tries(self._source.url)
        while not self._stopped:
            before = piece.received
            try:
                for data in self._one_try(piece):
                    piece.received += len(data)
                    yield data
                return
            except Passing as error:
                if piece.received - before >= WORTH:
                    tries.restart()
                self._read = FIRST_READ  # a reset takes with it what a read has so far
                pause = tries.failed(error, piece.start + piece.received)
            with self._changed:
                self._changed.wait_for(lambda: self._stopped, pause)

    def _one_try(self, piece: _Piece) -> Iterator[bytes]:
        """Yield what is missing of *piece*, of one answer. Raises: Passing, StorageError."""
        position = piece.start + piece.received
        reply = self._source.get(position, piece.end, self._version or "")
        try:
            if self._version is None:
                reply = self._first(reply, piece)
            else:
                self._check(reply, piece, position)
            surplus = position - reply.start  # of a server that began at 0
            while not self._stopped:
                missing = READ if piece.end is None else piece.end - position
                data = reply.body.read(min(self._read, missing, surplus or READ) or 1)
                self._read = min(2 * self._read, READ)
                if not data:
                    break
                if not missing:
                    raise StorageError("the server sent more than it said", url=self._source.url, offset=position)
                if surplus:
                    surplus -= len(data)
                else:
                    position += len(data)
                    yield data
            else:
                return
        finally:
            reply.body.close()
        if position < (piece.end if piece.end is not None else self._size or 0):
            raise Passing("the connection was cut")

    def _first(self, reply: Reply, piece: _Piece) -> Reply:
        """Learn from the first answer how large the object is, which version it is, and whether there are ranges.

        Returns the answer to go on with: all of the object, where nothing pins a part.
        """
        assert piece.end is not None
        if reply.size is not None and reply.start == piece.start:
            rest = max(reply.size - piece.start, 0)
            if reply.length == min(piece.end - piece.start, rest) and (reply.version or reply.length == rest):
                piece.end = piece.start + reply.length
                self._size, self._version = reply.size, reply.version
                return reply
        if reply.start or (reply.length is not None and reply.size != reply.length):
            reply.body.close()
            reply = self._source.get(0, None, "")
        self._ranged, piece.end, self.framed = False, None, reply.framed
        self._size, self._version = reply.size, reply.version
        return reply

    def _check(self, reply: Reply, piece: _Piece, position: int) -> None:
        """Check a later answer against the first. Raises: Passing, StorageError."""
        other = self._version and reply.version != self._version  # without one, nothing of this was read yet
        if other or reply.size not in (None, self._size):
            raise StorageError("this was replaced while it was being read", url=self._source.url, offset=position)
        if not self._version and position > piece.start:
            raise StorageError(
                "the connection was cut, and this server gives no version (ETag) by which to ask for the rest",
                url=self._source.url,
                offset=position,
            )
        if reply.start not in ((position,) if self._ranged else (0, position)):
            raise Passing("the server ignored the range it was asked for")
        if self._ranged and reply.length not in (None, (piece.end or 0) - position):
            raise Passing("the server sent another range than it was asked for")
