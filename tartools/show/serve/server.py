"""The HTTP server of `tarshow --serve`: checks each request, and sends the answers of `routes`.

It is Python's own, with limits: of threads, of the size of a request, of the time that a connection may wait. Nothing
that comes from shards gets to the browser but as JSON, as a picture made here, or as bytes of a type chosen here.
"""

from __future__ import annotations

import json
import os
import pkgutil
import secrets
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tartools.errors import ChangedError, StorageError, TarToolsError
from tartools.samples.account import Account
from tartools.shards import shardrows
from tartools.shards.reading import Reading
from tartools.show.serve.access import SAFE_HEADERS, Access, RefusedError
from tartools.show.serve.pagepayloads import NoPictureError
from tartools.show.serve.routes import Answer, NotThereError, RangeError, Routes
from tartools.show.serve.rowindex import QuestionError, make_index
from tartools.show.serve.textfacts import TextFacts

ADDRESS = "127.0.0.1"
MAX_CONNECTIONS = 32  # connections that are answered at once; others wait
CONNECTION_SECONDS = 15  # that a connection may wait for the next bytes
MAX_BODY_BYTES = 8 << 20  # of a request
NO_BODY = (204, 304)  # statuses of answers without a body
PICTURE_PATHS = ("/api/thumbnail", "/api/heatmap")
PAGE, ICON = "page.html", "/favicon.ico"
PAGE_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}


def page_files() -> dict[str, tuple[str, bytes]]:
    """Return the files of the page: path in an address -> (Content-Type, content). The page itself has the path "/"."""
    files = {}
    for entry in resources.files("tartools.show.serve").iterdir():
        type_ = PAGE_TYPES.get(os.path.splitext(entry.name)[1])
        if type_ is not None:
            content = pkgutil.get_data("tartools.show.serve", entry.name)
            assert content is not None
            files["/" if entry.name == PAGE else f"/{entry.name}"] = (type_, content)
    return files


@contextmanager
def open_server(
    urls: Sequence[str], reading: Reading, facts: TextFacts, port: int, workers: tuple[int, int], account: Account
) -> Iterator[PageServer]:
    """Index the samples of *urls*; give a server of their page to the body of `with`, and close it at the end.

    The body calls its method serve_forever. *reading*: options with which samples are read. *facts*: the columns that
    shards, which have no table, get. *port*: on 127.0.0.1; 0: a free one. *workers*: (greatest number of processes that
    read shards, number of threads of DuckDB). *account*: gets progress and warnings.
    Raises: TarToolsError, also for inputs that are not in files or objects, and if the port is in use.
    """
    processes, threads = workers
    inputs = shardrows.row_inputs(urls, account, shardrows.Indexing(reading, processes, facts))
    with closing(make_index(inputs, account, reading.tmpdir, threads)) as index:
        account.progress.paused = True
        with closing(Routes(urls, inputs, index, reading)) as routes:
            server = PageServer(port, routes, account.say)
            try:
                yield server
            finally:
                server.server_close()


