"""Runs tasks on this machine, several at a time; nothing of their commands is left running."""

from __future__ import annotations

import io
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from tartools import storage
from tartools.errors import StorageError, UsageError, shown
from tartools.run.guard import Guard
from tartools.run.log import FAILED, Key, record_key
from tartools.run.tasks import Task, TaskResult, redact_signatures
from tartools.samples.account import Jobs
from tartools.storage.children import Child, describe_status, end_all
from tartools.storage.interrupts import defer_signals
from tartools.storage.pool import Engine, Threads, call_in_window
from tartools.storage.scratch import scratch_file

Results = Generator[tuple[Task, TaskResult], None, None]
OnRetry = Callable[[Task, TaskResult], object]
HOST_NAME = os.uname().nodename
MAX_TASKS_UNDER_WAY = 1000  # tasks that wait, run, or have ended and wait to be taken
MAX_STDERR_BYTES = 2048  # bytes of stderr that are kept, the last ones
MAX_STDOUT_BYTES = 16 << 20  # bytes of stdout that are passed on
OUTPUT_POLL_SECONDS = 0.2  # seconds between two looks at how much a command has printed
KILL_DELAY = 3.0  # seconds between SIGTERM and SIGKILL; tartools need less to end what they have started themselves
STARTING_FILES, OTHER_OPEN_FILES = 6, 40  # open files that a command needs while it starts, and all of them together


def tasks_to_do(tasks: Sequence[Task], records: Mapping[Key, Mapping[str, Any]], *, redo: bool) -> list[Task]:
    """Return the *tasks* to run: if the output is unknown ("") or missing, or if they failed last; with *redo* all.

    *records*: the last record of each task in a log. A directory counts as missing, because it does not appear whole;
    so does a local file without bytes, which a crash of the machine leaves of an output that was not on the disk yet. A
    task that is run although a file (also one without bytes) or an object is there gets `force`; with *redo* `force`
    stays as it is.
    Raises: StorageError if the existence of an output can't be determined.
    """
    failed = {key for key, entry in records.items() if entry["status"] == FAILED}
    from tartools.storage.listing import find_existing

    present = set() if redo else find_existing([task.output for task in tasks if task.output])
    present = {url for url in present if not storage.is_directory(url)}
    complete = {url for url in present if storage.plain_size(url) != 0}
    return [
        task._replace(force=task.force or task.output in present)
        for task in tasks
        if task.output not in complete or (failed and record_key(task) in failed)
    ]


def run_with_retries(task: Task, sessions: Sessions, retries: int = 0, on_retry: OnRetry | None = None) -> TaskResult:
    """Run *task* by *sessions* until it succeeds, up to 1 + *retries* times; return the result of the last try.

    A try has failed, too, if the output is `expected` and missing, or the store can't tell. The seconds of the result
    are the time of all tries; its texts are without queries and user info of URLs, its `stdout` is b"" after a failure.
    Each try after the first replaces an existing output (`force`). Calls `on_retry(task, result)` after each try that
    failed, before the next one. It is not tried again once *sessions* is stopped.
    """
    start = time.monotonic()
    tries = 1
    while True:
        run_result = sessions.run(task.words, task.environment)
        failure = redact_signatures(run_result.failure or _missing_output(task), task)
        stderr = redact_signatures(run_result.stderr, task, cut=len(run_result.stderr.encode()) >= MAX_STDERR_BYTES)
        stdout = b"" if failure else run_result.stdout
        result = TaskResult(run_result.status, failure, time.monotonic() - start, tries, HOST_NAME, stderr, stdout)
        if not failure or tries > retries or sessions.stopped:
            return result
        if on_retry:
            on_retry(task, result)
        tries += 1
        task = task._replace(force=True)  # a failed try may have written its output


