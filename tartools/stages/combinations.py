"""The samples of a batch by their combination of fields, the first bytes of their payloads, and their digests.

Usually all have the same fields, and no loop over them is needed.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from operator import add, itemgetter
from typing import NamedTuple

from tartools.samples.batch import Batch
from tartools.samples.sample import text
from tartools.samples.values import payload_digests
from tartools.tar import Member, read_range, split_path
from tartools.tar.keys import field_from_ending

MAX_MEMBER_DISTANCE_BYTES = 1 << 13  # bytes; members in a file that are this close on average are read at once


class Combination(NamedTuple):
    """Samples with the same *fields*: their *numbers* in the batch, their *keys*, and a column of members a field."""

    fields: tuple[str, ...]
    numbers: Sequence[int]
    keys: Sequence[bytes]
    columns: Sequence[Sequence[Member]]


def by_combination(keys: Sequence[bytes], members: Sequence[Member], firsts: Sequence[int]) -> list[Combination]:
    """Return samples by combination of fields, in order of appearance; members of sample n begin at `firsts[n]`."""
    field_count = len(members) // len(keys)
    if list(firsts) == list(
        range(0, len(members), field_count)
    ):  # usually all samples are alike: then no loop over them
        columns = [members[number::field_count] for number in range(field_count)]
        endings = tuple(column[0][0][len(keys[0]) :] for column in columns)
        if all(
            list(map(itemgetter(0), column)) == list(map(add, keys, repeat(ending)))
            for ending, column in zip(endings, columns, strict=True)
        ):
            return [
                Combination(
                    tuple([text(field_from_ending(ending)) for ending in endings]), range(len(keys)), keys, columns
                )
            ]
    groups: dict[tuple[bytes, ...], list[int]] = {}
    for number, (key, first, last) in enumerate(zip(keys, firsts, [*firsts[1:], len(members)], strict=True)):
        length = len(key)
        groups.setdefault(tuple([member[0][length:] for member in members[first:last]]), []).append(number)
    return [
        Combination(
            tuple([text(field_from_ending(ending)) for ending in fields]),
            numbers,
            [keys[number] for number in numbers],
            [[members[firsts[number] + column] for number in numbers] for column in range(len(fields))],
        )
        for fields, numbers in groups.items()
    ]


def heads_of(members: Sequence[Member], head_bytes: int) -> Callable[[Sequence[Member]], list[bytes]]:
    """Return a function that reads the first *head_bytes* bytes of the payloads of some of *members*.

    *members* are in the order of the archive; if near each other in a file, they are read at once, here. Raises:
    StorageError.
    """
    if not members:
        return lambda _: []
    (_, source, start, *_), (_, last, _, data, size, _) = members[0], members[-1]
    dense = 0 <= data + size - start <= MAX_MEMBER_DISTANCE_BYTES * len(members) and last is source
    buffer = read_range(source, start, data + size) if dense and isinstance(source, io.FileIO) else None

    def read(column: Sequence[Member]) -> list[bytes]:
        if buffer is not None:
            return [
                buffer[at - start : at - start + (head_bytes if size > head_bytes else size)]
                for _, _, _, at, size, _ in column
            ]
        return [read_range(origin, at, at + min(size, head_bytes)) for _, origin, _, at, size, _ in column]

    return read


FieldGroup = tuple[Sequence[int], Sequence[bytes], list[bytes], list[Sequence[bytes]]]


def group_by_fields(batch: Batch, size: int) -> Iterator[FieldGroup]:
    """Yield the samples of *batch* in groups that have the same fields: numbers, keys, fields, columns of digests.

    Fields are in the order of their bytes, and the digests of a field that a sample has twice are in order too.
    """
    members: list[Member] | tuple[Member, ...] | None = batch.groups.members if batch.groups is not None else None
    if batch.groups is not None and members:
        firsts = batch.groups.firsts
    else:
        members, firsts = [], []
        for sample in batch:
            firsts.append(len(members))
            members += sample.members
    for group in by_combination(batch.keys, members, firsts):
        fields = [split_path(column[0][0])[1] for column in group.columns]
        order = sorted(range(len(fields)), key=fields.__getitem__)
        columns: list[Sequence[bytes]] = [payload_digests(group.columns[column], size) for column in order]
        fields.sort()
        if len(set(fields)) < len(fields):
            rows = (sorted(zip(fields, row, strict=True)) for row in zip(*columns, strict=True))
            columns = list(zip(*(map(itemgetter(1), row) for row in rows), strict=True))
        yield group.numbers, group.keys, fields, columns
