"""Indexes for NVIDIA DALI (`fn.readers.webdataset`, `index_paths`), as its wds2idx makes them: text, a file a shard.

The first line is `v1.2 SAMPLES`; the others are samples, with four words for each member: field, offset of the payload,
its size, name of the member.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

from tartools import storage
from tartools.errors import SampleError
from tartools.storage.scratch import reread, scratch_file
from tartools.tables.foreign.indexedsamples import IndexedSample, Shard, refused
from tartools.tables.foreign.indexnames import IndexPlaces

SUFFIX = ".idx"
VERSION = b"v1.2"
PIECE = 1 << 20  # bytes that are copied at a time


def outputs(places: IndexPlaces) -> list[str]:
    """Return the URLs of all files of the index. Raises: UsageError."""
    return places.all_beside(SUFFIX)


def check(url: str, row: IndexedSample) -> None:
    """Raise SampleError if the index can't hold *row* of the shard *url*: its words may hold no blanks."""
    for part in row.parts:
        if len(row.path(part).split()) != 1:
            raise refused(url, row.key, part.field, "has a blank in its name, which DALI's index can't hold")


def write(shards: Iterable[Shard], places: IndexPlaces) -> None:
    """Write the index of each of *shards*. Disk: its size. Raises: SampleError for an empty one, StorageError."""
    for shard in shards:
        with closing(scratch_file(places.tmpdir)) as lines:
            count = 0
            held = bytearray()
            for row in shard.rows:
                words = [b"%b %d %d %b" % (*part, row.path(part)) for part in row.parts]
                held += b" ".join(words) + b"\n"
                count += 1
                if len(held) > PIECE:
                    lines.write(held)
                    held.clear()
            lines.write(held)
            if not count:
                raise SampleError("has no samples, and DALI takes no index without one", url=shard.url)
            with storage.writing(places.beside(shard.url, SUFFIX), places.force) as sink, reread(lines) as file:
                sink.write(b"%b %d\n" % (VERSION, count))
                while piece := file.read(PIECE):
                    sink.write(piece)
