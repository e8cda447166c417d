"""The stages of a `WebDataset` that take the place of those of webdataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from random import Random
from typing import Any

from webdataset import autodecode, filters

from tartools.errors import SampleError
from tartools.train.fieldchooser import FieldChooser, undecodable
from tartools.train.slicereader import Position

FIRST = 100  # samples of the first block that is shuffled; blocks double up to the size asked for
# Stages of webdataset that take a sample and give one or none before they take the next.
_HOLD_NOTHING = {
    *(filters._decode, filters._extract_keys, filters._log_keys, filters._map, filters._map_dict, filters._map_tuple),
    *(filters._rename, filters._rename_keys, filters._rsample, filters._select, filters._to_tuple, filters._xdecode),
}


class ShuffleStage:
    """Shuffles blocks of *size* samples, each by *seed*, epoch and its number."""

    def __init__(self, size: int, seed: int, initial: int = FIRST) -> None:
        self.size, self.seed, self.initial = size, seed, max(1, initial)

    def block(self, number: int) -> int:
        """Return how many samples block *number* has."""
        return min(self.size, self.initial << min(number, 40))


class BlockShuffle:
    """What *stage* does in one epoch, from block *number* on, of which *done* samples were given before.

    *position* tells where the source is. The order follows from *name*, the seed of the stage and the block's number.
    """

    def __init__(
        self, stage: ShuffleStage, name: str, position: Callable[[], Position], number: int = 0, done: int = 0
    ) -> None:
        self._stage, self._name, self._position = stage, name, position
        self.begin, self.number, self.done, self.size = position(), number, done, 0

    def iterated(self, samples: Iterator[Any]) -> Iterator[Any]:
        """Yield *samples*, block by block."""
        while block := [*islice(samples, self._stage.block(self.number))]:
            self.size = len(block)
            for given, sample in shuffled(block, self._block_name(), self.done):
                self.done = given
                yield sample
            self.begin, self.number, self.done = self._position(), self.number + 1, 0

    def state(self) -> list[Any]:
        """Return which block this is in, of which samples, and where they end in the source."""
        return [self.number, self.done, self._block_name(), self.size, [*self._position()]]

    def _block_name(self) -> str:
        return f"{self._name} {self._stage.seed} {self.number}"


def shuffled(block: list[Any], name: str, done: int) -> Iterator[tuple[int, Any]]:
    """Yield the samples of *block* in the order of *name*, but for the first *done*: how many were given, and the last.

    The block is emptied.
    """
    Random(name).shuffle(block)
    for at in range(done, len(block)):
        sample, block[at] = block[at], None
        yield at + 1, sample


class BatchStage:
    """Makes batches of *size* samples. Unlike webdataset's, it gives a batch as soon as it is full."""

    def __init__(self, size: int, collate: Callable[[list[Any]], Any] | None, partial: bool) -> None:
        self._size, self._collate, self._partial = size, collate, partial

    def __call__(self, samples: Iterator[Any]) -> Iterator[Any]:
        """Yield batches of *samples*."""
        while batch := [*islice(samples, self._size)]:
            if len(batch) == self._size or self._partial:
                yield batch if self._collate is None else self._collate(batch)


class ChooseStage:
    """A `FieldChooser` as a stage."""

    def __init__(self, chooser: FieldChooser) -> None:
        self._chooser = chooser
        self.wanted = chooser.needed

    def __call__(self, samples: Iterator[Any]) -> Iterator[Any]:
        """Yield what training takes of *samples*."""
        return map(self._chooser, samples)


class DecodeStage:
    """Decodes the fields of a sample by *decoder*, one of webdataset. Raises: SampleError, with shard and field."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return *sample* with its fields decoded."""
        try:
            return self._decoder(sample)  # type: ignore[no-any-return]
        except autodecode.DecodingError as error:
            raise undecodable(sample, error.k, error.__cause__) from error.__cause__


def refused(_: object) -> Any:
    """Raise SampleError, in the place of a function that unpickles."""
    raise SampleError("this would be unpickled, and could run any code; give xdecode a function of your own for it")


def holds_nothing(step: Any) -> bool:
    """Tell whether the stage *step* is known to hold no samples between two that it gives."""
    return isinstance(step, ChooseStage) or (isinstance(step, filters.FilterFunction) and step.f in _HOLD_NOTHING)
