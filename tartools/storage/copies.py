"""Inputs that can be read only once, kept to be read again."""

from __future__ import annotations

import os
from collections.abc import Callable

from tartools import storage
from tartools.storage.local import FileInput
from tartools.storage.scratch import scratch_file
from tartools.storage.streams import InputFile, chunks


class Copy:
    """The bytes of *url*, read to their end now, and kept for `open` as long as this object lives.

    They are copied to a file without a name in *folder* (default `$TMPDIR`, else /tmp). If stdin is a regular file,
    nothing is copied. *copied* is called with numbers of bytes that have been copied.

    Raises: StorageError, also if there is no room for the copy.
    """

    def __init__(self, url: str, folder: str | None, copied: Callable[[int], object]) -> None:
        stream = storage.open_read(url)
        try:
            self._start, found = stream.start, stream.file
            if isinstance(found, InputFile):
                self._file = found
                return
            self._scratch = scratch_file(folder)
            for chunk in chunks(stream):
                self._scratch.write(chunk)
                copied(len(chunk))
            self._file = InputFile(self._scratch.fileno(), url)
        finally:
            stream.close()

    def open(self) -> FileInput:
        """Return the bytes from the first on. What was opened before may not be read any more."""
        os.lseek(self._file.fileno(), self._start, os.SEEK_SET)
        return FileInput(self._file)
