"""A shell that waits for tasks and runs the same command for each in a fork of itself: a fifth of a new shell's cost.

The shell (bash) is our child, in a session of its own. It reads tasks from a pipe and runs the command in a subshell,
to which `set -m` gives a process group. A task consists of words, each followed by a NUL, which no word can contain:

    =SHARD/         only if it differs from that of the task before: TAR_SHARD from here on
    NAME            the directory, relative to the folder in which the shell was started
    INDEX           TAR_INDEX
    KEY/            TAR_KEY

A slash follows what may be any bytes, because it ends an incomplete character. bash would take a NUL there for a part
of the character, and wait for more.

The answer, on a second pipe, is two numbers and a newline: the process number of the subshell, which is that of its
group, and its status as bash tells it: 128 and the number of the signal that ended or stopped it. What bash itself says
about its jobs differs from version to version, and nobody reads it.

The subshell has none of these pipes, and of our variables only those that a new `bash -c` has too. docs/adr/0010 lists
the differences to a new shell.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from tartools.errors import StorageError, printable
from tartools.run.directories import LOG
from tartools.storage.children import Child, adopting, has_children, how_it_ended
from tartools.storage.streams import FileSink

LONGEST = 1 << 16  # bytes of a line
_lock = threading.Lock()
_CHECK = '[ "$BASH_VERSINFO" -ge 5 ] && exec "$0" -n -c "$1"'  # older ones were not tested
# All in one line, so that messages of bash have the same line numbers as in a new shell.
_LOOP = (
    "BASH_EXECUTION_STRING=$1; shift; export TAR_SHARD TAR_INDEX TAR_KEY; "
    "exec 3<&0 5>&2 2>/dev/null </dev/null; set -m; "
    'while read -r -d "" -u 3; do '
    'case $REPLY in =*) TAR_SHARD=${{REPLY#=}}; TAR_SHARD=${{TAR_SHARD%/}}; read -r -d "" -u 3;; esac; '
    'IFS= read -r -d "" -u 3 TAR_INDEX; IFS= read -r -d "" -u 3 TAR_KEY || break; TAR_KEY=${{TAR_KEY%/}}; '
    '( set +m; cd -- "$REPLY"; unset -v REPLY OLDPWD; {restored}SECONDS=0; {command}\n) '
    "{output} 3<&- 5>&- & "
    "wait $!; echo $! $?; done"
)
# Like BASH_ENV, functions and others that begin with BASH, these change how a shell starts; the loop uses REPLY.
_STARTING = (b"SHELLOPTS", b"POSIXLY_CORRECT", b"ENV", b"REPLY")
_STOPS = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_LONG = 4096  # characters; with the loop it has to be one word, of up to 128 KiB
_ANSWER = 4096  # bytes, far more than one has


def check(arguments: Sequence[str], environment: Mapping[bytes, bytes]) -> subprocess.Popen[bytes] | None:
    """Return a process whose status is 0 if a long-lived shell can run the words *arguments*.

    The process checks that the command is complete and has no syntax error. None if there is no use in asking: for
    other shells than bash, for a command that asks for the number of its shell, where *environment* changes how a
    shell starts, and without /proc, in which we find what is to be killed.
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


def loop(command: str, environment: Mapping[bytes, bytes], logged: bool) -> str:
    """Return the program of the shell.

    A *command* of one line is a part of the program, so that bash replaces the subshell by the last program, as a new
    shell does. It is complete, so nothing in it can end our subshell. If an end of file could be a part of it, or one
    line may change how the next is read, it is a string for `eval`; also if it is long.
    """
    plain = not ("\n" in command or "<<" in command or command.endswith("\\")) and len(command) < _LONG
    old = environment.get(b"OLDPWD")
    return _LOOP.format(
        restored=f"export OLDPWD={shlex.quote(os.fsdecode(old))}; " if old and os.path.isdir(old) else "",
        command=command if plain else 'eval "$BASH_EXECUTION_STRING"',
        output=f'>>"$REPLY{LOG}" 2>&1' if logged else ">&5 2>&5",
    )


