"""What is left of an epoch that stopped, for as many readers (ranks times workers) as go on, by the states of all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from torch.utils.data import get_worker_info

from tartools.errors import UsageError
from tartools.train import dealing
from tartools.train.dealing import Part, Place
from tartools.train.reader import Position
from tartools.train.stream import Samples

State = dict[str, Any]


class Block(NamedTuple):
    """A block of a shuffle: the first *size* samples of *parts*, shuffled by *name*, of which *done* were given."""

    name: str
    size: int
    done: int
    parts: list[Part]


class Left(NamedTuple):
    """What a reader reads of an epoch that others have begun: first the rest of *blocks*, then *parts*."""

    blocks: list[Block]
    parts: list[Part]

    @classmethod
    def of(cls, state: State) -> Left | None:
        """Return what *state* says; None if its reader has begun the epoch."""
        if state["left"] is None:
            return None
        blocks, parts = state["left"]
        return cls([Block(name, size, done, _parts(of)) for name, size, done, of in blocks], _parts(parts))

    def as_json(self) -> list[Any]:
        """Return this as lists."""
        blocks = [[*block[:3], [[*part] for part in block.parts]] for block in self.blocks]
        return [blocks, [[*part] for part in self.parts]]


class Loaded:
    """What `load_state_dict` was *given*: *states* of readers, all of one *epoch*. *worker*: it was in a worker."""

    def __init__(self, given: Any, states: list[State]) -> None:
        self.given, self.states = given, states
        self.epoch: int = states[0]["epoch"]
        self.worker = get_worker_info() is not None
        self.name = os.urandom(8).hex()

    def of(self, place: Place) -> State | None:
        """Return the state of the reader *place*, if there were as many readers as now."""
        return next((state for state in self.states if tuple(state["place"]) == place), None)


def loaded(given: Any) -> Loaded | None:
    """Return the states in *given*; None if there are none, because nothing was read."""
    states = [*_states(given)]
    if len({state["epoch"] for state in states}) > 1:
        raise UsageError("these states are of different epochs: give those that all ranks saved at one time")
    return Loaded(given, states) if states else None


def _states(given: Any) -> Iterator[State]:
    """Yield the states of readers in *given*: one, that of a StatefulDataLoader, or a list of such."""
    if isinstance(given, (list, tuple)):
        for one in given:
            yield from _states(one)
    elif not isinstance(given, dict) or (given and not {"place", "_snapshot", "dataset_state"} & {*given}):
        raise UsageError("this is not a state of a WebDataset, or of a StatefulDataLoader over one")
    elif "_snapshot" in given:
        if given["_steps_since_snapshot"]:
            raise UsageError(
                "this state is older than the last batch: give StatefulDataLoader snapshot_every_n_steps=1"
            )
        yield from _states([worker["dataset_state"] for worker in given["_snapshot"]["_worker_snapshots"].values()])
    elif "dataset_state" in given:
        yield from _states(given["dataset_state"])
    elif given:
        yield given


def dealt(states: Sequence[State], source: Samples, place: Place) -> Left:
    """Return what the reader *place* reads of what *states*, those of all readers of *source*, have left.

    Raises: UsageError if a state is missing, or does not say what was read.
    """
    numbers, readers = sorted(state["place"][0] for state in states), {state["place"][1] for state in states}
    if readers != {len(numbers)} or numbers != [*range(len(numbers))]:
        raise UsageError(
            f"there are states of readers {', '.join(map(str, numbers))} of {max(readers)} (ranks times workers), and "
            f"this is reader {place.number} of {place.readers}: give load_state_dict the states of all ranks, as a list"
        )
    rests = [_rest(state, source) for state in sorted(states, key=lambda state: int(state["place"][0]))]
    blocks = [block for rest in rests for block in rest.blocks]
    steps = zip_longest(*(rest.parts for rest in rests))
    parts = [part for step in steps for part in step if part is not None and part.begin != part.end]
    return Left(blocks[place.number :: place.readers], dealing.deal(parts, place))


def _rest(state: State, source: Samples) -> Left:
    """Return what the reader of *state* has left."""
    repetition, _, given = state["counts"]
    if repetition:
        return Left([], [])
    before = Left.of(state)
    blocks, parts = before or Left([], source.dealt((state["epoch"], 0), Place(*state["place"])))
    if state["position"] is None:
        if given:
            raise UsageError(
                "a stage of this pipeline may hold samples, or make several of one: its states go on with as many "
                "ranks and workers as before"
            )
        return Left(blocks, parts)
    begin = Position.of(*state["position"])
    if not state["shuffle"] or not state["shuffle"][1]:
        return Left(blocks, _behind(parts, begin))
    _, done, name, size, end = state["shuffle"]
    behind = Position.of(*end)
    left = [] if done == size else [Block(name, size, done, _behind(parts, begin)[: behind.number - begin.number + 1])]
    return Left([*blocks, *left], _behind(parts, behind))


def _behind(parts: Sequence[Part], position: Position) -> list[Part]:
    """Return *parts* from *position* on."""
    number, rest = position
    return [*parts[number:]] if rest is None else [rest, *parts[number + 1 :]]


def _parts(values: Sequence[Sequence[Any]]) -> list[Part]:
    return [Part(*value) for value in values]
