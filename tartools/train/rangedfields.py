"""Fields of large samples on servers, as files that are read by ranges, where they are asked for."""

from __future__ import annotations

import io
from collections.abc import Set
from functools import partial
from typing import Any

from tartools.errors import StorageError, TarFormatError
from tartools.storage import seekable
from tartools.storage.objects import OUTDATED
from tartools.storage.url import Url
from tartools.tables.table import Table
from tartools.tar import Member, split_path
from tartools.tar.member import PayloadReader
from tartools.tar.rescan import headers_in
from tartools.train.fieldchooser import HAVE, dict_of

LEAST = 1 << 20  # bytes of a sample that is not read whole


def sample_in_ranges(table: Table, row: int, files: Set[str], wanted: Set[str] | None) -> dict[str, Any] | None:
    """Return the sample of *row* as `as_dict` does, with the fields *files* as files that can seek.

    None if it has to be read whole: it is small, local, of a shard whose version the table does not have, or has links.
    Reads the headers, and the other fields that are *wanted*. Raises: StorageError, also if the shard was replaced.
    """
    (numbers, begins, ends), row = table.places(), row % len(table)
    number, begin, end = (int(column[row]) for column in (numbers, begins, ends))
    url, version = Url(table.shards()[number]), table.versions()[number]
    if end - begin < LEAST or not url.is_stored or url.read_command or version is None:
        return None
    file = seekable.reading(url)
    if seekable.version(file) != version:
        raise StorageError(OUTDATED, url=url)
    found, keys = [], set()
    try:
        for at, header in headers_in(partial(_read, file), begin, end):
            key, field = split_path(header.path)
            member = Member(header.path, b"", at, at + header.data, header.size)
            name = field.decode("utf-8", "surrogateescape")
            if header.special is not None or header.head is not None or not field or at + header.end > end:
                return None
            keys.add(key)
            found.append((name, partial(_field, file, member, name.lower() in files)))
    except TarFormatError:
        return None  # what reads it whole says what is there
    if len(keys) != 1:
        return None
    made = dict_of(keys.pop().decode("utf-8", "surrogateescape"), url, found, wanted)
    return made if wanted is None or wanted <= made.keys() else made | {HAVE: [name for name, _ in found]}


def _read(file: io.BufferedReader, count: int, at: int) -> bytes:
    file.seek(at)
    return file.read(count)


def _field(file: io.BufferedReader, member: Member, as_file: bool) -> Any:
    return io.BufferedReader(RangedPayload(file, member)) if as_file else _read(file, member.size, member.data)


class RangedPayload(PayloadReader):
    """The payload of *member* of *file*."""

    def __init__(self, file: io.BufferedReader, member: Member) -> None:
        super().__init__(member)
        self._file = file

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """As `PayloadReader.readinto`."""
        count = max(0, min(len(buffer), self._member.size - self._position))
        found = _read(self._file, count, self._member.data + self._position)
        buffer[: len(found)] = found
        self._position += len(found)
        return len(found)
