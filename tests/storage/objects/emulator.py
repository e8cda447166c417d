"""gcp-storage-emulator, with what it lacks to be a stand-in for Google Cloud Storage.

It is an implementation of its own, and so a check of ours. Added are: the generation in the answers to downloads, and
its conditions; 416 behind the end; empty media uploads; dropping a resumable upload; how many of those there are; and a
thread for each connection, since a client that reads one object while it writes another waits for ever for a server
that does one thing at a time. `serve` changes the emulator for the whole process, which is to be one of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from typing import Any, NamedTuple

from gcp_storage_emulator.exceptions import NotFound  # type: ignore[import-untyped]
from gcp_storage_emulator.handlers import objects  # type: ignore[import-untyped]
from gcp_storage_emulator.storage import Storage  # type: ignore[import-untyped]

Answering = Callable[[Any, Any, Any], None]  # request, response, storage
lock = threading.Lock()
_download = objects.download


def download(request: Any, response: Any, storage: Any) -> None:
    """Answer a request for the bytes of an object."""
    try:
        found = storage.get_file_obj(request.params["bucket_name"], request.params["object_id"])
    except NotFound:
        found = {"generation": "0", "size": "0"}
    asked = request.get_header("range", "")
    start = asked.removeprefix("bytes=").partition("-")[0]
    generation = found["generation"]
    if request.query.get("generation", [generation])[0] != generation:
        response.status = HTTPStatus.NOT_FOUND
    elif request.query.get("ifGenerationMatch", [generation])[0] != generation:
        response.status = HTTPStatus.PRECONDITION_FAILED
    elif generation != "0" and start.isdigit() and int(start) >= int(found["size"]):
        response.status = HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
        response["Content-Range"] = f"bytes */{found['size']}"
    else:
        _download(request, response, storage)
        response["x-goog-generation"] = generation


class Dropped(NamedTuple):
    """A status that the standard library does not know."""

    value: int
    phrase: str


def drop(request: Any, response: Any, storage: Any) -> None:
    """Drop a resumable upload: 499, as the page on resumable uploads says."""
    identity = request.query["upload_id"][0]
    dropped = storage.resumable.pop(identity, None)
    response.status = HTTPStatus.NOT_FOUND if dropped is None else Dropped(499, "Client Closed Request")


def pending(request: Any, response: Any, storage: Any) -> None:
    """Tell how many resumable uploads to a bucket are under way."""
    bucket = request.query["bucket"][0]
    response.json(sum(identity.startswith(f"{bucket}:") for identity in storage.resumable))


class Quick(Storage):  # type: ignore[misc]
    """Objects in memory, without a list of all of them that is written whenever one changes."""

    def _write_config_to_file(self) -> None:
        """Write nothing: nobody reads it."""


def guarded(handler: Answering) -> Answering:
    """Return *handler*, which sees the objects alone; what is received and sent, is so at any time."""

    def answer(request: Any, response: Any, storage: Any) -> None:
        request.data  # noqa: B018  # is received when it is first asked for
        with lock:
            handler(request, response, storage)

    return answer


def serve() -> ThreadingHTTPServer:
    """Return the emulator, on a port that the system picks."""
    objects.download = download  # before the table of routes is made of it
    from gcp_storage_emulator import server, settings  # type: ignore[import-untyped]

    receive = server._read_data

    def read_data(handler: Any, query: dict[str, list[str]]) -> Any:
        """Return the body of a request: b"" if it is empty, where that is data."""
        found = receive(handler, query)
        return b"" if found is None and query.get("uploadType") == ["media"] else found

    server._read_data = read_data
    uploads = rf"^{settings.UPLOAD_API_ENDPOINT}/b/(?P<bucket_name>[-.\w]+)/o$"
    methods = {"POST": objects.insert, "PUT": objects.upload_partial, "DELETE": drop}
    routes = ((r"^/pending$", {"GET": pending}), (uploads, methods), *server.HANDLERS)
    server.HANDLERS = tuple(
        (path, {method: guarded(handlers[method]) for method in handlers}) for path, handlers in routes
    )
    return ThreadingHTTPServer(("127.0.0.1", 0), partial(server.RequestHandler, Quick(use_memory_fs=True)))
