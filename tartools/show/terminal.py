"""The terminal: its size, the protocol by which it draws pictures, and its keyboard.

Environment variables tell the protocol. The terminal itself is never queried: a query would have to write to
it, wait for an answer that may not come, and read keys meant for others. Keys come from /dev/tty, so that stdin can be
the archive. `take_over` fills the screen, and restores the terminal however its block ends, also by an exception or a
signal, and while the process is stopped by Ctrl-Z.
"""

import fcntl
import os
import re
import select
import signal
import struct
import termios
import tty
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NamedTuple

from tartools.errors import UsageError
from tartools.storage.local import open_terminal

AUTO, NO_PROTOCOL, BLOCKS, KITTY, ITERM, SIXEL_PROTOCOL = "auto", "none", "blocks", "kitty", "iterm", "sixel"
PROTOCOL_VARIABLE = "TARTOOLS_PICTURES"
PROTOCOLS = (AUTO, KITTY, ITERM, SIXEL_PROTOCOL, BLOCKS, NO_PROTOCOL)

# prefixes of TERM, and values of TERM_PROGRAM
PROTOCOL_BY_TERM = {
    **dict.fromkeys(("xterm-kitty", "xterm-ghostty"), KITTY),
    **dict.fromkeys(("wezterm", "mintty"), ITERM),
    **dict.fromkeys(("foot", "mlterm", "contour", "yaft"), SIXEL_PROTOCOL),
}
PROTOCOL_BY_PROGRAM = {"kitty": KITTY, "ghostty": KITTY, "iTerm.app": ITERM, "WezTerm": ITERM, "mintty": ITERM}
MULTIPLEXERS = ("tmux", "screen")  # they do not pass pictures on to the terminal
MIN_KONSOLE_VERSION = 220400  # the first version of Konsole with kitty's protocol

DEFAULT_COLUMNS, DEFAULT_ROWS = 80, 24  # if the system does not say
MIN_COLUMNS, MIN_ROWS = 20, 8
DEFAULT_CELL_PIXELS = (10, 20)  # pixels of a character if the system does not say; pictures assume this proportion
MIN_CELL_PIXELS, MAX_CELL_PIXELS = 4, 64


class Screen(NamedTuple):
    """The terminal on which samples are shown.

    Attributes:
      protocol: how it draws pictures, one of PROTOCOLS but AUTO.
      exact: True if half blocks may have any colour, not only the 256 of xterm.
      codes: True if it takes escape codes.
      columns, rows: its size in characters.
      cell: (width, height) of a character in pixels.
    """

    protocol: str = NO_PROTOCOL
    exact: bool = False
    codes: bool = False
    columns: int = DEFAULT_COLUMNS
    rows: int = DEFAULT_ROWS
    cell: tuple[int, int] = DEFAULT_CELL_PIXELS


def detect_screen(protocol: str = AUTO) -> Screen:
    """Return the screen of stdout. *protocol*: how to draw pictures, one of `PROTOCOLS`; used as it is if not auto.

    If it is auto and stdout is a terminal, the environment variable TARTOOLS_PICTURES decides; if it is empty or auto,
    `guess_protocol`. There are no pictures if it is auto and stdout is no terminal; nor, unless the variable names a
    protocol, if NO_COLOR (https://no-color.org) is not empty, or TERM is dumb or not set. Raises: UsageError if the
    variable decides and is not one of `PROTOCOLS`.
    """
    terminal = os.isatty(1)
    codes = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
    if protocol == AUTO and terminal:
        protocol = os.environ.get(PROTOCOL_VARIABLE) or AUTO
        if protocol not in PROTOCOLS:
            raise UsageError(f"{PROTOCOL_VARIABLE} is {protocol!r}; it can be {', '.join(PROTOCOLS)}")
    if protocol == AUTO:
        protocol = guess_protocol(os.environ) if codes else NO_PROTOCOL
    exact = os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit")
    return Screen(protocol, exact, codes or protocol != NO_PROTOCOL, *terminal_size())


