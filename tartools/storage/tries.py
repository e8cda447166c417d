"""Trying again: which failures may pass by themselves, how often we try, how long we wait.

`TARTOOLS_TRIES` (5) and `TARTOOLS_TIMEOUT` (60 seconds without a byte; 10 to connect) hold for every single request.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import NamedTuple, NoReturn, TypeVar

from tartools.errors import StorageError, UsageError

TRIES, IDLE, CONNECT = 5, 60.0, 10.0  # seconds
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds between tries; they double
PATIENCE = 120.0  # seconds that a server may ask us to wait
MOST_TRIES, MOST_SECONDS = 100, 3600.0

Result = TypeVar("Result")


class Passing(Exception):  # noqa: N818  # an error only when there are no tries left
    """A try failed for a *reason* that may pass; not before *after* seconds, if the server said so."""

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after = after


class Timeouts(NamedTuple):
    """Seconds that a try may take: to *connect*, and *idle*, without a byte."""

    connect: float
    idle: float


def timeouts() -> Timeouts:
    """Return how long a try may take. Raises: UsageError if `TARTOOLS_TIMEOUT` is no number of seconds."""
    idle = _number("TARTOOLS_TIMEOUT", IDLE, MOST_SECONDS)
    return Timeouts(min(CONNECT, idle), idle)


def setting(name: str, default: int, most: int) -> int:
    """Return the number, from 1 to *most*, in the environment variable *name*. Raises: UsageError."""
    return int(_number(name, default, most, whole=True))


def _number(name: str, default: float, most: float, *, whole: bool = False) -> float:
    text = os.environ.get(name, "")
    if not text:
        return default
    try:
        number = float(int(text) if whole else text)
    except ValueError:
        number = 0
    least = 1 if whole else 0.001
    if not least <= number <= most:
        raise UsageError(f"{name} is a number from {least} to {most:g}, not {text!r}")
    return number


class Tries:
    """The tries of one request for *url*."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._most = setting("TARTOOLS_TRIES", TRIES, MOST_TRIES)
        self._failed = 0

    def restart(self) -> None:
        """Count anew: the last try brought something."""
        self._failed = 0

    def failed(self, error: Passing, offset: int | None = None) -> float:
        """Return the seconds to wait before the next try, after one that failed by *error* at byte *offset*.

        Raises: StorageError if that was the last.
        """
        self._failed += 1
        if self._failed >= self._most:
            self._give_up(error, offset)
        import random

        pause: float = min(FIRST_PAUSE * 2 ** (self._failed - 1), LONGEST_PAUSE)
        pause *= random.uniform(0.75, 1)  # so that a thousand jobs do not come back together
        if (error.after or 0) > PATIENCE:
            raise StorageError(f"{error.reason}, and asks us to come back in {error.after:.0f} seconds", url=self._url)
        return max(pause, error.after or 0)

    def _give_up(self, error: Passing, offset: int | None) -> NoReturn:
        number = "1 try" if self._failed == 1 else f"{self._failed} tries"
        raise StorageError(f"{error.reason} ({number})", url=self._url, offset=offset) from error


def persist(work: Callable[[], Result], url: str, wait: Callable[[float], object] = time.sleep) -> Result:
    """Return what *work* returns, trying again, after *wait*, as long as it raises `Passing` and there are tries left.

    Raises: StorageError after the last try; what else *work* raises.
    """
    tries = Tries(url)
    while True:
        try:
            return work()
        except Passing as error:
            pause = tries.failed(error)
        wait(pause)
