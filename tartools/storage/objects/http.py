"""HTTP by urllib3: one attempt of a request, its response, translation of its errors, and pooled connections.

No message repeats the text of an exception of urllib3: they quote URLs, signatures included.
"""

from __future__ import annotations

import functools
import io
import json
import os
import re
import ssl
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from importlib.util import find_spec
from ipaddress import ip_address, ip_network
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import quote, unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import certifi
import urllib3
from urllib3 import exceptions

from tartools.errors import ChangedError, ExistsError, NotFoundError, StorageError, how_to_install
from tartools.storage.logins import login_of
from tartools.storage.objects import contract
from tartools.storage.objects.contract import NoPermissionError, Reply
from tartools.storage.objects.retry import OverloadError, TransientError, timeouts
from tartools.storage.streams import SeekableFile

SEND_CHUNK_BYTES = 256 << 10  # bytes of a file that are sent at once
MAX_RESPONSE_BYTES = 32 << 20  # bytes of a response that is not an object
MAX_REDIRECTS = 10
# statuses of a request that was carried out, and of a range
DONE_STATUSES, RANGE_STATUSES = (200, 201, 204), (200, 206, 416)
MAX_KEPT_CONNECTIONS = 64  # that are kept open: to one server, and servers
HEADERS = {"User-Agent": "tartools", "Accept-Encoding": "identity"}
_PROXIES = [name for kind in ("http", "https", "all") for name in (f"{kind}_proxy", f"{kind}_proxy".upper())]
_BYTE_COUNT = "[0-9]{1,18}"  # of bytes; Python refuses to parse much longer ones
BUNDLE_VARIABLES = "REQUESTS_CA_BUNDLE (for ais: AIS_CLIENT_CA)"
_PROXY_REFUSAL = r"^Tunnel connection failed: (\d{3})\b"  # http.client says so what a proxy has answered
_OVERLOADS = ("SlowDown", "Throttling", "RequestLimitExceeded")  # names of S3 and of servers like it
_PHRASES = {status.value: status.phrase for status in HTTPStatus}

INVALID_REDIRECT = "the server redirects to an invalid URL"
Result = TypeVar("Result")
Trust = bool | str  # the usual certificates, any at all, or those in a file or folder


class InvalidUrlError(StorageError):
    """An address that no request can be sent to."""


class Payload(SeekableFile):
    """The *data* of a request as a file: sent in chunks, each with a timeout of its own."""

    def __init__(self, data: bytearray | memoryview) -> None:
        super().__init__(len(data))
        self._view = memoryview(data)

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read up to `len(buffer)` bytes into *buffer*; return how many, 0 at the end."""
        chunk = self._view[self._position : self._position + len(buffer)]
        buffer[: len(chunk)] = chunk
        self._position += len(chunk)
        return len(chunk)


class Response(contract.Body):
    """A response from *address* about the object *url*: its `status` and `headers`, and its body as it was sent.

    *answer*: the response of urllib3, whose body is not read yet; it is not decompressed.
    """

    def __init__(self, answer: urllib3.BaseHTTPResponse, address: str, url: str) -> None:
        self._answer = answer
        self.address = address
        self.url = url
        self.status = answer.status
        self.headers = answer.headers

    def read(self, max_bytes: int, /) -> bytes:
        """Return up to *max_bytes* bytes, b"" at the end. Raises: TransientError if the connection is cut or silent."""
        try:
            return self._answer.read(max_bytes, decode_content=False)
        except (exceptions.HTTPError, OSError) as error:
            raise request_error(error, self.url) from None

    def close(self) -> None:
        """Release the connection: it is used again if all of the body was read."""
        self._answer.close()

    def drain(self) -> None:
        """Read and drop the rest of a short body, and close: the connection can be used again. Errors are ignored."""
        self._answer.drain_conn()
        self.close()

    def redirect(self, method: str) -> str | None:
        """Return the URL to which this redirects the same request by *method*, and drain this; None if it does not.

        301 to 303: only GET and HEAD; 307, 308: any method (RFC 9110, 15.4). Raises: StorageError for an invalid URL.
        """
        location = self.headers.get("Location", "")
        followed = (301, 302, 303, 307, 308) if method in ("GET", "HEAD") else (307, 308)
        if not location or self.status not in followed:
            return None
        self.drain()
        try:
            return urljoin(self.address, location)
        except ValueError:
            raise StorageError(INVALID_REDIRECT, url=self.url) from None

    def text(self) -> str:
        """Return the whole body of an error response as text, and close it; "" if it is too long, or can't be read."""
        try:
            return read_all(self, self.url).decode("utf-8", "replace")
        except (TransientError, StorageError):
            return ""

    def json(self, parse: Callable[[Any], Result]) -> Result:
        """Return `parse(JSON of the body)`, and close the response.

        Raises: TransientError; StorageError if too long, no JSON, or *parse* fails by value, lookup, type, attribute.
        """
        try:
            return parse(json.loads(read_all(self, self.url)))
        except (ValueError, LookupError, TypeError, AttributeError):
            raise StorageError("the server's response is not the JSON of this API", url=self.url) from None


