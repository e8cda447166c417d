"""Progress on the last line of the terminal; where that line can't be used, a line of text now and then.

Imported when there is something to draw.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import monotonic

from tartools.errors import in_units, several
from tartools.samples.account import Account, Jobs

LOG_LINE_SECONDS = 10.0  # seconds between the lines of progress in a log
MIN_TERMINAL_LINES = 3  # lines of a terminal; in a smaller one, no line is reserved

# Control sequences of ECMA-48 and the VT100. Saving the cursor saves its colours too.
SAVE_CURSOR, RESTORE_CURSOR = "\x1b7", "\x1b8"
DOWN_AND_UP = "\x1bD\x1b[A"  # scrolls if the cursor is in the last line
ALL_LINES_SCROLL = "\x1b[r"  # moves the cursor
ERASE_BELOW, ERASE_LINE, RESET_STYLE = "\x1b[J", "\x1b[2K", "\x1b[m"


class LastLine:
    """The last line of the terminal on stderr, reserved for progress: other output scrolls in the lines above.

    If `is_possible`, `draw` each text, and `close` at the end.
    """

    def __init__(self) -> None:
        self._size: os.terminal_size | None = None

    @staticmethod
    def is_possible() -> bool:
        """True if stderr is a terminal of at least 3 lines, and TERM is set, but not to "dumb" or "unknown"."""
        try:
            return os.get_terminal_size(2).lines >= MIN_TERMINAL_LINES and os.environ.get("TERM", "dumb") not in (
                "dumb",
                "unknown",
            )
        except OSError:
            return False

    def draw(self, text: str) -> None:
        """Draw *text*, which must fit into the line, after reserving the line if needed. Raises: OSError."""
        size = os.get_terminal_size(2)
        begin = ""
        if size != self._size:
            if self._size is not None:  # after a resize, the old drawing is somewhere else
                begin = f"{SAVE_CURSOR}{ALL_LINES_SCROLL}{RESTORE_CURSOR}{ERASE_BELOW}"
            begin += f"{DOWN_AND_UP}{SAVE_CURSOR}\x1b[1;{size.lines - 1}r{RESTORE_CURSOR}"
            self._size = size
        self._write(f"{begin}{SAVE_CURSOR}\x1b[{size.lines}H{RESET_STYLE}{ERASE_LINE}{text}{RESTORE_CURSOR}")

    def close(self) -> None:
        """Erase the line, and let other output use it again; nothing if it is not reserved. Raises: OSError."""
        if self._size is not None:
            self._write(
                f"{SAVE_CURSOR}{ALL_LINES_SCROLL}\x1b[{self._size.lines}H{RESET_STYLE}{ERASE_LINE}{RESTORE_CURSOR}"
            )
            self._size = None

    @staticmethod
    def _write(text: str) -> None:
        """Write *text* to stderr by one system call, so that no other output comes in between. Raises: OSError."""
        os.write(2, text.encode("utf-8", "replace"))


class Painter:
    """Draws the progress of the command *name* on the last line of the terminal, or prints a line every 10 seconds.

    `draw` is to be called several times a second, `close` at the end. *account*: the counts of the run.
    `say(title, text)`: prints a line where the last one can't be reserved.
    """

    def __init__(self, name: str, account: Account, say: Callable[[str, str], None]) -> None:
        self._name = name
        self._account = account
        self._say = say
        self._line = LastLine() if LastLine.is_possible() else None
        self._bar: Bar | None = None
        self._next = 0.0  # when a line is due

    def draw(self, seconds: float) -> None:
        """Draw the counts *seconds* after the run began; erase them while the run is paused or in the background.

        Where the last line can't be reserved, print a line: at the first call, then if 10 seconds have passed since the
        last one; none while the run is paused, but in the background too. Raises: OSError.
        """
        if self._account.progress.paused:
            self.close()
            return
        phase = self._account.progress.phase
        account = phase.account or self._account
        title = f"{self._name}: {phase.name}" if phase.name else self._name
        if self._line is None:
            if monotonic() >= self._next:
                self._next = monotonic() + LOG_LINE_SECONDS
                self._say(
                    title,
                    f"{counts_in_words(account, seconds)} so far{_time_left_text(account.progress.jobs, seconds)}",
                )
            return
        if _is_in_background():
            self.close()
            return
        position, total = progress_of(account)
        if self._bar is None or (self._bar.title, self._bar.ends) != (title, total is not None):
            self._bar = Bar(title, ends=total is not None, are_jobs=account.progress.jobs.total > 0)
        width = os.get_terminal_size(2).columns - 1  # in the last column, some terminals begin a new line
        left = clock_time(seconds_left(account.progress.jobs, seconds))
        self._line.draw(self._bar.text(position, total, counts_in_words(account, seconds), width, left))

    def close(self) -> None:
        """Erase the drawing, and release the last line, if there is one. Raises: OSError."""
        if self._line is not None:
            self._line.close()


class Bar:
    """The text of the line of progress: a *title*, counts, and, if the total is known, a bar and the time left.

    *ends*: True if the total is known. *are_jobs*: show the time left that `text` gets, and do not compute one from the
    speed of the last seconds, which says little if several jobs end at once.
    """

    def __init__(self, title: str, *, ends: bool, are_jobs: bool = False) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column

        def text(template: str) -> TextColumn:
            return TextColumn(template, markup=False, table_column=Column(no_wrap=True))

        bar = [BarColumn(10)] if ends else []
        time_column = [text("{task.fields[left]}") if are_jobs else TimeRemainingColumn(compact=True)] if ends else []
        self.title = title
        self.ends = ends
        self._console = Console(stderr=True)
        self._progress = Progress(
            text("{task.description}"), *bar, text("{task.fields[counts]}"), *time_column, console=self._console
        )
        self._task = self._progress.add_task(title, total=None, counts="", left="")

    def text(self, position: int, total: int | None, words: str, width: int, left: str = "") -> str:
        """Return the line, cut to *width* columns: title, the bar at *position* of *total*, and the counts *words*.

        It may contain control sequences for colours. *total*: None if unknown. *left*: the time left as text, which
        only a bar with *are_jobs* shows.
        """
        self._console.width = width
        self._progress.update(self._task, completed=position, total=total, counts=words, left=left)
        with self._console.capture() as captured:
            self._console.print(self._progress.get_renderable())
        return captured.get().partition("\n")[0]


def _is_in_background() -> bool:
    """True if another process group has the terminal on stderr: the user is doing something else there.

    False if stderr is no terminal of the session of this process.
    """
    try:
        return os.tcgetpgrp(2) != os.getpgrp()
    except OSError:  # it is not the terminal of our session
        return False


def progress_of(account: Account) -> tuple[int, int | None]:
    """Return (amount done, total) of a run; the total is None if unknown.

    They are in jobs of this run, ended or failed, if there are any (without jobs done before it), otherwise in samples
    if the phase has a total, otherwise in bytes read of the bytes expected; from the time when these are all read until
    all samples are processed, in samples processed of samples read.
    """
    jobs, phase = account.progress.jobs, account.progress.phase
    if jobs.total:
        return jobs.done + jobs.failed, jobs.total - jobs.skipped
    if phase.total is not None:
        return phase.done(), phase.total
    if _is_all_read(account):
        return account.samples_done, account.samples_in
    return account.bytes_in, account.progress.expected


def _is_all_read(account: Account) -> bool:
    """True if all bytes that were expected, one or more, are read, but not all samples read are processed."""
    return 0 < (account.progress.expected or 0) <= account.bytes_in and account.samples_done < account.samples_in


def counts_in_words(account: Account, seconds: float) -> str:
    """Return the counts of *account* in words, with the rate since the run began, *seconds* ago.

    Such as "1,200 samples, 3 of 12 shards, 2.1 of 2.3 GB, 150.0 MB/s"; for jobs "9 done, 2 running, 1 failed, 4 left,
    2/s". There is no rate for a listing, for jobs before the first has ended, for a phase that has a name and a total,
    and while samples are processed after all is read.
    """
    progress, phase = account.progress, account.progress.phase
    if progress.objects is not None:
        return listing_summary(account)
    if progress.jobs.total:
        jobs = progress.jobs
        waiting_jobs = max(0, jobs.total - jobs.skipped - jobs.done - jobs.failed - jobs.running)
        unfinished = f"{jobs.running:,} running, {jobs.failed:,} failed, {waiting_jobs:,} left"
        return f"{_done_text(jobs)}, {unfinished}{_rate_text(jobs, seconds)}"
    text, size = several(account.samples_in, "sample"), in_units(account.bytes_in)
    if phase.total is not None:
        text = f"{phase.done():,} of {several(phase.total, 'sample')}"
        if phase.name:
            return text
    elif _is_all_read(account):
        return f"all is read, {account.samples_done:,} of {text} done"
    elif progress.expected is not None:
        size = _part_of_total(size, in_units(progress.expected))
    shards = f", {account.shards_done} of {progress.shards} shards" if (progress.shards or 0) > 1 else ""
    text = f"{text}{shards}, " if account.samples_in or phase.total is not None else ""
    return f"{text}{size}, {in_units(account.bytes_in / max(seconds, 1e-6))}/s"


def _part_of_total(part: str, total: str) -> str:
    """Return "*part* of *total*" for two sizes with units; a unit that both have is written once.

    >>> _part_of_total("2.1 GB", "2.3 GB"), _part_of_total("999 B", "2.3 GB")
    ('2.1 of 2.3 GB', '999 B of 2.3 GB')
    """
    number, _, unit = part.partition(" ")
    return f"{number if total.endswith(f' {unit}') else part} of {total}"


def jobs_summary(jobs: Jobs, seconds: float) -> str:
    """Return the line of totals after a run of *jobs* that took *seconds*: "12 items: 9 done, 3 failed, 5.0 s, 2.4/s".

    Items done before this run are named too, and not counted in the rate; there is none if no item ended.
    """
    ended = f"{_done_text(jobs)}, {jobs.failed:,} failed"
    return f"{several(jobs.total, 'item')}: {ended}, {seconds:.1f} s{_rate_text(jobs, seconds)}"


def _done_text(jobs: Jobs) -> str:
    """Return "N done", and if jobs were done before this run ", M already done"."""
    return f"{jobs.done:,} done" + (f", {jobs.skipped:,} already done" if jobs.skipped else "")


def _rate_text(jobs: Jobs, seconds: float) -> str:
    """Return ", N/s", the jobs that ended per second, done or failed, in format .3g; "" if none has, or after 0 s."""
    ended = jobs.done + jobs.failed
    return f", {ended / seconds:.3g}/s" if ended and seconds else ""


def seconds_left(jobs: Jobs, seconds: float) -> float | None:
    """Return the seconds until all *jobs* end, at their rate in the *seconds* so far; None if none has ended.

    >>> seconds_left(Jobs(12, skipped=2), 7.0), clock_time(28.0), clock_time(3725)
    (None, '00:28', '1:02:05')
    """
    ended = jobs.done + jobs.failed
    return seconds / ended * (jobs.total - jobs.skipped - ended) if ended else None


def clock_time(seconds: float | None) -> str:
    """Return *seconds*, rounded, as MM:SS, or H:MM:SS from one hour on; "" for None."""
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes:02d}:{rest:02d}"


def _time_left_text(jobs: Jobs, seconds: float) -> str:
    """Return ", N s to go", from `seconds_left`, in whole seconds; "" if that is None."""
    left = seconds_left(jobs, seconds)
    return "" if left is None else f", {left:.0f} s to go"


def listing_summary(account: Account) -> str:
    """Return the counts of a listing in words: "3 shards among 1,000 objects, 2.1 GB", the size of the shards.

    The objects are left out if all are shards. *account*: of a listing: its `progress.objects` is not None.
    """
    shards = several(account.shards_done, "shard")
    objects = account.progress.objects
    objects_note = f" among {objects:,} objects" if objects != account.shards_done else ""
    return f"{shards}{objects_note}, {in_units(account.bytes_in)}"
