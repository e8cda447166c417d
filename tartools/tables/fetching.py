"""Bytes of shards on servers: which requests bring those of many samples."""

from __future__ import annotations

from typing import NamedTuple

from tartools.tables.rowplaces import Piece

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
