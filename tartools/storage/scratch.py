"""Scratch files: unnamed temporary files, spooled streams, and private directories, for data beyond memory."""

from __future__ import annotations

import contextlib
import io
import os
import stat
from collections.abc import Callable, Iterable

from tartools.errors import StorageError
from tartools.storage.interrupts import defer_signals
from tartools.storage.local import FileInput
from tartools.storage.streams import FileSink, Input, InputFile, SharedFile, Stream, chunks

Identity = tuple[int | str, ...]


def scratch_file(folder: str | None = None) -> io.FileIO:
    """Return a new file without a name in *folder* (default `$TMPDIR`, else /tmp), open for writing.

    It is deleted when it is closed. Its `write` writes everything; `reopen_scratch` gives a reader of it. Raises:
    StorageError; FileNotFoundError if no default folder is writable.
    """
    place = _place(folder)
    return FileSink(_open_nameless(place), f"temporary file in {place}")


def _open_nameless(folder: str) -> int:
    """Return the descriptor, for reading and writing, of a new file without a name in *folder*.

    Raises: StorageError.
    """
    import tempfile

    if hasattr(os, "O_TMPFILE"):
        with contextlib.suppress(OSError):  # for one, a file system that does not support it
            return os.open(folder, os.O_RDWR | os.O_TMPFILE, 0o600)
    try:
        with defer_signals():
            fd, name = tempfile.mkstemp(prefix="tartools-", dir=folder)
            os.unlink(name)
    except OSError as error:
        raise StorageError(f"cannot make a temporary file: {error.strerror}", url=folder) from error
    return fd


def _place(folder: str | None) -> str:
    """Return *folder*, or the default folder of temporary files (`$TMPDIR`, else /tmp) if it is None or "".

    Raises: FileNotFoundError if no default folder is writable.
    """
    import tempfile

    with defer_signals():  # it tries the folder with a file of its own, once
        return folder or tempfile.gettempdir()


def reopen_scratch(file: io.FileIO) -> io.BufferedReader:
    """Return a new reader of the open temporary *file*, from its first byte on. The caller closes both.

    *file*: a file that can be read, such as one of `scratch_file`. Both share one position in the file: it is 0 now,
    and reading here moves *file*, too.
    """
    reader = open(os.dup(file.fileno()), "rb")  # noqa: SIM115  # the caller closes it
    reader.seek(0)
    return reader


def spool(stream: Stream, folder: str | None = None, note: Callable[[int], object] = lambda count: None) -> io.FileIO:
    """Read *stream* to its end into a new unnamed scratch file; return that, open for writing, at its end.

    `note(count)` is called with the size in bytes of each chunk. The stream is not closed. *folder*: of the scratch
    file; None: `$TMPDIR`, else /tmp. `reopen_scratch` reads the file. Raises: StorageError; FileNotFoundError if no
    default folder is writable.
    """
    scratch = scratch_file(folder)
    for chunk in chunks(stream):
        scratch.write(chunk)
        note(len(chunk))
    return scratch


def copy_to_scratch(stream: Stream) -> io.BufferedReader:
    """Read *stream* to its end into an unnamed scratch file; return a reader of that from its first byte on.

    The scratch file is in `$TMPDIR`, else /tmp, and deleted when the reader is closed. The stream is not closed.
    Raises: StorageError; FileNotFoundError if no default folder is writable.
    """
    return reopen_scratch(spool(stream))


class Copy:
    """A copy of all bytes of the input *stream*, made now, from which `open` gives a new input any number of times.

    The bytes are in a scratch file in *folder* (None: `$TMPDIR`, else /tmp) as long as this object lives; `note(count)`
    is called with the size in bytes of each chunk that is copied. If the stream is a regular file, nothing is copied,
    `note` is not called, and reading to the end raises StorageError if the file has changed. *url*: the name for
    messages. The stream is closed, also after an error.

    Raises: StorageError, also if there is no room for the copy; FileNotFoundError if no default folder is writable.
    """

    def __init__(self, stream: Input, url: str, folder: str | None, note: Callable[[int], object]) -> None:
        try:
            self._start, file = stream.start, stream.file
            if isinstance(file, InputFile):
                self._file = file
                return
            self._scratch = spool(stream, folder, note)
            self._file = InputFile(self._scratch.fileno(), url)
        finally:
            stream.close()

    def open(self) -> FileInput:
        """Return a new input with all the bytes. Inputs that it returned before may not be read any more."""
        os.lseek(self._file.fileno(), self._start, os.SEEK_SET)
        return FileInput(self._file)


