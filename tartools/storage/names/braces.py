"""Braces in URLs: `{000..147}` and `{a,b}` to names, and names back to `{000..147}`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from tartools.storage.url import Url

_NUMBER = r"([0-9]{1,99})"


def unfolded(pattern: str) -> list[str]:
    """Return *pattern* with its braces expanded; unbalanced braces are taken literally."""
    if "{" not in pattern:
        return [pattern]
    from braceexpand import braceexpand

    try:
        return list(braceexpand(pattern, escape=False))
    except ValueError:
        return [pattern]


def quoted(url: str) -> str:
    """Return *url*, the name of one object, such that `expand` returns it alone.

    Braces in remote names would expand, and there is no escape. So a set `[{{]` makes them unbalanced, and wildcards
    become sets of one character.

    >>> quoted("s3://b/{0..9}-*.tar"), quoted("s3://b/a*.tar"), quoted("{0..9}.tar")
    ('s3://b/[{{]0..9}-[*].tar', 's3://b/a*.tar', '{0..9}.tar')
    """
    if not Url(url).is_listed or "{" not in url or url.count("{") != url.count("}"):
        return url
    return re.sub(r"[*?[]", r"[\g<0>]", Url(url).name).replace("{", "[{{]", 1) + Url(url).query


def folded(urls: Iterable[str], taken: Callable[[str], bool] = lambda text: False) -> Iterator[str]:
    """Yield *urls*; adjacent ones that count up in one number become one pattern with braces.

    `unfolded` gives *urls* back, in their order, if they have no braces. A pattern that is *taken*, because it is the
    name of something, is not used.

    >>> list(folded(["a-08", "a-09", "a-10", "a-12", "b9", "b10"]))
    ['a-{08..10}', 'a-12', 'b{9..10}']
    """
    sequence: _Sequence | None = None
    for url in urls:
        if sequence is not None:
            if sequence.takes(url):
                continue
            yield from sequence.texts(taken)
        sequence = _Sequence(url)
    if sequence is not None:
        yield from sequence.texts(taken)


class _Sequence:
    """URLs that are *head*, a number that counts up from *first*, and *tail*."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._head = self._tail = self._first = self._last = ""

    def takes(self, url: str) -> bool:
        """Add *url* if it is the next one; tell whether it is."""
        if not self._last and not self._begins(url):
            return False
        following = _following(self._last)
        padded = self._first.startswith("0") and self._first != "0"  # then all have as many digits
        if url != self._head + following + self._tail or (padded and len(following) > len(self._first)):
            return False
        self._last = following
        return True

    def _begins(self, url: str) -> bool:
        """Find the one number in which *url* differs from the first; tell whether there is one."""
        if "{" in url + self._url or "}" in url + self._url:
            return False
        first, second = re.split(_NUMBER, self._url), re.split(_NUMBER, url)
        places = [place for place, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]]
        if len(first) != len(second) or len(places) != 1 or places[0] % 2 == 0:
            return False
        (place,) = places
        if second[place] != _following(first[place]):
            return False
        self._head, self._tail = "".join(first[:place]), "".join(first[place + 1 :])
        self._first = self._last = first[place]
        return True

    def texts(self, taken: Callable[[str], bool]) -> Iterator[str]:
        """Yield the pattern for all of them, or the only one."""
        if self._first == self._last:
            yield self._url
            return
        text = f"{self._head}{{{self._first}..{self._last}}}{self._tail}"
        yield from unfolded(text) if taken(text) else [text]


def _following(digits: str) -> str:
    return str(int(digits) + 1).zfill(len(digits))
