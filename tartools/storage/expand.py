"""What users write to what there is: file lists, braces, globs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from tartools.errors import StorageError, UsageError
from tartools.storage.local import path_of
from tartools.storage.names import scheme_of


def expand(patterns: Sequence[str], lists: Sequence[str] = (), separator: str = "\n") -> list[str]:
    """Return the URLs that *patterns*, and then the lines of the file *lists*, stand for.

    No pattern and no list is stdin. Braces expand everywhere, wildcards in local names, unless a file of that very
    name exists. Order: as given; the matches of one wildcard pattern sorted by bytes.

    Raises: StorageError for a wildcard without match, a list without a URL, a list that can't be read.
    """
    if not patterns and not lists:
        return ["-"]
    if (*patterns, *lists).count("-") > 1:
        raise UsageError("stdin can be read only once")
    urls = list(expand_each(patterns))
    for name in lists:
        found = list(expand_each(line for line in read_list(name).split(separator) if line))
        if not found:
            raise StorageError("this list of files names none", url=name)
        urls += found
    if (*urls, *lists).count("-") > 1:  # a list on stdin that names stdin
        raise UsageError("stdin can be read only once")
    return urls


def read_list(name: str) -> str:
    """Return the text of the file *name*, or of stdin for -."""
    try:
        with open(0 if name == "-" else path_of(name), "rb", closefd=name != "-") as file:
            return file.read().decode("utf-8", "surrogateescape")
    except OSError as error:
        raise StorageError(error.strerror or str(error), url=name) from error


def expand_each(patterns: Iterable[str]) -> Iterator[str]:
    """Yield what each of *patterns* stands for."""
    for pattern in patterns:
        if _is_there(pattern):
            yield pattern
            continue
        for url in _braces(pattern):
            if any(c in url for c in "*?[") and scheme_of(url) in ("", "file") and not _is_there(url):
                yield from _matches(url)
            else:
                yield url


def _is_there(url: str) -> bool:
    return scheme_of(url) in ("", "file") and "\0" not in url and os.path.lexists(path_of(url))


def _braces(pattern: str) -> Iterable[str]:
    if "{" not in pattern:
        return (pattern,)
    from braceexpand import braceexpand

    try:
        return list(braceexpand(pattern, escape=False))
    except ValueError:  # unbalanced: then they are letters
        return (pattern,)


def _matches(url: str) -> list[str]:
    from glob import glob

    found = sorted(glob(path_of(url), recursive=True), key=os.fsencode)
    if not found:
        raise StorageError("no file matches", url=url)
    return [name if scheme_of(name) == "" else f"./{name}" for name in found]  # a file may be called - or pipe:x
