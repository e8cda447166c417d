"""Retries: which failures may be temporary, how many attempts a request gets, how long to wait between them.

`TARTOOLS_TRIES` (5 attempts) and `TARTOOLS_TIMEOUT` (60 seconds without a byte; 10 to connect) hold for each request.
"""

import os
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from tartools.errors import StorageError, UsageError
from tartools.storage.objects.pacing import pacer_of

MAX_ATTEMPTS = 5
IDLE_SECONDS, CONNECT_TIMEOUT = 60.0, 10.0  # seconds
FIRST_BACKOFF, MAX_BACKOFF = 0.5, 30.0  # seconds between attempts; they double
MAX_RETRY_AFTER = 310.0  # seconds that a server may ask for (Retry-After): the hub counts requests in five minutes
MAX_ATTEMPTS_SETTING, MAX_SECONDS_SETTING = 100, 3600.0
PROGRESS_BYTES = 256 << 10  # bytes; an attempt that brought so many was no failure
MAX_OVERLOADS = 10  # for each attempt that a request gets, while other requests to the same server succeed

Result = TypeVar("Result")


class TransientError(Exception):
    """An attempt failed for a *reason* that may be temporary, so that another one may succeed.

    *after*: seconds before the next attempt, as the server asks for; None if it does not.
    """

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after = after


class OverloadError(TransientError):
    """The server limits requests: `Attempts.record_failure` lowers the rate of this process's requests to it."""


class Timeouts(NamedTuple):
    """How many seconds an attempt may wait: to *connect*, and *idle* between two bytes."""

    connect: float
    idle: float


def timeouts() -> Timeouts:
    """Return the timeouts of an attempt: `TARTOOLS_TIMEOUT` or IDLE_SECONDS, and up to CONNECT_TIMEOUT to connect.

    Raises: UsageError if that is not a number of seconds from 0.001 to MAX_SECONDS_SETTING.
    """
    idle = _read_number("TARTOOLS_TIMEOUT", IDLE_SECONDS, MAX_SECONDS_SETTING)
    return Timeouts(min(CONNECT_TIMEOUT, idle), idle)


def read_setting(name: str, default: int, max_value: int) -> int:
    """Return the whole number, from 1 to *max_value*, in the environment variable *name*; *default* if unset or empty.

    Raises: UsageError for any other value.
    """
    return int(_read_number(name, default, max_value, is_integer=True))


def _read_number(name: str, default: float, max_value: float, *, is_integer: bool = False) -> float:
    """Return the number in the environment variable *name*; *default* if it is not set or empty.

    Raises: UsageError unless it is from 0.001 (if *is_integer*: a whole number from 1) to *max_value*.
    """
    text = os.environ.get(name, "")
    if not text:
        return default
    try:
        number = float(int(text) if is_integer else text)
    except ValueError:
        number = 0
    min_value = 1 if is_integer else 0.001
    if not min_value <= number <= max_value:
        raise UsageError(f"{name} is a number from {min_value} to {max_value:g}, not {text!r}")
    return number


class Attempts:
    """Counts the attempts at one piece of work for *url*, and says how long to wait before the next one.

    `position()` returns the byte of the object that comes next; if it has moved by PROGRESS_BYTES or more since the
    failure before, or since the begin, attempts are counted from 0 again. None: each attempt counts. For each attempt
    the caller waits the seconds that `start` returns, makes the attempt, and calls `succeed`, or `record_failure` and
    waits the seconds that it returns.

    Raises: UsageError for an invalid `TARTOOLS_TRIES`.
    """

    def __init__(self, url: str, position: Callable[[], int] | None = None) -> None:
        self._url = url
        self._position = position
        self._begin = position() if position else 0
        self._max_attempts = read_setting("TARTOOLS_TRIES", MAX_ATTEMPTS, MAX_ATTEMPTS_SETTING)
        self._failures = 0
        self._pacer, self._queued = pacer_of(url), 0.0
        self._successes, self._overloads = self._pacer.successes, 0

    def start(self) -> float:
        """Return the seconds to wait before the next attempt, because the server limits requests: 0 if it does not.

        Each call takes one turn of `Pacer`.
        """
        self._queued = time.monotonic()
        return self._pacer.start()

    def succeed(self) -> None:
        """Record that the attempt has succeeded, for the rate of requests to the server."""
        self._pacer.succeed()

    def record_failure(self, error: TransientError) -> float:
        """Count an attempt that failed with *error*; return the seconds to wait before the next one.

        They are 75 to 100 % of FIRST_BACKOFF, doubled for each failure before, up to MAX_BACKOFF; or the `after` of
        *error* if that is longer. An `OverloadError` lowers the rate of requests to the server. While other requests to
        it succeed, it makes all failures so far count as one, up to MAX_OVERLOADS times for each attempt allowed.
        Raises: StorageError after the last attempt, or if the server asks for more than MAX_RETRY_AFTER seconds.
        """
        offset = self._position() if self._position else None
        if offset is not None:
            self._failures, self._begin = 0 if offset - self._begin >= PROGRESS_BYTES else self._failures, offset
        self._failures += 1
        if isinstance(error, OverloadError):
            self._pacer.refuse(self._queued, min(error.after or 0, MAX_RETRY_AFTER))
            self._overloads += 1
            if self._pacer.successes > self._successes and self._overloads < MAX_OVERLOADS * self._max_attempts:
                self._failures = min(self._failures, 1)  # the server works: this request has only to wait for its turn
            self._successes = self._pacer.successes
        if self._failures >= self._max_attempts:
            number = "1 try" if self._failures == 1 else f"{self._failures} tries"
            raise StorageError(f"{error.reason} ({number})", url=self._url, offset=offset) from error
        import random

        pause: float = min(FIRST_BACKOFF * 2 ** (self._failures - 1), MAX_BACKOFF)
        pause *= random.uniform(0.75, 1)  # so that a thousand jobs do not retry at the same moment
        if (error.after or 0) > MAX_RETRY_AFTER:
            raise StorageError(f"{error.reason}; it asks for a retry in {error.after:.0f} seconds", url=self._url)
        return max(pause, error.after or 0)


def call_with_retries(work: Callable[[], Result], url: str, wait: Callable[[float], object] = time.sleep) -> Result:
    """Return the result of *work*, which is retried after each TransientError.

    *wait* is called with the seconds until the next attempt, before the first one too if the server limits requests; it
    may raise, to give up.

    Raises: StorageError after the last attempt, or if the server asks for more than MAX_RETRY_AFTER seconds; UsageError
    for an invalid `TARTOOLS_TRIES`; other errors of *work* and *wait*.
    """
    attempts = Attempts(url)
    while True:
        if pause := attempts.start():
            wait(pause)
        try:
            result = work()
        except TransientError as error:
            wait(attempts.record_failure(error))
        else:
            attempts.succeed()
            return result
