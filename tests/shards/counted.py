"""Python that counts the processes which a command forks: `FORKED`, in front of a program."""

from __future__ import annotations

# os.fork is counted, refused, or its processes are killed at once: all of them, or one by its number. What is left of
# them is told by left().
FORKED = """
import os, signal
fork, forks, what = os.fork, [], "count"
def forked():
    if what == "refuse":
        raise BlockingIOError(11, "too many processes")
    pid = fork()
    forks.append(pid)
    if pid and what in ("kill", f"kill {len(forks)}"):
        os.kill(pid, signal.SIGKILL)
    return pid
def left():
    found = []
    for pid in forks:
        try:
            os.kill(pid, 0)
            found.append(pid)
        except ProcessLookupError:
            pass
    return found
os.fork = forked
"""

# Runs a command, with "pieces N" by three processes for pieces of N bytes; the last line of stderr is the number of its
# forks.
PROGRAM = (
    FORKED
    + """
import importlib, sys
what, name, *arguments = sys.argv[1:]
us = os.getpid()
if what == "thread":
    import threading
    threading.Thread(target=threading.Event().wait, daemon=True).start()
if what.startswith("pieces "):
    from tartools.shards import workers
    workers.PART_BYTES = int(what.split()[1])
    workers.os.sched_getaffinity = lambda _: range(3)
if what == "break":
    from tartools.tar import compression
    sound = compression.DecompressedStream.readinto
    def readinto(self, view):
        return sound(self, view) if os.getpid() == us else 1 // 0
    compression.DecompressedStream.readinto = readinto
status = 1
try:
    status = getattr(importlib.import_module("tartools.commands." + name), name).main(arguments)
finally:
    if left():
        sys.exit(f"{left()} are left")
    print(len(forks), file=sys.stderr)
os._exit(status)
"""
)
