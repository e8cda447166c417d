"""Indexes that other tools read in place of shards' headers. Begin reading at `write_index`.

- NVIDIA DALI (`fn.readers.webdataset`, `index_paths`), as its wds2idx makes them: text, a file a shard. The first line
  is `v1.2 SAMPLES`; the others are samples, with four words for each member: field, offset of the payload, its size,
  name of the member.
- wids (`ShardListDataset`): one JSON file with the number of samples in each shard. wids finds the samples of a shard
  itself, when it opens it, and counts them as it sees them: so what it would see in another way than we do is a
  failure.
- webshart: a JSON file beside each shard, with offset and length of each member.
- Megatron-Energon: what its command `energon prepare` makes, but for dataset.yaml. Beside each shard, SHARD.tar.idx:
  the offsets of all samples and the end of the last one, 8 bytes each, lowest first. In the directory .nv-meta of the
  data set: index.sqlite, with all samples and their parts; index.uuid, which names its content; .info.json, with the
  number of samples in each shard; split.yaml, by which all shards are of the part "train", and "val" and "test" are
  empty.
"""

from __future__ import annotations

import json
import marshal
import os
import shutil
import struct
import uuid
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from hashlib import blake2b
from itertools import chain, groupby, islice, takewhile
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from tartools import storage
from tartools.errors import SampleError, UsageError, printable, shown
from tartools.samples.account import Account
from tartools.samples.sample import join_path
from tartools.storage import seekable
from tartools.storage.checks import check_unchanged
from tartools.storage.scratch import private_directory, remove_tree
from tartools.storage.url import Url
from tartools.tables import schema
from tartools.tar.header import BLOCK, padded

if TYPE_CHECKING:
    import sqlite3

TAR = ".tar"
DALI_SUFFIX, DALI_VERSION = ".idx", b"v1.2"
WIDS_NAME = "shardindex.json"
LONGEST = 100  # bytes of a name that wids reads: those in the last header block of a member
GREATEST = 8 << 30  # bytes of a payload whose size wids can't read: such sizes are not octal
WEBSHART_SUFFIX = ".json"
ENERGON_SUFFIX, FOLDER = ".tar.idx", ".nv-meta"
SQLITE, UUID, INFO, SPLIT = (f"{FOLDER}/{name}" for name in ("index.sqlite", "index.uuid", ".info.json", "split.yaml"))
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


# ---- what they are made of: samples and members with their places, a shard at a time; and where their files go ----


class IndexPlaces(NamedTuple):
    """The shards *urls*, the directory or prefix *folder* of the index ("" for beside the shards), and temporary files.

    With *force*, files that exist are replaced.
    """

    urls: Sequence[str]
    folder: str = ""
    force: bool = False
    tmpdir: str | None = None

    def beside(self, url: str, suffix: str) -> str:
        """Return the name of the file with *suffix* for the shard *url*.

        >>> IndexPlaces((), "").beside("s3://b/a.tar", ".idx"), IndexPlaces((), "index").beside("d/a.tar", ".idx")
        ('s3://b/a.idx', 'index/a.idx')
        """
        name = Url(url).name.removesuffix(TAR) + suffix
        return self.below(name.rpartition("/")[2]) if self.folder else name

    def below(self, name: str) -> str:
        """Return the URL of the file *name* in the directory of the index, which all shards share."""
        return (f"{self.folder}/" if self.folder and not self.folder.endswith("/") else self.folder) + name

    def all_beside(self, suffix: str) -> list[str]:
        """Return the names of all files with *suffix*. Raises: UsageError if two of them are the same."""
        names = [self.beside(url, suffix) for url in self.urls]
        first: dict[str, str] = {}
        for url, name in zip(self.urls, names, strict=True):
            other = first.setdefault(name, url)
            if other is not url:
                raise UsageError(f"{shown(other)} and {shown(url)} would have the same index {shown(name)}")
        return names

    def write(self, url: str, data: bytes) -> None:
        """Write the file *url* of the index. Raises: StorageError."""
        with storage.writing(url, self.force) as sink:
            sink.write(data)

    def together(self) -> IndexPlaces:
        """Return these places with the deepest directory that has all shards, if no other was named.

        Raises: UsageError if there is none.
        """
        if self.folder:
            return self
        names = [Url(url).name for url in self.urls]
        folders = [name.split("/")[:-1] for name in names]
        shared = takewhile(lambda each: len(set(each)) == 1, zip(*folders, strict=False))
        common = "".join(f"{each[0]}/" for each in shared)
        local = all(Url(url).is_local for url in self.urls)
        if (not local and common.count("/") < 3) or (not common and any(os.path.isabs(name) for name in names)):
            raise UsageError("the shards are in no common directory: name one for the index with -o DIR")
        return self._replace(folder=common or ".")


