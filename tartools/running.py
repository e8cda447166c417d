"""Tasks to how they ended, on this machine."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Iterable
from time import monotonic

from tartools.account import Jobs
from tartools.jobs import Ended, Task
from tartools.stages import ordered
from tartools.storage.programs import Programs

Done = Generator[tuple[Task, Ended | None], None, None]


def attempted(task: Task, programs: Programs, retries: int = 0) -> Ended:
    """Return how *task* ended after up to 1 + *retries* tries by *programs*."""
    begun = monotonic()
    environment = {"TARTOOLS_FORCE": "1"} if task.force else {}
    tries = 1
    while (found := programs.run(task.words, environment)).failure and tries <= retries and not programs.stopped:
        tries += 1
    host = os.uname().nodename
    return Ended(found.status, found.failure, monotonic() - begun, tries, host, found.said, found.printed)


def here(
    tasks: Iterable[Task], jobs: Jobs, workers: int, *, retries: int, timeout: float | None, fail_fast: bool
) -> Done:
    """Yield each of *tasks* as it ends, up to *workers* at a time; None for one that was not begun.

    With *fail_fast* that are all that were not begun when one had failed. *jobs* is told how many run. When this is
    closed, what runs is ended.
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
            ended = attempted(task, programs, retries)
        finally:
            with lock:
                jobs.running -= 1
        failed = failed or bool(ended.failure)
        return ended

    with Programs(timeout=timeout) as programs:
        yield from ordered.mapped(tasks, work, workers, programs.stop, unordered=True)
