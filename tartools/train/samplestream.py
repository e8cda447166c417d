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
    """A stream of the samples of shards and tables as dicts, which `samples` makes."""

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
        """The fingerprint of each shard: see `slices.shard_identity`."""
        return [*map(slices.shard_identity, self.urls)]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        guard_worker()
        number, _ = self.epoch.begin()
        return iter(SliceReader(self.urls, self.slices((number, 0), self.epoch.reader())))

    def slices(self, epoch: tuple[int, int], reader: ReaderId) -> NumberedSlices:
        """Return the slices of *reader* by number. *epoch*: its number, and the number of the repetition in it."""
        if self.resampled:
            count, name = len(self.urls), f"resampled {self.seed} {epoch} {reader}"
            return lambda number: ShardSlice(Random(f"{name} {number}").randrange(count))
        return by_number(self.dealt(epoch, reader))

    def dealt(self, epoch: tuple[int, int], reader: ReaderId) -> list[ShardSlice]:
        """Return all that *reader* reads in *epoch*, if shards are not resampled."""
        order = [*map(ShardSlice, range(len(self.urls)))]
        if self.shuffled:
            Random(f"shards {self.seed} {epoch}").shuffle(order)
        return slices.assign(order, reader)


class Remainder(NamedTuple):
    """The part of an epoch, begun by other readers, that a reader reads: samples of shuffle buffers, then *pieces*.

    Of what a buffer held there are numbers, which go from the end on, and the slices of which these samples are.
    """

    held: list[tuple[list[int], list[ShardSlice]]]
    pieces: list[ShardSlice]

    @classmethod
    def of(cls, state: State) -> Remainder | None:
        """Return the remainder in *state*; None if its reader began the epoch itself."""
        if state["left"] is None:
            return None
        buffers, pieces = state["left"]
        return cls([([*numbers], _slices(values)) for numbers, values in buffers], _slices(pieces))


def states_of_readers(loaded: Any, shards: int) -> list[State]:
    """Return the states of readers in *loaded*, all of one epoch; none if nothing was read.

    Raises: StateError if one is malformed, or names another shard than one of so many *shards*.
    """
    states = [*_states(loaded)]
    for state in states:
        check_reader_state(state, shards)
    if len({state["epoch"] for state in states}) > 1:
        raise StateError("these states are of different epochs: give those that all ranks saved at one time")
    return states


def check_reader_state(state: Any, shards: int) -> None:
    """Raise StateError unless *state* is a valid state of a reader. *shards*: number of shards."""

    def is_shuffle(value: Any) -> bool:
        if value is None:
            return True
        right = is_list(value, is_count, is_count, is_numbers, lambda end: is_position(end, shards))
        return right and len({*value[2]}) == len(value[2]) and max(value[2], default=-1) < value[1]

    def is_left(value: Any) -> bool:
        return value is None or is_list(value, lambda buffers: is_list_of(buffers, is_held), is_slices)

    def is_held(value: Any) -> bool:
        return is_list(value, is_numbers, is_slices)

    def is_numbers(value: Any) -> bool:
        return is_list_of(value, is_count)

    def is_slices(value: Any) -> bool:
        return is_list_of(value, lambda slice_value: is_slice(slice_value, shards))

    checks = {"data": is_text, "reader": is_reader, "epoch": is_count, "shuffle": is_shuffle, "left": is_left}
    checks["counts"] = lambda value: is_list(value, is_count, is_count, is_count)
    checks["position"] = lambda value: value is None or is_position(value, shards)
    check_state(state, OWNER, checks)


def _states(loaded: Any) -> Iterator[State]:
    """Yield the states of readers in *loaded*: a state of a reader, of a StatefulDataLoader, or a list of states."""
    if isinstance(loaded, (list, tuple)):
        for entry in loaded:
            yield from _states(entry)
    elif not isinstance(loaded, dict) or (loaded and not {"reader", "_snapshot", "dataset_state"} & {*loaded}):
        raise StateError(f"this is not a state of {OWNER}")
    elif "_snapshot" in loaded:
        if loaded.get("_steps_since_snapshot"):
            raise StateError(
                "this state is older than the last batch: give StatefulDataLoader snapshot_every_n_steps=1"
            )
        try:
            workers = [worker["dataset_state"] for worker in loaded["_snapshot"]["_worker_snapshots"].values()]
        except (AttributeError, KeyError, TypeError):
            raise StateError(f"this is not a state of {OWNER}") from None
        yield from _states(workers)
    elif "dataset_state" in loaded:
        yield from _states(loaded["dataset_state"])
    elif loaded:
        yield loaded


def deal_remainder(states: Sequence[State], source: SampleStream, reader: ReaderId) -> Remainder:
    """Deal the remainders of *states*, of all readers of *source*; return the remainder for *reader*.

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
    remainders = [_remainder_of(state, source) for state in states]
    buffers = [buffer for remainder in remainders for buffer in remainder.held]
    steps = zip_longest(*(remainder.pieces for remainder in remainders))
    pieces = [piece for step in steps for piece in step if piece is not None and piece.begin != piece.end]
    return Remainder(buffers[reader.number :: reader.readers], slices.assign(pieces, reader))


def _remainder_of(state: State, source: SampleStream) -> Remainder:
    repetition, _, yielded = state["counts"]
    if repetition:
        return Remainder([], [])
    before = Remainder.of(state)
    buffers, pieces = before or Remainder([], source.dealt((state["epoch"], 0), ReaderId(*state["reader"])))
    if state["position"] is None:
        if yielded:
            raise StateError(
                "a stage of this pipeline may hold samples, or make several of one: its states go on with as many "
                "ranks and workers as before"
            )
        return Remainder(buffers, pieces)
    begin = Position.of(*state["position"])
    if not state["shuffle"]:
        return Remainder(buffers, _slices_from(pieces, begin))
    _, _, numbers, end = state["shuffle"]
    behind = Position.of(*end)
    if numbers:
        buffers = [*buffers, ([*numbers], _slices_from(pieces, begin)[: behind.number - begin.number + 1])]
    return Remainder(buffers, _slices_from(pieces, behind))


def _slices_from(pieces: Sequence[ShardSlice], position: Position) -> list[ShardSlice]:
    number, current = position
    return [*pieces[number:]] if current is None else [current, *pieces[number + 1 :]]


def _slices(values: Sequence[Sequence[Any]]) -> list[ShardSlice]:
    return [ShardSlice(*value) for value in values]
