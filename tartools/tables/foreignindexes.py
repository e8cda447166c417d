"""Indexes that other tools read in place of shards' headers. Begin reading at `write_index`.

- NVIDIA DALI (`fn.readers.webdataset`, `index_paths`), as its wds2idx makes them: text, a file a shard. The first line
  is `v1.2 SAMPLES`; the others are samples, with four words a member: field, offset and size of the payload, its name.
- wids (`ShardListDataset`): one JSON file with the number of samples in each shard. wids indexes the samples of a shard
  itself, when it opens it: a shard that it would index in another way than we do is a failure.
- open_clip (`open_clip_train.data.get_dataset_size`): sizes.json in the directory of the shards, one JSON object: base
  name of each shard: number of its samples.
- webshart: a JSON file beside each shard, with offset and length of each member.
- Megatron-Energon: what its command `energon prepare` makes, but for dataset.yaml. Beside each shard, SHARD.tar.idx:
  the offsets of all samples and the end of the last one, 8 bytes each, lowest first. In the directory .nv-meta of the
  data set: index.sqlite, with all samples and their parts; index.uuid, which names its content; .info.json, with the
  number of samples in each shard; split.yaml: all shards are in the part "train", none in "val" and "test".
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
from functools import partial
from hashlib import blake2b
from itertools import chain, groupby, takewhile
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from tartools import storage
from tartools.errors import SampleError, StorageError, UsageError, printable, shown
from tartools.samples.account import Account
from tartools.storage import seekable
from tartools.storage.checks import check_unchanged
from tartools.storage.outputformats import PARQUET_SUFFIX
from tartools.storage.scratch import private_directory, remove_tree
from tartools.storage.url import Url
from tartools.tables import schema
from tartools.tar.header import BLOCK, padded_size
from tartools.tar.keys import join_path

if TYPE_CHECKING:
    import sqlite3

TAR_SUFFIX = ".tar"
DALI_VERSION = b"v1.2"
WIDS_NAME = "shardindex.json"
OPENCLIP_NAME = "sizes.json"
MAX_WIDS_NAME_BYTES = 100  # bytes of a name that wids reads: those in the last header block of a member
MAX_WIDS_PAYLOAD_BYTES = 8 << 30  # bytes of a payload whose size wids can't read: such sizes are not octal
SQLITE_PATH, UUID_PATH, INFO_PATH, SPLIT_PATH = (
    f".nv-meta/{name}" for name in ("index.sqlite", "index.uuid", ".info.json", "split.yaml")
)

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


class IndexedMember(NamedTuple):
    """A member of a sample: its *field*, and the *size* bytes of its payload at *offset* of the shard."""

    field: bytes
    offset: int
    size: int


class IndexedSample(NamedTuple):
    """A sample of the shard with the URL *shard*: its *key*, its bytes *begin* to *end*, its members *parts*.

    *parts* are in the order of the archive. A member without a field is not among them.
    """

    shard: str
    key: bytes
    begin: int
    end: int
    parts: list[IndexedMember]

    def path(self, part: IndexedMember) -> bytes:
        """Return the path of the member *part* in the archive: key, dot and field."""
        return join_path(self.key, part.field)

    def text(self, name: bytes) -> str:
        """Return *name*, the key or a field of this sample, as text. Raises: SampleError if it is not UTF-8."""
        try:
            return name.decode()
        except UnicodeDecodeError:
            raise SampleError(f"the name {name!r} is not UTF-8, which this index needs", url=self.shard) from None

    def refusal(self, why: str, field: bytes = b"") -> SampleError:
        """Return the error that the member *field* of this sample can't be in an index.

        *why*: the end of the sentence "the member 'a.jpg' ...". *field*: b"" for a sample without a field.
        """
        name = join_path(self.key, field).decode("utf-8", "surrogateescape")
        return SampleError(f"the member {name!r} {why}", url=self.shard)


IndexedShards = Iterable[tuple[str, int, Iterator[IndexedSample]]]  # URL, size in bytes, and rows, to be read once


class IndexPlaces(NamedTuple):
    """The URLs of the files of an index, and how they are written.

    `beside`: URL of a shard -> URL of the file for this shard; the shard's own URL if the index has no such files.
    `folder`: prefix of the files for all shards; "" or with its last slash.
    `force`: replace files that exist.
    `tmpdir`: folder of scratch files; None: the default.
    """

    beside: Mapping[str, str]
    folder: str
    force: bool
    tmpdir: str | None

    def write(self, url: str, data: bytes) -> None:
        """Write *data* to the file *url*. Raises: StorageError if it exists without `force`, or can't be written."""
        with storage.open_sink(url, self.force) as sink:
            sink.write(data)

    def write_json(self, name: str, value: object) -> None:
        """Write *value* as JSON to *name* in `folder`. Raises: StorageError, also if it exists without `force`."""
        self.write(self.folder + name, json.dumps(value, indent=2).encode() + b"\n")

    def name_of(self, url: str) -> str:
        """Return the name of shard *url* in an index: relative to `folder` if it is below that.

        Otherwise as `relative_name` says: a URL on a server as it is; a local path relative to `folder`, or absolute.
        """
        return schema.relative_name(url, schema.folder_of(self.folder))


