"""How many ranges of an object are requested at once: one until the network is the bottleneck, more while that helps.

More connections do not help a reader that is slower than one, nor where a server on a busy machine is slow; and they
take from the processor. See docs/adr/0009.
"""

from __future__ import annotations

import time

BUSY = 4  # a range that took more than so many times its processor time was waited for
TRIAL = 8  # ranges of several connections, after which it is known whether they help
HELP = 0.7  # they do if the reader waits for less than this part of the time
REST = 64  # ranges of one connection before several are tried again, unless it becomes slower


class Pace:
    """The *window*: how many ranges are requested at once, at most *most*."""

    def __init__(self, most: int) -> None:
        self.window = 1
        self.most = most
        self._slow = 0  # ranges in a row for which the reader waited
        self._waited, self._since = 0.0, time.monotonic()  # seconds of waiting for the current range, and its begin
        self._ranges = 0  # of one connection
        self._alone = 0.0  # seconds of waiting for such a range; the last ones count most
        self._together: list[float] = []  # for each range of several connections in this trial
        self._vain, self._rest = 0.0, 0  # seconds, when several did not help; ranges until they are tried again

    def waited(self, seconds: float) -> None:
        """Note that the reader has waited for the current range."""
        self._waited += seconds

    def done(self, seconds: float, work: float, alone: bool) -> None:
        """Decide after a range that was received in some *seconds*, *work* of the processor; *alone*: without a thread.

        Before there are threads, only the second slow range counts.
        """
        now = time.monotonic()
        waited, slow = self._waited, 2 * self._waited > now - self._since and seconds > BUSY * work
        self._slow = self._slow + 1 if slow else 0
        self._waited, self._since = 0.0, now
        if self.window > 1:
            if slow:
                self.window = min(2 * self.window, self.most)
            if self._ranges:  # else there were several from the beginning
                self._together.append(waited)
                self._judge()
        elif alone:
            self._ranges += 1  # the first one does not count: the client is made meanwhile
            self._alone = waited if self._ranges < 3 else (self._alone + waited) / 2
            self._rest -= 1
            if self._slow > 1 and (self._rest <= 0 or self._vain < HELP * self._alone):
                self.window = min(2, self.most)

    def _judge(self) -> None:
        """Go back to one connection if a trial of several is over, and they did not help."""
        if len(self._together) == TRIAL:
            each = sum(self._together) / TRIAL
            self._together = []
            if each > HELP * self._alone:
                self.window, self._slow = 1, 0
                self._vain, self._rest = each, REST
