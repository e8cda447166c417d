"""Braces in URLs: `{000..147}` and `{a,b}` to names, and names back to `{000..147}`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from tartools.storage.names import LISTED, scheme_of, split_query

_NUMBER = re.compile(r"([0-9]{1,99})")


def unfolded(pattern: str) -> list[str]:
    """Return what the braces in *pattern* stand for; those that have no partner are letters."""
    if "{" not in pattern:
        return [pattern]
    from braceexpand import braceexpand

    try:
        return list(braceexpand(pattern, escape=False))
    except ValueError:
        return [pattern]


def quoted(url: str) -> str:
    """Return *url*, which names one thing, so that `expand` reads it as that.

    Braces in remote names would expand. As there is no other way to say that they are letters, one of them loses
    its partner, in a set where it changes nothing, and wildcards become sets of one.

    >>> quoted("s3://b/{0..9}-*.tar"), quoted("s3://b/a*.tar"), quoted("{0..9}.tar")
    ('s3://b/[{{]0..9}-[*].tar', 's3://b/a*.tar', '{0..9}.tar')
    """
    if scheme_of(url) not in LISTED or "{" not in url or url.count("{") != url.count("}"):
        return url
    name, query = split_query(url)
    return re.sub(r"[*?[]", r"[\g<0>]", name).replace("{", "[{{]", 1) + query


def folded(urls: Iterable[str], taken: Callable[[str], bool] = lambda text: False) -> Iterator[str]:
    """Yield *urls*, those that follow each other and count up in one number as one pattern in braces.

    `unfolded` gives *urls* back, in their order, from those without braces. A pattern that is *taken*, because it is
    the name of something, is not used.

    >>> list(folded(["a-08", "a-09", "a-10", "a-12", "b9", "b10"]))
    ['a-{08..10}', 'a-12', 'b{9..10}']
    """
    run: _Run | None = None
    for url in urls:
        if run is not None:
            if run.takes(url):
                continue
            yield from run.texts(taken)
        run = _Run(url)
    if run is not None:
        yield from run.texts(taken)


class _Run:
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
        """Find the number by which *url* differs from the first; tell whether there is one."""
        if "{" in url + self._url or "}" in url + self._url:
            return False
        here, there = _NUMBER.split(self._url), _NUMBER.split(url)
        places = [place for place, pair in enumerate(zip(here, there, strict=False)) if pair[0] != pair[1]]
        if len(here) != len(there) or len(places) != 1 or places[0] % 2 == 0:
            return False
        (place,) = places
        if there[place] != _following(here[place]):
            return False
        self._head, self._tail = "".join(here[:place]), "".join(here[place + 1 :])
        self._first = self._last = here[place]
        return True

    def texts(self, taken: Callable[[str], bool]) -> Iterator[str]:
        """Yield what stands for all of them."""
        if self._first == self._last:
            yield self._url
            return
        text = f"{self._head}{{{self._first}..{self._last}}}{self._tail}"
        yield from unfolded(text) if taken(text) else [text]


def _following(digits: str) -> str:
    return str(int(digits) + 1).zfill(len(digits))