def guess_protocol(environment: Mapping[str, str]) -> str:
    """Return the best protocol for pictures (one of PROTOCOLS) of the terminal that *environment* describes.

    *environment*: environment variables. Inside tmux and screen, and for an unknown terminal, half blocks are the best.

    >>> guess_protocol({"TERM": "xterm-kitty"}), guess_protocol({"TERM": "xterm-256color", "LC_TERMINAL": "iTerm2"})
    ('kitty', 'iterm')
    """
    term = environment.get("TERM", "")
    if "TMUX" in environment or "STY" in environment or term.startswith(MULTIPLEXERS):
        return BLOCKS
    for start, protocol in PROTOCOL_BY_TERM.items():
        if term.startswith(start):
            return protocol
    program = environment.get("TERM_PROGRAM", "")
    if program in PROTOCOL_BY_PROGRAM:
        return PROTOCOL_BY_PROGRAM[program]
    if environment.get("LC_TERMINAL") == "iTerm2" or "WEZTERM_PANE" in environment:  # LC_TERMINAL is passed on by ssh
        return ITERM
    version = environment.get("KONSOLE_VERSION", "")
    konsole = version.isascii() and version.isdigit() and int(version[:9]) >= MIN_KONSOLE_VERSION
    return KITTY if konsole or "KITTY_WINDOW_ID" in environment else BLOCKS


