"""Assign samples to parts of a data set: by a hash of the key or of a group, by the value of a field, or by both.

By key and value, each part has its share of the samples of each value, exactly to one sample: of the samples of a
value, in the order of the hashes of their keys, the first part gets the first ones. So the sets depend on keys and
values alone, not on order or sharding. Samples are records in two sorts: by value and hash, which gives their parts,
and by position. With groups, the first sort brings those of a group together, and `evengroups` decides where each group
goes.
"""

from __future__ import annotations

import marshal
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING, Any

from tartools.errors import SampleError, several
from tartools.samples.account import Phase
from tartools.samples.batch import Batch
from tartools.samples.digests import blake2b
from tartools.samples.sample import failure_of
from tartools.samples.sortkeys import text_bytes, text_of_key
from tartools.samples.values import Column
from tartools.shards.passes import Pass
from tartools.shards.series import input_changed_error
from tartools.shards.writing import Batches
from tartools.stages import shares
from tartools.stages.evengroups import GroupCounts, Imbalance, assign_evenly
from tartools.stages.externalsort import LENGTH_BYTES, POSITION_SHIFT, Spool, external_sort, pack_blocks, unpack_blocks

if TYPE_CHECKING:
    from tartools.shards.workers import ShardTask

MAX_PART_VALUES = 1000  # values, each of which has an output that is open
MAX_CLASSES = 100_000  # values of --stratify with --group: each has a count in memory for each part
PARTING_MEMORY = 32 << 20  # bytes of records, three times


def label_samples(
    run: Pass[Any],
    parts: Sequence[shares.Part],
    column: Column | None,
    group: Column | None,
    check: Callable[[str], None],
    spread: Callable[[Counter[str]], object] | None,
) -> Iterator[tuple[Batches, Sequence[str]]]:
    """Return an iterator of (batch, names of parts, one a sample) for the samples of *run*, or rows that list them.

    `parts` alone: a sample goes to one of them by the hash of its key. `column` alone: each of its values is a part.
    Both: to *parts* by the hash, so that each gets its share of the samples of each value. Neither: all to the part "".
    `group`, with *parts*: all samples with one value of it go to one part, by the hash of that value; with *column*
    too, to the part that keeps the shares of its values most even (`stages.evengroups`).
    `check(value)`: raises ValueError if a value of *column* can't be the name of a part; not called with *parts*.
    `spread(counts)`: if given, called with the number of samples of each part before the iterator is returned. The
    consumer counts the samples.

    Raises, now or while the iterator is read: SampleError for a value that is missing, can't be read, or can't be the
    name of a part, for over 1,000 parts of *column*, and if samples differ from the ones that were counted before;
    StorageError if the inputs have changed; the errors of reading.
    """
    run.prepare(reread=column is not None or group is not None)
    counts: Counter[str] | None = None
    labelled_batches: Iterator[tuple[Batches, Sequence[str]]]
    if parts and column is not None:
        counts, labelled_batches = stratify(run, parts, column, group)
    elif column is not None or group is not None:
        label = make_value_labeller(column, check) if column is not None else make_group_labeller(parts, group)
        counts = _count_parts(run, parts, label) if spread else None
        labelled_batches = run.evaluate(label)
    elif parts:
        of_keys = make_key_labeller(parts)
        counts = _count_parts(run, parts, lambda batch: of_keys(batch.keys), of_keys) if spread else None
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


def _count_parts(
    run: Pass[Any],
    parts: Sequence[shares.Part],
    label: Callable[[Batch], Sequence[str]],
    of_keys: Callable[[Sequence[bytes]], Sequence[str]] | None = None,
) -> Counter[str]:
    """Count the samples of *run* by part; *parts* without samples are counted as 0.

    `label(batch)`: returns the part of each sample. `of_keys(keys)`: the same by keys alone; None if they do not
    decide. Raises: the errors of *label* and of reading.
    """
    total = Counter({part.name: 0 for part in parts})
    for counts in run.label_counts(label, of_keys):
        total.update(counts)
    return total


def make_key_labeller(parts: Sequence[shares.Part]) -> Callable[[Sequence[bytes]], list[str]]:
    """Return a function from keys to the names of their parts, each chosen from *parts* by the hash of the key.

    *parts* divide the range of hashes (`shares.hash_key`) in their order, by their weights: the first has the lowest.
    """
    names, number_of = [part.name for part in parts], shares.hash_key
    ends = shares.upper_bounds([part.weight for part in parts])
    return lambda keys: [names[bisect_right(ends, number_of(key))] for key in keys]


