"""Forked processes of ours, each with a pipe that it writes to and we read.

They run none of our cleaning up, hold no descriptor but those that they need, and have no say in signals: they end
when their work does, when we kill them, or when they write what nobody is left to read. For commands only: nothing may
fork in a process that is not ours.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
from collections.abc import Callable, Collection
from typing import NoReturn

from tartools.storage.interrupts import ENDING, signals_wait
from tartools.storage.streams import SharedFile, enlarge

MOST = 16  # at a time


def can_fork() -> bool:
    """Tell whether there may be another child: not beside threads, for nobody knows what locks they hold."""
    return hasattr(os, "fork") and threading.active_count() == 1 and Child.count < MOST


class Child:
    """A fork of this process that does *work*, given the descriptor of its pipe, and keeps the descriptors *fds* open.

    Its exit status is 0 unless *work* raised something; what that was, nobody hears.

    Raises: OSError if there are too many processes or open files.
    """

    count = 0  # that run

    def __init__(self, work: Callable[[int], None], fds: Collection[int] = ()) -> None:
        ours, theirs = os.pipe()
        self.pipe = SharedFile(ours)
        self.status = 0  # once it has ended
        self._lock = threading.Lock()
        self._pid = 0  # until it has been waited for
        enlarge(theirs)
        try:
            with signals_wait():
                self._pid = os.fork()
                if not self._pid:
                    _live(work, theirs, fds)
                Child.count += 1
        except OSError:
            self.pipe.close()
            raise
        finally:
            os.close(theirs)

    @property
    def running(self) -> bool:
        """Tell whether nobody has waited for its end."""
        return self._pid != 0

    def end(self, *, kill: bool = False) -> bool:
        """Wait for its end, which is near unless we *kill* it; tell whether there was anything to wait for."""
        with self._lock, signals_wait():
            if not self._pid:
                return False
            with contextlib.suppress(ChildProcessError, ProcessLookupError):  # SIGCHLD was ignored when we began
                if kill:
                    os.kill(self._pid, signal.SIGKILL)
                self.status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            self._pid = 0
            Child.count -= 1
            return True

    def close(self) -> None:
        """Kill it, and forget what it wrote."""
        self.end(kill=True)
        self.pipe.close()


def _live(work: Callable[[int], None], pipe: int, fds: Collection[int]) -> NoReturn:
    """Be the child."""
    try:
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)
        gc.disable()
        gc.freeze()  # what we inherited stays shared
        _close_all_but(pipe, *fds)
        with contextlib.suppress(BrokenPipeError):
            work(pipe)
        os._exit(0)
    finally:
        os._exit(1)


def _close_all_but(*wanted: int) -> None:
    """Close all descriptors but *wanted*; the standard streams lead nowhere then."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in {0, 1, 2} - set(wanted):
        os.dup2(nowhere, fd)
    try:
        inherited = [int(name) for name in os.listdir("/dev/fd")]
    except OSError:
        inherited = list(range(os.sysconf("SC_OPEN_MAX")))
    for fd in inherited:
        if fd > 2 and fd not in wanted:
            with contextlib.suppress(OSError):
                os.close(fd)


def write_all(pipe: int, data: memoryview) -> None:
    """Write *data* to *pipe*, waiting while it is full."""
    while data:
        data = data[os.write(pipe, data) :]
