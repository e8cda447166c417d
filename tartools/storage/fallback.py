"""URLs that are left to smart_open: HDFS and FTP.

smart_open writes some of them in place, under their own name. So an output is collected in a temporary file, and sent
when it is complete.
"""

from __future__ import annotations

import io
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ftplib import Error as FtpError
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit

from tartools.errors import ExistsError, NotFoundError, StorageError, UsageError, option
from tartools.storage.logins import Login, login_of
from tartools.storage.objects.retry import timeouts
from tartools.storage.scratch import SentOutput, reopen_scratch
from tartools.storage.streams import Input

ANONYMOUS_LOGIN = Login("anonymous", "anonymous@")  # RFC 1635
MISSING_FILE = "550"  # the reply of FTP (RFC 959, 4.2)


@contextmanager
def _translate_errors(url: str, verb: str = "read") -> Iterator[None]:
    """Turn an exception of the block into a StorageError about *url*: a NotFoundError if it does not exist.

    A StorageError or UsageError stays as it is. *verb*: "read" or "write", for the message; with "write", the reply 550
    of FTP, which may also mean that there is no permission, gives a plain StorageError.
    """
    scheme = url.partition(":")[0]
    try:
        yield
    except (StorageError, UsageError):
        raise
    except ImportError as error:
        advice = "see the documentation of smart_open"
        raise StorageError(f"a library for {scheme}: URLs is missing: {advice}", url=url) from error
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{error.filename} does not exist" if error.filename else "does not exist", url=url
        ) from None
    except FtpError as error:
        reply = str(error).partition("\n")[0]  # which has no password
        if reply.startswith(MISSING_FILE) and verb == "read":
            raise NotFoundError(f"does not exist ({reply})", url=url) from None
        advice = "; ~/.netrc may have a password" if reply.startswith("530") else ""
        raise StorageError(f"cannot {verb}: the server says {reply}{advice}", url=url) from None
    except Exception as error:
        kind = NotFoundError if _is_not_found(error) else StorageError
        raise kind(f"smart_open: {_reason(error)}", url=url) from None


def _is_not_found(error: Exception) -> bool:
    """True if *error*, of one of smart_open's libraries, means that the URL does not exist."""
    status = getattr(error, "status_code", None)
    return status == 404 or type(error).__name__ in ("ResourceNotFoundError", "NoSuchFile")


def _reason(error: Exception) -> str:
    """Return the text of *error* if it can't quote a URL, which may be signed; else its class: "Timeout, status 504".

    ", status N" only if it has an HTTP status.
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if type(error) is OSError and "://" not in str(error):  # of smart_open; those of requests are subclasses
        return str(error)
    status = getattr(error, "status_code", None)  # of WebHDFS
    return f"{type(error).__name__}, status {status}" if status else type(error).__name__


def _open(url: str, mode: str) -> Any:
    """Return the file of smart_open for *url* in *mode*, "rb" or "wb", without its decompression; with a login for FTP.

    `TARTOOLS_TIMEOUT` limits each wait on FTP. Raises: errors of smart_open and its libraries, and ImportError without
    them, which `_translate_errors` turns into StorageError.
    """
    from smart_open import open as smart_open

    if not url.startswith(("ftp:", "ftps:")):
        return smart_open(url, mode, compression="disable")
    limits = {"timeout": timeouts().idle}
    return smart_open(_add_login(url), mode, compression="disable", transport_params=limits)


def _add_login(url: str) -> str:
    """Return the URL of FTP *url* with a name and a password, for smart_open alone.

    If *url* names no user: those of its host in `$NETRC` or ~/.netrc, else anonymous. If it does: that user, with the
    password that the file has for it, or none; for "anonymous" always "anonymous@". Raises: StorageError if host or
    port can't be parsed.
    """
    try:
        parts = urlsplit(url)
        host, user, port = parts.hostname or "", parts.username, parts.port
    except ValueError:
        raise StorageError("write ftp://[USER@]HOST[:PORT]/PATH", url=url) from None
    entry = login_of(host)
    if user is None or user == ANONYMOUS_LOGIN.name:
        login = entry if entry and entry.name and user is None else ANONYMOUS_LOGIN
    else:
        login = Login(user, entry.password if entry and entry.name == user else "")
    place = f"[{host}]" if ":" in host else host
    place += f":{port}" if port else ""
    path = url.partition("://")[2].partition("/")[2]
    return f"{parts.scheme}://{quote(login.name, safe='')}:{quote(login.password, safe='')}@{place}/{path}"


class _SmartInput(Input):
    """The bytes of *url*, read by smart_open. On FTP the end counts only if the server confirms it.

    Raises: StorageError if it can't be opened; a NotFoundError if it does not exist.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        with _translate_errors(url):
            self._stream = _open(url, "rb")
        self._connection = getattr(self._stream, "conn", None)  # of FTP

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes; return how many, 0 at the end. Raises: StorageError."""
        with _translate_errors(self._url):
            data = self._stream.read(len(view))
            if not data and self._connection is not None:
                with suppress(OSError):  # servers wait some seconds for our end of this connection before they reply
                    self._stream.socket.shutdown(socket.SHUT_WR)
                self._connection.voidresp()  # the reply to RETR: whether all of it came
                self._connection = None
        view[: len(data)] = data
        return len(data)

    def cancel(self) -> bool:
        """Return False: a `readinto` in another thread can't be made to return."""
        return False  # a `readinto` of smart_open can't be ended

    def close(self) -> None:
        """Close the file of smart_open; errors are ignored."""
        with suppress(Exception):  # all bytes that were wanted have been read
            self._stream.close()


def _drop(target: Any) -> None:
    """Close *target*, an incomplete file of smart_open, ignoring errors; WebHDFS does not send the data it holds."""
    if hasattr(target, "lines"):  # of WebHDFS
        target.lines = []
    with suppress(Exception):
        getattr(target, "terminate", target.close)()


def open_read(url: str) -> _SmartInput:
    """Open *url* for reading by smart_open, now. Raises: StorageError; NotFoundError if it does not exist."""
    return _SmartInput(url)


def open_write(url: str, force: bool) -> SentOutput:
    """Return an output that smart_open sends to *url* at `commit`, which fails if *url* exists (unless *force*).

    Until then the bytes are in a scratch file. The failure is an ExistsError. Raises: StorageError if there can be no
    scratch file; the `commit` raises it if the bytes can't be sent.
    """
    return SentOutput(partial(_send, url, force))


def _send(url: str, force: bool, sink: io.FileIO) -> None:
    """Send the content of the scratch file *sink* to *url*.

    Raises: ExistsError if *url* exists (unless *force*); StorageError on failure, or if the server does not say whether
    it exists; a store that writes in place may then have a part.
    """
    if not force and exists(url):
        raise ExistsError(url)
    with reopen_scratch(sink) as file, _translate_errors(url, "write"):
        target = _open(url, "wb")
        try:
            shutil.copyfileobj(file, target, 1 << 20)
            target.close()
        except BaseException:
            _drop(target)
            raise


def exists(url: str) -> bool:
    """True if *url* exists: one byte of it is read. Raises: StorageError if the server's response does not say it."""
    try:
        with _translate_errors(url):
            stream = _open(url, "rb")
            stream.read(1)
            stream.close()
    except NotFoundError:
        return False
    except StorageError as error:
        if isinstance(error.__cause__, ImportError):
            raise
        reason = error.message.removeprefix("smart_open: ")
        message = f"cannot tell whether this exists ({reason}); {option('force')} writes it"
        raise StorageError(message, url=url) from None
    return True
