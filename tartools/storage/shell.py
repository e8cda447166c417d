"""One command in many directories, each time as if by a new shell, of which nothing is left.

Where it can be, it is a fork of a long-lived shell (`storage.coshell`). `Shells` is all that knows when shells are
started and ended. A guard, a small `sh` beside us, kills what runs and removes the directories should we be killed
in a way that leaves us no time for that.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import stat
import subprocess
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType

from tartools.errors import CommandError, StorageError
from tartools.storage import coshell
from tartools.storage.command import Child, describe
from tartools.storage.coshell import Coshell
from tartools.storage.interrupts import signals_wait
from tartools.storage.scratch import create_file, open_file, private_directory, remove

# Waits until we say that all is done, or are gone. $1: the private directory; $2: "keep" or empty.
GUARD = r"""
read -r word && exit
sessions=" $(echo $(cat "$1/running")) "
for session in $sessions; do kill -s KILL -- "-$session"; done
for process in /proc/[0-9]*; do  # other groups of these sessions, and what was not written down yet, if there is /proc
    read -r line < "$process/stat" || continue  # number (name) state parent group session
    set -- "$1" "$2" ${line##*\) }
    case $sessions in *" $6 "*) kill -s KILL -- "-$5" ;; esac
    case $(readlink "$process/cwd") in "$1"/*) kill -s KILL "${process#/proc/}" ;; esac
done
test "$2" && exec rm -f "$1/running"
rm -rf -- "$1" || { sleep 1; chmod -R u+rwX -- "$1"; rm -rf -- "$1"; }
"""
SLOT = 12  # bytes of a process id and a newline in the file that the guard reads


def shell_arguments(shell: str, command: str | None, script: str | None) -> list[str]:
    """Return the words that run *command*, or else the file *script*, in *shell*.

    The first of them is the path of the shell. A script that is no regular file, as `<(...)` gives, is read here.
    Raises: CommandError if there is no such shell; StorageError if the script can't be read.
    """
    program = shutil.which(shell)
    if program is None:
        raise CommandError(f"there is no shell {shell!r} (--shell names another)")
    program = os.path.abspath(program)
    if command is not None or script is None:
        return [program, "-c", command or ""]
    try:
        with open(script, "rb") as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return [program, os.path.abspath(script)]
            return [program, "-c", os.fsdecode(file.read())]
    except OSError as error:
        raise StorageError(f"cannot read the script: {error.strerror}", url=script) from error


class Shells:
    """Runs the words *arguments* in directories below `folder`, in as many threads as call `run`.

    *folder* is a private directory in *tmpdir*; it is removed at the end of the `with` block unless *keep*.
    A run that takes longer than *timeout* seconds is killed. With *logged*, what is printed goes to a file.

    Raises: StorageError if there is no place for the directory.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        tmpdir: str | None = None,
        timeout: float | None = None,
        keep: bool = False,
        logged: bool = False,
    ) -> None:
        self._name = os.path.basename(arguments[0])
        self._arguments = arguments
        self._timeout = timeout
        self._keep = keep
        self._logged = logged
        self._environment = dict(os.environb)
        self._lock = threading.Lock()
        self._live: dict[int, Child | Coshell] = {}  # by slot
        self._idle: list[tuple[int, Coshell]] = []  # of these, those that wait for a task
        self._emptied: list[bytes] = []  # directories to be removed
        self._stopped = False
        with signals_wait():  # until the guard is there
            self.folder = os.path.realpath(os.fsencode(private_directory(tmpdir)))
            self._running = create_file(self.folder + b"/running")
            self._guard = subprocess.Popen(
                ["sh", "-c", GUARD, "tartools-guard", self.folder, "keep" if keep else ""],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,  # what a terminal sends to us is not for it
            )
            self._check = coshell.check(arguments, self._environment)

    def __enter__(self) -> Shells:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        for _, shell in self._idle:
            shell.close()
        if self._check:
            self._check.wait()
        self._running.close()
        remove(self.folder + b"/running" if self._keep else self.folder)
        assert self._guard.stdin is not None
        with contextlib.suppress(OSError):  # somebody killed it; then there is nobody to tell
            self._guard.stdin.write(b"done\n")
            self._guard.stdin.close()
        self._guard.wait()

    def log(self, folder: bytes) -> bytes | None:
        """Return the file that will hold what is printed in *folder*."""
        return folder + b".log" if self._logged else None

    def run(self, folder: bytes, environment: Mapping[bytes, bytes]) -> str:
        """Run in *folder* with *environment* added to ours; return how that failed, "" if it did not.

        *environment* has the values of `coshell.NAMES`. What is printed goes to our stderr, or to the `log`; if the
        run fails, then from there to stderr. What the shell leaves running is killed when it ends.
        """
        if self._stopped:
            return "was not run"
        try:
            failure = self._run_again(folder, environment) if self._takes() else self._run_once(folder, environment)
        except (OSError, ValueError) as error:
            return f"could not be started: {getattr(error, 'strerror', None) or error}"
        if failure and (log := self.log(folder)):
            _show(log)
        return failure

    def discard(self, folder: bytes) -> None:
        """Have the directory *folder*, which is empty as a rule, removed; that may wait for the disk, as shells do."""
        self._emptied.append(folder)

    def stop(self) -> None:
        """Kill what runs, and run nothing more. Calls of `run` then return soon."""
        with self._lock:
            self._stopped = True
            idle = {slot for slot, _ in self._idle}
            busy = [child for slot, child in self._live.items() if slot not in idle]
        for child in busy:
            child.kill()

    def _takes(self) -> bool:
        """Tell whether long-lived shells can run this."""
        return self._check is not None and not self._check.wait()

    def _run_again(self, folder: bytes, environment: Mapping[bytes, bytes]) -> str:
        """Run in a long-lived shell."""
        task = [os.path.basename(folder), *(environment[name] for name in coshell.NAMES)]
        try:
            slot, shell = self._given(task)
        except BrokenPipeError:  # somebody killed it while it was idle, so it has not begun
            slot, shell = self._given(task)
        try:
            self._sweep()
            return shell.outcome(self._timeout)
        finally:
            if shell.sound:
                self._idle.append((slot, shell))
            else:
                self._dismiss(slot, shell)

    def _given(self, task: Sequence[bytes]) -> tuple[int, Coshell]:
        """Give *task* to a long-lived shell that has nothing to do; return its slot and it. Raises: BrokenPipeError."""
        try:
            slot, shell = self._idle.pop()
        except IndexError:
            slot, shell = self._new_one()
        try:
            shell.give(*task)
        except BaseException:
            self._dismiss(slot, shell)
            raise
        return slot, shell

    def _new_one(self) -> tuple[int, Coshell]:
        """Start a long-lived shell; return it and its slot."""
        program, _, command = self._arguments
        shell = Coshell(self._name, program, command, self.folder, self._environment, self._logged)
        return self._enlist(shell, shell.child.pid), shell

    def _dismiss(self, slot: int, shell: Coshell) -> None:
        """End a long-lived shell."""
        shell.end()
        self._strike(slot)

    def _run_once(self, folder: bytes, environment: Mapping[bytes, bytes]) -> str:
        """Run in a shell of its own."""
        log = self.log(folder)
        output = create_file(log) if log else None
        try:
            child = Child(
                [self._name, *self._arguments[1:]],
                executable=self._arguments[0],
                cwd=folder,
                env={**self._environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output or 2,
                stderr=subprocess.STDOUT,
            )
        finally:
            if output:
                output.close()
        slot = self._enlist(child, child.pid)
        try:
            self._sweep()
            status = child.wait(self._timeout)
            if status is None:
                child.kill()
                child.wait()
                return f"took longer than {self._timeout:g} seconds and was killed"
            return describe(status) if status else ""
        finally:
            self._strike(slot)

    def _sweep(self) -> None:
        """Remove directories that are to be removed."""
        while self._emptied:
            try:
                folder = self._emptied.pop()
            except IndexError:
                return  # another thread was faster
            try:
                os.rmdir(folder)
            except OSError:
                remove(folder)

    def _enlist(self, child: Child | Coshell, session: int) -> int:
        """Have *child* killed if we stop, and *session* by the guard; return the slot that says so."""
        with self._lock:
            slot = next(n for n in range(len(self._live) + 1) if n not in self._live)
            self._live[slot] = child
            os.pwrite(self._running.fileno(), b"%-11d\n" % session, slot * SLOT)
            if self._stopped:
                child.kill()
        return slot

    def _strike(self, slot: int) -> None:
        """Forget the child of *slot*, which has ended."""
        with self._lock:
            del self._live[slot]
            os.pwrite(self._running.fileno(), b" " * (SLOT - 1), slot * SLOT)


def _show(log: bytes) -> None:
    """Copy the file *log* to stderr."""
    with contextlib.suppress(OSError):
        file = open_file(log)
        if file:
            with file, io.FileIO(2, "w", closefd=False) as stderr:
                shutil.copyfileobj(file, stderr)
