"""A command as a process: standard streams that are open, signals that end it, the status that a shell sees."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from tartools import errors

SIGNAL_STATUS_BASE = 128  # a status of 128 + N stands for signal N
SIGNAL_POLL_SECONDS = 1.0  # seconds
HANDLED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# for `exit_status`: Python swallows an exception in a finalizer, and the run then continues to its end
received_signals: list[int] = []


class Interrupted(BaseException):
    """Raised in the main thread when a signal asks the process to end: SIGINT, SIGTERM or SIGHUP.

    *number*: the number of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class WithoutPandas:
    """An import finder that hides pandas, which pyarrow would import for most conversions, without need, in 0.2 s.

    It works as the first item of `sys.meta_path`.
    """

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        """Return None, so that the next finder is asked for *name*. Raises: ModuleNotFoundError for pandas."""
        if name == "pandas":
            raise ModuleNotFoundError("not in a command", name=name)


def run(main: Callable[[], int]) -> NoReturn:
    """Run *main* and exit with the status it returns. SIGINT, SIGTERM or SIGHUP raise Interrupted in it, once.

    One of these that the parent ignores (nohup) stays ignored. Closed standard streams become /dev/null before, and
    pandas can't be imported. *main* has to turn its exceptions into a status, as `exit_status` does: here they pass
    through. A status of 128 + N makes the process die of signal N; after 0, without other threads, the process ends
    without cleanup of objects, but the functions of atexit are called. A timer ticks while *main* runs, unless the
    parent has set one: Python handles signals only between two of its steps, so a signal just before a system call
    would wait until the call ends, perhaps forever; the next tick interrupts the call.
    """
    _open_standard_streams()
    sys.meta_path.insert(0, WithoutPandas)
    ticking = not has_alarm()
    if ticking:
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, SIGNAL_POLL_SECONDS, SIGNAL_POLL_SECONDS)
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:  # else wait() could not tell us the status of our children
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in HANDLED_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup stays nohup
            signal.signal(number, _interrupt)
    try:
        status = main()
    finally:
        for number in HANDLED_SIGNALS:
            if signal.getsignal(number) == _interrupt:  # the interpreter ends now, and would print a traceback
                signal.signal(number, signal.SIG_DFL)
        if ticking:
            signal.signal(signal.SIGALRM, signal.SIG_IGN)  # with the default, which Python restores, a tick kills
            signal.setitimer(signal.ITIMER_REAL, 0)
    _flush_standard_streams()
    if status > SIGNAL_STATUS_BASE:  # a shell must see that it was the signal
        signal.signal(status - SIGNAL_STATUS_BASE, signal.SIG_DFL)
        os.kill(os.getpid(), status - SIGNAL_STATUS_BASE)
    threading = sys.modules.get("threading")
    if status == 0 and (threading is None or threading.active_count() == 1):
        if atexit := sys.modules.get("atexit"):
            atexit._run_exitfuncs()
            _flush_standard_streams()
        os._exit(0)  # taking the interpreter apart takes a third of a short run
    sys.exit(status)


def print_now(text: str) -> None:
    """Print *text* on stdout at once. Raises: OSError, with "stdout" as its `filename`."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        error.filename = "stdout"
        raise


def printable_lines(lines: bytes) -> bytes:
    """Return *lines* for stdout; if that is a terminal, control characters but tabs and newlines are escaped.

    There, a carriage return before a newline is dropped, and bytes that are not UTF-8 and other characters that are not
    printable, such as no-break spaces, are escaped too. In a pipe or a file, everything stays.
    """
    if not os.isatty(1):
        return lines
    text = lines.replace(b"\r\n", b"\n").decode("utf-8", "surrogateescape")  # a terminal gets both anyway
    return "".join(c if c in "\t\n" else errors.printable(c) for c in text).encode()


def has_alarm() -> bool:
    """True if the parent process set a timer that will end this one, as `perl -e 'alarm 10; exec @ARGV'` does."""
    return signal.getsignal(signal.SIGALRM) == signal.SIG_DFL and signal.getitimer(signal.ITIMER_REAL)[0] > 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Handle a signal: ignore further ones and raise `Interrupted`; while a `__del__` runs, send it again 1 ms later.

    *number*: of the signal, which is added to `received_signals` before `Interrupted` is raised. *frame*: the stack
    frame that the signal interrupted, or None.
    """
    while frame is not None:
        if frame.f_code.co_name == "__del__":  # Python would swallow the exception here: once more, a little later
            import threading

            threading.Timer(0.001, os.kill, (os.getpid(), number)).start()
            return
        frame = frame.f_back
    for ending_signal in HANDLED_SIGNALS:
        signal.signal(ending_signal, signal.SIG_IGN)  # so that nothing interrupts the cleaning up
    received_signals.append(number)
    raise Interrupted(number)


def _flush_standard_streams() -> None:
    """Flush stdout and stderr; drop output that can't be written, for which Python would change the exit status.

    The stream then leads to /dev/null.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _open_standard_streams() -> None:
    """Open /dev/null for each standard stream that is closed, so that no file gets its number; writing to it fails.

    `sys.stdout` and `sys.stderr` become files if they are None; `sys.stdin` stays as it is.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115  # for the rest of the process
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
