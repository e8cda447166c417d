"""Mix: the items of several sources, one by one, in shares. Equal seed, shares and sources give an equal order.

Which source the next item comes from is drawn in blocks of 8. A block has 8 numbers that are spread evenly over the
range from 0 to 2**64, in which each source has a part as large as its share; so in each block the sources have their
shares, rounded. Each block begins further on than the one before by the golden ratio, which spreads the rounding evenly
over blocks. Within a block the order is random. At every place the chance of a source is its share, exactly.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Generic, Literal, TypeVar

from tartools import storage
from tartools.errors import SampleError, StorageError, shown
from tartools.samples.account import FIRST, Account
from tartools.shards.reading import closing_upstream
from tartools.stages.shares import WHOLE, upper_bounds
from tartools.storage.url import Url
from tartools.tables.schema import is_table

Item = TypeVar("Item")  # a sample, or what stands for one
Stop = Literal["first", "all", "longest"]

BITS = 64
BLOCK = 8  # numbers
STEP = 0x9E3779B97F4A7C15  # WHOLE divided by the golden ratio; odd
END = object()


class MixedSource(Generic[Item]):
    """What stands for the samples of *urls*: the items of the batches that *read* returns. It is to be closed.

    If it is iterated again, they are read once more. An empty one is a failure if it is *needed*. With *rows*, reading
    costs nothing. Holds: what *read* returned.
    """

    def __init__(
        self,
        urls: Sequence[Url],
        read: Callable[[], Iterator[Any]],
        account: Account,
        *,
        needed: bool,
        rows: bool,
    ) -> None:
        self.name = f"{shown(urls[0])}{f' and {len(urls) - 1} more' if urls[1:] else ''}"
        self._urls = urls
        self._read = read
        self._account = account
        self._needed = needed
        self._rows = rows
        self._counts: list[int] = []  # samples of each round that ended
        self._waiting = 0  # samples of the current batch that were not taken
        self._batches: Iterator[Any] = read() if rows else iter(())

    def __iter__(self) -> Iterator[Item]:
        """Return the items. Raises: StorageError if they can't be read again."""
        for url in self._urls if self._counts else ():
            if not storage.is_repeatable(url):
                raise StorageError(
                    "has ended before the longest source, and can't be read again: copy it to a file", url=url
                )
        self._batches = self._read()
        return self._items()

    def _items(self) -> Iterator[Item]:
        account, count = self._account, 0
        for batch in self._batches:
            self._waiting = len(batch)
            for item in batch:
                account.samples_in += 1
                self._waiting -= 1
                count += 1
                yield item
        if not count and self._needed:
            raise SampleError("this source has no samples, so --stop longest can't repeat it", url=self._urls[0])
        if self._counts and self._counts[0] != count:
            raise StorageError(
                f"changed while it was read: it had {self._counts[0]} samples, now {count}", url=self._urls[0]
            )
        self._counts.append(count)

    def rest(self, all_of_it: bool) -> int | None:
        """Return how many samples were not taken; None if that takes reading what may be large, unless *all_of_it*.

        They are counted as read. Only tables are counted in any case: of plain local shards only headers are read, but
        all of compressed ones, and of what servers and commands send.
        """
        if not self._rows and not all(is_table(url) or (all_of_it and is_plain(url)) for url in self._urls):
            return None
        left = self._waiting + sum(map(len, self._batches))
        self._account.samples_in += left
        return left

    def close(self) -> None:
        """Stop reading."""
        with closing_upstream(self._batches):
            pass


def is_plain(url: Url) -> bool:
    """Tell whether *url* is a local file that is not compressed."""
    from tartools.shards.workers import is_compressed_file

    return storage.plain_size(url) is not None and not is_compressed_file(url)


