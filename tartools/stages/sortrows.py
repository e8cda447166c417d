"""Sort rows of tables, as samples are sorted: yield their numbers in sort order.

The values come from columns if all inputs have them, else from the samples. A record for each row (`RowRecord`) is
sorted; a shuffle needs none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import count, repeat
from typing import TYPE_CHECKING, Any

from tartools.errors import shown
from tartools.samples import sortkeys
from tartools.samples.account import Account
from tartools.samples.sortkeys import Order
from tartools.samples.values import INDEX_NAME, PSEUDO_FIELDS, as_text
from tartools.shards.passes import Pass, UnsortableRowsError
from tartools.shards.workers import ShardTask, outputs
from tartools.stages.externalsort import POSITION_SHIFT, external_sort, pack_blocks, resolve_positions, unpack_blocks
from tartools.stages.sortrecords import RowRecord, choose_equal_values, join_equal_keys, unpack_rows
from tartools.storage.scratch import scratch_file
from tartools.tables import schema
from tartools.tar import read_range

if TYPE_CHECKING:
    from tartools.tables.inputs import RowInputs


ROWS_AS_OBJECTS = 1 << 13  # rows that are Python's objects at once
MAX_ROW_MEMORY = 16 << 20  # bytes at most, to sort rows
UNKNOWN_FIELDS = (1 << 32) - 1  # the fields of a sample, if the table does not say
KEYS_IN_BATCH = 1 << 16  # sort keys that are made or read at once
KEYS_SORTED_AT_ONCE = 1 << 20  # sort keys that are sorted at once


def sort_rows(
    records: Iterable[bytes], order: Order, account: Account, memory: int, tmpdir: str | None
) -> Iterator[int]:
    """Yield the row numbers of the packed `RowRecord`s *records*, sorted by *order*. The sort is stable.

    With `order.unique`, only the first or last row of each value is yielded, and every row without a value; the others
    are counted in *account* as left out. Holds: *memory* bytes of records, beyond that unnamed files in *tmpdir*.
    Raises: UnsortableRowsError if, sorted by key, rows with fields and one key are found and `order.unique` is None, or
    their fields differ or are unknown; SampleError if `order.missing` is set and no row has a value to sort by; the
    errors of *records*; StorageError if a temporary file can't be written.
    """
    arrange = join_equal_keys if order.by_key else choose_equal_values
    sorted_records = unpack_rows(external_sort(sortkeys.require_values(records, order), memory, tmpdir))
    for parts in arrange(sorted_records, order, account):
        yield (parts[0] if len(parts) == 1 else _choose_row(parts, order, account)).row


def shuffle_rows(count: int, order: Order, tmpdir: str | None) -> Iterator[int]:
    """Yield the numbers 0 to *count* - 1 in random order, by the seed of *order*, reversed if `order.reverse`.

    It is the order in which a shuffle of the samples themselves (`stages.sortsamples`) puts them.
    Holds: some 40 MB; the sort keys are in an unnamed file in *tmpdir*. Raises: StorageError if that can't be written.
    """
    import numpy as np

    sort_key_of = sortkeys.make_shuffle_key(order.seed)
    with closing(scratch_file(tmpdir)) as file:
        for first in range(0, count, KEYS_IN_BATCH):
            numbers = range(first, min(first + KEYS_IN_BATCH, count))
            file.write(sortkeys.apply_direction(b"".join(map(sort_key_of, numbers)), order))
        # Sort keys are evenly spread random numbers. Each step reads the whole file and sorts only the keys in one
        # range of values, so memory does not grow with the rows, and nothing has to be merged.
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
    """True if columns of all *inputs* have the values by which *order* sorts, so that no sample has to be read.

    By key, the column of keys must be there. A shuffle, and __shard__, __index__ or __size__ as the first choice of
    `order.column`, need no further column; others need the column `order.column.name`. False with
    `order.verbatim`, but for these: columns have values without their final newlines.
    """
    column = order.column.choices[0]
    if order.kind == "shuffle" or column in PSEUDO_FIELDS:
        column = schema.KEY_COLUMN if order.by_key else schema.SHARD_COLUMN  # the others are known of every row
    elif order.verbatim:
        return False  # a column has values without their final newlines
    else:
        column = order.column.name
    return all(column in part.schema.names for part in inputs.parts)


def records_from_columns(inputs: RowInputs, order: Order, account: Account) -> Iterator[bytes]:
    """Yield a packed `RowRecord` for each row of *inputs*, in order, from its columns; count it as read in *account*.

    Only if `has_values` is True for *inputs*. `fields` is UNKNOWN_FIELDS unless samples are sorted by key and the rows
    list their fields. Raises: UnsortableRowsError if samples are sorted by key, and a row has none; SampleError if a
    value is not of its kind, or missing without `order.missing`; the errors of reading rows.
    """
    encode_key, encode_value = sortkeys.make_key_encoder(order), sortkeys.make_value_encoder(order)
    pseudo = order.column.choices[0] in PSEUDO_FIELDS
    name = order.column.choices[0] if pseudo else order.column.name
    columns = [column for column in inputs.schema.names if not column.startswith("__")]
    location_columns = schema.location_columns(inputs.schema.names)
    extent_columns = schema.extent_columns(inputs.schema.names)
    kinds: dict[bytes, int] = {}
    row = 0
    batches = inputs.batches([*(location_columns if order.by_key else extent_columns), schema.KEY_COLUMN, name])
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
        shards = [inputs.catalog.urls[number] for number in rows.column(schema.SHARD_COLUMN).to_pylist()]
        fields = number_field_sets(rows, kinds) if order.by_key else repeat(UNKNOWN_FIELDS)
        numbers = range(row, row + len(rows))
        if encode_key is not None:
            sort_keys = map(encode_key, keys, numbers, shards)
        else:
            sort_keys = map(encode_value, texts_of_rows(rows, name, row, shards), keys, shards, repeat(lambda: columns))
        for sort_key, number, key, kind in zip(sort_keys, numbers, keys, fields, strict=False):
            yield RowRecord(sort_key, key, number, kind, not kind).pack()
        account.samples_in += len(rows)
        row += len(rows)


def texts_of_rows(rows: Any, name: str, first: int, shards: Sequence[str]) -> Iterable[str | None]:
    """Return the value of the column *name* as text for each row of *rows*, a record batch; None for null.

    `name`: also one of three without a column of text: `__index__` (number of the row), `__shard__` (URL as shown to
    users) or `__size__` (bytes of the sample). `first`: number of the first row. `shards`: URL of each row's shard.
    """
    if name == INDEX_NAME:
        return map(str, range(first, first + len(rows)))
    if name == schema.SHARD_COLUMN:
        return map(shown, shards)
    if name == "__size__":
        from tartools.tables.inputs import extents_of_unified

        return map(str, extents_of_unified(rows, first, None).sizes.tolist())
    return (None if value is None else as_text(value) for value in schema.plain_values(rows.column(name)))


def number_field_sets(rows: Any, numbers_by_fields: dict[bytes, int]) -> Iterable[int]:
    """Return for each of *rows*, a record batch, a number that stands for its set of listed fields; 0 for none.

    `numbers_by_fields`: the numbers given so far; new ones are added. Returns an endless iterator of UNKNOWN_FIELDS if
    *rows* do not list the fields in one of their sets of shards.
    """
    import numpy as np

    from tartools.tables.extents import valid_mask

    columns: dict[str, Any] = {}  # True where the sample has the field, in some set of shards
    for number in schema.sets_in(rows.schema.names):
        fields = schema.fields_in_set(rows.schema, number)
        if not fields:
            return repeat(UNKNOWN_FIELDS)
        places = rows.column(schema.name_in_set(schema.MEMBERS_COLUMN, number)).flatten()
        for field, place in zip(fields, places, strict=True):
            columns[field] = valid_mask(place) | columns.get(field, False)
    numbers_by_fields.setdefault(b"", 0)
    has = np.stack([*columns.values()], axis=1)
    packed = np.packbits(has, axis=1)
    distinct, index_of_row = np.unique(packed, axis=0, return_inverse=True)
    numbers = [
        numbers_by_fields.setdefault(bytes(packed_row).rstrip(b"\0"), len(numbers_by_fields)) for packed_row in distinct
    ]
    return np.array(numbers)[index_of_row.reshape(-1)].tolist()  # type: ignore[no-any-return]


def records_from_samples(run: Pass[int], order: Order, counts: list[int]) -> Iterator[bytes]:
    """Read all samples of *run*; yield a packed `RowRecord` for each, in the order of its rows.

    Row numbers are task number << POSITION_SHIFT plus the number in the task; `resolve_positions` makes positions of
    them. `fields` is UNKNOWN_FIELDS. `counts`: the number of rows of each task is appended at its end. Raises:
    SampleError if a value is not of its kind or no valid Unicode, its field is there twice or can't be decoded, or is
    missing without `order.missing`; TarFormatError and StorageError for a shard.
    """
    encode = sortkeys.make_encoder(order)

    def work(task: ShardTask[int]) -> Iterator[bytes]:
        begin = task.number << POSITION_SHIFT
        rows = count(begin)
        yield from pack_blocks(
            RowRecord(encode(sample, row), sample.raw_key, row, UNKNOWN_FIELDS, not sample.grouped).pack()
            for batch in task.batches
            for sample, row in zip(batch, rows, strict=False)
        )
        task.result = next(rows) - begin

    silent_account = Account(lambda _: None)  # warnings about the shards were printed when they were indexed
    tasks = run.gather(work, silent_account, max_workers=1 if order.by_position else None)
    return unpack_blocks(outputs(tasks, counts))


def positions_by_columns(
    inputs: RowInputs, order: Order, account: Account, memory: int, tmpdir: str | None
) -> Iterator[int] | None:
    """Return the row numbers of *inputs* in the order of *order*, from columns; None if they lack the values.

    Counts the samples in *account* as read, and rows not kept as left out. Holds: *memory* bytes, 16 MiB at most (some
    40 MB for a shuffle); further records are in unnamed files in *tmpdir*. The iterator raises UnsortableRowsError if,
    sorted by key, a row has no key, or rows with fields have one key and none may be chosen (see `sort_rows`);
    SampleError if a value is not of its kind, missing without `order.missing`, or missing in all rows; the errors of
    reading rows.
    """
    if not has_values(inputs, order):
        return None
    if order.kind == "shuffle":
        account.samples_in += inputs.rows
        return shuffle_rows(inputs.rows, order, tmpdir)
    records = records_from_columns(inputs, order, account)
    return sort_rows(records, order, account, min(memory, MAX_ROW_MEMORY), tmpdir)


def positions_by_samples(run: Pass[int], inputs: RowInputs, order: Order, memory: int) -> Iterator[int]:
    """Return the row numbers of *inputs*, the rows of *run*, in the order of *order*, by values read from the samples.

    Counts the samples in the account of *run* as read, and rows not kept as left out. Holds: *memory* bytes, 16 MiB at
    most; further records are in unnamed files. The iterator raises UnsortableRowsError if, sorted by key, rows with
    fields have one key, since it is unknown which; SampleError if a value is not of its kind, can't be decoded, is
    missing without `order.missing`, or missing in all samples; the errors of reading.
    """
    counts: list[int] = []  # samples of each task
    records = records_from_samples(run, order, counts)
    account = run.account
    account.samples_in += inputs.rows
    rows = sort_rows(records, order, account, min(memory, MAX_ROW_MEMORY), run.reading.tmpdir)
    return resolve_positions(rows, counts)


def _choose_row(parts: list[RowRecord], order: Order, account: Account) -> RowRecord:
    """Return the first or last of *parts*, records of rows with one key, as `order.unique` says.

    `account`: counts the remaining rows as left out. Raises: UnsortableRowsError if `order.unique` is None, or the rows
    have different or unknown fields.
    """
    fields = {part.fields for part in parts}
    if order.unique is None or len(fields) > 1 or UNKNOWN_FIELDS in fields:
        raise UnsortableRowsError(
            f"{len(parts)} rows have the key {parts[0].key.decode('utf-8', 'replace')!r}, and a table can't list their "
            "members as one sample: -u first or -u last keeps one of rows with equal fields; an OUTPUT that is a shard "
            "joins them"
        )
    account.left_out += len(parts) - 1
    return parts[0 if order.unique == "first" else -1]
