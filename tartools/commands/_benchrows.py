"""Which rows tarbench measures, and the process that measures them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from tartools import errors
from tartools.commands._benchforms import ENCODED, LOOSE, RAW, TABLE, TAR, ZIP
from tartools.errors import StorageError, TarToolsError
from tartools.storage.children import Child

ORDERS: dict[str, tuple[str | None, ...]] = {LOOSE: ("global",), ZIP: ("global",), TAR: (None,)}
ORDERS[TABLE] = (None, "blocks", "global")


class Place(NamedTuple):
    """Where samples are, in one *form*: at *urls*; the local *files* that hold them; so many *samples*."""

    form: str
    stored: str
    urls: list[str]
    files: list[str]
    samples: int


class Wanted(NamedTuple):
    """How each place is measured. *far*: requests are made, of a server."""

    workers: Sequence[int]
    batch: int
    seconds: float
    passes: int
    cold: bool
    far: bool


def rows(places: Sequence[Place], wanted: Wanted) -> list[dict[str, Any]]:
    """Return the rows of *places*: each in its orders, with each number of workers; of objects also one at a time."""
    return [
        row_of(place, order, at_once, workers, wanted)
        for place in places
        for order in (ORDERS[place.form] if place.stored == ENCODED or place.form != TABLE else ("global",))
        for at_once in requests(place, wanted.far)
        for workers in wanted.workers
    ]


def row_of(place: Place, order: str | None, at_once: int, workers: int, wanted: Wanted) -> dict[str, Any]:
    """Return one row, with the task for the process that measures."""
    return {
        "name": name_of(place, order, at_once, wanted.far),
        "form": place.form,
        "stored": place.stored,
        "order": {None: "in order", "global": "shuffled"}.get(order, order),
        "workers": workers,
        "requests": at_once if wanted.far else None,
        "task": {
            "do": "row",
            "form": place.form,
            "urls": place.urls,
            "order": order,
            "workers": workers,
            "at_once": at_once,
            "batch": wanted.batch,
            "samples": place.samples,
            "seconds": wanted.seconds,
            "passes": wanted.passes,
            "cold": wanted.cold,
            "files": place.files,
            "probed": workers == 0,
        },
    }


def requests(place: Place, far: bool) -> list[int]:
    """Return how many requests are made side by side, in each of the rows of *place*."""
    if not far:
        return [1]
    from tartools.storage.contents import requests_at_once

    most = requests_at_once()
    if place.form == LOOSE:
        return [1, most] if place.stored == ENCODED else [most]
    return [1] if place.form == TAR else [min(most, 32)]


def name_of(place: Place, order: str | None, at_once: int, far: bool) -> str:
    """Return what a row is called."""
    if place.form == LOOSE:
        name = ("objects, one at a time" if at_once == 1 else f"objects, {at_once} at once") if far else "loose files"
    elif place.form == TABLE:
        name = {None: "table, in order", "blocks": "table, blocks", "global": "table, shuffled"}[order]
    else:
        name = {ZIP: "zip", TAR: "tar, in order"}[place.form]
    return name if place.stored == ENCODED else f"{name}, {RAW}"


class Measurer:
    """The process that measures. It ends with its stdin, and all that it has started with it."""

    def __init__(self) -> None:
        line = [sys.executable, "-m", "tartools.train.bench"]
        self._child = Child(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._held = b""

    def ask(self, **task: Any) -> dict[str, Any]:
        """Have it do *task*; return what it found. Raises: the TarToolsError that it met, with its URL."""
        assert self._child.stdin is not None
        data = memoryview(json.dumps(task).encode() + b"\n")
        with suppress(BrokenPipeError):
            while data:
                data = data[self._child.stdin.write(data) :]
        answer = json.loads(self._line() or b'{"bug": "the process that measures has ended"}')
        if "error" in answer:
            kind: type[TarToolsError] = getattr(errors, answer["error"], StorageError)
            raise kind(answer["message"], url=answer["url"], offset=answer["offset"])
        if "bug" in answer:
            raise RuntimeError(answer["bug"])
        found: dict[str, Any] = answer["found"]
        return found

    def _line(self) -> bytes:
        """Return the next line of what it says; b"" if it has ended."""
        assert self._child.stdout is not None
        fd = self._child.stdout.fileno()
        while b"\n" not in self._held:
            data = os.read(fd, 1 << 16)
            if not data:
                return b""
            self._held += data
        line, _, self._held = self._held.partition(b"\n")
        return line

    def close(self) -> None:
        """End it."""
        self._child.end()
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                stream.close()


def served(path: str) -> str:
    """Return the URL of the file *path*, relative to the folder that is served."""
    from tartools.storage.serving import BUCKET

    return f"gs://{BUCKET}/{path}"