class IndexFormat(NamedTuple):
    """An index for one tool, and how to write it.

    `suffix`: of the file beside each shard; "": there is none.
    `names`: of the files for all shards, below the folder of the index.
    `write(shards, places)`: reads the rows of the shards, and writes all files; raises the errors of both.
    `check(row)`: raises SampleError for a row that the tool would index in another way.
    """

    suffix: str
    names: Sequence[str]
    write: Callable[[IndexedShards, IndexPlaces], None]
    check: Callable[[IndexedSample], None] = lambda row: None


def index_places(
    tool: str, urls: Sequence[str], folder: str, force: bool = False, tmpdir: str | None = None
) -> IndexPlaces:
    """Return the URLs of the files of the index for *tool* of the shards *urls*, checked before anything is read.

    *tool*: a key of `INDEX_FORMATS`. *folder*: directory or prefix of the files about all shards, if this tool has such
    files; else of the file for each shard. "": the deepest directory with all shards; else beside each shard.
    *force*: replace files that exist. *tmpdir*: folder of scratch files. Raises: UsageError if *folder* can't be a
    directory, or the shards can't have this index there; StorageError if a file exists, unless *force*, or is a shard.
    """
    if Url(folder).scheme in ("-", "pipe") or folder.endswith(PARQUET_SUFFIX):
        raise UsageError("must be a directory or a prefix, for the files of an index", url=folder)
    index_format = INDEX_FORMATS[tool]
    folder += "/" if folder and not folder.endswith("/") else ""
    index_folder = "" if index_format.names else folder
    users: dict[str, str] = {}  # of files: the shards that they are for
    for url in urls:
        name = Url(url).name.removesuffix(TAR_SUFFIX) + index_format.suffix if index_format.suffix else url
        name = index_folder + name.rpartition("/")[2] if index_folder else name
        if name in users and not index_format.suffix:
            raise UsageError(f"{shown(url)} is named twice, and {tool} would not tell its samples apart")
        if name in users:
            raise UsageError(f"{shown(users[name])} and {shown(url)} would have the same index {shown(name)}")
        users[name] = url
    if index_format.names:
        if tool == "openclip":
            _check_openclip_names(urls, folder)
        folder = folder or common_folder(urls)
    places = IndexPlaces({url: name for name, url in users.items()}, folder, force, tmpdir)
    if tool == "energon":
        _check_energon_names(places)
    for url in (*(users if index_format.suffix else ()), *(folder + name for name in index_format.names)):
        storage.check_output(url, force, urls, single=False, form=None)
    return places


def common_folder(urls: Sequence[str]) -> str:
    """Return the deepest directory or prefix that contains all of *urls*, with its last slash.

    Relative paths in no common directory give "./", also for ../a.tar. Raises: UsageError if there is none, such as for
    two buckets, or for absolute and relative paths.

    >>> common_folder(["s3://b/d/a.tar", "s3://b/d/e/a.tar"]), common_folder(["a.tar", "d/a.tar"])
    ('s3://b/d/', './')
    """
    names = [Url(url).name for url in urls]
    folders_by_depth = zip(*(name.split("/")[:-1] for name in names), strict=False)
    common = "".join(
        f"{names_at_depth[0]}/"
        for names_at_depth in takewhile(lambda names_at_depth: len(set(names_at_depth)) == 1, folders_by_depth)
    )
    local = all(Url(url).is_local for url in urls)
    if (not local and common.count("/") < 3) or (not common and any(map(os.path.isabs, names))):
        raise UsageError("the shards are in no common directory: name one for the index with -o DIR")
    return common or "./"


