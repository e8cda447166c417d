"""A shell that waits for tasks and runs the same command for each, in a fork of itself: a fifth of a new shell's cost.

The shell (bash) is a child of ours in a session of its own. It reads tasks from a pipe and runs the command in a
subshell, which `set -m` gives a process group. A task is words, each with a NUL behind it, which none can hold:

    =SHARD/         only if it is not that of the task before: from here on TAR_SHARD
    NAME            the directory, as it is called in the folder where the shell has been started
    INDEX           TAR_INDEX
    KEY/            TAR_KEY

A slash stands behind what may be any bytes, since it ends a character that is cut there. bash would take a NUL for a
part of that, and wait for more.

The answer, on a second pipe, is two numbers and a newline: of the process of the subshell, which is that of its
group, and its status. On a third pipe, the notices, stands by then what bash remarks on the end of a job, which tells
a status beyond 128 from the end by a signal.

The subshell has none of these pipes, and of the variables that are ours only those that a new `bash -c` has too.
What is different there, docs/adr/0010 tells.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence, Set

from tartools.storage.command import Child, describe

NAMES = (b"TAR_INDEX", b"TAR_KEY", b"TAR_SHARD")  # what a task sets in the environment
_CHECK = '[ "$BASH_VERSINFO" -ge 5 ] && exec "$0" -n -c "$1"'  # no older one was tried
# All in one line, so that the line numbers of messages are those that a new shell tells.
_LOOP = (
    "BASH_EXECUTION_STRING=$1; shift; export TAR_SHARD TAR_INDEX TAR_KEY; "
    "exec 3<&0 5>&2 2>&{notices} {notices}>&- </dev/null; set -m; "
    'while read -r -d "" -u 3; do '
    'case $REPLY in =*) TAR_SHARD=${{REPLY#=}}; TAR_SHARD=${{TAR_SHARD%/}}; read -r -d "" -u 3;; esac; '
    'IFS= read -r -d "" -u 3 TAR_INDEX; IFS= read -r -d "" -u 3 TAR_KEY || break; TAR_KEY=${{TAR_KEY%/}}; '
    '( set +m; cd -- "$REPLY"; unset -v REPLY OLDPWD; {restored}SECONDS=0; {command}\n) '
    "{output} 3<&- 5>&- & "
    "wait $!; echo $! $?; done"
)
# what changes how a shell starts, with BASH_ENV, functions and others that begin with BASH; and what the loop uses
_STARTING = (b"SHELLOPTS", b"POSIXLY_CORRECT", b"ENV", b"REPLY")
_STOPS = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_LONG = 4096  # characters; far less than the pipe for notices holds
_NOTICES = 1 << 16  # bytes


def check(arguments: Sequence[str], environment: Mapping[bytes, bytes]) -> subprocess.Popen[bytes] | None:
    """Return a process whose status is 0 if the words *arguments* are a command that a long-lived shell can run.

    None for another shell, for a command that asks for the number of its shell, and where *environment* changes what
    a shell does when it starts; also without /proc, in which we find what is to be killed. The process tells whether
    the command has no error of syntax and is whole.
    """
    program, *rest = arguments
    if (
        os.path.basename(os.path.realpath(program)) != "bash"
        or rest[0] != "-c"
        or "$$" in rest[1]
        or any(name.startswith(b"BASH") or name in _STARTING for name in environment)
        or not os.path.exists("/proc/self/stat")
    ):
        return None
    quiet = subprocess.DEVNULL
    return subprocess.Popen([program, "-c", _CHECK, program, rest[1]], stdin=quiet, stdout=quiet, stderr=quiet)


def loop(command: str, environment: Mapping[bytes, bytes], notices: int, logged: bool) -> str:
    """Return the program of the shell, whose pipe for notices is the descriptor *notices*.

    A *command* of one line stands in it as it is, so that bash replaces the subshell by the last program, as a new
    shell does. It is whole, so nothing in it can end our subshell. Where an end of the file could be part
    of it, and where one line may change how the next is read, it is a string for `eval`; also if it is long,
    because bash remarks what a job is.
    """
    plain = not ("\n" in command or "<<" in command or command.endswith("\\")) and len(command) < _LONG
    old = environment.get(b"OLDPWD")
    return _LOOP.format(
        notices=notices,
        restored=f"export OLDPWD={shlex.quote(os.fsdecode(old))}; " if old and os.path.isdir(old) else "",
        command=command if plain else 'eval "$BASH_EXECUTION_STRING"',
        output='>>"$REPLY.log" 2>&1' if logged else ">&5 2>&5",
    )


class Coshell:
    """One such shell, in *folder*; what the command prints goes to our stderr, or if *logged* to the file NAME.log.

    Raises: OSError if it can't be started.
    """

    def __init__(
        self, name: str, program: str, command: str, folder: bytes, environment: Mapping[bytes, bytes], logged: bool
    ) -> None:
        self.sound = True
        self._lock = threading.Lock()
        self._shard: bytes | None = None
        self._notices, theirs = os.pipe()
        try:
            os.set_blocking(self._notices, False)
            self.child = Child(
                [name, "-c", loop(command, environment, theirs, logged), name, command],
                executable=program,
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=2,  # also if it is one that we had to open
                pass_fds=(theirs,),
            )
        except BaseException:
            os.close(self._notices)
            raise
        finally:
            os.close(theirs)
        assert self.child.stdin and self.child.stdout
        self._tasks, self._answers = self.child.stdin, self.child.stdout

    def give(self, name: bytes, index: bytes, key: bytes, shard: bytes) -> None:
        """Have the command run in the directory *name*. Raises: BrokenPipeError if the shell has ended before."""
        words = b"%b\0%b\0%b/\0" % (name, index, key)
        if shard != self._shard:
            words = b"=%b/\0%b" % (shard, words)
            self._shard = shard
        while words:
            words = words[self._tasks.write(words) or 0 :]

    def outcome(self, timeout: float | None) -> str:
        """Return how the command failed, "" if it did not. Afterwards `sound` tells if there can be another task.

        What the command left running is killed then; after *timeout* seconds all of it.
        """
        self.sound = False
        if timeout is not None and not self._answered(timeout):
            return f"took longer than {timeout:g} seconds and was killed"
        answer = self._answers.read(_NOTICES)
        if not answer:
            return describe(self.end())
        group, status = map(int, answer.split())
        with contextlib.suppress(ProcessLookupError, PermissionError):  # nothing is left, as usual
            os.killpg(group, signal.SIGKILL)
        remark = self._remark()
        self.sound = True
        if status <= 128 or (remark.startswith(b"[") and b"%d" % status in remark.partition(b"( ")[0].split()):
            return describe(status) if status else ""
        if status - 128 in _STOPS:
            self.sound = False
            return f"was stopped by {signal.Signals(status - 128).name}, and killed"
        return describe(128 - status)

    def kill(self) -> None:
        """Kill the shell and all of its session; `outcome` in another thread then returns soon."""
        with self._lock:
            if self.child.running:
                self.child.kill()
                end_sessions({self.child.pid})

    def end(self) -> int:
        """Kill the shell and all of its session, and return its status."""
        self.kill()
        return self.close()

    def close(self) -> int:
        """Kill the shell, which has nothing to do, and return its status."""
        self.child.kill()
        with self._lock:  # not while its session is being killed, which has its number
            status = self.child.wait()
        if not self._answers.closed:
            self._tasks.close()
            self._answers.close()
            os.close(self._notices)
        return status or 0

    def _answered(self, timeout: float) -> bool:
        """Wait up to *timeout* seconds for an answer; tell whether it came."""
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        return bool(poll.poll(timeout * 1000))

    def _remark(self) -> bytes:
        """Return what bash remarked on the end of the subshell, "[1]+  Exit 137  ( ..." if it was no signal."""
        try:
            return os.read(self._notices, _NOTICES).strip()
        except BlockingIOError:
            return b""


def end_sessions(leaders: Set[int]) -> None:
    """Kill all groups in the sessions of *leaders*, children of ours that have not been reaped.

    By groups, so that no shell lives to tell that its child was killed.
    """
    known: set[int] = set()
    while found := {group for group, session in _groups() if session in leaders} - known:
        known |= found
        for group in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)


def _groups() -> Iterator[tuple[int, int]]:
    """Yield the group and the session of each process."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has gone
            yield os.getpgid(int(pid)), os.getsid(int(pid))
