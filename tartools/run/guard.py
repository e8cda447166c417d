"""A guard: a small `sh` beside us that cleans up if this process is killed and has no time to do so itself.

It sleeps until its stdin ends. If it read "done" before, it exits. Otherwise this process has died, and the guard

1. stops (SIGSTOP) what it finds of our commands, which then starts nothing new, and looks again until it finds no more.
   That counts only if nothing on the machine ended while it looked, since what ends may have started something that is
   not on its list; or if it found nothing 20 times in a row,
2. kills all of it,
3. removes our directory.

Ours is: the sessions in the list that `Guard` keeps; what descends from them; what has our mark in its environment, as
a process that was started just before we died and daemons have; and what works in our directory. A guard has no mark
and no parent among ours. So if a tarjob is killed together with a tarproc that it runs, the tarproc's guard lives on
and does its part; and Ray, which kills the children of a worker, spares it.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import threading
import time
from collections.abc import Sequence, Set
from typing import Any

from tartools.errors import StorageError
from tartools.storage.children import Child, describe_status, environment_of, list_processes
from tartools.storage.interrupts import defer_signals
from tartools.storage.scratch import scratch_file

GUARD_VARIABLE = "TARTOOLS_GUARDED"  # the variable with the marks of all guards that a process has, as /1-2//3-4/
# bytes of a part of the list, which is written at once; so many numbers take half of it
LIST_PART_BYTES, PIDS_IN_PART = 4096, 200

# How it races with processes that start and end. One look at /proc is no snapshot: a process that was listed may fork
# and end before it is stopped, and its child is on no list. So what is found is stopped at once (a stopped process
# starts nothing), and a look counts as the last one only if nothing new was found, no process ended meanwhile (`dead`,
# the zombies, is as before; each number of the listing still exists), or after 20 looks without anything new. Only then
# is anything killed: killing earlier would make orphans, which no longer descend from our sessions.
#
# $1: a pattern of variables with our mark. $2: the directory. $3: a pattern of what is in it. $4: "keep" or empty.
# Its stdout is the list of sessions, its stderr a pipe that ends when the guard does. It needs /proc for all but the
# process groups of the sessions.
GUARD_SCRIPT = r"""
exec 3<&1 4<&0 5>&2 >/dev/null 2>&1
marks=$1 folder=$2 inside=$3 keep=$4
export LC_ALL=C  # names of any bytes are lines of text
# of a line of stat: number (name) state parent group session; the name may contain anything
parents='s|^/proc/\([0-9]*\)/.*) [A-Z] \([0-9]*\) [0-9]* \([0-9]*\) .*|\1/\2/\3|p'
{
read -r word && exit
sessions=" $(echo $(cat <&3)) " found=" " dead= looks=0
for session in $sessions; do kill -s STOP -- "-$session"; done
while test $looks -lt 20; do
    looks=$((looks + 1)) before=$dead
    set -- /proc/[0-9]*
    for number in $(
        grep -lz "$marks" $(printf '%s/environ ' "$@")
        test "$folder" && find $(printf '%s/cwd ' "$@") -maxdepth 0 -lname "$inside"
    ); do
        number=${number#/proc/}
        number=${number%/*}
        case $found in *" $number "*) continue ;; esac
        kill -s STOP "$number" && found="$found$number " looks=0
    done
    for process in $(grep -H '' $(printf '%s/stat ' "$@") | sed -n "$parents"); do  # number/parent/session
        number=${process%%/*} parent=${process#*/}
        case $found in *" $number "*) continue ;; esac
        case $sessions$found in
        *" ${parent%/*} "* | *" ${parent#*/} "*) kill -s STOP "$number" && found="$found$number " looks=0 ;;
        esac
    done
    dead=$(grep -l '^State:.Z' $(printf '%s/status ' "$@"))
    test $looks -gt 0 && test "$dead" = "$before" || continue
    for process; do test -e "$process" || continue 2; done
    break
