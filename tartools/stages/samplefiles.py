"""The files that hold samples while they are sorted or joined: plain local inputs, and a scratch file for all others.

An index of such samples has records. A record is bytes that C compares in sort order: the sort key of the sample, its
position in the input (so that the sort is stable), its key, and the location: a range of a plain local file, or of the
scratch file.
"""

import io
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from operator import sub
from struct import Struct
from typing import NamedTuple

from tartools import storage, tar
from tartools.errors import StorageError
from tartools.samples.batch import Batch
from tartools.samples.sample import Sample
from tartools.storage.openfiles import OpenFileCache
from tartools.storage.scratch import scratch_file
from tartools.storage.streams import FileVersion, changed
from tartools.tar import Member, Source, located, read_range

SORT_POSITION_BYTES = 8  # bytes, big-endian, after the sort key; the key of the sample and its location follow
LOCATION = Struct(">QQIIB")  # start, end, shard, length of the key in the record, flags
NEVER_JOINED, IN_SCRATCH_FILE = 1, 2  # flags: never joined; in the scratch file
Identities = list[tuple[int, tuple[int, ...]]]

MAX_PARTS_JOINED = 64  # parts of a sample that are joined without copying them to the scratch file first
# bytes; members of a smaller sample are read into memory, those of a larger one stay ranges
MAX_SAMPLE_READ_WHOLE = 1 << 20
MAX_SAMPLE_IN_MEMORY = 16 << 20  # bytes of one joined sample in memory


class Entry(NamedTuple):
    """A record of the index, unpacked: the sort key, and where the sample *key* is stored."""

    sort_key: bytes
    key: bytes
    start: int
    end: int
    shard: int
    flags: int


def record_of(position: int, entry: Entry) -> bytes:
    """Return the record of *entry*, which has this *position* in the input."""
    sort_key, key, start, end, shard, flags = entry
    return (
        sort_key
        + position.to_bytes(SORT_POSITION_BYTES, "big")
        + key
        + LOCATION.pack(start, end, shard, len(key), flags)
    )


def entries_of(records: Iterable[bytes]) -> Iterator[Entry]:
    """Yield *records* as entries, in their order."""
    unpack, make, size = LOCATION.unpack_from, tuple.__new__, LOCATION.size  # half of what Entry(...) costs
    for packed in records:
        behind = len(packed) - size
        start, end, shard, length, flags = unpack(packed, behind)
        begin = behind - length
        yield make(Entry, (packed[: begin - SORT_POSITION_BYTES], packed[begin:behind], start, end, shard, flags))


def reopen(url: str) -> io.FileIO:
    """Open the plain local file *url* again. Raises: StorageError if it is no longer a plain local file."""
    file = storage.open_read(url).file
    if file is None:
        raise StorageError("this is no longer a regular file", url=url)
    return file


class PartMember(NamedTuple):
    """A member of a joined sample, with the number and the shard of the part that it comes from."""

    part: int
    shard: str
    member: Member