class Client(NamedTuple):
    """Makes HTTP requests, one attempt each, by `request`.

    *credentials*: called with an address and `moved`, returns the headers with credentials for it. `moved` is True if a
    request without a body was redirected there from another server or scheme.
    *trust*: returns the argument *trust* of `connections`: True for the default, False for any, or a file or folder.
    """

    credentials: Callable[[str, bool], Mapping[str, str]] = lambda address, moved: {}
    trust: Callable[[], Trust] = lambda: True

    def request(
        self,
        method: str,
        address: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: io.IOBase | bytes | None = None,
        follow: bool = True,
    ) -> Response:
        """Return the response, of any status, to one request to *address*; its body is not read yet.

        Messages name *url*. Redirects are followed, unless that would change the method, or *follow* is False. Raises:
        TransientError without response; StorageError: certificate, address, proxy, redirects; UsageError: timeout.
        """
        before = address
        for _ in range(MAX_REDIRECTS + 1):
            moved = address is not before and body is None and urlsplit(before)[:2] != urlsplit(address)[:2]
            all_headers = {**(headers or {}), **self.credentials(address, moved)}
            try:
                response = self._send_once(method, address, url, all_headers, body)
            except InvalidUrlError:
                raise StorageError("invalid URL" if address is before else INVALID_REDIRECT, url=url) from None
            target = response.redirect(method) if follow else None
            if target is None:
                return response
            address = target
        raise StorageError("too many redirects", url=url)

    def _send_once(
        self, method: str, address: str, url: str, headers: dict[str, str], body: io.IOBase | bytes | None
    ) -> Response:
        """Return the response, of any status, to one request to *address*; redirects are not followed.

        *headers*: of the request; Content-Length is added to them if *body* is a file, which is sent from its begin.
        Raises: as `request`, but InvalidUrlError for an invalid address or proxy. Messages name *url*.
        """
        times = timeouts()
        connect = times.idle if body else times.connect  # urllib3 uses the timeout for connecting while it sends
        if isinstance(body, io.IOBase):
            headers["Content-Length"] = str(body.seek(0, os.SEEK_END))
            body.seek(0)
        limits = urllib3.Timeout(connect=connect, read=times.idle)
        try:
            pool = connections(address, self.trust())
            answer = pool.urlopen(
                method,
                address,
                redirect=False,
                headers={**pool.headers, **headers},
                body=cast(Any, body),
                timeout=limits,
                preload_content=False,
                decode_content=False,
            )
        except StorageError as error:
            raise StorageError(error.message, url=url) from None
        except (exceptions.HTTPError, OSError, ValueError) as error:
            raise request_error(error, url, address, connect) from None
        return Response(answer, address, url)


