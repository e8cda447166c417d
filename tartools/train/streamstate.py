"""What is left of an epoch that stopped, for as many readers (ranks times workers) as go on, by the states of all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from tartools.errors import UsageError
from tartools.train import slices
from tartools.train.ranks import ReaderId
from tartools.train.samplestream import SampleStream
from tartools.train.slicereader import Position
from tartools.train.slices import ShardSlice

State = dict[str, Any]


class HeldSamples(NamedTuple):
    """What the buffer of a shuffle held: the samples of *pieces* with these *numbers*, which go from the end on."""

    numbers: list[int]
    pieces: list[ShardSlice]


class Remainder(NamedTuple):
    """What a reader reads of an epoch that others have begun: first what buffers *held*, then *pieces*."""

    held: list[HeldSamples]
    pieces: list[ShardSlice]

    @classmethod
    def of(cls, state: State) -> Remainder | None:
        """Return what *state* says; None if its reader has begun the epoch."""
        if state["left"] is None:
            return None
        held, pieces = state["left"]
        return cls([HeldSamples([*numbers], _slices(of)) for numbers, of in held], _slices(pieces))

    def as_json(self) -> list[Any]:
        """Return this as lists."""
        held = [[[*numbers], [*map(list, pieces)]] for numbers, pieces in self.held]
        return [held, [*map(list, self.pieces)]]


class LoadedStates:
    """What `load_state_dict` was *given*: *states* of readers, all of one *epoch*."""

    def __init__(self, given: Any, states: list[State]) -> None:
        self.given, self.states = given, states
        self.epoch: int = states[0]["epoch"]

    def of(self, reader: ReaderId) -> State | None:
        """Return the state of *reader*, if there were as many readers as now."""
        return next((state for state in self.states if tuple(state["reader"]) == reader), None)


def loaded(given: Any) -> LoadedStates | None:
    """Return the states in *given*; None if there are none, because nothing was read."""
    states = [*_states(given)]
    if len({state["epoch"] for state in states}) > 1:
        raise UsageError("these states are of different epochs: give those that all ranks saved at one time")
    return LoadedStates(given, states) if states else None


def _states(given: Any) -> Iterator[State]:
    """Yield the states of readers in *given*: one, that of a StatefulDataLoader, or a list of such."""
    if isinstance(given, (list, tuple)):
        for one in given:
            yield from _states(one)
    elif not isinstance(given, dict) or (given and not {"reader", "_snapshot", "dataset_state"} & {*given}):
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


def dealt(states: Sequence[State], source: SampleStream, reader: ReaderId) -> Remainder:
    """Return what *reader* reads of what *states*, those of all readers of *source*, have left.

    Raises: UsageError if a state is missing, or does not say what was read.
    """
    states = sorted(states, key=lambda state: int(state["reader"][0]))
    numbers, readers = [state["reader"][0] for state in states], {state["reader"][1] for state in states}
    if readers != {len(numbers)} or numbers != [*range(len(numbers))]:
        raise UsageError(
            f"there are states of readers {', '.join(map(str, numbers))} of {max(readers)} (ranks times workers), and "
            f"this is reader {reader.number} of {reader.readers}: give load_state_dict the states of all ranks, as a "
            "list"
        )
    rests = [_rest(state, source) for state in states]
    held = [each for rest in rests for each in rest.held]
    steps = zip_longest(*(rest.pieces for rest in rests))
    pieces = [piece for step in steps for piece in step if piece is not None and piece.begin != piece.end]
    return Remainder(held[reader.number :: reader.readers], slices.deal(pieces, reader))


def _rest(state: State, source: SampleStream) -> Remainder:
    """Return what the reader of *state* has left."""
    repetition, _, given = state["counts"]
    if repetition:
        return Remainder([], [])
    before = Remainder.of(state)
    held, pieces = before or Remainder([], source.dealt((state["epoch"], 0), ReaderId(*state["reader"])))
    if state["position"] is None:
        if given:
            raise UsageError(
                "a stage of this pipeline may hold samples, or make several of one: its states go on with as many "
                "ranks and workers as before"
            )
        return Remainder(held, pieces)
    begin = Position.of(*state["position"])
    if not state["shuffle"]:
        return Remainder(held, _behind(pieces, begin))
    _, _, numbers, end = state["shuffle"]
    behind = Position.of(*end)
    if numbers:
        held = [*held, HeldSamples([*numbers], _behind(pieces, begin)[: behind.number - begin.number + 1])]
    return Remainder(held, _behind(pieces, behind))


def _behind(pieces: Sequence[ShardSlice], position: Position) -> list[ShardSlice]:
    number, rest = position
    return [*pieces[number:]] if rest is None else [rest, *pieces[number + 1 :]]


def _slices(values: Sequence[Sequence[Any]]) -> list[ShardSlice]:
    return [ShardSlice(*value) for value in values]
