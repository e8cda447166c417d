"""Sort rows of tables: as samples are sorted, but what comes out are the numbers of rows.

The values come from columns if all inputs have them, else from the samples.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import accumulate, count, repeat
from typing import Any

from tartools.errors import SampleError, shown
from tartools.samples.account import Account
from tartools.samples.sample import Batch
from tartools.samples.sortkeys import Order, decoder, directed, encoder, key_encoder, shuffled, value_encoder
from tartools.samples.values import INDEX, PSEUDO, as_text
from tartools.shards.dataset import DataSet
from tartools.shards.gathering import WORKERS
from tartools.stages.externalsort import TURN, external_sort, pack_blocks, position_in, records_of
from tartools.stages.samplefiles import IMPLIED, LOCATION, LONE, POSITION, Entry, unpacked
from tartools.stages.sorting.sort import choose_equal_values, join_equal_keys
from tartools.storage.scratch import scratch_file
from tartools.tables import schema
from tartools.tables.columnvalues import plain
from tartools.tables.inputs import RowInputs
from tartools.tar import read_range

FEW = 1 << 13  # rows that are Python's objects at once
MEMORY = 16 << 20  # bytes at most, to sort rows
UNKNOWN = (1 << 32) - 1  # the fields of a sample, if the table does not say
AT_ONCE = 1 << 16  # sort keys that are made or read at once
TOGETHER = 1 << 20  # sort keys that are sorted at once


class UntoldError(SampleError):
    """Rows do not tell all: several have members of one sample, which would have to be joined, or one has no key."""


def row_record(sort_key: bytes, row: int, key: bytes, fields: int, order: Order, *, lone: bool) -> bytes:
    """Return a record for the *row* of the sample *key*; equal numbers *fields* stand for equal fields.

    *lone* tells whether it is a member without a field, which is never joined.
    """
    flags = LONE if lone else 0
    if order.by_key and order.kind == "text":
        flags |= IMPLIED
    kept = key if order.by_key and not flags & IMPLIED else b""
    return sort_key + row.to_bytes(POSITION, "big") + kept + LOCATION.pack(row, 0, fields, len(kept), flags)


def sorted_rows(
    records: Iterable[bytes], order: Order, account: Account, memory: int, tmpdir: str | None
) -> Iterator[int]:
    """Yield the rows of *records*, which `row_record` made, sorted by *order*. The sort is stable.

    Holds: *memory* bytes of records, beyond that unnamed files in *tmpdir*.
    Raises: UntoldError if rows have one key and different fields; what *records* raises.
    """
    arrange = join_equal_keys if order.by_key else choose_equal_values
    entries = unpacked(external_sort(records, memory, tmpdir), decoder(order))
    for parts in arrange(entries, order, account):
        yield (parts[0] if len(parts) == 1 else _one_of(parts, order, account)).start


def shuffled_rows(count: int, order: Order, tmpdir: str | None) -> Iterator[int]:
    """Yield the numbers of *count* rows, shuffled by *order* as samples are.

    Holds: some 40 MB; the sort keys are in an unnamed file in *tmpdir*.
    """
    import numpy as np

    of = shuffled(order.seed)
    with closing(scratch_file(tmpdir)) as file:
        for first in range(0, count, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, count))
            file.write(directed(b"".join(map(of, numbers)), order))
        steps = -(-count // TOGETHER)
        for step in range(steps):  # the keys of each step are 1/steps of all keys there can be
            low, high = ((each << 64) // steps for each in (step, step + 1))
            found = []
            for first in range(0, count, AT_ONCE):
                keys = np.frombuffer(read_range(file, 8 * first, 8 * min(first + AT_ONCE, count)), ">u8")
                here = np.flatnonzero((keys >= low) & (keys <= high - 1))
                found.append((keys[here].astype(np.uint64), here + first))
            keys, rows = (np.concatenate(column) for column in zip(*found, strict=True))
            rows = rows[np.argsort(keys, kind="stable")]
            for first in range(0, len(rows), AT_ONCE):
                yield from rows[first : first + AT_ONCE].tolist()


def has_values(inputs: RowInputs, order: Order) -> bool:
    """Tell whether the columns of all *inputs* have the values by which *order* sorts."""
    column = order.column.choices[0]
    if order.kind == "shuffle" or column in PSEUDO:
        column = schema.KEY if order.by_key else schema.SHARD  # the others are known of every row
    else:
        column = order.column.name
    return all(column in part.schema.names for part in inputs.parts)


def from_columns(inputs: RowInputs, order: Order, account: Account) -> Iterator[bytes]:
    """Yield a record for each row of *inputs*, in order; count the samples as read.

    Raises: UntoldError if a row has no key, and samples are sorted by key.
    """
    encode_key, encode_value = key_encoder(order), value_encoder(order)
    pseudo = order.column.choices[0] in PSEUDO
    name = order.column.choices[0] if pseudo else order.column.name
    columns = [each for each in inputs.schema.names if not each.startswith("__")]
    wanted = [schema.SHARD, schema.KEY, schema.BEGIN, schema.END, name]
    kinds: dict[bytes, int] = {}
    row = 0
    batches = inputs.batches([*wanted, schema.MEMBERS] if order.by_key else wanted)
    for rows in (batch.slice(first, FEW) for batch in batches for first in range(0, len(batch), FEW)):
        keys: Iterable[bytes] = repeat(b"")
        if schema.KEY in rows.schema.names:
            if order.by_key and rows.column(schema.KEY).null_count:
                raise UntoldError(f"one of rows {row} to {row + len(rows) - 1} has no {schema.KEY} to sort by")
            keys = [(key or "").encode() for key in rows.column(schema.KEY).to_pylist()]
        shards = [inputs.shards.url(number) for number in rows.column(schema.SHARD).to_pylist()]
        fields = kinds_of(rows, kinds) if order.by_key else repeat(UNKNOWN)
        numbers = range(row, row + len(rows))
        if encode_key is not None:
            sort_keys = map(encode_key, keys, numbers, shards)
        else:
            sort_keys = map(encode_value, texts(rows, name, row, shards), keys, shards, repeat(lambda: columns))
        for sort_key, number, key, kind in zip(sort_keys, numbers, keys, fields, strict=False):
            yield row_record(sort_key, number, key, kind, order, lone=not kind)
        account.samples_in += len(rows)
        row += len(rows)


def texts(rows: Any, name: str, first: int, shards: Sequence[str]) -> Iterable[str | None]:
    """Return the values of the column *name* of *rows* as text, None for null; *first* is the number of the first."""
    if name == INDEX:
        return map(str, range(first, first + len(rows)))
    if name == schema.SHARD:
        return map(shown, shards)
    if name == "__size__":
        places = (rows.column(bound).to_pylist() for bound in (schema.END, schema.BEGIN))
        return (str(end - begin) for end, begin in zip(*places, strict=True))
    return (None if value is None else as_text(value) for value in plain(rows.column(name)))


def kinds_of(rows: Any, known: dict[bytes, int]) -> Iterable[int]:
    """Return a number for the fields of each of *rows*, the same for the same fields: 0 for none.

    *known* are the numbers of the combinations so far.
    """
    import numpy as np

    if schema.MEMBERS not in rows.schema.names or not len(rows.schema.field(schema.MEMBERS).type):
        return repeat(UNKNOWN)
    known.setdefault(b"", 0)
    has = np.stack([np.asarray(column.is_valid()) for column in rows.column(schema.MEMBERS).flatten()], axis=1)
    packed = np.packbits(has, axis=1)
    found, which = np.unique(packed, axis=0, return_inverse=True)
    numbers = [known.setdefault(bytes(each).rstrip(b"\0"), len(known)) for each in found]
    return np.array(numbers)[which.reshape(-1)].tolist()  # type: ignore[no-any-return]


def from_samples(data: DataSet, order: Order, counts: list[int]) -> Iterator[bytes]:
    """Yield a record for each sample of *data*, in order, as its rows are.

    Reads all samples. The rows of each task have numbers of their own; *counts* gets how many.
    """
    encode = encoder(order)

    def work(batches: Iterator[Batch], number: int, _forked: bool) -> Generator[bytes, None, int]:
        rows = count(number << TURN)
        yield from pack_blocks(
            row_record(encode(sample, row), row, sample.raw_key, UNKNOWN, order, lone=not sample.grouped)
            for batch in batches
            for sample, row in zip(batch, rows, strict=False)
        )
        return next(rows) - (number << TURN)

    again = Account(lambda _: None)  # what is to be said of the shards was said when they were indexed
    return records_of(data.gather(work, counts.append, again, most=1 if order.by_position else WORKERS))


def sorted_positions(data: DataSet, order: Order, account: Account, memory: int) -> Iterator[int] | None:
    """Return the numbers of the rows of *data*, sorted by *order*; None if only its samples tell the order.

    That is so for tables that lack the values, or a key, unless rows are to be written: then samples are read. They are
    counted in *account*. Holds: *memory* bytes, 16 MiB at most. Raises: UntoldError, see there.
    """
    if data.lists and order.kind != "shuffle":
        data.keep()
    inputs, tmpdir, memory = data.rows(), data.reading.tmpdir, min(memory, MEMORY)
    told = has_values(inputs, order)
    if not told and not data.lists:
        return None
    if order.kind == "shuffle":
        account.samples_in += inputs.rows
        return shuffled_rows(inputs.rows, order, tmpdir)
    if told:
        return sorted_rows(from_columns(inputs, order, account), order, account, memory, tmpdir)
    counts: list[int] = []  # samples of each task
    records = from_samples(data, order, counts)
    account.samples_in += inputs.rows
    return numbered(sorted_rows(records, order, account, memory, tmpdir), counts)


def numbered(rows: Iterator[int], counts: Sequence[int]) -> Iterator[int]:
    """Yield the numbers of *rows*, which have the number of their task in the high bits; *counts* are rows of tasks."""
    begins: list[int] = []
    for row in rows:
        begins = begins or list(accumulate(counts, initial=0))  # complete once the first row is there
        yield position_in(row, begins)


def _one_of(parts: list[Entry], order: Order, account: Account) -> Entry:
    """Return the one of the *parts* of a sample that *order* keeps: all have the same fields."""
    fields = {part.shard for part in parts}
    if order.unique is None or len(fields) > 1 or UNKNOWN in fields:
        raise UntoldError(
            f"{len(parts)} rows have the key {parts[0].key.decode('utf-8', 'replace')!r}, and a table can't list their "
            "members as one sample: -u first or -u last keeps one of rows with equal fields; an OUTPUT that is a shard "
            "joins them"
        )
    account.left_out += len(parts) - 1
    return parts[0 if order.unique == "first" else -1]
