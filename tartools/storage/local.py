"""Local files, stdin and stdout."""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Sequence
from contextlib import suppress

from tartools.errors import StorageError, UsageError, shown
from tartools.storage.names import FILE
from tartools.storage.streams import FileSink, SharedFile, enlarge, wait_until_ready


def path_of(url: str) -> str:
    """Return the path that *url* names; `file://` URLs are percent-decoded, as RFC 8089 has it.

    >>> path_of("file:a%20b.tar"), path_of("file:///tmp/a%20b.tar")
    ('a%20b.tar', '/tmp/a b.tar')
    """
    if not url.startswith(FILE):
        return url
    path = url.removeprefix(FILE)
    if not path.startswith("//"):
        return path
    from urllib.parse import unquote

    host, slash, rest = path[2:].partition("/")
    if host not in ("", "localhost"):
        raise UsageError(f"a file: URL of another host: {host}", url=url)
    decoded = slash + unquote(rest)
    if "\0" in decoded:
        raise UsageError("not a file name: it holds a NUL", url=url)
    return decoded


class FileInput:
    """An open file as input. A regular one tells, by *file* and *start*, where its bytes can be found again."""

    def __init__(self, file: io.FileIO, url: str) -> None:
        self._file = file
        self._url = url
        regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        self.file = file if regular else None
        self.start = os.lseek(file.fileno(), 0, os.SEEK_CUR) if regular else 0
        if not regular:
            enlarge(file.fileno())

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes; 0 at the end."""
        try:
            while (count := self._file.readinto(view)) is None:  # somebody left the descriptor non-blocking
                wait_until_ready(self._file.fileno(), writing=False)
            return count
        except OSError as error:
            raise StorageError(error.strerror or str(error), url=self._url) from error

    def fileno(self) -> int:
        """Return the descriptor that all of it is read from, be it in a fork of this process."""
        return self._file.fileno()

    def skip(self, count: int, /) -> None:
        """Move *count* bytes on."""
        os.lseek(self._file.fileno(), count, os.SEEK_CUR)

    def cancel(self) -> bool:
        """Do nothing: a regular file does not keep its reader waiting, and of another one nobody can say."""
        return self.file is not None

    def close(self) -> None:
        """Let go of the file. It is closed when the last range of it is forgotten."""
        if self._file.closefd and self.file is None:
            self._file.close()
        self.file = None


def open_stdin(url: str) -> FileInput:
    """Return stdin as input."""
    try:
        return FileInput(SharedFile(0, closefd=False), url)
    except OSError as error:
        raise StorageError(error.strerror or str(error), url=url) from error


def open_read(url: str) -> FileInput:
    """Return a local file, fifo or device as input."""
    try:
        file = SharedFile(path_of(url))
    except OSError as error:
        raise StorageError(error.strerror or str(error), url=url) from error
    return FileInput(file, url)


def check_readable(url: str) -> int | None:
    """Return the bytes of *url*, None if it is no regular file.

    Raises: StorageError unless it exists, can be read, and is no directory.
    """
    path = path_of(url)
    try:
        found = os.stat(path)
    except OSError as error:
        raise StorageError(error.strerror or str(error), url=url) from error
    except ValueError as error:
        raise StorageError(f"not a file name: {error}", url=url) from error
    if stat.S_ISDIR(found.st_mode):
        raise StorageError("this is a directory, not a shard (tarcreate --folder makes one of it)", url=url)
    if not os.access(path, os.R_OK):
        raise StorageError(os.strerror(errno.EACCES), url=url)
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def check_writable(url: str, force: bool, inputs: Sequence[str]) -> None:
    """Raise StorageError when the output *url* exists (unless *force*), or is the same file as one of *inputs*."""
    there = _stat(url, 1)
    if there is None or not stat.S_ISREG(there.st_mode):
        return
    for name in inputs:
        other = _stat(name, 0)
        if other and os.path.samestat(there, other):
            raise StorageError(f"this output is also the input {shown(name)}", url="stdout" if url == "-" else url)
    if url != "-" and not force:
        raise _exists(url)


def is_there(url: str) -> bool:
    """Tell whether there is a file *url*; a link to nothing is none."""
    return _stat(url, 1) is not None


def _stat(url: str, fd: int) -> os.stat_result | None:
    try:
        return os.fstat(fd) if url == "-" else os.stat(path_of(url))
    except (OSError, ValueError):
        return None


def _exists(url: str) -> StorageError:
    return StorageError("this exists already; --force replaces it", url=url)


def open_append(url: str) -> FileSink:
    """Return the local file *url*, made if it is not there, to which what is written is added."""
    try:
        return FileSink(path_of(url), url, os.O_CREAT | os.O_APPEND)
    except OSError as error:
        raise StorageError(error.strerror or str(error), url=url) from error


class OpenOutput:
    """Stdout, or something that exists and is no regular file: written in place."""

    streaming = True

    def __init__(self, sink: FileSink) -> None:
        self.sink = sink
        enlarge(sink.fileno())

    def commit(self) -> None:
        """Close; an error that shows only now is an error."""
        try:
            self.sink.close()
        except OSError as error:
            raise StorageError(error.strerror or str(error), url=self.sink.url) from error

    def abort(self) -> None:
        """Close."""
        self.sink.close()


def open_stdout(url: str, force: bool) -> OpenOutput:
    """Return stdout as output, unless it is a terminal."""
    if os.isatty(1):
        raise UsageError("stdout is a terminal, and a tar archive is nothing to read: use -o FILE, > FILE or a pipe")
    return OpenOutput(FileSink(1, "stdout"))


def between(prefix: str, suffix: str) -> list[str]:
    """Return the names, in the form of *prefix*, of files that are *prefix*, something without a slash, *suffix*."""
    folder, start = os.path.split(path_of(prefix))
    rest, slash, below = suffix.partition("/")
    try:
        there = os.listdir(folder or ".")
    except (FileNotFoundError, NotADirectoryError):
        return []
    names = (
        prefix + name[len(start) :] + slash + below
        for name in there
        if name.startswith(start) and name.endswith(rest) and len(name) > len(start) + len(rest)
    )
    return sorted(name for name in names if os.path.lexists(path_of(name)))


def remove(url: str) -> None:
    """Remove a local file. Raises: StorageError."""
    try:
        os.unlink(path_of(url))
    except OSError as error:
        raise StorageError(error.strerror or str(error), url=url) from error


def open_data() -> OpenOutput:
    """Return stdout as output for what people may read too."""
    return OpenOutput(FileSink(1, "stdout"))


def open_write(url: str, force: bool) -> OpenOutput | FileOutput:
    """Return a local file as output, which appears when it is complete; other kinds of files are written in place."""
    name = path_of(url)
    if name.endswith("/"):
        raise StorageError("this names a directory; name a file in it", url=url)
    path = os.path.realpath(name)  # a symlink stays one
    try:
        there = os.stat(name) if os.path.exists(name) or os.path.lexists(path) else None
        if there and not stat.S_ISREG(there.st_mode):
            return open_in_place(name, url)  # not by its real path: that of `>(command)` leads nowhere
        if there and not force:
            raise _exists(url)
        return FileOutput(path, url, force, stat.S_IMODE(there.st_mode) if there else None)
    except OSError as error:
        raise StorageError(error.strerror or str(error), url=url) from error


def open_in_place(path: str, url: str) -> OpenOutput:
    """Return what is no regular file as output, unless it is a terminal."""
    sink = FileSink(path, url)
    if os.isatty(sink.fileno()):
        sink.close()
        raise UsageError("this is a terminal: what is written here is not for one", url=url)
    return OpenOutput(sink)


class FileOutput:
    """A file that is written under a temporary name beside its own, which it takes at `commit`."""

    streaming = False

    def __init__(self, path: str, url: str, force: bool, mode: int | None) -> None:
        self._path = path
        self._force = force
        folder, name = os.path.split(path)
        name = os.fsdecode(os.fsencode(name)[:100])  # bytes, of which a file system allows 255
        self._temporary = os.path.join(folder, f".{name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
        self._owner = os.getpid()  # a fork of this process that ends leaves the file alone
        self.sink = FileSink(self._temporary, url, os.O_CREAT | os.O_EXCL)
        self._open = True
        if mode is not None:
            os.fchmod(self.sink.fileno(), mode)

    def commit(self) -> None:
        """Close, and rename to the name of the output. Raises: StorageError if that came into being meanwhile."""
        try:
            self.sink.close()
            if self._force:
                os.replace(self._temporary, self._path)
            else:
                self._link()
        except OSError as error:
            raise StorageError(error.strerror or str(error), url=self.sink.url) from error
        self._open = False

    def _link(self) -> None:
        """Take the name only if nobody has it, which renaming can't do."""
        try:
            os.link(self._temporary, self._path)
        except FileExistsError:
            raise _exists(self.sink.url) from None
        except OSError:  # a file system without links
            if os.path.lexists(self._path):
                raise _exists(self.sink.url) from None
            os.rename(self._temporary, self._path)
        else:
            os.unlink(self._temporary)

    def abort(self) -> None:
        """Remove the temporary file."""
        if self._open:
            self._open = False
            with suppress(OSError):  # it would hide why we give up
                self.sink.close()
            if os.getpid() == self._owner:
                with suppress(OSError):
                    os.unlink(self._temporary)