done
for session in $sessions; do kill -s KILL -- "-$session"; done
for number in $found; do kill -s KILL "$number"; done
test "$folder" && test -z "$keep" || exit
rm -rf -- "$folder" || { sleep 1; chmod -R u+rwX -- "$folder"; rm -rf -- "$folder"; }
} <&4 &
"""


class Guard:
    """Watches this process until `close`. If it dies before, ends its commands and removes *folder* unless *keep*.

    `start` starts a command; when that has ended, call `release`. Processes that this one starts from now on inherit a
    mark, and are ended too, as is any process that works in a directory below *folder*. Threads may share a guard.
    Holds: three file descriptors.
    *folder*: b"" for none. *tmpdir*: folder of the file that lists the commands; None: the default.
    Raises: StorageError if that file can't be made, or if no `sh` can be started.
    """

    def __init__(self, folder: bytes = b"", *, keep: bool = False, tmpdir: str | None = None) -> None:
        self._lock = threading.Lock()
        self._pages = 0  # of the list
        self._running: set[Child] = set()
        self._mark = f"{os.getpid()}-{time.monotonic_ns()}"
        self._marks_before = os.environ.get(GUARD_VARIABLE)
        self._list = scratch_file(tmpdir)
        with defer_signals():
            inside = re.sub(rb"([][?*\\])", rb"\\\1", folder) + b"/*"
            words: list[str | bytes] = [f"^{GUARD_VARIABLE}=.*/{self._mark}/", folder, inside, "keep" if keep else ""]
            self._process = self._start_shell(["sh", "-c", GUARD_SCRIPT, "tartools-guard", *words])
            os.environ[GUARD_VARIABLE] = f"{self._marks_before or ''}/{self._mark}/"

    def _start_shell(self, words: list[str | bytes]) -> subprocess.Popen[bytes]:
        """Start the shell *words*, which forks the guard, and wait until it has ended; return its Popen.

        The pipes of the Popen, stdin and stderr, are those of the guard. Raises: StorageError if it can't be started
        or fails; the file that lists the commands is closed then.
        """
        why = ""
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=self._list,
                stderr=subprocess.PIPE,
                cwd="/",
                env={name: value for name, value in os.environb.items() if name != os.fsencode(GUARD_VARIABLE)},
                start_new_session=True,  # so that it gets no signals of the terminal
            )
        except OSError as error:
            why = error.strerror or str(error)
        else:
            if not (status := process.wait()):
                return process
            why = f"sh {describe_status(status)}"
            for pipe in (process.stdin, process.stderr):
                assert pipe is not None
                pipe.close()
        self._list.close()
        raise StorageError(f"cannot start `sh`, which ends commands and removes directories if this is killed: {why}")

    def start(self, words: Sequence[str], **options: Any) -> Child:
        """Start the program and arguments *words*; return the child.

        *options*: further arguments of `subprocess.Popen`. Until `release`, the guard kills its session if we die.
        Raises: OSError, also if the disk is full, and ValueError, before anything was started.
        """
        with self._lock:
            self._pages = max(self._pages, len(self._running) // PIDS_IN_PART + 1)
            self._write_list()  # which takes the room for one more
        child = Child(words, **options)
        with self._lock:
            self._running.add(child)
            self._write_list()
        return child

    @property
    def running(self) -> list[Child]:
        """The children that were started and not yet released, unordered; they may have ended."""
        with self._lock:
            return list(self._running)

    def release(self, child: Child) -> None:
        """Take *child*, which has ended, from the list of processes that the guard kills."""
        with self._lock:
            self._running.remove(child)
            self._write_list()

    def _write_list(self) -> None:
        """Write the pids of children not yet released to the guard's list, a line each, padded with blanks.

        Raises: OSError.
        """
        numbers = b"".join(b"%d\n" % child.pid for child in self._running)
        os.pwrite(self._list.fileno(), numbers.ljust(self._pages * LIST_PART_BYTES), 0)

    def find_marked(self, sessions: Set[int] | None = None) -> set[int]:
        """Return the pids of processes in *sessions* that inherited our mark, so were started by us or our commands.

        *sessions*: session ids; None: all sessions but that of this process. Processes of other users are not found;
        empty without /proc (macOS).
        """
        mark, ours = os.fsencode(f"/{self._mark}/"), os.getsid(0)
        return {
            process.number
            for process in list_processes()
            if (process.session != ours if sessions is None else process.session in sessions)
            and any(
                v.startswith(os.fsencode(GUARD_VARIABLE + "=")) and mark in v for v in environment_of(process.number)
            )
        }

    def close(self) -> None:
        """End the guard, which kills and removes nothing, and wait until it has ended; to be called once.

        New processes do not get its mark.
        """
        assert self._process.stdin is not None
        assert self._process.stderr is not None
        if self._marks_before is None:
            os.environ.pop(GUARD_VARIABLE, None)
        else:
            os.environ[GUARD_VARIABLE] = self._marks_before
        with contextlib.suppress(OSError):  # it was killed
            self._process.stdin.write(b"done\n")
            self._process.stdin.close()
        with self._process.stderr as pipe:
            pipe.read()
        self._list.close()
