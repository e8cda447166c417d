"""Local names: what exists, what wildcards match, and how a path is written as a URL."""

from __future__ import annotations

import os

from tartools.errors import StorageError
from tartools.storage.local import path_of
from tartools.storage.url import Url


def is_literal(url: str) -> bool:
    """Tell whether *url*, taken literally, names an existing local file or directory."""
    return Url(url).is_local and "\0" not in url and os.path.lexists(path_of(url))


def matches(url: str) -> list[str]:
    """Return the URLs that the local pattern *url* matches, sorted by bytes. Raises: StorageError if there are none."""
    from glob import glob

    found = sorted(glob(path_of(url), recursive=True), key=os.fsencode)
    if not found:
        raise StorageError("no file matches", url=url)
    return [local_url(name) for name in found]


def local_url(path: str) -> str:
    """Return *path* as a URL: with ./ before the name of a file that is called - or pipe:x."""
    return path if Url(path).scheme == "" else f"./{path}"
