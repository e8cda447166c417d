"""Pictures that look alike, by difference hashes of 64 bits and mean colours: found by bands, not by all pairs.

Two pictures are near if their hashes differ in *distance* bits at most, the mean colours of their 16 parts, red, green
and blue, by `COLOUR` at most and by `MEAN` on average, and the ratios of their sides by `MAX_RATIO` at most: hash and
colours of a soft gradient are the same in any shape. Pictures come in order of preference, and one is left out
if it is near a kept one.

A hash is cut into four bands of 16 bits. If two hashes differ in 6 bits, one of the first three bands differs in 1 bit
at most, or the fourth is the same (see `radius`): so pictures are grouped by each band, and one is only compared with
those groups whose band is that near to its own. In a large group, such as that of blank pictures, only with those whose
colours have about the same sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import combinations
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from tartools.stages.duplicates import AGAINST, INPUT

COLOURS = 48  # bytes: red, green and blue of 4 by 4 parts
COLOUR, MEAN = 12, 3  # of 255
MAX_RATIO = 1.1  # between width / height of a picture and of its copy, whose sides were rounded
BANDS, BITS = 4, 16
LEAF, ROWS = 2000, 128  # pictures that are compared with each other, all pairs; so many at once
PARTS = 8  # of more pictures: each is compared with what is kept of those before
LARGE = 256  # pictures; in a larger group not all are compared
SUMS = 1 << 14  # more than the sum of the colours of a picture
PAIRS = 1 << 20  # compared at once
CONTENT = Struct(f"<Q{COLOURS}sII")
NO_PICTURE = bytes(CONTENT.size)
KIND = [("hash", "<u8"), ("colours", "u1", (COLOURS,)), ("width", "<u4"), ("height", "<u4")]  # of numpy; the same


class PictureHashes(NamedTuple):
    """Columns of pictures: *hashes* (uint64), *colours* (rows of 48 uint8), *shapes* (float32): log(width / height)."""

    hashes: Any
    colours: Any
    shapes: Any

    def sums(self, numbers: Any) -> Any:
        """Return the sum of the colours of each picture of *numbers*; of near ones it is about the same."""
        return self.colours[numbers].sum(axis=1, dtype=np.int64)

    def alike(self, left: Any, right: Any) -> Any:
        """Return whether colours and shapes of the pictures *left* are near those of *right*."""
        found = np.abs(self.shapes[left] - self.shapes[right]) <= math.log(MAX_RATIO)
        for first in range(0, len(left), PAIRS >> 4):
            some = slice(first, first + (PAIRS >> 4))
            one, other = self.colours[left[some]], self.colours[right[some]]
            apart = np.maximum(one, other) - np.minimum(one, other)
            found[some] &= (apart.max(axis=1) <= COLOUR) & (apart.sum(axis=1, dtype=np.int64) <= MEAN * COLOURS)
        return found


def near_pairs(
    sides: Iterable[tuple[int, Iterable[bytes]]], distance: int, largest: bool
) -> Iterator[tuple[int, int, int, int]]:
    """Yield what is left out, by position: its position, side and position of what is kept, and the distance.

    *sides* are their numbers, that of the input last, and samples: hash, colours, width and height of the picture,
    packed; empty if there is none to compare. Holds: 64 bytes for each sample.
    """
    rows, begins = bytearray(), [0, 0]
    for side, contents in sides:
        begins[side] = len(rows) // CONTENT.size
        for content in contents:
            rows += content or NO_PICTURE
    packed = np.frombuffer(rows, KIND)
    begin = begins[INPUT]
    pixels = packed["width"].astype(np.int64) * packed["height"]
    known = np.flatnonzero(pixels)
    mine = known[known >= begin]
    if largest:
        mine = mine[np.argsort(-pixels[mine], kind="stable")]
    order = np.concatenate([known[known < begin], mine])
    fixed = len(order) - len(mine)
    shapes = np.log(packed["width"][order] / packed["height"][order]).astype(np.float32)
    pictures = PictureHashes(packed["hash"][order], packed["colours"][order], shapes)
    found = first_near(pictures, fixed, distance)
    out = np.flatnonzero(found >= 0)
    out = out[np.argsort(order[out])]
    apart = bits_set(pictures.hashes[out] ^ pictures.hashes[found[out]])
    for position, kept, far in zip(order[out].tolist(), order[found[out]].tolist(), apart.tolist(), strict=True):
        side = AGAINST if kept < begin else INPUT
        yield position - begin, side, kept - begins[side], far


def bits_set(numbers: Any) -> Any:
    """Return how many bits are set in each of *numbers*, uint64."""
    if hasattr(np, "bitwise_count"):
        return np.bitwise_count(numbers)
    eights = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)  # numpy 1
    return eights[numbers[..., None].view(np.uint8)].sum(axis=-1, dtype=np.uint8)


def first_near(pictures: PictureHashes, fixed: int, distance: int) -> Any:
    """Return for each of *pictures*, which are in order of preference, the first kept one that it is near, or -1.

    One with -1 is kept itself. The first *fixed* are kept in any case, and not compared with each other.

    Holds: some 80 bytes per picture, and 100 MB. Time: grows with the pairs of kept pictures that have a band alike;
    equal pictures count once.
    """
    same = first_same(pictures)
    numbers = np.arange(len(same))
    found = np.full(len(same), -1)
    found[fixed:] = np.where(same == numbers, -1, same)[fixed:]
    distinct = numbers[same == numbers]
    kept = distinct[distinct < fixed]
    rest = distinct[distinct >= fixed]
    killers = nearest(pictures, rest, kept, distance)
    found[rest] = killers
    thin(pictures, rest[killers < 0], distance, found)
    again = fixed + np.flatnonzero(same[fixed:] != numbers[fixed:])
    first = same[again]
    found[again] = np.where(found[first] < 0, first, found[first])
    fixed_twins = again[first < fixed]  # of a fixed picture, before which another fixed one may be near
    found[fixed_twins] = nearest(pictures, same[fixed_twins], kept, distance)
    return found


def first_same(pictures: PictureHashes) -> Any:
    """Return for each of *pictures* the first with the same hash, colours and shape: in most cases itself."""
    numbers = [column[:, None].view(np.uint8) for column in (pictures.hashes, pictures.shapes)]
    whole = np.concatenate([*numbers, pictures.colours], axis=1)
    rows = whole.view(f"V{whole.shape[1]}").ravel()
    _, first, which = np.unique(rows, return_index=True, return_inverse=True)
    return first[which]


def thin(pictures: PictureHashes, numbers: Any, distance: int, found: Any) -> Any:
    """Return which of *numbers*, in order of preference, are kept; set in *found* what the others are near to."""
    if len(numbers) <= LEAF:
        for one, other in all_pairs(pictures, numbers, distance):
            if found[one] < 0 and found[other] < 0:
                found[other] = one
        return numbers[found[numbers] < 0]
    kept = numbers[:0]
    for part in np.array_split(numbers, PARTS):
        found[part] = nearest(pictures, part, kept, distance)
        kept = np.concatenate([kept, thin(pictures, part[found[part] < 0], distance, found)])
    return kept


def all_pairs(pictures: PictureHashes, numbers: Any, distance: int) -> Iterator[tuple[int, int]]:
    """Yield the pairs of *numbers* that are near, in order."""
    hashes = pictures.hashes[numbers]
    for first in range(0, len(numbers), ROWS):
        near = bits_set(hashes[first : first + ROWS, None] ^ hashes[None, first:]) <= distance
        left, right = (first + side for side in np.nonzero(np.triu(near, 1)))
        alike = pictures.alike(numbers[left], numbers[right])
        yield from zip(numbers[left[alike]].tolist(), numbers[right[alike]].tolist(), strict=True)


def nearest(pictures: PictureHashes, numbers: Any, kept: Any, distance: int) -> Any:
    """Return for each picture of *numbers* the first of *kept*, which ascend, that it is near; -1 if there is none."""
    found = np.full(len(numbers), len(pictures.hashes))
    if len(numbers) and len(kept):
        for some, candidates in candidate_pairs(pictures, numbers, kept, distance):
            apart = pictures.hashes[numbers[some]] ^ pictures.hashes[candidates]
            near = np.flatnonzero(bits_set(apart) <= distance)
            near = near[pictures.alike(numbers[some[near]], candidates[near])]
            np.minimum.at(found, some[near], candidates[near])
    return np.where(found == len(pictures.hashes), -1, found)


def candidate_pairs(pictures: PictureHashes, numbers: Any, kept: Any, distance: int) -> Iterator[tuple[Any, Any]]:
    """Yield pairs that may be near, up to a million at once: places in *numbers*, and pictures of *kept*."""
    my_sums, sums = pictures.sums(numbers), pictures.sums(kept)
    for band in range(BANDS):
        counts = range(radius(distance, band) + 1)
        masks = [sum(1 << bit for bit in chosen) for count in counts for chosen in combinations(range(BITS), count)]
        mine, theirs = in_band(pictures.hashes[numbers], band), in_band(pictures.hashes[kept], band)
        order = np.lexsort((sums, theirs))
        keys = theirs[order] * SUMS + sums[order]
        bounds = np.zeros((1 << BITS) + 1, np.int64)
        np.cumsum(np.bincount(theirs, minlength=1 << BITS), out=bounds[1:])
        grouped = kept[order]
        for mask in masks:
            groups = mine ^ mask
            places = np.flatnonzero(bounds[groups + 1] > bounds[groups])
            groups = groups[places]
            begins, ends = bounds[groups], bounds[groups + 1]
            large = np.flatnonzero(ends - begins > LARGE)
            sums_near = my_sums[places[large]]
            least, most = np.maximum(sums_near - MEAN * COLOURS, 0), np.minimum(sums_near + MEAN * COLOURS, SUMS - 1)
            begins[large] = np.searchsorted(keys, groups[large] * SUMS + least, "left")
            ends[large] = np.searchsorted(keys, groups[large] * SUMS + most, "right")
            for some in slices_of_counts(ends - begins):
                lengths = (ends - begins)[some]
                steps = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
                yield np.repeat(places[some], lengths), grouped[np.repeat(begins[some], lengths) + steps]


def radius(distance: int, band: int) -> int:
    """Return in how many bits of *band* hashes at *distance* may differ, and be found there; -1 if none is looked for.

    If all bands differed in more bits, the hashes would in more than *distance*.

    >>> [radius(6, band) for band in range(4)], [radius(0, band) for band in range(4)]
    ([1, 1, 1, 0], [0, -1, -1, -1])
    """
    return (distance + BANDS - band) // BANDS - 1


def in_band(hashes: Any, band: int) -> Any:
    """Return 16 bits of each of *hashes*, every fourth one: neighbours in a picture are often alike."""
    every = np.unpackbits(np.ascontiguousarray(hashes)[:, None].view(np.uint8), axis=1)
    return np.packbits(every[:, band::BANDS], axis=1).view(np.uint16)[:, 0].astype(np.int64)


def slices_of_counts(counts: Any) -> Iterator[slice]:
    """Yield slices of *counts* whose sums are up to a million, or that are one count."""
    ends = np.cumsum(counts)
    first = 0
    while first < len(counts):
        before = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + PAIRS, "right")))
        yield slice(first, last)
        first = last
