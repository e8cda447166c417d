"""What the second data set, B, has for each key of the first, A: in memory if it fits, else by order, else on disk.

 - `Held`: all of B in a dictionary.
 - `Merged`: B is sorted by key and can be read again: read side by side with A, as long as A is sorted too.
 - `Spilled`: B is sorted to a temporary file; a block of it is read for each key of A, one after the other if A is
   sorted.

A has any size and order, and is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import chain, count
from operator import lt
from typing import Any, Protocol

from tartools.errors import SampleError
from tartools.stages.joining.spilled import Marks, Sort, Spilled, twice

# keys of adjacent samples of B, and what it has for them
Batches = Generator[tuple[Sequence[bytes], Sequence[Any]], None, None]

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


class Source(Protocol):
    """B, to be read."""

    repeatable: bool  # it can be read several times, which is better than to sort it

    def batches(self) -> Batches:
        """Return keys and what B has for them, as bytes."""
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
    if source.repeatable and _ascend(known := list(numbers)):
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
    return Spilled(chain(_emptied(pairs), _pairs(batches)), memory, sort, tmpdir)


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


class _UnsortedError(Exception):
    """The keys of A do not ascend."""


class Merged:
    """B has *count* samples, is sorted by key, and is read again, side by side with A. One of its keys is *example*.

    Once a key of A is lower than the one before it, B is sorted to a temporary file after all.
    """

    def __init__(self, source: Source, count: int, example: bytes, memory: int, sort: Sort, tmpdir: str | None) -> None:
        self.samples = count
        self.example: bytes | None = example
        self._source = source
        self._batches: Batches | None = None
        self._marks = Marks(count)
        self._spill: Callable[[], Spilled] = lambda: Spilled(
            _pairs(source.batches()), memory, sort, tmpdir, self._marks
        )
        self._spilled: Spilled | None = None
        self._last = b""  # key of A
        self._end = b""  # last key of the batch of B
        self._first = 0  # number of the first sample of the batch
        self._window: dict[bytes, int] = {}  # keys of the batch
        self._values: Sequence[Any] = ()

    def find(self, keys: Sequence[bytes]) -> Sequence[Any]:
        """As `Partners.find`."""
        if self._spilled is None:
            try:
                return self._merge(keys)
            except _UnsortedError:
                self._close()
                self._spilled = self._spill()
                self._check(self._spilled.samples)
        return self._spilled.find(keys)

    def finish(self) -> int:
        """As `Partners.finish`."""
        if self._spilled is None:
            while self._advance():
                pass
            self._check(self._first)
        return self._marks.left

    def _merge(self, keys: Sequence[bytes]) -> list[Any]:
        found: list[Any] = []
        for key in keys:
            if key < self._last:
                raise _UnsortedError
            self._last = key
            while self._end < key and self._advance():
                pass
            number = self._window.get(key)
            if number is None:
                found.append(None)
            else:
                self._marks.add(self._first + number)
                found.append(self._values[number])
        return found

    def _advance(self) -> bool:
        """Take the next batch of B; tell whether there is one."""
        if self._batches is None:
            self._batches = self._source.batches()
        self._first += len(self._values)
        keys, self._values = next(self._batches, ((), ()))
        if keys and (keys[0] <= self._end or not _ascend(keys)):
            raise _changed()
        self._window = {key: number for number, key in enumerate(keys)}
        if not keys:
            return False
        self._end = keys[-1]
        if self._first + len(keys) > self.samples:
            raise _changed()
        return True

    def _check(self, count: int) -> None:
        if count != self.samples:
            raise _changed()

    def _close(self) -> None:
        if self._batches is not None:
            self._batches.close()
        self._batches, self._window, self._values = None, {}, ()


def _pairs(batches: Batches) -> Iterator[tuple[bytes, bytes]]:
    return ((key, value) for keys, values in batches for key, value in zip(keys, values, strict=True))


def _emptied(pairs: list[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Yield *pairs*, in order, and free each."""
    pairs.reverse()
    while pairs:
        yield pairs.pop()


def _ascend(keys: Sequence[bytes]) -> bool:
    """Tell whether *keys* are in ascending order, each once."""
    return all(map(lt, keys, keys[1:]))


def _count_ascending(batches: Batches, last: bytes, samples: int) -> int | None:
    """Read the rest of B, behind *samples* of which the last has the key *last*.

    Return how many samples it has if their keys ascend; else None.
    """
    for keys, _ in batches:
        if keys and (keys[0] <= last or not _ascend(keys)):
            return None
        last = keys[-1] if keys else last
        samples += len(keys)
    return samples


def _twice_in(before: list[bytes], keys: Sequence[bytes]) -> SampleError:
    """Return the failure that one of *keys*, behind those *before*, is there twice."""
    known = {key: number for number, key in enumerate(before)}
    for number, key in enumerate(keys, len(before)):
        if known.setdefault(key, number) != number:
            return twice(key, known[key], number)
    raise AssertionError("all keys are distinct")


def _changed() -> SampleError:
    return SampleError("B changed while it was read; start again when nothing writes to it")
