"""Orders of an epoch in which rows, or the sources that they are of, have shares: exact ones, or drawn by lot."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np

from tartools.errors import SampleError
from tartools.train.permutation import GOLDEN, MASK, drawn, key_of, permuted

FRACTION = 20  # bits of where the first point of an epoch is


class Weighting(NamedTuple):
    """What weights say: the number of the *source* of each row, and the *weights* of rows among those of their source.

    *schedule* has pairs: from how many samples on, over all epochs, and the share that each source has from there.
    """

    source: Any
    weights: Any
    schedule: list[tuple[int, Any]]


class WeightedOrder:
    """Rows drawn with repetition, each as often as its weight says, on average. Holds: 8 bytes a row."""

    def __init__(self, mixture: Weighting, length: int) -> None:
        self.length = length
        source, weights, ((_, shares),) = mixture
        self._bounds = np.cumsum((shares / np.bincount(source, weights, len(shares)))[source] * weights)

    def rows(self, positions: Any, seed: int, epoch: int) -> Any:
        """Return the rows at *positions*."""
        return drawn(positions, self._bounds, key_of(seed, epoch))


class ShareOrder:
    """Sources in exact shares, and of each source rows as evenly as can be. Holds: 16 bytes a row.

    An epoch of *length* positions has parts, in which one item of the schedule holds. In a part each source has its
    share of the positions, rounded to whole ones; with *batch*, its share of each so many positions, in their order.
    The positions of a source, over all parts, are points at equal distances on the line of its weights. So a row comes
    as often as its weight says, rounded up or down. Where the first point is moves with the epoch by the golden ratio:
    over epochs, too, rows come as evenly as can be.
    """

    def __init__(self, mixture: Weighting, length: int, batch: int = 0) -> None:
        self.length = length - length % (batch or 1)
        self._batch, self._schedule = batch, mixture.schedule
        count = len(mixture.source)
        order = permuted(np.arange(count), count, key_of(count))  # so that no pattern of the table meets the distances
        self._order = order[np.argsort(mixture.source[order], kind="stable")]
        self._sums = np.cumsum(mixture.weights[self._order])
        self._ends = np.cumsum(np.bincount(mixture.source, minlength=len(mixture.schedule[0][1])))

    def rows(self, positions: Any, seed: int, epoch: int) -> Any:
        """Return the rows at *positions*."""
        positions = np.asarray(positions)
        source, draw, found = np.empty((3, len(positions)), np.int64)
        drawn = np.zeros(len(self._ends), np.int64)  # by each source, in the parts before
        for number, (begin, end, shares) in enumerate(self._parts(epoch)):
            here = np.flatnonzero((positions >= begin) & (positions < end))
            at = positions[here] - begin
            each, turns, turn = apportioned(shares, self._batch or end - begin), 1, np.int64(0)
            if self._batch:
                turns = (end - begin) // self._batch
                turn, at = np.divmod(at, self._batch)
            else:
                at = permuted(at, end - begin, key_of(seed, epoch, 0, number))
            bounds = np.cumsum(each)
            of = source[here] = bounds.searchsorted(at, "right")
            draw[here] = drawn[of] + turn * each[of] + at - (bounds - each)[of]
            drawn += turns * each
        for number in np.unique(source).tolist():
            here = np.flatnonzero(source == number)
            moved = permuted(draw[here], int(drawn[number]), key_of(seed, epoch, 1, number))
            found[here] = self._points(moved, int(drawn[number]), number, seed, epoch)
        return self._order[found]

    def _points(self, numbers: Any, count: int, source: int, seed: int, epoch: int) -> Any:
        """Return on which places of the order points with these *numbers* are, of *count* ones of *source*."""
        begin, end = (int(self._ends[source - 1]) if source else 0), int(self._ends[source])
        before = self._sums[begin - 1] if begin else 0.0
        place = ((key_of(seed, source) + epoch * GOLDEN) & MASK) >> (64 - FRACTION)
        first = (place + 0.5) / (1 << FRACTION)
        at = before + (numbers + first) * ((self._sums[end - 1] - before) / count)
        return np.clip(self._sums.searchsorted(at, "right"), begin, end - 1)

    def _parts(self, epoch: int) -> list[tuple[int, int, Any]]:
        """Return where the parts of *epoch* begin and end, and the shares that hold there."""
        bounds = [min(max(first - epoch * self.length, 0), self.length) for first, _ in self._schedule] + [self.length]
        parts = zip(bounds[:-1], bounds[1:], self._schedule, strict=True)
        return [(begin, end, shares) for begin, end, (_, shares) in parts if begin < end]


def apportioned(shares: Any, count: int) -> Any:
    """Return whole numbers in the ratio of *shares* that add up to *count*; the largest remainders are rounded up.

    >>> apportioned(np.array([0.7, 0.2, 0.1]), 12).tolist()
    [9, 2, 1]
    """
    exact = shares * (count / np.cumsum(shares)[-1])
    found = np.floor(exact).astype(np.int64)
    found[np.argsort(found - exact, kind="stable")[: count - int(found.sum())]] += 1
    return found


def mixed_order(
    mixture: Weighting, length: int, replacement: bool, batch: int
) -> tuple[WeightedOrder | ShareOrder, dict[str, Any]]:
    """Return the order of *mixture* in epochs of *length*, and what tells it from others; *batch* is 0 or per_batch.

    Raises: ValueError for what does not go together.
    """
    schedule = mixture.schedule
    if replacement and (batch or len(schedule) > 1):
        raise ValueError("with replacement shares are met on average: not per batch, and not by a schedule")
    for first, shares in schedule if batch else ():
        if (shares % 1).any() or shares.sum() != batch:
            raise ValueError(f"with per_batch weights are whole numbers whose sum is batch_size, {batch}: {shares}")
        if first % batch:
            raise ValueError(f"with per_batch shares begin with a batch of {batch}, not at sample {first}")
    order = WeightedOrder(mixture, length) if replacement else ShareOrder(mixture, length, batch)
    check = zlib.crc32(mixture.source.tobytes(), zlib.crc32(mixture.weights.tobytes()))
    check = zlib.crc32(repr([(first, shares.tolist()) for first, shares in schedule]).encode(), check)
    return order, {"weights": check, "length": order.length, "replacement": replacement, "per_batch": batch}


def is_schedule(weights: Any) -> bool:
    """Tell whether *weights* is a list of pairs."""
    return isinstance(weights, (list, tuple)) and bool(weights) and isinstance(weights[0], (list, tuple))


def mixture_of(table: Any, count: int, weights: Any) -> Weighting:
    """Return what *weights* says of *count* rows.

    It is a column, an array, shares of sources by pattern, a schedule of these, or None where all rows are alike.
    Raises: SampleError, ValueError if they are no weights.
    """
    if isinstance(weights, dict):
        weights = [(0, weights)]
    if is_schedule(weights):
        return _scheduled(table, count, weights)
    found = table.column(weights) if isinstance(weights, str) else np.ones(count) if weights is None else weights
    found = np.asarray(found, np.float64)
    if found.shape != (count,):
        raise ValueError(f"weights are one number for each of {count} samples, not {found.shape}")
    return Weighting(np.zeros(count, np.int8), _checked(found), [(0, np.ones(1))])


def _checked(weights: Any) -> Any:
    if not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise ValueError("weights are numbers from 0 on, not all of them 0")
    return weights


def _scheduled(table: Any, count: int, schedule: Any) -> Weighting:
    if any(len(pair) != 2 or not isinstance(pair[1], dict) for pair in schedule):
        raise ValueError("a schedule of weights is like [(0, {'a/*.tar': 1}), (100000, {'b/*.tar': 1})]")
    firsts = [first for first, _ in schedule]
    if firsts[0] != 0 or firsts != sorted({*firsts}):
        raise ValueError(f"a schedule of weights begins at sample 0 and goes on at later ones, not at {firsts}")
    patterns = [*dict.fromkeys(pattern for _, shares in schedule for pattern in shares)]
    of = _sources(table, patterns)
    rows = [(first, np.array([shares.get(one, 0) for one in patterns], np.float64)) for first, shares in schedule]
    return Weighting(of, np.ones(count), [(first, _checked(shares)) for first, shares in rows])


def _sources(table: Any, patterns: Iterable[str]) -> Any:
    """Return the number of the source of each row; a source is the shards that one of *patterns* matches."""
    numbers, _, _ = table.places()
    urls = table.shards()
    source = np.full(len(urls), -1)
    for number, pattern in enumerate(patterns):
        matched = [shard for shard, url in enumerate(urls) if fnmatchcase(url, pattern)]
        if not np.isin(numbers, matched).any():
            raise ValueError(f"no shard matches {pattern!r}")
        if two := [shard for shard in matched if source[shard] >= 0]:
            raise ValueError(f"two patterns match {urls[two[0]]}")
        source[matched] = number
    of = source[numbers]
    if (of < 0).any():
        raise SampleError("no pattern of weights matches this shard", url=urls[int(numbers[(of < 0).argmax()])])
    return of
