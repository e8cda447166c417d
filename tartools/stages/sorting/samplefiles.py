"""The files that hold samples while they are sorted: plain local inputs, and one scratch file for all others."""

import io
import os
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from operator import sub
from time import perf_counter

from tartools import storage, tar
from tartools.errors import StorageError
from tartools.samples.sample import Batch, Sample
from tartools.stages.sorting.records import COPIED, Entry
from tartools.storage.streams import FileVersion, changed
from tartools.tar import ContiguousGroups, Member, Source, located, read_range

Reopen = Callable[[str], io.FileIO]
Identities = list[tuple[int, tuple[int, ...]]]

PARTS = 64  # parts of a sample that are joined without copying them to the scratch file first
OPEN_FILES = 128  # at once; macOS allows 256
SMALL = 1 << 20  # bytes; members of a smaller sample are read into memory, those of a larger one stay ranges
COLD = 20e-6  # seconds to read a sample from disk; from the page cache it takes 2e-6
HELD = 16 << 20  # bytes of one joined sample in memory


def reopened(url: str) -> io.FileIO:
    """Return the plain local file *url*, which was read before. Raises: StorageError if it is one no more."""
    file = storage.open_read(url).file
    if file is None:
        raise StorageError("this is no longer a regular file", url=url)
    return file


class PartMember:
    """A member of a joined sample, with the number and the shard of the part that it comes from."""

    def __init__(self, part: int, shard: str, member: Member) -> None:
        self.part = part
        self.shard = shard
        self.member = member


