"""Bytes of files and objects as they are, and nothing else: what the first of them takes, and what all take."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from tartools.errors import StorageError
from tartools.storage.local import path_of
from tartools.storage.objects.fetching import fetched
from tartools.storage.pool import Threads
from tartools.storage.url import Url


class Range(NamedTuple):
    """Bytes *begin* to *end* of the file or object *url*, of which *version* is known (see `storage.versions`)."""

    url: str
    begin: int
    end: int
    version: str


class Prober:
    """Reads ranges, of objects with *at_once* requests side by side; the files of *kept* URLs are opened once.

    Holds: the bytes of one call; an open file for each of *kept*. Raises: StorageError.
    """

    def __init__(self, at_once: int, kept: Iterable[str] = ()) -> None:
        self._requests = Threads(at_once, self._read) if at_once > 1 else None
        self._files = {url: _opened(url) for url in kept if Url(url).is_local}

    def first(self, ranges: Iterable[Range]) -> int:
        """Read the first byte of each of *ranges*, all of nothing; return how many bytes there were."""
        return self.whole(each._replace(end=min(each.begin + 1, each.end)) for each in ranges)

    def whole(self, ranges: Iterable[Range]) -> int:
        """Read all of *ranges*; return how many bytes there were."""
        if self._requests is None:
            return sum(len(self._read(each)) for each in ranges)
        return sum(len(answer()) for answer in [self._requests.submit(each) for each in ranges])

    def _read(self, wanted: Range) -> bytes:
        url, begin, end, version = wanted
        if not Url(url).is_local:
            return fetched(url, begin, end, version)
        fd = self._files.get(url)
        opened = _opened(url) if fd is None else fd
        try:
            parts = []
            while begin < end and (part := os.pread(opened, end - begin, begin)):
                parts.append(part)
                begin += len(part)
            return b"".join(parts)
        except OSError as error:
            raise StorageError(error.strerror or str(error), url=url) from error
        finally:
            if fd is None:
                os.close(opened)

    def close(self) -> None:
        """Close the files, and end the threads."""
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()
        if self._requests is not None:
            self._requests.close()


def _opened(url: str) -> int:
    try:
        return os.open(path_of(url), os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise StorageError(error.strerror or str(error), url=url) from error
