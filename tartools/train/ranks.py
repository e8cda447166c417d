"""Rank and worker of this process in a training run; and the epoch, in memory shared with its workers."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing import context
from multiprocessing.sharedctypes import RawArray
from typing import Any, NamedTuple

from tartools.train.frameworks import is_dealt_by_framework, warn_of_dispatched_workers

TRACKED_ITERATIONS = 8  # of one dataset at the same time
PART_BITS = 20  # of an entry: for the epochs since the number was set, and for the iterations of a copy
PART_MASK = (1 << PART_BITS) - 1


class ReaderId(NamedTuple):
    """A reader of an epoch, a worker of a rank or a rank without workers: number `number`, from 0, of `readers`.

    `readers`: of all ranks together.
    """

    number: int
    readers: int


class SharedNumbers:
    """*count* whole numbers (64 bits) in memory that this process shares with its workers, at first 0.

    `numbers`: the array. A copy, also an unpickled one, gets an array of its own, with equal numbers, unless it was
    pickled to start a process of multiprocessing, such as a worker: that one shares the array.
    """

    def __init__(self, count: int) -> None:
        self.numbers: Any = RawArray("q", count)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | ({} if context.get_spawning_popen() else {"numbers": [*self.numbers]})

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        if isinstance(self.numbers, list):
            self.numbers = RawArray("q", self.numbers)


class SharedEpoch(SharedNumbers):
    """The number of the epoch, in shared memory: `begin` an iteration to get it, or assign `number` to set it.

    *number*: that of the first iteration. Workers that run already see a number that is set (by `set_epoch`). A copy
    that shares no memory with this begins with an iteration of this `number`.

    Each iteration is of the epoch after that of the iteration before, unless the number was set since. The workers of
    one iteration must have one number, and torch tells the dataset of no iteration: so each of them looks for its
    iteration in a table in shared memory, and enters it if it is the first. Two that enter the same iteration at once
    write the same value, so there is no lock.

    An entry has a number for the iteration in its high bits, and in its low bits how many epochs came since the number
    was set; 0 is none. An iteration is known by the process of its first worker, and by how many iterations the copy
    of the dataset in a worker has begun: workers that persist begin several.
    """

    def __init__(self, number: int = 0) -> None:
        super().__init__(1 + TRACKED_ITERATIONS)  # the number that was set, and the table
        self.number = number
        self._iterations = 0  # that this copy has begun

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        # a copy in another program counts from this epoch on, with a table of its own
        return state if context.get_spawning_popen() else state | {"numbers": [self.number, *[0] * TRACKED_ITERATIONS]}

    @property
    def number(self) -> int:
        """The number of the epoch that was begun last, or was set since; if it is set, the next iteration has it."""
        last = max(self.numbers[1:], key=_later_epochs)
        return self.numbers[0] + _later_epochs(last)  # type: ignore[no-any-return]

    @number.setter
    def number(self, number: int) -> None:
        self.numbers[1:] = [0] * TRACKED_ITERATIONS
        self.numbers[0] = number

    def begin(self) -> int:
        """Begin an iteration, in this process or in a worker; return the number of its epoch.

        That is the number that was set, for the first iteration after it, or else one more than that of the iteration
        before. For one iteration, each of its workers calls this once; without workers, the process that iterates does.
        Warns in worker 0 if accelerate would drop samples (`warn_of_dispatched_workers`).
        """
        from torch.utils.data import get_worker_info

        worker = get_worker_info()
        if worker is not None and worker.id == 0 and os.environ.get("WORLD_SIZE", "1") != "1":
            warn_of_dispatched_workers(worker.num_workers)
        self._iterations += 1
        iteration = first_worker_process() << PART_BITS | self._iterations & PART_MASK
        entries = [entry for entry in self.numbers[1:] if entry]
        later = next((_later_epochs(entry) for entry in entries if entry >> PART_BITS == iteration), None)
        if later is None:
            later = max(map(_later_epochs, entries), default=-1) + 1
            self.numbers[1 + later % TRACKED_ITERATIONS] = iteration << PART_BITS | later & PART_MASK
        return self.numbers[0] + later  # type: ignore[no-any-return]


def _later_epochs(entry: int) -> int:
    """Return how many epochs the iteration of *entry* is after the epoch that was set.

    *entry*: a number from the table in `SharedEpoch`, not an index into it. 0, which stands for no iteration, gives 0.
    """
    return entry & PART_MASK


class SingleResume(SharedNumbers):
    """Lets the first iteration after `load` resume from the loaded state, and no later one.

    Without workers this class is not needed: the iterator takes the state, and the dataset forgets it. With workers it
    is. A DataLoader copies the dataset into its workers, in each epoch anew unless they persist, and calls nothing of
    the dataset in the process that trains. So the dataset there never learns that its state was used,
    and gives it to the workers of all later epochs, too: a program that sets one epoch twice, as for validation, would
    get only the rest of it each time.

    So the first workers leave a note in memory that they share with that process. multiprocessing numbers the
    processes that a program starts, from 1 on, and a DataLoader starts its workers one after the other: the process of
    worker 2 has the number of worker 0, plus 2. The workers of the first iteration write which number comes
    after theirs. Workers from this number on are of a later iteration, and do not resume. All workers of an iteration
    write the same number, so there is no lock. The seed that torch gives to workers would not do for it: a program that
    calls `torch.manual_seed` before each epoch has the same in all.
    """

    def __init__(self) -> None:
        super().__init__(1)  # the process number after the workers of the first iteration; 0: none has begun
        self._loading_process = 0

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        # in another program processes are counted from 1 again, so there 1 lets no worker resume
        return state if context.get_spawning_popen() else state | {"numbers": [int(self.in_workers)]}

    def load(self) -> None:
        """Let the next iteration resume: a state was loaded in this process.

        In a worker: let this worker's iterations resume, and nobody else's.
        """
        from torch.utils.data import get_worker_info

        self._loading_process = os.getpid()
        if get_worker_info() is None:
            self.numbers[0] = 0

    def begin(self) -> bool:
        """Begin an iteration, in this process or in a worker; return True if it may resume from the loaded state.

        Always True outside of workers, and in a worker that loaded the state itself, as those of StatefulDataLoader do.
        """
        first = first_worker_process()
        if not first:
            return True
        if not self.numbers[0]:
            self.numbers[0] = first + this_worker()[1]
        return self._loading_process == os.getpid() or bool(first < self.numbers[0])

    @property
    def in_workers(self) -> bool:
        """True if workers have begun to read since the last state was loaded, or at all if none was."""
        return bool(self.numbers[0])


def first_worker_process() -> int:
    """Return multiprocessing's number of the process of worker 0 of this worker's iteration; 0 outside of workers."""
    from torch.utils.data import get_worker_info

    worker = get_worker_info()
    # multiprocessing has the numbers in its processes' names, and here; it has no public name for them
    return 0 if worker is None else multiprocessing.current_process()._identity[-1] - worker.id


class ReaderRank:
    """The rank that this process reads for (`rank_and_size`), and from that, which reader it is (`reader`).

    Both are asked for where samples are read, not where the dataset is made, so that a stream may be made before there
    are ranks. The rank is *rank*, (rank, number of ranks), if that is given, or else that of torch.distributed or the
    environment (`this_rank`); but a worker that is no fork has neither torch.distributed nor, under some launchers, the
    environment of the process that trains, and so takes the rank that the training process had when it started the
    worker.
    """

    def __init__(self, rank: tuple[int, int] | None = None) -> None:
        self._given = rank
        self._inherited, self._parent_pid = (0, 1), 0  # the rank of the process that has started this worker

    def __getstate__(self) -> dict[str, Any]:
        inherited = {"_inherited": self.rank_and_size(), "_parent_pid": os.getpid()}
        return self.__dict__ | (inherited if context.get_spawning_popen() else {})

    def rank_and_size(self) -> tuple[int, int]:
        """Return (rank, number of ranks): as given, or else of torch.distributed or the environment (`this_rank`).

        (0, 1) if a framework deals samples to ranks, unless a rank was given. A worker that is no fork has the rank of
        the process that started it. Raises: ValueError for a bad RANK or WORLD_SIZE in the environment.
        """
        from torch.utils.data import get_worker_info

        if self._given:
            return self._given
        parent = multiprocessing.parent_process() if get_worker_info() else None
        if parent is None or parent.pid != self._parent_pid:  # no worker, a fork, or sent by somebody else
            return this_rank()
        return (0, 1) if is_dealt_by_framework() else self._inherited

    def reader(self) -> ReaderId:
        """Return the `ReaderId` of this process: its number among the readers of all ranks, and how many these are.

        Worker w of rank r of n has the number w * n + r. Raises: ValueError for a bad RANK or WORLD_SIZE in the
        environment.
        """
        (rank, world_size), (worker, workers) = self.rank_and_size(), this_worker()
        return ReaderId(worker * world_size + rank, workers * world_size)


def this_rank() -> tuple[int, int]:
    """Return (rank, number of ranks): of torch.distributed if it was initialised here, else of the environment.

    (0, 1) if a framework deals what the caller reads (see `is_dealt_by_framework`). In the environment, RANK and
    WORLD_SIZE count together; without one of them there is one rank. Raises: ValueError, naming the variable, if one is
    not a whole number, or if RANK is not one of 0 to WORLD_SIZE - 1: such a rank would read nothing.
    """
    # The order of these three matters. A framework that deals the batches of one loader to ranks would deal them a
    # second time if ranks counted here, too. A process group that was initialised is what training really uses; the
    # environment may be that of a larger launcher. Without a group, as before it is initialised or in programs that
    # need none, the variables of torchrun are all there is. Forks inherit both; other workers: see `ReaderRank`.
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
    """Return the whole number in the environment variable *variable*, which must be set.

    Raises: ValueError for any other text; KeyError if it is not set.
    """
    text = os.environ[variable]
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"the environment has {variable}={text}, which is not a whole number") from None


def this_worker() -> tuple[int, int]:
    """Return (number, count) of this process among the workers of its DataLoader; (0, 1) outside of workers."""
    from torch.utils.data import get_worker_info

    worker = get_worker_info()
    return (0, 1) if worker is None else (worker.id, worker.num_workers)
