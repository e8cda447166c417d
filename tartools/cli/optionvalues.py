"""From the words on a command line to values: whole numbers, sizes, slices. Each raises ValueError with its reason."""

from __future__ import annotations

import math

LONGEST_NUMBER = 30  # digits


def whole_number(text: str) -> int:
    """Return the whole number *text*; `1e3` is one too.

    Raises: ValueError if it is anything else.

    >>> whole_number("12"), whole_number("1e3"), whole_number("2.5e1")
    (12, 1000, 25)
    """
    try:
        return int(text)
    except ValueError:
        pass
    from decimal import Decimal, InvalidOperation

    try:
        number = Decimal(text)
        if number.is_finite() and number.adjusted() < LONGEST_NUMBER and number == number.to_integral_value():
            return int(number)
    except InvalidOperation:
        pass
    raise ValueError(f"not a whole number: {text!r}")


def number(text: str) -> float:
    """Return the number *text*. Raises: ValueError if it is none, or infinite."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"not a number: {text!r}")
    return found


def sample_slice(text: str) -> slice:
    """Return the slice `lo:hi:step`, as in Python but without negative numbers. Raises: ValueError."""
    numbers = text.split(":")
    if len(numbers) in (2, 3) and all(n == "" or (n.isascii() and n.isdigit()) for n in numbers):
        bounds = [int(n) if n else None for n in numbers]
        if len(bounds) == 2 or bounds[2] != 0:
            return slice(*bounds)
    raise ValueError(f"not a slice: {text!r}; write lo:hi or lo:hi:step, without negatives")
