"""The pager of `tarshow -i`: show one sample at a time, or a grid of them; page with the keyboard."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable

from tartools.errors import printable, shown
from tartools.samples.account import Account
from tartools.samples.sample import Sample
from tartools.show import graphics, sheet
from tartools.show.search import has_words, search_words
from tartools.show.terminal import KITTY, REDRAW_KEY, Keyboard, Screen

MAX_SAMPLES_KEPT = 10_000  # samples kept to go back to
MAX_KEPT_MEMORY = 256 << 20  # bytes of memory that they hold; large members are in files
MAX_NUMBER_DIGITS = 15  # digits of the number of a sample
SAMPLES_PER_STATUS = 1000  # samples read between two updates of the last row

NEXT_KEYS = (" ", "n", "j", "enter", "right", "down", "page down")
PREVIOUS_KEYS = ("p", "b", "k", "left", "up", "page up")
ROW_KEYS, PAGE_KEYS = ("down", "up"), (" ", "page down", "b", "page up")  # in the grid; the others move by one sample
FIRST_KEYS, LAST_KEYS, GRID_KEY = ("home", "<"), ("end", "G", ">"), "g"
QUIT_KEYS, HELP_KEYS, SEARCH_KEY = ("q", "escape"), ("?", "h"), "/"
HELP_HINT = "? help"
KEYS_HELP = "space n → next, p b ← previous, home first, end last, 12 enter: sample 12, / search, g grid, q quit"
CLEAR_SCREEN = "\x1b[H\x1b[2J"


class History:
    """The *samples*, read as far as the user has gone; the last ones are kept to go back to.

    Attributes: first: number of the first sample that is kept. is_at_end: True once `read_to` has met the end.
    `read_to` reads on; `history[number]` is the sample *number*, from 0, which must be read and kept. Each sample read
    is counted in *account* as written.
    Holds: 10,000 samples (MAX_SAMPLES_KEPT), or 256 MiB of them (MAX_KEPT_MEMORY), but at least one; ranges of files do
    not count.
    """

    def __init__(self, samples: Iterable[Sample], account: Account) -> None:
        self._unread = iter(samples)
        self._account = account
        self._kept: deque[Sample] = deque()
        self._held = 0
        self.first = 0  # number of the first sample that is kept
        self.is_at_end = False  # whether all samples have been read

    @property
    def count(self) -> int:
        """The number of samples read so far, dropped ones included."""
        return self.first + len(self._kept)

    def read_to(self, number: int) -> int:
        """Read up to sample *number*, from 0; return the number of the nearest sample kept, -1 if there is none.

        It is *number* itself, unless there are fewer samples (then the last one), or it is kept no longer (the first
        kept). Raises: the errors of reading.
        """
        while number >= self.count:
            sample = next(self._unread, None)
            if sample is None:
                self.is_at_end = True
                break
            self._account.samples_out += 1
            self._kept.append(sample.own())
            self._held += memory_bytes(self._kept[-1])
            while len(self._kept) > MAX_SAMPLES_KEPT or (self._held > MAX_KEPT_MEMORY and len(self._kept) > 1):
                self._held -= memory_bytes(self._kept.popleft())
                self.first += 1
        return min(max(number, self.first), self.count - 1)

    def __getitem__(self, number: int) -> Sample:
        return self._kept[number - self.first]


def memory_bytes(sample: Sample) -> int:
    """Return the bytes of memory that *sample* holds; payloads in files do not count. It must own its bytes."""
    sources = {id(member.source): member.source for member in sample.members}
    return sum(len(source) for source in sources.values() if isinstance(source, bytes | bytearray))


class Pager:
    """Shows *samples* on a terminal, one at a time or as a grid, as the user presses keys: call `run`.

    *keyboard*: reads keys and writes to the terminal. `screen()`: returns its present size and abilities. *account*:
    counts the samples read as written. *total*: number of all samples; None if unknown. It reads no further than
    needed. Holds: the samples that `History` keeps.
    """

    def __init__(
        self,
        samples: Iterable[Sample],
        keyboard: Keyboard,
        screen: Callable[[], Screen],
        account: Account,
        total: int | None,
    ) -> None:
        self._seen = History(samples, account)
        self._keyboard = keyboard
        self._screen = screen
        self._total = total
        self._number = 0
        self._grid = self._helping = False
        self._note = self._query = ""

    def run(self) -> None:
        """Show samples until the user quits; return at once if there are none.

        Raises: TarToolsError if a sample can't be read or drawn.
        """
        self._number = self._seen.read_to(0)
        while self._number >= 0:
            self._show()
            key = self._keyboard.read_key()
            self._note, self._helping = "", key in HELP_KEYS and not self._helping
            if key in QUIT_KEYS:
                return
            if key in FIRST_KEYS:
                self._go_to(0)
            elif key in LAST_KEYS:
                self._go_to(sys.maxsize)
            elif key.isdecimal() and key.isascii():
                typed = self._ask("go to sample: ", key)
                if typed and typed.isdecimal():
                    self._go_to(max(0, int(typed[:MAX_NUMBER_DIGITS]) - 1))
                elif typed:
                    self._note = "that is not a number"
            elif key == SEARCH_KEY:
                self._search()
            elif key == GRID_KEY or (self._grid and key == "enter"):
                self._grid = not self._grid
            elif key in NEXT_KEYS or key in PREVIOUS_KEYS:
                across, down = sheet.grid_size(self._screen()) if self._grid else (1, 1)
                step = across * down if key in PAGE_KEYS else across if key in ROW_KEYS else 1
                self._go_to(self._number + (step if key in NEXT_KEYS else -step))

    def _go_to(self, number: int) -> None:
        """Make sample *number*, from 0, the current one; if there is none, the first or last kept, mostly with a note.

        A key pressed while samples are read stops that, as a note says; then the current sample is the last one read.
        There is no note if *number* is `sys.maxsize`, the way to the end, and the current sample changes; there is one
        for the first if it was the current one.
        """
        before = self._number
        stopped = False
        while not stopped and self._seen.count <= number and not self._seen.is_at_end:
            self._seen.read_to(min(number, self._seen.count + SAMPLES_PER_STATUS - 1))
            stopped = self._show_progress(number)
        self._number = self._seen.read_to(min(number, self._seen.count - 1))
        suffix = " that is kept" if self._seen.first else ""
        if number < self._number or number == self._number == before == self._seen.first:
            self._note = f"this is the first{suffix}"
        elif stopped:
            self._note = "stopped"
        elif self._number < number and (self._number == before or number != sys.maxsize):
            self._note = "this is the last"

    def _show_progress(self, number: int) -> bool:
        """Show on the last row how many samples were read on the way to *number*; return True if a key was pressed.

        Does nothing and returns False if *number* has been read, or all samples have.
        """
        if self._seen.count <= number and not self._seen.is_at_end:
            self._keyboard.write(self._draw_foot(f" {self._seen.count:,} samples read; any key stops").encode())
            return self._keyboard.has_key()
        return False

    def _search(self) -> None:
        """Ask for words; go to the next sample that has each of them in its key or a text.

        After the last sample comes the first that is kept. If none is found, or a key pressed meanwhile stops the
        search, the current sample stays (the first kept if it is kept no longer), and a note says so. An empty line
        repeats the last search, if there was one; Escape does nothing. Raises: StorageError if a payload can't be read.
        """
        typed = self._ask("/")
        self._query = typed or self._query
        if typed is None or not self._query:
            return
        words, number, stopped = search_words(self._query), self._number + 1, False
        while not stopped and self._seen.read_to(number) == number:
            if has_words(self._seen[number], words):
                self._number = number
                return
            number += 1
            stopped = number % SAMPLES_PER_STATUS == 0 and self._show_progress(number)
        self._number = self._seen.read_to(self._number)  # it may be kept no longer
        earlier = range(self._seen.first, 0 if stopped else self._number + 1)
        match = next((number for number in earlier if has_words(self._seen[number], words)), None)
        if match is None:
            self._note = "stopped" if stopped else f"no sample has {printable(self._query)}"
        else:
            self._number, self._note = match, "from the first again"

    def _ask(self, question: str, typed: str = "") -> str | None:
        """Return the line that the user types after *question*; None after Escape, or Backspace on an empty line.

        *typed*: the beginning of the line. The line is drawn in the last row as it changes.
        """
        line_bytes = bytearray(typed.encode())
        while True:
            line = f" {question}{printable(line_bytes.decode(errors='replace'))}"
            self._keyboard.write(self._draw_foot(line).encode())
            key = self._keyboard.read_key()
            if key == "enter":
                return line_bytes.decode(errors="replace")
            if key == REDRAW_KEY:
                self._show()
            elif key == "escape" or (key == "backspace" and not line_bytes):
                return None
            elif key == "backspace":
                while line_bytes.pop() & 0xC0 == 0x80:  # of a character of several bytes, all (UTF-8)
                    pass
            elif len(key) == 1:
                line_bytes += key.encode("latin-1")

    def _show(self) -> None:
        """Draw the current sample, or the grid with it, and in the last row number, key and shard, or help."""
        screen, help_lines = self._screen(), []
        if self._helping:
            import textwrap

            help_lines = [f" {line}" for line in textwrap.wrap(KEYS_HELP, screen.columns - 2)]
        area, fits = screen._replace(rows=screen.rows + 1 - max(1, len(help_lines))), True
        if self._grid:
            drawn = self._draw_grid(area)
        else:
            drawn, fits = sheet.draw_page(self._seen[self._number], area)
        foot = help_lines or [self._status(screen, HELP_HINT if fits else f"more below  {HELP_HINT}")]
        forget = graphics.KITTY_FORGET if screen.protocol == KITTY else ""
        self._keyboard.write(f"{forget}{CLEAR_SCREEN}{drawn}{self._draw_foot(*foot)}".encode())

    def _draw_grid(self, screen: Screen) -> str:
        """Return the text of the page of the grid that has the current sample, after reading as far as its last one.

        If the current sample is kept no longer after that, the first kept becomes the current one.
        """
        across, down = sheet.grid_size(screen)
        page = across * down
        begin = self._number // page * page
        end = self._seen.read_to(begin + page - 1)
        begin, self._number = max(begin, self._seen.first), max(self._number, self._seen.first)
        return sheet.draw_grid([self._seen[n] for n in range(begin, end + 1)], self._number - begin, screen)

    def _status(self, screen: Screen, hint: str) -> str:
        """Return the last row, as wide as *screen*: number, key, shard, and at the end the note, or else *hint*."""
        sample = self._seen[self._number]
        right_part = f" {self._note or hint} "
        left_part = f" {self._position_words()}  {printable(sample.key)}  {shown(sample.shard)}"
        left_part = sheet.fit_line(left_part, max(1, screen.columns - sheet.line_columns(right_part)))
        return (
            left_part
            + " " * (screen.columns - sheet.line_columns(left_part) - sheet.line_columns(right_part))
            + right_part
        )

    def _position_words(self) -> str:
        """Return "N of TOTAL" for the current sample; without a total "N of READ+", or "N" if it was read last.

        TOTAL is the number of samples read once all are; a total below it counts as none.
        """
        read, number = self._seen.count, self._number + 1
        if self._seen.is_at_end:
            return f"{number:,} of {read:,}"
        if self._total is not None and self._total >= read:
            return f"{number:,} of {self._total:,}"
        return f"{number:,} of {read:,}+" if read > number else f"{number:,}"

    def _draw_foot(self, *lines: str) -> str:
        """Return the text that draws *lines* in the last rows of the screen, one a row, cut or padded to its width.

        They are in reverse video if the screen takes escape codes.
        """
        screen, text = self._screen(), ""
        for row, line in enumerate(lines, screen.rows + 1 - len(lines)):
            line = sheet.fit_line(line, screen.columns)
            line += " " * (screen.columns - sheet.line_columns(line))
            text += f"\x1b[{row};1H" + (sheet.add_style(line, sheet.REVERSE) if screen.codes else line)
        return text
