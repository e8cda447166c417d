"""Work on items in parallel, and give the results in the order of the items, within a bounded window."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator, Iterable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

WINDOW = 1000  # items that are worked on, or done and not yet taken


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

    *work* runs in up to *workers* threads, *items* are asked for in the caller's thread. An item that takes long
    holds up the results behind it, but not the work on them. A failure of *items* is raised when all before it has
    been yielded, one of *work* in the place of its result. At the end, however it comes, *stop* is called, after
    which every call of *work* must return soon, and the threads are waited for.

    Holds: up to twice *workers* items that are not done, and *window* in all.
    """
    crew = _Crew(work, workers)
    early: dict[int, _Job[Item, Result]] = {}  # done, and not yet yielded
    source = iter(items)
    given = taken = 0
    more = True
    failure: Exception | None = None
    try:
        while True:
            while job := crew.finished(wait=False):
                early[job.number] = job
            turn = next(iter(early)) if unordered and early else taken
            if turn in early:
                taken += 1
                yield early.pop(turn).outcome()
            elif more and crew.busy < 2 * workers and given - taken < max(window, workers):
                try:
                    crew.give(_Job(given, next(source)))
                    given += 1
                except StopIteration:
                    more = False
                except Exception as error:
                    failure, more = error, False
            elif given > taken:
                if job := crew.finished(wait=True):
                    early[job.number] = job
            else:
                break
        if failure:
            raise failure
    finally:
        stop()
        crew.dismiss()


class _Job(Generic[Item, Result]):
    """One item, and what became of it."""

    def __init__(self, number: int, item: Item) -> None:
        self.number = number
        self.item = item
        self.result: Result | None = None
        self.error: BaseException | None = None

    def outcome(self) -> tuple[Item, Result]:
        if self.error:
            raise self.error
        return self.item, self.result  # type: ignore[return-value]


class _Crew(Generic[Item, Result]):
    """Threads that work; they are started when there is something to do for them.

    Only simple queues join them to the caller's thread: waiting there can be interrupted by a signal anywhere.
    """

    def __init__(self, work: Callable[[Item], Result], most: int) -> None:
        self._work = work
        self._most = most
        self._threads: list[threading.Thread] = []
        self._todo: SimpleQueue[_Job[Item, Result] | None] = SimpleQueue()
        self._done: SimpleQueue[_Job[Item, Result]] = SimpleQueue()
        self.busy = 0  # jobs given and not yet returned

    def give(self, job: _Job[Item, Result]) -> None:
        """Have *job* done."""
        self.busy += 1
        self._todo.put(job)
        if len(self._threads) < min(self.busy, self._most):
            thread = threading.Thread(target=self._toil, daemon=True)
            self._threads.append(thread)
            thread.start()

    def finished(self, *, wait: bool) -> _Job[Item, Result] | None:
        """Return a job that is done; None if there is none and we shall not *wait*."""
        try:
            job = self._done.get(block=wait)
        except Empty:
            return None
        self.busy -= 1
        return job

    def dismiss(self) -> None:
        """Wait for the threads to end."""
        for _ in self._threads:
            self._todo.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _toil(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # what is started here shall begin with none blocked
        while job := self._todo.get():
            try:
                job.result = self._work(job.item)
            except BaseException as error:
                job.error = error
            self._done.put(job)
