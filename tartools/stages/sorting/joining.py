"""Samples with equal sort keys: join them to one sample, or keep one and leave out the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tartools.errors import SampleError, shown
from tartools.samples.account import Account
from tartools.samples.sample import Sample, field_name
from tartools.samples.sortkeys import FIRST, LAST, Order
from tartools.stages.sorting.records import LONE, Entry
from tartools.stages.sorting.samplefiles import PartMember, SampleFiles
from tartools.tar import Member


def choose_equal_values(entries: Iterable[Entry], order: Order, account: Account) -> Iterator[list[Entry]]:
    """Yield each of sorted *entries* in a list of its own; if *order* is unique, one of those with equal sort keys.

    Samples without a value are never equal. Holds: one entry.
    """
    if order.unique is None:
        yield from ([entry] for entry in entries)
        return
    kept: Entry | None = None
    for entry in entries:
        if kept is not None and entry.sort_key == kept.sort_key and entry.sort_key not in (FIRST, LAST):
            account.left_out += 1
            kept = entry if order.unique == "last" else kept
            continue
        if kept is not None:
            yield [kept]
        kept = entry
    if kept is not None:
        yield [kept]


def join_equal_keys(entries: Iterable[Entry], order: Order, account: Account) -> Iterator[list[Entry]]:
    """Yield the parts of each sample: lists of sorted *entries* with one key, in order of their first entries.

    Holds: the entries of equal sort keys.
    """
    equal: list[Entry] = []
    before = b""
    for entry in entries:
        if equal and entry[0] != before:
            yield from [equal] if len(equal) == 1 else parts_by_sample(equal, order, account)
            equal = []
        before = entry[0]
        equal.append(entry)
    if equal:
        yield from parts_by_sample(equal, order, account)


def parts_by_sample(equal: list[Entry], order: Order, account: Account) -> list[list[Entry]]:
    """Return *equal* entries as one list for each sample.

    Different keys may be equal as numbers: if *order* is unique, one of them is kept. A member without a field is a
    sample of its own, even if its name is the key of another sample.
    """
    if len(equal) == 1:
        return [equal]
    samples: dict[tuple[bytes, int], list[Entry]] = {}
    for number, entry in enumerate(equal):
        apart = number if entry.flags & LONE else -1
        samples.setdefault((entry.key, apart), []).append(entry)
    if order.unique is None:
        return list(samples.values())
    kept: dict[int, list[Entry]] = {}
    for parts in samples.values():
        kind = parts[0].flags & LONE
        if order.unique == "last" or kind not in kept:
            kept[kind] = parts
    account.left_out += len(equal) - sum(map(len, kept.values()))
    return list(kept.values())


def join(parts: list[Entry], order: Order, account: Account, files: SampleFiles) -> Sample:
    """Return the sample that *parts* are together; its members keep the order of the input.

    Raises: SampleError if it would hold a field twice and *order* does not say which one to keep.
    """
    first = files.sample(parts[0])
    kept = distinct_members(first.key, files.members(parts), order)
    used = len({each.part for each in kept})
    account.joined += used - 1
    account.left_out += len(parts) - used
    return first.with_members(each.member for each in kept)


def distinct_members(key: str, members: Iterable[PartMember], order: Order) -> list[PartMember]:
    """Return *members* of the sample *key* with each path once: the first or the last, as *order* says.

    Raises: SampleError if a path occurs twice and *order* does not say which one to keep.
    """
    kept: dict[bytes, PartMember] = {}
    for found in members:
        path = found.member.path
        other = kept.get(path)
        if other and order.unique is None:
            where = " and ".join(dict.fromkeys(shown(each.shard) for each in (other, found) if each.shard))
            raise SampleError(
                f"sample {key!r} would hold the field {field_name(found.member)!r} twice"
                f"{f' (from {where})' if where else ''}: -u first or -u last keeps one, "
                "tarcat --rekey gives every sample a key of its own"
            )
        if order.unique == "last":
            kept.pop(path, None)
        if order.unique == "last" or not other:
            kept[path] = found
    return list(kept.values())


def has_duplicates(members: Sequence[Member]) -> bool:
    """Return whether two of *members* (possibly plain tuples) have the same path."""
    return len({member[0] for member in members}) < len(members)
