"""Statistics of shards and tables: counts of fields, sizes and keys, from the samples or from the columns of a table.

The counts are a `stages.summary`; samples that columns don't describe are read. Begin reading at `summarize`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

from tartools.errors import printable, shown
from tartools.samples.account import Account
from tartools.samples.batch import Batch
from tartools.samples.fieldcolumns import Combination, FieldColumn
from tartools.samples.sample import decode_name
from tartools.samples.values import Column
from tartools.shards.reading import count_samples
from tartools.stages import summary
from tartools.stages.summary import Distribution, FieldSummary, LengthCounts, PictureCounts, Summary
from tartools.tables import schema, source
from tartools.tables.described import PICTURE_COLUMNS
from tartools.tables.listed import column_names, texts_of_column
from tartools.tables.schema import is_table
from tartools.tar import Member

MAX_CLASS_BYTES = 256  # bytes of a value that counts as a class
LENGTH_COLUMNS = ("seconds", "broken")  # columns of a table for each field of sounds or videos
MAX_KEYS_LISTED = 1000  # keys that are always listed


class FieldKinds(NamedTuple):
    """How fields are counted, by their names.

    `classes(name)`: True if values of the field are counted one by one. `columns`: the columns whose values, such as
    those inside JSON, are counted so, too. `pictures(name)`: True if its payloads are pictures to measure.
    `measure(member)`: returns (width, height, format, mode, fault) of a picture. `has_length(name)`: True if its
    payloads are sounds or videos to measure; `measure_length(name, member)`: returns (seconds or None, fault). A fault
    is the reason why the payload is broken, None if it is sound; with a fault, the other items may be None. Both raise
    TarToolsError if the payload can't be read.
    """

    classes: Callable[[str], bool]
    pictures: Callable[[str], bool]
    measure: Callable[[Member], tuple[Any, ...]]
    columns: Sequence[Column] = ()
    has_length: Callable[[str], bool] = lambda _: False
    measure_length: Callable[[str, Member], tuple[Any, ...]] = lambda _, __: (None, None)


def make_class_test(class_fields: Sequence[str]) -> Callable[[str], bool]:
    """Return a predicate of field names: True for *class_fields*, cls, and cls.* (such as cls.txt), all in any case."""
    folded = {"cls", *map(str.lower, class_fields)}
    return lambda name: name.lower() in folded or name.lower().startswith("cls.")


def count_batch(batch: Batch, kinds: FieldKinds, listed: int, fields: int = 0) -> Summary:
    """Return the counts of *batch*, with the first *listed* samples of each combination of fields, (index, key).

    The index is the sample's in *batch*, which has one at least. From the 1,001st combination on, samples are not
    listed. `kinds`: says which payloads are read: of classes, pictures, sounds and videos, and of its columns.
    `fields`: number of distinct fields in all tables, 0 without tables; if *listed* is over 1,000 (MAX_KEYS_LISTED), no
    samples are listed that have so many fields, since they lack none, and take much memory. Raises: StorageError if a
    file has changed, a payload can't be read or decompressed, or the columns of a table are invalid; SampleError if a
    field of `kinds.columns` occurs twice in a sample, or can't be decoded; the errors of the functions of *kinds*.
    """
    counts = Summary(listed)
    combinations = batch.combinations()
    counts.samples, counts.first = len(batch), decode_name(combinations[0].keys[0])
    counts.stored, counts.shards = batch.stored_size(), batch.stored_sizes_by_shard()
    for same in combinations:
        has_all_fields = listed > MAX_KEYS_LISTED and len(set(same.fields)) == fields
        keys = [] if has_all_fields else same.keys[:listed]
        counts.add_combination(
            "/".join(same.fields), len(same), list(zip(same.numbers, map(decode_name, keys), strict=False))
        )
        counts.members += len(same) * len(same.columns)
        counts.payloads += sum(sum(column.sizes) for column in same.columns)
        counts.padding += sum(column.padding for column in same.columns)
    count_fields(combinations, kinds, counts)
    counts.values = {column.name: count_values(batch, column) for column in kinds.columns}
    return counts


def count_values(batch: Batch, column: Column) -> FieldSummary:
    """Return the counts of the values of *column* in *batch*, from the table if it has them, else from the samples.

    Only `samples`, `lacking`, `classes` and `long` are set; `classes` is None for over 1,000 values. Values of over 256
    bytes (MAX_CLASS_BYTES) are counted as `long`, not one by one. *column*: not `__index__`. Raises: SampleError,
    naming the sample, for a field that occurs twice, can't be unpacked, is not UTF-8, or not JSON as *column* needs;
    StorageError if a file has changed, or the table has invalid values.
    """
    values = texts_of_column(batch, column)
    present = [value for value in values if value is not None]
    short = [value for value in present if len(value.encode("utf-8", "surrogatepass")) <= MAX_CLASS_BYTES]
    counts = FieldSummary()
    counts.samples, counts.long = len(present), len(present) - len(short)
    counts.lacking = decode_name(batch.keys[values.index(None)]) if None in values else None
    counts.classes = summary.bound_counts(dict(Counter(short)))
    return counts


def count_fields(combinations: Sequence[Combination], kinds: FieldKinds, counts: Summary) -> None:
    """Set `counts.fields` to the counts of each field of *combinations*, samples grouped by their fields.

    Fields that *counts* had are replaced. *combinations*: all of a batch, in order of appearance. `kinds`: the fields
    whose values, pictures or lengths are counted, too; its `columns` are not. If there are over 1,000 fields
    (MAX_DISTINCT_VALUES), `fields` stays as it is, and `counts.many_fields` is set. Raises: StorageError if a file has
    changed, or a payload can't be read or decompressed; the errors of the functions of *kinds*.
    """
    columns: dict[str, list[FieldColumn]] = {}
    for same in combinations:
        for column in same.columns:
            columns.setdefault(column.name, []).append(column)
    if len(columns) > summary.MAX_DISTINCT_VALUES:
        counts.many_fields = True
        return
    fields = counts.fields = {name: FieldSummary() for name in columns}
    for same in combinations:
        for name in set(same.fields):
            fields[name].samples += len(same)
    for name, field in fields.items():
        if len(combinations) > 1:
            field.lacking = next((decode_name(same.keys[0]) for same in combinations if name not in same.fields), None)
        for column in columns[name]:
            field.add(count_field(column, kinds))
        if kinds.pictures(name):
            field.pictures = count_pictures(combinations, name, kinds)
        if kinds.has_length(name):
            field.lengths = count_lengths(combinations, name, kinds)


def count_pictures(combinations: Sequence[Combination], name: str, kinds: FieldKinds) -> PictureCounts | None:
    """Return the counts of the pictures in the field *name* of *combinations*, samples grouped by their fields.

    `kinds.measure` measures each, and its errors are raised. Table rows are not read: their facts come from the table;
    None if it has no columns for them. A row without any facts is left out.
    """
    pictures = _keyed_facts(combinations, name, lambda column: column.picture_facts(kinds.measure))
    return None if pictures is None else PictureCounts.of(pictures)


def count_lengths(combinations: Sequence[Combination], name: str, kinds: FieldKinds) -> LengthCounts | None:
    """Return the counts of the sounds or videos in the field *name* of *combinations*, samples grouped by their fields.

    `kinds.measure_length` measures each, and its errors are raised. Table rows are not read: their facts come from the
    table; None if it has no columns for them. A row without any facts is left out.
    """
    measure = partial(kinds.measure_length, name)
    lengths = _keyed_facts(combinations, name, lambda column: column.facts(LENGTH_COLUMNS, measure))
    return None if lengths is None else LengthCounts.of(lengths)


def _keyed_facts(
    combinations: Sequence[Combination],
    name: str,
    facts_of: Callable[[FieldColumn], Sequence[tuple[Any, ...] | None] | None],
) -> list[tuple[str, tuple[Any, ...]]] | None:
    """Return (key, facts) of the payloads of the field *name* of *combinations*, in the order of the samples.

    `facts_of(column)`: returns a tuple for each payload, the fault last (None: sound), or None for a payload to leave
    out. If it returns None for a column, which then has no facts, the result is None. The key is "" unless the payload
    is broken.
    """
    rows: list[tuple[int, str, tuple[Any, ...]]] = []
    for same in combinations:
        for column in same.columns:
            facts_of_column = facts_of(column) if column.name == name else ()
            if facts_of_column is None:
                return None
            for index, facts in enumerate(facts_of_column):
                if facts is not None:  # keys are needed of broken payloads alone
                    key = "" if facts[-1] is None else decode_name(same.keys[index])
                    rows.append((same.numbers[index], key, facts))
    rows.sort(key=itemgetter(0))  # so that the first one does not depend on how the input is cut into batches
    return [(key, facts) for _, key, facts in rows]


def count_field(column: FieldColumn, kinds: FieldKinds) -> FieldSummary:
    """Return the counts of the field *column*: members, sizes, and values if *kinds* counts them as classes.

    Samples are not counted, since they may have the field twice; nor are pictures, sounds and videos. If values are
    counted, `long` is the number of payloads of over 256 bytes (MAX_CLASS_BYTES), and `classes` None for over 1,000
    values of the others. For table rows without a column for the field no value is counted. Raises: StorageError if a
    file has changed, or a payload needs too much memory to be decompressed.
    """
    field_summary = FieldSummary(len(column), Distribution.of(column.sizes))
    classes = column.value_counts(MAX_CLASS_BYTES) if kinds.classes(column.name) else None
    if classes is not None:
        field_summary.classes = summary.bound_counts(classes)
        field_summary.long = sum(size > MAX_CLASS_BYTES for size in column.sizes)
    return field_summary


def summarize(batches: Iterable[Batch], kinds: FieldKinds, listed: int, fields: int, account: Account) -> Summary:
    """Return the counts of all *batches*, with up to *listed* samples of each combination of fields, (number, key).

    The number is the sample's in *batches*, from 0. From the 1,001st combination on, samples are not listed. Columns of
    tables are used where they exist. `kinds`: the fields and columns whose values, pictures or lengths are counted.
    `fields`: number of distinct fields in all tables, 0 without tables; if *listed* is over 1,000, samples with so many
    fields are not listed. `account`: counts the samples as read and written.

    Holds: the counts, and the listed keys. Raises: the errors of *batches*; StorageError, SampleError, and the errors
    of the functions of *kinds*, as `count_batch` does.
    """
    counts = Summary(listed)
    for batch in count_samples(batches, account, written=True):
        for part in batch.with_known_fields():
            counts.add(count_batch(part, kinds, listed, fields), counts.samples)
    return counts


def columns_of_tables(
    urls: Sequence[str], class_fields: Sequence[str], kinds: FieldKinds, account: Account
) -> tuple[list[str], int]:
    """Return (columns to count samples from, number of fields in all tables); ([], 0) if samples must be read.

    They must be read if one of *urls* is no table with columns of keys and members, if a table has no column for one of
    its fields that is among *class_fields* (fields named by the user), or for one of `kinds.columns`, or if it lacks
    the lengths of a field that has them.
    `kinds`: the fields whose values, pictures or lengths are counted. Classes and pictures of a field for which one of
    the tables has no columns are not counted; *account* gets a warning about these. The columns may include
    alternatives of `kinds.columns` that no table has. Raises: StorageError if a table can't be read; TarFormatError if
    one is damaged, or no table of samples.
    """
    if not all(map(is_table, urls)):
        return [], 0
    columns: dict[str, None] = {schema.KEY_COLUMN: None, schema.MEMBERS_COLUMN: None}
    fields, classes, pictures = set[str](), set[str](), set[str]()  # the last two without columns
    for url in urls:
        with source.open_table(url) as table:
            if table.fields is None or schema.KEY_COLUMN not in table.names:
                return [], 0
            if any(set(column_names([column])).isdisjoint(table.names) for column in kinds.columns):
                return [], 0
            lengths = [
                f"{name}.{column}" for name in filter(kinds.has_length, table.fields) for column in LENGTH_COLUMNS
            ]
            if not {*lengths}.issubset(table.names):
                return [], 0
            columns |= dict.fromkeys(lengths)
            fields.update(table.fields)
            classes.update(name for name in filter(kinds.classes, table.fields) if name not in table.names)
            for name in filter(kinds.pictures, table.fields):
                if not {f"{name}.{column}" for column in PICTURE_COLUMNS}.issubset(table.names):
                    pictures.add(name)
            columns |= dict.fromkeys(filter(kinds.classes, table.fields))
            columns |= {
                f"{name}.{column}": None for name in filter(kinds.pictures, table.fields) for column in PICTURE_COLUMNS
            }
    if {name.lower() for name in class_fields} & {name.lower() for name in classes}:
        return [], 0
    uncounted = [f"classes of {' '.join(sorted(classes))} (tarindex -f)"] if classes else []
    uncounted += [f"pictures of {' '.join(sorted(pictures))} (tarindex --pictures)"] if pictures else []
    if uncounted:
        description = printable(" and ".join(uncounted))
        account.warn(f"{shown(urls[0])}: not counted, because there are no columns for them: {description}")
    columns |= dict.fromkeys(column_names(kinds.columns))
    missing_columns = classes | {f"{name}.{column}" for name in pictures for column in PICTURE_COLUMNS}
    return [name for name in columns if name not in missing_columns], len(fields)
