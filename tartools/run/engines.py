"""Calls of a function on many items, in threads, in processes or on a Ray cluster, for who takes the results.

There is a thread for each worker. It calls the function itself, or waits for the process or Ray task that does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

from tartools.run.answers import Answer, Item, Work, held
from tartools.samples.account import Account
from tartools.storage.requests import Requests

ENGINES = ("threads", "processes", "ray")
EACH = 2  # items for each worker that are under way, unless the caller says how many


class Caller(Protocol):
    """Calls the function; several threads may call it at a time."""

    def __call__(self, item: Any, /) -> Answer:
        """Return what the function yields for *item*."""
        ...

    def stop(self) -> None:
        """End what is under way."""
        ...

    def close(self) -> None:
        """Release all, when no thread calls any more."""
        ...


class _Here:
    """Calls *work* in the thread that asks."""

    def __init__(self, work: Work[Any]) -> None:
        self._work = work
        self._stopped = False

    def __call__(self, item: Any) -> list[Any]:
        return held(self._work, item, lambda: self._stopped)

    def stop(self) -> None:
        """Have no more results made."""
        self._stopped = True

    def close(self) -> None:
        """Do nothing."""


@contextmanager
def calling(
    engine: str, work: Work[Any], workers: int | None, retries: int, address: str | None, cpus: float
) -> Iterator[tuple[Caller, int]]:
    """Give what calls *work*, and how many threads should call it: *workers*, or as many as there are cores."""
    if engine == "ray":
        from tartools.run import ray as cluster

        with cluster.connected(address) as ray:
            cpus = cluster.cores_for(ray, cpus, Account())
            yield cluster.Tasks(ray, work, cpus, retries), workers or cluster.room_for(ray, cpus)
        return
    if engine == "processes":
        from tartools.run.spawned import Spawned

        yield Spawned(work, retries), workers or _cores()
    else:
        yield _Here(work), workers or _cores()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def answers(
    caller: Caller, workers: int, items: Iterable[Item], ordered: bool, ahead: int | None
) -> Generator[Answer, None, None]:
    """Yield the answers of *caller* for *items*, which *workers* threads call: in order, or as they come.

    Up to *ahead* items are under way at a time (default: 2 for each worker): sent, waiting for those before them, or
    handed out last. Raises: what *items* and *caller* raise, after the answers for the items before. Closing this ends
    the workers, and waits for them.
    """
    most = ahead or EACH * workers
    requests = Requests(workers)
    ended: SimpleQueue[int] = SimpleQueue()
    waiting: dict[int, Callable[[], Answer]] = {}
    source = enumerate(items)
    failure: Exception | None = None

    def call(number: int, item: Item) -> Answer:
        try:
            return caller(item)
        finally:
            if not ordered:
                ended.put(number)

    try:
        while True:
            while len(waiting) < most and failure is None:
                try:
                    number, item = next(source)
                except StopIteration:
                    break
                except Exception as error:
                    failure = error
                    break
                waiting[number] = requests.ask(partial(call, number, item))
            if not waiting:
                if failure is not None:
                    raise failure
                return
            number = next(iter(waiting)) if ordered else ended.get()
            yield waiting[number]()
            del waiting[number]
    finally:
        caller.stop()
        requests.close()
        requests.join()
        caller.close()
