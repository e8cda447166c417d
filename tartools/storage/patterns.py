"""Wildcards in remote URLs: what they match is what Python's glob matches in local names."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tartools.errors import StorageError
from tartools.storage.names import split_query

_WILDCARD = re.compile(r"[*?[]")

Part = Callable[[str], object] | None  # tells whether a name between two slashes fits; None is `**`


def has_wildcards(url: str) -> bool:
    """Tell whether *url*, whose scheme has wildcards, holds some."""
    return _WILDCARD.search(split_query(url)[0]) is not None


class Pattern:
    """A URL with wildcards: `*`, `?` and `[...]`, which match no slash, and `**`, which is any number of directories.

    What begins with a dot is matched by what begins with one. *prefix* is what all matches begin with (followed by
    the provider, if there is one); *flat* tells that none has a slash behind that.

    Raises: StorageError for wildcards in the name of the bucket.
    """

    def __init__(self, url: str) -> None:
        name, self._query = split_query(url)
        found = _WILDCARD.search(name)
        at = found.start() if found else len(name)
        self._begin = name.rfind("/", 0, at) + 1
        if name.count("/", 0, at) < 3:
            raise StorageError("the name of a bucket has no wildcards", url=url)
        parts = name[self._begin :].split("/")
        self.prefix = name[:at] + self._query
        self.flat = len(parts) == 1 and parts != ["**"]
        self._parts = [_part(text) for text in parts]

    def matches(self, url: str) -> bool:
        """Tell whether *url*, which begins with *prefix*, matches. Names that end in a slash stand for directories."""
        names = url[self._begin : len(url) - len(self._query)].split("/")
        return bool(names[-1]) and _fits(self._parts, names)


def _part(text: str) -> Part:
    if text == "**":
        return None
    if not _WILDCARD.search(text):
        return text.__eq__
    from fnmatch import translate

    fits = re.compile(translate(text)).match
    return fits if text.startswith(".") else lambda name: not name.startswith(".") and fits(name)


def _fits(parts: Sequence[Part], names: Sequence[str]) -> bool:
    for place, part in enumerate(parts):
        if part is None:
            rest = parts[place + 1 :]
            for passed in range(place, len(names)):
                if rest and _fits(rest, names[passed:]):
                    return True
                if names[passed].startswith("."):
                    return False
            return not rest and place < len(names)
        if place >= len(names) or not part(names[place]):
            return False
    return len(parts) == len(names)
