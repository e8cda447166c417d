"""Runs tasks on this machine, several at a time."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from queue import SimpleQueue
from time import monotonic
from typing import Any

from tartools import storage
from tartools.errors import StorageError, shown
from tartools.run.log import FAILED, Key, key_of
from tartools.run.sessions import STDERR, Sessions
from tartools.run.tasks import Task, TaskResult, without_signatures
from tartools.samples.account import Jobs

Results = Generator[tuple[Task, TaskResult | None], None, None]
OnRetry = Callable[[Task, TaskResult], object]
HOST = os.uname().nodename
PAUSE, SOON, MANY = 0.01, 0.05, 20  # seconds; seconds after the result before; results
WINDOW = 1000  # results that wait to be taken


def tasks_to_do(tasks: Sequence[Task], records: Mapping[Key, Mapping[str, Any]], *, redo: bool) -> list[Task]:
    """Return those of *tasks* that have no output yet, or that failed by *records* of a log; with *redo* all of them.

    A failed task replaces its output. A directory does not count as an output, because it does not appear whole. Nor
    does a file without bytes: it is what a crash of the machine leaves of an output that was not on the disk yet.
    Raises: StorageError if the existence of an output can't be determined.
    """
    failed = {which for which, entry in records.items() if entry["status"] == FAILED}
    from tartools.storage.listing import existing

    present = set() if redo else existing([task.output for task in tasks if task.output])
    present = {url for url in present if not storage.is_directory(url)}
    whole = {url for url in present if storage.plain_size(url) != 0}
    return [
        task._replace(force=task.force or task.output in present)
        for task in tasks
        if task.output not in whole or (failed and key_of(task) in failed)
    ]


def run_with_retries(task: Task, sessions: Sessions, retries: int = 0, on_retry: OnRetry | None = None) -> TaskResult:
    """Return how *task* ended after up to 1 + *retries* tries.

    Calls *on_retry* with the result of each try that failed before the next one begins.
    """
    begun = monotonic()
    tries = 1
    while True:
        found = sessions.run(task.words, task.environment)
        failure = without_signatures(found.failure or _missing_output(task), task)
        stderr = without_signatures(found.stderr, task, cut=len(found.stderr.encode()) >= STDERR)
        if not failure or tries > retries or sessions.stopped:
            break
        if on_retry:
            on_retry(task, TaskResult(found.status, failure, monotonic() - begun, tries, HOST, stderr))
        tries += 1
        task = task._replace(force=True)  # a failed try may have written its output
    stdout = b"" if failure else found.stdout
    return TaskResult(found.status, failure, monotonic() - begun, tries, HOST, stderr, stdout)


def _missing_output(task: Task) -> str:
    """Return how *task* has failed, although its command succeeded: an expected output is missing."""
    try:
        if not task.expected or storage.exists(task.output):
            return ""
    except StorageError as error:
        return f"ended well, but the existence of its output can't be determined: {error}"
    return f"ended well, but its output {shown(task.output)} is missing"


def run_tasks(
    tasks: Sequence[Task],
    jobs: Jobs,
    workers: int,
    *,
    retries: int,
    timeout: float | None,
    fail_fast: bool,
    on_retry: OnRetry | None = None,
) -> Results:
    """Run *tasks*, up to *workers* at a time, and yield each with its result when it has ended.

    With *fail_fast* no task begins after one has failed; those that were not begun are not yielded. Keeps
    `jobs.running` current. Calls *on_retry* as `run_with_retries` does, in the thread of the task. Closing this ends
    what runs.
    """
    ended: SimpleQueue[tuple[Task, TaskResult] | BaseException | None] = SimpleQueue()
    todo, lock, over = iter(tasks), threading.Lock(), False
    room = threading.Semaphore(WINDOW)  # for results that wait to be taken

    def work() -> None:
        """Do tasks until there are none, or none are to begin."""
        nonlocal over
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # commands inherit it
        try:
            while room.acquire() and not over:
                with lock:
                    task = next(todo, None)
                    if task is None:
                        break
                    jobs.running += 1
                try:
                    result = run_with_retries(task, sessions, retries, on_retry)
                finally:
                    with lock:
                        jobs.running -= 1
                over = over or (fail_fast and bool(result.failure))
                ended.put((task, result))
        except BaseException as error:
            ended.put(error)
        ended.put(None)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(workers, len(tasks)))]
    begun = 0
    with Sessions(timeout=timeout, spawning=True) as sessions:
        try:
            for thread in threads:
                thread.start()
                begun += 1
            for result in _results(ended, begun, len(tasks)):
                yield result
                room.release()
        finally:
            over = True
            room.release(len(threads))
            sessions.stop()
            for thread in threads[:begun]:
                thread.join()


def _results(ended: SimpleQueue[tuple[Task, TaskResult] | BaseException | None], workers: int, tasks: int) -> Results:
    """Yield what comes by *ended*, up to *tasks* results, until each of *workers* has put None. Raises: what comes.

    When many have come, each soon after the one before, this waits a moment after each: to be woken for each takes as
    long as half of starting a command.
    """
    last, quick = monotonic(), 0
    while workers:
        one = ended.get()
        if isinstance(one, BaseException):
            raise one
        if one is None:
            workers -= 1
            continue
        tasks -= 1
        yield one
        now = monotonic()
        last, quick = now, quick + 1 if now - last < SOON else 0
        if quick > MANY and tasks and ended.empty():
            time.sleep(PAUSE)
