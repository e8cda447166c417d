"""Rows of the index, and members of samples, by position; bytes are read from shards when they are asked for.

A member that the index places is read alone: a range of a local file, or of an object; its shard has to have the
version that was indexed. Otherwise the sample is read, as any command reads the samples of a table.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

from tartools import storage
from tartools.errors import ChangedError, NotFoundError, StorageError
from tartools.samples.account import Account
from tartools.samples.sample import Sample, field_name
from tartools.shards import shardrows
from tartools.shards.reading import Reading
from tartools.show.serve.rowindex import ROWS_TABLE, RowIndex, quoted_name
from tartools.storage.checks import probe
from tartools.storage.objects import fetch_range
from tartools.storage.openfiles import OpenFileCache
from tartools.storage.streams import FileVersion
from tartools.tables import schema
from tartools.tables.inputs import RowInputs
from tartools.tar import Member, new_member
from tartools.tar.groups import Need

MAX_REMOTE_PAYLOAD = 256 << 20  # bytes of a payload on a server that is read into memory
COLUMN_CHARS = 300  # characters of a value in a column that the page gets
REPLACED = "the shard was replaced since it was indexed: start tarshow --serve again"


class MemberPlace(NamedTuple):
    """The place of a payload: of *field* of the sample *key*, *size* bytes from byte *offset* of a shard.

    *key*: "" if the table has none; in a `SampleRow` it is cut. *number*: of the shard in the catalog of the inputs.
    """

    key: str
    field: str
    number: int
    offset: int
    size: int


class SampleRow(NamedTuple):
    """A row of the index: facts about a sample.

    `position`: number of the sample in the data set
    `key`: "" if the table has none, or it is null
    `shard`: URL of its shard, as it is shown; in several sets, of the shard of the first set
    `begin`: its offset there, in bytes
    `size`: its size in bytes, with headers; in several sets the sum
    `fields`: field -> size of the payload in bytes, in the order of the archive (set by set); 0 if the sample has it
        twice; of a field in several sets, the size in the first one; None if the data set does not say
    `places`: field -> place of the payload; of a field in several sets, that in the first one; fields whose place the
        index does not have are left out
    `columns`: name of each other column that a person sees -> value: a number, a boolean, a text or None
    Texts, also `key` and `shard`, are cut to 300 characters (COLUMN_CHARS).
    """

    position: int
    key: str
    shard: str
    begin: int
    size: int
    fields: Mapping[str, int] | None
    places: Mapping[str, MemberPlace]
    columns: Mapping[str, object]


class SampleSource:
    """The samples of *inputs*, by position, with their rows in *index*. Several threads may read.

    `rows` returns facts, `member` and `read` payloads, `sample` all of a sample; call `close` at the end.
    *reading*: options with which samples are read. `replaced`: True once a shard was missing, or had
    another version than the index.
    """

    def __init__(self, inputs: RowInputs, index: RowIndex, reading: Reading) -> None:
        self._inputs = inputs
        self._index = index
        self._catalog = inputs.catalog
        self._reader = shardrows.reader_of_rows(inputs, Account(lambda _: None), reading.with_need(Need.BYTES))
        self._files = OpenFileCache()
        self.replaced = False

    def close(self) -> None:
        """Stop all requests to servers."""
        self._reader.close()

    # ---- rows ----

    def rows(self, positions: Sequence[int]) -> list[SampleRow]:
        """Return the rows of the samples at *positions*, in that order; [] without positions.

        Raises: KeyError for a position that is not in the index; QuestionError if the query takes too long, or the
        index is closed.
        """
        if not positions:
            return []
        layout, columns = self._index.layout, list(self._index.columns.values())
        names = [
            "rowid",
            *map(quoted_name, layout.numbers),
            *(quoted_name(name) for field in layout.fields for name in (field.size_column, field.offset_column)),
            *(_shown_column(column.sql, column.type) for column in columns),
        ]
        sql = f"SELECT {', '.join(names)} FROM {ROWS_TABLE} WHERE {_at(positions)}"  # noqa: S608
        rows = {values[0]: values for values in self._index.ask(sql)}
        return [self._row(rows[position], columns) for position in positions]

    def _row(self, values: Sequence[Any], columns: Sequence[Any]) -> SampleRow:
        layout = self._index.layout
        position, remaining = values[0], list(values[1:])
        numbers = [remaining.pop(0) for _ in layout.numbers]
        sizes_and_offsets = [(remaining.pop(0), remaining.pop(0)) for _ in layout.fields]
        shown = {column.name: value for column, value in zip(columns, remaining, strict=True)}
        key = str(shown.pop(layout.names.get(schema.KEY_COLUMN, ""), "") or "")
        shard = shown.pop(layout.shard_column)
        begin = shown.pop(layout.names[schema.BEGIN_COLUMN])
        size = shown.pop(layout.size_column)
        ordered = sorted(
            (
                (field.set_number, -1 if offset is None else offset, field, size)
                for field, (size, offset) in zip(layout.fields, sizes_and_offsets, strict=True)
                if size is not None
            ),
            key=lambda item: item[:2],
        )
        fields: dict[str, int] = {}
        places: dict[str, MemberPlace] = {}
        for _, offset, field, field_size in ordered:
            if field.name not in fields:  # of a field in two sets, the first counts, as for payloads
                fields[field.name] = field_size
                if offset >= 0:
                    number = numbers[field.set_number - 1]
                    places[field.name] = MemberPlace(key, field.name, number, offset, field_size)
        return SampleRow(position, key, shard, begin, size, fields if layout.fields else None, places, shown)

    def place(self, position: int, field: str) -> MemberPlace | None:
        """Return the place of the payload of *field* of the sample at *position*, which exists.

        In several sets, it is that of the first set in which the sample has the field once. None if the index does not
        have it, or the sample has no such field, or has it twice. Raises: QuestionError if DuckDB takes too long.
        """
        layout = self._index.layout
        for indexed in layout.fields:
            if indexed.name == field:
                key = layout.names.get(schema.KEY_COLUMN)
                names = [layout.numbers[indexed.set_number - 1], indexed.offset_column, indexed.size_column]
                columns = ", ".join([*map(quoted_name, names), quoted_name(key) if key else "''"])
                sql = f"SELECT {columns} FROM {ROWS_TABLE} WHERE rowid = {int(position)}"  # noqa: S608
                number, offset, size, key_value = self._index.ask(sql)[0]
                if offset is not None:
                    return MemberPlace(key_value or "", field, number, offset, size)
        return None

    # ---- bytes ----

    def member(self, position: int, field: str) -> Member:
        """Return the member *field* of the sample at *position*, whose payload is read now.

        But if the index has its place in a local shard, it is read when it is used. Raises: KeyError if the sample has
        no such field; TarToolsError if it can't be read, or if the sample has the field twice; ChangedError if the
        shard has changed; QuestionError if DuckDB takes too long.
        """
        place = self.place(position, field)
        if place is None:
            member = self.sample(position).member(field, verbatim=True)
            if member is None:
                raise KeyError(field)
            return member
        return self.placed_member(place)

    def placed_member(self, place: MemberPlace) -> Member:
        """Return the member at *place*; in a local shard, its payload is read when it is used, from a server now.

        Raises: TarToolsError if it can't be read, or is on a server and over 256 MiB (MAX_REMOTE_PAYLOAD); ChangedError
        if the shard has changed.
        """
        path = f"{place.key or 'sample'}.{place.field}".encode("utf-8", "surrogateescape")
        if not self._catalog.is_remote[place.number]:
            return Member(path, self._file(place.number), place.offset, place.offset, place.size, b"")
        if place.size > MAX_REMOTE_PAYLOAD:
            raise StorageError(f"{place.size:,} bytes are too many to be read from a server at once")
        return new_member(path, self.read(place, 0, place.size))

    def is_local(self, place: MemberPlace) -> bool:
        """True if *place* is in a local shard."""
        return not self._catalog.is_remote[place.number]

    def read(self, place: MemberPlace, begin: int, end: int) -> bytes:
        """Return bytes *begin* to *end* (exclusive) of the payload at *place*; *end* is at most its size.

        b"" if *end* is not above *begin*. Raises: ChangedError if the shard has changed; TarToolsError if it can't be
        read.
        """
        begin, end = place.offset + begin, place.offset + end
        if begin >= end:
            return b""
        if not self._catalog.is_remote[place.number]:
            from tartools.tar import read_range

            return read_range(self._file(place.number), begin, end)
        url, version = self._catalog.shard(place.number)
        try:
            return fetch_range(url, begin, end, version or f"{self._catalog.sizes[place.number]} ")
        except StorageError:
            self._check_version(place.number)
            raise

    def sample(self, position: int) -> Sample:
        """Return the sample at *position*, with all its members, in memory.

        *position*: exists. Raises: ChangedError if it can't be read and a shard of it has another version than the
        index; TarToolsError if it can't be read; QuestionError if DuckDB takes too long.
        """
        pa = schema.import_arrow()
        layout = self._index.layout
        index_columns: dict[str, str] = {}  # unified column -> column of the index
        for set_number, number_column in zip(layout.sets, layout.numbers, strict=True):
            index_columns[schema.name_in_set(schema.SHARD_COLUMN, set_number)] = number_column
            for name in (schema.BEGIN_COLUMN, schema.END_COLUMN):
                index_columns[schema.name_in_set(name, set_number)] = layout.names[schema.name_in_set(name, set_number)]
        if schema.KEY_COLUMN in layout.names:
            index_columns[schema.KEY_COLUMN] = layout.names[schema.KEY_COLUMN]
        names = ", ".join(map(quoted_name, index_columns.values()))
        sql = f"SELECT {names} FROM {ROWS_TABLE} WHERE rowid = {int(position)}"  # noqa: S608
        values = self._index.ask(sql)[0]
        arrays = [
            pa.array([value], self._inputs.schema.field(name).type)
            for name, value in zip(index_columns, values, strict=True)
        ]
        row = pa.RecordBatch.from_arrays(arrays, names=list(index_columns))
        try:
            with closing(shardrows.samples_of(self._reader, row, None)) as batches:  # type: ignore[type-var]
                return next(sample.own() for batch in batches for sample in batch)
        except StorageError:
            for column in layout.numbers:
                number = values[list(index_columns.values()).index(column)]
                if number is not None:
                    self._check_version(number)
            raise

    def _file(self, number: int) -> io.FileIO:
        """Return the open local shard *number*; it stays in a cache, and the caller does not close it.

        Raises: ChangedError if it is missing, or has another version than the index; StorageError if it can't be
        opened, or if another file, which the cache drops for it, has changed.
        """
        url, version = self._catalog.shard(number)
        try:
            file = self._files.open_file(number, partial(_open_local, url))
        except NotFoundError:
            raise self._changed(url) from None
        if version is not None and (str(FileVersion.of(file)) != version or version != _version_or_none(url)):
            raise self._changed(url)
        return file

    def _check_version(self, number: int) -> None:
        """Raise ChangedError if the shard *number* has another version now than in the index.

        Without a version in the index nothing is checked. One that can't be found out now counts as another version.
        """
        url, version = self._catalog.shard(number)
        if version is not None and _version_or_none(url) != version:
            raise self._changed(url)

    def _changed(self, url: str) -> ChangedError:
        self.replaced = True
        return ChangedError(REPLACED, url=url)


def _at(positions: Sequence[int]) -> str:
    """Return the condition, in SQL, that a row is at one of *positions*, which differ; there is at least one."""
    low, high = int(min(positions)), int(max(positions))
    if len(positions) == high - low + 1:
        return f"rowid BETWEEN {low} AND {high}"
    return f"rowid IN ({', '.join(str(int(position)) for position in positions)})"


def _shown_column(sql: str, kind: str) -> str:
    """Return the SQL for the values of a column that the page gets: numbers and booleans, all others as text.

    *sql*: the quoted name. *kind*: `IndexColumn.type`. Texts are cut to 300 characters (COLUMN_CHARS).
    """
    if kind in ("number", "bool"):
        return sql
    return f"left(CAST({sql} AS VARCHAR), {COLUMN_CHARS})"


def _open_local(url: str) -> io.FileIO:
    storage.check_regular(url)
    file = storage.open_read(url).file
    if file is None:
        raise StorageError("this can't be read in parts", url=url)
    return file


def _version_or_none(url: str) -> str | None:
    """Return the present version of *url*; None if it has none, or can't be read."""
    try:
        return probe(url).version
    except StorageError:
        return None


def members_by_field(sample: Sample) -> Iterator[tuple[str, Member]]:
    """Yield (field, member) for the first member of *sample* with each field."""
    names: set[str] = set()
    for member in sample.members:
        name = field_name(member)
        if name not in names:
            names.add(name)
            yield name, member
