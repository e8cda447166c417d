"""URLs to streams and back: the only package that opens files, sockets and pipes.

The table in `tartools.schemes` says which module reads and writes the URLs of a scheme. `open_read` and `open_write`
give streams of raw bytes; `checks` looks at URLs before anything is read or written. Outputs appear under their name
whole or not at all. `expand` turns what users write into URLs, `openfiles` reads many places of local files, `objects`
has the stores. Begin reading at `open_read`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

from tartools.errors import StorageError, UsageError, in_units
from tartools.storage import local
from tartools.storage.checks import (
    check_connection,
    check_inputs,
    check_output,
    check_regular,
    exists,
    is_directory,
    is_missing,
    is_repeatable,
    is_seekable,
    is_stored_object,
    plain_size,
)
from tartools.storage.interrupts import defer_signals
from tartools.storage.local import check_listed, make_directory, read_small, sync_folder
from tartools.storage.streams import FileSink, Input, OutputStream, Sink, stream_file, translate_os_errors, unlock
from tartools.storage.url import Url, load_module

__all__ = [
    "OutputStream",
    "cache_report",
    "check_connection",
    "check_inputs",
    "check_listed",
    "check_output",
    "check_regular",
    "exists",
    "folder_lock",
    "is_directory",
    "is_missing",
    "is_repeatable",
    "is_seekable",
    "is_stored_object",
    "make_directory",
    "one_commit",
    "open_append",
    "open_read",
    "open_sink",
    "open_write",
    "plain_size",
    "read_content",
    "read_small",
    "remove",
    "share_memory",
    "sync",
    "sync_folder",
]


def open_read(url: str) -> Input:
    """Open *url* for reading; return a stream of its raw bytes, which the caller closes.

    "-" is stdin; the command in a `pipe:` URL, or in the environment variable `GOPEN_<SCHEME>` for URLs of that scheme,
    runs from now on. An object of a store is requested at the first read.

    Raises: StorageError if it can't be opened; UsageError for a URL that holds credentials, one of a store that names
    no object, a file: URL of another host, and a setting in the environment that is invalid. Its reads raise
    StorageError, too, also if a command ends with a status other than 0.
    """
    url = Url(url)
    with translate_os_errors(url):
        if template := url.read_command:
            from tartools.storage import pipe

            return pipe.CommandInput(pipe.fill_template(template, url), url, {**os.environ, pipe.SHARD_VARIABLE: url})
        stream: Input = _module_for(url, "read").open_read(url)
        return stream


def open_write(url: str, force: bool = False) -> OutputStream:
    """Open *url* for writing; return an output, whose `sink` takes the bytes.

    "-" is stdout. The file or object appears at `commit`; `abort` leaves nothing behind. Stdout, existing fifos and
    devices, and commands (`pipe:`) get the bytes at once. Missing local folders are made. *force*: replace an existing
    file or object.
    Raises: StorageError if a regular local file *url* exists (unless *force*), or *url* can't be written; UsageError
    for a terminal, a URL that holds credentials, or one of a store that names no object. If a file or an object exists
    by then (unless *force*), the `commit` raises StorageError.
    """
    url = Url(url)
    with translate_os_errors(url):
        output: OutputStream = _module_for(url, "write").open_write(url, force)
        return output


def sync(output: OutputStream) -> None:
    """Flush *output* to the disk, in any thread, before its `commit`; call `sync_folder`, for its name, after that.

    Does nothing unless it is a regular local file: stores keep the data that they have confirmed. Raises: StorageError.
    """
    if isinstance(output, local.FileOutput):
        output.sync()


def _module_for(url: Url, verb: str) -> Any:
    """Return the module of `storage` that can *verb* ("read" or "write") *url*, by the table of schemes.

    For all object stores that is `objects`. Raises: StorageError if URLs of this scheme can't be read or written.
    """
    return load_module(url.module(verb).partition(".")[0])


@contextmanager
def open_sink(url: str, force: bool = False) -> Iterator[Sink]:
    """Yield a sink for *url*, for data other than tar archives: committed if the block ends normally, else aborted.

    "-" is stdout, which may be a terminal. Raises: StorageError if *url*, a regular file or an object, exists (unless
    *force*; for an object at the end of the block) or can't be written; UsageError for another terminal, a URL that
    holds credentials, or one of a store that names no object.
    """
    output: OutputStream | None = None
    try:
        with defer_signals():
            output = local.open_text() if url == "-" else open_write(url, force)
        yield output.sink
        output.commit()
    except BaseException:
        if output is not None:
            output.abort()
        raise


def open_append(url: str | None) -> FileSink:
    """Open the local file *url* for appending; for None and "" return a sink that drops everything.

    A missing file is made, with permissions for this user alone; missing folders are made, with the usual ones. The
    caller closes the sink. Raises: StorageError if it can't be written; UsageError if it is not a local file ("-" is
    none).
    """
    if url is not None and not Url(url).is_local:
        raise UsageError("must be a local file, since lines are appended to it", url=url)
    return local.open_append(url or os.devnull)


def read_content(url: str) -> bytes:
    """Return all bytes of *url*, "-" for stdin, as they are stored, not decompressed.

    Raises: StorageError, also if the server does not state the length, so that they may be truncated, or a command
    fails; UsageError for a URL that holds credentials, or one of a store that names no object.
    """
    with stream_file(open_read(url), url) as file:
        return file.read()


@contextmanager
def folder_lock(url: str) -> Iterator[None]:
    """Hold an exclusive lock on the folder that contains *url* during the block.

    Waits while another process, or another block, has it. Locks only against processes of this machine. If *url* is not
    local, or the folder does not exist or can't be locked, the block runs without a lock.
    """
    import fcntl

    lock = -1
    if Url(url).is_local:
        with suppress(OSError):  # there is no such folder, or it has no locks
            lock = os.open(os.path.dirname(local.path_of(url)) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if lock >= 0:
            unlock(lock)


def remove(url: str) -> None:
    """Remove the file or object *url*; it is no failure if it does not exist.

    In a block of `one_commit`, an object on Hugging Face's hub is removed at the end of that. Raises: StorageError,
    also for directories and URLs that can't be removed: stdin, commands, web servers, HDFS and FTP; UsageError for a
    URL that holds credentials, or one of a store that names no object.
    """
    if Url(url).is_local:
        local.remove(url)
    elif Url(url).is_stored:
        from tartools.storage import objects

        objects.remove(url)
    else:
        raise StorageError("only files and objects can be removed", url=url)


def one_commit(url: str) -> AbstractContextManager[None]:
    """Return a context manager that makes one commit on Hugging Face's hub of all outputs committed in its block.

    *url*: an output, whose scheme tells the store. The commit, one for each branch, is made at the normal end of the
    block, and includes files removed in it; after an error in the block there is none. If *url* is not on the hub
    (hf:), the block does nothing: each output appears when it is complete. Raises: StorageError.
    """
    if Url(url).scheme != "hf":
        return nullcontext()
    from tartools.storage.objects import hf

    return hf.one_commit()


def cache_report() -> str:
    """Return a line for users about the cache: "cache: 1.2 GB were there, 80.0 MB fetched, 80.0 MB of them kept".

    The sizes are bytes read from the cache, fetched from servers, and of these stored, by this process and its forks.
    "" if nothing was read, or if `TARTOOLS_CACHE` is not set.
    """
    if not os.environ.get("TARTOOLS_CACHE"):
        return ""
    from tartools.storage.objects import cache

    counts = cache.bytes_read()
    hit_size, fetched_size, stored_size = map(in_units, counts)
    return f"cache: {hit_size} were there, {fetched_size} fetched, {stored_size} of them kept" if any(counts) else ""


def share_memory(count: int) -> None:
    """Limit the memory for ranges read ahead in this process to 1 / *count* of the usual, which is 32 ranges.

    *count*: the number of processes that read at the same time; above 32, nothing is read ahead. To be called before
    anything is read, in each of them: a fork has the usual memory.
    """
    import threading

    from tartools.storage.objects import ranges

    ranges.budget = threading.Semaphore(ranges.MAX_SHARED_RANGES // count)
