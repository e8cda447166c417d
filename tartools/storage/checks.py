"""Checks of URLs before they are read or written, and probes: the version and first bytes of a file or object."""

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from tartools.errors import ChangedError, ExistsError, NotFoundError, StorageError, UsageError
from tartools.schemes import SPLIT
from tartools.storage import local
from tartools.storage.names import numbers_in
from tartools.storage.outputformats import SHARD_FORMAT, OutputFormat, check_format
from tartools.storage.streams import FileVersion
from tartools.storage.url import Url, parts_of

NO_NAME = "the name of a file is empty (a variable of the shell may not be set)"
CONNECT_SECONDS = 5.0  # seconds to connect to a server
PROBE_BYTES = 4  # bytes


def check_inputs(urls: Sequence[str]) -> int | None:
    """Check every input as far as that is possible without reading it; return their total size in bytes, 0 for none.

    None if one of *urls* is neither a regular local file nor an archive that was split into such files.

    Raises: StorageError for a local file that does not exist or can't be read, a directory, or a scheme that can't be
    read; UsageError for a URL that holds credentials, names no object or is empty, a file: URL of another host, stdin
    named twice, and stdin that is a terminal.
    """
    if urls.count("-") > 1:
        raise UsageError("stdin can be read only once")
    if "" in urls:
        raise UsageError(NO_NAME)
    total: int | None = 0
    for url in map(Url, urls):
        size = None
        if url.is_local:
            size = local.check_readable(url)
        elif url.scheme == SPLIT:
            size = check_inputs(parts_of(url))
        else:
            _check_unread(url)
        total = None if total is None or size is None else total + size
    return total


def _check_unread(url: Url) -> None:
    """Check an input that is not a local file, without a request to a server.

    Nothing is checked if a `GOPEN_<SCHEME>` command reads it. Raises: StorageError for a scheme that can't be read;
    UsageError for stdin that is a terminal, a URL of a store that names no object, or an invalid `TARTOOLS_CACHE`.
    """
    if url.scheme == "-" and os.isatty(0):
        raise UsageError("stdin is a terminal: name a shard, or pipe one in (see --help)")
    if url.read_command:
        return
    url.module("read")
    if url.is_stored:
        from tartools.storage import objects

        objects.object_at(url)


def check_output(
    url: str, force: bool, inputs: Sequence[str], *, single: bool = True, form: OutputFormat | None = SHARD_FORMAT
) -> None:
    """Check the output *url* before anything is read; unless *force*, a server is asked whether an object exists.

    *force*: an existing output may be replaced. *inputs*: URLs of the inputs. *single*: False if the name was made from
    a pattern for many outputs, so that it may look like one itself. *form*: the format that is written; None skips the
    check of the suffix. A command (`pipe:`) always passes; so do local fifos and devices, and stdout unless it is
    redirected to one of the *inputs*.
    Raises: StorageError if *url* exists as a regular file or an object (unless *force*), is one of the *inputs*, is a
    local directory, ends with a slash (local), or has a scheme that can't be written, or if the server can't tell
    (unless *force*); UsageError if its name is empty, has a number such as %06d (if *single*), the suffix of another
    format, or credentials, or, unless *force*, if it names no object of its store.
    """
    if not url:
        raise UsageError(NO_NAME)
    url = Url(url)
    inputs = [part for name in inputs for part in parts_of(name)]
    if single and url.scheme != "pipe" and (numbers := numbers_in(url.name)):
        raise UsageError(f"one file is written here, and {numbers[0][0]} is for many: tarsplit writes those", url=url)
    url.module("write")
    if form is not None:
        check_format(url, form)
    if url.is_local or url == "-":
        local.check_writable(url, force, [name for name in inputs if name == "-" or Url(name).is_local])
    elif url.scheme != "pipe":
        if url in inputs:
            raise StorageError("this output is also an input", url=url)
        if not force and exists(url):
            raise ExistsError(url)


def exists(url: str) -> bool:
    """True if *url*, a local file or an object, exists; False for an object at which this user may not look.

    Local directories, fifos and devices exist, too; a broken link does not. Not for stdin and commands. Raises:
    StorageError if the server's response does not say it; UsageError for a URL of a store that names no object.
    """
    url = Url(url)
    if url.is_local:
        return local.exists(url)
    from tartools.storage import fallback, objects

    return objects.exists(url) if url.is_stored else fallback.exists(url)


def is_directory(url: str) -> bool:
    """True if *url*, not "", is an existing local directory that this user may enter."""
    return Url(url).is_local and local.exists(f"{url}/.")


def is_repeatable(url: str) -> bool:
    """True if *url* can be read more than once; False for stdin, commands (`pipe:`), fifos and devices.

    True for any URL on a server, also if a `GOPEN_<SCHEME>` command reads it. An archive that was split can if all its
    parts can. Raises: StorageError if it is a local file that does not exist, can't be read, or is a directory.
    """
    url = Url(url)
    if url.scheme == SPLIT:
        return all(map(is_repeatable, parts_of(url)))
    return url.scheme not in ("-", "pipe") and (not url.is_local or local.check_readable(url) is not None)


def is_stored_object(url: str) -> bool:
    """True if this process itself requests *url* from a server: an object that no `GOPEN_<SCHEME>` command reads."""
    url = Url(url)
    return url.is_stored and not url.read_command


def is_seekable(url: str) -> bool:
    """True if byte ranges of *url* can be read: it is a regular local file or an object, and no command reads it.

    A command is one of `GOPEN_<SCHEME>`. The server is not asked whether it has ranges. False for an archive that was
    split. Raises: StorageError if it is a local file that does not exist, can't be read, or is a directory.
    """
    url = Url(url)
    return is_stored_object(url) or (url.is_local and not url.read_command and local.check_readable(url) is not None)


