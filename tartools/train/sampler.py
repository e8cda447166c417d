"""`StatefulSampler`: the order of samples, dealt to ranks, with a state; a sampler for torch's DataLoader."""

from __future__ import annotations

import logging
import math
import operator
from bisect import bisect_left
from collections.abc import Iterator
from functools import cached_property, partial
from hashlib import blake2b
from itertools import chain, islice
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, DistributedSampler, Sampler, StackDataset, Subset

from tartools.errors import byte_size, several
from tartools.train import epochorder
from tartools.train.batching import BatchedOrder, RankSteps
from tartools.train.frameworks import is_dealt_by_framework
from tartools.train.ranks import this_rank, this_worker
from tartools.train.sampleseeds import SharedSeeds
from tartools.train.states import (
    StateError,
    check_state,
    is_count,
    is_integer,
    is_text,
    make_state,
    plain_value,
    short_repr,
)

POSITIONS_IN_BATCH = 1 << 13  # positions that are computed at once
SOURCE_BUCKET = "__source__"  # a bucket for each source
ORDER_SETTINGS = {"block", "weights", "bucket"}  # what states of some orders have
log = logging.getLogger("tartools.train")


class StatefulSampler(DistributedSampler[Any]):
    """The order of the samples of *dataset*, epoch by epoch, shared by ranks; a state resumes it.

        sampler = tartools.train.StatefulSampler(data, seed=7, batch_size=64)
        for batch in torch.utils.data.DataLoader(data, batch_sampler=sampler, num_workers=4): ...

    *dataset* is a TableDataset, a `tartools.Table`, or anything with a length. With *batch_size* this is a batch
    sampler, which yields lists of row numbers, otherwise a sampler, which yields row numbers. The order is a function
    of seed, epoch and position alone: the same with any number of ranks and workers. Each sample comes once an epoch,
    unless *weights*, *length* or *drop_last* are given. All ranks have equally many batches, for which the last ones
    have fewer samples, or one more; if too few samples are left, some ranks have a batch fewer, with a warning. Without
    *batch_size*, some may have a sample more. Each iteration is the next epoch, from 0, unless `set_epoch` was called.

    *shuffle*: True or "global": all samples are permuted; "blocks": runs of neighbours of *block* bytes (or "4MB") are,
    and samples within each *window* runs, for a *dataset* with a table; False: the order of the dataset
    *rank*, *world_size*: None: those of torch.distributed, or of RANK and WORLD_SIZE
    *weights*: shares of samples: a column's name, or an array with a number for each; or of sources: a dict, pattern of
    shard URLs -> share, or a schedule, pairs (number of a sample over all epochs, such a dict)
    *length*: samples in an epoch; None: as many as *dataset* has. *replacement*: draw at random, else in exact shares,
    with *per_batch* in each batch
    *bucket*: batches of rows of one bucket: a column's name, or "__source__" for the sources of *weights*, or an array
    with a label for each row, or a dict, column -> numbers at which buckets begin
    *max_cost*: (a column's name or an array, largest sum of it in a batch)
    *drop_last*: leave out samples that do not fill a batch of every rank

    More on them: docs/training/order.md and docs/training/mixtures.md.
    Holds: nothing of the permutation; 32 bytes for each run of "blocks", 16 bytes a row for *weights* and *length*, 32
    for batches by bucket or cost. Raises: ValueError for arguments that don't fit; SampleError for a shard that no
    pattern of *weights* matches; TypeError for a *dataset* that is a sampler; KeyError for a column that is not there.
    """

    # Who counts the batches that training has had. A DataLoader with workers asks for batches in advance, so the
    # sampler can't know: `Loader`, which hands batches out, counts them itself, and sets this to True while torch makes
    # the iterator. With any other loader it stays False: what was asked for counts as had, unless the program says
    # otherwise by `state_dict(taken=...)`.
    loader_counts = False

    def __init__(
        self,
        dataset: Any,
        seed: int = 0,
        shuffle: bool | str = True,
        block: int | str = "4MB",
        batch_size: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        weights: Any = None,
        drop_last: bool = False,
        *,
        window: int = 8,
        length: int | None = None,
        replacement: bool = False,
        per_batch: bool = False,
        bucket: Any = None,
        max_cost: tuple[Any, float] | None = None,
    ) -> None:
        if shuffle not in (True, False, "global", "blocks"):
            raise ValueError(f"shuffle is True, False, 'global' or 'blocks', not {shuffle!r}")
        if (rank is None) != (world_size is None) or (rank is not None and not 0 <= rank < (world_size or 0)):
            raise ValueError(f"there is no rank {rank} of {world_size}: give both or neither; ranks count from 0")
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size is 1 or more, not {batch_size}")
        if length is not None and length < 1:
            raise ValueError(f"length, of an epoch, is 1 or more, not {length}")
        if isinstance(dataset, Sampler):
            raise TypeError(
                f"a StatefulSampler orders a dataset, not a {type(dataset).__name__}. If a framework puts this sampler "
                "in its place: prevent that with use_distributed_sampler=False (Lightning), use tartools.train.loader, "
                "or give overfit_batches and predict a DataLoader without a StatefulSampler"
            )
        batched = bucket is not None or max_cost is not None
        if (per_batch or batched) and (batch_size is None or (per_batch and batched)):
            raise ValueError("bucket and max_cost, or per_batch, need a batch_size, and don't go together")
        self.batch_size = batch_size
        self.drop_last = drop_last or per_batch
        self._rank = None if rank is None or world_size is None else (rank, world_size)
        self._seed, self._epoch, self._position = operator.index(seed), 0, 0
        self._steps_done = 0  # of the epoch, before the next iteration
        self._was_set = False  # the epoch, since the last iteration began
        self.is_loaded = False  # a state, since `RankSampler.set_epoch` was called
        self.dataset = dataset  # which Composer asks for its length
        self.sampler = RankSampler(self)  # frameworks set the epoch of `batch_sampler.sampler`
        self.running: SamplerIteration | None = None  # the iteration that was begun last
        table, count = getattr(dataset, "table", dataset), len(dataset)
        self._digest = partial(digest_of_dataset, dataset)
        self._begin_epoch = partial(begin_epoch, dataset)
        self._kind: dict[str, Any] = {"shuffle": "global" if shuffle is True else shuffle, "samples": count}
        mixing = weights, length, replacement, (batch_size or 0) * per_batch
        self._rows: epochorder.RowOrder | BatchedOrder = make_row_order(dataset, shuffle, block, window, *mixing)
        if batched:
            if isinstance(bucket, str) and bucket == SOURCE_BUCKET:
                bucket = epochorder.parse_weights(table, count, {} if weights is None else weights).source
            local = shuffle in ("blocks", False)
            self._rows = BatchedOrder(self._rows, dataset, bucket, max_cost, batch_size or 1, drop_last, local)
        self._kind = plain_value(self._kind | self._rows.kind)

    @property
    def epoch(self) -> int:  # type: ignore[override]
        """The number of the current epoch; once an iteration over it has ended, the number of the next one."""
        return self._epoch

    @property
    def total_size(self) -> int:  # type: ignore[override]
        """The number of samples in an epoch, all ranks, before *drop_last*, unpadded; *per_batch*: in full batches."""
        return self._rows.length

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """The number of ranks, as torch calls it: *world_size*, or if it is None the one that `this_rank` returns."""
        return (self._rank or this_rank())[1]

    def rank_and_size(self) -> tuple[int, int]:
        """Return (rank, number of ranks): as given, or else of torch.distributed or the environment (`this_rank`).

        (0, 1) if a framework deals samples, and no rank was given. Raises: ValueError for a bad RANK or WORLD_SIZE.
        """
        return self._rank or this_rank()

    def set_epoch(self, epoch: int) -> None:
        """Make *epoch* the epoch of the next iteration: from its begin, or from a loaded state of the same epoch."""
        self._end_if_over()
        if epoch != self._epoch:
            self._move_to(epoch)
            self.running = None
        self._was_set = True

    def __len__(self) -> int:
        """Return how many batches, or without *batch_size* samples, the epoch has for this rank.

        After `load_state_dict` it counts those before the state, too: loops count on with the number of a checkpoint.
        """
        rank, steps = self._share_epoch()
        return self._steps_done + steps.step_count(rank)

    def __iter__(self) -> SamplerIteration:
        """Begin an iteration of the next epoch, of the one that was set, or of the rest of a loaded state's; return it.

        An iteration that was not `used` begins again; after a used one the next epoch follows, unless one was set.
        Sets the seeds of the dataset's random transforms. Logs a warning if this rank has a batch fewer than others.
        Raises: ValueError if accelerate would deal a given rank's part again, and for a bad RANK or WORLD_SIZE.
        """
        self._end_if_over()
        is_unfinished = self.running is not None and self.running.used and not self.running.ended
        if is_unfinished and not self._was_set:
            self._move_to(self._epoch + 1)
        self._was_set = False
        rank, steps = self._share_epoch()
        if self._rank is not None and self._rank[1] > 1 and this_worker() == (0, 1) and is_dealt_by_framework():
            raise ValueError(
                f"this is the part of rank {rank} of {self._rank[1]}, and accelerate would deal it to ranks again: "
                "leave out rank and world_size, or do not prepare this loader"
            )
        if steps.step_count(rank) < steps.step_count(0) and self.batch_size is not None:
            samples = several(steps.position_after(steps.step_count(0)) - steps.position_after(0), "sample")
            has = "one batch fewer than others" if steps.step_count(rank) else "no batch"
            log.warning("%s left for %d ranks: rank %d has %s", samples, steps.world_size, rank, has)
        return SamplerIteration(self)

    def state_dict(self, taken: int | None = None) -> dict[str, Any]:
        """Return the state of all ranks: for `load_state_dict` of a sampler with any ranks, workers and batch size.

        *taken*: batches (without *batch_size*: samples) of the last iteration that training has had on this rank, and
        on each other rank. A loader with workers asks for more in advance, so give it there, as `taken=step + 1`. None:
        all that was asked for, or with `tartools.train.loader` all that it has yielded. Raises: ValueError for a
        *taken* before an iteration has begun, also after a state was loaded or another epoch was set.
        """
        if taken is None and (self.running is None or self.running.ended or not self.running.consumed):
            return self._state(self._epoch, self._position, self._steps_done)
        if self.running is None:
            raise ValueError("nothing was taken: no iteration has begun")
        return self.running.state_dict(taken)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the next iteration resume from *state*, and replace seed and epoch of this sampler by the state's.

        Raises: StateError if it is malformed, or of another order or other data.
        """
        # the values of an order are compared below
        checks = dict.fromkeys(self._kind, lambda _: True) | {
            "seed": is_integer,
            "epoch": is_integer,
            "data": is_digest,
        }
        checks["done"] = lambda position: is_count(position) and position <= self._rows.length
        if isinstance(state, dict) and "steps" in state:  # tartools 0.2 did not count them
            checks["steps"] = is_count
        check_state(state, "a StatefulSampler like this one", checks)
        if (ORDER_SETTINGS - {*self._kind}) & {*state}:
            raise StateError("this is not a state of a StatefulSampler like this one")
        for name, value in self._kind.items():
            if state[name] != value:
                was = short_repr(state[name])
                raise StateError(f"the state is of an order with {name} {was}, and here it is {value!r}")
        if state["data"] != self._fingerprint:
            raise StateError(
                "the state belongs to other data: other shards or versions of them, or samples at other places or in "
                "another order; use the data that it was made with, or start without a state"
            )
        self._seed, self._epoch, self._position = state["seed"], state["epoch"], state["done"]
        self.running, self._was_set, self.is_loaded = None, False, True
        self._steps_done = state["steps"] if "steps" in state else self._steps_to(self._position)

    def _state(self, epoch: int, position: int, steps: int) -> dict[str, Any]:
        """Return the state of *epoch* after all ranks together have consumed its first *position* positions.

        *position*: samples, counted from the begin of the epoch. *steps*: number of steps, from there too, in which
        they did that; in a step each rank takes a batch (without *batch_size*: a sample).
        """
        place = {"seed": self._seed, "epoch": epoch, "done": position, "steps": steps, "data": self._fingerprint}
        return make_state(place | self._kind)

    def _steps_to(self, position: int) -> int:
        """Return the number of steps, rounded up, in which the ranks consume the epoch from its begin to *position*.

        Sets `_position` to *position*. For states of tartools 0.2, which have no count.
        """
        self._position = 0
        rank, steps = self._share_epoch()
        self._position = position
        return bisect_left(range(steps.step_count(rank)), position, key=steps.position_after)

    @cached_property
    def _fingerprint(self) -> str | None:
        """The fingerprint of the data set, by which states know it again; None if it has none."""
        return self._digest()

    def _share_epoch(self) -> tuple[int, RankSteps]:
        """Return (this rank, `RankSteps` in which all ranks share the current epoch from `_position` on).

        `_position` is 0, or the position of the state that was loaded.
        """
        rank, world_size = self.rank_and_size()
        if isinstance(self._rows, BatchedOrder):
            return rank, self._rows.steps(self._position, self._seed, self._epoch, world_size)
        sizes = world_size, self.batch_size or 1
        return rank, RankSteps.of(self._position, self._rows.length, *sizes, self.drop_last, self.batch_size is None)

    def _end_if_over(self) -> None:
        """If the latest iteration was `used` and has consumed all of its epoch, end that, and move on to the next."""
        if self.running is not None and self.running.used:
            self.running.end_if_over()

    def _end(self, epoch: int) -> None:
        """Go on to the epoch after *epoch*, unless another epoch was set meanwhile."""
        if epoch == self._epoch:
            self._move_to(epoch + 1)

    def _move_to(self, epoch: int) -> None:
        """Make *epoch* the current one, from its begin on."""
        self._epoch, self._position, self._steps_done = epoch, 0, 0


class RankSampler(DistributedSampler[Any]):
    """A sampler, not of batches: each iteration is one of *order*, and yields row numbers of this rank one by one.

    *order*: the `StatefulSampler` of a loader by batches, which has no other sampler; what frameworks look at is
    `loader.sampler`: whether it deals to ranks already, and how to set the epoch.
    """

    def __init__(self, order: StatefulSampler) -> None:
        self.order = order
        self.dataset, self.drop_last = order.dataset, order.drop_last  # as Composer expects
        self._epochs_before = 0  # of other processes

    @property
    def epoch(self) -> int:  # type: ignore[override]
        """The number of the current epoch; once an iteration over it has ended, the number of the next one."""
        return self.order.epoch

    @property
    def total_size(self) -> int:  # type: ignore[override]
        """The number of samples in an epoch, over all ranks, without padding."""
        return self.order.total_size

    def __len__(self) -> int:
        """Return the number of samples of a rank in an epoch, rounded up."""
        return math.ceil(self.total_size / self.order.num_replicas)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.order) if self.order.batch_size is None else chain.from_iterable(self.order)

    def set_epoch(self, epoch: int) -> None:
        """Make *epoch* the epoch of the next iteration.

        Fabric and accelerate count the epochs of each process from 0. So after a state was loaded, an *epoch* below
        that of the state counts from there: the first one set is the state's epoch, and later ones follow it.
        """
        if self.order.is_loaded:
            self._epochs_before, self.order.is_loaded = max(self.order.epoch - epoch, 0), False
        self.order.set_epoch(self._epochs_before + epoch)


class SamplerIteration(Iterator[Any]):
    """One iteration over the batches (or samples) of this rank; it has a state, for torchdata's loader.

    `taken`: batches of this rank that it has yielded
    `consumed`: batches that training has received: all of `taken`, unless `loader_counts` of the sampler was True when
        it began: then the loader, which prefetches, adds to it
    `epoch`: number of the epoch
    `ended`: True once `end_if_over` has found that all batches were consumed; the end of the iterator calls it
    Without a batch size, samples are counted in place of batches.
    """

    def __init__(self, sampler: StatefulSampler) -> None:
        self._sampler, self._loader_counts = sampler, sampler.loader_counts
        self._begin()

    def _begin(self) -> None:
        """Make this the sampler's `running` iteration, from its current place on, untaken; seed the transforms."""
        sampler = self._sampler
        self._rank, self._steps = sampler._share_epoch()
        self._seed, self.epoch, self._steps_before = sampler._seed, sampler._epoch, sampler._steps_done
        self._iterator = self._batches()
        self.taken = self.consumed = 0
        self.ended = self._loaded = False
        sampler.running = self
        sampler._begin_epoch(self._seed, self.epoch)

    def __next__(self) -> Any:
        try:
            batch = next(self._iterator)
        except StopIteration:
            self.end_if_over()
            raise
        self.taken += 1
        self.consumed += not self._loader_counts
        return batch

    @property
    def remaining(self) -> int:
        """The number of batches (or samples) that this rank has not consumed yet."""
        return self._steps.step_count(self._rank) - self.consumed

    @property
    def used(self) -> bool:
        """True if a batch was consumed or a state loaded: loaders with workers begin iterations that nobody uses."""
        return self.consumed > 0 or self._loaded

    def end_if_over(self) -> None:
        """End the epoch if all batches are consumed: the sampler moves on to the next one, unless another was set."""
        if not self.ended and self.remaining <= 0:
            self.ended = True
            self._sampler._end(self.epoch)

    def state_dict(self, taken: int | None = None) -> dict[str, Any]:
        """Return the state of all ranks after *taken* batches (or samples) of this iteration on each rank.

        None: after the consumed ones.
        """
        taken = self.consumed if taken is None else taken
        return self._sampler._state(self.epoch, self._steps.position_after(taken), self._steps_before + taken)

    def pending(self) -> list[Any]:
        """Return the batches, lists of rows (without a batch size: rows), yielded to a loader but not consumed."""
        return list(islice(self._batches(self.consumed), self.taken - self.consumed))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin again at the place of *state*, which the sampler loads, too.

        Raises: StateError if it is malformed, or of another order or other data.
        """
        self._sampler.load_state_dict(state)
        self._begin()
        self._loaded = True

    def _batches(self, first: int = 0) -> Iterator[Any]:
        """Yield the batches of this rank, lists of row numbers, from its batch number *first* on.

        They are counted from the begin of this iteration, which need not be that of the epoch. Without a batch size it
        yields row numbers, and *first* counts these.
        """
        steps, rank = self._steps, self._rank
        rows_at, single = self._sampler._rows.rows, self._sampler.batch_size is None
        at_once = max(POSITIONS_IN_BATCH // steps.size, 1)
        for begin_step in range(first, steps.full_steps, at_once):
            numbers = np.arange(begin_step, min(begin_step + at_once, steps.full_steps))[:, None]
            positions = steps.begin + (numbers * steps.world_size + rank) * steps.size + np.arange(steps.size)
            rows = rows_at(positions.ravel(), self._seed, self.epoch)
            yield from (rows if single else rows.reshape(positions.shape)).tolist()
        for begin, end in steps.tail_batches(rank, first):
            rows = rows_at(np.arange(begin, end), self._seed, self.epoch).tolist()
            yield from rows if single else [rows]


def make_row_order(
    dataset: Any, shuffle: Any, block: Any, window: int, weights: Any, length: int | None, replacement: bool, batch: int
) -> epochorder.RowOrder:
    """Return the order of the samples of *dataset*; row numbers come from its `rows(positions, seed, epoch)`.

    *shuffle*: False: as stored; "blocks": runs of neighbours of *block* bytes (a number, or a text such as "4MB") are
    permuted, and samples within *window* runs (*dataset* needs a table); else a permutation. *length*: samples; None:
    as many as *dataset* has. *weights*: their shares (as for `StatefulSampler`; None: equal), exact or with
    *replacement* drawn.
    *batch*: batch size, to have exact shares of sources in each batch (per_batch), all full; 0: in an epoch. Raises:
    ValueError for wrong arguments; SampleError for a shard that no pattern matches; KeyError for a missing column.
    """
    table, count = getattr(dataset, "table", dataset), len(dataset)
    if weights is not None or length is not None:
        if shuffle in ("blocks", False):
            raise ValueError("with weights or a length samples are drawn from all of them: shuffle must be True")
        mixture = epochorder.parse_weights(table, count, weights)
        if replacement and (batch or len(mixture.schedule) > 1):
            raise ValueError("with replacement shares are met on average: not per batch, and not by a schedule")
        for first, shares in mixture.schedule if batch else ():
            if (shares % 1).any() or shares.sum() != batch:
                raise ValueError(f"with per_batch weights are whole numbers whose sum is batch_size, {batch}: {shares}")
            if first % batch:
                raise ValueError(f"with per_batch shares begin with a batch of {batch}, not at sample {first}")
        samples = count if length is None else length
        if replacement:
            return epochorder.WeightedOrder(mixture, samples)
        return epochorder.ShareOrder(mixture, samples, batch)
    if replacement or batch:
        raise ValueError("replacement and per_batch say how weights are met: give these")
    if shuffle == "blocks":
        size = byte_size(block) if isinstance(block, str) else block
        if size < 1 or window < 1:
            raise ValueError(f"a block has 1 byte or more, and a window 1 block or more, not {block} and {window}")
        return epochorder.BlockOrder(table, size, window)
    return epochorder.PlainOrder(count, bool(shuffle))


def is_digest(value: Any) -> bool:
    """True if *value*, from a state, may be a fingerprint of data: a text, or None for data without one."""
    return value is None or is_text(value)


def datasets_in(dataset: Any) -> list[Any]:
    """Return the inner datasets of *dataset*, if it is torch's Subset, ConcatDataset or StackDataset; else []."""
    if isinstance(dataset, Subset):
        return [dataset.dataset]
    parts = dataset.datasets if isinstance(dataset, (ConcatDataset, StackDataset)) else ()
    return list(parts.values() if isinstance(parts, dict) else parts)


def begin_epoch(dataset: Any, seed: int | None, epoch: int) -> None:
    """Set the seed and the epoch from which random transforms of *dataset* and its inner datasets get their seeds.

    *seed*: of the run; None: leave the one that was set before, at first 0. A dataset without such transforms is left.
    """
    seeds = getattr(getattr(dataset, "chooser", dataset), "seeds", None)
    if isinstance(seeds, SharedSeeds):
        seeds.begin(seed, epoch)
    for part in datasets_in(dataset):
        begin_epoch(part, seed, epoch)


def digest_of_dataset(dataset: Any) -> str | None:
    """Return a fingerprint of the samples of *dataset* in their order: the result of its method `digest` if it has one.

    Else it is made of its class, a Subset's indices, the inner datasets' fingerprints and lengths; None without these.
    """
    if hasattr(dataset, "digest"):
        digest: str = dataset.digest()
        return digest
    if not (parts := datasets_in(dataset)):
        return None
    indices = list(map(int, dataset.indices)) if isinstance(dataset, Subset) else []
    about = [(len(part), digest_of_dataset(part)) for part in parts]
    return blake2b(repr((type(dataset).__name__, indices, about)).encode(), digest_size=16).hexdigest()
