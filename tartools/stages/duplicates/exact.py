"""Samples that are equal, by digests: of some fields, or of all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from tartools.samples.digests import alike, payload_digests
from tartools.samples.sample import Batch, Sample
from tartools.stages.duplicates.pairs import AGAINST, INPUT, Pair
from tartools.tar import Member

DIGEST, NUMBER = 16, 8  # bytes
MOST = (1 << 8 * NUMBER) - 1

Find = Callable[[Sample], Sequence[Member] | None]  # the members to compare; None if the sample lacks one


def whole_digests(batch: Batch) -> list[bytes]:
    """Return a digest of each sample of *batch*: of the names and payloads of its fields, in any order."""
    from hashlib import blake2b

    found = [b""] * len(batch)
    for numbers, _, fields, columns in alike(batch, DIGEST):
        names = b"".join(len(field).to_bytes(NUMBER, "big") + field for field in fields)
        for number, row in zip(numbers, zip(*columns, strict=True), strict=True):
            found[number] = blake2b(names + b"".join(row), digest_size=DIGEST).digest()
    return found


def field_digests(batch: Batch, find: Find) -> list[bytes]:
    """Return a digest of each sample of *batch*: of the payloads of the members that *find* finds.

    Of one member it is that of its payload. It is empty if *find* finds none.
    """
    return [joined(payload_digests(found, DIGEST)) if (found := find(sample)) else b"" for sample in batch]


def joined(digests: Sequence[bytes]) -> bytes:
    """Return the digest of several payloads with these *digests*."""
    from hashlib import blake2b

    return digests[0] if len(digests) == 1 else blake2b(b"".join(digests), digest_size=DIGEST).digest()


def records(contents: Iterable[bytes], side: int, largest: bool) -> Iterator[bytes]:
    """Yield a record of each sample of *side*; *contents* are their digests, each with the size of the sample.

    Records sort by digest, then by preference: against, then, with *largest*, by size, then by position. An empty
    content is that of a sample that equals none.
    """
    for position, content in enumerate(contents):
        if content:
            size = int.from_bytes(content[DIGEST:], "big") if largest and side == INPUT else MOST
            rank = (MOST - size).to_bytes(NUMBER, "big")
            yield content[:DIGEST] + bytes([side]) + rank + position.to_bytes(NUMBER, "big")


def repeats(sorted_records: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a pair for each sample of the input that equals one before it in *sorted_records*: that one is kept."""
    last, side, kept = b"", AGAINST, 0
    for record in sorted_records:
        position = int.from_bytes(record[-NUMBER:], "big")
        if record[:DIGEST] != last:
            last, side, kept = record[:DIGEST], record[DIGEST], position
        elif record[DIGEST] == INPUT:
            yield Pair(position, side, kept).record()
