"""The buffer between what reads a shard ahead and what parses it."""

from __future__ import annotations

import io
import os
from collections import deque

from tartools.storage.scratch import scratch_file

AWAITED = 4 << 20  # bytes that wait in memory once the parser has come
UNSPILL = 128 << 10  # bytes that are read back at a time


class SpillBuffer:
    """A queue of bytes: up to *memory* bytes in memory, those beyond in an unlinked scratch file in *folder*.

    Until the parser has come it takes whatever is read. Once it is *awaited* it is *full* at 4 MiB, all in memory but
    for what was spilled before. It has no lock: threads that share it bring their own.
    """

    def __init__(self, memory: int, folder: str | None) -> None:
        self.awaited = False
        self._memory = memory
        self._folder = folder
        self._chunks: deque[memoryview] = deque()
        self._held = 0  # bytes in these chunks
        self._file: io.FileIO | None = None
        self._written = self._read = 0  # bytes of the file

    @property
    def size(self) -> int:
        """Bytes in the queue."""
        return self._held + self._written - self._read

    @property
    def full(self) -> bool:
        """Return whether the reader should wait."""
        return self.awaited and self.size >= AWAITED

    def append(self, chunk: bytes) -> None:
        """Add *chunk* at the end. Raises StorageError if the scratch file can't be written."""
        if self._written == self._read and (self.awaited or self._held + len(chunk) <= self._memory):
            self._chunks.append(memoryview(chunk))
            self._held += len(chunk)
            return
        if self._file is None:
            self._file = scratch_file(self._folder)
        self._file.write(chunk)
        self._written += len(chunk)

    def first(self) -> memoryview | None:
        """Return some of the bytes at the begin; None if the queue is empty."""
        if not self._chunks and self._read < self._written:
            assert self._file is not None
            data = os.pread(self._file.fileno(), min(UNSPILL, self._written - self._read), self._read)
            self._chunks.append(memoryview(data))
            self._read += len(data)
            self._held += len(data)
        return self._chunks[0] if self._chunks else None

    def drop(self, count: int) -> None:
        """Remove the first *count* bytes, all of which `first` has returned."""
        self._held -= count
        rest = self._chunks[0][count:]
        if rest:
            self._chunks[0] = rest
        else:
            self._chunks.popleft()
