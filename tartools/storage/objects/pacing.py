"""The pace of requests to a busy server, shared by all threads of a process.

A server that limits requests (429, 503 SlowDown) refuses most of 32 that come side by side. If each of them then waits
by itself, they exceed the limit together until their tries are used up. So after a refusal all requests to that server
take turns, at half the rate; each success raises the rate a little (additive increase, multiplicative decrease, as TCP:
RFC 5681). Without a refusal no request waits, and nothing is limited.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable

from tartools.storage.url import Url

RATE_DECREASE = 0.5  # of the rate, after a refusal
MIN_RATE_INCREASE, RATE_INCREASE = 1.0, 0.05  # requests a second, or this part of the rate, that are added each second
MIN_RATE, MAX_RATE = 0.5, 1000.0  # requests a second
MEMORY_SECONDS = 60.0  # without a refusal, after which there is no limit
RATE_SECONDS = 1.0  # of which requests are counted, to know their rate


class Pacer:
    """The rate of requests to one server, shared by all threads; without limit while the server refuses none.

    For each request call `start`, wait as many seconds as it returns, and after the response call `succeed`, `refuse`
    if the server limits requests, or neither if the request failed otherwise. The limit ends MEMORY_SECONDS after a
    refusal has last lowered the rate. *clock* returns seconds. `successes`: the number of calls of `succeed`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.successes = 0
        self._clock = clock
        self._lock = threading.Lock()
        self._rate: float | None = None
        self._turn = 0.0  # when the next request may start
        self._refused = 0.0  # when the rate was last lowered
        self._starts: deque[float] = deque(maxlen=int(MAX_RATE))

    def start(self) -> float:
        """Return the seconds that the next request has to wait, 0 without a limit. Each call takes one turn."""
        now = self._clock()
        with self._lock:
            if self._rate is not None and now - self._refused > MEMORY_SECONDS:
                self._rate = None
            turn = now if self._rate is None else max(self._turn, now)
            if self._rate is not None:
                self._turn = turn + 1 / self._rate
            self._starts.append(turn)
            return turn - now

    def succeed(self) -> None:
        """Count a request that the server has carried out, and raise the rate a little, if there is one."""
        with self._lock:
            self.successes += 1
            if self._rate is not None:
                self._rate += (
                    max(MIN_RATE_INCREASE, RATE_INCREASE * self._rate) / self._rate
                )  # there are so many each second

    def refuse(self, queued: float, after: float) -> None:
        """Lower the rate, because the server has refused a request: by half, but not below MIN_RATE requests a second.

        Without a rate until now, it begins at half of the requests of the last second (RATE_SECONDS). *queued*: the
        time, by the clock, when `start` was called for the request. Requests that were queued before the rate was last
        lowered do not lower it again: they have the turns of the old rate. *after*: seconds for which the server asks
        to wait, before the next turn of any request; 0 if it does not. They count for these requests, too.
        """
        now = self._clock()
        with self._lock:
            if after:
                self._turn = max(self._turn, now + after)
            if queued < self._refused:
                return
            if self._rate is None:
                self._rate = min(sum(start > now - RATE_SECONDS for start in self._starts) / RATE_SECONDS, MAX_RATE)
                self._turn = max(self._turn, now)
            self._rate = max(self._rate * RATE_DECREASE, MIN_RATE)
            self._refused = now


_pacers: dict[tuple[int, str], Pacer] = {}


def pacer_of(url: str) -> Pacer:
    """Return the pacer of this process for the server of *url*.

    There is one for each host and port, as http: and https: URLs write them, and one for each other scheme, such as s3.
    Each process has its own: a fork may not wait for a lock of its parent.
    """
    server = Url(url).scheme or ""
    if server in ("http", "https"):
        from urllib.parse import urlsplit  # the other stores do without

        server = urlsplit(url).netloc.rpartition("@")[2]
    pacer = _pacers.get((os.getpid(), server))
    return pacer if pacer is not None else _pacers.setdefault((os.getpid(), server), Pacer())
