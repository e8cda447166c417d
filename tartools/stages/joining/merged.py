"""The second data set of a join, sorted by key, read side by side with the first."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from operator import lt
from typing import Any, Protocol

from tartools.errors import SampleError
from tartools.stages.joining.spilled import Marks, Sort, Spilled

# keys of adjacent samples of B, and what it has for them
Batches = Generator[tuple[Sequence[bytes], Sequence[Any]], None, None]


class Source(Protocol):
    """B, to be read."""

    repeatable: bool  # it can be read several times, which is better than to sort it

    def batches(self) -> Batches:
        """Return keys and what B has for them, as bytes."""
        ...


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
            pairs_of(source.batches()), memory, sort, tmpdir, self._marks
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
        if keys and (keys[0] <= self._end or not ascend(keys)):
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


def pairs_of(batches: Batches) -> Iterator[tuple[bytes, bytes]]:
    """Return keys, each with what B has for it."""
    return ((key, value) for keys, values in batches for key, value in zip(keys, values, strict=True))


def ascend(keys: Sequence[bytes]) -> bool:
    """Tell whether *keys* are in ascending order, each once."""
    return all(map(lt, keys, keys[1:]))


def _changed() -> SampleError:
    return SampleError("B changed while it was read; start again when nothing writes to it")
