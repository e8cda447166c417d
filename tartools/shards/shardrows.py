"""Many URLs, of shards and of tables, to the rows of their samples: what a table of them is made of."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby, pairwise, starmap
from typing import Any, NamedTuple

from tartools import storage
from tartools.errors import UsageError
from tartools.samples.account import Account, Phase
from tartools.samples.sample import Batch
from tartools.shards.gathering import WORKERS, gather
from tartools.shards.reading import Reading
from tartools.shards.writing import Destination, ShardWriter
from tartools.storage.url import Url
from tartools.storage.version import Look, check_unchanged, looks
from tartools.tables import order, rows, schema, source, unified
from tartools.tables.facts import WantedFacts
from tartools.tables.inputs import RowInputs, RowSource, TablePart
from tartools.tables.rowplaces import Listing
from tartools.tables.spool import RowSpool
from tartools.tables.tablewriter import RowBatch, TableWriter
from tartools.tables.unified import ShardNumbers

PLACES = (schema.SHARD, schema.KEY, schema.BEGIN, schema.END)  # columns by which samples are read
NOWHERE = "a table can't list these samples, because they are in no file or object: copy them to one first"


class Indexing(NamedTuple):
    """How shards are indexed: as *reading* says, by *most* workers (4 at most), with the facts that are *wanted*."""

    reading: Reading
    most: int
    wanted: WantedFacts | None = None


class TableDestination(Destination):
    """The table *url*, for those rows that *inputs* returns, once they are known."""

    def __init__(self, url: str, force: bool, inputs: Callable[[], RowInputs]) -> None:
        super().__init__(url, force)
        self._inputs = inputs

    def writer(self) -> TableWriter:
        """Return what writes it."""
        inputs = self._inputs()
        return TableWriter(self.url, self.force, inputs.schema, inputs.shards)


class RowWriter(ShardWriter):
    """Writes one shard: *samples* that rows list."""

    def __init__(self, destination: Destination, samples: ListedSamples) -> None:
        super().__init__(destination)
        self._samples = samples

    def write_batch(self, batch: Any, first: int, last: int) -> None:
        """Add the samples that the rows *first* to *last* - 1 of *batch*, a `RowBatch`, list."""
        for found in self._samples.of(batch.rows.slice(first, last - first), batch.numbers[first:last]):
            super().write_batch(found, 0, len(found))

    def finish(self) -> None:
        """As `ShardWriter.finish`. Raises: StorageError also if a shard has changed."""
        self._samples.check()
        self._samples.close()
        super().finish()

    def abort(self, *, flush: bool = True) -> None:
        """As `ShardWriter.abort`."""
        self._samples.close()
        super().abort(flush=flush)


def listed(urls: Sequence[str], account: Account, indexing: Indexing) -> RowInputs:
    """Return the rows of the samples of *urls*, in order: those of tables; shards are read and indexed for them.

    Whoever takes the rows counts the samples.

    Raises: StorageError without pyarrow, or for a shard that can't be read in parts; UsageError for stdin and commands.
    """
    return listed_apart([urls], account, indexing)[0]


def listed_apart(
    sources: Sequence[Sequence[str]], account: Account, indexing: Indexing
) -> tuple[RowInputs, list[range]]:
    """Return the rows of the samples of all *sources*, one after the other, and the numbers of the rows of each.

    *sources* are URLs. As `listed`.
    """
    urls = [url for each in sources for url in each]
    schema.check_installed()
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # the others keep 30 MB more
    check_stored(urls)
    account.expected = expected = storage.check_inputs(urls)
    account.shards = len(urls)
    account.phase = Phase("reading")
    looked = looks(urls)
    shards = ShardNumbers()
    parts: list[RowSource] = []
    ends = [0]
    for each in sources:
        for is_table, group in groupby(each, lambda url: looked[url].first == schema.MAGIC):
            if is_table:
                parts += [checked(TablePart(url, shards), indexing.wanted) for url in group]
            else:
                parts.append(indexed(list(group), looked, shards, account, indexing))
        ends.append(sum(part.rows for part in parts))
    account.expected, account.shards = expected, len(urls)  # of all sources
    inputs = RowInputs(parts, shards)
    check_seen(inputs, indexing.wanted)
    account.phase = Phase("writing", inputs.rows, lambda: account.samples_out)
    return inputs, list(starmap(range, pairwise(ends)))


def check_stored(urls: Sequence[str]) -> None:
    """Raise UsageError if one of *urls* is stdin or a command."""
    for url in urls:
        if Url(url).scheme in ("-", "pipe"):
            raise UsageError(NOWHERE, url=url)


def shard_versions(urls: Sequence[str]) -> dict[str, str]:
    """Return the versions of the shards *urls*. Raises: UsageError for tables, stdin and commands; StorageError."""
    check_stored(urls)
    looked = looks(urls)
    for url, found in looked.items():
        if found.first == schema.MAGIC:
            raise UsageError("this is a table, and an index is made of shards", url=url)
    return {url: found.known(url) for url, found in looked.items()}


def blocks(urls: Sequence[str], account: Account, indexing: Indexing) -> Generator[bytes, None, None]:
    """Return the rows of the shards *urls*, in order, in blocks (see `rows.blocks`).

    Whoever takes them counts the samples. Raises: SampleError, and what `gather` raises.
    """
    wanted = indexing.wanted
    of = wanted.of if wanted is not None and wanted.any else None

    def work(batches: Iterator[Batch], _number: int, _forked: bool) -> Generator[bytes, None, None]:
        yield from rows.blocks(batches, of)

    reading = indexing.reading._replace(plain=True, ranges=True, listed=True, alike=True)
    return gather(urls, account, reading, work, lambda _: None, most=min(indexing.most, WORKERS))


def indexed(
    urls: Sequence[str], looked: Mapping[str, Look], shards: ShardNumbers, account: Account, indexing: Indexing
) -> RowSpool:
    """Return the rows of the shards *urls*. Raises: StorageError if one of them changes meanwhile."""
    versions = {url: looked[url].known(url) for url in urls}
    wanted = indexing.wanted
    spool = RowSpool(wanted.known if wanted is not None else (), versions, shards, indexing.reading.tmpdir)
    with closing(blocks(urls, account, indexing)) as found:
        for block in found:
            spool.add(block)
    check_unchanged(versions)
    return spool


def lacking(table: TablePart, wanted: WantedFacts | None) -> str | None:
    """Return a column that is *wanted* and that *table* has not; None if it has all."""
    if wanted is None:
        return None
    columns = [name for name, _ in wanted.known]
    if wanted.pictures is not None:
        columns += [f"{field}.width" for field in table.fields if wanted.pictures.known(field)]
    return next((name for name in columns if name not in table.schema.names), None)


def checked(table: TablePart, wanted: WantedFacts | None) -> TablePart:
    """Return *table*. Raises: UsageError if it lacks a column that is *wanted*."""
    if column := lacking(table, wanted):
        raise UsageError(f"this table has no column {column!r}; name its shards, to look into samples", url=table.url)
    return table


def check_seen(inputs: RowInputs, wanted: WantedFacts | None) -> None:
    """Raise SampleError if shards were read for *inputs*, and no sample at all has a field that is *wanted*."""
    if wanted is not None and any(isinstance(part, RowSpool) and part.rows for part in inputs.parts):
        wanted.check_seen(unified.fields_of(inputs.schema))


def row_batches(inputs: RowInputs) -> Iterator[RowBatch]:
    """Return all rows of *inputs*, in order."""
    import numpy as np

    first = 0
    for found in inputs.batches():
        yield RowBatch(found, np.arange(first, first + len(found)))
        first += len(found)


def rows_at(inputs: RowInputs, positions: Iterable[int], tmpdir: str | None) -> Iterator[RowBatch]:
    """Return the rows of *inputs* at *positions*, in that order; see `order.in_order`."""
    return (RowBatch(rows.drop_columns([order.ROW])) for rows in order.in_order(inputs, positions, tmpdir))


def samples_at(inputs: RowInputs, positions: Iterable[int], account: Account, reading: Reading) -> Iterator[Batch]:
    """Return the samples that the rows of *inputs* at *positions* list, in that order. Whoever takes them counts them.

    All *positions* are read before this returns. Raises: StorageError if a sample is not as its row says.
    """
    found = order.in_order(inputs, positions, reading.tmpdir, PLACES)
    return samples_of(inputs, found, account, reading)


def samples_of(inputs: RowInputs, found: Iterator[Any], account: Account, reading: Reading) -> Iterator[Batch]:
    """Yield the samples that the rows *found* of *inputs* list, each with its number in `order.ROW`, in their order."""
    samples = ListedSamples(inputs, account, reading)
    with closing(samples):
        for rows in found:
            yield from samples.of(rows.drop_columns([order.ROW]), rows.column(order.ROW).to_numpy())
        samples.check()


class ListedSamples:
    """The samples that rows of *inputs* list, read as *reading* says. Raises: StorageError if one is not as its row."""

    def __init__(self, inputs: RowInputs, account: Account, reading: Reading) -> None:
        from tartools.tables.tablesamples import Shards

        self._shards = inputs.shards
        names = [part.url for part in inputs.parts if isinstance(part, TablePart)] or [inputs.shards.url(0)]
        self._listing = Listing(names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more", folder="")
        self._read = Shards(self._listing, account, ranges=reading.ranges, listed=reading.listed, tmpdir=reading.tmpdir)

    def of(self, rows: Any, numbers: Any = None) -> Iterator[Batch]:
        """Yield the samples of *rows*, which have *numbers* for messages, in order, in batches."""
        for first in range(0, len(rows), source.ROWS):
            few = rows.slice(first, source.ROWS)
            table = unified.table_rows(few, self._shards.since(0)).combine_chunks()
            piece = self._listing.piece(table.to_batches()[0], first)
            piece.rows = None if numbers is None else numbers[first : first + source.ROWS]
            yield from self._read.samples(piece)

    def check(self) -> None:
        """Raise StorageError if a file has changed since it was opened."""
        self._read.check()

    def close(self) -> None:
        """Stop all requests."""
        self._read.close()
