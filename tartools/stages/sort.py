"""The stage that sorts, in bounded memory: what is sorted is an index of packed records, not the samples.

Three passes. Every sample becomes a record of some dozen bytes that says what it sorts by and where it lies: in
the plain local file that it was read from, or else in one scratch file that it is copied to. Records are sorted
in runs, which are merged. Then the samples are read again, in their new order.

Records are bytes that compare as they are to be sorted, which C does for us: the sort key in an encoding that keeps
its order, then the position of the sample in the input, so that the order is stable, then the place.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from struct import Struct
from typing import NamedTuple

from tartools import tar
from tartools.account import Account
from tartools.errors import SampleError, StorageError, shown
from tartools.externalsort import external_sort
from tartools.sample import Sample, field_name
from tartools.sortkeys import FIRST, LAST, Order, encoder, text_of
from tartools.storage.scratch import scratch_file
from tartools.tar import Member

Reopen = Callable[[str], io.FileIO]

MEMORY = 256 << 20  # bytes
PARTS = 64  # that are joined without being copied to one place
OPEN_FILES = 128  # at once; macOS allows 256
SMALL = 1 << 20  # bytes; the members of a smaller sample are read into memory, of a larger one they are ranges
HELD = 16 << 20  # bytes of one joined sample in memory


def sorted_samples(
    samples: Iterable[Sample],
    order: Order,
    account: Account,
    *,
    reopen: Reopen,
    memory: int = MEMORY,
    tmpdir: str | None = None,
) -> Iterator[Sample]:
    """Yield *samples* in *order*, which is stable: equal ones stay in the order of the input, in reverse too.

    By `__key__`, the members of one key become one sample wherever they were. All of *samples* are read before
    the first is yielded. Those that are ranges of plain files stay there, and *reopen* gives the file of a shard's
    URL again; others are copied to a file without a name in *tmpdir*.

    Holds: records of *memory* bytes, more go to files without a name in *tmpdir*; 128 open files.
    Raises: SampleError for a value that is missing or not of its kind, and for a joined sample with a field twice;
    StorageError if a file has changed meanwhile; what *samples* raises.
    """
    places = Places(reopen, tmpdir)
    records = external_sort(indexed(samples, order, places), memory, tmpdir)
    entries = (unpacked(record, order) for record in records)
    arranged = keys_joined if order.by_key else values_sorted
    found = arranged(entries, order, account, places)
    last = None
    for sample in found:
        if last is not None:
            yield last
        last = sample
    if last is not None:
        _ = last.members  # read here: when its writer asks for more, nothing is left to read behind the check
        yield last
    places.check()


POSITION = 8  # bytes, big-endian, behind the sort key; then the key of the sample, then the tail
TAIL = Struct(">QQIIB")  # start, end, shard, bytes of the key in the record, flags
LONE, COPIED, IMPLIED = 1, 2, 4  # flags: never joined; lies in the scratch file; the key is what is sorted by


class Entry(NamedTuple):
    """A record of the index, unpacked: what it sorts by, and where the sample *key* lies."""

    sort_key: bytes
    key: bytes
    start: int
    end: int
    shard: int
    flags: int


def indexed(samples: Iterable[Sample], order: Order, places: Places) -> Iterator[bytes]:
    """Yield a record for each of *samples*, in their order, after it has been given its place."""
    encode = encoder(order)
    implied = IMPLIED if order.by_key and order.kind == "text" else 0
    for position, sample in enumerate(samples):
        sort_key = encode(sample, position)
        if order.by_key and len({member.path for member in sample.members}) < len(sample.members):
            owned = [Owned(0, sample.shard, member) for member in sample.members]
            sample = sample.with_members(each.member for each in each_once(sample.key, owned, order))
        start, end, shard, flags = places.put(sample)
        flags |= implied if sample.grouped else implied | LONE
        key = b"" if implied else sample.raw_key
        yield sort_key + position.to_bytes(POSITION, "big") + key + TAIL.pack(start, end, shard, len(key), flags)


def unpacked(record: bytes, order: Order) -> Entry:
    """Return what *record* says."""
    tail = len(record) - TAIL.size
    start, end, shard, length, flags = TAIL.unpack_from(record, tail)
    sort_key = record[: tail - length - POSITION]
    key = text_of(sort_key, order) if flags & IMPLIED else record[tail - length : tail]
    return Entry(sort_key, key, start, end, shard, flags)


def values_sorted(entries: Iterable[Entry], order: Order, account: Account, places: Places) -> Iterator[Sample]:
    """Yield the samples of sorted *entries*; of those with equal sort keys one, if *order* is unique.

    Those without a value equal nothing.
    """
    if order.unique is None:
        yield from map(places.sample, entries)
        return
    for sort_key, equal in groupby(entries, attrgetter("sort_key")):
        if sort_key in (FIRST, LAST):
            yield from map(places.sample, equal)
            continue
        kept: Entry | None = None
        for entry in equal:
            account.left_out += kept is not None
            kept = entry if order.unique == "last" or kept is None else kept
        assert kept is not None
        yield places.sample(kept)


def keys_joined(entries: Iterable[Entry], order: Order, account: Account, places: Places) -> Iterator[Sample]:
    """Yield the samples of *entries*, which are sorted by key: those of one key as one, where its first one was.

    Holds: the entries of equal sort keys, and the joined sample as far as it is small.
    """
    for _, equal in groupby(entries, attrgetter("sort_key")):
        for parts in together(list(equal), order, account):
            yield places.sample(parts[0]) if len(parts) == 1 else joined(parts, order, account, places)


def together(equal: list[Entry], order: Order, account: Account) -> list[list[Entry]]:
    """Return *equal* entries in lists of those that are one sample.

    Keys may differ and be equal as numbers: if *order* is unique, one of them remains. A file without a field is
    no rival of a sample that happens to have its name for a key.
    """
    if len(equal) == 1:
        return [equal]
    samples: dict[tuple[bytes, int], list[Entry]] = {}
    for number, entry in enumerate(equal):
        apart = number if entry.flags & LONE else -1
        samples.setdefault((entry.key, apart), []).append(entry)
    if order.unique is None:
        return list(samples.values())
    kept: dict[int, list[Entry]] = {}
    for parts in samples.values():
        kind = parts[0].flags & LONE
        if order.unique == "last" or kind not in kept:
            kept[kind] = parts
    account.left_out += len(equal) - sum(map(len, kept.values()))
    return list(kept.values())


def joined(parts: list[Entry], order: Order, account: Account, places: Places) -> Sample:
    """Return the sample that *parts* are together, members in the order of the input.

    Raises: SampleError if it would hold a field twice, and *order* does not choose one.
    """
    first = places.sample(parts[0])
    kept = each_once(first.key, places.members(parts), order)
    used = len({each.part for each in kept})
    account.joined += used - 1
    account.left_out += len(parts) - used
    return first.with_members(each.member for each in kept)


class Owned(NamedTuple):
    """A member, and which of the parts that are joined it comes from."""

    part: int
    shard: str
    member: Member


def each_once(key: str, members: Iterable[Owned], order: Order) -> list[Owned]:
    """Return *members* of the sample *key*; of those with one path, the one that *order* chooses.

    Raises: SampleError if it chooses none.
    """
    kept: dict[bytes, Owned] = {}
    for found in members:
        path = found.member.path
        other = kept.get(path)
        if other and order.unique is None:
            where = " and ".join(dict.fromkeys(shown(each.shard) for each in (other, found) if each.shard))
            raise SampleError(
                f"sample {key!r} would hold the field {field_name(found.member)!r} twice"
                f"{f' (from {where})' if where else ''}: -u first or -u last keeps one, "
                "tarcat --rekey gives every sample a key of its own"
            )
        if order.unique == "last":
            kept.pop(path, None)
        if order.unique == "last" or not other:
            kept[path] = found
    return list(kept.values())


class Places:
    """Where samples lie until they are written: in plain local files as they were read, or in one scratch file.

    Files are known by the URL of their shard, opened again by *reopen*, at most 128 at a time.
    """

    def __init__(self, reopen: Reopen, tmpdir: str | None) -> None:
        self._reopen = reopen
        self._tmpdir = tmpdir
        self._urls: list[str] = []
        self._numbers: dict[str, int] = {}
        self._identities: dict[int, tuple[int, ...]] = {}
        self._open: dict[int, io.FileIO] = {}  # least recently used first
        self._stdin: dict[int, io.FileIO] = {}  # can't be opened again
        self._seen: io.FileIO | None = None
        self._scratch: io.FileIO | None = None
        self._copies: tar.Writer | None = None

    def put(self, sample: Sample) -> tuple[int, int, int, int]:
        """Return start, end, shard and flags of *sample*, which is copied unless it is a range of a plain file."""
        shard = self._numbers.setdefault(sample.shard, len(self._urls))
        if shard == len(self._urls):
            self._urls.append(sample.shard)
        members = sample.members
        source = members[0].source if members else b""
        if isinstance(source, io.FileIO) and not source.writable() and adjacent(members):  # scratch files are writable
            self._keep(shard, source)
            return members[0].start, members[-1].end, shard, 0
        return *self._copy(sample), shard, COPIED

    def sample(self, entry: Entry) -> Sample:
        """Return the sample of *entry* as a range of the file where it lies."""
        source = self._copied() if entry.flags & COPIED else self._file(entry.shard)
        return Sample.at(entry.key, source, entry.start, entry.end, self._urls[entry.shard])

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

    def check(self) -> None:
        """Raise StorageError if one of the files is not the same any more."""
        for shard, known in self._identities.items():
            url = self._urls[shard]
            if identity(self._stdin.get(shard) or self._reopen(url)) != known:
                raise changed(url)

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


def adjacent(members: tuple[Member, ...]) -> bool:
    """Tell whether *members* lie one behind the other in one source, with the headers that they had there."""
    source, end = members[0].source, members[0].start
    for member in members:
        if member.source is not source or member.start != end or member.head is not None:
            return False
        end = member.end
    return True


def identity(file: io.FileIO) -> tuple[int, ...]:
    """Return what changes when *file* is written to or replaced."""
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def changed(url: str) -> StorageError:
    """Return the failure of an input that was changed while it was sorted."""
    return StorageError("this input changed while it was sorted; read it through a pipe if it has to", url=url)
