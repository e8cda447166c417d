"""Inputs that can be read only once, kept to be read again."""

from __future__ import annotations

import io
import os

from tartools import storage
from tartools.storage.local import FileInput
from tartools.storage.scratch import scratch_file
from tartools.storage.streams import InputFile, SharedFile

CHUNK = 1 << 20  # bytes that are copied at once


class Copy:
    """The bytes of *url*, read to their end now, and kept for `open`.

    They are copied to a file without a name in *folder* (default `$TMPDIR`, else /tmp), which is deleted with this. If
    stdin is a regular file, nothing is copied.

    Raises: StorageError, also if there is no room for the copy.
    """

    def __init__(self, url: str, folder: str | None) -> None:
        self._url = url
        stream = storage.open_read(url)
        try:
            self._start = stream.start
            self._file: io.FileIO | None = stream.file
            if self._file is None:
                scratch = scratch_file(folder)
                room = memoryview(bytearray(CHUNK))
                while count := stream.readinto(room):
                    scratch.write(room[:count])
                self._file = SharedFile(os.dup(scratch.fileno()), "r")
        finally:
            stream.close()

    def open(self) -> FileInput:
        """Return the bytes from the first on. What was opened before may not be read any more."""
        assert self._file is not None
        os.lseek(self._file.fileno(), self._start, os.SEEK_SET)
        return FileInput(InputFile(self._file.fileno(), self._url))
