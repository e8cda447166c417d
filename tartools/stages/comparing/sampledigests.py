"""Digests: of samples, and of a data set, in which the order of the samples does not count."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat

from tartools.samples.digests import alike
from tartools.samples.sample import Batch
from tartools.samples.sortkeys import text_bytes

NUMBER = 8  # bytes of a number
DIGEST = 16  # bytes of the digest of a payload in a record
WHOLE = 32  # bytes of the digest of a data set, and of all that it is made of


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
