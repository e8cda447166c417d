"""Values of samples for the cells of a table of text: from the samples, or from the columns of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tartools.errors import SampleError
from tartools.samples.sample import Batch, Sample
from tartools.samples.values import INDEX, PSEUDO, Column, as_text, field_list, getter, lookup

if TYPE_CHECKING:
    from tartools.samples.account import Account
    from tartools.samples.columns import Columns

ABSENT = object()  # the sample lacks the value of a JSON column; None is JSON's null

Getter = Callable[[Sample, int], object]


class ListedRow:
    """A row of a table whose sample was not read."""

    __slots__ = ("_columns", "_number")

    def __init__(self, columns: Columns, number: int) -> None:
        self._columns = columns
        self._number = number

    @property
    def key(self) -> str:
        """The key of the sample; empty if the table has none."""
        return str((self._columns.values("__key__") or {self._number: ""})[self._number])

    @property
    def shard(self) -> str:
        """The URL of the table."""
        return self._columns.url

    @property
    def fields(self) -> list[str]:
        """The names of the columns that have values of samples."""
        return [name for name in self._columns.names if not name.startswith("__")]

    def lacks(self, name: str) -> SampleError:
        """Return the failure that the row has no value *name*, or that there is no such column."""
        advice = "(--fill STR writes STR instead)"
        if name not in self._columns.names:
            have = field_list(dict.fromkeys([*(self._columns.fields or ()), *self.fields]))
            return SampleError(f"no sample has {name!r}; the fields and columns are: {have} {advice}", url=self.shard)
        return SampleError(
            f"row {self._columns.first + self._number} (sample {self.key!r}) has no value in the column {name!r} "
            f"{advice}",
            url=self.shard,
        )


def wanted(columns: Iterable[Column]) -> list[str]:
    """Return the names of the columns of a table that may have values of *columns*."""
    names = [
        name for column in columns for name in (_whole(column), *(_of_choice(column, one) for one in column.choices))
    ]
    return list(dict.fromkeys(names))


def values(
    batches: Iterable[Batch],
    columns: Sequence[Column],
    typed: bool,
    verbatim: bool,
    account: Account,
    together: Callable[[Batch], bytes | None] | None = None,
) -> Iterator[tuple[Any, Sample | ListedRow | Batch]]:
    """Yield the values of *columns* for each sample of *batches*, and the sample, which is counted in *account*.

    They are text, or None if there is none; if *typed*, they have their types in JSON, and are ABSENT if there is none.
    Of samples that a table lists, values come from its columns where it has them, and what it has in full is not read.
    Where *together* makes lines of a whole batch, these and the batch come instead. Holds: a batch.
    """
    of = json_getter if typed else getter
    getters = [of(column, verbatim=verbatim) for column in columns]
    index = 0
    for batch in batches:
        if batch.columns is not None:
            for found in _of_listed(batch, batch.columns, columns, typed, index):
                account.samples_in += 1
                yield found
            index += len(batch)
            continue
        if together is not None and (lines := together(batch)) is not None:
            account.samples_in += len(batch)
            yield lines, batch
            index += len(batch)
            continue
        for sample in batch:
            account.samples_in += 1
            yield [get(sample, index) for get in getters], sample
            index += 1


def json_getter(column: Column, *, verbatim: bool) -> Getter:
    """Return a function (sample, index) -> value of *column* with its JSON type; ABSENT if the sample has no value."""

    def value(sample: Sample, index: int) -> object:
        found = lookup(sample, column, index, verbatim=verbatim)
        return ABSENT if found is None else found[0]

    return value


def _of_listed(
    batch: Batch, listed: Columns, columns: Sequence[Column], typed: bool, index: int
) -> Iterator[tuple[list[Any], Sample | ListedRow]]:
    """Yield what `values` yields for *batch*, whose samples the table with the columns *listed* lists."""
    nothing = ABSENT if typed else None
    sources = [_sources(column, listed, typed, range(index, index + len(batch))) for column in columns]
    if not any(callable(source) for several in sources for source in several):
        cells = [
            several[0] if len(several) == 1 else [_first(each, nothing) for each in zip(*several, strict=True)]
            for several in sources
        ]
        for number, row in enumerate(zip(*cells, strict=True)):
            yield list(row), ListedRow(listed, number)
        return
    for number, sample in enumerate(batch):
        yield (
            [
                _first(
                    (source(sample, index + number) if callable(source) else source[number] for source in several),
                    nothing,
                )
                for several in sources
            ],
            sample,
        )


def _first(values: Iterable[object], nothing: object) -> object:
    """Return the first of *values* that is one."""
    return next((value for value in values if value is not nothing), nothing)


def _sources(column: Column, listed: Columns, typed: bool, indexes: range) -> list[Sequence[object] | Getter]:
    """Return where the values of *column* are: the first of these that has one. They are lists, or read samples."""
    whole = listed.values(_whole(column)) if len(column.choices) > 1 else None
    if whole is not None:
        return [_cells(whole, typed)]
    found: list[Sequence[object] | Getter] = []
    for name in column.choices:
        known = indexes if name == INDEX else listed.values(_of_choice(column, name))
        if known is None and name not in PSEUDO and listed.lacks(name):
            continue
        if known is None:
            one = column._replace(choices=(name,))
            found.append(json_getter(one, verbatim=False) if typed else getter(one, verbatim=False))
        else:
            found.append(_cells(known, typed))
        if name in PSEUDO:
            break
    return found or [_cells([None] * len(indexes), typed)]


def _whole(column: Column) -> str:
    """Return what tarindex calls a column of these values."""
    return _of_choice(column, ";".join(column.choices))


def _of_choice(column: Column, name: str) -> str:
    return name if name in PSEUDO or not column.path else f"{name}:{'.'.join(column.path)}"


def _cells(found: Sequence[Any], typed: bool) -> Sequence[object]:
    """Return the values *found* in a column of a table, as `values` yields them."""
    if typed:
        return [ABSENT if value is None else value for value in found]
    return [value if value is None or isinstance(value, str) else as_text(value) for value in found]
