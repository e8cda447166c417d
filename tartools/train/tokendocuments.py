"""Documents as token ids, made in workers, from a stream or from a loader: the sources of `token_blocks`.

A source yields documents, and tells the place of the last one, from which it is read again after resuming.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tartools.errors import SampleError, TarToolsError
from tartools.samples.sample import DICT_KEY, DICT_URL
from tartools.train.collation import FieldCollation
from tartools.train.fieldchooser import RESERVED_PREFIX
from tartools.train.loading import Loader, keep_batch
from tartools.train.ranks import ReaderId
from tartools.train.states import State, StateError
from tartools.train.webdataset import WebDataset

BLOCKS_STATE_OWNER = "token_blocks, or of a StatefulDataLoader over them"  # in messages about states
DOCUMENTS_BETWEEN_STATES = 64  # of a stream, which are read again at most when it is resumed

Ids = np.ndarray[Any, np.dtype[np.int64]]
Tokenizer = Callable[[str], Any] | Any  # a function, or an object with `encode`


class DocumentPlace(NamedTuple):
    """The place of a document in its source.

    `source`: state of the source, at this document or before it
    `documents`: number of documents from the position of that state to this one, which is not counted
    """

    source: Any
    documents: int


class TextEncoder:
    """Makes tokens of samples, in workers: call it with a sample; it returns the token ids, an array of int64.

    *tokenizer*: a function of a text that returns token ids, or an object with such a method `encode`. *text*: the
    field of dicts, or a function of the sample; None: the sample is a text, a tuple or list that begins with it, or a
    dict with one field, not counting names that begin with two underscores. Bytes are decoded as UTF-8. *eos*: id after
    each document; None: none. Raises: TypeError for another *tokenizer*, *text* or *eos*.
    """

    def __init__(self, tokenizer: Tokenizer, text: str | Callable[[Any], Any] | None, eos: int | None) -> None:
        encode = getattr(tokenizer, "encode", tokenizer)
        if not callable(encode):
            raise TypeError(f"tokenizer is a function of a text, or has a method encode, not {tokenizer!r}")
        if text is not None and not isinstance(text, str) and not callable(text):
            raise TypeError(f"text is the name of a field, or a function of a sample, not {text!r}")
        self._tokenizer, self._text = tokenizer, text
        self._eos = None if eos is None else operator.index(eos)

    def __call__(self, sample: Any) -> Ids:
        """Return the token ids of *sample*, `eos` included: an array of int64.

        Raises: SampleError if it has no text, or the ids are no whole numbers; the errors of the tokenizer.
        """
        encode = getattr(self._tokenizer, "encode", self._tokenizer)
        result = encode(self._text_of(sample))
        ids = np.asarray(getattr(result, "ids", result))  # of an Encoding of Hugging Face's tokenizers
        if ids.ndim != 1 or (ids.dtype.kind not in "iu" and len(ids)):
            raise _error(sample, f"the tokenizer returned {type(result).__name__}, not a list of token ids")
        return ids.astype(np.int64) if self._eos is None else np.append(ids, self._eos).astype(np.int64)

    def _text_of(self, sample: Any) -> str:
        """Return the text of *sample*; bytes are decoded as UTF-8.

        Raises: SampleError if there is none, if a dict has several fields and none was named, or for bytes that are not
        UTF-8; the errors of the user's function.
        """
        if isinstance(self._text, str):
            if not isinstance(sample, Mapping) or self._text not in sample:
                raise _error(sample, f"there is no field {self._text!r} in it: text= names a field of dicts")
            value = sample[self._text]
        elif self._text is not None:
            value = self._text(sample)
        elif isinstance(sample, Mapping):
            fields = [name for name in sample if not str(name).startswith(RESERVED_PREFIX)]
            if len(fields) != 1:
                raise _error(sample, f"which field is the text? Write text={(fields or ['txt'])[0]!r}")
            value = sample[fields[0]]
        else:
            value = sample[0] if isinstance(sample, (list, tuple)) and sample else sample
        if isinstance(value, (bytes, memoryview)):
            try:
                return bytes(value).decode()
            except UnicodeDecodeError as error:
                raise _error(sample, f"its text is not UTF-8: {error}") from error
        if not isinstance(value, str):
            raise _error(sample, f"its text is a {type(value).__name__}; text= is a field or a function that gives one")
        return value


class EncodingCollation:
    """A collate_fn that returns a list with the token ids of each sample, an array of int64, by *encoder*.

    A TarToolsError in place of the samples, by which a worker sends its error to the process that trains, is returned
    as it is.
    """

    def __init__(self, encoder: TextEncoder) -> None:
        self._encoder = encoder

    def __call__(self, samples: Any) -> Any:
        """Return a list of the token ids, int64 arrays, of each of *samples*; *samples* itself if it is an error.

        Raises: SampleError and the errors of the tokenizer, as `TextEncoder`.
        """
        return samples if isinstance(samples, TarToolsError) else [self._encoder(sample) for sample in samples]


def _error(sample: Any, problem: str) -> SampleError:
    """Return a SampleError about *problem*, with key and URL if *sample* is a dict that has them."""
    has_key = isinstance(sample, Mapping) and DICT_KEY in sample
    place = f"sample {sample[DICT_KEY]!r}: " if has_key else ""
    return SampleError(f"{place}{problem}", url=str(sample.get(DICT_URL) or "") if has_key else "")


# ---- sources of documents ----


class StreamDocuments:
    """The documents of *data*, a WebDataset, as a source of token blocks: `begin` returns their ids, made by *encoder*.

    In the iteration over these, `place` tells the place of the last document; `load` resumes from such places.
    """

    def __init__(self, data: WebDataset, encoder: TextEncoder) -> None:
        self.data, self._encoder = data, encoder
        self._state: Any = None  # of the stream, some documents ago
        self._documents = 0  # since then

    @property
    def reader(self) -> ReaderId:
        """The reader that this process is: its number among the workers of all ranks, and how many these are."""
        return self.data.source.rank.reader()

    @property
    def epoch(self) -> int:
        """The number of the epoch that was begun last, or was set since."""
        return self.data.source.epoch.number

    def set_epoch(self, epoch: int) -> None:
        """Make *epoch* the number of the next epoch."""
        self.data.set_epoch(epoch)

    def begin(self, skips: Mapping[ReaderId, DocumentPlace]) -> tuple[Iterator[Ids], bool]:
        """Begin the next epoch; return (iterator over its documents, True if it is resumed).

        A document is an array of token ids. *skips*: by reader, the place of the first document if the epoch is
        resumed: its number of documents is skipped. Raises: StateError if it is resumed, and this reader is not in
        *skips*.
        """
        samples = iter(self.data)
        self._state, self._documents = self.data.state_dict(), 0
        is_resumed = self.data.is_resumed
        skip = skips.get(self.reader) if is_resumed else None
        if is_resumed and skip is None:
            raise StateError(
                f"there is no state of reader {self.reader.number} of {self.reader.readers} (ranks times workers): "
                "tokens go on with as many as before; give load_state_dict the states of all, as a list"
            )
        return self._ids(samples, 0 if skip is None else skip.documents), is_resumed

    def _ids(self, samples: Iterator[Any], skip: int) -> Iterator[Ids]:
        """Yield the token ids of *samples*, without the first *skip*; keep `_state` and `_documents` for `place`.

        Raises: StateError if *skip* is above 0, and there is no sample behind these; the errors of the encoder.
        """
        for sample in samples:
            if self._documents >= skip:
                skip = 0
                yield self._encoder(sample)
            self._documents += 1
            if self._documents >= DOCUMENTS_BETWEEN_STATES and not skip:
                self._state, self._documents = self.data.state_dict(), 0
        if skip:
            raise StateError("this state names documents that the shards do not have: they have changed since")

    def place(self) -> DocumentPlace:
        """Return the place of the document that was yielded last, from which it is read again.

        Before the first one is yielded: the place where the epoch, or the rest of it, begins.
        """
        return DocumentPlace(self._state, self._documents)

    def begin_state(self) -> Any:
        """Return the state of the stream now, for a caller that is between two epochs, or before the first document.

        Raises: UsageError if the workers of a loader iterate over it.
        """
        return self.data.state_dict()

    def check_state(self, entry: State) -> None:
        """Raise StateError if *entry*, a state of blocks, has a state of the stream of another reader."""
        if entry["source"].get("reader") != entry["reader"]:
            raise StateError(f"this state of {BLOCKS_STATE_OWNER} is damaged: its parts are of different readers")

    def load(self, entries: Sequence[State]) -> None:
        """Have the next epoch resume from *entries*, states of blocks of all readers.

        Raises: StateError if they are malformed, of other data, another order, or several epochs. `begin` raises it if
        the state of this reader is missing.
        """
        self.data.load_state_dict([entry["source"] for entry in entries])


class LoaderDocuments:
    """The documents of *loader* as a source of token blocks: `begin` returns their ids, made by *encoder* in workers.

    In the iteration over these, `place` tells the place of the last document; `load` resumes from such places.
    Raises: ValueError if *loader* has a `collate_fn` of its own.
    """

    def __init__(self, loader: Loader, encoder: TextEncoder) -> None:
        if loader.collate_fn is not keep_batch and not isinstance(loader.collate_fn, FieldCollation):
            raise ValueError("token_blocks makes batches itself: give it text= in place of collate_fn of the loader")
        self._loader = loader.with_collation(EncodingCollation(encoder))
        self._place: tuple[Any, int, int] = (None, 0, 0)  # iteration of the sampler, batch, document in it

    @property
    def reader(self) -> ReaderId:
        """The rank of this process, and the number of ranks; workers of the loader do not count."""
        return ReaderId(*self._loader.rank_and_size())

    @property
    def epoch(self) -> int:
        """The number of the current epoch; once an iteration has yielded all of it, the number of the next one."""
        return self._loader.epoch

    def set_epoch(self, epoch: int) -> None:
        """Make *epoch* the epoch of the next iteration."""
        self._loader.set_epoch(epoch)

    def begin(self, skips: Mapping[ReaderId, DocumentPlace]) -> tuple[Iterator[Ids], bool]:
        """Begin the next epoch; return (iterator over its documents, True if it is resumed).

        A document is an array of token ids. *skips*: by rank, the place of the first document; the epoch is resumed if
        this rank is among them: the number of documents in its place is skipped.
        """
        skip = skips.get(self.reader)
        return self._ids(iter(self._loader), 0 if skip is None else skip.documents), skip is not None

    def _ids(self, batches: Iterator[list[Ids]], skip: int) -> Iterator[Ids]:
        """Yield the token ids of the documents in *batches*, without the first *skip*; set `_place` before each.

        Raises: StateError if there are fewer than *skip*.
        """
        for number, batch in enumerate(batches):
            running = self._loader.running
            for document, ids in enumerate(batch):
                if skip:
                    skip -= 1
                    continue
                self._place = running, number, document
                yield ids
        if skip:
            raise StateError("this state names documents that the data do not have: they have changed since")

    def place(self) -> DocumentPlace:
        """Return the place of the document that was yielded last, from which it is read again.

        To be called only after one was yielded.
        """
        running, batch, document = self._place
        return DocumentPlace(running.state_dict(batch), document)

    def begin_state(self) -> Any:
        """Return the state of the loader now, for a caller that is between two epochs, or before the first document.

        Raises: ValueError for a loader with workers and `in_order=False`.
        """
        return self._loader.state_dict()

    def check_state(self, entry: State) -> None:
        """Raise StateError if *entry*, a state of blocks, was made with batches of another size on several ranks."""
        if entry["reader"][1] > 1 and entry["batch"] != self.batch_size:
            raise StateError(
                f"this state is of a loader with batches of {entry['batch']} samples, and here they have "
                f"{self.batch_size}: on several ranks tokens go on with the same"
            )

    @property
    def batch_size(self) -> int:
        """Samples in a batch of the loader but the last; with `bucket=` or `max_cost=` of `loader` at most."""
        return self._loader.samples_in_batch

    def load(self, entries: Sequence[State]) -> None:
        """Have the next epoch resume from the state of this rank in *entries*, states of blocks, which must have one.

        Raises: StateError if it is of other data or another order.
        """
        number = self.reader.number
        self._loader.load_state_dict(next(entry["source"] for entry in entries if entry["reader"][0] == number))


# ---- blocks ----
