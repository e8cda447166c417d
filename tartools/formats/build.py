"""Make samples from planned ones: read the files and URLs that a plan names.

This is not a stage, because stages open nothing. `formats.plan` makes the planned samples.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import NamedTuple

from tartools import storage, tar
from tartools.errors import StorageError, TarToolsError, shown
from tartools.samples.account import Account
from tartools.samples.sample import Sample
from tartools.storage.scratch import scratch_file
from tartools.storage.streams import check_whole, chunks
from tartools.storage.url import Url
from tartools.tar import Member

RANGE = 1 << 20  # bytes; a larger local file is not read into memory
LARGE = 16 << 20  # bytes; larger payloads of other URLs go to a scratch file
READ = 1 << 18  # bytes


class PlannedMember(NamedTuple):
    """A member to make: its path, and its payload or the URL to read it from.

    *line* (from 1 on) and *column* say where the plan names the URL; 0 and "" if nothing does.
    """

    path: bytes
    payload: bytes = b""
    url: str | None = None
    line: int = 0
    column: str = ""


class PlannedSample(NamedTuple):
    """A sample to make."""

    key: bytes
    parts: tuple[PlannedMember, ...]


def local_url(path: str, base: str) -> str:
    """Return the URL of the local file *path*, relative to *base*, even if it looks like a URL with a scheme.

    >>> local_url("a.jpg", "data"), local_url("pipe:rm a", "")
    ('data/a.jpg', './pipe:rm a')
    """
    joined = os.path.join(base, path)
    return joined if Url(joined).scheme == "" else f"./{joined}"


def sources_of(parts: Iterable[PlannedMember]) -> dict[str, PlannedMember]:
    """Return the URLs that *parts* are read from, each with the first part that names it."""
    found: dict[str, PlannedMember] = {}
    for part in parts:
        if part.url is not None:
            found.setdefault(part.url, part)
    return found


def place(line: int, column: str) -> str:
    """Return where something is in a plan: its line, and its column if there are some."""
    return f"line {line}, column {column}" if column else f"line {line}"


def located(error: TarToolsError, part: PlannedMember, name: str, advice: str = "") -> StorageError:
    """Return the failure *error* of the source of *part* with its place in the plan *name*, and *advice*."""
    return StorageError(
        f"{error.message} ({shown(name)}: {place(part.line, part.column)}{advice})", url=error.url, offset=error.offset
    )


def build_samples(planned: Iterable[PlannedSample], account: Account, name: str = "") -> Iterator[Sample]:
    """Yield the samples that the plan *name* has *planned*, in order. Members are new: mode 0644, owner and time 0.

    Holds: one sample; members above 1 MiB are ranges of local files, others above 16 MiB go to scratch.
    Raises: StorageError if a URL cannot be read.
    """
    for key, parts in planned:
        members = tuple(build_member(part, name) for part in parts)
        account.bytes_in += sum(member.size for member in members)
        account.samples_in += 1
        yield Sample(key, members)


def build_member(part: PlannedMember, name: str = "") -> Member:
    """Return the member that *part* of the plan *name* plans. Raises: StorageError if its URL cannot be read."""
    if part.url is None:
        return tar.new_member(part.path, part.payload)
    try:
        return _member_of(part, part.url)
    except StorageError as error:
        if not part.line:
            raise
        raise located(error, part, name) from error


def _member_of(part: PlannedMember, url: str) -> Member:
    with closing(storage.open_read(url)) as stream:
        file = stream.file
        if file is not None and (size := os.fstat(file.fileno()).st_size) > RANGE:
            return Member(part.path, file, 0, 0, size, tar.encode_header(part.path, size))
        source = kept(chunks(stream))
        check_whole(stream, url)
    size = os.fstat(source.fileno()).st_size if isinstance(source, io.FileIO) else len(source)
    return Member(part.path, source, 0, 0, size, tar.encode_header(part.path, size))


def kept(chunks: Iterable[bytes | memoryview]) -> bytearray | io.FileIO:
    """Return the bytes of *chunks*: in memory, or in a scratch file if they are more than 16 MiB."""
    held, scratch = bytearray(), None
    for chunk in chunks:
        held += chunk
        if scratch is None and len(held) > LARGE:
            scratch = scratch_file()
        if scratch is not None:
            tar.write_all(scratch, held)
            held.clear()
    return held if scratch is None else scratch