class IndexedMember(NamedTuple):
    """A member of a sample: its *field*, and the *size* bytes of its payload at *offset* of the shard."""

    field: bytes
    offset: int
    size: int


class IndexedSample(NamedTuple):
    """A sample: its *key*, bytes *begin* to *end* of the shard, and its *parts* in the order of the archive.

    A member without a field has no part.
    """

    key: bytes
    begin: int
    end: int
    parts: list[IndexedMember]

    def path(self, part: IndexedMember) -> bytes:
        """Return the name of the member *part*."""
        return join_path(self.key, part.field)

    def headers(self) -> Iterator[int]:
        """Yield the bytes of the headers of each part."""
        end = self.begin
        for part in self.parts:
            yield part.offset - end
            end = part.offset + padded(part.size)


class Shard(NamedTuple):
    """A shard: its *url*, its *size* in bytes, and its *rows*, which can be read once."""

    url: str
    size: int
    rows: Iterator[IndexedSample]


def shards(
    blocks: Iterable[bytes], versions: Mapping[str, str], account: Account, check: Callable[[str, IndexedSample], None]
) -> Iterator[Shard]:
    """Yield the shards that have these *versions*, in order, with the samples that *blocks* (of rows) have of them.

    The rows of one have to be read before the next shard is asked for. *check* is called with the URL and each row, and
    raises SampleError for one that the index can't hold. Samples without a field are left out, and reported in
    *account*, where all are counted. Holds: one block.
    Raises: SampleError, StorageError if a shard has another version at its end.
    """
    grouped = groupby(map(marshal.loads, blocks), itemgetter(0))
    name, found = next(grouped, ("", iter(())))
    for url, version in versions.items():
        rows = chain.from_iterable(map(_rows, found if url == name else ()))
        yield Shard(url, int(version.split()[0]), _listed(rows, url, version, account, check))
        if url == name:
            name, found = next(grouped, ("", iter(())))


def _listed(
    rows: Iterable[IndexedSample],
    url: str,
    version: str,
    account: Account,
    check: Callable[[str, IndexedSample], None],
) -> Iterator[IndexedSample]:
    lost, first = 0, b""
    for row in rows:
        check(url, row)
        account.samples_in += 1
        if row.parts:
            account.samples_out += 1
            yield row
        else:
            lost, first = lost + 1, first or row.key
    if lost:
        account.dropped += lost
        name = printable(first.decode("utf-8", "surrogateescape"))
        more = f" (and {lost - 1} more)" if lost > 1 else ""
        account.omit(f"{shown(url)}: not in the index, since its name has no field: {name}{more}")
    check_unchanged({url: version})


def _rows(
    block: tuple[str, list[bytes], bytes, bytes, dict[bytes, tuple[bytes, bytes]], object],
) -> Iterator[IndexedSample]:
    """Yield the rows of an unpacked *block*. Raises: SampleError for a sample that has a field twice."""
    url, keys, begins, ends, found, _ = block
    columns = [(field, array("q", offsets), array("q", sizes)) for field, (offsets, sizes) in found.items()]
    for number, (key, begin, end) in enumerate(zip(keys, array("q", begins), array("q", ends), strict=True)):
        parts = [IndexedMember(field, offsets[number], sizes[number]) for field, offsets, sizes in columns]
        for part in parts:
            if part.offset == schema.TWICE:
                raise refused(url, key, part.field, "is there twice in one sample, which an index can't say")
        parts = [part for part in parts if part.offset >= 0]
        if len(parts) > 1:
            parts.sort(key=lambda part: part.offset)
        yield IndexedSample(key, begin, end, parts)


