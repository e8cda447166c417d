"""Orders of an epoch as functions of position: in order, permuted as a whole, permuted by blocks, drawn by weight."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any, Protocol

import numpy as np

from tartools.errors import SampleError
from tartools.tables.table import Table
from tartools.train.permutation import drawn, key_of, permuted


class Layout(Protocol):
    """Which row a position of the epoch has. *length* is how many positions there are."""

    length: int

    def rows(self, positions: Any, seed: int, epoch: int) -> Any:
        """Return the rows at *positions* as an array of int64."""


class InOrder:
    """The rows as they are."""

    def __init__(self, length: int) -> None:
        self.length = length

    def rows(self, positions: Any, seed: int, epoch: int) -> Any:
        """Return *positions*."""
        return positions


class Global:
    """A permutation of all rows. Holds nothing."""

    def __init__(self, length: int) -> None:
        self.length = length

    def rows(self, positions: Any, seed: int, epoch: int) -> Any:
        """Return the rows at *positions*."""
        return permuted(positions, self.length, key_of(seed, epoch))


class Blocks:
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
        self._made: tuple[tuple[int, int], Any, Any] | None = None

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


class Weighted:
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
