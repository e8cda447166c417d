"""A stream that a forked process reads and decompresses, while this process parses what it wrote.

The fork inherits the stream as it is, reads on, and writes to a pipe. Through shared memory it reports how much of the
shard it has read and how that ended. For commands only: a Python program that uses our functions is never forked.

The process ends when its work is done, when it is killed, or when its pipe has no reader left.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from tartools import errors
from tartools.errors import StorageError, TarToolsError
from tartools.shards.forks import Fork, can_fork, write_all
from tartools.shards.spill import SpillBuffer
from tartools.storage.streams import Stream, wait_until_ready
from tartools.tar.compression import is_compressed

if TYPE_CHECKING:
    import mmap

ENOUGH = 4 << 20  # bytes that are read before a process is forked: for less it does not pay
WORTH = 512 << 10  # bytes of a compressed file for which reading ahead in a process pays
READ = 128 << 10  # bytes a read in that process; some decompressors are slower the more they may return
SHARED = 1 << 20  # bytes of shared memory, most of them never touched
HEAD = 64  # bytes of it are numbers of eight bytes; the rest is for the text of a failure
COUNT, SOURCE_ENDED, OUTCOME, LENGTH, AWAITED = range(5)  # the numbers
END, FAILURE = 1, 2  # values of OUTCOME; 0 while the process works, and if it was killed
MOST_TEXT = 50_000  # characters of a traceback


class Source(Stream, Protocol):
    """The stored bytes that a forked stream reads: how many, the first of them, and whether all were read."""

    count: int
    head: bytes
    ended: bool


class ForkedStream:
    """*stream*, read by a forked process once its first 4 MiB have been read and if it is compressed.

    *source* is what *stream* reads, all of it from the descriptor *fd*; its count includes what the process reads.
    Where a process can't be forked, this process reads on.

    Holds a pipe of 1 MiB, and what `start_ahead` says.
    """

    file: io.FileIO | None = None
    start = 0

    def __init__(self, stream: Stream, source: Source, fd: int, url: str) -> None:
        self._stream = stream
        self._source = source
        self._fd = fd
        self._url = url
        self._until = ENOUGH  # bytes to read before a process is forked
        self._child: Fork | None = None
        self._shared: mmap.mmap | None = None
        self._stopped = False

    @property
    def running(self) -> bool:
        """Return whether a process reads, or has ended without our having noticed."""
        return self._child is not None and self._child.running

    def start_ahead(self, memory: int | None = None, folder: str | None = None) -> None:
        """Fork the process now, if the file is large enough for that to pay.

        Until the first `readinto` it buffers all it reads: *memory* bytes in memory, and the rest in a scratch file in
        *folder*; from then on up to 4 MiB. Without *memory* it waits while the pipe is full.
        """
        if os.fstat(self._fd).st_size >= WORTH:
            self._until = 0
            self._fork(memory, folder)

    def fileno(self) -> int:
        """Return a descriptor that is readable when `readinto` would not wait."""
        return self._fd if self._child is None else self._child.pipe.fileno()

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes; 0 at the end.

        Raises what *stream* raises, after the bytes before; StorageError if the process was killed. Any other exception
        in the process becomes a RuntimeError with its traceback.
        """
        if self._child is None:
            if self._until > 0 or not self._fork():
                count = self._stream.readinto(view)
                self._until -= count
                return count
            assert self._child is not None
        numbers = self._numbers()
        numbers[AWAITED] = 1
        count = self._child.pipe.readinto(view) or 0
        self._source.count = numbers[COUNT]
        if not count:
            self._finish()
        return count

    def cancel(self) -> bool:
        """Kill the process, which ends a `readinto` of another thread; tell whether there was one."""
        self._stopped = True
        return self._child is not None and self._child.end(kill=True)

    def close(self) -> None:
        """Kill the process, and drop what it wrote."""
        if self._child is not None:
            self._child.close()

    def _numbers(self) -> memoryview:
        assert self._shared is not None
        return memoryview(self._shared)[:HEAD].cast("Q")

    def _fork(self, memory: int | None = None, folder: str | None = None) -> bool:
        """Fork the process if the stream is compressed; tell whether it runs. Called once."""
        self._until = sys.maxsize
        if not can_fork() or not (self._source.file is not None or is_compressed(self._source.head)):
            return False
        import mmap

        try:
            self._shared = mmap.mmap(-1, SHARED)
            self._numbers()[COUNT] = self._source.count
            buffer = None if memory is None else SpillBuffer(memory, folder)
            self._child = Fork(lambda pipe: self._read_on(pipe, buffer), (self._fd,))
        except OSError:  # too little memory, too many open files, or too many processes
            return False
        return True

    def _finish(self) -> None:
        """At the end of the pipe: wait for the process, and raise what it failed with."""
        assert self._child is not None
        self._child.end()
        status, numbers = self._child.status, self._numbers()
        if self._stopped:
            raise StorageError("reading was stopped", url=self._url)
        if numbers[SOURCE_ENDED]:
            self._source.readinto(memoryview(bytearray()))  # raises if the source ended too early
        if numbers[OUTCOME] == FAILURE:
            assert self._shared is not None
            raise _load_error(self._shared[HEAD : HEAD + numbers[LENGTH]])
        if numbers[OUTCOME] != END:
            from tartools.storage.children import describe  # only now: importing subprocess costs 5 ms

            why = " (there may be too little memory)" if status == -signal.SIGKILL else ""
            raise StorageError(f"the process that reads this {describe(status)}{why}", url=self._url)

    # ---- what follows runs in the forked process ----

    def _read_on(self, pipe: int, buffer: SpillBuffer | None) -> None:
        """Write the rest of the stream to *pipe*, and report how that ended."""
        numbers = self._numbers()
        outcome, failure = END, b""
        if self._source.file is None:
            _exit_with_reader(pipe)
        try:
            if buffer is None:
                view = memoryview(bytearray(READ))
                while count := self._read(view):
                    write_all(pipe, view[:count])
            else:
                _write_ahead(self._read, pipe, buffer, lambda: bool(numbers[AWAITED]))
        except BrokenPipeError:
            raise
        except BaseException as error:
            outcome, failure = FAILURE, _dump_error(error, self._url)
            assert self._shared is not None
            self._shared[HEAD : HEAD + len(failure)] = failure
        numbers[LENGTH] = len(failure)
        numbers[SOURCE_ENDED] = self._source.ended
        numbers[OUTCOME] = outcome  # last: everything else is in place

    def _read(self, view: memoryview) -> int:
        count = self._stream.readinto(view)
        self._numbers()[COUNT] = self._source.count
        return count


