"""How tarmix reads its sources, as samples or as rows of tables, and what it says of them at the end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tartools import cli, storage
from tartools.errors import SampleError, StorageError, UsageError, printable, shown
from tartools.samples.account import FIRST, Account, Phase
from tartools.samples.sample import Batch, Sample
from tartools.shards.dataset import DataSet
from tartools.shards.delivery import in_order
from tartools.shards.reading import Reading, one_by_one, shard_batches
from tartools.shards.writing import Batches, write_batches, write_samples
from tartools.stages.mixing import Mixture, Stop
from tartools.storage.expand import expand
from tartools.storage.url import Url
from tartools.tar import compression
from tartools.tar.compression import is_table

NUMBER = r"[+-]?(?:(\d+)\.?(\d*)|\.(\d+))(?:e([+-]?\d{1,3}))?"
NO_NUMBER = r"[+-]?(?:nan|inf|infinity)"
DIGITS = 18  # behind the point
LEAST = 10**9  # no share is less than one of so many
HOW = "such as tarmix 0.7 a.tar 0.3 b.tar"
LITERAL = "a file whose name is a number is written ./0.7"


class SharedSource(NamedTuple):
    """One source as the command line has it: a whole number in proportion to its share, and its shards."""

    share: int
    urls: list[Url]


class MixOptions(NamedTuple):
    """What is to be done where a source ends, how many samples are wanted, and under which keys."""

    stop: Stop
    total: int | None
    seed: int
    rekey: str | None


def share_in(word: str) -> int | None:
    """Return a whole number in proportion to the share that *word* is; None if it is no number.

    Raises: UsageError for a number that is not a share.

    >>> share_in("0.7") == 7 * share_in("1e-1"), share_in("a.tar")
    (True, None)
    """
    found = re.fullmatch(NUMBER, word, re.ASCII | re.IGNORECASE)
    if found is None and not re.fullmatch(NO_NUMBER, word, re.IGNORECASE):
        return None
    if found is not None and word[0] != "-":
        whole, part = found[1] or "", found[2] or found[3] or ""
        shift = DIGITS - len(part) + int(found[4] or 0)
        if len(whole + part) <= DIGITS and 0 <= shift <= 2 * DIGITS and int(whole + part):
            return int(whole + part) * 10**shift  # type: ignore[no-any-return]
    raise UsageError(f"{word} is not a share: that is a number above 0, of up to 18 digits; {LITERAL}")


def sources_in(words: Sequence[str]) -> list[SharedSource]:
    """Return the sources that *words* name: shares, each followed by shards. Raises: UsageError; as `expand`."""
    groups: list[tuple[str, int, list[str]]] = []
    for word in words:
        share = share_in(word)
        if share is not None:
            groups.append((word, share, []))
        elif not groups:
            raise UsageError(f"the first word must be a share, and {printable(word)!r} is not a number: {HOW}")
        else:
            groups[-1][2].append(word)
    if not groups:
        raise UsageError(f"no source: name shares and shards, {HOW}")
    for word, _, names in groups:
        if not names and len(groups) > 1:
            raise UsageError(f"no shard follows the share {word}: {HOW}; {LITERAL}")
    total = sum(share for _, share, _ in groups)
    for word, share, _ in groups:
        if share * LEAST < total:
            raise UsageError(f"the share {word} is less than one of {LEAST:,} samples")
    return [SharedSource(share, expand(names)) for _, share, names in groups]


class MixedSamples:
    """The samples of *urls*; once more, if it is iterated again. It is to be closed.

    An empty one is a failure if it is *needed*. Holds: one open shard, 1 MiB.
    """

    def __init__(self, urls: Sequence[Url], account: Account, reading: Reading, needed: bool) -> None:
        self.name = name_of(urls)
        self._urls = urls
        self._account = account
        self._reading = reading
        self._needed = needed
        self._counts: list[int] = []  # samples of each round that ended
        self._waiting = 0  # samples of the current batch that were not taken
        self._batches: Iterator[Batch] = iter(())

    def __iter__(self) -> Iterator[Sample]:
        """Return the samples. Raises: StorageError if they can't be read again."""
        if self._counts:
            for url in self._urls:
                if not storage.is_repeatable(url):
                    raise StorageError(
                        "has ended before the longest source, and can't be read again: copy it to a file", url=url
                    )
        self._batches = one_by_one(shard_batches(url, self._account, self._reading) for url in self._urls)
        return self._samples()

    def _samples(self) -> Iterator[Sample]:
        account, count = self._account, 0
        for batch in self._batches:
            self._waiting = len(batch)
            for sample in batch:
                account.samples_in += 1
                self._waiting -= 1
                count += 1
                yield sample
        if not count and self._needed:
            raise no_samples(self._urls[0])
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
        if not all(is_table(url) or (all_of_it and is_plain(url)) for url in self._urls):
            return None
        left = self._waiting + sum(map(len, self._batches))
        self._account.samples_in += left
        return left

    def close(self) -> None:
        """Stop reading."""
        close = getattr(self._batches, "close", None)
        if close:
            close()


