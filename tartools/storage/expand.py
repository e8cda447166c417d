"""Expansion of arguments and lists of files to URLs: braces and wildcards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from tartools import storage
from tartools.errors import StorageError, UsageError
from tartools.schemes import SPLIT
from tartools.storage import split
from tartools.storage.names import expand_braces, has_wildcards, is_literal, match_files
from tartools.storage.url import Url


def expand(
    patterns: Sequence[str],
    lists: Sequence[str] = (),
    separator: str = "\n",
    trusted: bool = False,
    *,
    join: bool = True,
    on_fault: Callable[[StorageError], object] | None = None,
) -> list[Url]:
    """Return the URLs that *patterns*, and then the lines of the files *lists*, stand for.

    Without patterns and lists: stdin. *lists*: paths or URLs, "-" for stdin. *separator*: the text between the names in
    a list. Braces expand everywhere; wildcards expand in local names and in stores that have listings, unless a file or
    an object has literally this name. A revision on Hugging Face's hub becomes the id of its commit. Order: as given,
    with braces expanded in theirs; then the matches of each name with wildcards are sorted by bytes. A URL that occurs
    twice stays there twice.

    With *join*, the parts of an archive that was split become one URL, at the place of the first. `on_fault(error)`:
    called with the StorageError about parts that are not whole, which then stay URLs of their own; None: it is raised.

    Raises: StorageError for a wildcard without a match, a store that can't be listed, a hub that does not tell the
    commit, a list without a URL, a list that can't be read, parts that are not whole, and, unless *trusted*, a list on
    a server that names a command, stdin, a local file or another server; UsageError if stdin is named twice, a URL
    holds credentials, names no bucket or data set, or stands for an archive that was split.
    """
    if not patterns and not lists:
        return [Url("-")]
    urls = list(expand_each(add_lists(patterns, lists, separator, trusted)))
    if (*urls, *lists).count("-") > 1:  # a list on stdin that names stdin
        raise UsageError("stdin can be read only once")
    return split.join_split_parts(urls, on_fault) if join else urls


def add_lists(
    patterns: Sequence[str],
    lists: Sequence[str],
    separator: str = "\n",
    trusted: bool = False,
    is_name: Callable[[str], bool] = lambda line: True,
) -> list[str]:
    """Return *patterns*, and then the names in the files *lists*; braces and wildcards are not expanded.

    *lists*: paths or URLs, "-" for stdin. *separator*: the text between the names in a list; empty names are dropped,
    and blanks stay.
    `is_name(line)`: False for a line that names no input, so that it is not checked; it is returned all the same.
    Raises: StorageError for a list without a name, one that can't be read, and, unless *trusted*, a list on a server
    that names a command, stdin, a local file or another server; UsageError if "-" is twice in *patterns* and *lists*,
    or a list on a server has a URL with credentials.
    """
    if (*patterns, *lists).count("-") > 1:
        raise UsageError("stdin can be read only once")
    names = list(patterns)
    if not lists:
        return names
    from tartools.storage import origins

    for name in lists:
        lines = read_list(name).split(separator)
        if not any(lines):
            raise StorageError("the list of files is empty", url=name)
        if not trusted and origins.is_from_server(name):
            _check_lines(lines, name, is_name)
        names += filter(None, lines)
    return names


def _check_lines(lines: Sequence[str], name: str, is_name: Callable[[str], bool]) -> None:
    """Raise StorageError for the first of *lines*, of the list *name* on a server, that a stranger may not write there.

    That is a command, stdin, a local file, a URL on another server, or an archive that was split, as one; braces in
    lines are expanded. *is_name*: called with a line; if it returns False, the line is not checked. Raises: also
    UsageError for a URL that holds credentials.
    """
    from tartools.storage import origins

    for number, line in enumerate(lines, 1):
        for url in expand_braces(line) if line and is_name(line) else ():
            try:
                why = origins.naming_error(url, name, "list", may_act=True)
            except UsageError as error:
                raise UsageError(f"line {number}: {error.message}", url=name) from None
            if why:
                advice = "--allow-pipe allows it, if you trust the list; so does a copy of the list on this machine"
                raise StorageError(f"line {number}: {why} ({advice})", url=name)


def read_list(name: str) -> str:
    """Return the text of the file or object *name*, or of stdin for "-"; bytes that are not UTF-8 become surrogates.

    Raises: StorageError if it can't be read; UsageError for a URL that holds credentials or names no object.
    """
    return storage.read_content(name).decode("utf-8", "surrogateescape")


def expand_each(patterns: Iterable[str]) -> Iterator[Url]:
    """Yield the URLs that the braces and wildcards of each of *patterns* stand for.

    Braces are expanded first, in their order; then the matches of each resulting name are sorted by bytes: for
    {b,a}*.tar the names with b come first. A pattern that literally names a file or an object is yielded as it is;
    wildcards of schemes without listings (https:) are, too, and names without wildcards, which need not exist. A
    revision on Hugging Face's hub becomes the id of its commit. Raises: StorageError for a wildcard without a match, a
    store that can't be listed, and a hub that does not tell the commit; UsageError if a URL holds credentials, names no
    bucket or data set, or stands for an archive that was split.
    """
    for pattern in map(Url, patterns):
        if pattern.scheme == SPLIT:
            raise UsageError("name the parts of an archive themselves", url=pattern)
        literal = is_literal(pattern) or not any(c in pattern for c in "{*?[") or _is_object_with_braces(pattern)
        for url in map(_pin_commit, [pattern] if literal else map(Url, expand_braces(pattern))):
            if literal or not (url.is_local or url.is_listed) or not has_wildcards(url) or is_literal(url):
                yield url
            elif url.is_local:
                yield from map(Url, match_files(url))
            else:
                from tartools.storage import listing

                yield from (Url(entry.url) for entry in listing.matching_objects(url))


def _is_object_with_braces(pattern: Url) -> bool:
    """True if *pattern* has braces that expand, and an object has literally this name: one request asks for it.

    False, without a request, for schemes without listings (https:), and if a `GOPEN_<SCHEME>` command reads the URL.
    False if the request fails: opening the expanded URLs reports the reason.
    """
    if not pattern.is_listed or pattern.read_command or expand_braces(pattern) == [pattern]:
        return False
    from tartools.storage.objects import object_at
    from tartools.storage.objects.retry import TransientError

    try:
        return object_at(_pin_commit(pattern)).head() is not None
    except (StorageError, UsageError, TransientError):  # opening the expanded URLs reports the reason
        return False


def _pin_commit(url: Url) -> Url:
    """Return *url*; on Hugging Face's hub with the id of a commit in place of its revision, which may change.

    A URL that a `GOPEN_<SCHEME>` command reads stays as it is. Raises: StorageError if the hub does not tell the
    commit; UsageError if the URL names no data set.
    """
    if url.scheme != "hf" or url.read_command:
        return url
    from tartools.storage.objects import hf

    return Url(hf.pin_commit(url))