def request_error(
    error: Exception, url: str, address: str = "", connect: float = 0.0, bundles: str = BUNDLE_VARIABLES
) -> TransientError | StorageError:
    """Return the error for *error* of urllib3, of a request to *address* for *url*.

    A StorageError for an untrusted certificate, InvalidUrlError for ValueError, TransientError for anything else.
    *connect* is the timeout for connecting, in seconds; *bundles* the variables that name trusted certificates.
    """
    causes = list(_causes(error))

    def is_any(*kinds: type[BaseException]) -> bool:
        """True if one of the causes is of one of *kinds*."""
        return any(isinstance(cause, kinds) for cause in causes)

    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            message = f"the server's certificate is not trusted: {cause.verify_message}; {bundles} names others"
            return StorageError(message, url=url)
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return TransientError(f"TLS error ({cause.reason or 'no reason given'})")
    reason = next((c.strerror for c in causes if isinstance(c, OSError) and c.strerror), "no answer")
    if is_any(exceptions.ProxyError):
        refused = next((match for cause in causes if (match := re.search(_PROXY_REFUSAL, str(cause)))), None)
        reason = f"{refused[1]} {_PHRASES.get(int(refused[1]), '')}".rstrip() if refused else reason
        return TransientError(f"cannot connect through the proxy: {reason}")
    if is_any(exceptions.NewConnectionError):  # before the next: it is one of those
        return TransientError(f"cannot connect to {_server(address)}: {reason}")
    if is_any(exceptions.ConnectTimeoutError):
        return TransientError(f"cannot connect to {_server(address)}: no answer for {connect:g} seconds")
    if is_any(exceptions.ReadTimeoutError):
        return TransientError(f"no byte came for {timeouts().idle:g} seconds")
    if is_any(TimeoutError):
        return TransientError(f"no byte was taken for {connect:g} seconds")
    if isinstance(error, ValueError):
        return InvalidUrlError("invalid URL", url=url)
    return TransientError("the connection was dropped")


