"""Reading in a child process, so that what costs time there overlaps with what its reader does.

A fork of this process reads on where this one stopped: it inherits the stream as it is, and writes what comes to a
pipe. How it ended, and how much of the source it read, it tells in memory that both share. This is for commands only:
nothing may fork in a process that is not ours.

It ends when its work does, when we kill it, or when nobody is left to read what it writes.
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
from tartools.account import Account
from tartools.errors import StorageError, TarToolsError
from tartools.storage.backlog import ROOM, copy_ahead
from tartools.storage.children import Child, can_fork, write_all
from tartools.streams import Stream

if TYPE_CHECKING:
    import mmap

ENOUGH = 4 << 20  # bytes that are read without a child: one does not pay for less
WORTH = 512 << 10  # bytes of a file that is read ahead by a child, for the same reason
SHARED = 1 << 20  # bytes of shared memory, of which hardly any are touched
HEAD = 64  # bytes of it are words of eight, then comes what a failure says
READ, SOURCE_ENDED, SAID, LENGTH, AWAITED = range(5)  # the words
END, FAILURE = 1, 2  # what the child said in the end; 0: nothing
MOST_TEXT = 50_000  # characters of a traceback


class Source(Stream, Protocol):
    """What a forked stream reads; it has *ended* when its last `readinto` gave nothing."""

    ended: bool


class Forked:
    """*stream*, which is read in a child process once 4 MiB of it have come and it is *worth* that.

    *source* is what *stream* reads, all of it from the descriptor *fd*, and *account* counts its bytes, those that the
    child reads too. Where no child can be had, there is none.

    Holds: a pipe of 1 MiB.
    """

    file: io.FileIO | None = None
    start = 0

    def __init__(
        self, stream: Stream, source: Source, fd: int, url: str, account: Account, worth: Callable[[], bool]
    ) -> None:
        self._stream = stream
        self._source = source
        self._fd = fd
        self._url = url
        self._account = account
        self._worth = worth
        self._until = ENOUGH  # bytes until there is to be a child
        self._child: Child | None = None
        self._shared: mmap.mmap | None = None
        self._seen = 0  # bytes of the source that the child read and the account knows of
        self._stopped = False

    @property
    def running(self) -> bool:
        """Tell whether there is a child that has not ended."""
        return self._child is not None and self._child.running

    def ahead(self, hold: int | None = None, folder: str | None = None) -> bool:
        """Begin to read ahead, if it is worth that; tell whether a child does.

        Up to *hold* bytes wait in its memory, beyond that in a scratch file in *folder*; without *hold* it waits when
        the pipe is full.
        """
        if os.fstat(self._fd).st_size >= WORTH:
            self._until = 0
            self._fork(hold, folder)
        return self.running

    def fileno(self) -> int:
        """Return a descriptor that can be read when `readinto` would not wait."""
        return self._fd if self._child is None else self._child.pipe.fileno()

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes; 0 at the end.

        Raises: what *stream* raises, after the bytes before; StorageError if the child was killed. Any other exception
        in the child is a RuntimeError with its traceback.
        """
        if self._child is None:
            if self._until > 0 or not self._fork():
                count = self._stream.readinto(view)
                self._until -= count
                return count
            assert self._child is not None
        shared = self._words()
        shared[AWAITED] = 1
        count = self._child.pipe.readinto(view) or 0
        self._account.bytes_in += shared[READ] - self._seen
        self._seen = shared[READ]
        if not count:
            self._finish()
        return count

    def skip(self, count: int, /) -> None:
        """Never asked for: there is no file."""
        raise AssertionError("only files are skipped in")

    def cancel(self) -> bool:
        """Kill the child, which ends a `readinto` of another thread; tell whether there is one."""
        self._stopped = True
        return self._child is not None and self._child.end(kill=True)

    def close(self) -> None:
        """Kill the child and forget what it wrote."""
        if self._child is not None:
            self._child.close()

    def _words(self) -> memoryview:
        assert self._shared is not None
        return memoryview(self._shared)[:HEAD].cast("Q")

    def _fork(self, hold: int | None = None, folder: str | None = None) -> bool:
        """Have a child read on, if it is worth that and can be; tell whether it does."""
        self._until = sys.maxsize  # asked once
        if not (can_fork() and self._worth()):
            return False
        import mmap

        try:
            self._shared = mmap.mmap(-1, SHARED)
            self._child = Child(lambda pipe: self._read_on(pipe, hold, folder), (self._fd,))
        except OSError:  # there is too little memory, too much is open, there are too many processes
            return False
        return True

    def _finish(self) -> None:
        """Raise what there is to raise when the pipe has ended."""
        assert self._child is not None
        self._child.end()
        status, words = self._child.status, self._words()
        if self._stopped:
            raise StorageError("reading was stopped", url=self._url)
        if words[SOURCE_ENDED]:
            self._source.readinto(memoryview(bytearray()))  # who opened it knows whether this was all of it
        if words[SAID] == FAILURE:
            assert self._shared is not None
            raise _loaded(self._shared[HEAD : HEAD + words[LENGTH]])
        if words[SAID] != END:
            from tartools.storage.command import describe  # not before: subprocess costs 5 ms

            why = " (there may be too little memory)" if status == -signal.SIGKILL else ""
            raise StorageError(f"the process that reads this {describe(status)}{why}", url=self._url)

    # ---- what follows runs in the child ----

    def _read_on(self, pipe: int, hold: int | None, folder: str | None) -> None:
        """Write the rest of the stream to *pipe*, and tell how that ended."""
        words = self._words()
        said, failure = END, b""
        try:
            self._copy(pipe, words, hold, folder)
        except BrokenPipeError:
            raise
        except BaseException as error:
            said, failure = FAILURE, _dumped(error)
            assert self._shared is not None
            self._shared[HEAD : HEAD + len(failure)] = failure
        words[LENGTH] = len(failure)
        words[SOURCE_ENDED] = self._source.ended
        words[SAID] = said  # last: now all of it is true

    def _copy(self, pipe: int, words: memoryview, hold: int | None, folder: str | None) -> None:
        if self._source.file is None:
            _end_with_reader(pipe)
        begin = self._account.bytes_in

        def read(room: memoryview) -> int:
            count = self._stream.readinto(room)
            words[READ] = self._account.bytes_in - begin
            return count

        if hold is None:
            room = memoryview(bytearray(ROOM))
            while count := read(room):
                write_all(pipe, room[:count])
        else:
            copy_ahead(read, pipe, hold, folder, lambda: bool(words[AWAITED]))