def _missing_output(task: Task) -> str:
    """Return the failure of *task*, whose command succeeded: its output is missing, or the store can't tell.

    "" if the output exists, or if none is expected.
    """
    try:
        if not task.expected or storage.exists(task.output):
            return ""
    except StorageError as error:
        return f"ended well, but the existence of its output can't be determined: {error}"
    return f"ended well, but its output {shown(task.output)} is missing"


@contextmanager
def open_local_engine(
    workers: int, retries: int, timeout: float | None, on_retry: OnRetry | None = None
) -> Iterator[Engine[Task, TaskResult]]:
    """For the body of `with`: an engine that runs tasks here, in *workers* threads, each up to 1 + *retries* times.

    *timeout*: seconds that a try may take; None: no limit. *on_retry*: called with the task and the result of a failed
    try before the next one. At the end of the body, and by `stop` of the engine, running commands are ended.
    Raises: StorageError if the guard can't be started.
    """

    def run(task: Task) -> TaskResult:
        """Run *task* in this thread, up to 1 + *retries* times. Signals are not blocked in this thread from now on."""
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # commands inherit it
        return run_with_retries(task, sessions, retries, on_retry)

    with closing(Sessions(timeout=timeout)) as sessions:
        yield Threads(workers, run, sessions.stop)


def run_tasks(
    tasks: Iterable[Task],
    engine: Engine[Task, TaskResult],
    at_once: int,
    jobs: Jobs,
    *,
    fail_fast: bool,
    window: int = MAX_TASKS_UNDER_WAY,
) -> Results:
    """Have *engine* run *tasks*; yield (task, result) as each has ended, in the order in which they end.

    *at_once*: how many the engine can run in parallel, for the count of running tasks. *window*: number of tasks that
    the engine gets at a time, those that have ended and wait to be taken included. With *fail_fast* no task begins
    once a failed one was yielded, and tasks that were not begun are not yielded; *window* is *at_once* then. *jobs*:
    its `running` is kept current. The end of this generator, also by `close`, stops the engine. Raises: the errors of
    *tasks* and of the engine; a failed task is no error.
    """
    begun = ended = 0
    failed = False

    def begin_tasks() -> Iterator[Task]:
        """Yield the tasks as the engine asks for them, count them as begun; none after a failure if *fail_fast*."""
        nonlocal begun
        for task in tasks:
            if failed and fail_fast:
                return
            begun += 1
            jobs.running = min(begun - ended, at_once)
            yield task

    window = at_once if fail_fast else window  # what is submitted will run
    with closing(call_in_window(begin_tasks(), engine, window, ordered=False)) as answers:
        for task, answer in answers:
            result = answer()
            ended += 1
            failed = failed or bool(result.failure)
            jobs.running = min(begun - ended, at_once)
            yield task, result


# ---- commands in sessions ----


