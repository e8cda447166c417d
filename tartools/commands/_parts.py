"""How tarsplit writes a set of shards for each part: by hash of the key, or by the value of a field."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tartools import cli, storage
from tartools.commands._twice import Spread, Twice, evenly
from tartools.errors import StorageError, UsageError, several
from tartools.samples.account import Account, Phase
from tartools.samples.listed import Listed, keys_of
from tartools.samples.sample import Batch
from tartools.samples.shares import Part
from tartools.samples.values import INDEX, Column, parse_column
from tartools.shards import numbering
from tartools.shards.fanout import HELD, HELD_ROWS, Run, allow_open_files, write_parts
from tartools.shards.partnames import PartNames
from tartools.shards.reading import Reading, closing_upstream, read_batches
from tartools.shards.series import Limits, Series
from tartools.shards.writing import Destination
from tartools.stages.filtering.conditions import runs
from tartools.stages.parting import MOST, ByKey, ByValue, Values
from tartools.stages.sorting.externalsort import TURN, pack_blocks, records_of
from tartools.stages.sorting.stratified import Plan, changed, entry, record
from tartools.storage.url import Url
from tartools.tar import compression

if TYPE_CHECKING:
    from tartools.tables.inputs import Inputs

LISTED = 20  # parts that are reported one by one
OTHER_FILES = 200  # that are open besides the outputs


class Wanted(NamedTuple):
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

    def __init__(self, wanted: Wanted, urls: Sequence[str], reading: Reading, account: Account) -> None:
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
        self._is_table = compression.is_table_name(name)
        compression.codec_for(name, wanted.gzip)
        self._route = self._new_route()
        columns = ["__key__", *([self._column.name] if self._column else [])]
        self._reading = reading._replace(ranges=not self._reads, listed=self._reads, columns=columns)
        self._first = wanted.start or 0
        self._old: dict[str, dict[int, str]] = {}  # shards of an earlier run
        self._series: dict[str, Series] = {}
        self._spreads: dict[str, Spread] = {}
        self._made: Callable[[str], Destination] = partial(Destination, force=wanted.force, gzip=wanted.gzip)
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
        found = self._row_runs() if self._is_table else self._sample_runs()
        weight = HELD_ROWS if self._is_table else HELD
        for _, url in write_parts(found, self._begin, weight, self._account):
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

    def _sample_runs(self) -> Generator[Run, None, None]:
        """Yield the samples, as they come, with their parts."""
        route: Callable[[Batch], list[str]] = self._route.parts
        plan = None
        if self._wanted.stratify is not None or self._wanted.even:
            inputs = Twice(self._urls, self._reading, self._account)
            if self._wanted.stratify is not None:
                plan = self._plan(inputs)
                counts, route = plan.counts, self._planned(plan)
            else:
                counts = self._counts(inputs)
                self._route = self._new_route()
                route = self._route.parts
            self._spread(counts)
            self._account.phase = Phase("writing", counts.total(), lambda: self._account.samples_out)
            batches = inputs.batches(self._account)
        else:
            batches = read_batches(self._urls, self._account, self._reading)
        with closing_upstream(batches):
            for batch in batches:
                yield from runs_of(batch, route(batch))
        if plan is not None:
            plan.end()

    def _spread(self, counts: Counter[str]) -> None:
        """Spread the samples of each part over the shards that --shards asks for."""
        if self._wanted.even:
            self._spreads = {part: evenly(count, self._wanted.even, part) for part, count in counts.items()}

    def _counts(self, inputs: Twice) -> Counter[str]:
        """Return how many samples each part gets."""

        def count(batches: Iterator[Batch]) -> dict[str, int]:
            route = self._new_route()
            found: Counter[str] = Counter()
            for batch in batches:
                found.update(route.parts(batch))
            return dict(found)

        total = Counter({part.name: 0 for part in self._wanted.parts or ()})
        for each in inputs.results(count):
            total.update(each)
        return total

    def _plan(self, inputs: Twice) -> Plan:
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

        found = records_of(inputs.gathered(work, lambda _: None))
        return Plan(found, self._wanted.parts, self._reading.tmpdir)

    def _planned(self, plan: Plan) -> Callable[[Batch], list[str]]:
        """Return a function that gives the parts of the next samples by *plan*."""
        assert self._column is not None
        values = Values(self._column)
        return lambda batch: plan.take(entries(batch, values))

    def _row_runs(self) -> Generator[Run, None, None]:
        """Yield the rows that list the samples, with their parts."""
        import numpy as np

        from tartools.shards import listing
        from tartools.tables import schema
        from tartools.tables.writing import RowBatch

        listing.check_stored(self._urls)
        before = listing.looks(self._urls) if self._reads else {}
        indexing = listing.Indexing(self._reading._replace(ranges=True, listed=False, columns=()), cli.workers(0))
        inputs = listing.listed(self._urls, self._account, indexing)
        phase = self._account.phase
        names: dict[str, int] = {}
        codes = np.fromiter((names.setdefault(part, len(names)) for part in self._row_parts(inputs)), np.int32)
        if len(codes) != inputs.rows:
            raise changed()
        if self._reads:
            for url, now in listing.looks(self._urls).items():
                if now.version != before[url].version:
                    raise StorageError("changed while it was read", url=url)
        counted = Counter({part.name: 0 for part in self._wanted.parts or ()})
        counted.update({part: int((codes == code).sum()) for part, code in names.items()})
        self._spread(counted)
        self._account.phase = phase
        self._made = lambda url: listing.TableDestination(url, self._wanted.force, inputs)
        of = list(names)
        first = 0
        for rows in inputs.batches():
            here = codes[first : first + len(rows)]
            first += len(rows)
            for code in np.unique(here).tolist():
                batch = RowBatch(rows.take(schema.arrow().array(np.flatnonzero(here == code))))
                yield Run(of[code], batch, 0, len(batch), len(batch))

    def _row_parts(self, inputs: Inputs) -> Iterator[str]:
        """Yield the part of each row of *inputs*."""
        from tartools.tables import schema

        if isinstance(self._route, ByKey) and not self._reads and has_keys(inputs):
            for rows in inputs.batches([schema.KEY]):
                yield from self._route.of_keys(schema.raw(rows.column(0)).to_pylist())
            return
        quiet = Account(lambda _: None)  # what is to be said of the shards was said when they were indexed
        if self._wanted.stratify is not None:
            yield from self._plan(Twice(self._urls, self._reading, self._account)).rest()
            return
        batches = read_batches(self._urls, quiet, self._reading)
        with closing_upstream(batches):
            for batch in batches:
                yield from self._route.parts(batch)

    def settle(self) -> None:
        """Report what each part has got; with --force, remove shards of an earlier run."""
        account = self._account
        if not account.samples_in:
            account.warn("no samples in the input; no shards written")
        else:
            self._report()
        if self._wanted.force:
            from tartools.commands._replacing import replace_set

            for part, old in self._old.items():
                written = self._series[part].shards if part in self._series else 0
                if self._names.single and written:
                    continue
                span = range(self._first, self._first + written)
                replace_set(self._names.of(part), span, None, old, account, bool(account.samples_in))

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


def has_keys(inputs: Inputs) -> bool:
    """Tell whether all *inputs* say the key of each sample."""
    from tartools.tables import schema

    if not all(schema.KEY in part.schema.names for part in inputs.parts):
        return False
    return not any(rows.column(0).null_count for rows in inputs.batches([schema.KEY]))


def check_options(wanted: Wanted) -> None:
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


def runs_of(batch: Batch, parts: list[str]) -> Iterator[Run]:
    """Yield the samples of *batch*, which go to *parts*."""
    if not isinstance(batch, Listed):
        for first, last, part in runs(parts):
            yield Run(part, batch, first, last, weight_of(batch, first, last))
        return
    at = 0
    for few in batch.batches():
        for first, last, part in runs(parts[at : at + len(few)]):
            yield Run(part, few, first, last, weight_of(few, first, last))
        at += len(few)


def weight_of(batch: Batch, first: int, last: int) -> int:
    """Return the bytes of samples *first* to *last* (exclusive) of *batch*."""
    return batch[0].size if batch.groups is None else batch.groups.starts[last] - batch.groups.starts[first]
