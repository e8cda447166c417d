"""Processes that all workers of a test run share: the first one that needs a process starts it, it ends with the last.

Each user holds the writing end of a FIFO that is the stdin of the process, which ends when that does: however users
end, nothing outlives them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

PATIENCE = 60.0  # seconds for a process to begin: the machine may be busy


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """Return the folder of this test run, which is the same in all workers."""
    folder = factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@contextmanager
def shared(place: Path, command: Sequence[str | Path], cwd: Path) -> Iterator[str]:
    """Give the first line that *command* prints; *place* is the folder of this process, in that of the test run.

    What else it says goes to the file `log` in there.
    """
    place.mkdir(exist_ok=True)
    with alone(place):
        held = join(place) or start(place, command, cwd)
        count(place, 1)
        said = (place / "said").read_text()
    try:
        yield said
    finally:
        with alone(place):
            os.close(held)
            if not count(place, -1):
                with (place / "running").open("w") as running:
                    fcntl.flock(running, fcntl.LOCK_EX)  # until it has ended


@contextmanager
def alone(place: Path) -> Iterator[None]:
    """Keep other users of *place* from coming and going."""
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def count(place: Path, change: int) -> int:
    """Return how many users there are after *change*."""
    file = place / "users"
    users = (int(file.read_text()) if file.exists() else 0) + change
    file.write_text(str(users))
    return users


def join(place: Path) -> int | None:
    """Return the writing end of the stdin of the process that runs; None if none does."""
    try:
        return os.open(place / "stdin", os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENXIO):  # no FIFO, nobody who reads it
            raise
        return None


def start(place: Path, command: Sequence[str | Path], cwd: Path) -> int:
    """Start *command*, and wait until it has printed a line; return the writing end of its stdin."""
    (place / "users").unlink(missing_ok=True)
    (place / "stdin").unlink(missing_ok=True)
    os.mkfifo(place / "stdin")
    both = os.open(place / "stdin", os.O_RDWR)  # so that neither end waits for the other to be opened
    reading, held = os.open(place / "stdin", os.O_RDONLY), os.open(place / "stdin", os.O_WRONLY)
    os.close(both)
    with (place / "log").open("wb") as log, (place / "running").open("w") as running:
        fcntl.flock(running, fcntl.LOCK_EX)  # for as long as the process has it open
        process = subprocess.Popen(
            command,
            stdin=reading,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=cwd,
            pass_fds=[running.fileno()],
            start_new_session=True,  # not to be interrupted with us
        )
    os.close(reading)
    process.returncode = 0  # it may outlive us, and we it: nobody waits for it
    assert process.stdout is not None
    with process.stdout as stdout:
        ready, _, _ = select.select([stdout], [], [], PATIENCE)
        said = stdout.readline().decode().strip() if ready else ""
    if not said:
        raise RuntimeError(f"{command} did not start: {(place / 'log').read_text()}")
    (place / "said").write_text(said)
    return held
