"""What the second data set, B, has for each key of the first, A: in memory if it fits, else by order, else on disk.

 - `Held`: all of B in a dictionary.
 - `Merged`: B is sorted by key and can be read again: read side by side with A, as long as A is sorted too.
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
    from tartools.stages.joining.merged import Batches, Source
    from tartools.stages.joining.spilled import Sort

OVERHEAD = 250  # bytes of memory for a sample in a dictionary beyond its own: three objects, slots in lists


class Partners(Protocol):
    """What B has, by key."""

    samples: int  # of B
    example: bytes | None  # a key of B, if it has one

    def find(self, keys: Sequence[bytes]) -> Sequence[Any]:
        """Return what B has for the *keys* of the next samples of A, None for what it lacks."""
        ...

    def finish(self) -> int:
        """Return how many samples of B no key was asked for. Raises what the rest of B raises."""
        ...


def partners_of(source: Source, memory: int, sort: Sort, tmpdir: str | None) -> Partners:
    """Read *source*, and return what finds partners in it.

    Holds: *memory* bytes. Raises: SampleError if a key is there twice; what *source* raises.
    """
    numbers: dict[bytes, int] = {}
    held: list[bytes] = []
    size = 0
    batches = source.batches()
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
    from tartools.stages.joining.merged import Merged, ascend, pairs_of
    from tartools.stages.joining.spilled import Spilled

    if source.repeatable and ascend(known := list(numbers)):
        example = known[0]
        numbers, held = {}, []
        samples = _count_ascending(batches, known[-1], len(known))
        del known
        batches.close()
        if samples is not None:
            return Merged(source, samples, example, memory, sort, tmpdir)
        batches = source.batches()
    pairs = list(zip(numbers, held, strict=True))
    del numbers, held
    return Spilled(chain(_emptied(pairs), pairs_of(batches)), memory, sort, tmpdir)


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

    def finish(self) -> int:
        """As `Partners.finish`."""
        return self._marks.count(0)


def _emptied(pairs: list[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Yield *pairs*, in order, and free each."""
    pairs.reverse()
    while pairs:
        yield pairs.pop()


def _count_ascending(batches: Batches, last: bytes, samples: int) -> int | None:
    """Read the rest of B, behind *samples* of which the last has the key *last*.

    Return how many samples it has if their keys ascend; else None.
    """
    from tartools.stages.joining.merged import ascend

    for keys, _ in batches:
        if keys and (keys[0] <= last or not ascend(keys)):
            return None
        last = keys[-1] if keys else last
        samples += len(keys)
    return samples


def _twice_in(before: list[bytes], keys: Sequence[bytes]) -> SampleError:
    """Return the failure that one of *keys*, behind those *before*, is there twice."""
    from tartools.stages.joining.spilled import twice

    known = {key: number for number, key in enumerate(before)}
    for number, key in enumerate(keys, len(before)):
        if known.setdefault(key, number) != number:
            return twice(key, known[key], number)
    raise AssertionError("all keys are distinct")
