"""Values of samples for the columns of a table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from tartools.samples.sample import Sample
from tartools.samples.values import Column, lookup, parse_column

NUMBER = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?"


def columns(specs: Iterable[str]) -> list[Column]:
    """Return the columns that the words of *specs* describe. Raises: UsageError."""
    return [parse_column(word) for spec in specs for word in spec.split()]


def values(wanted: Sequence[Column]) -> Callable[[Sample], list[object]]:
    """Return a function sample -> its values of the columns *wanted*; None where it has none."""

    def found(sample: Sample) -> list[object]:
        return [one and value_of(one[0]) for one in (lookup(sample, column) for column in wanted)]

    return found


def value_of(text: object) -> object:
    """Return *text* as a whole number or a number if it is the plain form of one; any other value as it is.

    >>> value_of("7"), value_of("0.50"), value_of("007"), value_of("seven")
    (7, 0.5, '007', 'seven')
    """
    if not isinstance(text, str) or not re.fullmatch(NUMBER, text):
        return text
    number = float(text) if set(text) & set(".eE") else int(text)
    return number if abs(number) < 1 << 63 else text  # else an id, or the like
