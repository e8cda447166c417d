"""Programs that are run one by one, each in a session of its own, of which nothing is left.

A guard, a small `sh` beside us, kills what runs should we be killed in a way that leaves us no time for that.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple

from tartools.errors import StorageError, UsageError
from tartools.storage.command import Child, describe
from tartools.storage.interrupts import signals_wait
from tartools.storage.scratch import scratch_file

SAID = 2048  # bytes of stderr that are kept, the last ones
PRINTED = 16 << 20  # bytes of stdout that are passed on
PATIENCE = 3.0  # seconds to end in; longer than tartools take to end what they have started themselves
STEP = 0.02  # seconds between two looks at what is left
LOOK = 0.2  # seconds between two looks at how much a program has printed
FILES, OTHERS = 6, 40  # that one of them needs while it starts, and all together
SLOT = 12  # bytes of a process id and a newline in the file that the guard reads

# Waits until we say that all is done, or are gone. Its stdout is the file that holds what runs, its stderr a pipe whose
# end is its own. It is nobody's child, since a worker of Ray's that is told to end kills its children, and only these.
# $1 is in the environment of all that is started, and tells of what was not written down yet.
GUARD = r"""
exec 3<&1 4<&0 5>&2 >/dev/null 2>&1
mark=$1
{
read -r word && exit
sessions=" $(echo $(cat <&3)) "
family=$sessions more=yes
while test "$more"; do  # what descends from them, and all of the sessions that these have made
    more=
    for process in /proc/[0-9]*; do
        number=${process#/proc/}
        case $family in *" $number "*) continue ;; esac
        read -r line <"$process/stat" || continue  # number (name) state parent group session
        set -- ${line##*\) }
        case $family in
        *" $2 "* | *" $4 "*) family="$family$number " more=yes ;;
        *)
            test "$number" = "$4" && tr '\0' '\n' <"$process/environ" | grep -qxF "$mark" &&
                family="$family$number " more=yes
            ;;
        esac
    done
done
for session in $sessions; do kill -s KILL -- "-$session"; done
for number in $family; do kill -s KILL "$number"; done
} <&4 &
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

    A program that takes longer than *timeout* seconds is ended. What programs write goes to files without names in
    *tmpdir* until they end.
    """

    def __init__(self, *, timeout: float | None = None, tmpdir: str | None = None) -> None:
        self._timeout = timeout
        self._tmpdir = tmpdir
        mark = f"{os.getpid()}.{time.monotonic_ns()}"
        os.environ["TARTOOLS_JOB"] = mark  # all that run inherit it; to hand each a copy of our variables costs more
        self._mark = f"TARTOOLS_JOB={mark}"
        self._paths: dict[str, str | None] = {}  # of programs: it takes longer to look for one than to start it
        self._lock = threading.Lock()
        self._live: dict[Child, int] = {}  # with its slot in the file
        self._free: list[int] = []  # slots below the number of those in use
        self._over = threading.Event()  # what ran when we were stopped has ended
        self.stopped = False
        self._running = scratch_file(tmpdir)
        self._nowhere = open(os.devnull, "rb", buffering=0)  # noqa: SIM115  # up to the end of the block
        with signals_wait():
            self._guard = subprocess.Popen(
                ["sh", "-c", GUARD, "tartools-guard", self._mark],
                stdin=subprocess.PIPE,
                stdout=self._running,
                stderr=subprocess.PIPE,
                cwd="/",
                start_new_session=True,  # what a terminal sends to us is not for it
            )
        self._guard.wait()

    def __enter__(self) -> Programs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        assert self._guard.stdin is not None
        assert self._guard.stderr is not None
        with contextlib.suppress(OSError):  # somebody killed it; then there is nobody to tell
            self._guard.stdin.write(b"done\n")
            self._guard.stdin.close()
        with self._guard.stderr as pipe:
            pipe.read()  # until it is gone
        self._running.close()
        self._nowhere.close()

    def run(self, words: Sequence[str], environment: Mapping[bytes, bytes]) -> Finished:
        """Run *words* with *environment* added to ours; its stdin is empty.

        What it leaves running in its process group when it ends is killed.
        """
        try:
            printed = scratch_file(self._tmpdir)
            said = scratch_file(self._tmpdir)
        except StorageError as error:
            return Finished(None, f"can't be run: {error}", "", b"")
        with printed, said:
            child: Child | None = None
            try:
                with signals_wait():
                    child = self._started(words, environment, printed, said)
                if child is None:
                    return Finished(None, "was not begun", "", b"")
                status, failure = self._ended(child, printed)
            except (OSError, ValueError) as error:
                if child is not None:
                    raise
                return Finished(None, f"can't be run: {_why(words, error)}", "", b"")
            finally:
                if child is not None:
                    self._forget(child)
            output = b"" if failure else os.pread(printed.fileno(), PRINTED, 0)
            return Finished(status, failure, _tail(said), output)

    def stop(self) -> None:
        """End what runs, by SIGTERM, after three seconds by SIGKILL; nothing is started any more.

        If something runs, what earlier programs have left in sessions of their own is killed too.
        """
        with self._lock:
            self.stopped = True
            live = list(self._live)
        try:
            _end(live, self._marked)
        finally:
            self._over.set()

    def _marked(self) -> set[int]:
        """Return the sessions of what has inherited our mark, whoever its parent is now, but that of the guard."""
        mark = os.fsencode(self._mark)
        sessions = {process.session for process in _processes() if mark in _environment(process.number)}
        return sessions - {self._guard.pid, os.getsid(0)}

    def _started(
        self, words: Sequence[str], environment: Mapping[bytes, bytes], printed: io.FileIO, said: io.FileIO
    ) -> Child | None:
        """Start *words*, and write that down for `stop` and for the guard; None if we were stopped.

        Raises: OSError, ValueError, before anything was started.
        """
        with self._lock:  # so that whoever stops us knows of all that runs
            if self.stopped:
                return None
            if words[0] not in self._paths:
                self._paths[words[0]] = shutil.which(words[0])
            slot = self._free[-1] if self._free else len(self._live)
            if not self._free:  # there may be no room for it
                os.pwrite(self._running.fileno(), b"%*s\n" % (SLOT - 1, b""), slot * SLOT)
            child = Child(
                words,
                executable=self._paths[words[0]],
                stdin=self._nowhere,
                stdout=printed,
                stderr=said,
                env={**os.environb, **environment} if environment else None,
            )
            if self._free:
                self._free.pop()
            self._live[child] = slot
            os.pwrite(self._running.fileno(), b"%*d\n" % (SLOT - 1, child.pid), slot * SLOT)
            return child

    def _ended(self, child: Child, printed: io.FileIO) -> tuple[int | None, str]:
        """Wait for *child*, which writes to *printed*; return its status and how it failed."""
        until = math.inf if self._timeout is None else time.monotonic() + self._timeout
        ended = too_much = False
        while not ended and not too_much and (left := until - time.monotonic()) > 0:
            ended = child.has_ended(min(left, LOOK))
            too_much = os.fstat(printed.fileno()).st_size > PRINTED
        if not ended:
            _end([child])
        elif self.stopped:
            self._over.wait()  # since what is left of it may still be ending
        status = child.wait()
        if not ended and not too_much:
            return None, f"took longer than {self._timeout:g} seconds and was stopped"
        if self.stopped:
            return status, "was stopped"
        if status and ended:
            return status, describe(status)
        # What it has left in its process group may have printed more, until it was killed.
        if too_much or os.fstat(printed.fileno()).st_size > PRINTED:
            why = f"printed more than {PRINTED:,} bytes, and only these are passed on: have it write a file (-o)"
            return status if ended else None, why
        return status, ""

    def _forget(self, child: Child) -> None:
        """Strike *child* out, which has ended; end it if that is why we do not wait any longer."""
        if child.running:
            _end([child])
        with self._lock:
            slot = self._live.pop(child)
            self._free.append(slot)
            os.pwrite(self._running.fileno(), b"%*s\n" % (SLOT - 1, b""), slot * SLOT)


def check_program(word: str) -> None:
    """Raise UsageError if *word* can't be run, neither as a path nor as a name in PATH."""
    if shutil.which(word) is None:
        what = "this is not executable" if os.path.exists(word) else "there is no such program"
        raise UsageError(f"{what}; if the shell has expanded SPEC, quote that", url=word)


