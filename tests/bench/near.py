"""What it takes to find pictures that look alike, without pictures: hashes and colours are drawn at random.

    python near.py bands 1000000
    python near.py pairs 30000

`bands` is what tardedup does, `pairs` compares all with each other. A tenth are copies, whose hashes differ in up to 5
bits; that each is found is checked.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tartools.stages.duplicates.near import COLOUR_BYTES, PictureHashes, count_bits, find_first_near

FAR, FLIPS = 6, 5
BLOCK = 1 << 22  # pairs compared at once


def drawn(count: int) -> tuple[Any, Any, Any]:
    """Return hashes, colours, and of which picture each of the last tenth is a copy."""
    draw = np.random.default_rng(0)
    copies = count // 10
    hashes = draw.integers(0, 1 << 64, count, dtype=np.uint64)
    colours = draw.integers(0, 256, (count, COLOUR_BYTES), dtype=np.uint8)
    of = draw.integers(0, count - copies, copies)
    flips = np.zeros(copies, np.uint64)
    for _ in range(FLIPS):
        flips |= np.uint64(1) << draw.integers(0, 64, copies).astype(np.uint64)
    hashes[-copies:] = hashes[of] ^ flips
    colours[-copies:] = colours[of]
    return hashes, colours, of


def all_pairs(hashes: Any) -> Any:
    """Return for each of *hashes* the first before it that is near, or -1."""
    found = np.full(len(hashes), -1)
    step = max(1, BLOCK // len(hashes))
    for first in range(0, len(hashes), step):
        some = hashes[first : first + step]
        near = count_bits(some[:, None] ^ hashes[None]) <= FAR
        near &= np.arange(len(hashes))[None] < np.arange(first, first + len(some))[:, None]
        at = near.argmax(axis=1)
        found[first : first + step] = np.where(near[np.arange(len(some)), at], at, -1)
    return found


def main() -> None:
    """Find the copies, and check that they are those that were made."""
    way, count = sys.argv[1], int(sys.argv[2])
    hashes, colours, of = drawn(count)
    found = (
        all_pairs(hashes)
        if way == "pairs"
        else find_first_near(PictureHashes(hashes, colours, np.zeros(len(hashes), np.float32)), 0, FAR)
    )
    copies = len(of)
    assert (found[:-copies] < 0).all()
    assert (found[-copies:] == of).mean() > 0.999  # the others are near to an earlier copy of the same


if __name__ == "__main__":
    main()
