"""HTTP requests for the stores that speak it through `requests`: one try each, what came of it, and why not.

No message has the text of an exception of `requests` or `urllib3`: they quote URLs, with the signatures in them.
"""

from __future__ import annotations

import io
import json
import os
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from http.client import responses
from typing import Any
from urllib.parse import urljoin

import requests
from requests.adapters import HTTPAdapter
from urllib3 import exceptions

from tartools.errors import StorageError
from tartools.storage import stores
from tartools.storage.stores import NoPermission, Reply
from tartools.storage.tries import Passing, timeouts

CONNECTIONS = 64  # that are kept open: to one server, and servers
PIECE = 256 << 10  # bytes that are sent at once
MESSAGE = 32 << 20  # bytes; an answer that is no object is not larger
REDIRECTS = 5

_lock = threading.Lock()  # sessions are for all threads; making one is not
_sessions: dict[tuple[int, str], requests.Session] = {}


def session(kind: str, make: Callable[[], requests.Session] = requests.Session) -> requests.Session:
    """Return the session of this process for servers of *kind*: a fork must not share its connections.

    The first time it comes from *make*. Raises: what *make* raises.
    """
    with _lock:
        key = (os.getpid(), kind)
        if key not in _sessions:
            made = make()
            for scheme in ("http://", "https://"):
                made.mount(scheme, HTTPAdapter(CONNECTIONS, CONNECTIONS, max_retries=0))  # `tries` counts them
            made.headers.update({"User-Agent": "tartools", "Accept-Encoding": "identity"})
            _sessions[key] = made
        return _sessions[key]


class Absent(StorageError):  # noqa: N818  # as NoPermission
    """There is no such object; there is what it would be in, as far as the server says."""


class Payload:
    """The body of a request: *size* bytes, of which *read* gives those from one place up to another.

    It is sent piece by piece, and may be sent again: all of it at once would have to be sent within one timeout.
    """

    def __init__(self, size: int, read: Callable[[int, int], bytes | memoryview]) -> None:
        self._size = size
        self._read = read

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes | memoryview]:
        for start in range(0, self._size, PIECE):
            yield self._read(start, min(start + PIECE, self._size))


def payload(data: bytearray | memoryview) -> Payload:
    """Return the body that is *data*, without copying it."""
    view = memoryview(data)
    return Payload(len(view), lambda start, end: view[start:end])


def ask(
    through: requests.Session,
    method: str,
    address: str,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: Payload | bytes | None = None,
    follow: bool = False,
    **options: Any,
) -> requests.Response:
    """Return the answer to one request to *address*, whatever its status; its body is not read yet.

    *url* is what messages name. With *follow*, redirects are followed. *options* are those of `requests`.

    Raises: Passing if there is no answer; StorageError for a certificate that is not trusted, an address that is none,
    redirects without end.
    """
    times = timeouts()
    connect = times.idle if body else times.connect  # urllib3 sends under the timeout for connecting
    data: Any = body or (None if body is None else b"")  # requests would send an empty `Payload` in chunks
    try:
        return through.request(
            method,
            address,
            headers=dict(headers or {}),
            data=data,
            allow_redirects=follow,
            stream=True,
            timeout=(connect, times.idle),
            **options,
        )
    except (requests.RequestException, exceptions.HTTPError, OSError, UnicodeError) as error:
        raise trouble(error, url, connect) from None
    except ValueError:  # of urllib; others are those of google.auth, which follows nothing
        if not follow:
            raise
        raise StorageError("the server sends us to what is no URL", url=url) from None


def send(
    through: requests.Session, method: str, address: str, url: str, body: Payload | bytes, **options: Any
) -> requests.Response:
    """Return the answer to a request with *body*, which is sent again to where the server says (see `elsewhere`).

    Raises: as `ask`.
    """
    for _ in range(REDIRECTS + 1):
        response = ask(through, method, address, url, body=body, **options)
        place = elsewhere(response, address)
        if place is None:
            return response
        address = place
    raise StorageError("too many redirects", url=url)


