"""Requests to a server that limits them: they become fewer together, and all are carried out. Time is simulated."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from types import SimpleNamespace

import pytest

from tartools.errors import StorageError
from tartools.storage.objects import http, pacing, retry
from tartools.storage.objects.pacing import Pacer, pacer_of
from tartools.storage.objects.retry import Attempts, OverloadError, TransientError

URL = "s3://b/o"


class Simulation:
    """Clients that make *requests*, side by side, of a server that takes *limit* a second, refused ones included."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limit: int, latency: float = 0.02) -> None:
        self.now = 1000.0
        self.limit = limit
        self.latency = latency
        self.served: list[float] = []  # when
        self.refused = 0
        self.failures: list[StorageError] = []
        self._recent: deque[float] = deque()
        monkeypatch.setattr(retry, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=None))
        monkeypatch.setattr(pacing, "_pacers", {})
        monkeypatch.setattr(pacing, "Pacer", lambda: Pacer(lambda: self.now))

    def run(self, clients: int, requests: int) -> None:
        """Make so many requests, by so many clients."""
        order = itertools.count()
        waiting = iter(range(requests))
        events: list[tuple[float, int, Attempts, bool]] = []  # when, a tie-breaker, whose, whether it is sent then

        def begin() -> None:
            if next(waiting, None) is not None:
                heapq.heappush(events, (self.now, next(order), Attempts(URL), False))

        for _ in range(clients):
            begin()
        while events:
            self.now, _, attempts, sent = heapq.heappop(events)
            if not sent:
                heapq.heappush(events, (self.now + attempts.start() + self.latency, next(order), attempts, True))
            elif self._takes():
                attempts.succeed()
                self.served.append(self.now)
                begin()
            else:
                self.refused += 1
                try:
                    pause = attempts.record_failure(OverloadError("the server is busy (503 SlowDown)"))
                except StorageError as error:
                    self.failures.append(error)
                    begin()
                else:
                    heapq.heappush(events, (self.now + pause, next(order), attempts, False))

    def _takes(self) -> bool:
        while self._recent and self._recent[0] <= self.now - 1:
            self._recent.popleft()
        self._recent.append(self.now)
        return len(self._recent) <= self.limit


@pytest.mark.parametrize(("limit", "clients", "seconds"), [(10, 32, 80), (10, 8, 80), (100, 32, 24), (3, 32, 400)])
def test_all_requests_of_a_server_with_a_limit_are_carried_out(
    limit: int, clients: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In less than three times the time that its limit takes; where that is short, the pauses before retries count."""
    simulation = Simulation(monkeypatch, limit)
    simulation.run(clients, 400)
    assert (len(simulation.served), simulation.failures) == (400, [])
    assert simulation.served[-1] - 1000 < seconds


def test_requests_to_a_server_without_a_limit_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(monkeypatch, limit=100_000)
    simulation.run(32, 3200)
    assert simulation.now - 1000 == pytest.approx(3200 / 32 * simulation.latency)


def test_a_server_that_takes_nothing_fails_after_the_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(monkeypatch, limit=0)
    simulation.run(4, 4)
    assert {error.message for error in simulation.failures} == {"the server is busy (503 SlowDown) (5 tries)"}
    assert len(simulation.failures) == 4


def test_one_request_that_is_never_taken_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though others are."""
    monkeypatch.setattr(pacing, "_pacers", {})
    attempts = Attempts(URL)
    count = 0
    with pytest.raises(StorageError, match="busy"):
        while True:
            pacer_of(URL).succeed()
            attempts.record_failure(OverloadError("busy"))
            count += 1
    assert retry.MAX_OVERLOADS * retry.MAX_ATTEMPTS <= count < (retry.MAX_OVERLOADS + 1) * retry.MAX_ATTEMPTS


def test_after_a_minute_without_a_refusal_there_is_no_limit() -> None:
    now = [0.0]
    pacer = Pacer(lambda: now[0])
    for _ in range(10):
        pacer.start()
    pacer.refuse(0.0, 0.0)
    assert sum(pacer.start() for _ in range(3)) == pytest.approx(0.2 + 0.4)  # five requests a second
    now[0] = 61.0
    assert [pacer.start() for _ in range(3)] == [0, 0, 0]


def test_a_retry_after_is_one_for_all_requests() -> None:
    now = [0.0]
    pacer = Pacer(lambda: now[0])
    pacer.start()
    pacer.refuse(0.0, 7.0)
    assert pacer.start() == 7.0
    assert pacer.start() > 7.0


def test_refusals_that_were_under_way_together_lower_the_rate_once() -> None:
    now = [0.0]
    pacer = Pacer(lambda: now[0])
    starts = [pacer.start() for _ in range(40)]
    now[0] = 0.1
    for _ in starts:
        pacer.refuse(0.0, 0.0)
    pacer.start()
    assert pacer.start() == pytest.approx(1 / 20)


def test_each_server_has_its_own_pace() -> None:
    assert pacer_of("s3://a/1") is pacer_of("s3://b/2")
    assert pacer_of("http://a:1/x") is pacer_of("http://a:1/y")
    assert len({id(pacer_of(url)) for url in ("s3://a/1", "gs://a/1", "http://a:1/x", "http://a:2/x")}) == 4


def test_what_makes_requests_fewer() -> None:
    """Not any failure of a server: only what says that it gets too many."""
    for status, code in ((429, ""), (503, "SlowDown"), (503, ""), (400, "ThrottlingException")):
        assert isinstance(http.busy_error(status, code, ""), OverloadError)
    for status in (500, 502, 504, 408):
        assert type(http.busy_error(status, "", "")) is TransientError
    assert http.busy_error(429, "429", "").reason == "the server is busy (429)"
