"""Statistics of shards and tables: counts of fields, sizes and keys, from the samples or from the columns of a table.

The counts are a `stages.summary`; samples that columns don't describe are read. Begin reading at `summarize`.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from tartools.errors import printable, shown
from tartools.samples.account import Account
from tartools.samples.batch import Batch
from tartools.samples.sample import text
from tartools.samples.values import as_text
from tartools.shards.reading import counted
from tartools.stages import summary
from tartools.stages.combinations import Combination, by_combination, heads_of
from tartools.stages.summary import Distribution, FieldSummary, PictureCounts, Summary
from tartools.tables import schema, source
from tartools.tables.listed import ListedBatch, TableColumns
from tartools.tables.rowplaces import runs_of_equal
from tartools.tables.schema import is_table
from tartools.tar import BLOCK, Member
from tartools.tar.groups import UniformGroups

MAX_CLASS_BYTES = 256  # bytes of a value that counts as a class


class FieldKinds(NamedTuple):
    """Predicates of field names, *classes* and *pictures*, and the function *measure*, such as `decoding.facts`."""

    classes: Callable[[str], bool]
    pictures: Callable[[str], bool]
    measure: Callable[[Member], tuple[Any, ...]]


def classes_in(class_fields: Sequence[str]) -> Callable[[str], bool]:
    """Return a predicate of field names, True for classes: *class_fields* in any case, cls, cls.*."""
    folded = {"cls", *map(str.lower, class_fields)}
    return lambda name: name.lower() in folded or name.lower().startswith("cls.")


def count_batch(batch: Batch, kinds: FieldKinds, listed: int) -> Summary:
    """Return the counts of *batch*, with up to *listed* keys. Only payloads of fields in *kinds* are read.

    Raises: StorageError if the file that it was read from has become shorter.
    """
    counts = Summary(listed)
    counts.samples, counts.first = len(batch), text(batch.keys[0])
    if batch.groups is not None:
        source, keys, starts, members, firsts, uniform = batch.groups
        if uniform is not None and count_uniform(batch, uniform, kinds, counts):
            return counts
        if uniform is not None:
            members, firsts = uniform.members(source, keys), uniform.firsts()
        members = members or []
        counts.stored = starts[-1] - starts[0]
    else:
        keys, members, firsts = batch.keys, list(batch[0].members), [0]
    counts.members = len(members)
    for size, count in Counter(map(itemgetter(4), members)).items():
        counts.payloads += size * count
        counts.padding += -size % BLOCK * count
    if batch.groups is None:
        headers = sum(data - start if head is None else BLOCK for _, _, start, data, _, head in members)
        counts.stored = headers + counts.payloads + counts.padding
    counts.shards = count_shards(batch, counts.stored)
    combinations = by_combination(keys, members, firsts)
    for group in combinations:
        first = list(zip(group.numbers[:listed], map(text, group.keys[:listed]), strict=True))
        counts.add_combination("/".join(group.fields), len(group.keys), first)
    count_fields(combinations, kinds, counts)
    return counts


def count_uniform(batch: Batch, uniform: UniformGroups, kinds: FieldKinds, counts: Summary) -> bool:
    """Add the counts of *batch*, with equal fields in all samples, to *counts*, if its payloads are in memory.

    Not if there are pictures. Returns True if it was done: several times as fast as one member after the other.
    """
    assert batch.groups is not None
    source, keys, starts, *_ = batch.groups
    names = list(map(text, uniform.fields))
    if isinstance(source, io.FileIO) or len({*names}) < len(names) or any(map(kinds.pictures, names)):
        return False
    for number, name in enumerate(names):
        sizes = uniform.sizes[:, number]
        field = counts.fields[name] = FieldSummary(len(keys), len(keys), sizes=Distribution.of(sizes.tolist()))
        counts.payloads += field.sizes.total
        counts.padding += int((-sizes % BLOCK).sum())
        if kinds.classes(name):
            short = [payload for payload in uniform.payloads(source, number) if len(payload) <= MAX_CLASS_BYTES]
            field.long = len(keys) - len(short)
            field.classes = count_classes(map(bytes, short))
    counts.members = len(keys) * len(names)
    counts.stored = starts[-1] - starts[0]
    counts.shards = count_shards(batch, counts.stored)
    counts.add_combination("/".join(names), len(keys), list(enumerate(map(text, keys[: counts.listed]))))
    return True


def count_shards(batch: Batch, size: int) -> dict[str, list[int]]:
    """Return [samples, bytes] for each shard that the samples of *batch*, which take *size* bytes, were read from."""
    if len(batch.shards) == 1:
        return {batch.shards[0]: [len(batch), size]}
    totals: dict[str, list[int]] = {}
    for sample in batch:
        shard_totals = totals.setdefault(sample.shard, [0, 0])
        shard_totals[0] += 1
        shard_totals[1] += sample.size
    return totals


def count_fields(combinations: Sequence[Combination], kinds: FieldKinds, counts: Summary) -> None:
    """Add the counts of each field in *combinations* to *counts*, unless there are over MAX_DISTINCT_VALUES fields."""
    columns: dict[str, list[Sequence[Member]]] = {}
    for group in combinations:
        for name, column in zip(group.fields, group.columns, strict=True):
            columns.setdefault(name, []).append(column)
    if len(columns) > summary.MAX_DISTINCT_VALUES:
        counts.many_fields = True
        return
    fields = counts.fields = {name: FieldSummary() for name in columns}
    for group in combinations:
        for name in set(group.fields):
            fields[name].samples += len(group.keys)
    for name, field in fields.items():
        if len(combinations) > 1:
            field.lacking = next((text(group.keys[0]) for group in combinations if name not in group.fields), None)
        for column in columns[name]:
            field.add(count_field(name, column, kinds))
        if kinds.pictures(name):
            field.pictures = count_pictures([group for group in combinations if name in group.fields], name, kinds)


def count_pictures(combinations: Sequence[Combination], name: str, kinds: FieldKinds) -> PictureCounts:
    """Return the counts of the pictures of the field *name*, which is in all of *combinations*."""
    rows = [
        (number, key, member)
        for group in combinations
        for field, column in zip(group.fields, group.columns, strict=True)
        if field == name
        for number, key, member in zip(group.numbers, group.keys, column, strict=True)
    ]
    rows.sort(key=itemgetter(0))  # so that the first one does not depend on how the input is cut into batches
    return PictureCounts.of([(text(key), kinds.measure(Member._make(member))) for _, key, member in rows])


def count_field(name: str, column: Sequence[Member], kinds: FieldKinds) -> FieldSummary:
    """Return the counts of the members *column* of the field *name*, without counts of pictures."""
    field_summary = FieldSummary(len(column), sizes=Distribution.of(map(itemgetter(4), column)))
    if kinds.classes(name):
        short = (
            column
            if (field_summary.sizes.maximum or 0) <= MAX_CLASS_BYTES
            else [member for member in column if member[4] <= MAX_CLASS_BYTES]
        )
        field_summary.long = len(column) - len(short)
        field_summary.classes = count_classes(heads_of(short, MAX_CLASS_BYTES)(short))
    return field_summary


def count_classes(payloads: Iterable[bytes]) -> summary.Counts:
    """Return the count of each value in *payloads*; None if there are more than MAX_DISTINCT_VALUES."""
    classes: dict[str, int] = {}
    for payload, count in Counter(payloads).items():
        value = text(payload).removesuffix("\n")
        classes[value] = classes.get(value, 0) + count
    return summary.bounded(classes)


# ---- by the columns of tables ----


MAX_KEYS_LISTED = 1000  # keys that are always listed
PICTURE_COLUMNS = ("width", "height", "format", "broken")  # columns of a table for each field of pictures
NO_OFFSET = 1 << 62  # offset of a member that a sample lacks


class ListedPlaces(NamedTuple):
    """Samples as rows of arrays: their extents, from *begins* to *ends*, and their *fields*.

    *order* has the numbers of the fields of each sample in the order of the archive, then -1; *offsets* and *sizes* of
    their payloads have a column for each field. The offset of a field that a sample lacks is NO_OFFSET.
    """

    fields: Sequence[str]
    begins: Any
    ends: Any
    offsets: Any
    sizes: Any
    order: Any
    described: Any  # whether these are all members of the sample

    def part(self, low: int, high: int) -> ListedPlaces:
        """Return rows *low* to *high*."""
        return self._replace(**{name: rows[low:high] for name, rows in self._asdict().items() if name != "fields"})


def summarize(batches: Iterable[Batch], kinds: FieldKinds, listed: int, fields: int, account: Account) -> Summary:
    """Return the counts of *batches*, with up to *listed* keys. Table columns are used where they exist.

    *fields*: number of distinct fields in all tables. *account* counts the samples as done.

    Holds: the counts. Raises: the errors of *batches*; StorageError.
    """
    counts = Summary(listed)
    for batch in counted(batches, account, done=True):
        part = (
            count_listed(batch, kinds, listed, fields)
            if isinstance(batch, ListedBatch)
            else count_batch(batch, kinds, listed)
        )
        counts.add(part, counts.samples)
    return counts


def count_listed(batch: ListedBatch, kinds: FieldKinds, listed: int, fields: int) -> Summary:
    """Return the counts of *batch* as `count_batch` does; classes and pictures only if there are columns.

    *fields*: number of fields in all tables. Of many keys, keys of samples with all fields are left out: they are asked
    for only if there are samples without any field too, and take much memory.

    Raises: StorageError for columns that can't be true.
    """
    counts = Summary(listed)
    columns = batch.columns
    members = columns.members() if columns.values("__key__") is not None else None
    if members is None:
        for part in batch.batches():
            counts.add(count_batch(part, kinds, listed), counts.samples)
        return counts
    places = places_of(columns, *members)
    for low, high in runs_of_equal(places.described):
        if places.described[low]:
            counts.add(_count(columns, places.part(low, high), low, kinds, listed, fields), counts.samples)
        else:
            for part in batch.batches(low, high):
                counts.add(count_batch(part, kinds, listed), counts.samples)
    return counts


def places_of(columns: TableColumns, fields: Sequence[str], offsets: Any, sizes: Any) -> ListedPlaces:
    """Return the places of samples whose *fields* have *offsets* and *sizes*: see `TableColumns.members`."""
    import numpy as np

    begins, ends = columns.extents.begins, columns.extents.ends
    no_repeated_field = (offsets >= -1).all(axis=1)
    offsets = np.where(offsets < 0, NO_OFFSET, offsets)
    order = np.argsort(offsets, axis=1, kind="stable")
    starts = np.take_along_axis(offsets, order, axis=1)
    absent = starts == NO_OFFSET
    stops = starts + _padded(np.take_along_axis(sizes, order, axis=1))
    count = (~absent).sum(axis=1)
    headers = starts - np.concatenate([begins[:, None], stops[:, :-1]], axis=1)
    sound = absent | ((headers >= BLOCK) & (headers % BLOCK == 0))
    last = stops[np.arange(len(stops)), np.maximum(count, 1) - 1] if len(fields) else begins
    described = no_repeated_field & sound.all(axis=1) & (count > 0) & (last == ends)
    return ListedPlaces(fields, begins, ends, offsets, sizes, np.where(absent, -1, order), described)


def _padded(sizes: Any) -> Any:
    return (sizes + (BLOCK - 1)) // BLOCK * BLOCK


def _count(
    columns: TableColumns, places: ListedPlaces, low: int, kinds: FieldKinds, listed: int, fields: int
) -> Summary:
    """Return the counts of *places*, which are rows of *columns* from number *low* on."""
    import numpy as np

    present = places.offsets != NO_OFFSET
    sizes = np.where(present, places.sizes, 0)
    counts = Summary(listed)
    counts.samples, counts.members, counts.first = len(places.begins), int(present.sum()), columns.keys([low])[0]
    counts.stored = int((places.ends - places.begins).sum())
    counts.payloads = int(sizes.sum())
    counts.padding = int(_padded(sizes).sum()) - counts.payloads
    counts.shards = _shards(columns, places, low)
    combinations = _combinations(places.order)
    for order, rows in combinations:
        listed_rows = rows[: 0 if listed > MAX_KEYS_LISTED and len(order) == fields else listed]
        first = list(zip(listed_rows.tolist(), columns.keys((listed_rows + low).tolist()), strict=True))
        counts.add_combination("/".join(places.fields[number] for number in order), len(rows), first)
    for number in dict.fromkeys(number for order, _ in combinations for number in order):
        counts.add_field(places.fields[number], _field(columns, places, low, number, kinds))
    return counts


def _shards(columns: TableColumns, places: ListedPlaces, low: int) -> dict[str, list[int]]:
    """Return [samples, bytes] of each shard, in order of appearance."""
    import numpy as np

    urls, numbers = columns.shards()
    numbers = numbers[low : low + len(places.begins)]
    totals: dict[str, list[int]] = {}
    for first in np.sort(np.unique(numbers, return_index=True)[1]).tolist():
        url, mask = urls[numbers[first]], numbers == numbers[first]
        shard_totals = totals.setdefault(url, [0, 0])
        shard_totals[0] += int(mask.sum())
        shard_totals[1] += int((places.ends - places.begins)[mask].sum())
    return totals


def _combinations(order: Any) -> list[tuple[list[int], Any]]:
    """Return the combinations of fields in order of appearance: their numbers, and the rows that have them."""
    import numpy as np

    if (order == order[0]).all():
        return [([number for number in order[0].tolist() if number >= 0], np.arange(len(order)))]
    rows = np.ascontiguousarray(order.astype(np.int16))
    _, first, kind_of_row = np.unique(
        rows.view(f"V{rows.shape[1] * 2}").ravel(), return_index=True, return_inverse=True
    )
    return [
        ([number for number in order[first[kind]].tolist() if number >= 0], np.flatnonzero(kind_of_row == kind))
        for kind in np.argsort(first).tolist()
    ]


def _field(columns: TableColumns, places: ListedPlaces, low: int, number: int, kinds: FieldKinds) -> FieldSummary:
    import numpy as np

    name, present = places.fields[number], places.offsets[:, number] != NO_OFFSET
    sizes = places.sizes[present, number]
    field_summary = FieldSummary(len(sizes), len(sizes), sizes=Distribution.of(sizes.tolist()))
    if len(sizes) < len(present):
        field_summary.lacking = columns.keys([low + int(present.argmin())])[0]
    if kinds.classes(name):
        short = np.flatnonzero(present & (places.sizes[:, number] <= MAX_CLASS_BYTES)) + low
        values = columns.take(name, short.tolist())
        if values is not None:
            classes = Counter(as_text(value) for value in values if value is not None)
            field_summary.classes, field_summary.long = summary.bounded(dict(classes)), len(sizes) - len(short)
    if kinds.pictures(name):
        field_summary.pictures = _pictures(columns, name, np.flatnonzero(present) + low)
    return field_summary


def _pictures(columns: TableColumns, name: str, rows: Any) -> PictureCounts | None:
    """Return the counts of the pictures of field *name* in *rows*; None if there are no columns for them."""
    described = [columns.take(f"{name}.{column}", rows.tolist()) for column in PICTURE_COLUMNS]
    if any(values is None for values in described):
        return None
    pictures = list(zip(*described, strict=True))
    broken = [number for number, (*_, why) in enumerate(pictures) if why is not None]
    keys = dict(zip(broken, columns.keys(rows[broken].tolist()), strict=True))
    return PictureCounts.of(
        [
            (keys.get(number, ""), (width, height, str(form), None, str(why or "-") if number in keys else None))
            for number, (width, height, form, why) in enumerate(pictures)
            if number in keys or (isinstance(width, int) and isinstance(height, int))
        ]
    )


def columns_of_tables(
    urls: Sequence[str], class_fields: Sequence[str], kinds: FieldKinds, account: Account
) -> tuple[list[str], int]:
    """Return the columns from which samples are counted, if all *urls* are tables that have them, else none.

    Also returns the number of fields of all tables.

    Classes and pictures without columns are left out, with a warning, unless they are in *class_fields*.
    """
    if not all(map(is_table, urls)):
        return [], 0
    columns: dict[str, None] = {schema.KEY_COLUMN: None, schema.MEMBERS_COLUMN: None}
    fields, classes, pictures = set[str](), set[str](), set[str]()  # the last two without columns
    for url in urls:
        with source.open_table(url) as table:
            if table.fields is None or schema.KEY_COLUMN not in table.names:
                return [], 0
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
    missing_columns = classes | {f"{name}.{column}" for name in pictures for column in PICTURE_COLUMNS}
    return [name for name in columns if name not in missing_columns], len(fields)
