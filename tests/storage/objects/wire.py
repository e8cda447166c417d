"""HTTP as the fake servers speak it: requests that were received, answers that are sent, a server with a thread each.

A server here is real: it listens on a port of 127.0.0.1 that the system picks, and speaks HTTP/1.1 with connections
that stay open. What it answers is the business of `fake_s3`, `fake_gs`, `fake_ais` and `fake_web`; what goes wrong,
that of `faults`.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl, unquote, urlsplit

STEP = 1 << 20  # bytes a read
ACCEPT_RANGES = {"Accept-Ranges": "bytes"}


class Received(NamedTuple):
    """Bytes that came, and their number, which stays when a server forgets them."""

    size: int
    data: bytes


class Request(NamedTuple):
    """A request, complete. Headers are in lower case, *path* is decoded, *target* is the request line's."""

    method: str
    target: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Received
    at: float = 0.0  # seconds, by a clock that only runs forward

    @property
    def start(self) -> int | None:
        """The first byte of the range that is asked for, if one is."""
        found = re.match(r"bytes=(\d+)-", self.headers.get("range", ""))
        return int(found[1]) if found else None


class Answer(NamedTuple):
    """What a server says."""

    status: int
    headers: dict[str, str]
    body: bytes | memoryview = b""


def ranged(request: Request, data: bytes, headers: dict[str, str]) -> Answer:
    """Return *data*, or the range of it that is asked for: 200, 206, or 416 with an empty body (RFC 9110, 14)."""
    headers = ACCEPT_RANGES | headers
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("range", ""))
    size = len(data)
    if not found or not (found[1] or found[2]):
        return Answer(200, headers, data)
    if found[1]:
        start, end = int(found[1]), min(int(found[2]) + 1 if found[2] else size, size)
    else:
        start, end = max(size - int(found[2]), 0), size
    if start >= size:
        return Answer(416, {"Content-Range": f"bytes */{size}"})
    return Answer(206, headers | {"Content-Range": f"bytes {start}-{end - 1}/{size}"}, memoryview(data)[start:end])


class Connection(BaseHTTPRequestHandler):
    """One connection: its requests one after the other."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else header and body, sent apart, wait for each other
    server: Wire
    _has_to_agree = False  # the client waits for 100 Continue, or for a final status, before it sends the body

    def handle_expect_100(self) -> bool:
        """Leave the answer to `agree`: a fault may be a final status before the body is read."""
        self._has_to_agree = True
        return True

    def agree(self) -> None:
        """Send 100 Continue to a client that waits for it."""
        if self._has_to_agree:
            self._has_to_agree = False
            self.send_response_only(100)
            self.end_headers()

    def exchange(self) -> None:
        """Receive the rest of a request, and let the server answer it."""
        split = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        query = dict(parse_qsl(split.query, keep_blank_values=True))
        request = Request(
            self.command, self.path, unquote(split.path), query, headers, Received(0, b""), time.monotonic()
        )
        self.server.exchange(self, request)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = exchange  # noqa: N815  # the library's names

    def receive(self, most: int | None = None) -> Received:
        """Return the body of the request, no more than *most* bytes."""
        parts: list[bytes] = []
        size = 0
        for data in self._body():
            size += len(data)
            parts.append(data)
            if most is not None and size >= most:
                break
        return Received(size, b"".join(parts))

    def _body(self) -> Iterator[bytes]:
        self.agree()
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while length := int(self.rfile.readline(), 16):
                yield self.rfile.read(length)
                self.rfile.readline()
            self.rfile.readline()
            return
        missing = int(self.headers.get("Content-Length") or 0)
        while missing:
            data = self.rfile.read(min(missing, STEP))
            if not data:
                raise ConnectionError("the request was cut")
            missing -= len(data)
            yield data

    def send(self, answer: Answer) -> None:
        """Send *answer* as it should be."""
        self.begin(answer, {"Content-Length": str(len(answer.body))})
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def begin(self, answer: Answer, framing: dict[str, str]) -> None:
        """Send status and headers; *framing* says how the body ends, unless *answer* has such a header itself."""
        self._has_to_agree = False
        self.send_response(answer.status)
        for name, value in (framing | answer.headers).items():
            self.send_header(name, value)
        self.end_headers()

    def cut(self, reset: bool = False) -> None:
        """End the connection, as a network that fails does: with a FIN, or a RST."""
        self.close_connection = True
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.connection.close()
        else:
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class Wire(ThreadingHTTPServer):
    """A server of such connections; a context manager, which runs it in a thread and leaves nothing open."""

    request_queue_size = 128
    daemon_threads = False  # so that `server_close` waits for them

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.base = f"http://127.0.0.1:{self.server_port}"
        self.errors: list[BaseException] = []  # of the server itself: a test that finds one here has found a bug here
        self.connections = 0  # so far
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()

    def exchange(self, connection: Connection, request: Request) -> None:
        """Receive the body of *request*, and answer."""
        connection.send(self.answer(request._replace(body=connection.receive())))

    def answer(self, request: Request) -> Answer:
        """Return the answer to *request*."""
        raise NotImplementedError

    def process_request(self, request: Any, client_address: Any) -> None:
        """Take a new connection."""
        with self._lock:
            self.connections += 1
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Let a connection go."""
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep what went wrong here; that a client hangs up is its business."""
        import sys

        error = sys.exception() if sys.version_info >= (3, 12) else sys.exc_info()[1]
        if error is not None and not isinstance(error, OSError):
            self.errors.append(error)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        with self._lock:
            for connection in self._open:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # the other side was faster
        self.server_close()
