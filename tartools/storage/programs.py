"""Programs that are run one by one, each in a session of its own, of which nothing is left.

A guard, a small `sh` beside us, kills what runs should we be killed in a way that leaves us no time for that.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import NamedTuple

from tartools.storage.command import PATIENCE, Child, describe
from tartools.storage.interrupts import signals_wait
from tartools.storage.scratch import scratch_file

SAID = 2048  # bytes of stderr that are kept, the last ones
PRINTED = 16 << 20  # bytes of stdout that are passed on

# Reads what is started and ended, until we say that all is done, or are gone.
GUARD = r"""
live=" "
while read -r word session; do
    case $word in
    start) live="$live$session " ;;
    end) live="${live%%" $session "*} ${live#*" $session "}" ;;
    done) exit ;;
    esac
done
for session in $live; do kill -s KILL -- "-$session"; done
for process in /proc/[0-9]*; do  # other groups of these sessions, if there is /proc
    read -r line < "$process/stat" || continue  # number (name) state parent group session
    set -- ${line##*\) }
    case $live in *" $4 "*) kill -s KILL -- "-$3" ;; esac
done
"""


class Finished(NamedTuple):
    """How a program ended: *status* (negative: by that signal, None: it did not start), and the *failure* in words.

    *said* is the end of its stderr, *printed* its stdout.
    """

    status: int | None
    failure: str
    said: str
    printed: bytes


class Programs:
    """Runs programs, in as many threads as call `run`. Use it in a `with` block: at its end nothing runs any more.

    A program that takes longer than *timeout* seconds is killed. What programs write goes to files without names in
    *tmpdir* until they end.
    """

    def __init__(self, *, timeout: float | None = None, tmpdir: str | None = None) -> None:
        self._timeout = timeout
        self._tmpdir = tmpdir
        self._lock = threading.Lock()
        self._live: set[Child] = set()
        self.stopped = False
        with signals_wait():
            self._guard = subprocess.Popen(
                ["sh", "-c", GUARD, "tartools-guard"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,  # what a terminal sends to us is not for it
            )

    def __enter__(self) -> Programs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._tell("done")
        assert self._guard.stdin is not None
        with contextlib.suppress(OSError):
            self._guard.stdin.close()
        self._guard.wait()

    def run(self, words: Sequence[str], environment: Mapping[str, str]) -> Finished:
        """Run *words* with *environment* added to ours; its stdin is empty.

        What it leaves running when it ends is killed.
        """
        with scratch_file(self._tmpdir) as printed, scratch_file(self._tmpdir) as said:
            try:
                child = Child(
                    words, stdin=subprocess.DEVNULL, stdout=printed, stderr=said, env={**os.environ, **environment}
                )
            except OSError as error:
                return Finished(None, f"can't be run: {words[0]}: {error.strerror}", "", b"")
            except ValueError as error:  # a NUL
                return Finished(None, f"can't be run: {error}", "", b"")
            status, failure = self._ended(child)
            size = os.fstat(printed.fileno()).st_size
            if size > PRINTED and not failure:
                failure = f"printed {size:,} bytes, and only {PRINTED:,} are passed on: have it write a file (-o)"
            output = b"" if failure else os.pread(printed.fileno(), size, 0)
            return Finished(status, failure, _tail(said), output)

    def stop(self) -> None:
        """End what runs, by SIGTERM, and by SIGKILL what is still there after two seconds; nothing starts any more."""
        with self._lock:
            self.stopped = True
            live = list(self._live)
        for child in live:
            child.kill(15)
        until = time.monotonic() + PATIENCE
        for child in live:
            if child.wait(max(0.0, until - time.monotonic())) is None:
                child.kill()
                child.wait()

    def _ended(self, child: Child) -> tuple[int | None, str]:
        """Wait for *child*; return its status and how it failed."""
        with self._lock:
            self._live.add(child)
            stopped = self.stopped
        self._tell(f"start {child.pid}")
        try:
            if stopped:
                child.kill()
            status = child.wait(self._timeout)
            if status is None:
                child.end()
                return None, f"took longer than {self._timeout:g} seconds and was stopped"
            if self.stopped:
                return status, "was stopped"
            return status, describe(status) if status else ""
        finally:
            self._tell(f"end {child.pid}")
            with self._lock:
                self._live.discard(child)

    def _tell(self, word: str) -> None:
        """Say *word* to the guard."""
        assert self._guard.stdin is not None
        with self._lock, contextlib.suppress(OSError, ValueError):  # somebody killed it; then there is nobody to tell
            self._guard.stdin.write(f"{word}\n".encode())
            self._guard.stdin.flush()


def _tail(file: io.FileIO) -> str:
    """Return the last 2 KB of *file* as text."""
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), SAID, max(0, size - SAID)).decode("utf-8", "replace")