def _end_with_reader(pipe: int) -> None:
    """End this process as soon as nobody reads *pipe*, be it that it waits for something else then."""

    def watch() -> None:
        poll = select.poll()
        poll.register(pipe, 0)
        if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll()):
            os._exit(0)

    with contextlib.suppress(RuntimeError):  # no thread is to be had: then it ends at its next write
        threading.Thread(target=watch, daemon=True).start()


# ---- failures as text ----


def _dumped(error: BaseException) -> bytes:
    """Return *error* as JSON: a TarToolsError as what it is, anything else as its traceback."""
    import json

    if isinstance(error, TarToolsError):
        place = {"url": error.url, "offset": error.offset}
        return json.dumps({"kind": type(error).__name__, "message": error.message, **place}).encode()
    import traceback

    return json.dumps({"kind": "", "message": "".join(traceback.format_exception(error))[-MOST_TEXT:]}).encode()


def _loaded(told: bytes) -> Exception:
    """Return the error that `_dumped` made *told* of."""
    import json

    said = json.loads(told)
    kind = getattr(errors, said["kind"], None) if said["kind"] else None
    if kind is None:
        return RuntimeError(f"in the process that reads: {said['message']}")
    return kind(said["message"], url=said["url"], offset=said["offset"])  # type: ignore[no-any-return]
