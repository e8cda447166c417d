"""The two sides of tardiff: shards and tables to sorted records of their samples, and to the samples that differ."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from itertools import accumulate, compress, islice, tee
from typing import NamedTuple

from tartools import storage
from tartools.errors import UsageError
from tartools.samples.account import Account
from tartools.samples.sample import Batch
from tartools.shards.dataset import DataSet
from tartools.shards.delivery import Picked, deliver_flags
from tartools.shards.gathering import gather, gather_results
from tartools.shards.reading import Reading
from tartools.shards.writing import Destination
from tartools.stages.comparing.sampledigests import NUMBER, content_records, digest_of
from tartools.stages.sorting.externalsort import TURN, pack_blocks, records_of
from tartools.storage.version import changed_since

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

        expected, shards = account.expected, account.shards
        found = gather(self.urls, account, self.reading, work, self.counts.append, most=self.most)
        account.expected, account.shards = expected, shards  # those of both sides
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


def write_wanted(data: DataSet, counts: Sequence[int], wanted: Iterator[bytes], sink: Destination) -> None:
    """Write the *wanted* samples of *data* to *sink*: sorted positions, each followed by the key.

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
    deliver_flags(data.answered(lambda batch: flags(batch.keys), flags, plainly), sink, None, data.account)


def place(position: bytes, begins: Sequence[int]) -> int:
    """Return the number of the sample at *position*, if those of each task begin at *begins*."""
    number = int.from_bytes(position, "big")
    return begins[(number >> TURN) - 1] + (number & ((1 << TURN) - 1))
