"""Streams of bytes: the types that every scheme gives, and the open files below them."""

import errno
import fcntl
import io
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, Protocol

from tartools.errors import StorageError

PIPE_SIZE = 1 << 20  # bytes; Linux's limit for users without privileges
FILE_BUFFER_BYTES = 128 << 10  # bytes that a file over a stream holds
COPY_CHUNK_BYTES = 1 << 20  # bytes that are copied at once
WRITE_CHUNK_BYTES = 1 << 16  # bytes collected before they are written
CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOTTY, errno.EROFS)  # pipes, devices, some file systems


@contextmanager
def translate_os_errors(url: str) -> Iterator[None]:
    """Turn any OSError of the block (no such file, too many open files) into a StorageError that names *url*."""
    try:
        yield
    except OSError as error:
        raise StorageError(error.strerror or str(error), url=url) from error


class Stream(Protocol):
    """Bytes that are read once, from beginning to end, by `readinto`.

    *file* is the open regular file that has these bytes from byte *start* on, or None. Large payloads stay in the file,
    and bytes can be skipped without being read (by `skip`). Some streams also have `is_framed`: False if the server
    does not state where the bytes end, so that they may be truncated.
    """

    file: io.FileIO | None = None
    start: int = 0

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes; return how many, 0 at the end.

        Raises: StorageError, also if the bytes end too early.
        """
        ...


def chunks(stream: Stream, max_bytes: int = sys.maxsize) -> Iterator[memoryview]:
    """Yield the rest of *stream*, or up to *max_bytes* bytes of it, by at most COPY_CHUNK_BYTES.

    Each chunk overwrites the one before. Holds: a chunk. Raises: the errors of the stream, such as StorageError.
    """
    buffer = memoryview(bytearray(min(COPY_CHUNK_BYTES, max_bytes)))
    while max_bytes and (count := stream.readinto(buffer[:max_bytes])):
        yield buffer[:count]
        max_bytes -= count


def skip(stream: Stream, count: int) -> None:
    """Move *count* bytes forward in *stream* without reading them; its `file` must not be None."""
    stream.skip(count)  # type: ignore[attr-defined]  # only streams with a file have it


class Input(Stream, Protocol):
    """A stream that was opened, and has to be closed."""

    def cancel(self) -> bool:
        """Make a `readinto` in another thread return soon; return True if that is possible."""
        ...

    def close(self) -> None:
        """Stop reading, at the end or before it, and release the file, connection or process."""
        ...


class Sink(Protocol):
    """An open file, pipe or upload, to which bytes are written."""

    def write(self, data: bytes | bytearray | memoryview, /) -> object:
        """Write all of *data*; the caller may change it after the return.

        Raises: StorageError; BrokenPipeError for stdout whose reader has closed the pipe.
        """
        ...


def write_lines(parts: Iterable[bytes], sink: Sink) -> None:
    """Write *parts* to *sink*, WRITE_CHUNK_BYTES or more at a time, and the rest at the end.

    If *parts* raises, the parts before are still written. Raises: the errors of *parts* and *sink*.
    """
    pending = bytearray()
    try:
        for part in parts:
            pending += part
            if len(pending) >= WRITE_CHUNK_BYTES:
                full, pending = pending, bytearray()
                sink.write(full)
    finally:
        if pending:
            sink.write(pending)


class Completable(Protocol):
    """An output that appears at `commit`, or leaves nothing behind at `abort`, also after a failed `commit`."""

    def commit(self) -> None:
        """Close, and let the output appear under its name. Raises: StorageError."""
        ...

    def abort(self) -> None:
        """Close, and leave nothing behind. Does nothing after a `commit` that succeeded."""
        ...


class OutputStream(Completable, Protocol):
    """An output: bytes are written to its `sink`, and it takes its name at `commit`."""

    @property
    def sink(self) -> Sink:
        """The sink that takes the bytes."""
        ...


class SharedFile(io.FileIO):
    """An open file that is closed when its last user is garbage-collected, without a ResourceWarning."""

    def __del__(self) -> None:
        """Close the file."""
        self.close()


class InputFile(SharedFile):
    """A file open for reading, whose `check` notices if it has changed.

    *file*: a path, or a descriptor, which is not closed. *url*: the name for messages. `status`: the `os.stat_result`
    of when it was opened, None if it is not a regular file. Raises: OSError if it can't be opened.
    """

    def __init__(self, file: str | int, url: str) -> None:
        super().__init__(file, closefd=isinstance(file, str))
        self.url = url
        status = os.fstat(self.fileno())
        self.status = status if stat.S_ISREG(status.st_mode) else None

    def check(self) -> None:
        """Raise StorageError if the content may have changed since the file was opened.

        Size, mtime and ctime tell. The ctime alone also changes with another name, mode, owner or number of links: then
        the content counts as unchanged. Only regular files are checked.
        """
        old = self.status
        if old is None:
            return
        new = os.fstat(self.fileno())
        if new.st_size != old.st_size or new.st_mtime_ns != old.st_mtime_ns:
            raise changed_input_error(self.url)
        if new.st_ctime_ns != old.st_ctime_ns and not self._has_new_status(old, new):
            raise changed_input_error(self.url)

    def _has_new_status(self, old: os.stat_result, new: os.stat_result) -> bool:
        """True if mode, owner, group or number of links differ in *old* and *new*, or the path leads to another file.

        Also True if the path can't be looked up. A file that was opened by its descriptor has no path to compare.
        """
        if any(getattr(old, name) != getattr(new, name) for name in ("st_mode", "st_uid", "st_gid", "st_nlink")):
            return True
        try:
            return isinstance(self.name, str) and not os.path.samestat(new, os.stat(self.name))
        except OSError:
            return True


def check_input_file(file: object) -> None:
    """Raise StorageError if *file* is an `InputFile` whose content may have changed since it was opened."""
    if isinstance(file, InputFile):
        file.check()


def size_of(file: io.FileIO) -> int:
    """Return the size of the open *file* in bytes; of an `InputFile` the size when it was opened."""
    status = file.status if isinstance(file, InputFile) else None
    return (status or os.fstat(file.fileno())).st_size


class FileVersion(NamedTuple):
    """The version of an open file: another one when the file is written to or replaced.

    *device*, *number*: the file system and the inode.
    *size*: in bytes.
    *modified*, *changed*: mtime and ctime in ns since 1970.

    As text it is "SIZE MTIME", such as "1024 1700000000000000000": the version of a shard in tables, which a copy with
    the same mtime shares.
    """

    device: int
    number: int
    size: int
    modified: int
    changed: int

    @classmethod
    def of(cls, file: io.FileIO | io.BufferedReader) -> "FileVersion":
        """Return the version of the open *file*."""
        status = os.fstat(file.fileno())
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    def __str__(self) -> str:
        """Return the size in bytes, a blank, and the mtime in ns."""
        return f"{self.size} {self.modified}"


MAX_SIZE_DIGITS = 18  # of a size in bytes; 2 ** 63 has 19


def size_in_version(version: str | None) -> int | None:
    """Return the size in bytes that begins *version*, of a file or an object; None if it begins with no valid size.

    A size is valid if it has up to 18 digits: a table may claim any version.

    >>> size_in_version("1024 1700000000"), size_in_version("9" * 5000), size_in_version(None)
    (1024, None, None)
    """
    digits = (version or "").partition(" ")[0]
    return int(digits) if digits.isdecimal() and len(digits) <= MAX_SIZE_DIGITS else None


def changed_input_error(url: str) -> StorageError:
    """Return a plain StorageError for the local input *url*: "this file changed while it was read; start again ..."."""
    return StorageError("this file changed while it was read; start again when nothing writes to it", url=url)


class FileSink(SharedFile):
    """A file open for writing whose `write` writes everything, and whose errors name the URL.

    *file*: a path, or a descriptor, which is closed unless it is 0 to 2. *url*: the name for messages. *flags*, *mode*:
    for `os.open` of a path, besides O_WRONLY; without flags it must exist, and is written from its first byte on, but
    not truncated. If the reader of a pipe has closed it, `write` raises BrokenPipeError on stdout, as the shell
    expects, else StorageError. Raises: OSError if it can't be opened.
    """

    def __init__(self, file: str | int, url: str, flags: int = 0, mode: int = 0o666) -> None:
        self.url = url
        closefd = not isinstance(file, int) or file > 2
        if isinstance(file, str):
            file = os.open(file, os.O_WRONLY | os.O_CLOEXEC | flags, mode)
        super().__init__(file, "w", closefd=closefd)

    def write(self, data: bytes | bytearray | memoryview, /) -> int:  # type: ignore[override]
        """Write all of *data*; return `len(data)`.

        Raises: StorageError; BrokenPipeError if the file is stdout, and its reader has closed the pipe.
        """
        view = memoryview(data)
        try:
            while view.nbytes:
                count = super().write(view)
                if count is None:  # the descriptor was inherited in non-blocking mode
                    wait_until_ready(self.fileno(), writing=True)
                view = view[count or 0 :]
        except OSError as error:
            if isinstance(error, BrokenPipeError) and self.fileno() == 1:
                raise
            reader_closed = isinstance(error, BrokenPipeError)
            reason = "the reader has closed the pipe" if reader_closed else error.strerror or str(error)
            raise StorageError(reason, url=self.url) from error
        return len(data)

    def sync(self) -> None:
        """Flush the written data to the disk; does nothing with `TARTOOLS_FSYNC=0`. Raises: StorageError."""
        with translate_os_errors(self.url):
            sync_file(self)


def sync_file(file: io.FileIO | str) -> None:
    """Flush an open *file* to the disk, or, for the path of a folder, the names in it: a power cut does not lose them.

    "" is the current folder. Does nothing with `TARTOOLS_FSYNC=0`, and where the file system can't. Raises: OSError.
    """
    if os.environ.get("TARTOOLS_FSYNC") == "0":
        return
    fd = os.open(file or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if isinstance(file, str) else file.fileno()
    try:
        if hasattr(fcntl, "F_FULLFSYNC"):  # on macOS fsync leaves data in the memory of the disk
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        else:
            os.fsync(fd)
    except OSError as error:
        if error.errno not in CANNOT_SYNC:
            raise
    finally:
        if isinstance(file, str):
            os.close(fd)


def sync_all() -> None:
    """Flush all written files and names to their disks, in one call for any number of files.

    Does nothing with `TARTOOLS_FSYNC=0`. On macOS it does not wait for the disk.
    """
    if os.environ.get("TARTOOLS_FSYNC") != "0":
        os.sync()


def unlock(fd: int) -> None:
    """Release the lock of the file *fd*, also for forks of this process that inherited the descriptor, and close it."""
    with suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def wait_until_ready(fd: int, *, writing: bool, seconds: float | None = None) -> bool:
    """Wait until the descriptor *fd* can be read, or with *writing* written; return True if it can.

    *seconds*: at most as long, then return False; None waits without limit. A file at its end, a pipe whose other end
    is closed, and a descriptor with an error count as ready.
    """
    import select

    poll = select.poll()
    poll.register(fd, select.POLLOUT if writing else select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))


def enlarge_pipe(fd: int) -> None:
    """Give the pipe *fd* a buffer of PIPE_SIZE if the system can: twice the speed on small members.

    Ignores other files, and failures.
    """
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with suppress(OSError):  # not a pipe, or the user's limit of pipe memory is reached
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_SIZE)


@contextmanager
def silence_stderr() -> Iterator[None]:
    """Discard output of this process to stderr during the block, also of code that is not Python.

    Also output of processes started in it, for good. At its end, also after an error, stderr is as before.
    """
    stderr, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(null)


def check_whole(stream: Stream, url: str) -> None:
    """Raise StorageError if *stream*, read to its end, may be truncated because its server does not state the length.

    That is, if it has `is_framed`, and this is False. For data other than tar archives, which have an end mark of their
    own. *url*: the name for messages.
    """
    if not getattr(stream, "is_framed", True):
        raise StorageError("the server does not state the length, so this may be truncated", url=url)


def stream_file(stream: Input, url: str, close: Callable[[], object] | None = None) -> io.BufferedReader:
    """Return *stream*, the bytes of *url*, as a buffered file; closing it closes the stream, or calls *close* instead.

    It can't seek. At its end, reading raises StorageError if the bytes may be truncated, because their server did not
    state the length; before it, the errors of the stream.
    """
    return io.BufferedReader(_StreamFile(stream, url, close or stream.close), FILE_BUFFER_BYTES)


class SeekableFile(io.RawIOBase):
    """A raw file of *size* bytes that can seek.

    A subclass gives the bytes: its `readinto` reads from `_position` on, and moves that.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        """Return True: it can be read."""
        return True

    def seekable(self) -> bool:
        """Return True: it can seek."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to byte *offset*, counted from the start, the position or the end by *whence*; return the new position.

        It may be behind the end. Raises: UnsupportedOperation for a position before the start; ValueError after
        `close`.
        """
        if self.closed:
            raise ValueError("this file is closed")
        base = (0, self._position, self._size)[whence]
        if base + offset < 0:  # of files an OSError, of bytes a ValueError: this is both
            raise io.UnsupportedOperation(f"seek to before the beginning: negative position {base + offset}")
        self._position = base + offset
        return self._position


class _StreamFile(io.RawIOBase):
    """*stream*, the bytes of *url*, as a raw file that can't seek; `close` calls the function *close*."""

    def __init__(self, stream: Stream, url: str, close: Callable[[], object]) -> None:
        self._stream = stream
        self._url = url
        self._close = close

    def readable(self) -> bool:
        """Return True: it can be read."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read up to `len(buffer)` bytes; return how many, 0 at the end.

        Raises: StorageError, also at the end if the bytes may be truncated.
        """
        count = self._stream.readinto(memoryview(buffer))  # `read` brings a bytearray, a part of which is a copy
        if not count:
            check_whole(self._stream, self._url)
        return count

    def close(self) -> None:
        """Call the function *close*, and close the file; if *close* raises, it stays open. Does nothing once closed."""
        if not self.closed:
            self._close()
        super().close()
