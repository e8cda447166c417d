"""Listings of very many names, by several threads side by side, given in order.

A store lists its objects page by page: each page takes a round trip, and gives the token of the next one. But a
listing can begin after any name. So the names are cut into ranges: a thread that is free takes the upper half of what
is left of another thread's range. Where that half begins is a guess: the middle of two names, as numbers over the
letters seen so far. (Dataflux, Google's loader of data sets, shares listings like that.)

Pages wait until all pages before them are taken, in bounded memory: the further back a range is, the earlier its
listing pauses. Its thread is then free for the ranges before it.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import ge

from tartools.errors import StorageError
from tartools.storage.objects.contract import Listed, Page
from tartools.storage.objects.retry import with_retries

WORKERS = 8
BEYOND = 100_000  # objects, after which more than one thread lists
AHEAD = 100_000  # objects that may wait to be taken: 30 MB
FRONT = 2  # pages of the first range that may wait
WORTH = 4  # pages that a range has left for its half to be worth a request

Ask = Callable[[str, str], Page]  # of a token and a name: the page with the token, of names greater than the name


class _Stopped(Exception):  # noqa: N818  # not a failure
    """The rest of the listing is not wanted."""


def in_order(names: Sequence[str]) -> bool:
    """Tell whether each of *names* is greater than the one before."""
    return not any(map(ge, names, names[1:]))


class _Range:
    """The names greater than *start* up to *until*, inclusive (None: all), and how far they are listed."""

    def __init__(self, start: str, until: str | None, token: str = "") -> None:
        self.start = start
        self.until = until
        self.token = token  # of the next page
        self.after = start  # the last name that was listed
        self.pages: deque[list[Listed]] = deque()  # listed, and not yet taken
        self.first: str | None = None  # name that was listed
        self.count = 0  # pages that were listed
        self.busy = False  # a thread lists the next one
        self.done = False


class _Scale:
    """Names as numbers, in the same order: their digits are *letters*, or 0 behind the end of the name."""

    def __init__(self, letters: set[str], ranges: list[_Range]) -> None:
        self._letters = sorted(letters)
        self._digits = {letter: digit for digit, letter in enumerate(self._letters, 1)}
        self._base = 1 + len(self._letters)
        self._length = 1 + max((len(name or "") for part in ranges for name in (part.after, part.until)), default=0)

    def number(self, name: str | None) -> int:
        """Return the number of *name*; None stands for the greatest."""
        number = 0
        for place in range(self._length):
            digit = self._base - 1 if name is None else self._digits[name[place]] if place < len(name) else 0
            number = number * self._base + digit
        return number

    def left(self, part: _Range) -> int:
        """Return how many pages are left of *part*, if its names are as dense as those listed so far."""
        after = self.number(part.after)
        return (self.number(part.until) - after) * part.count // max(after - self.number(part.first), 1)

    def middle(self, part: _Range) -> str | None:
        """Return a short name near the middle of what is left of *part*; None if there is none."""
        number, name = (self.number(part.after) + self.number(part.until)) // 2, ""
        for _ in range(self._length):
            number, digit = divmod(number, self._base)
            name = self._letters[digit - 1] + name if digit else ""
        for length in range(1, len(name) + 1):
            if name[:length] > part.after:
                return name[:length] if part.until is None or name[:length] < part.until else None
        return None


class Keyspace:
    """The objects of a listing of *prefix*, whose first page is *first*, for one consumer.

    *ask* is retried. With *several*, it may begin after any name. *name* returns the name of an object; names are
    compared as strings, which is the order of their UTF-8 bytes.

    Holds: 100,000 objects and the pages that are being listed. Raises, where the objects are taken: StorageError.
    """

    def __init__(self, ask: Ask, prefix: str, first: Page, name: Callable[[Listed], str], several: bool) -> None:
        self._ask = ask
        self._prefix = prefix
        self._name = name
        self._changed = threading.Condition()
        part = _Range("", None, first.next)
        self._ranges = [part]
        self._letters: set[str] = set()
        self._listed = self._waiting = self._threads = 0
        self._most = WORKERS if several else 1
        self._stopped = False
        self._error: BaseException | None = None
        with self._changed:
            self._keep(part, first)

    def objects(self) -> Iterator[Listed]:
        """Yield the objects. When this is closed, the threads end."""
        try:
            while (page := self._take()) is not None:
                yield from page
        finally:
            with self._changed:
                self._stopped = True
                self._changed.notify_all()

    def _take(self) -> list[Listed] | None:
        with self._changed:
            while self._ranges:
                front = self._ranges[0]
                self._changed.wait_for(lambda: front.pages or front.done or self._error is not None)  # noqa: B023  # runs now
                if self._error is not None:
                    raise self._error
                if front.pages:
                    page = front.pages.popleft()
                    self._waiting -= len(page)
                    self._changed.notify_all()
                    return page
                del self._ranges[0]
                self._changed.notify_all()
            return None

    # ---- threads ----

    def _work(self) -> None:
        """List pages, one after the other, of the ranges that `_choose` returns."""
        try:
            while True:
                with self._changed:
                    part = self._choose()
                    while part is None:
                        if self._stopped or all(part.done for part in self._ranges):
                            return
                        self._changed.wait()
                        part = self._choose()
                    part.busy = True
                token, start = part.token, part.start
                page = with_retries(lambda: self._ask(token, start), self._prefix, self._pause)  # noqa: B023  # runs now
                with self._changed:
                    self._keep(part, page)
                    self._changed.notify_all()
        except BaseException as error:  # raised where the objects are taken
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()

    def _pause(self, seconds: float) -> None:
        with self._changed:
            if self._changed.wait_for(lambda: self._stopped, seconds):
                raise _Stopped

    def _choose(self) -> _Range | None:
        """Return the range to list a page of: the first without a thread, else half of one that is long enough."""
        if self._stopped:
            return None
        for place, part in enumerate(self._ranges):
            if not part.busy and not part.done and self._has_room(place):
                return part
        busy = [
            part for place, part in enumerate(self._ranges, 1) if part.busy and part.count and self._has_room(place)
        ]
        scale = _Scale(self._letters, busy)
        for part in busy:
            middle = scale.middle(part) if scale.left(part) > WORTH else None
            if middle is not None:
                upper = _Range(middle, part.until)
                part.until = middle
                self._ranges.insert(self._ranges.index(part) + 1, upper)
                return upper
        return None

    def _has_room(self, place: int) -> bool:
        """Tell whether more of range number *place* may be listed. The first does not wait for the others."""
        if place == 0:
            return len(self._ranges[0].pages) < FRONT
        return self._waiting < AHEAD * (1 - place / (2 * WORKERS))

    def _keep(self, part: _Range, page: Page) -> None:
        """Keep the objects of *page* that belong to *part*; if it was cut meanwhile, others belong to another range."""
        names = [self._name(entry) for entry in page.entries]
        if not in_order([part.after, *names] if part.count or part.start else names):
            raise StorageError("the store lists its objects out of order", url=self._prefix)
        count = len(names) if part.until is None else bisect_right(names, part.until)
        part.done = count < len(names) or not page.next
        part.token, part.busy = page.next, False
        if count:
            part.first = names[0] if part.first is None else part.first
            part.after = names[count - 1]
            part.count += 1
            part.pages.append(page.entries[:count])
            self._letters.update(*names)
            self._waiting += count
            self._listed += count
        wanted = self._most if self._listed >= BEYOND else 1
        while self._threads < wanted and not all(part.done for part in self._ranges):
            self._threads += 1
            threading.Thread(target=self._work, daemon=True).start()
