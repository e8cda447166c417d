"""The files that hold samples while they are sorted or joined: plain local inputs, and a scratch file for all others.

A sample is remembered by its location: the bytes of a plain local file, or of the scratch file.
"""

import io
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import accumulate, repeat
from operator import sub
from struct import Struct
from typing import NamedTuple

from tartools import storage, tar
from tartools.errors import StorageError
from tartools.samples.batch import Batch
from tartools.samples.sample import Sample
from tartools.storage.openfiles import OpenFileCache
from tartools.storage.scratch import scratch_file
from tartools.storage.streams import FileVersion, changed_input_error
from tartools.tar import Member, Source, range_in_file, read_range

LOCATION = Struct(">QQI?")  # see `Location`
Identities = list[tuple[int, tuple[int, ...]]]

MAX_PARTS_JOINED = 64  # parts of a sample that are joined without copying them to the scratch file first
# bytes; members of a smaller sample are read into memory, those of a larger one stay ranges
MAX_SAMPLE_READ_WHOLE = 1 << 20
MAX_SAMPLE_IN_MEMORY = 16 << 20  # bytes of one joined sample in memory


class Location(NamedTuple):
    """The location of a sample: bytes *begin* to *end* of a local file, or of the scratch file if *in_scratch*.

    `shard`: number, in `SampleFiles`, of the shard that the sample was read from; the local file is that shard.
    """

    begin: int
    end: int
    shard: int
    in_scratch: bool = False

    def pack(self) -> bytes:
        """Return this location as 21 bytes, for `unpack`."""
        return LOCATION.pack(*self)

    @classmethod
    def unpack(cls, packed: bytes) -> "Location":
        """Return the location from *packed*, the bytes of `pack`."""
        return cls._make(LOCATION.unpack(packed))


def reopen(url: str) -> io.FileIO:
    """Open the plain local file *url* again. Raises: StorageError if it is missing, or no longer a plain local file."""
    file = storage.open_read(url).file
    if file is None:
        raise StorageError("this is no longer a regular file", url=url)
    return file


class PartMember(NamedTuple):
    """A *member* of a joined sample, from the part with the index *part*, which is in the shard (URL) *shard*."""

    part: int
    shard: str
    member: Member


