"""One epoch of a stream, as one reader (a worker of a rank) iterates over it: where it begins, its items, its cursor.

An iteration resumes from the cursors of all readers of the run that stopped, or from none of them:

    as many readers as before     each takes its own cursor, and the order is that of a run that did not stop
    other readers than before     all compute the same list of what the cursors leave, and take their share of it;
                                  each sample comes once, in another order

A repetition of the data begins at a cursor in one of two ways:

    by place       Where no stage holds samples between two items, but for one shuffle buffer, the cursor has the
                   position at which to go on reading, and the samples of the buffer by number.
    by counting    Where any other stage may hold samples, or make several of one, nobody can name those that are left.
                   The repetition is read again from its begin, and the items that were yielded are dropped. Items can't
                   be shared by other readers, so this goes on with the same readers only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from functools import partial
from itertools import chain, islice, zip_longest
from typing import Any

from torch.utils.data import get_worker_info

from tartools.errors import UsageError, several
from tartools.train import slices, streamstages
from tartools.train.cursor import Cursor, HeldSamples, Position, Remainder, ShardSlice
from tartools.train.ranks import ReaderId
from tartools.train.sampleseeds import CurrentSample, SampleSeeds
from tartools.train.samplestream import SampleStream, warn_of_unequal_ranks
from tartools.train.sharedmemory import with_sent_lists
from tartools.train.slices import SliceReader, by_number
from tartools.train.states import StateError
from tartools.train.streamstages import ChooseStage, HeldSamplesReader, ShuffleBuffer, ShuffleStage


class StreamEpoch:
    """The iteration of this reader over one epoch of *data*, a WebDataset.

    Making it begins the epoch. Then iterate over `iterate()` once; `cursor`, between two items, tells the position.

    *cursors*: those of all readers of the run that stopped, from which it resumes if they are of this epoch and no
        iteration has resumed from them before; else, and if there are none, it begins at the first sample
    *handler*: called with an error of a shard, or of a sample in a `ChooseStage`; it returns True to leave that out,
        else the iteration ends. None: these errors are raised
    *empty_check*: raise ValueError, in the iteration, if this reader has no items
    `is_resumed`: True if it begins where *cursors* say

    Its position is in `_start` until the repetition has begun, and from then on in `_reader`, `_buffer` and `_held`. At
    the begin of epoch 0, reader 0 warns of ranks with unequal shares.
    Raises: StateError if it resumes, no cursor is of this reader (number and number of readers), and *cursors* lack a
    reader of their run or can't be shared; ValueError for a bad RANK or WORLD_SIZE; StorageError if a local shard can't
    be read, whose share is estimated.
    """

    def __init__(
        self, data: Any, cursors: Sequence[Cursor], handler: streamstages.Handler | None, empty_check: bool
    ) -> None:
        self._data, self._empty_check = data, empty_check
        source: SampleStream = data.source
        self._me = source.rank.reader()
        self._epoch, may_resume = source.epoch.begin(), source.resume.begin()
        is_other_epoch = any(cursor.epoch != self._epoch for cursor in cursors)
        self.is_resumed = may_resume and not is_other_epoch and bool(cursors)
        if not may_resume or is_other_epoch or all(cursor.is_at_begin for cursor in cursors):
            cursors = []
        if self._me.number == self._epoch == 0 and not cursors and not source.resampled:
            warn_of_unequal_ranks(source, self._me.readers)
        own = next((cursor for cursor in cursors if cursor.reader == self._me), None)
        if cursors and own is None:
            remainder = assign_remainder(cursors, source, self._me)
            if data.repetitions != 1 or source.resampled:
                raise StateError(
                    "with_epoch, repeat and resampled give each reader (rank times worker) an epoch of its own: their "
                    "states go on with as many ranks and workers as before"
                )
            own = Cursor(cursors[0].data, self._me, self._epoch, remainder=remainder)
        self._start = own  # where the current repetition begins; None for its first item
        self._repetition, self._total, self._yielded = (own.repetition, own.total, own.yielded) if own else (0, 0, 0)
        self._reader: SliceReader | None = None
        self._buffer: ShuffleBuffer | None = None
        self._held: HeldSamplesReader | None = None
        self._failures = streamstages.Failures()
        self._failed = None if handler is None else self._failures.count_errors(handler)

    def cursor(self) -> Cursor:
        """Return the cursor of this reader: the position after the last item, from which another iteration resumes.

        Its `position` is None in a pipeline that is resumed by counting, and before a repetition has begun, unless it
        begins at a cursor. Raises: StorageError if a local table can't be read for the fingerprint of the data.
        """
        if self._reader is None and self._start is not None:
            return self._start
        remainder = None if self._start is None else self._start.remainder
        if remainder is not None and self._held is not None:
            remainder = remainder._replace(held=self._held.remaining())
        position = shuffle = None
        if self._reader is not None and streamstages.is_resumed_by_place(self._data.pipeline[1:]):
            position = self._reader.position()
            if self._buffer is not None:
                position, shuffle = self._buffer.cursor()
        counts = self._repetition, self._total, self._yielded
        return Cursor(self._data.digest(), self._me, self._epoch, *counts, position, shuffle, remainder)

    def iterate(self) -> Iterator[Any]:
        """Yield the items of the last stage in the remaining repetitions; then warn of errors that were accepted.

        *handler* and the handlers of stages accept them; the warning comes also if the iteration is closed or fails. In
        a worker, lists become `SentList`. Raises: if a repetition has no items for this reader, UsageError if
        `with_epoch` sets a number of them, ValueError with *empty_check*, unless it took over a remainder; the errors
        that no handler accepted; StateError if the shards lack samples that *cursors* name.
        """
        try:
            yield from self._repetitions()
        finally:
            self._failures.report()

    def _repetitions(self) -> Iterator[Any]:
        """Yield the items of the remaining repetitions; count them in `_total` and `_yielded`.

        It ends after the last repetition, after the number of items that `with_epoch` sets, or with a repetition that
        has none. In a worker, lists become `SentList`.

        Raises, if a repetition has no items for this reader: UsageError if `with_epoch` sets a number of them;
        ValueError with *empty_check*, unless this reader took over a remainder; the errors of reading and of stages.
        """
        data = self._data
        worker = get_worker_info() is not None
        max_items = data.nsamples if data.repetitions != 1 and data.nsamples > 0 else None
        while self._repetition < data.repetitions and self._total != max_items:
            for item in self._items():
                self._total += 1
                self._yielded += 1
                yield with_sent_lists(item) if worker else item
                if self._total == max_items:
                    return
            if not self._yielded:
                number, readers = self._me
                if max_items is not None:
                    raise UsageError(
                        f"with_epoch can't give {several(data.nsamples, 'item')}, because reader {number} of {readers} "
                        "(ranks times workers) has none: take fewer workers or smaller batches, or unpack compressed "
                        "shards, which can then be shared"
                    )
                if self._empty_check and (self._start is None or self._start.remainder is None):
                    raise ValueError(f"no samples for reader {number} of {readers} (empty_check=True)")
                break  # an empty data set is not repeated
            self._repetition, self._yielded = self._repetition + 1, 0
            self._start = self._reader = self._buffer = self._held = None

    def _items(self) -> Iterator[Any]:
        """Begin a repetition, at its cursor if there is one; return the items of the last stage from there on.

        Sets `_reader`, `_buffer` and `_held`, from which `cursor` takes the position.
        """
        source, steps, start = self._data.source, self._data.pipeline[1:], self._start
        epoch = self._epoch, self._repetition
        first = next((step for step in steps if not isinstance(step, ShuffleStage)), None)
        needed = first.needed if isinstance(first, ChooseStage) else None
        remainder = None if start is None else start.remainder
        slice_at = source.slices(epoch, self._me) if remainder is None else by_number(remainder.slices)
        position = None if start is None else start.position
        self._reader = SliceReader(source.urls, slice_at, position, needed, self._failed, source.last_dot)
        self._seeds = SampleSeeds(source.seed, *epoch)
        self._sample = CurrentSample(self._seeds) if any(map(streamstages.asks_for_seed, steps)) else None
        items: Iterator[Any] = self._note_samples(iter(self._reader))
        for number, step in enumerate(steps):
            if isinstance(step, ShuffleStage):
                shuffle = None if start is None or position is None else start.shuffle
                name = f"shuffle {epoch} {self._me} {number}"
                self._buffer = ShuffleBuffer(step, name, self._reader.position, shuffle)
                items = self._buffer.shuffle(items)
                if remainder is not None:
                    self._held = HeldSamplesReader(remainder.held, partial(self._read, steps[:number], needed))
                    items = chain(self._held, items)
                items = self._note_samples(items)
            else:
                items = self._apply_step(step, items)
        return items if position is not None else islice(items, self._yielded, None)

    def _apply_step(self, step: Any, items: Iterator[Any]) -> Iterator[Any]:
        """Return an iterator over the results of the stage *step* for *items*; errors that handlers accept are counted.

        *step*: any but a `ShuffleStage`. A `ChooseStage` gets the handler and the seeds of this epoch; functions in
        other stages keep their handlers, and get the seed of the current sample if they ask for one.
        """
        if isinstance(step, ChooseStage):
            return step(items, self._failed, self._seeds)
        seeded = step if self._sample is None else streamstages.bind_step_seed(step, self._sample)
        results: Iterator[Any] = self._data.invoke(self._failures.count_step_errors(seeded), items)
        return results if self._sample is None or streamstages.holds_nothing(step) else self._sample.forget(results)

    def _note_samples(self, samples: Iterator[Any]) -> Iterator[Any]:
        """Return *samples*; if a stage asks for seeds, each is noted as the current sample when it is yielded."""
        return samples if self._sample is None else self._sample.note(samples)

    def _read(self, steps: list[Any], needed: Set[str] | None, pieces: Sequence[ShardSlice]) -> Iterator[Any]:
        """Return the samples of the slices *pieces*, after the stages *steps*; *needed*: fields to read, None for all.

        For samples that a shuffle buffer of another reader held.
        """
        source: SampleStream = self._data.source
        reader = SliceReader(source.urls, by_number(pieces), None, needed, self._failed, source.last_dot)
        items = self._note_samples(iter(reader))
        for step in steps:
            items = self._apply_step(step, items)
        return items


def assign_remainder(cursors: Sequence[Cursor], source: SampleStream, reader: ReaderId) -> Remainder:
    """Return the share that *reader* has of the samples that *cursors* leave of the epoch of *source*.

    *cursors*: of all readers of the run that stopped, in any order. Every reader computes it alone, and all come to the
    same shares. Slices are taken from the cursors by turns, so that shards come in about the order that they had, and
    are cut further where there are few (`slices.assign`). What one shuffle buffer held goes to one reader, because its
    samples lie close together.

    Raises: StateError if the cursor of a reader is missing or there twice, or does not say what was read.
    """
    cursors = sorted(cursors, key=lambda cursor: cursor.reader.number)
    numbers, readers = [cursor.reader.number for cursor in cursors], {cursor.reader.readers for cursor in cursors}
    if readers != {len(numbers)} or numbers != [*range(len(numbers))]:
        raise StateError(
            f"there are states of readers {', '.join(map(str, numbers))} of {max(readers)} (ranks times workers), and "
            f"this is reader {reader.number} of {reader.readers}: give load_state_dict the states of all ranks, as a "
            "list"
        )
    remainders = [_remainder_of(cursor, source) for cursor in cursors]
    held_samples = [samples for remainder in remainders for samples in remainder.held]
    turns = zip_longest(*(remainder.slices for remainder in remainders))
    pieces = [piece for turn in turns for piece in turn if piece is not None and piece.begin != piece.end]
    return Remainder(held_samples[reader.number :: reader.readers], slices.assign(pieces, reader))


def _remainder_of(cursor: Cursor, source: SampleStream) -> Remainder:
    """Return the held samples and slices that *cursor* leaves to its own reader; both are empty if the epoch is over.

    Behind the last sample the last slice is still there, cut to a rest without samples. *source*: the shards, which the
    slices of the reader follow from if *cursor* has no remainder. Raises: StateError if the cursor can't name what
    is left, because a stage may hold samples.
    """
    if cursor.repetition:  # the epoch is over, because only one repetition can be shared
        return Remainder([], [])
    held_samples, pieces = cursor.remainder or Remainder([], source.assign_slices((cursor.epoch, 0), cursor.reader))
    if cursor.position is None:
        if cursor.yielded:
            raise StateError(
                "a stage of this pipeline may hold samples, or make several of one: its states go on with as many "
                "ranks and workers as before"
            )
        return Remainder(held_samples, pieces)
    if not cursor.shuffle:
        return Remainder(held_samples, _slices_from(pieces, cursor.position))
    numbers, end = cursor.shuffle.numbers, cursor.shuffle.end
    if numbers:
        # the slices between the oldest sample and the last one that was read: numbers count from the first of them
        in_buffer = _slices_from(pieces, cursor.position)[: end.number - cursor.position.number + 1]
        held_samples = [*held_samples, HeldSamples(numbers, in_buffer)]
    return Remainder(held_samples, _slices_from(pieces, end))


def _slices_from(pieces: Sequence[ShardSlice], position: Position) -> list[ShardSlice]:
    """Return the slices of *pieces* from *position* on, the first one cut to its rest if that is in *position*."""
    number, rest = position
    return [*pieces[number:]] if rest is None else [rest, *pieces[number + 1 :]]
