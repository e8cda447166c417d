"""Child programs, each in a session of its own, and how all processes of such a session are ended.

Processes are found in /proc. Without it (macOS), only the process group of each program is ended.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

from tartools.storage.interrupts import defer_signals
from tartools.storage.streams import wait_until_ready

TERM_SECONDS = 2.0  # seconds between SIGTERM and SIGKILL
KILL_SECONDS = 3.0  # seconds that a killed process may take to end
PR_SET_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER, see prctl(2)
CHILD_POLL_SECONDS = 0.02  # seconds between two looks at what is left


class Process(NamedTuple):
    """A running process: its pid (*number*), and the pids of its *parent*, process *group* and *session*."""

    number: int
    parent: int
    group: int
    session: int


def list_processes() -> list[Process]:
    """Return the processes in /proc that have not ended, this one too; empty without /proc (macOS)."""
    processes = []
    with contextlib.suppress(OSError), os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdigit():
                with contextlib.suppress(OSError), open(f"{entry.path}/stat", "rb", buffering=0) as file:
                    # number (name) state parent group session; the name may contain anything. See proc(5).
                    state, *numbers = file.read(4096).rpartition(b") ")[2].split()[:4]
                    if state not in b"ZX":
                        processes.append(Process(int(entry.name), *map(int, numbers)))
    return processes


def environment_of(number: int) -> list[bytes]:
    """Return the environment at the start of the process with pid *number*: items b"NAME=VALUE", and b"" at the end.

    [] if there is no such process or it belongs to another user, and without /proc (macOS); [b""] if it has ended but
    was not reaped yet.
    """
    try:
        with open(f"/proc/{number}/environ", "rb", buffering=0) as file:
            return file.readall().split(b"\0")
    except OSError:
        return []


def subreaper_hook() -> Callable[[], object] | None:
    """Return a function for `preexec_fn` by which a child adopts orphaned descendants (PR_SET_CHILD_SUBREAPER).

    None if the system has no prctl.
    """
    import ctypes  # 5 ms

    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    return prctl and partial(prctl, PR_SET_CHILD_SUBREAPER, 1)


def has_children(number: int) -> bool:
    """True if the process with pid *number* has children, running or not reaped; also if the system can't tell.

    The system can't tell about a process that is gone, and without /proc (macOS). Only children of its first thread
    count.
    """
    try:
        with open(f"/proc/{number}/task/{number}/children", "rb", buffering=0) as file:
            return bool(file.read(1))
    except OSError:
        return True


def reader_pids(pipe: int) -> set[int]:
    """Return the pids of the processes that hold the read end of *pipe*, a descriptor of its write end in this process.

    Processes of other users are not seen. Empty without /proc (macOS).
    """
    pids = set()
    with contextlib.suppress(OSError):
        pipe_name = os.readlink(f"/proc/self/fd/{pipe}")
        for process in list_processes():
            folder = f"/proc/{process.number}/fd"
            with contextlib.suppress(OSError):  # it has ended, or belongs to another user
                for name in os.listdir(folder):
                    path = f"{folder}/{name}"
                    if os.readlink(path) == pipe_name and os.lstat(path).st_mode & 0o400:  # open for reading
                        pids.add(process.number)
    return pids


class Child:
    """A program in a session of its own. Nothing of its process group is left once this process has reaped it.

    The group is killed before the program is reaped (right after that where the system can't wait without reaping):
    until then no other group can have the same number. It has a session, because a background group that reads a
    password from the terminal would be stopped for ever; without a terminal it fails at once. A signal that comes while
    it starts is handled after the start.

    *arguments*: the program and its words. *options*: further arguments of `subprocess.Popen`. `pid` is the number of
    the process, its group and its session; `stdin` and `stdout` are our ends, unbuffered, if *options* make them pipes,
    else None. The caller has to call `wait` or `end`. Raises: OSError if the program can't be started.
    """

    def __init__(self, arguments: Sequence[str], **options: Any) -> None:
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._seen = False  # that it has ended
        try:
            with defer_signals():
                process = self._process = subprocess.Popen(arguments, start_new_session=True, bufsize=0, **options)
                self.pid, self.stdin, self.stdout = process.pid, process.stdin, process.stdout
        except BaseException:
            if self._process is not None:
                self.end(signal.SIGKILL)
            raise

    @property
    def is_running(self) -> bool:
        """True until this process has reaped the program; always False in a fork of the process that started it."""
        return self._process is not None and self._process.returncode is None and os.getpid() == self._owner

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send the signal *number* to the process group of the program.

        Does nothing if it has been reaped, or in a fork of the process that started it.
        """
        with self._lock:
            if self.is_running:
                _send_signal(-self.pid, number)

    def wait(self, seconds: float | None = None) -> int | None:
        """Wait up to *seconds* (None: without limit) for the end, kill the process group, and reap the program.

        Returns the exit status, -N if signal N ended it, also if it was reaped before; None if it still runs: then
        nothing is killed; 0 in a fork of the process that started it.
        """
        if not self.has_ended(seconds):
            return None
        self.kill()
        with self._lock:  # not while `kill` uses its number, which is free once it is reaped
            return self._process.wait() if self._process is not None and os.getpid() == self._owner else 0

    def end(self, first: int = signal.SIGTERM) -> int:
        """End the program, all processes of its session and their descendants; return its exit status.

        The processes of the session get the signal *first*; all that are left after TERM_SECONDS are killed. The status
        is -N if signal N ended the program. If it was reaped before, nothing is ended. In a fork of the process that
        started it, nothing is ended, and the status is 0.
        """
        end_all([self], first)
        return self.wait() or 0

    def has_ended(self, seconds: float | None) -> bool:
        """Wait up to *seconds* (None: without limit) for the end of the program; return True if it has ended.

        Where the system can wait without reaping (Linux), the program is not reaped, and processes that it left run
        until `wait`, `kill` or `end` is called. Elsewhere it is reaped, and its process group killed. In a fork of the
        process that started it, the result is True at once.
        """
        if self._seen or not self.is_running:
            return True
        try:
            if seconds is not None:
                fd = os.pidfd_open(self.pid)
                try:
                    self._seen = wait_until_ready(fd, writing=False, seconds=seconds)
                    return self._seen
                finally:
                    os.close(fd)
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        except (ChildProcessError, ProcessLookupError):
            return True  # another thread reaped it meanwhile
        except (AttributeError, OSError):  # not Linux, or an old kernel
            try:
                assert self._process is not None
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                return False
            _send_signal(-self.pid, signal.SIGKILL)  # at once: the number is hardly used again yet
        return True


def end_all(
    children: Collection[Child],
    first: int = signal.SIGTERM,
    *,
    patience: float = TERM_SECONDS,
    extra_pids: Callable[[], set[int]] | None = None,
) -> None:
    """End *children*, all processes of their sessions and the descendants of these, and wait until they have ended.

    First the processes of these sessions get the signal *first*; with SIGKILL this step is left out. When they have
    ended, or after *patience* seconds, all processes that are left are stopped, and then killed: a stopped process
    can't see that another one has ended, and starts nothing new. `extra_pids()` returns the pids of more processes to
    be killed then; it is called until it returns no new ones. The function waits without limit for the killed
    *children*, and up to KILL_SECONDS for other killed processes. This process is never killed.

    Children that were reaped, or belong to another process, are left out. Sessions of descendants do not get the signal
    *first*: tartools among them end what they have started.
    """
    children = [child for child in children if child.is_running]
    if not children and extra_pids is None:
        return
    sessions = {child.pid for child in children}
    family = set(sessions)
    if first != signal.SIGKILL:
        processes = list_processes()
        family = _find_descendants(processes, sessions)[1]  # now: a process without its parent can't be found later
        for child in children:
            child.kill(first)
        for group in {process.group for process in processes if process.session in sessions} - sessions:
            _send_signal(-group, first)
        _wait_for(children, sessions, patience)
    killed = _kill(children, family, extra_pids or set)
    for child in children:
        child.wait()
    until = time.monotonic() + KILL_SECONDS
    while killed and time.monotonic() < until:
        killed &= {process.number for process in list_processes()}
        if killed:
            time.sleep(CHILD_POLL_SECONDS)


def _wait_for(children: Collection[Child], sessions: Collection[int], seconds: float) -> None:
    """Wait until *children* have ended and no process is left in *sessions* (their ids), but at most *seconds*."""
    until = time.monotonic() + seconds
    for child in children:
        child.has_ended(max(0.0, until - time.monotonic()))
    while time.monotonic() < until and any(process.session in sessions for process in list_processes()):
        time.sleep(CHILD_POLL_SECONDS)


def _kill(children: Collection[Child], family: set[int], extra_pids: Callable[[], set[int]]) -> set[int]:
    """Kill *children*, the processes of the sessions *family*, their descendants, and the pids of `extra_pids()`.

    *family*: session ids. Each new process is stopped first, until no new one is found; this process is left out.
    Returns the pids of all that were stopped and killed.
    """
    stopped: set[int] = set()
    with defer_signals():  # so that nothing stays stopped
        try:
            while True:
                members, family = _find_descendants(list_processes(), family, stopped)
                new = (members | extra_pids()) - stopped - {os.getpid()}
                if not new:
                    break
                for number in new:
                    _send_signal(number, signal.SIGSTOP)
                stopped |= new
        finally:
            for child in children:
                child.kill()
            for number in stopped:
                _send_signal(number, signal.SIGKILL)
    return stopped


def _find_descendants(
    processes: Collection[Process], sessions: Collection[int], roots: Collection[int] = ()
) -> tuple[set[int], set[int]]:
    """Return (pids, sessions): the processes of *sessions* and *roots*, and all their descendants, with their sessions.

    All processes in the sessions of the descendants are among them. *processes*: all processes of the machine.
    *sessions*: session ids, part of the result; *roots*: pids, part of it too.
    """
    family = set(sessions)
    members = set(roots)
    while new := [p for p in processes if p.number not in members and (p.parent in members or p.session in family)]:
        members.update(process.number for process in new)
        family.update(process.session for process in new)
    return members, family


def _send_signal(number: int, signum: int) -> None:
    """Send *signum* to the process with pid *number*, or, if that is negative, to the group -*number*.

    Does nothing if there is no such process, or it belongs to another user.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(number, signum)


def describe_status(status: int) -> str:
    """Return in words how a command ended, such as "was ended by SIGTERM" or "ended with status 1".

    *status*: -N if signal N ended it; 128 + N may be the status of a shell whose command signal N has ended: "ended
    with status 143, as after SIGTERM".
    """
    names = {number.value: number.name for number in signal.Signals}
    if status < 0:
        return f"was ended by {names.get(-status, f'signal {-status}')}"
    signal_name = names.get(status - 128)
    return f"ended with status {status}{f', as after {signal_name}' if signal_name else ''}"
