"""Blocks of tokens: each token once for any source, ranks and workers, and after a resume at any block."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from tartools.errors import SampleError, UsageError
from tartools.train import TableDataset, WebDataset, loader, token_blocks
from tartools.train.states import StateError
from tartools.train.tokenblocks import TokenBlock, TokenBlocks
from tests.conftest import make_tar
from tests.tiers import also
from tests.train.conftest import be_rank

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than cores
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata calls it
]
LENGTH = 64
SIZES = [(37 * number) % 150 for number in range(60)]  # tokens of each document, some of which have none
SIZES[20] = 700
ALL = [1000 * number + token for number, size in enumerate(SIZES) for token in range(size)]
PAD = -1


def ids_of(text: str) -> list[int]:
    """Return the tokens of the text "NUMBER SIZE": all different, over all documents."""
    number, size = map(int, text.split())
    return [1000 * number + token for token in range(size)]


def other_ids_of(text: str) -> list[int]:
    return [*ids_of(text), 7]


@pytest.fixture(autouse=True)
def shards(_here: None) -> None:
    for shard in range(3):
        numbers = range(20 * shard, 20 * shard + 20)
        members = [(f"{number:02d}.txt", f"{number} {SIZES[number]}".encode()) for number in numbers]
        Path(f"{shard}.tar").write_bytes(make_tar(members))


class ByLoader:
    """Blocks of a loader, of some rank and number of workers."""

    def __init__(self, workers: int, rank: int = 0, world_size: int = 1, **options: Any) -> None:
        texts = loader(
            "{0..2}.tar", 4, fields="txt", decode="basic", seed=3, num_workers=workers, rank=rank,
            world_size=world_size, **options.pop("loader", {}),
        )  # fmt: skip
        self.blocks = self.all = token_blocks(texts, ids_of, LENGTH, **{"pad": PAD} | options)


class ByStream:
    """Blocks of a stream, read by torchdata's loader, whose state they have."""

    def __init__(self, workers: int, rank: int = 0, world_size: int = 1, **options: Any) -> None:
        stream = WebDataset("{0..2}.tar", shuffle=7, seed=3, fields="txt", decode="basic")
        stream.source.rank._given = (rank, world_size)
        self.blocks = token_blocks(stream, ids_of, LENGTH, **{"pad": PAD} | options)
        self.all: Any = StatefulDataLoader(self.blocks, batch_size=None, num_workers=workers)


class ByStreamAlone(ByStream):
    """Blocks of a stream without a loader."""

    def __init__(self, workers: int, rank: int = 0, world_size: int = 1, **options: Any) -> None:
        super().__init__(workers, rank, world_size, **options)
        self.all = self.blocks


KINDS: dict[str, Any] = {"loader": ByLoader, "stream": ByStream}
CASES = [
    *[("loader", workers, ranks) for workers in (0, 2) for ranks in (1, 2)],
    *[("stream", workers, ranks) for workers in (0, 2) for ranks in (1, 2)],
]


def lists(blocks: Iterable[torch.Tensor]) -> list[list[int]]:
    found = [block.tolist() for block in blocks]
    assert {len(block) for block in found} <= {LENGTH}
    return found


