"""Tells whether anything is left of what a process has started, in whatever group and session. For Linux.

Orphans become children of their next ancestor that has asked for it (PR_SET_CHILD_SUBREAPER, see prctl(2)).
"""

from __future__ import annotations

import os
from collections.abc import Callable

SET, GET = 36, 37  # PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER
CHILDREN = "/proc/{0}/task/{0}/children"


def adopting() -> Callable[[], object] | None:
    """Return what a new process calls before it becomes a program, so that orphans among its descendants are its own.

    The program must reap children that it does not know, as shells do. None where the system can't do that.
    """
    import ctypes  # 5 ms

    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    found = ctypes.c_int()
    if prctl is None or not os.path.exists(CHILDREN.format(os.getpid())) or prctl(GET, ctypes.byref(found)):
        return None
    return lambda: prctl(SET, 1)


def has_children(process: int) -> bool:
    """Tell whether *process*, which has one thread, has children, alive or not reaped; True if it has ended."""
    try:
        fd = os.open(CHILDREN.format(process), os.O_RDONLY)
    except OSError:
        return True
    try:
        return bool(os.read(fd, 1))
    except OSError:
        return True
    finally:
        os.close(fd)