def elsewhere(response: requests.Response, address: str) -> str | None:
    """Return where the request to *address* is to be sent instead, as it is; None if this is its answer.

    Source: RFC 9110, 15.4.8 and 15.4.9 (307 and 308; the other redirects may turn it into a GET).
    """
    place = response.headers.get("Location", "")
    if response.status_code not in (307, 308) or not place:
        return None
    finish(response)
    return urljoin(address, place)


def finish(response: requests.Response) -> None:
    """Pass by what is left of a short answer, so that its connection can be used again."""
    response.raw.drain_conn()
    response.close()


def trouble(error: Exception, url: str, connect: float = 0.0) -> Passing | StorageError:
    """Return what *error* of `requests` or `urllib3` means. *connect* is how many seconds there were to connect."""
    causes = list(_causes(error))

    def is_any(*kinds: type[BaseException]) -> bool:
        return any(isinstance(cause, kinds) for cause in causes)

    if is_any(requests.TooManyRedirects):
        return StorageError("too many redirects", url=url)
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            advice = "REQUESTS_CA_BUNDLE (for ais: AIS_CLIENT_CA) names others"
            return StorageError(f"the server's certificate is not trusted: {cause.verify_message}; {advice}", url=url)
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return Passing(f"the server does not speak TLS as it should ({cause.reason or 'no reason given'})")
    reason = next((c.strerror for c in causes if isinstance(c, OSError) and c.strerror), "no answer")
    if is_any(requests.exceptions.ProxyError, exceptions.ProxyError):
        return Passing(f"cannot connect through the proxy: {reason}")
    if is_any(exceptions.NewConnectionError):  # before the next: it is one of those
        return Passing(f"cannot connect: {reason}")
    if is_any(requests.ConnectTimeout, exceptions.ConnectTimeoutError):
        return Passing(f"cannot connect: no answer for {connect:g} seconds")
    if is_any(requests.ReadTimeout, exceptions.ReadTimeoutError):
        return Passing(f"no byte came for {timeouts().idle:g} seconds")
    if is_any(TimeoutError):
        return Passing(f"no byte was taken for {timeouts().idle:g} seconds")
    if isinstance(error, ValueError):
        return StorageError("this is no URL that can be asked for", url=url)
    if not is_any(requests.RequestException, exceptions.HTTPError):  # OSError, before anything was asked
        return StorageError(
            "the file of trusted certificates (REQUESTS_CA_BUNDLE, AIS_CLIENT_CA) cannot be read", url=url
        )
    return Passing("the connection was cut")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield *error* and all that led to it, from the outside in."""
    queue, seen = [error], set[int]()
    while queue:
        cause = queue.pop(0)
        if id(cause) not in seen:
            seen.add(id(cause))
            yield cause
            inner: Iterable[Any] = (*cause.args, getattr(cause, "reason", None), cause.__cause__, cause.__context__)
            queue += [i for i in inner if isinstance(i, BaseException)]


def refused(
    response: requests.Response, url: str, what: str = "read", *, pinned: bool = False, code: str = ""
) -> Passing | StorageError:
    """Return what an answer that is none means, and let go of the connection.

    *what* was to be done: "read", "write", "list". *pinned*: one version was asked for. *code* is the server's own name
    for it. Source: RFC 9110, 15.
    """
    status = response.status_code
    after = _patience(response.headers.get("Retry-After", ""))
    response.close()
    code = code or responses.get(status, "")
    if status in (408, 429) or (status >= 500 and status not in (501, 505)):
        return Passing(f"the server is busy ({status} {code})", after)
    if status == 401:
        return StorageError(f"the server wants credentials that it accepts ({code})", url=url)
    if status == 403:
        return NoPermission(f"no permission to {what} this ({code})", url=url)
    if status in (404, 410):
        if what != "read":
            return StorageError(f"there is no such place to {what} ({code})", url=url)
        return Absent("this was deleted while it was being read" if pinned else "there is no such object", url=url)
    if status == 412:
        existing = "this exists already; --force replaces it"
        return StorageError(existing if what == "write" else "this was replaced while it was being read", url=url)
    if 300 <= status < 400:
        return StorageError(f"this is elsewhere ({status}); give its new URL", url=url)
    return StorageError(f"the server refuses: {status} {code}".rstrip(), url=url)


def _patience(text: str) -> float | None:
    """Return the seconds that a server asks us to wait (Retry-After; RFC 9110, 10.2.3)."""
    if text.isdecimal():
        return float(text)
    when = moment(text)
    return None if when is None else max(when - time.time(), 0.0)


def moment(text: str) -> float | None:
    """Return the seconds since 1970 of a date in a header (RFC 9110, 5.6.7), None if it is none."""
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None


class Body:
    """The body of an answer, as it was sent: nothing is decoded."""

    def __init__(self, response: requests.Response, url: str) -> None:
        self._response = response
        self._url = url

    def read(self, most: int, /) -> bytes:
        """Return up to *most* bytes. Raises: Passing if fewer come in all than the server said."""
        try:
            data: bytes = self._response.raw.read(most, decode_content=False)
            return data
        except (exceptions.HTTPError, OSError) as error:
            raise trouble(error, self._url) from None

    def close(self) -> None:
        """Let go of the connection."""
        self._response.close()


def message(response: requests.Response, url: str) -> bytes:
    """Return all of an answer that is no object. Raises: as `whole`."""
    return whole(Body(response, url), url)


def whole(body: stores.Body, url: str) -> bytes:
    """Return all of *body*, and close it. Raises: Passing; StorageError beyond 32 MiB."""
    parts, missing = [], MESSAGE
    try:
        while data := body.read(missing):
            parts.append(data)
            missing -= len(data)
            if not missing:
                raise StorageError("the answer of the server is too long", url=url)
    finally:
        body.close()
    return b"".join(parts)


def document(response: requests.Response, url: str) -> Any:
    """Return what an answer in JSON says. Raises: Passing; StorageError if it is none."""
    try:
        return json.loads(message(response, url))
    except ValueError:
        raise StorageError("the answer of the server is no JSON", url=url) from None


def ranged(start: int, end: int | None) -> dict[str, str]:
    """Return the header that asks for the bytes *start* to *end* (RFC 9110, 14.2), none for all of them."""
    if not start and end is None:
        return {}
    return {"Range": f"bytes={start}-{'' if end is None else end - 1}"}


def size_of(response: requests.Response) -> int | None:
    """Return how many bytes the body of *response* has, or would have, as far as the server says."""
    text = response.headers.get("Content-Length", "")
    return int(text) if text.isdecimal() and "Transfer-Encoding" not in response.headers else None


def reply(response: requests.Response, url: str, start: int, version: str) -> Reply:
    """Return the answer, with status 200, 206 or 416, to a request for the bytes from *start* on.

    A range with status 200 is one: AIStore up to 4.4 says so. Source: RFC 9110, 14.4 and 15.5.17.

    Raises: StorageError for a part of which nobody says where it is from.
    """
    length = size_of(response)
    about = response.headers.get("Content-Range", "")
    found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", about)
    if found:
        first, last = int(found[1]), int(found[2])
        size = None if found[3] == "*" else int(found[3])
        return Reply(Body(response, url), first, last - first + 1 if length is None else length, size, version)
    if response.status_code == 200:
        framed = length is not None or "Transfer-Encoding" in response.headers  # RFC 9112, 6.3
        return Reply(Body(response, url), 0, length, length, version, framed)
    response.close()
    if response.status_code == 416 or length == 0:
        found = re.fullmatch(r"bytes \*/(\d+)", about)
        return Reply(io.BytesIO(), start, 0, int(found[1]) if found else None, version)
    raise StorageError("the server sent a part without saying which", url=url)
