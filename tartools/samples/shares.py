"""Shares of all keys, chosen by a hash: a key is on the same side in every run, on every machine, in any order.

The number of a key is the first 8 bytes, big-endian, of its BLAKE2b digest of 8 bytes. Divided by 2**64 it is a
fraction from 0 to 1, and a range LO:HI of fractions has the keys with LO <= fraction < HI.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

WHOLE = 1 << 64


def number_of(key: bytes) -> int:
    """Return the number of *key*, below 2**64.

    >>> number_of(b"a") / WHOLE
    0.25379361057584854
    """
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big")


def number_with(seed: int) -> Callable[[bytes], int]:
    """Return a function that returns a number of a key, below 2**64, which depends on *seed* too."""
    secret = blake2b(b"%d" % seed).digest()
    return lambda key: int.from_bytes(blake2b(key, digest_size=8, key=secret).digest(), "big")


def bound(text: str) -> int:
    """Return the lowest number whose fraction is *text* or more: a number from 0 to 1, such as 0.9 or 1/3.

    Raises: ValueError.

    >>> bound("0.5") == bound("1/2") == WHOLE // 2
    True
    """
    over, slash, under = text.partition("/")
    whole, _, part = over.partition(".")
    digits, divisor = whole + part, under if slash else "1"
    if not (digits + divisor).isascii() or not digits.isdigit() or not divisor.isdigit() or len(text) > 40:
        raise ValueError(f"not a number from 0 to 1: {text!r}")
    numerator, denominator = int(digits), int(divisor + "0" * len(part))  # exact, as no float is
    if numerator > denominator or not denominator:
        raise ValueError(f"not a number from 0 to 1: {text!r}")
    return -(-numerator * WHOLE // denominator)


def span(text: str) -> range:
    """Return the numbers of the keys in the range of fractions *text*, `LO:HI`. Raises: ValueError.

    >>> span("0:0.5") == range(0, 1 << 63)
    True
    """
    low, colon, high = text.partition(":")
    if not colon:
        raise ValueError(f"not a range: {text!r}; write LO:HI, two numbers from 0 to 1, such as 0:0.9")
    found = range(bound(low or "0"), bound(high or "1"))
    if not found:
        raise ValueError(f"no key is in the range {text!r}: write the lower number first")
    return found
