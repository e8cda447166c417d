"""The process that measures for tarbench: a line of JSON with what to do on stdin, a line with what came on stdout.

    {"do": "serve", "folder": ..., "delay": 0.005}    the files of the folder are objects of gs://bench/ from now on
    {"do": "index", "url": ..., "table": ...}         makes the table of a shard
    {"do": "row", ...}                                measures a row, see `forms.Row`

Each but the first is done by a fork, so that a row begins with the same memory, threads and connections.
"""

from __future__ import annotations

import json
import os
import socket
import traceback
import warnings
from importlib import import_module
from typing import Any

from PIL import Image

from tartools import errors, storage
from tartools.errors import TarToolsError
from tartools.shards.forks import Fork, write_all
from tartools.storage import serving
from tartools.storage.objects import object_at
from tartools.storage.streams import stream_file
from tartools.storage.url import Url
from tartools.train.bench.forms import Row
from tartools.train.bench.passes import measured
from tartools.train.tables import table_of


def main() -> None:
    """Answer the lines on stdin until it ends."""
    warnings.simplefilter("ignore")  # of torch, about what users of it choose
    _load()
    server: Fork | None = None
    with stream_file(storage.open_read("-"), "-") as lines:
        for line in lines:
            task = json.loads(line)
            kind = task.pop("do")
            if kind == "serve":
                server, answer = _served(**task)
            else:
                answer = _forked(kind, task)
            try:
                write_all(1, memoryview(json.dumps(answer).encode() + b"\n"))
            except BrokenPipeError:  # tarbench was killed
                break
    if server is not None:
        server.close()


def _load() -> None:
    """Load what rows use when they begin, so that its time is not theirs."""
    import_module("pyarrow.parquet")
    Image.init()


def _served(folder: str, delay: float) -> tuple[Fork, dict[str, Any]]:
    """Start the server, which ends with this process; what is forked from now on finds it."""
    made = serving.listening()
    watched, _ = os.pipe()
    child = Fork(lambda _: serving.serve(made, folder, delay, watched), [made.fileno(), watched])
    os.environ["STORAGE_EMULATOR_HOST"] = _address(made)
    made.close()
    return child, {"found": {}}


def _address(made: socket.socket) -> str:
    host, port = made.getsockname()
    return f"http://{host}:{port}"


def _forked(kind: str, task: dict[str, Any]) -> dict[str, Any]:
    """Return what a fork answers. What requests need is imported before, so that its time is not that of the row."""
    for url in task.get("urls", [task.get("url", "")]):
        if not Url(url).is_local:
            object_at(f"{url}x" if url.endswith("/") else url)
    child = Fork(lambda pipe: write_all(pipe, memoryview(json.dumps(_done(kind, task)).encode())))
    try:
        answer = child.pipe.readall()
        child.end()
    finally:
        child.close()
    if not answer:
        return {"bug": f"the process ended with status {child.status}"}
    found: dict[str, Any] = json.loads(answer)
    return found


def _done(kind: str, task: dict[str, Any]) -> dict[str, Any]:
    """Do the *task*, and return what came of it."""
    try:
        if kind == "index":
            table_of(task["url"], task["table"])
            return {"found": {}}
        return {"found": measured(Row(**task))}
    except TarToolsError as error:
        return {
            "error": type(error).__name__ if hasattr(errors, type(error).__name__) else "StorageError",
            "message": error.message,
            "url": error.url,
            "offset": error.offset,
        }
    except Exception:
        return {"bug": traceback.format_exc()}


if __name__ == "__main__":
    main()
