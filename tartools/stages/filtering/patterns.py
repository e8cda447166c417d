"""Regular expressions of unknown origin, with limits on size, memory and time."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from tartools.errors import UsageError, several
from tartools.stages.filtering.evaluating import READ, LimitError

PATIENCE = 1.0  # seconds of the processor for the matches of one evaluation
LONGEST = 10_000  # characters of a pattern
UNROLLED = 100_000  # the same, once each repeat with a number is written out
REMEMBERED = 2_000_000  # characters of a text times groups of its pattern; a match may take 60 bytes for each
KEPT = 100  # patterns

REPEAT = r"(?s)(?<=(.))\{\s*(\d*)\s*,?\s*(\d*)\s*\}"
REFUSED = (
    (r"\(\?[a-zA-Z0-9-]*x", "blanks and comments inside (?x)"),
    (r"\(\?(R|[+-]?\d|&|P>)", "a pattern inside itself"),
    (r"(?<!\\[pPN])\{[\d<=+, ]*[eids][<=,}:+\d ]", "approximate matching"),
)


class Patterns:
    """Patterns that are compiled once. *spend* counts the steps of an evaluation."""

    def __init__(self, spend: Callable[[int], None]) -> None:
        self._spend = spend
        self._compiled: dict[str, Any] = {}
        self._used = 0.0

    def begin(self) -> None:
        """Start another evaluation."""
        self._used = 0.0

    def search(self, pattern: str, text: str) -> bool:
        """Tell whether *pattern* matches anywhere in *text*. Raises: UsageError; LimitError."""
        if not isinstance(pattern, str) or not isinstance(text, str):
            raise TypeError("match() takes a pattern and a text")
        compiled = self.compiled(pattern)
        self._spend(len(text) // READ)
        if len(text) * (1 + pattern.count("(")) > REMEMBERED:
            raise LimitError(f"a text of {several(len(text), 'character')} is too long for {pattern[:60]!r}")
        begin = time.process_time()
        left = PATIENCE - self._used
        try:
            if left > 0:
                return compiled.search(text, timeout=left) is not None
        except TimeoutError:
            pass
        finally:
            self._used += time.process_time() - begin
        raise LimitError(f"{pattern[:60]!r} takes over {PATIENCE:g} s: avoid repeats in repeats")

    def compiled(self, pattern: str) -> Any:
        """Return *pattern* compiled. Raises: UsageError if it is no regular expression, or exceeds a limit."""
        if pattern not in self._compiled:
            size = check_size(pattern)
            self._spend(200 + 5 * len(pattern) + size // 10)
            import regex  # re has no limit of time

            if len(self._compiled) == KEPT:
                self._compiled.clear()
            try:
                self._compiled[pattern] = regex.compile(pattern)
            except (regex.error, RecursionError) as error:
                raise UsageError(f"not a regular expression: {pattern[:200]!r}: {error}") from None
        return self._compiled[pattern]


def check_size(pattern: str) -> int:
    """Return about how long *pattern* is once its repeats are written out, which is at least as long as it will be.

    Raises: UsageError if that is too much, or it has what takes time or memory without a limit.

    >>> check_size("n0[12]"), check_size("[0-9a-f]{8}-[0-9a-f]{4}")
    (6, 35)
    """
    size = len(pattern)
    for found in re.finditer(REPEAT, pattern[:LONGEST]):
        most = max(int(number[:9] or 0) for number in (found[2], found[3]))
        # what follows a group, or another repeat, may repeat all that is before it
        size = size * max(most, 1) if found[1] in ")}*+?" else size + most
    if len(pattern) > LONGEST or size > UNROLLED:
        raise UsageError(
            f"a regular expression has at most {LONGEST:,} characters, and {UNROLLED:,} once repeats are written out: "
            f"{pattern[:60]!r}"
        )
    for refused, what in REFUSED:
        if re.search(refused, pattern):
            raise UsageError(f"a regular expression may not have {what}: {pattern[:60]!r}")
    return size