def is_missing(error: StorageError) -> bool:
    """True if *error* is about its URL alone: any failure of a local file, or an object that does not exist.

    True also without a URL. False for all other failures of objects, which other URLs of the server may have, too, and
    for stdin and commands.
    """
    return isinstance(error, NotFoundError) or (Url(error.url).is_local and not Url(error.url).read_command)


def check_regular(url: str) -> None:
    """Raise StorageError if *url* is a local file that is missing, can't be read or is not regular, such as a fifo.

    Stdin, commands, remote URLs, and URLs that a `GOPEN_<SCHEME>` command reads are not checked.
    """
    url = Url(url)
    if url.is_local and not url.read_command and local.check_readable(url) is None:
        raise StorageError("this is not a regular file, but a fifo or a device", url=url)


def plain_size(url: str) -> int | None:
    """Return the size in bytes of the regular local file *url*; None for any other URL, or if it can't be read.

    None, too, if a `GOPEN_<SCHEME>` command reads it.
    """
    url = Url(url)
    if not url.is_local or url.read_command:
        return None
    try:
        return local.check_readable(url)
    except StorageError:
        return None  # whoever reads it raises this again


def check_connection(host: str, port: int, url: str) -> None:
    """Raise StorageError unless *port* of *host*, the server of *url*, accepts a connection within CONNECT_SECONDS."""
    import socket

    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except OSError as error:
        raise StorageError(f"cannot connect: {error.strerror or error}", url=url) from error


# ---- probes: the version of a file or object, so that it can be recognised later ----


class Probe(NamedTuple):
    """The version and the first bytes of a file or object.

    *version*: its size in bytes, a blank, and the mtime in ns of a file, or the `Reply.version` of an object, mostly
    its ETag; None if the server has no ranges, or does not state the size or a version.
    *first*: its first PROBE_BYTES (4), fewer if it is shorter.
    """

    version: str | None
    first: bytes

    def require_version(self, url: str) -> str:
        """Return the version. Raises: StorageError, with *url* in its message, if there is none."""
        if self.version is None:
            raise StorageError(
                "this server has no ranges or no versions (ETag), so this can't be read in parts (nginx has both; "
                "shards can be read as a stream, by tarcat and tartools.train.WebDataset)",
                url=url,
            )
        return self.version


def version_of(url: str) -> str:
    """Return the version of *url*: its size in bytes, a blank, and the mtime in ns of a file or the ETag of an object.

    Stores without ETags have their `Reply.version` in its place, such as the generation on GCS. Raises: StorageError if
    it does not exist or can't be read in parts, or if its server has no versions; OSError if the system can't open a
    local file; UsageError if it names no object.
    """
    return probe(url).require_version(url)


def probe(url: str) -> Probe:
    """Return the version and the first bytes of *url*; the version is None if its server has no ranges or no versions.

    Raises: StorageError if it does not exist, can't be read, or is neither a regular file nor an object; a URL that a
    `GOPEN_<SCHEME>` command reads is neither; OSError if the system can't open a local file, such as for too many open
    files; UsageError if it names no object of its store.
    """
    url = Url(url)
    if url.is_local and not url.read_command:
        if local.check_readable(url) is None:
            raise StorageError("this is not a regular file, so it can't be read in parts", url=url)
        with open(local.path_of(url), "rb", buffering=0) as file:
            return Probe(str(FileVersion.of(file)), os.pread(file.fileno(), PROBE_BYTES, 0))
    if url.scheme == SPLIT:
        raise StorageError(
            "a table can't list samples of an archive that was split; tarcat or tarsplit copies it", url=url
        )
    if not url.is_stored or url.read_command:
        raise StorageError("this can't be read in parts; copy it to a file or an object", url=url)
    from tartools.storage.objects import object_at
    from tartools.storage.objects.retry import call_with_retries

    source = object_at(url)

    def attempt() -> Probe:
        """Make one attempt of the request for the first bytes. Raises: TransientError; StorageError."""
        reply = source.get(0, PROBE_BYTES, "")
        try:
            first = b""
            while len(first) < PROBE_BYTES and (data := reply.body.read(PROBE_BYTES - len(first))):
                first += data
        finally:
            reply.body.close()
        ranges = reply.size is not None and reply.length == min(PROBE_BYTES, reply.size)
        return Probe(f"{reply.size} {reply.version}" if ranges and reply.version else None, first)

    return call_with_retries(attempt, url)


def probe_all(urls: Sequence[str]) -> dict[str, Probe]:
    """Return the probes of *urls*, by URL, in their order; requests to servers are concurrent.

    Raises: the error of `probe`, such as StorageError, for the first of *urls* that has one.
    """
    if all(Url(url).is_local for url in urls):
        return {url: probe(url) for url in urls}
    from tartools.storage.objects import requests_at_once
    from tartools.storage.pool import Threads

    with closing(Threads(requests_at_once(), probe)) as requests:
        answers = {url: requests.submit(url) for url in urls}
        return {url: answer() for url, answer in answers.items()}


def check_unchanged(versions: Mapping[str, str | None]) -> None:
    """Raise ChangedError, a StorageError, if one of the URLs has another version now than the one in *versions*.

    *versions*: URL -> its version, as `Probe` has it: the size in bytes, a blank, and the mtime in ns or the ETag; or
    None, which is equal to None now. Raises: also the errors of `probe`: StorageError if a URL is gone or can't be
    read.
    """
    for url, current in probe_all([*versions]).items():
        if current.version != versions[url]:
            raise changed_error(url)


def changed_error(url: str) -> StorageError:
    """Return a ChangedError for *url*: "changed while it was read; start again when nothing writes to it"."""
    return ChangedError("changed while it was read; start again when nothing writes to it", url=url)
