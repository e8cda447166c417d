"""What the terminal can draw, by environment variables. The terminal itself is never queried.

A query would have to write to the terminal, wait for an answer that may not come, and read keys meant for others.
"""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from collections.abc import Mapping
from typing import NamedTuple

from tartools.errors import UsageError

AUTO, NONE, BLOCKS, KITTY, ITERM, SIXEL = "auto", "none", "blocks", "kitty", "iterm", "sixel"
VARIABLE = "TARTOOLS_PICTURES"
PROTOCOLS = (AUTO, KITTY, ITERM, SIXEL, BLOCKS, NONE)

# prefixes of TERM, and values of TERM_PROGRAM
TERMS = {
    **dict.fromkeys(("xterm-kitty", "xterm-ghostty"), KITTY),
    **dict.fromkeys(("wezterm", "mintty"), ITERM),
    **dict.fromkeys(("foot", "mlterm", "contour", "yaft"), SIXEL),
}
PROGRAMS = {"kitty": KITTY, "ghostty": KITTY, "iTerm.app": ITERM, "WezTerm": ITERM, "mintty": ITERM}
MULTIPLEXERS = ("tmux", "screen")  # they do not pass pictures on to the terminal
KONSOLE = 220400  # the first version of Konsole with kitty's protocol

COLUMNS, ROWS = 80, 24  # if the system does not say
NARROWEST, SHORTEST = 20, 8
CELL = (10, 20)  # pixels of a character if the system does not say; pictures assume this proportion
SMALLEST_CELL, LARGEST_CELL = 4, 64


class Screen(NamedTuple):
    """The screen that shows samples.

    *protocol* draws pictures; *exact* says whether half blocks may have any colour, *codes* whether escape codes are
    wanted; *columns* and *rows* are in characters of *cell* (width, height) pixels.
    """

    protocol: str = NONE
    exact: bool = False
    codes: bool = False
    columns: int = COLUMNS
    rows: int = ROWS
    cell: tuple[int, int] = CELL


def screen(wanted: str = AUTO) -> Screen:
    """Return the screen of stdout. *wanted*, one of `PROTOCOLS`, says how to draw pictures.

    If it is auto and stdout is a terminal, the environment variable TARTOOLS_PICTURES decides, else `guess`. There are
    no pictures by default if stdout is no terminal, NO_COLOR (https://no-color.org) is set, or TERM is dumb.

    Raises: UsageError if the variable is not one of `PROTOCOLS`.
    """
    terminal = os.isatty(1)
    codes = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
    if wanted == AUTO and terminal:
        wanted = os.environ.get(VARIABLE) or AUTO
        if wanted not in PROTOCOLS:
            raise UsageError(f"{VARIABLE} is {wanted!r}; it can be {', '.join(PROTOCOLS)}")
    if wanted == AUTO:
        wanted = guess(os.environ) if codes else NONE
    exact = os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit")
    return Screen(wanted, exact, codes or wanted != NONE, *size())


def guess(environment: Mapping[str, str]) -> str:
    """Return the best protocol of the terminal that *environment* describes; half blocks if it is unknown.

    >>> guess({"TERM": "xterm-kitty"}), guess({"TERM": "xterm-256color", "LC_TERMINAL": "iTerm2"})
    ('kitty', 'iterm')
    """
    term = environment.get("TERM", "")
    if "TMUX" in environment or "STY" in environment or term.startswith(MULTIPLEXERS):
        return BLOCKS
    for start, protocol in TERMS.items():
        if term.startswith(start):
            return protocol
    program = environment.get("TERM_PROGRAM", "")
    if program in PROGRAMS:
        return PROGRAMS[program]
    if environment.get("LC_TERMINAL") == "iTerm2" or "WEZTERM_PANE" in environment:  # LC_TERMINAL is passed on by ssh
        return ITERM
    version = environment.get("KONSOLE_VERSION", "")
    konsole = version.isascii() and version.isdigit() and int(version[:9]) >= KONSOLE
    return KITTY if konsole or "KITTY_WINDOW_ID" in environment else BLOCKS


def size() -> tuple[int, int, tuple[int, int]]:
    """Return columns, rows, and (width, height) of a character in pixels.

    COLUMNS and LINES override the system's size of the terminal of stdout, or else (stdout is a pager) of stderr or
    stdin.
    """
    columns = rows = across = down = 0
    for fd in (1, 2, 0):
        try:
            rows, columns, across, down = struct.unpack("HHHH", fcntl.ioctl(fd, termios.TIOCGWINSZ, bytes(8)))
        except OSError:
            continue
        if columns and rows:
            break
    across, down = (min(LARGEST_CELL, pixels // max(1, cells)) for pixels, cells in ((across, columns), (down, rows)))
    cell = (across, down) if min(across, down) >= SMALLEST_CELL else CELL
    columns = _number("COLUMNS") or columns or COLUMNS
    rows = _number("LINES") or rows or ROWS
    return max(NARROWEST, columns), max(SHORTEST, rows), cell


def _number(variable: str) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 5 else 0
