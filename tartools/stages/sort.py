"""The stage that sorts, in bounded memory: what is sorted is an index of packed records, not the samples.

Three passes. Every sample becomes a record of some dozen bytes that says what it sorts by and where it lies: in
the plain local file that it was read from, or else in one scratch file that it is copied to. Records are sorted
in runs, which are merged. Then the samples are read again, in their new order: small ones together, a MiB at a time.

Records are bytes that compare as they are to be sorted, which C does for us: the sort key in an encoding that keeps
its order, then the position of the sample in the input, so that the order is stable, then the place.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice

from tartools.account import Account
from tartools.errors import SampleError, shown
from tartools.externalsort import blocks, external_sort, records_in
from tartools.places import (
    IMPLIED,
    LONE,
    OPEN_FILES,
    PLACE,
    PLACED,
    POSITION,
    Entry,
    Files,
    Owned,
    Places,
    unpacked,
)
from tartools.sample import Batch, Sample, field_name
from tartools.sortkeys import FIRST, LAST, Order, decoder, encoder, key_encoder
from tartools.tar import Member

MEMORY = 256 << 20  # bytes
TURN = 40  # bits of a position, below the part of the input that it lies in
SMALL = 1 << 20  # bytes of samples that are gathered
FILES = OPEN_FILES // 2  # that samples are gathered from, so that they are open only once
GATHERED = 1 << 16  # bytes; smaller samples are written together, larger ones from the file where they lie


def sorted_batches(
    index: Iterable[bytes],
    order: Order,
    account: Account,
    places: Places,
    *,
    memory: int = MEMORY,
    tmpdir: str | None = None,
) -> Iterator[Batch]:
    """Yield the samples of *index*, which lie in *places*, in *order*: equal ones stay in the order of the input.

    By `__key__`, the members of one key become one sample wherever they were. All of *index* is taken before
    the first is yielded. Two samples with one key are never in one batch.

    Holds: records of *memory* bytes, more go to files without a name in *tmpdir*; 128 open files; two batches of 1 MiB.
    Raises: SampleError for a joined sample with a field twice; StorageError if a file has changed meanwhile; what
    *index* raises.
    """
    records = external_sort(index, memory, tmpdir)
    arranged = keys_joined if order.by_key else values_sorted
    last = None
    for batch in gathered(arranged(unpacked(records, decoder(order)), order, account), order, account, places):
        if last is not None:
            yield last
        last = batch
    if last is not None and last.run is None:  # read here: nothing is left to read behind the check
        sample = last[0]
        last = Batch.of(sample.with_members(sample.members))
    if last is not None:
        yield last
    places.check()


def indexed(batches: Iterable[Batch], order: Order, places: Places, position: int = 0) -> Iterator[bytes]:
    """Yield a record for each sample of *batches*, in their order, after it has been given its place.

    Samples that are ranges of plain files stay there, others are copied. The first one has *position*.
    Raises: SampleError for a value that is missing or not of its kind, and for a sample with a field twice.
    """
    encode, encode_key = encoder(order), key_encoder(order)
    implied = IMPLIED if order.by_key and order.kind == "text" else 0
    for batch in batches:
        run, spot = batch.run, places.spot(batch)
        members = run.members if run is not None else None
        if (
            run is None
            or members is None
            or spot is None
            or encode_key is None
            or (order.by_key and has_twins(members))
        ):
            for sample in batch:
                yield record(sample, position, encode(sample, position), order, places)
                position += 1
            continue
        shard, shift = spot
        for key, start, end, first in zip(run.keys, run.starts, islice(run.starts, 1, None), run.firsts, strict=False):
            flags = implied if len(members[first][0]) > len(key) else implied | LONE
            sort_key = encode_key(key, position, batch.shard)
            if implied:
                yield sort_key + PLACED.pack(position, start + shift, end + shift, shard, 0, flags)
            else:
                place = PLACE.pack(start + shift, end + shift, shard, len(key), flags)
                yield sort_key + position.to_bytes(POSITION, "big") + key + place
            position += 1


def indexed_in_turn(
    batches: Iterable[Batch], order: Order, places: Places, turn: int, apart: bool
) -> Generator[bytes, None, Files]:
    """Yield what `indexed` does, in blocks, of a part of the input whose *turn* says where it stands among others.

    Returns the files of *places*. Raises: SampleError as `indexed`, and for a sample that has to be copied if this is
    done *apart*, in a process that takes its files with it.
    """
    copied = places.copied
    yield from blocks(indexed(batches, order, places, turn << TURN))
    if apart and places.copied > copied:
        raise SampleError("there are samples that have no place in a plain file")
    return places.files


def index_of(blocks: Generator[bytes, None, None]) -> Iterator[bytes]:
    """Yield the records of *blocks*, which is closed then."""
    with closing(blocks):
        for block in blocks:
            yield from records_in(block)


def has_twins(members: Sequence[Member]) -> bool:
    """Tell whether two of *members*, which may be plain tuples, have one path."""
    return len({member[0] for member in members}) < len(members)


def record(sample: Sample, position: int, sort_key: bytes, order: Order, places: Places) -> bytes:
    """Return the record of *sample*, which is given a place. Raises: SampleError."""
    if order.by_key and has_twins(sample.members):
        owned = [Owned(0, sample.shard, member) for member in sample.members]
        sample = sample.with_members(each.member for each in each_once(sample.key, owned, order))
    start, end, shard, flags = places.put(sample)
    implied = IMPLIED if order.by_key and order.kind == "text" else 0
    flags |= implied if sample.grouped else implied | LONE
    key = b"" if implied else sample.raw_key
    return sort_key + position.to_bytes(POSITION, "big") + key + PLACE.pack(start, end, shard, len(key), flags)


def values_sorted(entries: Iterable[Entry], order: Order, account: Account) -> Iterator[list[Entry]]:
    """Yield each of sorted *entries*, alone; of those with equal sort keys one, if *order* is unique.

    Those without a value equal nothing. Holds: one entry.
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


def keys_joined(entries: Iterable[Entry], order: Order, account: Account) -> Iterator[list[Entry]]:
    """Yield those of *entries*, sorted by key, that are one sample: of each key one, where its first one was.

    Holds: the entries of equal sort keys.
    """
    equal: list[Entry] = []
    before = b""
    for entry in entries:
        if equal and entry[0] != before:
            yield from [equal] if len(equal) == 1 else together(equal, order, account)
            equal = []
        before = entry[0]
        equal.append(entry)
    if equal:
        yield from together(equal, order, account)


def gathered(found: Iterable[list[Entry]], order: Order, account: Account, places: Places) -> Iterator[Batch]:
    """Yield the samples of which *found* are the parts: small ones together, in memory.

    Holds: 1 MiB, and a joined sample as far as it is small.
    """
    small: list[Entry] = []
    size = turns = 0
    last_key, last_shard, last_flags = b"", -1, 0
    for parts in found:
        _, key, start, end, shard, flags = entry = parts[0]
        lone = len(parts) > 1 or end - start > GATHERED
        full = size >= SMALL or turns == FILES
        if small and (lone or full or key == last_key):  # of two with one key, the writer is asked
            yield places.joined(small)
            small, size, turns, last_shard = [], 0, 0, -1
        if lone:
            yield Batch.of(places.sample(entry) if len(parts) == 1 else joined(parts, order, account, places))
            continue
        if shard != last_shard or flags != last_flags:
            turns += 1
        small.append(entry)
        size += end - start
        last_key, last_shard, last_flags = key, shard, flags
    if small:
        yield places.joined(small)


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
