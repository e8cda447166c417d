"""Orders of an epoch as functions of seed, epoch and position, of which nothing is held.

Rows come as they are stored, permuted as a whole, permuted by blocks, or drawn by weight. Only whole numbers of 64 bits
that wrap around are used, and one multiplication of doubles: the values are the same on every machine and in every
version of numpy.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from math import isqrt
from typing import Any, Protocol

import numpy as np

from tartools.errors import SampleError
from tartools.tables.table import Table

ROUNDS = 8
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def mixed(values: Any, key: int) -> Any:
    """Return 64 well mixed bits for each of *values* (uint64): the finalizer of splitmix64."""
    found = values * np.uint64(_GOLDEN) + np.uint64(key & _MASK)
    found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return found ^ (found >> np.uint64(31))


def key_of(*parts: int) -> int:
    """Return a key of 64 bits made of *parts*.

    >>> key_of(0, 0) != key_of(0, 1) != key_of(1, 0)
    True
    """
    key = 0
    for part in parts:
        key = int(mixed(np.array([key ^ (part & _MASK)], np.uint64), part >> 64)[0])
    return key


def permuted(positions: Any, count: int, key: int) -> Any:
    """Return where a permutation of `range(count)` has *positions*: an array of int64.

    A Feistel network on pairs (low, high) with low + width * high, walked until the number is below *count*: for each
    *key* a bijection. About one microsecond for ten positions; holds a few arrays as long as *positions*.

    >>> sorted(permuted(np.arange(10), 10, key=7).tolist()) == list(range(10))
    True
    """
    width = np.uint64(isqrt(max(count - 1, 0)) + 1)
    height = np.uint64(-(-count // int(width)))
    found = np.asarray(positions).astype(np.uint64)
    keys = [key_of(key, number) for number in range(ROUNDS)]
    walking = np.arange(len(found))
    while len(walking):
        high, low = np.divmod(found[walking], width)
        for number in range(0, ROUNDS, 2):
            low = (low + mixed(high, keys[number]) % width) % width
            high = (high + mixed(low, keys[number + 1]) % height) % height
        reached = low + width * high
        found[walking] = reached
        walking = walking[reached >= np.uint64(count)]
    return found.astype(np.int64)


def drawn(positions: Any, bounds: Any, key: int) -> Any:
    """Return for each of *positions* a number drawn with repetition; number n has the share bounds[n] - bounds[n-1].

    *bounds* are sums of weights, up to each number.
    """
    numbers = np.asarray(positions).astype(np.uint64)
    shares = (mixed(mixed(numbers, key), key) >> np.uint64(11)).astype(np.float64) / float(1 << 53)
    return np.minimum(bounds.searchsorted(shares * bounds[-1], "right"), len(bounds) - 1)


class RowOrder(Protocol):
    """Which row a position of the epoch has. *length* is how many positions there are."""

    length: int

    def rows(self, positions: Any, seed: int, epoch: int) -> Any:
        """Return the rows at *positions* as an array of int64."""


class StoredOrder:
    """The rows as they are."""

    def __init__(self, length: int) -> None:
        self.length = length

    def rows(self, positions: Any, seed: int, epoch: int) -> Any:
        """Return *positions*."""
        return positions


class GlobalOrder:
    """A permutation of all rows. Holds nothing."""

    def __init__(self, length: int) -> None:
        self.length = length

    def rows(self, positions: Any, seed: int, epoch: int) -> Any:
        """Return the rows at *positions*."""
        return permuted(positions, self.length, key_of(seed, epoch))


class BlockOrder:
    """A permutation of runs of neighbouring samples, about *size* bytes each, shuffled within windows of *window* runs.

    Holds: 24 bytes a run.
    """

    def __init__(self, table: Table, size: int, window: int) -> None:
        numbers, begins, ends = table.places()
        self.length = len(begins)
        self._window = window
        sizes = np.cumsum(ends - begins)
        new = np.ones(self.length, bool)
        new[1:] = (begins[1:] != ends[:-1]) | (numbers[1:] != numbers[:-1])
        starts = np.flatnonzero(new)
        before = np.repeat((sizes - (ends - begins))[starts], np.diff(np.append(starts, self.length)))
        part = (sizes - (ends - begins) - before) // size  # of the run of neighbours
        new[1:] |= part[1:] != part[:-1]
        self._starts = np.flatnonzero(new)
        self._counts = np.diff(np.append(self._starts, self.length))
        self._made: tuple[tuple[int, int], Any, Any] | None = None  # of the epoch that was asked for last

    def rows(self, positions: Any, seed: int, epoch: int) -> Any:
        """Return the rows at *positions*."""
        order, bounds = self._order(seed, epoch)
        borders = np.append(bounds[: -1 : self._window], bounds[-1])  # of windows
        within = borders.searchsorted(positions, "right") - 1
        found = np.empty(len(positions), np.int64)
        for window in np.unique(within).tolist():
            at = np.flatnonzero(within == window)
            begin, end = int(borders[window]), int(borders[window + 1])
            moved = permuted(positions[at] - begin, end - begin, key_of(seed, epoch, window + 1)) + begin
            run = bounds.searchsorted(moved, "right") - 1
            found[at] = self._starts[order[run]] + moved - bounds[run]
        return found

    def _order(self, seed: int, epoch: int) -> tuple[Any, Any]:
        """Return the runs of an epoch in their order, and the positions at which they begin and the last ends."""
        if self._made is None or self._made[0] != (seed, epoch):
            count = len(self._starts)
            order = permuted(np.arange(count), count, key_of(seed, epoch))
            bounds = np.concatenate(([0], np.cumsum(self._counts[order])))
            self._made = (seed, epoch), order, bounds
        return self._made[1:]


class WeightedOrder:
    """Rows drawn with repetition, each as often as its weight says, on average. Holds: 8 bytes a row."""

    def __init__(self, weights: Any, length: int) -> None:
        self.length = length
        self._bounds = np.cumsum(weights)

    def rows(self, positions: Any, seed: int, epoch: int) -> Any:
        """Return the rows at *positions*."""
        return drawn(positions, self._bounds, key_of(seed, epoch))


def weights_of(table: Any, length: int, weights: Any) -> Any:
    """Return the weight of each of *length* rows; *weights* is a column, an array, or shares of sources by pattern.

    Raises: SampleError, ValueError if they are no weights.
    """
    if isinstance(weights, dict):
        return _shares(table, weights)
    found = table.column(weights) if isinstance(weights, str) else weights
    found = np.asarray(found, np.float64)
    if found.shape != (length,):
        raise ValueError(f"weights are one number for each of {length} samples, not {found.shape}")
    if not np.isfinite(found).all() or (found < 0).any() or not found.any():
        raise ValueError("weights are numbers from 0 on, not all of them 0")
    return found


def _shares(table: Table, shares: dict[str, float]) -> Any:
    """Return the weights with which each source has its share; a source is the shards that a pattern matches."""
    numbers, _, _ = table.places()
    urls = table.shards()
    source = np.full(len(urls), -1)
    for number, pattern in enumerate(shares):
        for shard, url in enumerate(urls):
            if fnmatchcase(url, pattern):
                if source[shard] >= 0:
                    raise ValueError(f"two patterns match {url}")
                source[shard] = number
    of = source[numbers]
    if (of < 0).any():
        raise SampleError("no pattern of weights matches this shard", url=urls[int(numbers[(of < 0).argmax()])])
    counts = np.bincount(of, minlength=len(shares))
    for pattern, count in zip(shares, counts.tolist(), strict=True):
        if not count:
            raise ValueError(f"no shard matches {pattern!r}")
    each = np.array(list(shares.values()), np.float64) / counts
    return weights_of(table, len(numbers), each[of])
