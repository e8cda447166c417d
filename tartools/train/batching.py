"""Batches by bucket, or by a cost budget, and their shares by rank."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tartools.train.epochorder import RowOrder, make_order_key, permute


class RankSteps(NamedTuple):
    """The steps in which *world_size* ranks share the positions of an epoch: a batch (or sample) for each rank a step.

    `world_size`: number of ranks
    `begin`: first position that is shared; those before it were consumed earlier
    `full_steps`: number of full steps, which come first; in step s rank r has `size` positions from
        `begin + (s * world_size + r) * size` on
    `size`: positions of a batch in a full step
    `tail_bounds`: list, or int64 array, of positions at which the batches after the full steps begin, for ranks 0, 1,
        ... by turns; the last item is the end of the last batch. In the last step some ranks may have no batch.
    """

    world_size: int
    begin: int
    full_steps: int
    size: int
    tail_bounds: Any

    @classmethod
    def of(cls, begin: int, length: int, world_size: int, size: int, drop_last: bool, single: bool) -> RankSteps:
        """Return the steps in which *world_size* ranks share the positions *begin* to *length* in batches of *size*.

        The samples after the full steps are shared evenly in one more step. If they are fewer than ranks, the step
        before takes them along, so that batches of some ranks have one sample more: so all ranks have equally many
        batches; 9 samples for 2 ranks in batches of 4 become batches of 5 and 4. Without a step before, some ranks have
        no batch: n samples go to the first n ranks. *drop_last*: leave out the samples after the full steps. *single*:
        True for samples in place of batches (*size* 1): nothing is taken along, and the first ranks may have one sample
        more.
        """
        full, remaining = divmod(max(length - begin, 0), world_size * size)
        if drop_last:
            remaining = 0
        elif 0 < remaining < world_size and full and not single:
            full, remaining = full - 1, remaining + world_size * size
        low, per_rank, extra = begin + full * world_size * size, *divmod(remaining, world_size)
        bounds = [low + rank * per_rank + min(rank, extra) for rank in range(min(world_size, remaining) + 1)]
        return cls(world_size, begin, full, size, bounds)

    def step_count(self, rank: int) -> int:
        """Return the number of steps in which *rank* has a batch; rank 0 has one in every step."""
        return self.full_steps + max(0, -((rank + 1 - len(self.tail_bounds)) // self.world_size))

    def tail_batches(self, rank: int, step: int) -> Iterator[tuple[int, int]]:
        """Yield (begin, end) positions of the batches of *rank* after the full steps, from step number *step* on.

        Steps are counted from 0, the full ones included.
        """
        for at in range(
            max(step - self.full_steps, 0) * self.world_size + rank, len(self.tail_bounds) - 1, self.world_size
        ):
            yield self.tail_bounds[at], self.tail_bounds[at + 1]

    def position_after(self, steps: int) -> int:
        """Return the first position that no rank has consumed once all ranks have made the first *steps* steps.

        After all steps it is the end of the last batch, also for a larger number.
        """
        if steps < self.full_steps:
            return self.begin + steps * self.world_size * self.size
        return int(self.tail_bounds[min((steps - self.full_steps) * self.world_size, len(self.tail_bounds) - 1)])


class BatchedOrder:
    """The rows of the order *inner* in batches, each of rows of one bucket, at most *size*, within a budget of cost.

    `rows` returns the rows of an epoch, batch after batch; `steps`, where batches begin, and which rank has which.
    `dataset`: the samples, or their table
    `bucket`: the name of a column of the table, whose values are one bucket each; an array with a label for each row; a
        dict: column -> increasing numbers at which buckets begin, or None for a bucket of each value. None: one bucket
    `max_cost`: pair of costs (the name of a column, or an array with a number for each row) and the maximal sum of the
        costs of a batch. None: no limit
    `drop_last`: leave out the last batch of each bucket, unless it has *size* rows, and in `steps` the last batches, if
        they are fewer than ranks
    `local`: batches come in the order in which *inner* has completed them, else in an order drawn by seed and epoch

    `length`: positions of an epoch of *inner*, with the rows that *drop_last* leaves out. `kind`: a dict of plain
        values that identifies the order in states.
    Raises: ValueError for a *bucket* or *max_cost* that does not fit the rows; KeyError for a column that there is not.
    Positions count the rows of an epoch, batch after batch. Holds: 16 bytes a row, 24 with *max_cost*, and 8 a batch,
    of the epoch that was asked for last.
    """

    def __init__(
        self, inner: RowOrder, dataset: Any, bucket: Any, max_cost: Any, size: int, drop_last: bool, local: bool
    ) -> None:
        table, count = getattr(dataset, "table", dataset), len(dataset)
        self.length = inner.length
        self._inner, self._size, self._drop_last, self._local = inner, size, drop_last, local
        self._labels = number_buckets(table, count, bucket)
        self._costs = None if max_cost is None else parse_costs(table, count, max_cost)
        self._max_cost = 0 if max_cost is None else max_cost[1]
        check = None if self._costs is None else [zlib.crc32(self._costs.tobytes()), self._max_cost]
        # identifies the order in states
        self.kind = inner.kind | {"bucket": zlib.crc32(self._labels.tobytes()), "max_cost": check}
        self.kind |= {"batch_size": size, "drop_last": drop_last}
        self._cached_epoch: tuple[tuple[int, int], Any, Any] | None = None  # of the epoch that was asked for last

    def rows(self, positions: Any, seed: int, epoch: int) -> Any:
        """Return the row numbers at *positions*, both int64 arrays, of epoch number *epoch* of a run with *seed*.

        Raises: IndexError for a position behind the last batch.
        """
        return self._batches(seed, epoch)[0][positions]

    def steps(self, begin: int, seed: int, epoch: int, world_size: int) -> RankSteps:
        """Return how *world_size* ranks share the batches of *epoch* of a run with *seed* from position *begin* on.

        A step has a batch for each rank, but the last one may lack some where samples are too few. The bounds of all
        batches from *begin* on are in `tail_bounds` of the result; `full_steps` is 0. If *begin* lies in a batch, the
        rest of that is a batch. Where batches are not a multiple of the ranks, some are halved, the largest first, or
        with `drop_last` the last ones left out.
        """
        bounds = self._batches(seed, epoch)[1]
        bounds_left = np.append(min(begin, bounds[-1]), bounds[bounds > begin])
        bounds_left = (
            bounds_left[: len(bounds_left) - (len(bounds_left) - 1) % world_size]
            if self._drop_last
            else halve_batches(bounds_left, world_size)
        )
        return RankSteps(world_size, int(bounds_left[0]), 0, 1, bounds_left)

    def _batches(self, seed: int, epoch: int) -> tuple[Any, Any]:
        """Return (rows in the order of the epoch, positions at which batches begin and the last one ends); cached.

        Both are arrays of int64.
        """
        if self._cached_epoch is None or self._cached_epoch[0] != (seed, epoch):
            # The stable sort by bucket keeps the order of the epoch within a bucket, so each bucket is one run, which
            # `_find_starts` cuts into batches. Then whole batches move: at random, or to the place at which `inner`
            # reached their last row, so that block-shuffled rows are read from neighbouring bytes.
            rows = self._inner.rows(np.arange(self.length), seed, epoch)
            order = np.argsort(self._labels[rows], kind="stable")
            labels = self._labels[rows[order]]
            of_label = labels.searchsorted(labels, "right")  # where the label of each row ends
            starts = self._find_starts(rows[order], of_label)
            ends = np.append(starts[1:], len(order))[: len(starts)]
            if self._drop_last:
                full = (ends - starts == self._size) | (ends < of_label[starts])
                starts, ends = starts[full], ends[full]
            count = len(starts)
            moved = (
                np.argsort(order[ends - 1])
                if self._local
                else permute(np.arange(count), count, make_order_key(seed, epoch, 2))
            )
            starts, ends = starts[moved], ends[moved]
            bounds = np.concatenate(([0], np.cumsum(ends - starts)))
            at = np.arange(bounds[-1]) + np.repeat(starts - bounds[:-1], ends - starts)
            self._cached_epoch = (seed, epoch), rows[order[at]], bounds
        return self._cached_epoch[1:]

    def _find_starts(self, rows: Any, of_label: Any) -> Any:
        """Return the indexes (int64) in *rows* at which batches begin.

        *rows*: row numbers, sorted by label. A batch ends at `size` rows, where its label ends, or before its costs
        would exceed the maximum. *of_label*: for each row, the index behind the last row with the same label.
        """
        numbers = np.arange(len(rows))
        ends = np.minimum(numbers + self._size, of_label)
        if self._costs is not None:
            costs = self._costs[rows]
            sums = np.cumsum(costs)
            ends = np.minimum(ends, np.maximum(sums.searchsorted(sums - costs + self._max_cost, "right"), numbers + 1))
        starts, at = [], 0
        while at < len(rows):
            starts.append(at)
            at = int(ends[at])
        return np.array(starts, np.int64)


def halve_batches(bounds: Any, world_size: int) -> Any:
    """Halve batches of the last step, the largest first, until each rank has one; return the new *bounds*.

    *bounds*: positions at which batches begin, and the end of the last one. The first half of an odd batch has one
    sample more. Batches of earlier steps are halved only if the last step has too few samples; batches of one sample
    are never, so that at last some ranks may have none.

    >>> halve_batches(np.array([0, 4, 8, 16]), 2).tolist(), halve_batches(np.array([0, 1, 3]), 4).tolist()
    ([0, 4, 8, 12, 16], [0, 1, 2, 3])
    """
    count = len(bounds) - 1
    lacking = -count % world_size
    for tail in (count % world_size, count % world_size + world_size, count):
        head, last = bounds[: max(count - tail, 0)], bounds[max(count - tail, 0) :].tolist()
        while lacking and (sizes := np.diff(last)).max(initial=0) > 1:
            at = int(sizes.argmax())
            last.insert(at + 1, (last[at] + last[at + 1] + 1) // 2)
            lacking -= 1
        bounds = np.append(head, np.array(last, np.int64))
    return bounds


def number_buckets(table: Any, count: int, bucket: Any) -> Any:
    """Return the bucket number of each of *count* rows, from 0 on, as an int64 array; all 0 if *bucket* is None.

    *bucket*: the name of a column of *table*, whose values are one bucket each; an array with a label for each row; or
    a dict: column -> increasing numbers at which its buckets begin, or None for a bucket of each value. Rows of one
    bucket agree in all columns of the dict.
    Rows below the first begin of a column are a bucket of their own. Buckets are numbered without gaps, in the order of
    their values, which are compared as text unless they are numbers. Raises: ValueError for another number of labels,
    or for begins of buckets that do not increase; KeyError for a column that *table* lacks.
    """
    labels = np.zeros(count, np.int64)
    if bucket is None:
        return labels
    if isinstance(bucket, str):
        bucket = {bucket: None}
    for name, edges in bucket.items() if isinstance(bucket, dict) else [("", None)]:
        values = np.asarray(table.column(name) if name else bucket)
        if values.shape != (count,):
            raise ValueError(f"bucket is one label for each of {count} samples, not {values.shape}")
        if edges is None:
            part = np.unique(values if values.dtype.kind in "biuf" else values.astype(str), return_inverse=True)[1]
        else:
            if [*edges] != sorted({*edges}):
                raise ValueError(f"buckets of {name!r} begin at increasing numbers, not at {edges}")
            part = np.searchsorted(edges, values, "right")
        labels = np.unique(labels * (int(part.max(initial=0)) + 1) + part, return_inverse=True)[1]
    return labels


def parse_costs(table: Any, count: int, max_cost: Any) -> Any:
    """Return the cost of each of *count* rows, as an array of int64, or of float64 if the costs are floats.

    *max_cost*: a pair of costs (the name of a column of *table*, or an array) and the maximal cost of a batch.
    Raises: ValueError if it is no such pair, for costs that are not one number a row, and for a row whose cost is
    negative, NaN, or above the maximum; KeyError for a column that *table* lacks.
    """
    if not isinstance(max_cost, (tuple, list)) or len(max_cost) != 2:
        raise ValueError(f"max_cost is a column and the most that a batch costs, ('tokens', 16384), not {max_cost!r}")
    cost, limit = max_cost
    costs = np.asarray(table.column(cost) if isinstance(cost, str) else cost)
    if costs.shape != (count,) or costs.dtype.kind not in "iuf":
        raise ValueError(f"max_cost has a number for each of {count} samples, not {costs.dtype} of {costs.shape}")
    for row in np.flatnonzero(~((costs >= 0) & (costs <= limit)))[:1].tolist():
        raise ValueError(f"the sample of row {row} costs {costs[row]}, and a batch may cost from 0 to {limit}")
    return costs.astype(np.float64 if costs.dtype.kind == "f" else np.int64)
