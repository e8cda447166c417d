"""Listings: objects behind a prefix or a pattern, files below a directory, sorted by bytes; and their contents."""

from __future__ import annotations

import errno
import functools
import io
import os
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from operator import ge
from typing import TYPE_CHECKING

from tartools.errors import StorageError, UsageError
from tartools.schemes import listed_schemes
from tartools.storage.checks import exists, probe
from tartools.storage.local import path_of
from tartools.storage.names import Pattern, expand_braces, has_wildcards, is_literal, local_url, match_files
from tartools.storage.objects import MAX_REQUESTS_AT_ONCE, fetch_range, object_at, requests_at_once, store_of
from tartools.storage.objects.contract import ListedObject, Page, Store
from tartools.storage.objects.retry import call_with_retries
from tartools.storage.streams import FileVersion, translate_os_errors
from tartools.storage.url import Url

if TYPE_CHECKING:
    from tartools.storage.pool import Threads

MAX_SINGLE_LOOKUPS = 10  # objects that are looked up one by one
MAX_OBJECT_REQUESTS = 64  # requests for whole objects
MAX_REQUESTED_BYTES = 256 << 20  # bytes that are requested and not yet taken; a larger object is alone
MAX_WHOLE_OBJECT_BYTES = 16 << 20  # bytes; larger objects are read in ranges side by side
OBJECT_RANGE_BYTES = 8 << 20  # bytes
REPLACED_SINCE_LISTING = "was replaced since it was listed"


def ls(name: str) -> Iterator[ListedObject]:
    """Yield the files or objects that *name* stands for, sorted by the bytes of the names.

    In a store: the objects whose names begin with *name*; if it has wildcards, the matches, or only the object with
    literally this name. Local: the files in a directory and below it, a file, or the matches of a prefix or wildcards.
    On a web server: the object *name*. Braces, unless a local file has literally this name, stand for several names,
    which come one after the other, each sorted on its own.

    Raises: StorageError for a local prefix or wildcards that match nothing, wildcards in the name of a bucket, a folder
    or a store that can't be read, an object on a web server that does not exist or ends in a slash, and schemes that
    have no listings, such as stdin and commands; UsageError if the name of the bucket is missing, or for credentials. A
    prefix in a store that matches nothing yields nothing, and so do an empty directory and wildcards for directories.
    """
    for url in map(Url, [name] if is_literal(name) else expand_braces(name)):
        if url.is_local:
            yield from _files(url)
        elif url.is_listed:
            yield from matching_objects(url) if has_wildcards(url) else list_objects(url)
        elif url.is_stored:
            yield from _one_object(url)
        else:
            raise StorageError(f"cannot be listed; possible are local names, {listed_schemes()} and http(s):", url=url)


def list_objects(prefix: str, flat: bool = False) -> Iterator[ListedObject]:
    """Yield the objects whose URLs begin with *prefix*, sorted by the bytes of their names.

    *prefix*: a URL of a store, without wildcards; a bucket alone, such as s3://b, is all of it. *flat*: only objects
    without a slash behind *prefix*. Holds: a page; all objects if the first page is not sorted.

    Raises: StorageError if the store can't be listed, has no listings, or lists out of order after a sorted first page;
    UsageError if *prefix* names no bucket.
    """
    store = store_of(prefix)
    name, query = Url(prefix).name, Url(prefix).query
    if name.count("/") == 2:
        name += "/"
    if name.endswith(":///"):
        raise UsageError(f"write {name[:-1]}BUCKET/PREFIX", url=prefix)
    prefix = name + query

    def name_of(entry: ListedObject) -> str:
        """Return the URL of *entry* without the prefix and the query: a text to sort by."""
        return entry.url[len(name) : len(entry.url) - len(query)]

    pages = _pages(store, prefix, flat)
    first = next(pages)
    if not first.is_sorted or not _is_sorted([*map(name_of, first.entries)]):
        entries_by_name = {name_of(entry): entry for page in (first, *pages) for entry in page.entries}
        yield from (entries_by_name[name] for name in sorted(entries_by_name))
        return
    last: list[str] = []
    for page in chain([first], pages):
        names = [*last, *map(name_of, page.entries)]
        if not _is_sorted(names):
            raise StorageError("the store lists its objects out of order", url=prefix)
        last = names[-1:]
        yield from page.entries


def _pages(store: Store, prefix: str, flat: bool) -> Iterator[Page]:
    """Yield the pages of the listing of *prefix*, at least one; each request is retried.

    *flat*: only objects without a slash behind *prefix*. Raises: StorageError after the last attempt.
    """
    page = call_with_retries(lambda: store.page(prefix, "", flat), prefix)
    yield page
    while token := page.next:
        page = call_with_retries(partial(store.page, prefix, token, flat), prefix)
        yield page


def _is_sorted(names: Sequence[str]) -> bool:
    """True if *names* ascend by code points, and none is there twice; also without names."""
    return not any(map(ge, names, names[1:]))


