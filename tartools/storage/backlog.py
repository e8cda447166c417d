"""Bytes that come faster than they can be written: they wait in memory, and beyond that in a file without a name."""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Callable

from tartools.storage.scratch import scratch_file
from tartools.storage.streams import wait_until_ready

ROOM = 128 << 10  # bytes a read; some decompressors are slower the more they may give
LIVE = 4 << 20  # bytes that wait once somebody waits for them


def copy_ahead(
    read: Callable[[memoryview], int], pipe: int, hold: int, folder: str | None, awaited: Callable[[], bool]
) -> None:
    """Write to *pipe* what *read* gives, reading on while that has to wait.

    Up to *hold* bytes wait in memory, beyond that in a scratch file in *folder*; once it is *awaited*, 4 MiB in all.
    What *read* raises is raised when all before it is written.
    """
    room = memoryview(bytearray(ROOM))
    backlog = _Backlog(hold, folder)
    failure: BaseException | None = None
    os.set_blocking(pipe, False)
    more = True
    while True:
        while part := backlog.first():
            try:
                backlog.drop(os.write(pipe, part))
            except BlockingIOError:
                if more and not (awaited() and backlog.size >= LIVE):
                    break
                wait_until_ready(pipe, writing=True)
        if not more:
            break
        try:
            more = (count := read(room)) > 0
            if more:
                backlog.add(bytes(room[:count]), awaited())
        except BaseException as error:
            failure, more = error, False
    if failure is not None:
        raise failure


class _Backlog:
    """Bytes that wait, in order: up to *hold* in memory, those that come then in a scratch file in *folder*."""

    def __init__(self, hold: int, folder: str | None) -> None:
        self._hold = hold
        self._folder = folder
        self._chunks: deque[memoryview] = deque()
        self._held = 0  # bytes in memory
        self._spill: io.FileIO | None = None
        self._spilled = self._taken = 0  # bytes written to the file, and read back

    @property
    def size(self) -> int:
        """Bytes that wait."""
        return self._held + self._spilled - self._taken

    def add(self, chunk: bytes, awaited: bool) -> None:
        """Put *chunk* behind what waits already; if it is *awaited*, in memory. Raises: StorageError."""
        if self._spilled == self._taken and (awaited or self._held + len(chunk) <= self._hold):
            self._chunks.append(memoryview(chunk))
            self._held += len(chunk)
            return
        if self._spill is None:
            self._spill = scratch_file(self._folder)
        self._spill.write(chunk)
        self._spilled += len(chunk)

    def first(self) -> memoryview | None:
        """Return some of the bytes that come first; None if none wait."""
        if not self._chunks and self._taken < self._spilled:
            assert self._spill is not None
            data = os.pread(self._spill.fileno(), min(ROOM, self._spilled - self._taken), self._taken)
            self._chunks.append(memoryview(data))
            self._taken += len(data)
            self._held += len(data)
        return self._chunks[0] if self._chunks else None

    def drop(self, count: int) -> None:
        """Forget the first *count* bytes."""
        self._held -= count
        rest = self._chunks[0][count:]
        if rest:
            self._chunks[0] = rest
        else:
            self._chunks.popleft()
