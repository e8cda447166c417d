"""Which names exist, in a directory or in a store."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tartools.storage import local
from tartools.storage.checks import exists
from tartools.storage.url import Url

FEW = 10  # objects that are looked up one by one


def between(prefix: str, suffix: str) -> list[str]:
    """Return the existing URLs that begin with *prefix*, go on without a slash, and end in *suffix*.

    Empty for commands, and for stores that have no listings.
    """
    start = Url(prefix)
    if start.is_local:
        return local.between(prefix, suffix)
    if not start.is_listed:
        return []
    from tartools.storage.names import listing

    found = listing.listed(prefix + Url(prefix + suffix).query, flat="/" not in suffix)
    shortest = len(prefix) + len(suffix)
    return [
        entry.url
        for entry in found
        if entry.url.endswith(suffix)
        and len(entry.url) > shortest
        and "/" not in entry.url[len(prefix) : len(entry.url) - len(suffix)]
    ]


def existing(urls: Sequence[str]) -> set[str]:
    """Return those of *urls* that exist. Many in one store are found by a listing of their common prefix.

    Raises: StorageError if that can't be found out.
    """
    prefix = os.path.commonprefix(urls)  # noqa: RUF071  # by letters
    if len(urls) <= FEW or not Url(urls[0]).is_listed or prefix.count("/") < 3:
        return {url for url in urls if exists(url)}
    from tartools.storage.names import listing

    return set(urls) & {found.url for found in listing.listed(prefix)}
