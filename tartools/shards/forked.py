"""A stream that a forked process reads and decompresses, while this process parses what it wrote.

The fork inherits the stream as it is, reads on, and writes records to a pipe: each is a header and some bytes of the
stream; the last one is how it ended. For commands only: a Python program that uses our functions is never forked.

The process ends when its work is done, when it is killed, or when its pipe has no reader left.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import sys
import threading

from tartools.errors import StorageError, TarToolsError
from tartools.shards.forks import Fork, can_fork, write_all
from tartools.storage.streams import Stream, wait_until_ready
from tartools.tar.compression import StoredBytes

ENOUGH = 4 << 20  # bytes that are read before a process is forked: for less it does not pay
READ = 128 << 10  # bytes a read in that process; some decompressors are slower the more they may return
RECORD = struct.Struct("<QQ")  # bytes that follow, and how many stored bytes had been read then
LAST = 1 << 63  # added to the number of bytes of the last record, which is the failure that ended the stream, or empty
ALL_READ = 1 << 62  # added, too, if the source was read to its end
MOST_TEXT = 50_000  # characters of a traceback


class ForkedStream(Stream):
    """*stream*, decompressed by a forked process once its first 4 MiB have been read.

    *source* is what *stream* reads, all of it from the descriptor *fd*; its count includes what the process reads.
    Where a process can't be forked, this process reads on.

    Holds a pipe of 1 MiB.
    """

    def __init__(self, stream: Stream, source: StoredBytes, fd: int, url: str) -> None:
        self._stream = stream
        self._source = source
        self._fd = fd
        self._url = url
        self._until = ENOUGH  # bytes to read before a process is forked
        self._child: Fork | None = None
        self._left = 0  # bytes of the record that is being read
        self._last = 0  # what the header of the last record has, once it was read
        self._ended = False

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
        child, count = self._child, 0
        while count < len(view) and self._has_record(child, wait=not count):
            some = child.pipe.readinto(view[count : count + self._left])
            if not some:
                break
            self._left -= some
            count += some
        if not count and not self._ended:
            self._finish(child)
        return count

    def close(self) -> None:
        """Kill the process, and drop what it wrote."""
        if self._child is not None:
            self._child.close()

    def _fork(self) -> bool:
        """Fork the process; tell whether it runs. Called once."""
        self._until = sys.maxsize
        if not can_fork():
            return False
        try:
            self._child = Fork(self._read_on, (self._fd,))
        except OSError:  # too little memory, too many open files, or too many processes
            return False
        return True

    def _has_record(self, child: Fork, wait: bool) -> bool:
        """Tell whether bytes of a record are to be read; unless *wait*, of one that has begun to come."""
        if (
            not self._left
            and not self._last
            and (wait or wait_until_ready(child.pipe.fileno(), writing=False, seconds=0))
        ):
            header = _read_whole(child, RECORD.size)
            if header:
                size, self._source.count = RECORD.unpack(header)
                self._left, self._last = (0, size) if size & LAST else (size, 0)
        return self._left > 0

    def _finish(self, child: Fork) -> None:
        """Read the last record. Raises what the process reports; StorageError if it was killed."""
        failure = _read_whole(child, self._last & ~(LAST | ALL_READ)) if self._last else None
        self._ended = True
        child.end()
        if failure is None:
            from tartools.storage.children import describe  # only now: importing subprocess costs 5 ms

            why = " (there may be too little memory)" if child.status == -signal.SIGKILL else ""
            raise StorageError(f"the process that reads this {describe(child.status)}{why}", url=self._url)
        if self._last & ALL_READ:
            self._source.readinto(memoryview(bytearray()))  # raises if the source ended too early
        if failure:
            import pickle

            raise pickle.loads(failure)  # noqa: S301  # from our own fork

    # ---- what follows runs in the forked process ----

    def _read_on(self, pipe: int) -> None:
        """Write the rest of the stream to *pipe*, and how that ended."""
        failure, room = b"", memoryview(bytearray(RECORD.size + READ))
        if self._source.file is None:
            _exit_with_reader(pipe)
        try:
            while count := self._stream.readinto(room[RECORD.size :]):
                RECORD.pack_into(room, 0, count, self._source.count)
                write_all(pipe, room[: RECORD.size + count])
        except BrokenPipeError:
            raise
        except BaseException as error:
            failure = _dump_error(error, self._url)
        size = len(failure) | LAST | (ALL_READ if self._source.ended else 0)
        write_all(pipe, memoryview(RECORD.pack(size, self._source.count) + failure))


def _read_whole(child: Fork, size: int) -> bytes | None:
    """Return *size* bytes that *child* wrote; None if it has ended before."""
    data = b""
    while len(data) < size:
        more = child.pipe.read(size - len(data))
        if not more:
            return None
        data += more
    return data


def _exit_with_reader(pipe: int) -> None:
    """End this process as soon as *pipe* has no reader, even while it waits for input."""

    def watch() -> None:
        poll = select.poll()
        poll.register(pipe, 0)
        if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll()):
            os._exit(0)

    with contextlib.suppress(RuntimeError):  # no thread can be started: then it ends at its next write
        threading.Thread(target=watch, daemon=True).start()


def _dump_error(error: BaseException, url: str) -> bytes:
    """Return *error*, from reading *url*, pickled: as it is if it is a TarToolsError, any other by its traceback."""
    import pickle

    if isinstance(error, MemoryError):
        error = StorageError("there is too little memory to read it", url=url)
    if not isinstance(error, TarToolsError):
        import traceback

        text = "".join(traceback.format_exception(error))[-MOST_TEXT:]
        error = RuntimeError(f"in the process that reads: {text}")
    return pickle.dumps(error)
