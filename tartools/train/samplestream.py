"""`samples`: shards and tables to dicts, as webdataset makes them, each sample for one worker of one rank.

What is left of an epoch that stopped is dealt to as many readers (ranks times workers) as go on, by the states of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import zip_longest
from random import Random
from typing import Any, NamedTuple

from torch.utils.data import IterableDataset

from tartools.samples.account import Account
from tartools.shards.reading import check_shards
from tartools.storage.expand import expand
from tartools.storage.url import Name, names_of
from tartools.train import slices
from tartools.train.ranks import ReaderId, SharedEpoch
from tartools.train.slices import NumberedSlices, Position, ShardSlice, SliceReader, by_number, is_position, is_slice
from tartools.train.states import State, StateError, check_state, is_count, is_list, is_list_of, is_reader, is_text
from tartools.train.workererrors import guard_worker

OWNER = "a WebDataset, or of a StatefulDataLoader over one"


def samples(urls: Name | Iterable[Name], shuffle: bool = False, seed: int = 0, resampled: bool = False) -> SampleStream:
    """Return the samples of shards or tables as the first stage of a pipeline of webdataset.

        wds.DataPipeline(tartools.train.samples("train-{000..147}.tar"), wds.decode("pil"), wds.to_tuple("jpg", "cls"))

    Each is a dict of `__key__`, `__url__`, and its fields as bytes. *urls* are as for `tartools.read`. All local files
    are checked before this returns.

    Each sample comes once an epoch, whatever the number of workers and ranks: shards are dealt to them, and cut where
    there are few of them. Ranks are those of torch.distributed, or else RANK and WORLD_SIZE in the environment. With
    *shuffle*, shards come in an order that follows from *seed* and the epoch: each iteration is the next epoch, unless
    `set_epoch` says otherwise. *resampled*: shards are drawn at random, without an end, by each worker for itself.

    Holds: one read buffer of 1 MiB. Raises: StorageError and TarFormatError, with URL and byte offset, after the
    samples before the damage, in the process that trains.
    """
    return SampleStream(urls, shuffle, seed, resampled)


class SampleStream(IterableDataset[dict[str, Any]]):
    """What `samples` returns."""

    def __init__(
        self, urls: Name | Iterable[Name], shuffle: bool, seed: int, resampled: bool, checked: bool = True
    ) -> None:
        self.urls = [*expand(names)] if (names := [*filter(None, names_of(urls))]) else []
        if not self.urls:
            raise ValueError("there are no shards to read")
        if checked:
            check_shards(self.urls, Account())
        self.shuffled, self.seed, self.resampled = shuffle, seed, resampled
        self.epoch = SharedEpoch()

    def set_epoch(self, epoch: int) -> None:
        """Make *epoch* the number of the next epoch, counted from 0, also for workers that are there already."""
        self.epoch.number = epoch

    @cached_property
    def identities(self) -> list[str]:
        """What tells each of the shards from another of its name: see `slices.shard_identity`."""
        return [*map(slices.shard_identity, self.urls)]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        guard_worker()
        number, _ = self.epoch.begin()
        return iter(SliceReader(self.urls, self.slices((number, 0), self.epoch.reader())))

    def slices(self, epoch: tuple[int, int], reader: ReaderId) -> NumberedSlices:
        """Return what *reader* reads in *epoch*, its number and that of the repetition in it."""
        if self.resampled:
            count, name = len(self.urls), f"resampled {self.seed} {epoch} {reader}"
            return lambda number: ShardSlice(Random(f"{name} {number}").randrange(count))
        return by_number(self.dealt(epoch, reader))

    def dealt(self, epoch: tuple[int, int], reader: ReaderId) -> list[ShardSlice]:
        """Return all that *reader* reads in *epoch*, if shards are not resampled."""
        order = [*map(ShardSlice, range(len(self.urls)))]
        if self.shuffled:
            Random(f"shards {self.seed} {epoch}").shuffle(order)
        return slices.deal(order, reader)


class Remainder(NamedTuple):
    """What a reader reads of an epoch that others have begun: first what buffers of shuffles *held*, then *pieces*.

    Of what a buffer held there are numbers, which go from the end on, and the slices of which these samples are.
    """

    held: list[tuple[list[int], list[ShardSlice]]]
    pieces: list[ShardSlice]

    @classmethod
    def of(cls, state: State) -> Remainder | None:
        """Return the remainder in *state*; None if its reader began the epoch itself."""
        if state["left"] is None:
            return None
        held, pieces = state["left"]
        return cls([([*numbers], _slices(of)) for numbers, of in held], _slices(pieces))


def states_of_readers(given: Any, shards: int) -> list[State]:
    """Return the states of readers in *given*, all of one epoch; none if nothing was read.

    Raises: StateError if one is malformed, or names another shard than one of so many *shards*.
    """
    states = [*_states(given)]
    for state in states:
        check_reader_state(state, shards)
    if len({state["epoch"] for state in states}) > 1:
        raise StateError("these states are of different epochs: give those that all ranks saved at one time")
    return states


def check_reader_state(state: Any, shards: int) -> None:
    """Raise StateError unless *state* is that of a reader of so many *shards*."""

    def is_shuffle(value: Any) -> bool:
        if value is None:
            return True
        right = is_list(value, is_count, is_count, is_numbers, lambda end: is_position(end, shards))
        return right and len({*value[2]}) == len(value[2]) and max(value[2], default=-1) < value[1]

    def is_left(value: Any) -> bool:
        return value is None or is_list(value, lambda held: is_list_of(held, is_held), is_slices)

    def is_held(value: Any) -> bool:
        return is_list(value, is_numbers, is_slices)

    def is_numbers(value: Any) -> bool:
        return is_list_of(value, is_count)

    def is_slices(value: Any) -> bool:
        return is_list_of(value, lambda one: is_slice(one, shards))

    checks = {"data": is_text, "reader": is_reader, "epoch": is_count, "shuffle": is_shuffle, "left": is_left}
    checks["counts"] = lambda value: is_list(value, is_count, is_count, is_count)
    checks["position"] = lambda value: value is None or is_position(value, shards)
    check_state(state, OWNER, checks)


def _states(given: Any) -> Iterator[State]:
    """Yield the states of readers in *given*: one, that of a StatefulDataLoader, or a list of such."""
    if isinstance(given, (list, tuple)):
        for one in given:
            yield from _states(one)
    elif not isinstance(given, dict) or (given and not {"reader", "_snapshot", "dataset_state"} & {*given}):
        raise StateError(f"this is not a state of {OWNER}")
    elif "_snapshot" in given:
        if given.get("_steps_since_snapshot"):
            raise StateError(
                "this state is older than the last batch: give StatefulDataLoader snapshot_every_n_steps=1"
            )
        try:
            workers = [worker["dataset_state"] for worker in given["_snapshot"]["_worker_snapshots"].values()]
        except (AttributeError, KeyError, TypeError):
            raise StateError(f"this is not a state of {OWNER}") from None
        yield from _states(workers)
    elif "dataset_state" in given:
        yield from _states(given["dataset_state"])
    elif given:
        yield given


def dealt(states: Sequence[State], source: SampleStream, reader: ReaderId) -> Remainder:
    """Return what *reader* reads of what *states*, those of all readers of *source*, have left.

    Raises: StateError if a state is missing, or does not say what was read.
    """
    states = sorted(states, key=lambda state: int(state["reader"][0]))
    numbers, readers = [state["reader"][0] for state in states], {state["reader"][1] for state in states}
    if readers != {len(numbers)} or numbers != [*range(len(numbers))]:
        raise StateError(
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
    repetition, _, given = state["counts"]
    if repetition:
        return Remainder([], [])
    before = Remainder.of(state)
    held, pieces = before or Remainder([], source.dealt((state["epoch"], 0), ReaderId(*state["reader"])))
    if state["position"] is None:
        if given:
            raise StateError(
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
        held = [*held, ([*numbers], _behind(pieces, begin)[: behind.number - begin.number + 1])]
    return Remainder(held, _behind(pieces, behind))


def _behind(pieces: Sequence[ShardSlice], position: Position) -> list[ShardSlice]:
    number, rest = position
    return [*pieces[number:]] if rest is None else [rest, *pieces[number + 1 :]]


def _slices(values: Sequence[Sequence[Any]]) -> list[ShardSlice]:
    return [ShardSlice(*value) for value in values]