def make_value_labeller(column: Column, check: Callable[[str], None]) -> Callable[[Batch], list[str]]:
    """Return a function from a batch to the parts of its samples, which are their values of *column*.

    `check(value)`: raises ValueError if it can't be a name. The function raises SampleError, naming the sample, for
    such a value, for one that is missing or can't be read (`shares.values_of`), and for the 1,001st distinct one of all
    batches (MAX_PART_VALUES).
    """
    values_seen: set[str] = set()

    def label(batch: Batch) -> list[str]:
        values = shares.values_of(batch, column)
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


def make_group_labeller(parts: Sequence[shares.Part], group: Column | None) -> Callable[[Batch], list[str]]:
    """Return a function from a batch to the names of the samples' parts, chosen by the hash of the value of *group*.

    *group* must not be None. The function raises SampleError for a value that is missing or can't be read.
    """
    assert group is not None
    of_values = make_key_labeller(parts)
    return lambda batch: of_values(list(map(shares.bytes_of_value, shares.values_of(batch, group))))


def sort_entries(batch: Batch, column: Column) -> Iterator[bytes]:
    """Yield a sort entry (bytes) for each sample of *batch*: value of *column*, hash of the key in 8 bytes, key.

    Entries compare by value, then hash, then key; `sortkeys.text_bytes` encodes value and key. Raises: SampleError for
    a value that is missing or can't be read.
    """
    for value, key in zip(shares.values_of(batch, column), batch.keys, strict=True):
        number = shares.hash_key(key).to_bytes(LENGTH_BYTES, "big")
        yield text_bytes(shares.bytes_of_value(value)) + number + text_bytes(key)


def group_entries(batch: Batch, group: Column, column: Column) -> Iterator[bytes]:
    """Yield a sort entry (bytes) for each sample of *batch*: value of *group*, value of *column*, key.

    `sortkeys.text_bytes` encodes each of the three; entries compare by them, in this order. Raises: SampleError for a
    value that is missing or can't be read.
    """
    values = zip(shares.values_of(batch, group), shares.values_of(batch, column), batch.keys, strict=True)
    for group_value, value, key in values:
        yield b"".join(map(text_bytes, (shares.bytes_of_value(group_value), shares.bytes_of_value(value), key)))


def stratify(
    run: Pass[Any], parts: Sequence[shares.Part], column: Column, group: Column | None
) -> tuple[Counter[str], Iterator[tuple[Batches, Sequence[str]]]]:
    """Return (samples by part, batches with part names): each of *parts* gets its share of the samples of each value.

    The share is exact to one sample, or with *group* as even as whole groups allow: see the module. `column`: has the
    values. The second item yields (batch, names), with one name a sample.
    All samples of *run* are read before this returns. Holds: 100 MiB of records; further ones are in unnamed files.
    Raises: SampleError for a value that is missing or can't be read, and, with *group*, for over 100,000 values of
    *column*; while batches are taken, SampleError or StorageError if samples have changed; the errors of reading.
    """
    from tartools.shards.workers import outputs  # most parts are chosen without a count

    tmpdir = run.reading.tmpdir
    if group is None:
        entries_of: Callable[[Batch], Iterator[bytes]] = partial(sort_entries, column=column)
    else:
        entries_of = partial(group_entries, group=group, column=column)

    def work(task: ShardTask[None]) -> Iterator[bytes]:
        of_task = chain.from_iterable(map(entries_of, task.batches))
        numbered = enumerate(of_task, task.number << POSITION_SHIFT)
        return pack_blocks(entry + position.to_bytes(LENGTH_BYTES, "big") for position, entry in numbered)

    counts = Counter({part.name: 0 for part in parts})
    by_entry = external_sort(unpack_blocks(outputs(run.gather_counting(work))), PARTING_MEMORY, tmpdir)
    if group is None:
        assigned = assign_parts(by_entry, parts, counts, tmpdir)
    else:
        assigned = assign_groups(by_entry, parts, counts, run, (group.name, column.name))
    sorted_again = external_sort(assigned, PARTING_MEMORY, tmpdir)
    by_position = chain([*islice(sorted_again, 1)], sorted_again)  # now all have been counted

    def part(record: bytes) -> str:
        return parts[int.from_bytes(record[2 * LENGTH_BYTES :], "big")].name

    def of_samples(batch: Batch) -> list[str]:
        names = []
        for entry in entries_of(batch):
            record = next(by_position, b"")
            if record[LENGTH_BYTES : 2 * LENGTH_BYTES] != digest_of_entry(entry):
                raise input_changed_error()
            names.append(part(record))
        return names

    def labels() -> Iterator[tuple[Batches, Sequence[str]]]:
        yield from run.evaluate(of_samples, lambda keys: list(map(part, islice(by_position, len(keys)))))
        if next(by_position, None) is not None:
            raise input_changed_error()

    return counts, labels()


