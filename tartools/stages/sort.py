"""Sort samples in bounded memory, and rows of tables as samples are sorted.

Three passes. The first makes a record of some dozen bytes for each sample: its sort key, and where its bytes are, in
the plain local file that it was read from or in a scratch file that it is copied to (see `stages.samplefiles`). The
second sorts the records, in runs that are merged if they do not fit into memory. The third gathers the samples in sort
order: small ones are read together, a MiB at a time.

Rows come out as their numbers. The values come from columns if all inputs have them, else from the samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain, count, groupby, pairwise, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from tartools.errors import SampleError, shown
from tartools.samples import sortkeys
from tartools.samples.account import Account
from tartools.samples.batch import Batch
from tartools.samples.sample import Sample, field_name
from tartools.samples.sortkeys import Order
from tartools.samples.values import INDEX_NAME, PSEUDO, as_text
from tartools.shards.passes import Pass, UnsortableRowsError
from tartools.shards.workers import DEFAULT_WORKERS, RestartError, ShardTask, outputs
from tartools.stages import samplefiles
from tartools.stages.externalsort import POSITION_SHIFT, external_sort, pack_blocks, positions_of, records_of
from tartools.stages.samplefiles import (
    LOCATION,
    NEVER_JOINED,
    SORT_POSITION_BYTES,
    Entry,
    PartMember,
    SampleFiles,
    entries_of,
    record_of,
)
from tartools.storage.openfiles import OPEN_FILES
from tartools.storage.scratch import scratch_file
from tartools.tables import schema
from tartools.tar import Member, read_range

if TYPE_CHECKING:
    from tartools.tables.inputs import RowInputs

DEFAULT_SORT_MEMORY = 256 << 20  # bytes
SAMPLE_BATCH_BYTES = 1 << 20  # bytes of samples in a batch
MAX_FILES_OF_BATCH = OPEN_FILES // 2  # files that one batch is read from, so that each is opened only once
# bytes; smaller samples are gathered in memory, larger ones copied from the file that holds them
MAX_GATHERED_BYTES = 1 << 16


def sorted_batches(
    index: Iterable[bytes],
    order: Order,
    account: Account,
    files: SampleFiles,
    *,
    memory: int = DEFAULT_SORT_MEMORY,
    tmpdir: str | None = None,
) -> Iterator[Batch]:
    """Yield the samples of *index*, whose bytes are in *files*, sorted by *order*. The sort is stable.

    By `__key__`, all members of one key become one sample. In a batch, no two samples side by side have one key.
    The whole *index* is read before the first batch is yielded.

    Holds: *memory* bytes of records, beyond that unnamed files in *tmpdir*; 128 open files; two batches of 1 MiB.
    Raises: SampleError if a joined sample has a field twice; StorageError if a file has changed meanwhile; what
    *index* raises.
    """
    records = external_sort(index, memory, tmpdir)
    arrange = join_equal_keys if order.by_key else choose_equal_values
    yield from gather_batches(arrange(entries_of(records), order, account), order, account, files)
    files.check()


def gather_batches(
    entry_lists: Iterable[list[Entry]], order: Order, account: Account, files: SampleFiles
) -> Iterator[Batch]:
    """Yield samples, given the entries of their parts: small samples in batches read into memory, large ones alone.

    Holds: 1 MiB, and up to 16 MiB of a joined sample.
    """
    small: list[Entry] = []
    size = turns = 0
    last_key, last_shard, last_flags = b"", -1, 0
    for parts in entry_lists:
        _, key, start, end, shard, flags = entry = parts[0]
        is_single = len(parts) > 1 or end - start > MAX_GATHERED_BYTES
        full = size >= SAMPLE_BATCH_BYTES or turns == MAX_FILES_OF_BATCH
        if small and (is_single or full or key == last_key):  # the writer checks keys from batch to batch
            yield files.gather(small)
            small, size, turns, last_shard = [], 0, 0, -1
        if is_single:
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
    encode, encode_key = sortkeys.encoder(order), sortkeys.key_encoder(order)
    for batch in batches:
        location = None if encode_key is None else files.location_of(batch)
        combinations = [] if location is None else batch.combinations()
        if (
            location is None
            or encode_key is None
            or (order.by_key and any(same.has_repeated_field for same in combinations))
        ):
            for sample in batch:
                yield record(sample, position, encode(sample, position), order, files)
                position += 1
            continue
        shard, bounds = location
        flags = [0] * len(batch)
        for number in chain.from_iterable(same.numbers for same in combinations if same.fields[0] == ""):
            flags[number] = NEVER_JOINED
        for key, (start, end), flag in zip(batch.keys, pairwise(bounds), flags, strict=True):
            packed = LOCATION.pack(start, end, shard, len(key), flag)
            yield encode_key(key, position, batch.shard) + position.to_bytes(SORT_POSITION_BYTES, "big") + key + packed
            position += 1


def index_blocks(task: ShardTask[samplefiles.Identities], order: Order, files: SampleFiles) -> Iterator[bytes]:
    """Yield the records of *task* in blocks; equal sort keys sort after those of all earlier tasks.

    Its result are the identities of the files that hold the samples.
    Raises: SampleError as `index_records` does; RestartError if a sample has to be copied in a worker, with which the
    scratch file would end.
    """
    copied = files.copied
    yield from pack_blocks(index_records(task.batches, order, files, task.number << POSITION_SHIFT))
    if task.in_worker and files.copied > copied:
        raise RestartError
    task.result = files.identities


def record(sample: Sample, position: int, sort_key: bytes, order: Order, files: SampleFiles) -> bytes:
    """Return the record of *sample*, copying its bytes where necessary. Raises: SampleError if it has a field twice."""
    if order.by_key and has_duplicates(sample.members):
        members = [PartMember(0, sample.shard, member) for member in sample.members]
        sample = sample.with_members(part_member.member for part_member in distinct_members(sample.key, members, order))
    start, end, shard, flags = files.store(sample)
    flags |= 0 if sample.grouped else NEVER_JOINED
    return record_of(position, Entry(sort_key, sample.raw_key, start, end, shard, flags))


def choose_equal_values(entries: Iterable[Entry], order: Order, account: Account) -> Iterator[list[Entry]]:
    """Yield each of sorted *entries* in a list of its own; if *order* is unique, only one entry of equal sort keys.

    Samples without a value are never equal. Holds: one entry.
    """
    for value, equal in groupby(entries, itemgetter(0)):
        if order.unique is None or value in (sortkeys.MISSING_FIRST, sortkeys.MISSING_LAST):
            yield from ([entry] for entry in equal)
            continue
        remaining = iter(equal)
        chosen = next(remaining)
        for entry in remaining:
            account.left_out += 1
            chosen = entry if order.unique == "last" else chosen
        yield [chosen]


def join_equal_keys(entries: Iterable[Entry], order: Order, account: Account) -> Iterator[list[Entry]]:
    """Yield the parts of each sample: lists of sorted *entries* with one key, in order of their first entries.

    Holds: the entries of equal sort keys.
    """
    for _, same in groupby(entries, itemgetter(0)):
        equal = list(same)
        yield from [equal] if len(equal) == 1 else parts_by_sample(equal, order, account)


def parts_by_sample(equal: list[Entry], order: Order, account: Account) -> list[list[Entry]]:
    """Return *equal* entries as one list for each sample.

    Different keys may be equal as numbers: if *order* is unique, one of them is kept. A member without a field is a
    sample of its own, even if its name is the key of another sample.
    """
    samples: dict[tuple[bytes, int], list[Entry]] = {}
    for number, entry in enumerate(equal):
        lone_number = number if entry.flags & NEVER_JOINED else -1
        samples.setdefault((entry.key, lone_number), []).append(entry)
    if order.unique is None:
        return list(samples.values())
    parts_by_kind: dict[int, list[Entry]] = {}
    for parts in samples.values():
        kind = parts[0].flags & NEVER_JOINED
        if order.unique == "last" or kind not in parts_by_kind:
            parts_by_kind[kind] = parts
    account.left_out += len(equal) - sum(map(len, parts_by_kind.values()))
    return list(parts_by_kind.values())


def join(parts: list[Entry], order: Order, account: Account, files: SampleFiles) -> Sample:
    """Return the sample joined from *parts*; its members keep the order of the input.

    Raises: SampleError if it would hold a field twice and *order* does not say which one to keep.
    """
    first = files.sample(parts[0])
    members = distinct_members(first.key, files.members(parts), order)
    parts_used = len({part_member.part for part_member in members})
    account.joined += parts_used - 1
    account.left_out += len(parts) - parts_used
    return first.with_members(part_member.member for part_member in members)


def distinct_members(key: str, members: Iterable[PartMember], order: Order) -> list[PartMember]:
    """Return *members* of the sample *key* with each path once: the first or the last, as *order* says.

    Raises: SampleError if a path occurs twice and *order* does not say which one to keep.
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
    """Return whether two of *members* (possibly plain tuples) have the same path."""
    return len({member[0] for member in members}) < len(members)


