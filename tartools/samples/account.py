"""The account of one run: how many samples were read, and what became of each.

For every command: samples in = out + left out + joined + dropped. `settle` checks it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tartools.errors import TarToolsError

COUNTS = (  # what the accounts of several processes add up to
    *("samples_in", "samples_out", "left_out", "joined", "dropped"),
    *("bytes_in", "unpacked", "directories", "shards_done"),
)


def as_warning(text: str) -> None:
    """Report *text* as a Python warning: the default of Python programs that use the functions."""
    warnings.warn(text, stacklevel=3)


class Watched(Protocol):
    """An input that may change while it is read."""

    def check(self) -> None:
        """Raise a TarToolsError if it has changed."""
        ...


class Jobs:
    """Counts of jobs: *total*, and of these *skipped* (done by an earlier run), *done*, *failed*, and *running* now."""

    def __init__(self, total: int = 0, skipped: int = 0) -> None:
        self.total = total
        self.skipped = skipped
        self.done = self.failed = self.running = 0


class Account:
    """Counts of one run.

    Each of *samples_in* becomes one of: *samples_out* (passed on to an output), *left_out* (on request), *joined* (part
    of another sample), *dropped* (reported). *omissions* counts reports of what is missing in an output that is
    otherwise complete; with any, the exit status is 1. *say* gets one line for each report, and for each warning
    unless *quiet*.
    """

    def __init__(self, say: Callable[[str], None] = as_warning, quiet: bool = False) -> None:
        self.say = say
        self.quiet = quiet
        self.samples_in = 0
        self.samples_out = 0
        self.left_out = 0
        self.joined = 0
        self.dropped = 0
        self.written: int | None = None  # samples in the output, where that differs from samples_out
        self.bytes_in = 0  # read of shards, as they are stored
        self.unpacked = 0  # the same bytes, decompressed
        self.bytes_out = 0  # of outputs, before compression
        self.directories = 0
        self.specials = 0
        self.omissions = 0
        self.shards_done = 0
        self.shards: int | None = None  # number of input shards
        self.expected: int | None = None  # what bytes_in will be at the end, if known
        self.jobs = Jobs()  # of a command that runs commands
        self.watched: list[Watched] = []  # inputs that are being read
        self.failure: TarToolsError | None = None  # of an input that was not read to its end
        self.listed: int | None = None  # files and objects that a listing had; bytes_in is their size

    def counts(self) -> dict[str, int]:
        """Return the counts that add up, by name: what another process needs for `add`."""
        return {name: getattr(self, name) for name in COUNTS}

    def add(self, counts: Mapping[str, int]) -> None:
        """Add the *counts* of another account."""
        for name, count in counts.items():
            setattr(self, name, getattr(self, name) + count)

    def reset(self, say: Callable[[str], None]) -> None:
        """Start again from zero, reporting to *say*: in a fork, which counts its own part."""
        self.say, self.specials = say, 0
        self.watched, self.failure = [], None
        for name in COUNTS:
            setattr(self, name, 0)

    def warn(self, text: str) -> None:
        """Report *text*, which does not change what is written."""
        if not self.quiet:
            self.say(text)

    def omit(self, what: str) -> None:
        """Report that *what* was not written, or was written unprocessed."""
        self.omissions += 1
        self.say(what)

    def special(self, place: str, kind: str) -> None:
        """Report a member without sample data: the first at once, the others as a number in `settle`."""
        self.specials += 1
        if self.specials == 1:
            self.omit(
                f"{place}: a {kind} carries no sample data and is not passed on "
                "(tar -h --hard-dereference stores files instead; --skip-special accepts it)"
            )

    def check(self) -> None:
        """Raise the failure of an input that was not read to its end. To be called before an output is committed."""
        for watched in list(self.watched):
            watched.check()
        if self.failure is not None:
            raise self.failure

    def settle(self) -> None:
        """Report what remains to be reported at the end of a successful run.

        Raises AssertionError if a sample is unaccounted for, which is a bug of ours.
        """
        if self.specials > 1:
            self.omit(f"{self.specials - 1} more members carry no sample data and are not passed on")
        known = self.samples_out + self.left_out + self.joined + self.dropped
        if self.samples_in != known:
            raise AssertionError(f"{self.samples_in} samples were read, but only {known} are accounted for")