def assign_parts(
    records: Iterator[bytes], parts: Sequence[shares.Part], counts: Counter[str], tmpdir: str | None
) -> Iterator[bytes]:
    """Assign a part to each of *records*; yield records of position, fingerprint of the entry, and index of the part.

    *records*: from `sort_entries`, each with its position behind it, sorted. The three numbers have 8 bytes each. The
    samples of one value get parts in order, by the weights of *parts*. Adds the number of samples of each part to
    *counts*. Holds: 32 MiB of the records of one value, beyond that unnamed files in *tmpdir*.
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


def assign_groups(
    records: Iterator[bytes],
    parts: Sequence[shares.Part],
    counts: Counter[str],
    run: Pass[Any],
    names: tuple[str, str],
) -> Iterator[bytes]:
    """Assign a part to each group of *records*; yield records of position, fingerprint of the entry, index of the part.

    *records*: from `group_entries`, each with its position behind it, sorted. The three numbers have 8 bytes each. Adds
    the samples of each part to *counts*. Sets the totals of the progress of *run* to two lines: how many groups each
    part has, and how even the parts are. *names*: of the columns of groups and values, for these lines.
    Holds: 96 MiB of records, two bytes a group, and a number for each value and part.
    Raises: SampleError for the 100,001st distinct value, at the end of its group.
    """
    tmpdir = run.reading.tmpdir
    spool, groups = Spool(PARTING_MEMORY, tmpdir), Spool(PARTING_MEMORY, tmpdir)
    classes: dict[bytes, int] = {}
    totals: list[int] = []
    size = 0
    for number, (value, same) in enumerate(groupby(records, lambda record: record[: record.index(b"\0\0") + 2])):
        samples: Counter[int] = Counter()
        for record in same:
            of_class = record[len(value) : record.index(b"\0\0", len(value)) + 2]
            index = classes.setdefault(of_class, len(classes))
            samples[index] += 1
            entry = digest_of_entry(record[:-LENGTH_BYTES])
            spool.add(record[-LENGTH_BYTES:] + entry + number.to_bytes(LENGTH_BYTES, "big"))
        if len(classes) > MAX_CLASSES:
            raise SampleError(f"{names[1]} has over {MAX_CLASSES:,} values, too many for --stratify with --group")
        totals += [0] * (len(classes) - len(totals))
        for index, count in samples.items():
            totals[index] += count
        hash_of_value = shares.hash_key(text_of_key(value)).to_bytes(LENGTH_BYTES, "big")
        groups.add(marshal.dumps((hash_of_value, number, tuple(sorted(samples.items())))))
        size += 1
    imbalance = Imbalance(parts, totals)
    unpacked = (GroupCounts(*marshal.loads(group)) for group in groups)  # noqa: S302 - made above
    part_of_group = assign_evenly(unpacked, imbalance, tmpdir)
    sizes = Counter(part_of_group)
    for number, part in enumerate(parts):
        counts[part.name] += imbalance.counts[number][-1]
    texts = [text_of_key(of_class).decode("utf-8", "replace") for of_class in classes]
    groups_of_parts = ", ".join(f"{sizes[number]:,} in {part.name}" for number, part in enumerate(parts))
    run.account.progress.totals = [
        f"{several(size, 'value')} of {names[0]}: {groups_of_parts}",
        f"values of {names[1]}: {imbalance.describe(parts, texts)}",
    ]
    for record in spool:
        group_number = int.from_bytes(record[-LENGTH_BYTES:], "big")
        yield record[:-LENGTH_BYTES] + part_of_group[group_number].to_bytes(LENGTH_BYTES, "big")


def digest_of_entry(entry: bytes) -> bytes:
    """Return a fingerprint (8 bytes) of *entry*, by which a second reading checks that the sample is the same."""
    return blake2b(entry, digest_size=LENGTH_BYTES).digest()
