"""URLs as Python files, for programs that want one: `torch.load`, `zipfile.ZipFile`, `PIL.Image.open`.

Reading seeks by ranges if the store has them. What is written appears at `close`, and never by garbage collection.
"""

from __future__ import annotations

import io
import os

from tartools import storage
from tartools.errors import StorageError
from tartools.storage.checks import probe
from tartools.storage.local import path_of
from tartools.storage.objects import fetch_range, object_at
from tartools.storage.objects.contract import Object
from tartools.storage.objects.ranges import RangedInput
from tartools.storage.outputs import ClosedByBlock, Pending
from tartools.storage.scratch import copy_to_scratch
from tartools.storage.streams import (
    FILE_BUFFER_BYTES,
    FileVersion,
    Input,
    SeekableFile,
    Sink,
    check_whole,
    chunks,
    stream_file,
    translate_os_errors,
)
from tartools.storage.url import Url

FIRST_RANGE_BYTES = 256 << 10  # bytes of the first range after a seek; ranges double up to 8 MiB
TAIL_BYTES = 64 << 10  # bytes at the end that are kept once read: directories of zip files, Parquet's footer
MAX_SKIPPED_BYTES = 1 << 20  # bytes that a seek forward reads and drops: a new request takes longer


def open_as_file(url: str) -> io.BufferedReader:
    """Return the bytes of *url* as a file, which the caller closes.

    It can seek if *url* is a regular local file, or an object that no `GOPEN_<SCHEME>` command reads; else (stdin,
    commands, fifos, archives that were split, hdfs: and ftp: URLs) it is a stream. A local file is opened itself, also
    if GOPEN_FILE is set. If a server has no ranges or no ETags, the whole object is copied to a temporary file first.

    Raises: StorageError, when the file is opened or read, but reading a local file raises OSError; UsageError if *url*
    names no object of its store, or holds credentials, or is a file: URL of another host.
    """
    url = Url(url)
    if url.is_local:
        with translate_os_errors(url):
            return open(path_of(url), "rb")
    if not url.is_stored or url.read_command:
        return stream_file(storage.open_read(url), url)
    if object_version := probe(url).version:
        size, _, tag = object_version.partition(" ")
        return io.BufferedReader(_RangedFile(object_at(url), int(size), tag), FILE_BUFFER_BYTES)
    return _copy(RangedInput(object_at(url)), url)


def open_seekable(url: str) -> io.BufferedReader:
    """Return the bytes of *url* as a file that can seek, which the caller closes.

    A regular local file or an object is read in place; anything else (stdin, the output of a command, also one of
    `GOPEN_<SCHEME>`, a fifo, an archive that was split), and an object of a server without ranges or ETags, is copied
    to a temporary file first.

    Raises: StorageError, when the file is opened or read, but reading a local file raises OSError; UsageError if *url*
    names no object of its store, or holds credentials, or is a file: URL of another host.
    """
    return open_as_file(url) if storage.is_seekable(url) else _copy(storage.open_read(url), url)


def version_of_file(file: io.BufferedReader) -> str:
    """Return the version of *file*, a file that can seek, from `open_as_file` or `open_seekable`.

    It is the size in bytes, a blank, and the mtime in ns of a local file, now, or the ETag (or `Reply.version`) that
    the object had when it was opened; of a temporary copy only the size.
    """
    raw: object = file.raw
    if isinstance(raw, _RangedFile):
        return raw.version
    file_version = FileVersion.of(file)
    return str(file_version) if isinstance(getattr(raw, "name", None), str) else str(file_version.size)


def _copy(stream: Input, url: str) -> io.BufferedReader:
    """Return a temporary file without a name that holds all of *stream*, the bytes of *url*; the stream is closed.

    Raises: StorageError, also if the server did not state the length, so that the copy may be truncated.
    """
    try:
        file = copy_to_scratch(stream)
    finally:
        stream.close()
    try:
        check_whole(stream, url)
    except BaseException:
        file.close()
        raise
    return file


