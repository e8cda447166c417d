"""Sort samples in bounded memory.

Three passes. The first makes a record of some dozen bytes for each sample: its sort key, and where its bytes are, in
the plain local file that it was read from or in a scratch file that it is copied to. The second sorts the records, in
runs that are merged if they do not fit into memory. The third gathers the samples in sort order: small ones are read
together, a MiB at a time.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import islice

from tartools.errors import SampleError, shown
from tartools.samples.account import Account
from tartools.samples.sample import Batch, Sample, field_name
from tartools.samples.sortkeys import FIRST, LAST, Order, decoder, encoder, key_encoder
from tartools.stages.externalsort import TURN, external_sort, pack_blocks
from tartools.stages.samplefiles import (
    IMPLIED,
    LOCATION,
    LONE,
    POSITION,
    POSITIONED,
    Entry,
    Identities,
    PartMember,
    SampleFiles,
    unpacked,
)
from tartools.storage.openfiles import OPEN_FILES
from tartools.tar import Member

MEMORY = 256 << 20  # bytes
SMALL = 1 << 20  # bytes of samples in a batch
FILES = OPEN_FILES // 2  # files that one batch is read from, so that each is opened only once
GATHERED = 1 << 16  # bytes; smaller samples are gathered in memory, larger ones copied from the file that holds them


def sorted_batches(
    index: Iterable[bytes],
    order: Order,
    account: Account,
    files: SampleFiles,
    *,
    memory: int = MEMORY,
    tmpdir: str | None = None,
) -> Iterator[Batch]:
    """Yield the samples of *index*, whose bytes are in *files*, sorted by *order*. The sort is stable.

    By `__key__`, all members of one key become one sample. A batch never holds two samples with the same key.
    The whole *index* is read before the first batch is yielded.

    Holds: *memory* bytes of records, beyond that unnamed files in *tmpdir*; 128 open files; two batches of 1 MiB.
    Raises: SampleError if a joined sample has a field twice; StorageError if a file has changed meanwhile; what
    *index* raises.
    """
    records = external_sort(index, memory, tmpdir)
    arrange = join_equal_keys if order.by_key else choose_equal_values
    last = None
    for batch in gather(arrange(unpacked(records, decoder(order)), order, account), order, account, files):
        if last is not None:
            yield last
        last = batch
    if last is not None and last.groups is None:  # parse it now, before the files are checked
        sample = last[0]
        last = Batch.of(sample.with_members(sample.members))
    if last is not None:
        yield last
    files.check()


def gather(found: Iterable[list[Entry]], order: Order, account: Account, files: SampleFiles) -> Iterator[Batch]:
    """Yield samples, given the entries of their parts: small samples in batches read into memory, others alone.

    Holds: 1 MiB, and up to 16 MiB of a joined sample.
    """
    small: list[Entry] = []
    size = turns = 0
    last_key, last_shard, last_flags = b"", -1, 0
    for parts in found:
        _, key, start, end, shard, flags = entry = parts[0]
        alone = len(parts) > 1 or end - start > GATHERED
        full = size >= SMALL or turns == FILES
        if small and (alone or full or key == last_key):  # the writer checks keys from batch to batch
            yield files.gather(small)
            small, size, turns, last_shard = [], 0, 0, -1
        if alone:
            yield Batch.of(files.sample(entry) if len(parts) == 1 else join(parts, order, account, files))
            continue
        if shard != last_shard or flags != last_flags:
            turns += 1
        small.append(entry)
        size += end - start
        last_key, last_shard, last_flags = key, shard, flags
    if small:
        yield files.gather(small)


def index_records(batches: Iterable[Batch], order: Order, files: SampleFiles, position: int = 0) -> Iterator[bytes]:
    """Yield a record for each sample of *batches*, in input order; the first has number *position*.

    Samples in plain local files stay there; *files* copies all others to its scratch file.
    Raises: SampleError if a value is missing or not of its kind, or if a sample has a field twice.
    """
    encode, encode_key = encoder(order), key_encoder(order)
    implied = IMPLIED if order.by_key and order.kind == "text" else 0
    for batch in batches:
        groups, location = batch.groups, files.location_of(batch)
        members = groups.members if groups is not None else None
        if (
            groups is None
            or members is None
            or location is None
            or encode_key is None
            or (order.by_key and has_duplicates(members))
        ):
            for sample in batch:
                yield record(sample, position, encode(sample, position), order, files)
                position += 1
            continue
        shard, shift = location
        starts, ends = groups.starts, islice(groups.starts, 1, None)
        for key, start, end, first in zip(groups.keys, starts, ends, groups.firsts, strict=False):
            flags = implied if len(members[first][0]) > len(key) else implied | LONE
            sort_key = encode_key(key, position, batch.shard)
            if implied:
                yield sort_key + POSITIONED.pack(position, start + shift, end + shift, shard, 0, flags)
            else:
                packed = LOCATION.pack(start + shift, end + shift, shard, len(key), flags)
                yield sort_key + position.to_bytes(POSITION, "big") + key + packed
            position += 1


def index_blocks(
    batches: Iterable[Batch], order: Order, files: SampleFiles, turn: int, apart: bool
) -> Generator[bytes, None, Identities]:
    """Yield the records of one slice of the input in blocks; slice *turn* sorts after all slices before it.

    Returns the identities of the files that hold the samples.
    Raises: SampleError as `index_records` does. Also if a sample has to be copied while this runs *apart*, in a worker
    process, whose scratch file would end with it.
    """
    copied = files.copied
    yield from pack_blocks(index_records(batches, order, files, turn << TURN))
    if apart and files.copied > copied:
        raise SampleError("some samples are not in plain local files")
    return files.identities


def record(sample: Sample, position: int, sort_key: bytes, order: Order, files: SampleFiles) -> bytes:
    """Return the record of *sample*, copying its bytes where necessary. Raises: SampleError if it has a field twice."""
    if order.by_key and has_duplicates(sample.members):
        members = [PartMember(0, sample.shard, member) for member in sample.members]
        sample = sample.with_members(each.member for each in distinct_members(sample.key, members, order))
    start, end, shard, flags = files.store(sample)
    implied = IMPLIED if order.by_key and order.kind == "text" else 0
    flags |= implied if sample.grouped else implied | LONE
    key = b"" if implied else sample.raw_key
    return sort_key + position.to_bytes(POSITION, "big") + key + LOCATION.pack(start, end, shard, len(key), flags)


def choose_equal_values(entries: Iterable[Entry], order: Order, account: Account) -> Iterator[list[Entry]]:
    """Yield each of sorted *entries* in a list of its own; if *order* is unique, one of those with equal sort keys.

    Samples without a value are never equal. Holds: one entry.
    """
    if order.unique is None:
        yield from ([entry] for entry in entries)
        return
    kept: Entry | None = None
    for entry in entries:
        if kept is not None and entry.sort_key == kept.sort_key and entry.sort_key not in (FIRST, LAST):
            account.left_out += 1
            kept = entry if order.unique == "last" else kept
            continue
        if kept is not None:
            yield [kept]
        kept = entry
    if kept is not None:
        yield [kept]


def join_equal_keys(entries: Iterable[Entry], order: Order, account: Account) -> Iterator[list[Entry]]:
    """Yield the parts of each sample: lists of sorted *entries* with one key, in order of their first entries.

    Holds: the entries of equal sort keys.
    """
    equal: list[Entry] = []
    before = b""
    for entry in entries:
        if equal and entry[0] != before:
            yield from [equal] if len(equal) == 1 else parts_by_sample(equal, order, account)
            equal = []
        before = entry[0]
        equal.append(entry)
    if equal:
        yield from parts_by_sample(equal, order, account)


def parts_by_sample(equal: list[Entry], order: Order, account: Account) -> list[list[Entry]]:
    """Return *equal* entries as one list for each sample.

    Different keys may be equal as numbers: if *order* is unique, one of them is kept. A member without a field is a
    sample of its own, even if its name is the key of another sample.
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


def join(parts: list[Entry], order: Order, account: Account, files: SampleFiles) -> Sample:
    """Return the sample that *parts* are together; its members keep the order of the input.

    Raises: SampleError if it would hold a field twice and *order* does not say which one to keep.
    """
    first = files.sample(parts[0])
    kept = distinct_members(first.key, files.members(parts), order)
    used = len({each.part for each in kept})
    account.joined += used - 1
    account.left_out += len(parts) - used
    return first.with_members(each.member for each in kept)


def distinct_members(key: str, members: Iterable[PartMember], order: Order) -> list[PartMember]:
    """Return *members* of the sample *key* with each path once: the first or the last, as *order* says.

    Raises: SampleError if a path occurs twice and *order* does not say which one to keep.
    """
    kept: dict[bytes, PartMember] = {}
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


def has_duplicates(members: Sequence[Member]) -> bool:
    """Return whether two of *members* (possibly plain tuples) have the same path."""
    return len({member[0] for member in members}) < len(members)
