"""Permutations and draws as functions of seed, epoch and position, of which nothing is held.

Only whole numbers of 64 bits that wrap around are used, and one multiplication of doubles: the values are the same on
every machine and in every version of numpy.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

import numpy as np

ROUNDS = 8
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def mixed(values: Any, key: int) -> Any:
    """Return 64 well mixed bits for each of *values* (uint64): the finalizer of splitmix64."""
    found = values * np.uint64(_GOLDEN) + np.uint64(key & _MASK)
    found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return found ^ (found >> np.uint64(31))


def key_of(*parts: int) -> int:
    """Return a key of 64 bits made of *parts*.

    >>> key_of(0, 0) != key_of(0, 1) != key_of(1, 0)
    True
    """
    key = 0
    for part in parts:
        key = int(mixed(np.array([key ^ (part & _MASK)], np.uint64), part >> 64)[0])
    return key


def permuted(positions: Any, count: int, key: int) -> Any:
    """Return where a permutation of `range(count)` has *positions*: an array of int64.

    A Feistel network on pairs (low, high) with low + width * high, walked until the number is below *count*: for each
    *key* a bijection. About one microsecond for ten positions; holds a few arrays as long as *positions*.

    >>> sorted(permuted(np.arange(10), 10, key=7).tolist()) == list(range(10))
    True
    """
    width = np.uint64(isqrt(max(count - 1, 0)) + 1)
    height = np.uint64(-(-count // int(width)))
    found = np.asarray(positions).astype(np.uint64)
    keys = [key_of(key, number) for number in range(ROUNDS)]
    walking = np.arange(len(found))
    while len(walking):
        high, low = np.divmod(found[walking], width)
        for number in range(0, ROUNDS, 2):
            low = (low + mixed(high, keys[number]) % width) % width
            high = (high + mixed(low, keys[number + 1]) % height) % height
        reached = low + width * high
        found[walking] = reached
        walking = walking[reached >= np.uint64(count)]
    return found.astype(np.int64)


def drawn(positions: Any, bounds: Any, key: int) -> Any:
    """Return for each of *positions* a number drawn with repetition; number n has the share bounds[n] - bounds[n-1].

    *bounds* are sums of weights, up to each number.
    """
    numbers = np.asarray(positions).astype(np.uint64)
    shares = (mixed(mixed(numbers, key), key) >> np.uint64(11)).astype(np.float64) / float(1 << 53)
    return np.minimum(bounds.searchsorted(shares * bounds[-1], "right"), len(bounds) - 1)