class _RangedFile(SeekableFile):
    """An object of *size* bytes as a raw file that can seek; all its ranges are of one *version*, an ETag.

    It keeps one request open that reads on, and makes a new one after a seek back, or forward by more than
    MAX_SKIPPED_BYTES, and in a fork. After a seek into the last TAIL_BYTES all of these are read once, and kept.
    `failure`: the last error of `readinto`, or None: a library may have raised one of its own in its place.
    """

    def __init__(self, source: Object, size: int, version: str) -> None:
        super().__init__(size)
        self._source = source
        self._version = version
        self._input: RangedInput | None = None
        self._at = 0  # of _input
        self._tail = b""
        self.failure: Exception | None = None  # the last one, which a library may have replaced by its own
        self._owner = os.getpid()

    @property
    def version(self) -> str:
        """The version of the object when it was opened: its size in bytes, a blank, and its ETag."""
        return f"{self._size} {self._version}"

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read up to `len(buffer)` bytes at the position; return how many, 0 at the end.

        Raises: StorageError, which is also kept in `failure`.
        """
        try:
            return self._readinto(buffer)
        except Exception as error:
            self.failure = error
            raise

    def _readinto(self, buffer: memoryview) -> int:
        """Read bytes at the position; return how many, 0 at the end.

        By the open request if it is at most MAX_SKIPPED_BYTES behind the position, else by a new one. In the last
        TAIL_BYTES, after a seek or once they are kept, from these. Raises: StorageError.
        """
        if self._position >= self._size:
            return 0
        if self._position >= self._size - TAIL_BYTES and (self._tail or self._at != self._position):
            return self._copy_from_tail(buffer)
        if self._owner != os.getpid():  # the connection belongs to the parent process
            self._input, self._owner = None, os.getpid()
        if self._input is None or not 0 <= self._position - self._at <= MAX_SKIPPED_BYTES:
            self._stop()
            self._input = RangedInput(self._source, self._position, FIRST_RANGE_BYTES, self._size, self._version)
            self._at = self._position
        try:
            for skipped in chunks(self._input, self._position - self._at):
                self._at += len(skipped)
            if self._at < self._position:
                raise StorageError("ended before its size", url=self._source.url, offset=self._at)
            count = self._input.readinto(memoryview(buffer).cast("B"))
        except BaseException:
            self._stop()  # a later read begins with a new request
            raise
        self._position += count
        self._at = self._position
        return count

    def _copy_from_tail(self, buffer: memoryview) -> int:
        """Copy bytes at the position from the last TAIL_BYTES, which are requested once and kept; return how many.

        Raises: StorageError.
        """
        begin = max(self._size - TAIL_BYTES, 0)
        self._tail = self._tail or fetch_range(
            self._source.url, begin, self._size, self.version, "was replaced while it was being read"
        )
        data = self._tail[self._position - begin :][: len(buffer)]
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        """Close the file and the connection."""
        self._stop()
        super().close()

    def _stop(self) -> None:
        """Close the open request, if there is one."""
        if self._input is not None:
            self._input.close()
        self._input = None


class WritableFile(ClosedByBlock, io.BufferedIOBase):
    """A file that is written to *url*, which appears whole at `close`, or when a `with` block ends normally.

    Anything else (an exception, `abort`, garbage collection, the end of the program) leaves nothing behind; but stdout,
    existing fifos and devices, and commands (`pipe:`) get bytes before `close`. It belongs to the process that opened
    it: in a fork, `write` and `close` raise RuntimeError. *force*: replace an existing file or object. `failure`: the
    last error of `write`, or None: a library may have raised one of its own in its place.

    Holds: FILE_BUFFER_BYTES, and what the store's upload holds. Raises: StorageError, also if *url* exists (unless
    *force*); UsageError if *url* is empty, a pattern with a number, or a terminal, holds credentials, names no object
    of its store, or is a file: URL of another host.
    """

    def __init__(self, url: str, *, force: bool = False) -> None:
        storage.check_output(url, force, (), form=None)
        self._url = url
        self._pending = Pending(self, lambda: storage.open_write(url, force))
        self._buffer = bytearray()  # short writes
        self._position = 0
        self._forgotten = self._incomplete = False
        self.failure: Exception | None = None  # the last one, which a library may have replaced by its own

    def writable(self) -> bool:
        """Return True: the file is for writing."""
        return True

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self._position

    def write(self, data: bytes | bytearray | memoryview, /) -> int:  # type: ignore[override]
        """Write all of *data*; return its length in bytes. After a StorageError `close` raises one, too.

        Raises: ValueError after `close` or `abort`; StorageError; RuntimeError in a fork; BrokenPipeError for stdout
        whose reader has closed the pipe.
        """
        view = memoryview(data).cast("B")
        try:
            sink = self._pending.writer.sink
            self._incomplete = True  # if this fails, what follows would not belong behind it
            if len(self._buffer) + view.nbytes > FILE_BUFFER_BYTES:
                self._flush(sink)
            if view.nbytes > FILE_BUFFER_BYTES:
                sink.write(view)
            else:
                self._buffer += view
        except Exception as error:
            self.failure = error
            raise
        self._incomplete = False
        self._position += view.nbytes
        return view.nbytes

    def _flush(self, sink: Sink) -> None:
        """Write the buffered bytes to *sink*, and empty the buffer. Raises: the errors of `sink.write`."""
        if self._buffer:
            sink.write(self._buffer)
            self._buffer = bytearray()

    def close(self) -> None:
        """Write the buffered bytes, and let the file or object appear. Does nothing the second time, or after `abort`.

        Raises: StorageError, also if an earlier `write` failed, or, each time, if a wrapper of this file was
        garbage-collected without being closed; RuntimeError in a fork; BrokenPipeError for stdout whose reader has
        closed the pipe. After an error nothing appears.
        """
        if self._forgotten:
            raise StorageError("not written: a wrapper of this file was dropped before it was closed", url=self._url)
        try:
            if self._pending.is_open:
                self._pending.check_process()
                try:
                    if self._incomplete:
                        raise StorageError("an earlier write failed, so this is not complete", url=self._url)
                    self._flush(self._pending.writer.sink)
                except BaseException:
                    self._pending.abort()
                    raise
            self._pending.commit()
        finally:
            super().close()

    def abort(self) -> None:
        """Drop everything, and close the file: nothing appears. Does nothing after `close`."""
        try:
            self._pending.abort()
        finally:
            super().close()

    def _dealloc_warn(self, wrapper: object) -> None:
        """Abort, and let `close` raise: a garbage-collected TextIOWrapper calls this before it closes this file."""
        self._forgotten = True
        self.abort()

    def __del__(self) -> None:
        """Abort: a file that is garbage-collected before it was closed does not appear."""
        if hasattr(self, "_position"):
            self.abort()
