"""Who calls a Python function for many items: the caller's thread, its executor, or processes of ours.

Engines for `storage.pool.call_in_window`; `ray` has another. Processes are spawned: nothing of a program is forked.
What a call in another process returns is one message: its results, and the error that ended it. Messages are made by
our own workers, of what the caller's function returned, so unpickling them is safe.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

from tartools.storage.pool import Threads

Item = TypeVar("Item")
Result = TypeVar("Result")
Work = Callable[[Item], Generator[Any, None, None]]  # called for an item, it yields the results
Answer = list[Any] | bytes  # results as they are, or a message

EXIT_SECONDS = 5.0  # seconds in which a process ends that was told to
READY_MESSAGE = b""  # what a process says when it is ready


class CallerEngine(Generic[Item, Result]):
    """An engine that calls *work* in the caller's thread, when the result is asked for, so that a signal can end it.

    As for every `Engine`: `submit` returns a function; call that for the result.
    """

    def __init__(self, work: Callable[[Item], Result]) -> None:
        self._work = work

    def submit(self, item: Item, on_end: Callable[[], object], /) -> Callable[[], Result]:
        """Call `on_end()` at once; return a function that calls *work* for *item* and returns its result.

        The function raises what *work* raises.
        """
        on_end()
        return partial(self._work, item)

    def stop(self) -> None:
        """Do nothing: no call is under way."""


class ExecutorEngine(Generic[Item, Result]):
    """An engine that has the caller's *executor* call *work*; `stop` leaves the executor open.

    As for every `Engine`: `submit` returns a function; call that for the result.
    """

    def __init__(self, executor: Executor, work: Callable[[Item], Result]) -> None:
        self._executor = executor
        self._work = work
        self._waiting: set[Future[Result]] = set()

    def submit(self, item: Item, on_end: Callable[[], object], /) -> Callable[[], Result]:
        """Have *work* called for *item* by the executor; return a function that waits for its result.

        That function raises what *work* or the executor raises, also if this refuses the item, and CancelledError for
        a call that `stop` cancelled. `on_end()` is called in each case, in any thread, when the call is over.
        """

        def forget_future(future: Future[Result]) -> None:
            """Forget *future*, and tell the caller that it has ended."""
            self._waiting.discard(future)
            on_end()

        try:
            future = self._executor.submit(self._work, item)
        except Exception as error:  # the pool broke
            future = Future()
            future.set_exception(error)
        self._waiting.add(future)
        future.add_done_callback(forget_future)
        return future.result

    def stop(self) -> None:
        """Cancel the calls that have not begun; running calls continue in the executor."""
        for future in list(self._waiting):
            future.cancel()


class Processes(Generic[Item]):
    """An engine that calls *work* in *workers* processes; an item whose process is lost is tried *retries* times more.

    *work*: a generator function, which yields the results for an item. It is called in the current folder of this
    process. A thread waits for each process, starts it when it is needed first, and again if it is lost.
    Raises: TypeError if *work* can't be pickled.
    """

    def __init__(self, work: Work[Item], workers: int, retries: int) -> None:
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
        self._threads = Threads(workers, self._call, self._terminate)

    def submit(self, item: Item, on_end: Callable[[], object], /) -> Callable[[], bytes]:
        """Have *work* called for *item* in a process; return a function that waits for its results, as bytes.

        The bytes are the pickles of the results, one after the other; `results` yields them, and raises the error of
        *work*. The function raises RuntimeError if a process ends at its start, was lost in each try, or was ended by
        `stop`; OSError if the system refuses a process; the errors of pickling *item*, and of unpickling *work* in the
        process or entering our folder there. After `stop` it waits forever for a call that had not begun. `on_end()` is
        called when the results or such an error are there, in the thread that waits for the process.
        """
        return self._threads.submit(item, on_end)

    def stop(self) -> None:
        """End all processes, busy or idle, and the threads. Calls that have not begun are dropped."""
        self._threads.stop()
        for process in list(self._all):
            self._end(process)

    def _call(self, item: Item) -> bytes:
        """Send *item* to the process of this thread, and return the reply: the results, packed by `pack_results`.

        If the process is lost, another one is started and gets the item. Raises: RuntimeError if the process was lost
        in each of 1 + *retries* tries, one ends at its start, or all were stopped; OSError if the system refuses one;
        the errors of pickling *item*, and of unpickling the function or entering our folder.
        """
        status = None
        for _ in range(self._retries + 1):
            process = getattr(self._mine, "process", None) or self._start_process()
            answer = process.exchange(pickle.dumps(item))
            if answer is not None:
                return answer
            status = self._end(process)
            self._mine.process = None
            if self._stopped:
                break
        raise RuntimeError(f"{item}: {_describe_exit(status)} while a worker was at it, {self._retries + 1} times")

    def _terminate(self) -> None:
        """Send SIGTERM to all processes, so that the threads that wait for them continue; start no more."""
        with self._lock:
            self._stopped = True
            for process in self._all:
                process.terminate()

    def _start_process(self) -> _Process:
        """Start a process for this thread, send it the function, and return it.

        Raises: RuntimeError if it ends at its start, or all were stopped; OSError if the system refuses it; the error
        of unpickling the function or entering our folder there.
        """
        with self._lock:
            if self._stopped:
                raise RuntimeError("the workers were stopped")
            process = _Process()
            self._all.add(process)
        first = process.exchange(self._work)
        if first is None:
            raise RuntimeError(
                f"a worker process could not start: {_describe_exit(self._end(process))}. It imports the main program: "
                "what iterates must be below `if __name__ == '__main__':` there"
            )
        list(results(first))  # raises, if the function can't be unpickled
        self._mine.process = process
        return process

    def _end(self, process: _Process) -> int | None:
        """Forget *process* and wait for its end; kill it after 5 seconds. Return its exit status.

        The status is negative if a signal ended it; None if another part of this program took it.
        """
        with self._lock:
            self._all.discard(process)
            return process.end()


class _Process:
    """A spawned process that runs `_serve`, and our end of the pipe to it; it is started at once.

    To be called: `exchange` with the function, then with one item after the other; `end` in any case, after
    `terminate` unless the process was lost: it does not end by itself. Raises: OSError if it can't be started.
    """

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        with theirs:
            self._process = context.Process(target=_serve, args=(theirs,), name="tartools", daemon=True)
            self._process.start()

    def exchange(self, message: bytes) -> bytes | None:
        """Send *message* to the process and return its reply; None if the process was lost.

        The first message is the pickle of (folder, function), and its reply is b"", or the pickle of a `Failure` if the
        function can't be unpickled. A later one is the pickle of an item, and its reply the pickles of the results.
        """
        try:
            self._pipe.send_bytes(message)
            return self._pipe.recv_bytes()
        except (EOFError, OSError):
            return None

    def terminate(self) -> None:
        """Send SIGTERM to the process; `exchange` in another thread returns None then."""
        self._process.terminate()

    def end(self) -> int | None:
        """Wait 5 seconds for the process to end, then kill it; close the pipe; return its exit status.

        The status is negative if a signal ended it; None if another part of this program took it.
        """
        self._process.join(EXIT_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()
        return self._process.exitcode


def _serve(pipe: Connection) -> None:
    """Answer requests from *pipe*, in the spawned process, until its other end is closed.

    The first request is the pickle of (folder, function), and is answered by b"", or, if that can't be unpickled or
    entered, by the pickle of a `Failure`, and then it returns. Each later one is the pickle of an item, and is answered
    by the pickles of the function's results, one after the other, with a `Failure` as the last if it raised. SIGINT is
    ignored from now on. Raises: the error of unpickling an item, which ends the process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the program ends its workers
    with suppress(EOFError, OSError):
        begin = pipe.recv_bytes()
        try:
            folder, work = pickle.loads(begin)  # noqa: S301  # of the program that started this
            os.chdir(folder)
        except Exception as error:
            pipe.send_bytes(pickle.dumps(Failure(make_portable(error))))
            return
        pipe.send_bytes(READY_MESSAGE)
        while True:
            item = pickle.loads(pipe.recv_bytes())  # noqa: S301  # of the program that started this
            pipe.send_bytes(pack_results(work, item, pickle.Pickler))


