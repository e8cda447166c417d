"""Assign samples to parts of a data set: by a hash of the key, by the value of a field, or by both.

By both, each part has its share of the samples of each value, exactly to one sample: of the samples of a value, in the
order of the hashes of their keys, the first part gets the first ones. So the sets depend on keys and values alone, not
on order or sharding. Samples are records in two sorts: by value and hash, which gives their parts, and by position.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING, Any

from tartools.errors import SampleError
from tartools.samples.account import Phase
from tartools.samples.batch import Batch
from tartools.samples.sample import failure_of
from tartools.samples.sortkeys import text_bytes
from tartools.samples.values import Column, field_list
from tartools.shards.passes import Pass
from tartools.shards.series import other_samples
from tartools.shards.writing import Batches
from tartools.stages import shares
from tartools.stages.externalsort import LENGTH_BYTES, POSITION_SHIFT, Spool, external_sort, pack_blocks, records_of
from tartools.tables.listed import texts_of_column

if TYPE_CHECKING:
    from tartools.shards.workers import ShardTask

MAX_PART_VALUES = 1000  # values, each of which has an output that is open
PARTING_MEMORY = 32 << 20  # bytes of records, three times


def label_samples(
    run: Pass[Any],
    parts: Sequence[shares.Part],
    column: Column | None,
    check: Callable[[str], None],
    spread: Callable[[Counter[str]], object] | None,
) -> Iterator[tuple[Batches, Sequence[str]]]:
    """Return an iterator of (batch, names of parts, one a sample) for the samples of *run*, or rows that list them.

    `parts` alone: a sample goes to one of them by the hash of its key. `column` alone: each of its values is a part.
    Both: to *parts* by the hash, so that each gets its share of the samples of each value. Neither: all to the part "".
    `check(value)`: raises ValueError if a value of *column* can't be the name of a part.
    `spread(counts)`: if given, called first with the number of samples of each part.

    Raises: SampleError for a missing value, or one that can't be a name; and if samples differ from those that were
    counted before.
    """
    run.prepare(reread=column is not None)
    counts: Counter[str] | None = None
    labelled_batches: Iterator[tuple[Batches, Sequence[str]]]
    if parts and column is not None:
        counts, labelled_batches = stratified(run, parts, column)
    elif column is not None:
        label = by_value(column, check)
        counts = _counts(run, parts, label) if spread else None
        labelled_batches = run.evaluate(label)
    elif parts:
        of_keys = by_key(parts)
        counts = _counts(run, parts, lambda batch: of_keys(batch.keys), of_keys) if spread else None
        labelled_batches = run.evaluate(lambda batch: of_keys(batch.keys), of_keys)
    else:
        counts = Counter({"": run.count()}) if spread else None
        labelled_batches = ((batch, [""] * len(batch)) for batch in run.batches())
    if counts is not None:
        account = run.account
        account.progress.phase = Phase("writing", counts.total(), lambda: account.samples_out)
        if spread is not None:
            spread(counts)
    return labelled_batches


def _counts(
    run: Pass[Any],
    parts: Sequence[shares.Part],
    label: Callable[[Batch], Sequence[str]],
    of_keys: Callable[[Sequence[bytes]], Sequence[str]] | None = None,
) -> Counter[str]:
    """Count the samples of *run* by part; *parts* without samples are counted as 0.

    `label(batch)`: returns the part of each sample. `of_keys(keys)`: the same by keys alone, if these suffice.
    """
    total = Counter({part.name: 0 for part in parts})
    for counts in run.label_counts(label, of_keys):
        total.update(counts)
    return total


def by_key(parts: Sequence[shares.Part]) -> Callable[[Sequence[bytes]], list[str]]:
    """Return a function from keys to the names of their parts: of *parts*, chosen by the hash of the key alone."""
    names, number_of = [part.name for part in parts], shares.number_of
    ends = shares.upper_bounds([part.weight for part in parts])
    return lambda keys: [names[bisect_right(ends, number_of(key))] for key in keys]


def by_value(column: Column, check: Callable[[str], None]) -> Callable[[Batch], list[str]]:
    """Return a function from a batch to the parts of its samples, which are their values of *column*.

    `check(value)`: raises ValueError if it can't be a name. The function raises SampleError, naming the sample, for
    such a value, for a missing one, and for the 1,001st distinct one.
    """
    values_seen: set[str] = set()

    def label(batch: Batch) -> list[str]:
        values = values_of(batch, column)
        for value in dict.fromkeys(values):
            if value in values_seen:
                continue
            try:
                check(value)
                if len(values_seen) == MAX_PART_VALUES:
                    why = "the most there may be, because each has an output that is open"
                    raise ValueError(f"is one more than {MAX_PART_VALUES} values, {why}")
            except ValueError as error:
                why = f": its {column.name} can't name an output: {value[:100]!r} {error}"
                raise failure_of(batch[values.index(value)], why) from None
            values_seen.add(value)
        return values

    return label


def values_of(batch: Batch, column: Column) -> list[str]:
    """Return the value of *column* as text for each sample of *batch*. Raises: SampleError for one without any."""
    texts = texts_of_column(batch, column)
    if None in texts:
        sample = batch[texts.index(None)]
        columns = batch.columns
        if columns is not None and columns.values(column.name) is not None:
            raise SampleError(f"sample {sample.key!r} has no value in {column.name}", url=columns.url)
        raise failure_of(
            sample,
            f" has no {column.name} (its fields: {field_list(sample.fields)}); "
            f"tarfilter --fields-present {column.choices[0]} leaves out such samples",
        )
    return texts  # type: ignore[return-value]


def entries(batch: Batch, column: Column) -> Iterator[bytes]:
    """Yield a sort entry (bytes) for each sample of *batch*: value of *column*, hash of the key in 8 bytes, key.

    Entries compare by value, then hash, then key.
    """
    for value, key in zip(values_of(batch, column), batch.keys, strict=True):
        number = shares.number_of(key).to_bytes(LENGTH_BYTES, "big")
        yield text_bytes(value.encode("utf-8", "surrogatepass")) + number + text_bytes(key)


def stratified(
    run: Pass[Any], parts: Sequence[shares.Part], column: Column
) -> tuple[Counter[str], Iterator[tuple[Batches, Sequence[str]]]]:
    """Return (samples by part, batches with part names): each of *parts* gets its share of the samples of each value.

    The share is exact to one sample: see the module. `column`: has the values. The second item yields (batch, names),
    with one name a sample.
    Holds: 100 MiB of records; the others are in unnamed files. Raises, while batches are taken: SampleError if samples
    have changed.
    """
    from tartools.shards.workers import outputs  # most parts are chosen without a count

    tmpdir = run.reading.tmpdir

    def work(task: ShardTask[None]) -> Iterator[bytes]:
        of_task = chain.from_iterable(entries(batch, column) for batch in task.batches)
        numbered = enumerate(of_task, task.number << POSITION_SHIFT)
        return pack_blocks(entry + position.to_bytes(LENGTH_BYTES, "big") for position, entry in numbered)

    counts = Counter({part.name: 0 for part in parts})
    by_entry = external_sort(records_of(outputs(run.counted_gather(work))), PARTING_MEMORY, tmpdir)
    sorted_again = external_sort(assign_parts(by_entry, parts, counts, tmpdir), PARTING_MEMORY, tmpdir)
    by_position = chain([*islice(sorted_again, 1)], sorted_again)  # now all have been counted

    def part(record: bytes) -> str:
        return parts[int.from_bytes(record[2 * LENGTH_BYTES :], "big")].name

    def of_samples(batch: Batch) -> list[str]:
        names = []
        for entry in entries(batch, column):
            record = next(by_position, b"")
            if record[LENGTH_BYTES : 2 * LENGTH_BYTES] != digest_of_entry(entry):
                raise other_samples()
            names.append(part(record))
        return names

    def labels() -> Iterator[tuple[Batches, Sequence[str]]]:
        yield from run.evaluate(of_samples, lambda keys: list(map(part, islice(by_position, len(keys)))))
        if next(by_position, None) is not None:
            raise other_samples()

    return counts, labels()


def assign_parts(
    records: Iterator[bytes], parts: Sequence[shares.Part], counts: Counter[str], tmpdir: str | None
) -> Iterator[bytes]:
    """Assign a part to each of *records*; yield records of position, fingerprint of the entry, and index of the part.

    *records*: entries of `entries`, each with its position behind it, sorted. The three numbers have 8 bytes each. The
    samples of one value get parts in order, by the weights of *parts*. Adds the number of samples of each part to
    *counts*. Holds: 32 MiB of records.
    """
    for _, same in groupby(records, lambda record: record[: record.index(b"\0\0")]):
        spool = Spool(PARTING_MEMORY, tmpdir)
        count = 0
        for record in same:
            count += 1
            spool.add(record[-LENGTH_BYTES:] + digest_of_entry(record[:-LENGTH_BYTES]))
        ranked = iter(spool)
        for number, share in enumerate(shares.apportion(count, parts)):
            counts[parts[number].name] += share
            for record in islice(ranked, share):
                yield record + number.to_bytes(LENGTH_BYTES, "big")


def digest_of_entry(entry: bytes) -> bytes:
    """Return a fingerprint (8 bytes) of *entry*, by which a second reading checks that the sample is the same."""
    return blake2b(entry, digest_size=LENGTH_BYTES).digest()
