"""Defer signals until a new file or process is registered for cleanup."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import Any

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_deferring: list[tuple[list[int], dict[int, Any]]] = []  # blocks under way: signals that came, handlers before it


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Run Python handlers of SIGINT, SIGTERM and SIGHUP not during the block, but at its end, also after an error.

    For blocks that make a file or start a process and register it for cleanup. If several signals come, the first is
    handled, the others are dropped. In a block inside of another one, handlers run at the end of the outer one. Signals
    without a Python handler act at once. In other threads than the main one, where no handler runs, the block does
    nothing.
    """
    if not _is_main_thread():
        yield  # handlers run in the main thread only
        return
    came: list[int] = []
    handlers: dict[int, Any] = {number: old for number in ENDING_SIGNALS if callable(old := signal.getsignal(number))}
    for number in handlers:
        signal.signal(number, lambda number, _: came.append(number))
    _deferring.append((came, handlers))
    try:
        yield
    finally:
        _deferring.pop()
        for number, old in handlers.items():
            signal.signal(number, old)
        if came:
            signal.raise_signal(came[0])


@contextlib.contextmanager
def allow_signals() -> Iterator[None]:
    """Run handlers of signals at once in this block, although it is inside a block of `defer_signals`.

    Of the signals that came before it, the first in each block of `defer_signals` is handled at its begin, and the
    others are dropped. For long waits, such as opening a fifo. The block must not make files or processes that need
    cleanup. At its end signals are deferred again. Outside a block of `defer_signals`, and in other threads than the
    main one, it does nothing.
    """
    if not _deferring or not _is_main_thread():
        yield
        return
    _, handlers = _deferring[0]
    deferring = {number: signal.getsignal(number) for number in handlers}
    for number, handler in handlers.items():
        signal.signal(number, handler)
    try:
        for came, _ in _deferring:
            if came:
                number = came[0]
                came.clear()
                signal.raise_signal(number)
        yield
    finally:
        for number, handler in deferring.items():
            handlers[number] = signal.getsignal(number)  # one that has run may have set another
            signal.signal(number, handler)


def _is_main_thread() -> bool:
    """True if the current thread is the main thread."""
    threading = sys.modules.get("threading")  # not imported: there is only one
    return threading is None or threading.current_thread() is threading.main_thread()
