"""Calls side by side: their results in order or as they come, within the window; failures; the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from tartools.errors import CommandError
from tartools.storage.pool import Threads, call_in_window

PATIENCE = 60  # seconds


def results(asked: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the items of *asked* with what was made of them."""
    return ((item, answer()) for item, answer in asked)


@pytest.mark.parametrize("max_calls", [None, 6])
def test_an_error_comes_in_its_place_and_ends_all(max_calls: int | None) -> None:
    def fail(number: int) -> int:
        if number == 5:
            raise CommandError("five")
        return number * number

    before, stopped = threading.active_count(), []
    found = []
    asked = call_in_window(range(100), Threads(3, fail, lambda: stopped.append(1)), 1000, max_calls=max_calls)
    with pytest.raises(CommandError), closing(asked):
        found.extend(results(asked))
    assert found == [(n, n * n) for n in range(5)]
    assert stopped == [1] and threading.active_count() == before


@pytest.mark.parametrize(("window", "max_calls", "most"), [(10, None, 10), (10, 4, 11), (3, 6, 4)])
def test_no_more_items_are_read_than_the_window(window: int, max_calls: int | None, most: int) -> None:
    read: list[int] = []
    taken = 0
    asked = call_in_window(iter(read.append(n) or n for n in range(100)), Threads(2, str), window, max_calls=max_calls)  # type: ignore[func-returns-value]
    for number, text in results(asked):
        assert text == str(number) == str(taken)
        assert len(read) <= taken + most
        assert max_calls is not None or len(read) == min(taken + window, 100)
        taken += 1
    assert taken == 100


def test_without_an_order_whoever_is_done_comes_first() -> None:
    others_came = threading.Event()

    def work(number: int) -> int:
        assert number or others_came.wait(PATIENCE)
        return number

    with closing(call_in_window(range(3), Threads(3, work), 3, ordered=False)) as asked:
        found = results(asked)
        assert sorted([next(found), next(found)]) == [(1, 1), (2, 2)]
        others_came.set()
        assert list(found) == [(0, 0)]


def test_so_many_are_worked_on_at_once_and_no_more() -> None:
    """Each of two waits for the other; a third would be there before them."""
    meeting, names = threading.Barrier(2, timeout=PATIENCE), set()

    def work(number: int) -> int:
        meeting.wait()
        names.add(threading.current_thread().name)
        return number

    assert [number for number, _ in results(call_in_window(range(10), Threads(2, work), 10))] == [*range(10)]
    assert len(names) == 2


def test_what_is_done_is_yielded_before_an_item_that_is_long_in_coming() -> None:
    """With `max_calls`, as in `tail -f log.tar | tarproc`; the second item is read while the first is worked on."""
    taken, worked = [], threading.Event()

    def items() -> Iterator[int]:
        yield 0
        yield 1
        assert worked.wait(PATIENCE)
        for number in range(2, 20):
            assert len(taken) >= number - 2
            yield number

    with closing(call_in_window(items(), Threads(1, lambda n: worked.set() or n), 100, max_calls=2)) as asked:  # type: ignore[func-returns-value]
        taken.extend(results(asked))
    assert [number for number, _ in taken] == [*range(20)]


@pytest.mark.parametrize("ordered", [True, False])
def test_a_failure_of_the_items_comes_behind_those_before(ordered: bool) -> None:
    def items() -> Iterator[int]:
        yield from range(7)
        raise CommandError("no more")

    found = []
    with pytest.raises(CommandError, match="no more"):
        found.extend(results(call_in_window(items(), Threads(2, str), 3, ordered=ordered)))
    assert sorted(found) == [(n, str(n)) for n in range(7)]


def test_closing_drops_what_has_not_begun() -> None:
    begun: list[int] = []
    stopped = threading.Event()

    def work(number: int) -> int:
        begun.append(number)
        if number:
            stopped.wait(PATIENCE)
        return number

    before = threading.active_count()
    asked = call_in_window(range(50), Threads(1, work, stopped.set), 50)
    next(asked)
    asked.close()
    assert len(begun) <= 3 and threading.active_count() == before  # the third may begin before it is dropped


def test_answers_may_be_asked_for_in_any_order() -> None:
    threads: Threads[Callable[[], int], int] = Threads(2)
    answers = [threads.submit(lambda number=number: number) for number in range(9)]  # type: ignore[misc]
    assert [answer() for answer in reversed(answers)] == [*reversed(range(9))]
    failing = threads.submit(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failing()
    threads.stop()
