"""Add fields to samples, by key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from operator import add, eq
from typing import Any, NamedTuple

from tartools.errors import SampleError
from tartools.samples.account import Account
from tartools.samples.batch import Batch
from tartools.samples.sample import Sample, failure_of
from tartools.tar import Member, split_path
from tartools.tar.writer import new_members

Find = Callable[[Sequence[bytes]], Sequence[Any]]

# bytes; the samples of a batch are put together in memory if they are smaller than this
MAX_JOINED_BATCH_BYTES = 1 << 16
# bytes of what is found for a batch, and samples for which it is asked at once
MAX_ADDED_BYTES, SAMPLES_IN_LOOKUP = 16 << 20, 128
NO_ADDITION = (b"", b"", b"", b"", 0)  # pieces and size of what is new in a sample to which nothing is added


class FieldAddition(NamedTuple):
    """Options of `join_batches`: how fields of B, the second input of tarjoin, are added to samples of A, the first.

    `members(key, value)`: returns the members to add to the sample *key*, given the value that B has for it.
    `single()`: the name of the only field to add, if values of B are its payloads, else None.
    `keep_unmatched`: pass on samples without a partner in B; otherwise they are left out.
    `prefer`: "a" or "b", the input whose field is taken if both have it; None: that is an error.
    `fold(name)`: returns the name of a field for comparison: it is equal for names that count as one.
    """

    members: Callable[[bytes, Any], Sequence[Member]]
    single: Callable[[], bytes | None]
    keep_unmatched: bool
    prefer: str | None
    fold: Callable[[bytes], bytes]


def join_batches(batches: Iterable[Batch], find: Find, how: FieldAddition, account: Account) -> Iterator[Batch]:
    """Yield the samples of *batches*, in order, with the fields added that *find* has for their keys.

    `find(keys)`: returns a value for each key, in the form that `how.members` takes; None for a key without a partner.
    Samples without a partner are passed on if `how.keep_unmatched`, else left out, and counted so in *account*; nothing
    else is counted. Holds: two batches, 16 MiB of values (MAX_ADDED_BYTES), and those of 128 samples more
    (SAMPLES_IN_LOOKUP). Raises: SampleError, naming the sample, for a field in both inputs if `how.prefer` is None, for
    a field twice in B, and for a member without a field beside others; StorageError if a file with samples has changed;
    the errors of *batches*, *find* and `how.members`.
    """
    for batch in batches:
        values = _find_values(find, batch.keys)
        lost = values.count(None)
        if lost == len(batch):
            if how.keep_unmatched:
                yield batch
            else:
                account.left_out += lost
            continue
        merged = _add_to_batch(batch, values, lost, how) if len(values) == len(batch) else None
        if merged is not None:
            account.left_out += 0 if how.keep_unmatched else lost
            yield merged
            continue
        samples, count = iter(batch), 0
        while values:
            for value, sample in zip(values, samples, strict=False):  # in this order: a sample is not lost at the end
                if value is not None:
                    yield Batch.from_sample(add_members(sample, how.members(sample.raw_key, value), how))
                elif how.keep_unmatched:
                    yield Batch.from_sample(sample)
                else:
                    account.left_out += 1
            count += len(values)
            values = _find_values(find, batch.keys[count:])


def _find_values(find: Find, keys: Sequence[bytes]) -> list[Any]:
    """Return the values of *find* for *keys*, asked for 128 at a time; the first of them if these have 16 MiB or more.

    >>> [len(_find_values(lambda keys: [bytes(1 << 20)] * len(keys), [b"k"] * count)) for count in (10, 1000)]
    [10, 128]
    """
    values: list[Any] = []
    room = MAX_ADDED_BYTES
    while len(values) < len(keys) and room > 0:
        block = find(keys[len(values) : len(values) + SAMPLES_IN_LOOKUP])
        values += block
        room -= sum(map(len, filter(None, block)))
    return values


def _add_to_batch(batch: Batch, values: Sequence[Any], lost: int, how: FieldAddition) -> Batch | None:
    """Return *batch* with the field `how.single()` added, built as one buffer; None if that can't be done.

    `values`: the payloads, None for a sample without a partner; `lost`: number of samples without a partner, which are
    left out, or kept if `how.keep_unmatched`. It can't be done if values are not payloads of one field, samples are
    over 64 KiB on average (MAX_JOINED_BATCH_BYTES) or not in one buffer, some have the field already or a member
    without a field, or, where samples are left out, a key would come twice in a row. Raises: StorageError if the file
    of the samples has changed.
    """
    field, keys = how.single(), batch.keys
    if field is None or batch.memory_size(0, len(batch)) > MAX_JOINED_BATCH_BYTES * len(batch):
        return None
    names = {name.encode("utf-8", "surrogateescape") for same in batch.combinations() for name in same.fields}
    view_and_bounds = None if {how.fold(field), b""} & set(map(how.fold, names)) else batch.data()
    if view_and_bounds is None:
        return None  # perhaps a field twice, or a member without a field
    # All at once, by columns: the bytes of each sample as they are, then header, payload and padding of its new member.
    # It takes a few calls a batch, where `add_members` makes objects for each sample.
    view, bounds = view_and_bounds
    bodies = list(map(view.__getitem__, map(slice, bounds, bounds[1:])))
    lengths = [end - start for start, end in pairwise(bounds)]
    numbers = [number for number, value in enumerate(values) if value is not None] if lost else range(len(keys))
    new = new_members([keys[number] + b"." + field for number in numbers], [values[number] for number in numbers])
    columns: Sequence[Sequence[Any]] = new
    if lost and how.keep_unmatched:
        maps = (dict(zip(numbers, column, strict=True)) for column in new)
        holes = zip(maps, NO_ADDITION, strict=True)
        columns = [[value_of.get(number, none) for number in range(len(keys))] for value_of, none in holes]
    elif lost:
        keys, bodies = [keys[number] for number in numbers], [bodies[number] for number in numbers]
        lengths = [lengths[number] for number in numbers]
        if any(map(eq, keys, keys[1:])):
            return None  # the writer refuses them
    *pieces, sizes = columns
    data = b"".join(chain.from_iterable(zip(bodies, *pieces, strict=True)))
    starts = list(accumulate(map(add, lengths, sizes), initial=0))
    return Batch.from_buffer(data, keys, starts, batch.shard)


def add_members(sample: Sample, new: Sequence[Member], how: FieldAddition) -> Sample:
    """Return *sample* with the members *new* appended; of a field that *sample* and *new* have, only one is kept.

    Names of fields are compared by `how.fold`. `how.prefer` chooses: "a" keeps the member of *sample*; "b" puts the new
    member in its place. Without *new*, *sample* is returned as it is.

    Raises: SampleError for such a field if `how.prefer` is None, for a field twice in *new*, and for a member without a
    field beside another member.
    """
    if not new:
        return sample
    fields = [how.fold(split_path(member.path)[1]) for member in new]
    if len(set(fields)) < len(fields):
        every = b" ".join(split_path(member.path)[1] for member in new).decode("utf-8", "replace")
        raise SampleError(f"B has a field twice for sample {sample.key!r}: {every}")
    members: list[Member] = list(sample.members)
    names = [how.fold(split_path(member.path)[1]) for member in members]
    for member in new:
        field = split_path(member.path)[1]
        name = how.fold(field)
        if name in names:
            if how.prefer is None:
                text = field.decode("utf-8", "surrogateescape")
                raise failure_of(
                    sample,
                    f" has the field {text!r} in A and in B (--prefer a or --prefer b takes one, -f 'new=old' renames "
                    "those of B)",
                )
            if how.prefer == "b":
                at = names.index(name)
                members[at] = member
                kept_indexes = [n for n in range(len(names)) if n <= at or names[n] != name]
                members, names = [members[n] for n in kept_indexes], [names[n] for n in kept_indexes]
        else:
            members.append(member)
            names.append(name)
    if b"" in names and len(members) > 1:
        raise failure_of(sample, ": a member without a field is a sample of its own, so nothing can be added to it")
    return sample.with_members(members)
