"""Pictures that look alike, by difference hashes of 64 bits and mean colours: found by bands, not by all pairs.

Two pictures are near if their hashes differ in `distance` bits at most; the mean colours of their 16 parts, red, green
and blue, by `MAX_COLOUR_DISTANCE` at most and by `MAX_MEAN_DISTANCE` on average; and the ratios of their sides by
`MAX_RATIO` at most, since hash and colours of a soft gradient are the same in any shape. Pictures come in order of
preference, and one is left out if it is near a kept one.

A hash is cut into four bands of 16 bits. If two hashes differ in 6 bits, one of the first three bands differs in 1 bit
at most, or the fourth is the same (see `band_radius`): so pictures are grouped by each band, and one is only compared
with those groups whose band is that near to its own. In a large group, such as that of blank pictures, only with those
whose colours have about the same sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import combinations
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from tartools.stages.duplicates import AGAINST_SIDE, INPUT_SIDE

COLOUR_BYTES = 48  # bytes: red, green and blue of 4 by 4 parts
MAX_COLOUR_DISTANCE, MAX_MEAN_DISTANCE = 12, 3  # of 255
MAX_RATIO = 1.1  # between width / height of a picture and of its copy, whose sides were rounded
HASH_BANDS, BITS_IN_BAND = 4, 16
# pictures that are compared with each other, all pairs; so many at once
MAX_LEAF_PICTURES, PICTURES_IN_BLOCK = 2000, 128
GROUP_PARTS = 8  # of more pictures: each is compared with what is kept of those before
MAX_GROUP_COMPARED = 256  # pictures; in a larger group not all are compared
MAX_COLOUR_SUM = 1 << 14  # more than the sum of the colours of a picture
MAX_PAIRS_COMPARED = 1 << 20  # compared at once
CONTENT_RECORD = Struct(f"<Q{COLOUR_BYTES}sII")
NO_PICTURE = bytes(CONTENT_RECORD.size)
# of numpy; the same
PICTURE_DTYPE = [("hash", "<u8"), ("colours", "u1", (COLOUR_BYTES,)), ("width", "<u4"), ("height", "<u4")]


class PictureHashes(NamedTuple):
    """Pictures as columns: numpy arrays with one item a picture. A picture is named by its number, its index in these.

    `hashes`: difference hashes, uint64. `colours`: mean colours, rows of 48 uint8. `shapes`: log(width / height),
    float32.
    """

    hashes: Any
    colours: Any
    shapes: Any

    def sums(self, numbers: Any) -> Any:
        """Return the sum of the 48 colour values of each picture: an array of int64; *numbers*: array of their numbers.

        Near pictures have similar sums.
        """
        return self.colours[numbers].sum(axis=1, dtype=np.int64)

    def are_similar(self, firsts: Any, seconds: Any) -> Any:
        """Return an array of bool: True where pictures `firsts[i]` and `seconds[i]` have similar colours and shapes.

        The limits are MAX_COLOUR_DISTANCE, MAX_MEAN_DISTANCE and MAX_RATIO. Hashes are not compared. *firsts*,
        *seconds*: arrays of picture numbers, of one length.
        """
        near_flags = np.abs(self.shapes[firsts] - self.shapes[seconds]) <= math.log(MAX_RATIO)
        for first in range(0, len(firsts), MAX_PAIRS_COMPARED >> 4):
            block = slice(first, first + (MAX_PAIRS_COMPARED >> 4))
            colours, other_colours = self.colours[firsts[block]], self.colours[seconds[block]]
            differences = np.maximum(colours, other_colours) - np.minimum(colours, other_colours)
            near_flags[block] &= (differences.max(axis=1) <= MAX_COLOUR_DISTANCE) & (
                differences.sum(axis=1, dtype=np.int64) <= MAX_MEAN_DISTANCE * COLOUR_BYTES
            )
        return near_flags


def near_pairs(
    sides: Iterable[tuple[int, Iterable[bytes]]], distance: int, largest: bool
) -> Iterator[tuple[int, int, int, int]]:
    """Yield (position, side and position of the kept picture, distance) for each picture to leave out, by position.

    Pictures are taken in order of position, or, with *largest*, of number of pixels, most first. A picture is left out
    if it is near one that is kept before it, the first of which is yielded: hashes differ in at most *distance* bits,
    and colours and shapes are similar. All pictures of the side that is only compared with are kept, and come first, in
    order of position. The distance is in bits.

    `sides`: (number of the side, contents of its samples), the input last. A content is hash, colours, width and
    height, packed as CONTENT_RECORD; b"" if there is none to compare, which is never left out. Holds: 64 bytes for each
    sample, as many again for each picture, and what `find_first_near` holds.
    """
    rows, begins = bytearray(), [0, 0]
    for side, contents in sides:
        begins[side] = len(rows) // CONTENT_RECORD.size
        for content in contents:
            rows += content or NO_PICTURE
    packed = np.frombuffer(rows, PICTURE_DTYPE)
    begin = begins[INPUT_SIDE]
    pixels = packed["width"].astype(np.int64) * packed["height"]
    comparable = np.flatnonzero(pixels)
    mine = comparable[comparable >= begin]
    if largest:
        mine = mine[np.argsort(-pixels[mine], kind="stable")]
    order = np.concatenate([comparable[comparable < begin], mine])
    fixed = len(order) - len(mine)
    shapes = np.log(packed["width"][order] / packed["height"][order]).astype(np.float32)
    pictures = PictureHashes(packed["hash"][order], packed["colours"][order], shapes)
    near_kept = find_first_near(pictures, fixed, distance)
    dropped = np.flatnonzero(near_kept >= 0)
    dropped = dropped[np.argsort(order[dropped])]
    distances = count_bits(pictures.hashes[dropped] ^ pictures.hashes[near_kept[dropped]])
    for position, kept_row, differing_bits in zip(
        order[dropped].tolist(), order[near_kept[dropped]].tolist(), distances.tolist(), strict=True
    ):
        side = AGAINST_SIDE if kept_row < begin else INPUT_SIDE
        yield position - begin, side, kept_row - begins[side], differing_bits


def count_bits(numbers: Any) -> Any:
    """Return the number of bits that are set in each of *numbers*, an array of uint64 of any shape.

    The result is an array of uint8 of this shape.
    """
    if hasattr(np, "bitwise_count"):
        return np.bitwise_count(numbers)
    eights = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)  # numpy 1
    return eights[numbers[..., None].view(np.uint8)].sum(axis=-1, dtype=np.uint8)


def find_first_near(pictures: PictureHashes, fixed: int, distance: int) -> Any:
    """Return an array with the index of the first kept picture that is near, for each picture; -1: it is kept itself.

    *pictures* are in order of preference. The first *fixed* are kept in any case, and not compared with each other:
    their items are -1.
    `distance`: bits in which hashes may differ.
    Holds: some 80 bytes per picture, and 100 MB. Time: grows with the pairs of kept pictures that have a band alike;
    equal pictures count once.
    """
    # Equal pictures are compared once: only the first of each kind is (`distinct`). First the fixed ones drop others,
    # then `drop_near` chooses among the others. Last, a repeat follows its first picture: it is dropped for that one,
    # or for the one that dropped it; but a repeat of a fixed picture for the first fixed one that is near.
    same = find_first_equal(pictures)
    numbers = np.arange(len(same))
    near_kept = np.full(len(same), -1)
    near_kept[fixed:] = np.where(same == numbers, -1, same)[fixed:]
    distinct = numbers[same == numbers]
    fixed_distinct = distinct[distinct < fixed]
    other_distinct = distinct[distinct >= fixed]
    near_fixed = find_near_kept(pictures, other_distinct, fixed_distinct, distance)
    near_kept[other_distinct] = near_fixed
    drop_near(pictures, other_distinct[near_fixed < 0], distance, near_kept)
    repeats = fixed + np.flatnonzero(same[fixed:] != numbers[fixed:])
    first = same[repeats]
    near_kept[repeats] = np.where(near_kept[first] < 0, first, near_kept[first])
    fixed_twins = repeats[first < fixed]  # of a fixed picture, before which another fixed one may be near
    near_kept[fixed_twins] = find_near_kept(pictures, same[fixed_twins], fixed_distinct, distance)
    return near_kept


def find_first_equal(pictures: PictureHashes) -> Any:
    """Return an array with the first of *pictures* that has the same hash, colours and shape, for each of them.

    Items are picture numbers; in most cases it is the picture itself.
    """
    numbers = [column[:, None].view(np.uint8) for column in (pictures.hashes, pictures.shapes)]
    packed = np.concatenate([*numbers, pictures.colours], axis=1)
    rows = packed.view(f"V{packed.shape[1]}").ravel()
    _, first, group_of = np.unique(rows, return_index=True, return_inverse=True)
    return first[group_of]


def drop_near(pictures: PictureHashes, numbers: Any, distance: int, near_kept: Any) -> Any:
    """Drop the pictures among *numbers* that are near an earlier kept one; return an array of the kept numbers.

    *numbers*: array of picture numbers, in order of preference. *near_kept*: array with an item for each picture, -1
    for these; it gets the number of the first kept picture that is near, for each dropped one. *distance*: bits in
    which hashes of near pictures may differ. Compares all pairs of up to 2,000 pictures (MAX_LEAF_PICTURES); more are
    taken in 8 parts, one after the other.
    """
    if len(numbers) <= MAX_LEAF_PICTURES:
        for preferred, second in compare_all_pairs(pictures, numbers, distance):
            if near_kept[preferred] < 0 and near_kept[second] < 0:
                near_kept[second] = preferred
        return numbers[near_kept[numbers] < 0]
    kept_numbers = numbers[:0]
    for part in np.array_split(numbers, GROUP_PARTS):
        near_kept[part] = find_near_kept(pictures, part, kept_numbers, distance)
        kept_numbers = np.concatenate(
            [kept_numbers, drop_near(pictures, part[near_kept[part] < 0], distance, near_kept)]
        )
    return kept_numbers


def compare_all_pairs(pictures: PictureHashes, numbers: Any, distance: int) -> Iterator[tuple[int, int]]:
    """Yield (first, second) for each two of *numbers* whose pictures are near: hashes, colours and shapes.

    *numbers*: array of picture numbers. *distance*: bits in which their hashes may differ. The first is the one that
    comes before in *numbers*; pairs are in the order of the first there, then of the second.
    """
    hashes = pictures.hashes[numbers]
    for first in range(0, len(numbers), PICTURES_IN_BLOCK):
        is_near = count_bits(hashes[first : first + PICTURES_IN_BLOCK, None] ^ hashes[None, first:]) <= distance
        first_rows, second_rows = (first + side for side in np.nonzero(np.triu(is_near, 1)))
        similar = pictures.are_similar(numbers[first_rows], numbers[second_rows])
        yield from zip(numbers[first_rows[similar]].tolist(), numbers[second_rows[similar]].tolist(), strict=True)


def find_near_kept(pictures: PictureHashes, numbers: Any, kept_numbers: Any, distance: int) -> Any:
    """Return an array: for each picture of *numbers* the least of *kept_numbers* that is near it; -1 if none is.

    Near: hashes differ in at most *distance* bits, and colours and shapes are similar (`PictureHashes.are_similar`).
    There may be a nearer one with a larger number. *numbers*, *kept_numbers*: arrays of picture numbers; the kept ones
    ascend.
    """
    first_indexes = np.full(len(numbers), len(pictures.hashes))
    if len(numbers) and len(kept_numbers):
        for indexes, candidates in candidate_pairs(pictures, numbers, kept_numbers, distance):
            differences = pictures.hashes[numbers[indexes]] ^ pictures.hashes[candidates]
            close = np.flatnonzero(count_bits(differences) <= distance)
            close = close[pictures.are_similar(numbers[indexes[close]], candidates[close])]
            np.minimum.at(first_indexes, indexes[close], candidates[close])
    return np.where(first_indexes == len(pictures.hashes), -1, first_indexes)


def candidate_pairs(
    pictures: PictureHashes, numbers: Any, kept_numbers: Any, distance: int
) -> Iterator[tuple[Any, Any]]:
    """Yield arrays of pairs of *pictures* that may be near: (indexes in *numbers*, items of *kept_numbers*).

    *numbers*, *kept_numbers*: arrays of picture numbers. Up to a million pairs at once (MAX_PAIRS_COMPARED), or those
    of one picture. All pairs whose hashes differ in at most *distance* bits are among them, some several times, but for
    pairs whose colours can't be near; other pairs are, too.
    """
    my_sums, sums = pictures.sums(numbers), pictures.sums(kept_numbers)
    for band in range(HASH_BANDS):
        counts = range(band_radius(distance, band) + 1)
        masks = [
            sum(1 << bit for bit in chosen) for count in counts for chosen in combinations(range(BITS_IN_BAND), count)
        ]
        # kept pictures sorted by the bits of this band, then by the sum of their colours: those with the bits b are
        # items bounds[b] to bounds[b + 1], and in a large group a range of sums is found by bisection
        mine, theirs = bits_of_band(pictures.hashes[numbers], band), bits_of_band(pictures.hashes[kept_numbers], band)
        order = np.lexsort((sums, theirs))
        keys = theirs[order] * MAX_COLOUR_SUM + sums[order]
        bounds = np.zeros((1 << BITS_IN_BAND) + 1, np.int64)
        np.cumsum(np.bincount(theirs, minlength=1 << BITS_IN_BAND), out=bounds[1:])
        grouped = kept_numbers[order]
        for mask in masks:
            groups = mine ^ mask
            places = np.flatnonzero(bounds[groups + 1] > bounds[groups])
            groups = groups[places]
            begins, ends = bounds[groups], bounds[groups + 1]
            large = np.flatnonzero(ends - begins > MAX_GROUP_COMPARED)
            sums_near = my_sums[places[large]]
            low_sums, high_sums = (
                np.maximum(sums_near - MAX_MEAN_DISTANCE * COLOUR_BYTES, 0),
                np.minimum(sums_near + MAX_MEAN_DISTANCE * COLOUR_BYTES, MAX_COLOUR_SUM - 1),
            )
            begins[large] = np.searchsorted(keys, groups[large] * MAX_COLOUR_SUM + low_sums, "left")
            ends[large] = np.searchsorted(keys, groups[large] * MAX_COLOUR_SUM + high_sums, "right")
            for block in slices_of_counts(ends - begins):
                lengths = (ends - begins)[block]
                steps = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
                yield np.repeat(places[block], lengths), grouped[np.repeat(begins[block], lengths) + steps]


def band_radius(distance: int, band: int) -> int:
    """Return in how many bits at most hashes may differ within a band to be compared; -1 if it is not searched.

    *band*: its number, 0 to 3. Hashes that differ in more bits in every band differ in more than *distance* bits in
    all.

    >>> [band_radius(6, band) for band in range(4)], [band_radius(0, band) for band in range(4)]
    ([1, 1, 1, 0], [0, -1, -1, -1])
    """
    return (distance + HASH_BANDS - band) // HASH_BANDS - 1


def bits_of_band(hashes: Any, band: int) -> Any:
    """Return the 16 bits of each of *hashes* in *band*, an array of int64: every fourth bit, from bit *band* on.

    *hashes*: array of uint64; bit 0 is the highest one of the first byte in memory. So each band has bits of all parts
    of a picture: neighbouring bits are often alike.
    """
    every = np.unpackbits(np.ascontiguousarray(hashes)[:, None].view(np.uint8), axis=1)
    return np.packbits(every[:, band::HASH_BANDS], axis=1).view(np.uint16)[:, 0].astype(np.int64)


def slices_of_counts(counts: Any) -> Iterator[slice]:
    """Yield slices that divide *counts*, an array, in parts whose sums are up to a million; a larger count is alone."""
    ends = np.cumsum(counts)
    first = 0
    while first < len(counts):
        before = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + MAX_PAIRS_COMPARED, "right")))
        yield slice(first, last)
        first = last