def write_index(
    tool: str, blocks: Iterable[bytes], versions: Mapping[str, str], places: IndexPlaces, account: Account
) -> None:
    """Write the index for *tool* of shards, given *blocks* of their rows; each file appears when it is complete.

    *tool*: a key of `INDEX_FORMATS`. *blocks*: from `rows.pack_rows`, in the order of the shards. *versions*: URL ->
    version of all shards, in order, before they were read. *places*: the URLs of the files. All samples are counted in
    *account*; a sample without a field is left out, and reported.
    Order: that of the shards. Holds: the index of a shard. After an error, complete files stay.
    Raises: SampleError for samples or shards that the index can't hold; StorageError if a file can't be written, or a
    shard has changed.
    """
    index_format = INDEX_FORMATS[tool]
    index_format.write(_shards(blocks, versions, account, index_format.check), places)


def _shards(
    blocks: Iterable[bytes], versions: Mapping[str, str], account: Account, check: Callable[[IndexedSample], None]
) -> IndexedShards:
    """Yield (URL, size in bytes, rows) of each shard of *versions*, in order, from adjacent *blocks* of its rows.

    *blocks*: from `rows.pack_rows`, in the order of *versions*, URL -> version. Read all rows of a shard before the
    next shard: only then the samples are in *account*. *check*: called with each row. Holds: one block. Reading rows
    raises SampleError for a field twice in a sample; the errors of *check*; StorageError if the shard has changed.
    """
    # Blocks are in the order of `versions`, and a shard without samples has none: so the blocks of the next shard that
    # has some wait until its turn comes.
    grouped = groupby(map(marshal.loads, blocks), itemgetter(0))
    name, shard_blocks = next(grouped, ("", iter(())))
    for url, version in versions.items():
        rows = chain.from_iterable(map(_rows, shard_blocks if url == name else ()))
        yield url, int(version.split()[0]), _report_rows_without_field(rows, url, version, account, check)
        if url == name:
            name, shard_blocks = next(grouped, ("", iter(())))


def _rows(
    block: tuple[str, list[bytes], bytes, bytes, dict[bytes, tuple[bytes, bytes]], Any],
) -> Iterator[IndexedSample]:
    """Yield the rows of *block*, a loaded `RowBlock.packed()`. Raises: SampleError if a sample has a field twice."""
    url, keys, begins, ends, extents_by_field, _ = block
    columns = [(field, array("q", offsets), array("q", sizes)) for field, (offsets, sizes) in extents_by_field.items()]
    for number, (key, begin, end) in enumerate(zip(keys, array("q", begins), array("q", ends), strict=True)):
        parts = [IndexedMember(field, offsets[number], sizes[number]) for field, offsets, sizes in columns]
        row = IndexedSample(url, key, begin, end, [part for part in parts if part.offset >= 0])
        row.parts.sort(key=itemgetter(1))
        for part in parts if len(row.parts) < len(parts) else ():
            if part.offset == schema.REPEATED_OFFSET:
                raise row.refusal("is there twice in one sample, which an index can't say", part.field)
        yield row


def _report_rows_without_field(
    rows: Iterable[IndexedSample],
    url: str,
    version: str,
    account: Account,
    check: Callable[[IndexedSample], None],
) -> Iterator[IndexedSample]:
    """Yield the *rows* of the shard *url* with a field; count all rows in *account*, and report the others at the end.

    *check*: called with each row, first. Raises: the errors of *rows* and *check*; StorageError if the shard has
    another version than *version* at the end.
    """
    without_field, first_key = 0, b""
    for row in rows:
        check(row)
        account.samples_in += 1
        if row.parts:
            account.samples_out += 1
            yield row
        else:
            without_field, first_key = without_field + 1, first_key or row.key
    if without_field:
        account.dropped += without_field
        name = printable(first_key.decode("utf-8", "surrogateescape"))
        suffix = f" (and {without_field - 1} more)" if without_field > 1 else ""
        account.omit(f"{shown(url)}: not in the index, since its name has no field: {name}{suffix}")
    check_unchanged({url: version})  # before anything is written


# ---- the indexes ----


def _dali_words(row: IndexedSample) -> Iterator[bytes]:
    """Yield field, offset, size and path of each member of *row*, joined by blanks, for its line of DALI's index.

    Raises: SampleError for a name with a blank.
    """
    for part in row.parts:
        path = row.path(part)
        if len(path.split()) != 1:  # blanks separate words
            raise row.refusal("has a blank in its name, which DALI's index can't hold", part.field)
        yield b"%b %d %d %b" % (*part, path)