def _write_ahead(
    read: Callable[[memoryview], int], pipe: int, buffer: SpillBuffer, awaited: Callable[[], bool]
) -> None:
    """Write to *pipe* what *read* returns, reading on into *buffer* while the pipe is full.

    Raises what *read* raises once everything before it is written.
    """
    view = memoryview(bytearray(READ))
    failure: BaseException | None = None
    more = True
    os.set_blocking(pipe, False)
    while True:
        while part := buffer.first():
            try:
                buffer.drop(os.write(pipe, part))
            except BlockingIOError:
                buffer.awaited = awaited()
                if more and not buffer.full:
                    break
                wait_until_ready(pipe, writing=True)
        if not more:
            break
        try:
            more = (count := read(view)) > 0
            if more:
                buffer.awaited = awaited()
                buffer.append(bytes(view[:count]))
        except BaseException as error:
            failure, more = error, False
    if failure is not None:
        raise failure


def _exit_with_reader(pipe: int) -> None:
    """End this process as soon as *pipe* has no reader, even while it waits for input."""

    def watch() -> None:
        poll = select.poll()
        poll.register(pipe, 0)
        if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll()):
            os._exit(0)

    with contextlib.suppress(RuntimeError):  # no thread can be started: then it ends at its next write
        threading.Thread(target=watch, daemon=True).start()


# ---- failures as text ----


def _dump_error(error: BaseException, url: str) -> bytes:
    """Return *error*, from reading *url*, as JSON: a TarToolsError by its parts, any other by its traceback."""
    import json

    if isinstance(error, MemoryError):
        error = StorageError("there is too little memory to read it", url=url)
    if isinstance(error, TarToolsError):
        where = {"url": error.url, "offset": error.offset}
        return json.dumps({"kind": type(error).__name__, "message": error.message, **where}).encode()
    import traceback

    return json.dumps({"kind": "", "message": "".join(traceback.format_exception(error))[-MOST_TEXT:]}).encode()


def _load_error(text: bytes) -> Exception:
    """Return the error that `_dump_error` wrote as *text*."""
    import json

    parts = json.loads(text)
    kind = getattr(errors, parts["kind"], None) if parts["kind"] else None
    if kind is None:
        return RuntimeError(f"in the process that reads: {parts['message']}")
    return kind(parts["message"], url=parts["url"], offset=parts["offset"])  # type: ignore[no-any-return]
