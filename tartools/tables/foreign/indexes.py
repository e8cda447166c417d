"""Write an index for another tool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from tartools import storage
from tartools.errors import UsageError
from tartools.samples.account import Account
from tartools.storage.url import Url
from tartools.tables import schema
from tartools.tables.foreign import dali, energon, webshart, wids
from tartools.tables.foreign.indexedsamples import IndexedSample, Shard, shards
from tartools.tables.foreign.indexnames import IndexPlaces


class Format(NamedTuple):
    """How the index for one tool is written: all its files, what it can hold, and how."""

    outputs: Callable[[IndexPlaces], list[str]]
    check: Callable[[str, IndexedSample], None]
    write: Callable[[Iterable[Shard], IndexPlaces], None]


FORMATS = {
    "dali": Format(dali.outputs, dali.check, dali.write),
    "wids": Format(wids.outputs, wids.check, wids.write),
    "webshart": Format(webshart.outputs, webshart.check, webshart.write),
    "energon": Format(energon.outputs, energon.check, energon.write),
}


def check_outputs(name: str, places: IndexPlaces) -> None:
    """Check the files of the index *name* before anything is read.

    Raises: UsageError, StorageError.
    """
    if Url(places.folder).scheme in ("-", "pipe") or places.folder.endswith(schema.SUFFIX):
        raise UsageError("must be a directory or a prefix, for the files of an index", url=places.folder)
    for url in FORMATS[name].outputs(places):
        storage.check_output(url, places.force, places.urls, single=False)


def write(
    name: str, blocks: Iterable[bytes], versions: Mapping[str, str], places: IndexPlaces, account: Account
) -> None:
    """Write the index *name* of the shards that *blocks* of rows are of; each file appears when it is complete.

    *versions* are those that the shards had before they were read. All samples are counted in *account*.

    Order: that of the shards. Holds: one block. Raises: SampleError for what the index can't hold, StorageError.
    """
    chosen = FORMATS[name]
    chosen.write(shards(blocks, versions, account, chosen.check), places)
