"""Pairs of a sample that is left out and the kept one that it is like, as records that sort by the first's position."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from tartools import storage
from tartools.errors import shown
from tartools.formats.textrows import escape

AGAINST, INPUT = 0, 1  # the sides: samples that are only compared with, and those that may be left out
PAIR = Struct(">QBQB")
KEPT = Struct(">BQ")

Sort = Callable[[Iterable[bytes]], Iterator[bytes]]  # of any number of records


class Pair(NamedTuple):
    """Sample number *position* of the input is left out: it is like number *kept* of *side*, at this *distance*."""

    position: int
    side: int
    kept: int
    distance: int = 0

    def record(self) -> bytes:
        """Return it as a record."""
        return PAIR.pack(*self)


def pair_of(record: bytes) -> Pair:
    """Return the pair whose record begins *record*."""
    return Pair(*PAIR.unpack_from(record))


def named(pairs: Iterable[bytes], names: Sequence[Iterable[bytes]], sort: Sort) -> Iterator[tuple[Pair, bytes, bytes]]:
    """Yield each of *pairs* with the name of the sample that is left out, and that of the kept one, in order.

    *names* are those of all samples of each side, in order. Memory: that of *sort*.
    """
    by_kept = sort(KEPT.pack(*pair_of(record)[1:3]) + record for record in pairs)
    both = sort(_with_kept(by_kept, names))
    places = enumerate(names[INPUT])
    at, name = next(places, (-1, b""))
    for record in both:
        pair = pair_of(record)
        while at < pair.position:
            at, name = next(places)
        yield pair, name, record[PAIR.size :]


def _with_kept(by_kept: Iterable[bytes], names: Sequence[Iterable[bytes]]) -> Iterator[bytes]:
    """Yield the records *by_kept*, each with the name of the kept sample behind it."""
    side, at, name = -1, -1, b""
    places: Iterator[tuple[int, bytes]] = iter(())
    for record in by_kept:
        pair = pair_of(record[KEPT.size :])
        if pair.side != side:
            side, at, places = pair.side, -1, enumerate(names[pair.side])
        while at < pair.kept:
            at, name = next(places)
        yield record[KEPT.size :] + name


def write_report(pairs: Iterable[bytes], names: Sequence[Iterable[bytes]], url: str, force: bool, sort: Sort) -> None:
    """Write a line for each of *pairs* to *url*, as TSV. *names* are those of all samples of each side, in order."""
    with storage.writing(url, force) as sink:
        sink.write(b"key\tshard\tkept_key\tkept_shard\tdistance\n")
        for pair, out, kept in named(pairs, names, sort):
            cells = [*key_and_shard(out), *key_and_shard(kept), str(pair.distance)]
            sink.write(("\t".join(cells) + "\n").encode("utf-8", "surrogateescape"))


def key_and_shard(name: bytes) -> list[str]:
    """Return key and shard of the sample with this *name*, escaped."""
    shard, _, key = name.partition(b"\0")
    return [escape(os.fsdecode(key)), escape(shown(os.fsdecode(shard)))]
