"""`token_blocks`: documents to blocks of tokens of one length, for language models; a state resumes at any token.

Documents are packed one after the other, and cut where a block is full:

    documents   |----- a -----|-- b --|----------- c -----------|- d -|
    blocks      |========|========|========|========|========|==          (the last one: dropped, or padded)
                                  ^ a state between two blocks: document c, and how many of its tokens came

The generator waits at a block, so no document behind c was asked for. A state is the place of c in the source, and the
number of its tokens. On resuming, c is read and tokenized again. The place of c is not that of the source, which is
behind c. A loader can tell the place of each batch, so it is the batch, and the number of c in it. A stream only knows
its place now, and telling it costs some time: so it is asked every 64 documents, and c is counted from there.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import IterableDataset

from tartools.errors import several
from tartools.train.cursor import states_in
from tartools.train.loading import Loader
from tartools.train.ranks import ReaderId
from tartools.train.sampler import log
from tartools.train.states import State, StateError, check_state, is_count, is_reader, make_state
from tartools.train.tokendocuments import (
    BLOCKS_STATE_OWNER,
    DocumentPlace,
    Ids,
    LoaderDocuments,
    StreamDocuments,
    TextEncoder,
    Tokenizer,
)
from tartools.train.webdataset import WebDataset
from tartools.train.workererrors import guard_worker

MAX_BLOCK_TOKENS = 1 << 30  # cu_seqlens are 32-bit numbers


class TokenBlock(NamedTuple):
    """A block, or batch of blocks, with the boundaries of its documents.

    `tokens`: int64, [length] or [batch, length]
    `cu_seqlens`: int32, indexes of the flattened tokens at which documents begin, and at the end the number of tokens:
        [0, ..., tokens.numel()]. Each block begins a document, also where it continues one of the block before;
        padding is a document of its own
    """

    tokens: torch.Tensor
    cu_seqlens: torch.Tensor


class TokenBlocks(IterableDataset[Any]):
    """Blocks of tokens, made by `token_blocks`: iterate over it once for each epoch.

    An item is a block, an int64 tensor [*length*]; with *batch_size* a batch, [*batch_size*, *length*], of which the
    last one may have fewer blocks; with *cu_seqlens* a `TokenBlock` of either. With `StreamDocuments` it may be the
    dataset of a DataLoader; with `LoaderDocuments` it reads from a loader, and is iterated over in the training
    process.

    *documents*: the documents as token ids; *length*, *pad*, *cu_seqlens*, *batch_size*: arguments of `token_blocks`.
    Raises: ValueError for a *length* that is no whole number from 1 to 2**30, and a *batch_size* that is none above 0;
    TypeError for a *pad* that is no whole number.
    """

    def __init__(
        self,
        documents: StreamDocuments | LoaderDocuments,
        length: int,
        pad: int | None,
        cu_seqlens: bool,
        batch_size: int | None,
    ) -> None:
        if isinstance(length, bool) or not isinstance(length, int) or not 0 < length <= MAX_BLOCK_TOKENS:
            raise ValueError(f"length is the number of tokens in a block, not {length!r}")
        if batch_size is not None and (not is_count(batch_size) or batch_size < 1):
            raise ValueError(f"batch_size is how many blocks a batch has, not {batch_size!r}")
        self._documents, self._length = documents, length
        self._pad = None if pad is None else operator.index(pad)
        self._has_bounds, self._batch_size = cu_seqlens, batch_size
        self._place: tuple[DocumentPlace, int, int] | None = None  # after the last block: document, tokens of it, size
        self._loaded_state: Any = None
        self._skips: dict[ReaderId, tuple[DocumentPlace, int, int]] = {}  # as in `_place`

    @property
    def epoch(self) -> int:
        """The number of the current epoch, or of one that was set; of a loader, once all was yielded, the next one."""
        return self._documents.epoch

    def set_epoch(self, epoch: int) -> None:
        """Make *epoch* the epoch of the next iteration; a loaded state of another epoch is dropped."""
        if self._loaded_state is not None and epoch != self.epoch:
            self._loaded_state, self._skips = None, {}
        self._documents.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        guard_worker()
        places = {reader: place for reader, (place, _, _) in self._skips.items()}
        documents, is_resumed = self._documents.begin(places)
        _, skip, size = self._skips.get(self._documents.reader, (None, 0, 0)) if is_resumed else (None, 0, 0)
        if not is_resumed:
            self._loaded_state = None
        self._skips, self._place = {}, None
        return self._batches(self._blocks(documents, skip, size))

    def _blocks(self, documents: Iterator[Ids], skip: int, size: int) -> Iterator[tuple[Ids, list[int], bool]]:
        """Yield (block, indexes at which documents begin in it, True if it is the last one and padded) of *documents*.

        The indexes begin with 0; the last one of a padded block is that of the padding. Tokens that fill no block are
        dropped, and logged, unless `pad` is set.
        Sets `_place` to the place behind a block before it yields that, to None before a padded one.
        *skip*: tokens of the first document that earlier blocks have; it has to have *size* tokens in all.
        Raises: StateError if it has another number of tokens, or is missing; not checked if *skip* is 0.
        """
        block, filled, bounds = np.empty(self._length, np.int64), 0, [0]
        for ids in documents:
            at, expected, skip, size = skip, size, 0, 0
            if at and len(ids) != expected:
                raise StateError(
                    f"this state is of a document of {several(expected, 'token')}, which has {len(ids):,} now: "
                    "the tokenizer, eos or the text have changed"
                )
            if filled and at < len(ids):
                bounds.append(filled)
            while at < len(ids):
                count = min(self._length - filled, len(ids) - at)
                block[filled : filled + count] = ids[at : at + count]
                filled, at = filled + count, at + count
                if filled == self._length:
                    self._place = self._documents.place(), at, len(ids)
                    yield block, bounds, False
                    block, filled, bounds = np.empty(self._length, np.int64), 0, [0]
        if skip:
            raise StateError("this state names a document that the data do not have: they have changed since")
        pad = self._pad
        if filled and pad is None:
            log.warning("%s at the end of the epoch fill no block, and are dropped", several(filled, "token"))
        elif filled and pad is not None:
            block[filled:] = pad
            self._place = None
            yield block, [*bounds, filled], True

    def _batches(self, blocks: Iterator[tuple[Ids, list[int], bool]]) -> Iterator[Any]:
        """Yield *blocks*, as `_blocks` makes them, as tensors or `TokenBlock`, single or in batches of `batch_size`.

        The last batch may have fewer blocks. Before the first item the loaded state is dropped; before a last one that
        is padded or has fewer blocks, and at the end, also the place in the epoch.
        """
        tokens: list[Ids] = []
        bounds: list[int] = []
        for block, starts, is_last in blocks:
            bounds += [len(tokens) * self._length + start for start in starts]
            tokens.append(block)
            if is_last or len(tokens) == (self._batch_size or 1):
                self._begin_next(is_last)
                yield self._value(tokens, bounds)
                tokens, bounds = [], []
        self._begin_next(True)
        if tokens:
            yield self._value(tokens, bounds)

    def _begin_next(self, is_over: bool) -> None:
        """Drop the loaded state, which has been used; if *is_over*, at the end of the epoch, also the place in it."""
        self._loaded_state = None
        if is_over:
            self._place = None

    def _value(self, tokens: Sequence[Ids], bounds: Sequence[int]) -> Any:
        """Return the blocks *tokens* as a tensor, or with *cu_seqlens* as a `TokenBlock`.

        The tensor is [length] if there is no batch size, else [blocks, length]. *bounds*: the indexes of the flattened
        tokens at which documents begin, without the number of tokens, which is put behind them.
        """
        values = torch.from_numpy(tokens[0] if self._batch_size is None else np.stack(tokens))
        if not self._has_bounds:
            return values
        return TokenBlock(values, torch.tensor([*bounds, values.numel()], dtype=torch.int32))

    # ---- resuming ----

    def state_dict(self) -> State:
        """Return the state of this rank, or worker, after the last block (or batch): for `load_state_dict`.

        Before the first block it is the state that was loaded, if any; else, and once the epoch has ended, it says what
        the source has left now. With several ranks, keep the states of all. Raises: UsageError if the workers of a
        loader iterate over a stream: take the state of a StatefulDataLoader; ValueError for a loader whose workers
        deliver out of order.
        """
        begin = self._documents.begin_state() if self._place is None else None
        if self._loaded_state is not None:
            return self._loaded_state  # type: ignore[no-any-return]
        place, tokens, size = self._place or (DocumentPlace(begin, 0), 0, 0)
        batch = self._documents.batch_size if isinstance(self._documents, LoaderDocuments) else 0
        values = {"reader": self._documents.reader, "source": place.source, "documents": place.documents}
        return make_state(values | {"tokens": tokens, "size": size, "batch": batch})

    def load_state_dict(self, state: Any) -> None:
        """Have the next iteration resume from *state*: a state of these blocks, or a list of the states of all ranks.

        For a stream it may also be the state of a StatefulDataLoader. There must be as many ranks, and for a stream as
        many workers, as before: the tokens that a document has left belong to its reader. For a stream, {} is no state:
        the next iteration begins its epoch.

        Raises: StateError if it is malformed, or belongs to other data, another order or, for a loader, another number
        of ranks. The iteration raises StateError if the document at its place is missing or has other tokens, and for
        a stream if this reader has no state.
        """
        entries = list(states_in(state, BLOCKS_STATE_OWNER))
        checks: dict[str, Callable[[Any], bool]] = dict.fromkeys(("documents", "tokens", "size", "batch"), is_count)
        checks |= {"reader": is_reader, "source": lambda value: isinstance(value, dict)}
        for entry in entries:
            check_state(entry, BLOCKS_STATE_OWNER, checks)
            if entry["tokens"] > entry["size"]:
                raise StateError(f"this state of {BLOCKS_STATE_OWNER} is damaged: more tokens came than there are")
            self._documents.check_state(entry)
        self._check_readers([ReaderId(*entry["reader"]) for entry in entries])
        self._documents.load(entries)
        self._skips = {
            ReaderId(*entry["reader"]): (DocumentPlace(None, entry["documents"]), entry["tokens"], entry["size"])
            for entry in entries
        }
        self._loaded_state, self._place = state, None

    def _check_readers(self, readers: Sequence[ReaderId]) -> None:
        """Raise StateError if this rank is not among *readers*, the readers of the loaded states.

        For a stream nothing is checked: its workers do that when they begin.
        """
        if isinstance(self._documents, StreamDocuments):
            # whose workers are not known here: each looks for its own state when it begins
            return
        own = self._documents.reader
        if own not in readers:
            names = ", ".join(f"{number} of {count}" for number, count in readers)
            raise StateError(
                f"there are states of ranks {names}, and this is rank {own.number} of {own.readers}: tokens go on with "
                "as many ranks as before; give load_state_dict the states of all ranks, as a list"
            )


def token_blocks(
    source: Loader | WebDataset,
    tokenizer: Tokenizer,
    length: int = 2048,
    *,
    text: str | Callable[[Any], Any] | None = None,
    eos: int | None = None,
    pad: int | None = None,
    cu_seqlens: bool = False,
    batch_size: int | None = None,
) -> TokenBlocks:
    """Return the texts of *source* as blocks of *length* tokens: int64 tensors, packed without gaps.

        texts = tartools.train.loader("stories.tar", 64, fields="txt", decode="basic", shuffle=False)
        blocks = tartools.train.token_blocks(texts, lambda text: [*text.encode()], length=32, eos=0, batch_size=2)
        tokens = next(iter(blocks))  # [2, 32]

    *source*: a loader, whose workers tokenize; its batches are only how samples are read. Or a `WebDataset`, for a
    DataLoader with workers: `DataLoader(token_blocks(stream, ...), batch_size=None, num_workers=2)`.
    *tokenizer*: a function of a text that returns token ids, or an object with such a method `encode`: tokenizers of
    Hugging Face, tiktoken and SentencePiece. *text*: the field of samples that are dicts, or a function of a sample;
    None: the sample is a text, a tuple that begins with it, or a dict with one field. *eos*: id that is put behind each
    document; None: none. *pad*: id that fills the last block of an epoch up; None: that one is dropped, and logged.
    *cu_seqlens*: yield `TokenBlock`, (tokens, cu_seqlens), for attention within documents. *batch_size*: yield batches
    of blocks, [batch, length]; None: single blocks, [length].

    `state_dict` and `load_state_dict` resume after the last block, with as many ranks, and of a stream workers: each
    token comes once. Ranks have about as many blocks each, not exactly. A page on it: docs/training/text.md.

    Holds: a block (with *batch_size* a batch), and a document. Raises: TypeError and ValueError for arguments that
    don't fit; while iterating SampleError for a sample without a text, StateError if the document of a loaded state is
    not there or has other tokens, the errors of the tokenizer, and what the source raises.
    """
    encoder = TextEncoder(tokenizer, text, eos)
    if isinstance(source, WebDataset):
        documents: StreamDocuments | LoaderDocuments = StreamDocuments(source, encoder)
    elif isinstance(source, Loader):
        documents = LoaderDocuments(source, encoder)
    else:
        kind = type(source).__name__
        raise TypeError(f"token_blocks takes a tartools.train.loader(...) or a WebDataset, not {kind}")
    return TokenBlocks(documents, length, pad, cu_seqlens, batch_size)
