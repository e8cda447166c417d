"""Local files, fifos and devices, and stdin and stdout: the URL `-`."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import re
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache

from tartools.errors import ExistsError, StorageError, UsageError, shown
from tartools.storage.interrupts import allow_signals
from tartools.storage.streams import (
    FileSink,
    InputFile,
    changed_input_error,
    enlarge_pipe,
    sync_file,
    translate_os_errors,
    wait_until_ready,
)
from tartools.storage.url import FILE_PREFIX, Url

MAX_TEMPORARY_NAME_BYTES = 100  # bytes of the output's name in that of the temporary file; file systems allow 255
_made: set[str] = set()  # folders of outputs


def canonical_name(url: str) -> str:
    """Return the real path of a local file, equal for all its names but hard links; for other URLs the URL itself.

    Raises: UsageError for a `file://` URL of another host, or with a NUL.
    """
    return os.path.realpath(path_of(url)) if Url(url).is_local else str(url)


def path_of(url: str) -> str:
    """Return the path that the local *url* names: `file://` is percent-decoded (RFC 8089), a plain path unchanged.

    Raises: UsageError for a `file://` URL of another host, or with a NUL.

    >>> path_of("file:a%20b.tar"), path_of("file:///tmp/a%20b.tar")
    ('a%20b.tar', '/tmp/a b.tar')
    """
    if not url.startswith(FILE_PREFIX):
        return url
    path = url.removeprefix(FILE_PREFIX)
    if not path.startswith("//"):
        return path
    from urllib.parse import unquote

    host, slash, encoded_path = path[2:].partition("/")
    if host not in ("", "localhost"):
        raise UsageError(f"a file: URL of another host: {host}", url=url)
    decoded = slash + unquote(encoded_path)
    if "\0" in decoded:
        raise UsageError("not a file name: it has a NUL in it", url=url)
    return decoded


class FileInput:
    """An input that reads the open *file* from its current position on.

    `file`: that file if it is a regular one, from which others may read; None for fifos, devices and after `close`.
    `start`: the byte of the file where this input begins; 0 if it is not a regular file.
    """

    def __init__(self, file: InputFile) -> None:
        self._file = file
        regular = file.status is not None
        self.file: io.FileIO | None = file if regular else None
        self.start = os.lseek(file.fileno(), 0, os.SEEK_CUR) if regular else 0
        if not regular:
            enlarge_pipe(file.fileno())

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes; return how many, 0 at the end.

        Raises: StorageError, at the end also if a regular file has changed since it was opened.
        """
        try:
            while (count := self._file.readinto(view)) is None:  # the descriptor was inherited in non-blocking mode
                wait_until_ready(self._file.fileno(), writing=False)
        except OSError as error:
            raise StorageError(error.strerror or str(error), url=self._file.url) from error
        if not count:
            self._file.check()
        return count

    def fileno(self) -> int:
        """Return the descriptor, which a fork of this process can read too."""
        return self._file.fileno()

    def skip(self, count: int, /) -> None:
        """Move *count* bytes forward in a regular file, without reading them."""
        os.lseek(self._file.fileno(), count, os.SEEK_CUR)

    def cancel(self) -> bool:
        """Return True for a regular file, whose reads do not wait; False for others, whose reads can't be ended."""
        return self.file is not None

    def close(self) -> None:
        """Close a fifo or device, but not stdin; a regular file is closed when nothing that reads from it is left."""
        if self._file.closefd and self.file is None:
            self._file.close()
        self.file = None


def open_read(url: str) -> FileInput:
    """Open a local file, fifo or device for reading, or stdin for "-". Raises: OSError; UsageError as `path_of`."""
    return FileInput(InputFile(0 if url == "-" else path_of(url), url))


