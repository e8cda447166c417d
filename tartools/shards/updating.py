"""A table made anew where shards have changed: the rows of all others are taken over."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

from tartools import storage
from tartools.errors import UsageError
from tartools.samples.account import Account
from tartools.shards.shardrows import Indexing, check_seen, check_stored, indexed, lacking
from tartools.storage.url import Url
from tartools.storage.version import looks
from tartools.tables import schema
from tartools.tables.inputs import RowInputs, TablePart
from tartools.tables.unified import ShardNumbers

Runs = list[range]  # numbers of rows


class Update(NamedTuple):
    """The rows of *inputs* at *rows* are the new table. *taken* shards were taken over, *read* and *dropped* not."""

    inputs: RowInputs
    rows: Iterator[int]
    taken: int
    read: int
    dropped: int


def updated(urls: Sequence[str], old: str, account: Account, indexing: Indexing) -> Update:
    """Return the rows of the shards *urls* (none: those of the table *old* that still exist), in this order.

    Rows of *old* are taken over if they are all rows of a shard that has not changed. The other shards are read.

    Raises: what `shardrows.listed` raises; UsageError for a shard that is named twice.
    """
    check_stored([*urls, old])
    shards = ShardNumbers()
    table = TablePart(old, shards)
    known = whole_shards(table)
    listed = {same_name(url): url for url, _ in shards.since(0)}
    if not urls:
        urls = [url for url in listed.values() if storage.exists(url)]
    names = [same_name(url) for url in urls]
    if twice := next((url for url, name in zip(urls, names, strict=True) if names.count(name) > 1), None):
        raise UsageError("named twice, which --update does not allow", url=twice)
    looked = looks(urls)
    versions = {(same_name(url), version): number for number, (url, version) in enumerate(shards.since(0))}
    fits = not lacking(table, indexing.wanted)
    found: dict[str, Runs] = {}
    for url, name in zip(urls, names, strict=True):
        number = versions.get((name, looked[url].version)) if looked[url].version is not None else None
        if fits and number in known:
            found[url] = known[number]
    changed = [url for url in urls if url not in found]
    spool = indexed(changed, looked, shards, account, indexing)
    first = table.rows
    for url in changed:
        count = spool.counts.get(url, 0)
        found[url] = [range(first, first + count)]
        first += count
    inputs = RowInputs([table, spool], shards)
    check_seen(inputs, indexing.wanted)
    rows = chain.from_iterable(run for url in urls for run in found[url])
    dropped = len(set(listed) - set(names))
    return Update(inputs, rows, len(urls) - len(changed), len(changed), dropped)


def same_name(url: str) -> str:
    """Return a name of the shard *url* that does not depend on the directory in which it is said."""
    return os.path.abspath(url.removeprefix("file:")) if Url(url).is_local else str(url)


def whole_shards(table: TablePart) -> dict[int, Runs]:
    """Return the rows of each shard of which *table* has all rows from the first on, each once and in order."""
    import numpy as np

    found: dict[int, Runs] = {}
    following: dict[int, int] = {}  # the number of the next sample of each shard
    broken: set[int] = set()
    first = 0
    for rows in table.batches([schema.SHARD, schema.INDEX]):
        numbers = rows.column(schema.SHARD).to_numpy()
        cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(rows)]
        index = rows.column(schema.INDEX) if schema.INDEX in rows.schema.names else None
        indexes = None if index is None or index.null_count else index.to_numpy()
        for low, high in pairwise(cuts):
            number = int(numbers[low])
            start = following.get(number, 0)
            following[number] = start + high - low
            found.setdefault(number, []).append(range(first + low, first + high))
            if indexes is None or not np.array_equal(indexes[low:high], np.arange(start, start + high - low)):
                broken.add(number)
        first += len(rows)
    return {number: runs for number, runs in found.items() if number not in broken}


def empty_columns(update: Update) -> list[str]:
    """Return the columns of values of the old table that the shards read now have not."""
    table, spool = update.inputs.parts
    return [name for name in table.schema.names if name not in spool.schema.names] if spool.rows else []
