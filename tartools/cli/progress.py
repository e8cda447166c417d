"""Messages to the user: progress during a run, reports, and one line of totals at its end.

Only this module, `drawing` and the commands print. Everything here goes to stderr.
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

from tartools import storage
from tartools.cli.process import has_alarm
from tartools.errors import in_units, printable
from tartools.samples.account import Account

if TYPE_CHECKING:
    from types import FrameType

    from tartools.cli.drawing import Painter

FIRST_DRAW_SECONDS = 1.0  # seconds; a run that ends by then draws no progress
DRAW_SECONDS = 0.25  # seconds between two drawings
UNINTERRUPTED_MODULES = (__name__, "tartools.cli.drawing")  # modules that no drawing may interrupt


def print_message(name: str, text: str) -> None:
    """Print *text* on one line of stderr, after the *name* of the command and a colon; `printable` escapes line breaks.

    A stderr that can't be written to is no failure.
    """
    try:
        sys.stderr.write(f"{name}: {printable(text)}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass


def is_shown_by_default(output: str) -> bool:
    """True if progress is drawn by default: stderr is a terminal, and the data go to no terminal and no pipe.

    The data go to the URL *output*; "-" is stdout. Files that do not exist yet and URLs of stores count as neither; a
    `pipe:` URL, a socket, and a device but /dev/null count as a pipe. So in `a | b | c > file` only c draws, and
    nothing mixes with data on a terminal.
    """
    try:
        if not os.isatty(2) or output.startswith("pipe:"):
            return False
        return not _is_read_at_once(os.fstat(1) if output == "-" else os.stat(output.removeprefix("file:")))
    except (OSError, ValueError):  # the URL of a store, or a file that does not exist yet
        return output != "-"


def _is_read_at_once(file_status: os.stat_result) -> bool:
    """True if output may be read while it is written: a pipe, a socket, or a character device but /dev/null."""
    mode = file_status.st_mode
    if stat.S_ISCHR(mode):
        return file_status.st_rdev != os.stat(os.devnull).st_rdev
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


@contextmanager
def progress(name: str, account: Account, visible: bool) -> Iterator[None]:
    """Draw the counts of *account* while the block runs, after the first second, if *visible*; erase them at its end.

    At the end, also after an error, the timer and the handler of its signal are as before. After a drawing that can't
    be written there are no more. *name*: the command. A timer signal triggers the drawing, between two steps of the
    main thread: a second thread would take time from the rest, and make forking unsafe. A process has only one timer of
    this kind: if its parent has set it, to end the process, nothing is drawn; nor is it in a thread other than the main
    one.
    """
    visible = visible and not has_alarm()
    if visible:
        import threading

        visible = threading.current_thread() is threading.main_thread()
    if not visible:
        yield
        return
    begin = time.monotonic()
    painters: list[Painter] = []  # one, as soon as there is something to draw

    def tick(_number: int, frame: FrameType | None) -> None:
        """Draw, unless the signal has interrupted an import, a message or another drawing; stop if stderr fails."""
        while frame is not None:  # the signal may have interrupted an import, or a write to the terminal
            if (
                frame.f_code.co_filename.startswith("<frozen importlib")
                or frame.f_globals.get("__name__") in UNINTERRUPTED_MODULES
            ):
                return
            frame = frame.f_back
        try:
            if not painters:
                from tartools.cli import drawing

                painters.append(drawing.Painter(name, account, print_message))
            painters[0].draw(time.monotonic() - begin)
        except (OSError, ValueError):  # stderr has been closed
            signal.signal(signal.SIGALRM, lambda *_: None)  # the ticks continue, since others need them

    before = signal.signal(signal.SIGALRM, tick)
    timer = signal.setitimer(signal.ITIMER_REAL, FIRST_DRAW_SECONDS, DRAW_SECONDS)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)
        for painter in painters:
            with suppress(OSError, ValueError):
                painter.close()


def print_totals(name: str, account: Account, seconds: float) -> None:
    """Print the totals of a run that took *seconds*: samples in and out, bytes, rate, or listed shards, or jobs.

    One line of `print_message`, with the samples left out, joined and dropped, if there are any; of a listing it is
    `listing_summary`, of jobs `jobs_summary`. Except for these two, more lines may come before: the `totals` of the
    progress, skipped directories, the cache. Bytes are of the output, or of the input if nothing was written.
    """
    watched = account.progress
    if watched.objects is not None or watched.jobs.total:
        from tartools.cli import drawing

        print_message(
            name,
            drawing.jobs_summary(watched.jobs, seconds)
            if watched.objects is None
            else drawing.listing_summary(account),
        )
        return
    for line in watched.totals:
        print_message(name, line)
    if account.directories:
        print_message(name, f"{account.directories} directory entries are not samples")
    parts = [f"{account.samples_in} samples in, {account.samples_out} out"]
    if watched.written is not None:
        parts[0] += f" ({watched.written} written)"
    counts = ("left out", account.left_out), ("joined", account.joined), ("left out and reported", account.dropped)
    for outcome, count in counts:
        if count:
            parts.append(f"{count} {outcome}")
    if cached := storage.cache_report():
        print_message(name, cached)
    size = account.bytes_out or account.bytes_in
    print_message(name, f"{', '.join(parts)}, {in_units(size)}, {in_units(size / max(seconds, 1e-6))}/s")
