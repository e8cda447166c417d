"""Transforms that ask for a seed get the same for a sample in any run: with any workers and ranks, after a resume."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset
from torchdata.stateful_dataloader import StatefulDataLoader

from tartools.errors import UsageError
from tartools.train import ObjectDataset, ObjectStream, StatefulSampler, TableDataset, WebDataset, ZipDataset, loader
from tartools.train.sampleseeds import SampleSeeds, seed_parameter
from tests.commands.test_zip import zipped
from tests.conftest import make_tar
from tests.tiers import also
from tests.train.conftest import be_rank

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than cores
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata calls it
]
COUNT = 23


@pytest.fixture(autouse=True)
def shards(tmp_path: Path) -> Path:
    Path("objects").mkdir()
    for shard in range(2):
        members = [(f"{n:02d}.txt", b"%d %d" % (shard, n)) for n in range(shard * 9, COUNT - 9 + shard * 9)]
        Path(f"{shard}.tar").write_bytes(make_tar(members))
    Path("a.zip").write_bytes(zipped(members))
    for n in range(COUNT):
        Path(f"objects/{n:02d}").write_bytes(b"0 %d" % n)
    return tmp_path


def caption(text: bytes, rng: np.random.Generator) -> str:
    """Return one of 1,000 captions of a text by chance."""
    return f"{text.decode()}: {rng.integers(1000)}"


def numbered(text: bytes, *, seed: int | None = None) -> str:
    return f"{text.decode()}: {seed}"


def caption_of_dict(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return sample | {"txt": caption(sample["txt"], rng)}


def object_caption(data: bytes, _: str, rng: np.random.Generator) -> str:
    return caption(data, rng)


def drawn(batches: Any, most: int | None = None) -> dict[str, str]:
    """Return the number of each text in *batches*."""
    found: dict[str, str] = {}
    for batch in islice(batches, most):
        values = batch[0] if isinstance(batch[0], (list, tuple)) else batch
        found |= dict(value.split(": ") for value in values)
    return found


Make = Callable[[int, int], Any]
MAPPED: dict[str, Make] = {
    "loader": lambda workers, seed: loader(
        "{0,1}.tar", 4, fields="txt", transform=(caption,), seed=seed, num_workers=workers
    ),
    "seed": lambda workers, seed: loader(
        "{0,1}.tar", 4, fields="txt", transform=(numbered,), seed=seed, num_workers=workers
    ),
    "Subset": lambda workers, seed: loader(
        ConcatDataset([Subset(TableDataset(f"{n}.tar", "txt", transform=(caption,)), range(9)) for n in range(2)]),
        4,
        seed=seed,
        num_workers=workers,
    ),
    "zip": lambda workers, seed: loader(
        ZipDataset("a.zip", "txt", transform=(caption,)), 4, seed=seed, num_workers=workers
    ),
    "objects": lambda workers, seed: loader(
        ObjectDataset("objects", object_caption), 4, seed=seed, num_workers=workers
    ),
}
STREAMS: dict[str, Make] = {
    "transform": lambda workers, seed: WebDataset("{0,1}.tar", 5, seed, fields="txt", transform=(caption,)),
    "map": lambda workers, seed: WebDataset("{0,1}.tar", 5, seed).map(caption_of_dict).to_tuple("txt"),
    "map_tuple": lambda workers, seed: WebDataset("{0,1}.tar", 5, seed).to_tuple("txt").map_tuple(caption),
    "map_dict": lambda workers, seed: WebDataset("{0,1}.tar", seed=seed).map_dict(txt=caption).shuffle(5)
                                                                         .to_tuple("txt"),
    "objects": lambda workers, seed: ObjectStream("objects", object_caption, shuffle=True, seed=seed),
}  # fmt: skip


def stateful(make: Make, workers: int, seed: int) -> Any:
    return StatefulDataLoader(make(workers, seed), 4, num_workers=workers)


KINDS: dict[str, Make] = MAPPED | {
    f"stream, {name}": lambda workers, seed, make=make: stateful(make, workers, seed)  # type: ignore[misc]
    for name, make in STREAMS.items()
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("before", "after"), [(0, 2), *[pytest.param(*pair, marks=also(0)[0].marks) for pair in ((2, 0), (2, 2), (1, 3))]]
)  # type: ignore[attr-defined]
def test_a_sample_has_its_own_chance(kind: str, before: int, after: int) -> None:
    """That of its epoch, also in a run that goes on from a state, with another number of workers."""
    make = KINDS[kind]
    data = make(before, 7)
    whole = drawn(data)
    assert len({*whole.values()}) > len(whole) // 2
    if kind.startswith("stream"):
        data.dataset.set_epoch(1)
    assert drawn(data) != whole
    assert drawn(make(before, 7)) == drawn(make(after, 7)) == whole != drawn(make(after, 8))
    begun = make(before, 7)
    had = drawn(iter(begun), 2)
    resumed = make(after if not kind.startswith("stream") else before, 7)
    resumed.load_state_dict(begun.state_dict())
    assert had | drawn(resumed) == whole


@pytest.mark.parametrize("kind", ["loader", "stream, transform"])
def test_other_ranks(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, shares = drawn(KINDS[kind](0, 7)), {}
    for rank in range(3):
        be_rank(monkeypatch, rank, 3)
        shares |= drawn(KINDS[kind](0, 7))
    assert shares == whole


def test_plain_loaders_over_a_dataset() -> None:
    """`set_epoch` says which epoch it is, and a StatefulSampler does; workers that persist see that."""
    data = TableDataset("{0,1}.tar", "txt", transform=(caption,))
    expected = []
    for epoch in range(2):
        data.set_epoch(epoch)
        expected.append(
            {text: number for (value,) in (data[n] for n in range(len(data))) for text, number in [value.split(": ")]}
        )
    assert expected[0] != expected[1]
    batches = DataLoader(data, 4, num_workers=1, persistent_workers=True)
    for epoch in (1, 0):
        data.set_epoch(epoch)
        assert drawn(batches) == expected[epoch]
    sampler = StatefulSampler(data, 0, batch_size=5)
    batches = DataLoader(data, batch_sampler=sampler, num_workers=1, persistent_workers=True)
    assert [drawn(batches) for _ in range(2)] == expected


def test_functions_of_one_sample_get_one_seed() -> None:
    data = TableDataset("0.tar", "txt txt __key__", transform=(numbered, numbered, None))
    (first, second, key), other = data[0], data[1]
    assert first == second != other[0] and key == "00"
    both = TableDataset("0.tar", "txt", transform=lambda values, seed: (values, seed))
    assert first == f"0 0: {both[0][1]}" and both[0][0] == (b"0 0",)


def test_a_seed_is_that_of_the_sample() -> None:
    """It does not depend on the folder of a shard, and is the same on any machine."""
    assert SampleSeeds(7, 1).of("s3://b/x/a.tar", "n") == SampleSeeds(7, 1).of("a.tar", "n") == 6251080740272708394
    others = {
        SampleSeeds(*seeds).of(*sample)
        for seeds in ((7, 1), (7, 2), (8, 1), (7, 1, 1))
        for sample in ("an", "bn", "am")
    }
    assert len(others) == 12
    assert SampleSeeds(-1, 0).of("a", "b") == SampleSeeds((1 << 63) - 1, 0).of("a", "b")


def test_who_asks_for_a_seed() -> None:
    asking = {"rng": [caption, lambda sample, rng=None: 0], "seed": [numbered, lambda sample, seed: 0]}
    for name, functions in asking.items():
        assert [*map(seed_parameter, functions)] == [name] * 2
    others: list[Any] = [
        int,
        bytes.decode,
        torch.nn.Identity(),
        lambda sample, seed=3: 0,
        lambda **seed: 0,
        None,
        str.lower,
    ]
    assert [*map(seed_parameter, others)] == [None] * len(others)


def test_a_stage_behind_those_that_hold_samples() -> None:
    for data in (
        WebDataset("0.tar").to_tuple("txt").shuffle(3).map_tuple(caption),
        WebDataset("0.tar").to_tuple("txt").batched(2).map(lambda batch, seed: batch),
    ):
        with pytest.raises(UsageError, match=r"asks for (rng|seed), .* behind a stage that holds samples, or behind a"):
            list(data)
