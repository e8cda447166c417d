"""A small store for measurements: the files below a folder as objects of gs://bench/, each answered after a delay.

It answers what `objects.gs` asks to list and to read, as Cloud Storage's JSON API does, on 127.0.0.1 and without
credentials. Nothing can be written. One process and one thread answer all connections; many requests wait side by side.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from bisect import bisect_left
from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

BUCKET = "bench"
LONGEST = 1 << 16  # bytes of the head of a request


class _File(NamedTuple):
    """The file of an object: its *path*, *size*, and time of its last change in ns, which is its generation."""

    path: str
    size: int
    changed: int


def listening() -> socket.socket:
    """Return a socket of 127.0.0.1 for `serve`, at a port that is free."""
    return socket.create_server(("127.0.0.1", 0), backlog=512)


def serve(made: socket.socket, folder: str, delay: float, watched: int) -> None:
    """Answer what comes to the socket *made* with the files below *folder*, each request *delay* seconds later.

    Ends when *watched*, the end of a pipe that is read, has no writer any more.
    """
    asyncio.run(_serve(made, _Store(folder, delay), watched))


async def _serve(made: socket.socket, store: _Store, watched: int) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(watched, ended.set)
    server = await asyncio.start_server(store.answer, sock=made, limit=LONGEST)
    await ended.wait()
    server.close()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


class _Store:
    """The files below *folder* as objects."""

    def __init__(self, folder: str, delay: float) -> None:
        self._folder, self._delay = folder, delay

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        with closing(writer), suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                await asyncio.sleep(self._delay)
                address = urlsplit(head.split(" ", 2)[1])
                names = [unquote(part, errors="surrogateescape") for part in address.path.split("/")]
                if names[-1] == "o":
                    status, about, file = self._page(parse_qs(address.query))
                else:
                    status, about, file = self._object(names, head)
                await _send(writer, status, about, file)

    def _page(self, query: dict[str, list[str]]) -> tuple[str, Any, None]:
        """Return a page of the listing."""
        prefix, after = query.get("prefix", [""])[0], query.get("pageToken", query.get("startOffset", [""]))[0]
        names = sorted(name for name in _names(self._folder) if name.startswith(prefix))
        first = bisect_left(names, after)
        last = first + int(query.get("maxResults", ["1000"])[0])
        found: dict[str, Any] = {"items": [_about(name, self._file(name)) for name in names[first:last]]}
        if names[last:]:
            found["nextPageToken"] = names[last]
        return "200 OK", found, None

    def _object(self, names: list[str], head: str) -> tuple[str, Any, tuple[_File, int, int] | None]:
        """Return the file that is asked for, or what is known about it."""
        try:
            file = self._file(names[-1])
        except OSError:
            return "404 Not Found", {"error": {"code": 404, "message": "No such object"}}, None
        if "download" not in names:
            return "200 OK", _about(names[-1], file), None
        asked = re.search(r"\r\nrange: *bytes=(\d+)-(\d*)", head, re.IGNORECASE)
        begin, end = (int(asked[1]), int(asked[2] or file.size) + 1) if asked else (0, file.size)
        end = min(end, file.size)
        if asked and begin >= file.size:
            return "416 Range Not Satisfiable", file, (file, 0, 0)
        return ("206 Partial Content" if asked else "200 OK"), file, (file, begin, end)

    def _file(self, name: str) -> _File:
        """Return the file of the object *name*. Raises: FileNotFoundError, also for a name that leads elsewhere."""
        parts = name.split("/")
        if "\0" in name or not {"", ".", ".."}.isdisjoint(parts):
            raise FileNotFoundError(name)
        path = os.path.join(self._folder, *parts)
        found = os.stat(path)
        return _File(path, found.st_size, found.st_mtime_ns)


async def _send(writer: asyncio.StreamWriter, status: str, about: Any, part: tuple[_File, int, int] | None) -> None:
    """Send an answer: JSON *about* something, or *part* of a file."""
    lines = [f"HTTP/1.1 {status}", f"Date: {datetime.now(UTC):%a, %d %b %Y %H:%M:%S GMT}"]
    if part is None:
        body = json.dumps(about).encode()
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        writer.write("\r\n".join((*lines, "", "")).encode() + body)
        await writer.drain()
        return
    file, begin, end = part
    place = f"{begin}-{end - 1}" if end > begin else "*"
    lines += [f"Content-Length: {end - begin}", f"x-goog-generation: {file.changed}"]
    if not status.startswith("200"):
        lines.append(f"Content-Range: bytes {place}/{file.size}")
    writer.write("\r\n".join((*lines, "", "")).encode())
    await writer.drain()
    if end > begin:
        with open(file.path, "rb") as source:
            await asyncio.get_running_loop().sendfile(writer.transport, source, begin, end - begin)


def _names(folder: str) -> list[str]:
    """Return the names of the files below *folder*, relative to it."""
    return [
        os.path.relpath(os.path.join(where, name), folder).replace(os.sep, "/")
        for where, _, names in os.walk(folder)
        for name in names
    ]


def _about(name: str, file: _File) -> dict[str, str]:
    changed = datetime.fromtimestamp(file.changed // 10**9, UTC).isoformat()
    return {"name": name, "size": str(file.size), "updated": changed, "generation": str(file.changed)}