class Sessions:
    """Runs commands, each in a session of its own, in as many threads as call `run`. Close it when these have ended.

    *timeout*: seconds after which a command is ended; None: no limit. Output is kept in files without names until a
    command ends. Commands get the environment that this process has now.
    `stopped`: True once `stop` was called.
    Raises: StorageError if the guard can't be started.
    """

    def __init__(self, *, timeout: float | None = None) -> None:
        self._timeout = timeout
        self._over = threading.Event()  # what ran when we were stopped has ended
        self.stopped = False
        self._guard = Guard()
        self._environment = dict(os.environb)

    def close(self) -> None:
        """End all running commands, as `stop` does, and the guard."""
        self.stop()
        self._guard.close()

    def run(self, words: Sequence[str], environment: Mapping[bytes, bytes]) -> TaskResult:
        """Run *words* once, with *environment* added to ours and an empty stdin; return the result.

        `seconds` and `host` of the result are not set; `stderr` is the last 2,048 bytes. The result is a failure if the
        command can't be started, was stopped, took too long, printed over 16 MiB to stdout, or ended with another
        status than 0. Once `stopped` is true, nothing is run, and that is the failure. What the command leaves running
        in its process group when it ends is killed. Raises: OSError if its output can't be read.
        """
        if self.stopped:
            return TaskResult(None, "was not begun")
        child: Child | None = None
        try:
            with scratch_file() as stdout, scratch_file() as stderr:
                try:
                    around = {**self._environment, **environment}
                    with defer_signals():
                        child = self._guard.start(
                            words, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=around
                        )
                    if self.stopped:  # by now, and `stop` may not know of it
                        child.end(signal.SIGKILL)
                    status, failure, printed = self._wait(child, stdout)
                    end = _read_tail(stderr, MAX_STDERR_BYTES).decode("utf-8", "replace")
                    return TaskResult(status, failure, stderr=end, stdout=printed)
                finally:
                    if child is not None:
                        if child.is_running:  # waiting for it was interrupted
                            end_all([child], patience=KILL_DELAY)
                        self._guard.release(child)
        except (OSError, ValueError, StorageError) as error:
            if child is not None:
                raise
            why = f"{words[0]}: {error.strerror}" if isinstance(error, OSError) else error  # or it has a NUL
            return TaskResult(None, f"can't be run: {why}")

    def stop(self) -> None:
        """End running commands by SIGTERM, after three seconds by SIGKILL, and wait for their end; start no more.

        If something runs, what earlier commands have left in sessions of their own is killed too.
        """
        try:
            self.stopped = True
            if live := self._guard.running:
                end_all(live, patience=KILL_DELAY, extra_pids=self._guard.find_marked)
        finally:
            self._over.set()

    def _wait(self, child: Child, stdout: io.FileIO) -> tuple[int | None, str, bytes]:
        """Wait for *child*, which writes to *stdout*; return (exit status, failure, stdout if it succeeded, else b"").

        Ends it if it takes too long, or prints more than 16 MiB; the status of a child that was ended so is None,
        unless `stop` was called, too. One that ended after `stop` has failed, even with status 0. The failure is "" if
        it succeeded. What it left running in its process group is killed.
        """
        until = math.inf if self._timeout is None else time.monotonic() + self._timeout
        ended = too_much = False
        while not ended and not too_much and (remaining := until - time.monotonic()) > 0:
            ended = child.has_ended(min(remaining, OUTPUT_POLL_SECONDS))
            too_much = not ended and os.fstat(stdout.fileno()).st_size > MAX_STDOUT_BYTES
        if not ended:
            end_all([child], patience=KILL_DELAY)
        elif self.stopped:
            self._over.wait()  # `stop` may still be ending what is left of it
        status = child.wait()
        if not ended and not too_much:
            return None, f"took longer than {self._timeout:g} seconds and was stopped", b""
        if self.stopped:
            return status, "was stopped", b""
        if status and ended:
            return status, describe_status(status), b""
        # What it left in its process group may have printed more, until it was killed.
        if too_much or len(printed := _read_tail(stdout, MAX_STDOUT_BYTES + 1)) > MAX_STDOUT_BYTES:
            why = f"printed more than {MAX_STDOUT_BYTES:,} bytes, which is the limit: have it write a file (-o)"
            return status if ended else None, why, b""
        return status, "", printed


def check_program(word: str) -> None:
    """Raise UsageError unless *word* can be run as a path or as a name in PATH."""
    if shutil.which(word) is None:
        reason = "this is not executable" if os.path.exists(word) else "there is no such program"
        raise UsageError(f"{reason}; if the shell has expanded SPEC, quote it", url=word)


def max_commands_at_once() -> int:
    """Return how many commands can run at a time within the limit of open files of this process; at least 1.

    Each needs 6 files, and all together 40 more. Without a limit: `sys.maxsize`.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else max(1, (limit - OTHER_OPEN_FILES) // STARTING_FILES)


def _read_tail(file: io.FileIO, max_bytes: int) -> bytes:
    """Return the last bytes of the open *file*, up to *max_bytes*."""
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), max_bytes, max(0, size - max_bytes)) if size else b""
