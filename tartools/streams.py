"""What bytes are read from and written to, in every part of the toolbox. Only types: nothing here does anything."""

from __future__ import annotations

import io
from typing import Protocol


class Stream(Protocol):
    """Bytes that are read.

    *file* is the open regular file whose bytes from *start* on these are, where there is one. Then large payloads
    are left in place.
    """

    file: io.FileIO | None
    start: int

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes; 0 at the end, if the source then says that this was all of it."""
        ...

    def skip(self, count: int, /) -> None:
        """Pass *count* bytes by; only asked for where there is a *file*."""
        ...


class Input(Stream, Protocol):
    """A stream that somebody opened."""

    def cancel(self) -> bool:
        """Make a `readinto` of another thread return soon; tell whether that is possible."""
        ...

    def close(self) -> None:
        """Stop reading, at the end or before it."""
        ...


class Sink(Protocol):
    """Where bytes go."""

    def write(self, data: bytes | bytearray | memoryview, /) -> object:
        """Write all of *data*, and be done with it on return."""
        ...
