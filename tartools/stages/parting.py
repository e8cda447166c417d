"""To which part of a data set each sample goes: by a hash of its key, by the value of a field, or by both.

By both, each part has its share of the samples of each value, exactly to one sample: of those with one value, in the
order of the hashes of their keys, the first part gets the first ones. So the sets depend on keys and values alone, not
on order or sharding. Samples are records in two sorts: by value and hash, which gives their parts, and by position.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain, groupby, islice
from typing import NoReturn

from tartools.errors import SampleError
from tartools.samples.account import Phase
from tartools.samples.sample import Batch, failure_of
from tartools.samples.sortkeys import text_bytes
from tartools.samples.values import Column, field_list
from tartools.shards.dataset import DataSet
from tartools.shards.series import other_samples
from tartools.shards.writing import Batches
from tartools.stages import shares
from tartools.stages.externalsort import NUMBER, TURN, Spool, external_sort, pack_blocks, records_of
from tartools.tables.listed import ListedBatch, keys_of, texts_of_column

MOST = 1000  # values, each of which has an output that is open
MEMORY = 32 << 20  # bytes of records, three times


def labelled(
    data: DataSet,
    parts: Sequence[shares.Part],
    column: Column | None,
    exact: bool,
    check: Callable[[str], None],
    counted: Callable[[Counter[str]], None] | None,
) -> Iterator[tuple[Batches, Sequence[str]]]:
    """Yield the samples of *data*, or the rows that list them, each with the one of *parts* to which it goes.

    With *column* they go to one for each of its values, or, if that is *exact*, each part gets its share of each value.
    *check* raises ValueError for a value that can't be the name of a part: see `ByValue`. *counted* is told before how
    many samples each part gets, if it is given.

    Raises: SampleError for a value that is missing or can't be a name, and for other samples than when they were
    counted.
    """
    if data.lists and column is not None:
        data.keep()
    if data.lists:
        data.rows()
    account, progress = data.account, data.account.progress
    phase = progress.phase
    route = ByKey(parts) if column is None else ByValue(column, check)
    plan = _plan(data, column, parts) if exact and column is not None else None
    if plan is not None or counted is not None:
        counts = plan.counts if plan is not None else _counts(data, parts, route)
        if counted is not None:
            counted(counts)
        progress.phase = phase if data.lists else Phase("writing", counts.total(), lambda: account.samples_out)
    if plan is None or column is None:
        yield from data.answered(route.parts, route.of_keys if isinstance(route, ByKey) else None)
        return
    rest = plan.rest()
    yield from data.answered(
        lambda batch: plan.take(entries(batch, column)), lambda keys: list(islice(rest, len(keys)))
    )
    plan.end()


def _counts(data: DataSet, parts: Sequence[shares.Part], route: ByKey | ByValue) -> Counter[str]:
    total = Counter({part.name: 0 for part in parts})
    if data.lists and isinstance(route, ByKey):
        for _, found in data.answered(route.parts, route.of_keys):
            total.update(found)
        return total
    for each in data.results(lambda batches: dict(Counter(chain.from_iterable(map(route.parts, batches))))):
        total.update(each)
    return total


def _plan(data: DataSet, column: Column, parts: Sequence[shares.Part]) -> StratifiedPlan:
    """Return the part of each sample, so that each part has its share of each value."""

    def work(batches: Iterator[Batch], number: int, _forked: bool) -> Generator[bytes, None, None]:
        found = enumerate(chain.from_iterable(entries(batch, column) for batch in batches), number << TURN)
        yield from pack_blocks(entry + position.to_bytes(NUMBER, "big") for position, entry in found)

    return StratifiedPlan(records_of(data.counted_gather(work)), parts, data.reading.tmpdir)


class ByKey:
    """Parts by the hash of the key: the sets depend on the keys alone."""

    def __init__(self, parts: Sequence[shares.Part]) -> None:
        self._names = [part.name for part in parts]
        self._ends = shares.upper_bounds([part.weight for part in parts])

    def parts(self, batch: Batch) -> list[str]:
        """Return the part of each of the next samples, those of *batch*."""
        return self.of_keys(keys_of(batch))

    def of_keys(self, keys: Sequence[bytes]) -> list[str]:
        """Return the part of each of *keys*."""
        names, ends, number_of = self._names, self._ends, shares.number_of
        return [names[bisect_right(ends, number_of(key))] for key in keys]


def values_of(batch: Batch, column: Column) -> list[str]:
    """Return the value of *column*, as text, of each sample of *batch*. Raises: SampleError, naming one without any."""
    found = texts_of_column(batch, column)
    if None in found:
        sample = batch[found.index(None)]
        if isinstance(batch, ListedBatch) and batch.columns.values(column.name) is not None:
            raise SampleError(f"sample {sample.key!r} has no value in {column.name}", url=batch.columns.url)
        raise failure_of(
            sample,
            f" has no {column.name} (its fields: {field_list(sample.fields)}); "
            f"tarfilter --fields-present {column.choices[0]} leaves out such samples",
        )
    return found  # type: ignore[return-value]


class ByValue:
    """Parts by the value of a field, which is their name. `check(value)` raises ValueError if it can't be a name."""

    def __init__(self, column: Column, check: Callable[[str], None]) -> None:
        self._column = column
        self._check = check
        self._known: dict[str, str] = {}  # one string for each value

    def parts(self, batch: Batch) -> list[str]:
        """Return the part of each of the next samples, those of *batch*.

        Raises: SampleError, naming the sample, for a value that can't be a name, or is one too many.
        """
        values = values_of(batch, self._column)
        known = self._known
        for value in dict.fromkeys(values):
            if value not in known:
                try:
                    self._check(value)
                except ValueError as error:
                    self._fail(batch, values.index(value), f"{value[:100]!r} {error}")
                if len(known) == MOST:
                    self._fail(batch, values.index(value), f"{value!r} is one more than {MOST} values, the most there "
                               "may be, because each has an output that is open")  # fmt: skip
                known[value] = value
        return [known[value] for value in values]

    def _fail(self, batch: Batch, number: int, why: str) -> NoReturn:
        raise failure_of(batch[number], f": its {self._column.name} can't name an output: {why}")


