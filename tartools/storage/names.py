"""Patterns and names: braces (`{000..147}`), wildcards, numbers (`%06d`), local paths. Nothing here asks a server."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from tartools.errors import StorageError
from tartools.storage.local import path_of
from tartools.storage.url import Url, drop_commit

_RANGE_NUMBER = r"([0-9]{1,99})"
_WILDCARDS = "*?["
Part = Callable[[str], object] | None  # whether a name between two slashes matches; None is `**`
PERCENT_PATTERN = r"(?<!%)%(0?)(\d*)d"
_PADDED_FORMAT = r"%(0)([1-9])d"
_BRACES = r"\{shard(?::(0?)(\d*)d?)?\}"


# ---- braces ----


def expand_braces(pattern: str) -> list[str]:
    """Return the texts that the braces of *pattern* expand to; [*pattern*] if it has none, or they are unbalanced.

    Braces are as in bash, but a backslash escapes none: "a{b,c}.tar" has two texts, "{08..10}" three: "08", "09", "10".
    """
    if "{" not in pattern:
        return [pattern]
    from braceexpand import braceexpand

    try:
        return list(braceexpand(pattern, escape=False))
    except ValueError:
        return [pattern]


def escape_name(url: str) -> str:
    """Return *url*, the name of one object, such that `expand` returns it alone.

    Braces in the name of an object would expand, and there is no escape. So a set `[{{]` makes them unbalanced, and
    wildcards become sets of one character. A name without braces, or with unbalanced ones, and a local name stay as
    they are: `expand` takes them literally if they exist. A URL of a scheme without listings, such as https:, stays
    too, although its braces expand.

    >>> escape_name("s3://b/{0..9}-*.tar"), escape_name("s3://b/a*.tar"), escape_name("{0..9}.tar")
    ('s3://b/[{{]0..9}-[*].tar', 's3://b/a*.tar', '{0..9}.tar')
    """
    if not Url(url).is_listed or "{" not in url or url.count("{") != url.count("}"):
        return url
    return re.sub(r"[*?[]", r"[\g<0>]", Url(url).name).replace("{", "[{{]", 1) + Url(url).query


def fold_numbers(urls: Iterable[str], is_taken: Callable[[str], bool] = lambda text: False) -> Iterator[str]:
    """Yield *urls*, with each run of URLs that count up in one number as one pattern with braces.

    `expand_braces` gives *urls* back, in their order, if they have no braces. *is_taken*: called with a pattern; if it
    returns True, because a file or an object has this name, the URLs are yielded instead.

    >>> list(fold_numbers(["a-08", "a-09", "a-10", "a-12", "b9", "b10"]))
    ['a-{08..10}', 'a-12', 'b{9..10}']
    """
    remaining = iter(urls)
    first = last = next(remaining, None)
    if first is None or last is None:
        return
    around: tuple[str, str] | None = None  # what is before and behind the number that counts up
    for url in remaining:
        next_around = _texts_around_number(last, url)
        padded = around and re.match("0[0-9]", first[len(around[0]) :])  # then all numbers have as many digits
        if next_around is None or around not in (None, next_around) or (padded and len(url) != len(first)):
            yield from _pattern(first, last, around, is_taken)
            first, next_around = url, None
        last, around = url, next_around
    yield from _pattern(first, last, around, is_taken)


def _texts_around_number(first_url: str, second_url: str) -> tuple[str, str] | None:
    """Return the texts before and behind the number that is higher by 1 in the second URL than in the first.

    None if they differ in anything else, or contain braces. Both "a09.tar", "a10.tar" and "a9.tar", "a10.tar" give
    ("a", ".tar").
    """
    if "{" in first_url + second_url or "}" in first_url + second_url:
        return None
    first_parts, second_parts = re.split(_RANGE_NUMBER, first_url), re.split(_RANGE_NUMBER, second_url)
    places = [place for place, pair in enumerate(zip(first_parts, second_parts, strict=False)) if pair[0] != pair[1]]
    if len(first_parts) != len(second_parts) or len(places) != 1 or places[0] % 2 == 0:
        return None
    (place,) = places
    if second_parts[place] != str(int(first_parts[place]) + 1).zfill(len(first_parts[place])):
        return None
    return "".join(first_parts[:place]), "".join(first_parts[place + 1 :])


def _pattern(first: str, last: str, around: tuple[str, str] | None, is_taken: Callable[[str], bool]) -> list[str]:
    """Return one pattern with braces for the URLs from *first* to *last*, whose number is between the texts *around*.

    Only [*first*] if *around* is None: then there is one URL. All of the URLs if *is_taken* says that the pattern is
    the name of a file or an object.
    """
    if around is None:
        return [first]
    head, tail = around
    low, high = (text[len(head) : len(text) - len(tail)] for text in (first, last))
    text = f"{head}{{{low}..{high}}}{tail}"
    return expand_braces(text) if is_taken(text) else [text]


# ---- wildcards ----


def has_wildcards(url: str) -> bool:
    """True if *url* contains a wildcard: `*`, `?` or `[`.

    The query, and the host of an SSH server, are left out. The scheme is not looked at, so that it is also True where
    wildcards do not expand.
    """
    name = Url(url).name
    path = name[_host_end(name) :]
    return any(character in path for character in _WILDCARDS)


def _host_end(name: str) -> int:
    """Return the index at which the host of an SSH server ends in *name*, 0 for other schemes: [::1] is no wildcard."""
    host = re.match(r"(?:sftp|scp|ssh)://[^/]*", name)
    return host.end() if host else 0


class Pattern:
    """A URL of a store with wildcards: `*`, `?`, `[...]`, which match no slash, and `**` for any directories.

    Names that begin with a dot are only matched by patterns that do. `prefix`: the text before the first wildcard, with
    which all matches begin, and then the query of the URL, if it has one; `flat`: True if no match has a slash behind
    the prefix. Raises: StorageError for a wildcard before the third slash, as in the name of a bucket.
    """

    def __init__(self, url: str) -> None:
        name, self._query = Url(url).name, Url(url).query
        host = _host_end(name)
        at = min((p for c in _WILDCARDS if (p := name.find(c, host)) >= 0), default=len(name))
        self._begin = name.rfind("/", 0, at) + 1
        if name.count("/", 0, at) < 3:
            raise StorageError("wildcards in the name of a bucket do not expand", url=url)
        parts = name[self._begin :].split("/")
        self.prefix = name[:at] + self._query
        self.flat = len(parts) == 1 and parts != ["**"]
        self._parts = [_part(text) for text in parts]

    def matches(self, url: str) -> bool:
        """True if *url* matches the pattern; never for a name that ends in a slash.

        *url*: begins with the text before the first wildcard, and ends with the query of the pattern.
        """
        names = url[self._begin : len(url) - len(self._query)].split("/")
        return bool(names[-1]) and _is_match(self._parts, names)


def _part(text: str) -> Part:
    """Return a function: name between two slashes -> true if it matches the pattern *text*; None for `**`.

    A name that begins with a dot matches only if *text* begins with one.
    """
    if text == "**":
        return None
    if not any(character in text for character in _WILDCARDS):
        return text.__eq__
    from fnmatch import translate

    fits = re.compile(translate(text)).match
    return fits if text.startswith(".") else lambda name: not name.startswith(".") and fits(name)


def _is_match(parts: Sequence[Part], names: Sequence[str]) -> bool:
    """True if *names*, a path split at slashes, match *parts*, the pattern split so: None (`**`) matches any number.

    None at the end matches one or more. None never matches a name that begins with a dot.
    """
    for place, part in enumerate(parts):
        if part is None:
            # Try what follows behind each number of directories, the fewest first; `**` passes no hidden one. Recursion
            # is as deep as the pattern has `**`.
            remaining_parts = parts[place + 1 :]
            for passed in range(place, len(names)):
                if remaining_parts and _is_match(remaining_parts, names[passed:]):
                    return True
                if names[passed].startswith("."):
                    return False
            return not remaining_parts and place < len(names)
        if place >= len(names) or not part(names[place]):
            return False
    return len(parts) == len(names)


# ---- numbers ----


def numbers_in(text: str) -> list[re.Match[str]]:
    """Return the matches of number placeholders in the pattern *text*, a URL without its query.

    Placeholders are `%d`, `%06d`, `{shard}` and `{shard:06d}`; in http(s) and file:// URLs, where %20 is a blank, of
    the first two only `%01d` to `%09d`. Any width will do; in braces the d may be missing. `%%d` is none. Order: those
    with %, then those with braces. Groups of a match: "0" or "", and the digits of the width, "" without; both None for
    `{shard}`.
    """
    encoded = text.startswith(("http://", "https://", "file://"))  # there %20 is a blank
    if "%" in text or "{" in text:
        return [*re.finditer(_PADDED_FORMAT if encoded else PERCENT_PATTERN, text), *re.finditer(_BRACES, text)]
    return []


def has_number(url: str) -> bool:
    """True if *url*, a pattern for many outputs, contains a placeholder for a number: %d, %06d, {shard} or {shard:06d}.

    In http(s) and file:// URLs, `%d` counts only with a width that begins with 0. The query is left out.

    >>> has_number("a-%06d.tar"), has_number("a.tar")
    (True, False)
    """
    return bool(numbers_in(Url(url).name))


# ---- local names ----


def is_literal(url: str) -> bool:
    """True if *url*, taken literally, names an existing local file or directory, or a symbolic link that is broken.

    False for a URL that is not local, and for one with a NUL character in it. Raises: UsageError for a `file://` URL of
    another host, or with %00; for a URL with a password, as `Url`.
    """
    return Url(url).is_local and "\0" not in url and os.path.lexists(path_of(url))


def match_files(url: str) -> list[str]:
    """Return the URLs of the local files and directories that match the wildcards of *url*, sorted by bytes.

    They are paths, also for a `file:` URL. `**` matches any directories; names that begin with a dot are only matched
    by patterns that do. A folder that can't be read counts as empty. Raises: StorageError if nothing matches;
    UsageError for a `file://` URL of another host, or with a NUL.
    """
    from glob import glob

    paths = sorted(glob(path_of(url), recursive=True), key=os.fsencode)
    if not paths:
        raise StorageError("no file matches", url=url)
    return [local_url(name) for name in paths]


def local_url(path: str) -> str:
    """Return a URL for the local file *path*: the path, with ./ before it if it would be read as another scheme.

    >>> local_url("data/a.jpg"), local_url("pipe:rm a")
    ('data/a.jpg', './pipe:rm a')
    """
    return path if Url(path).scheme == "" else f"./{path}"


# ---- names in a table or list of shards ----


def folder_of(url: str) -> str:
    """Return the directory or prefix of the file *url*, with its last slash; "" if it has none, for stdin, commands.

    >>> folder_of("s3://b/sets/train.parquet"), folder_of("train.parquet")
    ('s3://b/sets/', '')
    """
    name = "" if Url(url).scheme in ("-", "pipe") else Url(url).name
    return name[: name.rfind("/") + 1]


def relative_name(shard: str, folder: str) -> str:
    """Return the name of *shard* for a table or list in *folder*, which ends in a slash, or is "", the current one.

    The name of a shard in *folder* or below is relative to it, so that both can be moved together; a commit in either
    is ignored for that. Otherwise a URL on a server, or with file://, a command and stdin are returned as they are; a
    local path is made absolute if *folder* is on a server, stays absolute if it was given so, and else becomes relative
    to *folder*, which may be a file: URL.

    >>> relative_name("s3://b/sets/a.tar", "s3://b/sets/"), relative_name("s3://b/a.tar", "sets/")
    ('a.tar', 's3://b/a.tar')
    """
    inside = drop_commit(shard).removeprefix(drop_commit(folder))
    if len(inside) < len(drop_commit(shard)) and not os.path.isabs(inside):  # as behind two slashes
        return inside
    if not Url(shard).is_local or "://" in shard:
        return shard
    path = shard.removeprefix("file:")
    if folder and not Url(folder).is_local:
        return os.path.abspath(path)
    folder = path_of(folder)
    inside = os.path.relpath(path, folder or ".")
    return path if os.path.isabs(path) and inside.startswith("..") else inside
