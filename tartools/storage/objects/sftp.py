"""Files on SSH servers, by SFTP: ranges, listings, and outputs that appear by a rename. See docs/adr/0008.

A URL is `sftp://[USER@]HOST[:PORT]/PATH`, and ~/PATH is below the home directory; in PATH %20 stands for a blank. A
version is the time of the last change in seconds, which together with the size tells one file from another.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import unquote_to_bytes

from tartools.errors import ExistsError, NotFoundError, StorageError, UsageError
from tartools.storage.objects import sftpclient as client
from tartools.storage.objects.contract import Body, ListedObject, NoPermissionError, Object, Page, Reply
from tartools.storage.objects.retry import TransientError
from tartools.storage.objects.sftpclient import (
    Attributes,
    ConnectionFailedError,
    Server,
    Session,
    StatusError,
    pack_string,
)
from tartools.storage.objects.uploads import Upload
from tartools.storage.url import bucket_and_name

SFTP_URL_FORM = "sftp://[USER@]HOST[:PORT]/PATH"
MAX_NAME_BYTES_IN_TEMPORARY = 100  # of the output's name in that of the temporary file
POSIX_RENAME, FSYNC = b"posix-rename@openssh.com", b"fsync@openssh.com"


def object_at(url: str) -> Object:
    """Return the file *url*. Raises: UsageError without a valid host and port, or if it ends in a slash."""
    _, path = parse_sftp_url(url)
    if path.endswith(b"/"):
        raise UsageError(f"write {SFTP_URL_FORM}", url=url)
    return _SftpFile(url)


def parse_sftp_url(url: str) -> tuple[Server, bytes]:
    """Return the server of *url*, and the path on it: relative to the home directory if it began with ~/.

    Any other path is absolute; both are percent-decoded. Raises: UsageError if *url* has no host, a port that is no
    number, or a user or host that begins with "-".

    >>> parse_sftp_url("sftp://me@host:2222/data/a%20b.tar")
    (Server(host='host', user='me', port='2222'), b'/data/a b.tar')
    >>> parse_sftp_url("sftp://host/~/a.tar")[1]
    b'a.tar'
    """
    place, name = bucket_and_name(url)
    match = re.fullmatch(r"(?:([^@:]*)@)?(\[[^\]]+\]|[^@:\[\]]+)(?::([0-9]{1,5}))?", place)
    user, host, port = (match[1] or "", match[2].strip("[]"), match[3] or "") if match else ("", "", "")
    if not host or host.startswith("-") or user.startswith("-"):  # ssh would take them for options
        raise UsageError(f"write {SFTP_URL_FORM}", url=url)
    path = unquote_to_bytes(os.fsencode(name))
    return Server(host, user, port), path[2:] if path.startswith(b"~/") else b"/" + path


@contextmanager
def _translate_errors(url: str, verb: str = "read") -> Iterator[None]:
    """Turn errors of the SFTP client in the block into TransientError, or StorageError with *url*.

    A ConnectionFailedError becomes a TransientError if it is `transient`, else a StorageError. A StatusError becomes
    a StorageError: NotFoundError for NO_SUCH_FILE (but to "write" a plain one: no such folder), NoPermissionError for
    NO_PERMISSION. *verb* ("read", "write", …): the verb of the request.
    """
    try:
        yield
    except ConnectionFailedError as error:
        if error.transient:
            raise TransientError(error.reason) from None
        raise StorageError(error.reason, url=url) from None
    except StatusError as error:
        if error.code == client.NO_SUCH_FILE:
            if verb == "write":
                raise StorageError("the folder does not exist on the server", url=url) from None
            raise NotFoundError("no such file on the server", url=url) from None
        if error.code == client.NO_PERMISSION:
            raise NoPermissionError(f"no permission to {verb}", url=url) from None
        raise StorageError(f"cannot {verb}: the server says {error.message!r}", url=url) from None


# ---- reading ----


class _RangeBody(Body):
    """The bytes *begin* to *end* (exclusive) of the open file *handle*, requested ahead by several requests at once.

    *session*: the connection; *url* is for messages. The first requests are sent at once; `close` closes *handle*. It
    ends early if the file has become shorter. Raises: ConnectionFailedError.
    """

    def __init__(self, session: Session, handle: bytes, begin: int, end: int, url: str) -> None:
        self._session = session
        self._handle = handle
        self._next = begin  # first byte that was not requested yet
        self._end = end
        self._url = url
        self._requests: deque[tuple[int, int, int]] = deque()  # number, begin and end of each request in flight
        self._chunk = memoryview(b"")
        self._is_open = True
        self._request_ahead()

    def _request_ahead(self) -> None:
        """Send requests until MAX_REQUESTS_IN_FLIGHT are in flight, or all bytes are requested.

        Raises: ConnectionFailedError.
        """
        while len(self._requests) < client.MAX_REQUESTS_IN_FLIGHT and self._next < self._end:
            end = min(self._next + client.REQUEST_BYTES, self._end)
            self._requests.append((self._request(self._next, end), self._next, end))
            self._next = end

    def _request(self, begin: int, end: int) -> int:
        """Request the bytes *begin* to *end*; return the number of the request. Raises: ConnectionFailedError."""
        return self._session.request(client.READ, self._handle, struct.pack(">QI", begin, end - begin))

    def _receive(self) -> None:
        """Receive the reply to the first request in flight into `_chunk`, which stays empty at the end of the file.

        If a reply is shorter than its request, the missing bytes are requested again. Then further requests are sent,
        but at the end of the file all are dropped. Raises: StatusError; ConnectionFailedError.
        """
        number, begin, end = self._requests.popleft()
        try:
            self._chunk = self._session.reply(number).take_bytes()
        except StatusError as error:
            if error.code != client.END_OF_FILE:
                raise
            for later, _, _ in self._requests:  # the file is shorter now: whoever reads it compares sizes
                self._session.ignore(later)
            self._requests.clear()
            self._end = begin
            return
        begin += len(self._chunk)
        if begin < end:
            self._requests.appendleft((self._request(begin, end), begin, end))
        self._request_ahead()

    def read(self, max_bytes: int, /) -> bytes:
        """Return *max_bytes* bytes, fewer at the end. Raises: TransientError; StorageError."""
        data = bytearray(max_bytes)
        return bytes(memoryview(data)[: self.readinto(memoryview(data))])

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill *buffer*; return the number of bytes, fewer only at the end. Raises: TransientError; StorageError."""
        count = 0
        with _translate_errors(self._url):
            while count < len(buffer) and (self._chunk or self._requests):
                if not self._chunk:
                    self._receive()
                    continue
                data = self._chunk[: len(buffer) - count]
                buffer[count : count + len(data)] = data
                count += len(data)
                self._chunk = self._chunk[len(data) :]
        return count

    def close(self) -> None:
        """Close the file, once; errors are ignored. Replies that are still to come are dropped, not waited for."""
        if self._is_open:
            self._is_open = False
            for number, _, _ in self._requests:
                self._session.ignore(number)
            self._session.close_soon(self._handle)


