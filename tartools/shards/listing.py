"""Many URLs, of shards and of tables, to the rows of their samples: what a table of them is made of."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import groupby
from typing import NamedTuple

from tartools import storage
from tartools.errors import StorageError, UsageError
from tartools.samples.account import Account, Phase
from tartools.samples.sample import Batch
from tartools.shards.gathering import WORKERS, gather
from tartools.shards.reading import Reading
from tartools.shards.writing import Destination
from tartools.storage.url import Url
from tartools.storage.versions import Look, look
from tartools.tables import order, rows, schema
from tartools.tables.fetching import requests_at_once
from tartools.tables.inputs import Inputs, Part, TablePart
from tartools.tables.requests import Requests
from tartools.tables.spool import Spool
from tartools.tables.unified import ShardNumbers
from tartools.tables.writing import RowBatch, TableWriter

NOWHERE = "a table can't list these samples, because they are in no file or object: copy them to one first"


class Indexing(NamedTuple):
    """How shards are indexed: as *reading* says, by *most* workers (4 at most), with columns *names* of *facts*."""

    reading: Reading
    most: int
    names: Sequence[str] = ()
    facts: rows.Facts | None = None


class TableDestination(Destination):
    """The table *url*, for rows of *inputs*."""

    def __init__(self, url: str, force: bool, inputs: Inputs) -> None:
        super().__init__(url, force)
        self._inputs = inputs

    def writer(self) -> TableWriter:
        """Return what writes it."""
        return TableWriter(self.url, self.force, self._inputs.schema, self._inputs.shards)


def listed(urls: Sequence[str], account: Account, indexing: Indexing) -> Inputs:
    """Return the rows of the samples of *urls*, in order: those of tables; shards are read and indexed for them.

    Whoever takes the rows counts the samples.

    Raises: StorageError without pyarrow, or for a shard that can't be read in parts; UsageError for stdin and commands.
    """
    schema.check_installed()
    for url in urls:
        if Url(url).scheme in ("-", "pipe"):
            raise UsageError(NOWHERE, url=url)
    account.expected = storage.check_inputs(urls)
    account.shards = len(urls)
    account.phase = Phase("reading")
    looked = looks(urls)
    shards = ShardNumbers()
    parts: list[Part] = []
    for is_table, group in groupby(urls, lambda url: looked[url].first == schema.MAGIC):
        if is_table:
            parts += [TablePart(url, shards) for url in group]
        else:
            parts.append(_indexed(list(group), looked, shards, account, indexing))
    inputs = Inputs(parts, shards)
    account.phase = Phase("writing", inputs.rows, lambda: account.samples_out)
    return inputs


def looks(urls: Iterable[str]) -> dict[str, Look]:
    """Return what each of *urls* is now; servers are asked side by side."""
    with closing(Requests(requests_at_once())) as requests:
        answers = {url: requests.ask(partial(look, url)) for url in urls}
        return {url: answer() for url, answer in answers.items()}


def _indexed(
    urls: Sequence[str], looked: Mapping[str, Look], shards: ShardNumbers, account: Account, indexing: Indexing
) -> Spool:
    """Return the rows of the shards *urls*. Raises: StorageError if one of them changes meanwhile."""

    def work(batches: Iterator[Batch], _number: int, _forked: bool) -> Generator[bytes, None, None]:
        yield from rows.blocks(batches, indexing.facts)

    versions: dict[str, str] = {}
    for url in urls:
        version = looked[url].version
        if version is None:
            raise StorageError(
                "this server has no ranges, or no versions (ETag), so no part can be read alone", url=url
            )
        versions[url] = version
    reading = indexing.reading._replace(plain=True, ranges=indexing.facts is None)
    spool = Spool(indexing.names, versions, shards, reading.tmpdir)
    with closing(gather(urls, account, reading, work, lambda _: None, most=min(indexing.most, WORKERS))) as blocks:
        for block in blocks:
            spool.add(block)
    for url, now in looks(urls).items():
        if now.version != versions[url]:
            raise StorageError("changed while it was read", url=url)
    return spool


def row_batches(inputs: Inputs) -> Iterator[RowBatch]:
    """Return all rows of *inputs*, in order."""
    return map(RowBatch, inputs.batches())


def rows_at(inputs: Inputs, positions: Iterable[int], tmpdir: str | None) -> Iterator[RowBatch]:
    """Return the rows of *inputs* at *positions*, in that order; see `order.in_order`."""
    return map(RowBatch, order.in_order(inputs, positions, tmpdir))
