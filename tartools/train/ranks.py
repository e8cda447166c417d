"""Rank and worker of this process in a training run; and the epoch, in memory shared with its workers."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing import context
from multiprocessing.sharedctypes import RawArray
from typing import Any, NamedTuple

from tartools.train.frameworks import is_dealt_by_framework, warn_of_dispatched_workers

# Where `SharedEpoch` has what in its shared numbers.
NUMBER, NEXT_PROCESS, ITERATIONS = 0, 1, 2
TRACKED_ITERATIONS = 8  # of one dataset at the same time
PART_BITS = 20  # of an entry: for the epochs since the number was set, and for the iterations of a copy
PART_MASK = (1 << PART_BITS) - 1


class ReaderId(NamedTuple):
    """A reader: number *number* of *readers*. A worker of a rank, or a rank without workers."""

    number: int
    readers: int


class SharedNumbers:
    """*count* numbers, at first 0, that this process and its workers have in common. Others get their own."""

    def __init__(self, count: int) -> None:
        self.numbers: Any = RawArray("q", count)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | ({} if context.get_spawning_popen() else {"numbers": [*self.numbers]})

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        if isinstance(self.numbers, list):
            self.numbers = RawArray("q", self.numbers)


class SharedEpoch(SharedNumbers):
    """The *number* of the epoch, in shared memory: workers that run already see the number of `set_epoch`.

    Each iteration is of the epoch after that of the iteration before, unless the number was set since. The workers of
    one iteration must have one number, and torch tells the dataset of no iteration: so each of them looks for its
    iteration in a table in shared memory, and enters it if it is the first. Two that enter the same iteration at once
    write the same value.

    With it goes which reader a process is, of *rank*, or else of what `this_rank` says where it reads. A worker that is
    no fork does not know that, and is told by the process that has started it.

    torch starts workers as copies of a dataset, in each epoch anew unless they persist. So that they go on from a state
    that was loaded before in one epoch only, their first iteration leaves beside the number which process will be
    started next. Its seed would not do: who sets torch's seed before each epoch has the same in all.
    """

    def __init__(self, number: int = 0, rank: tuple[int, int] | None = None) -> None:
        super().__init__(ITERATIONS + TRACKED_ITERATIONS)
        self.number, self.rank = number, rank
        self._inherited_rank = (0, 1), 0  # a rank, and the pid of the parent that set it
        self._loaded_by = 0  # a process
        self._iterations = 0  # that this copy has begun

    def __getstate__(self) -> dict[str, Any]:
        if context.get_spawning_popen():
            return super().__getstate__() | {"_inherited_rank": (self._rank(), os.getpid())}
        tracked = [0] * TRACKED_ITERATIONS
        # no process is before 1
        return super().__getstate__() | {"numbers": [self.number, int(self.in_workers), *tracked]}

    def _rank(self) -> tuple[int, int]:
        from torch.utils.data import get_worker_info

        parent = multiprocessing.parent_process() if get_worker_info() else None
        is_told = parent is not None and parent.pid == self._inherited_rank[1]
        if self.rank or not is_told:
            return self.rank or this_rank()
        return (0, 1) if is_dealt_by_framework() else self._inherited_rank[0]

    def reader(self) -> ReaderId:
        """Return which reader this process is. Neighbours are on other ranks."""
        (rank, world_size), (worker, workers) = self._rank(), this_worker()
        return ReaderId(worker * world_size + rank, workers * world_size)

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self._rank()[1]

    @property
    def number(self) -> int:
        """The number of the epoch that was begun last, or was set since."""
        last = max(self.numbers[ITERATIONS:], key=_later_epochs)
        return self.numbers[NUMBER] + _later_epochs(last)  # type: ignore[no-any-return]

    @number.setter
    def number(self, number: int) -> None:
        self.numbers[ITERATIONS:] = [0] * TRACKED_ITERATIONS
        self.numbers[NUMBER] = number

    @property
    def in_workers(self) -> bool:
        """True if workers have begun to read since the last state was loaded."""
        return bool(self.numbers[NEXT_PROCESS])

    def load(self, number: int) -> None:
        """Let the next iteration be of epoch *number*, and go on from a state."""
        self.number, self._loaded_by = number, os.getpid()
        if this_worker() == (0, 1):
            self.numbers[NEXT_PROCESS] = 0

    def begin(self) -> tuple[int, bool]:
        """Begin an iteration. Return the number of its epoch, and whether it may resume from a state.

        It may if no other copy of the dataset has done so.
        """
        from torch.utils.data import get_worker_info

        worker = get_worker_info()
        if worker is None:
            return self._begin_epoch(0), True
        if worker.id == 0 and os.environ.get("WORLD_SIZE", "1") != "1":
            warn_of_dispatched_workers(worker.num_workers)
        *_, number = multiprocessing.current_process()._identity  # of this process among those that were started
        first = number - worker.id
        if not self.numbers[NEXT_PROCESS]:
            self.numbers[NEXT_PROCESS] = first + worker.num_workers
        may_resume = self._loaded_by == os.getpid() or bool(first < self.numbers[NEXT_PROCESS])
        return self._begin_epoch(first), may_resume

    def _begin_epoch(self, first: int) -> int:
        """Return the number of the epoch that this copy begins now; *first*: the process number of the first worker.

        An entry of the table has a number for the iteration in its high bits, and in its low bits how many epochs came
        since the number was set.
        """
        self._iterations += 1
        iteration = first << PART_BITS | self._iterations & PART_MASK
        entries = [entry for entry in self.numbers[ITERATIONS:] if entry]
        later = next((_later_epochs(entry) for entry in entries if entry >> PART_BITS == iteration), None)
        if later is None:
            later = max(map(_later_epochs, entries), default=-1) + 1
            self.numbers[ITERATIONS + later % TRACKED_ITERATIONS] = iteration << PART_BITS | later & PART_MASK
        return self.numbers[NUMBER] + later  # type: ignore[no-any-return]


def _later_epochs(entry: int) -> int:
    """Return the epochs since the number was set, of an entry of the table of iterations."""
    return entry & PART_MASK


def this_rank() -> tuple[int, int]:
    """Return rank and number of ranks: of torch.distributed if it was initialised here, else of the environment.

    Rank 0 of 1 if a framework deals what the caller reads (see `is_dealt_by_framework`).

    There, RANK and WORLD_SIZE count together; without one of them there is one rank. Raises: ValueError, naming the
    variable, if one is not a whole number, or if RANK is not below WORLD_SIZE: such a rank would read nothing.
    """
    import torch.distributed as dist

    if is_dealt_by_framework():
        return 0, 1
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return 0, 1
    rank, world = map(_number_in, ("RANK", "WORLD_SIZE"))
    if not 0 <= rank < world:
        raise ValueError(f"the environment has RANK={rank} and WORLD_SIZE={world}: ranks are 0 to WORLD_SIZE - 1")
    return rank, world


def _number_in(variable: str) -> int:
    """Return the number that *variable* of the environment is. Raises: ValueError."""
    text = os.environ[variable]
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"the environment has {variable}={text}, which is not a whole number") from None


def this_worker() -> tuple[int, int]:
    """Return number and count of the workers of a DataLoader; 0 of 1 outside of them."""
    from torch.utils.data import get_worker_info

    worker = get_worker_info()
    return (0, 1) if worker is None else (worker.id, worker.num_workers)
