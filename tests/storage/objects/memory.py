"""Buckets in memory: objects, their versions, uploads that are under way. All that a store is without its protocol."""

from __future__ import annotations

import itertools
import threading
import time
from hashlib import md5
from typing import NamedTuple

from tests.storage.objects.wire import Received

MAX_DIGEST_BYTES = 1 << 30  # larger objects have an ETag as objects in parts have


class Exists(Exception):  # noqa: N818  # an answer, not a failure
    """There is an object of that name, and it is not to be replaced."""


class Version(NamedTuple):
    """One state of an object. All but the ETag change whenever its bytes are put anew."""

    etag: str  # the MD5 of its bytes, if they are not too many
    generation: int
    modified: float  # seconds since 1970


class Upload:
    """An upload in parts, from its begin until it is completed or dropped."""

    def __init__(self, name: str, absent: bool) -> None:
        self.name = name
        self.absent = absent  # refused if there is such an object
        self.algorithm = ""  # of the checksums that all parts have
        self.parts: dict[int, Received] = {}
        self.done = False

    def joined(self, numbers: list[int]) -> Received:
        """Return the parts *numbers* as one."""
        parts = [self.parts[number] for number in numbers]
        return Received(sum(part.size for part in parts), b"".join(part.data for part in parts))


class Listing(NamedTuple):
    """A page of names, sorted by their bytes; of *prefixes*, where names are cut off behind a delimiter."""

    names: list[str]
    prefixes: list[str]
    next: str  # what the last one of this page was, if more follow


class Bucket:
    """Objects by name. `objects` may be written to from outside: other bytes are another version."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, Upload] = {}
        self.blocks: dict[str, Upload] = {}  # of Azure, by the name of the object, listed or not: nobody can drop them
        self.page = 1000  # entries
        self.lock = threading.RLock()
        self._versions: dict[str, tuple[bytes, Version]] = {}
        self._numbers = itertools.count(1700000000000001)

    def version(self, name: str) -> Version:
        """Return the version of the object *name*, which is there."""
        with self.lock:
            data = self.objects[name]
            known = self._versions.get(name)
            if known is None or known[0] is not data:
                number = next(self._numbers)
                etag = md5(data).hexdigest() if len(data) < MAX_DIGEST_BYTES else f"{number:x}-2"
                known = self._versions[name] = data, Version(etag, number, time.time())
            return known[1]

    def put(self, name: str, received: Received, absent: bool = False) -> None:
        """Make the object *name*. Raises: Exists, if it is there and has to be *absent*."""
        with self.lock:
            if absent and name in self.objects:
                raise Exists
            self._versions.pop(name, None)  # also of the same bytes
            self.objects[name] = received.data

    def begin(self, name: str, absent: bool = False) -> str:
        """Begin an upload; return its identity."""
        with self.lock:
            identity = f"upload-{next(self._numbers):x}"
            self.uploads[identity] = Upload(name, absent)
            return identity

    def complete(self, identity: str, numbers: list[int]) -> None:
        """Let the object appear that parts *numbers* of an upload make. Raises: Exists, and the upload stays."""
        with self.lock:
            upload = self.uploads[identity]
            whole = upload.joined(numbers)
            self.put(upload.name, whole, upload.absent)
            upload.done = True

    @property
    def pending(self) -> int:
        """How many uploads were begun, and neither completed nor dropped."""
        with self.lock:
            return sum(not upload.done for upload in self.uploads.values())

    def listed(self, prefix: str, delimiter: str = "", after: str = "", most: int = 0) -> Listing:
        """Return a page of the names with *prefix*: those greater than *after*."""
        with self.lock:
            names = sorted((name for name in self.objects if name.startswith(prefix)), key=str.encode)
        most = min(most or self.page, self.page)
        found: list[str] = []
        prefixes: list[str] = []
        for name in names:
            if after and name.encode() <= after.encode():
                continue
            head, cut, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
            folder = prefix + head + cut if cut else ""
            if folder and (folder in prefixes[-1:] or after.startswith(folder)):
                continue
            if len(found) + len(prefixes) == most:
                return Listing(found, prefixes, max(*found[-1:], *prefixes[-1:], "", key=str.encode))
            (prefixes if folder else found).append(folder or name)
        return Listing(found, prefixes, "")
