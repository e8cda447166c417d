"""Files without a name, and private directories, for what does not fit into memory."""

from __future__ import annotations

import io
import os
from pathlib import Path

from tartools.errors import StorageError
from tartools.storage.streams import FileSink


def scratch_file(folder: str | None = None) -> io.FileIO:
    """Return an open file without a name in *folder* (default `$TMPDIR`, else /tmp): gone when it is closed.

    Writing to it writes all. Raises: StorageError.
    """
    import tempfile

    where = folder or tempfile.gettempdir()
    try:
        fd, name = tempfile.mkstemp(prefix="tartools-", dir=where)
        os.unlink(name)
    except OSError as error:
        raise StorageError(f"cannot make a temporary file: {error.strerror}", url=where) from error
    return FileSink(fd, f"temporary file in {where}")


def private_directory(folder: str | None = None) -> Path:
    """Return a new directory that only this user can enter, in *folder* (default `$TMPDIR`, else /tmp).

    Raises: StorageError.
    """
    import tempfile

    try:
        return Path(tempfile.mkdtemp(prefix="tartools-", dir=folder))
    except OSError as error:
        raise StorageError(
            f"cannot make a temporary directory: {error.strerror}", url=folder or tempfile.gettempdir()
        ) from error
