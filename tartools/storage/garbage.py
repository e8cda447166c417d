"""Large imports without the garbage collector: it finds nothing in them, and takes a fifth of their time (boto3)."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Let the garbage collector wait until the end of the block. In several threads, until the first one's end."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
