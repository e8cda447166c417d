"""HTTP for the stores that use `requests`: one attempt of a request, its response, and what its failure means.

No message repeats the text of an exception of `requests` or `urllib3`: they quote URLs, signatures included.
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
from urllib.parse import urljoin, urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3 import exceptions

from tartools.errors import ExistsError, NotFoundError, StorageError
from tartools.storage.objects import contract
from tartools.storage.objects.contract import NoPermissionError, Reply
from tartools.storage.objects.quick import CONNECTIONS, REDIRECTS, Answer
from tartools.storage.objects.retry import TransientError, timeouts

CHUNK = 256 << 10  # bytes that are sent at once
MOST = 32 << 20  # bytes of a response that is not an object

_lock = threading.Lock()  # sessions are for all threads; making one is not
_sessions: dict[tuple[int, str], requests.Session] = {}


def session(kind: str, make: Callable[[], requests.Session] = requests.Session) -> requests.Session:
    """Return the session of this process for servers of *kind*: a fork must not share its connections.

    *make* makes it the first time. Raises: what *make* raises.
    """
    with _lock:
        key = (os.getpid(), kind)
        if key not in _sessions:
            made = make()
            for scheme in ("http://", "https://"):
                made.mount(scheme, HTTPAdapter(CONNECTIONS, CONNECTIONS, max_retries=0))  # `retry` does that
            made.headers.update({"User-Agent": "tartools", "Accept-Encoding": "identity"})
            _sessions[key] = made
        return _sessions[key]


class Payload:
    """The body of a request: *size* bytes; *read* returns those from one offset up to another.

    It is sent in chunks, since all at once would have to be sent within one timeout; it can be sent again.
    """

    def __init__(self, size: int, read: Callable[[int, int], bytes | memoryview]) -> None:
        self._size = size
        self._read = read

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes | memoryview]:
        for start in range(0, self._size, CHUNK):
            yield self._read(start, min(start + CHUNK, self._size))


def payload(data: bytearray | memoryview) -> Payload:
    """Return *data* as the body of a request, without copying it."""
    view = memoryview(data)
    return Payload(len(view), lambda start, end: view[start:end])


def request(
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
    """Return the response to one request to *address*, whatever its status; its body is not read yet.

    Messages name *url*. With *follow*, redirects are followed. *options* are those of `requests`.

    Raises: TransientError if there is no response; StorageError for a certificate that is not trusted, an invalid
    address, too many redirects.
    """
    times = timeouts()
    connect = times.idle if body else times.connect  # urllib3 uses the timeout for connecting while it sends
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
        raise connection_error(error, url, connect) from None
    except ValueError:  # of urllib, for a redirect; without *follow* it is one of google.auth
        if not follow:
            raise
        raise StorageError("the server redirects to an invalid URL", url=url) from None


def send(
    through: requests.Session, method: str, address: str, url: str, body: Payload | bytes, **options: Any
) -> requests.Response:
    """Return the response to a request with *body*, which is sent again where the server redirects it to.

    Raises: as `ask`.
    """
    for _ in range(REDIRECTS + 1):
        response = request(through, method, address, url, body=body, **options)
        target = redirect_target(response, address)
        if target is None:
            return response
        address = target
    raise StorageError("too many redirects", url=url)


def redirect_target(response: requests.Response, address: str) -> str | None:
    """Return where *response* redirects the unchanged request to *address* to; None if it is no such redirect.

    Source: RFC 9110, 15.4.8 and 15.4.9 (307 and 308; the other redirects may turn it into a GET).
    """
    location = response.headers.get("Location", "")
    if response.status_code not in (307, 308) or not location:
        return None
    drain(response)
    return urljoin(address, location)


def drain(response: requests.Response) -> None:
    """Read the rest of a short response, so that its connection can be used again."""
    response.raw.drain_conn()
    response.close()


def connection_error(error: Exception, url: str, connect: float = 0.0) -> TransientError | StorageError:
    """Return what *error* of `requests` or `urllib3` means. *connect* is the timeout for connecting, in seconds."""
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
            return TransientError(f"TLS error ({cause.reason or 'no reason given'})")
    to = next(
        (f" to {c.pool.host}:{c.pool.port}" for c in causes if isinstance(c, exceptions.PoolError) and c.pool), ""
    )
    reason = next((c.strerror for c in causes if isinstance(c, OSError) and c.strerror), "no answer")
    if is_any(requests.exceptions.ProxyError, exceptions.ProxyError):
        return TransientError(f"cannot connect through the proxy: {reason}")
    if is_any(exceptions.NewConnectionError):  # before the next: it is one of those
        return TransientError(f"cannot connect{to}: {reason}")
    if is_any(requests.ConnectTimeout, exceptions.ConnectTimeoutError):
        return TransientError(f"cannot connect{to}: no answer for {connect:g} seconds")
    if is_any(requests.ReadTimeout, exceptions.ReadTimeoutError):
        return TransientError(f"no byte came for {timeouts().idle:g} seconds")
    if is_any(TimeoutError):
        return TransientError(f"no byte was taken for {timeouts().idle:g} seconds")
    if isinstance(error, ValueError):
        return StorageError("invalid URL", url=url)
    if not is_any(requests.RequestException, exceptions.HTTPError):  # OSError, before the request
        return StorageError("cannot read the file of trusted certificates (REQUESTS_CA_BUNDLE, AIS_CLIENT_CA)", url=url)
    return TransientError("the connection was cut")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield *error* and all its causes, from the outside in."""
    queue, seen = [error], set[int]()
    while queue:
        cause = queue.pop(0)
        if id(cause) not in seen:
            seen.add(id(cause))
            yield cause
            inner: Iterable[Any] = (*cause.args, getattr(cause, "reason", None), cause.__cause__, cause.__context__)
            queue += [i for i in inner if isinstance(i, BaseException)]


