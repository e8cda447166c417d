"""Parts of objects, and whole ones, in one request each: of the version that is known, or not at all."""

from __future__ import annotations

from collections.abc import Callable

from tartools.errors import StorageError
from tartools.storage.objects import object_at
from tartools.storage.objects.contract import Body
from tartools.storage.objects.retry import TransientError, setting, with_retries

REQUESTS = 32  # at once
REPLACED = "was replaced since the table was made, or the table was made elsewhere"


def fetched(
    url: str,
    begin: int,
    end: int,
    version: str,
    replaced: str = REPLACED,
    listed: bool = False,
) -> bytes:
    """Return bytes *begin* to *end* of the object *url*, if it still has this *version* (see `storage.versions`).

    A version that is a size and a blank, with nothing behind it, is only compared by size. So is one that was *listed*,
    if the server sends none with the data, as emulators of GCS do: it was asked for that version.

    Raises: StorageError after the last try, and if the object is another one now, which *replaced* says.
    """
    have: list[bytes] = []

    def take(body: Body, position: int) -> int:
        if position == begin:
            have.clear()
        have.append(body.read(end - position))
        return len(have[-1])

    _receive(url, begin, end, version, replaced, take, listed)
    return have[0] if len(have) == 1 else b"".join(have)


def fetch_into(room: memoryview, url: str, begin: int, version: str, replaced: str = REPLACED) -> None:
    """Fill *room* with bytes of the object *url*, from *begin* on; as `fetched`, and without a copy."""
    _receive(url, begin, begin + len(room), version, replaced, lambda body, at: body.readinto(room[at - begin :]))


def _receive(
    url: str,
    begin: int,
    end: int,
    version: str,
    replaced: str,
    take: Callable[[Body, int], int],
    listed: bool = False,
) -> None:
    """Request the bytes *begin* to *end*; `take(body, position)` reads some and returns how many, 0 at the end.

    Where a server without ranges begins anew, so does the position.
    """
    size, _, tag = version.partition(" ")
    source = object_at(url)
    position = begin

    def attempt() -> None:
        nonlocal position
        reply = source.get(position, max(end, position + 1), tag)  # of an empty object too: is it still there?
        try:
            other = tag and reply.version != tag and (reply.version or (end > begin and not listed))
            if other or (reply.size is not None and str(reply.size) != size):
                raise StorageError(replaced, url=url, offset=begin)
            if reply.start not in (begin, position):
                raise StorageError("the server ignored the range of the request", url=url, offset=begin)
            position = reply.start
            while position < end and (count := take(reply.body, position)):
                position += count
        finally:
            reply.body.close()
            if tag and not reply.version and position < end:
                position = begin  # what comes next may be of another version
        if position < end:
            raise TransientError("the connection was cut")

    with_retries(attempt, url)


def requests_at_once() -> int:
    """Return how many requests are made side by side: 32, or `TARTOOLS_READAHEAD` if that is set."""
    return setting("TARTOOLS_READAHEAD", REQUESTS, REQUESTS)
