"""Values of samples for the cells of a table of text: from the samples, or from the columns of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tartools.errors import SampleError
from tartools.samples.sample import Batch, Sample
from tartools.samples.values import Column, field_list, getter
from tartools.tables.listed import ABSENT, ListedBatch, answers_of, first, json_getter, told_by

if TYPE_CHECKING:
    from tartools.samples.account import Account
    from tartools.tables.columnvalues import TableColumns


class ListedRow:
    """A row of a table whose sample was not read."""

    __slots__ = ("_columns", "_number")

    def __init__(self, columns: TableColumns, number: int) -> None:
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
        if isinstance(batch, ListedBatch):
            for found in _of_listed(batch, columns, typed, index):
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


def _of_listed(
    batch: ListedBatch, columns: Sequence[Column], typed: bool, index: int
) -> Iterator[tuple[list[Any], Sample | ListedRow]]:
    """Yield what `values` yields for *batch*."""
    nothing = ABSENT if typed else None
    listed = batch.columns
    answers = [answers_of(column, listed, typed, range(index, index + len(batch))) for column in columns]
    told = [told_by(each, nothing) for each in answers]
    if None not in told:
        for number, row in enumerate(zip(*told, strict=True)):
            yield list(row), ListedRow(listed, number)
        return
    for number, sample in enumerate(batch):
        yield [first(each, number, sample, index + number, nothing) for each in answers], sample
