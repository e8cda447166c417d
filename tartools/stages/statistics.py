"""Statistics of shards and tables: what is in the samples of a batch, and in those that a table lists, by its columns.

The counts are a `stages.summary`; what columns don't describe is read. Begin reading at `summarize`.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from tartools.errors import printable, shown
from tartools.samples.account import Account
from tartools.samples.sample import Batch
from tartools.samples.values import as_text
from tartools.shards.reading import counted
from tartools.stages import summary
from tartools.stages.combinations import Combination, by_combination, heads_of, text
from tartools.stages.summary import Distribution, FieldSummary, PictureCounts, Summary
from tartools.tables import schema, source
from tartools.tables.listed import ListedBatch, TableColumns
from tartools.tables.rowplaces import runs_of_equal
from tartools.tables.schema import is_table
from tartools.tar import BLOCK, Member
from tartools.tar.groups import Alike

LONGEST = 256  # bytes of a value that counts as a class


class FieldKinds(NamedTuple):
    """Which fields hold *classes*, which hold *pictures*, and a function such as `decoding.facts`."""

    classes: Callable[[str], bool]
    pictures: Callable[[str], bool]
    measure: Callable[[Member], tuple[Any, ...]]


def classes_in(named: Sequence[str]) -> Callable[[str], bool]:
    """Return what tells whether the values of a field are classes: those *named*, whatever their case, cls, cls.*."""
    folded = {"cls", *map(str.lower, named)}
    return lambda name: name.lower() in folded or name.lower().startswith("cls.")


def count_batch(batch: Batch, kinds: FieldKinds, listed: int) -> Summary:
    """Return the counts of *batch*, with up to *listed* keys. Only the payloads that *kinds* names are read.

    Raises: StorageError if the file that it was read from has become shorter.
    """
    found = Summary(listed)
    found.samples, found.first = len(batch), text(batch.keys[0])
    if batch.groups is not None:
        source, keys, starts, members, firsts, alike = batch.groups
        if alike is not None and count_alike(batch, alike, kinds, found):
            return found
        if alike is not None:
            members, firsts = alike.members(source, keys), alike.firsts()
        members = members or []
        found.stored = starts[-1] - starts[0]
    else:
        keys, members, firsts = batch.keys, list(batch[0].members), [0]
    found.members = len(members)
    for size, count in Counter(map(itemgetter(4), members)).items():
        found.payloads += size * count
        found.padding += -size % BLOCK * count
    if batch.groups is None:
        headers = sum(data - start if head is None else BLOCK for _, _, start, data, _, head in members)
        found.stored = headers + found.payloads + found.padding
    found.shards = count_shards(batch, found.stored)
    combinations = by_combination(keys, members, firsts)
    for group in combinations:
        first = list(zip(group.numbers[:listed], map(text, group.keys[:listed]), strict=True))
        found.combined("/".join(group.fields), len(group.keys), first)
    count_fields(combinations, kinds, found)
    return found


def count_alike(batch: Batch, alike: Alike, kinds: FieldKinds, found: Summary) -> bool:
    """Add the counts of *batch*, whose samples have the same fields, to *found*, if its payloads are in memory.

    Not if there are pictures. Returns whether it was done: several times as fast as one member after the other.
    """
    assert batch.groups is not None
    source, keys, starts, *_ = batch.groups
    names = list(map(text, alike.fields))
    if isinstance(source, io.FileIO) or len({*names}) < len(names) or any(map(kinds.pictures, names)):
        return False
    for number, name in enumerate(names):
        sizes = alike.sizes[:, number]
        field = found.fields[name] = FieldSummary(len(keys), len(keys), sizes=Distribution.of(sizes.tolist()))
        found.payloads += field.sizes.total
        found.padding += int((-sizes % BLOCK).sum())
        if kinds.classes(name):
            short = [payload for payload in alike.payloads(source, number) if len(payload) <= LONGEST]
            field.long = len(keys) - len(short)
            field.classes = count_classes(map(bytes, short))
    found.members = len(keys) * len(names)
    found.stored = starts[-1] - starts[0]
    found.shards = count_shards(batch, found.stored)
    found.combined("/".join(names), len(keys), list(enumerate(map(text, keys[: found.listed]))))
    return True


def count_shards(batch: Batch, size: int) -> dict[str, list[int]]:
    """Return [samples, bytes] for each shard that the samples of *batch*, which take *size* bytes, were read from."""
    if len(batch.shards) == 1:
        return {batch.shards[0]: [len(batch), size]}
    found: dict[str, list[int]] = {}
    for sample in batch:
        known = found.setdefault(sample.shard, [0, 0])
        known[0] += 1
        known[1] += sample.size
    return found


def count_fields(combinations: Sequence[Combination], kinds: FieldKinds, found: Summary) -> None:
    """Add the counts of each field in *combinations* to *found*, unless there are more than MOST fields."""
    columns: dict[str, list[Sequence[Member]]] = {}
    for group in combinations:
        for name, column in zip(group.fields, group.columns, strict=True):
            columns.setdefault(name, []).append(column)
    if len(columns) > summary.MOST:
        found.many_fields = True
        return
    fields = found.fields = {name: FieldSummary() for name in columns}
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
    found = [
        (number, key, member)
        for group in combinations
        for field, column in zip(group.fields, group.columns, strict=True)
        if field == name
        for number, key, member in zip(group.numbers, group.keys, column, strict=True)
    ]
    found.sort(key=itemgetter(0))  # so that the first one does not depend on how the input is cut into batches
    return PictureCounts.of([(text(key), kinds.measure(Member._make(member))) for _, key, member in found])


def count_field(name: str, column: Sequence[Member], kinds: FieldKinds) -> FieldSummary:
    """Return the counts of the members *column* of the field *name*, without those of pictures."""
    found = FieldSummary(len(column), sizes=Distribution.of(map(itemgetter(4), column)))
    if kinds.classes(name):
        short = (
            column if (found.sizes.greatest or 0) <= LONGEST else [member for member in column if member[4] <= LONGEST]
        )
        found.long = len(column) - len(short)
        found.classes = count_classes(heads_of(short, LONGEST)(short))
    return found


def count_classes(payloads: Iterable[bytes]) -> summary.Counts:
    """Return how often each value is among *payloads*; None if there are more than MOST."""
    classes: dict[str, int] = {}
    for payload, count in Counter(payloads).items():
        value = text(payload).removesuffix("\n")
        classes[value] = classes.get(value, 0) + count
    return summary.bounded(classes)


# ---- by the columns of tables ----


FEW = 1000  # keys that are always listed
PICTURE = ("width", "height", "format", "broken")  # columns of a table for each field of pictures
NOWHERE = 1 << 62  # offset of a member that a sample lacks


class ListedPlaces(NamedTuple):
    """Samples as rows of arrays: where they *begin*, and which *fields* they have.

    *order* has the numbers of the fields of each sample in the order of the archive, then -1; *offsets* and *sizes* of
    their payloads have a column for each field. An offset of a field that a sample lacks is NOWHERE.
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
    """Return the counts of *batches*, with up to *listed* keys; of tables, which have so many *fields*, by columns.

    *account* counts their samples as done.

    Holds: the counts. Raises: what *batches* raise; StorageError.
    """
    found = Summary(listed)
    for batch in counted(batches, account, done=True):
        part = (
            count_listed(batch, kinds, listed, fields)
            if isinstance(batch, ListedBatch)
            else count_batch(batch, kinds, listed)
        )
        found.add(part, found.samples)
    return found


