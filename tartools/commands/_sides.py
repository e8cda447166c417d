"""The two sides of tardiff: shards and tables to sorted records of their samples, and to the samples that differ."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from tartools import storage
from tartools.errors import StorageError, UsageError
from tartools.samples.account import Account
from tartools.samples.sample import Batch, Sample
from tartools.shards.gathering import gather, gather_results
from tartools.shards.reading import Reading, read_batches
from tartools.stages.comparing.digests import NUMBER, content_records, digest_of
from tartools.stages.sorting.externalsort import TURN, pack_blocks, records_of
from tartools.tar.compression import is_table_name

if TYPE_CHECKING:
    from tartools.shards.writing import Destination

SORTED = 1 << 14  # records that a worker sorts together
TWICE = "with -o the second data set is read twice, which this input can't be; copy it to a file first"


class Side(NamedTuple):
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


def check_repeatable(output: str, urls: Sequence[str]) -> None:
    """Raise UsageError if the samples of *urls* can't be read again for *output*."""
    if is_table_name(output):
        from tartools.shards.listing import check_stored
        from tartools.tables import schema

        schema.check_installed()
        check_stored(urls)
    if not all(map(storage.is_repeatable, urls)):
        raise UsageError(TWICE, url=next(url for url in urls if not storage.is_repeatable(url)))


def write_wanted(side: Side, wanted: Iterator[bytes], output: Destination, account: Account) -> None:
    """Write the *wanted* samples of *side*: sorted positions, each followed by the key.

    *account* gets the bytes. Raises: StorageError if there are other samples than those that were compared.
    """
    from tartools.shards.writing import write_batches, write_samples

    begins = list(accumulate(side.counts, initial=0))
    places = ((place(record[:NUMBER], begins), record[NUMBER:]) for record in wanted)
    again = Account(lambda _: None)  # all has been said when they were compared
    if is_table_name(output.url):
        from tartools.shards.listing import Indexing, TableDestination, listed, rows_at

        inputs = listed(side.urls, again, Indexing(side.reading, side.most))
        again.samples_in = inputs.rows
        if inputs.rows != begins[-1]:
            raise other_samples(side.urls[0])
        rows: Iterator[Any] = rows_at(inputs, (number for number, _ in places), side.reading.tmpdir)
        write_batches(rows, TableDestination(output.url, output.force, inputs), again)
    else:
        write_samples(picked(read_batches(side.urls, again, side.reading), places, side.urls[-1]), output, again)
    account.bytes_out += again.bytes_out


def place(position: bytes, begins: Sequence[int]) -> int:
    """Return the number of the sample at *position*, if those of each task begin at *begins*."""
    number = int.from_bytes(position, "big")
    return begins[(number >> TURN) - 1] + (number & ((1 << TURN) - 1))


def picked(batches: Iterator[Batch], places: Iterator[tuple[int, bytes]], url: str) -> Iterator[Sample]:
    """Yield the samples of *batches* at *places*, which are ascending numbers, each with its key.

    Raises: StorageError, which names *url*, if there is another sample, or none.
    """
    first = 0
    wanted = next(places, None)
    for batch in batches:
        while wanted is not None and wanted[0] < first + len(batch):
            sample = batch[wanted[0] - first]
            if sample.raw_key != wanted[1]:
                raise other_samples(sample.shard)
            yield sample
            wanted = next(places, None)
        first += len(batch)
    if wanted is not None:
        raise other_samples(url)


def other_samples(url: str) -> StorageError:
    """Return the failure of a data set that has other samples when it is read again."""
    return StorageError(
        "the samples changed after they were compared; start again when nothing writes to them", url=url
    )
