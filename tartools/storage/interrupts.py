"""Signals that wait until what was begun has an owner who cleans it up."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def signals_wait() -> Iterator[None]:
    """Keep handlers of SIGINT, SIGTERM and SIGHUP that are written in Python from running while the block does.

    They run at its end. Use it around what makes a file or starts a process, up to where somebody would clean that up.
    """
    if threading.current_thread() is not threading.main_thread():
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
