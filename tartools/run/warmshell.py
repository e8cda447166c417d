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
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

from tartools.run.directories import LOG_SUFFIX, Outcome
from tartools.run.keyedlines import KeyedLines
from tartools.storage.children import Child, describe_status, has_children, subreaper_hook
from tartools.storage.streams import wait_until_ready

_BASH_SYNTAX_CHECK = '[ "$BASH_VERSINFO" -ge 5 ] && exec "$0" -n -c "$1"'  # older ones were not tested
# All in one line, so that messages of bash have the same line numbers as in a new shell.
_BASH_LOOP = (
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
_START_UP_VARIABLES = (b"SHELLOPTS", b"POSIXLY_CORRECT", b"ENV", b"REPLY")
_STOP_SIGNALS = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_MAX_COMMAND_CHARS = 4096  # characters; with the loop it has to be one word, of up to 128 KiB
_MAX_REPLY_BYTES = 4096  # bytes, far more than one has


def start_check(arguments: Sequence[str], environment: Mapping[bytes, bytes]) -> subprocess.Popen[bytes] | None:
    """Start a process whose exit status is 0 if a long-lived shell can run the words *arguments*; return it, or None.

    *arguments*: of `shell_arguments`. The process checks that bash is new enough, and the command complete and without
    a syntax error. None if there is no use in asking: for other shells than bash, for the file of a script, for a
    command that asks for the number of its shell, where *environment* changes how a shell starts, and without /proc, in
    which we find what is to be killed. The caller waits for the process. Raises: OSError if it can't be started;
    ValueError for a NUL in *arguments*.
    """
    program, *shell_arguments = arguments
    if (
        os.path.basename(os.path.realpath(program)) != "bash"
        or shell_arguments[0] != "-c"
        or "$$" in shell_arguments[1]
        or "${$" in shell_arguments[1]
        or any(name.startswith(b"BASH") or name in _START_UP_VARIABLES for name in environment)
        or not os.path.exists("/proc/self/stat")
    ):
        return None
    quiet = subprocess.DEVNULL
    return subprocess.Popen(
        [program, "-c", _BASH_SYNTAX_CHECK, program, shell_arguments[1]], stdin=quiet, stdout=quiet, stderr=quiet
    )


def make_loop_program(command: str, environment: Mapping[bytes, bytes], logged: bool) -> str:
    """Return the program of a warm shell: a loop in bash that reads tasks and runs *command* in a subshell for each.

    *command*: has passed `start_check`. *environment*: of the shell; OLDPWD is restored from it if it is a directory.
    *logged*: output goes to NAME.log beside the task's directory NAME, else to stderr of the shell.

    A *command* of one line is a part of the program, so that bash replaces the subshell by the last program, as a new
    shell does. It is complete, so nothing in it can end our subshell. If an end of file could be a part of it, or one
    line may change how the next is read, it is a string for `eval`; also if it is long.
    """
    plain = not ("\n" in command or "<<" in command or command.endswith("\\")) and len(command) < _MAX_COMMAND_CHARS
    old = environment.get(b"OLDPWD")
    return _BASH_LOOP.format(
        restored=f"export OLDPWD={shlex.quote(os.fsdecode(old))}; " if old and os.path.isdir(old) else "",
        command=command if plain else 'eval "$BASH_EXECUTION_STRING"',
        output=f'>>"$REPLY{LOG_SUFFIX}" 2>&1' if logged else ">&5 2>&5",
    )


class WarmShell:
    """A long-lived shell that runs *command* for one task after the other.

    For each task call the method `start`, then `wait`. `end` kills the shell.

    *start*: called as `start(words, **options)`, with arguments of `subprocess.Popen`; starts the shell in the folder
        with the tasks' directories, and returns its `Child`
    *name*: what the shell is called in its messages ($0)
    *environment*: of the shell
    *lines*: makes the pipe for its output; None: it goes to our stderr
    *logged*: True if the output of a task goes to the log beside its directory instead
    `is_reusable`: True if it can run another task, as before the first; False while one runs in `wait`
    `child`: its process

    Raises: OSError if it can't be started; ValueError for a NUL in *command*.
    """

    def __init__(
        self,
        start: Callable[..., Child],
        name: str,
        command: str,
        environment: Mapping[bytes, bytes],
        lines: Callable[[], KeyedLines] | None,
        logged: bool,
    ) -> None:
        self.is_reusable = True
        self._key = self._shard = b""
        self._printed = lines() if lines else None
        try:
            self.child = start(
                [name, "-c", make_loop_program(command, environment, logged), name, command],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._printed.write_end if self._printed else 2,  # even if Python has no stderr
                preexec_fn=subreaper_hook(),
            )
        except BaseException:
            if self._printed:
                self._printed.close()
            raise
        assert self.child.stdin and self.child.stdout
        self._tasks, self._answers = self.child.stdin, self.child.stdout

    def start(self, name: bytes, variables: Mapping[bytes, bytes]) -> None:
        """Start the command for one task, in the directory *name*, relative to the shell's folder; don't wait for it.

        *variables*: the values of TAR_INDEX, TAR_KEY and TAR_SHARD, without NUL. Raises: BrokenPipeError if the shell
        has ended.
        """
        self._key = variables[b"TAR_KEY"]
        words = b"%b\0%b\0%b/\0" % (name, variables[b"TAR_INDEX"], self._key)
        shard = variables[b"TAR_SHARD"]
        if shard != self._shard:
            words = b"=%b/\0%b" % (shard, words)
            self._shard = shard
        while words:
            words = words[self._tasks.write(words) or 0 :]

    def wait(self, timeout: float | None) -> Outcome:
        """Wait for the command that was started, and return how it ended; sets `is_reusable`.

        What it left running in its process group is killed then. The outcome is a failure, too, after *timeout* seconds
        (None: no limit), if the shell has ended, and if the command was stopped by a signal: in these three cases
        `is_reusable` is False, and the caller has to call `end`; after a timeout the command runs until then.
        """
        self.is_reusable = False
        if not self._is_answered(timeout):
            return Outcome(f"took longer than {timeout:g} seconds and was killed")
        answer = self._answers.read(_MAX_REPLY_BYTES)
        if not answer:
            return Outcome(describe_status(self.end()))
        group, status = map(int, answer.split())
        stopped = status - 128 in _STOP_SIGNALS and os.path.exists(f"/proc/{group}")  # bash reaps only what has ended
        with contextlib.suppress(ProcessLookupError, PermissionError):  # nothing is left, as usual
            os.killpg(group, signal.SIGKILL)
        if self._printed:
            self._printed.flush(self._key)
        if stopped:
            return Outcome(f"was stopped by {signal.Signals(status - 128).name}, and killed")
        self.is_reusable = True
        return Outcome(describe_status(status) if status else "", left_no_processes=not has_children(self.child.pid))

    def _is_answered(self, timeout: float | None) -> bool:
        """Wait until the command or the shell has ended, up to *timeout* seconds (None: no limit); return True if so.

        Lines in a pipe for output are printed meanwhile; as long as there are more, the timeout waits. Without a limit
        and without such a pipe it returns True at once: reading the answer waits.
        """
        if self._printed:
            return self._printed.print_until(self._answers.fileno(), self._key, timeout)
        # without a limit, whoever reads the answer waits
        return timeout is None or wait_until_ready(self._answers.fileno(), writing=False, seconds=timeout)

    def end(self) -> int:
        """Kill the shell, its session and its descendants, and print the rest of its output; return its exit status.

        The status is negative if it was ended by that signal. Another call returns it again.
        """
        status = self.child.end(signal.SIGKILL)
        if not self._answers.closed:
            self._tasks.close()
            self._answers.close()
            if self._printed:
                self._printed.flush(self._key)
                self._printed.close()
        return status