# ---- rows of tables ----


ROWS_AS_OBJECTS = 1 << 13  # rows that are Python's objects at once
MAX_ROW_MEMORY = 16 << 20  # bytes at most, to sort rows
UNKNOWN_FIELDS = (1 << 32) - 1  # the fields of a sample, if the table does not say
KEYS_IN_BATCH = 1 << 16  # sort keys that are made or read at once
KEYS_SORTED_AT_ONCE = 1 << 20  # sort keys that are sorted at once


def sorted_rows(
    records: Iterable[bytes], order: Order, account: Account, memory: int, tmpdir: str | None
) -> Iterator[int]:
    """Yield the rows of *records*, sorted by *order*. The sort is stable.

    In the entry of a row, *start* is its number, and *shard* stands for its fields: the same number for the same.

    Holds: *memory* bytes of records, beyond that unnamed files in *tmpdir*.
    Raises: UnsortableRowsError if rows have one key and different fields; the errors of *records*.
    """
    arrange = join_equal_keys if order.by_key else choose_equal_values
    entries = entries_of(external_sort(records, memory, tmpdir))
    for parts in arrange(entries, order, account):
        yield (parts[0] if len(parts) == 1 else _choose_row(parts, order, account)).start


def shuffled_rows(count: int, order: Order, tmpdir: str | None) -> Iterator[int]:
    """Yield the numbers of *count* rows, shuffled by *order* as samples are.

    Holds: some 40 MB; the sort keys are in an unnamed file in *tmpdir*.
    """
    import numpy as np

    sort_key_of = sortkeys.shuffled(order.seed)
    with closing(scratch_file(tmpdir)) as file:
        for first in range(0, count, KEYS_IN_BATCH):
            numbers = range(first, min(first + KEYS_IN_BATCH, count))
            file.write(sortkeys.directed(b"".join(map(sort_key_of, numbers)), order))
        steps = -(-count // KEYS_SORTED_AT_ONCE)
        for step in range(steps):  # the keys of each step are 1/steps of all keys there can be
            low, high = ((step_number << 64) // steps for step_number in (step, step + 1))
            blocks = []
            for first in range(0, count, KEYS_IN_BATCH):
                keys = np.frombuffer(read_range(file, 8 * first, 8 * min(first + KEYS_IN_BATCH, count)), ">u8")
                indexes = np.flatnonzero((keys >= low) & (keys <= high - 1))
                blocks.append((keys[indexes].astype(np.uint64), indexes + first))
            keys, rows = (np.concatenate(column) for column in zip(*blocks, strict=True))
            rows = rows[np.argsort(keys, kind="stable")]
            for first in range(0, len(rows), KEYS_IN_BATCH):
                yield from rows[first : first + KEYS_IN_BATCH].tolist()


def has_values(inputs: RowInputs, order: Order) -> bool:
    """True if the columns of all *inputs* have the values by which *order* sorts."""
    column = order.column.choices[0]
    if order.kind == "shuffle" or column in PSEUDO:
        column = schema.KEY_COLUMN if order.by_key else schema.SHARD_COLUMN  # the others are known of every row
    else:
        column = order.column.name
    return all(column in part.schema.names for part in inputs.parts)


def records_from_columns(inputs: RowInputs, order: Order, account: Account) -> Iterator[bytes]:
    """Yield a record for each row of *inputs*, in order; count the samples as read.

    Raises: UnsortableRowsError if a row has no key, and samples are sorted by key.
    """
    encode_key, encode_value = sortkeys.key_encoder(order), sortkeys.value_encoder(order)
    pseudo = order.column.choices[0] in PSEUDO
    name = order.column.choices[0] if pseudo else order.column.name
    columns = [column for column in inputs.schema.names if not column.startswith("__")]
    column_names = [schema.SHARD_COLUMN, schema.KEY_COLUMN, schema.BEGIN_COLUMN, schema.END_COLUMN, name]
    kinds: dict[bytes, int] = {}
    row = 0
    batches = inputs.batches([*column_names, schema.MEMBERS_COLUMN] if order.by_key else column_names)
    for rows in (
        batch.slice(first, ROWS_AS_OBJECTS) for batch in batches for first in range(0, len(batch), ROWS_AS_OBJECTS)
    ):
        keys: Iterable[bytes] = repeat(b"")
        if schema.KEY_COLUMN in rows.schema.names:
            if order.by_key and rows.column(schema.KEY_COLUMN).null_count:
                raise UnsortableRowsError(
                    f"one of rows {row} to {row + len(rows) - 1} has no {schema.KEY_COLUMN} to sort by"
                )
            keys = [(key or "").encode() for key in rows.column(schema.KEY_COLUMN).to_pylist()]
        shards = [inputs.shards.urls[number] for number in rows.column(schema.SHARD_COLUMN).to_pylist()]
        fields = kinds_of(rows, kinds) if order.by_key else repeat(UNKNOWN_FIELDS)
        numbers = range(row, row + len(rows))
        if encode_key is not None:
            sort_keys = map(encode_key, keys, numbers, shards)
        else:
            sort_keys = map(encode_value, texts_of_rows(rows, name, row, shards), keys, shards, repeat(lambda: columns))
        for sort_key, number, key, kind in zip(sort_keys, numbers, keys, fields, strict=False):
            yield record_of(number, Entry(sort_key, key, number, 0, kind, 0 if kind else NEVER_JOINED))
        account.samples_in += len(rows)
        row += len(rows)


def texts_of_rows(rows: Any, name: str, first: int, shards: Sequence[str]) -> Iterable[str | None]:
    """Return the values of the column *name* of *rows* as text, None for null; *first* is the number of the first."""
    if name == INDEX_NAME:
        return map(str, range(first, first + len(rows)))
    if name == schema.SHARD_COLUMN:
        return map(shown, shards)
    if name == "__size__":
        places = (rows.column(bound).to_pylist() for bound in (schema.END_COLUMN, schema.BEGIN_COLUMN))
        return (str(end - begin) for end, begin in zip(*places, strict=True))
    return (None if value is None else as_text(value) for value in schema.plain_values(rows.column(name)))


def kinds_of(rows: Any, numbers_by_fields: dict[bytes, int]) -> Iterable[int]:
    """Return a number for the fields of each of *rows*, the same for the same fields: 0 for none.

    *numbers_by_fields*: the numbers of the combinations so far; new ones are added.
    """
    import numpy as np

    if schema.MEMBERS_COLUMN not in rows.schema.names or not len(rows.schema.field(schema.MEMBERS_COLUMN).type):
        return repeat(UNKNOWN_FIELDS)
    numbers_by_fields.setdefault(b"", 0)
    has = np.stack([np.asarray(column.is_valid()) for column in rows.column(schema.MEMBERS_COLUMN).flatten()], axis=1)
    packed = np.packbits(has, axis=1)
    distinct, index_of_row = np.unique(packed, axis=0, return_inverse=True)
    numbers = [
        numbers_by_fields.setdefault(bytes(packed_row).rstrip(b"\0"), len(numbers_by_fields)) for packed_row in distinct
    ]
    return np.array(numbers)[index_of_row.reshape(-1)].tolist()  # type: ignore[no-any-return]


def records_from_samples(run: Pass[int], order: Order, counts: list[int]) -> Iterator[bytes]:
    """Yield a record for each sample of *run*, in the order of its rows.

    Reads all samples. The numbers of rows begin anew in each task; *counts* gets the rows of each task.
    """
    encode = sortkeys.encoder(order)

    def work(task: ShardTask[int]) -> Iterator[bytes]:
        begin = task.number << POSITION_SHIFT
        rows = count(begin)
        yield from pack_blocks(
            record_of(
                row,
                Entry(
                    encode(sample, row), sample.raw_key, row, 0, UNKNOWN_FIELDS, 0 if sample.grouped else NEVER_JOINED
                ),
            )
            for batch in task.batches
            for sample, row in zip(batch, rows, strict=False)
        )
        task.result = next(rows) - begin

    silent_account = Account(lambda _: None)  # warnings about the shards were printed when they were indexed
    tasks = run.gather(work, silent_account, max_workers=1 if order.by_position else DEFAULT_WORKERS)
    return records_of(outputs(tasks, counts))


def positions_by_columns(
    inputs: RowInputs, order: Order, account: Account, memory: int, tmpdir: str | None
) -> Iterator[int] | None:
    """Return the numbers of the rows of *inputs*, sorted by *order*; None if they lack the values, or a key.

    The samples are counted in *account*. Holds: *memory* bytes, 16 MiB at most. Raises: UnsortableRowsError, see there.
    """
    if not has_values(inputs, order):
        return None
    if order.kind == "shuffle":
        account.samples_in += inputs.rows
        return shuffled_rows(inputs.rows, order, tmpdir)
    records = records_from_columns(inputs, order, account)
    return sorted_rows(records, order, account, min(memory, MAX_ROW_MEMORY), tmpdir)


def positions_by_samples(run: Pass[int], inputs: RowInputs, order: Order, memory: int) -> Iterator[int]:
    """Return the numbers of the rows *inputs* of *run*, sorted by values that are read from the samples.

    As `positions_by_columns`.
    """
    counts: list[int] = []  # samples of each task
    records = records_from_samples(run, order, counts)
    account = run.account
    account.samples_in += inputs.rows
    rows = sorted_rows(records, order, account, min(memory, MAX_ROW_MEMORY), run.reading.tmpdir)
    return positions_of(rows, counts)


def _choose_row(parts: list[Entry], order: Order, account: Account) -> Entry:
    """Return the entry of *parts*, rows with one key and the same fields, that *order* keeps."""
    fields = {part.shard for part in parts}
    if order.unique is None or len(fields) > 1 or UNKNOWN_FIELDS in fields:
        raise UnsortableRowsError(
            f"{len(parts)} rows have the key {parts[0].key.decode('utf-8', 'replace')!r}, and a table can't list their "
            "members as one sample: -u first or -u last keeps one of rows with equal fields; an OUTPUT that is a shard "
            "joins them"
        )
    account.left_out += len(parts) - 1
    return parts[0 if order.unique == "first" else -1]
