"""Samples one at a time, as a person turns the pages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from tartools.account import Account
from tartools.errors import printable, shown
from tartools.sample import Sample
from tartools.show import pictures, sheet
from tartools.show.terminal import KITTY, Screen

MOST = 1000  # samples that one can go back
MOST_BYTES = 256 << 20  # in memory; large members are in files

NEXT = (" ", "n", "j", "enter", "right", "down", "page down")
PREVIOUS = ("p", "b", "k", "left", "up", "page up")
FIRST, QUIT, HELP = ("g", "home"), ("q", "escape"), ("?", "h")
HINT = "? help"
KEYS = "space n → next   p b ← previous   g first   q quit"
CLEAR, REVERSE = "\x1b[H\x1b[2J", "\x1b[7m"


class Keyboard(Protocol):
    """The terminal that shows the pages."""

    def key(self) -> str:
        """Wait for a key, and return its character or its name."""
        ...

    def write(self, data: bytes, /) -> None:
        """Show *data*."""
        ...


class Seen:
    """*samples*, read as far as somebody has looked, of which the last ones can be looked at again.

    Holds: 1000 samples, or as many as fit into 256 MiB; members of files are not held.
    """

    def __init__(self, samples: Iterable[Sample], account: Account) -> None:
        self._unread = iter(samples)
        self._account = account
        self._kept: deque[Sample] = deque()
        self._held = 0
        self.first = 0  # number of the first that is kept

    def read_to(self, number: int) -> int:
        """Read as far as sample *number*; return it, or the number of the last if there are fewer, -1 for none."""
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
    """Return the bytes of memory that *sample*, which owns them, holds."""
    sources = {id(member.source): member.source for member in sample.members}
    return sum(len(source) for source in sources.values() if isinstance(source, bytes | bytearray))


def browse(samples: Iterable[Sample], keyboard: Keyboard, screen: Callable[[], Screen], account: Account) -> None:
    """Show *samples* one at a time on *screen*, and go on, back, and away as *keyboard* says.

    Reads as far as it is asked to; what it has read is counted in *account*.
    Holds: what `Seen` holds. Raises: TarToolsError.
    """
    seen = Seen(samples, account)
    number = seen.read_to(0)
    helping, note = False, ""
    while number >= 0:
        here = screen()
        foot = KEYS if helping else note or HINT
        keyboard.write(drawn(seen[number], number, foot, here).encode())
        key = keyboard.key()
        helping, note = key in HELP and not helping, ""
        if key in QUIT:
            return
        if key in NEXT:
            before, number = number, seen.read_to(number + 1)
            note = "that was the last" if number == before else ""
        elif key in PREVIOUS:
            before, number = number, max(seen.first, number - 1)
            note = "this is the first" + (" that is kept" if number else "") if number == before else ""
        elif key in FIRST:
            number = seen.first


def drawn(sample: Sample, number: int, foot: str, screen: Screen) -> str:
    """Return what fills *screen* with *sample*, and says in its last row which one it is and, to the right, *foot*."""
    page, whole = sheet.page(sample, screen)
    right = f" {foot} " if whole else f" there is more  {foot} "
    left = f" {number + 1:,}  {printable(sample.key)}  {shown(sample.shard)}"
    left = sheet.fit(left, max(1, screen.columns - sheet.cells(right)))
    blanks = " " * (screen.columns - sheet.cells(left) - sheet.cells(right))
    status = sheet.fit(left + blanks + right, screen.columns)
    last = f"\x1b[{screen.rows};1H" + (sheet.styled(status, REVERSE) if screen.codes else status)
    return (pictures.KITTY_FORGET if screen.protocol == KITTY else "") + CLEAR + page + last
