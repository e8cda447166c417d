"""Works on items in threads, and yields the results in the order of the items, within a bounded window."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator, Iterable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

WINDOW = 1000  # items that are worked on, or done and not yet yielded


def mapped(
    items: Iterable[Item],
    work: Callable[[Item], Result],
    workers: int,
    stop: Callable[[], None],
    *,
    unordered: bool = False,
    window: int = WINDOW,
) -> Generator[tuple[Item, Result], None, None]:
    """Yield each of *items* with what *work* returns for it, in their order; as they are done if *unordered*.

    *work* runs in up to *workers* threads, *items* are read in the caller's thread. An item that takes long delays the
    results behind it, but not the work on them. A failure of *items* is raised when all before it have been yielded,
    one of *work* in the place of its result. At the end, in whatever way it comes, *stop* is called, after which every
    call of *work* must return soon, and the threads are waited for.

    Holds: up to twice *workers* items that are not done, and *window* in all.
    """
    pool = _Threads(work, workers)
    jobs: _Jobs[Item, Result] = _Jobs(items)
    done: dict[int, _Job[Item, Result]] = {}  # not yet yielded
    yielded = 0
    try:
        while True:
            while finished := pool.finished(wait=False):
                done[finished.number] = finished
            turn = next(iter(done)) if unordered and done else yielded
            if turn in done:
                yielded += 1
                yield done.pop(turn).outcome()
                continue
            room = pool.busy < 2 * workers and jobs.count - yielded < max(window, workers)
            if room and (job := jobs.next()):
                pool.give(job)
            elif jobs.count == yielded:
                break
            elif finished := pool.finished(wait=True):
                done[finished.number] = finished
        if jobs.failure:
            raise jobs.failure
    finally:
        stop()
        pool.close()


class _Job(Generic[Item, Result]):
    """One item, and its result or the error."""

    def __init__(self, number: int, item: Item) -> None:
        self.number = number
        self.item = item
        self.result: Result | None = None
        self.error: BaseException | None = None

    def outcome(self) -> tuple[Item, Result]:
        if self.error:
            raise self.error
        return self.item, self.result  # type: ignore[return-value]


class _Jobs(Generic[Item, Result]):
    """Makes jobs of items; *count* of them so far. *failure* is how the items ended, if not well."""

    def __init__(self, items: Iterable[Item]) -> None:
        self._items = iter(items)
        self._more = True
        self.count = 0
        self.failure: Exception | None = None

    def next(self) -> _Job[Item, Result] | None:
        """Return the next job; None at the end."""
        if not self._more:
            return None
        try:
            job = _Job[Item, Result](self.count, next(self._items))
        except StopIteration:
            self._more = False
            return None
        except Exception as error:
            self.failure, self._more = error, False
            return None
        self.count += 1
        return job


class _Threads(Generic[Item, Result]):
    """Up to *most* threads that call *work*, started when there are jobs for them. *busy* counts unfinished jobs.

    Only simple queues connect them to the caller's thread: a signal can interrupt waiting for these at any time.
    """

    def __init__(self, work: Callable[[Item], Result], most: int) -> None:
        self._work = work
        self._most = most
        self._threads: list[threading.Thread] = []
        self._todo: SimpleQueue[_Job[Item, Result] | None] = SimpleQueue()
        self._done: SimpleQueue[_Job[Item, Result]] = SimpleQueue()
        self.busy = 0

    def give(self, job: _Job[Item, Result]) -> None:
        """Have a thread do *job*."""
        self.busy += 1
        self._todo.put(job)
        if len(self._threads) < min(self.busy, self._most):
            thread = threading.Thread(target=self._loop, daemon=True)
            self._threads.append(thread)
            thread.start()

    def finished(self, *, wait: bool) -> _Job[Item, Result] | None:
        """Return a job that is done; if there is none, *wait* for one or return None."""
        try:
            job = self._done.get(block=wait)
        except Empty:
            return None
        self.busy -= 1
        return job

    def close(self) -> None:
        """Wait for the threads to end."""
        for _ in self._threads:
            self._todo.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _loop(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # commands that are started here inherit the mask
        while job := self._todo.get():
            try:
                job.result = self._work(job.item)
            except BaseException as error:
                job.error = error
            self._done.put(job)
