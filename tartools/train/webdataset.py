"""`WebDataset`: a pipeline of webdataset over our reader, which comes to each sample once and can be resumed."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from random import Random
from typing import Any

from webdataset import autodecode, filters
from webdataset.compat import FluidInterface
from webdataset.pipeline import DataPipeline

from tartools.errors import SampleError, TarToolsError, UsageError
from tartools.train.fields import KEY, UNPICKLED, URL, Chooser, Decode, Fields, plain
from tartools.train.stream import Position, Reader, Samples

FIRST = 100  # samples of the first block that is shuffled; blocks double up to the size asked for
# Stages of webdataset that take a sample and give one or none before they take the next.
_HOLD_NOTHING = {
    *(filters._decode, filters._extract_keys, filters._log_keys, filters._map, filters._map_dict, filters._map_tuple),
    *(filters._rename, filters._rename_keys, filters._rsample, filters._select, filters._to_tuple, filters._xdecode),
}


class WebDataset(DataPipeline, FluidInterface):  # type: ignore[misc]
    """The samples of shards, or of tables, in their order: a dataset for torch with the methods of webdataset.

        data = tartools.train.WebDataset("train-{000..147}.tar", shuffle=1000)
        data = data.decode("pil").to_tuple("jpg;png", "cls").map_tuple(augment, None).batched(64)

    Every sample comes once an epoch, whatever the number of workers and ranks: see `stream.samples`. Ranks may get
    different numbers of samples; `with_epoch(n)` gives each worker of each rank n, and repeats data for that.

    *shuffle*: shards come in another order in each epoch, and samples in blocks of so many are shuffled. *resampled*:
    shards are drawn at random, without end. Both follow from *seed* and the epoch, which is counted or set by
    `set_epoch`. *fields* (or *extensions*), *decode* (or *decoder*) and *transforms* are those of `fields.Chooser`.
    No decoder unpickles, unless it is a function of your own.

    `state_dict` and `load_state_dict`, which torchdata's StatefulDataLoader calls, go on with the sample after the last
    one, for the same URLs, seed, and number of workers and ranks. What was read is not read again, but for a block of
    the shuffle; after a stage that is not of webdataset, or that makes several samples of one, all is.

    Holds: one read buffer of 1 MiB, and a block of the shuffle. Raises: what `samples` raises; SampleError, with shard,
    sample and field, for what can't be decoded; UsageError for a state that does not fit.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        shuffle: int = 0,
        seed: int = 0,
        resampled: bool = False,
        fields: Fields = None,
        decode: Decode = None,
        transforms: Any = None,
        *,
        extensions: Fields = None,
        decoder: Decode = None,
    ) -> None:
        if (fields is not None and extensions is not None) or (decode is not None and decoder is not None):
            raise TypeError("fields and extensions are one thing, and so are decode and decoder: give one of them")
        super().__init__(Samples(urls, bool(shuffle), seed, resampled))
        if shuffle > 1:
            self.append(Shuffle(shuffle, seed))
        chooser = Chooser(
            fields if extensions is None else extensions, decode if decoder is None else decoder, transforms
        )
        if chooser.fields is not None or chooser.decoder is not None or chooser.transform is not None:
            self.append(Choose(chooser))
        self._run: _Run | None = None
        self._resumed: dict[str, Any] | None = None

    @property
    def source(self) -> Samples:
        """The first stage."""
        return self.pipeline[0]  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_run": None}

    def __iter__(self) -> Iterator[Any]:
        state, self._resumed = self._resumed, None
        self._run = _Run(self, state)
        return self._run.iterated()

    def __enter__(self) -> WebDataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def compose(self, *stages: Any) -> WebDataset:
        """Return a copy with *stages* behind the others; it counts epochs of its own."""
        result: WebDataset = super().compose(*stages)
        result.pipeline[0] = copy.copy(self.source)
        result.pipeline[0].epochs = copy.deepcopy(self.source.epochs)
        result._run = None
        return result

    def set_epoch(self, epoch: int) -> None:
        """Let the next epoch be number *epoch*, from 0 on."""
        self.source.set_epoch(epoch)

    def with_length(self, n: int, silent: bool = True) -> WebDataset:
        """Let `len` of this be *n*; samples stay as many as there are."""
        if type(self) is not WebDataset:
            return super().with_length(n, silent=silent)  # type: ignore[no-any-return]
        self.size = n
        self.__class__ = SizedWebDataset
        return self

    # ---- stages ----

    def shuffle(self, size: int, *, initial: int = FIRST, seed: int | None = None) -> WebDataset:
        """Shuffle blocks of *size* samples; the first block has *initial*, and blocks double up to *size*."""
        if size < 1:
            return self
        return self.compose(Shuffle(size, self.source.seed if seed is None else seed, initial))

    def batched(
        self, batchsize: int, collation_fn: Any = filters.default_collation_fn, partial: bool = True
    ) -> WebDataset:
        """Make batches of *batchsize* samples by *collation_fn*; if *partial*, the last one may be smaller."""
        return self.compose(Batch(batchsize, collation_fn, partial))

    def listed(self, batchsize: int, partial: bool = True) -> WebDataset:
        """Make lists of *batchsize* samples."""
        return self.compose(Batch(batchsize, None, partial))

    def decode(
        self,
        *args: Any,
        pre: Any = None,
        post: Any = None,
        only: Any = None,
        partial: bool = False,
        handler: Any = filters.reraise_exception,
    ) -> WebDataset:
        """Decode fields as webdataset does, but refuse to unpickle, unless one of *args* does it."""
        handlers = [autodecode.ImageHandler(each) if isinstance(each, str) else each for each in args]
        decoder = autodecode.Decoder(handlers, pre, [plain] if post is None else post, only, partial)
        return self.map(DecodeFields(decoder), handler=handler)  # type: ignore[no-any-return]

    def xdecode(self, *args: Any, **kw: Any) -> WebDataset:
        """Decode fields by patterns as webdataset does, but refuse those that would be unpickled by default."""
        kw.setdefault(
            "defaults",
            [
                (pattern, _refused if pattern.rpartition(".")[2] in UNPICKLED else function)
                for pattern, function in filters.default_decoders
            ],
        )
        return self.compose(filters.xdecode(*args, **kw))

    # ---- resuming ----

    def state_dict(self) -> dict[str, Any]:
        """Return where the latest iterator of this is, for `load_state_dict`."""
        return self._run.state() if self._run is not None else self._resumed or {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iterator go on where *state* was taken. Raises: UsageError if it is that of other data."""
        if state and state["data"] != self.digest():
            raise UsageError("this state is that of other URLs, another seed or another shuffle: start without it")
        self._resumed = state or None

    def digest(self) -> str:
        """Return what tells the order of these samples from those of other URLs and seeds."""
        source = self.source
        shuffles = [(step.size, step.initial, step.seed) for step in self.pipeline[1:] if isinstance(step, Shuffle)]
        text = repr(([*map(str, source.urls)], source.shuffled, source.seed, source.resampled, shuffles))
        return hashlib.sha256(text.encode()).hexdigest()


class SizedWebDataset(WebDataset):
    """A `WebDataset` whose `with_length` was called."""

    def __len__(self) -> int:
        return int(self.size)


class Shuffle:
    """Shuffles blocks of *size* samples, each by *seed*, epoch and its number."""

    def __init__(self, size: int, seed: int, initial: int = FIRST) -> None:
        self.size, self.seed, self.initial = size, seed, max(1, initial)

    def block(self, number: int) -> int:
        """Return how many samples block *number* has."""
        return min(self.size, self.initial << min(number, 40))


class Shuffling:
    """The iterator of one `Shuffle`, from block *number* on, of which *done* samples were given before.

    *position* tells where the source is.
    """

    def __init__(
        self, shuffle: Shuffle, name: str, position: Callable[[], Position], number: int = 0, done: int = 0
    ) -> None:
        self._shuffle, self._name, self._position = shuffle, name, position
        self.begin, self.number, self.done = position(), number, done

    def iterated(self, samples: Iterator[Any]) -> Iterator[Any]:
        """Yield *samples*, block by block."""
        while block := [*islice(samples, self._shuffle.block(self.number))]:
            Random(f"{self._name} {self._shuffle.seed} {self.number}").shuffle(block)
            for at in range(self.done, len(block)):
                self.done = at + 1
                sample, block[at] = block[at], None
                yield sample
            self.begin, self.number, self.done = self._position(), self.number + 1, 0


class Batch:
    """Makes batches of *size* samples. Unlike webdataset's, it gives a batch as soon as it is full."""

    def __init__(self, size: int, collate: Callable[[list[Any]], Any] | None, partial: bool) -> None:
        self._size, self._collate, self._partial = size, collate, partial

    def __call__(self, samples: Iterator[Any]) -> Iterator[Any]:
        """Yield batches of *samples*."""
        while batch := [*islice(samples, self._size)]:
            if len(batch) == self._size or self._partial:
                yield batch if self._collate is None else self._collate(batch)


class Choose:
    """A `Chooser` as a stage."""

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser
        names = chooser.fields
        self.wanted = None if names is None else {name.lower() for each in names for name in each}

    def __call__(self, samples: Iterator[Any]) -> Iterator[Any]:
        """Yield what training takes of *samples*."""
        return map(self._chooser, samples)


class DecodeFields:
    """Decodes the fields of a sample by *decoder*, one of webdataset. Raises: SampleError, with shard and field."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return *sample* with its fields decoded."""
        try:
            return self._decoder(sample)  # type: ignore[no-any-return]
        except autodecode.DecodingError as error:
            cause = error.__cause__
            text = cause.message if isinstance(cause, TarToolsError) else f"{type(cause).__name__}: {cause}"
            what = f"sample {sample.get(KEY)!r}: field {error.k!r}: {text}"
            raise SampleError(what, url=str(sample.get(URL) or "")) from cause


def _refused(_: object) -> Any:
    raise SampleError("this would be unpickled, and could run any code; give xdecode a function of your own for it")


class _Run:
    """One epoch of *data*, from *state* on, if it is given: what its iterator is doing."""

    def __init__(self, data: WebDataset, state: dict[str, Any] | None) -> None:
        self._data = data
        self._place = data.source.place()
        self._epoch = data.source.epochs.take(state["epoch"] if state else None)
        counts: tuple[int, int, int] = state["counts"] if state else (0, 0, 0)
        self._repetition, self._total, self._given = counts
        self._from = state
        self._reader: Reader | None = None
        self._shuffling: Shuffling | None = None
        if state and tuple(state["place"]) != self._place:
            number, count = state["place"]
            raise UsageError(
                f"this state is that of reader {number} of {count} (ranks times workers), and this is reader "
                f"{self._place.number} of {self._place.readers}: go on with as many ranks and workers"
            )

    def iterated(self) -> Iterator[Any]:
        """Yield what the last stage gives, for as many samples and repetitions as `with_epoch` and `repeat` say."""
        data = self._data
        most = data.nsamples if data.repetitions != 1 and data.nsamples > 0 else None
        while self._repetition < data.repetitions and self._total != most:
            for item in self._chain():
                self._total += 1
                self._given += 1
                yield item
                if self._total == most:
                    return
            if not self._given:
                return  # an empty data set is not repeated
            self._repetition, self._given = self._repetition + 1, 0
            self._reader = self._shuffling = None

    def state(self) -> dict[str, Any]:
        """Return what goes on with the next item."""
        state = {
            "data": self._data.digest(),
            "place": [*self._place],
            "epoch": self._epoch,
            "counts": [self._repetition, self._total, self._given],
            "position": None,
            "shuffle": None,
        }
        if self._from is not None:
            return state | {key: self._from[key] for key in ("position", "shuffle")}
        if self._reader is not None and self._can_skip():
            shuffling = self._shuffling
            state["position"] = [*(self._reader.position() if shuffling is None else shuffling.begin)]
            state["shuffle"] = None if shuffling is None else [shuffling.number, shuffling.done]
        return state

    def _can_skip(self) -> bool:
        """Tell whether no stage holds samples between two items, but for one shuffle, whose block is known."""
        held = [step for step in self._data.pipeline[1:] if not _holds_nothing(step)]
        return [*map(type, held)] in ([], [Shuffle], [Batch], [Shuffle, Batch])

    def _chain(self) -> Iterator[Any]:
        """Return the items of this repetition that are left."""
        source, steps = self._data.source, self._data.pipeline[1:]
        state, self._from = self._from, None
        epoch = self._epoch, self._repetition
        skipping = bool(state and state["position"])
        start = Position(*state["position"]) if state and skipping else None
        first = next((step for step in steps if not isinstance(step, Shuffle)), None)
        wanted = first.wanted if isinstance(first, Choose) else None
        self._reader = Reader(source.urls, source.parts(epoch, self._place), start, wanted)
        found: Iterator[Any] = iter(self._reader)
        for number, step in enumerate(steps):
            if isinstance(step, Shuffle):
                begun = state["shuffle"] if state and skipping else ()
                name = f"shuffle {epoch} {self._place} {number}"
                self._shuffling = Shuffling(step, name, self._reader.position, *begun or ())
                found = self._shuffling.iterated(found)
            else:
                found = self._data.invoke(step, found)
        return found if skipping else islice(found, self._given, None)


def _holds_nothing(step: Any) -> bool:
    return isinstance(step, Choose) or (isinstance(step, filters.FilterFunction) and step.f in _HOLD_NOTHING)
