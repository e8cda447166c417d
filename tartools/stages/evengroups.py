"""Assign whole groups of samples to parts so that each part gets its share of the samples of each class.

The parts of all groups that differ least from the shares are hard to compute (it is a partition problem), so groups are
assigned one by one, as Sechidis et al. do for samples with several labels ("On the Stratification of Multi-label Data",
ECML 2011), and then moved:

    imbalance = sum over classes and parts of (samples - target)^2 / (target * samples of the class)

    1. largest groups first: each goes to the part where it adds least to the imbalance
    2. up to 200 groups: move one to another part, or swap two, while that reduces the imbalance

All samples count as one more class, so that parts have their sizes, too. Each class has the same weight, however few
samples it has. Sums are made in one order, so the result is the same on all machines.
"""

import marshal
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

from tartools.samples.sortkeys import COMPLEMENT, DOUBLE
from tartools.stages.externalsort import LENGTH_BYTES, external_sort
from tartools.stages.shares import Part, share_text

MAX_MOVED_GROUPS = 200  # groups that are moved after all have been assigned: pairs of them are compared
MAX_ROUNDS = 20  # rounds of moves; two or three are the rule
MIN_GAIN = 1e-12  # of imbalance, for a move: less may be the error of rounding
SORTED_GROUPS_BYTES = 32 << 20  # bytes of groups that are sorted in memory


class GroupCounts(NamedTuple):
    """The samples of one group.

    `hash`: of its value, 8 bytes. `number`: of the group, from 0. `counts`: (index of a class, number of samples) for
    each class that it has, by index.
    """

    hash: bytes
    number: int
    counts: tuple[tuple[int, int], ...]


class Imbalance:
    """The samples of each class in each part, and how much adding a group to a part changes the imbalance.

    Imbalance: the sum over all classes and parts of (samples - target) ** 2 / (target * samples of the class), where
    target is the part's share of the class; all samples together count as one more class.
    *parts*: with their shares. *totals*: samples of each class, in the whole data set, none 0. All parts are empty at
    first; `add` puts a group into one.
    `counts`: for each part, a list: its samples of each class, and as last item its samples of all classes.
    """

    def __init__(self, parts: Sequence[Part], totals: Sequence[int]) -> None:
        self._totals = [*totals, sum(totals)]
        weights = sum(part.weight for part in parts)
        self._targets = [[total * part.weight / weights for total in self._totals] for part in parts]
        self.counts = [[0] * len(self._totals) for _ in parts]

    def largeness(self, group: GroupCounts) -> float:
        """Return the sum of the fractions that *group* has of the samples of each class, and of all samples.

        It is the larger, the more of a class the group has: 2 for one that has all samples, if there is one class.
        """
        return sum(count / self._totals[index] for index, count in self._with_size(group))

    def change(self, group: GroupCounts, part: int, sign: int = 1) -> float:
        """Return the change of imbalance if *group* were added to *part*, an index (or, *sign* -1, taken from it).

        Nothing is added or taken. A negative number: the parts would be nearer to their shares.
        """
        counts, targets, totals = self.counts[part], self._targets[part], self._totals
        return sum(
            count * (count + sign * 2 * (counts[index] - targets[index])) / (targets[index] * totals[index])
            for index, count in self._with_size(group)
        )

    def add(self, group: GroupCounts, part: int, sign: int = 1) -> None:
        """Add the samples of *group* to `counts` of *part*, an index (or, *sign* -1, subtract them)."""
        counts = self.counts[part]
        for index, count in self._with_size(group):
            counts[index] += sign * count

    def best_part(self, group: GroupCounts) -> int:
        """Return the index of the part where *group* adds least to the imbalance; of equal ones the first."""
        return min(range(len(self.counts)), key=lambda part: self.change(group, part))

    def _with_size(self, group: GroupCounts) -> Iterator[tuple[int, int]]:
        """Yield (index of the class, samples of *group*) for each of its classes, then (-1, all its samples)."""
        yield from group.counts
        yield -1, sum(count for _, count in group.counts)

    def describe(self, parts: Sequence[Part], classes: Sequence[str]) -> str:
        """Return a sentence on the class and part where the part's fraction of the class is furthest from its share.

        Such as "the largest difference is 5%: val has 15% of the samples with 'cat', its share is 10%".
        *parts*: with their shares, as given to the constructor. *classes*: the values that stand for the indexes of
        classes; 40 characters of one are shown. Of equal differences the first class counts, and its first part.
        Without a difference, the sentence says that each part has its share exactly; "" if there is no class.
        """
        weights = sum(part.weight for part in parts)
        difference, index, number = max(
            (
                (abs(self.counts[number][index] - self._targets[number][index]) / self._totals[index], -index, -number)
                for index in range(len(classes))
                for number in range(len(parts))
            ),
            default=(0.0, 0, 0),
        )
        index, number = -index, -number
        if not difference:
            return "each part has its share of each value exactly" if classes else ""
        name, weight = parts[number]
        return (
            f"the largest difference is {share_text(round(difference * 1000), 1000)}: {name} has "
            f"{share_text(self.counts[number][index], self._totals[index])} of the samples with "
            f"{classes[index][:40]!r}, its share is {share_text(weight, weights)}"
        )


