"""Batches of a stream that cross from workers in one buffer are what they are without workers."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from tartools.train import WebDataset, sharedmemory
from tartools.train.sharedmemory import SentList
from tests.conftest import make_tar
from tests.tiers import by_turns
from tests.train.test_zips import kept

SIZES = (0, 100, sharedmemory.WORTH - 1, sharedmemory.WORTH, 30_000, 200_000)


@pytest.fixture(autouse=True)
def shard() -> None:
    sizes = random.Random(1)
    members = [
        (f"{number:03d}.{field}", sizes.randbytes(size))
        for number in range(40)
        for field, size in (("cls", number % 9), ("jpg", sizes.choice(SIZES)))
    ]
    Path("a.tar").write_bytes(make_tar(members))


def nested(samples: list[Any]) -> Any:
    """Collate to lists in a dict."""
    return {
        "all": [{"of": sample, "pair": (sample["jpg"], 1)} for sample in samples],
        "sizes": np.array([len(sample["jpg"]) for sample in samples]),
    }


def types(value: Any) -> Any:
    """Return *value* with the types of all that is in it."""
    if isinstance(value, dict):
        return type(value), [(name, types(item)) for name, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [types(item) for item in value]
    return type(value), value.tolist() if hasattr(value, "tolist") else value


WAYS: dict[str, Callable[[], WebDataset]] = {
    "dicts": lambda: WebDataset("a.tar").listed(6),
    "tuples": lambda: WebDataset("a.tar", fields="jpg cls __key__").batched(6),
    "nested": lambda: WebDataset("a.tar").batched(6, nested),
    "small": lambda: WebDataset("a.tar", fields="cls __key__").batched(6),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("as_it_is", [False, True])
@by_turns("as_it_is")
def test_what_crosses_is_what_was_sent(way: str, as_it_is: bool) -> None:
    """Without *as_it_is*, torch makes tensors of arrays, in copies of lists."""
    options: Any = {"collate_fn": kept} if as_it_is else {}
    alone = [*map(types, DataLoader(WAYS[way](), None, **options))]
    for _ in range(2):
        assert [*map(types, DataLoader(WAYS[way](), None, num_workers=1, **options))] == alone
    assert len(alone) == 7


def test_the_buffer_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = SentList([b"a" * 200_000, [b"b", (b"c" * 5000,)], {"d": b"d" * 70_000}])
    plain = [*batch]
    for other in (pickle.loads(pickle.dumps(batch)), copy.deepcopy(batch), copy.copy(batch)):
        assert other == plain
    assert sharedmemory._buffers._buffers == []  # only a queue takes one
    sent = [ForkingPickler.dumps(batch) for _ in range(2)]
    first, second = sharedmemory._buffers._buffers
    assert all(len(one) < 5000 for one in sent)
    got = [pickle.loads(one) for one in sent]
    assert [*map(types, got)] == [types(plain)] * 2
    assert types(pickle.loads(ForkingPickler.dumps(batch))) == types(plain)
    assert [*map(id, sharedmemory._buffers._buffers)] == [id(first), id(second)]
    sharedmemory._buffers._buffers.clear()
    monkeypatch.setattr(sharedmemory, "SHARED", "/proc")  # a file system that is full
    assert types(pickle.loads(ForkingPickler.dumps(batch))) == types(plain)
    assert sharedmemory._buffers._buffers == []
