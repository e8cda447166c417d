"""Large columns of Parquet files, without pyarrow: it holds pages several times, and other programs write large ones.

Source: Apache Parquet, parquet.thrift (the metadata at the end of a file).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from tartools.errors import TarFormatError
from tartools.formats.parquetpages import PLAIN, PLAIN_DICTIONARY, RLE, RLE_DICTIONARY, WRONG, Chunk, values
from tartools.formats.thrift import parsed
from tartools.tables import schema
from tartools.tables.source import FOOTER, Source

LARGE = 48 << 20  # bytes of a column of a row group, from which on it is read here
CODECS = {0: "", 1: "snappy", 2: "gzip", 6: "zstd"}
ENCODINGS = {PLAIN, PLAIN_DICTIONARY, RLE, RLE_DICTIONARY}
BYTE_ARRAY = 6


class Pages:
    """The pages of *table*, of which columns are read in pieces of *piece* bytes.

    Where they are is read here, too: pyarrow's answers may end the process if the file is damaged.
    """

    def __init__(self, table: Source, piece: int) -> None:
        self._table, self._piece = table, piece
        self._end = end = table.file.seek(-FOOTER, os.SEEK_END)
        size = int.from_bytes(table.file.read(4), "little")
        table.file.seek(max(end - size, 0))
        try:
            self._groups = parsed(table.file.read(size), 0)[0][4]
        except WRONG as error:
            raise _damaged(f"its metadata ({error})") from error

    def begin(self, group: int) -> int:
        """Return the first byte of a row group. Raises: TarFormatError."""
        try:
            begin: int = min(_begin(column[3]) for column in self._groups[group][1])
            if 0 < begin < self._end:
                return begin
            raise ValueError("a column outside of the file")
        except WRONG as error:
            raise _damaged(f"its metadata ({error})") from error

    def columns(self, group: int, names: Iterable[str]) -> dict[str, Column]:
        """Return those of the columns *names* of a row group that are large, and can be read here.

        They are bytes or text, and structs of `bytes` and `path`. Raises: TarFormatError.
        """
        found = {}
        pa, fields = schema.arrow(), self._table.parquet.schema_arrow
        for name in names:
            kind = fields.field(name).type
            kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
            paths: list[tuple[str, ...]] = [(name,)]
            is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
            if is_picture(kind):
                paths, kind = [(name, "bytes"), (name, "path")], kind.field("bytes").type
            if is_text or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
                try:
                    chunks = self._chunks(group, paths)
                except WRONG as error:
                    raise _damaged(f"its metadata ({error})") from error
                if chunks:
                    found[name] = Column([values(self._table.file, one, self._piece) for one in chunks], is_text)
        return found

    def _chunks(self, group: int, paths: Sequence[tuple[str, ...]]) -> list[Chunk]:
        """Return the columns *paths* of a row group; none if they are not large, or one can't be read here."""
        leaves = self._table.parquet.schema
        known = [tuple(part.decode() for part in one[3][3]) for one in self._groups[group][1]]
        size, found = 0, []
        for path in paths:
            place = known.index(path)
            column, leaf = self._groups[group][1][place], leaves.column(place)
            about = column[3]
            if about[1] != BYTE_ARRAY or about[4] not in CODECS or not ENCODINGS.issuperset(about[2]) or 1 in column:
                return []
            if leaf.max_repetition_level or about[5] != self._groups[group][3]:
                raise ValueError(f"{about[5]} values")
            begin = _begin(about)
            if not 0 < begin <= begin + about[7] <= self._end:
                raise ValueError("a column outside of the file")
            found.append(Chunk(begin, begin + about[7], about[5], CODECS[about[4]], leaf.max_definition_level))
            size += about[6]
        return found if size >= LARGE else []


class Column:
    """A column whose values are taken in order: one list, or *parts* of a struct. If it *is_text*, they are UTF-8."""

    def __init__(self, parts: Sequence[Iterator[bytes | None]], is_text: bool) -> None:
        self._parts, self._is_text = parts, is_text

    def take(self, count: int) -> list[list[bytes | None]]:
        """Return the next *count* values of each part. Raises: TarFormatError if there are fewer, or damaged."""
        found = self._next(count)
        if any(len(each) < count for each in found):
            raise _damaged("a column lacks values")
        return found

    def finish(self) -> None:
        """Check the last page. Raises: TarFormatError if it is damaged, or there are more values."""
        if any(self._next(1)):
            raise _damaged("a column has too many values")

    def _next(self, count: int) -> list[list[bytes | None]]:
        try:
            found = [list(islice(part, count)) for part in self._parts]
            for value in found[0] if self._is_text else ():
                str(value or b"", "utf-8")
        except WRONG as error:
            raise _damaged(f"a page ({error})") from error
        except TarFormatError as error:
            raise _damaged(error.message) from error
        return found


def _begin(about: Any) -> int:
    """Return the first byte of a column of a row group, *about* which this is: of its pages or their dictionary."""
    return min(about.get(11) or about[9], about[9])  # type: ignore[no-any-return]


def is_picture(kind: Any) -> bool:
    """Tell whether a column is one of pictures or sounds, as Hugging Face's: structs of `bytes` and `path`."""
    return schema.arrow().types.is_struct(kind) and {part.name for part in kind} == {"bytes", "path"}


def _damaged(what: str) -> TarFormatError:
    return TarFormatError(f"this Parquet file is damaged: {what}")
