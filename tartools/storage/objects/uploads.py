"""Objects that are uploaded in parts while they are written, and appear at `commit`.

Threads send full parts while the next one is being filled. Nothing is visible before all parts have arrived; an abort
drops them. No destructor completes an upload.

    write ─► [ part being filled ] ─full─► threads: [ part 3 ][ part 4 ] ─► store: parts 1, 2   commit ─► object

`write` waits while each worker sends a part: a slow store slows the writer, and memory stays bounded. An output of one
part or less is sent by a single request at `commit`. Without --force a store that
can makes the object only if none of this name exists: of two writers the second to commit fails.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Protocol

from tartools.errors import StorageError
from tartools.storage.objects.retry import TransientError, call_with_retries
from tartools.storage.pool import Threads

MIN_PART_BYTES = 16 << 20  # bytes
LARGE_PARTS_FROM = 500  # number of the first part that has 32 MiB: 25 GB in Swift's 1,000 parts, 327 GB in S3's 10,000
MAX_PARTS = 10_000  # parts
ABORT_SECONDS = 15.0  # seconds for an abort, half of them for requests under way to end


class Target(Protocol):
    """An upload of one object to a store. Each call is one attempt, and raises `TransientError` to be retried.

    The calls come from several threads: `put` alone; or `begin`, `part` for each part but the last (up to `workers` at
    once), `complete`. `abort` comes last, if at all, and only after `begin`. All raise StorageError for failures that a
    retry does not help; `put` and `complete` ExistsError if the object exists and the target may not replace it.
    """

    @property
    def url(self) -> str:
        """The URL of the object."""
        ...

    @property
    def workers(self) -> int:
        """The number of parts that may be sent at once: 1 if they have to come in order."""
        ...

    def put(self, data: bytearray) -> None:
        """Make the object of *data*, all of its bytes; by one request, if the protocol has such a request."""
        ...

    def begin(self) -> None:
        """Begin an upload in parts."""
        ...

    def part(self, number: int, offset: int, data: bytearray) -> None:
        """Send part *number* (from 1), *data*, which begins at byte *offset* of the object."""
        ...

    def complete(self, number: int, offset: int, data: bytearray) -> None:
        """Send the last part *data*, number *number*, at byte *offset*, and let the object appear.

        It is called again after a `TransientError`, perhaps one that came when the object had appeared.
        """
        ...

    def abort(self) -> None:
        """Drop the parts that were sent since `begin`."""
        ...


class Upload:
    """An output that makes an object in a store by the requests of *target*: `write`, then `commit` or `abort`.

    It is its own sink. Holds: one part more than the target has workers, of MIN_PART_BYTES each, twice as many from
    part LARGE_PARTS_FROM on.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._owner = os.getpid()  # a fork of this process that ends leaves the upload alone
        self._part = bytearray()
        self._number = 1  # of the part that is being filled
        self._offset = 0  # of its first byte
        self._threads: Threads[Callable[[], None], None] = Threads(target.workers, self._try)
        self._running, self._ended = 0, SimpleQueue[None]()  # requests; one item for each that has ended
        self._has_begun = self._is_over = False
        self._cancelled = threading.Event()  # there was an abort, or an error
        self._error: BaseException | None = None

    @property
    def sink(self) -> Upload:
        """The object whose `write` takes the bytes: this one."""
        return self

    def write(self, data: bytes | bytearray | memoryview, /) -> int:
        """Take all of *data*; wait while all workers are busy. Returns its length in bytes.

        Raises: the error of the first request that failed, perhaps for an earlier part (StorageError); StorageError if
        the object would have more than MAX_PARTS parts.
        """
        view = memoryview(data).cast("B")
        while view.nbytes:
            size = 2 * MIN_PART_BYTES if self._number >= LARGE_PARTS_FROM else MIN_PART_BYTES
            if len(self._part) == size:
                self._send_part()
                continue
            room = size - len(self._part)
            self._part += view[:room]
            view = view[room:]
        return memoryview(data).nbytes

    def commit(self) -> None:
        """Send the rest, wait for all parts, and let the object appear.

        Raises: StorageError, also if the object exists by now and may not be replaced. Then the caller calls `abort`.
        """
        number, offset, data = self._number, self._offset, self._part
        self._wait(0)
        put_all = partial(self._target.put, data)
        self._start(partial(self._target.complete, number, offset, data) if self._has_begun else put_all)
        self._wait(0)
        self._is_over = True
        self._threads.close()

    def abort(self) -> None:
        """Stop sending, and drop the sent parts. Takes up to ABORT_SECONDS if the store does not respond.

        Does nothing after a `commit` that succeeded, the second time, and in a fork of the process that made it.
        """
        if os.getpid() != self._owner or self._is_over:
            return
        self._is_over = True
        self._cancelled.set()
        self._part = bytearray()
        ending = threading.Thread(target=self._end, daemon=True)
        try:
            ending.start()
        except RuntimeError:  # Python 3.12.1 starts no threads when the interpreter ends
            self._end()
        else:
            ending.join(ABORT_SECONDS)

    def _end(self) -> None:
        """Wait for requests under way, then drop the parts: one that arrives later may be kept for ever.

        Waits up to half of ABORT_SECONDS; if no upload in parts was begun, it waits without limit, and drops nothing.
        Dropping has four attempts; then its errors are ignored.
        """
        self._threads.stop(ABORT_SECONDS / 2 if self._has_begun else None)
        for pause in (0.5, 1.0, 2.0, 0.0) if self._has_begun else ():  # a server that is busy now may not be soon
            try:
                return self._target.abort()
            except TransientError:
                time.sleep(pause)
            except StorageError:
                return None
        return None

    def _send_part(self) -> None:
        """Give the full part to a thread when a worker is free, and begin the next one.

        The first time, the upload in parts is begun before. Raises: StorageError if the full part has number MAX_PARTS;
        the error of the first failed request.
        """
        if self._number == MAX_PARTS:
            raise StorageError(f"an object can't have more than {self._offset} bytes", url=self._target.url)
        number, offset, data = self._number, self._offset, self._part
        if not self._has_begun:
            self._start(self._begin)
            self._wait(0)
        self._wait(self._target.workers - 1)
        self._start(partial(self._target.part, number, offset, data))
        self._number, self._offset, self._part = number + 1, offset + len(data), bytearray()

    def _begin(self) -> None:
        """Begin the upload in parts."""
        self._target.begin()
        self._has_begun = True  # set in this thread: no signal can come in between

    def _start(self, work: Callable[[], None]) -> None:
        """Have *work* called in a thread, unless the upload is over."""
        if not self._is_over:  # an abort in another thread
            self._running += 1
            self._threads.submit(work, partial(self._ended.put, None))

    def _wait(self, max_running: int) -> None:
        """Wait until at most *max_running* requests are under way.

        Raises: the error of the first failed request, at once: others may still be under way.
        """
        while self._running > max_running and self._error is None:
            self._ended.get()
            self._running -= 1
        if self._error is not None:
            raise self._error

    def _try(self, work: Callable[[], None]) -> None:
        """Call *work* with retries, unless the upload is cancelled; an error of it cancels the upload.

        Raises nothing: the first error of the upload is kept for `_wait`, later ones are dropped.
        """
        try:
            if not self._cancelled.is_set():
                call_with_retries(work, self._target.url, self._pause)
        except BaseException as error:  # raised where the output is written
            self._error = self._error or error
            self._cancelled.set()

    def _pause(self, seconds: float) -> None:
        """Wait *seconds* before the next attempt.

        Raises: the error of the upload if it is cancelled meanwhile; StorageError if that was by `abort`.
        """
        if self._cancelled.wait(seconds):
            raise self._error or StorageError("the upload was dropped", url=self._target.url)
