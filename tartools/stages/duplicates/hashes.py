"""Hashes and colours of all pictures, in the order of the samples, to pairs of pictures that are near."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any

from tartools.stages.duplicates.near import COLOURS, Pictures, bits, first_near, nearest
from tartools.stages.duplicates.pairs import AGAINST, INPUT, Pair

CONTENT = Struct(f"<Q{COLOURS}sQ")
NO_PICTURE = bytes(CONTENT.size)
KIND = [("hash", "<u8"), ("colours", "u1", (COLOURS,)), ("pixels", "<u8")]  # of numpy; the same

Colours = Callable[[int, list[int]], Iterator[bytes]]  # of a side, at ascending positions


class Hashes:
    """The pictures of both sides. Holds: 64 bytes for each sample."""

    def __init__(self) -> None:
        self._rows = bytearray()
        self._begins = [0, 0]  # of the sides
        self._without: list[int] = []  # sides whose colours are not known

    def add(self, content: bytes) -> None:
        """Add a sample: hash, colours and pixels of its picture, packed; empty if it has none to compare."""
        self._rows += content or NO_PICTURE

    def end_against(self) -> None:
        """Note that the samples added from now on are those of the input."""
        self._begins[INPUT] = len(self._rows) // CONTENT.size

    def without_colours(self, side: int) -> None:
        """Note that the colours of the samples of *side* are unknown."""
        self._without.append(side)

    def pairs(self, distance: int, largest: bool, colours: Colours) -> Iterator[bytes]:
        """Yield the pairs of samples that are left out and kept, by position.

        *colours* gives those that are unknown; it is only asked for pictures whose hashes are near to another.
        """
        import numpy as np

        rows = np.frombuffer(self._rows, KIND)
        begin = self._begins[INPUT]
        known = np.flatnonzero(rows["pixels"])
        mine = known[known >= begin]
        if largest:
            mine = mine[np.argsort(-rows["pixels"][mine].astype(np.int64), kind="stable")]
        order = np.concatenate([known[known < begin], mine])
        fixed = len(order) - len(mine)
        if self._without:
            order, fixed = self._with_colours(rows, order, fixed, distance, colours)
        pictures = Pictures(rows["hash"][order], rows["colours"][order])
        found = first_near(pictures, fixed, distance)
        out = np.flatnonzero(found >= 0)
        out = out[np.argsort(order[out])]
        apart = bits(pictures.hashes[out] ^ pictures.hashes[found[out]])
        for position, kept, far in zip(order[out].tolist(), order[found[out]].tolist(), apart.tolist(), strict=True):
            side = AGAINST if kept < begin else INPUT
            yield Pair(position - begin, side, kept - self._begins[side], far).record()

    def _with_colours(self, rows: Any, order: Any, fixed: int, distance: int, colours: Colours) -> tuple[Any, int]:
        """Return those of *order* that have near hashes, and how many are fixed; put their *colours* into *rows*."""
        import numpy as np

        rough = Pictures(rows["hash"][order], None)
        found = first_near(rough, fixed, distance)
        near = found >= 0
        kept, out = np.flatnonzero(~near), np.flatnonzero(near)
        _, firsts = np.unique(rough.hashes[out], return_index=True)
        near[kept] = nearest(rough, kept, np.sort(out[firsts]), distance) >= 0
        wanted = np.sort(order[near])
        begins = [*self._begins, len(rows)]
        for side in self._without:
            some = wanted[(wanted >= begins[side]) & (wanted < begins[side + 1])]
            found_colours = colours(side, (some - begins[side]).tolist())
            for position, means in zip(some.tolist(), found_colours, strict=True):
                rows["colours"][position] = np.frombuffer(means, np.uint8)
        return order[near], int(near[:fixed].sum())
