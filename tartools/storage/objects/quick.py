"""GET requests by http.client alone: less processor time than `requests` takes, which counts for small objects."""

from __future__ import annotations

import functools
import http.client
import os
import re
import ssl
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urljoin
from urllib.request import getproxies

from urllib3.exceptions import LocationParseError
from urllib3.util import parse_url, wait_for_read

from tartools.storage.objects.retry import TransientError, timeouts

CONNECTIONS = 64  # that are kept open: to one server, and servers
REDIRECTS = 5
_PROXIES = tuple(name for kind in ("http", "https", "all") for name in (f"{kind}_proxy", f"{kind}_PROXY".upper()))
_HEADERS = {"User-Agent": "tartools", "Accept-Encoding": "identity"}
_PLAIN = re.compile(r"(https?)://([A-Za-z0-9][A-Za-z0-9.-]*)(?::([0-9]{1,5}))?(/[A-Za-z0-9_~!$&'()*+,;=:@/?%.-]*)")


class _Server(NamedTuple):
    scheme: str
    host: str
    port: int | None


class _Pool:
    """The connections of a process that wait for a request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[_Server, list[http.client.HTTPConnection]] = {}
        weakref.finalize(self, _closed, self._idle)

    def take(self, server: _Server) -> http.client.HTTPConnection | None:
        """Return an open connection to *server*, the one that was used last; None if there is none."""
        while True:
            with self._lock:
                idle = self._idle.get(server)
                connection = idle.pop() if idle else None
            if connection is None or not wait_for_read(connection.sock, 0):
                return connection
            connection.close()  # the server has closed it

    def give(self, server: _Server, connection: http.client.HTTPConnection) -> None:
        """Keep *connection* for the next request."""
        with self._lock:
            idle = self._idle.setdefault(server, [])
            idle.append(connection)
            surplus = [idle.pop(0)] if len(idle) > CONNECTIONS else []
            if len(self._idle) > CONNECTIONS:
                surplus += self._idle.pop(next(iter(self._idle)))
        for other in surplus:
            other.close()


def _closed(idle: dict[_Server, list[http.client.HTTPConnection]]) -> None:
    for connections in idle.values():
        for connection in connections:
            connection.close()


@functools.cache
def _pool_of(process: int) -> _Pool:
    return _Pool()


@functools.cache
def _trust(process: int) -> ssl.SSLContext:
    return ssl.create_default_context()


class Answer:
    """A response, as `http.reply` and `http.status_error` take one of `requests`."""

    def __init__(
        self, address: str, server: _Server, connection: http.client.HTTPConnection, found: http.client.HTTPResponse
    ) -> None:
        self._server, self._found = server, found
        self._connection: http.client.HTTPConnection | None = connection
        self.raw = self
        self.url = address
        self.headers: Any = found.headers
        self.status_code = found.status

    def read(self, most: int, /, decode_content: bool = False) -> bytes:
        """Return up to *most* bytes as they were sent, b"" at the end. Raises: TransientError if it was cut."""
        data: bytes = self._received(self._found.read, most)
        self._check(len(data), most)
        return data

    def readinto(self, room: memoryview, /) -> int:
        """Fill *room* as far as bytes come, and return how many did, 0 at the end. Raises: as `read`."""
        count: int = self._received(self._found.readinto, room)
        self._check(count, len(room))
        return count

    def _received(self, receive: Callable[[Any], Any], what: Any) -> Any:
        try:
            return receive(what)
        except (http.client.HTTPException, OSError, ValueError) as error:  # ValueError: the length of a chunk
            self._drop()
            raise _failure(error) from None

    def _check(self, count: int, most: int) -> None:
        if not count and most and self._found.length:
            self._drop()
            raise TransientError("the connection was cut")

    def drain_conn(self) -> None:
        """Read the rest, so that the connection can be used again."""
        while self.read(1 << 16):
            pass

    def close(self) -> None:
        """Keep the connection for the next request if all was read, else close it."""
        if self._connection is None or self._connection.sock is None or not self._found.isclosed():
            self._drop()
            return
        connection, self._connection = self._connection, None
        _pool_of(os.getpid()).give(self._server, connection)

    def _drop(self) -> None:
        self._found.close()
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def answer(address: str, headers: dict[str, str], *, follow: bool = False) -> Any:
    """Return the response to a GET of *address*, whatever its status; None if `requests` has to make the request.

    That is for proxies, credentials in .netrc, certificates that only it trusts, and redirects, unless *follow*: then
    those to other servers are followed, where no `Authorization` is sent.

    Raises: TransientError if there is no response.
    """
    if any(map(os.environ.get, _PROXIES)) or (sys.platform == "darwin" and getproxies()):
        return None
    for _ in range(REDIRECTS + 1):
        found = _asked(address, headers)
        if found is None or not (300 <= found.status_code < 400 or found.status_code in (401, 407)):
            return found
        location = found.headers.get("Location", "")
        _discard(found)
        if not follow or found.status_code not in (301, 302, 303, 307, 308) or not location:
            return None
        before = address
        try:
            address = urljoin(address, location)
        except ValueError:
            return None
        if _server_and_target(before)[0] != _server_and_target(address)[0]:
            headers = {name: value for name, value in headers.items() if name != "Authorization"}
    return None


def _discard(found: Answer) -> None:
    """Read the short response *found*, and keep its connection."""
    try:
        if (found._found.length or 0) <= 1 << 16 and not found._found.chunked:
            found.drain_conn()
    except TransientError:
        pass
    found.close()


def _server_and_target(address: str) -> tuple[_Server | None, str]:
    """Return the server of *address*, and what to ask it for; None for what is left to `requests`."""
    plain = _PLAIN.fullmatch(address)
    if plain and "/." not in plain[4]:
        port = int(plain[3]) if plain[3] else None
        return (None, "") if (port or 0) > 65535 else (_Server(plain[1], plain[2], port), plain[4])
    try:
        parsed = parse_url(address)
    except LocationParseError:
        return None, ""
    if parsed.auth or not parsed.host or parsed.scheme not in ("http", "https"):
        return None, ""
    return _Server(parsed.scheme, parsed.host.strip("[]"), parsed.port), parsed.request_uri


def _asked(address: str, headers: dict[str, str]) -> Answer | None:
    """Return the response to a GET of *address*; None if `requests` has to make it. Raises: TransientError."""
    server, target = _server_and_target(address)
    if server is None:
        return None
    times = timeouts()
    connection = _pool_of(os.getpid()).take(server)
    try:
        if connection is None:
            connection = _connected(server, times.connect)
        connection.sock.settimeout(times.idle)
        connection.request("GET", target, headers=_HEADERS | headers)
        return Answer(address, server, connection, connection.getresponse())
    except (ssl.SSLError, UnicodeError, http.client.InvalidURL, http.client.HTTPException, OSError) as error:
        if connection is not None:
            connection.close()
        if isinstance(error, ssl.SSLError | UnicodeError | http.client.InvalidURL):
            return None
        raise _failure(error) from None


def _connected(server: _Server, seconds: float) -> http.client.HTTPConnection:
    """Return a new connection to *server*. Raises: TransientError; ssl.SSLError."""
    made: http.client.HTTPConnection
    if server.scheme == "http":
        made = http.client.HTTPConnection(server.host, server.port, seconds)
    else:
        made = http.client.HTTPSConnection(server.host, server.port, timeout=seconds, context=_trust(os.getpid()))
    try:
        made.connect()
    except ssl.SSLError:
        raise
    except TimeoutError:
        raise TransientError(f"cannot connect to {made.host}:{made.port}: no answer for {seconds:g} seconds") from None
    except OSError as error:
        raise TransientError(f"cannot connect to {made.host}:{made.port}: {error.strerror or 'no answer'}") from None
    return made


def _failure(error: Exception) -> TransientError:
    """Return what *error* of a connection means."""
    if isinstance(error, TimeoutError):
        return TransientError(f"no byte came for {timeouts().idle:g} seconds")
    return TransientError("the connection was cut")
