"""The processes of this machine, from /proc, and how sessions of them are ended. Without /proc, none are found."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Set
from typing import NamedTuple

from tartools.storage.pipe import Child

PATIENCE = 3.0  # seconds between SIGTERM and SIGKILL; tartools need less to end what they have started themselves
STEP = 0.02  # seconds between two looks at what is left


class Process(NamedTuple):
    """A process that has not ended, its *parent*, and its process *group* and *session*."""

    number: int
    parent: int
    group: int
    session: int


def processes() -> list[Process]:
    """Return the processes of this machine that have not ended."""
    found = []
    with contextlib.suppress(OSError), os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdigit():
                with contextlib.suppress(OSError), open(f"{entry.path}/stat", "rb", buffering=0) as file:
                    # number (name) state parent group session; the name may contain anything. See proc(5).
                    state, *numbers = file.read(4096).rpartition(b") ")[2].split()[:4]
                    if state not in b"ZX":
                        found.append(Process(int(entry.name), *map(int, numbers)))
    return found


def environment(number: int) -> list[bytes]:
    """Return the variables that the process *number* began with; none if it has ended or belongs to another user."""
    try:
        with open(f"/proc/{number}/environ", "rb", buffering=0) as file:
            return file.readall().split(b"\0")
    except OSError:
        return []


def kill_sessions(leaders: Set[int]) -> None:
    """Kill the sessions of *leaders*, children of ours that have not been reaped.

    By groups, so that no shell lives long enough to report that its child was killed.
    """
    known: set[int] = set()
    while found := {process.group for process in processes() if process.session in leaders} - known:
        known |= found
        for group in found:
            _kill_group(group, signal.SIGKILL)


def end_sessions(children: Collection[Child], others: Callable[[], set[int]] = set) -> None:
    """End the sessions of *children*, and wait: by SIGTERM, after three seconds by SIGKILL.

    Sessions that descend from these get no SIGTERM, since the commands that started them end them. What is left after
    three seconds is killed, and so are the sessions that *others* returns then.
    """
    if not children:
        return
    sessions = {child.pid for child in children}
    family = _descending(sessions)  # now, because a process without its parent can't be found later
    for child in children:
        child.kill(signal.SIGTERM)
    for group in {process.group for process in processes() if process.session in sessions} - sessions:
        _kill_group(group, signal.SIGTERM)
    until = time.monotonic() + PATIENCE
    for child in children:
        child.has_ended(max(0.0, until - time.monotonic()))
    while time.monotonic() < until and any(process.session in sessions for process in processes()):
        time.sleep(STEP)
    for child in children:
        child.kill()
    _kill_all(family | others())
    for child in children:
        child.wait()


def _descending(sessions: Collection[int]) -> set[int]:
    """Return *sessions* and those that their descendants have made."""
    family = set(sessions)
    members: set[int] = set()
    found = processes()
    while more := [p for p in found if p.number not in members and (p.parent in members or p.session in family)]:
        members.update(process.number for process in more)
        family.update(process.session for process in more)
    return family


def _kill_all(sessions: Set[int]) -> None:
    """Kill each process in *sessions*, and wait until they have ended, at most three seconds."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and (left := [process for process in processes() if process.session in sessions]):
        for process in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.number, signal.SIGKILL)
        time.sleep(STEP)


def _kill_group(group: int, number: signal.Signals) -> None:
    """Send a signal to the process group *group*, if it still exists and is ours."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
