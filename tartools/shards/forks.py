"""Forked processes, each with a pipe that it writes to and this process reads; and streams that one decompresses.

A fork runs none of our cleanup, holds only the descriptors that it needs, and ignores signals. It ends when its work is
done, when it is killed, or when it writes to a pipe without a reader. For commands only: a Python program that uses our
functions is never forked.

The fork of a stream inherits it as it is, reads on, and writes records: each is a header and some bytes of the stream;
the last one is how it ended. This process parses meanwhile.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import struct
import sys
from collections.abc import Callable, Collection
from typing import NoReturn

from tartools.errors import StorageError, TarToolsError, is_command
from tartools.storage.interrupts import ENDING_SIGNALS, defer_signals
from tartools.storage.streams import SharedFile, Stream, enlarge_pipe, wait_until_ready
from tartools.tar.compression import StoredBytes

MAX_FORKS = 16  # forks at a time
MIN_FORKED_BYTES = 4 << 20  # bytes that are read before a process is forked: for less it does not pay
FORK_READ_BYTES = 128 << 10  # bytes a read in that process; some decompressors are slower the more they may return
CHUNK_RECORD = struct.Struct("<QQ")  # bytes that follow, and how many stored bytes had been read then
# added to the number of bytes of the last record, which is the failure that ended the stream, or empty
LAST_RECORD_FLAG = 1 << 63
ALL_READ_FLAG = 1 << 62  # added, too, if the source was read to its end
MAX_TRACEBACK_CHARS = 50_000  # characters of a traceback


# Why not beside threads: a fork has a copy of all memory, but only the thread that forked. A lock that another thread
# holds at that moment (of malloc, of an import, of a queue) stays locked in the copy for ever, since its owner is not
# there. Whether a thread holds one can't be asked, so there is no fork while there are threads.
def can_fork() -> bool:
    """True if this process may fork now: it runs a command in one thread, is no fork, has fewer than `MAX_FORKS` forks.

    `MAX_FORKS` is 16. False, too, on a system without fork. A user's program may have locks, a GPU, or handlers that a
    fork would inherit, so it is never forked. A fork does not fork again, or there would be many times as many.
    """
    threading = sys.modules.get("threading")  # not imported: there is only one
    is_single_threaded = threading is None or threading.active_count() == 1
    return is_command() and not Fork.is_fork and hasattr(os, "fork") and is_single_threaded and Fork.count < MAX_FORKS


class Fork:
    """A forked process that calls `work(fd)`, which writes to the descriptor *fd*, and exits; `pipe` has the output.

    This process reads `pipe` to its end, then calls `end`; or it calls `close`, which kills the other one.
    `fds`: descriptors that stay open in the fork; all but these and its end of the pipe are closed, and 0, 1 and 2
    become /dev/null.
    `pipe`: the end of the pipe that this process reads, a file without a buffer.
    `status`: the exit status, set by `end`: 0, 1 if *work* raised an exception (which is not reported), or -n if signal
    n killed it. A BrokenPipeError, from a pipe without a reader, counts as success. 0 before the end.
    `count` (of the class): forks of this process that have not been waited for. `is_fork`: True in a forked process.

    Raises OSError if there are too many processes or open files.
    """

    count = 0  # of those that run
    is_fork = False  # this process is one

    def __init__(self, work: Callable[[int], None], fds: Collection[int] = ()) -> None:
        ours, theirs = os.pipe()
        self.pipe = SharedFile(ours)
        self.status = 0  # once it has ended
        self._pid = 0  # until it has been waited for
        enlarge_pipe(theirs)
        try:
            with defer_signals():
                self._pid = os.fork()
                if not self._pid:
                    _run_child(work, theirs, fds)
                Fork.count += 1
        except OSError:
            self.pipe.close()
            raise
        finally:
            os.close(theirs)

    def end(self, *, kill: bool = False) -> None:
        """Wait until the forked process has ended, and store its exit `status`. With *kill*, send SIGKILL first.

        Does nothing the second time. The pipe stays open. If the system has reaped the process already (SIGCHLD is
        ignored), `status` stays 0.
        """
        with defer_signals():
            if not self._pid:
                return
            with contextlib.suppress(ChildProcessError, ProcessLookupError):  # if SIGCHLD is ignored
                if kill:
                    os.kill(self._pid, signal.SIGKILL)
                self.status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            self._pid = 0
            Fork.count -= 1

    def close(self) -> None:
        """Kill the forked process if it still runs, wait for it, and close the pipe; output in the pipe is lost."""
        self.end(kill=True)
        self.pipe.close()


def _run_child(work: Callable[[int], None], pipe: int, fds: Collection[int]) -> NoReturn:
    """Call `work(pipe)` in the forked process, and exit with status 0, or 1 after an exception. Never returns.

    A BrokenPipeError, from a pipe that nobody reads any more, gives status 0.

    It leaves by `os._exit`, so that nothing of the parent runs twice: no `finally` of a caller, no `atexit`, no flush
    of a buffer that the parent will flush itself. It ignores ENDING_SIGNALS, such as Ctrl-C, which the parent gets too
    and answers by closing this process. Inherited descriptors but *pipe* and *fds* are closed: a copy of the write end
    of a pipe would keep that pipe's reader waiting for ever.
    """
    Fork.is_fork = True
    try:
        for number in ENDING_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        gc.disable()
        gc.freeze()  # what was inherited stays shared memory
        _close_all_but(pipe, *fds)
        with contextlib.suppress(BrokenPipeError):
            work(pipe)
        os._exit(0)
    finally:
        os._exit(1)


def _close_all_but(*kept_fds: int) -> None:
    """Close all descriptors of this process but *kept_fds*; 0, 1 and 2, if not kept, become /dev/null."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in {0, 1, 2} - set(kept_fds):
        os.dup2(nowhere, fd)
    try:
        inherited = [int(name) for name in os.listdir("/dev/fd")]
    except OSError:
        inherited = list(range(os.sysconf("SC_OPEN_MAX")))
    for fd in inherited:
        if fd > 2 and fd not in kept_fds:
            with contextlib.suppress(OSError):
                os.close(fd)


