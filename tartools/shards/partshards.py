"""A series of shards for each part of a data set: where they go, and what is said of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tartools import storage
from tartools.errors import SampleError, UsageError, several
from tartools.samples.account import Account
from tartools.shards.numbering import PartNames, check_outputs, existing_shards, replace_set
from tartools.shards.series import Limits, Series, Spread, evenly
from tartools.shards.writing import Destination
from tartools.storage.url import Url

REPORTED = 20  # parts that are reported one by one


def changed() -> SampleError:
    """Return the failure of an input that has other samples when it is read again."""
    return SampleError("the input has changed: keys or values are not those that it had when they were counted")


class PartOutputs(NamedTuple):
    """The shards of the parts: their names, their *limits*, *even* shards of each part, the number of the first.

    *default* are the bytes of a shard that has no other limit. *force* replaces those of an earlier run.
    """

    names: PartNames
    limits: Limits
    default: int
    even: int | None
    start: int | None
    force: bool


class PartShards:
    """Writes a series of shards for each part, as *wanted*; `made(url)` is where a shard goes. *urls* are the inputs.

    Those of *parts* are checked before anything is read, those of others when they begin.
    Raises: UsageError; StorageError if an output exists that may not be replaced.
    """

    def __init__(
        self,
        wanted: PartOutputs,
        parts: Sequence[str],
        urls: Sequence[str],
        made: Callable[[str], Destination],
        account: Account,
    ) -> None:
        self._wanted = wanted
        self._parts = parts
        self._urls = urls
        self._made = made
        self._account = account
        self._first = wanted.start or 0
        self._old: dict[str, dict[int, str]] = {}  # shards of an earlier run
        self._series: dict[str, Series] = {}
        self._spreads: dict[str, Spread] = {}
        for part in parts:
            try:
                wanted.names.check(part)
            except ValueError as error:
                raise UsageError(f"the name of the part {part!r} {error}") from None
            self._check_outputs(part)

    def _check_outputs(self, part: str) -> None:
        """Raise StorageError if a shard of *part* exists and may not be replaced, or is an input."""
        names = self._wanted.names.of(part)
        if self._wanted.names.single:
            there = Url(names.name(0)).scheme != "pipe" and storage.exists(names.name(0))
            self._old[part] = {0: names.name(0)} if there else {}
        else:
            self._old[part] = existing_shards(names)
        check_outputs(names, self._first, self._old[part], self._urls, self._wanted.force)

    def spread(self, counts: Mapping[str, int]) -> None:
        """Spread the *counts* of samples of each part evenly over its shards. Raises: SampleError for too few."""
        if self._wanted.even:
            self._spreads = {part: evenly(count, self._wanted.even, part) for part, count in counts.items()}

    def begin(self, part: str) -> Series:
        """Return what writes the shards of *part*."""
        if part not in self._old:
            self._check_outputs(part)
        if self._wanted.even and part not in self._spreads:
            raise changed()
        names, limits = self._wanted.names.of(part), self._wanted.limits
        if self._wanted.even:
            limits = Limits(self._spreads[part].samples)
        elif not (self._wanted.names.single or limits.size or limits.samples(0)):
            limits = Limits(size=self._wanted.default)
        series = Series(lambda k: self._made(names.name(self._first + k)), limits, self._account, syncing=0)
        self._series[part] = series
        return series

    def settle(self, of: str) -> None:
        """Report what each part has got, or how many there are *of* what; remove shards of an earlier run.

        Raises: SampleError if a part has fewer samples than were spread.
        """
        for part, spread in self._spreads.items():
            spread.check(self._series[part].samples if part in self._series else 0, None)
        account = self._account
        if not account.samples_in:
            account.warn("no samples in the input; no shards written")
        else:
            self._report(of)
        for part, old in self._old.items() if self._wanted.force else ():
            written = self._series[part].shards if part in self._series else 0
            if not (self._wanted.names.single and written):
                span = range(self._first, self._first + written)
                replace_set(self._wanted.names.of(part), span, None, old, account, bool(account.samples_in))

    def _report(self, of: str) -> None:
        """Let the account say how many samples and shards each part has; report parts without samples."""
        parts = self._parts or list(self._series)
        counts = {part: (found.samples, found.shards) for part in parts if (found := self._series.get(part))}
        for part in parts:
            if part not in counts:
                self._account.warn(f"{part}: no samples; no shards written")
        if len(counts) > REPORTED:
            samples, shards = map(sum, zip(*counts.values(), strict=True))
            counts = {f"{len(counts):,} {of}": (samples, shards)}
        self._account.progress.totals = [
            f"{part}: {several(samples, 'sample')} in {several(shards, 'shard')}"
            for part, (samples, shards) in counts.items()
        ]
