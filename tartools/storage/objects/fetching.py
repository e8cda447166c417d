"""Parts of objects, and whole ones, in one request each: of the version that is known, or not at all."""

from __future__ import annotations

from tartools.errors import StorageError
from tartools.storage.objects import object_at
from tartools.storage.objects.retry import TransientError, setting, with_retries

REQUESTS = 32  # at once


def fetched(
    url: str, begin: int, end: int, version: str, replaced: str = "was replaced since the table was made"
) -> bytes:
    """Return bytes *begin* to *end* of the object *url*, if it still has this *version* (see `storage.versions`).

    A version that is a size and a blank, with nothing behind it, is only compared by size.

    Raises: StorageError after the last try, and if the object is another one now, which *replaced* says.
    """
    size, _, tag = version.partition(" ")
    source = object_at(url)
    have: list[bytes] = []

    def attempt() -> bytes:
        position = begin + sum(map(len, have))
        reply = source.get(position, max(end, position + 1), tag)  # of an empty object too: is it still there?
        try:
            other = tag and reply.version != tag and (reply.version or end > begin)
            if other or (reply.size is not None and str(reply.size) != size):
                raise StorageError(replaced, url=url, offset=begin)
            if reply.start == begin:
                have.clear()  # a server without ranges begins anew
                position = begin
            elif reply.start != position:
                raise StorageError("the server ignored the range of the request", url=url, offset=begin)
            while position < end and (data := reply.body.read(end - position)):
                have.append(data)
                position += len(data)
        finally:
            reply.body.close()
        if position < end:
            raise TransientError("the connection was cut")
        return have[0] if len(have) == 1 else b"".join(have)

    return with_retries(attempt, url)


def requests_at_once() -> int:
    """Return how many requests are made side by side: 32, or `TARTOOLS_READAHEAD` if that is set."""
    return setting("TARTOOLS_READAHEAD", REQUESTS, REQUESTS)
