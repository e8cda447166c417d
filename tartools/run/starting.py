"""Starts programs by posix_spawn(3), which takes half of the processor time that `subprocess` does.

It can't close the descriptors that we have inherited as `subprocess` does, unless it is told which these are. So it is
for a process in which nothing but Python opens files: Python's own are closed by the system when a program starts.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

FIRST = 3  # descriptor behind those of stdin, stdout and stderr


class Started:
    """A program that was started by `starter`. It has what `Child` asks of a `subprocess.Popen`."""

    stdin = stdout = None

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def wait(self) -> int:
        """Wait for the end, and return the status: negative if it was that signal."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


def starter() -> Callable[..., Started] | None:
    """Return what starts a program in a session of its own; None where the end of one can't be waited for by a file.

    It is called as `subprocess.Popen` is, with descriptors as files. The descriptors that a program would inherit are
    looked for here, once.
    """
    try:
        os.close(os.pidfd_open(os.getpid()))
        found = os.listdir("/proc/self/fd")
    except (AttributeError, OSError):  # not Linux, or an old kernel
        return None
    inherited = [fd for fd in map(int, found) if fd >= FIRST and _is_inherited(fd)]
    closed = [(os.POSIX_SPAWN_CLOSE, fd) for fd in inherited]
    defaults = (signal.SIGPIPE, signal.SIGXFSZ)  # which Python ignores

    def start(
        words: Sequence[str],
        *,
        executable: str | None,
        env: Mapping[bytes, bytes],
        stdin: int,
        stdout: int,
        stderr: int,
    ) -> Started:
        streams = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate((stdin, stdout, stderr))]
        spawn, program = (os.posix_spawn, executable) if executable else (os.posix_spawnp, words[0])
        actions = [*streams, *closed]
        return Started(spawn(program, tuple(words), env, file_actions=actions, setsid=True, setsigdef=defaults))

    return start


def _is_inherited(fd: int) -> bool:
    with suppress(OSError):  # the one with which the folder was read
        return os.get_inheritable(fd)
    return False
