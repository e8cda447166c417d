"""Processes that call a function, for Python programs. They are spawned: nothing of the program is forked.

A process is started for each thread that calls, and started again if it is lost.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Generic

from tartools.run.answers import Item, Work, packed, results

PATIENCE = 5.0  # seconds in which a process ends that was told to
STARTED = b""  # what a process says when it is ready


class Spawned(Generic[Item]):
    """Calls *work* in a process for each thread; an item whose process is lost is tried *retries* times more.

    Raises: TypeError if *work* can't be pickled.
    """

    def __init__(self, work: Work[Item], retries: int) -> None:
        self._retries = retries
        self._lock = threading.Lock()  # multiprocessing starts one process at a time
        self._mine = threading.local()
        self._all: set[_Process] = set()
        self._stopped = False
        try:
            self._work = pickle.dumps((os.getcwd(), work))
        except Exception as error:
            raise TypeError(
                "engine='processes' pickles the function and what it refers to: define it at the top of a module, "
                f"not as a lambda or inside another function ({error})"
            ) from error

    def __call__(self, item: Item) -> bytes:
        """Return the message of `packed` for *item*. Raises: RuntimeError if its processes were lost each time."""
        status = None
        for _ in range(self._retries + 1):
            process = getattr(self._mine, "process", None) or self._started()
            answer = process.ask(item)
            if answer is not None:
                return answer
            status = self._end(process)
            self._mine.process = None
            if self._stopped:
                break
        raise RuntimeError(f"{item}: {_ending(status)} while a worker was at it, {self._retries + 1} times")

    def stop(self) -> None:
        """Have all processes end, whatever they are at, and those who wait for them go on."""
        with self._lock:
            self._stopped = True
            for process in self._all:
                process.terminate()

    def close(self) -> None:
        """Wait for the end of all processes; no thread may call any more."""
        for process in list(self._all):
            self._end(process)

    def _started(self) -> _Process:
        with self._lock:
            if self._stopped:
                raise RuntimeError("the workers were stopped")
            process = _Process()
            self._all.add(process)
        first = process.begin(self._work)
        if first is None:
            raise RuntimeError(
                f"a worker process could not start: {_ending(self._end(process))}. It imports the main program: what "
                "iterates must be below `if __name__ == '__main__':` there"
            )
        list(results(first))  # raises, if the function can't be unpickled
        self._mine.process = process
        return process

    def _end(self, process: _Process) -> int | None:
        """Wait for the end of *process*; return its exit status."""
        with self._lock:
            self._all.discard(process)
            return process.end()


class _Process:
    """A process, and the pipe to it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        with theirs:
            self._process = context.Process(target=_live, args=(theirs,), name="tartools", daemon=True)
            self._process.start()

    def begin(self, work: bytes) -> bytes | None:
        """Send *work*; return the answer."""
        return self._exchange(work)

    def ask(self, item: Any) -> bytes | None:
        """Send *item*; return the answer. None if the process was lost."""
        return self._exchange(pickle.dumps(item))

    def _exchange(self, message: bytes) -> bytes | None:
        try:
            self._pipe.send_bytes(message)
            return self._pipe.recv_bytes()
        except (EOFError, OSError):
            return None

    def terminate(self) -> None:
        """Tell it to end; whoever waits for its answer sees that it has ended."""
        self._process.terminate()

    def end(self) -> int | None:
        """Have it end; return its exit status."""
        self._process.join(PATIENCE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()
        return self._process.exitcode


def _live(pipe: Connection) -> None:
    """Answer what comes by *pipe*: first the folder and the function, then items. Ends when nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the program ends its workers
    with suppress(EOFError, OSError):
        begin = pipe.recv_bytes()
        try:
            folder, work = pickle.loads(begin)  # noqa: S301  # of the program that started this
            os.chdir(folder)
        except Exception as error:
            pipe.send_bytes(packed(_raising, error, pickle.Pickler))
            return
        pipe.send_bytes(STARTED)
        while True:
            item = pickle.loads(pipe.recv_bytes())  # noqa: S301  # of the program that started this
            pipe.send_bytes(packed(work, item, pickle.Pickler))


def _raising(error: Exception) -> Any:
    raise error
    yield


def _ending(status: int | None) -> str:
    """Return how a process ended."""
    if status is not None and status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"