def _describe_exit(status: int | None) -> str:
    """Return how a process ended, for a message: "killed by SIGKILL" for *status* -9, "ended with status 1" for 1.

    A real-time signal without a name is "signal 40".
    """
    if status is not None and status < 0:
        number = -status
        return f"killed by {signal.Signals(number).name if number in set(signal.Signals) else f'signal {number}'}"
    return f"ended with status {status}"


# ---- what a call returns ----


class Failure:
    """The last item among the results of a call that failed: the *error* that ended it."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def collect_results(work: Work[Item], item: Item, stopped: Callable[[], object]) -> list[Any]:
    """Return the values that *work* yields for *item*, as a list; the last one is a `Failure` if it raised.

    A `Failure` has an Exception or a SystemExit; others, such as KeyboardInterrupt, are raised. `stopped()` is called
    first, and after each value: if it is true, the values so far are returned, and *work* is not continued.
    """
    values: list[Any] = []
    if stopped():
        return values
    try:
        for value in work(item):
            values.append(value)
            if stopped():
                break
    except (Exception, SystemExit) as error:
        values.append(Failure(error))
    return values


def pack_results(work: Work[Item], item: Item, pickler: Callable[[io.BytesIO], pickle.Pickler]) -> bytes:
    """Return the values that *work* yields for *item* as one message: their pickles, one after the other.

    *pickler*: makes a pickler of a file. The last value is a `Failure` if *work* raised an Exception or a SystemExit;
    others, such as KeyboardInterrupt, are raised. An error about a value that can't be pickled is raised inside of
    *work*, at its yield, where it may add a note; *work* must raise it again.
    """
    message, end = io.BytesIO(), 0
    values = work(item)
    try:
        for value in values:
            try:
                pickler(message).dump(value)
            except Exception as error:
                error.add_note(f"a result of type {type(value).__name__} can't be sent from a worker")
                values.throw(error)
            end = message.tell()
    except (Exception, SystemExit) as error:
        message.truncate(end)
        message.seek(end)
        pickle.dump(Failure(make_portable(error)), message)
    return message.getvalue()


def results(answer: Answer) -> Iterator[Any]:
    """Yield the results in *answer*: a list of them, or bytes from `pack_results`.

    Raises: the error that ended the call, in a `Failure` at the end, after the results before it; the error of
    unpickling a result.
    """
    for value in answer if isinstance(answer, list) else _unpickle_all(answer):
        if isinstance(value, Failure):
            raise value.error
        yield value


def _unpickle_all(message: bytes) -> Iterator[Any]:
    """Yield the values whose pickles are in *message*, one after the other. Raises: the error of unpickling one."""
    file = io.BytesIO(message)
    while file.tell() < len(message):
        yield pickle.load(file)  # noqa: S301  # our own message


def make_portable(error: BaseException) -> BaseException:
    """Return *error*, or if it can't be pickled and unpickled a RuntimeError with its class, text and notes.

    The traceback of *error* is added to the returned one as a note, "in a worker:" and the lines.
    """
    text = "".join(traceback.format_exception(error)).rstrip()
    portable_error = error
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  # our own
    except Exception:
        portable_error = RuntimeError(f"{type(error).__name__}: {error}")
        for note in getattr(error, "__notes__", ()):
            portable_error.add_note(note)
    portable_error.add_note(f"in a worker:\n{text}")
    return portable_error
