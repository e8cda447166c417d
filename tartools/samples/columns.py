"""What a table has of the samples of a batch: `tables.columns` makes it, `listed.Listed` has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Columns(Protocol):
    """The columns of the table *url* for some rows, the first of which is row *first*; *names* are those of all."""

    url: str
    first: int
    names: Sequence[str]

    def values(self, name: str) -> Sequence[Any] | None:
        """Return a value for each row: str, int, float, bool, list or dict, or None if there is none.

        Of `__key__`, `__shard__` and `__size__` these are the values of the samples. None if the table has no such
        column, or no key for some sample.
        """
        ...

    def lacks(self, field: str) -> bool:
        """Return whether it is known that no sample of the table has *field*, whatever the case."""
        ...