def read_small(url: str, max_bytes: int) -> bytes | None:
    """Return the bytes of *url* if it is the plain path of a regular file of up to *max_bytes*; None for any other.

    It takes a third of the system calls of `open_read`, which matters for a folder of small files.

    Raises: StorageError, also if it does not exist, or if the size changes while the file is read.
    """
    if Url(url).scheme:
        return None
    try:
        status = os.stat(url)
        size = status.st_size
        if size > max_bytes or not stat.S_ISREG(status.st_mode):
            return None
        fd = os.open(url, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(fd, size + 1)
            while len(data) < size and (part := os.read(fd, size + 1 - len(data))):  # some network file systems do less
                data += part
        finally:
            os.close(fd)
    except OSError as error:  # not by `translate_os_errors`, whose block costs 2 µs a file
        raise StorageError(error.strerror or str(error), url=url) from error
    if len(data) != size:  # one `read` returns one version, so that the size is enough
        raise changed_input_error(url)
    return data


def check_readable(url: str) -> int | None:
    """Return the size of the local file *url* in bytes, None if it is a fifo, a device or a socket.

    Raises: StorageError unless it exists, can be read, and is no directory; UsageError for `file://` of another host.
    """
    path = path_of(url)
    try:
        status = os.stat(path)
    except OSError as error:  # not by `translate_os_errors`, whose block costs 2 µs a file
        raise StorageError(f"{error.strerror or error}{_several_names_advice(path)}", url=url) from error
    except ValueError as error:
        raise StorageError(f"not a file name: {error}", url=url) from error
    if stat.S_ISDIR(status.st_mode):
        raise StorageError("is a directory, not a shard (tarcreate --folder makes a shard from it)", url=url)
    if not os.access(path, os.R_OK):
        raise StorageError(os.strerror(errno.EACCES), url=url)
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _several_names_advice(path: str) -> str:
    """Return advice for a message if the missing *path* lacks a brace, or is several existing names; else ""."""
    if path.count("{") != path.count("}"):
        return " (a range is written {000..147}: a brace is missing)"
    words = path.split()
    if len(words) > 1 and all(os.path.exists(word) for word in words):
        return " (in quotes this is one name: write the names without quotes around all of them)"
    return ""


def check_listed(urls: Iterable[str]) -> None:
    """Raise StorageError unless this user may read all files *urls*: paths of regular files, just found in a folder."""
    for url in urls:
        if not os.access(url, os.R_OK):
            check_readable(url)


def check_writable(url: str, force: bool, inputs: Sequence[str]) -> None:
    """Check a local output, or stdout for "-", before anything is read.

    *inputs*: local URLs, and "-" for stdin. Raises: ExistsError if *url* is a regular file (unless *force* or stdout);
    StorageError if a regular file is also one of *inputs*, or *url* is a directory or ends with a slash; UsageError.
    """
    if url != "-":
        _file_path(url)
    output_status = _stat(url, 1)
    if output_status is None or not stat.S_ISREG(output_status.st_mode):
        return
    for name in inputs:
        input_status = _stat(name, 0)
        if input_status and os.path.samestat(output_status, input_status):
            raise StorageError(f"this output is also the input {shown(name)}", url="stdout" if url == "-" else url)
    if url != "-" and not force:
        raise ExistsError(url)


def _file_path(url: str) -> str:
    """Return the path of the output *url*. Raises: StorageError if it ends with a slash or is a directory."""
    path = path_of(url)
    if path.endswith("/") or os.path.isdir(path):
        raise StorageError("is the name of a directory; name a file in it", url=url)
    return path


def exists(url: str) -> bool:
    """True if the local *url*, of any kind, exists; False for broken links and failed look-ups. Raises: UsageError."""
    return _stat(url, 1) is not None


def _stat(url: str, fd: int) -> os.stat_result | None:
    """Return the status of the local file *url*, for "-" of the descriptor *fd*; None if it can't be looked up."""
    try:
        return os.fstat(fd) if url == "-" else os.stat(path_of(url))
    except (OSError, ValueError):
        return None


def open_append(url: str) -> FileSink:
    """Open the local file *url* for appending; a missing file is made, with permissions for this user alone.

    Missing folders are made, with the usual permissions. Raises: StorageError; UsageError as `path_of`.
    """
    path = path_of(url)
    with translate_os_errors(url):
        if not os.path.lexists(os.path.dirname(path) or "."):
            make_directory(os.path.dirname(path))
        sink = FileSink(path, url, os.O_CREAT | os.O_APPEND, 0o600)
        sync_file(os.path.dirname(path))
        return sink


class OpenOutput:
    """Stdout, or an existing file that is not a regular one: written in place, where it is visible before `commit`.

    *sink* takes the bytes.
    """

    def __init__(self, sink: FileSink) -> None:
        self.sink = sink
        enlarge_pipe(sink.fileno())

    def commit(self) -> None:
        """Close the file, but not stdout. Raises: StorageError if that fails."""
        with translate_os_errors(self.sink.url):
            self.sink.close()

    def abort(self) -> None:
        """Close the file, but not stdout; the bytes that were written stay. Raises: OSError if that fails."""
        self.sink.close()


def open_text() -> OpenOutput:
    """Return stdout as output, also if it is a terminal: for text."""
    return OpenOutput(FileSink(1, "stdout"))


def sync_folder(url: str) -> None:
    """Flush the folder that contains the local file *url* to the disk: new and removed names. Nothing for other URLs.

    A symbolic link counts as its target. Does nothing with `TARTOOLS_FSYNC=0`. Raises: StorageError; UsageError.
    """
    if Url(url).is_local:
        with translate_os_errors(url):
            sync_file(os.path.dirname(os.path.realpath(path_of(url))))


def remove(url: str) -> None:
    """Remove a local file, or a link, not its target; no failure if it is missing. Raises: StorageError; UsageError."""
    with translate_os_errors(url), suppress(FileNotFoundError):
        os.unlink(path_of(url))
        sync_folder(url)


def open_write(url: str, force: bool) -> OpenOutput | FileOutput:
    """Open a local file for writing, or stdout for "-"; a regular file appears when it is complete.

    Existing files of other kinds are written in place. A replaced file keeps its permissions, and a link to it stays. A
    folder that does not exist is made; if the output is dropped, it is removed again unless it holds something.

    Raises: StorageError, also if *url* is a regular file (unless *force*), is a folder or ends with a slash; OSError;
    UsageError for a terminal, and for a `file://` URL of another host.
    """
    if url == "-":
        if os.isatty(1):
            raise UsageError("stdout is a terminal, which cannot show a tar archive: use -o FILE, > FILE or a pipe")
        return open_text()
    name = _file_path(url)
    path = os.path.realpath(name)  # a symlink stays one
    status = os.stat(name) if os.path.exists(name) or os.path.lexists(path) else None
    if status and not stat.S_ISREG(status.st_mode):
        return open_in_place(name, url)  # by *name*: the real path of `>(command)` does not exist
    if status and not force:
        raise ExistsError(url)
    if not os.path.lexists(os.path.dirname(path)):
        _made.update(make_directory(os.path.dirname(path)))
    try:
        return FileOutput(path, url, force, stat.S_IMODE(status.st_mode) if status else None)
    except BaseException:
        _remove_made(path)
        raise


def make_directory(url: str) -> list[str]:
    """Make the local directory *url* and its missing parents; does nothing if *url* is not local.

    Returns the paths of the directories that were missing, outermost first, [] for none; their names are flushed to the
    disk. Raises: StorageError; UsageError for a `file://` URL of another host.
    """
    if not Url(url).is_local:
        return []
    path, missing = path_of(url), []
    parent = path
    while parent and not os.path.isdir(parent):
        missing.append(parent)
        parent = os.path.dirname(parent)
    with translate_os_errors(url):
        os.makedirs(path, exist_ok=True)
        for folder in missing:
            sync_file(os.path.dirname(folder))
    return missing[::-1]


def _remove_made(path: str) -> None:
    """Remove the folders above *path* that `open_write` has made in this process, as far as they are empty."""
    with suppress(OSError):
        while (path := os.path.dirname(path)) in _made:
            os.rmdir(path)
            _made.discard(path)


def open_terminal() -> int:
    """Return a descriptor for reading and writing the controlling terminal. Raises: OSError if there is none."""
    return os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)  # POSIX.1-2017, 10.1


