"""What commands print, on stderr behind the key of their sample, so that each line can be found again."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time

from tartools.errors import StorageError, printable
from tartools.storage.streams import FileSink

LONGEST = 1 << 16  # bytes of a line
_lock = threading.Lock()


class Lines:
    """Writes lines to stderr behind *key*. What can't be written is dropped. Holds: one line."""

    def __init__(self, key: bytes) -> None:
        self._key = printable(key.decode("utf-8", "surrogateescape")).encode()
        self._rest = b""

    def write(self, data: bytes) -> int:
        """Write the whole lines in *data*, and keep the rest."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST:
            lines, self._rest = [*lines, self._rest], b""
        if lines:
            with _lock, contextlib.suppress(OSError, StorageError):
                FileSink(2, "stderr").write(b"".join(b"%b: %b\n" % (self._key, line) for line in lines))
        return len(data)

    def end(self) -> None:
        """Write what is left as a line."""
        if self._rest:
            self.write(b"\n")


class Printed:
    """What commands print to, one after the other, as *theirs*: if *keyed* a pipe, whose lines go to stderr by `Lines`.

    Otherwise it is stderr itself.
    """

    def __init__(self, keyed: bool) -> None:
        self.keyed = keyed
        self._ours, self.theirs = os.pipe() if keyed else (-1, 2)  # even if Python has no stderr
        if keyed:
            os.set_blocking(self._ours, False)
        self._lines = Lines(b"")

    def begin(self, key: bytes) -> None:
        """Let the next lines be those of the sample *key*."""
        if self.keyed:
            self._lines = Lines(key)

    def until(self, fd: int, seconds: float | None) -> bool:
        """Write lines as they come until *fd* can be read; return False after *seconds*."""
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        if self.keyed:
            poll.register(self._ours, select.POLLIN)
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            ready = poll.poll(None if end is None else max(0.0, end - time.monotonic()) * 1000)
            if not ready or any(number == fd for number, _ in ready):
                return bool(ready)
            if self._relay() == b"":
                poll.unregister(self._ours)

    def end(self) -> None:
        """Write what the sample's command has printed and is not written yet."""
        while self.keyed and self._relay():
            pass
        self._lines.end()

    def _relay(self) -> bytes | None:
        """Write what is there, and return it: None if nothing is, b"" if nobody can print any more."""
        try:
            data = os.read(self._ours, LONGEST)
        except BlockingIOError:
            return None
        self._lines.write(data)
        return data

    def give(self) -> None:
        """Close the end of the commands here, when they have it."""
        if self.keyed:
            os.close(self.theirs)

    def close(self) -> None:
        """Close our end."""
        if self.keyed:
            os.close(self._ours)