def assign_evenly(groups: Iterable[GroupCounts], imbalance: Imbalance, tmpdir: str | None) -> "array[int]":
    """Return an array: at the number of each of *groups* the index of its part, chosen so that *imbalance* is small.

    *imbalance*: without groups so far; all are added to it, each in its part. The numbers of groups are 0, 1, and so
    on. The parts depend on hashes and counts, not on these numbers, unless two hashes are equal.
    Holds: 32 MiB of groups, further ones in unnamed files in *tmpdir*, and two bytes a group. Raises: StorageError if
    such a file can't be written.
    """
    parts = array("H")
    first: list[GroupCounts] = []
    for group in _sort_by_size(groups, imbalance, tmpdir):
        part = imbalance.best_part(group)
        imbalance.add(group, part)
        parts.extend([0] * (group.number + 1 - len(parts)))
        parts[group.number] = part
        if len(first) <= MAX_MOVED_GROUPS:
            first.append(group)
    if len(first) <= MAX_MOVED_GROUPS:
        rounds = 0
        while rounds < MAX_ROUNDS and (_move_groups(first, parts, imbalance) | _swap_groups(first, parts, imbalance)):
            rounds += 1
    return parts


def _sort_by_size(groups: Iterable[GroupCounts], imbalance: Imbalance, tmpdir: str | None) -> Iterator[GroupCounts]:
    """Yield *groups* sorted by their largeness in *imbalance*, the largest first; equal ones by hash, then by number.

    Holds: 32 MiB of groups, further ones in unnamed files in *tmpdir*. Raises: StorageError if one can't be written.
    """

    def record(group: GroupCounts) -> bytes:
        """Return *group* as bytes that compare by largeness, the largest first, then by hash, then by number."""
        size = DOUBLE.pack(imbalance.largeness(group)).translate(COMPLEMENT)
        return size + group.hash + group.number.to_bytes(LENGTH_BYTES, "big") + marshal.dumps(group.counts)

    for packed in external_sort(map(record, groups), SORTED_GROUPS_BYTES, tmpdir):
        number = int.from_bytes(packed[2 * LENGTH_BYTES : 3 * LENGTH_BYTES], "big")
        counts = marshal.loads(packed[3 * LENGTH_BYTES :])  # noqa: S302 - what `record` made
        yield GroupCounts(packed[LENGTH_BYTES : 2 * LENGTH_BYTES], number, counts)


def _move_groups(groups: Sequence[GroupCounts], parts: "array[int]", imbalance: Imbalance) -> bool:
    """Move each of *groups* to the part where it adds least to *imbalance*, if that reduces it.

    *parts*: index of the part of each group, by its number; changed in place, as `imbalance.counts` are. Return True if
    a group was moved.
    """
    moved = False
    for group in groups:
        part = parts[group.number]
        before = imbalance.change(group, part, -1)
        imbalance.add(group, part, -1)
        best = imbalance.best_part(group)
        if best != part and before + imbalance.change(group, best) < -MIN_GAIN:
            part, moved = best, True
        imbalance.add(group, part)
        parts[group.number] = part
    return moved


def _swap_groups(groups: Sequence[GroupCounts], parts: "array[int]", imbalance: Imbalance) -> bool:
    """Swap the parts of each two of *groups* if that reduces *imbalance*; return True if two were swapped.

    Each two are tried once, in order. *parts*: index of the part of each group, by its number; changed in place, as
    `imbalance.counts` are.
    """
    swapped = False
    for group, other_group in combinations(groups, 2):
        first, second = parts[group.number], parts[other_group.number]
        if first == second or group.counts == other_group.counts:
            continue
        change = imbalance.change(group, first, -1) + imbalance.change(other_group, second, -1)
        imbalance.add(group, first, -1)
        imbalance.add(other_group, second, -1)
        change += imbalance.change(group, second) + imbalance.change(other_group, first)
        if change < -MIN_GAIN:
            first, second, swapped = second, first, True
        imbalance.add(group, first)
        imbalance.add(other_group, second)
        parts[group.number], parts[other_group.number] = first, second
    return swapped
