"""One command in many directories: each time a fresh shell in a session of its own, of which nothing is left.

`Shells` is all that knows how a shell is started and ended. A guard, a small `sh` beside us, kills what runs and
removes the directories should we be killed in a way that leaves us no time for that.
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
from tartools.storage.command import Child, describe
from tartools.storage.interrupts import signals_wait
from tartools.storage.scratch import create_file, open_file, private_directory, remove

# Waits until we say that all is done, or are gone. $1: the private directory; $2: "keep" or empty.
GUARD = r"""
read -r word && exit
for group in $(cat "$1/running"); do kill -s KILL -- "-$group"; done
for process in /proc/[0-9]*; do  # those that were started and not written down yet, where there is such a place
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
    A run that takes longer than *timeout* seconds is killed.

    Raises: StorageError if there is no place for the directory.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        tmpdir: str | None = None,
        timeout: float | None = None,
        keep: bool = False,
    ) -> None:
        self._arguments = [os.path.basename(arguments[0]), *arguments[1:]]
        self._program = arguments[0]
        self._timeout = timeout
        self._keep = keep
        self._environment = dict(os.environb)
        self._lock = threading.Lock()
        self._live: dict[int, Child] = {}  # by slot
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

    def __enter__(self) -> Shells:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._running.close()
        remove(self.folder + b"/running" if self._keep else self.folder)
        assert self._guard.stdin is not None
        with contextlib.suppress(OSError):  # somebody killed it; then there is nobody to tell
            self._guard.stdin.write(b"done\n")
            self._guard.stdin.close()
        self._guard.wait()

    def run(self, folder: bytes, environment: Mapping[bytes, bytes], log: bytes | None = None) -> str:
        """Run in *folder* with *environment* added to ours; return how that failed, "" if it did not.

        What is printed goes to our stderr, or to the new file *log*; if the run fails, then from there to stderr.
        What the shell leaves running is killed when it ends.
        """
        if self._stopped:
            return "was not run"
        output = create_file(log) if log else None
        try:
            child = Child(
                self._arguments,
                executable=self._program,
                cwd=folder,
                env={**self._environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output or 2,
                stderr=subprocess.STDOUT,
            )
        except (OSError, ValueError) as error:
            return f"could not be started: {getattr(error, 'strerror', None) or error}"
        finally:
            if output:
                output.close()
        status = self._attend(child)
        if status is None:
            failure = f"took longer than {self._timeout:g} seconds and was killed"
        else:
            failure = describe(status) if status else ""
        if failure and log:
            _show(log)
        return failure

    def stop(self) -> None:
        """Kill what runs, and run nothing more. Calls of `run` then return soon."""
        with self._lock:
            self._stopped = True
            for child in self._live.values():
                child.kill()

    def _attend(self, child: Child) -> int | None:
        """Return the status of *child* when it and its group have ended; None if it had to be killed for its time."""
        with self._lock:
            slot = next(n for n in range(len(self._live) + 1) if n not in self._live)
            self._live[slot] = child
            os.pwrite(self._running.fileno(), b"%-11d\n" % child.pid, slot * SLOT)
            if self._stopped:
                child.kill()
        try:
            status = child.wait(self._timeout)
            if status is None:
                child.kill()
                child.wait()
            return status
        finally:
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
