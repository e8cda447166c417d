"""The sides of a comparison: shards and tables to sorted records or a digest of their samples, and to those wanted.

In the digest of a data set the order of the samples does not count.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import accumulate, compress, islice, repeat, tee
from typing import NamedTuple

from tartools import storage
from tartools.errors import UsageError
from tartools.samples.account import Account
from tartools.samples.sample import Batch
from tartools.samples.sortkeys import text_bytes
from tartools.shards.dataset import DataSet
from tartools.shards.delivery import Picked
from tartools.shards.gathering import gather, gather_results
from tartools.shards.reading import Reading
from tartools.shards.writing import Batches
from tartools.stages.combinations import alike
from tartools.stages.externalsort import TURN, pack_blocks, records_of
from tartools.storage.version import changed_since

NUMBER = 8  # bytes of a number
DIGEST = 16  # bytes of the digest of a payload in a record
WHOLE = 32  # bytes of the digest of a data set, and of all that it is made of
SORTED = 1 << 14  # records that a worker sorts together
TWICE = "with -o the second data set is read twice, which this input can't be; copy it to a file first"


class DiffSide(NamedTuple):
    """Shards and tables, *urls*, read as *reading* says by up to *most* workers; *counts* gets samples of each task."""

    urls: Sequence[str]
    reading: Reading
    most: int
    counts: list[int]

    def contents(self, account: Account) -> Iterator[bytes]:
        """Return a record of the content of each sample, in an order that is soon sorted. Counts the samples."""

        def work(batches: Iterator[Batch], number: int, _forked: bool) -> Generator[bytes, None, int]:
            samples = 0
            held: list[bytes] = []
            for batch in batches:
                held += content_records(batch, (number + 1 << TURN) + samples)
                samples += len(batch)
                if len(held) >= SORTED:
                    yield from pack_blocks(sorted(held))
                    held = []
            yield from pack_blocks(sorted(held))
            account.samples_in += samples
            account.samples_out += samples
            return samples

        found = gather(self.urls, account, self.reading, work, self.counts.append, most=self.most)
        return to_its_end(records_of(found), account)


def to_its_end(records: Iterator[bytes], account: Account) -> Iterator[bytes]:
    """Yield *records*. Raises the failure of an input that ended before it was read to its end."""
    yield from records
    account.check()


def digest(urls: Sequence[str], account: Account, reading: Reading, most: int) -> int:
    """Return the digest of the data set *urls*: see `digest_of`."""

    def work(batches: Iterator[Batch]) -> str:
        total = 0
        for batch in batches:
            total += digest_of(batch)
            account.samples_in += len(batch)
            account.samples_out += len(batch)
        return str(total)

    parts: list[int] = []
    gather_results(urls, account, reading, work, most, lambda part: parts.append(int(part)))
    account.check()
    return sum(parts)


def check_repeatable(urls: Sequence[str]) -> None:
    """Raise UsageError if the samples of *urls* can't be read again."""
    if not all(map(storage.is_repeatable, urls)):
        raise UsageError(TWICE, url=next(url for url in urls if not storage.is_repeatable(url)))


def wanted_flags(
    data: DataSet, counts: Sequence[int], wanted: Iterator[bytes]
) -> Iterator[tuple[Batches, Sequence[bool]]]:
    """Return the samples of *data*, each with whether it is *wanted*: sorted positions, each followed by the key.

    *counts* are the samples of each task. Raises: StorageError if they are other samples than those compared.
    """
    begins = list(accumulate(counts, initial=0))
    data.samples = begins[-1]
    places, keys = tee(wanted)
    picked = Picked((place(record[:NUMBER], begins) for record in places), True)
    known = (record[NUMBER:] for record in keys)

    def flags(found: Sequence[bytes]) -> list[bool]:
        chosen = picked.of(found)
        if list(compress(found, chosen)) != list(islice(known, sum(chosen))):
            raise changed_since(data.urls[0])
        return chosen

    plainly = data.reading._replace(ranges=True, listed=False)
    return data.answered(lambda batch: flags(batch.keys), flags, plainly)


def place(position: bytes, begins: Sequence[int]) -> int:
    """Return the number of the sample at *position*, if those of each task begin at *begins*."""
    number = int.from_bytes(position, "big")
    return begins[(number >> TURN) - 1] + (number & ((1 << TURN) - 1))


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
