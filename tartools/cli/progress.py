"""Messages to the user: progress during a run, reports, and one line of totals at its end.

Only this module and the commands print. Everything here goes to stderr.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from tartools.cli.process import has_alarm
from tartools.errors import in_units, printable, several
from tartools.samples.account import Account, Jobs

if TYPE_CHECKING:
    from types import FrameType

    from rich.progress import Progress

FIRST_SIGN = 1.0  # seconds; what is done by then needs no progress
STEP = 0.25  # seconds between two drawings
NEXT_LINE = 10.0  # seconds between the lines of progress in a log
BUSY = (__name__, "rich.console", "rich.live", "rich.progress")  # what is not to be interrupted by a drawing


def say(name: str, text: str) -> None:
    """Print one line: *text*, after the *name* of the command. A stderr that can't be written to is no failure."""
    try:
        sys.stderr.write(f"{name}: {printable(text)}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass


def wanted() -> bool:
    """Return whether progress is drawn by default: stderr is a terminal, stdout neither a pipe nor a terminal.

    So in `a | b | c > file` only c draws, and nothing mixes with what a person reads.
    """
    try:
        return os.isatty(2) and not os.isatty(1) and not stat.S_ISFIFO(os.fstat(1).st_mode)
    except OSError:
        return False


@contextmanager
def progress(name: str, account: Account, shown: bool) -> Iterator[None]:
    """Draw the counts of *account* while the block runs, from the second second on, if *shown*.

    A timer's signal has it drawn, between two steps of the main thread: a thread would take time from the others, and
    beside it nothing could be forked. There is but one timer, so one that is to end us stays as it is.
    """
    if not shown or has_alarm() or not _is_main_thread():
        yield
        return
    painter = _Painter(name, account)
    before = signal.signal(signal.SIGALRM, painter.tick)
    timer = signal.setitimer(signal.ITIMER_REAL, FIRST_SIGN, STEP)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)
        painter.close()


def _is_main_thread() -> bool:
    import threading

    return threading.current_thread() is threading.main_thread()


class _Painter:
    """Draws a bar, or says how far we are, a line at a time: for logs, and terminals that can do no more."""

    def __init__(self, name: str, account: Account) -> None:
        self._name = name
        self._account = account
        self._begin = clock()
        self._display: Progress | None = None
        self._next_line = 0.0  # when one is due; 0: nothing was drawn yet

    def tick(self, _number: int, frame: FrameType | None) -> None:
        """Draw, unless what is interrupted is an import or writes to the terminal itself."""
        while frame is not None:
            if frame.f_code.co_filename.startswith("<frozen importlib") or frame.f_globals.get("__name__") in BUSY:
                return
            frame = frame.f_back
        try:
            self._draw()
        except (OSError, ValueError):  # stderr has been closed
            signal.signal(signal.SIGALRM, lambda *_: None)  # the ticks go on, which others need

    def close(self) -> None:
        """Take away what is drawn."""
        if self._display is not None:
            with suppress(OSError, ValueError):
                self._display.stop()

    def _draw(self) -> None:
        account, jobs, seconds = self._account, self._account.jobs, clock() - self._begin
        bar = account.expected is not None or jobs.total > 0
        if not self._next_line:
            self._next_line = clock()
            display = _display(bar)
            if display.console.is_terminal and not display.console.is_dumb_terminal:
                self._display = display
                display.start()
                display.add_task(self._name, total=None, counts="")
        if self._display is None:
            if clock() >= self._next_line:
                self._next_line = clock() + NEXT_LINE
                say(self._name, f"{_counts(account, seconds)} so far{_left(jobs, seconds)}")
            return
        done, total = account.bytes_in, account.expected
        if jobs.total:
            done, total = jobs.done + jobs.failed, jobs.total - jobs.skipped
        task = self._display.task_ids[0]
        self._display.update(task, completed=done, total=total, counts=_counts(account, seconds), refresh=True)


def _display(bar: bool) -> Progress:
    """Return what draws; with a *bar* and the time that is left where the end is known."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    counts = TextColumn("{task.fields[counts]}", markup=False)
    columns = [BarColumn(10), counts, TimeRemainingColumn(compact=True)] if bar else [counts]
    return Progress(
        TextColumn("{task.description}", markup=False),
        *columns,
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,
    )


def _counts(account: Account, seconds: float) -> str:
    if account.listed is not None:
        return _listed(account)
    if account.jobs.total:
        return f"{_jobs(account.jobs)}, {account.jobs.running} running{_pace(account.jobs, seconds)}"
    if account.expected and account.bytes_in >= account.expected and account.samples_out < account.samples_in:
        return f"all is read, {account.samples_out:,} of {account.samples_in:,} samples written"
    shards = f", {account.shards_done} of {account.shards} shards" if (account.shards or 0) > 1 else ""
    size, rate = in_units(account.bytes_in), in_units(account.bytes_in / max(seconds, 1e-6))
    if account.expected is not None:
        size = _of(size, in_units(account.expected))
    return f"{account.samples_in:,} samples{shards}, {size}, {rate}/s"


def _of(part: str, whole: str) -> str:
    """Return "*part* of *whole*", with the unit once if it is the same.

    >>> _of("2.1 GB", "2.3 GB"), _of("999 B", "2.3 GB")
    ('2.1 of 2.3 GB', '999 B of 2.3 GB')
    """
    number, _, unit = part.partition(" ")
    return f"{number if whole.endswith(f' {unit}') else part} of {whole}"


def summary(name: str, account: Account, seconds: float) -> None:
    """Print the account of a run that took *seconds*: samples in and where they went, bytes, rate; what was listed."""
    jobs = account.jobs
    if account.listed is not None:
        say(name, _listed(account))
        return
    if jobs.total:
        say(name, f"{several(jobs.total, 'item')}: {_jobs(jobs)}, {seconds:.1f} s{_pace(jobs, seconds)}")
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
    shards = several(account.shards_done, "shard")
    others = f" among {account.listed:,} objects" if account.listed != account.shards_done else ""
    return f"{shards}{others}, {in_units(account.bytes_in)}"


def _left(jobs: Jobs, seconds: float) -> str:
    ended = jobs.done + jobs.failed
    return f", {seconds / ended * (jobs.total - jobs.skipped - ended):.0f} s left" if ended else ""


def now() -> float:
    """Return seconds since 1970, for logs."""
    return time.time()


def clock() -> float:
    """Return seconds of a clock that only goes forward."""
    return time.monotonic()
