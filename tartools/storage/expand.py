"""What users write to what there is: file lists, braces, globs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from tartools.errors import StorageError, UsageError
from tartools.storage.braces import unfolded
from tartools.storage.local import path_of
from tartools.storage.names import LISTED, LOCAL, scheme_of
from tartools.storage.patterns import has_wildcards
from tartools.storage.streams import stream_file


def expand(patterns: Sequence[str], lists: Sequence[str] = (), separator: str = "\n") -> list[str]:
    """Return the URLs that *patterns*, and then the lines of the file *lists*, stand for.

    No pattern and no list is stdin. Braces expand everywhere; wildcards do in local names and in those of objects in
    stores that are listed, unless there is a file or an object of that very name. Order: as given; the matches of one
    wildcard pattern sorted by bytes.

    Raises: StorageError for a wildcard without match, a list without a URL, a list that can't be read.
    """
    if not patterns and not lists:
        return ["-"]
    urls = list(expand_each(named(patterns, lists, separator)))
    if (*urls, *lists).count("-") > 1:  # a list on stdin that names stdin
        raise UsageError("stdin can be read only once")
    return urls


def named(patterns: Sequence[str], lists: Sequence[str], separator: str = "\n") -> list[str]:
    """Return *patterns*, and then the lines of the file *lists*.

    Raises: StorageError for a list without a line, or one that can't be read; UsageError if stdin is named twice.
    """
    if (*patterns, *lists).count("-") > 1:
        raise UsageError("stdin can be read only once")
    names = list(patterns)
    for name in lists:
        found = [line for line in read_list(name).split(separator) if line]
        if not found:
            raise StorageError("this list of files names none", url=name)
        names += found
    return names


def read_list(name: str) -> str:
    """Return the text of *name*, or of stdin for -."""
    from tartools import storage  # which is made of this, among others

    with stream_file(storage.open_read(name), name) as file:
        return file.read().decode("utf-8", "surrogateescape")


def expand_each(patterns: Iterable[str]) -> Iterator[str]:
    """Yield what each of *patterns* stands for."""
    for pattern in patterns:
        if is_there(pattern):
            yield pattern
            continue
        for url in unfolded(pattern):
            scheme = scheme_of(url)
            if scheme not in (*LOCAL, *LISTED) or not has_wildcards(url) or is_there(url):
                yield url
            elif scheme in LOCAL:
                yield from matches(url)
            else:
                from tartools.storage import listing

                yield from (found.url for found in listing.matching(url))


def is_there(url: str) -> bool:
    """Tell whether *url* is the very name of something local."""
    return scheme_of(url) in LOCAL and "\0" not in url and os.path.lexists(path_of(url))


def matches(url: str) -> list[str]:
    """Return what the wildcards in the local *url* match, sorted by bytes. Raises: StorageError if that is nothing."""
    from glob import glob

    found = sorted(glob(path_of(url), recursive=True), key=os.fsencode)
    if not found:
        raise StorageError("no file matches", url=url)
    return [local_url(name) for name in found]


def local_url(path: str) -> str:
    """Return *path* as a URL: a file may be called - or pipe:x."""
    return path if scheme_of(path) == "" else f"./{path}"