def refused(url: str, key: bytes, field: bytes, why: str) -> SampleError:
    """Return the failure that the member *field* of the sample *key* of the shard *url* can't be in an index."""
    name = join_path(key, field).decode("utf-8", "surrogateescape")
    return SampleError(f"the member {name!r} {why}", url=url)


def index_text(url: str, path: bytes) -> str:
    """Return *path*, of the shard *url*, as text. Raises: SampleError if it is not UTF-8."""
    try:
        return path.decode()
    except UnicodeDecodeError:
        raise SampleError(f"the name {path!r} is not UTF-8, which this index needs", url=url) from None


# ---- the indexes ----


class Format(NamedTuple):
    """How the index for one tool is written: all its files, what it can hold, and how."""

    outputs: Callable[[IndexPlaces], list[str]]
    check: Callable[[str, IndexedSample], None]
    write: Callable[[Iterable[Shard], IndexPlaces], None]


def check_index_files(name: str, places: IndexPlaces) -> None:
    """Check the files of the index *name* before anything is read.

    Raises: UsageError, StorageError.
    """
    if Url(places.folder).scheme in ("-", "pipe") or places.folder.endswith(schema.SUFFIX):
        raise UsageError("must be a directory or a prefix, for the files of an index", url=places.folder)
    for url in FORMATS[name].outputs(places):
        storage.check_output(url, places.force, places.urls, single=False)


def write_index(
    name: str, blocks: Iterable[bytes], versions: Mapping[str, str], places: IndexPlaces, account: Account
) -> None:
    """Write the index *name* of the shards that *blocks* of rows are of; each file appears when it is complete.

    *versions* are those that the shards had before they were read. All samples are counted in *account*.

    Order: that of the shards. Holds: the index of a shard.
    Raises: SampleError for what the index can't hold, StorageError.
    """
    chosen = FORMATS[name]
    chosen.write(shards(blocks, versions, account, chosen.check), places)


def _check_dali(url: str, row: IndexedSample) -> None:
    """Raise SampleError if the index can't hold *row* of the shard *url*: its words may hold no blanks."""
    for part in row.parts:
        if len(row.path(part).split()) != 1:
            raise refused(url, row.key, part.field, "has a blank in its name, which DALI's index can't hold")


def _write_dali(shards: Iterable[Shard], places: IndexPlaces) -> None:
    """Write the index of each of *shards*. Raises: SampleError for an empty one, StorageError."""
    for shard in shards:
        lines = [b" ".join(b"%b %d %d %b" % (*part, row.path(part)) for part in row.parts) for row in shard.rows]
        if not lines:
            raise SampleError("has no samples, and DALI takes no index without one", url=shard.url)
        lines.insert(0, b"%b %d" % (DALI_VERSION, len(lines)))
        places.write(places.beside(shard.url, DALI_SUFFIX), b"\n".join([*lines, b""]))


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
    places.write(url, json.dumps(index, indent=2).encode() + b"\n")


def _check_webshart(url: str, row: IndexedSample) -> None:
    """Raise SampleError if the index can't hold *row* of the shard *url*: names are UTF-8."""
    for part in row.parts:
        index_text(url, row.path(part))


def _write_webshart(shards: Iterable[Shard], places: IndexPlaces) -> None:
    """Write the index of each of *shards*. Raises: SampleError, StorageError."""
    for shard in shards:
        name = json.dumps(Url(shard.url).name.rpartition("/")[2])
        files = [
            f'{json.dumps(index_text(shard.url, row.path(part)))}: {{"offset": {part.offset}, "length": {part.size}}}'
            for row in shard.rows
            for part in row.parts
        ]
        listed = "".join(["\n", ",\n".join(files)] if files else [])
        index = (
            f'{{"path": {name}, "filesize": {shard.size}, "files": {{{listed}}}, "includes_image_geometry": false}}\n'
        )
        places.write(places.beside(shard.url, WEBSHART_SUFFIX), index.encode())


