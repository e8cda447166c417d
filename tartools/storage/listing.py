"""What there is: objects behind a prefix or a pattern, files below a directory. Sorted by bytes, each exactly once."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from tartools.errors import StorageError, UsageError
from tartools.storage.braces import unfolded
from tartools.storage.expand import is_there, local_url, matches
from tartools.storage.keyspace import Ask, Keyspace, in_order
from tartools.storage.local import path_of
from tartools.storage.names import LISTED, LOCAL, REMOTE, scheme_of, split_query
from tartools.storage.patterns import Pattern, has_wildcards
from tartools.storage.stores import Listed, Page, object_of, store_of
from tartools.storage.tries import persist


def ls(place: str) -> Iterator[Listed]:
    """Yield what there is at *place*, sorted by the bytes of the names.

    In a store: the objects whose names begin with *place*, whatever follows, or match it if it has wildcards. Here: the
    files in a directory and below it, a file, or what a prefix or wildcards stand for. On a web server: the one object
    that *place* names. Braces stand for several places, which come one after the other.

    Raises: StorageError for a local name with which nothing begins, wildcards that match nothing, and what can't be
    listed.
    """
    for url in [place] if is_there(place) else unfolded(place):
        scheme = scheme_of(url)
        if scheme in LOCAL:
            yield from _files(url)
        elif scheme in LISTED:
            yield from matching(url) if has_wildcards(url) else listed(url)
        elif scheme in REMOTE:
            yield from _alone(url)
        else:
            raise StorageError("this cannot be listed: there are local names, s3:, gs:, ais: and http(s):", url=url)


def listed(prefix: str, flat: bool = False) -> Iterator[Listed]:
    """Yield the objects whose URL begins with *prefix*; with *flat*, only those without a slash behind it.

    Holds: a page, or 100,000 objects where there are more. Of a store that does not sort, all of them.
    Raises: StorageError.
    """
    store = store_of(scheme_of(prefix))
    name, query = split_query(prefix)
    if name.count("/") == 2:
        name += "/"
    if name.endswith(":///"):
        raise UsageError(f"write {name[:-1]}BUCKET/PREFIX", url=prefix)
    prefix = name + query

    def ask(token: str, start: str) -> Page:
        return store.page(prefix, token, name + start + query if start else "", flat)

    def name_of(entry: Listed) -> str:
        return entry.url[len(name) : len(entry.url) - len(query)]

    first = persist(lambda: ask("", ""), prefix)
    if not in_order([name_of(entry) for entry in first.entries]):
        found = {name_of(entry): entry for entry in _every(ask, first, prefix)}
        yield from (found[name] for name in sorted(found))
    elif first.next:
        yield from Keyspace(ask, prefix, first, name_of, store.STARTS_ANYWHERE).objects()
    else:
        yield from first.entries


def _every(ask: Ask, page: Page, prefix: str) -> Iterator[Listed]:
    """Yield the objects of *page*, and of all that follow it, as they come."""
    yield from page.entries
    while token := page.next:
        page = persist(lambda: ask(token, ""), prefix)
        yield from page.entries


def matching(url: str) -> Iterator[Listed]:
    """Yield the objects that *url*, which has wildcards, matches: one, if there is one of that very name.

    Raises: StorageError if there is none.
    """
    pattern = Pattern(url)
    there = next(listed(url, flat=True), None)
    if there is not None and there.url == url:
        yield there
        return
    count = 0
    for entry in listed(pattern.prefix, pattern.flat):
        if pattern.matches(entry.url):
            count += 1
            yield entry
    if not count:
        raise StorageError("no object matches", url=url)


def _alone(url: str) -> Iterator[Listed]:
    if split_query(url)[0].endswith("/"):
        yield from listed(url)  # which tells why not
        return
    found = persist(object_of(url).head, url)
    if found is None:
        raise StorageError("there is no such object", url=url)
    yield found


def _files(url: str) -> Iterator[Listed]:
    """Yield what the local *url* stands for."""
    path = path_of(url)
    if not path or os.path.isdir(path):
        yield from _below(os.path.join(path, ""))
    elif os.path.lexists(path):
        yield _file(path)
    elif has_wildcards(url):
        yield from (_file(path_of(found)) for found in matches(url) if not os.path.isdir(path_of(found)))
    else:
        folder, start = os.path.split(path)
        count = 0
        for entry in _below(os.path.join(folder, ""), start):
            count += 1
            yield entry
        if not count:
            raise StorageError(os.strerror(errno.ENOENT), url=url)


def _below(folder: str, start: str = "", above: tuple[os.stat_result, ...] = ()) -> Iterator[Listed]:
    """Yield the files in *folder* (with its slash) whose names there begin with *start*, and all below such.

    Links are followed, but to a directory in which we are.
    """
    try:
        here = os.stat(folder or ".")
        with os.scandir(folder or ".") as found:
            names = [entry.name + "/" * entry.is_dir() for entry in found if entry.name.startswith(start)]
    except OSError as error:
        raise StorageError(error.strerror or str(error), url=local_url(folder)) from error
    if any(os.path.samestat(here, other) for other in above):
        return
    for name in sorted(names, key=os.fsencode):
        if name.endswith("/"):
            yield from _below(folder + name, above=(*above, here))
        else:
            yield _file(folder + name)


def _file(path: str) -> Listed:
    """Return what is known of a file; nothing, if it is a link that leads nowhere."""
    try:
        about = os.stat(path)
    except OSError:
        return Listed(local_url(path), None, None)
    return Listed(local_url(path), about.st_size if stat.S_ISREG(about.st_mode) else None, about.st_mtime)
