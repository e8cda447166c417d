"""Defer signals until a new file or process is registered for cleanup."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """Run Python handlers of SIGINT, SIGTERM and SIGHUP not during the block, but at its end.

    For blocks that make a file or start a process and register it for cleanup.
    """
    threading = sys.modules.get("threading")  # not imported: there is only one
    if threading is not None and threading.current_thread() is not threading.main_thread():
        yield  # handlers run in the main thread only
        return
    came: list[int] = []
    handlers = {number: old for number in ENDING if callable(old := signal.getsignal(number))}
    for number in handlers:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, old in handlers.items():
            signal.signal(number, old)
        if came:
            signal.raise_signal(came[0])