class SampleFiles:
    """Stores samples until they are written: in the plain local files that have them, or in one scratch file.

    Shards have numbers. *urls* are numbered from the start, so that forks use the same numbers. 128 files
    stay open.
    """

    def __init__(self, tmpdir: str | None, urls: Iterable[str] = ()) -> None:
        self._tmpdir = tmpdir
        self._urls: list[str] = list(dict.fromkeys(urls))
        self._numbers = {url: number for number, url in enumerate(self._urls)}
        self._identities: dict[int, tuple[int, ...]] = {}
        self._open = OpenFileCache()
        self._stdin: dict[int, io.FileIO] = {}  # files that cannot be opened again
        self._last_file: io.FileIO | None = None
        self._scratch: io.FileIO | None = None
        self._copies: tar.Writer | None = None

    def location_of(self, batch: Batch) -> tuple[int, list[int]] | None:
        """Return (shard number, bounds of the samples in the file) if *batch* is in one plain file; else None."""
        file_and_bounds = batch.file()
        if file_and_bounds is None:
            return None
        file, bounds = file_and_bounds
        shard = self._number(batch.shard)
        self._register(shard, file)
        return shard, bounds

    def store(self, sample: Sample) -> tuple[int, int, int, int]:
        """Return start, end, shard and flags of *sample*; copy it unless it is in a plain file."""
        shard = self._number(sample.shard)
        file, start, end = extent(sample.members)
        if isinstance(file, io.FileIO) and not file.writable():  # scratch files are writable
            self._register(shard, file)
            return start, end, shard, 0
        return *self._copy(sample), shard, IN_SCRATCH_FILE

    def file(self, entry: Entry) -> tuple[io.FileIO, str]:
        """Return the file that holds the sample of *entry*, and the URL that the sample was read from."""
        return self._flushed_scratch() if entry.flags & IN_SCRATCH_FILE else self._file(entry.shard), self._urls[
            entry.shard
        ]

    def gather(self, entries: Sequence[Entry]) -> Batch:
        """Return the samples of *entries* in one batch, read into memory."""
        _, keys, starts, ends, shards, flags = zip(*entries, strict=True)
        places = list(zip(shards, flags, strict=True))
        files_by_place = {pair: self.file(entry) for pair, entry in dict(zip(places, entries, strict=True)).items()}
        files, sizes = [files_by_place[pair][0] for pair in places], list(map(sub, ends, starts))
        data = self._open.read(files, starts, sizes)
        if len(data) < sum(sizes):  # a read may return less
            data = b"".join(map(read_range, files, starts, ends))
        urls = [files_by_place[pair][1] for pair in places]
        return Batch.in_buffer(data, keys, list(accumulate(sizes, initial=0)), urls)

    def sample(self, entry: Entry) -> Sample:
        """Return the sample of *entry* as a range of the file that holds it."""
        file, url = self.file(entry)
        return Sample.at(entry.key, file, entry.start, entry.end, url)

    def members(self, parts: list[Entry]) -> list[PartMember]:
        """Return the members of all *parts*. Many parts, or large ones, are copied to the scratch file first."""
        small = sum(entry.end - entry.start for entry in parts if entry.end - entry.start <= MAX_SAMPLE_READ_WHOLE)
        if len(parts) <= MAX_PARTS_JOINED and small <= MAX_SAMPLE_IN_MEMORY:
            samples = map(self.sample, parts)
            return [PartMember(part, s.shard, member) for part, s in enumerate(samples) for member in s.members]
        owners: list[tuple[int, str]] = []
        spans = []
        for part, entry in enumerate(parts):
            sample = self.sample(entry)
            owners += [(part, sample.shard)] * len(sample.members)
            spans.append(self._copy(sample))
        joined = Sample.at(parts[0].key, self._flushed_scratch(), spans[0][0], spans[-1][1])
        return [PartMember(*owner, member) for owner, member in zip(owners, joined.members, strict=True)]

    @property
    def identities(self) -> Identities:
        """The number of each shard that holds samples, and the identity of its file."""
        return list(self._identities.items())

    @property
    def copied(self) -> int:
        """Bytes copied to the scratch file so far."""
        return self._copies.size if self._copies is not None else 0

    def add_identities(self, identities: Identities) -> None:
        """Add the *identities* of files in a fork. Raises: StorageError if a file had another version there."""
        for shard, version in identities:
            self._require_version(shard, version)

    def check(self) -> None:
        """Raise StorageError if one of the files has changed."""
        for shard in self._identities:
            self._require_version(shard, FileVersion.of(self._stdin.get(shard) or reopen(self._urls[shard])))

    def _require_version(self, shard: int, version: Sequence[int]) -> None:
        """Raise StorageError if the file of *shard* had another *version* when it was first opened."""
        if self._identities.setdefault(shard, tuple(version)) != tuple(version):
            raise changed(self._urls[shard])

    def _number(self, url: str) -> int:
        """Return the number of the shard *url*; a new one if it has none yet."""
        number = self._numbers.setdefault(url, len(self._urls))
        if number == len(self._urls):
            self._urls.append(url)
        return number

    def _copy(self, sample: Sample) -> tuple[int, int]:
        """Copy *sample* to the scratch file; return its start and end there."""
        if self._copies is None:
            self._scratch = scratch_file(self._tmpdir)
            self._copies = tar.Writer(self._scratch)
        start = self._copies.size
        self._copies.add(sample.members)
        return start, self._copies.size

    def _flushed_scratch(self) -> io.FileIO:
        assert self._copies is not None and self._scratch is not None
        self._copies.flush()
        return self._scratch

    def _file(self, shard: int) -> io.FileIO:
        return self._stdin.get(shard) or self._open.file(shard, partial(self._reopen, shard))

    def _reopen(self, shard: int) -> io.FileIO:
        file = reopen(self._urls[shard])
        self._require_version(shard, FileVersion.of(file))
        return file

    def _register(self, shard: int, file: io.FileIO) -> None:
        """Record *file*, which holds samples of *shard*, and its version. Raises: StorageError if it has changed."""
        if file is self._last_file:
            return
        self._last_file = file
        self._require_version(shard, FileVersion.of(file))
        if isinstance(file.name, int):
            self._stdin[shard] = file
        else:
            self._open.file(shard, lambda: file)


def extent(members: tuple[Member, ...]) -> tuple[Source | None, int, int]:
    """Return the source that holds *members*, headers unchanged, one after the other, and the range that they fill.

    The source is None if there is no such source.
    """
    begin = end = -1
    file: Source | None = None
    for member in members:
        source, start, stop = located(member.source, member.start, member.end)
        if member.head is not None or (file is not None and (source is not file or start != end)):
            return None, 0, 0
        begin, file, end = start if file is None else begin, source, stop
    return file, begin, end
