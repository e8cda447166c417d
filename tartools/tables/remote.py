"""Samples of shards on servers that a table lists."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from mmap import mmap
from typing import Any, NamedTuple

from tartools.errors import StorageError, TarToolsError
from tartools.samples.sample import Batch
from tartools.storage.checks import version_of
from tartools.storage.objects import fetch_into, fetched, object_at, requests_at_once
from tartools.storage.objects.ranges import RANGE, RangedInput
from tartools.storage.pool import Threads
from tartools.storage.streams import size_in_version
from tartools.tables.rowplaces import Checker, Piece

LARGE = 16 << 20  # bytes; a larger sample that is alone in its window is read as a stream
WINDOW = 32 << 20  # bytes of samples that are requested together
WINDOWS = 3  # that are under way
WHOLE = 4  # windows; more samples are not read into one buffer
SPAN = 8 << 20  # bytes of one request, at most
LEAST = 1 << 20  # and at least, before more requests are made instead
GAP = 1 << 20  # bytes between two samples that one request may bring in vain
WASTE = 0.1  # of the bytes of a request


class Span(NamedTuple):
    """One request: bytes *begin* to *end* of the shard *number*, for the rows *wanted* (by their index)."""

    number: int
    begin: int
    end: int
    wanted: list[int]


def spans(rows: Piece, most: int) -> list[Span]:
    """Return the requests that bring the samples of *rows*: those near each other in one shard together.

    So many as *most* are made side by side, each of at least 1 MiB, because each connection has its own limit.
    """
    import numpy as np

    size = min(max(rows.size // most, LEAST), SPAN)
    found: list[Span] = []
    wasted = 0  # bytes of the last one that are for no row
    for index in np.lexsort((rows.ends, rows.begins, rows.numbers)).tolist():
        number, begin, end = rows.place(index)
        if found:
            last = found[-1]
            upto, lost = max(end, last.end), wasted + max(0, begin - last.end)
            near = begin <= last.end + GAP and upto - last.begin <= size
            if number == last.number and near and lost <= WASTE * (upto - last.begin):
                last.wanted.append(index)
                found[-1] = last._replace(end=upto)
                wasted = lost
                continue
        found.append(Span(number, begin, end, [index]))
        wasted = 0
    return found


class _Asked:
    """The bytes of *rows*, which are requested by *spans*, in *data*: row n begins at `bounds[n]`.

    That is *room* if there is one. There are to be *most* requests at a time.
    """

    def __init__(self, rows: Piece, room: memoryview | None, most: int) -> None:
        import numpy as np

        self.rows = rows
        self.bounds: list[int] = rows.bounds().tolist()
        # pages are cleared by the threads, as bytes come; `np.empty` asks for huge ones, which can take longer
        self.data: Any = np.frombuffer(mmap(-1, self.bounds[-1]), np.uint8) if room is None else room
        self.spans = spans(rows, most)
        self.answers: list[Callable[[], object]] = []  # for each span, once it was requested
        self.unwanted = False


class RemoteShards:
    """The shards on servers that *checker* reads. Several threads may read.

    Holds: up to 256 MiB of samples for each `samples` that is under way, less where it is one of several *sources*.
    """

    def __init__(self, checker: Checker, sources: int) -> None:
        self._window = WINDOW // sources
        self._listing = checker.listing
        self._checker = checker
        self._at_once = max(requests_at_once() // sources, 1)
        self._requests: Threads[Callable[[], Any], Any] = Threads(self._at_once)
        self._versions: dict[int, str] = {}  # of shards whose versions the table does not tell
        self._locks: dict[int, threading.Lock] = {}  # of shards whose versions are being asked for

    def close(self) -> None:
        """Stop all requests."""
        self._requests.close()

    def samples(self, rows: Piece) -> Iterator[Batch]:
        """Yield the samples of *rows*, in batches."""
        waiting: deque[_Asked] = deque()
        for part in rows.windows(self._window):
            large = len(part) == 1 and int(part.ends[0] - part.begins[0]) > LARGE
            if not large:
                waiting.append(_Asked(part, None, max(self._at_once // WINDOWS, 1)))
                self._request(waiting[-1])
            while waiting and (large or len(waiting) >= WINDOWS):
                yield from self._checker.in_memory(waiting[0].rows, self._answered(waiting.popleft()))
            if large:
                yield from self._streamed(part)
        while waiting:
            yield from self._checker.in_memory(waiting[0].rows, self._answered(waiting.popleft()))

    def whole(self, rows: Piece, room: memoryview | None) -> Any:
        """Return the bytes of *rows*, one after the other, in *room* if there is one; None if they are very many.

        Threads receive them there. Nothing writes to it any more when this returns or raises.
        """
        if rows.size > WHOLE * self._window:
            return None
        asked = _Asked(rows, room, self._at_once)
        try:
            self._request(asked)
            return self._answered(asked)
        except BaseException:
            asked.unwanted = True
            for answer in asked.answers:
                with suppress(Exception):
                    answer()
            raise

    def _request(self, asked: _Asked) -> None:
        """Have threads receive what is *asked* for."""
        asked.answers.extend(self._requests.submit(partial(self._fill, asked, span)) for span in asked.spans)

    def _answered(self, asked: _Asked) -> Any:
        """Return the bytes that were *asked* for. Raises: StorageError with the first row of a request that failed."""
        for span, answer in zip(asked.spans, asked.answers, strict=True):
            try:
                answer()
            except TarToolsError as error:
                raise self._listing.failure(asked.rows, min(span.wanted), error) from error
        return asked.data

    def _fill(self, asked: _Asked, span: Span) -> None:
        """Receive the bytes of *span*: in a thread, so that the versions of many shards are asked for side by side."""
        if asked.unwanted:
            return
        rows, bounds, room = asked.rows, asked.bounds, memoryview(asked.data)
        first, last = span.wanted[0], span.wanted[-1]
        some = slice(first, last + 1)
        url, version = self._listing.urls[span.number], self._version(span.number)
        if span.wanted == [*range(first, last + 1)] and (rows.begins[some][1:] == rows.ends[some][:-1]).all():
            fetch_into(room[bounds[first] : bounds[last + 1]], url, span.begin, version)
            return
        content = memoryview(fetched(url, span.begin, span.end, version))
        for index in span.wanted:
            _, begin, end = rows.place(index)
            room[bounds[index] : bounds[index + 1]] = content[begin - span.begin : end - span.begin]

    def _streamed(self, rows: Piece) -> Iterator[Batch]:
        """Yield the sample of *rows*, which is too large for one request."""
        number, begin, end = rows.place(0)
        streams = ExitStack()

        def stream_of(_index: int) -> RangedInput:
            version = self._version(number)
            size, tag = size_in_version(version), version.partition(" ")[2]
            source, first = object_at(self._listing.urls[number]), min(RANGE, end - begin)
            return streams.enter_context(closing(RangedInput(source, begin, first, -1 if size is None else size, tag)))

        try:
            with streams:
                yield from self._checker.samples(rows, [0, end - begin], stream_of)
        except StorageError as error:
            if error.offset == begin:  # it names the row
                raise
            raise self._listing.failure(rows, 0, error) from error

    def _version(self, number: int) -> str:
        """Return the version of the shard *number*: that of the table, or else what the shard is now."""
        with self._locks.setdefault(number, threading.Lock()):
            known = self._listing.versions[number] or self._versions.get(number)
            if known is None:
                known = self._versions[number] = version_of(self._listing.urls[number])
        return known
