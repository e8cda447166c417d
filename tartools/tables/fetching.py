"""Bytes of shards on servers: which requests bring those of many samples, and one such request."""

from __future__ import annotations

from typing import NamedTuple

from tartools.errors import StorageError
from tartools.storage.objects import object_at
from tartools.storage.objects.retry import TransientError, setting, with_retries
from tartools.tables.places import Piece

REQUESTS = 32  # at once
SPAN = 8 << 20  # bytes of one request
GAP = 1 << 20  # bytes between two samples that one request may bring in vain
WASTE = 0.1  # of the bytes of a request


class Span(NamedTuple):
    """One request: bytes *begin* to *end* of the shard *number*, for the rows *wanted* (by their index)."""

    number: int
    begin: int
    end: int
    wanted: list[int]


def spans(rows: Piece) -> list[Span]:
    """Return the requests that bring the samples of *rows*: those near each other in one shard together."""
    import numpy as np

    found: list[Span] = []
    useful = 0
    for index in np.lexsort((rows.ends, rows.begins, rows.numbers)).tolist():
        number, begin, end = rows.place(index)
        if found:
            last = found[-1]
            upto = max(end, last.end)
            lost = upto - last.begin - useful - max(0, end - max(begin, last.end))
            near = begin <= last.end + GAP and upto - last.begin <= SPAN
            if number == last.number and near and lost <= WASTE * (upto - last.begin):
                last.wanted.append(index)
                found[-1] = last._replace(end=upto)
                useful = upto - last.begin - lost
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
