"""Hashes and colours of all pictures, in the order of the samples, to pairs of pictures that are near."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from tartools.stages.duplicates.near import COLOURS, PictureHashes, bits, first_near
from tartools.stages.duplicates.pairs import AGAINST, INPUT, Pair

CONTENT = Struct(f"<Q{COLOURS}sQ")
NO_PICTURE = bytes(CONTENT.size)
KIND = [("hash", "<u8"), ("colours", "u1", (COLOURS,)), ("pixels", "<u8")]  # of numpy; the same


class Hashes:
    """The pictures of both sides. Holds: 64 bytes for each sample."""

    def __init__(self) -> None:
        self._rows = bytearray()
        self._begins = [0, 0]  # of the sides

    def add(self, content: bytes) -> None:
        """Add a sample: hash, colours and pixels of its picture, packed; empty if it has none to compare."""
        self._rows += content or NO_PICTURE

    def end_against(self) -> None:
        """Note that the samples added from now on are those of the input."""
        self._begins[INPUT] = len(self._rows) // CONTENT.size

    def pairs(self, distance: int, largest: bool) -> Iterator[bytes]:
        """Yield the pairs of samples that are left out and kept, by position."""
        import numpy as np

        rows = np.frombuffer(self._rows, KIND)
        begin = self._begins[INPUT]
        known = np.flatnonzero(rows["pixels"])
        mine = known[known >= begin]
        if largest:
            mine = mine[np.argsort(-rows["pixels"][mine].astype(np.int64), kind="stable")]
        order = np.concatenate([known[known < begin], mine])
        fixed = len(order) - len(mine)
        pictures = PictureHashes(rows["hash"][order], rows["colours"][order])
        found = first_near(pictures, fixed, distance)
        out = np.flatnonzero(found >= 0)
        out = out[np.argsort(order[out])]
        apart = bits(pictures.hashes[out] ^ pictures.hashes[found[out]])
        for position, kept, far in zip(order[out].tolist(), order[found[out]].tolist(), apart.tolist(), strict=True):
            side = AGAINST if kept < begin else INPUT
            yield Pair(position - begin, side, kept - self._begins[side], far).record()
