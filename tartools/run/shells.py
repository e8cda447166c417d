"""Runs one command in many directories, each time as if in a new shell, of which nothing is left running.

Where possible, a run is a fork of a long-lived shell (`warmshell`). `Shells` starts and ends shells; the `guard` ends
them should this process be killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tartools import storage
from tartools.errors import CommandError, StorageError
from tartools.run import warmshell
from tartools.run.directories import Outcome, SampleTask
from tartools.run.guard import Guard
from tartools.run.warmshell import Lines, Printed, WarmShell
from tartools.storage.children import Child, end_all, how_it_ended
from tartools.storage.scratch import create_file, open_file

MOST_ENDED = 1000  # shells that were started for one task each, until what they have left is looked for


def shell_arguments(shell: str, command: str | None, script: str | None) -> list[str]:
    """Return the words that run *command*, or else the file *script*, in *shell*, which becomes an absolute path.

    A script that is not a regular file, such as `<(...)`, is read here.
    Raises: CommandError if the shell does not exist; StorageError if the script can't be read.
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
        return [program, "-c", os.fsdecode(storage.content(path))]
    except StorageError as error:
        raise StorageError(f"cannot read the script: {error.message}", url=script) from error


class Shells:
    """Runs the words *arguments* in the directories of samples, in as many threads as call `run`.

    The directories are below *folder*. A run that takes longer than *timeout* seconds is killed. With *logged*, what is
    printed goes to the log of the task, else to stderr; if *keyed*, behind the key of the sample. *meanwhile* is called
    while commands run, for work that may wait for the disk. *guard* watches the shells. It has to be
    closed; then no shell runs any more.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        folder: bytes,
        guard: Guard,
        meanwhile: Callable[[], None],
        *,
        timeout: float | None = None,
        logged: bool = False,
        keyed: bool = False,
    ) -> None:
        self._name = os.path.basename(arguments[0])
        self._arguments = arguments
        self._folder = folder
        self._guard = guard
        self._meanwhile = meanwhile
        self._timeout = timeout
        self._logged = logged
        self._keyed = keyed and not logged and hasattr(os, "pidfd_open")
        self._environment = dict(os.environb)
        self._lock = threading.Lock()
        self._ended: set[int] = set()  # sessions of shells that were started for one task each
        self._idle: list[WarmShell] = []  # those that wait for a task
        self._stopped = False
        self._check = warmshell.check(arguments, self._environment)

    def close(self) -> None:
        """End all shells, and kill what they have left."""
        self.stop()
        end_all([shell.child for shell in self._idle], signal.SIGKILL)
        for shell in self._idle:
            shell.end()
        self._kill_left()
        if self._check:
            self._check.wait()

    def run(self, task: SampleTask) -> Outcome:
        """Run in the directory of *task*; return how that went.

        If the run fails, its log is copied to stderr. What the shell leaves running is killed when it ends.
        """
        if self._stopped:
            return Outcome("was not run")
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the command inherits it
        try:
            run = self._run_in_warm_shell if self._check and not self._check.wait() else self._run_in_new_shell
            done = run(task)
        except (OSError, ValueError) as error:
            return Outcome(f"could not be started: {getattr(error, 'strerror', None) or error}")
        if done.failure and task.log:
            _copy_to_stderr(task)
        return done

    def stop(self) -> None:
        """Kill what runs, and run nothing more. Calls of `run` then return soon."""
        self._stopped = True
        end_all({*self._guard.running} - {shell.child for shell in self._idle}, signal.SIGKILL)

    def _kill_left(self) -> None:
        """Kill what shells that have ended left in process groups of their own, as timeout(1) makes them."""
        with self._lock:
            ended, self._ended = self._ended, set()
        if ended:
            end_all([], signal.SIGKILL, others=lambda: self._guard.marked(ended))

    def _run_in_warm_shell(self, task: SampleTask) -> Outcome:
        try:
            shell = self._start_in_warm_shell(task)
        except BrokenPipeError:  # it was killed while it was idle, so the command has not begun
            shell = self._start_in_warm_shell(task)
        try:
            self._meanwhile()
            failure = shell.wait(self._timeout)
            return Outcome(failure, shell.alone)
        finally:
            if shell.reusable:
                self._idle.append(shell)
            else:
                self._end(shell)

    def _start_in_warm_shell(self, task: SampleTask) -> WarmShell:
        """Start *task* in an idle long-lived shell, or a new one, and return it. Raises: BrokenPipeError."""
        try:
            shell = self._idle.pop()
        except IndexError:
            program, _, command = self._arguments
            start = partial(self._start, executable=program, cwd=self._folder)
            shell = WarmShell(start, self._name, command, self._environment, self._logged, self._keyed)
        try:
            shell.start(os.path.basename(task.folder), task.environment)
        except BaseException:
            self._end(shell)
            raise
        return shell

    def _end(self, shell: WarmShell) -> None:
        shell.end()
        self._guard.release(shell.child)

    def _run_in_new_shell(self, task: SampleTask) -> Outcome:
        printed = Printed(self._keyed)
        try:
            printed.begin(task.key)
            child = self._new_shell(task, printed)
        except BaseException:
            printed.close()
            raise
        try:
            self._meanwhile()
            status = _relayed(child, printed, self._timeout) if printed.keyed else child.wait(self._timeout)
            if status is None:
                child.end(signal.SIGKILL)
                return Outcome(f"took longer than {self._timeout:g} seconds and was killed")
            told = 128 - status if status < 0 else status  # as a long-lived shell tells it
            return Outcome(how_it_ended(told) if told else "")
        finally:
            self._guard.release(child)
            printed.end()
            printed.close()
            with self._lock:
                self._ended.add(child.pid)
            if len(self._ended) >= MOST_ENDED:
                self._kill_left()

    def _new_shell(self, task: SampleTask, printed: Printed) -> Child:
        """Start a shell for *task*, which prints to its log, or to *printed*."""
        output = create_file(task.log) if task.log else None
        try:
            return self._start(
                [self._name, *self._arguments[1:]],
                executable=self._arguments[0],
                cwd=task.folder,
                env={**self._environment, **task.environment},
                stdin=subprocess.DEVNULL,
                stdout=output or printed.theirs,
                stderr=subprocess.STDOUT,
            )
        finally:
            if output:
                output.close()
            printed.give()

    def _start(self, words: Sequence[str], **options: Any) -> Child:
        """Start *words*, with the *options* of `Child`; have it killed by `stop`, and its session by the guard."""
        child = self._guard.start(words, **options)
        if self._stopped:  # by now, and `stop` may not know of it
            child.end(signal.SIGKILL)
        return child


def _relayed(child: Child, printed: Printed, timeout: float | None) -> int | None:
    """Return the status of *child*, None after *timeout* seconds; meanwhile write what it has *printed*."""
    fd = os.pidfd_open(child.pid)
    try:
        return child.wait() if printed.until(fd, timeout) else None
    finally:
        os.close(fd)


def _copy_to_stderr(task: SampleTask) -> None:
    """Copy the log of *task* to stderr, behind its key."""
    assert task.log
    with contextlib.suppress(OSError, StorageError):
        file = open_file(task.log)
        if file:
            lines = Lines(task.key)
            with file:
                shutil.copyfileobj(file, lines)
            lines.end()
