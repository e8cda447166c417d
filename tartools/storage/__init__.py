"""URLs to streams and back. One entry a scheme; the only place that opens anything.

`open_read` and `open_write` give streams of raw bytes, `expand` turns what users write into URLs, `check_inputs` and
`check_output` look before anything is touched. Outputs appear under their name whole or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from tartools.errors import StorageError, UsageError
from tartools.storage import local, streams
from tartools.storage.expand import expand
from tartools.storage.interrupts import signals_wait
from tartools.storage.names import LISTED, LOCAL, REMOTE, SMART, gopen, scheme_of, split_query
from tartools.storage.streams import FileSink, Output
from tartools.streams import Input, Sink

if TYPE_CHECKING:
    from tartools.storage.stores import Listed

__all__ = [
    "Output",
    "appended",
    "between",
    "check_inputs",
    "check_listening",
    "check_output",
    "content",
    "expand",
    "is_file",
    "is_repeatable",
    "is_there",
    "ls",
    "open_read",
    "open_write",
    "remove",
    "run",
    "those_there",
    "writing",
]

Opener = TypeVar("Opener")
FEW = 10  # objects that are asked for one by one
NO_NAME = "the name of a file is empty (a variable of the shell may not be set)"
PATIENCE = 5.0  # seconds until a server that does not answer is none


def _read_command(url: str) -> Input:
    from tartools.storage import command  # when there is one: subprocess costs 5 ms

    return command.open_read(url)


def _write_command(url: str, force: bool) -> Output:
    from tartools.storage import command

    return command.open_write(url, force)


def _read_remote(url: str) -> Input:
    from tartools.storage import ranges, stores

    return ranges.RangedInput(stores.object_of(url))


def _write_remote(url: str, force: bool) -> Output:
    from tartools.storage import stores

    return stores.object_of(url).output(force)


def _read_smart(url: str) -> Input:
    from tartools.storage import smart

    return smart.open_read(url)


def _write_smart(url: str, force: bool) -> Output:
    from tartools.storage import smart

    return smart.open_write(url, force)


def run(template: str, word: str) -> None:
    """Run the command *template*, with *word* for its `{}`; what it prints goes to stderr.

    Raises: StorageError if it fails.
    """
    from tartools.storage import command

    command.run(template, word)


READERS: dict[str, Callable[[str], Input]] = {
    "-": local.open_stdin,
    "": local.open_read,
    "file": local.open_read,
    "pipe": _read_command,
    **dict.fromkeys(REMOTE, _read_remote),
    **dict.fromkeys(SMART, _read_smart),
}
WRITERS: dict[str, Callable[[str, bool], Output]] = {
    "-": local.open_stdout,
    "": local.open_write,
    "file": local.open_write,
    "pipe": _write_command,
    **dict.fromkeys(REMOTE, _write_remote),
    **dict.fromkeys(SMART, _write_smart),
}


def open_read(url: str) -> Input:
    """Return the bytes of *url* as a stream. A command in `GOPEN_<SCHEME>` reads that scheme's URLs.

    Raises: StorageError when it can't be opened or read, or a command ends with a status other than 0. What is remote
    is opened when it is read.
    """
    scheme = scheme_of(url)
    if template := gopen(scheme):
        from tartools.storage import command

        return command.CommandInput(command.fill(template, url), url)
    return _entry(READERS, scheme, url, "read")(url)


def open_write(url: str, force: bool = False) -> Output:
    """Return an output for *url*: it takes its name at `commit`, and leaves nothing behind at `abort`.

    Raises: StorageError when it exists and *force* is not given, or can't be written.
    """
    return _entry(WRITERS, scheme_of(url), url, "write")(url, force)


@contextmanager
def writing(url: str, force: bool = False) -> Iterator[Sink]:
    """Give a sink for data that is no tar archive: committed when the block ends normally, else aborted."""
    output: Output | None = None
    try:
        with signals_wait():
            output = local.open_data() if url == "-" else open_write(url, force)
        yield output.sink
        output.commit()
    except BaseException:
        if output is not None:
            output.abort()
        raise


def is_file(url: str) -> bool:
    """Tell whether *url* names a local file, be it there or not."""
    return scheme_of(url) in LOCAL


def is_directory(url: str) -> bool:
    """Tell whether *url* is a local directory that is there."""
    return is_file(url) and is_there(f"{url}/.")


def is_repeatable(url: str) -> bool:
    """Tell whether *url* can be read twice: not so stdin, commands and fifos.

    Raises: StorageError if it is a local file that is not there.
    """
    scheme = scheme_of(url)
    return scheme not in ("-", "pipe") and (scheme not in LOCAL or local.check_readable(url) is not None)


def between(prefix: str, suffix: str) -> list[str]:
    """Return the URLs that exist and are *prefix*, something without a slash, *suffix*.

    There are none of commands, and of what can't be listed.
    """
    scheme = scheme_of(prefix)
    if scheme in LOCAL:
        return local.between(prefix, suffix)
    if scheme not in LISTED:
        return []
    from tartools.storage import listing

    found = listing.listed(prefix + split_query(prefix + suffix)[1], flat="/" not in suffix)
    shortest = len(prefix) + len(suffix)
    return [
        entry.url
        for entry in found
        if entry.url.endswith(suffix)
        and len(entry.url) > shortest
        and "/" not in entry.url[len(prefix) : len(entry.url) - len(suffix)]
    ]


def ls(place: str) -> Iterator[Listed]:
    """Yield what there is at *place*; see `listing.ls`."""
    from tartools.storage import listing

    return listing.ls(place)


def remove(url: str) -> None:
    """Remove *url*. Raises: StorageError, also for what is no file."""
    if not is_file(url):
        raise StorageError("only files can be removed", url=url)
    local.remove(url)


def is_far(url: str) -> bool:
    """Tell whether *url* is on a server that we ask ourselves: each process has connections of its own."""
    scheme = scheme_of(url)
    return scheme in REMOTE and not gopen(scheme)


def share_memory(count: int) -> None:
    """Leave to this process, which reads nothing yet, one of *count* parts of what may be held of ranges ahead."""
    from tartools.storage import ranges

    ranges.budget.give(ranges.BUDGET // count - ranges.BUDGET)


def plain_size(url: str) -> int | None:
    """Return the bytes of *url* if it is a local file that can be read as often as one likes; else None."""
    scheme = scheme_of(url)
    if scheme not in LOCAL or gopen(scheme):
        return None
    try:
        return local.check_readable(url)
    except StorageError:
        return None  # whoever reads it will say why


def check_inputs(urls: Sequence[str]) -> int | None:
    """Look at every input that can be looked at without reading it; return their bytes in all, None if unknown.

    Raises: StorageError for a local file that does not exist or can't be read; UsageError for a URL that holds a
    password, names no object or is empty, for stdin named twice, or stdin that is a terminal.
    """
    if urls.count("-") > 1:
        raise UsageError("stdin can be read only once")
    if "" in urls:
        raise UsageError(NO_NAME)
    total: int | None = 0
    for url in urls:
        scheme = scheme_of(url)
        if scheme in LOCAL:
            size = local.check_readable(url)
            total = None if total is None or size is None else total + size
            continue
        total = None
        if scheme == "-" and os.isatty(0):
            raise UsageError("stdin is a terminal: name a shard, or pipe one in (see --help)")
        if not gopen(scheme):
            _entry(READERS, scheme, url, "read")
            if scheme in REMOTE:
                from tartools.storage import stores

                stores.object_of(url)
    return total


def check_output(url: str, force: bool, inputs: Sequence[str]) -> None:
    """Look at an output before anything is read.

    Raises: StorageError when it exists and *force* is not given, or when it is one of the *inputs*; UsageError if it
    has no name.
    """
    if not url:
        raise UsageError(NO_NAME)
    scheme = scheme_of(url)
    _entry(WRITERS, scheme, url, "write")
    if scheme in LOCAL or scheme == "-":
        local.check_writable(url, force, [i for i in inputs if is_file(i) or i == "-"])
    elif scheme != "pipe":
        if url in inputs:
            raise StorageError("this output is also an input", url=url)
        if not force and is_there(url):
            raise StorageError("this exists already; --force replaces it", url=url)


def appended(url: str | None) -> FileSink:
    """Return the local file *url*, to which what is written is added; without one, what leads nowhere.

    Raises: StorageError if it is no local file or can't be written; UsageError for another scheme.
    """
    if url is not None and scheme_of(url) not in LOCAL:
        raise UsageError("this has to be a local file, since lines are added to it", url=url)
    return local.open_append(url or os.devnull)


def content(url: str) -> bytes:
    """Return all bytes of *url*. Raises: StorageError."""
    with streams.stream_file(open_read(url), url) as file:
        return file.read()


def those_there(urls: Sequence[str]) -> set[str]:
    """Return those of *urls* that exist. Many in one store are looked for by listing what begins as all of them do.

    Raises: StorageError if nobody can tell.
    """
    scheme, prefix = scheme_of(urls[0]) if urls else "", os.path.commonprefix(urls)  # noqa: RUF071  # by letters
    if len(urls) <= FEW or scheme not in LISTED or prefix.count("/") < 3:
        return {url for url in urls if is_there(url)}
    from tartools.storage import listing

    return set(urls) & {found.url for found in listing.listed(prefix)}


def check_listening(host: str, port: int, url: str) -> None:
    """Raise StorageError unless a gRPC server listens at *host* and *port*, of which *url* is the address.

    gRPC is HTTP/2, where each side begins with a preface and a SETTINGS frame (RFC 9113, sections 3.4 and 6.5).
    """
    import socket

    settings = 4
    try:
        with socket.create_connection((host, port), PATIENCE) as connection:
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, settings, 0, 0, 0, 0, 0)))
            answer = connection.recv(9)  # length (3 bytes) type flags stream
    except OSError as error:
        raise StorageError(f"cannot connect: {error.strerror or error}", url=url) from error
    if answer[3:4] != bytes((settings,)):
        raise StorageError("what listens there does not speak gRPC", url=url)


def is_there(url: str) -> bool:
    """Tell whether *url*, local or remote, exists. Raises: StorageError if nobody can tell."""
    scheme = scheme_of(url)
    if scheme in LOCAL:
        return local.is_there(url)
    from tartools.storage import smart, stores

    return stores.is_there(url) if scheme in REMOTE else smart.is_there(url)


def _entry(table: dict[str, Opener], scheme: str, url: str, verb: str) -> Opener:
    if scheme in table:
        return table[scheme]
    known = ", ".join(f"{name}:" for name in table if name not in ("", "-"))
    raise StorageError(f"cannot {verb} {scheme}: URLs (there are plain paths, {known})", url=url)