def matching_objects(url: str) -> Iterator[ListedObject]:
    """Yield the objects that match the wildcards of *url*, sorted; if an object is literally named *url*, only that.

    Raises: StorageError if none matches, the store can't be listed, or for wildcards in the name of the bucket.
    """
    pattern = Pattern(url)
    first = next(list_objects(url, flat=True), None)
    if first is not None and first.url == url:
        yield first
        return
    count = 0
    for entry in list_objects(pattern.prefix, pattern.flat):
        if pattern.matches(entry.url):
            count += 1
            yield entry
    if not count:
        raise StorageError("no object matches", url=url)


def _one_object(url: str) -> Iterator[ListedObject]:
    """Yield the object *url* of a store without listings, a web server.

    Raises: StorageError if it does not exist, ends in a slash, or the server can't tell; UsageError if it names no
    object.
    """
    prefix = Url(url).name.endswith("/")
    entry = None if prefix else call_with_retries(object_at(url).head, url)
    if entry is not None:
        yield entry
    elif prefix or "*" in Url(url).name:
        yield from list_objects(url)  # raises the reason
    else:
        raise StorageError("no such object", url=url)


def _files(url: str) -> Iterator[ListedObject]:
    """Yield the files that the local name *url* stands for, sorted by the bytes of the names.

    A directory ("" is the current one) stands for all files in it and below, a file for itself, wildcards for their
    matches that are no directories. Any other name is a prefix: of files, and of directories with all files below.

    Raises: StorageError if wildcards match nothing, not even a directory, if no file has the prefix, or if a directory
    can't be read; UsageError for a file: URL of another host.
    """
    path = path_of(url)
    if not path or os.path.isdir(path):
        yield from _files_below(os.path.join(path, ""))
    elif os.path.lexists(path):
        yield _entry_of_file(path)
    elif has_wildcards(url):
        yield from (_entry_of_file(path_of(match)) for match in match_files(url) if not os.path.isdir(path_of(match)))
    else:
        folder, start = os.path.split(path)
        count = 0
        for entry in _files_below(os.path.join(folder, ""), start):
            count += 1
            yield entry
        if not count:
            raise StorageError(os.strerror(errno.ENOENT), url=url)


def _files_below(folder: str, start: str = "", above: tuple[os.stat_result, ...] = ()) -> Iterator[ListedObject]:
    """Yield the files in *folder* whose names begin with *start*, and all files below subfolders with such names.

    *folder* ends in a slash, or is "". *above*: the status of each folder on the way here, from the top. Links are
    followed, except to a directory that contains them. Order: by the bytes of the names. Raises: StorageError if a
    folder can't be read.
    """
    with translate_os_errors(local_url(folder)):
        this = os.stat(folder or ".")
        with os.scandir(folder or ".") as entries:
            names = [entry.name + "/" * entry.is_dir() for entry in entries if entry.name.startswith(start)]
    if any(os.path.samestat(this, ancestor) for ancestor in above):
        return
    for name in sorted(names, key=os.fsencode):
        if name.endswith("/"):
            yield from _files_below(folder + name, above=(*above, this))
        else:
            yield _entry_of_file(folder + name)


def _entry_of_file(path: str) -> ListedObject:
    """Return the listing entry of the local file *path*; if it can't be looked up, like a broken link, only the URL.

    It has the URL, the size in bytes (None unless it is a regular file), the mtime in seconds, and as version the mtime
    in ns.
    """
    try:
        status = os.stat(path)
    except OSError:
        return ListedObject(local_url(path), None, None)
    size = status.st_size if stat.S_ISREG(status.st_mode) else None
    return ListedObject(local_url(path), size, status.st_mtime, str(status.st_mtime_ns))


def names_between(prefix: str, suffix: str) -> list[str]:
    """Return the existing URLs that begin with *prefix*, end in *suffix*, and have a text without a slash between them.

    The text is not empty. Local URLs are regular files. Order: sorted. Empty for stdin, commands, and schemes that have
    no listings. Raises: StorageError if a store can't be listed; OSError if a local folder exists, but can't be read;
    UsageError if *prefix* names no bucket.
    """
    start = Url(prefix)
    candidates: Iterable[str] = ()
    if start.is_local:
        candidates = _files_with_prefix(prefix, suffix)
    elif start.is_listed:
        flat = "/" not in suffix
        candidates = (entry.url for entry in list_objects(prefix + Url(prefix + suffix).query, flat))
    shortest = len(prefix) + len(suffix)
    return [
        url
        for url in candidates
        if url.endswith(suffix) and len(url) > shortest and "/" not in url[len(prefix) : len(url) - len(suffix)]
    ]


