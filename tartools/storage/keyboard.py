"""The terminal of this process, taken over by a program that fills its screen and reads keys as they are pressed.

Keys come from /dev/tty, so that stdin can be something else. However that ends, by an exception or a signal too, the
terminal is then as it was before; and so it is while the process is stopped by Ctrl-Z.
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

TERMINAL = "/dev/tty"  # POSIX.1-2017, 10.1: the controlling terminal
ENTER = b"\x1b[?1049h\x1b[?25l"  # xterm (ctlseqs, DECSET): the alternate screen, and no cursor
LEAVE = b"\x1b[0m\x1b[?25h\x1b[?1049l"
PAUSE = 0.1  # seconds; the rest of what a key sends comes sooner, or it was the escape key
AGAIN = "again"  # what stands for a key when the screen has to be drawn again
# xterm (ctlseqs), "PC-Style Function Keys"; function keys of Linux's console; a letter with Alt
ONE_KEY = re.compile(rb"\x1b\[\[.|\x1b[\[O][0-9;]*[A-Za-z~]|\x1b[^\x1b\[O]|.", re.DOTALL)
BEGUN = re.compile(rb"\x1b([\[O][0-9;]*|\[\[)?")  # perhaps a part of one
NAMES = {
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[1~": "home",
    **{
        f"\x1b{kind}{letter}": name
        for kind in "[O"
        for letter, name in (("A", "up"), ("B", "down"), ("C", "right"), ("D", "left"), ("H", "home"))
    },
}


class Keyboard:
    """A terminal that is taken over: what it shows, and the keys that are pressed."""

    def __init__(self) -> None:
        """Open the terminal of this process. Raises: UsageError if it has none."""
        try:
            self._fd = os.open(TERMINAL, os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError:
            raise UsageError("there is no terminal to read keys from") from None
        self._before = termios.tcgetattr(self._fd)
        self._woken, self.wake = os.pipe()  # whatever is written there has the screen drawn again
        os.set_blocking(self.wake, False)
        self._typed = b""

    def take(self) -> None:
        """Take the terminal over: keys come one by one and are not shown; Ctrl-C and Ctrl-Z stay signals."""
        tty.setcbreak(self._fd, termios.TCSANOW)
        self.write(ENTER)

    def give_back(self) -> None:
        """Make the terminal what it was before. One that has gone needs nothing."""
        with suppress(OSError, termios.error):
            termios.tcsetattr(self._fd, termios.TCSANOW, self._before)
            self.write(LEAVE)

    def close(self) -> None:
        """Let go of the terminal."""
        for fd in (self._fd, self._woken, self.wake):
            os.close(fd)

    def write(self, data: bytes) -> None:
        """Show *data*."""
        while data:
            data = data[os.write(self._fd, data) :]

    def key(self) -> str:
        """Wait for a key, and return its character or its name; `AGAIN` when the screen has to be drawn again.

        A terminal that has gone is "escape".
        """
        while not self._typed:
            ready = select.select([self._fd, self._woken], [], [])[0]
            if self._woken in ready:
                if set(os.read(self._woken, 1000)) != {signal.SIGALRM}:  # a timer that ticks is no reason
                    return AGAIN
            else:
                self._typed = self._read() or b"\x1b"
        while BEGUN.fullmatch(self._typed) and select.select([self._fd], [], [], PAUSE)[0]:
            more = self._read()
            if not more:
                break
            self._typed += more
        found = ONE_KEY.match(self._typed)
        assert found is not None  # it matches any byte
        self._typed = self._typed[found.end() :]
        text = found[0].decode("latin-1")
        return NAMES.get(text, text)

    def _read(self) -> bytes:
        """Return what was typed; nothing if the terminal has gone."""
        with suppress(OSError):
            return os.read(self._fd, 1000)
        return b""


@contextmanager
def taken_over() -> Iterator[Keyboard]:
    """Give the terminal of this process while the block runs, which has to be in the main thread.

    Raises: UsageError if there is none.
    """
    keyboard = Keyboard()

    def stop(_number: int, _frame: FrameType | None) -> None:
        keyboard.give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)  # here it stands still, until it is continued
        signal.signal(signal.SIGTSTP, stop)
        keyboard.take()

    before = {number: signal.getsignal(number) for number in (signal.SIGTSTP, signal.SIGWINCH, signal.SIGALRM)}
    # All signals wake who waits for a key. Else one that comes just before the wait begins would wait with it.
    woken = signal.set_wakeup_fd(keyboard.wake, warn_on_full_buffer=False)
    try:
        if before[signal.SIGTSTP] != signal.SIG_IGN:  # a shell without job control
            signal.signal(signal.SIGTSTP, stop)
        signal.signal(signal.SIGWINCH, lambda *_: None)
        if callable(before[signal.SIGALRM]):  # whatever it would draw
            signal.signal(signal.SIGALRM, lambda *_: None)
        keyboard.take()
        yield keyboard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(woken)
        keyboard.give_back()
        keyboard.close()
