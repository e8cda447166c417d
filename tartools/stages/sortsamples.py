"""Sort samples in bounded memory, in three passes.

The first makes a record of some dozen bytes for each sample (`stages.sortrecords`): its sort key, and where its bytes
are, in the plain local file that it was read from or in a scratch file that it is copied to (`stages.samplefiles`). The
second sorts the records, in runs that are merged if they do not fit into memory (`stages.externalsort`). The third
gathers the samples in sort order: small ones are read together, a MiB at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count, repeat

from tartools.errors import SampleError, shown
from tartools.samples import sortkeys
from tartools.samples.account import Account
from tartools.samples.batch import Batch
from tartools.samples.sample import Sample, field_name
from tartools.samples.sortkeys import Order
from tartools.shards.workers import RestartError, ShardTask
from tartools.stages import samplefiles
from tartools.stages.externalsort import POSITION_SHIFT, external_sort, pack_blocks
from tartools.stages.samplefiles import PartMember, SampleFiles
from tartools.stages.sortrecords import (
    SampleRecord,
    choose_equal_values,
    join_equal_keys,
    pack_samples,
    unpack_samples,
)
from tartools.storage.openfiles import OPEN_FILES
from tartools.tar import Member

DEFAULT_SORT_MEMORY = 256 << 20  # bytes
SAMPLE_BATCH_BYTES = 1 << 20  # bytes of samples in a batch
MAX_FILES_OF_BATCH = OPEN_FILES // 2  # files that one batch is read from, so that each is opened only once
# bytes; smaller samples are gathered in memory, larger ones copied from the file that holds them
MAX_GATHERED_BYTES = 1 << 16


def sort_batches(
    index: Iterable[bytes],
    order: Order,
    account: Account,
    files: SampleFiles,
    *,
    memory: int = DEFAULT_SORT_MEMORY,
    tmpdir: str | None = None,
) -> Iterator[Batch]:
    """Yield the samples that the records *index* locate in *files*, sorted by *order*, in batches. The sort is stable.

    `index`: records of `index_records`, all read before the first batch is yielded. By `__key__`, samples of one key
    are joined, but one without a field stays a sample of its own. With `order.unique`, one sample of each value is
    kept, by `__key__` one with and one without fields, and in a joined sample one member of each path; samples without
    a value are all kept. In a batch, no two samples side by side have one key. `account`: counts parts of samples that
    are joined, and samples and parts left out.
    Holds: *memory* bytes of records, beyond that unnamed files in *tmpdir*; the records of one sort key, by `__key__`;
    128 open files; two batches of 1 MiB; up to 16 MiB of a joined sample.
    Raises: SampleError if a joined sample has a field twice and *order* does not say which one to keep, or if no sample
    has a value to sort by; StorageError if a file has changed meanwhile, or *tmpdir* is full; the errors of *index*.
    """
    records = external_sort(sortkeys.require_values(index, order), memory, tmpdir)
    arrange = join_equal_keys if order.by_key else choose_equal_values
    yield from gather_batches(arrange(unpack_samples(records), order, account), order, account, files)
    files.check()


def gather_batches(
    record_lists: Iterable[list[SampleRecord]], order: Order, account: Account, files: SampleFiles
) -> Iterator[Batch]:
    """Yield the sample of each of *record_lists*, in their order: small ones in batches, larger or joined ones alone.

    Each list has the record of a sample in *files*, or the records of its parts, which are joined; `order.unique` says
    which of two members with one path is kept. Small samples, of up to 64 KiB (MAX_GATHERED_BYTES), are read into
    memory; the others stay in their files. `account`: counts joined and left-out parts. In a batch, no two samples side
    by side have one key.
    Holds: 1 MiB, and up to 16 MiB of a joined sample. Raises: SampleError if a joined sample has a field twice and
    `order.unique` is None; StorageError if a file that has to be opened again has changed; a file that is still open is
    compared by `files.check`, which the caller calls at the end.
    """
    small: list[SampleRecord] = []
    size = turns = 0
    last_key, last_shard, last_in_scratch = b"", -1, False
    for parts in record_lists:
        _, key, begin, end, shard, in_scratch, _ = record = parts[0]
        is_single = len(parts) > 1 or end - begin > MAX_GATHERED_BYTES
        full = size >= SAMPLE_BATCH_BYTES or turns == MAX_FILES_OF_BATCH
        if small and (is_single or full or key == last_key):  # the writer checks keys from batch to batch
            yield read_batch(small, files)
            small, size, turns, last_shard = [], 0, 0, -1
        if is_single:
            one = len(parts) == 1
            yield Batch.from_sample(
                files.sample(key, record.location) if one else join_sample(parts, order, account, files)
            )
            continue
        if shard != last_shard or in_scratch != last_in_scratch:
            turns += 1
        small.append(record)
        size += end - begin
        last_key, last_shard, last_in_scratch = key, shard, in_scratch
    if small:
        yield read_batch(small, files)


def read_batch(records: Sequence[SampleRecord], files: SampleFiles) -> Batch:
    """Read the samples of *records* from *files* into memory; return them as one batch, in the order of *records*.

    *records*: at least one. Raises: StorageError if a file that has to be opened again has changed, or one has become
    too short; a file that is still open is else not compared here, but by `files.check`.
    """
    _, keys, begins, ends, shards, in_scratch, _ = zip(*records, strict=True)
    return files.gather_samples(keys, begins, ends, shards, in_scratch)


def index_records(batches: Iterable[Batch], order: Order, files: SampleFiles, position: int = 0) -> Iterator[bytes]:
    """Yield a packed `SampleRecord` for each sample of *batches*, in input order, for sorting by *order*.

    `position`: number of the first sample. Samples that are in one piece in a plain local file stay there; *files*
    copies all others to its scratch file.
    Raises: SampleError if a value is not of its kind, missing without `order.missing`, or can't be decoded, or its
    field occurs twice; or, sorted by key, if a sample has a field twice and `order.unique` is None; StorageError if a
    file has changed, or a payload can't be read or copied; the errors of *batches*.
    """
    encode, encode_key = sortkeys.make_encoder(order), sortkeys.make_key_encoder(order)
    for batch in batches:
        location = None if encode_key is None else files.location_of(batch)
        combinations = batch.combinations() if location is not None and order.by_key else []  # else none is joined
        if location is None or encode_key is None or any(same.has_repeated_field for same in combinations):
            for sample in batch:
                yield record_of_sample(sample, encode(sample, position), order, files).pack(position)
                position += 1
            continue
        shard, bounds = location
        never_joined = [False] * len(batch)
        for number in chain.from_iterable(same.numbers for same in combinations if same.fields[0] == ""):
            never_joined[number] = True
        sort_keys = map(encode_key, batch.keys, count(position), repeat(batch.shard))
        yield from pack_samples(sort_keys, position, batch.keys, bounds, shard, never_joined)
        position += len(batch)


def index_blocks(task: ShardTask[samplefiles.Identities], order: Order, files: SampleFiles) -> Iterator[bytes]:
    """Yield packed `SampleRecord`s of the samples of *task* in blocks (`pack_blocks`), and set its result.

    *files* copies samples that are not in one piece in a plain local file. Of records with equal sort keys, the ones of
    earlier tasks sort first. Result: (shard number, version) of each plain file in which *files* has samples, also of
    earlier tasks.
    Raises: RestartError if a worker had to copy a sample, since the scratch file would end with it; SampleError if a
    value is not of its kind, missing without `order.missing`, or can't be decoded, or its field occurs twice, or,
    sorted by key, if a sample has a field twice and `order.unique` is None; StorageError if a file has changed, or a
    payload can't be read or copied; the errors of `task.batches`.
    """
    copied = files.copied_bytes
    yield from pack_blocks(index_records(task.batches, order, files, task.number << POSITION_SHIFT))
    if task.in_worker and files.copied_bytes > copied:
        raise RestartError
    task.result = files.identities


def record_of_sample(sample: Sample, sort_key: bytes, order: Order, files: SampleFiles) -> SampleRecord:
    """Return the record of *sample* with *sort_key*; its bytes stay in its plain file, else *files* copies them.

    They are also copied if they are not in one piece in that file. Sorted by key, of a field that occurs twice only the
    first or last member is kept, as `order.unique` says. Raises: SampleError if, sorted by key, a field occurs twice
    and `order.unique` is None; StorageError if the file has changed, or the sample can't be copied.
    """
    if order.by_key and has_duplicates(sample.members):
        members = [PartMember(0, sample.shard, member) for member in sample.members]
        sample = sample.with_members(part_member.member for part_member in distinct_members(sample.key, members, order))
    return SampleRecord(sort_key, sample.raw_key, *files.store(sample), not sample.grouped)


def join_sample(parts: list[SampleRecord], order: Order, account: Account, files: SampleFiles) -> Sample:
    """Return the sample joined from the records *parts*, all of one key; its members keep the order of the input.

    `files`: has the bytes of the parts. `account`: `joined` grows by the parts with a member that is kept, without the
    first of them; `left_out` by all other parts.
    Raises: SampleError if it would hold a field twice and `order.unique` is None; StorageError if a file that has to be
    opened again has changed.
    """
    key, locations = parts[0].key, [part.location for part in parts]
    first = files.sample(key, locations[0])
    members = distinct_members(first.key, files.members(key, locations), order)
    parts_used = len({part_member.part for part_member in members})
    account.joined += parts_used - 1
    account.left_out += len(parts) - parts_used
    return first.with_members(part_member.member for part_member in members)


def distinct_members(key: str, members: Iterable[PartMember], order: Order) -> list[PartMember]:
    """Return *members* of the sample *key*, of each path only the first or the last, as `order.unique` says.

    They keep their order. Raises: SampleError if a path occurs twice, byte for byte, and `order.unique` is None.
    """
    by_path: dict[bytes, PartMember] = {}
    for part_member in members:
        path = part_member.member.path
        earlier = by_path.get(path)
        if earlier and order.unique is None:
            shards = " and ".join(dict.fromkeys(shown(owner.shard) for owner in (earlier, part_member) if owner.shard))
            raise SampleError(
                f"sample {key!r} would hold the field {field_name(part_member.member)!r} twice"
                f"{f' (from {shards})' if shards else ''}: -u first or -u last keeps one, "
                "tarcat --rekey gives every sample a key of its own"
            )
        if order.unique == "last":
            by_path.pop(path, None)
        if order.unique == "last" or not earlier:
            by_path[path] = part_member
    return list(by_path.values())


def has_duplicates(members: Sequence[Member]) -> bool:
    """True if two of *members* (possibly plain tuples) have the same path."""
    return len({member[0] for member in members}) < len(members)
