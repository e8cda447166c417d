"""Requests side by side, in threads that end with the process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

Result = TypeVar("Result")


class _Answer(Generic[Result]):
    """What *task* will return, or raise, when it was run."""

    def __init__(self, task: Callable[[], Result]) -> None:
        self._task = task
        self._running = threading.Lock()  # held until it is done; an Event takes three times as long
        self._running.acquire()
        self._result: Result | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._result = self._task()
        except BaseException as error:  # raised where the answer is wanted
            self._error = error
        self._running.release()

    def __call__(self) -> Result:
        """Wait for the answer; return it, or raise what the task raised."""
        with self._running:
            pass
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


class Requests:
    """Runs tasks in up to *most* daemon threads, in the order in which they are asked for."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._tasks: SimpleQueue[_Answer[object] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def ask(self, task: Callable[[], Result]) -> Callable[[], Result]:
        """Have *task* run; return a function that waits for its result."""
        answer = _Answer(task)
        self._tasks.put(answer)  # type: ignore[arg-type]
        if len(self._threads) < self._most:
            self._threads.append(threading.Thread(target=self._work, daemon=True))
            self._threads[-1].start()
        return answer

    def _work(self) -> None:
        while (answer := self._tasks.get()) is not None:
            answer.run()

    def close(self) -> None:
        """Forget the tasks that have not begun, and end the threads when they have done theirs."""
        while not self._tasks.empty():
            self._tasks.get()
        for _ in self._threads:
            self._tasks.put(None)

    def join(self) -> None:
        """Wait until the threads have ended, after `close`."""
        for thread in self._threads:
            thread.join()
