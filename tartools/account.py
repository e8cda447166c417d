"""The account of one run: what was read, and where it went. This is the law of conservation as code.

For every command: samples in = out + left out + joined + dropped. `settle` checks it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable


def as_warning(text: str) -> None:
    """Say *text* as a Python warning: what a program hears that has no command around it."""
    warnings.warn(text, stacklevel=3)


class Jobs:
    """How many jobs there are in *total*, and of these *skipped* (done before), *done*, *failed*, and *running* now."""

    def __init__(self, total: int = 0, skipped: int = 0) -> None:
        self.total = total
        self.skipped = skipped
        self.done = self.failed = self.running = 0


class Account:
    """Counts of one run.

    *samples_in* were read and are all of: *samples_out* (passed on to an output), *left_out* (as the user asked),
    *joined* (became part of another), *dropped* (reported). *omissions* counts what was reported and leaves
    an output that is complete but for that; the exit status is then 1. *say* gets one line for each report, and
    those that are mere warnings unless *quiet*.
    """

    def __init__(self, say: Callable[[str], None] = as_warning, quiet: bool = False) -> None:
        self.say = say
        self.quiet = quiet
        self.samples_in = 0
        self.samples_out = 0
        self.left_out = 0
        self.joined = 0
        self.dropped = 0
        self.written: int | None = None  # samples in the output, where that is not samples_out
        self.bytes_in = 0  # of tar streams read
        self.unpacked = 0  # bytes of these, decompressed
        self.bytes_out = 0  # of outputs, before compression
        self.directories = 0
        self.specials = 0
        self.omissions = 0
        self.shards_done = 0
        self.shards: int | None = None  # in all
        self.expected: int | None = None  # bytes_in in all, where they are known
        self.jobs = Jobs()  # of a command that runs commands
        self.listed: int | None = None  # files and objects, by a command that lists; bytes_in is what they have

    def warn(self, text: str) -> None:
        """Say *text*, which changes nothing about what is written."""
        if not self.quiet:
            self.say(text)

    def omit(self, what: str) -> None:
        """Report *what* was not written, or written unprocessed."""
        self.omissions += 1
        self.say(what)

    def special(self, place: str, kind: str) -> None:
        """Report a member that carries no sample data: the first one now, the others as a number in `settle`."""
        self.specials += 1
        if self.specials == 1:
            self.omit(
                f"{place}: a {kind} carries no sample data and is not passed on "
                "(tar -h --hard-dereference stores files instead; --skip-special accepts it)"
            )

    def settle(self) -> None:
        """Report what is left to report, at the end of a run that went well.

        Raises: AssertionError if a sample is unaccounted for. That is a bug of ours, and never passes in silence.
        """
        if self.specials > 1:
            self.omit(f"{self.specials - 1} more members carry no sample data and are not passed on")
        known = self.samples_out + self.left_out + self.joined + self.dropped
        if self.samples_in != known:
            raise AssertionError(f"{self.samples_in} samples were read, but only {known} are accounted for")
