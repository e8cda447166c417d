"""Installed commands as forks of processes that have imported them: `tests.forkserver`, which says what is the same.

What can't be the same needs a start of its own: see `Forks.can`.
"""

from __future__ import annotations

import marshal
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from io import FileIO
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tests.forkserver import NUMBER
from tests.forkstart import inherited

SERVER, START = (Path(__file__).with_name(name) for name in ("forkserver.py", "forkstart.py"))
CHUNK = 1 << 16
Command = Sequence[str | Path]
Environment = Mapping[str, str]


class Forks:
    """The servers of this process, each started when it is first needed."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._inherited = inherited(environment), os.getpid()
        self._servers: dict[str, Server] = {}

    def can(self, command: Command, environment: Environment) -> bool:
        """Tell whether a fork is like what would be started now: if *command* is a script of ours, and if what it
        would inherit, apart from what requests hold, is what servers inherit.
        """
        return Path(command[0]).parent == Path(sys.executable).parent and self._inherited == (
            inherited(environment),
            os.getpid(),
        )

    def run(
        self, command: Command, *, input: bytes, cwd: Path, env: Environment, timeout: float
    ) -> subprocess.CompletedProcess[bytes]:
        """Run *command* as subprocess.run does: stdin is *input*, stdout and stderr are captured.

        Raises: subprocess.TimeoutExpired after *timeout* seconds; the process is killed then.
        """
        return self._server(kind_of(command)).run(command, input, cwd, env, timeout)

    def folder(self, line: str) -> str:
        """Return a folder that has all our commands as forks, for the PATH of a shell that runs *line*."""
        return str(self._server(kind_of(line.split())).folder)

    def _server(self, kind: str) -> Server:
        """Return the server of *kind*, which is started if need be."""
        if kind not in self._servers:
            self._servers[kind] = Server(kind, self._environment)
        return self._servers[kind]

    def stop(self) -> None:
        """End the servers."""
        for server in self._servers.values():
            server.stop()


def kind_of(command: Command) -> str:
    """Return the key of `tests.forkserver.LATER` for *command*."""
    if any("://" in str(word) for word in command):
        return "remote"
    return "show" if any(Path(word).name in ("tarshow", "tarstat") for word in command) else "local"


class Server:
    """A process that forks. It lives as long as this one, at most."""

    def __init__(self, kind: str, environment: Environment) -> None:
        self.folder = place = Path(mkdtemp(prefix="forks"))  # the process removes it
        names = [entry.name for entry in entry_points(group="console_scripts") if entry.value.startswith("tartools.")]
        (place / "inherited").write_bytes(marshal.dumps((str(Path(sys.executable).parent), inherited(environment))))
        (place / names[0]).write_text(f"#!{sys.executable} -IS\n{START.read_text()}")
        (place / names[0]).chmod(0o755)
        for name in names[1:]:
            (place / name).symlink_to(names[0])
        self._control, theirs = socket.socketpair()
        with theirs, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(place / "socket"))
            listener.listen(100)
            self._process = subprocess.Popen(
                [sys.executable, SERVER, str(theirs.fileno()), kind, str(listener.fileno()), place],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), listener.fileno()],
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
