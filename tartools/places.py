"""Where samples wait while they are sorted, and the records that say so.

A record is bytes: what its sample sorts by, its position in the input, its key unless what it sorts by implies
that, and its place: in a plain local file as it was read, or in one scratch file.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from operator import sub
from struct import Struct
from time import perf_counter
from typing import NamedTuple

from tartools import tar
from tartools.errors import StorageError
from tartools.sample import Batch, Sample
from tartools.storage.scratch import scratch_file
from tartools.tar import Member, Run, Source, located, read_range

Reopen = Callable[[str], io.FileIO]
Files = list[tuple[int, tuple[int, ...]]]

PARTS = 64  # that are joined without being copied to one place
OPEN_FILES = 128  # at once; macOS allows 256
SMALL = 1 << 20  # bytes; the members of a smaller sample are read into memory, of a larger one they are ranges
COLD = 20e-6  # seconds for a piece of a file that was not in memory; from there it comes in two
HELD = 16 << 20  # bytes of one joined sample in memory

POSITION = 8  # bytes, big-endian, behind the sort key; then the key of the sample, then its place
PLACE = Struct(">QQIIB")  # start, end, shard, bytes of the key in the record, flags
PLACED = Struct(">QQQIIB")  # the position and, where no key is between them, the place
LONE, COPIED, IMPLIED = 1, 2, 4  # flags: never joined; lies in the scratch file; the key is what is sorted by


class Entry(NamedTuple):
    """A record of the index, unpacked: what it sorts by, and where the sample *key* lies."""

    sort_key: bytes
    key: bytes
    start: int
    end: int
    shard: int
    flags: int


def unpacked(records: Iterable[bytes], text_of: Callable[[bytes], bytes]) -> Iterator[Entry]:
    """Yield what *records* say. *text_of* gives the key that a sort key implies."""
    unpack, make, size = PLACE.unpack_from, tuple.__new__, PLACE.size  # half of what Entry(...) costs
    for packed in records:
        behind = len(packed) - size
        start, end, shard, length, flags = unpack(packed, behind)
        behind -= length
        sort_key = packed[: behind - POSITION]
        key = text_of(sort_key) if flags & IMPLIED else packed[behind : behind + length]
        yield make(Entry, (sort_key, key, start, end, shard, flags))


class Owned(NamedTuple):
    """A member, and which of the parts that are joined it comes from."""

    part: int
    shard: str
    member: Member


class Places:
    """Where samples lie until they are written: in plain local files as they were read, or in one scratch file.

    Files are known by the URL of their shard, of which *urls* have numbers already, the same in forks of this process.
    They are opened again by *reopen*, at most 128 at a time.
    """

    def __init__(self, reopen: Reopen, tmpdir: str | None, urls: Iterable[str] = ()) -> None:
        self._reopen = reopen
        self._tmpdir = tmpdir
        self._urls: list[str] = list(dict.fromkeys(urls))
        self._numbers = {url: number for number, url in enumerate(self._urls)}
        self._identities: dict[int, tuple[int, ...]] = {}
        self._open: dict[int, io.FileIO] = {}  # least recently used first
        self._stdin: dict[int, io.FileIO] = {}  # can't be opened again
        self._seen: io.FileIO | None = None
        self._scratch: io.FileIO | None = None
        self._copies: tar.Writer | None = None
        self._cold = False  # files have to be read from disk

    def spot(self, batch: Batch) -> tuple[int, int] | None:
        """Return (shard, shift) of *batch* if all of it is in one plain file, *shift* bytes further on; else None."""
        if batch.run is None:
            return None
        file, shift, _ = located(batch.run.source, 0, 0)
        if not isinstance(file, io.FileIO) or file.writable():
            return None
        shard = self._number(batch.shard)
        self._keep(shard, file)
        return shard, shift

    def put(self, sample: Sample) -> tuple[int, int, int, int]:
        """Return start, end, shard and flags of *sample*, which is copied unless it lies in a plain file."""
        shard = self._number(sample.shard)
        file, start, end = extent(sample.members)
        if isinstance(file, io.FileIO) and not file.writable():  # scratch files are writable
            self._keep(shard, file)
            return start, end, shard, 0
        return *self._copy(sample), shard, COPIED

    def file(self, entry: Entry) -> tuple[io.FileIO, str]:
        """Return the file in which the sample of *entry* lies, and the URL that it was read from."""
        return self._copied() if entry.flags & COPIED else self._file(entry.shard), self._urls[entry.shard]

    def joined(self, entries: Sequence[Entry]) -> Batch:
        """Return the samples of *entries*, joined in memory.

        Once they have had to be read from disk, all are asked for before the first is waited for.
        """
        _, keys, starts, ends, shards, flags = zip(*entries, strict=True)
        where = list(zip(shards, flags, strict=True))
        files = {place: self.file(entry) for place, entry in dict(zip(where, entries, strict=True)).items()}
        numbers = {place: file.fileno() for place, (file, _) in files.items()}
        fds, sizes = [numbers[place] for place in where], list(map(sub, ends, starts))
        if self._cold and hasattr(os, "posix_fadvise"):
            for fd, start, size in zip(fds, starts, sizes, strict=True):
                os.posix_fadvise(fd, start, size, os.POSIX_FADV_WILLNEED)
        begun = perf_counter()
        found = b"".join(map(os.pread, fds, sizes, starts))
        self._cold = self._cold or perf_counter() - begun > COLD * len(entries)
        if len(found) < sum(sizes):  # a read may give less
            found = b"".join(
                [read_range(files[place][0], *span) for place, *span in zip(where, starts, ends, strict=True)]
            )
        urls = [files[place][1] for place in where]
        return Batch(Run(found, list(keys), list(accumulate(sizes, initial=0)), None, []), urls)

    def sample(self, entry: Entry) -> Sample:
        """Return the sample of *entry* as a range of the file where it lies."""
        file, url = self.file(entry)
        return Sample.at(entry.key, file, entry.start, entry.end, url)

    def members(self, parts: list[Entry]) -> list[Owned]:
        """Return the members of all *parts*. Of many, or of many bytes, they are copied to one place first."""
        small = sum(entry.end - entry.start for entry in parts if entry.end - entry.start <= SMALL)
        if len(parts) <= PARTS and small <= HELD:
            samples = map(self.sample, parts)
            return [Owned(part, s.shard, member) for part, s in enumerate(samples) for member in s.members]
        owners: list[tuple[int, str]] = []
        spans = []
        for part, entry in enumerate(parts):
            sample = self.sample(entry)
            owners += [(part, sample.shard)] * len(sample.members)
            spans.append(self._copy(sample))
        whole = Sample.at(parts[0].key, self._copied(), spans[0][0], spans[-1][1])
        return [Owned(*owner, member) for owner, member in zip(owners, whole.members, strict=True)]

    @property
    def files(self) -> Files:
        """The number of each shard with places, and the identity of its file."""
        return list(self._identities.items())

    @property
    def copied(self) -> int:
        """The bytes that were copied."""
        return self._copies.size if self._copies is not None else 0

    def add_files(self, files: Files) -> None:
        """Take note of the *files* of a fork. Raises: StorageError if one was not the same there."""
        for shard, known in files:
            if self._identities.setdefault(shard, tuple(known)) != tuple(known):
                raise changed(self._urls[shard])

    def check(self) -> None:
        """Raise StorageError if one of the files is not the same any more."""
        for shard, known in self._identities.items():
            url = self._urls[shard]
            if identity(self._stdin.get(shard) or self._reopen(url)) != known:
                raise changed(url)

    def _number(self, url: str) -> int:
        """Return the number by which the shard *url* is known."""
        number = self._numbers.setdefault(url, len(self._urls))
        if number == len(self._urls):
            self._urls.append(url)
        return number

    def _copy(self, sample: Sample) -> tuple[int, int]:
        """Return where *sample* begins and ends in the scratch file, to which it is copied."""
        if self._copies is None:
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
            if identity(file) != self._identities[shard]:
                raise changed(self._urls[shard])
        return self._remember(shard, file)

    def _keep(self, shard: int, file: io.FileIO) -> None:
        """Take note of *file*, of which samples are ranges."""
        if file is self._seen:
            return
        self._seen = file
        if self._identities.setdefault(shard, identity(file)) != identity(file):
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
    """Return the file in which *members* lie one behind the other, with the headers that they had there; and where.

    None if there is no such file.
    """
    begin = end = -1
    file: Source | None = None
    for member in members:
        source, start, stop = located(member.source, member.start, member.end)
        if member.head is not None or (file is not None and (source is not file or start != end)):
            return None, 0, 0
        begin, file, end = start if file is None else begin, source, stop
    return file, begin, end


def identity(file: io.FileIO) -> tuple[int, ...]:
    """Return what changes when *file* is written to or replaced."""
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def changed(url: str) -> StorageError:
    """Return the failure of an input that was changed while it was sorted."""
    return StorageError("this input changed while it was sorted; read it through a pipe if it has to", url=url)
