"""Bytes of shards that a table lists: from files at once, from servers by many requests side by side."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import NamedTuple

from tartools import storage
from tartools.errors import StorageError
from tartools.storage.objects import object_at
from tartools.storage.objects.retry import TransientError, setting, with_retries

REQUESTS = 32  # at once
SPAN = 8 << 20  # bytes of one request
GAP = 1 << 20  # bytes between two samples that one request may bring in vain
WASTE = 0.1  # of the bytes of a request


class Place(NamedTuple):
    """Bytes *begin* to *end* of the shard with *number*."""

    number: int
    begin: int
    end: int


class Span(NamedTuple):
    """One request: bytes *begin* to *end* of the shard *number*, for the places *wanted* (by their index)."""

    number: int
    begin: int
    end: int
    wanted: list[int]


def spans(places: Sequence[Place]) -> list[Span]:
    """Return the requests that bring *places*: those near each other in one shard together."""
    found: list[Span] = []
    useful = 0
    for index in sorted(range(len(places)), key=places.__getitem__):
        number, begin, end = places[index]
        if found:
            last = found[-1]
            upto = max(end, last.end)
            lost = upto - last.begin - useful - (end - begin)
            near = begin <= last.end + GAP and upto - last.begin <= SPAN
            if number == last.number and near and lost <= WASTE * (upto - last.begin):
                last.wanted.append(index)
                found[-1] = last._replace(end=upto)
                useful += end - begin
                continue
        found.append(Span(number, begin, end, [index]))
        useful = end - begin
    return found


def fetched(url: str, begin: int, end: int, version: str) -> bytes:
    """Return bytes *begin* to *end* of the object *url*, if it still has this *version* (see `storage.versions`).

    Raises: StorageError after the last try, and if the object is another one now.
    """
    size, _, tag = version.partition(" ")
    source = object_at(url)
    have = bytearray()

    def attempt() -> bytes:
        reply = source.get(begin + len(have), end, tag)
        try:
            if reply.version != tag or (reply.size is not None and str(reply.size) != size):
                raise StorageError("was replaced since the table was made", url=url, offset=begin)
            if reply.start != begin + len(have):
                raise StorageError("the server ignored the range of the request", url=url, offset=begin)
            while len(have) < end - begin and (data := reply.body.read(end - begin - len(have))):
                have.extend(data)
        finally:
            reply.body.close()
        if len(have) < end - begin:
            raise TransientError("the connection was cut")
        return bytes(have)

    return with_retries(attempt, url)


def requests_at_once() -> int:
    """Return how many requests are made side by side: 32, or `TARTOOLS_READAHEAD` if that is set."""
    return setting("TARTOOLS_READAHEAD", REQUESTS, REQUESTS)


class FileSpan:
    """The bytes of an open plain file as a stream, from byte *begin* on. It has a position of its own."""

    start = 0

    def __init__(self, file: io.FileIO, begin: int) -> None:
        self.file: io.FileIO | None = file
        self._position = begin

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes; 0 at the end."""
        assert self.file is not None
        count = os.preadv(self.file.fileno(), [view], self._position) if len(view) else 0
        self._position += count
        return count

    def skip(self, count: int, /) -> None:
        """Skip *count* bytes."""
        self._position += count


class Bytes:
    """*data* as a stream."""

    file: io.FileIO | None = None
    start = 0

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes; 0 at the end."""
        return self._data.readinto(view)


def opened(url: str) -> io.FileIO:
    """Return the plain local file *url*. Raises: StorageError if it is none."""
    file = storage.open_read(url).file
    if file is None:
        raise StorageError("this is no regular file", url=url)
    return file
