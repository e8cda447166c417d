"""Indexes for Megatron-Energon: what its command `energon prepare` makes, but for dataset.yaml.

Beside each shard, SHARD.tar.idx: the offsets of all samples and the end of the last one, 8 bytes each, lowest first.
In the directory .nv-meta of the data set: index.sqlite, with all samples and their parts; index.uuid, which names its
content; .info.json, with the number of samples in each shard; split.yaml, by which all shards are of the
part "train", and "val" and "test" are empty.
"""

from __future__ import annotations

import json
import os
import struct
import uuid
from collections.abc import Iterable
from contextlib import closing
from hashlib import blake2b
from itertools import chain, islice
from typing import TYPE_CHECKING

from tartools import storage
from tartools.errors import SampleError, UsageError, shown
from tartools.storage import seekable
from tartools.storage.scratch import private_directory, remove
from tartools.storage.url import Url
from tartools.tables import schema
from tartools.tables.foreign.indexedsamples import TAR, IndexedSample, IndexPlaces, Shard, refused, text

if TYPE_CHECKING:
    import sqlite3

FOLDER = ".nv-meta"
SQLITE, UUID, INFO, SPLIT = (f"{FOLDER}/{name}" for name in ("index.sqlite", "index.uuid", ".info.json", "split.yaml"))
SUFFIX = ".tar.idx"
PIECE = 1 << 20  # bytes that are copied at a time
GROUP = 1 << 12  # samples that are stored at a time

TABLES = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE samples (tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE, sample_index INTEGER NOT NULL,
    byte_offset INTEGER, byte_size INTEGER);
CREATE TABLE sample_parts (tar_file_id INTEGER, sample_index INTEGER, part_name TEXT, content_byte_offset INTEGER,
    content_byte_size INTEGER);
"""
INDEXES = """
CREATE INDEX idx_samples_by_tar_and_idx ON samples (tar_file_id, sample_index);
CREATE INDEX idx_sample_parts_seq ON sample_parts (tar_file_id, sample_index, content_byte_offset);
CREATE INDEX idx_sample_parts_full ON sample_parts (tar_file_id, sample_index, part_name, content_byte_offset,
    content_byte_size);
"""


def outputs(places: IndexPlaces) -> list[str]:
    """Return the URLs of all files of the index. Raises: UsageError."""
    together = places.together()
    for url in places.urls:
        _name(url, together)
    return [*places._replace(folder="").all_beside(SUFFIX), *map(together.below, (SQLITE, UUID, INFO, SPLIT))]


def check(url: str, row: IndexedSample) -> None:
    """Raise SampleError if the index can't hold *row* of the shard *url*, or Energon would pass over it."""
    text(url, row.key)
    first, slash, _ = row.key.partition(b"/")
    for part in row.parts:
        text(url, part.field)
        if slash and first.startswith(b"__") and first.endswith(b"__") and len(first) >= len(b"____"):
            raise refused(url, row.key, part.field, "has a name that Energon passes over")
    if not row.parts and row.key.endswith(b"."):
        raise refused(url, row.key, b"", "has no field, but Energon takes it for a sample; leave it out of the shard")


def write(shards: Iterable[Shard], places: IndexPlaces) -> None:
    """Write the index of *shards*. Disk: its size. Raises: SampleError for a key that comes twice, StorageError."""
    import sqlite3

    together = places.together()
    scratch = private_directory(places.tmpdir)
    kept = f"{scratch}/index"
    try:
        counts: dict[str, int] = {}
        digest = blake2b(digest_size=16)
        with closing(sqlite3.connect(kept)) as base:
            base.executescript(TABLES)
            for number, shard in enumerate(shards):
                counts[_name(shard.url, together)] = _write_shard(number, shard, places, base, digest)
            base.executescript(INDEXES)
            base.commit()
        with (
            seekable.reading(kept) as file,
            storage.writing(together.below(SQLITE), places.force) as sink,
        ):
            while piece := file.read(PIECE):
                sink.write(piece)
    finally:
        remove(os.fsencode(scratch))
    with storage.writing(together.below(UUID), places.force) as sink:
        sink.write(str(uuid.UUID(bytes=digest.digest(), version=4)).encode())
    with storage.writing(together.below(INFO), places.force) as sink:
        sink.write(json.dumps({"shard_counts": counts}, indent=2).encode() + b"\n")
    with storage.writing(together.below(SPLIT), places.force) as sink:  # JSON is YAML, too
        parts: dict[str, list[str]] = {"train": [*counts], "val": [], "test": []}
        sink.write(json.dumps({"split_parts": parts, "exclude": []}, indent=2).encode() + b"\n")


def _write_shard(number: int, shard: Shard, places: IndexPlaces, base: sqlite3.Connection, digest: blake2b) -> int:
    """Write the index of *shard*, which has this *number* in the data set, and add it to *base* and *digest*.

    Return the number of its samples.
    """
    count, end = 0, 0
    beside = places._replace(folder="").beside(shard.url, SUFFIX)
    digest.update(f"{shard.url.rpartition('/')[2]}\n".encode("utf-8", "surrogateescape"))
    with storage.writing(beside, places.force) as sink:
        while rows := [*islice(shard.rows, GROUP)]:
            begins = struct.pack(f"<{len(rows)}Q", *(row.begin for row in rows))
            sink.write(begins)
            digest.update(begins)
            _store(number, count, shard.url, rows, base)
            count, end = count + len(rows), rows[-1].end
        if not count:
            raise SampleError("has no samples, and Energon takes no shard without one", url=shard.url)
        sink.write(struct.pack("<Q", end))
    return count


def _store(number: int, count: int, url: str, rows: list[IndexedSample], base: sqlite3.Connection) -> None:
    """Add *rows*, number *count* and on of the shard *url*, to *base*."""
    import sqlite3

    try:
        base.executemany(
            "INSERT INTO samples VALUES (?, ?, ?, ?, ?)",
            ((number, row.key.decode(), n, row.begin, row.end - row.begin) for n, row in enumerate(rows, count)),
        )
    except sqlite3.IntegrityError:
        key = next(row.key.decode() for row in rows if _is_known(row, rows, number, base))
        raise SampleError(
            f"the key {key!r} is there twice in the data set, which Energon's index can't hold; "
            "tarcat --rekey gives samples other keys",
            url=url,
        ) from None
    parts = chain.from_iterable(((n, *part) for part in row.parts) for n, row in enumerate(rows, count))
    base.executemany(
        "INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)",
        ((number, n, field.decode(), offset, size) for n, field, offset, size in parts),
    )


def _is_known(row: IndexedSample, rows: list[IndexedSample], number: int, base: sqlite3.Connection) -> bool:
    """Tell whether *base* has the key of *row*, other than by *rows* of shard *number*, or *rows* have it twice."""
    if sum(other.key == row.key for other in rows) > 1:
        return True
    query = "SELECT tar_file_id, byte_offset FROM samples WHERE sample_key = ?"
    found = base.execute(query, (row.key.decode(),)).fetchone()
    return found not in (None, (number, row.begin))


def _name(url: str, together: IndexPlaces) -> str:
    """Return the name of the shard *url* in the data set. Raises: UsageError for one that Energon would not find."""
    name = schema.relative(Url(url).name, schema.folder_of(together.below(FOLDER)))
    if name.startswith(("../", "/")) or "://" in name:
        raise UsageError(f"{shown(url)} is not below the directory of the index; Energon reads no others")
    if not name.endswith(TAR) or any(each in name for each in "{}\\$"):
        raise UsageError(f"{shown(url)}: Energon needs a name that ends in .tar, without braces and backslashes")
    return name
