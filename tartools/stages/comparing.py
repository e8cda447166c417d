"""Comparing two data sets: the digest of one, and what differs between the sorted records of the samples of both.

Keys pair their samples. If a key occurs several times, the first sample with it in A is compared with the first in B,
and so on. In the digest of a data set the order of the samples does not count. Begin reading at `changes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import compress, count, islice, repeat, tee
from typing import NamedTuple

from tartools.samples.account import Account
from tartools.samples.sample import Batch
from tartools.samples.sortkeys import text_bytes
from tartools.shards.dataset import DataSet
from tartools.shards.delivery import Picked
from tartools.shards.reading import Reading, counted
from tartools.shards.workers import gather, to_the_end, without_output
from tartools.shards.writing import Batches
from tartools.stages.combinations import alike, text
from tartools.stages.externalsort import TURN, positions_of, records_of, sorted_blocks
from tartools.storage.checks import changed_since

NUMBER = 8  # bytes of a number
DIGEST = 16  # bytes of the digest of a payload in a record
WHOLE = 32  # bytes of the digest of a data set, and of all that it is made of


class DiffSide(NamedTuple):
    """Shards and tables, *urls*, read as *reading* says by up to *most* workers; *counts* gets samples of each task."""

    urls: Sequence[str]
    reading: Reading
    most: int
    counts: list[int]

    def contents(self, account: Account) -> Iterator[bytes]:
        """Yield a record of the content of each sample, in an order that is soon sorted. Counts the samples.

        Raises: the failure of an input that ended before it was read to its end.
        """

        def work(batches: Iterator[Batch], number: int, _forked: bool) -> Generator[bytes, None, int]:
            positions = count(number << TURN)
            yield from sorted_blocks(content_records(each, positions) for each in counted(batches, account, done=True))
            return next(positions) - (number << TURN)

        yield from records_of(gather(self.urls, account, self.reading, work, self.counts.append, most=self.most))
        account.check()


def digest(urls: Sequence[str], account: Account, reading: Reading, most: int) -> int:
    """Return the digest of the data set *urls*: the sum of those of its batches, modulo 2**256."""
    work = without_output(lambda batches: sum(map(digest_of_batch, counted(batches, account, done=True))))
    parts: list[int] = []
    to_the_end(gather(urls, account, reading, work, parts.append, most=most, remote=True))
    account.check()
    return sum(parts) % (1 << 8 * WHOLE)


def wanted_flags(
    data: DataSet, counts: Sequence[int], wanted: Iterator[bytes]
) -> Iterator[tuple[Batches, Sequence[bool]]]:
    """Return the samples of *data*, each with whether it is *wanted*: sorted positions, each followed by the key.

    *counts* are the samples of each task. Raises: StorageError if they are other samples than those compared.
    """
    data.samples = sum(counts)
    places, keys = tee(wanted)
    numbers = (int.from_bytes(record[:NUMBER], "big") for record in places)
    picked = Picked(positions_of(numbers, counts), True)
    known = (record[NUMBER:] for record in keys)

    def flags(found: Sequence[bytes]) -> list[bool]:
        chosen = picked.of(found)
        if list(compress(found, chosen)) != list(islice(known, sum(chosen))):
            raise changed_since(data.urls[0])
        return chosen

    plainly = data.reading._replace(ranges=True, listed=False)
    return data.answered(lambda batch: flags(batch.keys), flags, plainly)


def content_records(batch: Batch, positions: Iterator[int]) -> list[bytes]:
    """Return a record for each sample of *batch*, which have the next *positions*; they sort by key and position.

    A record is the key, as `sortkeys.text_bytes` encodes it, the position, and the fields with their digests.
    """
    found: list[bytes] = []
    places = [position.to_bytes(NUMBER, "big") for position in islice(positions, len(batch))]
    for numbers, keys, fields, columns in alike(batch, DIGEST):
        names = b"".join(len(field).to_bytes(NUMBER, "big") + field for field in fields)
        head = len(names).to_bytes(NUMBER, "big") + names
        found += map(b"".join, zip(map(text_bytes, keys), map(places.__getitem__, numbers), repeat(head), *columns))
    return found


def digest_of_batch(batch: Batch) -> int:
    """Return the sum of the digests of the samples of *batch*.

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
    return total


