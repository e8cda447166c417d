"""Samples that are to be made: `Planned`, which names its sources, and `build`, which opens them.

That is why this is no stage: stages open nothing. What to make is told by `tartools.plan`.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import NamedTuple

from tartools import storage, tar
from tartools.account import Account
from tartools.sample import Sample
from tartools.storage.names import scheme_of
from tartools.storage.scratch import scratch_file
from tartools.storage.streams import check_whole
from tartools.streams import Stream
from tartools.tar import Member

RANGE = 1 << 20  # bytes; a larger local file is not read into memory
LARGE = 16 << 20  # bytes; what is larger and no local file goes to scratch
READ = 1 << 18  # bytes


class Part(NamedTuple):
    """A member to be made: its path, and its payload or the URL to read that from."""

    path: bytes
    payload: bytes = b""
    url: str | None = None


class Planned(NamedTuple):
    """A sample to be made."""

    key: bytes
    parts: tuple[Part, ...]


def local(path: str, base: str) -> str:
    """Return *path* from *base* on, as a URL that is a plain path whatever its letters are.

    >>> local("a.jpg", "data"), local("pipe:rm a", "")
    ('data/a.jpg', './pipe:rm a')
    """
    joined = os.path.join(base, path)
    return joined if scheme_of(joined) == "" else f"./{joined}"


def urls_of(planned: Iterable[Planned]) -> list[str]:
    """Return the URLs that *planned* samples are read from, each once."""
    return list(dict.fromkeys(part.url for sample in planned for part in sample.parts if part.url is not None))


def build(planned: Iterable[Planned], account: Account) -> Iterator[Sample]:
    """Yield the *planned* samples, in order. Members are new: mode 0644, owner and time 0.

    Holds: one sample; members above 1 MiB are ranges of local files, others above 16 MiB go to scratch.
    Raises: StorageError for a source that can't be read.
    """
    for key, parts in planned:
        members = tuple(made(part) for part in parts)
        account.bytes_in += sum(member.size for member in members)
        account.samples_in += 1
        yield Sample(key, members)


def made(part: Part) -> Member:
    """Return the member that *part* plans."""
    if part.url is None:
        return tar.new_member(part.path, part.payload)
    with closing(storage.open_read(part.url)) as stream:
        file = stream.file
        if file is not None and (size := os.fstat(file.fileno()).st_size) > RANGE:
            return Member(part.path, file, 0, 0, size, tar.encode_header(part.path, size))
        source = _read_all(stream)
        check_whole(stream, part.url)
    size = os.fstat(source.fileno()).st_size if isinstance(source, io.FileIO) else len(source)
    return Member(part.path, source, 0, 0, size, tar.encode_header(part.path, size))


def _read_all(stream: Stream) -> bytearray | io.FileIO:
    """Return all of *stream*: in memory, or in a scratch file if it is large."""
    held, scratch = bytearray(), None
    room = memoryview(bytearray(READ))
    while count := stream.readinto(room):
        held += room[:count]
        if scratch is None and len(held) > LARGE:
            scratch = scratch_file()
        if scratch is not None:
            tar.write_all(scratch, held)
            held.clear()
    return held if scratch is None else scratch
