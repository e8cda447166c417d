"""A command as the shell of a test finds it: it asks a server of forks (`tests.forkserver`) for it.

A copy of this file stands first in PATH under the name of each command, beside the server's `socket` and `inherited`:
the folder of the real commands, and what these must find (`inherited`) to be like forks. Where it is not so, as in a
shell that has closed stdin or set a limit, it becomes the real command. It imports little: it takes a tenth of a start.
"""

from __future__ import annotations

import _signal
import _socket
import marshal
import os
import resource
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn

AT_START = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "TYPER_")  # variables that are read when a command starts
LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
PASSED_ON = (_signal.SIGHUP, _signal.SIGINT, _signal.SIGQUIT, _signal.SIGTERM, _signal.SIGUSR1, _signal.SIGUSR2)
NUMBER = 4  # bytes


def inherited(environment: Mapping[str, str]) -> tuple[object, ...]:
    """Return what a process that is started here with *environment* has from us, apart from what a request holds."""
    variables = {name: value for name, value in environment.items() if name.startswith(AT_START)}
    ignored = {int(number) for number in _signal.valid_signals() if _signal.getsignal(number) == _signal.SIG_IGN}
    blocked = set(map(int, _signal.pthread_sigmask(_signal.SIG_BLOCK, [])))
    limits = [tuple(resource.getrlimit(limit)) for limit in LIMITS]
    return variables, ignored, blocked, limits, os.getpgrp(), os.getuid(), os.geteuid(), os.getgroups()


def main() -> NoReturn:
    """Be the command."""
    folder, name = os.path.split(sys.argv[0])
    os.environ["PATH"] = os.environ["PATH"].replace(f"{folder}{os.pathsep}", "", 1)
    with open(f"{folder}/inherited", "rb") as file:
        real, expected = marshal.load(file)
    if os.environ.get("_") == sys.argv[0]:
        os.environ["_"] = f"{real}/{name}"
    words = [os.fsencode(word) for word in (f"{real}/{name}", *sys.argv[1:])]
    opened = set(os.listdir("/dev/fd"))  # one of them for this
    if not (opened > {"0", "1", "2"} and len(opened) == 4 and inherited(os.environ) == expected):
        for number in (_signal.SIGPIPE, _signal.SIGXFSZ):  # which the interpreter ignores
            _signal.signal(number, _signal.SIG_DFL)
        os.execv(words[0], words)
    os.umask(mask := os.umask(0o077))
    request = marshal.dumps((words, dict(os.environb), os.getcwdb(), mask))
    answers = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    answers.connect(f"{folder}/socket")
    streams = b"".join(number.to_bytes(NUMBER, sys.byteorder) for number in range(3))
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)]
    answers.sendmsg([len(request).to_bytes(NUMBER, sys.byteorder)], rights)
    answers.sendall(request)
    pid = number_from(answers)
    for number in PASSED_ON:
        _signal.signal(number, lambda number, _: os.kill(pid, number))
    os.closerange(0, 3)
    status = os.waitstatus_to_exitcode(number_from(answers))
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -status != _signal.SIGKILL:
            _signal.signal(-status, _signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def number_from(answers: _socket.socket) -> int:
    """Return the next number that comes from *answers*."""
    data = answers.recv(NUMBER, _socket.MSG_WAITALL)
    if len(data) < NUMBER:
        os._exit(255)  # the server of forks has ended
    return int.from_bytes(data, sys.byteorder)


if __name__ == "__main__":
    main()