class _SftpFile:
    """The file *url* on an SSH server: reads, removes and makes it, as a `contract.Object`.

    Raises: UsageError if *url* has no valid host and port.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.server, self.path = parse_sftp_url(url)

    def get(self, start: int, end: int | None, version: str) -> Reply:
        """Request the bytes *start* to *end* (exclusive; None: to the last) of the file.

        *version* is not sent: the caller compares it with the version of the reply, the mtime in seconds ("" if the
        server sends none). For a range behind the end the body is empty. Raises: TransientError; StorageError, also if
        it is not a regular file, or the server sends no size.
        """
        with _translate_errors(self.url):
            session = client.session_of(self.server)
            handle = session.open(self.path, client.FOR_READING)
            try:
                about = session.ask(client.FSTAT, handle).take_attributes()
                size = self._size(about)
                last = max(size if end is None else min(end, size), start)
                body = _RangeBody(session, handle, start, last, self.url)
            except BaseException:
                session.close_soon(handle)
                raise
        return Reply(body, start, last - start, size, _version(about))

    def _size(self, about: Attributes) -> int:
        """Return the size in bytes in *about*. Raises: StorageError if it has none, or is of no regular file.

        Without a mode in *about* the file counts as a regular one.
        """
        if about.mode is not None and not stat.S_ISREG(about.mode):
            kind = "a directory" if stat.S_ISDIR(about.mode) else "not a regular file"
            raise StorageError(f"this is {kind} on the server", url=self.url)
        if about.size is None:
            raise StorageError("the server does not say how long this is", url=self.url)
        return about.size

    def head(self) -> ListedObject | None:
        """Return size, mtime and version of the file, or of a folder or device of this name; None if nothing has it.

        Size and mtime are None, the version is "", if the server does not send them. Links are followed. Raises:
        TransientError; StorageError.
        """
        try:
            with _translate_errors(self.url):
                about = client.session_of(self.server).ask(client.STAT, pack_string(self.path)).take_attributes()
        except NotFoundError:
            return None
        return ListedObject(self.url, about.size, about.modified, _version(about))

    def remove(self) -> None:
        """Remove the file, if it exists. Raises: TransientError; StorageError."""
        with suppress(NotFoundError), _translate_errors(self.url, "remove"):
            client.session_of(self.server).ask(client.REMOVE, pack_string(self.path))

    def output(self, force: bool) -> Upload:
        """Return an upload that makes the file at `commit`, which raises ExistsError if it exists, unless *force*."""
        return Upload(_SftpUpload(self, force))


def _version(about: Attributes) -> str:
    """Return the version of a file: its mtime in seconds since 1970, as text; "" if the server does not send it."""
    return "" if about.modified is None else str(about.modified)


# ---- listings ----


def page(prefix: str, token: str, flat: bool) -> Page:
    """Return all regular files whose URLs begin with *prefix*, as one page, unordered; *token* is not used.

    *flat*: only files without a slash behind *prefix*. The page is empty if the folder does not exist. Links to files
    are followed, links to directories are not. Raises: TransientError; StorageError, also if a subfolder can't be
    listed; UsageError without a valid host and port.
    """
    server, path = parse_sftp_url(prefix)
    folder = path[: path.rfind(b"/") + 1]
    entries = []
    with _translate_errors(prefix, "list"):
        for name, about in _files(client.session_of(server), folder, path, flat):
            url = prefix + os.fsdecode(name[len(path) :].replace(b"%", b"%25"))
            entries.append(ListedObject(url, about.size, about.modified, _version(about)))
    return Page(entries, "", is_sorted=False)


def _files(session: Session, folder: bytes, prefix: bytes, flat: bool) -> Iterator[tuple[bytes, Attributes]]:
    """Yield (path, attributes) of the regular files in and below *folder* whose paths begin with *prefix*.

    *flat*: leave out the files in subfolders. *folder* ends in a slash, or is b"" for the home directory; nothing if it
    does not exist. Links to files are followed (the attributes are of the target), links to directories are not. Order:
    as the server lists them. Raises: StatusError if a folder can't be listed; ConnectionFailedError.
    """
    for name, about in _entries(session, folder):
        path = folder + name
        if name in (b".", b"..") or not path.startswith(prefix):
            continue
        with suppress(StatusError):  # a link to nothing stays as it is, and is no file
            if about.mode is None:  # the server lists names without modes
                about = session.ask(client.LSTAT, pack_string(path)).take_attributes()
            if about.mode is None or stat.S_ISLNK(about.mode):
                target = session.ask(client.STAT, pack_string(path)).take_attributes()
                about = target if target.mode is not None and stat.S_ISREG(target.mode) else about
        if about.mode is not None and stat.S_ISREG(about.mode):
            yield path, about
        elif about.mode is not None and stat.S_ISDIR(about.mode) and not flat:
            yield from _files(session, path + b"/", prefix, flat)


def _entries(session: Session, folder: bytes) -> list[tuple[bytes, Attributes]]:
    """Return (name, attributes) of all entries of *folder*, as the server lists them; [] if it does not exist.

    Most servers list . and .. too. Links have their own attributes. b"" is the home directory. Raises: StatusError;
    ConnectionFailedError.
    """
    entries: list[tuple[bytes, Attributes]] = []
    try:
        handle = pack_string(
            bytes(session.ask(client.OPENDIR, pack_string(folder.rstrip(b"/") or folder or b".")).take_bytes())
        )
    except StatusError as error:
        if error.code != client.NO_SUCH_FILE:
            raise
        return entries
    try:
        while True:
            names = session.ask(client.READDIR, handle)
            for _ in range(names.take_number()):
                name = bytes(names.take_bytes())
                names.take_bytes()  # the line that ls -l would print
                entries.append((name, names.take_attributes()))
    except StatusError as error:
        if error.code != client.END_OF_FILE:
            raise
    finally:
        session.close_soon(handle)
    return entries


# ---- writing ----


class _SftpUpload:
    """The requests of an upload of *target* by SFTP, as an `uploads.Target`: `put`; or `part`, `complete`; or `abort`.

    The file has a temporary name in the same folder, .NAME.XXXXXXXX.tmp with up to 100 bytes of its name and random
    hexadecimal digits, until it is complete. *force*: replace an existing file.
    """

    workers = 2  # so that the connection has something to send while a part is confirmed

    def __init__(self, target: _SftpFile, force: bool) -> None:
        self.url = target.url
        self._server, self._path = target.server, target.path
        self._force = force
        folder, slash, name = target.path.rpartition(b"/")
        self._temporary = (
            folder + slash + b".%b.%b.tmp" % (name[:MAX_NAME_BYTES_IN_TEMPORARY], os.urandom(4).hex().encode())
        )
        self._is_doubtful = False  # a rename was requested, perhaps without a reply

    def put(self, data: bytearray) -> None:
        """Write the temporary file with all of *data*, and rename it; remove it after a StorageError.

        After a TransientError it stays, for the next attempt. Raises: ExistsError if the output exists, unless *force*;
        TransientError; StorageError.
        """
        try:
            self.complete(1, 0, data)
        except StorageError:
            with suppress(StorageError, TransientError):  # they would hide the reason
                self.abort()
            raise

    def begin(self) -> None:
        """Do nothing: whichever part comes first creates the file."""

    def part(self, number: int, offset: int, data: bytearray) -> None:
        """Write *data* at byte *offset* of the temporary file; *number* is not used.

        Raises: TransientError; StorageError.
        """
        with _translate_errors(self.url, "write"):
            self._write(client.session_of(self._server), offset, data, last=False)

    def complete(self, number: int, offset: int, data: bytearray) -> None:
        """Write the last part, *data*, and rename the file, unless an earlier attempt without a reply has done it.

        *number* is not used; *offset*: the byte of the file at which *data* begins. The temporary file stays after a
        failure. Raises: ExistsError if the output exists, unless *force*; TransientError; StorageError, also if the
        server has stored another number of bytes.
        """
        size = offset + len(data)
        with _translate_errors(self.url, "write"):
            session = client.session_of(self._server)
            if self._is_doubtful and self._is_renamed(session, size):
                return
            stored = self._write(session, offset, data, last=True)
            if stored not in (None, size):
                raise StorageError(f"the server has stored {stored} of {size} bytes", url=self.url)
            self._is_doubtful = True
            self._rename(session)

    def abort(self) -> None:
        """Remove the temporary file, if it exists. Raises: TransientError; StorageError."""
        with suppress(NotFoundError), _translate_errors(self.url, "remove"):
            client.session_of(self._server).ask(client.REMOVE, pack_string(self._temporary))

    def _write(self, session: Session, offset: int, data: bytearray, last: bool) -> int | None:
        """Write *data* at byte *offset* of the temporary file; return its size in bytes if this is the *last* part.

        None if it is not, or if the server does not state the size. A missing file is made. After the last part it is
        flushed to the server's disk, if the server can do that and `TARTOOLS_FSYNC` is not 0. Raises: StatusError;
        ConnectionFailedError.
        """
        handle = session.open(self._temporary, client.FOR_WRITING | client.CREATE)
        view, requests = memoryview(data), deque[int]()
        try:
            for begin in range(0, len(data), client.REQUEST_BYTES):
                if len(requests) == client.MAX_REQUESTS_IN_FLIGHT:
                    session.reply(requests.popleft())
                piece = view[begin : begin + client.REQUEST_BYTES]
                place = struct.pack(">QI", offset + begin, len(piece))
                requests.append(session.request(client.WRITE, handle, place, piece))
            while requests:
                session.reply(requests.popleft())
            if last and FSYNC in session.extensions and os.environ.get("TARTOOLS_FSYNC") != "0":
                session.ask(client.EXTENDED_REQUEST, pack_string(FSYNC), handle)
            size = session.ask(client.FSTAT, handle).take_attributes().size if last else None
        except BaseException:
            for number in requests:
                session.ignore(number)
            session.close_soon(handle)
            raise
        session.ask(client.CLOSE, handle)
        return size

    def _is_renamed(self, session: Session, size: int) -> bool:
        """True if the temporary file is gone and the output exists, as after our rename; False if the former exists.

        Raises: StatusError if neither file exists; StorageError if the output has other than *size* bytes;
        ConnectionFailedError.
        """
        try:
            session.ask(client.STAT, pack_string(self._temporary))
        except StatusError:
            stored = session.ask(client.STAT, pack_string(self._path)).take_attributes().size
            if stored not in (None, size):
                raise StorageError(
                    f"another program has replaced this: it has {stored} bytes, not {size}", url=self.url
                ) from None
            return True
        return False

    def _rename(self, session: Session) -> None:
        """Give the temporary file the name of the output.

        With *force*, an existing output is replaced in one step, or removed before if the server can't do that. Raises:
        ExistsError if it exists (with *force* only if the server could not remove it); StatusError;
        ConnectionFailedError.
        """
        names = pack_string(self._temporary), pack_string(self._path)
        if self._force and POSIX_RENAME in session.extensions:
            session.ask(client.EXTENDED_REQUEST, pack_string(POSIX_RENAME), *names)
            return
        if self._force:
            with suppress(StatusError):  # there is none
                session.ask(client.REMOVE, pack_string(self._path))
        try:
            session.ask(client.RENAME, *names)  # which does not replace a file (section 6.5)
        except StatusError:
            with suppress(StatusError):
                session.ask(client.STAT, pack_string(self._path))
                raise ExistsError(self.url) from None
            raise
