"""How many ranges are requested at once, by a clock of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tartools.storage.objects.ranges import Pace

MOST = 8


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], float]], Iterator[int]]:
    """Give the window after each range, for which the reader waits as long as it is told for a window."""
    now = 0.0
    monkeypatch.setattr("tartools.storage.objects.ranges.time.monotonic", lambda: now)

    def run(seconds: Callable[[int], float]) -> Iterator[int]:
        nonlocal now
        found = Pace(MOST)
        while True:
            waited = seconds(found.window)
            now += waited + READING
            found.waited(waited)
            found.done(waited, WORK)
            yield found.window

    return run


READING, WORK = 0.01, 0.001  # seconds a range


def test_a_slow_network(windows: Callable[[Callable[[int], float]], Iterator[int]]) -> None:
    found = windows(lambda window: 0.1 / window)
    assert [next(found) for _ in range(4)] == [1, 2, 4, MOST]
    assert {next(found) for _ in range(640)} == {MOST}


def test_a_reader_that_is_slower(windows: Callable[[Callable[[int], float]], Iterator[int]]) -> None:
    found = windows(lambda _: READING / 2)
    assert {next(found) for _ in range(640)} == {1}
