"""`WebDataset`: a pipeline of webdataset over our reader, which comes to each sample once and can be resumed."""

from __future__ import annotations

import copy
import hashlib
import operator
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Set
from itertools import chain, islice
from typing import Any

from torch.utils.data import get_worker_info
from webdataset import autodecode, filters, shardlists
from webdataset.compat import FluidInterface
from webdataset.pipeline import DataPipeline

from tartools import storage
from tartools.errors import UsageError, several
from tartools.storage.url import Name
from tartools.tables.schema import is_table_name
from tartools.train import frameworks, samplestream, streamstages
from tartools.train.fieldchooser import Decode, FieldChooser, Fields, Size
from tartools.train.payloaddecoding import UNPICKLED, decoders, plain
from tartools.train.ranks import ReaderId, SharedEpoch
from tartools.train.sampleseeds import CurrentSample, SampleSeeds
from tartools.train.samplestream import Remainder, SampleStream
from tartools.train.sending import CacheSetting, check_sent
from tartools.train.sharedmemory import with_sent_lists
from tartools.train.slices import Position, SliceReader, by_number, estimate_share
from tartools.train.states import State, StateError, make_state
from tartools.train.streamstages import BatchStage, ChooseStage, ShuffleBuffer, ShuffleStage, with_numbers
from tartools.train.workererrors import guard_worker

MAX_SHARE_RATIO = 1.5  # of the largest share of a rank to the smallest; above, a warning
MAX_COMPARED_SHARDS = 10_000  # whose sizes are looked at for that
DEFAULT_SHUFFLE_SIZE = 1000  # samples that shuffle=True holds
# arguments of webdataset: chance always follows from the seed
IGNORED_ARGUMENTS = {"detshuffle", "url_to_name", "verbose"}


