"""The servers of the tests: other people's, and ours where there are none. Each has a port that the system picks.

Those of other people run as processes, which end when their stdin does, so that nothing of them outlives a test run,
however that ends. By hand:

    python -m tests.storage.objects.servers s3        # moto
    python -m tests.storage.objects.servers gs        # gcp-storage-emulator
    python -m tests.storage.objects.servers http DIR  # nginx: ranges, ETag, PUT into the directory
    python -m tests.storage.objects.servers plain DIR # Python's http.server: no ranges, no ETag, no PUT
    python -m tests.storage.objects.servers ais       # our own AIStore

Each prints the URL of the server, then what to put into the environment of commands, and runs until its stdin ends
(Ctrl-D). s3, gs and ais have a bucket called `bucket`. The tests reach them through `sites`.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.shared import shared
from tests.storage.objects import fake_ais
from tests.storage.objects.memory import Bucket
from tests.storage.objects.wire import Answer, Request, Wire

ROOT = Path(__file__).parents[3]
NGINX = shutil.which("nginx", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))
CONFIGURATION = """\
daemon off;
master_process off;
pid {place}/pid;
error_log {place}/errors;
events {{ worker_connections 512; }}
http {{
    access_log off;
    default_type application/octet-stream;
    client_max_body_size 0;
    client_body_temp_path {place}/body;
    proxy_temp_path {place}/proxy;
    fastcgi_temp_path {place}/fastcgi;
    uwsgi_temp_path {place}/uwsgi;
    scgi_temp_path {place}/scgi;
    sendfile on;
    server {{
        listen 127.0.0.1:{port} reuseport;
        root {files};
        location / {{ dav_methods PUT DELETE; create_full_put_path on; }}
    }}
}}
"""


def process(place: Path, *arguments: str) -> AbstractContextManager[str]:
    """Run this module with *arguments*, once for all who name the folder *place*; give the URL that it prints."""
    return shared(place, [sys.executable, "-m", "tests.storage.objects.servers", *arguments], ROOT)


@contextmanager
def moto() -> Iterator[str]:
    """Run moto, which plays S3 in memory; give its URL."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    yield "http://127.0.0.1:{1}".format(*server.get_host_and_port())
    server.stop()


@contextmanager
def emulator() -> Iterator[str]:
    """Run gcp-storage-emulator; give its URL."""
    from tests.storage.objects.emulator import serve

    with running(serve()) as url:
        yield url


@contextmanager
def nginx(files: str) -> Iterator[str]:
    """Run nginx over the directory *files*; give its URL."""
    import tempfile

    assert NGINX is not None
    with socket.socket() as reserved, tempfile.TemporaryDirectory() as place:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("127.0.0.1", 0))  # never listens, but keeps the port for a process of the same user
        port = reserved.getsockname()[1]
        configuration = Path(place, "conf")
        configuration.write_text(CONFIGURATION.format(place=place, port=port, files=os.path.abspath(files)))
        server = subprocess.Popen([NGINX, "-c", configuration, "-e", f"{place}/errors"], stdin=subprocess.DEVNULL)
        try:
            while server.poll() is None:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except ConnectionRefusedError:
                    threading.Event().wait(0.01)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait()


@contextmanager
def running(server: Any) -> Iterator[str]:
    """Run an HTTP server of the standard library in a thread; give its URL."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Quiet(SimpleHTTPRequestHandler):
    """Python's own web server, without its log."""

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class PlainServer(ThreadingHTTPServer):
    """A server whose clients may hang up without a word on stderr."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing."""


@contextmanager
def plain(files: str) -> Iterator[str]:
    """Run Python's http.server over the directory *files*: it ignores ranges; give its URL."""
    with running(PlainServer(("127.0.0.1", 0), partial(Quiet, directory=files))) as url:
        yield url


class Proxy(Wire):
    """A proxy of AIStore: it knows the buckets, asks for the *token* if there is one, and sends clients to a target."""

    def __init__(self, target: Target, token: str = "") -> None:
        super().__init__()
        self.buckets = target.buckets
        self.token = token
        self._target = target

    def answer(self, request: Request) -> Answer:
        """Answer, or redirect to the target: before a body could be of use to anybody."""
        if self.token and request.headers.get("authorization") != f"Bearer {self.token}":
            return fake_ais.refusal(request, 401, "missing or malformed token")
        if request.path.startswith("/v1/objects/"):
            return fake_ais.redirect(request, self._target.base)
        return fake_ais.answer(request, self.buckets)


class Target(Wire):
    """A target of AIStore, which has the objects, and serves whom the proxy sent."""

    def __init__(self) -> None:
        super().__init__()
        self.buckets: dict[str, Bucket] = {}

    def answer(self, request: Request) -> Answer:
        """Answer a request for an object: a range with status 200, as those of AIStore did until 2025."""
        if not fake_ais.is_redirected(request):
            return fake_ais.refusal(request, 400, "t[target1]: GET(obj) is expected to be redirected")
        answer = fake_ais.answer(request, self.buckets)
        return answer._replace(status=200) if answer.status == 206 else answer


@contextmanager
def aistore(token: str = "") -> Iterator[Proxy]:
    """Run a proxy and a target; give the proxy."""
    with Target() as target, Proxy(target, token) as proxy:
        yield proxy
    assert (target.errors, proxy.errors) == ([], [])


@contextmanager
def by_name(kind: str, *arguments: str) -> Iterator[str]:
    """Run the server *kind*; give its URL."""
    if kind == "ais":
        with aistore() as proxy:
            yield proxy.base
        return
    servers: dict[str, Callable[..., AbstractContextManager[str]]]
    servers = {"s3": moto, "gs": emulator, "http": nginx, "plain": plain}
    with servers[kind](*arguments) as url:
        yield url


if __name__ == "__main__":
    from tests.storage.objects.sites import create_bucket, environment

    with by_name(*sys.argv[1:]) as served:
        create_bucket(sys.argv[1], served, "bucket")
        lines = [served, *(f"export {name}={value}" for name, value in environment(sys.argv[1], served).items())]
        sys.stdout.write("\n".join([*lines, ""]))  # at once: whoever waits for the first line may read no more
        sys.stdout.flush()
        sys.stdin.read()
