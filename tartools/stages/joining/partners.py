"""What the second data set, B, has for each key of the first, A: in memory if it fits, else on disk.

 - `Held`: all of B in a dictionary.
 - `Spilled`: B is sorted to a temporary file; a block of it is read for each key of A, one after the other if A is
   sorted.

A has any size and order, and is read once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, count
from typing import TYPE_CHECKING, Any, Protocol

from tartools.errors import SampleError

if TYPE_CHECKING:
    from tartools.stages.joining.spilled import Sort

# keys of adjacent samples of B, and what it has for them, as bytes
Batches = Iterator[tuple[Sequence[bytes], Sequence[Any]]]

OVERHEAD = 250  # bytes of memory for a sample in a dictionary beyond its own: three objects, slots in lists


class Partners(Protocol):
    """What B has, by key."""

    samples: int  # of B
    example: bytes | None  # a key of B, if it has one

    def find(self, keys: Sequence[bytes]) -> Sequence[Any]:
        """Return what B has for the *keys* of the next samples of A, None for what it lacks."""
        ...

    @property
    def left(self) -> int:
        """How many samples of B no key was asked for."""
        ...


def partners_of(batches: Batches, memory: int, sort: Sort, tmpdir: str | None) -> Partners:
    """Read *batches* of B, and return what finds partners in them.

    Holds: *memory* bytes. Raises: SampleError if a key is there twice; what *batches* raise.
    """
    numbers: dict[bytes, int] = {}
    held: list[bytes] = []
    size = 0
    for keys, values in batches:
        before = len(held)
        numbers.update(zip(keys, count(before), strict=False))
        held += values
        if len(numbers) != len(held):
            raise _twice_in(list(numbers)[:before], keys)
        size += sum(map(len, keys)) + sum(map(len, values)) + OVERHEAD * len(keys)
        if size > memory:
            break
    else:
        return Held(numbers, held)
    from tartools.stages.joining.spilled import Spilled

    pairs = list(zip(numbers, held, strict=True))
    del numbers, held
    rest = ((key, value) for keys, values in batches for key, value in zip(keys, values, strict=True))
    return Spilled(chain(_emptied(pairs), rest), memory, sort, tmpdir)


class Held:
    """All of B is in memory: *values*, and the *numbers* of these by key."""

    def __init__(self, numbers: dict[bytes, int], values: Sequence[bytes]) -> None:
        self.samples = len(values)
        self.example = next(iter(numbers), None)
        self._numbers = numbers
        self._values = values
        self._marks = bytearray(len(values))

    def find(self, keys: Sequence[bytes]) -> Sequence[Any]:
        """As `Partners.find`."""
        numbers = list(map(self._numbers.get, keys))
        marks, values = self._marks, self._values
        if None not in numbers:
            for number in numbers:
                marks[number] = 1  # type: ignore[index]
            return list(map(values.__getitem__, numbers))  # type: ignore[arg-type]
        found: list[bytes | None] = []
        for number in numbers:
            if number is None:
                found.append(None)
            else:
                marks[number] = 1
                found.append(values[number])
        return found

    @property
    def left(self) -> int:
        """As `Partners.left`."""
        return self._marks.count(0)


def _emptied(pairs: list[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Yield *pairs*, in order, and free each."""
    pairs.reverse()
    while pairs:
        yield pairs.pop()


def _twice_in(before: list[bytes], keys: Sequence[bytes]) -> SampleError:
    """Return the failure that one of *keys*, behind those *before*, is there twice."""
    from tartools.stages.joining.spilled import twice

    known = {key: number for number, key in enumerate(before)}
    for number, key in enumerate(keys, len(before)):
        if known.setdefault(key, number) != number:
            return twice(key, known[key], number)
    raise AssertionError("all keys are distinct")