def terminal_size() -> tuple[int, int, tuple[int, int]]:
    """Return (columns, rows, (width, height) of a character in pixels) of the terminal; 80 by 24 if unknown.

    The environment variables COLUMNS and LINES override the system's size of the terminal of stdout, or else (stdout is
    a pager) of stderr or stdin. The result is at least 20 by 8. A character has (10, 20) pixels if unknown, or if one
    of the two is below 4; neither is above 64.
    """
    columns = rows = across = down = 0
    for fd in (1, 2, 0):
        try:
            rows, columns, across, down = struct.unpack("HHHH", fcntl.ioctl(fd, termios.TIOCGWINSZ, bytes(8)))
        except OSError:
            continue
        if columns and rows:
            break
    across, down = (
        min(MAX_CELL_PIXELS, pixels // max(1, cells)) for pixels, cells in ((across, columns), (down, rows))
    )
    cell = (across, down) if min(across, down) >= MIN_CELL_PIXELS else DEFAULT_CELL_PIXELS
    columns = _number_in_environment("COLUMNS") or columns or DEFAULT_COLUMNS
    rows = _number_in_environment("LINES") or rows or DEFAULT_ROWS
    return max(MIN_COLUMNS, columns), max(MIN_ROWS, rows), cell


def _number_in_environment(variable: str) -> int:
    """Return the number in the environment *variable*; 0 if it is not a number of up to four digits."""
    text = os.environ.get(variable, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 5 else 0


# ---- keys ----

ENTER_SCREEN = b"\x1b[?1049h\x1b[?25l"  # xterm (ctlseqs, DECSET): the alternate screen, and no cursor
LEAVE_SCREEN = b"\x1b[0m\x1b[?25h\x1b[?1049l"
ESCAPE_SECONDS = 0.1  # seconds to wait for the rest of an escape sequence; then it was the escape key
REDRAW_KEY = "again"  # in place of a key: the screen has to be drawn again
# xterm (ctlseqs), "PC-Style Function Keys"; function keys of Linux's console; a letter with Alt
ONE_KEY = re.compile(rb"\x1b\[\[.|\x1b[\[O][0-9;]*[A-Za-z~]|\x1b[^\x1b\[O]|.", re.DOTALL)
INCOMPLETE_SEQUENCE = re.compile(rb"\x1b([\[O][0-9;]*|\[\[)?")  # perhaps an incomplete sequence
KEY_NAMES = {
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
    """The terminal of this process, opened for itself: reads keys and shows text while `take_over` holds it.

    Call `take_over`, and at the end `restore` and `close`, or use the function `take_over` of this module, which also
    handles signals. `wake`: file descriptor of a pipe; a byte written there makes `read_key` return REDRAW_KEY, unless
    it is signal.SIGALRM. Raises: UsageError if the process has no terminal.
    """

    def __init__(self) -> None:
        """Open the terminal of this process. Raises: UsageError if the process has no terminal."""
        try:
            self._fd = open_terminal()
        except OSError:
            raise UsageError("-i needs a terminal to read keys from") from None
        self._before = termios.tcgetattr(self._fd)
        self._woken, self.wake = os.pipe()  # any byte in this pipe makes `read_key` return REDRAW_KEY
        os.set_blocking(self.wake, False)
        self._typed = b""

    def take_over(self) -> None:
        """Take the terminal over: an empty screen, keys one by one, no echo; Ctrl-C and Ctrl-Z stay signals.

        Raises: OSError or termios.error if the terminal no longer exists.
        """
        tty.setcbreak(self._fd, termios.TCSANOW)
        self.write(ENTER_SCREEN)

    def restore(self) -> None:
        """Restore the mode and the screen that the terminal had before `take_over`, if it still exists."""
        with suppress(OSError, termios.error):
            termios.tcsetattr(self._fd, termios.TCSANOW, self._before)
            self.write(LEAVE_SCREEN)

    def close(self) -> None:
        """Close the terminal and the pipe."""
        for fd in (self._fd, self._woken, self.wake):
            os.close(fd)

    def write(self, data: bytes) -> None:
        """Write all of *data*, text with escape codes, to the terminal. Raises: OSError if it no longer exists."""
        while data:
            data = data[os.write(self._fd, data) :]

    def read_key(self) -> str:
        """Wait for a key; return its character, its name such as "page down" (KEY_NAMES), or else its escape sequence.

        A character that is not ASCII comes byte by byte, each as a character of Latin-1. It returns `REDRAW_KEY` if the
        screen must be drawn again, "escape" if the terminal no longer exists.
        """
        while not self._typed:
            ready = select.select([self._fd, self._woken], [], [])[0]
            if self._woken in ready:
                if set(os.read(self._woken, 1000)) != {signal.SIGALRM}:  # but not for the timer of the progress bar
                    return REDRAW_KEY
            else:
                self._typed = self._read() or b"\x1b"
        while INCOMPLETE_SEQUENCE.fullmatch(self._typed) and select.select([self._fd], [], [], ESCAPE_SECONDS)[0]:
            next_bytes = self._read()
            if not next_bytes:
                break
            self._typed += next_bytes
        match = ONE_KEY.match(self._typed)
        assert match is not None  # the pattern matches any byte
        self._typed = self._typed[match.end() :]
        text = match[0].decode("latin-1")
        return KEY_NAMES.get(text, text)

    def has_key(self) -> bool:
        """True if a key was pressed that `read_key` has not returned yet, or the terminal no longer exists."""
        return bool(self._typed or select.select([self._fd], [], [], 0)[0])

    def _read(self) -> bytes:
        """Return up to 1000 of the bytes typed so far, after waiting for one; b"" if the terminal no longer exists."""
        with suppress(OSError):
            return os.read(self._fd, 1000)
        return b""


@contextmanager
def take_over() -> Iterator[Keyboard]:
    """Take over the terminal of this process for the body of `with`, and restore it however the body ends.

    Yields the `Keyboard`, closed at the end. The terminal is restored while the process is stopped by Ctrl-Z, too. A
    signal, such as SIGWINCH for a new size, makes `read_key` return REDRAW_KEY; SIGALRM does nothing if it had a
    handler, so that progress is not drawn. The handlers before it are back at the end. Only for the main thread.
    Raises: UsageError if the process has no terminal.
    """
    keyboard = Keyboard()

    def stop(_number: int, _frame: FrameType | None) -> None:
        """Handle Ctrl-Z: restore the terminal, stop this process; take the terminal over once it continues."""
        keyboard.restore()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)  # returns when the process is continued
        signal.signal(signal.SIGTSTP, stop)
        keyboard.take_over()

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTSTP, signal.SIGWINCH, signal.SIGALRM)}
    # Every signal wakes `read_key`, even one that arrives just before `read_key` begins to wait.
    woken = signal.set_wakeup_fd(keyboard.wake, warn_on_full_buffer=False)
    try:
        if handlers[signal.SIGTSTP] != signal.SIG_IGN:  # ignored: the shell has no job control
            signal.signal(signal.SIGTSTP, stop)
        signal.signal(signal.SIGWINCH, lambda *_: None)
        if callable(handlers[signal.SIGALRM]):  # the progress bar must not draw
            signal.signal(signal.SIGALRM, lambda *_: None)
        keyboard.take_over()
        yield keyboard
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(woken)
        keyboard.restore()
        keyboard.close()
