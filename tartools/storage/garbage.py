"""Large imports without the garbage collector: it finds nothing in them, and takes a fifth of their time (botocore)."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Let the garbage collector wait until the end of the block. In several threads, until the first one's end.

    In a command, what exists by then is frozen: to go through it three times would take 50 ms (botocore).
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if "tartools.cli" in sys.modules:  # a user's program may want it collected
            gc.freeze()
        if enabled:
            gc.enable()