def count_listed(batch: ListedBatch, kinds: FieldKinds, listed: int, fields: int) -> Summary:
    """Return the counts of *batch* as `count_batch` does; classes and pictures only if there are columns.

    There are so many *fields* in all. Of many keys, those of samples that have all of them are left out: they are asked
    for only if there are samples without any field too, and take much memory.

    Raises: StorageError for columns that can't be true.
    """
    found = Summary(listed)
    columns = batch.columns
    members = columns.members() if columns.values("__key__") is not None else None
    if members is None:
        for part in batch.batches():
            found.add(count_batch(part, kinds, listed), found.samples)
        return found
    places = places_of(columns, *members)
    for low, high in runs_of_equal(places.described):
        if places.described[low]:
            found.add(_count(columns, places.part(low, high), low, kinds, listed, fields), found.samples)
        else:
            for part in batch.batches(low, high):
                found.add(count_batch(part, kinds, listed), found.samples)
    return found


def places_of(columns: TableColumns, fields: Sequence[str], offsets: Any, sizes: Any) -> ListedPlaces:
    """Return the places of samples whose *fields* have *offsets* and *sizes*: see `TableColumns.members`."""
    import numpy as np

    begins, ends = columns.piece.begins, columns.piece.ends
    known = (offsets >= -1).all(axis=1)
    offsets = np.where(offsets < 0, NOWHERE, offsets)
    order = np.argsort(offsets, axis=1, kind="stable")
    starts = np.take_along_axis(offsets, order, axis=1)
    absent = starts == NOWHERE
    stops = starts + _padded(np.take_along_axis(sizes, order, axis=1))
    count = (~absent).sum(axis=1)
    headers = starts - np.concatenate([begins[:, None], stops[:, :-1]], axis=1)
    sound = absent | ((headers >= BLOCK) & (headers % BLOCK == 0))
    last = stops[np.arange(len(stops)), np.maximum(count, 1) - 1] if len(fields) else begins
    described = known & sound.all(axis=1) & (count > 0) & (last == ends)
    return ListedPlaces(fields, begins, ends, offsets, sizes, np.where(absent, -1, order), described)


def _padded(sizes: Any) -> Any:
    return (sizes + (BLOCK - 1)) // BLOCK * BLOCK