class Mixing(Generic[Item]):
    """The items of *sources* in the proportions of *shares*, whole numbers above 0; to be iterated once.

    Where a source ends, *stop* says what comes: "first" ends the mixture, "all" goes on without the source until all
    have ended, and "longest" iterates the source once more, until each has ended once. If *total* is given, it has so
    many items at most. *rekey* is the template of the keys that samples get; *account* is told what is left out.
    *taken* is how many items of each source came so far, *rounds* how often each was begun again, *ended* which have
    ended, in order.

    Iterating yields (item, number of the source, round). Order: that of each source. Holds nothing but what the sources
    hold, which are all open at once. A source without items, which can't be repeated, has to raise that itself.
    """

    def __init__(
        self,
        sources: Sequence[MixedSource[Item]],
        shares: Sequence[int],
        stop: Stop,
        seed: int,
        total: int | None,
        rekey: str | None,
        account: Account,
    ) -> None:
        self._sources = sources
        self._shares = shares
        self._stop = stop
        self._seed = seed
        self._total = total
        self._rekey = rekey or ""
        self._account = account
        self.taken = [0] * len(sources)
        self.rounds = [0] * len(sources)
        self.ended: list[int] = []
        self._known: set[bytes] = set()  # the first keys that are written
        self._again: bytes | None = None  # one of these that comes again

    def __iter__(self) -> Iterator[tuple[Item, int, int]]:
        """Yield items, each with the number of its source and the round; then say what was left out."""
        yield from islice(self.mixed(), self._total)
        self._report()

    def mixed(self) -> Iterator[tuple[Item, int, int]]:
        """Yield (item, number of the source, round), of all samples."""
        taken, rounds = self.taken, self.rounds
        going = [iter(source) for source in self._sources]
        live = list(range(len(going)))
        bounds = upper_bounds(self._shares)
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
                        bounds = upper_bounds([self._shares[each] for each in live])
                        continue
                    if self._stop == "first" or len(self.ended) == len(going):
                        return
                    self.rounds[which] += 1
                    going[which] = iter(self._sources[which])
                    item = next(going[which])
                taken[which] += 1
                yield item, which, rounds[which]  # type: ignore[misc]  # it is no END
        finally:
            for each in going:
                close = getattr(each, "close", None)
                if close:
                    close()

    def written(self, batches: Iterable[Any], keys: Callable[[Any], Iterable[bytes | None]]) -> Iterator[Any]:
        """Yield *batches*, which are made of the items and have *keys*; then warn if a key may come again."""
        batches = iter(batches)
        for batch in batches:
            if self._again is None:
                for key in islice(keys(batch), FIRST - len(self._known)):
                    if key in self._known:
                        self._again = key
                        break
                    if key is not None:
                        self._known.add(key)
            yield batch
            if len(self._known) == FIRST:
                break
        yield from batches
        self._warn_of_keys()

    def _report(self) -> None:
        total, account = self._total, self._account
        count = sum(self.taken)
        full = total is not None and count == total
        left: list[str] = []
        for number, source in enumerate(self._sources):
            if self.rounds[number] or number in self.ended or (self._stop != "first" and not full):
                continue
            found = source.rest(not full)
            account.left_out += found or 0
            if found is None:
                left.append(f"what follows in {source.name} (not read)")
            elif found:
                left.append(f"{found} of {source.name}")
        why = f"{count} samples are written, as --count says"
        if not full:
            last = self.ended[-1]
            why = f"{self._sources[last].name} ended after {self.taken[last]} samples"
            if total is not None:
                why += f", so {count} samples are written, not {total}"
        if left or (total is not None and not full):
            account.warn("; left out: ".join([why, *([", ".join(left)] if left else [])]))

    def _warn_of_keys(self) -> None:
        """Warn once if samples of the output may have the same key."""
        repeated = [number for number, rounds in enumerate(self.rounds) if rounds]
        if repeated and "{round" not in self._rekey and "{index" not in self._rekey:
            first = repeated[0]
            more = ", others too" if repeated[1:] else ""
            self._account.warn(
                f"{self._sources[first].name} was begun {self.rounds[first] + 1} times{more}, so keys come "
                "again; --rekey '{source}/{round}/{key}' makes them differ"
            )
        elif self._again is not None and not repeated:
            key = self._again.decode("utf-8", "surrogateescape")
            self._account.warn(
                f"the key {key!r} comes again among the first {FIRST:,} samples; "
                "--rekey '{source}/{key}' makes keys of different sources differ"
            )


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
