"""Installed commands as forks of processes that have imported them: `tests.forkserver`, which says what is the same.

What can't be the same needs a start of its own: see `Forks.can`.
"""

from __future__ import annotations

import marshal
import os
import resource
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

from tests.forkserver import NUMBER

SERVER = Path(__file__).with_name("forkserver.py")
AT_START = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "TYPER_")  # variables that are read when a command starts
LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
CHUNK = 1 << 16
Command = Sequence[str | Path]
Environment = Mapping[str, str]


class Forks:
    """The servers of this process, each started when it is first needed."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._inherited = inherited(environment)
        self._servers: dict[str, Server] = {}

    def can(self, command: Command, environment: Environment) -> bool:
        """Tell whether a fork is like what would be started now: if *command* is a script of ours, and if what it
        would inherit, apart from what requests hold, is what servers inherit.
        """
        return Path(command[0]).parent == Path(sys.executable).parent and self._inherited == inherited(environment)

    def run(
        self, command: Command, *, input: bytes, cwd: Path, env: Environment, timeout: float
    ) -> subprocess.CompletedProcess[bytes]:
        """Run *command* as subprocess.run does: stdin is *input*, stdout and stderr are captured.

        Raises: subprocess.TimeoutExpired after *timeout* seconds; the process is killed then.
        """
        if (kind := kind_of(command)) not in self._servers:
            self._servers[kind] = Server(kind, self._environment)
        return self._servers[kind].run(command, input, cwd, env, timeout)

    def stop(self) -> None:
        """End the servers."""
        for server in self._servers.values():
            server.stop()


def kind_of(command: Command) -> str:
    """Return the key of `tests.forkserver.LATER` for *command*."""
    if any("://" in str(word) for word in command):
        return "remote"
    return "show" if Path(command[0]).name in ("tarshow", "tarstat") else "local"


def inherited(environment: Environment) -> tuple[object, ...]:
    """Return what a process that is started here with *environment* has from us, apart from what a request holds."""
    variables = {name: value for name, value in environment.items() if name.startswith(AT_START)}
    ignored = {number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    limits = [resource.getrlimit(limit) for limit in LIMITS]
    return variables, ignored, blocked, limits, os.getpid(), os.getpgrp(), os.getuid(), os.geteuid(), os.getgroups()


class Server:
    """A process that forks. It lives as long as this one, at most."""

    def __init__(self, kind: str, environment: Environment) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, SERVER, str(theirs.fileno()), kind],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=environment,
                cwd=os.sep,
            )

    def run(
        self, command: Command, input: bytes, cwd: Path, env: Environment, timeout: float
    ) -> subprocess.CompletedProcess[bytes]:
        """Run *command*: see `Forks.run`."""
        pipes = [os.pipe() for _ in range(3)]
        theirs, ours = [pipes[0][0], pipes[1][1], pipes[2][1]], [pipes[0][1], pipes[1][0], pipes[2][0]]
        try:
            answers = self._ask(command, cwd, env, theirs)
        finally:
            for fd in theirs:
                os.close(fd)
        with answers, open(ours[0], "wb", 0) as into, open(ours[1], "rb", 0) as out, open(ours[2], "rb", 0) as err:
            limit = time.monotonic() + timeout
            pid = number_from(answers)
            try:
                printed = exchange(into, input, [out, err], limit)
                answers.settimeout(max(limit - time.monotonic(), 0.001))
                status = number_from(answers)
            except BaseException as error:
                if not select.select([answers], [], [], 0)[0]:  # nobody has waited for it: the number is not another's
                    os.kill(pid, signal.SIGKILL)
                if isinstance(error, TimeoutError):
                    raise subprocess.TimeoutExpired(list(command), timeout) from None
                raise
        return subprocess.CompletedProcess(list(command), os.waitstatus_to_exitcode(status), *printed)

    def _ask(self, command: Command, cwd: Path, env: Environment, streams: Sequence[int]) -> socket.socket:
        """Ask for a process; return the socket that its number comes through, and its status."""
        os.umask(mask := os.umask(0o077))
        variables = {os.fsencode(name): os.fsencode(value) for name, value in env.items()}
        request = marshal.dumps(([os.fsencode(word) for word in command], variables, os.fsencode(cwd), mask))
        answers, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [b"\0"], [theirs.fileno()])
        socket.send_fds(answers, [NUMBER.pack(len(request))], streams)
        answers.sendall(request)
        return answers

    def stop(self) -> None:
        """End it."""
        self._control.close()
        self._process.wait()


def exchange(into: FileIO, data: bytes, outputs: Sequence[FileIO], limit: float) -> list[bytes]:
    """Write *data*, as far as it is read, and close *into*; meanwhile read *outputs* to their ends; return these.

    Raises: TimeoutError at *limit*.
    """
    found: dict[Any, bytearray] = {output: bytearray() for output in outputs}
    rest = memoryview(data)
    with selectors.DefaultSelector() as selector:
        for output in outputs:
            selector.register(output, selectors.EVENT_READ)
        selector.register(into, selectors.EVENT_WRITE)
        while selector.get_map():
            if (left := limit - time.monotonic()) <= 0:
                raise TimeoutError
            for key, _ in selector.select(left):
                if key.fileobj is into:
                    try:
                        rest = rest[os.write(key.fd, rest[: select.PIPE_BUF]) :]
                    except BrokenPipeError:
                        rest = rest[:0]
                    if not rest:
                        selector.unregister(into)
                        into.close()
                elif part := os.read(key.fd, CHUNK):
                    found[key.fileobj] += part
                else:
                    selector.unregister(key.fileobj)
    return [bytes(part) for part in found.values()]


def number_from(answers: socket.socket) -> int:
    """Return the next number that comes from *answers*."""
    data = answers.recv(NUMBER.size, socket.MSG_WAITALL)
    if len(data) < NUMBER.size:
        raise RuntimeError("the server of forks has ended")
    number: int = NUMBER.unpack(data)[0]
    return number