class WebDataset(DataPipeline, FluidInterface):  # type: ignore[misc]
    """Samples of shards or tables in order: an iterable dataset for torch with the methods of webdataset.

        data = tartools.train.WebDataset("train-{000..147}.tar", shuffle=1000)
        data = data.decode("pil").to_tuple("jpg;png", "cls").map_tuple(augment, None).batched(64)

    Every sample comes once an epoch, for any number of ranks and workers. Each iteration is the next epoch, unless
    `set_epoch` was called. `state_dict` and `load_state_dict` resume after the last sample. All arguments,
    and what a state says: docs/training/webdataset.md.

    Order: of the shards and their samples; with *shuffle* (True: 1,000 samples) shuffled by *seed* and epoch.
    Holds: one read buffer of 1 MiB, and the samples of the shuffle buffer.
    Raises: what `samples` raises; SampleError, with shard, sample and field, for a payload that can't be decoded;
    UsageError for a state of other data or another order.
    """

    def __init__(
        self,
        urls: Name | Iterable[Name],
        shuffle: bool | int = False,
        seed: int | None = None,
        resampled: bool = False,
        fields: Fields = None,
        decode: Decode = None,
        transform: Any = None,
        resize: Size = None,
        *,
        extensions: Fields = None,
        decoder: Decode = None,
        transforms: Any = None,
        cache_dir: str | None = None,
        cache_size: int = -1,
        handler: streamstages.Handler = filters.reraise_exception,
        lax: bool = False,
        select_files: Callable[[str], object] | None = None,
        rename_files: Callable[[str], str] | None = None,
        empty_check: bool = False,
        shardshuffle: bool | int | None = None,
        nodesplitter: Any = shardlists.split_by_node,
        workersplitter: Any = shardlists.split_by_worker,
        mode: str | None = None,
        repeat: bool = False,
        **unneeded: Any,
    ) -> None:
        if unknown := sorted({*unneeded} - IGNORED_ARGUMENTS):
            raise TypeError(f"WebDataset has no argument {unknown[0]!r}")
        if mode not in (None, "resampled"):
            raise ValueError(f"mode is 'resampled' or None, not {mode!r}")
        cache_setting = f"{cache_dir}:{1 << 62 if cache_size < 0 else cache_size}" if cache_dir and cache_size else None
        self._cache = CacheSetting(cache_setting)
        self._handler = None if handler is filters.reraise_exception else handler
        self._empty_check = empty_check
        seed = int(os.environ.get("WDS_SEED", "0")) if seed is None else operator.index(seed)
        resampled = resampled or mode == "resampled"
        shuffled = bool(shuffle) or bool(shardshuffle)
        source = SampleStream(shard_names(urls), shuffled, seed, resampled, checked=self._handler is None)
        _split(source, nodesplitter, workersplitter)
        super().__init__(source)
        if lax or select_files is not None or rename_files is not None:
            self.append(streamstages.FilesStage(select_files, rename_files, lax))
        if (size := DEFAULT_SHUFFLE_SIZE if shuffle is True else int(shuffle)) > 1:
            self.append(ShuffleStage(size, seed))
        chooser = FieldChooser(
            _either("fields", fields, "extensions", extensions),
            _either("decode", decode, "decoder", decoder),
            _either("transform", transform, "transforms", transforms),
            resize,
        )
        if chooser.fields is not None or chooser.decoder is not None or chooser.transform is not None:
            self.append(ChooseStage(chooser))
        self._under_way: StreamEpoch | None = None
        self._given: Any = {}  # what was loaded, and the states of readers in it
        self._loaded: list[State] = []
        if repeat:
            self.repetitions = sys.maxsize

    @property
    def source(self) -> SampleStream:
        """The first stage."""
        return self.pipeline[0]  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        for step in self.pipeline:
            if isinstance(step, filters.FilterFunction):
                check_sent(f"what {step.f.__name__.strip('_')} calls", [*step.args, *step.kw.values()])
        return self.__dict__ | {"_under_way": None}

    def __iter__(self) -> Iterator[Any]:
        guard_worker()
        self._under_way = StreamEpoch(self, self._loaded)
        self._given, self._loaded = {}, []
        return self._under_way.iterated()

    def __enter__(self) -> WebDataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def compose(self, *stages: Any) -> WebDataset:
        """Return a copy with *stages* after the others, and an epoch of its own."""
        result: WebDataset = super().compose(*stages)
        result.pipeline[0] = copy.copy(self.source)
        result.pipeline[0].epoch = SharedEpoch(self.source.epoch.number, self.source.epoch.rank)
        result._under_way, result._given, result._loaded = None, {}, []
        return result

    def set_epoch(self, epoch: int) -> None:
        """Make *epoch* the number of the next epoch, counted from 0, also for workers that are there already."""
        self.source.set_epoch(epoch)

    def with_length(self, n: int, silent: bool = True) -> WebDataset:
        """Have `len` return *n*; the number of samples stays as it is."""
        if type(self) is not WebDataset:
            return super().with_length(n, silent=silent)  # type: ignore[no-any-return]
        self.size = n
        self.__class__ = SizedWebDataset
        return self

    # ---- stages ----

    def shuffle(
        self, size: int, *, initial: int = streamstages.DEFAULT_SHUFFLE_START, seed: int | None = None
    ) -> WebDataset:
        """Hold *size* samples, and give one by chance for each that comes; the first when there are *initial*."""
        if size < 1:
            return self
        return self.compose(ShuffleStage(size, self.source.seed if seed is None else operator.index(seed), initial))

    def batched(
        self, batchsize: int, collation_fn: Any = filters.default_collation_fn, partial: bool = True
    ) -> WebDataset:
        """Make batches of *batchsize* samples by *collation_fn*; if *partial*, the last one may be smaller."""
        return self.compose(BatchStage(batchsize, collation_fn, partial))

    def listed(self, batchsize: int, partial: bool = True) -> WebDataset:
        """Make lists of *batchsize* samples."""
        return self.compose(BatchStage(batchsize, None, partial))

    def decode(
        self,
        *args: Any,
        resize: Size = None,
        pre: Any = None,
        post: Any = None,
        only: Any = None,
        partial: bool = False,
        handler: Any = filters.reraise_exception,
    ) -> WebDataset:
        """Decode fields as webdataset does, but refuse to unpickle, unless one of *args* does it.

        Pictures, and *resize*, are those of `FieldChooser`.
        """
        decoder = autodecode.Decoder(decoders(args, resize), pre, [plain] if post is None else post, only, partial)
        return self.map(streamstages.DecodeStage(decoder), handler=handler)  # type: ignore[no-any-return]

    def xdecode(self, *args: Any, **kw: Any) -> WebDataset:
        """Decode fields by patterns as webdataset does, but refuse to unpickle by default."""
        kw.setdefault(
            "defaults",
            [
                (pattern, streamstages.refuse_pickle if pattern.rpartition(".")[2] in UNPICKLED else function)
                for pattern, function in filters.default_decoders
            ],
        )
        return self.compose(filters.xdecode(*args, **kw))

    # ---- resuming ----

    def state_dict(self, num_samples: int | None = None, from_beginning: bool = True) -> Any:
        """Return the state of the latest iterator of this rank or worker, for `load_state_dict`.

        Composer gives *num_samples*, those of the epoch so far on all ranks, and saves the answer on rank 0: then it is
        the list of the states of all ranks, between two epochs that of the next one, and all ranks must call this.

        Raises: UsageError if the workers of a loader iterate: take its state, that of a StatefulDataLoader.
        """
        if num_samples is None:
            return self._own_state()
        if self.source.epoch.in_workers:
            raise UsageError(
                "Composer resumes a WebDataset without workers only: give the DataLoader num_workers=0, or use "
                "tartools.train.loader, which Composer resumes with workers, too"
            )
        state = self._own_state()
        if num_samples == 0 and self._under_way is not None:
            state = self._reader_state(self.source.epoch.reader(), self.source.epoch.number + 1)
        return frameworks.gather_from_ranks(state)

    def _own_state(self) -> Any:
        if self._under_way is not None:
            return self._under_way.state()
        if self.source.epoch.in_workers:
            raise UsageError("the workers of a loader know where they are: take the state of a StatefulDataLoader")
        return self._given or self._reader_state(self.source.epoch.reader(), self.source.epoch.number)

    def _reader_state(self, reader: ReaderId, epoch: int, **values: Any) -> State:
        """Return the state of *reader* with *values*, by default at the begin of *epoch*."""
        begin = {"counts": [0, 0, 0], "position": None, "shuffle": None, "left": None}
        return make_state({"data": self.digest(), "reader": reader, "epoch": epoch} | begin | values)

    def load_state_dict(self, state: Any) -> None:
        """Let the next iterator go on where *state* was taken: of this, of a StatefulDataLoader, or a list of such.

        With as many readers (ranks times workers) as before, the order is as it would have been. For another number,
        give the list of the states of all ranks to each rank, before its loader is iterated over: what is left is dealt
        out again, each sample to one reader, first what shuffles still held.

        Raises: StateError if it belongs to other data. The iterator raises StateError if states are missing, or if the
        pipeline goes on with the same number only: with `with_epoch`, `repeat`, `resampled`, or unknown stages.
        """
        states = samplestream.states_of_readers(state, len(self.source.urls))
        if any(reader_state["data"] != self.digest() for reader_state in states):
            raise StateError("this state is that of other shards, another seed or another shuffle: start without it")
        shuffled = any(isinstance(step, ShuffleStage) for step in self.pipeline[1:])
        if any(
            reader_state["position"] is not None and (reader_state["shuffle"] is not None) != shuffled
            for reader_state in states
        ):
            raise StateError("this state of a WebDataset is damaged: it does not fit the shuffle of the pipeline")
        self._given, self._loaded = state, states
        for reader_state in states[:1]:
            self.source.epoch.load(reader_state["epoch"])

    def digest(self) -> str:
        """Return a fingerprint of the order of the samples: shards, seeds and shuffles."""
        source = self.source
        shuffles = [
            (step.size, step.initial, step.seed) for step in self.pipeline[1:] if isinstance(step, ShuffleStage)
        ]
        text = repr(
            ([*map(str, source.urls)], source.identities, source.shuffled, source.seed, source.resampled, shuffles)
        )
        return hashlib.sha256(text.encode()).hexdigest()