class WarmShell:
    """One such shell, called *name*, that *start* starts in the folder of the directories.

    What the command prints goes to our stderr, or if *logged* to the directory's log.

    If *keyed*, it goes to stderr behind the key of the sample, line by line.

    *reusable* says whether it can run another task; *alone*, that nothing is left of what it has run, daemons
    included. Raises: OSError if it can't be started.
    """

    def __init__(
        self,
        start: Callable[..., Child],
        name: str,
        command: str,
        environment: Mapping[bytes, bytes],
        logged: bool,
        keyed: bool,
    ) -> None:
        self.reusable = True
        self.alone = False
        self._shard: bytes | None = None
        self._printed = Printed(keyed)
        try:
            self.child = start(
                [name, "-c", loop(command, environment, logged), name, command],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._printed.theirs,
                preexec_fn=adopting(),
            )
        except BaseException:
            self._printed.close()
            raise
        finally:
            self._printed.give()
        assert self.child.stdin and self.child.stdout
        self._tasks, self._answers = self.child.stdin, self.child.stdout

    def start(self, name: bytes, variables: Mapping[bytes, bytes]) -> None:
        """Start the command in the directory *name*, with *variables*: TAR_INDEX, TAR_KEY and TAR_SHARD.

        Raises: BrokenPipeError if the shell has ended.
        """
        self.alone = False
        self._printed.begin(variables[b"TAR_KEY"])
        words = b"%b\0%b\0%b/\0" % (name, variables[b"TAR_INDEX"], variables[b"TAR_KEY"])
        shard = variables[b"TAR_SHARD"]
        if shard != self._shard:
            words = b"=%b/\0%b" % (shard, words)
            self._shard = shard
        while words:
            words = words[self._tasks.write(words) or 0 :]

    def wait(self, timeout: float | None) -> str:
        """Wait for the command, and return how it failed, "" if it did not. Afterwards, `reusable` is current.

        What the command left running is killed then; after *timeout* seconds all of it.
        """
        self.reusable = False
        # without a limit, and nothing to relay, whoever reads the answer waits
        if (self._printed.keyed or timeout is not None) and not self._printed.until(self._answers.fileno(), timeout):
            return f"took longer than {timeout:g} seconds and was killed"
        answer = self._answers.read(_ANSWER)
        if not answer:
            return how_it_ended(self.end())
        group, status = map(int, answer.split())
        stopped = status - 128 in _STOPS and os.path.exists(f"/proc/{group}")  # bash reaps only what has ended
        with contextlib.suppress(ProcessLookupError, PermissionError):  # nothing is left, as usual
            os.killpg(group, signal.SIGKILL)
        self._printed.end()
        if stopped:
            return f"was stopped by {signal.Signals(status - 128).name}, and killed"
        self.reusable = True
        self.alone = not has_children(self.child.pid)
        return how_it_ended(status) if status else ""

    def end(self) -> int:
        """Kill the shell and all of its session, and return its status."""
        status = self.child.end(signal.SIGKILL)
        if not self._answers.closed:
            self._tasks.close()
            self._answers.close()
            self._printed.end()
            self._printed.close()
        return status


# ---- what commands print, behind the key of their sample, so that each line can be found again ----


class Lines:
    """Writes lines to stderr behind *key*. What can't be written is dropped. Holds: one line."""

    def __init__(self, key: bytes) -> None:
        self._key = printable(key.decode("utf-8", "surrogateescape")).encode()
        self._rest = b""

    def write(self, data: bytes) -> int:
        """Write the whole lines in *data*, and keep the rest."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST:
            lines, self._rest = [*lines, self._rest], b""
        if lines:
            with _lock, contextlib.suppress(OSError, StorageError):
                FileSink(2, "stderr").write(b"".join(b"%b: %b\n" % (self._key, line) for line in lines))
        return len(data)

    def end(self) -> None:
        """Write what is left as a line."""
        if self._rest:
            self.write(b"\n")


class Printed:
    """What commands print to, one after the other, as *theirs*: if *keyed* a pipe, whose lines go to stderr by `Lines`.

    Otherwise it is stderr itself.
    """

    def __init__(self, keyed: bool) -> None:
        self.keyed = keyed
        self._ours, self.theirs = os.pipe() if keyed else (-1, 2)  # even if Python has no stderr
        if keyed:
            os.set_blocking(self._ours, False)
        self._lines = Lines(b"")

    def begin(self, key: bytes) -> None:
        """Let the next lines be those of the sample *key*."""
        if self.keyed:
            self._lines = Lines(key)

    def until(self, fd: int, seconds: float | None) -> bool:
        """Write lines as they come until *fd* can be read; return False after *seconds*."""
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        if self.keyed:
            poll.register(self._ours, select.POLLIN)
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            ready = poll.poll(None if end is None else max(0.0, end - time.monotonic()) * 1000)
            if not ready or any(number == fd for number, _ in ready):
                return bool(ready)
            if self._relay() == b"":
                poll.unregister(self._ours)

    def end(self) -> None:
        """Write what the sample's command has printed and is not written yet."""
        while self.keyed and self._relay():
            pass
        self._lines.end()

    def _relay(self) -> bytes | None:
        """Write what is there, and return it: None if nothing is, b"" if nobody can print any more."""
        try:
            data = os.read(self._ours, LONGEST)
        except BlockingIOError:
            return None
        self._lines.write(data)
        return data

    def give(self) -> None:
        """Close the end of the commands here, when they have it."""
        if self.keyed:
            os.close(self.theirs)

    def close(self) -> None:
        """Close our end."""
        if self.keyed:
            os.close(self._ours)
