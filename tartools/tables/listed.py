"""Samples that a table lists, and what its columns have of them; they are read only if they are asked for.

The value of a sample is asked for here: it comes from a column that has it, else from the sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

from tartools.errors import shown
from tartools.samples.sample import Batch, Label, Sample
from tartools.samples.values import INDEX, PSEUDO, Column, as_text, getter, lookup
from tartools.tables import schema
from tartools.tar import Writer

if TYPE_CHECKING:
    from tartools.tables.rowplaces import Listing, Piece
    from tartools.tables.source import ParquetSource

ABSENT = object()  # the sample lacks the value, where None is JSON's null

Getter = Callable[[Sample, int], object]
Answer = Sequence[object] | Getter  # a value for each sample, or what reads the samples for it


class TableColumns:
    """The columns of *rows*, a record batch that begins with row *first* of the table that *listing* is of.

    *rows* has some of the columns of *table*; *names* are those of all, *fields* those that its samples have, or None.
    """

    def __init__(self, rows: Any, first: int, listing: Listing, table: ParquetSource) -> None:
        self.url = listing.table
        self.first = first
        self.names: Sequence[str] = table.names
        self.fields: Sequence[str] | None = table.fields
        self._rows = rows
        self._listing = listing
        self._known: dict[str, Sequence[Any]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def column(self, name: str) -> Any | None:
        """Return the column *name*, an array of Arrow; None if the table has none."""
        return self._rows.column(name) if name in self._rows.schema.names else None

    def values(self, name: str) -> Sequence[Any] | None:
        """Return a value for each row: str, int, float, bool, list or dict, or None if there is none.

        Of `__key__`, `__shard__` and `__size__` these are the values of the samples. None if the table has no such
        column, or no key for some sample.
        """
        if name not in self._known:
            column = self.column(schema.BEGIN if name == "__size__" else name)
            if column is None or (name == schema.KEY and column.null_count):
                return None
            self._known[name] = self._values(name, column)
        return self._known[name]

    def keys(self, rows: Sequence[int]) -> list[str]:
        """Return the keys of *rows*."""
        return list(self.taken(schema.KEY, rows) or ())

    def taken(self, name: str, rows: Sequence[int]) -> Sequence[Any] | None:
        """Return the values of the column *name* for *rows*, as `values` does."""
        found = self.values(name)
        return None if found is None else [found[row] for row in rows]

    def members(self) -> tuple[list[str], Any, Any] | None:
        """Return the fields of the samples, and arrays with a column for each field: offset of the payload, and size.

        An offset is -1 where the sample lacks the field, and less where it is not known. None if the table does not
        tell.
        """
        import numpy as np

        from tartools.tables.rowplaces import whole_numbers

        column = self.column(schema.MEMBERS)
        if column is None or self.fields is None:
            return None
        places = column.flatten()
        offsets, sizes = np.empty((2, len(self), len(places)), np.int64)
        for number, place in enumerate(places):
            with schema.unfit(f"{schema.MEMBERS}: not all offsets and sizes are numbers", self.url):
                (offset, known), (size, sized) = map(whole_numbers, place.flatten())
            offsets[:, number] = np.where(
                np.asarray(place.is_valid()), np.where(known, offset, schema.TWICE), schema.ABSENT
            )
            sizes[:, number] = np.where(sized, size, 0)
        return [field.name for field in column.type], offsets, sizes

    def lacks(self, field: str) -> bool:
        """Return whether it is known that no sample of the table has *field*, whatever the case."""
        return self.fields is not None and field.lower() not in map(str.lower, self.fields)

    @cached_property
    def piece(self) -> Piece:
        """The rows as places in shards. Raises: StorageError if they can't be."""
        return self._listing.piece(self._rows, self.first)

    def shards(self) -> tuple[Sequence[str], Any]:
        """Return the URLs of shards, and for each row the number of one of these.

        The same URL may be there more than once. Raises: StorageError if a row has none.
        """
        return self._listing.urls, self.piece.numbers

    def _values(self, name: str, column: Any) -> Sequence[Any]:
        if name == "__size__":
            return (self.piece.ends - self.piece.begins).tolist()  # type: ignore[no-any-return]
        if name == schema.SHARD:
            numbers = self.piece.numbers.tolist()
            named = {number: shown(self._listing.urls[number]) for number in set(numbers)}
            return [named[number] for number in numbers]
        with schema.unfit(f"the column {name} is not text", self.url):
            if name == schema.KEY:
                return [raw.decode("utf-8", "surrogateescape") for raw in schema.raw(column).to_pylist()]
            return schema.plain_values(column)