def shard_names(urls: Name | Iterable[Name]) -> Name | Iterable[Name]:
    """Return *urls* as webdataset takes them: `a::b` is two, and `${DATA}` is WDS_DATA or DATA of the environment.

    Raises: ValueError if the environment does not have it.
    """
    if not isinstance(urls, str) or urls.startswith("pipe:"):
        return urls
    names = re.split(r"::(?![\w:.%]*\])", urls)  # but for those of an address of IPv6
    return [re.sub(r"\$\{(\w+)\}", _of_environment, name) for name in names]


def _of_environment(variable: re.Match[str]) -> str:
    value = os.environ.get(f"WDS_{variable[1]}", os.environ.get(variable[1]))
    if value is None:
        raise ValueError(f"{variable.string} needs WDS_{variable[1]} in the environment")
    return value


def _either(name: str, value: Any, other_name: str, other_value: Any) -> Any:
    if value is not None and other_value is not None:
        raise TypeError(f"{name} and {other_name} are one thing: give one of them")
    return other_value if value is None else value


def _split(source: SampleStream, nodesplitter: Any, workersplitter: Any) -> None:
    """Apply webdataset's splitters to *source*: without a node splitter each rank reads all samples."""
    own = shardlists.split_by_node, shardlists.single_node_only, shardlists.split_by_worker
    if nodesplitter is None:
        source.epoch.rank = 0, 1
    if not workersplitter and not source.resampled:
        raise ValueError("samples are always dealt to workers: without workersplitter, take resampled=True")
    if any(splitter and splitter not in own for splitter in (nodesplitter, workersplitter)):
        raise TypeError("samples are dealt to ranks and workers here: give each rank the shards that it reads instead")