def _write_dali(shards: IndexedShards, places: IndexPlaces) -> None:
    """Write DALI's index of each of *shards* to its URL in *places*, beside the shard.

    Raises: SampleError for a shard without samples, or a name with a blank; StorageError; the errors of *shards*.
    """
    for url, _, rows in shards:
        lines = [b" ".join(_dali_words(row)) for row in rows]
        if not lines:
            raise SampleError("has no samples, and DALI accepts no index without one", url=url)
        places.write(places.beside[url], b"\n".join([b"%b %d" % (DALI_VERSION, len(lines)), *lines, b""]))


def _check_wids(row: IndexedSample) -> None:
    """Raise SampleError if wids would read another key, size or number of samples than *row* has.

    Refuses a path above 100 bytes, or not ASCII with an extended header; 8 GiB or more; a dot in a path without field.
    """
    end = row.begin
    for part in row.parts:
        header, end = part.offset - end, part.offset + padded_size(part.size)
        path = row.path(part)
        if len(path) > MAX_WIDS_NAME_BYTES or (header > BLOCK and not path.isascii()):
            raise row.refusal("has a name that wids can't read: it reads 100 bytes of the plain header", part.field)
        if part.size >= MAX_WIDS_PAYLOAD_BYTES:
            raise row.refusal("has 8 GiB or more, which wids can't read", part.field)
    if not row.parts and b"." in row.key:
        raise row.refusal("has no field, but wids treats it as a sample; leave it out of the shard")


def _write_wids(shards: IndexedShards, places: IndexPlaces) -> None:
    """Write the file for wids in the folder of *places*: name, number of samples and size in bytes of each of *shards*.

    A name is from `IndexPlaces.name_of`. Raises: StorageError if it can't be written; the errors of *shards*.
    """
    shard_list = [
        {"url": places.name_of(url), "nsamples": sum(1 for _ in rows), "filesize": size} for url, size, rows in shards
    ]
    places.write_json(WIDS_NAME, {"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": shard_list})


def _check_openclip_names(urls: Sequence[str], folder: str) -> None:
    """Raise UsageError if two different *urls* have one base name, or are in two folders although *folder* is ""."""
    names: dict[str, str] = {}
    for url in urls:
        place, _, name = Url(url).name.rpartition("/")
        if names.setdefault(name, url) != url:
            raise UsageError(f"{shown(names[name])} and {shown(url)} have one name, by which open_clip looks up sizes")
        if not folder and place != Url(urls[0]).name.rpartition("/")[0]:
            where = f"{shown(urls[0])} and {shown(url)} are in different directories"
            raise UsageError(f"{where}, and open_clip looks beside the first shard: name its directory with -o DIR")


def _check_openclip(row: IndexedSample) -> None:
    """Raise SampleError if open_clip would read *row* as no sample, as several, or as one though it has no field.

    These are the rows that `_check_grouping` refuses, and samples with two fields that differ in case alone.
    """
    _check_grouping("open_clip", row)
    fields = [part.field.lower() for part in row.parts]
    for part, field in zip(row.parts, fields, strict=True):
        if fields.count(field) > 1:
            raise row.refusal("differs from another one in case alone; open_clip makes two samples of them", part.field)


def _write_openclip(shards: IndexedShards, places: IndexPlaces) -> None:
    """Write sizes.json, which open_clip reads, to `folder` of *places*: base name of shard -> number of samples.

    Raises: StorageError if it can't be written, or exists without `force`; the errors of *shards*.
    """
    places.write_json(
        OPENCLIP_NAME, {Url(url).name.rpartition("/")[2]: sum(1 for _ in rows) for url, _, rows in shards}
    )


def _write_webshart(shards: IndexedShards, places: IndexPlaces) -> None:
    """Write webshart's index of each of *shards* to its URL in *places*, beside the shard.

    Raises: SampleError for a name that is not UTF-8; StorageError if a file can't be written; the errors of *shards*.
    """
    for url, size, rows in shards:
        name = json.dumps(Url(url).name.rpartition("/")[2])
        files = [
            f'\n{json.dumps(row.text(row.path(part)))}: {{"offset": {part.offset}, "length": {part.size}}}'
            for row in rows
            for part in row.parts
        ]
        index = f'{{"path": {name}, "filesize": {size}, "files": {{{",".join(files)}}}'
        places.write(places.beside[url], f'{index}, "includes_image_geometry": false}}\n'.encode())


def _check_energon_names(places: IndexPlaces) -> None:
    """Raise UsageError for a shard outside of the folder of *places*, not .tar, or with braces, a backslash or $."""
    for url in places.beside:
        name = places.name_of(Url(url).name)
        if name.startswith(("../", "/")) or "://" in name:
            raise UsageError(f"{shown(url)} is not below the directory of the index; Energon reads no others")
        if not name.endswith(TAR_SUFFIX) or any(character in name for character in "{}\\$"):
            raise UsageError(f"{shown(url)}: Energon needs a name that ends in .tar, without braces and backslashes")


