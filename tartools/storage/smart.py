"""The URLs that are left to smart_open as they are: Azure, SFTP, HDFS, FTP.

smart_open writes some of them in place, under their own name. So an output is complete in a temporary file before
anything of it is sent.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tartools.errors import StorageError
from tartools.storage.scratch import scratch_file

EXTRAS = {"azure": "azure", "sftp": "sftp", "scp": "sftp", "ssh": "sftp"}  # what has to be installed besides


@contextmanager
def _asking(url: str) -> Iterator[None]:
    """Turn whatever the libraries below raise into StorageError: each has its own kind."""
    scheme = url.partition(":")[0]
    try:
        yield
    except StorageError:
        raise
    except ImportError as error:
        extra = EXTRAS.get(scheme)
        advice = f"pip install 'tartools[{extra}]'" if extra else "see the documentation of smart_open"
        raise StorageError(f"a library for {scheme}: URLs is missing: {advice}", url=url) from error
    except FileNotFoundError as error:  # of a program: what is not there remotely has other names
        raise StorageError(f"{error.filename or 'this'} is not there", url=url) from error
    except Exception as error:
        reason = str(error) if isinstance(error, OSError) and "://" not in str(error) else type(error).__name__
        raise StorageError(f"smart_open cannot do this: {reason}", url=url) from error


def _open(url: str, mode: str) -> Any:
    from smart_open import open as smart_open

    return smart_open(url, mode, compression="disable")


class SmartInput:
    """What smart_open reads, one stream."""

    file: io.FileIO | None = None
    start = 0

    def __init__(self, url: str) -> None:
        self._url = url
        with _asking(url):
            self._stream = _open(url, "rb")

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes; 0 at the end."""
        with _asking(self._url):
            data = self._stream.read(len(view))
        view[: len(data)] = data
        return len(data)

    def skip(self, count: int, /) -> None:
        """Never asked for: there is no file."""
        raise AssertionError("only files are skipped in")

    def cancel(self) -> bool:
        """Do nothing: nobody can say what would end a `readinto`."""
        return False

    def close(self) -> None:
        """Stop reading."""
        with suppress(Exception):  # what is wrong behind what was wanted is not asked for
            self._stream.close()


class SmartOutput:
    """An output that is sent when it is complete."""

    streaming = False

    def __init__(self, url: str, force: bool) -> None:
        self._url = url
        self._force = force
        self.sink = scratch_file()

    def commit(self) -> None:
        """Send everything. Raises: StorageError; part of it may then be there, if the store writes in place."""
        if not self._force:
            check_absent(self._url)
        with open(os.dup(self.sink.fileno()), "rb") as file, _asking(self._url), _open(self._url, "wb") as target:
            file.seek(0)
            shutil.copyfileobj(file, target, 1 << 20)
        self.sink.close()

    def abort(self) -> None:
        """Forget everything."""
        self.sink.close()


def open_read(url: str) -> SmartInput:
    """Return what smart_open reads from *url*."""
    return SmartInput(url)


def open_write(url: str, force: bool) -> SmartOutput:
    """Return an output that smart_open sends to *url* at the end."""
    return SmartOutput(url, force)


def check_absent(url: str) -> None:
    """Raise StorageError if *url* can be read, so that it is there."""
    try:
        with _asking(url):
            stream = _open(url, "rb")
            stream.read(1)
            stream.close()
    except StorageError as error:
        if isinstance(error.__cause__, ImportError):
            raise
        return
    raise StorageError("this exists already; --force replaces it", url=url)
