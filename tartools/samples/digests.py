"""Digests of payloads: of single members, and of all fields of the samples of a batch."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

from tartools.samples.combinations import by_combination
from tartools.samples.sample import Batch
from tartools.tar import Member, read_range, split_path

PIECE = 1 << 20  # bytes of a large payload that are read at once


def payload_digests(members: Iterable[Member], size: int) -> list[bytes]:
    """Return the BLAKE2b digests, of *size* bytes, of the payloads of *members*.

    Holds: 1 MiB of a payload that is in a file. Raises: StorageError if the file has changed.
    """
    from hashlib import blake2b

    found = []
    source: object = None
    view = memoryview(b"")
    for _, where, _, data, count, _ in members:
        if isinstance(where, io.FileIO):
            digest = blake2b(digest_size=size)
            for start in range(data, data + count, PIECE):
                digest.update(read_range(where, start, min(start + PIECE, data + count)))
        else:
            if where is not source:
                source, view = where, memoryview(where)
            digest = blake2b(view[data : data + count], digest_size=size)
        found.append(digest.digest())
    return found


Alike = tuple[Sequence[int], Sequence[bytes], list[bytes], list[Sequence[bytes]]]


def alike(batch: Batch, size: int) -> Iterator[Alike]:
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
