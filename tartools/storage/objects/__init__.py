"""Objects in stores: S3, GCS, AIStore, web servers.

`storage.url` says which module is the store of a scheme; `contract` says what such a module gives. `http` is the client
of those that are not S3. `pinned` receives ranges of one version; `ranges` makes a stream of them, `fetch` gives one.
`uploads` makes an output, `retry` decides which requests are made again. Nothing here knows of tar or samples. Begin
reading at `contract`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from tartools.storage.objects.contract import NoPermissionError, Object, Store
from tartools.storage.objects.retry import with_retries
from tartools.storage.url import Url, loaded

if TYPE_CHECKING:
    from tartools.storage.streams import Input, OutputStream


def store_of(url: str) -> Store:
    """Return the store that *url* is in. Imports its library, which takes up to 0.2 seconds."""
    return cast(Store, loaded(Url(url).module("read")))


def object_at(url: str) -> Object:
    """Return the object *url*, the same one for the same `Url`. Requests nothing.

    Raises: UsageError if *url* does not name an object.
    """
    url = Url(url)
    if url.store_object is None:
        url.store_object = store_of(url).object_at(url)
    return url.store_object


def open_read(url: str) -> Input:
    """Return the bytes of the object *url* as a stream."""
    from tartools.storage.objects import ranges

    return ranges.RangedInput(object_at(url))


def open_write(url: str, force: bool) -> OutputStream:
    """Return an output that makes the object *url*."""
    return object_at(url).output(force)


def remove(url: str) -> None:
    """Remove the object *url*. Raises: StorageError, also if nothing can be removed in its store."""
    with_retries(object_at(url).remove, url)


def exists(url: str) -> bool:
    """Tell whether the object *url* exists; False without permission to look: then the store refuses the write."""
    try:
        return with_retries(object_at(url).head, url) is not None
    except NoPermissionError:
        return False