def _server(address: str) -> str:
    """Return "HOST:PORT" of *address*, a valid URL; without a port in it 443 for https, 80 for any other scheme."""
    parts = urlsplit(address)
    return f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield *error* and its causes, contexts and exceptions in `args`, each once, from the outside in."""
    queue, visited = [error], set[int]()
    while queue:
        cause = queue.pop(0)
        if id(cause) not in visited:
            visited.add(id(cause))
            yield cause
            inner = (*cause.args, cause.__cause__, cause.__context__)
            queue += [i for i in inner if isinstance(i, BaseException)]


def is_busy(status: int) -> bool:
    """True if a response of this *status* (408, 429, from 500 on but 501 and 505) says that a retry may succeed."""
    return status in (408, 429) or (status >= 500 and status not in (501, 505))


def busy_error(status: int, code: str, after: str) -> TransientError:
    """Return the error of a busy server: OverloadError for 429, 503 or a *code* that begins with one of `_OVERLOADS`.

    *code*: the server's name for it, such as "SlowDown", or ""; *after*: Retry-After, seconds or a date; else unused.
    """
    when = None if after.isdecimal() else parse_date(after)
    seconds = float(after) if after.isdecimal() else None if when is None else max(when - time.time(), 0.0)
    kind = OverloadError if status in (429, 503) or code.startswith(_OVERLOADS) else TransientError
    reason = code if code == str(status) else f"{status} {code}"  # botocore repeats the status if there is no body
    return kind(f"the server is busy ({reason.rstrip()})", seconds)


def status_error(
    response: Response, verb: str = "read", *, pinned: bool = False, code: str = ""
) -> TransientError | StorageError:
    """Return the error that *response*, of a status that was not expected, reports; close the response.

    *verb* was requested: "read", "write", "list", … TransientError if the server is busy (`is_busy`); NoPermissionError
    for 403; for 404 and 410 to "read" NotFoundError, or ChangedError if *pinned*: a version was read before; for 412
    ExistsError to "write", else ChangedError; StorageError for any other status. *code*: the server's own name for the
    failure; "": the phrase of the status. Source: RFC 9110, 15.
    """
    status, url = response.status, response.url
    response.close()
    code = code or _PHRASES.get(status, "")
    if is_busy(status):
        return busy_error(status, code, response.headers.get("Retry-After", ""))
    if status == 401:
        return StorageError(f"the server does not accept the credentials, or requires some ({code})", url=url)
    if status == 403:
        return NoPermissionError(f"no permission to {verb} ({code})", url=url)
    if status in (404, 410):
        if verb != "read":
            return StorageError(f"cannot {verb}: not found ({code})", url=url)
        if pinned:
            return ChangedError("was deleted while it was being read", url=url)
        return NotFoundError("no such object", url=url)
    if status == 412:
        return ExistsError(url) if verb == "write" else ChangedError("was replaced while it was being read", url=url)
    if 300 <= status < 400:
        return StorageError(_redirect_message(response), url=url)
    return StorageError(f"the server refuses: {status} {code}".rstrip(), url=url)


def _redirect_message(response: Response) -> str:
    """Return the message for a redirect that is not followed: its target without the query, which may be signed."""
    location = response.headers.get("Location")
    try:
        target = urlsplit(urljoin(response.address, location)) if location else None
    except ValueError:
        target = None
    where = f"to {target.netloc.rpartition('@')[2]}{target.path}; use that address" if target else "without an address"
    return f"redirected ({response.status}) {where}"


def parse_date(text: str) -> float | None:
    """Return the seconds since 1970 of a date in a header (RFC 9110, 5.6.7), None if it is not valid."""
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None


def read_all(body: contract.Body, url: str) -> bytes:
    """Return all bytes of *body*; close it. Raises: TransientError; StorageError from MAX_RESPONSE_BYTES on."""
    parts, missing = [], MAX_RESPONSE_BYTES
    try:
        while data := body.read(missing):
            parts.append(data)
            missing -= len(data)
            if not missing:
                raise StorageError("the server's response is too long", url=url)
    finally:
        body.close()
    return b"".join(parts)


def range_of(start: int, end: int | None) -> str:
    """Return the value of the header Range for bytes *start* to *end* (exclusive; None: to the last); "" for all."""
    return f"bytes={start}-{'' if end is None else end - 1}" if start or end is not None else ""


def range_header(start: int, end: int | None) -> dict[str, str]:
    """Return the header Range for the bytes *start* to *end* (exclusive; None: to the last); {} for all of them."""
    return {"Range": value} if (value := range_of(start, end)) else {}


def escape_segment(name: str) -> str:
    """Return *name* percent-encoded, slashes too, as one segment of a path. GCS refuses names that are not UTF-8."""
    return quote(name, safe="", errors="surrogateescape")


def content_length(headers: Mapping[str, str]) -> int | None:
    """Return Content-Length in *headers* (small letters); None if it is missing, invalid, or with Transfer-Encoding."""
    text = headers.get("content-length", "")
    return int(text) if re.fullmatch(_BYTE_COUNT, text) and "transfer-encoding" not in headers else None


def make_reply(
    status: int, headers: Mapping[str, str], body: contract.Body, url: str, start: int, version: str
) -> Reply:
    """Return the `Reply` of a response with *status* 200, 206 or 416 to a request for the bytes from *start* on.

    *body*, *version*: of the response; *headers*: by names in lower case; *url*: for messages. A Content-Range counts
    with 200 too (AIStore up to 4.4). 416, and 206 with Content-Length 0, have an empty body. Raises: StorageError for
    any other 206 without a valid Content-Range. Source: RFC 9110, 14.4 and 15.5.17.
    """
    length = content_length(headers)
    content_range = headers.get("content-range", "")
    match = re.fullmatch(rf"bytes ({_BYTE_COUNT})-({_BYTE_COUNT})/({_BYTE_COUNT}|\*)", content_range)
    if match:
        first, last = int(match[1]), int(match[2])
        size = None if match[3] == "*" else int(match[3])
        return Reply(body, first, last - first + 1 if length is None else length, size, version)
    if status == 200:
        is_framed = length is not None or "transfer-encoding" in headers  # RFC 9112, 6.3
        return Reply(body, 0, length, length, version, is_framed)
    body.close()
    if status == 416 or length == 0:
        match = re.fullmatch(rf"bytes \*/({_BYTE_COUNT})", content_range)
        return Reply(io.BytesIO(), start, 0, int(match[1]) if match else None, version)
    raise StorageError("206 response without Content-Range", url=url)


# ---- connections: what the environment says of proxies, certificates, passwords in .netrc ----

# By process, since a fork may not wait for what a thread of its parent had. Threads share connections, but may not make
# what holds them at the same time.
_lock: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)


def connections(address: str, trust: Trust = True) -> urllib3.PoolManager:
    """Return the connections of this process by which *address* is reached: a fork must not share them.

    They make one attempt of a request, and follow no redirect. *trust*: a file or folder; False: any; True: by
    `REQUESTS_CA_BUNDLE` or `CURL_CA_BUNDLE`, else the system's and Mozilla's. Raises: StorageError if the certificates
    can't be read, or the library for the proxy is missing; ValueError for a proxy or an *address* that is no URL.
    """
    if trust is True:
        trust = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or True
    proxy = _proxy_of(address)
    encrypted = "https:" in (address[:6], proxy[:6])
    with _lock[os.getpid()]:
        return _connections(os.getpid(), proxy, trust if encrypted else None)


@functools.cache
def _connections(process: int, proxy: str, trust: Trust | None) -> urllib3.PoolManager:
    """Return the connections of the process *process* (a pid) by *proxy* ("": none); *trust*: None without encryption.

    Raises: StorageError without the library for this kind of proxy, or readable certificates; ValueError for the proxy.
    """
    context = None if trust is None else _tls_context(trust)
    options: dict[str, Any] = {
        "num_pools": MAX_KEPT_CONNECTIONS,
        "maxsize": MAX_KEPT_CONNECTIONS,
        "headers": HEADERS,
        "retries": False,
    }
    options |= {"blocksize": SEND_CHUNK_BYTES, "ssl_context": context}
    if not proxy:
        return urllib3.PoolManager(**options)
    if proxy.startswith("socks"):
        if find_spec("socks") is None:
            raise StorageError(f"this proxy needs a library: {how_to_install('PySocks')}")
        from urllib3.contrib.socks import SOCKSProxyManager

        return SOCKSProxyManager(proxy, **options)
    name, password = urlsplit(proxy).username, urlsplit(proxy).password or ""
    headers = urllib3.make_headers(proxy_basic_auth=unquote(f"{name}:{password}") if name else None)
    return urllib3.ProxyManager(proxy, proxy_headers=headers, proxy_ssl_context=context, **options)


def _tls_context(trust: Trust) -> ssl.SSLContext:
    """Return a TLS context that trusts the certificates *trust*. Raises: StorageError if they can't be read.

    True: those of the system or SSL_CERT_FILE, and Mozilla's; False: any; text: only those in this file or folder.
    """
    if isinstance(trust, str):
        return load_trusted(trust, BUNDLE_VARIABLES)
    context = ssl.create_default_context()
    if trust:
        context.load_verify_locations(certifi.where())
    else:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # the user wants that
    return context


def load_trusted(bundle: str, variables: str) -> ssl.SSLContext:
    """Return a TLS context that trusts only the certificates in the file or folder *bundle*.

    *variables*: environment variables to name in messages. Raises: StorageError for a file without readable ones.
    """
    is_folder = os.path.isdir(bundle)
    try:
        return ssl.create_default_context(cafile=None if is_folder else bundle, capath=bundle if is_folder else None)
    except OSError as error:
        reason = "it has no certificates (PEM)" if isinstance(error, ssl.SSLError) else error.strerror
        message = f"cannot read the file of trusted certificates {bundle} ({reason}); {variables} names it"
        raise StorageError(message) from None


def _proxy_of(address: str) -> str:
    """Return the URL of the proxy for *address* (http_proxy, https_proxy, all_proxy, no_proxy), "" if there is none."""
    if sys.platform != "darwin" and not any(map(os.environ.get, _PROXIES)):
        return ""  # to make sure by `getproxies` takes as long as a small request
    proxies, parts = getproxies(), urlsplit(address)
    proxy = proxies.get(parts.scheme) or proxies.get("all") or ""
    server = parts.netloc.rpartition("@")[2]
    if not proxy or proxy_bypass(server) or _is_in_networks(parts.hostname or "", proxies.get("no", "")):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_in_networks(host: str, networks: str) -> bool:
    """True if *host* is an IP address in one of *networks*, "10.0.0.0/8,…", which `proxy_bypass` does not know."""
    for network in networks.split(","):
        with suppress(ValueError):
            if "/" in network and ip_address(host) in ip_network(network.strip(), strict=False):
                return True
    return False


def netrc_header(address: str, moved: bool) -> dict[str, str]:
    """Return the header Authorization for *address* by `$NETRC` or ~/.netrc; {} without a login. *moved* is unused."""
    login = login_of(urlsplit(address).hostname or "")
    return urllib3.make_headers(basic_auth=f"{login.name}:{login.password}") if login else {}
