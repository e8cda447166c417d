"""Runs commands one by one, each in a session of its own, and sees to it that nothing of them is left running."""

from __future__ import annotations

import io
import math
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tartools.errors import StorageError, UsageError
from tartools.run.guard import Guard
from tartools.storage.children import Child, describe, end_all
from tartools.storage.interrupts import deferred_signals
from tartools.storage.scratch import scratch_file

STDERR = 2048  # bytes of stderr that are kept, the last ones
STDOUT = 16 << 20  # bytes of stdout that are passed on
LOOK = 0.2  # seconds between two looks at how much a command has printed
PATIENCE = 3.0  # seconds between SIGTERM and SIGKILL; tartools need less to end what they have started themselves
FILES, OTHERS = 6, 40  # open files that a command needs while it starts, and all of them together


class CommandResult(NamedTuple):
    """How a command ended: *status* (negative: by that signal, None: it did not start), and the *failure* in words.

    *stderr* is the end of what it wrote there, *stdout* all of it.
    """

    status: int | None
    failure: str
    stderr: str
    stdout: bytes


class Sessions:
    """Runs commands, in as many threads as call `run`. It has to be closed.

    A command that takes longer than *timeout* seconds is ended. What commands print is kept in files without names
    in *tmpdir* until they end.
    """

    def __init__(self, *, timeout: float | None = None, tmpdir: str | None = None) -> None:
        self._timeout = timeout
        self._tmpdir = tmpdir
        self._over = threading.Event()  # what ran when we were stopped has ended
        self.stopped = False
        self._guard = Guard(tmpdir=tmpdir)
        self._environment = dict(os.environb)

    def close(self) -> None:
        """End what runs; then nothing runs any more."""
        self.stop()
        self._guard.close()

    def run(self, words: Sequence[str], environment: Mapping[bytes, bytes]) -> CommandResult:
        """Run *words* with *environment* added to ours; its stdin is empty.

        What it leaves running in its process group when it ends is killed.
        """
        child: Child | None = None
        try:
            with scratch_file(self._tmpdir) as stdout, scratch_file(self._tmpdir) as stderr:
                try:
                    with deferred_signals():
                        child = self._start(words, environment, stdout, stderr)
                    if child is None:
                        return CommandResult(None, "was not begun", "", b"")
                    status, failure, printed = self._wait(child, stdout)
                    end = _end_of(stderr, STDERR).decode("utf-8", "replace")
                    return CommandResult(status, failure, end, printed)
                finally:
                    if child is not None:
                        self._release(child)
        except (OSError, ValueError, StorageError) as error:
            if child is not None:
                raise
            return CommandResult(None, f"can't be run: {_why(words, error)}", "", b"")

    def stop(self) -> None:
        """End what runs, by SIGTERM, after three seconds by SIGKILL; nothing is started any more.

        If something runs, what earlier commands have left in sessions of their own is killed too.
        """
        self.stopped = True
        live = self._guard.running
        try:
            if live:
                end_all(live, patience=PATIENCE, others=self._guard.marked)
        finally:
            self._over.set()

    def _start(
        self, words: Sequence[str], environment: Mapping[bytes, bytes], stdout: io.FileIO, stderr: io.FileIO
    ) -> Child | None:
        """Start *words*, known to `stop` and to the guard; None if we were stopped.

        Raises: OSError, ValueError, before anything was started.
        """
        if self.stopped:
            return None
        around = {**self._environment, **environment}
        child = self._guard.start(words, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=around)
        if self.stopped:  # by now, and `stop` may not know of it
            end_all([child], patience=PATIENCE, others=self._guard.marked)
        return child

    def _wait(self, child: Child, stdout: io.FileIO) -> tuple[int | None, str, bytes]:
        """Wait for *child*, which writes to *stdout*; return its status, how it failed, and what it wrote if not."""
        until = math.inf if self._timeout is None else time.monotonic() + self._timeout
        ended = too_much = False
        while not ended and not too_much and (left := until - time.monotonic()) > 0:
            ended = child.has_ended(min(left, LOOK))
            too_much = not ended and os.fstat(stdout.fileno()).st_size > STDOUT
        if not ended:
            end_all([child], patience=PATIENCE)
        elif self.stopped:
            self._over.wait()  # `stop` may still be ending what is left of it
        status = child.wait()
        if not ended and not too_much:
            return None, f"took longer than {self._timeout:g} seconds and was stopped", b""
        if self.stopped:
            return status, "was stopped", b""
        if status and ended:
            return status, describe(status), b""
        # What it left in its process group may have printed more, until it was killed.
        if too_much or len(printed := _end_of(stdout, STDOUT + 1)) > STDOUT:
            why = f"printed more than {STDOUT:,} bytes, which is the limit: have it write a file (-o)"
            return status if ended else None, why, b""
        return status, "", printed

    def _release(self, child: Child) -> None:
        """Forget *child*, which has ended; end it first if waiting for it was interrupted."""
        if child.running:
            end_all([child], patience=PATIENCE)
        self._guard.release(child)


def check_program(word: str) -> None:
    """Raise UsageError if *word* can't be run, neither as a path nor as a name in PATH."""
    if shutil.which(word) is None:
        what = "this is not executable" if os.path.exists(word) else "there is no such program"
        raise UsageError(f"{what}; if the shell has expanded SPEC, quote it", url=word)


def most_at_once() -> int:
    """Return how many commands can run at a time with the files that this process may open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else max(1, (limit - OTHERS) // FILES)


def _why(words: Sequence[str], error: OSError | ValueError | StorageError) -> str:
    """Return why *words* can't be run."""
    if isinstance(error, StorageError):
        return str(error)
    if isinstance(error, OSError):
        return f"{words[0]}: {error.strerror}"
    return str(error)  # a NUL


def _end_of(file: io.FileIO, most: int) -> bytes:
    """Return the last bytes of the open *file*, up to *most*."""
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), most, max(0, size - most)) if size else b""