def open_in_place(path: str, url: str) -> OpenOutput:
    """Open the existing file *path*, which is not a regular one, for writing; waits for the reader of a fifo.

    *url*: its name for messages. Raises: UsageError for a terminal; OSError.
    """
    with allow_signals():  # a fifo waits for its reader
        sink = FileSink(path, url)
    if os.isatty(sink.fileno()):
        sink.close()
        raise UsageError("is a terminal; name a file or a pipe", url=url)
    return OpenOutput(sink)


class FileOutput:
    """A regular file that is written under a temporary name beside its own, which it takes at `commit`.

    Its bytes are flushed to the disk before it takes its name (not with `TARTOOLS_FSYNC=0`). *path*: the file. *url*:
    its name for messages. *force*: replace an existing file. *mode*: its permissions, None for the default. `sink`
    takes the bytes. Raises: OSError.
    """

    def __init__(self, path: str, url: str, force: bool, mode: int | None) -> None:
        self._path = path
        self._force = force
        self._owner = os.getpid()  # a fork of this process leaves the file alone when it ends
        self._temporary, self.sink = _temporary_file(path, url)
        self._open = True
        self._synced = False
        if mode is not None:
            os.fchmod(self.sink.fileno(), mode)

    def sync(self) -> None:
        """Flush the written data to the disk, in any thread; only `commit` may follow, and `sync_folder`.

        Raises: StorageError.
        """
        self.sink.sync()
        self._synced = True

    def commit(self) -> None:
        """Close the file, and let it take the name of the output. Data and name are flushed to the disk.

        After `sync` the name is not flushed: the caller does that by `sync_folder`. Raises: StorageError, also if the
        name exists by now (unless *force*). If the last step fails, the flush of the name, the file stays, complete.
        """
        synced = self._synced
        if not synced:
            self.sync()
        with translate_os_errors(self.sink.url):
            lock = os.dup(self.sink.fileno())  # until the file has its name
            try:
                self.sink.close()
                if self._force:
                    os.replace(self._temporary, self._path)
                else:
                    self._link()
            finally:
                os.close(lock)
        self._open = False
        if not synced:
            sync_folder(self.sink.url)

    def _link(self) -> None:
        """Give the temporary file the name of the output if that is free, by a link: a rename would replace a file.

        Without links in the file system: a look-up, then a rename. Raises: ExistsError if it is taken; OSError.
        """
        try:
            os.link(self._temporary, self._path)
        except FileExistsError:
            raise ExistsError(self.sink.url) from None
        except OSError:  # a file system without links
            if os.path.lexists(self._path):
                raise ExistsError(self.sink.url) from None
            os.rename(self._temporary, self._path)
        else:
            os.unlink(self._temporary)

    def abort(self) -> None:
        """Close and remove the temporary file, and folders made for it. Does nothing once the output has its name.

        In a fork of the process that opened it, the file is only closed.
        """
        if self._open:
            self._open = False
            with suppress(OSError):  # it would hide the reason of the abort
                self.sink.close()
            if os.getpid() == self._owner:
                with suppress(OSError):
                    os.unlink(self._temporary)
                _remove_made(self._path)