class ListedBatch(Batch):
    """Samples whose values *columns* has; `read(rows)` gives those of some rows, in batches."""

    __slots__ = ("_read", "columns")

    def __init__(self, columns: TableColumns, read: Callable[[Piece], Iterator[Batch]]) -> None:
        self.columns = columns
        self._read = read
        self._shards = self.groups = self.offset = None
        self.shard = ""

    @property
    def keys(self) -> list[bytes]:  # type: ignore[override]  # the others have them
        """The keys of the samples."""
        return [sample.raw_key for sample in self]

    def __len__(self) -> int:
        return len(self.columns)

    def __iter__(self) -> Iterator[Sample]:
        for batch in self.batches():
            yield from batch

    def __getitem__(self, number: int) -> Sample:
        (batch,) = self.batches(number, number + 1)
        return batch[0]

    def batches(self, first: int = 0, last: int | None = None) -> Iterator[Batch]:
        """Yield samples number *first* to *last* (exclusive; None: to the end) as they are read, each time anew."""
        return self._read(self.columns.piece.part(first, len(self) if last is None else last))

    def apart(self, labels: Sequence[Label], skipped: Label | None = None) -> Iterator[tuple[Label, Batch, int, int]]:
        """As `Batch.apart`; those *skipped* are not read."""
        numbers = [number for number, label in enumerate(labels) if label != skipped]
        at = 0
        for few in self._read(self.columns.piece.taken(numbers)) if numbers else ():
            yield from few.apart([labels[number] for number in numbers[at : at + len(few)]])
            at += len(few)

    def fitting(self, first: int, room: int) -> int:
        """Return how many samples, from number *first* on, fit into *room* bytes of an archive."""
        fitting = 0
        for sample in islice(self, first, None):
            room -= sample.size
            if room < 0:
                break
            fitting += 1
        return fitting

    def write_to(self, writer: Writer, first: int, last: int) -> None:
        """Add samples number *first* to *last* (exclusive) to *writer*."""
        for sample in islice(self, first, last):
            sample.write_to(writer)


def keys_of(batch: Batch) -> Sequence[bytes]:
    """Return the keys of *batch*; of samples that a table lists, those in the table, if it has them."""
    known = batch.columns.values("__key__") if isinstance(batch, ListedBatch) else None
    return batch.keys if known is None else [key.encode("utf-8", "surrogateescape") for key in known]


def column_names(columns: Iterable[Column]) -> list[str]:
    """Return the names of the columns of a table that may have values of *columns*."""
    names = [_of_choice(column, one) for column in columns for one in (";".join(column.choices), *column.choices)]
    return list(dict.fromkeys(names))


def known(columns: TableColumns, name: str) -> Sequence[Any] | None:
    """Return the values of the column *name*, None where there is none; None if *columns* do not tell.

    They tell it of a field, or of a value inside it, that no sample has.
    """
    found = columns.values(name)
    if found is None and name not in PSEUDO and columns.lacks(name.partition(":")[0]):
        return [None] * len(columns)
    return found


def texts_of_column(batch: Batch, column: Column) -> list[str | None]:
    """Return the value of *column* for each sample of *batch* as text, None where there is none; not for INDEX.

    Raises: as `values.lookup`.
    """
    read = getter(column)
    if not isinstance(batch, ListedBatch):
        return [read(sample, 0) for sample in batch]
    answers = column_answers(column, batch.columns, False, range(len(batch)))
    told = told_by(answers, None)
    if told is not None:
        return list(told)  # type: ignore[arg-type]
    return [first_answer(answers, number, sample, 0, None) for number, sample in enumerate(batch)]  # type: ignore[misc]


def told_by(answers: Sequence[Answer], nothing: object) -> Sequence[object] | None:
    """Return the values that *answers* have; None if samples have to be read for some."""
    lists = [answer for answer in answers if not callable(answer)]
    if len(lists) < len(answers):
        return None
    return lists[0] if len(lists) == 1 else [_first(each, nothing) for each in zip(*lists, strict=True)]


def first_answer(answers: Iterable[Answer], number: int, sample: Sample, index: int, nothing: object) -> object:
    """Return what *answers* have for *sample*, which is *number* of its batch and *index* of all; or *nothing*."""
    return _first((answer(sample, index) if callable(answer) else answer[number] for answer in answers), nothing)


def _first(values: Iterable[object], nothing: object) -> object:
    """Return the first of *values* that is one."""
    return next((value for value in values if value is not nothing), nothing)


def column_answers(column: Column, columns: TableColumns, typed: bool, indexes: range) -> list[Answer]:
    """Return where the values of *column* are: the first of these that has one, for samples with these *indexes*.

    They are text, or None; if *typed*, they have their types in JSON, and are ABSENT if there is none.
    """
    whole = columns.values(_of_choice(column, ";".join(column.choices))) if len(column.choices) > 1 else None
    if whole is not None:
        return [_cells(whole, typed)]
    found: list[Answer] = []
    for name in column.choices:
        values = indexes if name == INDEX else known(columns, _of_choice(column, name))
        if values is None:
            one = column._replace(choices=(name,))
            found.append(json_getter(one, verbatim=False) if typed else getter(one, verbatim=False))
        else:
            found.append(_cells(values, typed))
        if name in PSEUDO:
            break
    return found


def json_getter(column: Column, *, verbatim: bool) -> Getter:
    """Return a function (sample, index) -> value of *column* with its JSON type; ABSENT if the sample has no value."""

    def value(sample: Sample, index: int) -> object:
        found = lookup(sample, column, index, verbatim=verbatim)
        return ABSENT if found is None else found[0]

    return value


def _of_choice(column: Column, name: str) -> str:
    """Return what tarindex calls a column of the values of the choice *name* of *column*, or of all of them."""
    return name if name in PSEUDO or not column.path else f"{name}:{'.'.join(column.path)}"


def _cells(found: Sequence[Any], typed: bool) -> Sequence[object]:
    """Return the values *found* in a column of a table, as `column_answers` tells them."""
    if typed:
        return [ABSENT if value is None else value for value in found]
    return [value if value is None or isinstance(value, str) else as_text(value) for value in found]