def status_error(
    response: requests.Response, url: str, what: str = "read", *, pinned: bool = False, code: str = ""
) -> TransientError | StorageError:
    """Return the failure that *response* reports, and close it.

    *what* was requested: "read", "write", "list". *pinned*: of one version. *code* is the server's own name for the
    failure. Source: RFC 9110, 15.
    """
    status = response.status_code
    after = _retry_after(response.headers.get("Retry-After", ""))
    response.close()
    code = code or responses.get(status, "")
    if status in (408, 429) or (status >= 500 and status not in (501, 505)):
        return TransientError(f"the server is busy ({status} {code})", after)
    if status == 401:
        return StorageError(f"the server does not accept the credentials, or requires some ({code})", url=url)
    if status == 403:
        return NoPermissionError(f"no permission to {what} ({code})", url=url)
    if status in (404, 410):
        if what != "read":
            return StorageError(f"cannot {what}: not found ({code})", url=url)
        if pinned:
            return StorageError("was deleted while it was being read", url=url)
        return NotFoundError("no such object", url=url)
    if status == 412:
        return ExistsError(url) if what == "write" else StorageError("was replaced while it was being read", url=url)
    if 300 <= status < 400:
        return StorageError(_redirected(response), url=url)
    return StorageError(f"the server refuses: {status} {code}".rstrip(), url=url)


def _redirected(response: requests.Response) -> str:
    """Return what to say about a redirect that is not followed: where to, without a query, which may be a signature."""
    location = response.headers.get("Location")
    try:
        target = urlsplit(urljoin(response.url, location)) if location else None
    except ValueError:
        target = None
    where = f"to {target.netloc.rpartition('@')[2]}{target.path}; use that address" if target else "without an address"
    return f"redirected ({response.status_code}) {where}"


def _retry_after(text: str) -> float | None:
    """Return the seconds that a server asks to wait (Retry-After; RFC 9110, 10.2.3)."""
    if text.isdecimal():
        return float(text)
    when = parse_date(text)
    return None if when is None else max(when - time.time(), 0.0)


def parse_date(text: str) -> float | None:
    """Return the seconds since 1970 of a date in a header (RFC 9110, 5.6.7), None if it is not valid."""
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None


class Body:
    """The body of a response, as it was sent: nothing is decoded."""

    def __init__(self, response: requests.Response, url: str) -> None:
        self._response = response
        self._url = url

    def read(self, most: int, /) -> bytes:
        """Return up to *most* bytes. Raises: TransientError if the body ends before its length."""
        try:
            data: bytes = self._response.raw.read(most, decode_content=False)
            return data
        except (exceptions.HTTPError, OSError) as error:
            raise connection_error(error, self._url) from None

    def readinto(self, room: memoryview, /) -> int:
        """Fill *room* as far as bytes come. Raises: as `read`."""
        try:
            count: int = self._response.raw.readinto(room)
            return count
        except (exceptions.HTTPError, OSError) as error:
            raise connection_error(error, self._url) from None

    def close(self) -> None:
        """Release the connection."""
        self._response.close()


def read_short(response: requests.Response, url: str) -> bytes:
    """Return the body of a short response. Raises: as `read_all`."""
    return read_all(Body(response, url), url)


def read_all(body: contract.Body, url: str) -> bytes:
    """Return all of *body*, and close it. Raises: TransientError; StorageError beyond 32 MiB."""
    parts, missing = [], MOST
    try:
        while data := body.read(missing):
            parts.append(data)
            missing -= len(data)
            if not missing:
                raise StorageError("the server's response is too long", url=url)
    finally:
        body.close()
    return b"".join(parts)


def read_json(response: requests.Response, url: str) -> Any:
    """Return a response in JSON, parsed. Raises: TransientError; StorageError if it is not JSON."""
    try:
        return json.loads(read_short(response, url))
    except ValueError:
        raise StorageError("the server's response is not JSON", url=url) from None


def range_header(start: int, end: int | None) -> dict[str, str]:
    """Return the header that requests the bytes *start* to *end* (RFC 9110, 14.2), none for all of them."""
    if not start and end is None:
        return {}
    return {"Range": f"bytes={start}-{'' if end is None else end - 1}"}


def content_length(response: requests.Response | Answer) -> int | None:
    """Return the length of the body of *response*, also to a HEAD; None if the server does not say."""
    text = response.headers.get("Content-Length", "")
    return int(text) if text.isdecimal() and "Transfer-Encoding" not in response.headers else None


def reply(response: requests.Response | Answer, url: str, start: int, version: str) -> Reply:
    """Return *response*, with status 200, 206 or 416, to a request for the bytes from *start* on.

    A Content-Range counts with status 200 too: AIStore up to 4.4 sends that. Source: RFC 9110, 14.4 and 15.5.17.

    Raises: StorageError for status 206 without Content-Range.
    """
    length = content_length(response)
    body: contract.Body = response if isinstance(response, Answer) else Body(response, url)
    about = response.headers.get("Content-Range", "")
    found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", about)
    if found:
        first, last = int(found[1]), int(found[2])
        size = None if found[3] == "*" else int(found[3])
        return Reply(body, first, last - first + 1 if length is None else length, size, version)
    if response.status_code == 200:
        framed = length is not None or "Transfer-Encoding" in response.headers  # RFC 9112, 6.3
        return Reply(body, 0, length, length, version, framed)
    response.close()
    if response.status_code == 416 or length == 0:
        found = re.fullmatch(r"bytes \*/(\d+)", about)
        return Reply(io.BytesIO(), start, 0, int(found[1]) if found else None, version)
    raise StorageError("206 response without Content-Range", url=url)
