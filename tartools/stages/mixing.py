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
from tartools.samples.account import MAX_KEYS_REMEMBERED, Account
from tartools.shards.passes import ItemSource
from tartools.shards.reading import close_at_end
from tartools.stages.shares import HASH_RANGE, upper_bounds
from tartools.storage.url import Url
from tartools.tables.schema import is_table

Item = TypeVar("Item")  # a sample, or what stands for one
Stop = Literal["first", "all", "longest"]

POSITION_BITS = 64
NUMBERS_IN_BLOCK = 8  # numbers
GOLDEN_STEP = 0x9E3779B97F4A7C15  # HASH_RANGE divided by the golden ratio; odd
SOURCE_ENDED = object()


class MixedSource(Generic[Item]):
    """One source of a mixture, which can be iterated several times; it yields items: samples or row numbers.

    *source*: (URLs, function that returns the batches of items, True if items are row numbers). `account`: counts the
    items as read. `needed`: True makes a source without items an error when it ends. Take one iterator at a time, since
    a new one replaces the batches of the one before; call `close` at the end. `name`: for messages, its first URL, and
    how many more there are: "a.tar and 2 more". Holds: the batches of *source*.
    """

    def __init__(self, source: ItemSource, account: Account, *, needed: bool) -> None:
        urls, self._read, self._is_indexed = source
        self.name = f"{shown(urls[0])}{f' and {len(urls) - 1} more' if urls[1:] else ''}"
        self._urls = [Url(url) for url in urls]
        self._account = account
        self._needed = needed
        self._counts: list[int] = []  # samples of each round that ended
        self._waiting = 0  # samples of the current batch that have not been taken
        self._batches: Iterator[Any] = self._read() if self._is_indexed else iter(())

    def __iter__(self) -> Iterator[Item]:
        """Return an iterator of the items, from the first on.

        An item is counted as read when it is taken. Raises: StorageError, once all items have been taken before, if an
        input can't be read again. Taking items raises the errors of reading and, at their end, SampleError for a needed
        source without any; StorageError if their number differs from the first round's.
        """
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

    def count_remaining(self, read_all: bool) -> int | None:
        """Count the samples not yet taken in this round as read in the account; return their number.

        They can't be taken after that. Returns None, and counts nothing, if that takes too long. Row numbers and tables
        are always counted. With *read_all*, so are plain local shards, of which only headers are read; compressed
        shards, servers and commands never are, because they would be read to their end: one such input is enough for
        None. Raises: the errors of reading.
        """
        if not self._is_indexed and not all(is_table(url) or (read_all and is_plain_file(url)) for url in self._urls):
            return None
        remaining = self._waiting + sum(map(len, self._batches))
        self._account.samples_in += remaining
        return remaining

    def close(self) -> None:
        """Stop reading the source; close its batches."""
        with close_at_end(self._batches):
            pass


def is_plain_file(url: Url) -> bool:
    """True if *url* is a regular local file that is not compressed; False also if it is missing or can't be read."""
    from tartools.shards.workers import is_compressed_file

    return storage.plain_size(url) is not None and not is_compressed_file(url)


