"""Ranges of objects: all of one version, each resumed where it was cut. All reads of objects go through here."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator

from tartools.errors import ChangedError, StorageError
from tartools.storage.objects.contract import Object, Reply
from tartools.storage.objects.retry import Attempts, TransientError

FIRST_READ_SIZE, MAX_OBJECT_READ_BYTES = 64 << 10, 1 << 20  # bytes a read, which double: short reads return soon
REPLACED_WHILE_READ = "was replaced while it was being read"


class Range:
    """The bytes *start* to *end* (exclusive; None: to the end of the object), and where they are received.

    *end*: the first response to a `Pinned` object of unknown version changes it to the end of the bytes in that
    response, or to None if the server ignores ranges.
    *buffer*: memory with room for all of them, or None.
    `destination`: if not None, memory for the next bytes, which are then not in `chunks`; used only without *buffer*.
    `chunks`: received bytes that the reader has not taken yet, as views of *buffer* or of new memory.
    *repeatable*: True if no reader sees the bytes before all have come, so that they may be received anew.
    `received`: how many bytes have come.
    `verified`: True if the received bytes are known to be of the pinned version.
    """

    def __init__(self, start: int, end: int | None, buffer: memoryview | None = None, repeatable: bool = False) -> None:
        self.start = start
        self.end = end
        self.buffer = buffer
        self.repeatable = repeatable
        self.destination: memoryview | None = None
        self.received = 0
        self.chunks: deque[memoryview] = deque()
        self.verified = False  # the received bytes are of the pinned version

    @property
    def position(self) -> int:
        """The byte of the object that comes next."""
        return self.start + self.received

    def take(self, reply: Reply, max_bytes: int) -> int:
        """Receive up to *max_bytes* bytes of the body of *reply*; return how many, 0 at its end.

        They go into `buffer`, behind the bytes received before, and `chunks` gets a view of them; else into
        `destination`; else into new memory in `chunks`. The caller adds the number to `received`. Raises:
        TransientError; StorageError.
        """
        buffer = self.destination if self.buffer is None else self.buffer[self.received :]
        data = buffer[: reply.body.readinto(buffer[:max_bytes])] if buffer else memoryview(reply.body.read(max_bytes))
        if self.destination is None and data:
            self.chunks.append(data)
        return len(data)


class Pinned:
    """The object *source*, all of whose ranges, which `receive` gets, are of one version.

    *size*, *version*: the size in bytes and the version to read; both None for those of the first response. With a
    version, the size -1 stands for an unknown one: each response that states a size fails. If *version* is "", only
    sizes are compared.
    *has_ranges*: False if the server may send all of the object where a range was requested. Without a version, the
    first response sets it.
    *from_listing*: True if the version comes from a listing: the server may not send it with the data, as emulators of
    GCS do.
    *changed_message*: of the error for another version.
    `is_framed`: False if the server did not state where the bytes end, so that they may be truncated.
    """

    is_framed = True  # the server states the length

    def __init__(
        self,
        source: Object,
        size: int | None = None,
        version: str | None = None,
        *,
        has_ranges: bool = True,
        from_listing: bool = False,
        changed_message: str = REPLACED_WHILE_READ,
    ) -> None:
        self.source = source
        self.size = size
        self.version = version  # None: no response yet
        self.has_ranges = has_ranges
        self._from_listing = from_listing
        self._changed_message = changed_message
        self._read = FIRST_READ_SIZE

    def receive(self, part: Range, wait: Callable[[float], object] = time.sleep) -> Iterator[int]:
        """Receive the bytes of *part*, and resume where they were cut; yield the number of bytes received each time.

        The end of *part* may be None only if the version is known. An empty *part* is requested, too, to see that the
        object is there. Bytes that are dropped and received anew are yielded again. *wait* is called with the seconds
        until the next attempt, if any, before the first one only if the server limits requests; it may raise, to give
        up.

        Raises: StorageError after the last attempt, for another version, for a failure that no retry helps, or for a
        cut if the server gives no version and *part* is not repeatable; UsageError for an invalid `TARTOOLS_TRIES`.
        """
        attempts = Attempts(self.source.url, lambda: part.position)
        if part.repeatable and part.end is not None:
            self._read = max(part.end - part.start, FIRST_READ_SIZE)  # all at once, until that fails
        while True:
            if pause := attempts.start():
                wait(pause)
            try:
                yield from self._attempt(part)
                attempts.succeed()
                return
            except TransientError as error:
                if part.received and part.position == part.end:
                    return  # only the end of the body is missing: the last chunk
                self._read = FIRST_READ_SIZE  # a reset discards what a read has so far
                self._drop_unverified(part)
                wait(attempts.record_failure(error))

    def _drop_unverified(self, part: Range) -> None:
        """Drop the received bytes of *part* if the next bytes may be of another version.

        Raises: StorageError if a reader may have seen them.
        """
        if part.verified or not part.received:
            return
        if not part.repeatable:
            message = "the connection was dropped, and the server gives no version (ETag) to resume"
            raise self._failure(message, part)
        part.received = 0
        part.chunks.clear()

    def _attempt(self, part: Range) -> Iterator[int]:
        """Receive the missing bytes of *part* from one response; yield the number of bytes received each time.

        Sets `part.verified`. Raises: TransientError, also if the response ends too early; StorageError.
        """
        begin = part.position
        end = None if part.end is None else max(part.end, begin + 1)  # of nothing a byte: is the object there?
        reply = self.source.get(begin, end, self.version or "")
        try:
            if self.version is None:
                reply = self._pin_version(reply, part)
            else:
                self._check(reply, part)
            part.verified = bool(self.version and reply.version)
            if part.end != part.start:
                yield from self._body(reply, part)
        finally:
            reply.body.close()
        if part.position < (part.end if part.end is not None else self.size or 0):
            raise TransientError("the connection was dropped")

    def _body(self, reply: Reply, part: Range) -> Iterator[int]:
        """Receive the body of *reply* into *part*; yield the number of bytes received each time.

        Bytes before *part* are skipped if the server sends the object from its begin. It ends where the body does, even
        before the end of *part*. Raises: TransientError; StorageError, also if a server with ranges, or one that stated
        this length, sends more.
        """
        surplus = part.position - reply.start  # if the server began at 0
        while surplus and (count := len(reply.body.read(min(surplus, MAX_OBJECT_READ_BYTES)))):
            surplus -= count
        exact = self.has_ranges or part.end is None or reply.length == part.end - part.position
        while not surplus:
            missing = MAX_OBJECT_READ_BYTES if part.end is None else part.end - part.position
            if not missing and not exact:
                return
            count = part.take(reply, min(self._read, missing) or 1)
            self._read = max(self._read, min(2 * self._read, MAX_OBJECT_READ_BYTES))
            if not count:
                return
            if not missing:
                raise self._failure("the server sent more bytes than it stated", part)
            part.received += count
            yield count

    def _pin_version(self, reply: Reply, part: Range) -> Reply:
        """Learn from the first response the object's size and version, and whether the server has ranges.

        Returns the response to read: *reply* if it has the range of *part*, and a version or all bytes to the end of
        the object; `part.end` becomes the end of its bytes. Else the server counts as one without ranges, `part.end`
        becomes None, and the response is that of the whole object: *reply*, or one to a new request. Raises:
        TransientError; StorageError.
        """
        assert part.end is not None
        if reply.size is not None and reply.start == part.start:
            remaining = max(reply.size - part.start, 0)
            if reply.length == min(part.end - part.start, remaining) and (reply.version or reply.length == remaining):
                part.end = part.start + reply.length
                self.size, self.version = reply.size, reply.version
                self.has_ranges = reply.length < reply.size  # all of it comes whether the server has ranges or not
                return reply
        if reply.start or (reply.length is not None and reply.size != reply.length):
            reply.body.close()
            reply = self.source.get(0, None, "")
        self.has_ranges, part.end, self.is_framed = False, None, reply.is_framed
        self.size, self.version = reply.size, reply.version
        return reply

    def _check(self, reply: Reply, part: Range) -> None:
        """Compare *reply* with the pinned version and the range of *part*.

        If a version is pinned, a response without one counts as another version, unless the pinned one comes from a
        listing, or *part* is empty. A size that is not stated is not compared. Raises: ChangedError for another version
        or size; TransientError for another range.
        """
        nothing = part.end == part.start
        silent = not reply.version and (self._from_listing or nothing)
        if (self.version and reply.version != self.version and not silent) or reply.size not in (None, self.size):
            raise ChangedError(self._changed_message, url=self.source.url, offset=part.position)
        if reply.start != part.position and (self.has_ranges or reply.start):
            raise TransientError("the server ignored the range of the request")
        if self.has_ranges and not nothing and reply.length not in (None, (part.end or 0) - part.position):
            raise TransientError("the server sent another range than the requested one")

    def _failure(self, message: str, part: Range) -> StorageError:
        """Return a StorageError with *message*, the URL, and the byte of *part* that comes next."""
        return StorageError(message, url=self.source.url, offset=part.position)
