"""Add fields to samples, by key."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from operator import add, eq
from typing import Any, NamedTuple

from tartools.errors import SampleError
from tartools.samples.account import Account
from tartools.samples.sample import Batch, Sample, failure_of
from tartools.tar import ContiguousGroups, Member, read_range, split_path
from tartools.tar.writer import new_members

Find = Callable[[Sequence[bytes]], Sequence[Any]]

LARGE = 1 << 16  # bytes; the samples of a batch are put together in memory if they are smaller than this
MOST, FEW = 16 << 20, 128  # bytes of what is found for a batch, and samples for which it is asked at once
NOTHING = (b"", b"", b"", b"", 0)  # pieces and size of what is new in a sample to which nothing is added


class Adding(NamedTuple):
    """How fields are added.

    *members* returns the members to add, for a key and what was found for it; *single* the name of the
    field that every sample of B has, alone, if what was found is its payload. With *left*, samples without a partner
    are passed on. Of two fields of one name, that of A or of B is taken as *prefer* says (a or b; None: neither).
    *fold* makes names equal that are one name.
    """

    members: Callable[[bytes, Any], Sequence[Member]]
    single: Callable[[], bytes | None]
    left: bool
    prefer: str | None
    fold: Callable[[bytes], bytes]


def joined(batches: Iterable[Batch], find: Find, how: Adding, account: Account) -> Iterator[Batch]:
    """Yield the samples of *batches*, in their order, with what *find* has for their keys: see `Held.find`.

    Samples without a partner are left out, and counted in *account*, unless *how* passes them on.

    Holds: two batches, and of what is found 16 MiB, or that of 128 samples. Raises: SampleError, naming the sample, if
    it would have two fields of one name, or would not read back; what *find* raises.
    """
    for batch in batches:
        found = _found(find, batch.keys)
        lost = found.count(None)
        if lost == len(batch):
            if how.left:
                yield batch
            else:
                account.left_out += lost
            continue
        whole = _together(batch, found, lost, how) if len(found) == len(batch) else None
        if whole is not None:
            account.left_out += 0 if how.left else lost
            yield whole
            continue
        samples, done = iter(batch), 0
        while found:
            for value, sample in zip(found, samples, strict=False):  # in this order: a sample is not lost at the end
                if value is not None:
                    yield Batch.of(added(sample, how.members(sample.raw_key, value), how))
                elif how.left:
                    yield Batch.of(sample)
                else:
                    account.left_out += 1
            done += len(found)
            found = _found(find, batch.keys[done:])


def _found(find: Find, keys: Sequence[bytes]) -> list[Any]:
    """Return what *find* has for the first of *keys*: for all of them, unless that is more than there is room for.

    >>> [len(_found(lambda keys: [bytes(1 << 20)] * len(keys), [b"k"] * count)) for count in (10, 1000)]
    [10, 128]
    """
    found: list[Any] = []
    room = MOST
    while len(found) < len(keys) and room > 0:
        more = find(keys[len(found) : len(found) + FEW])
        found += more
        room -= sum(map(len, filter(None, more)))
    return found


def _together(batch: Batch, found: Sequence[Any], lost: int, how: Adding) -> Batch | None:
    """Return the samples of *batch* with the one field that was *found* for them.

    None if they can't be put together at once: large ones, and those that have to be looked at one by one.
    """
    field, groups = how.single(), batch.groups
    if field is None or groups is None or groups.members is None:
        return None
    source, keys, starts, _, firsts, _ = groups
    begin, end = starts[0], starts[-1]
    if end - begin > LARGE * len(keys):
        return None
    paths = [member[0] for member in groups.members]
    ending = how.fold(b"." + field) + b"\0"
    if ending in how.fold(b"\0".join(paths)) + b"\0" or any(map(eq, keys, map(paths.__getitem__, firsts))):
        return None  # a field twice, perhaps; or a member without a field
    view = memoryview(read_range(source, begin, end) if isinstance(source, io.FileIO) else source)
    shift = begin if isinstance(source, io.FileIO) else 0
    bounds = [start - shift for start in starts] if shift else starts
    bodies = list(map(view.__getitem__, map(slice, bounds, bounds[1:])))
    lengths = [end - start for start, end in pairwise(starts)]
    taken = [number for number, value in enumerate(found) if value is not None] if lost else range(len(keys))
    new = new_members([keys[number] + b"." + field for number in taken], [found[number] for number in taken])
    columns: Sequence[Sequence[Any]] = new
    if lost and how.left:
        known = (dict(zip(taken, column, strict=True)) for column in new)
        holes = zip(known, NOTHING, strict=True)
        columns = [[each.get(number, none) for number in range(len(keys))] for each, none in holes]
    elif lost:
        keys, bodies = [keys[number] for number in taken], [bodies[number] for number in taken]
        lengths = [lengths[number] for number in taken]
        if any(map(eq, keys, keys[1:])):
            return None  # the writer refuses them
    *pieces, sizes = columns
    whole = b"".join(chain.from_iterable(zip(bodies, *pieces, strict=True)))
    starts = list(accumulate(map(add, lengths, sizes), initial=0))
    return Batch(ContiguousGroups(whole, keys, starts, None, []), batch.shard)


def added(sample: Sample, new: Sequence[Member], how: Adding) -> Sample:
    """Return *sample* with the members *new*, behind its own; a field that replaces another is in its place."""
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
                rest = [n for n in range(len(names)) if n <= at or names[n] != name]
                members, names = [members[n] for n in rest], [names[n] for n in rest]
        else:
            members.append(member)
            names.append(name)
    if b"" in names and len(members) > 1:
        raise failure_of(sample, ": a member without a field is a sample of its own, so nothing can be added to it")
    return sample.with_members(members)