class SentOutput:
    """An output that is collected in an unnamed scratch file, its `sink`, and given to *send* at `commit`.

    `send(file)` gets the open scratch file, at its end: `reopen_scratch` reads it. Raises: StorageError if the scratch
    file can't be made; FileNotFoundError if no default folder is writable.
    """

    def __init__(self, send: Callable[[io.FileIO], object]) -> None:
        self._send = send
        self.sink = scratch_file()

    def commit(self) -> None:
        """Call *send* with the scratch file, and close it. Raises: the errors of *send*; then `abort` closes it."""
        self._send(self.sink)
        self.sink.close()

    def abort(self) -> None:
        """Drop all that was written; *send* is not called. Does nothing after a `commit` that succeeded."""
        self.sink.close()


def private_directory(folder: str | None = None) -> str:
    """Return a new directory that only this user can enter, in *folder* (default `$TMPDIR`, else /tmp).

    The caller removes it. Raises: StorageError; FileNotFoundError if no default folder is writable.
    """
    import tempfile

    where = _place(folder)
    try:
        return tempfile.mkdtemp(prefix="tartools-", dir=where)
    except OSError as error:
        raise StorageError(f"cannot make a temporary directory: {error.strerror}", url=where) from error


def create_file(path: bytes) -> FileSink:
    """Create the file *path*, which must not exist, and open it for writing; its `write` writes everything.

    Raises: FileExistsError if the name exists, also as a link; OSError.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    return FileSink(fd, f"temporary file in {os.fsdecode(os.path.dirname(path))}")


def identity_of_file(path: bytes) -> Identity:
    """Return a tuple that changes if *path* is replaced or its status changes; links are not followed.

    It has the mode, inode, device, number of links, owner, group, and the names of the extended attributes; not size or
    times. Raises: OSError.
    """
    attributes: list[str] = []
    with contextlib.suppress(OSError, AttributeError):  # a file system without them; not Linux
        attributes = os.listxattr(path, follow_symlinks=False)
    return *os.lstat(path)[:6], *attributes


def read_file(path: bytes, max_bytes: int) -> bytes | io.FileIO | None:
    """Return the content of the regular file *path*, or the open file if it has more than *max_bytes* bytes.

    The open file is at its first byte, and is closed when it is garbage-collected. None if *path* is a directory, fifo
    or device. Raises: OSError, also if it is missing, a symbolic link or a socket.
    """
    file = open_file(path)
    if file is None or os.fstat(file.fileno()).st_size > max_bytes:
        return file
    with file:
        return file.readall()


def open_file(path: bytes) -> io.FileIO | None:
    """Open the regular file *path* for reading; None if it is a directory, fifo or device.

    It is closed when it is garbage-collected. Raises: OSError, also if *path* is missing, a symbolic link or a socket.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return SharedFile(fd, "r")
    os.close(fd)
    return None


def remove_files(paths: Iterable[bytes]) -> bool:
    """Remove the files *paths*; return True if all were removed, False if any was not, also if it does not exist."""
    all_removed = True
    for path in paths:
        try:
            os.unlink(path)
        except OSError:
            all_removed = False
    return all_removed


def remove_tree(path: bytes) -> None:
    """Remove a file, or a directory with its content, also without write permission; a missing *path* is no failure.

    Of a symbolic link only the link is removed, and its target is never changed. Files that can't be removed, such as
    those of other users, stay without an error, and their directories may have the mode 0700 then.
    """
    import shutil

    try:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError:
        if os.path.islink(path):  # whose target is not ours
            return
        with contextlib.suppress(OSError):  # files of other users stay
            os.chmod(path, 0o700)
            for folder, below, _ in os.walk(path):  # from the top, so that each directory can be entered
                for inner in (os.path.join(folder, name) for name in below):
                    if not os.path.islink(inner):
                        os.chmod(inner, 0o700)
        shutil.rmtree(path, ignore_errors=True)
