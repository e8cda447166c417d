"""Orders of an epoch as functions of seed, epoch and position, of which nothing is held.

Rows come as they are stored, permuted as a whole, or permuted by blocks; `mixtures` has orders by weight. Only whole
numbers of 64 bits that wrap around are used, and a few products of doubles: the values are the same on every machine
and in every version of numpy.
"""

from __future__ import annotations

from math import isqrt
from typing import Any, Protocol

import numpy as np

from tartools.tables.table import Table

ROUNDS = 8
GOLDEN = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


def mixed(values: Any, key: int) -> Any:
    """Return 64 well mixed bits for each of *values* (uint64): the finalizer of splitmix64."""
    found = values * np.uint64(GOLDEN) + np.uint64(key & MASK)
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
        key = int(mixed(np.array([key ^ (part & MASK)], np.uint64), part >> 64)[0])
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