def is_at_begin(state: State) -> bool:
    """True if the reader of *state* has read nothing of its epoch, which nobody began before it."""
    return not any(state["counts"]) and state["position"] is None and state["left"] is None


def warn_of_unequal_ranks(source: SampleStream, readers: int) -> None:
    """Warn if one rank gets half as much again of *source* as another, or more; bytes of tables and shards differ."""
    urls, ranks = source.urls, source.epoch.world_size
    if ranks == 1 or len(urls) > MAX_COMPARED_SHARDS or len({*map(is_table_name, urls)}) > 1:
        return
    plain_sizes = [*map(storage.plain_size, urls)]
    sizes = [1 if None in plain_sizes else size or 0 for size in plain_sizes]
    shares = [0.0] * ranks
    for number in range(readers):
        shares[number % ranks] += estimate_share(urls, sizes, source.dealt((0, 0), ReaderId(number, readers)))
    low, high = min(shares), max(shares)
    if high > 0 and high >= MAX_SHARE_RATIO * low:
        warnings.warn(
            f"rank {shares.index(low)} gets about {low / high:.0%} of the share of rank {shares.index(high)}, and "
            "ranks that wait for each other stop with the smallest share: unpack compressed shards, make more and "
            "smaller ones (tarsplit), give all ranks equally many by with_epoch(n), or train from the table of the "
            "shards by tartools.train.loader",
            stacklevel=2,
        )


class SizedWebDataset(WebDataset):
    """A `WebDataset` whose `with_length` was called."""

    def __len__(self) -> int:
        return int(self.size)


