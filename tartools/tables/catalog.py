"""The catalog of shards: gives a number to each shard that rows name, and turns rows into extents, which it checks."""

from __future__ import annotations

from copy import copy
from typing import Any

from tartools.errors import ChangedError, NotFoundError, StorageError, TarToolsError, shown
from tartools.storage import is_missing
from tartools.storage.streams import size_in_version
from tartools.storage.url import Url
from tartools.tables import schema
from tartools.tables.extents import MAX_OFFSET, Extents, numbers_and_mask, raw_keys, whole_numbers

UPDATE_ADVICE = "tarindex --update makes the table again"
MOVED_HINT = "its shards are named relative to its folder: keep them together, or make it again: tarindex"


class RowError(StorageError):
    """The error for a row: its sample can't be read, or differs from it."""


class ShardCatalog:
    """The shards that rows of tables name, by number; one number stands for a URL in one version.

    `table`: URL of the table whose rows are read here, for messages and relative names; "" for rows of no table.
    `urls`, `versions`: by number; the version is None if unknown.
    `sizes`: bytes, by number; the largest possible if unknown.
    `is_remote`: by number, True for a shard on a server or from a command.
    `named_relative`: by number, True if the name is relative to the folder of a table or to the current directory.
    """

    def __init__(self, table: str = "") -> None:
        self.urls: list[Url] = []
        self.versions: list[str | None] = []
        self.sizes: list[int] = []
        self.is_remote: list[bool] = []
        self.named_relative: list[bool] = []
        self._numbers: dict[tuple[str, str | None], int] = {}
        self._set_table(table)

    def _set_table(self, table: str) -> None:
        """Set the table whose rows `extents` reads, and forget the shards by their names in another table."""
        self.table = table
        self._folder = schema.folder_of(table)
        self._numbers_in_table: dict[tuple[str, str | None], int] = {}  # by name and version as the table has them

    def for_table(self, table: str) -> ShardCatalog:
        """Return this catalog for rows of *table*: shards and numbers are shared, and added to both."""
        catalog = copy(self)
        catalog._set_table(table)
        return catalog

    def number(self, name: str, version: str | None, relative: bool = False) -> int:
        """Return the number of the shard with the URL *name* in this *version*; the next number if it is new.

        *relative*: True if a table names it relative to its folder, for `named_relative`.
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

        With *keyed*, they have the keys too, if no key is null. Gives numbers to new shards.
        Raises: StorageError, with the row, for a value that can't be true.
        """
        import numpy as np

        column = {name: rows.column(name) for name in rows.schema.names}
        begins, ends = (self._places(column[name], name, first) for name in (schema.BEGIN_COLUMN, schema.END_COLUMN))
        numbers = self._shards(column[schema.SHARD_COLUMN], column.get(schema.VERSION_COLUMN), first)
        texts = column.get(schema.KEY_COLUMN) if keyed else None
        keys = None if texts is None or texts.null_count else raw_keys(texts, first, self.table)
        extents = Extents(first, numbers, begins, ends, keys)
        sizes = np.array(self.sizes)[numbers]
        for wrong in np.flatnonzero((begins < 0) | (begins >= ends) | (ends > sizes))[:1].tolist():
            _, begin, end = extents.place(wrong)
            size = int(sizes[wrong])
            message = f"the sample cannot begin at {begin} and end at {end}"
            raise self.failure(extents, wrong, message + f" of a shard of {size} bytes" * (begin < end and end > size))
        if schema.MEMBERS_COLUMN in column:
            self._check_members(column[schema.MEMBERS_COLUMN], extents)
        return extents

    def _check_members(self, column: Any, extents: Extents) -> None:
        """Raise StorageError if a member is outside the extent of its sample in the row."""
        import numpy as np

        message = (
            f"rows {extents.first} to {extents.first + len(extents) - 1}: not all {schema.MEMBERS_COLUMN} are numbers"
        )
        for place in column.flatten() if schema.arrow().types.is_struct(column.type) else ():
            if not schema.is_place(place.type):
                continue
            with schema.value_errors(message, self.table):
                (offsets, has_offset), (sizes, has_size) = map(whole_numbers, place.flatten())
            too_far = has_size & ((sizes < 0) | (sizes > extents.ends - offsets))
            outside = has_offset & ((offsets <= extents.begins) | too_far)
            for wrong in np.flatnonzero(outside)[:1].tolist():
                _, begin, end = extents.place(wrong)
                raise self.failure(extents, wrong, f"not all members of the sample are in bytes {begin} to {end}")

    def _places(self, column: Any, name: str, first: int) -> Any:
        """Return *column*, of begins or ends, as an array of int64.

        *name* of the column and row *first* are for messages.
        Raises: StorageError, with the row, for null or a value that is no offset.
        """
        pa = schema.arrow()
        if column.null_count:
            row = first + column.is_null().to_pylist().index(True)
            raise StorageError(f"row {row}: {name} is null", url=self.table)
        with schema.value_errors(f"row {first}: {name} is {column.type}, which is not a place in a shard", self.table):
            try:
                return whole_numbers(column)[0]
            except pa.ArrowException:
                for row, value in enumerate(column, first):
                    message = f"row {row}: {name} is {str(value)[:40]}, which is not a place in a shard"
                    with schema.value_errors(message, self.table):
                        value.cast(pa.int64())
                raise

    def _shards(self, column: Any, version: Any, first: int) -> Any:
        """Return for each row the number of its shard, an array of int32.

        *column*: names of shards; *version*: the column of versions, None if there is none; *first*: the first row
        number.
        """
        import numpy as np

        with schema.value_errors(f"row {first}: this or a later one has no name of a shard", self.table):
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
            name, version = divmod(int(pairs[n]), len(versions) + 1)
            numbers[n] = self._number_in_table(
                names[name - 1] if name else None, versions[version - 1] if version else None, first + int(begins[n])
            )
        return numbers[inverse]

    def _number_in_table(self, name: object, version: object, row: int) -> int:
        """Return the number of the shard that the table calls *name*, in this *version*.

        Raises: StorageError with the *row*.
        """
        if not isinstance(name, str) or not name or "\0" in name:
            raise StorageError(f"row {row}: {schema.SHARD_COLUMN} is not the name of a shard", url=self.table)
        if not isinstance(version, str | None):
            raise StorageError(f"row {row}: {schema.VERSION_COLUMN} is not text", url=self.table)
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

        *cause*: the message, or the error of reading the shard.
        """
        number, begin, _ = rows.place(index)
        row = rows.first + index if rows.rows is None else rows.rows[index]
        message = cause if isinstance(cause, str) else cause.message
        place = f"row {row} of {shown(self.table)}{self._advice(number, cause)}"
        return RowError(f"{message} ({place})", url=self.urls[number], offset=begin)

    def _advice(self, number: int, cause: str | TarToolsError) -> str:
        """Return advice about the error *cause* of the shard *number*: "" if a new table would fail in the same way."""
        if isinstance(cause, StorageError) and is_missing(cause) and self.named_relative[number]:
            return f"; {MOVED_HINT}"
        changed = not isinstance(cause, StorageError) or isinstance(cause, ChangedError | NotFoundError)
        return f"; {UPDATE_ADVICE}" if changed else ""


def _dictionary_codes(column: Any) -> tuple[Any, list[object]]:
    """Return a code for each value of *column*, from 1 on, 0 for null; and the distinct values by code."""
    import numpy as np

    pa = schema.arrow()
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    numbers, valid = numbers_and_mask(encoded.indices)
    return np.where(valid, numbers.astype(np.int64) + 1, 0), encoded.dictionary.to_pylist()
