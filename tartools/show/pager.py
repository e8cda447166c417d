"""The pager of `tarshow -i`: show one sample at a time; keys turn the pages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from tartools.errors import printable, shown
from tartools.samples.account import Account
from tartools.samples.sample import Sample
from tartools.show import pictures, sheet
from tartools.show.keyboard import Keyboard
from tartools.show.terminal import KITTY, Screen

MOST = 1000  # samples kept to go back to
MOST_BYTES = 256 << 20  # of memory that they hold; large members are in files

NEXT = (" ", "n", "j", "enter", "right", "down", "page down")
PREVIOUS = ("p", "b", "k", "left", "up", "page up")
FIRST, QUIT, HELP = ("g", "home"), ("q", "escape"), ("?", "h")
HINT = "? help"
KEYS = "space n → next   p b ← previous   g first   q quit"
CLEAR, REVERSE = "\x1b[H\x1b[2J", "\x1b[7m"


class History:
    """*samples*, read as far as they have been shown; the last ones are kept.

    Holds: 1,000 samples, or as many as fit into 256 MiB; ranges of files do not count.
    """

    def __init__(self, samples: Iterable[Sample], account: Account) -> None:
        self._unread = iter(samples)
        self._account = account
        self._kept: deque[Sample] = deque()
        self._held = 0
        self.first = 0  # number of the first sample that is kept

    def read_to(self, number: int) -> int:
        """Read up to sample *number*; return *number*, or that of the last sample if there are fewer; -1 if none."""
        while number >= self.first + len(self._kept):
            sample = next(self._unread, None)
            if sample is None:
                break
            self._account.samples_out += 1
            self._kept.append(sample.own())
            self._held += in_memory(self._kept[-1])
            while len(self._kept) > MOST or (self._held > MOST_BYTES and len(self._kept) > 1):
                self._held -= in_memory(self._kept.popleft())
                self.first += 1
        return min(max(number, self.first), self.first + len(self._kept) - 1)

    def __getitem__(self, number: int) -> Sample:
        return self._kept[number - self.first]


def in_memory(sample: Sample) -> int:
    """Return the bytes of memory that *sample* holds; it must own them."""
    sources = {id(member.source): member.source for member in sample.members}
    return sum(len(source) for source in sources.values() if isinstance(source, bytes | bytearray))


def browse(samples: Iterable[Sample], keyboard: Keyboard, screen: Callable[[], Screen], account: Account) -> None:
    """Show *samples* one at a time on *screen*, as the keys of *keyboard* say.

    Reads no further than needed, and counts in *account* what it has read.
    Holds: what `History` holds. Raises: TarToolsError.
    """
    seen = History(samples, account)
    number = seen.read_to(0)
    helping, note = False, ""
    while number >= 0:
        current = screen()
        foot = KEYS if helping else note or HINT
        keyboard.write(drawn(seen[number], number, foot, current).encode())
        key = keyboard.key()
        helping, note = key in HELP and not helping, ""
        if key in QUIT:
            return
        if key in NEXT:
            before, number = number, seen.read_to(number + 1)
            note = "this is the last" if number == before else ""
        elif key in PREVIOUS:
            before, number = number, max(seen.first, number - 1)
            note = "this is the first" + (" that is kept" if number else "") if number == before else ""
        elif key in FIRST:
            number = seen.first


def drawn(sample: Sample, number: int, foot: str, screen: Screen) -> str:
    """Return the text that fills *screen* with *sample*; the last row has number, key and *foot*."""
    page, whole = sheet.page(sample, screen)
    right = f" {foot} " if whole else f" more below  {foot} "
    left = f" {number + 1:,}  {printable(sample.key)}  {shown(sample.shard)}"
    left = sheet.fit(left, max(1, screen.columns - sheet.cells(right)))
    blanks = " " * (screen.columns - sheet.cells(left) - sheet.cells(right))
    status = sheet.fit(left + blanks + right, screen.columns)
    last = f"\x1b[{screen.rows};1H" + (sheet.styled(status, REVERSE) if screen.codes else status)
    return (pictures.KITTY_FORGET if screen.protocol == KITTY else "") + CLEAR + page + last
