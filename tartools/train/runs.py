"""`Run`: one epoch of a `WebDataset`, and where it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from itertools import chain, islice
from random import Random
from typing import Any, Protocol

from torch.utils.data import get_worker_info

from tartools.errors import UsageError, several
from tartools.train import left
from tartools.train.handing import handed
from tartools.train.left import Left, Loaded
from tartools.train.reader import Position, Reader, numbered
from tartools.train.steps import Batch, Choose, Shuffle, holds_nothing
from tartools.train.stream import Samples


class Pipeline(Protocol):
    """What a run has to know of a `WebDataset`."""

    pipeline: list[Any]
    nsamples: int
    repetitions: int

    @property
    def source(self) -> Samples:
        """The first stage."""

    def digest(self) -> str:
        """Return what tells the order of the samples."""

    def invoke(self, step: Any, samples: Iterator[Any]) -> Iterator[Any]:
        """Return what the stage *step* makes of *samples*."""


class Shuffling:
    """The iterator of one `Shuffle`, from block *number* on, of which *done* samples were given before.

    *position* tells where the source is.
    """

    def __init__(
        self, shuffle: Shuffle, name: str, position: Callable[[], Position], number: int = 0, done: int = 0
    ) -> None:
        self._shuffle, self._name, self._position = shuffle, name, position
        self.begin, self.number, self.done, self.size = position(), number, done, 0

    @property
    def name(self) -> str:
        """What the order of the current block follows from."""
        return f"{self._name} {self._shuffle.seed} {self.number}"

    def iterated(self, samples: Iterator[Any]) -> Iterator[Any]:
        """Yield *samples*, block by block."""
        while block := [*islice(samples, self._shuffle.block(self.number))]:
            self.size = len(block)
            Random(self.name).shuffle(block)
            for at in range(self.done, len(block)):
                self.done = at + 1
                sample, block[at] = block[at], None
                yield sample
            self.begin, self.number, self.done = self._position(), self.number + 1, 0

    def state(self) -> list[Any]:
        """Return which block this is in, of which samples, and where they end in the source."""
        return [self.number, self.done, self.name, self.size, [*self._position()]]


class Run:
    """One epoch of *data*, from what was *loaded* on, if it is of this epoch: what its iterator is doing."""

    def __init__(self, data: Pipeline, loaded: Loaded | None) -> None:
        self._data = data
        source = data.source
        self._place = source.place()
        if loaded is not None and loaded.worker:
            self._epoch = source.epochs.take(loaded.epoch)
        else:
            self._epoch = source.epochs.take()
            if loaded is not None and (self._epoch != loaded.epoch or not source.epochs.claim(loaded.name)):
                loaded = None
        state = None if loaded is None else loaded.of(self._place)
        counts: tuple[int, int, int] = state["counts"] if state else (0, 0, 0)
        self._repetition, self._total, self._given = counts
        self._from = state
        self._left = Left.of(state) if state else None
        self._reader: Reader | None = None
        self._shuffling: Shuffling | None = None
        if loaded is not None and state is None:
            self._left = left.dealt(loaded.states, source, self._place)
            if data.repetitions != 1 or source.resampled:
                raise UsageError(
                    "with_epoch, repeat and resampled give each reader (rank times worker) an epoch of its own: their "
                    "states go on with as many ranks and workers as before"
                )

    def iterated(self) -> Iterator[Any]:
        """Yield what the last stage gives, for as many samples and repetitions as `with_epoch` and `repeat` say."""
        data = self._data
        worker = get_worker_info() is not None
        most = data.nsamples if data.repetitions != 1 and data.nsamples > 0 else None
        while self._repetition < data.repetitions and self._total != most:
            for item in self._chain():
                self._total += 1
                self._given += 1
                yield handed(item) if worker else item
                if self._total == most:
                    return
            if not self._given:
                if most is not None:
                    raise UsageError(self._nothing())
                break  # an empty data set is not repeated
            self._repetition, self._given = self._repetition + 1, 0
            self._reader = self._shuffling = self._left = None

    def _nothing(self) -> str:
        number, readers = self._place
        items = several(self._data.nsamples, "item")
        return (
            f"with_epoch can't give {items}, because reader {number} of {readers} (ranks times workers) has none: take "
            "fewer workers or smaller batches, or unpack compressed shards, which can then be shared"
        )

    def state(self) -> dict[str, Any]:
        """Return what goes on with the next item."""
        state = {
            "data": self._data.digest(),
            "place": [*self._place],
            "epoch": self._epoch,
            "counts": [self._repetition, self._total, self._given],
            "position": None,
            "shuffle": None,
            "left": None if self._left is None else self._left.as_json(),
        }
        if self._from is not None:
            return state | {key: self._from[key] for key in ("position", "shuffle")}
        if self._reader is not None and self._can_skip():
            shuffling = self._shuffling
            state["position"] = [*(self._reader.position() if shuffling is None else shuffling.begin)]
            state["shuffle"] = None if shuffling is None else shuffling.state()
        return state

    def _can_skip(self) -> bool:
        """Tell whether no stage holds samples between two items, but for one shuffle, whose block is known."""
        held = [step for step in self._data.pipeline[1:] if not holds_nothing(step)]
        return [*map(type, held)] in ([], [Shuffle], [Batch], [Shuffle, Batch])

    def _chain(self) -> Iterator[Any]:
        """Return the items of this repetition that are left."""
        source, steps = self._data.source, self._data.pipeline[1:]
        state, self._from = self._from, None
        epoch = self._epoch, self._repetition
        skipping = bool(state and state["position"])
        start = Position.of(*state["position"]) if state and skipping else None
        first = next((step for step in steps if not isinstance(step, Shuffle)), None)
        wanted = first.wanted if isinstance(first, Choose) else None
        parts = source.parts(epoch, self._place) if self._left is None else numbered(self._left.parts)
        self._reader = Reader(source.urls, parts, start, wanted)
        found: Iterator[Any] = iter(self._reader)
        for number, step in enumerate(steps):
            if isinstance(step, Shuffle):
                begun = state["shuffle"][:2] if state and skipping else ()
                name = f"shuffle {epoch} {self._place} {number}"
                self._shuffling = Shuffling(step, name, self._reader.position, *begun)
                found = chain(self._blocks(steps[:number], wanted), self._shuffling.iterated(found))
            else:
                found = self._data.invoke(step, found)
        return found if skipping else islice(found, self._given, None)

    def _blocks(self, steps: list[Any], wanted: Set[str] | None) -> Iterator[Any]:
        """Yield what is left of the blocks that other readers have begun, behind *steps*."""
        blocks = [] if self._left is None else self._left.blocks
        while blocks:
            name, size, done, parts = blocks[0]
            found: Iterator[Any] = iter(Reader(self._data.source.urls, numbered(parts), None, wanted))
            for step in steps:
                found = self._data.invoke(step, found)
            block = [*islice(found, size)]
            Random(name).shuffle(block)
            for at in range(done, len(block)):
                blocks[0] = blocks[0]._replace(done=at + 1)
                sample, block[at] = block[at], None
                yield sample
            del blocks[0]
