"""Samples that rows of a table describe: their combinations of fields, from the columns of the table.

A row describes its sample if the members in its column `__members__`, in the order of their offsets and each after one
block of header or more, reach to the end of the sample: then no other member follows them, and nothing is read for it.
(A member between them that the row does not list can't be told from a long header.)

    __begin__ | header, payload of jpg, padding | header, payload of cls, padding | __end__
                        ^ offset                          ^ offset
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from tartools.samples.batch import Batch, SampleColumns
from tartools.samples.fieldcolumns import Combination, FieldColumn
from tartools.samples.sample import failure_of
from tartools.samples.values import as_text
from tartools.tables import schema
from tartools.tar import BLOCK, Member

if TYPE_CHECKING:
    from tartools.tables.extents import Extents

PICTURE_COLUMNS = ("width", "height", "format", "broken")  # columns of a table for each field of pictures
NO_OFFSET = 1 << 62  # offset of a member that a sample lacks


class ListedPlaces(NamedTuple):
    """The members of samples, as a table lists them: numpy arrays with a row for each sample.

    `fields`: names of all fields that the table lists; `offsets` and `sizes` have one column for each.
    `offsets`: bytes from the begin of the shard to the payload (int64); NO_OFFSET if the sample lacks the field, or has
        it twice.
    `sizes`: bytes of the payload (int64); not to be used for a field that the sample lacks.
    `order`: indexes in `fields` of the fields that the sample has once, in the order of the archive (of a joined table:
        set by set), then -1 to fill the row.
    `described`: bool, one for each sample: True if these count as all its members, so that it need not be read to know
        them: no field is there twice, and they reach to the end of the sample, in each set of shards.
    """

    fields: Sequence[str]
    offsets: Any
    sizes: Any
    order: Any
    described: Any  # True where these are all members of the sample

    def part(self, low: int, high: int) -> "ListedPlaces":
        """Return the places of samples *low* to *high* (exclusive); `fields` stay."""
        return self._replace(**{name: rows[low:high] for name, rows in self._asdict().items() if name != "fields"})


def places_of(columns: SampleColumns, extents: "Extents") -> ListedPlaces | None:
    """Return the places of the members of the samples that *columns* list; None if the table does not list members.

    *extents*: of the same samples. Also None if the table lists no members for one of several sets of shards, has no
    keys, or the key of one of these samples is null.
    Raises: StorageError if offsets and sizes in the table are not whole numbers, or keys are not text.
    """
    import numpy as np

    members = columns.members() if columns.values(schema.KEY_COLUMN) is not None else None
    if members is None:
        return None
    fields, offsets, sizes = members
    offsets = np.where(offsets < 0, NO_OFFSET, offsets)
    orders, described = [], True
    for number, in_set in enumerate(extents.sets, 1):
        part = columns.members_in_set(number)
        assert part is not None  # `members` has returned those of all sets
        order, fills_extent = _order_in_extents(*part[1:], in_set)
        described &= fills_extent
        numbers = np.array([*(fields.index(name) for name in part[0]), -1])  # the last is for -1, an absent field
        orders.append(numbers[order])
    order = np.concatenate(orders, axis=1)
    if len(orders) > 1:
        order = np.take_along_axis(order, np.argsort(order < 0, axis=1, kind="stable"), axis=1)
    return ListedPlaces(fields, offsets, sizes, order, described)


def _order_in_extents(offsets: Any, sizes: Any, extents: "Extents") -> tuple[Any, Any]:
    """Return (order, flags): the fields of each sample in the order of the archive, and True if they fill its extent.

    *offsets* and *sizes*: of payloads in one set of shards, arrays of int64 with a row for each sample, a column for
    each field; an offset is -1 for an absent field, less for a repeated one. *extents*: of the samples in this set. A
    row of the order has indexes of the fields that occur once, then -1. A flag is True if no field is repeated, one or
    more blocks are before each payload, and the last payload, padded, ends where the extent ends: no member follows,
    but one between the listed members passes as a long header. It is True, too, if the sample has no part there (its
    end is 0).
    """
    import numpy as np

    begins, ends = extents.begins, extents.ends
    no_repeated_field = (offsets >= -1).all(axis=1)
    offsets = np.where(offsets < 0, NO_OFFSET, offsets)
    order = np.argsort(offsets, axis=1, kind="stable")
    # The members of a sample, by offset, must leave no room for another one: before each payload, from the end of the
    # member before it (of the first: from the begin of the sample), are one block of header or more, and the last
    # member ends where the sample does. Absent fields sort last, and pass as sound.
    starts = np.take_along_axis(offsets, order, axis=1)
    absent = starts == NO_OFFSET
    stops = starts + padded_sizes(np.take_along_axis(sizes, order, axis=1))
    count = (~absent).sum(axis=1)
    headers = starts - np.concatenate([begins[:, None], stops[:, :-1]], axis=1)
    sound = absent | ((headers >= BLOCK) & (headers % BLOCK == 0))
    last = stops[np.arange(len(stops)), np.maximum(count, 1) - 1] if offsets.shape[1] else begins
    fills_extent = no_repeated_field & sound.all(axis=1) & (count > 0) & (last == ends)
    return np.where(absent, -1, order), fills_extent | ((count == 0) & (ends == 0))


def padded_sizes(sizes: Any) -> Any:
    """Return *sizes* of payloads in bytes, an array of int64, with the padding to whole blocks of 512."""
    return (sizes + (BLOCK - 1)) // BLOCK * BLOCK


def group_described(batch: Batch, columns: SampleColumns, places: ListedPlaces) -> list[Combination]:
    """Return the samples of *batch* grouped by their fields, in order of appearance; no sample is read.

    The same fields in another order are another group. *columns*: their values in the table; *places*: their members,
    from `places_of`.
    """
    return [
        Combination(
            rows,
            DescribedKeys(columns, rows),
            [DescribedColumn(batch, columns, places, number, rows) for number in numbers],
        )
        for numbers, rows in _combinations(places.order)
    ]


def _combinations(order: Any) -> list[tuple[list[int], Sequence[int]]]:
    """Return (indexes of the fields, indexes of the samples that have them) for each combination of fields.

    They come in order of appearance; the same fields in another order are another combination. *order*:
    `ListedPlaces.order`, with at least one row.
    """
    import numpy as np

    if (order == order[0]).all():
        return [([number for number in order[0].tolist() if number >= 0], range(len(order)))]
    # `np.unique` is many times faster on one value a row than on rows: the bytes of a row are taken as one value. It
    # returns combinations by their bytes, so they are put back in order of appearance.
    packed = np.ascontiguousarray(order.astype(np.int16))
    _, first, kind_of_row = np.unique(
        packed.view(f"V{packed.shape[1] * 2}").ravel(), return_index=True, return_inverse=True
    )
    kinds = np.argsort(first).tolist()
    rows = [np.flatnonzero(kind_of_row == kind).tolist() for kind in kinds]
    numbers = [[number for number in order[first[kind]].tolist() if number >= 0] for kind in kinds]
    return list(zip(numbers, rows, strict=True))


class DescribedKeys(Sequence[bytes]):
    """The keys of the samples with indexes *rows* in *columns*, as bytes; each is encoded when it is used.

    A slice of it is a list. The table must have a key for each sample.
    """

    def __init__(self, columns: SampleColumns, rows: Sequence[int]) -> None:
        self._columns = columns
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, number: int) -> bytes: ...
    @overload
    def __getitem__(self, number: slice) -> list[bytes]: ...
    def __getitem__(self, number: int | slice) -> bytes | list[bytes]:
        keys = self._columns.values(schema.KEY_COLUMN) or ()
        if isinstance(number, slice):
            return [keys[row].encode("utf-8", "surrogateescape") for row in self._rows[number]]
        return keys[self._rows[number]].encode("utf-8", "surrogateescape")  # type: ignore[no-any-return]


class DescribedColumn(FieldColumn):
    """The field with index *number* of *places*, for the samples with indexes *rows* in *batch*.

    *columns*: the values of the samples of *batch* in the table.
    Sizes, offsets and values come from the table; samples are read only if members or payloads are asked for.
    """

    def __init__(
        self, batch: Batch, columns: SampleColumns, places: ListedPlaces, number: int, rows: Sequence[int]
    ) -> None:
        super().__init__(places.fields[number])
        self._batch, self._columns, self._places, self._number, self._rows = batch, columns, places, number, rows

    @property
    def members(self) -> Sequence[Member]:
        """The member of each sample, for which all the samples are read, again at each access.

        Raises: SampleError if a sample lacks the field, in the same case, or has it twice; the errors of reading
        samples, such as StorageError.
        """
        flags = [False] * len(self._batch)
        for row in self._rows:
            flags[row] = True
        members: list[Member] = []
        for _, part, first, last in self._batch.split(flags, False):
            for sample in islice(part, first, last):
                member = sample.member(self.name, verbatim=True)
                if member is None:
                    raise failure_of(sample, f" has no field {self.name!r}, which the table lists")
                members.append(member)
        return members

    @cached_property
    def sizes(self) -> list[int]:
        """The sizes of the payloads, in bytes."""
        return self._places.sizes[self._rows, self._number].tolist()  # type: ignore[no-any-return]

    def offsets(self) -> Sequence[int]:
        """Return for each sample the offset of the payload, in bytes, in the shard that has it."""
        return self._places.offsets[self._rows, self._number].tolist()  # type: ignore[no-any-return]

    def value_counts(self, max_bytes: int) -> dict[str, int] | None:
        """Return text -> count of each value in the table's column of the field; None if there is no such column.

        Values of payloads that are larger than *max_bytes*, and nulls, are not counted. Raises: StorageError for a
        column that can't be read, such as text that is not UTF-8.
        """
        values = self._columns.values(self.name)
        if values is None:
            return None
        short = (values[row] for row, size in zip(self._rows, self.sizes, strict=True) if size <= max_bytes)
        return dict(Counter(as_text(value) for value in short if value is not None))

    def picture_facts(self, measure: Callable[[Member], tuple[Any, ...]]) -> Sequence[tuple[Any, ...] | None] | None:
        """Return (width, height, format, None, fault) of each picture from the table; None if a column is missing.

        They are "jpg.width", "jpg.height", "jpg.format" and "jpg.broken" for the field jpg. An item is None if the
        table has neither fault nor whole numbers for both width and height. The fault is None for a picture that is not
        broken; an empty text in the table becomes "-", as a format that is null. Nothing is measured: *measure* is for
        the other kinds of columns. Raises: StorageError for a column that can't be read.
        """
        rows = self.facts(PICTURE_COLUMNS, measure)
        return rows and [
            (width, height, "-" if form is None else str(form), None, None if why is None else str(why or "-"))
            if why is not None or (isinstance(width, int) and isinstance(height, int))
            else None
            for width, height, form, why in (row or (None,) * len(PICTURE_COLUMNS) for row in rows)
        ]

    def facts(
        self, names: Sequence[str], measure: Callable[[Member], tuple[Any, ...]]
    ) -> Sequence[tuple[Any, ...] | None] | None:
        """Return a tuple of the facts *names* of each payload from the table; None if it lacks a column of them.

        *names*: at least one. The column of "width" is "jpg.width" for the field jpg. An item is None if all its facts
        are null. Nothing is measured: *measure* is for the other kinds of columns. Raises: StorageError for a column
        that can't be read.
        """
        columns = [self._columns.values(f"{self.name}.{name}") for name in names]
        if any(values is None for values in columns):
            return None
        rows = zip(*([values[row] for row in self._rows] for values in columns if values is not None), strict=True)
        return [None if all(value is None for value in row) else row for row in rows]
