"""What a file or object is now, so that it can be recognised later."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from tartools.errors import StorageError
from tartools.storage import local
from tartools.storage.streams import FileVersion
from tartools.storage.url import Url

FIRST = 4  # bytes


class Look(NamedTuple):
    """The *version* of a file or object, None if it has none, and its *first* four bytes."""

    version: str | None
    first: bytes

    def known(self, url: str) -> str:
        """Return the version of *url*. Raises: StorageError if it has none."""
        if self.version is None:
            raise StorageError(
                "this server has no ranges or no versions (ETag), so this can't be read in parts", url=url
            )
        return self.version


def version_of(url: str) -> str:
    """Return the version of *url*: its size in bytes, a blank, and the mtime in ns of a file or the ETag of an object.

    Raises: StorageError if it does not exist, or if no part of it can be read alone.
    """
    return look(url).known(url)


def look(url: str) -> Look:
    """Return what *url* is now. An object has no version if its server has none, or no ranges.

    Raises: StorageError if it does not exist, or is neither a regular file nor an object.
    """
    url = Url(url)
    if url.is_local and not url.read_command:
        if local.check_readable(url) is None:
            raise StorageError("this is not a regular file, so it can't be read in parts", url=url)
        with open(local.path_of(url), "rb", buffering=0) as file:
            return Look(str(FileVersion.of(file)), os.pread(file.fileno(), FIRST, 0))
    if not url.is_stored or url.read_command:
        raise StorageError("this can't be read in parts; copy it to a file or an object", url=url)
    from tartools.storage.objects import object_at
    from tartools.storage.objects.retry import with_retries

    source = object_at(url)

    def attempt() -> Look:
        reply = source.get(0, FIRST, "")
        try:
            first = b""
            while len(first) < FIRST and (data := reply.body.read(FIRST - len(first))):
                first += data
        finally:
            reply.body.close()
        ranges = reply.size is not None and reply.length == min(FIRST, reply.size)
        return Look(f"{reply.size} {reply.version}" if ranges and reply.version else None, first)

    return with_retries(attempt, url)


def looks(urls: Sequence[str]) -> dict[str, Look]:
    """Return what each of *urls* is now; servers are asked side by side."""
    if all(Url(url).is_local for url in urls):
        return {url: look(url) for url in urls}
    from tartools.storage.objects import requests_at_once
    from tartools.storage.pool import Threads

    with closing(Threads(requests_at_once(), look)) as requests:
        answers = {url: requests.submit(url) for url in urls}
        return {url: answer() for url, answer in answers.items()}


def check_unchanged(known: Mapping[str, str | None]) -> None:
    """Raise StorageError if one of *known*, versions by URL, is another one now."""
    for url, now in looks([*known]).items():
        if now.version != known[url]:
            raise changed_since(url)


def changed_since(url: str) -> StorageError:
    """Return the failure that *url* is not what it was when it was read before."""
    return StorageError("changed while it was read; start again when nothing writes to it", url=url)
