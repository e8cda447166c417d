"""The position of a reader in an epoch of a stream: records of plain values, the content of states.

    SliceReader.position()    ShuffleBuffer.cursor()               running: they change with each sample
                      |          |
               StreamEpoch.cursor() -> Cursor                      a value, computed when somebody asks
                                         | as_state()
                                       state = dict of numbers, lists and texts, in a checkpoint
                                         | cursors_of(), from_state(): all checks are here
    StreamEpoch(data, cursors) <- list of Cursor                   one for each reader of the run that stopped

A state comes from a file that somebody else may have written: it has numbers of shards, never their names, and nothing
in it is used before `Cursor.from_state` has checked it. The layout has a version (`states.STATE_VERSION`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tartools.tar.rescan import Boundary
from tartools.train.ranks import ReaderId
from tartools.train.states import (
    State,
    StateError,
    check_state,
    is_bool,
    is_count,
    is_list,
    is_list_of,
    is_reader,
    is_text,
    make_state,
)

STATE_OWNER = "a WebDataset, or of a StatefulDataLoader over one"


class ShardSlice(NamedTuple):
    """A part of a shard or table that one reader reads: first a fraction, and once it is opened a range.

    `shard`: number of the shard among the URLs
    `number`, `slices`: slice `number`, from 0 on, of `slices` about equal ones into which `begin` to `end` is cut
    `begin`: first byte of the shard, or first row of the table
    `end`: byte or row behind the last; None for the end of the shard
    `key`: key of the sample that begins at byte `end`; "" if that is not known
    `skip`: samples at the begin that were yielded before; a slice that has some is not cut further
    `rows`: True if `begin` and `end` are rows
    """

    shard: int
    number: int = 0
    slices: int = 1
    begin: int = 0
    end: int | None = None
    key: str = ""
    skip: int = 0
    rows: bool = False

    def cut_into(self, slices: int) -> Iterator[ShardSlice]:
        """Yield the *slices* parts, of about equal size, into which this slice is cut, in order.

        Only `number` and `slices` change: slice 1 of 3, cut into 2, gives 2 of 6 and 3 of 6.
        """
        first = self.number * slices
        return (self._replace(number=first + n, slices=self.slices * slices) for n in range(slices))

    @property
    def boundary(self) -> Boundary | None:
        """The end of a slice of bytes: `Boundary`(`end`, `key` in bytes); None if that is the end of the shard."""
        return None if self.end is None else Boundary(self.end, self.key.encode(errors="surrogateescape"))


class Position(NamedTuple):
    """The position of a `SliceReader`.

    `number`: number of its slice, among the slices of this reader
    `rest`: the unread rest of that slice; None for all of it
    """

    number: int = 0
    rest: ShardSlice | None = None


class ShuffleCursor(NamedTuple):
    """The position of a shuffle buffer, counted from `Cursor.position`, a place at or before its oldest sample.

    `yielded`: samples that it has yielded in this repetition; the next draw follows from this number
    `read`: samples that it has read from `Cursor.position` on
    `numbers`: which of these it holds, counted from 0 at `Cursor.position`, in the order of the buffer
    `end`: position of the reader, behind the last sample that was read
    """

    yielded: int
    read: int
    numbers: Sequence[int]
    end: Position


class HeldSamples(NamedTuple):
    """Samples that the shuffle buffer of another reader held when the run stopped.

    `numbers`: their numbers among the samples of `slices`; the last one is yielded first
    `slices`: slices that have them
    """

    numbers: Sequence[int]
    slices: Sequence[ShardSlice]


class Remainder(NamedTuple):
    """A reader's share of the samples that earlier readers left of an epoch, if the number of readers has changed.

    `held`: samples to yield first
    `slices`: slices to read then
    """

    held: Sequence[HeldSamples]
    slices: Sequence[ShardSlice]


class Cursor(NamedTuple):
    """The position of one reader in an epoch: everything that its state says.

    `data`: fingerprint of shards, seeds and shuffles; a state with another fingerprint is refused
    `reader`: the reader, and how many readers there were
    `epoch`: number of the epoch
    `repetition`: number of the repetition in the epoch, above 0 only for `repeat` and `with_epoch`
    `total`: items yielded in the epoch
    `yielded`: items yielded in the repetition
    `position`: the next sample to read, or with a shuffle buffer a place at or before the oldest sample that it holds.
        None: a stage may hold samples that nobody can name, so the repetition is read again, and `yielded` items of it
        are dropped
    `shuffle`: the shuffle buffer; None without a shuffle, and without a position
    `remainder`: the slices of this reader; None if they follow from seed and epoch
    """

    data: str
    reader: ReaderId
    epoch: int
    repetition: int = 0
    total: int = 0
    yielded: int = 0
    position: Position | None = None
    shuffle: ShuffleCursor | None = None
    remainder: Remainder | None = None

    @property
    def is_at_begin(self) -> bool:
        """True if `repetition`, `total` and `yielded` are 0, and `position` and `remainder` are None."""
        counts = self.repetition, self.total, self.yielded
        return not any(counts) and self.position is None and self.remainder is None

    def as_state(self) -> State:
        """Return this cursor as a state: a dict of plain values, with "version".

        "data" and "epoch" are as here; "reader", "position", "shuffle" and "left", which is `remainder`, are lists of
        the fields of these records, or None; "counts" is the list of `repetition`, `total` and `yielded`.
        """
        counts = self.repetition, self.total, self.yielded
        state = {"data": self.data, "reader": self.reader, "epoch": self.epoch, "counts": counts}
        return make_state(state | {"position": self.position, "shuffle": self.shuffle, "left": self.remainder})

    @classmethod
    def from_state(cls, state: Any, shards: int) -> Cursor:
        """Return the cursor from which `as_state` made *state*. *shards*: number of shards of the stream.

        A state without "version" has version 1; further names in it are ignored. Raises: StateError if it is no dict,
        has a later version, lacks a value or has one of another type or range than `as_state` writes, or names a shard
        that there is not.
        """
        checks: dict[str, Callable[[Any], bool]] = {"data": is_text, "reader": is_reader, "epoch": is_count}
        checks["counts"] = lambda value: is_list(value, is_count, is_count, is_count)
        checks["position"] = lambda value: value is None or is_position(value, shards)
        checks["shuffle"] = lambda value: value is None or is_shuffle(value, shards)
        checks["left"] = lambda value: value is None or is_remainder(value, shards)
        check_state(state, STATE_OWNER, checks)
        repetition, total, yielded = state["counts"]
        return cls(
            state["data"],
            ReaderId(*state["reader"]),
            state["epoch"],
            repetition,
            total,
            yielded,
            position=None if state["position"] is None else _position(state["position"]),
            shuffle=None if state["shuffle"] is None else _shuffle(state["shuffle"]),
            remainder=None if state["left"] is None else _remainder(state["left"]),
        )


def is_slice(value: Any, shards: int) -> bool:
    """True if *value*, from a state, is a list of the fields of a valid `ShardSlice` of one of *shards* shards.

    Valid are whole numbers from 0 on, `number` below `slices`, `begin` not behind `end`, and rows only with an `end`.
    """

    def is_end(end: Any) -> bool:
        return end is None or is_count(end)

    checks = is_count, is_count, is_count, is_count, is_end, is_text, is_count, is_bool
    if not is_list(value, *checks):
        return False
    candidate = ShardSlice(*value)
    is_run = candidate.end is None or candidate.begin <= candidate.end
    return (
        candidate.shard < shards
        and candidate.number < candidate.slices
        and is_run
        and (not candidate.rows or candidate.end is not None)
    )


def is_position(value: Any, shards: int) -> bool:
    """True if *value*, from a state, is a list of the fields of a `Position`: a number from 0 on, and None or a slice.

    The slice must be valid (`is_slice`) for *shards* shards.
    """
    return is_list(value, is_count, lambda rest: rest is None or is_slice(rest, shards))


def is_shuffle(value: Any, shards: int) -> bool:
    """True if *value*, from a state, is a list of the fields of a valid `ShuffleCursor`. *shards*: number of shards.

    Its `numbers` must be different, and below `read`, and its `end` a valid position (`is_position`).
    """
    if not is_list(value, is_count, is_count, _is_numbers, lambda end: is_position(end, shards)):
        return False
    _, read, numbers, _ = value
    return len({*numbers}) == len(numbers) and max(numbers, default=-1) < read


def is_remainder(value: Any, shards: int) -> bool:
    """True if *value*, from a state, is a list of the fields of a valid `Remainder`. *shards*: number of shards.

    `held` is a list of pairs [numbers, slices], with whole numbers from 0 on; all slices must be valid (`is_slice`).
    """

    def is_slices(slices: Any) -> bool:
        return is_list_of(slices, lambda value_of_item: is_slice(value_of_item, shards))

    return is_list(
        value,
        lambda held: is_list_of(held, lambda value_of_item: is_list(value_of_item, _is_numbers, is_slices)),
        is_slices,
    )


def _is_numbers(value: Any) -> bool:
    """True if *value*, from a state, is a list of whole numbers from 0 on, perhaps empty."""
    return is_list_of(value, is_count)


def _position(value: Sequence[Any]) -> Position:
    """Return the `Position` with the fields *value*, which `is_position` has checked."""
    number, rest = value
    return Position(number, None if rest is None else ShardSlice(*rest))


def _shuffle(value: Sequence[Any]) -> ShuffleCursor:
    """Return the `ShuffleCursor` with the fields *value*, which `is_shuffle` has checked."""
    yielded, read, numbers, end = value
    return ShuffleCursor(yielded, read, numbers, _position(end))


def _remainder(value: Sequence[Any]) -> Remainder:
    """Return the `Remainder` with the fields *value*, which `is_remainder` has checked."""
    buffers, slices = value
    return Remainder([HeldSamples(numbers, _slices(of_buffer)) for numbers, of_buffer in buffers], _slices(slices))


def _slices(values: Sequence[Sequence[Any]]) -> list[ShardSlice]:
    """Return a `ShardSlice` for each list of its fields in *values*, which `is_slice` has checked."""
    return [ShardSlice(*value) for value in values]


def cursors_of(loaded: Any, shards: int) -> list[Cursor]:
    """Return the cursors of the readers in *loaded*, all of one epoch. *shards*: number of shards of the stream.

    *loaded* is a state of a reader, one of a StatefulDataLoader, or a list of states; {} and [] have no cursors.
    Whether the states are of one fingerprint, and of all readers, is not checked.
    Raises: StateError for anything else, for damaged states, for states of different epochs, and for a state of a
    StatefulDataLoader that is older than its last batch.
    """
    cursors = [Cursor.from_state(state, shards) for state in states_in(loaded, STATE_OWNER)]
    if len({cursor.epoch for cursor in cursors}) > 1:
        raise StateError("these states are of different epochs: give those that all ranks saved at one time")
    return cursors


def states_in(loaded: Any, owner: str) -> Iterator[Any]:
    """Yield the states of single readers in *loaded*, unchecked; torchdata's loader wraps them in states of its own.

    *loaded*: a state of a reader, one of a StatefulDataLoader, or a list of states; {} and [] have none.
    *owner*: whose states they should be, for the message, as in "an ObjectStream". Raises: StateError for anything
    else, and if torchdata's loader has yielded batches since its last snapshot (snapshot_every_n_steps above 1), so
    that its state is older than the last batch.
    """
    if isinstance(loaded, (list, tuple)):
        for entry in loaded:
            yield from states_in(entry, owner)
    elif not isinstance(loaded, dict) or (loaded and not {"reader", "_snapshot", "dataset_state"} & {*loaded}):
        raise StateError(f"this is not a state of {owner}")
    elif "_snapshot" in loaded:
        if loaded.get("_steps_since_snapshot"):
            raise StateError(
                "this state is older than the last batch: give StatefulDataLoader snapshot_every_n_steps=1"
            )
        try:
            workers = [worker["dataset_state"] for worker in loaded["_snapshot"]["_worker_snapshots"].values()]
        except (AttributeError, KeyError, TypeError):
            raise StateError(f"this is not a state of {owner}") from None
        yield from states_in(workers, owner)
    elif "dataset_state" in loaded:
        yield from states_in(loaded["dataset_state"], owner)
    elif loaded:
        yield loaded
