"""A server that speaks S3, Google's JSON API, Azure, AIStore, the hub's and plain HTTP over one set of objects.

It fails as scripted:

    with FaultServer() as server:
        server.objects["a.tar"] = data
        server.faults = [Fault("a.tar", start=8 << 20, cut=1000, reset=True), Fault(method="PUT", status=503, times=2)]
        run("tarcat", server.url("s3", "a.tar"), env=server.env)
        assert [request.start for request in server.requests] == [0, 8 << 20, (8 << 20) + 1000]

Each object `NAME` is `s3://b/NAME`, `gs://b/NAME`, `ais://b/NAME`, `azure://b/NAME`, `http://127.0.0.1:PORT/b/NAME` and
`hf://datasets/org/b@COMMIT/NAME`; `b` is the only bucket. Of the faults that are for a request, the first that is not
used up plays.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.storage.objects import fake_ais, fake_azure, fake_gs, fake_hf, fake_s3, fake_web
from tests.storage.objects.sites import environment
from tests.storage.objects.wire import Answer, Connection, Received, Request, Wire

SCHEMES = ("s3", "gs", "ais", "http", "azure")  # of stores whose objects can be replaced under their URLs
READ = (*SCHEMES, "hf")
FAKES: dict[str, Any] = {
    "s3": fake_s3,
    "gs": fake_gs,
    "ais": fake_ais,
    "http": fake_web,
    "azure": fake_azure,
    "hf": fake_hf,
}
DATA_SET = "org/b"


@dataclass
class Fault:
    """What goes wrong, and with which requests: first the choice, then what happens to those that fit."""

    name: str = ""  # of the object; "" is any, or none
    method: str = ""
    has: str = ""  # a part of the request line: "list-type", "uploadId", "alt=media"
    header: str = ""  # a header of the request, in small letters: "if-none-match"
    start: int | None = None  # the first byte of the range that is asked for
    skip: int = 0  # requests that fit and are spared, before the first that is not
    times: int | None = 1  # requests that it happens to; None: all
    proxy: bool = False  # requests to the proxy of AIStore, or the hub, that are redirected, instead of all others
    played: int = 0  # how often it has happened

    # before it is answered
    silent: bool = False  # nothing is answered, not even read, until `release`
    dropped: bool = False  # the connection is reset instead of an answer; nothing happens
    receive: int | None = None  # the connection is reset after so many bytes of the body of the request
    taken: int | None = None  # of the body of the request, only so many bytes are kept
    lost: bool = False  # all is done that was asked for, but the connection is reset instead of an answer
    replace: bytes | None = None  # the object has these bytes from now on
    delete: bool = False  # the object is not there from now on
    no_range: bool = False  # a range that is asked for is ignored
    no_match: bool = False  # so is a condition: If-Match, If-None-Match, generations
    no_encoding: bool = False  # the body is stored as it came, whatever Content-Encoding says
    broken: bool = False  # other bytes are stored than were sent, as many of them

    late: bool = False  # all is done that was asked for, but nothing is answered until `release`

    # another answer
    status: int | None = None  # with an error body as the protocol has it
    code: str = ""  # in that body: SlowDown, NoSuchBucket, AccessDenied, notFound
    headers: dict[str, str] | None = None  # added to the answer, or instead of its own; "" takes one away
    body: bytes | None = None  # instead of the answer's

    # another way to send it
    early: bool = False  # before the body of the request is read, which is then waited for, as HAProxy does
    framing: str = "length"  # how the end of the body is told: length, chunked, close (not at all)
    cut: int | None = None  # the connection ends after so many bytes of the body,
    reset: bool = False  # by a RST, not a FIN;
    stall: bool = False  # or does not end, but nothing comes until `release`
    trickle: tuple[int, float] | None = None  # so many bytes at a time, so many seconds between

    def fits(self, request: Request, name: str, proxy: bool) -> bool:
        """Tell whether this is about *request*, which is for the object *name*; count it if so."""
        if (
            self.times == self.played
            or self.proxy != proxy
            or self.name not in ("", name)
            or self.method not in ("", request.method)
            or self.has not in request.target
            or (self.header and self.header not in request.headers)
            or self.start not in (None, request.start)
        ):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.played += 1
        return True


class FaultServer(Wire):
    """The server. `requests` are those that were received, with their bodies' sizes; redirects are not among them."""

    def __init__(self) -> None:
        super().__init__()
        self.bucket = fake_hf.Repository()
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self._released = threading.Event()
        self._choosing = threading.Lock()

    def encrypt(self, certificate: Path) -> None:
        """Speak TLS, by the key and certificate in the file *certificate*."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.base = f"https://127.0.0.1:{self.server_port}"

    @property
    def objects(self) -> dict[str, bytes]:
        """The objects; other bytes are another version."""
        return self.bucket.objects

    @property
    def pending(self) -> int:
        """The number of uploads that were begun, and neither completed nor dropped."""
        return self.bucket.pending

    @property
    def env(self) -> dict[str, str]:
        """What commands need in their environment."""
        return {name: value for scheme in READ for name, value in environment(scheme, self.base).items()}

    def url(self, scheme: str, name: str) -> str:
        """Return the URL of the object *name* in *scheme*."""
        if scheme == "hf":
            return f"hf://datasets/{DATA_SET}@{fake_hf.commit(self.bucket)}/{name}"  # as messages have it
        return f"{self.base}/b/{quote(name)}" if scheme == "http" else f"{scheme}://b/{name}"

    def asked(self, method: str = "", name: str = "") -> list[Request]:
        """Return the requests so far by *method* for *name*, "" being any."""
        return [r for r in self.requests if method in ("", r.method) and name in ("", name_of(r))]

    def release(self) -> None:
        """Let all connections go that say nothing, now and later."""
        self._released.set()

    def __exit__(self, *exception: object) -> None:
        self.release()
        super().__exit__(*exception)

    def exchange(self, connection: Connection, request: Request) -> None:
        """Answer *request*, or do what the first fault says that is for it."""
        name = name_of(request)
        proxy = is_for_proxy(request)
        with self._choosing:
            fault = next((fault for fault in self.faults if fault.fits(request, name, proxy)), None)
            place = len(self.requests)
            if fault is not None or not proxy:
                self.requests.append(request)
        if fault is None and proxy:
            connection.send(self._of_proxy(request._replace(body=connection.receive())))
            return
        fault = fault or Fault()
        if fault.silent or fault.dropped or fault.receive is not None:
            self._hang_up(connection, fault)
            return
        if fault.early:
            connection.send(self._answer(request, fault, name))
            connection.receive()
            return
        received = connection.receive()
        with self._choosing:
            self.requests[place] = request._replace(body=received._replace(data=b""))
        if fault.taken is not None:
            received = Received(min(fault.taken, received.size), received.data[: fault.taken])
        answer = self._answer(request._replace(body=received), fault, name)
        if fault.late:
            self._released.wait()
        if fault.lost:
            if fault.stall:
                self._released.wait()
            connection.cut(reset=True)
        elif fault.framing == "length" and fault.cut is None and not fault.stall and fault.trickle is None:
            connection.send(answer)
        else:
            self._send(connection, answer, fault)

    def _of_proxy(self, request: Request) -> Answer:
        """Return what those answer that send clients on to where the objects are."""
        if scheme_of(request) == "hf":
            hub = self.base.replace("127.0.0.1", "localhost")
            return fake_hf.answer(request, {DATA_SET: self.bucket}, fake_hf.Servers(hub, self.base))
        return fake_ais.redirect(request, self.base)

    def _hang_up(self, connection: Connection, fault: Fault) -> None:
        """End the connection without an answer, at once or later."""
        connection.agree()
        if fault.silent:
            self._released.wait()
        elif fault.receive is not None:
            connection.receive(most=fault.receive)
        connection.cut(reset=True)

    def _answer(self, request: Request, fault: Fault, name: str) -> Answer:
        """Return what is answered; do before what the protocol says."""
        with self.bucket.lock:
            if fault.replace is not None:
                self.objects[name] = fault.replace
            if fault.delete:
                self.objects.pop(name, None)
        kept = request.headers
        if fault.no_range:
            kept = {k: v for k, v in kept.items() if k != "range"}
        if fault.no_encoding:
            kept = {k: v for k, v in kept.items() if k != "content-encoding"}
        if fault.broken:
            kept = {k: v for k, v in kept.items() if k != "content-md5"}
            request = request._replace(body=Received(request.body.size, request.body.data[::-1]))
        if fault.no_match:
            kept = {k: v for k, v in kept.items() if k not in ("if-match", "if-none-match")}
            query = {k: v for k, v in request.query.items() if "eneration" not in k}
            request = request._replace(query=query)
        request = request._replace(headers=kept)
        fake = FAKES[scheme_of(request)]
        if fault.status is not None:
            answer: Answer = fake.refusal(request, fault.status, fault.code)
        elif is_for_proxy(request) or fake is fake_hf:
            answer = self._of_proxy(request)
        else:
            answer = fake.answer(request, {"b": self.bucket})
        headers = {k: v for k, v in (answer.headers | (fault.headers or {})).items() if v}
        return answer._replace(headers=headers, body=answer.body if fault.body is None else fault.body)

    def _send(self, connection: Connection, answer: Answer, fault: Fault) -> None:
        """Send *answer* in the way of *fault*."""
        framing = {
            "length": {"Content-Length": str(len(answer.body))},
            "chunked": {"Transfer-Encoding": "chunked"},
            "close": {"Connection": "close"},
        }[fault.framing]
        connection.begin(answer, framing)
        body = memoryview(b"" if connection.command == "HEAD" else answer.body)[: fault.cut]
        for data in _pieces(body, fault.trickle, self._released):
            connection.wfile.write(b"%x\r\n" % len(data) + data + b"\r\n" if fault.framing == "chunked" else data)
        if fault.stall:
            self._released.wait()
        whole = fault.cut is None or fault.cut > len(answer.body)  # so a connection with a short answer is used again
        if not whole or fault.stall or fault.framing == "close":
            connection.cut(fault.reset)
        elif fault.framing == "chunked":
            connection.wfile.write(b"0\r\n\r\n")


def _pieces(body: memoryview, trickle: tuple[int, float] | None, released: threading.Event) -> Iterator[memoryview]:
    """Yield *body* in pieces, all at once if it does not *trickle*."""
    step, pause = trickle or (1 << 20, 0.0)
    for start in range(0, len(body), step):
        if start and pause:
            released.wait(pause)
        yield body[start : start + step]


def scheme_of(request: Request) -> str:
    """Return whose protocol *request* speaks."""
    if fake_hf.is_ours(request):
        return "hf"
    if fake_azure.is_ours(request):
        return "azure"
    if "/storage/v1/b" in request.path:
        return "gs"
    if request.path.startswith("/v1/"):
        return "ais"
    return "s3" if "x-amz-content-sha256" in request.headers else "http"


def name_of(request: Request) -> str:
    """Return the name of the object that *request* is for, "" if it is for none."""
    scheme = scheme_of(request)
    if scheme in ("gs", "ais", "hf"):
        name: str = FAKES[scheme].name_of(request)
        return name
    return request.path[1:].partition("/")[2]


def is_for_proxy(request: Request) -> bool:
    """Tell whether *request* is one that a proxy of AIStore redirects, or one to the hub and not to its store."""
    if fake_hf.is_ours(request):
        return not request.path.startswith(fake_hf.STORE)
    return request.path.startswith("/v1/objects/") and not fake_ais.is_redirected(request)
