"""Take over the terminal of this process: fill its screen, and read keys as they are pressed.

Keys come from /dev/tty, so that stdin can be the archive. The terminal is restored however the block ends, also by an
exception or a signal, and while the process is stopped by Ctrl-Z.
"""

from __future__ import annotations

import os
import re
import select
import signal
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from tartools.errors import UsageError
from tartools.storage.local import open_terminal

ENTER = b"\x1b[?1049h\x1b[?25l"  # xterm (ctlseqs, DECSET): the alternate screen, and no cursor
LEAVE = b"\x1b[0m\x1b[?25h\x1b[?1049l"
PAUSE = 0.1  # seconds to wait for the rest of an escape sequence; then it was the escape key
AGAIN = "again"  # in place of a key: the screen has to be drawn again
# xterm (ctlseqs), "PC-Style Function Keys"; function keys of Linux's console; a letter with Alt
ONE_KEY = re.compile(rb"\x1b\[\[.|\x1b[\[O][0-9;]*[A-Za-z~]|\x1b[^\x1b\[O]|.", re.DOTALL)
BEGUN = re.compile(rb"\x1b([\[O][0-9;]*|\[\[)?")  # perhaps an incomplete sequence
NAMES = {
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[1~": "home",
    "\x1b[4~": "end",
    "\x7f": "backspace",
    "\b": "backspace",
    **{
        f"\x1b{kind}{letter}": name
        for kind in "[O"
        for letter, name in (("A", "up"), ("B", "down"), ("C", "right"), ("D", "left"), ("H", "home"), ("F", "end"))
    },
}


class Keyboard:
    """A terminal that has been taken over: shows text and reads keys."""

    def __init__(self) -> None:
        """Open the terminal of this process. Raises: UsageError if the process has no terminal."""
        try:
            self._fd = open_terminal()
        except OSError:
            raise UsageError("-i needs a terminal to read keys from") from None
        self._before = termios.tcgetattr(self._fd)
        self._woken, self.wake = os.pipe()  # any byte in this pipe makes `key` return AGAIN
        os.set_blocking(self.wake, False)
        self._typed = b""

    def take(self) -> None:
        """Take the terminal over: keys come one by one, without echo; Ctrl-C and Ctrl-Z stay signals."""
        tty.setcbreak(self._fd, termios.TCSANOW)
        self.write(ENTER)

    def give_back(self) -> None:
        """Restore the terminal, if it still exists."""
        with suppress(OSError, termios.error):
            termios.tcsetattr(self._fd, termios.TCSANOW, self._before)
            self.write(LEAVE)

    def close(self) -> None:
        """Close the terminal."""
        for fd in (self._fd, self._woken, self.wake):
            os.close(fd)

    def write(self, data: bytes) -> None:
        """Show *data*."""
        while data:
            data = data[os.write(self._fd, data) :]

    def key(self) -> str:
        """Wait for a key; return its character or its name, `AGAIN` if the screen has to be drawn again.

        Returns "escape" if the terminal no longer exists.
        """
        while not self._typed:
            ready = select.select([self._fd, self._woken], [], [])[0]
            if self._woken in ready:
                if set(os.read(self._woken, 1000)) != {signal.SIGALRM}:  # but not for the timer of the progress bar
                    return AGAIN
            else:
                self._typed = self._read() or b"\x1b"
        while BEGUN.fullmatch(self._typed) and select.select([self._fd], [], [], PAUSE)[0]:
            more = self._read()
            if not more:
                break
            self._typed += more
        found = ONE_KEY.match(self._typed)
        assert found is not None  # the pattern matches any byte
        self._typed = self._typed[found.end() :]
        text = found[0].decode("latin-1")
        return NAMES.get(text, text)

    def waiting(self) -> bool:
        """Return whether `key` would return at once."""
        return bool(self._typed or select.select([self._fd], [], [], 0)[0])

    def _read(self) -> bytes:
        """Return the bytes typed; none if the terminal no longer exists."""
        with suppress(OSError):
            return os.read(self._fd, 1000)
        return b""


@contextmanager
def taken_over() -> Iterator[Keyboard]:
    """Take over the terminal of this process while the block runs. Only for the main thread.

    Raises: UsageError if the process has no terminal.
    """
    keyboard = Keyboard()

    def stop(_number: int, _frame: FrameType | None) -> None:
        keyboard.give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)  # returns when the process is continued
        signal.signal(signal.SIGTSTP, stop)
        keyboard.take()

    before = {number: signal.getsignal(number) for number in (signal.SIGTSTP, signal.SIGWINCH, signal.SIGALRM)}
    # Every signal wakes `key`, even one that arrives just before `key` begins to wait.
    woken = signal.set_wakeup_fd(keyboard.wake, warn_on_full_buffer=False)
    try:
        if before[signal.SIGTSTP] != signal.SIG_IGN:  # ignored: the shell has no job control
            signal.signal(signal.SIGTSTP, stop)
        signal.signal(signal.SIGWINCH, lambda *_: None)
        if callable(before[signal.SIGALRM]):  # the progress bar must not draw
            signal.signal(signal.SIGALRM, lambda *_: None)
        keyboard.take()
        yield keyboard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(woken)
        keyboard.give_back()
        keyboard.close()