def check_order(blocks: list[list[int]]) -> None:
    """The tokens of one reader are in order in each document."""
    documents: dict[int, list[int]] = defaultdict(list)
    for token in (token for block in blocks for token in block if token != PAD):
        documents[token // 1000].append(token % 1000)
    assert all(tokens == sorted(tokens) for tokens in documents.values())


@pytest.mark.parametrize(("kind", "workers", "ranks"), CASES)
def test_each_token_comes_once(kind: str, workers: int, ranks: int) -> None:
    for _ in range(2):
        found = [lists(KINDS[kind](workers, rank, ranks).all) for rank in range(ranks)]
        for blocks in found:
            check_order(blocks)
        readers = ranks if kind == "loader" else ranks * max(workers, 1)
        padded = [block for blocks in found for block in blocks if PAD in block]
        assert len(padded) <= readers and sorted(t for b in found for x in b for t in x if t != PAD) == ALL
        assert all(block == [t for t in block if t != PAD] + [PAD] * block.count(PAD) for block in padded)


@pytest.mark.parametrize("every", [False, *also(True)])
@pytest.mark.parametrize(("kind", "workers", "ranks"), CASES)
def test_a_run_that_stops_goes_on_with_the_next_token(kind: str, workers: int, ranks: int, every: bool) -> None:
    """After a few of the blocks, or each of them."""
    make = KINDS[kind]
    whole = [lists(make(workers, rank, ranks).all) for rank in range(ranks)]
    shortest = min(map(len, whole))
    few = (3, shortest - 1) if workers else (0, 1, 2, shortest // 2, shortest - 1)
    for stop in range(shortest) if every else few:
        states, begins = [], []
        for rank in range(ranks):
            run = make(workers, rank, ranks)
            begins.append(lists(islice(run.all, stop)) if stop else [])
            states.append(json.loads(json.dumps(run.all.state_dict())))
        assert begins == [blocks[:stop] for blocks in whole]
        for rank in range(ranks):
            run = make(workers, rank, ranks)
            run.all.load_state_dict(states if kind == "loader" else states[rank])
            assert lists(run.all) == whole[rank][stop:], (stop, rank)


@pytest.mark.parametrize("kind", [ByLoader, ByStreamAlone])
def test_the_epoch_after_a_resumed_one_is_whole(kind: Any) -> None:
    run = kind(0)
    epochs = [lists(run.all) for _ in range(3)]
    assert epochs[0] != epochs[1] and [sorted(t for b in epoch for t in b if t != PAD) for epoch in epochs] == [ALL] * 3
    stopped = kind(0)
    list(stopped.all)
    had = lists(islice(stopped.all, 5))
    state = stopped.blocks.state_dict()
    assert stopped.blocks.epoch == 1 and had == epochs[1][:5]
    other = kind(0)
    other.blocks.load_state_dict(state)
    assert other.blocks.state_dict() == state and other.blocks.epoch == 1
    assert [lists(other.all), lists(other.all)] == [epochs[1][5:], epochs[2]]
    ended = kind(0)
    list(ended.all)
    after = kind(0)
    after.blocks.load_state_dict(ended.blocks.state_dict())
    found = lists(after.all)
    assert (found or lists(after.all)) == epochs[1]
    moved = kind(0)
    moved.blocks.load_state_dict(state)
    moved.blocks.set_epoch(2)
    assert lists(moved.all) == epochs[2]


def test_a_loader_goes_on_with_other_workers_and_batches() -> None:
    whole = lists(ByLoader(0).all)
    run = ByLoader(2)
    had = lists(islice(run.all, 30))
    assert had == whole[:30]
    texts = loader("{0..2}.tar", 7, fields="txt", decode="basic", seed=3)
    blocks = token_blocks(texts, ids_of, LENGTH, pad=PAD)
    blocks.load_state_dict(run.blocks.state_dict())
    assert lists(blocks) == whole[30:]
    short = token_blocks(texts, ids_of, LENGTH // 2, pad=PAD)
    short.load_state_dict(run.blocks.state_dict())
    tokens = [token for block in short for token in block.tolist() if token != PAD]
    assert tokens == [token for block in whole[30:] for token in block if token != PAD]


def test_two_loads_and_breaks() -> None:
    whole = lists(ByLoader(0).all)
    run = ByLoader(0)
    assert lists(islice(run.all, 9)) == whole[:9]
    state = run.blocks.state_dict()
    run.blocks.load_state_dict(state)
    assert lists(islice(run.all, 4)) == whole[9:13]
    run.blocks.load_state_dict(run.blocks.state_dict())
    assert lists(run.all) == whole[13:]
    run.blocks.load_state_dict(state)
    assert lists(run.all) == whole[9:]


# ---- what blocks are ----


def boundaries(tokens: list[int]) -> list[int]:
    """Return where documents begin in *tokens*, and their number."""
    sources = [token // 1000 if token != PAD else PAD for token in tokens]
    return [n for n in range(len(tokens)) if n % LENGTH == 0 or sources[n] != sources[n - 1]] + [len(tokens)]


@pytest.mark.parametrize("size", [None, 4])
def test_boundaries_and_batches(size: int | None) -> None:
    run = ByLoader(0, cu_seqlens=True, batch_size=size, loader={"shuffle": False})
    batches = [*run.all]
    assert all(isinstance(batch, TokenBlock) for batch in batches)
    tokens = [token for batch in batches for token in batch.tokens.flatten().tolist()]
    assert tokens[: len(ALL)] == ALL and {*tokens[len(ALL) :]} == {PAD}
    shapes = [tuple(batch.tokens.shape) for batch in batches]
    count = -(-len(ALL) // LENGTH)
    assert shapes == ([(LENGTH,)] * count if size is None else [(4, LENGTH)] * (count // 4) + [(count % 4, LENGTH)])
    for batch in batches:
        assert (batch.tokens.dtype, batch.cu_seqlens.dtype) == (torch.int64, torch.int32)
        assert batch.cu_seqlens.tolist() == boundaries(batch.tokens.flatten().tolist())
    if size is not None:
        run = ByLoader(0, batch_size=size, loader={"shuffle": False})
        plain = [*run.all]
        for stop in (1, len(plain) - 1):
            stopped = ByLoader(0, batch_size=size, loader={"shuffle": False})
            had = [batch.tolist() for batch in islice(stopped.all, stop)]
            other = ByLoader(0, batch_size=size, loader={"shuffle": False})
            other.all.load_state_dict(stopped.all.state_dict())
            assert had + [batch.tolist() for batch in other.all] == [batch.tolist() for batch in plain]


def test_the_last_block_is_dropped_and_said(caplog: pytest.LogCaptureFixture) -> None:
    run = ByLoader(0, pad=None, loader={"shuffle": False})
    with caplog.at_level(logging.WARNING, "tartools.train"):
        found = lists(run.all)
    left = len(ALL) % LENGTH
    assert [t for block in found for t in block] == ALL[: len(ALL) - left] and left
    assert [record.getMessage() for record in caplog.records] == [
        f"{left} tokens at the end of the epoch fill no block, and are dropped"
    ]
    stopped = ByLoader(0, pad=None, loader={"shuffle": False})
    assert lists(islice(stopped.all, len(found))) == found
    other = ByLoader(0, pad=None, loader={"shuffle": False})
    other.all.load_state_dict(stopped.all.state_dict())
    assert lists(other.all) == [] and other.blocks.epoch == 1


def test_an_end_is_put_behind_each_document() -> None:
    run = ByLoader(0, eos=9_999_999, loader={"shuffle": False})
    found = [token for block in lists(run.all) for token in block if token != PAD]
    expected: list[int] = []
    for number, size in enumerate(SIZES):
        expected += [*range(1000 * number, 1000 * number + size), 9_999_999]
    assert found == expected


class Words:
    """A tokenizer with a method `encode`."""

    def encode(self, text: str) -> list[int]:
        return [len(word) for word in text.split()]


def text_in_json(sample: dict[str, Any]) -> str:
    text: str = sample["json"]["story"]
    return text


def test_tokenizers_and_places_of_the_text() -> None:
    stories = ["the cat sat", "on the mat", "and the dog saw the cat"]
    members = [
        (f"{n}.{field}", payload)
        for n, story in enumerate(stories)
        for field, payload in (("txt", story.encode()), ("json", json.dumps({"story": story}).encode()))
    ]
    Path("s.tar").write_bytes(make_tar(members))
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.train_from_iterator(stories, trainers.BpeTrainer(vocab_size=80, show_progress=False))
    for tokenizer, expected in (
        (trained, [i for story in stories for i in trained.encode(story).ids]),
        (Words(), [len(word) for story in stories for word in story.split()]),
        (str.encode, None),
        (lambda text: list(text.encode()), [*"".join(stories).encode()]),
    ):
        for source, text in (
            (loader("s.tar", 2, fields="txt", decode="basic", shuffle=False), None),
            (loader("s.tar", 2, fields="txt", shuffle=False), None),  # bytes, not decoded
            (loader("s.tar", 2, shuffle=False), "txt"),
            (loader("s.tar", 2, decode="basic", shuffle=False), text_in_json),
            (WebDataset("s.tar"), "txt"),
            (WebDataset("s.tar").decode().to_tuple("txt"), None),
            (WebDataset("s.tar").decode(), text_in_json),
        ):
            blocks = token_blocks(source, tokenizer, 5, text=text, pad=PAD)
            if expected is None:
                with pytest.raises(SampleError, match=r"the tokenizer returned bytes, not a list of token ids$"):
                    list(blocks)
                continue
            assert [t for block in blocks for t in block.tolist() if t != PAD] == expected
    blocks = token_blocks(loader("s.tar", 2, fields="txt", shuffle=False, num_workers=1), trained, 5)
    assert len([*blocks]) == len([i for story in stories for i in trained.encode(story).ids]) // 5


def test_documents_are_read_as_blocks_need_them() -> None:
    seen: list[int] = []

    def noted(text: str) -> list[int]:
        seen.append(int(text.partition(" ")[0]))
        return ids_of(text)

    blocks: Iterator[Any] = iter(token_blocks(WebDataset("{0..2}.tar"), noted, LENGTH, text="txt"))
    next(blocks)
    assert seen == [0, 1, 2][: len(seen)] and sum(SIZES[: len(seen)]) - SIZES[len(seen) - 1] < LENGTH


# ---- what is refused ----


def test_arguments() -> None:
    texts = loader("0.tar", 4, fields="txt", decode="basic")
    for wrong, message in (
        ({"length": 0}, "length is the number of tokens in a block, not 0"),
        ({"length": True}, "length is the number"),
        ({"batch_size": 0}, "batch_size is how many blocks"),
        ({"batch_size": 2.5}, "batch_size is how many blocks"),
    ):
        with pytest.raises(ValueError, match=message):
            token_blocks(texts, ids_of, **wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^tokenizer is a function of a text"):
        token_blocks(texts, 7)
    for name in ("eos", "pad"):
        with pytest.raises(TypeError, match="as an integer"):
            token_blocks(texts, ids_of, **{name: "</s>"})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^text is the name of a field"):
        token_blocks(texts, ids_of, text=7)  # type: ignore[arg-type]
    for source in (TableDataset("0.tar"), DataLoader(TableDataset("0.tar")), [1]):
        with pytest.raises(
            TypeError, match=r"^token_blocks takes a tartools.train.loader\(...\) or a WebDataset, not "
        ):
            token_blocks(source, ids_of)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="give it text= in place of collate_fn"):
        token_blocks(loader("0.tar", 4, fields="txt", collate_fn=list), ids_of)


@pytest.mark.parametrize("workers", [0, *also(1)])
def test_samples_without_a_text(workers: int) -> None:
    Path("x.tar").write_bytes(make_tar([("k.cls", b"1"), ("k.bin", b"\xff\xfe")]))
    for fields, text, message in (
        (None, None, r"x.tar: sample 'k': which field is the text\? Write text='cls'"),
        (None, "txt", "x.tar: sample 'k': there is no field 'txt' in it"),
        (None, "bin", "x.tar: sample 'k': its text is not UTF-8"),
        ("cls", None, "its text is a int; text= is a field or a function"),
    ):
        source = loader("x.tar", 1, fields=fields, decode="basic" if fields else None, num_workers=workers)
        with pytest.raises(SampleError, match=message):
            list(token_blocks(source, ids_of, text=text))


def test_states_of_others_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ByLoader(0)
    list(islice(run.all, 7))
    state = run.blocks.state_dict()
    assert state["tokens"] > 0

    def fresh(**options: Any) -> TokenBlocks:
        blocks: TokenBlocks = ByLoader(0, **options).blocks
        return blocks

    for name, wrong in (
        ("documents", -1), ("tokens", 1 << 40), ("size", "x"), ("source", 7), ("reader", [1, 1]), ("batch", None),
    ):  # fmt: skip
        with pytest.raises(StateError, match=r"this state of token_blocks, .* is damaged: "):
            fresh().load_state_dict(state | {name: wrong})
    for other in (7, {"x": 1}, state["source"], {"reader": [0, 1]}):
        with pytest.raises(StateError, match="this is not a state of token_blocks"):
            fresh().load_state_dict(other)
    with pytest.raises(StateError, match=r"states of ranks 0 of 1, and this is rank 1 of 2: tokens go on with as many"):
        ByLoader(0, 1, 2).blocks.load_state_dict(state)
    texts = loader("{0..1}.tar", 4, fields="txt", decode="basic", seed=3)
    with pytest.raises(StateError, match="the state is of an order with samples 60"):
        token_blocks(texts, ids_of, LENGTH).load_state_dict(state)
    texts = loader("{0..2}.tar", 4, fields="txt", decode="basic", seed=3)
    blocks = token_blocks(texts, other_ids_of, LENGTH)
    blocks.load_state_dict(state)
    with pytest.raises(
        StateError, match=r"this state is of a document of \d+ tokens, which has \d+ now: the tokenizer"
    ):
        next(iter(blocks))
    blocks = fresh()
    blocks.load_state_dict(state | {"documents": 1 << 40})
    with pytest.raises(StateError, match="this state names documents that the data do not have"):
        next(iter(blocks))
    two = [ByLoader(0, rank, 2) for rank in range(2)]
    for rank in two:
        list(islice(rank.all, 3))
    states = [rank.blocks.state_dict() for rank in two]
    small = loader("{0..2}.tar", 3, fields="txt", decode="basic", seed=3, rank=0, world_size=2)
    with pytest.raises(StateError, match="is of a loader with batches of 4 samples, and here they have 3"):
        token_blocks(small, ids_of, LENGTH).load_state_dict(states)
    stream = ByStreamAlone(0)
    list(islice(stream.all, 7))
    of_stream = stream.blocks.state_dict()
    be_rank(monkeypatch, 0, 2)
    other_stream = token_blocks(
        WebDataset("{0..2}.tar", shuffle=7, seed=3, fields="txt", decode="basic"), ids_of, LENGTH
    )
    other_stream.load_state_dict(of_stream)
    with pytest.raises(
        StateError, match=r"there is no state of reader 0 of 2 \(ranks times workers\): tokens go on with"
    ):
        next(iter(other_stream))
    with pytest.raises(StateError, match="is damaged: its parts are of different readers"):
        other_stream.load_state_dict(of_stream | {"reader": [0, 2]})


def test_states_of_workers_are_those_of_their_loader() -> None:
    whole = lists(ByStreamAlone(0).all)
    for count in (0, 9):
        stopped = ByStreamAlone(0)
        assert lists(islice(stopped.all, count)) == whole[:count]
        blocks = ByStreamAlone(0).blocks
        blocks.load_state_dict(stopped.blocks.state_dict())
        assert lists(DataLoader(blocks, batch_size=None, num_workers=1)) == whole[count:]
        with pytest.raises(UsageError, match="take the state of a StatefulDataLoader"):
            blocks.state_dict()
