"""Count the samples of a batch."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple

from tartools.samples.sample import Batch
from tartools.stages.combinations import Combination, by_combination, heads_of, text
from tartools.stages.summary import (
    MOST,
    Counts,
    Distribution,
    FieldSummary,
    PictureCounts,
    PictureSize,
    Summary,
    bounded,
)
from tartools.tar import BLOCK, Member
from tartools.tar.groups import Alike

LONGEST = 256  # bytes of a value that counts as a class


class FieldKinds(NamedTuple):
    """Which fields hold *classes*, which hold *pictures*, and the function that measures a picture."""

    classes: Callable[[str], bool]
    pictures: Callable[[str], bool]
    measure: Callable[[Member], PictureSize]


def classes_in(named: Sequence[str]) -> Callable[[str], bool]:
    """Return what tells whether the values of a field are classes: those *named*, whatever their case, cls, cls.*."""
    folded = {"cls", *map(str.lower, named)}
    return lambda name: name.lower() in folded or name.lower().startswith("cls.")


def count_batch(batch: Batch, kinds: FieldKinds, listed: int) -> Summary:
    """Return the counts of *batch*, with up to *listed* keys. Only the payloads that *kinds* names are read.

    Raises: StorageError if the file that it was read from has become shorter.
    """
    found = Summary(listed)
    found.samples, found.first = len(batch), text(batch.keys[0])
    if batch.groups is not None:
        source, keys, starts, members, firsts, alike = batch.groups
        if alike is not None and count_alike(batch, alike, kinds, found):
            return found
        if alike is not None:
            members, firsts = alike.members(source, keys), alike.firsts()
        members = members or []
        found.stored = starts[-1] - starts[0]
    else:
        keys, members, firsts = batch.keys, list(batch[0].members), [0]
    found.members = len(members)
    for size, count in Counter(map(itemgetter(4), members)).items():
        found.payloads += size * count
        found.padding += -size % BLOCK * count
    if batch.groups is None:
        headers = sum(data - start if head is None else BLOCK for _, _, start, data, _, head in members)
        found.stored = headers + found.payloads + found.padding
    found.shards = count_shards(batch, found.stored)
    combinations = by_combination(keys, members, firsts)
    for group in combinations:
        first = list(zip(group.numbers[:listed], map(text, group.keys[:listed]), strict=True))
        found.combined("/".join(group.fields), len(group.keys), first)
    count_fields(combinations, kinds, found)
    return found


def count_alike(batch: Batch, alike: Alike, kinds: FieldKinds, found: Summary) -> bool:
    """Add the counts of *batch*, whose samples have the same fields, to *found*, if its payloads are in memory.

    Not if there are pictures. Returns whether it was done: several times as fast as one member after the other.
    """
    assert batch.groups is not None
    source, keys, starts, *_ = batch.groups
    names = [text(behind[1:]) for behind in alike.behind]
    if isinstance(source, io.FileIO) or len({*names}) < len(names) or any(map(kinds.pictures, names)):
        return False
    for number, name in enumerate(names):
        sizes = alike.sizes[:, number]
        field = found.fields[name] = FieldSummary(len(keys), len(keys), sizes=Distribution.of(sizes.tolist()))
        found.payloads += field.sizes.total
        found.padding += int((-sizes % BLOCK).sum())
        if kinds.classes(name):
            short = [payload for payload in alike.payloads(source, number) if len(payload) <= LONGEST]
            field.long = len(keys) - len(short)
            field.classes = count_classes(map(bytes, short))
    found.members = len(keys) * len(names)
    found.stored = starts[-1] - starts[0]
    found.shards = count_shards(batch, found.stored)
    found.combined("/".join(names), len(keys), list(enumerate(map(text, keys[: found.listed]))))
    return True


def count_shards(batch: Batch, size: int) -> dict[str, list[int]]:
    """Return [samples, bytes] for each shard that the samples of *batch*, which take *size* bytes, were read from."""
    if len(batch.shards) == 1:
        return {batch.shards[0]: [len(batch), size]}
    found: dict[str, list[int]] = {}
    for sample in batch:
        known = found.setdefault(sample.shard, [0, 0])
        known[0] += 1
        known[1] += sample.size
    return found


def count_fields(combinations: Sequence[Combination], kinds: FieldKinds, found: Summary) -> None:
    """Add the counts of each field in *combinations* to *found*, unless there are more than MOST fields."""
    columns: dict[str, list[Sequence[Member]]] = {}
    for group in combinations:
        for name, column in zip(group.fields, group.columns, strict=True):
            columns.setdefault(name, []).append(column)
    if len(columns) > MOST:
        found.many_fields = True
        return
    fields = found.fields = {name: FieldSummary() for name in columns}
    for group in combinations:
        for name in set(group.fields):
            fields[name].samples += len(group.keys)
    for name, field in fields.items():
        if len(combinations) > 1:
            field.lacking = next((text(group.keys[0]) for group in combinations if name not in group.fields), None)
        for column in columns[name]:
            field.add(count_field(name, column, kinds))
        if kinds.pictures(name):
            field.pictures = count_pictures([group for group in combinations if name in group.fields], name, kinds)


def count_pictures(combinations: Sequence[Combination], name: str, kinds: FieldKinds) -> PictureCounts:
    """Return the counts of the pictures of the field *name*, which is in all of *combinations*."""
    found = [
        (number, key, member)
        for group in combinations
        for field, column in zip(group.fields, group.columns, strict=True)
        if field == name
        for number, key, member in zip(group.numbers, group.keys, column, strict=True)
    ]
    found.sort(key=itemgetter(0))  # so that the first one does not depend on how the input is cut into batches
    return PictureCounts.of([(text(key), kinds.measure(Member._make(member))) for _, key, member in found])


def count_field(name: str, column: Sequence[Member], kinds: FieldKinds) -> FieldSummary:
    """Return the counts of the members *column* of the field *name*, without those of pictures."""
    found = FieldSummary(len(column), sizes=Distribution.of(map(itemgetter(4), column)))
    if kinds.classes(name):
        short = (
            column if (found.sizes.greatest or 0) <= LONGEST else [member for member in column if member[4] <= LONGEST]
        )
        found.long = len(column) - len(short)
        found.classes = count_classes(heads_of(short, LONGEST)(short))
    return found


def count_classes(payloads: Iterable[bytes]) -> Counts:
    """Return how often each value is among *payloads*; None if there are more than MOST."""
    classes: dict[str, int] = {}
    for payload, count in Counter(payloads).items():
        value = text(payload).removesuffix("\n")
        classes[value] = classes.get(value, 0) + count
    return bounded(classes)
