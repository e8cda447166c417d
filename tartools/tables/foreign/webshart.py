"""Indexes for webshart: a JSON file beside each shard, with offset and length of each member."""

from __future__ import annotations

import json
from collections.abc import Iterable

from tartools import storage
from tartools.storage.url import Url
from tartools.tables.foreign.indexedsamples import IndexedSample, Shard, text
from tartools.tables.foreign.indexnames import IndexPlaces

SUFFIX = ".json"
PIECE = 1 << 20  # bytes that are written at a time


def outputs(places: IndexPlaces) -> list[str]:
    """Return the URLs of all files of the index. Raises: UsageError."""
    return places.all_beside(SUFFIX)


def check(url: str, row: IndexedSample) -> None:
    """Raise SampleError if the index can't hold *row* of the shard *url*: names are UTF-8."""
    for part in row.parts:
        text(url, row.path(part))


def write(shards: Iterable[Shard], places: IndexPlaces) -> None:
    """Write the index of each of *shards*. Raises: SampleError, StorageError."""
    for shard in shards:
        with storage.writing(places.beside(shard.url, SUFFIX), places.force) as sink:
            name = json.dumps(Url(shard.url).name.rpartition("/")[2])
            held = bytearray(b'{"path": %b, "filesize": %d, "files": {' % (name.encode(), shard.size))
            between = b"\n"
            for row in shard.rows:
                for part in row.parts:
                    path = json.dumps(text(shard.url, row.path(part))).encode()
                    held += b'%b%b: {"offset": %d, "length": %d}' % (between, path, part.offset, part.size)
                    between = b",\n"
                if len(held) > PIECE:
                    sink.write(held)
                    held = bytearray()
            held += b'}, "includes_image_geometry": false}\n'
            sink.write(held)
