"""Wildcards in URLs of stores. They match what Python's glob matches in local names."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tartools.errors import StorageError
from tartools.storage.url import Url

_WILDCARDS = "*?["

Part = Callable[[str], object] | None  # whether a name between two slashes matches; None is `**`


def has_wildcards(url: str) -> bool:
    """Tell whether *url*, whose scheme has wildcards, contains one."""
    name = Url(url).name
    return any(character in name for character in _WILDCARDS)


class Pattern:
    """A URL with wildcards: `*`, `?` and `[...]`, which match no slash, and `**`, which matches any directories.

    Names that begin with a dot are only matched by patterns that do. *prefix* is how all matches begin (followed by the
    provider, if there is one); if *flat*, none has a slash behind that.

    Raises: StorageError for wildcards in the name of the bucket.
    """

    def __init__(self, url: str) -> None:
        name, self._query = Url(url).name, Url(url).query
        at = min((name.index(character) for character in _WILDCARDS if character in name), default=len(name))
        self._begin = name.rfind("/", 0, at) + 1
        if name.count("/", 0, at) < 3:
            raise StorageError("wildcards in the name of a bucket do not expand", url=url)
        parts = name[self._begin :].split("/")
        self.prefix = name[:at] + self._query
        self.flat = len(parts) == 1 and parts != ["**"]
        self._parts = [_part(text) for text in parts]

    def matches(self, url: str) -> bool:
        """Tell whether *url*, which begins with *prefix*, matches; no name that ends in a slash does."""
        names = url[self._begin : len(url) - len(self._query)].split("/")
        return bool(names[-1]) and _fits(self._parts, names)


def _part(text: str) -> Part:
    if text == "**":
        return None
    if not any(character in text for character in _WILDCARDS):
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