def _check_grouping(tool: str, row: IndexedSample) -> None:
    """Raise SampleError if *tool* would skip the sample of *row*, or read one where *row* has no field.

    It skips a path in a first folder __NAME__, and reads a sample from a path that ends in a dot.
    """
    first, slash, _ = row.key.partition(b"/")
    if row.parts and slash and first.startswith(b"__") and first.endswith(b"__") and len(first) >= len(b"____"):
        raise row.refusal(f"has a name that {tool} passes over", row.parts[0].field)
    if not row.parts and row.key.endswith(b"."):
        raise row.refusal(f"has no field, but {tool} treats it as a sample; leave it out of the shard")


def _write_energon(shards: IndexedShards, places: IndexPlaces) -> None:
    """Write all files of Energon's index of *shards* to their URLs in *places*.

    The database grows in a scratch directory, and is copied once complete; the files of all shards come last. Disk: the
    size of the index. Raises: SampleError for a key that comes twice, a name that is not UTF-8, or a shard without
    samples; StorageError for a file that can't be written, or a full scratch disk; errors of *shards*.
    """
    import sqlite3

    scratch = private_directory(places.tmpdir)
    path = f"{scratch}/index"
    counts: dict[str, int] = {}
    digest = blake2b(digest_size=16)
    try:
        with closing(sqlite3.connect(path)) as base:
            base.executescript(TABLES)
            for number, (url, _, rows) in enumerate(shards):
                begins = _store(number, rows, base)
                if len(begins) < 2:
                    raise SampleError("has no samples, and Energon accepts no shard without one", url=url)
                counts[places.name_of(Url(url).name)] = len(begins) - 1
                offsets = struct.pack(f"<{len(begins)}Q", *begins)
                digest.update(f"{url.rpartition('/')[2]}\n".encode("utf-8", "surrogateescape") + offsets[:-8])
                places.write(places.beside[url], offsets)
            base.executescript(INDEXES)
            base.commit()
        with seekable.open_as_file(path) as file, storage.open_sink(places.folder + SQLITE_PATH, places.force) as sink:
            shutil.copyfileobj(file, sink)
    except sqlite3.OperationalError as error:
        raise StorageError(f"the index can't be written there: {error}", url=scratch) from None
    finally:
        remove_tree(os.fsencode(scratch))
    places.write(places.folder + UUID_PATH, str(uuid.UUID(bytes=digest.digest(), version=4)).encode())
    places.write_json(INFO_PATH, {"shard_counts": counts})
    parts: dict[str, list[str]] = {"train": [*counts], "val": [], "test": []}
    places.write_json(SPLIT_PATH, {"split_parts": parts, "exclude": []})  # JSON is YAML, too


def _store(number: int, rows: Iterable[IndexedSample], base: sqlite3.Connection) -> array[int]:
    """Add *rows*, of shard *number*, to the database *base*; return the offset at which each begins, then the last end.

    Without rows the array is [0]. Raises: SampleError for a key that is in *base* already, or a name that is not UTF-8.
    """
    import sqlite3

    begins, end = array("Q"), 0
    for n, row in enumerate(rows):
        key = row.text(row.key)
        try:
            base.execute("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", (number, key, n, row.begin, row.end - row.begin))
        except sqlite3.IntegrityError:
            raise SampleError(
                f"the key {key!r} is there twice in the data set, which Energon's index can't hold; "
                "tarcat --rekey gives samples other keys",
                url=row.shard,
            ) from None
        parts = ((number, n, row.text(part.field), part.offset, part.size) for part in row.parts)
        base.executemany("INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)", parts)
        begins.append(row.begin)
        end = row.end
    begins.append(end)
    return begins


INDEX_FORMATS = {
    "dali": IndexFormat(".idx", (), _write_dali),
    "wids": IndexFormat("", (WIDS_NAME,), _write_wids, _check_wids),
    "openclip": IndexFormat("", (OPENCLIP_NAME,), _write_openclip, _check_openclip),
    "webshart": IndexFormat(".json", (), _write_webshart),
    "energon": IndexFormat(
        ".tar.idx", (SQLITE_PATH, UUID_PATH, INFO_PATH, SPLIT_PATH), _write_energon, partial(_check_grouping, "Energon")
    ),
}
