"""What a run tells its user: progress while it goes on, one line of account at its end, reports in between.

Only this module and the commands print. Everything here goes to stderr.
"""

from __future__ import annotations

import os
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tartools.account import Account, Jobs
from tartools.errors import printable

if TYPE_CHECKING:
    from rich.progress import Progress

FIRST_SIGN = 1.0  # seconds; what is done by then needs no progress
NEXT_LINE = 10.0  # seconds between the lines of progress in a log


def say(name: str, text: str) -> None:
    """Print one line: *text*, after the *name* of the command. A stderr that can't be written to is no failure."""
    try:
        sys.stderr.write(f"{name}: {printable(text)}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass


def wanted() -> bool:
    """Tell whether somebody watches: stderr is a terminal, and stdout is neither a pipe nor a terminal.

    So in `a | b | c > file` only c draws, and nothing mixes with what a person reads.
    """
    try:
        return os.isatty(2) and not os.isatty(1) and not stat.S_ISFIFO(os.fstat(1).st_mode)
    except OSError:
        return False


@contextmanager
def progress(name: str, account: Account, shown: bool) -> Iterator[None]:
    """Draw what *account* counts while the block runs, from the second second on, if it is to be *shown*."""
    if not shown:
        yield
        return
    done = threading.Event()
    painter = threading.Thread(target=_draw, args=(name, account, done), daemon=True)
    painter.start()
    try:
        yield
    finally:
        done.set()
        painter.join()


def _draw(name: str, account: Account, done: threading.Event) -> None:
    if done.wait(FIRST_SIGN):
        return
    begin = clock() - FIRST_SIGN
    display = _display(bar=account.expected is not None or account.jobs.total > 0)
    if not display.console.is_terminal or display.console.is_dumb_terminal:
        _tell(name, account, begin, done)
        return
    with display:
        task = display.add_task(name, total=account.expected, counts="")
        while True:
            counts, jobs = _counts(account, clock() - begin), account.jobs
            if jobs.total:
                ended = jobs.done + jobs.failed
                display.update(task, completed=ended, total=jobs.total - jobs.skipped, counts=counts)
            else:
                display.update(task, completed=account.bytes_in, counts=counts)
            if done.wait(0.2):
                return


def _tell(name: str, account: Account, begin: float, done: threading.Event) -> None:
    """Say how far we are, a line at a time: for logs, and terminals that can do no more."""
    while True:
        say(name, f"{_counts(account, clock() - begin)} so far")
        if done.wait(NEXT_LINE):
            return


def _display(bar: bool) -> Progress:
    """Return what draws; with a *bar* and the time that is left where the end is known."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    counts = TextColumn("{task.fields[counts]}", markup=False)
    columns = [BarColumn(20), counts, TimeRemainingColumn()] if bar else [counts]
    return Progress(
        TextColumn("{task.description}", markup=False), *columns, console=Console(stderr=True), transient=True
    )


def _counts(account: Account, seconds: float) -> str:
    if account.listed is not None:
        return _listed(account)
    if account.jobs.total:
        return f"{_jobs(account.jobs)}, {account.jobs.running} running{_pace(account.jobs, seconds)}"
    shards = f", {account.shards_done} of {account.shards} shards" if (account.shards or 0) > 1 else ""
    known = f" of {in_units(account.expected)}" if account.expected is not None else ""
    rate = in_units(account.bytes_in / max(seconds, 1e-6))
    return f"{account.samples_in:,} samples{shards}, {in_units(account.bytes_in)}{known}, {rate}/s"


def summary(name: str, account: Account, seconds: float) -> None:
    """Print the account of a run that took *seconds*: samples in and where they went, bytes, rate; what was listed."""
    if account.listed is not None:
        say(name, _listed(account))
        return
    if account.jobs.total:
        say(name, f"{account.jobs.total} items: {_jobs(account.jobs)}, {seconds:.1f} s{_pace(account.jobs, seconds)}")
        return
    if account.directories:
        say(name, f"{account.directories} directory entries are no samples")
    parts = [f"{account.samples_in} samples in, {account.samples_out} out"]
    if account.written is not None:
        parts[0] += f" ({account.written} written)"
    for count, what in ((account.left_out, "left out"), (account.joined, "joined"), (account.dropped, "dropped")):
        if count:
            parts.append(f"{count} {what}")
    size = account.bytes_out or account.bytes_in
    say(name, f"{', '.join(parts)}, {in_units(size)}, {in_units(size / max(seconds, 1e-6))}/s")


def _jobs(jobs: Jobs) -> str:
    skipped = f", {jobs.skipped:,} there before" if jobs.skipped else ""
    return f"{jobs.done:,} done{skipped}, {jobs.failed:,} failed"


def _pace(jobs: Jobs, seconds: float) -> str:
    ended = jobs.done + jobs.failed
    return f", {ended / seconds:.3g}/s" if ended and seconds else ""


def _listed(account: Account) -> str:
    shards = f"{account.shards_done:,} shard{'s' * (account.shards_done != 1)}"
    others = f" among {account.listed:,} objects" if account.listed != account.shards_done else ""
    return f"{shards}{others}, {in_units(account.bytes_in)}"


def in_units(size: float) -> str:
    """Return *size* bytes for people.

    >>> in_units(999), in_units(21_370_880)
    ('999 B', '21.4 MB')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def now() -> float:
    """Return seconds since 1970, for logs."""
    return time.time()


def clock() -> float:
    """Return seconds of a clock that only goes forward."""
    return time.monotonic()