def entries(batch: Batch, column: Column) -> Iterator[bytes]:
    """Yield what sorts the next samples, those of *batch*, by the value of *column*, then by the hash of the key."""
    for value, key in zip(values_of(batch, column), keys_of(batch), strict=True):
        number = shares.number_of(key).to_bytes(NUMBER, "big")
        yield text_bytes(value.encode("utf-8", "surrogatepass")) + number + text_bytes(key)


class StratifiedPlan:
    """To which of *parts* each sample of a data set goes, given a record of each: its entry, then its position.

    `counts` has the samples of each part. Holds: 100 MiB; the others are in unnamed files in *tmpdir*.
    """

    def __init__(self, records: Iterable[bytes], parts: Sequence[shares.Part], tmpdir: str | None) -> None:
        self._parts = parts
        self._tmpdir = tmpdir
        self.counts = Counter({part.name: 0 for part in parts})
        assigned = external_sort(self._assign(external_sort(records, MEMORY, tmpdir)), MEMORY, tmpdir)
        self._assigned = chain([*islice(assigned, 1)], assigned)  # now all have been counted

    def _assign(self, records: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the position of each of *records*, sorted by value and hash, a digest of its entry, and its part."""
        for _, same in groupby(records, lambda found: found[: found.index(b"\0\0")]):
            spool = Spool(MEMORY, self._tmpdir)
            count = 0
            for found in same:
                count += 1
                spool.add(found[-NUMBER:] + _digest(found[:-NUMBER]))
            ranked = iter(spool)
            for number, share in enumerate(shares.apportioned(count, self._parts)):
                self.counts[self._parts[number].name] += share
                for found in islice(ranked, share):
                    yield found + number.to_bytes(NUMBER, "big")

    def take(self, entries: Iterable[bytes]) -> list[str]:
        """Return the parts of the next samples, which have *entries*. Raises: SampleError if the input has changed."""
        parts = []
        for each in entries:
            found = next(self._assigned, None)
            if found is None or found[NUMBER : 2 * NUMBER] != _digest(each):
                raise other_samples()
            parts.append(self._part(found))
        return parts

    def rest(self) -> Iterator[str]:
        """Return the parts of all samples, in the order of the input."""
        return map(self._part, self._assigned)

    def _part(self, found: bytes) -> str:
        return self._parts[int.from_bytes(found[2 * NUMBER :], "big")].name

    def end(self) -> None:
        """Raise SampleError if there were more samples when the records were made."""
        if next(self._assigned, None) is not None:
            raise other_samples()


def _digest(entry: bytes) -> bytes:
    return blake2b(entry, digest_size=NUMBER).digest()
