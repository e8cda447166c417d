"""Pictures that look alike are found by bands, as if all pairs were compared one after the other."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from tartools.stages.duplicates import INPUT_SIDE, near

SQUARE = np.zeros(60_000, np.float32)  # log(width / height)


def one_by_one(hashes: Any, colours: Any, shapes: Any, fixed: int, distance: int) -> list[int]:
    """Return what `find_first_near` should: each picture is compared with all that are kept before it."""
    found: list[int] = []
    kept: list[int] = []
    words = [int(each) for each in hashes]
    for number, word in enumerate(words):
        alike = -1
        for other in kept if number >= fixed else ():
            if (word ^ words[other]).bit_count() > distance or abs(shapes[number] - shapes[other]) > np.log(1.1):
                continue
            apart = np.abs(colours[number].astype(int) - colours[other])
            if apart.max() <= 12 and apart.mean() <= 3:
                alike = other
                break
        if alike < 0:
            kept.append(number)
        found.append(alike)
    return found


def pictures(seed: int, count: int) -> tuple[Any, Any]:
    """Return hashes and colours of chains of near pictures, of equal ones, and of many that have one hash."""
    draw = np.random.default_rng(seed)
    hashes = draw.integers(0, 1 << 64, count, dtype=np.uint64)
    colours = draw.integers(0, 256, (count, near.COLOUR_BYTES), dtype=np.uint8)
    for number in range(1, count):
        other = draw.integers(max(0, number - 40), number)
        kind = draw.random()
        if kind < 0.5:
            flips = draw.choice(64, draw.integers(0, 9), replace=False)
            hashes[number] = hashes[other] ^ np.uint64(sum(1 << int(bit) for bit in flips))
            shifted = colours[other].astype(int) + draw.integers(-4, 5, near.COLOUR_BYTES)
            colours[number] = np.clip(shifted, 0, 255)
        elif kind < 0.6:
            hashes[number], colours[number] = hashes[other], colours[other]
        elif kind < 0.8:
            hashes[number], colours[number] = 0, draw.integers(0, 256) // 4 * 4
    return hashes, colours


SMALL_LIMITS = {"MAX_LEAF_PICTURES": 80, "PICTURES_IN_BLOCK": 7, "MAX_GROUP_COMPARED": 5, "MAX_PAIRS_COMPARED": 1 << 11}


@pytest.mark.parametrize(("distance", "fixed"), [(0, 0), (3, 0), (6, 0), (6, 300), (6, 600), (7, 1), (12, 0), (15, 0)])
def test_as_one_by_one(distance: int, fixed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With small limits, so that all ways of comparing are taken."""
    for name, value in SMALL_LIMITS.items():
        monkeypatch.setattr(near, name, value)
    hashes, colours = pictures(distance + fixed, 600)
    shapes = np.random.default_rng(distance).choice(np.array([0.0, 0.09, 0.4], np.float32), 600, p=[0.8, 0.1, 0.1])
    found = near.find_first_near(near.PictureHashes(hashes, colours, shapes), fixed, distance)
    assert found.tolist() == one_by_one(hashes, colours, shapes, fixed, distance)
    assert (found >= 0).any() or fixed == 600


@pytest.mark.parametrize(
    ("apart", "alike"),
    [([12], True), ([13], False), ([3] * near.COLOUR_BYTES, True), ([4] + [3] * (near.COLOUR_BYTES - 1), False)],
)
def test_how_far_apart_colours_may_be(apart: list[int], alike: bool) -> None:
    """Each, and in the mean."""
    colours = np.full((2, near.COLOUR_BYTES), 100, np.uint8)
    colours[1, : len(apart)] += np.array(apart, np.uint8)
    found = near.find_first_near(near.PictureHashes(np.zeros(2, np.uint64), colours, SQUARE[:2]), 0, 6)
    assert found.tolist() == [-1, 0 if alike else -1]


def test_pictures_of_another_shape_are_no_copies() -> None:
    """A soft gradient has the same hash and colours in any shape; sides of small copies are rounded."""
    sizes = [(500, 333), (375, 500), (100, 67), (16, 11), (333, 500)]
    content = [near.CONTENT_RECORD.pack((1 << 64) - 1, bytes(range(near.COLOUR_BYTES)), *size) for size in sizes]
    pairs = list(near.near_pairs([(INPUT_SIDE, content)], 6, largest=False))
    assert [(position, kept) for position, _, kept, _ in pairs] == [(2, 0), (3, 0)]


def test_many_blank_pictures_are_one() -> None:
    """50,000 times the same, and others: in little memory, since no list of pairs is made."""
    hashes, colours = pictures(1, 2000)
    blank = 50_000
    many = np.concatenate([np.zeros(blank, np.uint64), hashes])
    white = np.concatenate([np.full((blank, near.COLOUR_BYTES), 255, np.uint8), colours])
    tracemalloc.start()
    found = near.find_first_near(near.PictureHashes(many, white, SQUARE[: len(many)]), 0, 6)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found[:blank].tolist() == [-1] + [0] * (blank - 1)
    alone = near.find_first_near(
        near.PictureHashes(many[blank - 1 :], white[blank - 1 :], SQUARE[: len(many) - blank + 1]), 0, 6
    )
    assert [each + blank - 1 if each > 0 else each for each in alone.tolist()[1:]] == found.tolist()[blank:]
    assert peak < 120 << 20


def test_numpy_1_has_no_function_that_counts_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(np, "bitwise_count", raising=False)
    numbers = np.array([[0, 1], [3 << 40, (1 << 64) - 1]], np.uint64)
    assert near.count_bits(numbers).tolist() == [[0, 1], [2, 64]]
