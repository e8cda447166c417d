"""Digests: of payloads, of samples, and of a data set, in which the order of the samples does not count."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from operator import itemgetter

from tartools.samples.combinations import by_combination
from tartools.samples.sample import Batch
from tartools.samples.sortkeys import text_bytes
from tartools.tar import Member, read_range, split_path

NUMBER = 8  # bytes of a number
DIGEST = 16  # bytes of the digest of a payload in a record
WHOLE = 32  # bytes of the digest of a data set, and of all that it is made of
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


def key_record(key: bytes) -> bytes:
    """Return the record of a sample of which nothing counts but its *key*: both sides have it."""
    return text_bytes(key) + bytes(NUMBER)


def content_records(batch: Batch, position: int) -> list[bytes]:
    """Return a record for each sample of *batch*, of which the first is at *position*; they sort by key and position.

    A record is the key, as `sortkeys.text_bytes` encodes it, the position, and the fields with their digests.
    """
    found: list[bytes] = []
    for numbers, keys, fields, columns in alike(batch, DIGEST):
        names = b"".join(len(field).to_bytes(NUMBER, "big") + field for field in fields)
        head = len(names).to_bytes(NUMBER, "big") + names
        positions = [(position + number).to_bytes(NUMBER, "big") for number in numbers]
        found += map(b"".join, zip(map(text_bytes, keys), positions, repeat(head), *columns))
    return found


def fields_in(content: bytes) -> list[tuple[bytes, bytes]]:
    """Return the fields of a record whose *content* is behind the position, each with its digest, in order."""
    end = NUMBER + int.from_bytes(content[:NUMBER], "big")
    fields, start = [], NUMBER
    while start < end:
        stop = start + NUMBER + int.from_bytes(content[start : start + NUMBER], "big")
        fields.append(content[start + NUMBER : stop])
        start = stop
    return [(field, content[end + DIGEST * n : end + DIGEST * (n + 1)]) for n, field in enumerate(fields)]


def digest_of(batch: Batch) -> int:
    """Return the sum of the digests of the samples of *batch*, modulo 2**256.

    The digest of a sample is the BLAKE2b digest of its key, and of the name of each field and the BLAKE2b digest of its
    payload, in the order of `alike`; before key and names stands their length as 8 bytes, the highest first.
    """
    from hashlib import blake2b

    total = 0
    for _, keys, fields, columns in alike(batch, WHOLE):
        parts: list[Iterable[bytes]] = [[len(key).to_bytes(NUMBER, "big") + key for key in keys]]
        for field, column in zip(fields, columns, strict=True):
            parts += [repeat(len(field).to_bytes(NUMBER, "big") + field), column]
        samples = map(b"".join, zip(*parts))  # noqa: B905
        total += sum(int.from_bytes(blake2b(each, digest_size=WHOLE).digest(), "big") for each in samples)
    return total % (1 << 8 * WHOLE)
