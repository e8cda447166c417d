"""Concurrent calls: `Threads` makes them, `call_in_window` takes results within bounds, in order or as they come.

Other engines are in `run`: they have calls made by an executor, by other processes, or on a cluster.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable
from functools import partial
from operator import call
from queue import Empty, SimpleQueue
from typing import Generic, Protocol, TypeVar

Item = TypeVar("Item")
Item_contra = TypeVar("Item_contra", contravariant=True)
Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class Engine(Protocol[Item_contra, Result_co]):
    """Calls one function for items, several at a time. `Threads` is one; others are in `run`.

    `submit` each item, call the function that it returned to get the result, and `stop` the engine at the end.
    """

    def submit(self, item: Item_contra, on_end: Callable[[], object], /) -> Callable[[], Result_co]:
        """Have the function called for *item*; return a function that waits for its result, or raises its error.

        That function returns the result. `on_end()` is called, in whatever thread, when the result or the error is
        there.
        """
        ...

    def stop(self) -> None:
        """Drop the calls that have not begun, make running ones end soon, and wait for them.

        The caller submits nothing afterwards.
        """
        ...


class _Answer(Generic[Result]):
    """The future result of *task*: its return value or its error.

    `on_end()` is called in the thread of the task when the result or the error is there; None: no call. Calling this
    object waits for the result, and returns it or raises the error.
    """

    def __init__(self, task: Callable[[], Result], on_end: Callable[[], object] | None) -> None:
        self._task = task
        self._on_end = on_end
        self._running = threading.Lock()  # held until it is done; an Event takes three times as long
        self._running.acquire()
        self._result: Result | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Call the task, keep its result or error, wake whoever waits for it, then call `on_end`."""
        try:
            self._result = self._task()
        except BaseException as error:  # raised where the answer is wanted
            self._error = error
        self._running.release()
        if self._on_end:
            self._on_end()

    def __call__(self) -> Result:
        """Wait for the result; return it, or raise the error of the task. Waits forever if `run` is never called."""
        with self._running:
            pass
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


class Threads(Generic[Item, Result]):
    """Calls `work(item)` for each submitted item in up to *max_threads* daemon threads, in the order of `submit`.

    `submit` returns a function that gives the result. By default the items are functions without arguments, which are
    called. `cancel()` makes the calls under way end soon; None: `stop` waits for them. End by `stop`, or by `close`,
    which does not wait. Only simple queues connect the threads to the caller's: a signal can interrupt waiting for
    these at any time.
    """

    def __init__(
        self,
        max_threads: int,
        work: Callable[[Item], Result] = call,  # type: ignore[assignment]
        cancel: Callable[[], object] | None = None,
    ) -> None:
        self._max_threads = max_threads
        self._work = work
        self._cancel = cancel
        self._tasks: SimpleQueue[_Answer[Result] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, item: Item, on_end: Callable[[], object] | None = None, /) -> Callable[[], Result]:
        """Queue *item*; return a function that waits for its result and returns it, or raises its error.

        `on_end()` is called in the worker's thread when the result or the error is there; None: no call. Starts a
        thread if there are fewer than *max_threads*, idle ones included.
        """
        answer = _Answer(partial(self._work, item), on_end)
        self._tasks.put(answer)
        if len(self._threads) < self._max_threads:
            self._threads.append(threading.Thread(target=self._run, name=f"tartools_{len(self._threads)}", daemon=True))
            self._threads[-1].start()
        return answer

    def _run(self) -> None:
        """Run queued tasks in this thread until `close` has queued an end (None)."""
        while (answer := self._tasks.get()) is not None:
            answer.run()
            del answer  # it holds the item

    def close(self) -> None:
        """Drop the queued items, and let the threads end after the call under way. Waits for nothing.

        The functions that `submit` returned for dropped items must not be called: they would wait forever; their
        `on_end` is not called. Nothing may be submitted afterwards.
        """
        while True:
            try:
                self._tasks.get_nowait()
            except Empty:
                break
        for _ in self._threads:
            self._tasks.put(None)

    def stop(self, seconds: float | None = None) -> None:
        """Cancel the calls under way, drop the queued items, and wait for the threads to end.

        *seconds*: at most as long for all; None waits without limit. Without `cancel`, the calls under way are waited
        for. The functions that `submit` returned for dropped items must not be called: they would wait forever; their
        `on_end` is not called. Nothing may be submitted afterwards.
        """
        if self._cancel:
            self._cancel()
        self.close()
        until = None if seconds is None else time.monotonic() + seconds
        for thread in [*self._threads]:
            if thread.ident is not None:  # a signal may have come before it started
                thread.join(until and max(until - time.monotonic(), 0))


def call_in_window(
    items: Iterable[Item],
    engine: Engine[Item, Result],
    window: int,
    *,
    ordered: bool = True,
    max_calls: int | None = None,
) -> Generator[tuple[Item, Callable[[], Result]], None, None]:
    """Yield each of *items* with a function that returns the result of *engine* for it, or raises its error.

    Order: that of *items*, or, unless *ordered*, that in which calls end; the call of a yielded item has ended. *items*
    are read in the caller's thread, and as many submitted as there is room for before one is yielded. But with
    *max_calls*, no more calls than that run at a time, and a result is yielded before another item is read: for items
    that may be long in coming, or that take up disk until they are done. If *ordered*, an item that takes long delays
    the results behind it, but not the work on them, up to *window* items.

    Holds: up to *window* items, the one that was yielded last included. Raises: the errors of reading *items*, after
    the results of the items before. At the end, in whatever way it comes, *engine* is stopped.
    """
    ended: SimpleQueue[int] = SimpleQueue()
    waiting: dict[int, tuple[Item, Callable[[], Result]]] = {}  # not yet yielded
    ended_numbers: dict[int, None] = {}  # of these, in the order in which they ended
    source = enumerate(items)
    has_more = True
    failure: Exception | None = None
    try:
        while True:
            while not ended.empty():
                ended_numbers[ended.get()] = None
            next_number = next(iter(waiting if ordered else ended_numbers), None)
            has_room = (
                has_more
                and len(waiting) < window
                and (max_calls is None or len(waiting) - len(ended_numbers) < max_calls)
            )
            if next_number in ended_numbers and not (has_room and max_calls is None):
                del ended_numbers[next_number]
                yield waiting[next_number]
                del waiting[next_number]
            elif has_room:
                try:
                    number, item = next(source)
                except StopIteration:
                    has_more = False
                except Exception as error:
                    has_more, failure = False, error
                else:
                    waiting[number] = item, engine.submit(item, partial(ended.put, number))
            elif waiting:
                ended_numbers[ended.get()] = None
            else:
                break
        if failure is not None:
            raise failure
    finally:
        engine.stop()
