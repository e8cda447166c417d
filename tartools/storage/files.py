"""URLs as Python files, for programs that want one: `torch.load`, `zipfile.ZipFile`, `PIL.Image.open`.

Reading seeks by ranges where the store has them. What is written appears at `close`, and never because a file was
forgotten.
"""

from __future__ import annotations

import io
import os
import weakref
from types import TracebackType

from tartools import storage
from tartools.errors import StorageError
from tartools.storage.interrupts import signals_wait
from tartools.storage.local import path_of
from tartools.storage.names import LOCAL, REMOTE, gopen, scheme_of
from tartools.storage.ranges import RangedInput
from tartools.storage.scratch import scratch_file
from tartools.storage.stores import Object, object_of
from tartools.storage.streams import BUFFER, Output, check_whole, stream_file
from tartools.storage.tries import persist
from tartools.streams import Input

FIRST = 256 << 10  # bytes of the first range behind a seek; ranges double up to the usual 8 MiB


def reading(url: str) -> io.BufferedReader:
    """Return the bytes of *url* as a file. It seeks if *url* is a local file, or an object in a store.

    Of a server that has no ranges, the whole object is copied to a temporary file first.

    Raises: StorageError, when it is opened or read.
    """
    scheme = scheme_of(url)
    if scheme in LOCAL:
        try:
            return open(path_of(url), "rb")
        except OSError as error:
            raise StorageError(error.strerror or str(error), url=url) from error
    if scheme not in REMOTE or gopen(scheme):
        return stream_file(storage.open_read(url), url)
    source = object_of(url)
    known = persist(lambda: source.get(0, 1, ""), url)
    known.body.close()
    if known.size == 0 or (known.length == 1 and known.size is not None and known.version):
        return io.BufferedReader(_RangedFile(source, known.size or 0, known.version), BUFFER)
    return _copy(RangedInput(source), url)


def _copy(stream: Input, url: str) -> io.BufferedReader:
    """Return a temporary file without a name that holds all of *stream*."""
    scratch = scratch_file()
    room = memoryview(bytearray(BUFFER))
    try:
        while count := stream.readinto(room):
            scratch.write(room[:count])
        check_whole(stream, url)
    finally:
        stream.close()
    scratch.seek(0)
    return open(os.dup(scratch.fileno()), "rb")  # whoever asked for it closes it


class _RangedFile(io.RawIOBase):
    """An object of *size* bytes as a raw file that seeks; all its ranges are of one *version*."""

    def __init__(self, source: Object, size: int, version: str) -> None:
        self._source = source
        self._size = size
        self._version = version
        self._position = 0
        self._input: RangedInput | None = None
        self._at = 0  # of _input
        self._owner = os.getpid()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.seek(0, os.SEEK_CUR)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if self.closed:
            raise ValueError("this file is closed")
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError(22, "before the begin of the object")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if self._position >= self._size:
            return 0
        if self._owner != os.getpid():  # the connection is that of the process we were forked from
            self._input, self._owner = None, os.getpid()
        if self._input is None or self._at != self._position:
            self._stop()
            self._input = RangedInput(self._source, self._position, FIRST, self._size, self._version)
        try:
            count = self._input.readinto(memoryview(buffer).cast("B"))
        except BaseException:
            self._stop()  # whoever reads on begins anew here
            raise
        self._position += count
        self._at = self._position
        return count

    def close(self) -> None:
        self._stop()
        super().close()

    def _stop(self) -> None:
        if self._input is not None:
            self._input.close()
        self._input = None


class WritableFile(io.BufferedIOBase):
    """What is written to *url*, which appears whole at `close`, or when a `with` block ends normally.

    Anything else (an exception, `abort`, being forgotten, the end of the program) leaves nothing behind.

    Holds: 128 KiB, and what the store's upload holds. Raises: StorageError.
    """

    def __init__(self, url: str, *, force: bool = False) -> None:
        storage.check_output(url, force, ())
        self._url = url
        with signals_wait():
            self._output: Output = storage.open_write(url, force)
            self._finalizer = weakref.finalize(self, self._output.abort)
        self._held = bytearray()
        self._position = 0
        self._forgotten = self._broken = False

    def writable(self) -> bool:
        """Tell that it can be written."""
        return True

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self._position

    def write(self, data: bytes | bytearray | memoryview, /) -> int:  # type: ignore[override]
        """Add *data*; return its bytes."""
        if not self._finalizer.alive:
            raise ValueError("this file is closed")
        view = memoryview(data).cast("B")
        try:
            if len(self._held) + view.nbytes > BUFFER:
                self._pass_on()
            if view.nbytes > BUFFER:
                self._output.sink.write(view)
            else:
                self._held += view
        except BaseException:
            self._broken = True  # part of it may have been written: what follows would make no whole
            raise
        self._position += view.nbytes
        return view.nbytes

    def close(self) -> None:
        """Write what is left, and let the object appear. Does nothing the second time, and after `abort`.

        Raises: StorageError, also after what wraps this file was forgotten.
        """
        if self._forgotten:
            raise StorageError("not written: what wraps this file was forgotten before it was closed", url=self._url)
        if self._broken and self._finalizer.alive:
            self.abort()
            raise StorageError("an earlier write failed, so this is not whole", url=self._url)
        if self._finalizer.alive:
            try:
                self._pass_on()
                self._output.commit()
            except BaseException:
                self.abort()
                raise
            self._finalizer.detach()
            super().close()

    def abort(self) -> None:
        """Give up: nothing appears. Does nothing after `close`."""
        self._held = bytearray()
        try:
            self._finalizer()
        finally:
            super().close()

    def __enter__(self) -> WritableFile:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close after a normal end of the block, else abort."""
        if kind is None:
            self.close()
        else:
            self.abort()

    def _dealloc_warn(self, wrapper: object) -> None:
        """Give up: a TextIOWrapper that is forgotten closes what it wraps. It calls this before, by this name."""
        self._forgotten = True
        self.abort()

    def __del__(self) -> None:
        """Give up: a file that was forgotten is not complete."""
        if hasattr(self, "_position"):
            self.abort()

    def _pass_on(self) -> None:
        if self._held:
            self._output.sink.write(self._held)
            self._held = bytearray()