class MixedRows:
    """The numbers of the rows of *urls*, as a source of a table."""

    def __init__(self, urls: Sequence[Url], rows: range, account: Account, needed: bool) -> None:
        self.name = name_of(urls)
        self._rows = rows
        self._account = account
        self._taken = 0
        if needed and not rows:
            raise no_samples(urls[0])

    def __iter__(self) -> Iterator[int]:
        for row in self._rows:
            self._account.samples_in += 1
            self._taken += 1
            yield row

    def rest(self, _all_of_it: bool) -> int:
        """Return how many rows were not taken. They are counted as read."""
        left = len(self._rows) - self._taken
        self._account.samples_in += left
        return left


def is_plain(url: Url) -> bool:
    """Tell whether *url* is a local file that is not compressed."""
    if storage.plain_size(url) is None:
        return False
    opened = storage.open_read(url)
    try:
        return opened.file is not None and not compression.is_compressed(compression.head_of(opened.file))
    finally:
        opened.close()


def name_of(urls: Sequence[Url]) -> str:
    """Return what a source is called in messages."""
    more = f" and {len(urls) - 1} more" if urls[1:] else ""
    return f"{shown(urls[0])}{more}"


def no_samples(url: str) -> SampleError:
    """Return the failure of an empty source that would have to be repeated."""
    return SampleError("this source has no samples, so --stop longest can't repeat it", url=url)


class Mixing:
    """Sources in the shares of *given*, mixed as is *wanted*. *sources* have what is to be counted at the end."""

    def __init__(
        self, given: Sequence[SharedSource], sources: Sequence[Any], wanted: MixOptions, account: Account
    ) -> None:
        self._sources = sources
        self._wanted = wanted
        self._account = account
        self._mixture: Mixture[Any] = Mixture(sources, [one.share for one in given], wanted.stop, wanted.seed)
        self._again: bytes | None = None  # a key that comes again

    def __iter__(self) -> Iterator[tuple[Any, int, int]]:
        """Yield samples or rows, each with the number of its source and the round; then say what was left out."""
        from tartools.stages import select

        total = self._wanted.total
        yield from self._mixture if total is None else select.count(self._mixture, total)
        self._report()

    def note(self, keys: Sequence[bytes]) -> None:
        """Look for a key that comes again among *keys*, which are the first that are written."""
        seen: set[bytes] = set()
        for key in keys:
            if key in seen:
                self._again = key
                return
            seen.add(key)

    def _report(self) -> None:
        """Count and tell what the sources still have."""
        mixture, total, account = self._mixture, self._wanted.total, self._account
        count = sum(mixture.taken)
        full = total is not None and count == total
        left: list[str] = []
        for number, source in enumerate(self._sources):
            if mixture.rounds[number] or number in mixture.ended or (self._wanted.stop != "first" and not full):
                continue
            found = source.rest(not full)
            account.left_out += found or 0
            if found is None:
                left.append(f"what follows in {source.name} (not read)")
            elif found:
                left.append(f"{found} of {source.name}")
        why = f"{count} samples are written, as --count says"
        if not full:
            last = mixture.ended[-1]
            why = f"{self._sources[last].name} ended after {mixture.taken[last]} samples"
            if total is not None:
                why += f", so {count} samples are written, not {total}"
        if left or (total is not None and not full):
            account.warn("; left out: ".join([why, *([", ".join(left)] if left else [])]))

    def warn_of_keys(self) -> None:
        """Warn once if samples of the output may have the same key."""
        repeated = [number for number, rounds in enumerate(self._mixture.rounds) if rounds]
        rekey = self._wanted.rekey or ""
        if repeated and "{round" not in rekey and "{index" not in rekey:
            first = repeated[0]
            more = ", others too" if repeated[1:] else ""
            self._account.warn(
                f"{self._sources[first].name} was begun {self._mixture.rounds[first] + 1} times{more}, so keys come "
                "again; --rekey '{source}/{round}/{key}' makes them differ"
            )
        elif self._again is not None and not repeated:
            key = self._again.decode("utf-8", "surrogateescape")
            self._account.warn(
                f"the key {key!r} comes again among the first {FIRST:,} samples; "
                "--rekey '{source}/{key}' makes keys of different sources differ"
            )


