"""Outputs, which every scheme gives, and the open files beneath them."""

from __future__ import annotations

import fcntl
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from tartools.errors import StorageError
from tartools.streams import Input, Sink

PIPE_SIZE = 1 << 20  # bytes; Linux's limit for users without privileges
BUFFER = 128 << 10  # bytes that a file over a stream holds


class Output(Protocol):
    """Bytes that are written, and take their name at the end."""

    @property
    def sink(self) -> Sink:
        """Where to write."""
        ...

    @property
    def streaming(self) -> bool:
        """Tell whether what is written is seen at once, whatever comes after."""
        ...

    def commit(self) -> None:
        """Close, and let the output appear under its name."""
        ...

    def abort(self) -> None:
        """Close, and leave nothing behind. Does nothing after `commit`."""
        ...


class SharedFile(io.FileIO):
    """An open file that is closed when the last range of it is forgotten, which is nothing to warn about."""

    def __del__(self) -> None:
        self.close()


class FileSink(SharedFile):
    """An open file that writes all it is given, and whose errors name the URL.

    A reader that has gone is a BrokenPipeError on stdout, as the shell expects, and an error elsewhere.
    """

    def __init__(self, file: str | int, url: str, flags: int = 0, mode: int = 0o666) -> None:
        self.url = url
        closefd = not isinstance(file, int) or file > 2
        if isinstance(file, str):
            file = os.open(file, os.O_WRONLY | os.O_CLOEXEC | flags, mode)
        super().__init__(file, "w", closefd=closefd)

    def write(self, data: bytes | bytearray | memoryview, /) -> int:  # type: ignore[override]
        """Write all of *data*."""
        view = memoryview(data)
        try:
            while view.nbytes:
                count = super().write(view)
                if count is None:  # somebody left the descriptor non-blocking
                    wait_until_ready(self.fileno(), writing=True)
                view = view[count or 0 :]
        except OSError as error:
            if isinstance(error, BrokenPipeError) and self.fileno() == 1:
                raise
            gone = isinstance(error, BrokenPipeError)
            what = "nobody reads this any more" if gone else error.strerror or str(error)
            raise StorageError(what, url=self.url) from error
        return len(data)


def wait_until_ready(fd: int, *, writing: bool) -> None:
    """Wait until the non-blocking descriptor *fd* can be read, or written."""
    import select

    poll = select.poll()
    poll.register(fd, select.POLLOUT if writing else select.POLLIN)
    poll.poll()


def enlarge(fd: int) -> None:
    """Give the pipe *fd* a buffer of 1 MiB where the system can: twice the speed on small members."""
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        try:
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        except OSError:
            pass  # no pipe, or the user's share of pipe memory is used up


@contextmanager
def silent() -> Iterator[None]:
    """Drop what is written to stderr, by code that is not Python as well, while the block runs."""
    stderr, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nothing)


def check_whole(stream: Input, url: str) -> None:
    """Raise StorageError if nobody can tell whether what was read of *stream* to its end is all of *url*.

    An archive tells that itself. Of other data a server must say how long they are.
    """
    if not getattr(stream, "framed", True):
        raise StorageError("the server does not say how long this is, so it may have been cut", url=url)


def stream_file(stream: Input, url: str) -> io.BufferedReader:
    """Return *stream*, the bytes of *url*, as a file, which closes it. It is checked as `check_whole` does."""
    return io.BufferedReader(_StreamFile(stream, url), BUFFER)


class _StreamFile(io.RawIOBase):
    """A stream as a raw file."""

    def __init__(self, stream: Input, url: str) -> None:
        self._stream = stream
        self._url = url

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        count = self._stream.readinto(buffer)
        if not count:
            check_whole(self._stream, self._url)
        return count

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()
