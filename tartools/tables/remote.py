"""Shards on servers: the bytes of the samples that rows list, by requests that run in parallel."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from mmap import mmap
from typing import Any, NamedTuple

from tartools.errors import TarToolsError
from tartools.storage.checks import version_of
from tartools.storage.objects import fetch_into, fetch_range, object_at, requests_at_once
from tartools.storage.objects.ranges import RANGE_BYTES, RangedInput
from tartools.storage.pool import Threads
from tartools.storage.streams import size_in_version
from tartools.tables.catalog import ShardCatalog
from tartools.tables.extents import Extents, SampleBytes

MAX_SAMPLE_IN_WINDOW = 16 << 20  # bytes; a larger sample that is alone in its window is read as a stream
REMOTE_WINDOW_BYTES = 32 << 20  # bytes of samples that are requested together
MAX_WINDOWS_AHEAD = 3  # that are under way
MAX_BUFFER_WINDOWS = 4  # windows; more samples are not read into one buffer
MAX_REQUEST_BYTES = 8 << 20  # bytes of one request, at most
MIN_REQUEST_BYTES = 1 << 20  # and at least, before more requests are made instead
MAX_GAP_BYTES = 1 << 20  # bytes between two samples that one request may bring in vain
MAX_WASTED_SHARE = 0.1  # of the bytes of a request


class Span(NamedTuple):
    """One request: bytes *begin* to *end* (exclusive) of the shard *number*, for the rows at *indexes* of `Extents`.

    The indexes are in the order of the offsets.
    """

    number: int
    begin: int
    end: int
    indexes: list[int]


def plan_requests(rows: Extents, max_requests: int) -> list[Span]:
    """Return the requests for the samples of *rows*, without further sets, ordered by shard and offset, not by row.

    One request gets samples that are near each other in one shard: a gap has up to 1 MiB, all gaps together up to a
    tenth of the request. It has up to the *max_requests*-th part of all bytes, or 1 MiB if that is more, and up to
    8 MiB, unless one sample has more: several connections are faster than one. No rows give no requests.
    """
    import numpy as np

    size = min(max(rows.size // max_requests, MIN_REQUEST_BYTES), MAX_REQUEST_BYTES)
    requests: list[Span] = []
    wasted = 0  # bytes of the last request that are for no row
    # A sample joins the last request if it is in the same shard, the gap before it is small, the request does not
    # become too long for the wanted parallelism, and all gaps together are a small share of it.
    for index in np.lexsort((rows.ends, rows.begins, rows.numbers)).tolist():
        number, begin, end = rows.place(index)
        if requests:
            last = requests[-1]
            upto, total_waste = max(end, last.end), wasted + max(0, begin - last.end)
            is_near = begin <= last.end + MAX_GAP_BYTES and upto - last.begin <= size
            if number == last.number and is_near and total_waste <= MAX_WASTED_SHARE * (upto - last.begin):
                last.indexes.append(index)
                requests[-1] = last._replace(end=upto)
                wasted = total_waste
                continue
        requests.append(Span(number, begin, end, [index]))
        wasted = 0
    return requests


class _Transfer:
    """The requests for the bytes of the samples of *rows*, and the buffer that they fill.

    `data`: the buffer: *buffer*, or if None a new array of uint8; the part at index n of `parts` begins at `bounds[n]`.
    `parts`: the extents of the parts of *rows*, which are their samples if there is one set of shards.
    `spans`: the requests, planned so that *max_requests* can run in parallel.
    `answers`: for each request a function that waits for it; empty until the requests are submitted.
    `is_cancelled`: True: requests that have not begun do nothing.
    """

    def __init__(self, rows: Extents, buffer: memoryview | None, max_requests: int) -> None:
        import numpy as np

        self.rows = rows
        self.parts = rows.parts
        self.bounds: list[int] = self.parts.bounds().tolist()
        size = self.bounds[-1]
        # pages are cleared by the threads, as bytes come; `np.empty` asks for huge ones, which can take longer
        self.data: Any = np.frombuffer(mmap(-1, size or 1), np.uint8)[:size] if buffer is None else buffer
        self.spans = plan_requests(self.parts, max_requests)
        self.answers: list[Callable[[], object]] = []  # for each span, once it was requested
        self.is_cancelled = False


class RemoteShards:
    """Reads samples of the shards of *catalog* that are on servers. Several threads may read; `close` ends its threads.

    *sources*: number of data sets that are read at the same time, which share memory and connections; 1 for one alone.
    Holds: up to 256 MiB of samples for each running `read`, less with several *sources*.
    """

    def __init__(self, catalog: ShardCatalog, sources: int) -> None:
        self._window = REMOTE_WINDOW_BYTES // sources
        self._catalog = catalog
        self._at_once = max(requests_at_once() // sources, 1)
        self._requests: Threads[Callable[[], Any], Any] = Threads(self._at_once)
        self._versions: dict[int, str] = {}  # of shards whose versions the table does not tell
        self._locks: dict[int, threading.Lock] = {}  # of shards whose versions are being asked for

    def close(self) -> None:
        """Let the threads that make requests end, after the requests under way; it does not wait for them.

        No `read` or `read_all` may be running, nor begin later.
        """
        self._requests.close()

    def read(self, rows: Extents) -> Generator[SampleBytes, None, None]:
        """Yield the bytes of the samples of *rows*, in order, in memory, window by window.

        Up to three are under way. A window has up to 32 MiB, or one larger sample; a sample above 16 MiB that has one
        to itself is a stream, not in memory. *rows*: samples with parts in several sets have up to 16 MiB. With several
        *sources*, windows are smaller. Raises: RowError if a shard can't be read, or has another version than in the
        table; a stream, and the function that opens it, raise StorageError, without the row.
        """
        waiting: deque[_Transfer] = deque()
        for part in rows.windows(self._window):
            large = len(part) == 1 and part.size > MAX_SAMPLE_IN_WINDOW
            if not large:
                waiting.append(_Transfer(part, None, max(self._at_once // MAX_WINDOWS_AHEAD, 1)))
                self._request(waiting[-1])
            while waiting and (large or len(waiting) >= MAX_WINDOWS_AHEAD):
                yield SampleBytes.in_memory(waiting[0].rows, self._wait(waiting.popleft()))
            if large:
                yield from self._stream_sample(part)
        while waiting:
            yield SampleBytes.in_memory(waiting[0].rows, self._wait(waiting.popleft()))

    def read_all(self, rows: Extents, buffer: memoryview | None) -> Any:
        """Return the bytes of the samples of *rows*, joined in order; None above 128 MiB, less with several sources.

        *buffer*: where to receive them, as large as all the samples; it is returned. None: a new array of uint8 is.
        Threads fill it; they have ended when this returns or raises. Raises: RowError if a shard can't be read, or has
        another version than in the table.
        """
        if rows.size > MAX_BUFFER_WINDOWS * self._window:
            return None
        transfer = _Transfer(rows, buffer, self._at_once)
        try:
            self._request(transfer)
            return self._wait(transfer)
        except BaseException:
            transfer.is_cancelled = True
            for answer in transfer.answers:
                with suppress(Exception):
                    answer()
            raise

    def _request(self, transfer: _Transfer) -> None:
        """Submit the requests of *transfer* to the threads."""
        transfer.answers.extend(self._requests.submit(partial(self._fill, transfer, span)) for span in transfer.spans)

    def _wait(self, transfer: _Transfer) -> Any:
        """Wait for the requests of *transfer*; return its buffer. Raises: RowError for the first that failed.

        It names the first row of that request. *transfer*: its requests are submitted.
        """
        for span, answer in zip(transfer.spans, transfer.answers, strict=True):
            try:
                answer()
            except TarToolsError as error:
                raise self._catalog.failure(transfer.parts, min(span.indexes), error) from error
        return transfer.data

    def _fill(self, transfer: _Transfer, span: Span) -> None:
        """Receive the bytes of *span*, and copy them to their places in the buffer of *transfer*. Runs in a thread.

        The version of a shard is asked for here too, so that those of many shards are requested in parallel. Does
        nothing if *transfer* is cancelled. Raises: TarToolsError if the bytes or the version can't be read.
        """
        if transfer.is_cancelled:
            return
        rows, bounds, buffer = transfer.parts, transfer.bounds, memoryview(transfer.data)
        first, last = span.indexes[0], span.indexes[-1]
        row_slice = slice(first, last + 1)
        url, version = self._catalog.urls[span.number], self._version(span.number)
        if (
            span.indexes == [*range(first, last + 1)]
            and (rows.begins[row_slice][1:] == rows.ends[row_slice][:-1]).all()
        ):
            fetch_into(buffer[bounds[first] : bounds[last + 1]], url, span.begin, version)
            return
        content = memoryview(fetch_range(url, span.begin, span.end, version))
        for index in span.indexes:
            _, begin, end = rows.place(index)
            buffer[bounds[index] : bounds[index + 1]] = content[begin - span.begin : end - span.begin]

    def _stream_sample(self, rows: Extents) -> Iterator[SampleBytes]:
        """Yield the one sample of *rows*, which is too large for memory, as a stream.

        Each call of its `stream` makes a request; all these streams are closed at the next step.
        """
        number, begin, end = rows.place(0)
        streams = ExitStack()

        def stream_of(_index: int) -> RangedInput:
            version = self._version(number)
            size, tag = size_in_version(version), version.partition(" ")[2]
            source, first = object_at(self._catalog.urls[number]), min(RANGE_BYTES, end - begin)
            return streams.enter_context(closing(RangedInput(source, begin, first, -1 if size is None else size, tag)))

        with streams:
            yield SampleBytes(rows, [0, end - begin], stream_of, is_streamed=True)

    def _version(self, number: int) -> str:
        """Return the version of the shard *number* in the table; if it has none, the one that the server told first.

        The server is asked at the first call, and the answer is kept, so that no two versions are mixed. Raises:
        StorageError if it can't tell; UsageError if the URL names no object.
        """
        with self._locks.setdefault(number, threading.Lock()):
            version = self._catalog.versions[number] or self._versions.get(number)
            if version is None:
                version = self._versions[number] = version_of(self._catalog.urls[number])
        return version
