"""What a table has of the samples of a batch: `tables.columnvalues` makes it, `listed.ListedBatch` has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Columns(Protocol):
    """The columns of the table *url* for some rows, the first of which is row *first*; *names* are those of all.

    *fields* are those that samples of the table have; None if that is not known.
    """

    url: str
    first: int
    names: Sequence[str]
    fields: Sequence[str] | None

    def __len__(self) -> int:
        """How many rows there are."""
        ...

    def values(self, name: str) -> Sequence[Any] | None:
        """Return a value for each row: str, int, float, bool, list or dict, or None if there is none.

        Of `__key__`, `__shard__` and `__size__` these are the values of the samples. None if the table has no such
        column, or no key for some sample.
        """
        ...

    def lacks(self, field: str) -> bool:
        """Return whether it is known that no sample of the table has *field*, whatever the case."""
        ...

    def keys(self, rows: Sequence[int]) -> list[str]:
        """Return the keys of *rows*."""
        ...

    def taken(self, name: str, rows: Sequence[int]) -> Sequence[Any] | None:
        """Return the values of the column *name* for *rows*, as `values` does."""
        ...

    def counts(self, name: str, rows: Sequence[int]) -> dict[str, int] | None:
        """Return how often the column *name* has each value in *rows*, as text, in order of appearance.

        None if there is no such column.
        """
        ...

    def spans(self) -> tuple[Any, Any]:
        """Return at which bytes of their shards the samples begin and end, as arrays of int64.

        Raises: StorageError if that can't be.
        """
        ...

    def shards(self) -> tuple[Sequence[str], Any]:
        """Return the URLs of shards, and for each row the number of one of these.

        The same URL may be there more than once. Raises: StorageError if a row has none.
        """
        ...

    def members(self) -> tuple[list[str], Any, Any] | None:
        """Return the fields of the samples, and arrays with a column for each field: offset of the payload, and size.

        An offset is -1 where the sample lacks the field, and less where it is not known. None if the table does not
        tell.
        """
        ...
