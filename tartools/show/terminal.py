"""What a terminal can draw, by what the environment says of it. The terminal itself is never asked.

To ask would mean to write to it, to wait for an answer that may not come, and to take keys that are for others.
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

# what TERM begins with, and what TERM_PROGRAM is
TERMS = {
    **dict.fromkeys(("xterm-kitty", "xterm-ghostty"), KITTY),
    **dict.fromkeys(("wezterm", "mintty"), ITERM),
    **dict.fromkeys(("foot", "mlterm", "contour", "yaft"), SIXEL),
}
PROGRAMS = {"kitty": KITTY, "ghostty": KITTY, "iTerm.app": ITERM, "WezTerm": ITERM, "mintty": ITERM}
MULTIPLEXERS = ("tmux", "screen")  # they take what draws pictures for themselves
KONSOLE = 220400  # the first version that knows kitty's protocol

COLUMNS, ROWS = 80, 24  # where nobody knows better
NARROWEST, SHORTEST = 20, 8
CELL = (10, 20)  # pixels of a character, where the system does not know; pictures take all to be of this proportion
SMALLEST_CELL, LARGEST_CELL = 4, 64


class Screen(NamedTuple):
    """Where samples are shown.

    *protocol* draws pictures, *exact* says whether half blocks may have any colour, *codes* whether escape codes are
    wanted at all; *columns* and *rows* of characters, of which each has *cell* pixels (width and height).
    """

    protocol: str = NONE
    exact: bool = False
    codes: bool = False
    columns: int = COLUMNS
    rows: int = ROWS
    cell: tuple[int, int] = CELL


def screen(wanted: str = AUTO) -> Screen:
    """Return what is behind stdout; pictures by *wanted*, one of `PROTOCOLS`.

    Without a wish, the environment variable TARTOOLS_PICTURES has one, but for a terminal only: what is piped is
    plain then. Else `guess` decides; who has set NO_COLOR (https://no-color.org), or has a dumb terminal, gets text.

    Raises: UsageError if the variable has none of the values.
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
    """Return the protocol of the terminal that *environment* tells of: of those it knows the best, else half blocks.

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
    if environment.get("LC_TERMINAL") == "iTerm2" or "WEZTERM_PANE" in environment:  # the first comes through ssh
        return ITERM
    version = environment.get("KONSOLE_VERSION", "")
    konsole = version.isascii() and version.isdigit() and int(version[:9]) >= KONSOLE
    return KITTY if konsole or "KITTY_WINDOW_ID" in environment else BLOCKS


def size() -> tuple[int, int, tuple[int, int]]:
    """Return columns, rows, and width and height of a character in pixels.

    COLUMNS and LINES go before what the system says of the terminal: that of stdout, or else of stderr or stdin, for
    somebody who looks through a pager.
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
