"""`WebDataset`: a pipeline of webdataset over our reader, which comes to each sample once and can be resumed."""

from __future__ import annotations

import copy
import hashlib
import operator
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

from webdataset import autodecode, filters, shardlists
from webdataset.compat import FluidInterface
from webdataset.pipeline import DataPipeline

from tartools.errors import UsageError
from tartools.samples.lastdot import is_last_dot
from tartools.storage.url import Name
from tartools.train import frameworks, streamstages
from tartools.train.clips import split_clips
from tartools.train.collation import with_explanation
from tartools.train.cursor import Cursor, cursors_of
from tartools.train.fieldchooser import Decode, FieldChooser, Fields, Size
from tartools.train.payloaddecoding import PICKLE_SUFFIXES, decode_basic, decompress_field, make_decoders
from tartools.train.ranks import ReaderRank, SharedEpoch, SingleResume
from tartools.train.samplestream import SampleStream
from tartools.train.sending import CacheSetting, check_sent
from tartools.train.states import State, StateError
from tartools.train.streamepoch import StreamEpoch
from tartools.train.streamstages import BatchStage, ChooseStage, ShuffleStage
from tartools.train.workererrors import guard_worker

DEFAULT_SHUFFLE_SIZE = 1000  # samples that shuffle=True holds
# arguments of webdataset: chance always follows from the seed
IGNORED_ARGUMENTS = {"detshuffle", "url_to_name", "verbose"}


