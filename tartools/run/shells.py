"""Runs one command in many directories, each time as if in a new shell; no process that it started survives.

Where possible, a run is a fork of a long-lived shell (`warmshell`). `Shells` starts and ends shells; the `guard` ends
them should this process be killed.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

from tartools import storage
from tartools.errors import CommandError, StorageError
from tartools.run import warmshell
from tartools.run.directories import Outcome, SampleDirectories, SampleTask
from tartools.run.keyedlines import MAX_LINE_BYTES, KeyedLines, Stopped, print_lines
from tartools.run.warmshell import WarmShell
from tartools.storage.children import Child, describe_status, end_all
from tartools.storage.scratch import create_file, open_file

MAX_ENDED_SHELLS = 1000  # shells that were started for one task each, until what they have left is looked for


def shell_arguments(shell: str, command: str | None, script: str | None) -> list[str]:
    """Return the words that run *command* in *shell*, or the file *script* if *command* is None.

    They are [shell, "-c", command], or [shell, path], with absolute paths. A script that is not a regular file, such as
    `<(...)`, is read here, and becomes the command. Without both, the command is "".
    Raises: CommandError if the shell does not exist; StorageError if the script can't be read, or has a NUL byte.
    """
    program = shutil.which(shell)
    if program is None:
        raise CommandError(f"there is no shell {shell!r} (--shell names another)")
    program = os.path.abspath(program)
    if command is not None or script is None:
        return [program, "-c", command or ""]
    path = os.path.abspath(script)
    if os.path.isfile(path) and os.access(path, os.R_OK):
        return [program, path]
    try:
        text = os.fsdecode(storage.read_content(path))
    except StorageError as error:
        raise StorageError(f"cannot read the script: {error.message}", url=script) from error
    if "\0" in text:
        raise StorageError("the script has a NUL byte, which no shell takes", url=script)
    return [program, "-c", text]


class Shells:
    """Runs the words *arguments*, of `shell_arguments`, in the directories of samples, in each thread that calls `run`.

    *folders*: where the directories are, with their options and guard
    *keyed*: True if each line on stderr comes behind the key of the sample, where output does not go to a log; without
        pidfd_open (not Linux) output goes to stderr as it is
    *timeout*: seconds after which a run is killed; None: no limit

    While commands run, directories that are not needed any more are removed, since that may wait for the disk. It has
    to be closed; then no shell runs any more. Commands get the environment that this process has now.
    Raises: OSError if the check of `start_check` can't be started.
    """

    def __init__(
        self, arguments: Sequence[str], folders: SampleDirectories, *, keyed: bool = False, timeout: float | None = None
    ) -> None:
        self._name = os.path.basename(arguments[0])
        self._arguments = arguments
        self._folders = folders
        self._guard = folders.guard
        self._stopped = False
        keyed = keyed and not folders.options.is_logged and hasattr(os, "pidfd_open")
        self._lines = partial(KeyedLines, lambda: self._stopped) if keyed else None
        self._timeout = timeout
        self._environment = dict(os.environb)
        self._lock = threading.Lock()
        self._ended: set[int] = set()  # sessions of shells that were started for one task each
        self._idle: list[WarmShell] = []  # those that wait for a task
        self._check = warmshell.start_check(arguments, self._environment)

    def close(self) -> None:
        """End all shells, idle ones too, and kill the processes that earlier ones have left in their sessions."""
        self.stop()
        end_all([shell.child for shell in self._idle], signal.SIGKILL)
        for shell in self._idle:
            shell.end()
        self._kill_leftovers()
        if self._check:
            self._check.wait()

    def run(self, task: SampleTask) -> Outcome:
        """Run the command in the directory of *task*, and return the outcome: a failure, too, if it can't be started.

        After `stop` nothing is run, which is a failure as well. The log, if the task has one, is copied to stderr if
        the command was run and failed, or if no field stores it. What the command leaves running in its process group
        is killed when it ends.
        """
        if self._stopped:
            return Outcome("was not run")
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the command inherits it
        try:
            run = self._run_in_warm_shell if self._check and not self._check.wait() else self._run_in_new_shell
            outcome = run(task)
        except (OSError, ValueError) as error:
            return Outcome(f"could not be started: {getattr(error, 'strerror', None) or error}")
        if task.log and (outcome.failure or self._folders.options.log is None):
            _print_log(task.log, task.key, lambda: self._stopped)
        return outcome

    def stop(self) -> None:
        """Kill all running commands, and start no more; calls of `run` then return soon. Idle shells stay."""
        self._stopped = True
        end_all({*self._guard.running} - {shell.child for shell in self._idle}, signal.SIGKILL)

    def _kill_leftovers(self) -> None:
        """Kill processes that ended shells have left in process groups of their own, as timeout(1) makes them.

        Only for shells that were started for one task each, since the last call; other sessions are not looked at.
        """
        with self._lock:
            ended, self._ended = self._ended, set()
        if ended:
            end_all([], signal.SIGKILL, extra_pids=lambda: self._guard.find_marked(ended))

    def _run_in_warm_shell(self, task: SampleTask) -> Outcome:
        """Run *task* in a fork of a long-lived shell; return the outcome. Raises: OSError, ValueError if none starts.

        The shell is kept for other tasks if it can be used again, else ended.
        """
        shell = self._start_in_warm_shell(task)
        try:
            self._folders.sweep()
            return shell.wait(self._timeout)
        finally:
            if shell.is_reusable:
                self._idle.append(shell)
            else:
                self._end_shell(shell)

    def _start_in_warm_shell(self, task: SampleTask) -> WarmShell:
        """Start *task* in an idle long-lived shell, or in a new one; return the shell at once.

        An idle shell that has ended meanwhile is dropped. Raises: OSError, ValueError if the task can't be started.
        """
        while True:
            try:
                shell, new = self._idle.pop(), False
            except IndexError:
                shell, new = self._make_warm_shell(), True
            try:
                shell.start(os.path.basename(task.folder), task.environment)
                return shell
            except BaseException as error:
                self._end_shell(shell)
                if new or not isinstance(error, BrokenPipeError):  # killed while it was idle: the task has not begun
                    raise

    def _make_warm_shell(self) -> WarmShell:
        """Start a long-lived shell for the command, and return it. Raises: OSError, ValueError if that fails."""
        program, _, command = self._arguments
        start = partial(self._start, executable=program, cwd=self._folders.folder)
        logged = self._folders.options.is_logged
        return WarmShell(start, self._name, command, self._environment, self._lines, logged)

    def _end_shell(self, shell: WarmShell) -> None:
        """End *shell*, and take it from the list of processes that the guard kills."""
        shell.end()
        self._guard.release(shell.child)

    def _run_in_new_shell(self, task: SampleTask) -> Outcome:
        """Run *task* in a shell that is started for it, and return the outcome, with `left_no_processes` False.

        Raises: OSError, ValueError if it can't be started.
        """
        with contextlib.closing(self._lines()) if self._lines else contextlib.nullcontext() as printed:
            child = self._start(
                [self._name, *self._arguments[1:]],
                executable=self._arguments[0],
                cwd=task.folder,
                env={**self._environment, **task.environment},
                stdin=subprocess.DEVNULL,
                stdout=create_file(task.log) if task.log else printed.write_end if printed else 2,
                stderr=subprocess.STDOUT,
            )
            try:
                self._folders.sweep()
                status = _wait_for_status(child, printed, task.key, self._timeout)
                if status is None:
                    return Outcome(f"took longer than {self._timeout:g} seconds and was killed")
                shell_status = 128 - status if status < 0 else status  # as a long-lived shell tells it
                return Outcome(describe_status(shell_status) if shell_status else "")
            finally:
                child.end(signal.SIGKILL)  # if it runs still
                self._guard.release(child)
                if printed:
                    printed.flush(task.key)
                with self._lock:
                    self._ended.add(child.pid)
                if len(self._ended) >= MAX_ENDED_SHELLS:
                    self._kill_leftovers()

    def _start(self, words: Sequence[str], **options: Any) -> Child:
        """Start the program and arguments *words*; return the child, which `stop` and the guard kill.

        *options*: further arguments of `subprocess.Popen`. Raises: OSError, ValueError.
        """
        child = self._guard.start(words, **options)
        if self._stopped:  # by now, and `stop` may not know of it
            child.end(signal.SIGKILL)
        return child


def _wait_for_status(child: Child, printed: KeyedLines | None, key: bytes, timeout: float | None) -> int | None:
    """Wait for *child*; return its exit status (negative: by that signal), None if it runs after *timeout* seconds.

    *timeout*: None: no limit. When it has ended, what is left in its process group is killed. *printed*: its output,
    whose lines are printed behind *key* meanwhile; the timeout ends the wait even if more lines come, which are left
    for `flush`. None if the output goes elsewhere. Raises: OSError.
    """
    if printed is None:
        return child.wait(timeout)
    fd = os.pidfd_open(child.pid)
    try:
        return child.wait() if printed.print_until(fd, key, timeout) else None
    finally:
        os.close(fd)


def _print_log(log: bytes, key: bytes, stopped: Stopped) -> None:
    """Print the lines of the file *log* on stderr, each behind *key*; nothing if it is gone or can't be read.

    Once `stopped()`, a full stderr is not waited for: the rest is dropped.
    """
    with contextlib.suppress(OSError):
        if file := open_file(log):
            with io.BufferedReader(file) as reader:
                while lines := reader.readlines(MAX_LINE_BYTES):
                    print_lines(key, [line.removesuffix(b"\n") for line in lines], stopped)
