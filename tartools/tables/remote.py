"""Samples of shards on servers that a table lists."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from mmap import mmap
from typing import Any, NamedTuple

from tartools.errors import StorageError, TarToolsError
from tartools.samples.sample import Batch
from tartools.storage.objects import fetch_into, fetched, object_at, requests_at_once
from tartools.storage.objects.ranges import RANGE, RangedInput
from tartools.storage.pool import Threads
from tartools.storage.version import version_of
from tartools.tables.checking import Checker, Chunks
from tartools.tables.rowplaces import Listing, Piece

LARGE = 16 << 20  # bytes; a larger sample is read as a stream
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

    size = min(max(int((rows.ends - rows.begins).sum()) // most, LEAST), SPAN)
    found: list[Span] = []
    useful = 0
    for index in np.lexsort((rows.ends, rows.begins, rows.numbers)).tolist():
        number, begin, end = rows.place(index)
        if found:
            last = found[-1]
            upto = max(end, last.end)
            lost = upto - last.begin - useful - max(0, end - max(begin, last.end))
            near = begin <= last.end + GAP and upto - last.begin <= size
            if number == last.number and near and lost <= WASTE * (upto - last.begin):
                last.wanted.append(index)
                found[-1] = last._replace(end=upto)
                useful = upto - last.begin - lost
                continue
        found.append(Span(number, begin, end, [index]))
        useful = end - begin
    return found


Asked = tuple[Piece, list[Span], list[Callable[[], bytes]]]


class RemoteShards:
    """The shards of *listing* that are on servers. Several threads may read.

    Holds: up to 256 MiB of samples for each `samples` that is under way, less where it is one of several *sources*.
    """

    def __init__(self, listing: Listing, checker: Checker, sources: int = 1) -> None:
        self._window = WINDOW // sources
        self._listing = listing
        self._checker = checker
        self._at_once = max(requests_at_once() // sources, 1)
        self._requests: Threads[Callable[[], Any], Any] = Threads(self._at_once)
        self._locks: dict[int, threading.Lock] = {}  # of shards whose versions are being asked for

    def close(self) -> None:
        """Stop all requests."""
        self._requests.close()

    def samples(self, rows: Piece) -> Iterator[Batch]:
        """Yield the samples of *rows*, in batches."""
        import numpy as np

        sizes = rows.ends - rows.begins
        bounds = np.cumsum(sizes)
        large = np.flatnonzero(sizes > LARGE).tolist()
        waiting: deque[Asked] = deque()
        low = 0
        while low < len(rows):
            before = int(bounds[low - 1]) if low else 0
            high = max(low + 1, int(bounds.searchsorted(before + self._window, "right")))
            high = min([high, *(row for row in large if row >= low)])
            if high > low:
                waiting.append(self._ask(rows.part(low, high)))
            while len(waiting) >= WINDOWS or (waiting and (high == len(rows) or high == low)):
                yield from self._received(*waiting.popleft())
            if high == low:
                high += 1
                yield from self._streamed(rows.part(low, high))
            low = high
        while waiting:
            yield from self._received(*waiting.popleft())

    def whole(self, rows: Piece, room: memoryview | None) -> Any:
        """Return the bytes of *rows*, one after the other, in *room* if there is one; None if they are very many.

        Threads receive them there. Nothing writes to it any more when this returns or raises.
        """
        import numpy as np

        bounds = np.concatenate(([0], np.cumsum(rows.ends - rows.begins))).tolist()
        if bounds[-1] > WHOLE * self._window:
            return None
        # pages are cleared by the threads, as bytes come; `np.empty` asks for huge ones, which can take longer
        data: Any = np.frombuffer(mmap(-1, bounds[-1]), np.uint8) if room is None else room
        view = memoryview(data)
        wanted = spans(rows, self._at_once)
        answers: list[Callable[[], object]] = []
        failed = False

        def fill(span: Span) -> None:
            if not failed:
                self._fill(span, rows, bounds, view)

        try:
            answers.extend(self._requests.submit(partial(fill, span)) for span in wanted)
            for span, answer in zip(wanted, answers, strict=True):
                self._answered(rows, span, answer)
        except BaseException:
            failed = True
            for answer in answers:
                with suppress(Exception):
                    answer()
            raise
        return data

    def _fill(self, span: Span, rows: Piece, bounds: list[int], room: memoryview) -> None:
        """Have the bytes of *span* in *room*, where row n begins at `bounds[n]`."""
        first, last = span.wanted[0], span.wanted[-1]
        some = slice(first, last + 1)
        if span.wanted == [*range(first, last + 1)] and (rows.begins[some][1:] == rows.ends[some][:-1]).all():
            url = self._listing.urls[span.number]
            fetch_into(room[bounds[first] : bounds[last + 1]], url, span.begin, self._version(span.number))
            return
        content = memoryview(self._fetch(span))
        for index in span.wanted:
            _, begin, end = rows.place(index)
            room[bounds[index] : bounds[index + 1]] = content[begin - span.begin : end - span.begin]

    def _streamed(self, rows: Piece) -> Iterator[Batch]:
        """Yield the sample of *rows*, which is too large for one request."""
        number, begin, end = rows.place(0)
        streams: list[RangedInput] = []

        def stream_of(_index: int) -> RangedInput:
            size, _, tag = self._version(number).partition(" ")
            source = object_at(self._listing.urls[number])
            streams.append(RangedInput(source, begin, min(RANGE, end - begin), int(size), tag))
            return streams[-1]

        try:
            yield from self._checker.samples(rows, stream_of, joined=True)
        except StorageError as error:
            if error.offset == begin:  # it names the row
                raise
            raise self._listing.failure(rows, 0, error) from error
        finally:
            for stream in streams:
                stream.close()

    def _version(self, number: int) -> str:
        """Return the version of the shard *number*: that of the table, or else what the shard is now."""
        with self._locks.setdefault(number, threading.Lock()):
            known = self._listing.versions[number]
            if known is None:
                known = self._listing.versions[number] = version_of(self._listing.urls[number])
        return known

    def _fetch(self, span: Span) -> bytes:
        """Return the bytes of *span*: in a thread, so that the versions of many shards are asked for side by side."""
        return fetched(self._listing.urls[span.number], span.begin, span.end, self._version(span.number))

    def _ask(self, rows: Piece) -> Asked:
        """Request the bytes of *rows*."""
        wanted = spans(rows, max(self._at_once // WINDOWS, 1))
        return rows, wanted, [self._requests.submit(partial(self._fetch, span)) for span in wanted]

    def _received(self, rows: Piece, wanted: list[Span], answers: list[Callable[[], bytes]]) -> Iterator[Batch]:
        """Yield the samples of *rows*, whose bytes were requested."""
        parts = self._parts(rows, wanted, answers)
        yield from self._checker.samples(rows, lambda index: Chunks(parts[index:]), joined=True)

    def _parts(self, rows: Piece, wanted: list[Span], answers: list[Callable[[], bytes]]) -> list[memoryview]:
        """Return the bytes of each of *rows*, which were requested."""
        data = [memoryview(b"")] * len(rows)
        for span, answer in zip(wanted, answers, strict=True):
            content = memoryview(self._answered(rows, span, answer))
            for index in span.wanted:
                _, begin, end = rows.place(index)
                data[index] = content[begin - span.begin : end - span.begin]
        return data

    def _answered(self, rows: Piece, span: Span, answer: Callable[[], Any]) -> Any:
        """Return what was requested for *span* of *rows*. Raises: StorageError with the first of its rows."""
        try:
            return answer()
        except TarToolsError as error:
            raise self._listing.failure(rows, min(span.wanted), error) from error