class StreamEpoch:
    """The iteration of one epoch of *data*, from the states *loaded* on, if they are of this epoch."""

    def __init__(self, data: WebDataset, loaded: list[State]) -> None:
        self._data = data
        source = data.source
        self._me = source.epoch.reader()
        self._epoch, may_resume = source.epoch.begin()
        if (
            not may_resume
            or any(reader_state["epoch"] != self._epoch for reader_state in loaded)
            or all(map(is_at_begin, loaded))
        ):
            loaded = []
        state = next((reader_state for reader_state in loaded if tuple(reader_state["reader"]) == self._me), None)
        counts: tuple[int, int, int] = state["counts"] if state else (0, 0, 0)
        self._repetition, self._total, self._given = counts
        self._from = state
        self._left = Remainder.of(state) if state else None
        self._reader: SliceReader | None = None
        self._shuffling: ShuffleBuffer | None = None
        self._failures = streamstages.Failures()
        self._failed = None if data._handler is None else self._failures.counted(data._handler)
        if self._me.number == self._epoch == 0 and not loaded and not source.resampled:
            warn_of_unequal_ranks(source, self._me.readers)
        if loaded and state is None:
            self._left = samplestream.deal_remainder(loaded, source, self._me)
            if data.repetitions != 1 or source.resampled:
                raise StateError(
                    "with_epoch, repeat and resampled give each reader (rank times worker) an epoch of its own: their "
                    "states go on with as many ranks and workers as before"
                )

    def iterated(self) -> Iterator[Any]:
        """Yield the items of the last stage, for the samples and repetitions of `with_epoch` and `repeat`."""
        try:
            yield from self._repetitions()
        finally:
            self._failures.report()

    def _repetitions(self) -> Iterator[Any]:
        data = self._data
        worker = get_worker_info() is not None
        max_items = data.nsamples if data.repetitions != 1 and data.nsamples > 0 else None
        while self._repetition < data.repetitions and self._total != max_items:
            for item in self._chain():
                self._total += 1
                self._given += 1
                yield with_sent_lists(item) if worker else item
                if self._total == max_items:
                    return
            if not self._given:
                number, readers = self._me
                if max_items is not None:
                    raise UsageError(
                        f"with_epoch can't give {several(data.nsamples, 'item')}, because reader {number} of {readers} "
                        "(ranks times workers) has none: take fewer workers or smaller batches, or unpack compressed "
                        "shards, which can then be shared"
                    )
                if data._empty_check and self._left is None:
                    raise ValueError(f"no samples for reader {number} of {readers} (empty_check=True)")
                break  # an empty data set is not repeated
            self._repetition, self._given = self._repetition + 1, 0
            self._reader = self._shuffling = self._left = None

    def state(self) -> dict[str, Any]:
        """Return the state that resumes with the next item."""
        state: State = {"counts": [self._repetition, self._total, self._given], "left": self._left}
        if self._from is not None:
            state |= {key: self._from[key] for key in ("position", "shuffle")}
            return self._data._reader_state(self._me, self._epoch, **state)
        holding_stages = [type(step) for step in self._data.pipeline[1:] if not streamstages.holds_nothing(step)]
        # whether no stage holds samples between two items, but for one shuffle, which knows them
        if self._reader is not None and holding_stages in (
            [],
            [ShuffleStage],
            [BatchStage],
            [ShuffleStage, BatchStage],
        ):
            shuffling = self._shuffling
            state["position"] = self._reader.position() if shuffling is None else shuffling.begin
            state["shuffle"] = None if shuffling is None else shuffling.state()
        return self._data._reader_state(self._me, self._epoch, **state)

    def _chain(self) -> Iterator[Any]:
        source, steps = self._data.source, self._data.pipeline[1:]
        state, self._from = self._from, None
        epoch = self._epoch, self._repetition
        skipping = bool(state and state["position"])
        start = Position.of(*state["position"]) if state and skipping else None
        first = next((step for step in steps if not isinstance(step, ShuffleStage)), None)
        needed = first.wanted if isinstance(first, ChooseStage) else None
        pieces = source.slices(epoch, self._me) if self._left is None else by_number(self._left.pieces)
        self._reader = SliceReader(source.urls, pieces, start, needed, self._failed)
        self._seeds = SampleSeeds(source.seed, *epoch)
        self._sample = CurrentSample(self._seeds) if any(map(streamstages.asks_for_seed, steps)) else None
        items: Iterator[Any] = self._noted(iter(self._reader))
        for number, step in enumerate(steps):
            if isinstance(step, ShuffleStage):
                begun = state["shuffle"][:3] if state and skipping else ()
                name = f"shuffle {epoch} {self._me} {number}"
                self._shuffling = ShuffleBuffer(step, name, self._reader.position, *begun)
                items = self._noted(chain(self._held(steps[:number], needed), self._shuffling.iterated(items)))
            else:
                items = self._through(step, items)
        return items if skipping else islice(items, self._given, None)

    def _through(self, step: Any, items: Iterator[Any]) -> Iterator[Any]:
        """Apply the stage *step* to *items*; errors that its handler accepts are counted."""
        if isinstance(step, ChooseStage):
            return step(items, self._failed, self._seeds)
        seeded = step if self._sample is None else streamstages.seeded_step(step, self._sample)
        results: Iterator[Any] = self._data.invoke(self._failures.of_step(seeded), items)
        return results if self._sample is None or streamstages.holds_nothing(step) else self._sample.forget(results)

    def _noted(self, samples: Iterator[Any]) -> Iterator[Any]:
        """Return *samples*, which are noted one by one if a stage asks for their seeds."""
        return samples if self._sample is None else self._sample.note(samples)

    def _held(self, steps: list[Any], needed: Set[str] | None) -> Iterator[Any]:
        """Yield the samples that shuffle buffers of other readers held, after *steps*."""
        buffers = [] if self._left is None else self._left.held
        while buffers:
            numbers, pieces = buffers[0]
            reader = SliceReader(self._data.source.urls, by_number(pieces), None, needed, self._failed)
            items = self._noted(iter(reader))
            for step in steps:
                items = self._through(step, items)
            samples = with_numbers(items, max(numbers, default=-1) + 1, numbers)
            while numbers:
                numbers.pop()
                yield samples.pop()
            del buffers[0]
