"""The stages of a `WebDataset`, in place of webdataset's own."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from random import Random
from typing import Any

from webdataset import autodecode, filters

from tartools.errors import SampleError
from tartools.samples.sample import DICT_KEY, DICT_URL
from tartools.train.clips import Clip, decode_clip
from tartools.train.cursor import HeldSamples, Position, ShardSlice, ShuffleCursor
from tartools.train.fieldchooser import RESERVED_PREFIX, FieldChooser, decode_error
from tartools.train.sampleseeds import CurrentSample, SampleSeeds, seed_parameter
from tartools.train.states import StateError

DEFAULT_SHUFFLE_START = 100  # samples that a shuffle waits for
DRAWS_AT_ONCE = 1000  # numbers that are drawn at once
NO_SAMPLE = re.compile(r"__[^/]*__($|/)")  # keys of members that webdataset skips
Handler = Callable[[Exception], object]  # of a failure: tells whether to go on; those of webdataset, or your own
# Stages of webdataset that take a sample and give one or none before they take the next.
_HOLD_NOTHING = {
    *(filters._decode, filters._extract_keys, filters._log_keys, filters._map, filters._map_dict, filters._map_tuple),
    *(filters._rename, filters._rename_keys, filters._rsample, filters._select, filters._to_tuple, filters._xdecode),
}


class ShuffleStage:
    """The settings of a shuffle buffer, which `ShuffleBuffer` runs: it holds up to *size* samples.

    As in webdataset, it yields the first sample when it holds *initial* or one more; while it holds fewer than *size*,
    it reads two samples for each that it yields, and then one; behind the last sample it yields all that it holds. The
    sample yielded is a random one of the buffer. *size*: 1 or more. An *initial* below 1 counts as 1, one above *size*
    as *size*. Draws depend on *seed*, epoch, repetition, reader, and the place of the stage.
    """

    def __init__(self, size: int, seed: int, initial: int = DEFAULT_SHUFFLE_START) -> None:
        self.size, self.seed, self.initial = size, seed, max(1, min(initial, size))


class ShuffleBuffer:
    """The running buffer of the shuffle *stage*, in one repetition of an epoch.

    Iterate over `shuffle(samples)` once; `cursor`, between two samples, tells the position.

    *name*: text from which its draws follow, together with the seed of *stage*. `position()` returns the position of
    the source, from which *samples* come; at first, the begin of the repetition or the position of the cursor *start*.
    *start*: where to resume; None: it begins empty.

    A cursor does not contain samples, but their numbers in the order of reading. After each `size` samples the buffer
    marks their number and the position of the source, and a cursor counts from the last mark before the oldest sample
    held. To resume, the samples from there on are read again, and those whose numbers the cursor has are held; the
    draws go on where they were.
    """

    def __init__(
        self, stage: ShuffleStage, name: str, position: Callable[[], Position], start: ShuffleCursor | None = None
    ) -> None:
        self._stage, self._name, self._position = stage, f"{name} {stage.seed}", position
        self._start = start  # until the samples that it held are here again
        self._yielded, self._read = (start.yielded, start.read) if start else (0, 0)
        self._numbers = [*start.numbers] if start else []
        self._samples: list[Any] = []  # with these numbers
        self._marks = [(0, position())]  # numbers of samples, and where reading them begins
        self._draws: list[float] = []

    def shuffle(self, samples: Iterator[Any]) -> Iterator[Any]:
        """Yield *samples* shuffled; first take from them the samples that the cursor *start* holds, by their numbers.

        *samples*: from the position of *start* on, if there is one: up to the last one that it has read, all others are
        dropped, as they were yielded before. Raises: StateError if they lack one that it holds.
        """
        self._samples = take_numbered(samples, self._read, self._numbers)
        self._start = None
        size, initial = self._stage.size, self._stage.initial
        while self._read_sample(samples):
            if len(self._samples) < size:
                self._read_sample(samples)
            if len(self._samples) >= initial:
                yield self._draw_sample()
        while self._samples:
            yield self._draw_sample()

    def cursor(self) -> tuple[Position, ShuffleCursor]:
        """Return (position of the source, `ShuffleCursor` counted from there).

        The position is that of the last mark before the oldest sample held, or before the next one to read if none is
        held; a mark is a noted position of the source. Before `shuffle` yields: the first position, and *start* if it
        is given.
        """
        if self._start is not None:
            return self._marks[0][1], self._start
        first, begin = self._mark()
        numbers = [number - first for number in self._numbers]
        return begin, ShuffleCursor(self._yielded, self._read - first, numbers, self._position())

    def _mark(self) -> tuple[int, Position]:
        """Return the last mark (samples read, position) not behind any held sample; delete the marks before it."""
        first = min(self._numbers, default=self._read)
        while len(self._marks) > 1 and self._marks[1][0] <= first:
            del self._marks[0]
        return self._marks[0]

    def _read_sample(self, samples: Iterator[Any]) -> bool:
        """Move the next of *samples* into the buffer, and return True; return False if there is none.

        After each `size` samples read, a mark is added.
        """
        for sample in islice(samples, 1):
            self._numbers.append(self._read)
            self._samples.append(sample)
            self._read += 1
            if self._read % self._stage.size == 0:
                self._mark()
                self._marks.append((self._read, self._position()))
            return True
        return False

    def _draw_sample(self) -> Any:
        """Remove a random sample from the buffer, which is not empty, and return it."""
        at = self._yielded % DRAWS_AT_ONCE
        if not at or not self._draws:
            chance = Random(f"{self._name} {self._yielded // DRAWS_AT_ONCE}")
            self._draws = [chance.random() for _ in range(DRAWS_AT_ONCE)]
        chosen = int(self._draws[at] * len(self._samples))
        self._yielded += 1
        for items in (self._numbers, self._samples):
            items[chosen], items[-1] = items[-1], items[chosen]
        self._numbers.pop()
        return self._samples.pop()


class HeldSamplesReader:
    """Iterates over samples that shuffle buffers of other readers held when the run stopped.

    It can be iterated over once; `remaining`, between two samples, tells which are left.

    *held*: these samples, by buffer, in whose order they come; the last sample of a buffer comes first.
    `read(slices)`: yields all samples of *slices*, to find them again. Holds: the samples of one buffer. Raises, in the
    iteration: StateError if the slices have fewer samples; the errors of `read`.
    """

    def __init__(self, held: Sequence[HeldSamples], read: Callable[[Sequence[ShardSlice]], Iterator[Any]]) -> None:
        self._held, self._read = [*held], read
        self._yielded = 0  # samples of the first of these

    def __iter__(self) -> Iterator[Any]:
        while self._held:
            numbers, slices = self._held[0]
            samples = take_numbered(self._read(slices), max(numbers, default=-1) + 1, numbers)
            while samples:
                self._yielded += 1
                yield samples.pop()
            del self._held[0]
            self._yielded = 0

    def remaining(self) -> list[HeldSamples]:
        """Return the samples not yet yielded, by buffer: first the rest of the one in use, then the others.

        That rest may be empty; the list is [] once the iteration has ended.
        """
        if not self._held:
            return []
        (numbers, slices), *others = self._held
        return [HeldSamples(numbers[: len(numbers) - self._yielded], slices), *others]


def take_numbered(samples: Iterator[Any], count: int, numbers: Sequence[int]) -> list[Any]:
    """Take the next *count* of *samples*; return the samples numbered *numbers* among them, in the order of *numbers*.

    The first one taken has the number 0. *samples* may be fewer than *count*. Raises: StateError if one of *numbers* is
    not among them.
    """
    number_set = {*numbers}
    samples_by_number = {number: sample for number, sample in enumerate(islice(samples, count)) if number in number_set}
    if len(samples_by_number) < len(number_set):
        raise StateError("this state names samples that the shards do not have: they have changed since it was made")
    return [samples_by_number[number] for number in numbers]


class BatchStage:
    """A stage that makes batches of *size* samples: call it with an iterator of samples, and iterate over the result.

    Unlike webdataset's, it yields a batch as soon as it is full.

    *collate*: makes a batch of a list; None: it stays a list. *partial*: the last batch may be smaller; False: a
    smaller one is left out.
    Raises: ValueError if *size* is below 1.
    """

    def __init__(self, size: int, collate: Callable[[list[Any]], Any] | None, partial: bool) -> None:
        if size < 1:
            raise ValueError(f"a batch has 1 sample or more, not {size}")
        self._size, self._collate, self._partial = size, collate, partial

    def __call__(self, samples: Iterator[Any]) -> Iterator[Any]:
        """Yield batches of the next *samples*, in their order: lists, or the results of `collate`.

        A last batch of fewer samples is yielded only with *partial*.
        """
        while batch := [*islice(samples, self._size)]:
            if len(batch) == self._size or self._partial:
                yield batch if self._collate is None else self._collate(batch)


class ChooseStage:
    """A stage that applies *chooser* to each sample: call it with an iterator of dicts, and iterate over the result.

    `needed`: fields that it reads, None for all
    `names`: names of the fields in the tuples that it yields; empty if it yields dicts
    """

    def __init__(self, chooser: FieldChooser) -> None:
        self._chooser = chooser
        self.needed = chooser.needed
        self.names = chooser.names

    def __call__(
        self, samples: Iterator[Any], on_error: Handler | None = None, seeds: SampleSeeds | None = None
    ) -> Iterator[Any]:
        """Yield the results of the chooser for *samples*; skip a sample if `on_error(error)` accepts its error.

        *on_error*: a handler of webdataset: it returns True to skip the sample, else the iteration ends; None: errors
        are raised. Transforms and clips that ask for a seed get those of *seeds*; None: those of the chooser.
        """
        chooser = self._chooser
        if chooser.seeds is not None and seeds is not None:
            chooser = copy.copy(chooser)
            chooser.seeds = seeds
        for sample in samples:
            try:
                result = chooser(sample)
            except Exception as error:
                if on_error is None:
                    raise
                if on_error(error):
                    continue
                return
            yield result


class FilesStage:
    """A stage that renames and selects the members ("files" in webdataset) of samples: dicts with their payloads.

    Call it with an iterator of samples; it yields them with the fields that are left, and drops samples without one.

    `rename(name)`: returns the new name of the member KEY.FIELD; None: names stay. `select(name)`: returns True to keep
    the member with this new name; None: all are kept. New fields become lower case; of two for one field the last
    counts. Items whose names begin with two underscores, such as `__key__`, stay. *lax*: True to drop the samples that
    webdataset does not see: those with a file without a suffix, hidden files, and those with a key such as __meta__,
    or in such a folder at the top. Raises, in the iteration: SampleError if *rename* changes the key of a file that is
    kept.
    """

    def __init__(self, select: Callable[[str], object] | None, rename: Callable[[str], str] | None, lax: bool) -> None:
        self._select, self._rename, self._lax = select, rename, lax

    def __call__(self, samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield *samples* with their renamed and selected fields; skip a sample that has none left.

        First, with *lax*, samples that webdataset does not see are skipped. Raises: SampleError if *rename* changes the
        key of a file that is kept.
        """
        for sample in samples:
            if not self._lax or ("" not in sample and not NO_SAMPLE.match(sample[DICT_KEY])):
                own = {name: value for name, value in sample.items() if name[:2] == RESERVED_PREFIX}
                files = self._files(sample)
                if files:
                    yield own | files

    def _files(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return the selected payloads of *sample* by their new fields, in lower case; of two for one field the last.

        Items whose names begin with two underscores are left out. Raises: SampleError if *rename* changes the key of a
        selected file.
        """
        files, key = {}, sample[DICT_KEY]
        for field, payload in sample.items():
            if field[:2] == RESERVED_PREFIX:
                continue
            name = f"{key}.{field}" if field else key
            name = name if self._rename is None else self._rename(name)
            if self._select is None or self._select(name):
                stem, _, new = name[len(key) :].partition(".")
                if name[: len(key)] != key or stem:
                    text = f"rename_files moves a file of {key!r} to {name!r}; it may change the part after the key"
                    raise SampleError(text, url=sample[DICT_URL])
                files[new.lower()] = payload
        return files


class Failures:
    """Counts the errors in an epoch that handlers accepted, for one warning about them at its end.

    `count_errors` and `count_step_errors` wrap handlers, `report` warns.
    """

    def __init__(self) -> None:
        self._count, self._last = 0, ""

    def count_errors(self, handler: Handler) -> Handler:
        """Return *handler* as a handler that counts each error for which *handler* returns, with any value.

        Errors that it raises are not counted.
        """

        def counting(error: Exception) -> object:
            """Call the handler, and count the error if that does not raise."""
            going_on = handler(error)
            self._count, self._last = self._count + 1, str(error)
            return going_on

        return counting

    def count_step_errors(self, step: Any) -> Any:
        """Return a copy of the stage *step* of webdataset whose handler counts errors, as by `count_errors`.

        *step* itself if it is no stage of webdataset, or has no handler but the one that raises all errors.
        """
        handler = (
            step.kw.get("handler", filters.reraise_exception) if isinstance(step, filters.FilterFunction) else None
        )
        if handler in (None, filters.reraise_exception):
            return step
        return filters.FilterFunction(step.f, *step.args, **step.kw | {"handler": self.count_errors(handler)})

    def report(self) -> None:
        """Warn about the errors that were accepted, if there were any, and count from 0 again."""
        if self._count:
            subject = (
                "was 1 failure that a handler" if self._count == 1 else f"were {self._count} failures that handlers"
            )
            warnings.warn(f"there {subject} left out of this epoch; the last one: {self._last}", stacklevel=2)
        self._count = 0


class UndecodableError(SampleError, autodecode.DecodingError):  # type: ignore[misc]
    """A field can't be decoded: a SampleError, and for handlers of webdataset its DecodingError, too."""


class DecodeStage:
    """A function for webdataset's `map` that decodes the fields of a sample by *decoder*, webdataset's Decoder.

    Call it with a sample, a dict; it returns a new dict with the same names in the same order. Items whose names begin
    with two underscores are no fields and are kept.
    *clips*: field -> `Sound` or `Video`, by which this class decodes the field, if it is bytes, instead of *decoder*;
    parts at random differ from one call to the next. Raises, when called: UndecodableError, with shard, sample and
    field.
    """

    def __init__(self, decoder: Any, clips: Mapping[str, Clip]) -> None:
        self._decoder, self._clips = decoder, clips

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return a dict of all items of *sample*, fields decoded.

        Raises: UndecodableError, with shard, sample and field.
        """
        return self._decode_fields(sample, None)

    def _decode_fields(self, sample: dict[str, Any], seed: int | None) -> dict[str, Any]:
        """Return a dict of all items of *sample*, fields decoded, parts at random by *seed*; None: each draws one.

        Raises: UndecodableError, with shard, sample and field.
        """
        clips = {field: clip for field, clip in self._clips.items() if isinstance(sample.get(field), bytes)}
        try:
            decoded = self._decoder({name: value for name, value in sample.items() if name not in clips})
        except autodecode.DecodingError as error:
            failure = decode_error(sample, error.k, error.__cause__)
            raise UndecodableError(failure.message, url=failure.url) from error.__cause__
        for field, clip in clips.items():
            try:
                decoded[field] = decode_clip(clip, field, sample[field], seed)
            except Exception as error:
                failure = decode_error(sample, field, error)
                raise UndecodableError(failure.message, url=failure.url) from error
        return {name: decoded[name] for name in sample if name in decoded}


class SeededDecodeStage(DecodeStage):
    """A `DecodeStage` with parts at random, which follow from the seed of each sample: it asks for that by `seed`."""

    def __call__(self, sample: dict[str, Any], seed: int) -> dict[str, Any]:  # type: ignore[override]
        """Return a dict of all items of *sample*, fields decoded, parts at random by *seed*.

        Raises: UndecodableError, with shard, sample and field.
        """
        return self._decode_fields(sample, seed)


def asks_for_seed(step: Any) -> bool:
    """True if *step* is a stage of webdataset with a function that asks for the seed of its sample.

    `seed_parameter` says when a function asks for it. False for a `ChooseStage`, which gets its seeds otherwise.
    """
    if not isinstance(step, filters.FilterFunction):
        return False
    return any(callable(value) and seed_parameter(value) for value in (*step.args, *step.kw.values()))


def bind_step_seed(step: Any, sample: CurrentSample) -> Any:
    """Return a copy of the stage *step*, whose functions get the seed of the current *sample* where they ask for one.

    *step* itself if none asks. Such a function raises UsageError when it is called while the sample is unknown.
    """
    if not asks_for_seed(step):
        return step
    args = [sample.bind_seed(value) if callable(value) else value for value in step.args]
    kw = {name: sample.bind_seed(value) if callable(value) else value for name, value in step.kw.items()}
    return filters.FilterFunction(step.f, *args, **kw)


def refuse_pickle(_: object) -> Any:
    """Raise SampleError: a decoder of webdataset's `xdecode` in place of one that unpickles."""
    raise SampleError("this would be unpickled, and could run any code; give xdecode a function of your own for it")


def tuple_names(steps: Sequence[Any]) -> Sequence[str]:
    """Return the names of the fields in the tuples that the stages *steps* yield; () if nothing says them.

    A field that was chosen among several has the name "jpg;png". There are none behind a stage that may change tuples,
    and without a stage that makes them.
    """
    names: Sequence[str] = ()
    for step in steps:
        function = step.f if isinstance(step, filters.FilterFunction) else None
        if isinstance(step, ChooseStage):
            names = step.names
        elif function is filters._to_tuple:
            args = step.args[0].split() if len(step.args) == 1 and isinstance(step.args[0], str) else step.args
            names = [name if isinstance(name, str) else ";".join(name) for name in args]
        elif not (isinstance(step, ShuffleStage) or function in (filters._map_tuple, filters._log_keys)):
            names = ()
    return names


def is_resumed_by_place(steps: Sequence[Any]) -> bool:
    """True if no stage of *steps* holds samples between two items, but for one shuffle, whose cursor names them.

    A batch may be the last stage that holds any: between two batches it holds none. True for no stages.
    """
    holding = [type(step) for step in steps if not holds_nothing(step)]
    return holding in ([], [ShuffleStage], [BatchStage], [ShuffleStage, BatchStage])


def holds_nothing(step: Any) -> bool:
    """True if the stage *step* surely holds no samples between two items that it yields, and makes no two of one.

    So are `ChooseStage`, `FilesStage`, and the stages of webdataset that decode, map, select, drop, rename or log
    single samples. False for all others, such as a function of the user.
    """
    return isinstance(step, (ChooseStage, FilesStage)) or (
        isinstance(step, filters.FilterFunction) and step.f in _HOLD_NOTHING
    )
