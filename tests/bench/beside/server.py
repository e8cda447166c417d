"""A web server that is some milliseconds away and counts requests."""

from __future__ import annotations

import time
from email.utils import formatdate
from pathlib import Path

from tests.storage.objects.wire import Answer, Connection, Request, Wire, ranged


class FarFiles(Wire):
    """Files of *folder*, *delay* seconds away: each new connection costs that once, and so does each request."""

    request_queue_size = 512

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.daemon_threads = True
        self.delay = 0.0
        self.requests = 0
        self._folder = folder

    def exchange(self, connection: Connection, request: Request) -> None:
        """Answer after the delay."""
        with self._lock:
            self.requests += 1
        time.sleep(self.delay * (1 if hasattr(connection, "is_open") else 2))
        connection.is_open = True  # type: ignore[attr-defined]
        super().exchange(connection, request)

    def answer(self, request: Request) -> Answer:
        """Answer with a file, or a range of it."""
        path = self._folder / request.path.lstrip("/")
        if request.method not in ("GET", "HEAD"):
            return Answer(405, {})
        if ".." in path.parts or not path.is_file():
            return Answer(404, {})
        about = path.stat()
        tag = f'"{about.st_mtime_ns:x}-{about.st_size:x}"'
        return ranged(
            request, path.read_bytes(), {"ETag": tag, "Last-Modified": formatdate(about.st_mtime, usegmt=True)}
        )
