"""Parts of objects, and whole ones, of a version that is known."""

from __future__ import annotations

from tartools.storage.objects import object_at
from tartools.storage.objects.pinned import Pinned, Range
from tartools.storage.objects.retry import setting

REQUESTS = 32  # at once
OUTDATED = "was replaced since the table was made, or the table was made elsewhere"


def fetched(url: str, begin: int, end: int, version: str, replaced: str = OUTDATED, listed: bool = False) -> bytes:
    """Return bytes *begin* to *end* of the object *url*, if it still has this *version* (see `storage.version`).

    A version that is a size and a blank, with nothing behind it, is only compared by size. For *listed* see `Pinned`.

    Raises: StorageError after the last try, and if the object is another one now, which *replaced* says.
    """
    part = Range(begin, end, again=True)
    _receive(part, url, version, replaced, listed)
    found = part.chunks[0].obj if len(part.chunks) == 1 else b"".join(part.chunks)
    assert isinstance(found, bytes)
    return found


def fetch_into(room: memoryview, url: str, begin: int, version: str, replaced: str = OUTDATED) -> None:
    """Fill *room* with bytes of the object *url*, from *begin* on; as `fetched`, and without a copy."""
    _receive(Range(begin, begin + len(room), room, again=True), url, version, replaced, False)


def _receive(part: Range, url: str, version: str, replaced: str, listed: bool) -> None:
    """Receive all of *part*."""
    size, _, tag = version.partition(" ")
    source = Pinned(
        object_at(url),
        int(size) if size.isdecimal() else -1,
        tag,
        ranged=part.start > 0,
        listed=listed,
        replaced=replaced,
    )
    for _ in source.receive(part):
        pass


def requests_at_once() -> int:
    """Return how many requests are made side by side: 32, or `TARTOOLS_READAHEAD` if that is set."""
    return setting("TARTOOLS_READAHEAD", REQUESTS, REQUESTS)