class WebDataset(DataPipeline, FluidInterface):  # type: ignore[misc]
    """Samples of shards or tables in order: an iterable dataset for torch with the methods of webdataset.

        data = tartools.train.WebDataset("train-{000..147}.tar", shuffle=1000)
        data = data.decode("pil").to_tuple("jpg;png", "cls").map_tuple(augment, None).batched(64)

    Every sample comes once an epoch, for any number of ranks and workers. Each iteration is the next epoch, unless
    `set_epoch` was called. `state_dict` and `load_state_dict` resume after the last sample.

    *urls*: names and patterns. *resampled*: draw shards at random, without an end. *fields*, *decode*, *transform*,
    *resize*, *exif*: choose, decode and transform fields, as by `FieldChooser`; *extensions*, *decoder*, *transforms*
    are webdataset's names of these. *handler*: called with an error of a sample or shard; it returns True to go on
    without it, or False to end the iteration; by default errors are raised, and local shards are checked at once.
    Other arguments are webdataset's. All of them, and what a state says: docs/training/webdataset.md.

    Order: of the shards and their samples; with *shuffle* (True: 1,000 samples) shuffled by *seed* and epoch.
    Holds: one read buffer of 1 MiB, and the samples of the shuffle buffer.
    Raises: TypeError and ValueError for arguments that don't fit; UsageError for a name that is no input; StorageError
    for a pattern without a match, and, unless *handler* is given, for a local shard that can't be read. In the
    iteration: StorageError and TarFormatError, with URL and byte, after the samples before the damage; SampleError,
    with shard, sample and field, for a payload that can't be decoded; StateError for a state that other readers than
    before can't share; if a reader has no items, UsageError after `with_epoch`, and ValueError with *empty_check*.
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
        exif: bool = False,
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
        dots: Literal["first", "last"] = "first",
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
        shuffled, fails = bool(shuffle or shardshuffle), self._handler is None
        source = SampleStream(shard_names(urls), shuffled, seed, resampled, fails, is_last_dot(dots))
        _split(source, nodesplitter, workersplitter)
        super().__init__(source)
        if lax or select_files is not None or rename_files is not None:
            self.append(streamstages.FilesStage(select_files, rename_files, lax))
        if (size := DEFAULT_SHUFFLE_SIZE if shuffle is True else int(shuffle)) > 1:
            self.append(ShuffleStage(size, seed))
        fields = _choose_argument("fields", fields, "extensions", extensions)
        decode = _choose_argument("decode", decode, "decoder", decoder)
        transform = _choose_argument("transform", transform, "transforms", transforms)
        chooser = FieldChooser(fields, decode, transform, resize, exif=exif)
        if chooser.fields is not None or chooser.decoder is not None or chooser.transform is not None:
            self.append(ChooseStage(chooser))
        self._under_way: StreamEpoch | None = None
        self._loaded_state: Any = {}  # for the next iteration, and the cursors of readers in it
        self._cursors: list[Cursor] = []
        if repeat:
            self.repetitions = sys.maxsize

    @property
    def source(self) -> SampleStream:
        """The first stage of the pipeline, which reads the shards."""
        return self.pipeline[0]  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        for step in self.pipeline:
            if isinstance(step, filters.FilterFunction):
                check_sent(f"what {step.f.__name__.strip('_')} calls", [*step.args, *step.kw.values()])
        return self.__dict__ | {"_under_way": None}

    def __iter__(self) -> Iterator[Any]:
        guard_worker()
        self._under_way = StreamEpoch(self, self._cursors, self._handler, self._empty_check)
        self._loaded_state, self._cursors = {}, []
        return self._under_way.iterate()

    def __enter__(self) -> WebDataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def compose(self, *stages: Any) -> WebDataset:
        """Return a copy of this dataset with *stages* after its own: functions of an iterator that return an iterator.

        It counts its epochs itself, from the current number on; a state that was loaded here is not for it.
        """
        result: WebDataset = super().compose(*stages)
        result.pipeline[0] = copy.copy(self.source)
        result.pipeline[0].epoch, result.pipeline[0].resume = SharedEpoch(self.source.epoch.number), SingleResume()
        result._under_way, result._loaded_state, result._cursors = None, {}, []
        return result

    def set_epoch(self, epoch: int) -> None:
        """Make *epoch* the number of the next epoch, counted from 0, also for workers that are there already."""
        self.source.set_epoch(epoch)

    def with_length(self, n: int, silent: bool = True) -> WebDataset:
        """Have `len` return *n*, and return this dataset; the number of samples stays as it is.

        *silent*: ignored at the first call; at later ones, and for subclasses, False warns that only `len` changes.
        """
        if type(self) is not WebDataset:
            return super().with_length(n, silent=silent)  # type: ignore[no-any-return]
        self.size = n
        self.__class__ = SizedWebDataset
        return self

    # ---- stages ----

    def shuffle(
        self, size: int, *, initial: int = streamstages.DEFAULT_SHUFFLE_START, seed: int | None = None
    ) -> WebDataset:
        """Return a copy with a shuffle buffer of *size* samples; it yields the first one when it holds *initial*.

        An *initial* above *size* counts as *size*; one sample more may be held. *seed*: of its draws; None for that of
        this dataset. A *size* below 1 adds nothing, and returns this dataset.
        """
        if size < 1:
            return self
        return self.compose(ShuffleStage(size, self.source.seed if seed is None else operator.index(seed), initial))

    def batched(
        self, batchsize: int, collation_fn: Any = filters.default_collation_fn, partial: bool = True
    ) -> WebDataset:
        """Return a copy that makes batches of *batchsize* samples by *collation_fn*, a function of a list; None: lists.

        *partial*: True if the last one may be smaller; False: a smaller one is left out. Raises: ValueError for a
        *batchsize* below 1.
        """
        names = streamstages.tuple_names(self.pipeline[1:])
        collate = None if collation_fn is None else with_explanation(collation_fn, names, "collation_fn")
        return self.compose(BatchStage(batchsize, collate, partial))

    def listed(self, batchsize: int, partial: bool = True) -> WebDataset:
        """Return a copy that makes lists of *batchsize* samples, as `batched` does without a collation function.

        *partial*: True if the last one may be shorter; False: a shorter one is left out. Raises: ValueError for a
        *batchsize* below 1.
        """
        return self.compose(BatchStage(batchsize, None, partial))

    def decode(
        self,
        *args: Any,
        resize: Size = None,
        exif: bool = False,
        pre: Any = None,
        post: Any = None,
        only: Any = None,
        partial: bool = False,
        handler: Any = filters.reraise_exception,
    ) -> WebDataset:
        """Return a copy that decodes fields as webdataset does, but refuses to unpickle, unless one of *args* does it.

        *args*: decoders: names such as "pil", and functions of a field and its bytes; or one dict: field -> name,
        function of bytes, `Sound` or `Video`. *resize*: size of pictures: pixels of the shorter side, (height, width),
        a `Resize`, or a dict of these by field. *exif*: True turns pictures as their EXIF data say. *pre*, *post*:
        lists of decoders that are tried before and after *args* (by default *pre* decompresses fields such as txt.zst,
        and *post* is for text, numbers, JSON and arrays). *only*: fields to decode, a list or a text with blanks
        between them; None: all. *partial*: True leaves values that are no bytes as they are; False: they are an error.
        *handler*: called with an error, which names shard, sample and field; it returns True to leave out the sample,
        False to end the iteration, or raises the error, the default.
        Raises: TypeError and ValueError for other decoders or sizes.
        """
        pre = [decompress_field] if pre is None else pre
        clips, others = split_clips(args[0] if len(args) == 1 and isinstance(args[0], Mapping) else args)
        decoder = autodecode.Decoder(
            make_decoders(others, resize, exif), pre, [decode_basic] if post is None else post, only, partial
        )
        is_random = any(clip.is_random for clip in clips.values())
        stage = streamstages.SeededDecodeStage if is_random else streamstages.DecodeStage
        return self.map(stage(decoder, clips), handler=handler)  # type: ignore[no-any-return]

    def xdecode(self, *args: Any, **kw: Any) -> WebDataset:
        """Return a copy that decodes fields by patterns as webdataset does, but refuses to unpickle by default.

        *args*: pairs (pattern of fields, such as "*.png"; function of an open file with the payload), of which the last
        one that matches decodes a field. *kw*: such functions by suffix, webdataset's defaults, and must_decode
        (True: a field without a decoder is a ValueError).
        """
        kw.setdefault(
            "defaults",
            [
                (pattern, streamstages.refuse_pickle if pattern.rpartition(".")[2] in PICKLE_SUFFIXES else function)
                for pattern, function in filters.default_decoders
            ],
        )
        return self.compose(filters.xdecode(*args, **kw))

    # ---- resuming ----

    @property
    def is_resumed(self) -> bool:
        """True if the latest iterator of this rank or worker began where a loaded state says."""
        return self._under_way is not None and self._under_way.is_resumed

    def state_dict(self, num_samples: int | None = None, from_beginning: bool = True) -> Any:
        """Return the state of the latest iterator of this rank or worker, for `load_state_dict`.

        Without an iterator it is the state that was loaded, else the begin of the epoch. Composer gives *num_samples*,
        the samples of the epoch so far on all ranks, and saves the answer on rank 0: then it is the list of the states
        of all ranks, at 0 samples, between two epochs, states of the next one, and all ranks must call this.
        *from_beginning* has no effect.
        Raises: UsageError if the workers of a loader iterate: take its state, that of a StatefulDataLoader;
        StorageError, as `digest`.
        """
        if num_samples is None:
            return self._own_state()
        if self.source.resume.in_workers:
            raise UsageError(
                "Composer resumes a WebDataset without workers only: give the DataLoader num_workers=0, or use "
                "tartools.train.loader, which Composer resumes with workers, too"
            )
        state = self._own_state()
        if num_samples == 0 and self._under_way is not None:
            state = self._begin_state(self.source.epoch.number + 1)
        return frameworks.gather_from_ranks(state)

    def _own_state(self) -> Any:
        """Return the state of this reader: of its latest iterator, else the loaded one, else of an epoch's begin.

        Raises: UsageError if workers of a loader have begun to iterate: they have the states.
        """
        if self._under_way is not None:
            return self._under_way.cursor().as_state()
        if self.source.resume.in_workers:
            raise UsageError("the workers of a loader know where they are: take the state of a StatefulDataLoader")
        return self._loaded_state or self._begin_state(self.source.epoch.number)

    def _begin_state(self, epoch: int) -> State:
        """Return the state of this reader at the begin of *epoch*. Raises: StorageError, as `digest`."""
        return Cursor(self.digest(), self.source.rank.reader(), epoch).as_state()

    def load_state_dict(self, state: Any) -> None:
        """Have the next iterator resume from *state*: of this class, of a StatefulDataLoader, or a list of such.

        With as many readers (ranks times workers) as before, the order is as it would have been. For another number,
        give the list of the states of all ranks to each rank, before its loader is iterated over: what is left is dealt
        out again, each sample to one reader, first what shuffles still held. Sets the epoch, too. {}, or an empty list,
        only drops a state that was loaded before.

        Raises: StateError if it is malformed, or belongs to other data, another seed or shuffle, or if states are of
        several epochs; StorageError if a local table can't be read for its fingerprint. The iterator raises
        StateError if states are missing, or if the pipeline goes on with the same number only: with `with_epoch`,
        `repeat`, `resampled`, or unknown stages.
        """
        cursors = cursors_of(state, len(self.source.urls))
        if any(cursor.data != self.digest() for cursor in cursors):
            raise StateError("this state is that of other shards, another seed or another shuffle: start without it")
        shuffled = any(isinstance(step, ShuffleStage) for step in self.pipeline[1:])
        if any(cursor.position is not None and (cursor.shuffle is not None) != shuffled for cursor in cursors):
            raise StateError("this state of a WebDataset is damaged: it does not fit the shuffle of the pipeline")
        self._loaded_state, self._cursors = state, cursors
        for cursor in cursors[:1]:
            self.source.epoch.number = cursor.epoch
            self.source.resume.load()

    def digest(self) -> str:
        """Return a fingerprint of the order of the samples: 64 hex digits, by shards, seeds and shuffles.

        Other stages do not count. Raises: StorageError if a local table can't be read.
        """
        source = self.source
        shuffles = [
            (step.size, step.initial, step.seed) for step in self.pipeline[1:] if isinstance(step, ShuffleStage)
        ]
        order = [*map(str, source.urls)], source.identities, source.shuffled, source.seed, source.resampled, shuffles
        text = repr((*order, "last dot") if source.last_dot else order)  # states of before this argument stay valid
        return hashlib.sha256(text.encode()).hexdigest()


def shard_names(urls: Name | Iterable[Name]) -> Name | Iterable[Name]:
    """Return the names in *urls* as a list: in a text, `::` separates names, and variables are replaced.

    `${DATA}` becomes WDS_DATA of the environment, else DATA. Several names, paths that are no text, and a command
    ("pipe:...") are returned unchanged. Raises: ValueError if the environment has neither variable.
    """
    if not isinstance(urls, str) or urls.startswith("pipe:"):
        return urls
    names = re.split(r"::(?![\w:.%]*\])", urls)  # but for those of an address of IPv6
    return [re.sub(r"\$\{(\w+)\}", _environment_value, name) for name in names]


def _environment_value(variable: re.Match[str]) -> str:
    """Return the value of `${NAME}`, the match *variable*: WDS_NAME of the environment, else NAME.

    Raises: ValueError if the environment has neither.
    """
    value = os.environ.get(f"WDS_{variable[1]}", os.environ.get(variable[1]))
    if value is None:
        raise ValueError(f"{variable.string} needs WDS_{variable[1]} in the environment")
    return value


def _choose_argument(name: str, value: Any, other_name: str, other_value: Any) -> Any:
    """Return the one of *value* and *other_value*, two names of one argument, that is not None; None if both are.

    Raises: TypeError, which has both names, if both were given.
    """
    if value is not None and other_value is not None:
        raise TypeError(f"{name} and {other_name} are one thing: give one of them")
    return other_value if value is None else value


def _split(source: SampleStream, nodesplitter: Any, workersplitter: Any) -> None:
    """Check webdataset's arguments *nodesplitter* and *workersplitter*: *source* itself deals samples to readers.

    If *nodesplitter* is None each rank reads all samples: the rank of *source* becomes 0 of 1. Raises: ValueError
    without *workersplitter*, unless shards are resampled; TypeError for a splitter other than webdataset's
    split_by_node, single_node_only and split_by_worker.
    """
    own = shardlists.split_by_node, shardlists.single_node_only, shardlists.split_by_worker
    if nodesplitter is None:
        source.rank = ReaderRank((0, 1))
    if not workersplitter and not source.resampled:
        raise ValueError("samples are always dealt to workers: without workersplitter, take resampled=True")
    if any(splitter and splitter not in own for splitter in (nodesplitter, workersplitter)):
        raise TypeError("samples are dealt to ranks and workers here: give each rank the shards that it reads instead")


class SizedWebDataset(WebDataset):
    """A `WebDataset` whose `with_length(n)` was called: its `len` is n."""

    def __len__(self) -> int:
        return int(self.size)
