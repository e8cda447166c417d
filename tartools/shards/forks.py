"""Forked processes, each with a pipe that it writes to and this process reads.

A fork runs none of our cleanup, holds only the descriptors that it needs, and ignores signals. It ends when its work is
done, when it is killed, or when it writes to a pipe without a reader. For commands only: a Python program that uses our
functions is never forked.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable, Collection
from typing import NoReturn

from tartools.storage.interrupts import ENDING, deferred_signals
from tartools.storage.streams import SharedFile, enlarge

MOST = 16  # forks at a time


def can_fork() -> bool:
    """Return whether another fork is allowed: not beside threads, which may hold locks, and not too many."""
    threading = sys.modules.get("threading")  # not imported: there is only one
    alone = threading is None or threading.active_count() == 1
    return hasattr(os, "fork") and alone and Fork.count < MOST


class Fork:
    """A fork that calls *work* with the descriptor of its *pipe*, and keeps the descriptors *fds* open.

    Its exit *status* is 0 unless *work* raised an exception, which is not reported.

    Raises OSError if there are too many processes or open files.
    """

    count = 0  # of those that run

    def __init__(self, work: Callable[[int], None], fds: Collection[int] = ()) -> None:
        ours, theirs = os.pipe()
        self.pipe = SharedFile(ours)
        self.status = 0  # once it has ended
        self._pid = 0  # until it has been waited for
        enlarge(theirs)
        try:
            with deferred_signals():
                self._pid = os.fork()
                if not self._pid:
                    _live(work, theirs, fds)
                Fork.count += 1
        except OSError:
            self.pipe.close()
            raise
        finally:
            os.close(theirs)

    def end(self, *, kill: bool = False) -> None:
        """Wait for its end, after a *kill* if it is not about to end."""
        with deferred_signals():
            if not self._pid:
                return
            with contextlib.suppress(ChildProcessError, ProcessLookupError):  # if SIGCHLD is ignored
                if kill:
                    os.kill(self._pid, signal.SIGKILL)
                self.status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            self._pid = 0
            Fork.count -= 1

    def close(self) -> None:
        """Kill it, and drop what it wrote."""
        self.end(kill=True)
        self.pipe.close()


def _live(work: Callable[[int], None], pipe: int, fds: Collection[int]) -> NoReturn:
    try:
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)
        gc.disable()
        gc.freeze()  # what was inherited stays shared memory
        _close_all_but(pipe, *fds)
        with contextlib.suppress(BrokenPipeError):
            work(pipe)
        os._exit(0)
    finally:
        os._exit(1)


def _close_all_but(*wanted: int) -> None:
    """Close all descriptors but *wanted*; the standard streams become /dev/null."""
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
