"""Mix: the items of several sources, one by one, in shares. Equal seed, shares and sources give an equal order.

Which source the next item comes from is drawn in blocks of 8. A block has 8 numbers that are spread evenly over the
range from 0 to 2**64, in which each source has a part as large as its share; so in each block the sources have their
shares, rounded. Each block begins further on than the one before by the golden ratio, which spreads the rounding evenly
over blocks. Within a block the order is random. At every place the chance of a source is its share, exactly.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from math import lcm
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from tartools.errors import SampleError

if TYPE_CHECKING:
    from fractions import Fraction  # takes 4 ms to import

Item = TypeVar("Item")  # a sample, or what stands for one
Stop = Literal["first", "all", "longest"]

BITS = 64
WHOLE = 1 << BITS
BLOCK = 8  # numbers
STEP = 0x9E3779B97F4A7C15  # WHOLE divided by the golden ratio; odd
END = object()


class Mixture(Generic[Item]):
    """The items of *sources* in *shares*, which are above 0 and need not sum to 1; to be iterated once.

    Where a source ends, *stop* says what comes: "first" ends the mixture, "all" goes on without the source until all
    have ended, and "longest" iterates the source once more, until each has ended once. *taken* is how many items of
    each source came so far, *rounds* how often each was begun again, *ended* which have ended, in order.

    Iterating yields (item, number of the source, round). Order: that of each source. Holds nothing but what the sources
    hold, which are all open at once. Raises: ValueError for a share of no use; SampleError for a source that has no
    items to repeat, or is an iterator, which can't be iterated twice.
    """

    def __init__(
        self,
        sources: Sequence[Iterable[Item]],
        shares: Sequence[float | Fraction],
        stop: Stop = "first",
        seed: int = 0,
    ) -> None:
        if len(sources) != len(shares):
            raise ValueError(f"{len(sources)} sources, and {len(shares)} shares")
        self._sources = sources
        self._weights = weights(shares)
        self._stop = stop
        self._seed = seed
        self.taken = [0] * len(sources)
        self.rounds = [0] * len(sources)
        self.ended: list[int] = []

    def __iter__(self) -> Iterator[tuple[Item, int, int]]:
        """Yield (item, number of the source, round)."""
        taken, rounds = self.taken, self.rounds
        going = [iter(source) for source in self._sources]
        live = list(range(len(going)))
        bounds = upper_bounds(self._weights)
        try:
            for number in numbers(self._seed):
                if not live:
                    return
                which = live[bisect_right(bounds, number)]
                item = next(going[which], END)
                if item is END:
                    if which not in self.ended:
                        self.ended.append(which)
                    if self._stop == "all":
                        live.remove(which)
                        bounds = upper_bounds([self._weights[each] for each in live])
                        continue
                    if self._stop == "first" or len(self.ended) == len(going):
                        return
                    going[which] = self._again(which)
                    item = next(going[which], END)
                    if item is END:
                        raise SampleError(f"source {which} has no samples, so it can't be repeated")
                taken[which] += 1
                yield item, which, rounds[which]  # type: ignore[misc]  # it is no END
        finally:
            for each in going:
                close = getattr(each, "close", None)
                if close:
                    close()

    def _again(self, which: int) -> Iterator[Item]:
        """Return the items of the source *which*, once more. Raises: SampleError if that can't be."""
        source = self._sources[which]
        again = iter(source)
        if again is source:
            raise SampleError(f"source {which} is an iterator that has ended, and can't be iterated again")
        self.rounds[which] += 1
        return again


def mixed(
    sources: Sequence[Iterable[Item]], shares: Sequence[float | Fraction], *, stop: Stop = "first", seed: int = 0
) -> Iterator[Item]:
    """Yield the items of *sources* in *shares*: see `Mixture`.

    >>> "".join(mixed(["a" * 7, "b" * 3], [0.7, 0.3], seed=1, stop="all"))
    'aaaabababa'
    """
    return (item for item, _, _ in Mixture(sources, shares, stop, seed))


def weights(shares: Sequence[float | Fraction]) -> list[int]:
    """Return whole numbers in the proportions of *shares*. Raises: ValueError for one that is not above 0.

    >>> weights([0.5, 0.25, 3])
    [2, 1, 12]
    """
    pairs = []
    for share in shares:
        try:
            pair = share.as_integer_ratio()
        except (OverflowError, ValueError):  # infinite, not a number
            pair = (0, 1)
        if pair[0] <= 0:
            raise ValueError(f"a share is a number above 0, not {share}")
        pairs.append(pair)
    whole = lcm(*(under for _, under in pairs))
    return [over * (whole // under) for over, under in pairs]


def upper_bounds(weights: Sequence[int]) -> list[int]:
    """Return where the part of each source ends in the range from 0 to 2**64; the last ends there.

    >>> [bound / WHOLE for bound in upper_bounds([1, 1, 2])]
    [0.25, 0.5, 1.0]
    """
    total, before = sum(weights), 0
    bounds = []
    for weight in weights:
        before += weight
        bounds.append(-(-before * WHOLE // total))
    return bounds


def numbers(seed: int) -> Iterator[int]:
    """Yield numbers below 2**64, evenly spread and in random order: see the module. *seed* decides which."""
    random = scrambled(seed)
    begin = next(random)
    while True:
        block = [(begin + place * WHOLE) // BLOCK for place in range(BLOCK)]
        for last in range(BLOCK - 1, 0, -1):
            other = next(random) * (last + 1) >> BITS
            block[last], block[other] = block[other], block[last]
        yield from block
        begin = (begin + STEP) % WHOLE


def scrambled(seed: int) -> Iterator[int]:
    """Yield random numbers below 2**64: SplitMix64, which needs no import and is the same everywhere."""
    state = seed
    while True:
        state = (state + STEP) % WHOLE
        number = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % WHOLE
        number = (number ^ number >> 27) * 0x94D049BB133111EB % WHOLE
        yield number ^ number >> 31
