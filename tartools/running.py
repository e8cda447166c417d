"""Tasks to how they ended, on this machine."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any

from tartools import storage
from tartools.account import Jobs
from tartools.errors import StorageError, shown
from tartools.jobs import FAILED, Ended, Task
from tartools.stages import ordered
from tartools.storage.programs import Programs

Done = Generator[tuple[Task, Ended | None], None, None]
Told = Callable[[Task, Ended], object]
HOST = os.uname().nodename
FORCE = {b"TARTOOLS_FORCE": b"1"}


def missing(tasks: Sequence[Task], records: Mapping[tuple[str, str], Mapping[str, Any]], *, redo: bool) -> list[Task]:
    """Return those of *tasks* that are to be done: their output is not there, or by *records* of a log they failed.

    Of the latter what is there is replaced. With *redo* they all are. A directory is no output: it does not appear
    whole. Raises: StorageError if nobody can tell what is there.
    """
    failed = {which for which, said in records.items() if said["status"] == FAILED}
    there = set() if redo else storage.those_there([task.output for task in tasks if task.output])
    there = {url for url in there if not storage.is_directory(url)}
    return [
        task._replace(force=task.force or task.output in there)
        for task in tasks
        if task.output not in there or (task.item, task.output) in failed
    ]


def attempted(task: Task, programs: Programs, retries: int = 0, told: Told | None = None) -> Ended:
    """Return how *task* ended after up to 1 + *retries* tries by *programs*.

    *told* is called for each try that failed and is followed by another one, before that begins.
    """
    begun = monotonic()
    force = task.force
    tries = 1
    while True:
        found = programs.run(task.words, FORCE if force else {})
        failure = found.failure or _absence(task)
        if not failure or tries > retries or programs.stopped:
            break
        if told:
            told(task, Ended(found.status, failure, monotonic() - begun, tries, HOST, found.said))
        tries += 1
        force = True  # what has failed may have written its output all the same
    printed = b"" if failure else found.printed
    return Ended(found.status, failure, monotonic() - begun, tries, HOST, found.said, printed)


def _absence(task: Task) -> str:
    """Return how *task*, which ended well, has failed nevertheless: what it was to write is not there."""
    try:
        if not task.expected or storage.is_there(task.output):
            return ""
    except StorageError as error:
        return f"ended well, but nobody can tell whether its output is there: {error}"
    return f"ended well, but its output {shown(task.output)} is not there"


def here(
    tasks: Iterable[Task],
    jobs: Jobs,
    workers: int,
    *,
    retries: int,
    timeout: float | None,
    fail_fast: bool,
    told: Told | None = None,
) -> Done:
    """Yield each of *tasks* as it ends, up to *workers* at a time; None for one that was not begun.

    With *fail_fast* that are all that were not begun when one had failed. *jobs* is told how many run; *told* is
    called, in the thread of the task, as in `attempted`. When this is closed, what runs is ended.
    """
    lock = threading.Lock()
    failed = False

    def work(task: Task) -> Ended | None:
        nonlocal failed
        if failed and fail_fast:
            return None
        with lock:
            jobs.running += 1
        try:
            ended = attempted(task, programs, retries, told)
        finally:
            with lock:
                jobs.running -= 1
        failed = failed or bool(ended.failure)
        return ended

    with Programs(timeout=timeout) as programs:
        yield from ordered.mapped(tasks, work, workers, programs.stop, unordered=True)
