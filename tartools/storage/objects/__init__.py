"""Objects in stores: S3, GCS, Azure, AIStore, Hugging Face's hub, web servers, SSH servers.

The table in `tartools.schemes` says which module is the store of a scheme; `contract` has the functions and methods of
such a module. `http` is the client of all but S3 and SFTP. `pinned` receives ranges of one version; `ranges` makes a
stream of them, `fetch_range` gives one. `cache` keeps blocks on the disk. `uploads` makes an output, `retry` decides
which requests are made again. Nothing here knows of tar or samples. Begin reading at `contract`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

from tartools.storage.objects.contract import NoPermissionError, Object, Store
from tartools.storage.objects.pinned import Pinned, Range
from tartools.storage.objects.retry import call_with_retries, read_setting
from tartools.storage.streams import size_in_version
from tartools.storage.url import Url, load_module

if TYPE_CHECKING:
    from tartools.storage.streams import Input, OutputStream


MAX_REQUESTS_AT_ONCE = 32  # at once
TABLE_OUTDATED = "was replaced since the table was made, or the table was made elsewhere"


def store_of(url: str) -> Store:
    """Return the store that *url* is in: a module with the functions of `contract.Store`.

    Imports its library, which takes up to 0.2 seconds. Raises: StorageError for a scheme that can't be read.
    """
    return cast(Store, load_module(Url(url).module("read")))


def object_at(url: str) -> Object:
    """Return the object *url*, read through the cache of `TARTOOLS_CACHE` if that is set.

    Each call with one `Url` returns the same object; each call with a plain string makes a new one. Requests nothing.
    Raises: UsageError if *url* does not name an object, or for an invalid `TARTOOLS_CACHE`; StorageError for a scheme
    that can't be read.
    """
    url = Url(url)
    if url.store_object is None:
        url.store_object = store_of(url).object_at(url)
        if text := os.environ.get("TARTOOLS_CACHE"):
            from tartools.storage.objects import cache

            url.store_object = cache.CachedObject(url.store_object, cache.cache_of(text))
    return url.store_object


def open_read(url: str) -> Input:
    """Return the bytes of the object *url* as a stream, a `RangedInput`, which requests nothing before its first read.

    Raises: UsageError if *url* does not name an object, and for an invalid `TARTOOLS_READAHEAD` or `TARTOOLS_CACHE`;
    StorageError for a scheme that can't be read.
    """
    from tartools.storage.objects import ranges

    return ranges.RangedInput(object_at(url))


def open_write(url: str, force: bool) -> OutputStream:
    """Return an output that makes the object *url* at `commit`; unless *force*, that fails if the object exists.

    Raises: UsageError if *url* does not name an object, or for an invalid `TARTOOLS_CACHE`; StorageError if its store
    can't be written to, or for a scheme that can't be read.
    """
    return object_at(url).output(force)


def remove(url: str) -> None:
    """Remove the object *url*, if it exists.

    Raises: StorageError after the last attempt, or if nothing can be removed in its store; UsageError if *url* does not
    name an object.
    """
    call_with_retries(object_at(url).remove, url)


def exists(url: str) -> bool:
    """True if the object *url* exists; False if it does not, and without permission to look.

    A caller who may only write can go on then: the store accepts or refuses the write. Raises: StorageError after the
    last attempt, or if the server can't tell; UsageError if *url* does not name an object.
    """
    try:
        return call_with_retries(object_at(url).head, url) is not None
    except NoPermissionError:
        return False


def fetch_range(
    url: str, begin: int, end: int, version: str, changed_message: str = TABLE_OUTDATED, from_listing: bool = False
) -> bytes:
    """Return bytes *begin* to *end* (exclusive) of the object *url*, if it still has this *version*.

    *version*: the size in bytes, a blank, and a `Reply.version`, such as an ETag; with nothing behind the blank only
    the size is compared. *changed_message*: of the error if the object has another version now. *from_listing*: the
    version comes from a listing, so that a response without a version counts as the same.

    For an empty range a byte is requested all the same, to compare the version.

    Raises: StorageError after the last try, for another version, or if the object ends before *end*; UsageError if
    *url* does not name an object.
    """
    part = Range(begin, end, repeatable=True)
    _receive(part, url, version, changed_message, from_listing)
    data = part.chunks[0].obj if len(part.chunks) == 1 else b"".join(part.chunks)
    assert isinstance(data, bytes)
    return data


def fetch_into(buffer: memoryview, url: str, begin: int, version: str) -> None:
    """Fill *buffer* with bytes of the object *url* from byte *begin* on, without a copy.

    *version*: the size in bytes, a blank, and a `Reply.version`, such as an ETag; with nothing behind the blank only
    the size is compared. Raises: StorageError after the last try, if the object has another version now, or ends before
    *buffer* is full; UsageError if *url* does not name an object.
    """
    _receive(Range(begin, begin + len(buffer), buffer, repeatable=True), url, version, TABLE_OUTDATED, False)


def _receive(part: Range, url: str, version: str, changed_message: str, from_listing: bool) -> None:
    """Receive the bytes of *part* from the object *url* at this *version*, into its buffer or its `chunks`.

    *version*: the size in bytes, a blank, and a `Reply.version`, such as an ETag; with nothing behind the blank only
    the size is compared. *changed_message*: of the error if the object has another version now. *from_listing*: the
    version comes from a listing, so that a response without a version counts as the same.

    Raises: StorageError after the last attempt, for another version, or if the object ends before *part* does;
    UsageError if *url* does not name an object.
    """
    size, tag = size_in_version(version), version.partition(" ")[2]
    source = Pinned(
        object_at(url),
        -1 if size is None else size,
        tag,
        has_ranges=part.start > 0,
        from_listing=from_listing,
        changed_message=changed_message,
    )
    for _ in source.receive(part):
        pass


def requests_at_once(max_requests: int = MAX_REQUESTS_AT_ONCE) -> int:
    """Return how many requests may run at once: *max_requests*, or the number in `TARTOOLS_READAHEAD` if that is set.

    Raises: UsageError unless that variable is a whole number from 1 to *max_requests*.
    """
    return read_setting("TARTOOLS_READAHEAD", max_requests, max_requests)
