"""Output of commands, on stderr behind the key of their sample, so that each line can be found again."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Iterable

from tartools.errors import printable
from tartools.storage.streams import wait_until_ready

MAX_LINE_BYTES = 1 << 16  # bytes of a line
LINE_POLL_SECONDS = 0.1  # seconds
Stopped = Callable[[], bool]
_lock = threading.Lock()


def print_lines(key: bytes, lines: Iterable[bytes], stopped: Stopped) -> None:
    """Write *lines* (bytes without newlines) to stderr, each as "KEY: LINE", without lines of other calls between them.

    *key*: of a sample; control characters in it are escaped, *lines* are written as they are. Errors of writing are
    ignored, and the rest dropped. Once `stopped()`, it does not wait for a full stderr, and drops the rest: no signal
    comes to this thread, which would wait for ever.
    """
    begin = printable(key.decode("utf-8", "surrogateescape")).encode()
    data = b"".join(b"%b: %b\n" % (begin, line) for line in lines)
    at = 0
    with _lock, contextlib.suppress(OSError):
        while at < len(data):
            is_stopped = stopped()
            if wait_until_ready(
                2, writing=True, seconds=0 if is_stopped else LINE_POLL_SECONDS
            ):  # for so much at once, and not more
                end = data.rfind(b"\n", at, at + select.PIPE_BUF) + 1 or at + select.PIPE_BUF
                at += os.write(2, data[at:end])
            elif is_stopped:
                return


class KeyedLines:
    """A pipe to which commands print, one after the other; its lines go to stderr behind the key of a sample.

    `write_end`: the descriptor that commands get as output. The key is that given to `print_until` or `flush`.
    *stopped*: true once the run has to end; then what a full stderr does not take at once is dropped.
    A line of more than 64 KiB is printed in parts, each as a line. To be closed. Holds: up to 128 KiB of a line.
    Raises: OSError if there can be no pipe.
    """

    def __init__(self, stopped: Stopped) -> None:
        self._stopped = stopped
        self._ours, self.write_end = os.pipe()  # which stays open here: so no command closes the last one
        os.set_blocking(self._ours, False)
        self._rest = b""

    def print_until(self, fd: int, key: bytes, seconds: float | None) -> bool:
        """Print lines behind *key* as they come, until *fd* can be read: return True then, False after *seconds*.

        *seconds*: None: without a limit. What is still in the pipe when it returns is left for `flush`.
        """
        poll = select.poll()
        for descriptor in (fd, self._ours):
            poll.register(descriptor, select.POLLIN)
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            left = None if end is None else max(0.0, end - time.monotonic())
            ready = poll.poll(None if left is None else left * 1000)
            if any(number == fd for number, _ in ready):
                return True
            if not ready or left == 0:  # also if there is always more to print
                return False
            self._relay(key)

    def flush(self, key: bytes) -> None:
        """Print the output that is in the pipe, also an unfinished last line, behind *key*."""
        while self._relay(key):
            pass
        if self._rest:
            print_lines(key, [self._rest], self._stopped)
            self._rest = b""

    def _relay(self, key: bytes) -> bool:
        """Read the pipe once, and print complete lines behind *key*; return True if there was any output.

        The part of a line that is read without its end is kept for the next call, or printed if it is above 64 KiB.
        """
        try:
            *lines, self._rest = (self._rest + os.read(self._ours, MAX_LINE_BYTES)).split(b"\n")
        except BlockingIOError:
            return False
        if len(self._rest) > MAX_LINE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        if lines:
            print_lines(key, lines, self._stopped)
        return True

    def close(self) -> None:
        """Close both ends of the pipe in this process; output that was not printed is dropped."""
        os.close(self._ours)
        os.close(self.write_end)