def _files_with_prefix(prefix: str, suffix: str) -> list[str]:
    """Return the regular files in the folder of *prefix* whose paths begin with *prefix*, sorted.

    If *suffix* contains a slash: instead, each path in that folder that begins so, followed by *suffix* from its first
    slash on, if this is a regular file: "d/a", "x/y.tar" -> "d/ab/y.tar". The end of the names is not compared with
    *suffix*. [] if there is no such folder. Raises: OSError if it can't be read.
    """
    folder, start = os.path.split(path_of(prefix))
    below = "".join(suffix.partition("/")[1:])
    try:
        names = [prefix + name[len(start) :] + below for name in os.listdir(folder or ".") if name.startswith(start)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(name for name in names if os.path.isfile(path_of(name)))


def find_existing(urls: Sequence[str]) -> set[str]:
    """Return the URLs among *urls* that exist. Many in one store are looked up by one listing of their common prefix.

    Many are more than 10 (MAX_SINGLE_LOOKUPS), all in one bucket; otherwise each is looked up by `exists`, for which an
    object at which this user may not look does not exist. Raises: StorageError if a server's response does not say it,
    or the bucket can't be listed.
    """
    prefix = os.path.commonprefix([Url(url).name for url in urls])  # noqa: RUF071  # by letters
    queries = {Url(url).query for url in urls}
    if len(urls) <= MAX_SINGLE_LOOKUPS or not Url(urls[0]).is_listed or prefix.count("/") < 3 or len(queries) > 1:
        return {url for url in urls if exists(url)}
    return set(urls) & {entry.url for entry in list_objects(prefix + queries.pop())}


# ---- contents of listed files and objects, with requests side by side ----


def read_contents(entries: Iterable[ListedObject]) -> Iterator[bytes]:
    """Yield all bytes of each of *entries*, whose `size` is not None, in their order.

    Requests at once: up to MAX_OBJECT_REQUESTS for objects, and MAX_REQUESTS_AT_ONCE for ranges of those over
    MAX_WHOLE_OBJECT_BYTES; fewer if `TARTOOLS_READAHEAD` says so. Local files are read one after the other. Holds: up
    to MAX_REQUESTED_BYTES, or one object; of large ones also the ranges that are received.

    Raises: StorageError if one can't be read, or is not the one that was listed; UsageError for an invalid
    `TARTOOLS_READAHEAD`.
    """
    max_requests = requests_at_once(MAX_OBJECT_REQUESTS)
    waiting: deque[tuple[int, Callable[[], bytes]]] = deque()
    requested_bytes = 0
    for entry in entries:
        size = entry.size or 0
        while waiting and (len(waiting) >= max_requests or requested_bytes + size > MAX_REQUESTED_BYTES):
            answer_size, answer = waiting.popleft()
            requested_bytes -= answer_size
            yield answer()
        task = partial(content_of, entry)
        waiting.append(
            (size, task if Url(entry.url).is_local else _threads(os.getpid(), MAX_OBJECT_REQUESTS).submit(task))
        )
        requested_bytes += size
    while waiting:
        yield waiting.popleft()[1]()


def content_of(entry: ListedObject) -> bytes:
    """Return all bytes of *entry*, whose `size` is not None.

    Raises: StorageError if it can't be read, or has another size or version than was listed; without a version in the
    listing or the response, only the sizes of an object are compared.
    """
    version = f"{entry.size} {entry.version}"
    if not Url(entry.url).is_local:
        if (entry.size or 0) > MAX_WHOLE_OBJECT_BYTES and probe(entry.url).version == version:
            return _read_ranges(entry.url, entry.size or 0, version)
        return fetch_range(entry.url, 0, entry.size or 0, version, REPLACED_SINCE_LISTING, from_listing=True)
    with translate_os_errors(entry.url), open(path_of(entry.url), "rb", buffering=0) as file:
        before = str(FileVersion.of(file))
        data = file.readall()
        after = str(FileVersion.of(file))
    if before != version or after != version or len(data) != entry.size:
        raise StorageError(REPLACED_SINCE_LISTING, url=entry.url)
    return data


def _read_ranges(url: str, size: int, version: str) -> bytes:
    """Return all bytes of the large object *url*, received in ranges of OBJECT_RANGE_BYTES side by side.

    *size* in bytes and *version*, the size, a blank and the version, are from the listing. Raises: StorageError if it
    can't be read, or was replaced since.
    """
    data = io.BytesIO()  # gives its bytes without a copy
    waiting: deque[Callable[[], bytes]] = deque()
    for begin in range(0, size, OBJECT_RANGE_BYTES):
        if len(waiting) >= requests_at_once():
            data.write(waiting.popleft()())
        task = partial(fetch_range, url, begin, min(begin + OBJECT_RANGE_BYTES, size), version, REPLACED_SINCE_LISTING)
        waiting.append(_threads(os.getpid(), MAX_REQUESTS_AT_ONCE).submit(task))
    while waiting:
        data.write(waiting.popleft()())
    return data.getvalue()


@functools.cache
def _threads(process: int, max_requests: int) -> Threads[Callable[[], bytes], bytes]:
    """Return the threads that make up to *max_requests* requests at once for the process with the pid *process*.

    They are fewer if `TARTOOLS_READAHEAD` is set. Each call in a process returns the same threads; a fork has its own.
    Threads for ranges are separate from threads for whole objects, which wait for ranges.
    """
    from tartools.storage.pool import Threads

    return Threads(requests_at_once(max_requests))
