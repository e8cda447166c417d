"""From the words on a command line to values: whole numbers, sizes, slices. Each raises ValueError with its reason."""

from __future__ import annotations

MOST_BYTES = 1 << 63  # the largest size a file can have
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
    """Return the number *text*. Raises: ValueError if it is none."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"not a number: {text!r}") from None


def byte_size(text: str) -> int:
    """Return the number of bytes *text*: `1e9`, `500`, `64K`, `64KiB` (1024), `64KB` (1000), as in split(1).

    Raises: ValueError if it is anything else.

    >>> byte_size("64K"), byte_size("64KB"), byte_size("1.5e3")
    (65536, 64000, 1500)
    """
    import re

    found = re.fullmatch(r"(\d+(?:\.\d+)?(?:[eE]\d+)?)(?:([KMGTPkmgtp])(iB|B)?)?", text, re.ASCII)
    if found:
        base, power = (1000 if found[3] == "B" else 1024), " KMGTP".index((found[2] or " ").upper())
        factor = base**power
        if 1 <= float(found[1]) * factor <= MOST_BYTES:
            return int((int(found[1]) if found[1].isdigit() else float(found[1])) * factor)
    raise ValueError(f"not a number of bytes: {text!r}; write 1e9, 64K, 64KiB (1024) or 64KB (1000)")


def sample_slice(text: str) -> slice:
    """Return the slice `lo:hi:step`, as in Python but without negative numbers. Raises: ValueError."""
    numbers = text.split(":")
    if len(numbers) in (2, 3) and all(n == "" or (n.isascii() and n.isdigit()) for n in numbers):
        bounds = [int(n) if n else None for n in numbers]
        if len(bounds) == 2 or bounds[2] != 0:
            return slice(*bounds)
    raise ValueError(f"not a slice: {text!r}; write lo:hi or lo:hi:step, without negatives")
