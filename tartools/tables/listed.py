"""Samples of a table with their values in its columns; samples are read only if a column does not have the value.

`column_answers` returns the values of samples: from a column that has them, else from the samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

from tartools.errors import shown
from tartools.samples.batch import Batch, Label, SampleColumns
from tartools.samples.fieldcolumns import Combination, group_samples
from tartools.samples.sample import Sample
from tartools.samples.values import INDEX_NAME, PSEUDO_FIELDS, Column, as_text, find_value, make_getter
from tartools.tables import schema
from tartools.tar import Member, Writer

if TYPE_CHECKING:
    from tartools.tables.catalog import ShardCatalog
    from tartools.tables.described import ListedPlaces
    from tartools.tables.extents import Extents
    from tartools.tables.source import ParquetSource

ABSENT_VALUE = object()  # the sample lacks the value, where None is JSON's null

Getter = Callable[[Sample, int], object]
Answer = Sequence[object] | Getter  # a value for each sample, or what reads the samples for it


class TableColumns:
    """The columns of *rows*, a record batch that begins with row *first* of the table of *catalog*.

    `url`: of the table.
    `first`: number of the first row.
    `names`: of all columns of *table*, of which *rows* has some.
    `fields`: the fields that samples of the table may have, in all sets of shards; None if unknown.
    """

    def __init__(self, rows: Any, first: int, catalog: ShardCatalog, table: ParquetSource) -> None:
        self.url = catalog.table
        self.first = first
        self.names: Sequence[str] = table.names
        self.fields: Sequence[str] | None = table.fields
        self._rows = rows
        self._catalog = catalog
        self._table = table
        self._values_by_name: dict[str, Sequence[Any]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def column(self, name: str) -> Any | None:
        """Return the column *name*, a `pyarrow.Array`; None if *rows* do not have it."""
        return self._rows.column(name) if name in self._rows.schema.names else None

    def values(self, name: str) -> Sequence[Any] | None:
        """Return the value of the column *name* for each row: str, int, float, bool, list or dict; None for null.

        `__key__`, `__shard__` and `__size__` are those of the samples: text, the URL to show (in a joined table that of
        the first set), bytes; the rows need their columns of extents for the last two. Values of other types, such as
        bytes and times, are text, as `schema.plain_values` writes them. The result is None if the rows do not have the
        column; for `__key__` also if a key is null. Raises: StorageError for invalid values, such as text that is not
        UTF-8, but in a key.
        """
        if name not in self._values_by_name:
            column = self.column(schema.BEGIN_COLUMN if name == "__size__" else name)
            if column is None or (name == schema.KEY_COLUMN and column.null_count):
                return None
            self._values_by_name[name] = self._values(name, column)
        return self._values_by_name[name]

    def members(self) -> tuple[list[str], Any, Any] | None:
        """Return (fields, offsets, sizes): two arrays with a row for each sample and a column for each field, in bytes.

        An offset is -1 where the sample lacks the field, and -2 where it has it twice, so that it is unknown; the size
        is then 0. In a joined table it is a byte of the shard that has the field. None if the table does not list all
        fields, or *rows* lack a column of members. Raises: StorageError if an offset or size is not a whole number.
        """
        members_by_set = [self.members_in_set(number) for number in schema.sets_in(self.names)]
        return (
            None
            if None in members_by_set
            else merge_columns([members for members in members_by_set if members is not None])
        )

    def members_in_set(self, number: int) -> tuple[list[str], Any, Any] | None:
        """Return (fields, offsets, sizes) of the parts of the samples in set *number* of shards, from 1 on.

        Two arrays with a row for each sample and a column for each field, in bytes; an offset is -1 for an absent
        field, -2 for one that is there twice, and the size is 0 then. None if the table does not list all fields, or
        *rows* lack the column of members. Raises: StorageError if an offset or size is not a whole number.
        """
        import numpy as np

        from tartools.tables.extents import valid_mask, whole_numbers

        column = self.column(schema.name_in_set(schema.MEMBERS_COLUMN, number))
        if column is None or self.fields is None:
            return None
        places = column.flatten()
        offsets, sizes = np.empty((2, len(self), len(places)), np.int64)
        for index, place in enumerate(places):
            with schema.value_errors("__members__: not all offsets and sizes are numbers", self.url):
                (offset, has_offset), (size, has_size) = map(whole_numbers, place.flatten())
            offsets[:, index] = np.where(
                valid_mask(place), np.where(has_offset, offset, schema.REPEATED_OFFSET), schema.ABSENT_OFFSET
            )
            sizes[:, index] = np.where(has_size, size, 0)
        return [field.name for field in column.type], offsets, sizes

    def lacks_field(self, field: str) -> bool:
        """True if the table says that no sample has *field*, ignoring case; False if it does not list all fields."""
        return self.fields is not None and field.lower() not in map(str.lower, self.fields)

    @cached_property
    def extents(self) -> Extents:
        """The extents of the samples; *rows* must have their columns. Raises: StorageError for invalid values."""
        return self._catalog.extents(self._rows, self.first)

    def part(self, low: int, high: int) -> TableColumns:
        """Return the columns of the rows with indexes *low* to *high* (exclusive) in *rows*.

        Raises: StorageError if the extents of any of *rows* are invalid.
        """
        part = TableColumns(self._rows.slice(low, high - low), self.first + low, self._catalog, self._table)
        part._values_by_name = {name: values[low:high] for name, values in self._values_by_name.items()}
        part.extents = self.extents.part(low, high)
        return part

    def shards(self) -> tuple[Sequence[str], Any]:
        """Return the URLs of shards, and for each row the index of its shard (in the first set), an array of int32.

        The URLs are of all shards in the catalog; one may occur more than once, in several versions. Raises:
        StorageError for invalid values.
        """
        return self._catalog.urls, self.extents.numbers

    def _values(self, name: str, column: Any) -> Sequence[Any]:
        if name == "__size__":
            return self.extents.sizes.tolist()  # type: ignore[no-any-return]
        if name == schema.SHARD_COLUMN:
            numbers = self.extents.numbers.tolist()
            urls_by_number = {number: shown(self._catalog.urls[number]) for number in set(numbers)}
            return [urls_by_number[number] for number in numbers]
        with schema.value_errors(f"the column {name} is not text", self.url):
            if name == schema.KEY_COLUMN:
                return [raw.decode("utf-8", "surrogateescape") for raw in schema.encode_texts(column).to_pylist()]
            return schema.plain_values(column)


class ListedBatch(Batch):
    """Samples that rows of a table list; *columns*: their `TableColumns`. Samples are read only when asked for.

    `read(extents)`: yields, in batches, the samples at *extents*, those of some of the rows. *places*: the members of
    all samples, if the table lists each one; None: the samples are read to know their fields.
    """

    __slots__ = ("_places", "_read", "columns")

    columns: TableColumns

    def __init__(
        self,
        columns: TableColumns,
        read: Callable[[Extents], Iterator[Batch]],
        places: ListedPlaces | None = None,
    ) -> None:
        self.columns = columns
        self._read = read
        self._places = places
        self.shard = ""

    @property
    def keys(self) -> Sequence[bytes]:  # type: ignore[override]  # the others have them
        """The keys of the samples: from the table, if it has one for each of them; else all samples are read."""
        keys = self.columns.values("__key__")
        if keys is None:
            return [sample.raw_key for sample in self]
        return [key.encode("utf-8", "surrogateescape") for key in keys]

    @property
    def shards(self) -> Sequence[str]:
        """The URL of the shard of each sample; in a joined table, the shard of the first set."""
        urls, numbers = self.columns.shards()
        return list(map(urls.__getitem__, numbers.tolist()))

    def __len__(self) -> int:
        return len(self.columns)

    def __iter__(self) -> Iterator[Sample]:
        for batch in self.batches():
            yield from batch

    def __getitem__(self, number: int) -> Sample:
        (batch,) = self.batches(number, number + 1)
        return batch[0]

    def bounds(self) -> None:
        """Return None: samples of rows need not be adjacent in a shard, so callers take each from its own place."""

    def file(self) -> None:
        """Return None, for samples that no plain file has side by side: callers read them one by one."""

    def data(self) -> None:
        """Return None, for samples that are not adjacent in one buffer: callers read them one by one."""

    def stored_size(self) -> int:
        """Return the bytes that the samples take in their shards."""
        return self.columns.extents.size

    def stored_sizes_by_shard(self) -> dict[str, list[int]]:
        """Return [number of samples, bytes] by the URL of each shard, set by set, in order of appearance.

        A sample of a joined table counts in a shard of each set that it has a part in.
        """
        import numpy as np

        urls, _ = self.columns.shards()
        totals: dict[str, list[int]] = {}
        for set_extents in self.columns.extents.sets:
            present = np.flatnonzero(set_extents.ends)
            numbers, sizes = set_extents.numbers[present], (set_extents.ends - set_extents.begins)[present]
            for first in np.sort(np.unique(numbers, return_index=True)[1]).tolist():
                url, mask = urls[numbers[first]], numbers == numbers[first]
                shard_totals = totals.setdefault(url, [0, 0])
                shard_totals[0] += int(mask.sum())
                shard_totals[1] += int(sizes[mask].sum())
        return totals

    def combinations(self) -> list[Combination]:
        """Return the samples grouped by their fields, in order of appearance of the groups.

        The samples are read for this, unless the batch has the *places* of their members.
        """
        if self._places is None:
            return group_samples(self)
        from tartools.tables.described import group_described

        return group_described(self, self.columns, self._places)

    def with_known_fields(self) -> Iterator[Batch]:
        """Yield the samples in batches whose fields are known: `ListedBatch`es with places, and samples that were read.

        Only samples whose members the table does not list in full are read.
        """
        from tartools.tables.described import places_of
        from tartools.tables.extents import runs_of_equal

        places = places_of(self.columns, self.columns.extents)
        if places is None:
            yield from self.batches()
            return
        for low, high in runs_of_equal(places.described):
            if places.described[low]:
                yield ListedBatch(self.columns.part(low, high), self._read, places.part(low, high))
            else:
                yield from self.batches(low, high)

    def member_lists(self, first: int) -> Iterator[tuple[bytes, str, Sequence[Member]]]:
        """Yield (key, shard URL, members) of each sample from number *first* on; the samples are read."""
        samples = (sample for batch in self.batches(first) for sample in batch)
        return ((sample.raw_key, sample.shard, sample.members) for sample in samples)

    def memory_size(self, first: int, last: int) -> int:
        """Return the bytes that samples *first* to *last* (exclusive) take in their shards."""
        return self.columns.extents.part(first, last).size

    def batches(self, first: int = 0, last: int | None = None) -> Iterator[Batch]:
        """Yield samples *first* to *last* (exclusive; None: to the end) in batches; each call reads them again."""
        return self._read(self.columns.extents.part(first, len(self) if last is None else last))

    def split(self, labels: Sequence[Label], skipped: Label | None = None) -> Iterator[tuple[Label, Batch, int, int]]:
        """Yield (label, batch, first, last) for each run of samples with one label; *skipped* samples are not read.

        *labels*: one for each sample. *skipped*: the label of samples to leave out; samples with the label None are
        left out in any case. The run is samples `first` to `last` (exclusive) of the batch, one of several that are
        read: samples that are not read do not end a run, the end of a batch does.
        """
        numbers = [number for number, label in enumerate(labels) if label != skipped]
        at = 0
        for batch in self._read(self.columns.extents.take(numbers)) if numbers else ():
            yield from batch.split([labels[number] for number in numbers[at : at + len(batch)]])
            at += len(batch)

    def count_fitting(self, first: int, max_bytes: int) -> int:
        """Return how many samples, from number *first* on, fit into *max_bytes* of an archive; it may be 0.

        The samples are read for this, from the first one of this batch on.
        """
        fitting = 0
        for sample in islice(self, first, None):
            max_bytes -= sample.size
            if max_bytes < 0:
                break
            fitting += 1
        return fitting

    def write_to(self, writer: Writer, first: int, last: int) -> None:
        """Add samples number *first* to *last* (exclusive) to *writer*.

        The samples are read for this, from the first one of this batch on. Raises: the errors of reading and writing.
        """
        for sample in islice(self, first, last):
            sample.write_to(writer)


def merge_columns(members_by_set: Sequence[tuple[list[str], Any, Any]]) -> tuple[list[str], Any, Any]:
    """Return (fields, offsets, sizes) of samples with parts in several sets, each field once.

    *members_by_set*: the result of `TableColumns.members_in_set` for each set: fields, and two arrays with a row for
    each sample and a column for each field, like the result. A sample has a field in one set at most.
    """
    import numpy as np

    if len(members_by_set) == 1:
        return members_by_set[0]
    columns: dict[str, tuple[Any, Any]] = {}
    for fields, offsets, sizes in members_by_set:
        for number, name in enumerate(fields):
            at, size = offsets[:, number], sizes[:, number]
            if name in columns:
                before, size_before = columns[name]
                absent = before == schema.ABSENT_OFFSET
                at, size = np.where(absent, at, before), np.where(absent, size, size_before)
            columns[name] = at, size
    count = len(members_by_set[0][1])
    empty = np.empty((count, 0), np.int64)
    offsets, sizes = (np.stack([pair[n] for pair in columns.values()], axis=1) if columns else empty for n in (0, 1))
    return list(columns), offsets, sizes


def column_names(columns: Iterable[Column]) -> list[str]:
    """Return the names of the table columns that may have the values of *columns*, each once.

    For the column `a;b:x` these are `a;b:x`, `a:x` and `b:x`.
    """
    names = [
        _name_of_choice(column, choice) for column in columns for choice in (";".join(column.choices), *column.choices)
    ]
    return list(dict.fromkeys(names))


def values_without_reading(columns: SampleColumns, name: str) -> Sequence[Any] | None:
    """Return the values of the column *name* in *columns*, one for each sample, None for an absent one.

    If the table says that no sample has the field, all values are None. If the result is None, the samples have to be
    read: there is no such column, or for `__key__` a key is null. Raises: StorageError for invalid values.
    """
    values = columns.values(name)
    if values is None and name not in PSEUDO_FIELDS and columns.lacks_field(name.partition(":")[0]):
        return [None] * len(columns)
    return values


def texts_of_column(batch: Batch, column: Column) -> list[str | None]:
    """Return the value of *column* for each sample of *batch* as text, None for an absent value; not for `__index__`.

    Reads the samples only if the table does not have the values. Raises: SampleError if the field occurs twice, can't
    be unpacked, is not UTF-8, or is not JSON but should be; StorageError for invalid values in the table, or if a
    sample can't be read.
    """
    read = make_getter(column)
    if batch.columns is None:
        return [read(sample, 0) for sample in batch]
    answers = column_answers(column, batch.columns, False, range(len(batch)))
    values = values_in_columns(answers, None)
    if values is not None:
        return list(values)  # type: ignore[arg-type]
    return [first_answer(answers, number, sample, 0, None) for number, sample in enumerate(batch)]  # type: ignore[misc]


def values_in_columns(answers: Sequence[Answer], nothing: object) -> Sequence[object] | None:
    """Return for each sample its first value among *answers*; None if an answer is a function, that reads samples.

    *answers*: from `column_answers`, in order. *nothing*: the object that stands for an absent value, in *answers* and
    in the result.
    """
    lists = [answer for answer in answers if not callable(answer)]
    if len(lists) < len(answers):
        return None
    return (
        lists[0] if len(lists) == 1 else [_first_value(row_values, nothing) for row_values in zip(*lists, strict=True)]
    )


def first_answer(answers: Iterable[Answer], number: int, sample: Sample, index: int, nothing: object) -> object:
    """Return the first value among *answers* for *sample*, by reading it if necessary; *nothing* if there is none.

    *answers*: from `column_answers`. *number*: index of the sample in its batch; *index*: its index in all samples.
    *nothing*: the object that stands for an absent value. Raises: the errors of the answers that are functions.
    """
    return _first_value((answer(sample, index) if callable(answer) else answer[number] for answer in answers), nothing)


def _first_value(values: Iterable[object], nothing: object) -> object:
    """Return the first of *values* that is not *nothing*; *nothing* if there is none."""
    return next((value for value in values if value is not nothing), nothing)


def column_answers(column: Column, columns: SampleColumns, typed: bool, indexes: range) -> list[Answer]:
    """Return the answers for *column*, one for each of its choices of fields: the first one with a value counts.

    There is only one if the table has a column of all choices together (`a;b`), and none behind a choice such as
    `__key__`, which every sample has.

    An answer is a list with a value for each sample, from the table, or a function (sample, index) -> value, which
    reads the sample. Values are text, or None; if *typed*, they have their JSON types, and an absent value is
    ABSENT_VALUE, as is null in a table.
    *columns*: the samples' values in the table. *indexes*: the samples' indexes in all samples, for `__index__`.
    Raises: StorageError for invalid values in the table.
    """
    joined_values = (
        columns.values(_name_of_choice(column, ";".join(column.choices))) if len(column.choices) > 1 else None
    )
    if joined_values is not None:
        return [_convert_cells(joined_values, typed)]
    answers: list[Answer] = []
    for name in column.choices:
        values = indexes if name == INDEX_NAME else values_without_reading(columns, _name_of_choice(column, name))
        if values is None:
            single_choice = column._replace(choices=(name,))
            answers.append(
                make_json_getter(single_choice, verbatim=False) if typed else make_getter(single_choice, verbatim=False)
            )
        else:
            answers.append(_convert_cells(values, typed))
        if name in PSEUDO_FIELDS:
            break
    return answers


def make_json_getter(column: Column, *, verbatim: bool) -> Getter:
    """Return a function (sample, index) -> value of *column* with its JSON type; ABSENT_VALUE if there is none.

    JSON's null is None. *verbatim*: True if names of fields are compared with case, and a final newline of text is
    kept. The function raises SampleError if the field occurs twice, can't be unpacked, is not UTF-8, or is not JSON but
    should be; StorageError if the file of the payload has changed.
    """

    def value(sample: Sample, index: int) -> object:
        match = find_value(sample, column, index, verbatim=verbatim)
        return ABSENT_VALUE if match is None else match[0]

    return value


def _name_of_choice(column: Column, name: str) -> str:
    """Return the name, such as `json:width`, that tarindex gives to a table column of the choice *name* of *column*.

    *name*: one of its choices, or all of them joined by ";".
    """
    return name if name in PSEUDO_FIELDS or not column.path else f"{name}:{'.'.join(column.path)}"


def _convert_cells(values: Sequence[Any], typed: bool) -> Sequence[object]:
    """Return *values*, with None for null, as text, or if *typed* as they are with ABSENT_VALUE in place of None."""
    if typed:
        return [ABSENT_VALUE if value is None else value for value in values]
    return [value if value is None or isinstance(value, str) else as_text(value) for value in values]
