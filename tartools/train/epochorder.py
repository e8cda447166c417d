"""Orders of an epoch as functions of seed, epoch and position, computed on demand.

Rows come as they are stored, permuted as a whole or by blocks, or in shares: of rows, or of the sources that they are
of, exact ones or drawn by lot. Only whole numbers of 64 bits that wrap around are used, and a few products of doubles:
the values are the same on every machine and in every version of numpy.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from fnmatch import fnmatchcase
from math import isqrt
from typing import Any, NamedTuple

import numpy as np

from tartools.errors import SampleError
from tartools.tables.table import Table

FEISTEL_ROUNDS = 8
GOLDEN_RATIO_64 = 0x9E3779B97F4A7C15
MASK_64 = (1 << 64) - 1
FRACTION_BITS = 20  # bits of where the first point of an epoch is


def mix_bits(values: Any, key: int) -> Any:
    """Return 64 well mixed bits (uint64) for each of *values* (uint64) and *key*: the finalizer of splitmix64."""
    bits = values * np.uint64(GOLDEN_RATIO_64) + np.uint64(key & MASK_64)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def make_order_key(*parts: int) -> int:
    """Return a key from 0 to 2**64 - 1 made of the whole numbers *parts*, perhaps negative, in this order.

    >>> make_order_key(0, 0) != make_order_key(0, 1) != make_order_key(1, 0)
    True
    """
    key = 0
    for part in parts:
        key = int(mix_bits(np.array([key ^ (part & MASK_64)], np.uint64), part >> 64)[0])
    return key


def permute(positions: Any, count: int, key: int) -> Any:
    """Return the values of a permutation of `range(count)` at *positions*, numbers below *count*: an array of int64.

    A Feistel network on pairs (low, high) with low + width * high, walked until the number is below *count*: for each
    *key* a bijection. About one microsecond for ten positions; holds a few arrays as long as *positions*.

    >>> sorted(permute(np.arange(10), 10, key=7).tolist()) == list(range(10))
    True
    """
    width = np.uint64(isqrt(max(count - 1, 0)) + 1)
    height = np.uint64(-(-count // int(width)))
    values = np.asarray(positions).astype(np.uint64)
    keys = [make_order_key(key, number) for number in range(FEISTEL_ROUNDS)]
    walking = np.arange(len(values))
    while len(walking):
        high, low = np.divmod(values[walking], width)
        for number in range(0, FEISTEL_ROUNDS, 2):
            low = (low + mix_bits(high, keys[number]) % width) % width
            high = (high + mix_bits(low, keys[number + 1]) % height) % height
        reached = low + width * high
        values[walking] = reached
        walking = walking[reached >= np.uint64(count)]
    return values.astype(np.int64)


def draw_by_share(positions: Any, bounds: Any, key: int) -> Any:
    """Return for each of *positions* a number from 0 to `len(bounds) - 1`, drawn at random by *key*, with repetition.

    *positions*: an array of whole numbers from 0 on; the result, an array of int64, is the same for the same position
    and key. *bounds*: cumulative sums of weights, float64. Number n is drawn with a probability in the ratio of
    bounds[n] - bounds[n-1], number 0 of bounds[0].
    """
    numbers = np.asarray(positions).astype(np.uint64)
    shares = (mix_bits(mix_bits(numbers, key), key) >> np.uint64(11)).astype(np.float64) / float(1 << 53)
    return np.minimum(bounds.searchsorted(shares * bounds[-1], "right"), len(bounds) - 1)


# ---- orders: *length* is the number of positions, *kind* identifies it in states, `rows` returns int64 ----


class PlainOrder:
    """All *length* rows, each once an epoch: permuted if *shuffled*, or else as they are stored. Holds nothing.

    `length`: positions of an epoch. `kind`: {}; in other orders a dict of plain values that identifies them in states.
    """

    def __init__(self, length: int, shuffled: bool) -> None:
        self.length, self.kind = length, dict[str, Any]()
        self._shuffled = shuffled

    def rows(self, positions: Any, seed: int, epoch: int) -> Any:
        """Return the row numbers at *positions*, both int64 arrays, of epoch number *epoch* of a run with *seed*."""
        return permute(positions, self.length, make_order_key(seed, epoch)) if self._shuffled else positions


class BlockOrder:
    """All rows of *table*, each once an epoch, shuffled by blocks: neighbouring samples, about *size* bytes each.

    A block crosses no end of a shard and no gap between samples. Blocks are permuted; then the samples of each *window*
    blocks that follow each other are permuted among themselves.
    `length`: positions of an epoch. `kind`: a dict of plain values that identifies the order in states.
    Holds: 32 bytes a block.
    """

    def __init__(self, table: Table, size: int, window: int) -> None:
        numbers, begins, ends = table.places()
        sample_sizes = table.sizes()
        self.length = len(begins)
        self.kind = {"block": size, "window": window}
        self._window = window
        # A block crosses no gap and no end of a shard: `new` marks rows that do not begin where the one before ends.
        # Such a run of neighbours is cut again where the bytes before a row, in its run, pass a multiple of *size*.
        sizes = np.cumsum(sample_sizes)
        new = np.ones(self.length, bool)
        new[1:] = (begins[1:] != ends[:-1]) | (numbers[1:] != numbers[:-1])
        starts = np.flatnonzero(new)
        before = np.repeat((sizes - sample_sizes)[starts], np.diff(np.append(starts, self.length)))
        part = (sizes - sample_sizes - before) // size  # of the run of neighbours
        new[1:] |= part[1:] != part[:-1]
        self._starts = np.flatnonzero(new)
        self._counts = np.diff(np.append(self._starts, self.length))
        self._cached_epoch: tuple[tuple[int, int], Any, Any] | None = None  # of the epoch that was asked for last

    def rows(self, positions: Any, seed: int, epoch: int) -> Any:
        """Return the row numbers at *positions*, both int64 arrays, of epoch number *epoch* of a run with *seed*."""
        order, bounds = self._order(seed, epoch)
        borders = np.append(bounds[: -1 : self._window], bounds[-1])  # of windows
        within = borders.searchsorted(positions, "right") - 1
        rows = np.empty(len(positions), np.int64)
        for window in np.unique(within).tolist():
            at = np.flatnonzero(within == window)
            begin, end = int(borders[window]), int(borders[window + 1])
            moved = permute(positions[at] - begin, end - begin, make_order_key(seed, epoch, window + 1)) + begin
            run = bounds.searchsorted(moved, "right") - 1
            rows[at] = self._starts[order[run]] + moved - bounds[run]
        return rows

    def _order(self, seed: int, epoch: int) -> tuple[Any, Any]:
        """Return (block numbers in the order of the epoch, positions where blocks begin and the last ends); cached.

        Both are arrays of int64.
        """
        if self._cached_epoch is None or self._cached_epoch[0] != (seed, epoch):
            count = len(self._starts)
            order = permute(np.arange(count), count, make_order_key(seed, epoch))
            bounds = np.concatenate(([0], np.cumsum(self._counts[order])))
            self._cached_epoch = (seed, epoch), order, bounds
        return self._cached_epoch[1:]


class Weighting(NamedTuple):
    """Parsed weights of rows.

    `source`: number of the source of each row, from 0: an array of integers
    `weights`: weight of each row relative to the others of its source: an array of floats
    `schedule`: pairs (samples, shares): from so many samples on, counted over all epochs, source n has `shares[n]`; the
        first from 0 on, and they ascend. `shares`: an array of floats, relative to their sum
    """

    source: Any
    weights: Any
    schedule: list[tuple[int, Any]]


class WeightedOrder:
    """An epoch of *length* rows drawn with repetition, each on average as often as *mixture* says.

    *mixture*: weights of rows within sources, and shares of sources; its schedule must have one item, whose shares hold
    in all epochs. Holds: 8 bytes a row.
    `length`: positions of an epoch. `kind`: a dict of plain values that identifies the order in states.
    """

    def __init__(self, mixture: Weighting, length: int) -> None:
        self.length, self.kind = length, mixture_fingerprint(mixture, length) | {"replacement": True, "per_batch": 0}
        source, weights, ((_, shares),) = mixture
        self._bounds = np.cumsum((shares / np.bincount(source, weights, len(shares)))[source] * weights)

    def rows(self, positions: Any, seed: int, epoch: int) -> Any:
        """Return the row numbers at *positions*, both int64 arrays, of epoch number *epoch* of a run with *seed*."""
        return draw_by_share(positions, self._bounds, make_order_key(seed, epoch))


class ShareOrder:
    """Sources in exact shares, and of each source rows as evenly as can be. Holds: 16 bytes a row.

    *mixture*: the weights of rows, and the schedule: shares of the sources, by the sample from which they hold. An
    epoch of *length* positions has parts, in which one item of the schedule holds. In a part each source has its share
    of the positions, rounded to whole ones. With *batch* above 0, each *batch* positions in a row are shared so, source
    after source, and *length* is cut to a multiple of *batch*. The positions of a source, over all parts, are points at
    equal distances on the line of its weights. So a row comes as often as its weight says, rounded up or down. Where
    the first point is moves with the epoch by the golden ratio: over epochs, too, rows come as evenly as can be.
    `length`: positions of an epoch. `kind`: a dict of plain values that identifies the order in states.
    """

    def __init__(self, mixture: Weighting, length: int, batch: int = 0) -> None:
        self.length = length - length % (batch or 1)
        self.kind = mixture_fingerprint(mixture, self.length) | {"replacement": False, "per_batch": batch}
        self._batch, self._schedule = batch, mixture.schedule
        count = len(mixture.source)
        order = permute(
            np.arange(count), count, make_order_key(count)
        )  # so that no pattern of the table meets the distances
        self._order = order[np.argsort(mixture.source[order], kind="stable")]
        self._sums = np.cumsum(mixture.weights[self._order])
        self._ends = np.cumsum(np.bincount(mixture.source, minlength=len(mixture.schedule[0][1])))

    def rows(self, positions: Any, seed: int, epoch: int) -> Any:
        """Return the row numbers at *positions*, both int64 arrays, of epoch number *epoch* of a run with *seed*."""
        positions = np.asarray(positions)
        source, draw, indexes = np.empty((3, len(positions)), np.int64)
        # Each position gets a source, and the number of its draw from this source, counted over all parts: the
        # positions of a turn (a batch, or a permuted part) are cut into a range for each source, as long as its share.
        # The draws of a source are permuted before they become points, or rows would come in the order of `_order`.
        drawn = np.zeros(len(self._ends), np.int64)  # by each source, in the parts before
        for number, (begin, end, shares) in enumerate(self._parts(epoch)):
            selected = np.flatnonzero((positions >= begin) & (positions < end))
            at = positions[selected] - begin
            per_turn, turns, turn = split_in_ratio(shares, self._batch or end - begin), 1, np.int64(0)
            if self._batch:
                turns = (end - begin) // self._batch
                turn, at = np.divmod(at, self._batch)
            else:
                at = permute(at, end - begin, make_order_key(seed, epoch, 0, number))
            bounds = np.cumsum(per_turn)
            owner = source[selected] = bounds.searchsorted(at, "right")
            draw[selected] = drawn[owner] + turn * per_turn[owner] + at - (bounds - per_turn)[owner]
            drawn += turns * per_turn
        for number in np.unique(source).tolist():
            selected = np.flatnonzero(source == number)
            moved = permute(draw[selected], int(drawn[number]), make_order_key(seed, epoch, 1, number))
            indexes[selected] = self._points(moved, int(drawn[number]), number, seed, epoch)
        return self._order[indexes]

    def _points(self, numbers: Any, count: int, source: int, seed: int, epoch: int) -> Any:
        """Return the indexes in `_order` of the points *numbers*, of *count* points at equal distances on *source*.

        The points lie on the line of the weights of the rows of *source*, the number of a source; *seed* and *epoch*
        give where the first one is. *numbers*: an array of int64 from 0 to *count* - 1; the result is one as long.
        """
        begin, end = (int(self._ends[source - 1]) if source else 0), int(self._ends[source])
        before = self._sums[begin - 1] if begin else 0.0
        place = ((make_order_key(seed, source) + epoch * GOLDEN_RATIO_64) & MASK_64) >> (64 - FRACTION_BITS)
        first = (place + 0.5) / (1 << FRACTION_BITS)
        at = before + (numbers + first) * ((self._sums[end - 1] - before) / count)
        return np.clip(self._sums.searchsorted(at, "right"), begin, end - 1)

    def _parts(self, epoch: int) -> list[tuple[int, int, Any]]:
        """Return (begin, end, shares of sources) for each part of *epoch* that has positions, in order.

        Begin and end: positions in the epoch, whose number counts from 0.
        """
        bounds = [min(max(first - epoch * self.length, 0), self.length) for first, _ in self._schedule] + [self.length]
        parts = zip(bounds[:-1], bounds[1:], self._schedule, strict=True)
        return [(begin, end, shares) for begin, end, (_, shares) in parts if begin < end]


RowOrder = PlainOrder | BlockOrder | WeightedOrder | ShareOrder


def split_in_ratio(shares: Any, count: int) -> Any:
    """Return whole numbers in the ratio of *shares* that add up to *count*; the largest remainders are rounded up.

    With equal remainders the first ones are. *shares*: an array of floats from 0 on, not all 0; the result is one of
    int64, as long.

    >>> split_in_ratio(np.array([0.7, 0.2, 0.1]), 12).tolist()
    [9, 2, 1]
    """
    exact = shares * (count / np.cumsum(shares)[-1])
    counts = np.floor(exact).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: count - int(counts.sum())]] += 1
    return counts


def mixture_fingerprint(mixture: Weighting, length: int) -> dict[str, Any]:
    """Return {"weights": CRC-32 of *mixture*, "length": *length*}, which states of the order contain."""
    check = zlib.crc32(mixture.source.tobytes(), zlib.crc32(mixture.weights.tobytes()))
    check = zlib.crc32(repr([(first, shares.tolist()) for first, shares in mixture.schedule]).encode(), check)
    return {"weights": check, "length": length}


def is_schedule(weights: Any) -> bool:
    """True if *weights* is a schedule, as [(0, {pattern: share}), ...]: a list or tuple whose first item is one, too.

    Nothing more is checked.
    """
    return isinstance(weights, (list, tuple)) and bool(weights) and isinstance(weights[0], (list, tuple))


def parse_weights(table: Any, count: int, weights: Any) -> Weighting:
    """Return the `Weighting` that *weights*, the argument of `StatefulSampler`, means for *count* rows of *table*.

    *weights*: the name of a column; an array with a number for each row; a dict of shares by pattern of shard URLs (of
    fnmatch, where * matches slashes, too; the shards that match are a source); a schedule, pairs (sample number, such a
    dict) whose numbers ascend from 0 and count over all epochs; or None for equal weights. Without patterns all rows
    are one source, and *table* is used for a column alone. In a schedule a pattern that a pair lacks has the share 0
    there.
    Raises: SampleError for a shard that no pattern matches; KeyError for a column that *table* lacks; ValueError for
    other wrong values, such as negative ones, all 0, or of another number than *count*; TypeError for items that are no
    numbers or pairs.
    """
    if isinstance(weights, dict):
        weights = [(0, weights)]
    if is_schedule(weights):
        return _parse_schedule(table, count, weights)
    row_weights = table.column(weights) if isinstance(weights, str) else np.ones(count) if weights is None else weights
    row_weights = np.asarray(row_weights, np.float64)
    if row_weights.shape != (count,):
        raise ValueError(f"weights are one number for each of {count} samples, not {row_weights.shape}")
    return Weighting(np.zeros(count, np.int8), _check_weights(row_weights), [(0, np.ones(1))])


def _check_weights(weights: Any) -> Any:
    """Return the array *weights* unchanged. Raises: ValueError unless all are finite and 0 or more, and not all 0."""
    if not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise ValueError("weights are numbers from 0 on, not all of them 0")
    return weights


def _parse_schedule(table: Any, count: int, schedule: Any) -> Weighting:
    """Return the `Weighting` of *schedule* for *count* rows of *table*: each pattern is a source of rows of weight 1.

    *schedule*: pairs (first sample, {pattern of shard URLs, as of fnmatch: share}); a pattern that a pair lacks has the
    share 0 there.
    Raises: SampleError for a shard that no pattern matches; ValueError for an item that is not of two values, the
    second a dict (TypeError if it has no length), for a schedule that does not begin at sample 0 and ascend, a pattern
    without rows, two patterns that match one shard, and shares of a pair that are not finite, negative or all 0.
    """
    if any(len(pair) != 2 or not isinstance(pair[1], dict) for pair in schedule):
        raise ValueError("a schedule of weights is like [(0, {'a/*.tar': 1}), (100000, {'b/*.tar': 1})]")
    firsts = [first for first, _ in schedule]
    if firsts[0] != 0 or firsts != sorted({*firsts}):
        raise ValueError(f"a schedule of weights begins at sample 0 and continues at later ones, not at {firsts}")
    patterns = [*dict.fromkeys(pattern for _, shares in schedule for pattern in shares)]
    source_of_row = _sources(table, patterns)
    rows = [
        (first, np.array([shares.get(pattern, 0) for pattern in patterns], np.float64)) for first, shares in schedule
    ]
    return Weighting(source_of_row, np.ones(count), [(first, _check_weights(shares)) for first, shares in rows])


def _sources(table: Any, patterns: Iterable[str]) -> Any:
    """Return the source of each row, int64: the index in *patterns* of the one that matches its shard's URL.

    *patterns*: of fnmatch, for all of the URL: * matches slashes, too; case counts.

    Raises: ValueError for a pattern without rows, and for two that match one shard; SampleError for a shard that no
    pattern matches.
    """
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
    source_of_row = source[numbers]
    if (source_of_row < 0).any():
        raise SampleError(
            "no pattern of weights matches this shard", url=urls[int(numbers[(source_of_row < 0).argmax()])]
        )
    return source_of_row
