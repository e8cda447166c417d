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


class Absent(StorageError):  # noqa: N818  # a StorageError, and read as a word
    """There is no such thing."""


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
    except FileNotFoundError as error:
        raise Absent(f"{error.filename or 'this'} is not there", url=url) from None
    except Exception as error:
        kind = Absent if _is_absent(error) else StorageError
        raise kind(f"smart_open cannot do this: {_reason(error)}", url=url) from None


def _is_absent(error: Exception) -> bool:
    """Tell whether *error* says, in the words of some library, that there is no such thing."""
    status = getattr(error, "status_code", None)
    return status == 404 or type(error).__name__ in ("ResourceNotFoundError", "NoSuchFile")


def _reason(error: Exception) -> str:
    """Return what *error* says, as far as it is no text that may quote a URL, with the signature in it."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if type(error) is OSError and "://" not in str(error):  # smart_open's own; those of requests are a kind of it
        return str(error)
    status = getattr(error, "status_code", None)  # of WebHDFS
    return f"{type(error).__name__}, status {status}" if status else type(error).__name__


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
        if not self._force and is_there(self._url):
            raise StorageError("this exists already; --force replaces it", url=self._url)
        with open(os.dup(self.sink.fileno()), "rb") as file, _asking(self._url):
            file.seek(0)
            target = _open(self._url, "wb")
            try:
                shutil.copyfileobj(file, target, 1 << 20)
                target.close()
            except BaseException:
                _drop(target)
                raise
        self.sink.close()

    def abort(self) -> None:
        """Forget everything."""
        self.sink.close()


def _drop(target: Any) -> None:
    """Let go of *target*, of which not all was sent: else its destructor might send what it still holds."""
    if hasattr(target, "lines"):  # of WebHDFS
        target.lines = []
    with suppress(Exception):
        getattr(target, "terminate", target.close)()


def open_read(url: str) -> SmartInput:
    """Return what smart_open reads from *url*."""
    return SmartInput(url)


def open_write(url: str, force: bool) -> SmartOutput:
    """Return an output that smart_open sends to *url* at the end."""
    return SmartOutput(url, force)


def is_there(url: str) -> bool:
    """Tell whether *url* can be read, so that it is there. Raises: StorageError if nobody can tell."""
    try:
        with _asking(url):
            stream = _open(url, "rb")
            stream.read(1)
            stream.close()
    except Absent:
        return False
    except StorageError as error:
        if isinstance(error.__cause__, ImportError):
            raise
        reason = error.message.removeprefix("smart_open cannot do this: ")
        raise StorageError(f"cannot tell whether this exists ({reason}); --force writes it", url=url) from None
    return True