def _count(
    columns: TableColumns, places: ListedPlaces, low: int, kinds: FieldKinds, listed: int, fields: int
) -> Summary:
    """Return the counts of *places*, which are rows of *columns* from number *low* on."""
    import numpy as np

    present = places.offsets != NOWHERE
    sizes = np.where(present, places.sizes, 0)
    found = Summary(listed)
    found.samples, found.members, found.first = len(places.begins), int(present.sum()), columns.keys([low])[0]
    found.stored = int((places.ends - places.begins).sum())
    found.payloads = int(sizes.sum())
    found.padding = int(_padded(sizes).sum()) - found.payloads
    found.shards = _shards(columns, places, low)
    combinations = _combinations(places.order)
    for order, rows in combinations:
        told = rows[: 0 if listed > FEW and len(order) == fields else listed]
        first = list(zip(told.tolist(), columns.keys((told + low).tolist()), strict=True))
        found.combined("/".join(places.fields[number] for number in order), len(rows), first)
    for number in dict.fromkeys(number for order, _ in combinations for number in order):
        found.counted(places.fields[number], _field(columns, places, low, number, kinds))
    return found


def _shards(columns: TableColumns, places: ListedPlaces, low: int) -> dict[str, list[int]]:
    """Return [samples, bytes] of each shard, in order of appearance."""
    import numpy as np

    urls, numbers = columns.shards()
    numbers = numbers[low : low + len(places.begins)]
    found: dict[str, list[int]] = {}
    for first in np.sort(np.unique(numbers, return_index=True)[1]).tolist():
        url, mask = urls[numbers[first]], numbers == numbers[first]
        known = found.setdefault(url, [0, 0])
        known[0] += int(mask.sum())
        known[1] += int((places.ends - places.begins)[mask].sum())
    return found


def _combinations(order: Any) -> list[tuple[list[int], Any]]:
    """Return the combinations of fields in order of appearance: their numbers, and the rows that have them."""
    import numpy as np

    if (order == order[0]).all():
        return [([number for number in order[0].tolist() if number >= 0], np.arange(len(order)))]
    rows = np.ascontiguousarray(order.astype(np.int16))
    _, first, which = np.unique(rows.view(f"V{rows.shape[1] * 2}").ravel(), return_index=True, return_inverse=True)
    return [
        ([number for number in order[first[kind]].tolist() if number >= 0], np.flatnonzero(which == kind))
        for kind in np.argsort(first).tolist()
    ]


def _field(columns: TableColumns, places: ListedPlaces, low: int, number: int, kinds: FieldKinds) -> FieldSummary:
    import numpy as np

    name, present = places.fields[number], places.offsets[:, number] != NOWHERE
    sizes = places.sizes[present, number]
    found = FieldSummary(len(sizes), len(sizes), sizes=Distribution.of(sizes.tolist()))
    if len(sizes) < len(present):
        found.lacking = columns.keys([low + int(present.argmin())])[0]
    if kinds.classes(name):
        short = np.flatnonzero(present & (places.sizes[:, number] <= LONGEST)) + low
        values = columns.taken(name, short.tolist())
        if values is not None:
            classes = Counter(as_text(value) for value in values if value is not None)
            found.classes, found.long = summary.bounded(dict(classes)), len(sizes) - len(short)
    if kinds.pictures(name):
        found.pictures = _pictures(columns, name, np.flatnonzero(present) + low)
    return found


def _pictures(columns: TableColumns, name: str, rows: Any) -> PictureCounts | None:
    """Return the counts of the pictures of field *name* in *rows*; None if there are no columns for them."""
    described = [columns.taken(f"{name}.{what}", rows.tolist()) for what in PICTURE]
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
    urls: Sequence[str], named: Sequence[str], kinds: FieldKinds, account: Account
) -> tuple[list[str], int]:
    """Return the columns from which samples are counted, if all *urls* are tables that have them, else none.

    Also how many fields the tables have together.

    Of fields that are not *named*, classes and pictures for which there are no columns are left out, with a warning.
    """
    if not all(map(is_table, urls)):
        return [], 0
    found: dict[str, None] = {schema.KEY: None, schema.MEMBERS: None}
    fields, classes, pictures = set[str](), set[str](), set[str]()  # the last two without columns
    for url in urls:
        with source.opened(url) as table:
            if table.fields is None or schema.KEY not in table.names:
                return [], 0
            fields.update(table.fields)
            classes.update(name for name in filter(kinds.classes, table.fields) if name not in table.names)
            for name in filter(kinds.pictures, table.fields):
                if not {f"{name}.{what}" for what in PICTURE}.issubset(table.names):
                    pictures.add(name)
            found |= dict.fromkeys(filter(kinds.classes, table.fields))
            found |= {f"{name}.{what}": None for name in filter(kinds.pictures, table.fields) for what in PICTURE}
    if {name.lower() for name in named} & {name.lower() for name in classes}:
        return [], 0
    lost = [f"classes of {' '.join(sorted(classes))} (tarindex -f)"] if classes else []
    lost += [f"pictures of {' '.join(sorted(pictures))} (tarindex --pictures)"] if pictures else []
    if lost:
        what = printable(" and ".join(lost))
        account.warn(f"{shown(urls[0])}: not counted, because there are no columns for them: {what}")
    gone = classes | {f"{name}.{what}" for name in pictures for what in PICTURE}
    return [name for name in found if name not in gone], len(fields)
