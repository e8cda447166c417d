"""A process that has imported the commands, and forks for each one that a test runs: `tests.forkclient` starts it.

    python tests/forkserver.py SOCKET KIND LISTENER FOLDER

To start an interpreter and import a command takes 80 to 500 ms, a fork 2 ms. What a test sees is the same: the fork is
a process with a number, standard streams, a working directory, an environment and signals of its own, in which all
modules are as they are after a fresh import, for this process itself runs nothing. It has one thread, and keeps nothing
open but its sockets. A fork ends as any interpreter does, but for modules of others, which it leaves as they are.

KIND is a key of `LATER`: what else is imported. The more that is, the longer a fork takes to end.

SOCKET is the number of a descriptor. Each byte that comes through it brings another socket, and that one brings the
length of a request, the three standard streams, and the request: arguments, environment, directory and umask. The
answer is the number of the process at once, and later how it ended, as waitpid tells it. LISTENER is the number of a
socket that listens: who connects to it asks in the same way (`tests.forkstart`). FOLDER is removed when SOCKET ends,
also if that is because the tests were killed.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":  # the modules in the folder of the tests are not for the commands
    sys.path[0] = sys.executable.rpartition("/")[0]  # as for the scripts in there

import atexit
import contextlib
import gc
import importlib
import io
import marshal
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

PICTURES = [f"PIL.{name}ImagePlugin" for name in ("Bmp", "Gif", "Jpeg", "Ppm", "Png")]  # as Pillow does, in this order
LOCAL = ("typer.main", "isal.igzip", "lz4.frame")
LATER = {  # what commands import while they run; not what starts threads when it is imported, as numpy does
    "local": LOCAL,
    "show": (*LOCAL, "rich.console", "rich.table", "rich.text", *PICTURES, "PIL.ImageOps"),
    "remote": (*LOCAL, "botocore.session", "urllib3", "certifi", "google.auth", "smart_open"),
}
NUMBER = struct.Struct("=i")
OPEN_FILES = 1 << 16  # more than any of us has


class Request(NamedTuple):
    """What a process shall be; all texts are bytes."""

    arguments: list[bytes]  # the path of the script first
    environment: dict[bytes, bytes]
    directory: bytes
    umask: int
    streams: list[int]


def commands() -> dict[str, Callable[[], int]]:
    """Return what each installed script of ours calls, by the name of the script."""
    found = entry_points(group="console_scripts")
    return {entry.name: entry.load() for entry in found if entry.value.startswith("tartools.")}


def serve(control: socket.socket, listener: socket.socket) -> Request:
    """Fork for each request that comes, until *control* ends; return the request, in the fork only."""
    bell, clapper = socket.socketpair()
    bell.setblocking(False)
    clapper.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(clapper.fileno(), warn_on_full_buffer=False)
    clients: dict[int, socket.socket] = {}  # by the number of the process
    while True:
        ready, _, _ = select.select([control, listener, bell], [], [])
        if bell in ready:
            bell.recv(1 << 12)
            report(clients)
        if control in ready:
            message, fds, _, _ = socket.recv_fds(control, 1, 1)
            if not message:
                remove(sys.argv[4])
                os._exit(0)
            come = [socket.socket(fileno=fds[0])]
        else:
            come = [listener.accept()[0]] if listener in ready else []
        for client in come:
            if not (request := receive(client)):
                client.close()
            elif not (pid := os.fork()):
                for used in (control, listener, bell, clapper, client, *clients.values()):
                    used.detach()  # the numbers will belong to others
                return request
            else:
                for stream in request.streams:
                    os.close(stream)
                clients[pid] = client
                answer(client, pid)


def remove(folder: str) -> None:
    """Remove *folder*, which has no folders; not by shutil, which commands would find imported."""
    for name in os.listdir(folder):
        os.unlink(os.path.join(folder, name))
    os.rmdir(folder)


def receive(client: socket.socket) -> Request | None:
    """Return the request that comes from *client*, None if it has gone."""
    length, streams, _, _ = socket.recv_fds(client, NUMBER.size, 3)
    if len(length) < NUMBER.size:
        return None
    with client.makefile("rb") as file:
        return Request(*marshal.loads(file.read(*NUMBER.unpack(length))), streams)


def report(clients: dict[int, socket.socket]) -> None:
    """Tell those *clients* whose process has ended how it did."""
    while clients:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            break
        with clients.pop(pid) as client:
            answer(client, status)


def answer(client: socket.socket, number: int) -> None:
    """Send *number*, unless the client is gone."""
    with contextlib.suppress(OSError):
        client.sendall(NUMBER.pack(number))


def become(request: Request) -> str:
    """Make this fork the process that was asked for; return the name of its script."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, stream in enumerate(request.streams):
        os.dup2(stream, number)
    os.closerange(3, OPEN_FILES)
    open_standard_streams()
    os.chdir(request.directory)
    os.umask(request.umask)
    os.environb.clear()
    os.environb.update(request.environment)
    time.tzset()
    sys.argv = sys.orig_argv = [os.fsdecode(argument) for argument in request.arguments]
    return os.path.basename(sys.argv[0])


def open_standard_streams() -> None:
    """Open sys.stdin, stdout and stderr as the interpreter does at its start: see create_stdio in pylifecycle.c."""
    through = sys.stdout.write_through  # as python -u has it
    for number, old in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        mode, buffered = "w" if number else "r", not (number and through)
        file: Any = open(number, f"{mode}b", -1 if buffered else 0, closefd=False)  # noqa: SIM115
        raw = file.raw if buffered else file
        raw.name = old.name
        lines = not through and (number == 2 or raw.isatty())
        new = io.TextIOWrapper(file, old.encoding, old.errors, "\n", lines, through)
        new.mode = mode  # type: ignore[misc]
        name = raw.name.strip("<>")
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def keep(modules: Iterable[ModuleType]) -> None:
    """Have *modules* stay as they are until the process has ended."""
    kept: list[object] = [*modules]
    kept.append(kept)  # garbage, which is not collected from now on
    gc.freeze()


def main() -> NoReturn:
    """Serve; in the forks, be a command."""
    begun = set(sys.modules)
    known = commands()
    for module in LATER[sys.argv[2]]:
        importlib.import_module(module)
    others = {name: sys.modules[name] for name in set(sys.modules) - begun if not f"{name}.".startswith("tartools.")}
    atexit.register(lambda: [sys.modules.pop(name, None) for name in others])  # runs behind what is registered later
    keep(others.values())
    control, listener = (socket.socket(fileno=int(number)) for number in (sys.argv[1], sys.argv[3]))
    request = serve(control, listener)
    command = known[become(request)]
    sys.exit(command())


if __name__ == "__main__":
    main()