class Mixture(Generic[Item]):
    """The items of *sources*, mixed at random in the proportions *shares*, whole numbers above 0; iterated once.

    `stop`: what happens when a source ends: "first" ends the mixture, "all" goes on without the source until all have
        ended, and "longest" iterates the source once more, until each has ended once.
    `seed`: of the random order. `total`: the most items, None for no limit. `rekey`: template of the new keys, for
        advice in warnings.
    `account`: gets the warnings, about samples left out and repeated keys, and counts the former as left out.
    `item_counts`: number of items of each source so far. `rounds`: number of restarts of each source. `ended_sources`:
        numbers of the sources that have ended, in order.

    Iterating yields (item, number of the source, its round, from 0). Order: that of each source. Holds: the batches of
    the sources, which are all open at once. A source without items can't be repeated, and has to raise an error itself.
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
        self.item_counts = [0] * len(sources)
        self.rounds = [0] * len(sources)
        self.ended_sources: list[int] = []
        self._first_keys: set[bytes] = set()  # the first keys that are written
        self._repeated_key: bytes | None = None  # one of these that comes again

    def __iter__(self) -> Iterator[tuple[Item, int, int]]:
        """Yield (item, number of the source, round), at most *total* of them; then warn of the samples left out.

        Samples are left out by *stop* "first", or if *total* is reached; if they can be counted quickly, the account
        counts them as read and left out. It also warns if fewer than *total* samples came. Raises: the errors of the
        sources.
        """
        yield from islice(self.draw_items(), self._total)
        self._report()

    def draw_items(self) -> Iterator[tuple[Item, int, int]]:
        """Yield (item, number of the source, round) until *stop* ends the mixture, without the limit *total*.

        Updates `item_counts`, `rounds` and `ended_sources`; nothing is reported. Raises: the errors of the sources.
        """
        counts, rounds = self.item_counts, self.rounds
        going = [iter(source) for source in self._sources]
        live = list(range(len(going)))
        bounds = upper_bounds(self._shares)
        try:
            for number in spread_numbers(self._seed):
                if not live:
                    return
                source_number = live[bisect_right(bounds, number)]
                item = next(going[source_number], SOURCE_ENDED)
                if item is SOURCE_ENDED:
                    if source_number not in self.ended_sources:
                        self.ended_sources.append(source_number)
                    if self._stop == "all":
                        live.remove(source_number)
                        bounds = upper_bounds([self._shares[index] for index in live])
                        continue
                    if self._stop == "first" or len(self.ended_sources) == len(going):
                        return
                    self.rounds[source_number] += 1
                    going[source_number] = iter(self._sources[source_number])
                    item = next(going[source_number])
                counts[source_number] += 1
                yield item, source_number, rounds[source_number]  # type: ignore[misc]  # it is no SOURCE_ENDED
        finally:
            for iterator in going:
                close = getattr(iterator, "close", None)
                if close:
                    close()

    def warn_of_repeats(self, batches: Iterable[Any], keys: Callable[[Any], Iterable[bytes | None]]) -> Iterator[Any]:
        """Yield *batches* of the mixed items unchanged; then warn if keys may have been written twice.

        They may if a source was read again, and the template *rekey* has neither `{round` nor `{index`; or, if none was
        read again, if a key comes twice among the first 10,000 (MAX_KEYS_REMEMBERED). `keys(batch)`: returns the keys
        of a batch, None for an item without one.
        """
        batches = iter(batches)
        for batch in batches:
            if self._repeated_key is None:
                for key in islice(keys(batch), MAX_KEYS_REMEMBERED - len(self._first_keys)):
                    if key in self._first_keys:
                        self._repeated_key = key
                        break
                    if key is not None:
                        self._first_keys.add(key)
            yield batch
            if len(self._first_keys) == MAX_KEYS_REMEMBERED:
                break
        yield from batches
        self._warn_of_keys()

    def _report(self) -> None:
        total, account = self._total, self._account
        count = sum(self.item_counts)
        full = total is not None and count == total
        descriptions: list[str] = []
        for number, source in enumerate(self._sources):
            if self.rounds[number] or number in self.ended_sources or (self._stop != "first" and not full):
                continue
            remaining = source.count_remaining(not full)
            account.left_out += remaining or 0
            if remaining is None:
                descriptions.append(f"what follows in {source.name} (not read)")
            elif remaining:
                descriptions.append(f"{remaining} of {source.name}")
        why = f"{count} samples are written, as --count says"
        if not full:
            last = self.ended_sources[-1]
            why = f"{self._sources[last].name} ended after {self.item_counts[last]} samples"
            if total is not None:
                why += f", so {count} samples are written, not {total}"
        if descriptions or (total is not None and not full):
            account.warn("; left out: ".join([why, *([", ".join(descriptions)] if descriptions else [])]))

    def _warn_of_keys(self) -> None:
        """Warn if a source was read again, so that keys come again, or if a key came twice among the first 10,000.

        If a source was read again, only that counts: there is no warning if the template *rekey* has `{round` or
        `{index`. The text says how --rekey avoids it.
        """
        repeated = [number for number, rounds in enumerate(self.rounds) if rounds]
        if repeated and "{round" not in self._rekey and "{index" not in self._rekey:
            first = repeated[0]
            others_note = ", others too" if repeated[1:] else ""
            self._account.warn(
                f"{self._sources[first].name} was begun {self.rounds[first] + 1} times{others_note}, so keys come "
                "again; --rekey '{source}/{round}/{key}' makes them differ"
            )
        elif self._repeated_key is not None and not repeated:
            key = self._repeated_key.decode("utf-8", "surrogateescape")
            self._account.warn(
                f"the key {key!r} comes again among the first {MAX_KEYS_REMEMBERED:,} samples; "
                "--rekey '{source}/{key}' makes keys of different sources differ"
            )


def spread_numbers(seed: int) -> Iterator[int]:
    """Yield random numbers below 2**64 without end, from *seed*; each block of 8 is spread evenly over that range."""
    random = random_numbers(seed)
    begin = next(random)
    while True:
        block = [(begin + place * HASH_RANGE) // NUMBERS_IN_BLOCK for place in range(NUMBERS_IN_BLOCK)]
        for last in range(NUMBERS_IN_BLOCK - 1, 0, -1):
            swap_index = next(random) * (last + 1) >> POSITION_BITS
            block[last], block[swap_index] = block[swap_index], block[last]
        yield from block
        begin = (begin + GOLDEN_STEP) % HASH_RANGE


def random_numbers(seed: int) -> Iterator[int]:
    """Yield random numbers below 2**64 without end, from *seed*, by SplitMix64: the same on all machines."""
    state = seed
    while True:
        state = (state + GOLDEN_STEP) % HASH_RANGE
        number = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % HASH_RANGE
        number = (number ^ number >> 27) * 0x94D049BB133111EB % HASH_RANGE
        yield number ^ number >> 31
