"""How tarsplit writes a set of shards for each part: by hash of the key, or by the value of a field."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from tartools import cli, storage
from tartools.errors import UsageError, several
from tartools.samples.account import Account, Phase
from tartools.samples.answers import column_names
from tartools.samples.listed import keys_of
from tartools.samples.sample import Batch
from tartools.samples.shares import Part
from tartools.samples.values import INDEX, Column, parse_column
from tartools.shards import numbering
from tartools.shards.dataset import DataSet
from tartools.shards.delivery import allow_open_files, deliver_labels
from tartools.shards.partnames import PartNames
from tartools.shards.reading import Reading
from tartools.shards.series import Limits, Series, Spread, evenly
from tartools.shards.writing import Batches, Destination
from tartools.stages.parting import MOST, ByKey, ByValue, Values
from tartools.stages.sorting.externalsort import TURN, pack_blocks, records_of
from tartools.stages.sorting.stratified import StratifiedPlan, changed, entry, record
from tartools.storage.url import Url
from tartools.tar import compression

LISTED = 20  # parts that are reported one by one
OTHER_FILES = 200  # that are open besides the outputs


class PartOptions(NamedTuple):
    """Options of tarsplit: which parts, and how the shards of each part are made."""

    parts: Sequence[Part] | None
    stratify: str | None
    by: str | None
    output: str
    limits: Limits
    default: int  # bytes of a shard that has no other limit
    even: int | None
    start: int | None
    force: bool
    gzip: bool


class Split:
    """Writes the samples of *urls*, read as *reading* says, as *wanted* says.

    Raises: UsageError; StorageError if an output exists that may not be replaced.
    """

    def __init__(self, wanted: PartOptions, urls: Sequence[str], reading: Reading, account: Account) -> None:
        check_options(wanted)
        self._wanted = wanted
        self._urls = urls
        self._account = account
        self._column = column(wanted.stratify if wanted.by is None else wanted.by)
        self._names = PartNames(
            wanted.output, self._column.name if wanted.by is not None and self._column else "part", wanted.gzip
        )
        if self._names.single and (wanted.limits.samples(0) or wanted.limits.size or wanted.even or wanted.start):
            raise UsageError("OUTPUT has no number, so each part is one shard; write {shard:06d} in it for more")
        name = self._names.of("x").name(0)
        compression.codec_for(name, wanted.gzip)
        self._route = self._new_route()
        columns = ["__key__", *(column_names([self._column]) if self._column else [])]
        self._reading = reading._replace(ranges=not self._reads, listed=self._reads, columns=columns)
        self._first = wanted.start or 0
        self._old: dict[str, dict[int, str]] = {}  # shards of an earlier run
        self._series: dict[str, Series] = {}
        self._spreads: dict[str, Spread] = {}
        self._made: Callable[[str], Destination]
        for part in wanted.parts or ():
            try:
                self._names.check(part.name)
            except ValueError as error:
                raise UsageError(f"the name of the part {part.name!r} {error}") from None
            self._check_outputs(part.name)

    @property
    def _reads(self) -> bool:
        """Whether payloads are looked into."""
        return self._column is not None

    def _new_route(self) -> ByKey | ByValue:
        if self._wanted.by is None:
            return ByKey(self._wanted.parts or ())
        assert self._column is not None
        return ByValue(self._column, self._names.check)

    def _check_outputs(self, part: str) -> None:
        """Raise StorageError if a shard of *part* exists and may not be replaced, or is an input."""
        names = self._names.of(part)
        if self._names.single:
            there = Url(names.name(0)).scheme != "pipe" and storage.exists(names.name(0))
            self._old[part] = {0: names.name(0)} if there else {}
        else:
            self._old[part] = numbering.existing_shards(names)
        numbering.check_outputs(names, self._first, self._old[part], self._urls, self._wanted.force)

    def shards(self) -> Iterator[str]:
        """Write all parts; yield the URL of each shard when it is complete."""
        if self._wanted.by is not None:
            allow_open_files(MOST + OTHER_FILES)
        data = DataSet(self._urls, self._account, self._reading, cli.workers(0))
        self._made = partial(data.sink, force=self._wanted.force, gzip=self._wanted.gzip)
        self._made(self._names.of("x").name(0))
        for _, url in deliver_labels(self._labelled(data), self._begin, self._account):
            yield url
        for part, spread in self._spreads.items():
            spread.check(self._series[part].samples if part in self._series else 0, None)

    def _begin(self, part: str) -> Series:
        """Return what writes the shards of *part*."""
        if part not in self._old:
            self._check_outputs(part)
        if self._wanted.even and part not in self._spreads:
            raise changed()
        names, made, first = self._names.of(part), self._made, self._first
        limits = self._wanted.limits
        if self._wanted.even:
            limits = Limits(self._spreads[part].samples)
        elif not (self._names.single or limits.size or limits.samples(0)):
            limits = Limits(size=self._wanted.default)
        found = self._series[part] = Series(lambda k: made(names.name(first + k)), limits, self._account)
        return found

    def _labelled(self, data: DataSet) -> Iterator[tuple[Batches, Sequence[str]]]:
        """Yield the samples, or the rows that list them, with their parts."""
        if data.lists and self._column is not None:
            data.keep()
        if data.lists:
            data.rows()
        phase = self._account.phase
        route = self._route
        if self._wanted.stratify is not None:
            plan = self._plan(data)
            self._spread(plan.counts, phase if data.lists else None)
            rest = plan.rest()
            yield from data.answered(self._planned(plan), lambda keys: list(islice(rest, len(keys))))
            plan.end()
            return
        if self._wanted.even:
            self._spread(self._counts(data), phase if data.lists else None)
            route = self._new_route()
        yield from data.answered(route.parts, route.of_keys if isinstance(route, ByKey) else None)

    def _spread(self, counts: Counter[str], phase: Phase | None) -> None:
        """Spread the samples of each part over the shards that --shards asks for; they are written in *phase*."""
        if self._wanted.even:
            self._spreads = {part: evenly(count, self._wanted.even, part) for part, count in counts.items()}
        account = self._account
        account.phase = phase or Phase("writing", counts.total(), lambda: account.samples_out)

    def _counts(self, data: DataSet) -> Counter[str]:
        """Return how many samples each part gets."""

        def count(batches: Iterator[Batch]) -> dict[str, int]:
            route = self._new_route()
            found: Counter[str] = Counter()
            for batch in batches:
                found.update(route.parts(batch))
            return dict(found)

        total = Counter({part.name: 0 for part in self._wanted.parts or ()})
        route = self._new_route()
        if data.lists and isinstance(route, ByKey):
            for _, parts in data.answered(route.parts, route.of_keys):
                total.update(parts)
            return total
        for each in data.results(count):
            total.update(each)
        return total

    def _plan(self, data: DataSet) -> StratifiedPlan:
        """Return the part of each sample, so that each part has its share of each value."""
        assert self._column is not None and self._wanted.parts is not None
        wanted = self._column

        def work(batches: Iterator[Batch], number: int, _forked: bool) -> Generator[bytes, None, int]:
            values = Values(wanted)
            position = number << TURN

            def records() -> Iterator[bytes]:
                nonlocal position
                for batch in batches:
                    for each in entries(batch, values):
                        yield record(each, position)
                        position += 1

            yield from pack_blocks(records())
            return position

        return StratifiedPlan(records_of(data.counted_gather(work)), self._wanted.parts, self._reading.tmpdir)

    def _planned(self, plan: StratifiedPlan) -> Callable[[Batch], list[str]]:
        """Return a function that gives the parts of the next samples by *plan*."""
        assert self._column is not None
        values = Values(self._column)
        return lambda batch: plan.take(entries(batch, values))

    def settle(self) -> None:
        """Report what each part has got; with --force, remove shards of an earlier run."""
        account = self._account
        if not account.samples_in:
            account.warn("no samples in the input; no shards written")
        else:
            self._report()
        if self._wanted.force:
            for part, old in self._old.items():
                written = self._series[part].shards if part in self._series else 0
                if self._names.single and written:
                    continue
                span = range(self._first, self._first + written)
                numbering.replace_set(self._names.of(part), span, None, old, account, bool(account.samples_in))

    def _report(self) -> None:
        """Let the account say how many samples and shards each part has; report parts without samples."""
        parts = dict.fromkeys(part.name for part in self._wanted.parts or ()) or dict.fromkeys(self._series)
        counts = {part: (found.samples, found.shards) for part in parts if (found := self._series.get(part))}
        for part in parts:
            if part not in counts:
                self._account.warn(f"{part}: no samples; no shards written")
        if len(counts) > LISTED:
            samples, shards = map(sum, zip(*counts.values(), strict=True))
            what = f"values of {self._column.name}" if self._wanted.by and self._column else "parts"
            counts = {f"{len(counts):,} {what}": (samples, shards)}
        self._account.totals = [
            f"{part}: {several(samples, 'sample')} in {several(shards, 'shard')}"
            for part, (samples, shards) in counts.items()
        ]


def check_options(wanted: PartOptions) -> None:
    """Raise UsageError for options that exclude each other."""
    if wanted.by is not None and (wanted.parts or wanted.stratify is not None):
        raise UsageError("--by makes a part of each value; it excludes --parts and --stratify")
    if wanted.by is None and not wanted.parts:
        raise UsageError("--stratify needs --parts")
    if wanted.limits.shards is not None:
        raise UsageError(
            "--max-shards stops reading, and the parts would be cut anywhere; it excludes --parts and --by"
        )


def column(text: str | None) -> Column | None:
    """Return the column that *text* names. Raises: UsageError."""
    found = None if text is None else parse_column(text)
    if found is not None and INDEX in found.choices:
        raise UsageError(f"{INDEX} is not a value of a sample: it depends on the order")
    return found


def entries(batch: Batch, values: Values) -> Iterable[bytes]:
    """Return what sorts the next samples, those of *batch*, by value and hash."""
    return map(entry, values.of(batch), keys_of(batch))