# ---- what differs ----


NONE = b"\xff" * NUMBER  # in place of a position
EQUAL, ADDED, REMOVED, CHANGED, REORDERED = "equal", "added", "removed", "changed", "reordered"
REPEATED = "repeated_a", "repeated_b"  # samples whose key an earlier sample of the same side has


class Change(NamedTuple):
    """What was found: the *kind*, the *key*, encoded, positions in A and in B, if it is there; which *fields* differ.

    A field that only A has begins with -, one that only B has with +.
    """

    kind: str
    key: bytes
    before: bytes = b""
    position: bytes = b""
    fields: tuple[str, ...] = ()


def _parsed(records: Iterable[bytes], counts: Counter[str], repeated: str) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield key, position and content of the sorted *records* of a side; count keys that are *repeated*."""
    last = b""
    for record in records:
        end = record.index(b"\0\0") + 2
        key = record[:end]
        if key == last:
            counts[repeated] += 1
        last = key
        yield key, record[end : end + NUMBER], record[end + NUMBER :]


def changes(left: Iterator[bytes], right: Iterator[bytes], counts: Counter[str]) -> Iterator[Change]:
    """Yield what differs between the sorted records *left*, of A, and *right*, of B, and what is equal, by key.

    Adds REPEATED to *counts*.
    """
    of_a, of_b = (_parsed(side, counts, name) for side, name in zip((left, right), REPEATED, strict=True))
    mine, other = next(of_a, None), next(of_b, None)
    while mine is not None or other is not None:
        if other is not None and (mine is None or other[0] < mine[0]):
            yield Change(ADDED, other[0], position=other[1])
            other = next(of_b, None)
        elif mine is not None and (other is None or mine[0] < other[0]):
            yield Change(REMOVED, mine[0], before=mine[1])
            mine = next(of_a, None)
        elif mine is not None and other is not None:
            if mine[2] == other[2]:
                yield Change(EQUAL, mine[0], mine[1], other[1])
            else:
                yield Change(CHANGED, mine[0], mine[1], other[1], differing(mine[2], other[2]))
            mine, other = next(of_a, None), next(of_b, None)


def differing(left: bytes, right: bytes) -> tuple[str, ...]:
    """Return the fields that differ between the contents *left* and *right* of two records."""
    a, b = by_field(left), by_field(right)
    unlike = (field for field in sorted({*a, *b}) if a.get(field) != b.get(field))
    return tuple([("" if field in a and field in b else "-" if field in a else "+") + text(field) for field in unlike])


def by_field(content: bytes) -> dict[bytes, list[bytes]]:
    """Return the digests of each field in the *content* of a record: several if a sample has it several times.

    The content is what stands behind the position.
    """
    end = NUMBER + int.from_bytes(content[:NUMBER], "big")
    found: dict[bytes, list[bytes]] = {}
    start, at = NUMBER, end
    while start < end:
        stop = start + NUMBER + int.from_bytes(content[start : start + NUMBER], "big")
        found.setdefault(content[start + NUMBER : stop], []).append(content[at : at + DIGEST])
        start, at = stop, at + DIGEST
    return found


def reordered(pairs: Iterable[bytes], sort: Callable[[Iterable[bytes]], Iterator[bytes]]) -> Iterator[Change]:
    """Yield the samples that come after another sample in B than in A, in the order of B.

    Only samples that both have count: *pairs* are their positions in A and in B, and keys. *sort* sorts any number of
    records.
    """

    def after() -> Iterator[bytes]:
        last = NONE
        for pair in sort(pairs):
            yield pair[NUMBER : 2 * NUMBER] + last + pair[2 * NUMBER :]
            last = pair[NUMBER : 2 * NUMBER]

    last = NONE
    for record in sort(after()):
        if record[NUMBER : 2 * NUMBER] != last:
            yield Change(REORDERED, record[2 * NUMBER :], position=record[:NUMBER])
        last = record[:NUMBER]