def _temporary_file(path: str, url: str) -> tuple[str, FileSink]:
    """Return the path and the open file of a new temporary file for the output *path*, in the same folder.

    The file is locked. First it removes temporary files that killed runs left for *path* before this process listed the
    folder, once. The lock tells whether a file's process lives: it ends with the process, and no other process can be
    taken for it, as by a number that is used again. Only files of this host are looked at, because not every shared
    directory tells one host of another's locks. *url*: the name for messages. Raises: OSError.
    """
    folder, name = os.path.split(path)
    for leftover in _temporary_files(folder):
        if is_temporary_name(leftover, name):
            _remove_if_left(os.path.join(folder, leftover))
    while True:
        temporary = os.path.join(folder, temporary_name(name))
        sink = FileSink(temporary, url, os.O_CREAT | os.O_EXCL)
        if lock_new(sink.fileno(), temporary):
            return temporary, sink
        sink.close()


def temporary_name(name: str) -> str:
    """Return a new base name for the incomplete output *name*: .NAME.HOST.PID-X.tmp; NAME up to 100 bytes, X random."""
    return f"{_temporary_prefix(name)}{os.getpid()}-{os.urandom(4).hex()}.tmp"


def is_temporary_name(leftover: str, name: str) -> bool:
    """True if *leftover* has the form of `temporary_name(name)` on this host, of any process."""
    prefix = _temporary_prefix(name)
    return leftover.startswith(prefix) and re.fullmatch(r"\d+-[0-9a-f]{8}\.tmp", leftover[len(prefix) :]) is not None


def _temporary_prefix(name: str) -> str:
    """Return the start of temporary names for the output *name* on this host: ".NAME.HOST.", NAME up to 100 bytes."""
    return f".{os.fsdecode(os.fsencode(name)[:MAX_TEMPORARY_NAME_BYTES])}.{os.uname().nodename}."


def lock_new(fd: int, path: str) -> bool:
    """Lock the new file or folder *path*, open as *fd*; True if it is ours, until *fd* and its duplicates are closed.

    False if another run took it for abandoned before it was locked, and removes it: the caller makes another one. Where
    the file system has no locks, nobody removes it, and the result is True.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: nobody gets one, so nobody removes it
        return True
    return os.path.lexists(path)


@cache
def _temporary_files(folder: str) -> tuple[str, ...]:
    """Return the names in *folder* like ".*.tmp", as of this process's first call for it; () if it can't be listed."""
    with suppress(OSError):
        return tuple(name for name in os.listdir(folder or ".") if name[:1] == "." and name.endswith(".tmp"))
    return ()


def _remove_if_left(path: str) -> None:
    """Remove the file *path* if no process holds its lock. If it can't be opened for writing or locked, it stays."""
    with suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
        finally:
            os.close(fd)
