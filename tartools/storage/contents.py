"""The contents of many files and objects that were listed, in order, with requests side by side."""

from __future__ import annotations

import functools
import io
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from tartools.errors import StorageError
from tartools.storage import objects
from tartools.storage.local import path_of
from tartools.storage.objects import fetched
from tartools.storage.objects.contract import ListedObject
from tartools.storage.objects.retry import setting
from tartools.storage.pool import Threads
from tartools.storage.streams import FileVersion, named
from tartools.storage.url import Url
from tartools.storage.version import look

AT_ONCE = 64  # requests
HELD = 256 << 20  # bytes that are requested and not yet taken; a larger object is alone
LARGE = 16 << 20  # bytes; larger objects are read in ranges side by side
RANGE = 8 << 20  # bytes
REPLACED = "was replaced since it was listed"

Readers = Threads[Callable[[], Any], Any]


def contents(entries: Iterable[ListedObject]) -> Iterator[bytes]:
    """Yield all bytes of each of *entries*, whose sizes are known, in order.

    Up to 64 requests are made at once, or `TARTOOLS_READAHEAD` if that is set, and 32 for ranges of objects above 16
    MiB. Holds: up to 256 MiB, or one object; of large ones also the ranges that are received.

    Raises: StorageError if one can't be read, or is not the one that was listed.
    """
    most = requests_at_once()
    waiting: deque[tuple[int, Callable[[], bytes]]] = deque()
    held = 0
    for entry in entries:
        size = entry.size or 0
        while waiting and (len(waiting) >= most or held + size > HELD):
            taken, answer = waiting.popleft()
            held -= taken
            yield answer()
        task = partial(content_of, entry)
        waiting.append((size, task if Url(entry.url).is_local else requests().submit(task)))
        held += size
    while waiting:
        yield waiting.popleft()[1]()


def content_of(entry: ListedObject) -> bytes:
    """Return all bytes of *entry*. Raises: as `contents`."""
    version = f"{entry.size} {entry.version}"
    if not Url(entry.url).is_local:
        if (entry.size or 0) > LARGE and look(entry.url).version == version:
            return _in_ranges(entry.url, entry.size or 0, version)
        return fetched(entry.url, 0, entry.size or 0, version, REPLACED, listed=True)
    with named(entry.url), open(path_of(entry.url), "rb", buffering=0) as file:
        before = str(FileVersion.of(file))
        data = file.readall()
        after = str(FileVersion.of(file))
    if before != version or after != version or len(data) != entry.size:
        raise StorageError(REPLACED, url=entry.url)
    return data


def _in_ranges(url: str, size: int, version: str) -> bytes:
    """Return all bytes of a large object, whose server has ranges and versions. Raises: as `contents`."""
    data = io.BytesIO()  # gives its bytes without a copy
    waiting: deque[Callable[[], bytes]] = deque()
    for begin in range(0, size, RANGE):
        if len(waiting) >= objects.requests_at_once():
            data.write(waiting.popleft()())
        task = partial(fetched, url, begin, min(begin + RANGE, size), version, REPLACED)
        waiting.append(_ranges_of(os.getpid()).submit(task))
    while waiting:
        data.write(waiting.popleft()())
    return data.getvalue()


def requests_at_once() -> int:
    """Return how many requests for whole objects are made side by side."""
    return setting("TARTOOLS_READAHEAD", AT_ONCE, AT_ONCE)


def requests() -> Readers:
    """Return the threads of this process that make requests for whole objects. A fork has its own."""
    return _requests_of(os.getpid())


@functools.cache
def _requests_of(process: int) -> Readers:
    return Threads(requests_at_once())


@functools.cache
def _ranges_of(process: int) -> Readers:
    """Return other threads, for ranges: those for whole objects wait for them."""
    return Threads(objects.requests_at_once())
