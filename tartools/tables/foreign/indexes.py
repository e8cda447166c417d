"""Indexes that other tools read, but Energon's, which has a module of its own.

- NVIDIA DALI (`fn.readers.webdataset`, `index_paths`), as its wds2idx makes them: text, a file a shard. The first line
  is `v1.2 SAMPLES`; the others are samples, with four words for each member: field, offset of the payload, its size,
  name of the member.
- wids (`ShardListDataset`): one JSON file with the number of samples in each shard. wids finds the samples of a shard
  itself, when it opens it, and counts them as it sees them: so what it would see in another way than we do is a
  failure.
- webshart: a JSON file beside each shard, with offset and length of each member.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import NamedTuple

from tartools import storage
from tartools.errors import SampleError, UsageError
from tartools.samples.account import Account
from tartools.storage.scratch import reread, scratch_file
from tartools.storage.url import Url
from tartools.tables import schema
from tartools.tables.foreign import energon
from tartools.tables.foreign.indexedsamples import IndexedSample, IndexPlaces, Shard, refused, shards, text
from tartools.tar.header import BLOCK

DALI_SUFFIX, DALI_VERSION = ".idx", b"v1.2"
WIDS_NAME = "shardindex.json"
LONGEST = 100  # bytes of a name that wids reads: those in the last header block of a member
GREATEST = 8 << 30  # bytes of a payload whose size wids can't read: such sizes are not octal
WEBSHART_SUFFIX = ".json"
PIECE = 1 << 20  # bytes that are copied or written at a time


class Format(NamedTuple):
    """How the index for one tool is written: all its files, what it can hold, and how."""

    outputs: Callable[[IndexPlaces], list[str]]
    check: Callable[[str, IndexedSample], None]
    write: Callable[[Iterable[Shard], IndexPlaces], None]


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


def _check_dali(url: str, row: IndexedSample) -> None:
    """Raise SampleError if the index can't hold *row* of the shard *url*: its words may hold no blanks."""
    for part in row.parts:
        if len(row.path(part).split()) != 1:
            raise refused(url, row.key, part.field, "has a blank in its name, which DALI's index can't hold")


def _write_dali(shards: Iterable[Shard], places: IndexPlaces) -> None:
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
            with storage.writing(places.beside(shard.url, DALI_SUFFIX), places.force) as sink, reread(lines) as file:
                sink.write(b"%b %d\n" % (DALI_VERSION, count))
                while piece := file.read(PIECE):
                    sink.write(piece)


def _check_wids(url: str, row: IndexedSample) -> None:
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


def _write_wids(shards: Iterable[Shard], places: IndexPlaces) -> None:
    """Write the index of *shards*. Raises: SampleError, StorageError."""
    url = places.together().below(WIDS_NAME)
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


def _check_webshart(url: str, row: IndexedSample) -> None:
    """Raise SampleError if the index can't hold *row* of the shard *url*: names are UTF-8."""
    for part in row.parts:
        text(url, row.path(part))


def _write_webshart(shards: Iterable[Shard], places: IndexPlaces) -> None:
    """Write the index of each of *shards*. Raises: SampleError, StorageError."""
    for shard in shards:
        with storage.writing(places.beside(shard.url, WEBSHART_SUFFIX), places.force) as sink:
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


FORMATS = {
    "dali": Format(lambda places: places.all_beside(DALI_SUFFIX), _check_dali, _write_dali),
    "wids": Format(lambda places: [places.together().below(WIDS_NAME)], _check_wids, _write_wids),
    "webshart": Format(lambda places: places.all_beside(WEBSHART_SUFFIX), _check_webshart, _write_webshart),
    "energon": Format(energon.outputs, energon.check, energon.write),
}
