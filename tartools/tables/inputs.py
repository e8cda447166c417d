"""The rows of several tables, and of shards that were indexed, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

from tartools.tables import schema, source, unified

ROWS = 1 << 16  # in a batch


class RowSource(Protocol):
    """Some of the rows. `schema` is their unified schema."""

    rows: int

    @property
    def schema(self) -> Any:
        """The columns, in our types."""
        ...

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield the rows, in order, in unified record batches; only those of *columns* that there are, if given."""
        ...


class TablePart:
    """The rows of the table *url*."""

    def __init__(self, url: str, shards: unified.ShardNumbers) -> None:
        self.url = url
        self._shards = shards
        with source.opened(url) as table:
            self.rows = table.rows
            self._schema = unified.unified_schema(table.parquet.schema_arrow)

    @property
    def schema(self) -> Any:
        """The columns, in our types."""
        return self._schema

    @property
    def have_keys(self) -> bool:
        """Whether each row has the key of its sample."""
        if schema.KEY not in self._schema.names:
            return False
        with source.opened(self.url) as table:
            return not any(rows.column(0).null_count for rows in table.batches([schema.KEY], ROWS))

    @property
    def fields(self) -> list[str]:
        """The fields that samples have."""
        return unified.fields_of(self._schema)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield the rows, in order, in unified record batches; only those of *columns* that there are, if given."""
        pa = schema.arrow()
        wanted = pa.schema([field for field in self._schema if columns is None or field.name in columns])
        unifier = unified.Unifier(self.url, wanted, self._shards)
        first = 0
        with source.opened(self.url) as table:
            for rows in table.batches([*source.NEEDED, schema.VERSION, *wanted.names], ROWS):
                yield unifier.unified(rows, first)
                first += len(rows)


class RowInputs:
    """The rows of *parts*, whose shards have numbers in *shards*."""

    def __init__(self, parts: Sequence[RowSource], shards: unified.ShardNumbers) -> None:
        self.parts = parts
        self.shards = shards
        self.schema = unified.joined_schema([part.schema for part in parts])
        self.rows = sum(part.rows for part in parts)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield all rows, in order, in record batches of `schema`; only those of *columns* that there are, if given.

        Holds: a row group. Raises: TarFormatError for a damaged table; StorageError for a value of no use.
        """
        pa = schema.arrow()
        wanted = pa.schema([field for field in self.schema if columns is None or field.name in columns])
        for part in self.parts:
            for rows in part.batches(columns):
                yield conforming(rows, wanted)

    @cached_property
    def have_keys(self) -> bool:
        """Whether each row has the key of its sample; the keys of tables are read for that."""
        return all(part.have_keys for part in self.parts if isinstance(part, TablePart))

    def spans(self, apart: bool) -> Iterator[range]:
        """Yield the numbers of the rows of each part, or, if *apart*, of each table and each shard that was indexed."""
        first = 0
        for part in self.parts:
            cuts = [first, first + part.rows]
            if apart and not isinstance(part, TablePart):
                cuts[:1] = [first + begin for begin in _begins(part)]
            yield from (range(begin, end) for begin, end in pairwise(cuts))
            first += part.rows


def _begins(part: RowSource) -> list[int]:
    """Return the numbers of the rows of *part* with which a shard begins."""
    import numpy as np

    found: list[int] = []
    first = 0
    for rows in part.batches([schema.INDEX]):
        found += (first + np.flatnonzero(np.asarray(rows.column(schema.INDEX)) == 0)).tolist()
        first += len(rows)
    return found


def conforming(rows: Any, wanted: Any) -> Any:
    """Return the unified record batch *rows* with the columns and types *wanted*; nulls for columns it has not."""
    pa = schema.arrow()
    if rows.schema == wanted:
        return rows
    columns = []
    for field in wanted:
        if field.name not in rows.schema.names:
            columns.append(pa.nulls(len(rows), field.type))
        elif field.name == schema.MEMBERS:
            columns.append(unified.places(rows.column(field.name), field.type))
        else:
            columns.append(unified.converted(rows.column(field.name), field.type))
    return pa.RecordBatch.from_arrays(columns, schema=wanted)