class SampleFiles:
    """The places of samples until they are written: plain local files that have them, and one scratch file for copies.

    `store` (one sample) and `location_of` (a batch) return locations; `sample`, `members` and `gather_samples` return
    the samples there. Call `check` after the last: it compares the versions of all plain files. The others raise
    StorageError, too, if they open a file again that has changed; a file that is still open may have changed unnoticed.

    Shards have numbers. `urls`: numbered from the start, so that forks use the same numbers; further shards get the
    next numbers. `tmpdir`: folder of the scratch file, which is made by the first copy, has no name, and is deleted
    with this object; None: the system's. Up to 128 files stay open, and the files of stdin.
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
        """Return (shard number, bounds of the samples in its file) if *batch* is in one plain file, else None.

        None, too, for a batch made of one sample (`Batch.from_sample`), which `store` takes. Bounds, in bytes: the
        begin of each sample, then the end of the last. Raises: StorageError if another version of the file was recorded
        before.
        """
        file_and_bounds = batch.file()
        if file_and_bounds is None:
            return None
        file, bounds = file_and_bounds
        shard = self._number(batch.shard)
        self._register(shard, file)
        return shard, bounds

    def store(self, sample: Sample) -> Location:
        """Return the location of *sample*; copy it to the scratch file unless it lies in one piece in a plain file.

        Raises: StorageError if another version of the file was recorded before, or the scratch file can't be written.
        """
        shard = self._number(sample.shard)
        file, start, end = find_extent(sample.members)
        if isinstance(file, io.FileIO) and not file.writable():  # scratch files are writable
            self._register(shard, file)
            return Location(start, end, shard)
        return Location(*self._copy(sample), shard, True)

    def file(self, shard: int, in_scratch: bool) -> tuple[io.FileIO, str]:
        """Return (open file, shard URL) for samples of shard number *shard*: the scratch file if *in_scratch*.

        Otherwise the shard's own file. Raises: StorageError if that has to be opened again, and has changed, or if the
        scratch file can't be written.
        """
        return self._flushed_scratch() if in_scratch else self._file(shard), self._urls[shard]

    def gather_samples(
        self,
        keys: Sequence[bytes],
        begins: Sequence[int],
        ends: Sequence[int],
        shards: Sequence[int],
        in_scratch: Sequence[bool],
    ) -> Batch:
        """Read samples from their files into memory; return them as one batch, in this order.

        Each argument has one item a sample: `keys`, and the fields of its `Location`: `begins` and `ends` in bytes,
        `shards` (numbers), `in_scratch`. Raises: StorageError if a file that is opened again has changed.
        """
        places = list(zip(shards, in_scratch, strict=True))
        files_by_place = {place: self.file(*place) for place in dict.fromkeys(places)}
        files, sizes = [files_by_place[place][0] for place in places], list(map(sub, ends, begins))
        data = self._open.read(files, begins, sizes)
        if len(data) < sum(sizes):  # a read may return less
            data = b"".join(map(read_range, files, begins, ends))
        urls = [files_by_place[place][1] for place in places]
        return Batch.from_buffer(data, keys, list(accumulate(sizes, initial=0)), urls)

    def sample(self, key: bytes, location: Location) -> Sample:
        """Return the sample *key* at *location*, as a range of the file that holds it; no sample is read yet.

        Raises: StorageError if the file has to be opened again, and has changed.
        """
        begin, end, shard, in_scratch = location
        file, url = self.file(shard, in_scratch)
        return Sample.at(key, file, begin, end, url)

    def members(self, key: bytes, parts: Sequence[Location]) -> list[PartMember]:
        """Return the members of all *parts*, locations of parts of the sample *key*, in order.

        `PartMember.part` is the index in *parts*. Parts are copied to the scratch file first if there are over 64, or
        if the ones of up to 1 MiB have over 16 MiB in all; all copies then count as one part. Members of a part of up
        to 1 MiB are read into memory, others are ranges of the file. Raises: StorageError if a file has changed or the
        scratch file can't be written; TarFormatError if bytes have changed.
        """
        sizes = [location.end - location.begin for location in parts]
        small = sum(size for size in sizes if size <= MAX_SAMPLE_READ_WHOLE)
        if len(parts) <= MAX_PARTS_JOINED and small <= MAX_SAMPLE_IN_MEMORY:
            samples = map(self.sample, repeat(key), parts)
            return [PartMember(part, s.shard, member) for part, s in enumerate(samples) for member in s.members]
        owners: list[tuple[int, str]] = []
        spans = []
        for part, location in enumerate(parts):
            sample = self.sample(key, location)
            owners += [(part, sample.shard)] * len(sample.members)
            spans.append(self._copy(sample))
        joined = Sample.at(key, self._flushed_scratch(), spans[0][0], spans[-1][1])
        return [PartMember(*owner, member) for owner, member in zip(owners, joined.members, strict=True)]

    @property
    def identities(self) -> Identities:
        """Pairs (shard number, version) for each shard whose plain file holds samples; a version is a tuple of ints."""
        return list(self._identities.items())

    @property
    def copied_bytes(self) -> int:
        """Bytes copied to the scratch file so far."""
        return self._copies.size if self._copies is not None else 0

    def add_identities(self, identities: Identities) -> None:
        """Take over the *identities* of files that a fork read.

        Raises: StorageError if a file had another version there than here.
        """
        for shard, version in identities:
            self._require_version(shard, version)

    def check(self) -> None:
        """Raise StorageError if one of the plain files that hold samples has changed since it was first opened."""
        for shard in self._identities:
            self._require_version(shard, FileVersion.of(self._stdin.get(shard) or reopen(self._urls[shard])))

    def _require_version(self, shard: int, version: Sequence[int]) -> None:
        """Record *version* as the version of the file of *shard*.

        Raise StorageError if another one was recorded before.
        """
        if self._identities.setdefault(shard, tuple(version)) != tuple(version):
            raise changed_input_error(self._urls[shard])

    def _number(self, url: str) -> int:
        """Return the number of the shard *url*; a new one if it has none yet."""
        number = self._numbers.setdefault(url, len(self._urls))
        if number == len(self._urls):
            self._urls.append(url)
        return number

    def _copy(self, sample: Sample) -> tuple[int, int]:
        """Copy *sample* to the scratch file; return (begin, end) of its bytes there."""
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
        return self._stdin.get(shard) or self._open.open_file(shard, partial(self._reopen, shard))

    def _reopen(self, shard: int) -> io.FileIO:
        file = reopen(self._urls[shard])
        self._require_version(shard, FileVersion.of(file))
        return file

    def _register(self, shard: int, file: io.FileIO) -> None:
        """Record *file*, which holds samples of *shard*, and its version; do nothing for the file of the last call.

        Raises: StorageError if another version of *shard* was recorded before.
        """
        if file is self._last_file:
            return
        self._last_file = file
        self._require_version(shard, FileVersion.of(file))
        if isinstance(file.name, int):
            self._stdin[shard] = file
        else:
            self._open.open_file(shard, lambda: file)


def find_extent(members: tuple[Member, ...]) -> tuple[Source | None, int, int]:
    """Return (source, begin, end): the bytes of one source that *members* fill, in order, with their headers.

    The source of chunks of a stream over a plain file is this file, with the bytes there. (None, 0, 0) if *members*, at
    least one, are in several sources, not adjacent, or need new headers.
    """
    begin = end = -1
    file: Source | None = None
    for member in members:
        source, start, stop = range_in_file(member.source, member.start, member.end)
        if member.head is not None or (file is not None and (source is not file or start != end)):
            return None, 0, 0
        begin, file, end = start if file is None else begin, source, stop
    return file, begin, end