class PageServer(ThreadingHTTPServer):
    """The server of the page, on 127.0.0.1 and *port* (0: a free one). Its method serve_forever answers requests.

    `routes`: answers to requests, by path. `report(text)`: called with the traceback of a bug. `files`: of the page, as
    `page_files` returns them. `access`: the check of requests. `picture_tag`: the ETag of all pictures, another one for
    each run. Raises: StorageError if the port can't be used.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, port: int, routes: Routes, report: Callable[[str], object]) -> None:
        self.routes = routes
        self.files = page_files()
        self.report = report
        self.access = Access()
        self.picture_tag = f'"{secrets.token_hex(8)}"'  # the ETag of all pictures: those of another run are not used
        self._turns = threading.BoundedSemaphore(MAX_CONNECTIONS)
        try:
            super().__init__((ADDRESS, port), PageHandler)
        except OSError as error:
            raise StorageError(f"port {port} can't be used: {error.strerror} (--port 0 takes a free one)") from None

    @property
    def samples(self) -> int:
        """The number of samples."""
        return self.routes.samples

    @property
    def address(self) -> str:
        """The address to open in a browser, with the token: http://127.0.0.1:PORT/?token=TOKEN."""
        return f"http://{ADDRESS}:{self.server_address[1]}/?token={self.access.token}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer the connection *request* in a thread, once fewer than 32 (MAX_CONNECTIONS) have one; wait for that."""
        while not self._turns.acquire(timeout=0.1):
            pass  # the main thread: signals come between two tries
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer the requests of one connection, then let another one in."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._turns.release()

    def server_close(self) -> None:
        """Take no further connection. Answers under way may fail, since files are closed: that is not reported."""
        self.report = lambda text: None
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore an exception that ended a connection without an answer: the browser has closed it."""


class PageHandler(BaseHTTPRequestHandler):
    """Reads the requests of one connection, and answers them one after the other, by the `routes` of its server."""

    protocol_version = "HTTP/1.1"
    server_version = "tarshow"
    sys_version = ""
    timeout = CONNECTION_SECONDS
    disable_nagle_algorithm = True  # else a body waits 40 ms for the acknowledgement of its headers
    wbufsize = 1 << 16  # bytes
    server: PageServer

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing: stderr is for the person's own errors."""

    def do_GET(self) -> None:
        """Answer a request for a file of the page, a picture, a payload or JSON."""
        self._answer(self._get)

    def do_HEAD(self) -> None:
        """Answer as GET, without the body; but the printed address gets no redirect."""
        self._answer(self._get)

    def do_POST(self) -> None:
        """Answer a query or a question about chosen samples: a JSON object of up to 8 MiB (MAX_BODY_BYTES)."""
        self._answer(self._post)

    def _answer(self, respond: Any) -> None:
        """Check that the request may be answered, then call `respond(path, fields)`, which sends the answer.

        *fields*: the query of the address, by name, without empty values; of a repeated name the last one. A request
        that may not be answered gets the status 403 and the reason as text. A GET of the printed address, with its
        token, gets the cookie and a redirect to /. Any other error of *respond* is sent as JSON (`_send_error`). If the
        connection is lost, or waits too long, nothing is sent, and it is closed.
        """
        address = urlsplit(self.path)
        fields = dict(parse_qsl(address.query))
        try:
            is_opening = self.command == "GET" and address.path == "/" and "token" in fields
            self.server.access.check(self.headers, fields.get("token", ""), is_opening)  # type: ignore[arg-type]
            if is_opening:
                self._send(302, "text/plain", b"", {"Location": "/", "Set-Cookie": self.server.access.cookie_header()})
                return
            respond(address.path, fields)
        except RefusedError as error:
            self.close_connection = True  # a body may follow
            self._send(403, "text/plain; charset=utf-8", f"{error}\n".encode())
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except Exception as error:
            self._send_error(error)

    def _send_error(self, error: Exception) -> None:
        """Send the message of *error* as {"error": text}, with the status of its class.

        404: NotThereError, NoPictureError, KeyError (no such field); 416: RangeError; 400: QuestionError; 409:
        ChangedError; 502: other TarToolsErrors; 503: MemoryError. Any other class is a bug: it gets the status 500, and
        the server reports its traceback.
        """
        statuses: list[tuple[type[Exception], int]] = [
            (NotThereError, 404),
            (NoPictureError, 404),
            (KeyError, 404),
            (RangeError, 416),
            (QuestionError, 400),
            (ChangedError, 409),
            (TarToolsError, 502),
            (MemoryError, 503),
        ]
        status = next((status for kind, status in statuses if isinstance(error, kind)), 500)
        text = str(error)
        if isinstance(error, KeyError):
            text = f"the sample has no field {error.args[0]!r}"
        elif status == 500:
            self.server.report("".join(traceback.format_exception(error)))
            text = f"this is a bug in tarshow: {type(error).__name__}: {error}"
        headers = {"Content-Range": f"bytes */{error.size}"} if isinstance(error, RangeError) else {}
        self._send_json({"error": text or "there is not enough memory"}, status, headers)

    def _get(self, path: str, fields: Mapping[str, str]) -> None:
        if path in self.server.files:
            type_, content = self.server.files[path]
            self._send(200, type_, content)
            return
        if path == ICON:
            self._begin(204, "image/png", None, {})
            return
        route = self.server.routes.get.get(path)
        if route is None:
            raise NotThereError(f"there is no {path}")
        if path in PICTURE_PATHS and self.headers.get("If-None-Match") == self.server.picture_tag:
            self._begin(304, "image/jpeg", 0, {})
            return
        self._send_answer(route(fields, self.headers))  # type: ignore[arg-type]

    def _post(self, path: str, fields: Mapping[str, str]) -> None:
        route = self.server.routes.post.get(path)
        size = self.headers.get("Content-Length", "")
        if not (size.isascii() and size.isdigit()) or int(size) > MAX_BODY_BYTES:
            self.close_connection = True
            raise QuestionError(f"a request has a Content-Length of up to {MAX_BODY_BYTES} bytes")
        body = self.rfile.read(int(size))
        if self.headers.get_content_type() != "application/json":
            raise QuestionError("a request has the Content-Type application/json")
        if route is None:
            raise NotThereError(f"there is no {path}")
        try:
            request = json.loads(body)
        except (ValueError, RecursionError):
            request = None
        if not isinstance(request, dict):
            raise QuestionError("a request is a JSON object")
        self._send_answer(route(request))

    def _send_answer(self, answer: Any) -> None:
        """Send *answer*: an `Answer`, or any other value as JSON. A picture gets the server's `picture_tag` as ETag."""
        if not isinstance(answer, Answer):
            self._send_json(answer)
            return
        headers = dict(answer.headers)
        if answer.is_picture:
            headers |= {"Cache-Control": "private, no-cache", "ETag": self.server.picture_tag}
        self._begin(answer.status, answer.type, answer.size, headers)
        self._send_parts(answer.body, chunked=answer.size is None)

    def _send_parts(self, parts: Iterator[bytes], *, chunked: bool) -> None:
        """Send *parts* as the body; nothing for HEAD. *chunked*: as chunks, for an unknown total size (RFC 9112, 7.1).

        If they fail, the connection ends before the body is whole, so that the browser notices.
        """
        if self.command == "HEAD":
            return
        try:
            for part in parts:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part) if chunked else part)
            if chunked:
                self.wfile.write(b"0\r\n\r\n")
        except Exception:
            self.close_connection = True

    def _send_json(self, value: object, status: int = 200, headers: Mapping[str, str] = {}) -> None:
        text = json.dumps(value, ensure_ascii=True, allow_nan=False)
        self._send(status, "application/json", text.encode(), headers)

    def _send(self, status: int, type_: str, body: bytes, headers: Mapping[str, str] = {}) -> None:
        self._begin(status, type_, len(body), headers)
        if self.command != "HEAD":
            self.wfile.write(body)

    def _begin(self, status: int, type_: str, size: int | None, headers: Mapping[str, str]) -> None:
        """Send the status and the headers of an answer of *size* bytes; None: the size is unknown, the body chunked.

        The statuses NO_BODY have neither size nor chunks. *type_*: its Content-Type. *headers*: headers besides those
        of all answers, or in place of one of these.
        """
        self.send_response(status)
        length = {"Transfer-Encoding": "chunked"} if size is None else {"Content-Length": str(size)}
        length = {} if status in NO_BODY else length
        caching = {"Cache-Control": "no-store"}
        for name, value in {**SAFE_HEADERS, **caching, "Content-Type": type_, **length, **headers}.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
