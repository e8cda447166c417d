"""What a file or object is now, so that it can be recognised later."""

from __future__ import annotations

import os

from tartools.errors import StorageError
from tartools.storage import local
from tartools.storage.url import Url


def version_of(url: str) -> str:
    """Return the version of *url*: its size in bytes, a blank, and the mtime in ns of a file or the ETag of an object.

    Raises: StorageError if it does not exist, or if no part of it can be read alone.
    """
    url = Url(url)
    if url.is_local and not url.read_command:
        if local.check_readable(url) is None:
            raise StorageError("this is no regular file, so no part of it can be read alone", url=url)
        return file_version(os.stat(local.path_of(url)))
    if not url.is_stored or url.read_command:
        raise StorageError("no part of this can be read alone; copy it to a file or an object", url=url)
    from tartools.storage.objects import object_at
    from tartools.storage.objects.retry import with_retries

    source = object_at(url)
    reply = with_retries(lambda: source.get(0, 1, ""), url)
    reply.body.close()
    if reply.size is None or (reply.size and reply.length != 1) or not reply.version:
        raise StorageError("this server has no ranges, or no versions (ETag), so no part can be read alone", url=url)
    return f"{reply.size} {reply.version}"


def file_version(found: os.stat_result) -> str:
    """Return the version of a file that *found* describes, as `version_of` does."""
    return f"{found.st_size} {found.st_mtime_ns}"