def samples_of(mixing: Mixing, wanted: MixOptions) -> Iterator[Sample]:
    """Yield the samples of *mixing*, under the keys that are *wanted*."""
    if wanted.rekey is not None:
        from tartools.stages import select

        rekeyed = select.keyer(wanted.rekey, ("source", "round"))
        samples = (
            rekeyed(sample, index=index, source=source, round=again)
            for index, (sample, source, again) in enumerate(mixing)
        )
    else:
        samples = (sample for sample, _, _ in mixing)
    keys: list[bytes] = []
    for sample in samples:
        keys.append(sample.raw_key)
        yield sample
        if len(keys) == FIRST:
            break
    mixing.note(keys)
    yield from samples
    mixing.warn_of_keys()


def write(
    given: Sequence[SharedSource], output: cli.Output, wanted: MixOptions, account: Account, reading: Reading
) -> None:
    """Write the samples of *given*, mixed, to *output*; what is moved into a table are rows."""
    data = DataSet([url for one in given for url in one.urls], account, reading, cli.workers(0))
    sink = data.sink(output.url, output.force, output.gzip, {"--rekey": wanted.rekey})
    needed = wanted.stop == "longest"
    if data.lists:
        rows = data.rows_apart([one.urls for one in given])
        numbers = [MixedRows(one.urls, span, account, needed) for one, span in zip(given, rows, strict=True)]
        mixing = Mixing(given, numbers, wanted, account)
        batches = in_order(data, (row for row, _, _ in mixing), account)
        write_batches(noted(batches, mixing), sink, account)
        return
    expect(data.urls, wanted, account)
    plainly = reading._replace(ranges=True, listed=False, columns=("__key__",), sources=len(given))
    sources = [MixedSamples(one.urls, account, plainly, needed) for one in given]
    try:
        mixing = Mixing(given, sources, wanted, account)
        write_samples(samples_of(mixing, wanted), sink, account)
    finally:
        for source in sources:
            source.close()


def expect(urls: Sequence[str], wanted: MixOptions, account: Account) -> None:
    """Check *urls*; set in *account* what is known of how much will be read and written."""
    expected = storage.check_inputs(urls)
    if wanted.stop == "all" and wanted.total is None:  # otherwise it is not known how much is read
        account.expected = expected
    if wanted.stop != "longest":  # which reads some of them more than once
        account.shards = len(urls)
    if wanted.total is not None:
        account.phase = Phase("", wanted.total, lambda: account.samples_out)


def noted(batches: Iterable[Any], mixing: Mixing) -> Iterator[Batches]:
    """Yield *batches*, of rows; let *mixing* know their first keys."""
    from tartools.tables import schema

    keys: list[bytes] = []
    for batch in batches:
        if len(keys) < FIRST and schema.KEY in batch.rows.schema.names:
            keys += [key for key in batch.keys[: FIRST - len(keys)] if key is not None]
        yield batch
    mixing.note(keys)
    mixing.warn_of_keys()
