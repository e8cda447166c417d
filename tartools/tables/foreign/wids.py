"""The index for wids (`ShardListDataset`): one JSON file with the number of samples in each shard.

wids finds the samples of a shard itself, when it opens it, and counts them as it sees them: so what it would see in
another way than we do is a failure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from tartools import storage
from tartools.tables import schema
from tartools.tables.foreign.indexedsamples import IndexedSample, Shard, refused
from tartools.tables.foreign.indexnames import IndexPlaces
from tartools.tar.header import BLOCK

NAME = "shardindex.json"
LONGEST = 100  # bytes of a name that wids reads: those in the last header block of a member
GREATEST = 8 << 30  # bytes of a payload whose size wids can't read: such sizes are not octal


def outputs(places: IndexPlaces) -> list[str]:
    """Return the URLs of all files of the index. Raises: UsageError."""
    return [places.together().below(NAME)]


def check(url: str, row: IndexedSample) -> None:
    """Raise SampleError if wids would not see the members of *row*, of the shard *url*, as what they are."""
    for part, header in zip(row.parts, row.headers(), strict=True):
        path = row.path(part)
        if len(path) > LONGEST or (header > BLOCK and not path.isascii()):
            raise refused(
                url, row.key, part.field, "has a name that wids can't read: it reads 100 bytes of the plain header"
            )
        if part.size >= GREATEST:
            raise refused(url, row.key, part.field, "has 8 GiB or more, which wids can't read")
    if not row.parts and b"." in row.key:
        raise refused(url, row.key, b"", "has no field, but wids takes it for a sample; leave it out of the shard")


def write(shards: Iterable[Shard], places: IndexPlaces) -> None:
    """Write the index of *shards*. Raises: SampleError, StorageError."""
    url = places.together().below(NAME)
    folder = schema.folder_of(url)
    found = [
        {
            "url": schema.relative(shard.url, folder),
            "nsamples": sum(1 for _ in shard.rows),
            "filesize": shard.size,
        }
        for shard in shards
    ]
    index = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": found}
    with storage.writing(url, places.force) as sink:
        sink.write(json.dumps(index, indent=2).encode() + b"\n")
