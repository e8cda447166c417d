"""Runs tasks on this machine, several at a time."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from time import monotonic
from typing import Any

from tartools import storage
from tartools.errors import StorageError, shown
from tartools.run.log import FAILED, Key, key_of
from tartools.run.sessions import STDERR, Sessions
from tartools.run.tasks import Task, TaskResult, without_signatures
from tartools.samples.account import Jobs
from tartools.storage.pool import Threads, windowed

Results = Generator[tuple[Task, TaskResult], None, None]
OnRetry = Callable[[Task, TaskResult], object]
HOST = os.uname().nodename
WINDOW = 1000  # tasks that wait, run, or have ended and wait to be taken


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
    over = False
    lock = threading.Lock()

    def run(task: Task) -> TaskResult | None:
        """Return how *task* ended; None if it was not begun."""
        nonlocal over
        if over:
            return None
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # commands inherit it
        with lock:
            jobs.running += 1
        try:
            result = run_with_retries(task, sessions, retries, on_retry)
        finally:
            with lock:
                jobs.running -= 1
        over = over or (fail_fast and bool(result.failure))
        return result

    with closing(Sessions(timeout=timeout)) as sessions:
        threads = Threads(workers, run, sessions.stop)
        with closing(windowed(tasks, threads, WINDOW, ordered=False)) as ended:
            for task, result in ((task, answer()) for task, answer in ended):
                if result is not None:
                    yield task, result