def write_all(pipe: int, data: memoryview) -> None:
    """Write *data* to the descriptor *pipe*, waiting while it is full. Raises BrokenPipeError if it has no reader."""
    while data:
        data = data[os.write(pipe, data) :]


# ---- a stream ----


class ForkedStream(Stream):
    """The decompressed bytes of *stream*; once 4 MiB were read here, a forked process decompresses the rest.

    Where no process can be forked, this process reads on. `source`: the stored bytes that *stream* decompresses, all
    from the descriptor *fd*; `source.count`, the stored bytes read so far, is kept current for the bytes that come from
    the fork. `url`: for messages.

    Holds a pipe of 1 MiB.
    """

    def __init__(self, stream: Stream, source: StoredBytes, fd: int, url: str) -> None:
        self._stream = stream
        self._source = source
        self._fd = fd
        self._url = url
        self._until = MIN_FORKED_BYTES  # bytes to read before a process is forked
        self._child: Fork | None = None
        self._left = 0  # bytes of the record that is being read
        self._last = 0  # what the header of the last record has, once it was read
        self._ended = False
        self._failure: BaseException | None = None  # how the stream ended, if not as it should

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` decompressed bytes into *view*; return their number, 0 at the end.

        Raises TarToolsErrors of *stream*, after the bytes before; StorageError if the forked process was killed, or has
        too little memory. Any other exception in the forked process becomes a RuntimeError with its traceback; without
        one, it is raised as it is. After an error of the forked process, each further call raises it again.
        """
        if self._until <= 0:
            self._fork()
        if self._child is None:
            count = self._stream.readinto(view)
            self._until -= count
            return count
        child, count = self._child, 0
        while count < len(view) and self._has_record(child, wait=not count):
            received = child.pipe.readinto(view[count : count + self._left])
            if not received:
                break
            self._left -= received
            count += received
        if not count and not self._ended:
            try:
                self._finish(child)
            except BaseException as error:
                self._failure = error
                raise
        elif not count and self._failure is not None:  # who reads on must not take the failure for the end
            raise self._failure
        return count

    def close(self) -> None:
        """Kill the forked process, if there is one, and drop its output. *stream* and *source* stay open."""
        if self._child is not None:
            self._child.close()

    def _fork(self) -> None:
        """Fork the process that reads on, if that is possible; otherwise this process reads to the end. Called once."""
        self._until = sys.maxsize
        if can_fork():
            with contextlib.suppress(OSError):  # too little memory, too many open files, or too many processes
                self._child = Fork(self._read_on, (self._fd,))

    def _has_record(self, child: Fork, wait: bool) -> bool:
        """True if bytes of the current record are left, or the header of the next one was read now and announces some.

        A record is a chunk of the stream with a header. *child*: the process that reads on. With *wait*, blocks until
        the next header comes; otherwise reads it only if it has begun to arrive. False, too, at the last record, which
        has no bytes of the stream, and at the end of a pipe without a last record.
        """
        if (
            not self._left
            and not self._last
            and (wait or wait_until_ready(child.pipe.fileno(), writing=False, seconds=0))
        ):
            header = _read_whole(child, CHUNK_RECORD.size)
            if header:
                size, self._source.count = CHUNK_RECORD.unpack(header)
                self._left, self._last = (0, size) if size & LAST_RECORD_FLAG else (size, 0)
        return self._left > 0

    def _finish(self, child: Fork) -> None:
        """Wait for the process *child*, and read its last record: how the stream ended.

        Raises: the error that the process reports; StorageError if it ended without a complete last record, as when it
        was killed, or if the source ended too early.
        """
        failure = _read_whole(child, self._last & ~(LAST_RECORD_FLAG | ALL_READ_FLAG)) if self._last else None
        self._ended = True
        child.end()
        if failure is None:
            from tartools.storage.children import describe_status  # only now: importing subprocess costs 5 ms

            why = " (there may be too little memory)" if child.status == -signal.SIGKILL else ""
            raise StorageError(f"the process that reads this {describe_status(child.status)}{why}", url=self._url)
        if self._last & ALL_READ_FLAG:
            self._source.readinto(memoryview(bytearray()))  # raises if the source ended too early
        if failure:
            import pickle

            raise pickle.loads(failure)  # noqa: S301  # from our own fork

    # ---- what follows runs in the forked process ----

    def _read_on(self, pipe: int) -> None:
        """In the fork: write the rest of the stream to *pipe* in records, each a `CHUNK_RECORD` and a chunk of bytes.

        The last record has no chunk, but the pickled error that ended the stream, or nothing at a normal end. Raises:
        BrokenPipeError if *pipe* has no reader.
        """
        failure, room = b"", memoryview(bytearray(CHUNK_RECORD.size + FORK_READ_BYTES))
        if self._source.file is None:
            _exit_with_reader(pipe)
        try:
            while count := self._stream.readinto(room[CHUNK_RECORD.size :]):
                CHUNK_RECORD.pack_into(room, 0, count, self._source.count)
                write_all(pipe, room[: CHUNK_RECORD.size + count])
        except BrokenPipeError:
            raise
        except BaseException as error:
            failure = _dump_error(error, self._url)
        size = len(failure) | LAST_RECORD_FLAG | (ALL_READ_FLAG if self._source.ended else 0)
        write_all(pipe, memoryview(CHUNK_RECORD.pack(size, self._source.count) + failure))


def _read_whole(child: Fork, size: int) -> bytes | None:
    """Return the next *size* bytes from the pipe of *child*, waiting for them; None if the pipe ends before."""
    data = b""
    while len(data) < size:
        chunk = child.pipe.read(size - len(data))
        if not chunk:
            return None
        data += chunk
    return data


def _exit_with_reader(pipe: int) -> None:
    """Start a thread that ends this process as soon as *pipe* has no reader, even while the process waits for input.

    *pipe*: the descriptor of the end that is written. It ends with status 0. Does nothing if no thread can be started.
    """
    import threading

    def watch() -> None:
        poll = select.poll()
        poll.register(pipe, 0)
        if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll()):
            os._exit(0)

    with contextlib.suppress(RuntimeError):  # no thread can be started: then it ends at its next write
        threading.Thread(target=watch, daemon=True).start()


def _dump_error(error: BaseException, url: str) -> bytes:
    """Return *error*, raised while *url* was read, pickled for the parent process.

    A TarToolsError stays as it is, MemoryError becomes a StorageError, any other a RuntimeError with its traceback as
    text.
    """
    import pickle

    if isinstance(error, MemoryError):
        error = StorageError("there is too little memory to read it", url=url)
    if not isinstance(error, TarToolsError):
        import traceback

        text = "".join(traceback.format_exception(error))[-MAX_TRACEBACK_CHARS:]
        error = RuntimeError(f"in the process that reads: {text}")
    return pickle.dumps(error)
