"""Rank and number of ranks from the environment."""

from __future__ import annotations

import pytest

from tartools.train import Order


@pytest.mark.parametrize(
    ("environment", "rows"),
    [
        ({}, [0, 1, 2, 3]),
        ({"RANK": "1", "WORLD_SIZE": "2"}, [1, 3]),
        ({"RANK": "1"}, [0, 1, 2, 3]),
        ({"WORLD_SIZE": "2"}, [0, 1, 2, 3]),
    ],
)
def test_ranks_of_the_environment(
    environment: dict[str, str], rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the two alone is no world of ranks: nothing is left out."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert list(Order(range(4), shuffle=None)) == rows


def test_a_rank_beyond_the_world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"RANK=2 and WORLD_SIZE=2"):
        list(Order(range(4)))


@pytest.mark.parametrize("wrong", ["RANK", "WORLD_SIZE"])
@pytest.mark.parametrize("text", ["x", "", "1.0"])
def test_what_is_no_number_is_named(wrong: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, text if name == wrong else "1")
    with pytest.raises(ValueError, match=rf"^the environment has {wrong}={text}, which is no whole number$"):
        list(Order(range(4)))
