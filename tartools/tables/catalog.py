"""The catalog of shards: gives a number to each shard that rows name, and turns rows into extents, which it checks."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any

from tartools.errors import ChangedError, NotFoundError, StorageError, TarToolsError, shown
from tartools.storage import is_missing
from tartools.storage.streams import size_in_version
from tartools.storage.url import Url
from tartools.tables import schema
from tartools.tables.extents import MAX_OFFSET, Extents, numbers_and_mask, raw_keys, valid_mask, whole_numbers

UPDATE_ADVICE = "tarindex --update makes the table again"
REJOIN_ADVICE = "make the table of its set again (tarindex --update), and join again (tarjoin)"
MOVED_HINT = "its shards are named relative to its folder: keep them together, or make it again: tarindex"


RowNumbers = Any  # a range, or an array of int64


class RowError(StorageError):
    """The error for a row of a table: its extent is invalid, or its sample can't be read, or differs from the row.

    Also for members outside of the extent, and a field in two sets of shards. A value of the wrong kind, such as null,
    and a shard that the table may not name are a plain StorageError.
    """


class ShardCatalog:
    """Gives numbers to the shards that rows of tables name; one number stands for a URL in one version.

    `table`: URL of the table whose rows are read here, for messages and relative names; "" for rows of no table.
    `urls`, `versions`: by number; the version is None if unknown.
    `sizes`: bytes, by number; the largest possible if unknown.
    `is_remote`: by number, True for a shard on a server or from a command.
    `named_relative`: by number, True if the name is relative to the folder of a table or to the current directory.
    `is_joined`: True once rows of a joined table, with several sets of shards, were read.
    """

    def __init__(self, table: str = "") -> None:
        self.urls: list[Url] = []
        self.versions: list[str | None] = []
        self.sizes: list[int] = []
        self.is_remote: list[bool] = []
        self.named_relative: list[bool] = []
        self.is_joined = False
        self._numbers: dict[tuple[str, str | None], int] = {}
        self._set_table(table)

    def _set_table(self, table: str) -> None:
        """Set the table whose rows `extents` reads, and forget the shards by their names in another table."""
        self.table = table
        self._folder = schema.folder_of(table)
        self._numbers_in_table: dict[tuple[str, str | None], int] = {}  # by name and version as the table has them

    def for_table(self, table: str) -> ShardCatalog:
        """Return a catalog for the rows of *table* that shares the shards and numbers of this one, and adds to them."""
        catalog = copy(self)
        catalog._set_table(table)
        return catalog

    def number(self, name: str, version: str | None, relative: bool = False) -> int:
        """Return the number of the shard with the URL *name* in this *version*; the next number if it is new.

        *relative*: True if a table names it relative to its folder; for `named_relative`, if it is new. Raises:
        UsageError if *name* is a URL that holds credentials.
        """
        number = self._numbers.setdefault((name, version), len(self.urls))
        if number == len(self.urls):
            url = Url(name)
            self.urls.append(url)
            self.versions.append(version)
            size = size_in_version(version)
            self.sizes.append(MAX_OFFSET if size is None else size)
            self.is_remote.append(not url.is_local or bool(url.read_command))
            self.named_relative.append(relative or not (url.scheme or url.startswith("/")))
        return number

    def shard(self, number: int) -> tuple[str, str | None]:
        """Return URL and version of the shard *number*."""
        return self.urls[number], self.versions[number]

    def extents(self, rows: Any, first: int, keyed: bool = True) -> Extents:
        """Return the extents of the samples that *rows* list: a record batch that begins with row *first* of the table.

        With *keyed*, they have the keys too, if the batch has them and none is null. Gives numbers to new shards.
        Raises: StorageError, with the row or the first of several, for an invalid shard, version, begin,
        end, key or place of a member, for a shard that the table may not name, and for a sample that has one field in
        two sets of shards; without a row for a further set that lacks a column of begins or ends.
        """
        column = {name: rows.column(name) for name in rows.schema.names}
        texts = column.get(schema.KEY_COLUMN) if keyed else None
        keys = None if texts is None or texts.null_count else raw_keys(texts, first, self.table)
        sets = schema.sets_in(column)
        self.is_joined |= len(sets) > 1
        row_numbers = range(first, first + len(rows))
        extents = replace(self._extents_in_set(column, 1, row_numbers), first=first, rows=None, keys=keys)
        if len(sets) > 1:
            extents.others = tuple(self._extents_in_further_set(column, number, row_numbers) for number in sets[1:])
            self._check_fields(column, extents)
        return extents

    def _extents_in_further_set(self, column: dict[str, Any], number: int, rows: RowNumbers) -> Extents:
        """Return the extents of *rows* in set *number* of the shards, from 2 on, in which a sample may have no part.

        There the number of its shard is -1, begin and end are 0. *column*: the Arrow column of each name. *rows*: row
        numbers, for messages; the result has neither these nor keys. Raises: StorageError without a column of begins or
        ends, for a row of which only some of shard, begin and end are null, and as `_extents_in_set`.
        """
        import numpy as np

        own_columns = (schema.SHARD_COLUMN, schema.BEGIN_COLUMN, schema.END_COLUMN)
        shard, begin, end = (schema.name_in_set(name, number) for name in own_columns)
        for name in (begin, end):
            if name not in column:
                raise StorageError(f"this table has the column {shard}, but no {name}", url=self.table)
        present = valid_mask(column[shard])
        for name in (begin, end):
            for wrong in np.flatnonzero(valid_mask(column[name]) != present)[:1].tolist():
                raise StorageError(f"row {rows[wrong]}: only one of {shard} and {name} is null", url=self.table)
        if present.all():
            return replace(self._extents_in_set(column, number, rows), rows=None)
        count, indexes = len(rows), np.flatnonzero(present)
        extents = Extents(rows[0], np.full(count, -1, np.int32), np.zeros(count, np.int64), np.zeros(count, np.int64))
        if len(indexes):
            pa = schema.import_arrow()  # `pa.array` of numpy's imports pandas where it is installed
            present_indexes = pa.Array.from_buffers(pa.int64(), len(indexes), [None, pa.py_buffer(indexes)])
            names = (*own_columns, schema.VERSION_COLUMN, schema.MEMBERS_COLUMN)
            present_columns = {
                name: column[name].take(present_indexes)
                for base in names
                if (name := schema.name_in_set(base, number)) in column
            }
            part = self._extents_in_set(present_columns, number, np.asarray(rows)[indexes])
            extents.numbers[indexes], extents.begins[indexes], extents.ends[indexes] = (
                part.numbers,
                part.begins,
                part.ends,
            )
        return extents

    def _extents_in_set(self, column: dict[str, Any], number: int, rows: RowNumbers) -> Extents:
        """Return the extents of rows in set *number* of the shards.

        *column*: the Arrow column of each name. *rows*: row numbers, which the result has too. Raises: StorageError,
        with the row or the first of several, for an invalid value: null (but a version and a member may be),
        no text or no number, a negative begin, an end that is not after the begin or is behind the end of the shard, a
        member outside of its sample, or a shard that the table may not name.
        """
        import numpy as np

        shard, version, begin_column, end_column, members = (
            schema.name_in_set(name, number)
            for name in (
                schema.SHARD_COLUMN,
                schema.VERSION_COLUMN,
                schema.BEGIN_COLUMN,
                schema.END_COLUMN,
                schema.MEMBERS_COLUMN,
            )
        )
        begins, ends = (self._places(column[name], name, rows) for name in (begin_column, end_column))
        numbers = self._shards(column[shard], column.get(version), number, rows)
        extents = Extents(rows[0] if len(rows) else 0, numbers, begins, ends, None, rows)
        sizes = np.array(self.sizes)[numbers]
        for wrong in np.flatnonzero((begins < 0) | (begins >= ends) | (ends > sizes))[:1].tolist():
            _, begin, end = extents.place(wrong)
            size = int(sizes[wrong])
            message = f"the sample cannot begin at {begin} and end at {end}"
            raise self.failure(extents, wrong, message + f" of a shard of {size} bytes" * (begin < end and end > size))
        if members in column:
            self._check_members(column[members], members, extents)
        return extents

    def _check_members(self, column: Any, name: str, extents: Extents) -> None:
        """Raise StorageError if a member is outside of the extent of its sample, or its place is not two numbers.

        *column*: Arrow array of `__members__`; *name*: of the column, for messages. *extents*: of the samples, with an
        item for each row of the column. Null passes, as do all members of a field whose type is not a struct of offset
        and size, and a column that is no struct.
        """
        import numpy as np

        rows = extents.rows
        for place in column.flatten() if schema.import_arrow().types.is_struct(column.type) else ():
            if not schema.is_place(place.type):
                continue
            message = f"rows {rows[0]} to {rows[-1]}: not all {name} are numbers" if len(rows) else ""
            with schema.value_errors(message, self.table):
                (offsets, has_offset), (sizes, has_size) = map(whole_numbers, place.flatten())
            too_far = has_size & ((sizes < 0) | (sizes > extents.ends - offsets))
            outside = has_offset & ((offsets <= extents.begins) | too_far)
            for wrong in np.flatnonzero(outside)[:1].tolist():
                _, begin, end = extents.place(wrong)
                raise self.failure(extents, wrong, f"not all members of the sample are in bytes {begin} to {end}")

    def _check_fields(self, column: dict[str, Any], extents: Extents) -> None:
        """Raise StorageError if a sample has one field in two sets, as far as the columns of members tell.

        Names of fields are compared with case. *column*: the Arrow column of each name. *extents*: of the samples, with
        `others`.
        """
        import numpy as np

        counts: dict[str, Any] = {}
        for number in range(1, len(extents.others) + 2):
            members = column.get(schema.name_in_set(schema.MEMBERS_COLUMN, number))
            if members is not None and schema.import_arrow().types.is_struct(members.type):
                for field, place in zip(members.type, members.flatten(), strict=True):
                    has = valid_mask(place)
                    counts[field.name] = has if field.name not in counts else counts[field.name].astype(np.int32) + has
        for name, count in counts.items():
            for wrong in np.flatnonzero(count > 1)[:1].tolist():
                message = f"the sample has the field {name!r} in two sets of shards; tarjoin -x {name} leaves out one"
                raise self.failure(extents, wrong, message)

    def _places(self, column: Any, name: str, rows: RowNumbers) -> Any:
        """Return *column*, of begins or ends of samples, as an array of int64.

        *name* (of the column) and *rows* (row numbers) are for messages.
        Raises: StorageError, with the row, for null or a value that is no whole number of 64 bits; -1 passes, as does a
        whole number as text or float.
        """
        pa = schema.import_arrow()
        if column.null_count:
            row = rows[column.is_null().to_pylist().index(True)]
            raise StorageError(f"row {row}: {name} is null", url=self.table)
        message = f"row {rows[0]}: {name} is {column.type}, which is not a place in a shard" if len(rows) else ""
        with schema.value_errors(message, self.table):
            try:
                return whole_numbers(column)[0]
            except pa.ArrowException:
                for row, value in zip(rows, column, strict=True):
                    message = f"row {row}: {name} is {str(value)[:40]}, which is not a place in a shard"
                    with schema.value_errors(message, self.table):
                        value.cast(pa.int64())
                raise

    def _shards(self, column: Any, version: Any, number: int, rows: RowNumbers) -> Any:
        """Return for each row the number of its shard in the catalog, an array of int32.

        *column*: names of shards; *version*: the column of versions, None if there is none; *number*: the set of shards
        that both are of. *rows*: row numbers, for messages. New shards get the next numbers, in the order of rows.
        Raises: StorageError, with the row, for an invalid name or version, or a shard that the table may not name; with
        the first of *rows* for columns that Arrow can't read as text.
        """
        import numpy as np

        message = f"row {rows[0]}: this or a later one has no name of a shard" if len(rows) else ""
        with schema.value_errors(message, self.table):
            name_codes, names = _dictionary_codes(column)
            version_codes, versions = (
                _dictionary_codes(version) if version is not None else (np.zeros_like(name_codes), [])
            )
        # A pair of name and version is one number: the code of the name times the count of codes of versions, plus the
        # code of the version. So shards are looked up once for each distinct pair of a batch, not once a row.
        pairs, begins, inverse = np.unique(
            name_codes * (len(versions) + 1) + version_codes, return_index=True, return_inverse=True
        )
        numbers = np.empty(len(pairs), np.int32)
        for n in np.argsort(begins).tolist():
            name_code, version_code = divmod(int(pairs[n]), len(versions) + 1)
            numbers[n] = self._number_in_table(
                names[name_code - 1] if name_code else None,
                versions[version_code - 1] if version_code else None,
                number,
                rows[int(begins[n])],
            )
        return numbers[inverse]

    def _number_in_table(self, name: object, version: object, set_number: int, row: int) -> int:
        """Return the number in the catalog of the shard *name* in this *version*, as the table has them (None: null).

        A new shard gets the next number. *set_number* (of the set of shards) and *row* are for messages. Raises:
        StorageError, with the row, for a name that is null, empty, no text or has a NUL, a version that is neither text
        nor None, or a shard that the table may not name (see `schema.resolve`).
        """
        if not isinstance(name, str) or not name or "\0" in name:
            column = schema.name_in_set(schema.SHARD_COLUMN, set_number)
            raise StorageError(f"row {row}: {column} is not the name of a shard", url=self.table)
        if not isinstance(version, str | None):
            column = schema.name_in_set(schema.VERSION_COLUMN, set_number)
            raise StorageError(f"row {row}: {column} is not text", url=self.table)
        number = self._numbers_in_table.get((name, version))
        if number is None:
            try:
                url = schema.resolve(name, self._folder)
            except TarToolsError as error:
                raise StorageError(f"row {row}: {error.message}", url=self.table) from None
            number = self._numbers_in_table[name, version] = self.number(url, version, url != name)
        return number

    def failure(self, rows: Extents, index: int, cause: str | TarToolsError) -> RowError:
        """Return the error for the sample at *index* of *rows*, with row, shard, byte and advice.

        *cause*: the message, or the error of reading the shard. In a joined table shard and byte are those of the first
        set: for another set, give the `Extents` in that set as *rows*.
        """
        number, begin, _ = rows.place(index)
        row = rows.first + index if rows.rows is None else rows.rows[index]
        message = cause if isinstance(cause, str) else cause.message
        place = f"row {row} of {shown(self.table)}{self._advice(number, cause)}"
        return RowError(f"{message} ({place})", url=self.urls[number], offset=begin)

    def _advice(self, number: int, cause: str | TarToolsError) -> str:
        """Return advice about the error *cause* of the shard *number*, which begins with "; "; or "".

        If the shard has a relative name, and *cause* is a StorageError for which `is_missing` is true (any of a local
        file, or of an object that does not exist): keep table and shards together. Else for a ChangedError or
        NotFoundError, and if *cause* is a message or no StorageError, so that a sample differs from its row: make the
        table again, or if it `is_joined`, make the tables of its sets again and join them. Else "", also for a missing
        local file with an absolute name.
        """
        if isinstance(cause, StorageError) and is_missing(cause) and self.named_relative[number]:
            return f"; {MOVED_HINT}"
        changed = not isinstance(cause, StorageError) or isinstance(cause, ChangedError | NotFoundError)
        advice = REJOIN_ADVICE if self.is_joined else UPDATE_ADVICE
        return f"; {advice}" if changed else ""


def _dictionary_codes(column: Any) -> tuple[Any, list[object]]:
    """Return (codes, values): a code for each item of the Arrow array *column*, and a list of values.

    Codes are an array of int64: code n stands for `values[n - 1]`, 0 for null.
    """
    import numpy as np

    pa = schema.import_arrow()
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    numbers, valid = numbers_and_mask(encoded.indices)
    return np.where(valid, numbers.astype(np.int64) + 1, 0), encoded.dictionary.to_pylist()