class SampleFiles:
    """Stores samples until they are written: in the plain local files that held them, or in one scratch file.

    Shards are known by numbers. *urls* have theirs from the start, so that forks of this process use the same.
    *reopen* opens a shard again; at most 128 are open at a time.
    """

    def __init__(self, reopen: Reopen, tmpdir: str | None, urls: Iterable[str] = ()) -> None:
        self._reopen = reopen
        self._tmpdir = tmpdir
        self._urls: list[str] = list(dict.fromkeys(urls))
        self._numbers = {url: number for number, url in enumerate(self._urls)}
        self._identities: dict[int, tuple[int, ...]] = {}
        self._open: dict[int, io.FileIO] = {}  # least recently used first
        self._stdin: dict[int, io.FileIO] = {}  # files that cannot be opened again
        self._seen: io.FileIO | None = None
        self._scratch: io.FileIO | None = None
        self._copies: tar.Writer | None = None
        self._cold = False  # the files are not in the page cache

    def location_of(self, batch: Batch) -> tuple[int, int] | None:
        """Return (shard, shift) if all of *batch* is in one plain file, *shift* bytes further on; else None."""
        if batch.groups is None:
            return None
        file, shift, _ = located(batch.groups.source, 0, 0)
        if not isinstance(file, io.FileIO) or file.writable():
            return None
        shard = self._number(batch.shard)
        self._keep(shard, file)
        return shard, shift

    def store(self, sample: Sample) -> tuple[int, int, int, int]:
        """Return start, end, shard and flags of *sample*; copy it unless it is in a plain file."""
        shard = self._number(sample.shard)
        file, start, end = extent(sample.members)
        if isinstance(file, io.FileIO) and not file.writable():  # scratch files are writable
            self._keep(shard, file)
            return start, end, shard, 0
        return *self._copy(sample), shard, COPIED

    def file(self, entry: Entry) -> tuple[io.FileIO, str]:
        """Return the file that holds the sample of *entry*, and the URL that the sample was read from."""
        return self._copied() if entry.flags & COPIED else self._file(entry.shard), self._urls[entry.shard]

    def gather(self, entries: Sequence[Entry]) -> Batch:
        """Return the samples of *entries* in one batch, read into memory.

        Once reads have had to wait for the disk, the kernel is asked for all samples before the first is read.
        """
        _, keys, starts, ends, shards, flags = zip(*entries, strict=True)
        where = list(zip(shards, flags, strict=True))
        files = {pair: self.file(entry) for pair, entry in dict(zip(where, entries, strict=True)).items()}
        numbers = {pair: file.fileno() for pair, (file, _) in files.items()}
        fds, sizes = [numbers[pair] for pair in where], list(map(sub, ends, starts))
        if self._cold and hasattr(os, "posix_fadvise"):
            for fd, start, size in zip(fds, starts, sizes, strict=True):
                os.posix_fadvise(fd, start, size, os.POSIX_FADV_WILLNEED)
        begun = perf_counter()
        found = b"".join(map(os.pread, fds, sizes, starts))
        self._cold = self._cold or perf_counter() - begun > COLD * len(entries)
        if len(found) < sum(sizes):  # a read may return less
            found = b"".join(
                [read_range(files[pair][0], *span) for pair, *span in zip(where, starts, ends, strict=True)]
            )
        urls = [files[pair][1] for pair in where]
        return Batch(ContiguousGroups(found, list(keys), list(accumulate(sizes, initial=0)), None, []), urls)

    def sample(self, entry: Entry) -> Sample:
        """Return the sample of *entry* as a range of the file that holds it."""
        file, url = self.file(entry)
        return Sample.at(entry.key, file, entry.start, entry.end, url)

    def members(self, parts: list[Entry]) -> list[PartMember]:
        """Return the members of all *parts*. Many parts, or large ones, are copied to the scratch file first."""
        small = sum(entry.end - entry.start for entry in parts if entry.end - entry.start <= SMALL)
        if len(parts) <= PARTS and small <= HELD:
            samples = map(self.sample, parts)
            return [PartMember(part, s.shard, member) for part, s in enumerate(samples) for member in s.members]
        owners: list[tuple[int, str]] = []
        spans = []
        for part, entry in enumerate(parts):
            sample = self.sample(entry)
            owners += [(part, sample.shard)] * len(sample.members)
            spans.append(self._copy(sample))
        whole = Sample.at(parts[0].key, self._copied(), spans[0][0], spans[-1][1])
        return [PartMember(*owner, member) for owner, member in zip(owners, whole.members, strict=True)]

    @property
    def identities(self) -> Identities:
        """The number of each shard that holds samples, and the identity of its file."""
        return list(self._identities.items())

    @property
    def copied(self) -> int:
        """Bytes copied to the scratch file so far."""
        return self._copies.size if self._copies is not None else 0

    def add_identities(self, identities: Identities) -> None:
        """Add the *identities* that a fork found. Raises: StorageError if a file was another one there."""
        for shard, known in identities:
            if self._identities.setdefault(shard, tuple(known)) != tuple(known):
                raise changed(self._urls[shard])

    def check(self) -> None:
        """Raise StorageError if one of the files has changed."""
        for shard, known in self._identities.items():
            url = self._urls[shard]
            if FileVersion.of(self._stdin.get(shard) or self._reopen(url)) != known:
                raise changed(url)

    def _number(self, url: str) -> int:
        """Return the number of the shard *url*; a new one if it has none yet."""
        number = self._numbers.setdefault(url, len(self._urls))
        if number == len(self._urls):
            self._urls.append(url)
        return number

    def _copy(self, sample: Sample) -> tuple[int, int]:
        """Copy *sample* to the scratch file; return its start and end there."""
        if self._copies is None:
            from tartools.storage.scratch import scratch_file

            self._scratch = scratch_file(self._tmpdir)
            self._copies = tar.Writer(self._scratch)
        start = self._copies.size
        self._copies.add(sample.members)
        return start, self._copies.size

    def _copied(self) -> io.FileIO:
        assert self._copies is not None and self._scratch is not None
        self._copies.flush()
        return self._scratch

    def _file(self, shard: int) -> io.FileIO:
        file = self._stdin.get(shard) or self._open.pop(shard, None)
        if file is None:
            file = self._reopen(self._urls[shard])
            if FileVersion.of(file) != self._identities[shard]:
                raise changed(self._urls[shard])
        return self._remember(shard, file)

    def _keep(self, shard: int, file: io.FileIO) -> None:
        """Remember *file*, which holds samples. Raises: StorageError if it has changed."""
        if file is self._seen:
            return
        self._seen = file
        if self._identities.setdefault(shard, FileVersion.of(file)) != FileVersion.of(file):
            raise changed(self._urls[shard])
        self._remember(shard, file)

    def _remember(self, shard: int, file: io.FileIO) -> io.FileIO:
        if isinstance(file.name, int):
            self._stdin[shard] = file
            return file
        self._open[shard] = file
        if len(self._open) > OPEN_FILES:
            del self._open[next(iter(self._open))]
        return file


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
