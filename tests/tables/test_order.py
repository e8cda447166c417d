"""Rows in another order: where each is to come, also more than once."""

from __future__ import annotations

import random

import pytest

from tartools.tables import order


@pytest.mark.parametrize("chunk", [1, 3, 50, 1000])
@pytest.mark.parametrize("rows", [1, 7, 40])
def test_each_place_has_its_row(chunk: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "CHUNK", chunk)
    dice = random.Random(chunk)
    for count in (0, 1, 5, 60, 300):
        positions = [dice.randrange(rows) for _ in range(count)]
        slots = order.Slots(rows, positions)
        found: dict[int, int] = {}
        for first in range(0, rows, 6):
            before = -1
            for numbers, places in slots.of(first, min(first + 6, rows)):
                assert 0 < len(places) <= chunk
                assert [before, *places.tolist()] == sorted({before, *places.tolist()})
                before = int(places[-1])
                assert not set(places.tolist()) & found.keys()
                found.update(zip(places.tolist(), (first + numbers).tolist(), strict=True))
        assert slots.count == count
        assert [found[place] for place in range(count)] == positions