def at_most() -> int:
    """Return how many programs can be run at a time with the files that this process may open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else max(1, (limit - OTHERS) // FILES)


def _why(words: Sequence[str], error: OSError | ValueError) -> str:
    """Return why *words* can't be run."""
    if isinstance(error, OSError):
        return f"{words[0]}: {error.strerror}"
    return str(error)  # a NUL


def _tail(file: io.FileIO) -> str:
    """Return the last 2 KB of *file* as text."""
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), SAID, max(0, size - SAID)).decode("utf-8", "replace")


# ---- the end ----


class _Process(NamedTuple):
    """A process that has not ended, its *parent*, and its process *group* and *session*."""

    number: int
    parent: int
    group: int
    session: int


def _processes() -> list[_Process]:
    """Return the processes there are, as /proc tells; none where there is no /proc."""
    found = []
    with contextlib.suppress(OSError), os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdigit():
                with contextlib.suppress(OSError), open(f"{entry.path}/stat", "rb", buffering=0) as file:
                    # number (name) state parent group session; the name may hold anything. See proc(5).
                    state, *numbers = file.read(4096).rpartition(b") ")[2].split()[:4]
                    if state not in b"ZX":
                        found.append(_Process(int(entry.name), *map(int, numbers)))
    return found


def _environment(number: int) -> list[bytes]:
    """Return the variables that process *number* began with; none if it has ended, or is not ours to look at."""
    try:
        with open(f"/proc/{number}/environ", "rb", buffering=0) as file:
            return file.readall().split(b"\0")
    except OSError:
        return []


def _family(sessions: Collection[int]) -> set[int]:
    """Return *sessions*, and those that what descends from them has made."""
    family = set(sessions)
    members: set[int] = set()
    processes = _processes()
    while more := [p for p in processes if p.number not in members and (p.parent in members or p.session in family)]:
        members.update(process.number for process in more)
        family.update(process.session for process in more)
    return family


def _end(children: Collection[Child], others: Callable[[], set[int]] = set) -> None:
    """End *children* and all of their sessions: by SIGTERM, after three seconds by SIGKILL.

    What has made sessions of its own is for those to end that have started it; what they leave is killed, and so are
    the sessions *others*.
    """
    if not children:
        return
    sessions = {child.pid for child in children}
    family = _family(sessions)  # of which we would not know once parents have ended
    for child in children:
        child.kill(signal.SIGTERM)
    for group in {process.group for process in _processes() if process.session in sessions} - sessions:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGTERM)
    until = time.monotonic() + PATIENCE
    for child in children:
        child.has_ended(max(0.0, until - time.monotonic()))
    while time.monotonic() < until and any(process.session in sessions for process in _processes()):
        time.sleep(STEP)
    for child in children:
        child.kill()
    family |= others()
    until = time.monotonic() + PATIENCE  # for what can't be killed
    while time.monotonic() < until and (left := [process for process in _processes() if process.session in family]):
        for process in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.number, signal.SIGKILL)
        time.sleep(STEP)
    for child in children:
        child.wait()
