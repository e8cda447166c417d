"""`WebDataset`: a pipeline of webdataset over our reader, which comes to each sample once and can be resumed."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

from webdataset import autodecode, filters
from webdataset.compat import FluidInterface
from webdataset.pipeline import DataPipeline

from tartools.errors import UsageError
from tartools.storage.url import Name
from tartools.train import left
from tartools.train.fields import UNPICKLED, Chooser, Decode, Fields, plain
from tartools.train.left import Loaded
from tartools.train.pictures import decoders
from tartools.train.runs import Run
from tartools.train.sending import check_sent
from tartools.train.steps import FIRST, Batch, Choose, DecodeFields, Shuffle, refused
from tartools.train.stream import Samples


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
    one, for the same URLs and seed: local shards of other sizes, and another local table, are refused, and shards on
    servers are told by their URLs. What was read is not read again, but for a block of the shuffle; after a stage that
    is not of webdataset, or that makes several samples of one, all is. With other numbers of workers and ranks, the
    states of all ranks say what is left, which is dealt out again: see `load_state_dict`.

    From workers, lists of payloads (`batched`, `listed`) come in one buffer of shared memory, and are plain lists here.

    Holds: one read buffer of 1 MiB, and a block of the shuffle. Raises: what `samples` raises; SampleError, with shard,
    sample and field, for what can't be decoded; UsageError for a state that does not fit.
    """

    def __init__(
        self,
        urls: Name | Iterable[Name],
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
        self._run: Run | None = None
        self._loaded: Loaded | None = None

    @property
    def source(self) -> Samples:
        """The first stage."""
        return self.pipeline[0]  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        for step in self.pipeline:
            if isinstance(step, filters.FilterFunction):
                check_sent(f"what {step.f.__name__.strip('_')} calls", [*step.args, *step.kw.values()])
        return self.__dict__ | {"_run": None}

    def __iter__(self) -> Iterator[Any]:
        self._run = Run(self, self._loaded)
        if self._loaded is not None and self._loaded.worker:
            self._loaded = None
        return self._run.iterated()

    def __enter__(self) -> WebDataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def compose(self, *stages: Any) -> WebDataset:
        """Return a copy with *stages* after the others; it counts epochs of its own."""
        result: WebDataset = super().compose(*stages)
        result.pipeline[0] = copy.copy(self.source)
        result.pipeline[0].epochs = copy.deepcopy(self.source.epochs)
        result._run = result._loaded = None
        return result

    def set_epoch(self, epoch: int) -> None:
        """Make *epoch* the number of the next epoch, counted from 0."""
        self.source.set_epoch(epoch)

    def with_length(self, n: int, silent: bool = True) -> WebDataset:
        """Have `len` return *n*; the number of samples stays as it is."""
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
        """Decode fields as webdataset does, but refuse to unpickle, unless one of *args* does it.

        Pictures are those of `fields.Chooser`.
        """
        decoder = autodecode.Decoder(decoders(args), pre, [plain] if post is None else post, only, partial)
        return self.map(DecodeFields(decoder), handler=handler)  # type: ignore[no-any-return]

    def xdecode(self, *args: Any, **kw: Any) -> WebDataset:
        """Decode fields by patterns as webdataset does, but refuse those that would be unpickled by default."""
        kw.setdefault(
            "defaults",
            [
                (pattern, refused if pattern.rpartition(".")[2] in UNPICKLED else function)
                for pattern, function in filters.default_decoders
            ],
        )
        return self.compose(filters.xdecode(*args, **kw))

    # ---- resuming ----

    def state_dict(self) -> Any:
        """Return where the latest iterator of this is, for `load_state_dict`: what this rank or worker has had.

        Raises: UsageError if the workers of a loader iterate: take its state, that of a StatefulDataLoader.
        """
        if self._run is not None:
            return self._run.state()
        if self.source.epochs.in_workers:
            raise UsageError("the workers of a loader know where they are: take the state of a StatefulDataLoader")
        return {} if self._loaded is None else self._loaded.given

    def load_state_dict(self, state: Any) -> None:
        """Let the next iterator go on where *state* was taken: of this, of a StatefulDataLoader, or a list of such.

        With as many readers (ranks times workers) as before, the order is as it would have been. For another number,
        give the list of the states of all ranks to each rank, before its loader is iterated over: what is left is dealt
        out again, each sample to one reader, first what blocks of shuffles still held.

        Raises: UsageError if it is that of other data. The iterator raises UsageError if states are missing, or if the
        pipeline goes on with the same number only: with `with_epoch`, `repeat`, `resampled`, or unknown stages.
        """
        self._loaded = left.loaded(state)
        if self._loaded is None:
            return
        if any(one["data"] != self.digest() for one in self._loaded.states):
            raise UsageError("this state is that of other shards, another seed or another shuffle: start without it")
        if not self._loaded.worker:
            self.set_epoch(self._loaded.states[0]["epoch"])

    def digest(self) -> str:
        """Return what tells the order of these samples from those of other shards and seeds."""
        source = self.source
        shuffles = [(step.size, step.initial, step.seed) for step in self.pipeline[1:] if isinstance(step, Shuffle)]
        text = repr(([*map(str, source.urls)], source.known, source.shuffled, source.seed, source.resampled, shuffles))
        return hashlib.sha256(text.encode()).hexdigest()


class SizedWebDataset(WebDataset):
    """A `WebDataset` whose `with_length` was called."""

    def __len__(self) -> int:
        return int(self.size)
