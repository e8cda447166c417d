"""Count all samples of the input; those that a table lists by its columns, and what these don't describe is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from tartools.errors import printable, shown
from tartools.samples.account import Account
from tartools.samples.sample import Batch
from tartools.stages.statistics.counting import LONGEST, FieldKinds, count_batch
from tartools.stages.summary import DIGITS, Distribution, FieldSummary, PictureCounts, Summary, Tally, bounded
from tartools.tables import schema, source
from tartools.tables.listed import ListedBatch
from tartools.tables.schema import is_table
from tartools.tar import BLOCK

if TYPE_CHECKING:
    from tartools.tables.columnvalues import TableColumns

FEW = 1000  # keys that are always listed
PICTURE = ("format", "width", "height", "broken")  # columns of a table for each field of pictures
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


def summarize(batches: Iterable[Batch], kinds: FieldKinds, listed: int, fields: int) -> Summary:
    """Return the counts of *batches*, with up to *listed* keys; of tables, which have so many *fields*, by columns.

    Holds: the counts. Raises: what *batches* raise; StorageError.
    """
    found = Summary(listed)
    for batch in batches:
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
    for low, high in _runs(places.described):
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


def _runs(flags: Any) -> Iterator[tuple[int, int]]:
    """Yield (first, last + 1) of each run of equal *flags*."""
    import numpy as np

    cuts = [0, *(np.flatnonzero(flags[1:] != flags[:-1]) + 1).tolist(), len(flags)]
    yield from pairwise(cuts)


def _count(
    columns: TableColumns, places: ListedPlaces, low: int, kinds: FieldKinds, listed: int, fields: int
) -> Summary:
    """Return the counts of *places*, which are rows of *columns* from number *low* on."""
    import numpy as np

    present = places.offsets != NOWHERE
    sizes = np.where(present, places.sizes, 0)
    padded = int(_padded(sizes).sum())
    found = Summary(listed)
    found.samples, found.members, found.first = len(places.begins), int(present.sum()), columns.keys([low])[0]
    found.stored = int((places.ends - places.begins).sum())
    found.payloads = int(sizes.sum())
    found.padding = padded - found.payloads
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
    """Return the counts of field *number*."""
    import numpy as np

    name, present = places.fields[number], places.offsets[:, number] != NOWHERE
    sizes = places.sizes[present, number]
    found = FieldSummary(len(sizes), len(sizes), sizes=distribution(sizes))
    if len(sizes) < len(present):
        found.lacking = columns.keys([low + int(present.argmin())])[0]
    if kinds.classes(name):
        short = np.flatnonzero(present & (places.sizes[:, number] <= LONGEST)) + low
        counts = columns.counts(name, short.tolist())
        if counts is not None:
            found.classes, found.long = bounded(counts), len(sizes) - len(short)
    if kinds.pictures(name):
        found.pictures = _pictures(columns, name, np.flatnonzero(present) + low)
    return found


def _pictures(columns: TableColumns, name: str, rows: Any) -> PictureCounts | None:
    """Return the counts of the pictures of field *name* in *rows*; None if there are no columns for them."""
    import numpy as np

    described = [columns.taken(f"{name}.{what}", rows.tolist()) for what in PICTURE]
    if any(values is None for values in described):
        return None
    pictures = list(zip(*described, strict=True))
    broken = [number for number, (*_, why) in enumerate(pictures) if why is not None]
    sound = [
        (str(form), width, height)
        for form, width, height, why in pictures
        if why is None and isinstance(width, int) and isinstance(height, int)
    ]
    sides = np.array([(width, height) for _, width, height in sound], np.int64).reshape(-1, 2)
    return PictureCounts(
        dict(Counter(form for form, _, _ in sound)),
        bounded(
            {f"{width}x{height}": count for (width, height), count in Counter(map(itemgetter(1, 2), sound)).items()}
        ),
        distribution(sides[:, 0]),
        distribution(sides[:, 1]),
        Tally(len(broken), columns.keys(rows[broken].tolist())),
        str(pictures[broken[0]][3]) if broken else None,
    )


def distribution(numbers: Any) -> Distribution:
    """Return the distribution of an array of *numbers*, each from 0 to 2 ** 52: as `Distribution.of` does."""
    import numpy as np

    if not len(numbers):
        return Distribution()
    digits = np.frexp(numbers.astype(np.float64))[1]
    shift = np.maximum(0, digits - DIGITS).astype(np.int64)
    low, counts = np.unique(numbers >> shift << shift, return_counts=True)
    buckets = dict(zip(low.tolist(), counts.tolist(), strict=True))
    return Distribution(int(numbers.sum()), int(numbers.min()), int(numbers.max()), buckets)


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