def _energon_files(places: IndexPlaces) -> list[str]:
    """Return the URLs of all files of the index. Raises: UsageError."""
    together = places.together()
    for url in places.urls:
        _energon_name(url, together)
    return [*places._replace(folder="").all_beside(ENERGON_SUFFIX), *map(together.below, (SQLITE, UUID, INFO, SPLIT))]


def _check_energon(url: str, row: IndexedSample) -> None:
    """Raise SampleError if the index can't hold *row* of the shard *url*, or Energon would pass over it."""
    index_text(url, row.key)
    first, slash, _ = row.key.partition(b"/")
    for part in row.parts:
        index_text(url, part.field)
        if slash and first.startswith(b"__") and first.endswith(b"__") and len(first) >= len(b"____"):
            raise refused(url, row.key, part.field, "has a name that Energon passes over")
    if not row.parts and row.key.endswith(b"."):
        raise refused(url, row.key, b"", "has no field, but Energon takes it for a sample; leave it out of the shard")


def _write_energon(shards: Iterable[Shard], places: IndexPlaces) -> None:
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
                counts[_energon_name(shard.url, together)] = _write_energon_shard(number, shard, places, base, digest)
            base.executescript(INDEXES)
            base.commit()
        with seekable.reading(kept) as file, storage.writing(together.below(SQLITE), places.force) as sink:
            shutil.copyfileobj(file, sink)
    finally:
        remove_tree(os.fsencode(scratch))
    places.write(together.below(UUID), str(uuid.UUID(bytes=digest.digest(), version=4)).encode())
    places.write(together.below(INFO), json.dumps({"shard_counts": counts}, indent=2).encode() + b"\n")
    parts: dict[str, list[str]] = {"train": [*counts], "val": [], "test": []}
    split = json.dumps({"split_parts": parts, "exclude": []}, indent=2)  # JSON is YAML, too
    places.write(together.below(SPLIT), split.encode() + b"\n")


def _write_energon_shard(
    number: int, shard: Shard, places: IndexPlaces, base: sqlite3.Connection, digest: blake2b
) -> int:
    """Write the index of *shard*, which has this *number* in the data set, and add it to *base* and *digest*.

    Return the number of its samples.
    """
    count, end = 0, 0
    beside = places._replace(folder="").beside(shard.url, ENERGON_SUFFIX)
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

    left = iter(rows)  # what was not taken yet, if a row can't be added
    try:
        base.executemany(
            "INSERT INTO samples VALUES (?, ?, ?, ?, ?)",
            ((number, row.key.decode(), n, row.begin, row.end - row.begin) for n, row in enumerate(left, count)),
        )
    except sqlite3.IntegrityError:
        key = rows[-1 - sum(1 for _ in left)].key.decode()
        raise SampleError(
            f"the key {key!r} is there twice in the data set, which Energon's index can't hold; "
            "tarcat --rekey gives samples other keys",
            url=url,
        ) from None
    base.executemany(
        "INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)",
        (
            (number, n, part.field.decode(), part.offset, part.size)
            for n, row in enumerate(rows, count)
            for part in row.parts
        ),
    )


def _energon_name(url: str, together: IndexPlaces) -> str:
    """Return the name of the shard *url* in the data set. Raises: UsageError for one that Energon would not find."""
    name = schema.relative(Url(url).name, schema.folder_of(together.below(FOLDER)))
    if name.startswith(("../", "/")) or "://" in name:
        raise UsageError(f"{shown(url)} is not below the directory of the index; Energon reads no others")
    if not name.endswith(TAR) or any(each in name for each in "{}\\$"):
        raise UsageError(f"{shown(url)}: Energon needs a name that ends in .tar, without braces and backslashes")
    return name


FORMATS = {
    "dali": Format(lambda places: places.all_beside(DALI_SUFFIX), _check_dali, _write_dali),
    "wids": Format(lambda places: [places.together().below(WIDS_NAME)], _check_wids, _write_wids),
    "webshart": Format(lambda places: places.all_beside(WEBSHART_SUFFIX), _check_webshart, _write_webshart),
    "energon": Format(_energon_files, _check_energon, _write_energon),
}
