"""Batches whose samples don't fit together say why, and what to write; `padded` fills sequences up."""

from __future__ import annotations

import functools
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Subset, default_collate

from tartools.errors import SampleError
from tartools.train import Resize, TableDataset, WebDataset, loader, padded
from tartools.train.collation import UnequalBatchError
from tests.archives import encoded, npy
from tests.conftest import make_tar
from tests.tiers import also

SIZES = ((300, 200), (200, 300), (320, 240), (64, 48))
RESIZE = "write resize=(224, 224), or resize=tartools.train.Resize(256, crop=224)"
SHAPES = "field 'jpg' has shapes [3, 200, 300] and [3, 300, 200] in one batch, which needs equal ones: "


@pytest.fixture(autouse=True)
def shards(_here: None) -> None:
    """Write four photographs of different shapes, with labels and tokens."""
    members = []
    for number, size in enumerate(SIZES):
        fields = {
            "jpg": encoded(Image.new("RGB", size, (40 * number, 0, 0)), "jpeg"),
            "cls": b"%d" % number,
            "npy": npy(np.arange(number + 1)),
            "json": b"[1%s]" % (b", 1.5" * number),
        }
        members += [(f"{number}.{field}", payload) for field, payload in fields.items()]
    Path("a.tar").write_bytes(make_tar(members))


def by_loader(workers: int, fields: str, **options: Any) -> Iterator[Any]:
    return iter(loader("a.tar", 4, fields=fields, decode="torchrgb8", shuffle=False, num_workers=workers, **options))


def by_stream(workers: int, fields: str, **options: Any) -> Iterator[Any]:
    collate = {"collation_fn": options.pop("collate_fn")} if "collate_fn" in options else {}
    data = WebDataset("a.tar", fields=fields, decode="torchrgb8", **options).batched(4, **collate)
    return iter(DataLoader(data, None, num_workers=min(workers, 1)))  # all in one batch


def by_stages(workers: int, fields: str, **options: Any) -> Iterator[Any]:
    collate = {"collation_fn": options.pop("collate_fn")} if "collate_fn" in options else {}
    data = WebDataset("a.tar").decode("torchrgb8", **options).to_tuple(*fields.split()).batched(4, **collate)
    return iter(DataLoader(data, None, num_workers=min(workers, 1)))


WAYS = {"loader": by_loader, "stream": by_stream, "stages": by_stages}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("workers", [0, 2])
def test_pictures_of_different_shapes_say_what_to_write(way: str, workers: int) -> None:
    with pytest.raises(UnequalBatchError) as caught:
        next(WAYS[way](workers, "jpg cls"))
    assert SHAPES + RESIZE in str(caught.value)
    assert workers or str(caught.value) == SHAPES + RESIZE
    assert isinstance(caught.value, SampleError) and isinstance(caught.value, RuntimeError)
    for resize in ((224, 224), Resize(256, crop=224)):  # as it says
        pictures, labels = next(WAYS[way](workers, "jpg cls", resize=resize))
        assert (pictures.shape, pictures.dtype) == ((4, 3, 224, 224), torch.uint8)
        assert [*map(int, labels)] == [0, 1, 2, 3]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("workers", [0, *also(2)])
def test_sequences_say_padded_and_padded_takes_them(way: str, workers: int) -> None:
    argument = "collate_fn" if way == "loader" else "collation_fn"
    with pytest.raises(UnequalBatchError) as caught:
        next(WAYS[way](workers, "cls npy"))
    expected = "field 'npy' has shapes [1] and [2] in one batch, which needs equal ones: write "
    assert f"{expected}{argument}=tartools.train.padded for (values, lengths)" in str(caught.value)
    labels, (values, lengths) = next(WAYS[way](workers, "cls npy", collate_fn=padded))
    assert values.tolist() == [[0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 2, 0], [0, 1, 2, 3]]
    assert (labels.tolist(), lengths.tolist(), values.dtype) == ([0, 1, 2, 3], [1, 2, 3, 4], torch.int64)


def test_the_default_that_a_user_names_is_explained_too() -> None:
    with pytest.raises(UnequalBatchError, match="field 'jpg' has shapes"):
        next(by_loader(0, "cls jpg", collate_fn=default_collate))
    with pytest.raises(UnequalBatchError, match="field 'jpg' has shapes"):
        next(by_stages(0, "cls jpg", collate_fn=default_collate))
    with pytest.raises(RuntimeError, match=r"^stack expects each tensor") as caught:  # their own function: their error
        next(by_loader(0, "jpg", collate_fn=own_collate))
    assert not isinstance(caught.value, UnequalBatchError)


def test_dicts_subsets_lists_and_none_are_named() -> None:
    data = TableDataset("a.tar", "jpg cls", "torchrgb8")
    for source in (Subset(data, [2, 0]), ConcatDataset([data, data])):
        with pytest.raises(UnequalBatchError, match="field 'jpg' has shapes"):
            next(iter(loader(source, 2, shuffle=False)))
    every = TableDataset("a.tar", decode="torchrgb8")
    with pytest.raises(UnequalBatchError, match="field 'jpg' has shapes"):
        next(iter(loader(every, 2, shuffle=False)))
    with pytest.raises(UnequalBatchError, match=r"^field 'json' has 1 and 2 items in one batch"):
        next(by_loader(0, "cls json"))
    with pytest.raises(UnequalBatchError, match=r"^field 'txt' is None in sample 0 of the batch: leave"):
        next(by_loader(0, "cls txt", missing=None))
    whole = loader(Subset(every, [0, 3]), 2, transform=None)
    with pytest.raises(UnequalBatchError, match="field 'jpg'"):
        next(iter(whole))
    samples = [{"x": 1, "y": 2}, {"x": 1}]
    with pytest.raises(UnequalBatchError, match=r"^samples 0 and 1 of the batch do not both have the field 'y'"):
        next(iter(loader(Kept(samples), 2, shuffle=False)))
    with pytest.raises(
        UnequalBatchError, match=r"^a sample has shapes \[2, 5\] and \[3, 5\] in one batch, .*: make them"
    ):
        next(iter(loader(Kept([torch.zeros(2, 5), torch.zeros(3, 5)]), 2, shuffle=False)))
    with pytest.raises(UnequalBatchError, match=r"^item 0 has shapes \[3, 8, 9\] and \[3, 9, 8\] .* resize="):
        next(iter(loader(Kept([(torch.zeros(3, 8, 9), 1), (torch.zeros(3, 9, 8), 1)]), 2, shuffle=False)))
    with pytest.raises(UnequalBatchError, match=r"write decode='torchrgb8', so that all pictures have three colours$"):
        grey = encoded(Image.new("L", (8, 8)), "png")
        colours = encoded(Image.new("RGB", (8, 8)), "png")
        Path("b.tar").write_bytes(make_tar([("0.png", grey), ("1.png", colours)]))
        next(iter(loader("b.tar", 2, fields="png", decode="torchraw")))
    with pytest.raises(TypeError, match=r"^default_collate: batch must contain tensors"):  # as torch says it
        next(iter(loader(Kept([io.BytesIO(), io.BytesIO()]), 2)))


def own_collate(samples: list[Any]) -> Any:
    return default_collate(samples)


class Kept(torch.utils.data.Dataset[Any]):
    """A list as a dataset."""

    def __init__(self, samples: list[Any]) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Any:
        return self._samples[index]


def test_padded() -> None:
    sounds = [(torch.ones(2, 3), 8000), (torch.ones(2, 1), 16000)]
    (values, lengths), rates = padded(sounds)
    assert values.tolist() == [[[1, 1, 1]] * 2, [[1, 0, 0]] * 2]
    assert (lengths.tolist(), rates.tolist(), values.dtype) == ([3, 1], [8000, 16000], torch.float32)
    batch = padded([{"ids": [5, 6], "key": "a", "x": np.zeros(0)}, {"ids": [], "key": "b", "x": np.ones(1)}])
    assert batch["ids"].values.tolist() == [[5, 6], [0, 0]] and batch["ids"].values.dtype == torch.int64
    assert (batch["key"], batch["x"].lengths.tolist()) == (["a", "b"], [0, 1])
    filled = functools.partial(padded, value=-100)
    assert filled([[1, 2.5], [3]]).values.tolist() == [[1, 2.5], [3, -100]]
    equal = padded([torch.arange(2), torch.arange(2, dtype=torch.int32)])
    assert (equal.values.tolist(), equal.lengths.tolist(), equal.values.dtype) == ([[0, 1]] * 2, [2, 2], torch.int64)
    pictures, labels = padded([(torch.zeros(3, 4, 5), 1), (torch.zeros(3, 4, 5), 2)])
    assert (pictures.shape, labels.tolist()) == ((2, 3, 4, 5), [1, 2])


def test_padded_says_what_does_not_fit() -> None:
    with pytest.raises(
        UnequalBatchError, match=r"^shapes \[1, 9\] and \[2, 9\] in one batch differ in more than their"
    ):
        padded([torch.zeros(1, 9), torch.zeros(2, 9)])
    with pytest.raises(UnequalBatchError, match=r"^item 1 has shapes \[3, 4, 5\] and \[3, 5, 4\] in one batch"):
        padded([(0, torch.zeros(3, 4, 5)), (0, torch.zeros(3, 5, 4))])
    with pytest.raises(UnequalBatchError, match=r"^field 'x' is None in sample 1"):
        padded([{"x": torch.zeros(2)}, {"x": None}])


@pytest.mark.parametrize("workers", [0, *also(2)])
def test_a_loader_of_their_own_with_padded_says_what_to_write(workers: int) -> None:
    """As docs/training/webdataset.md has it; torch's default function says that stack expects equal sizes."""
    stream = WebDataset("a.tar").decode("torchrgb8").to_tuple("jpg", "cls")
    for data in (stream, TableDataset("a.tar", fields="jpg cls", decode="torchrgb8")):
        with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
            next(iter(DataLoader(data, 4)))
        with pytest.raises(UnequalBatchError) as caught:
            next(iter(DataLoader(data, 4, collate_fn=padded, num_workers=min(workers, 1))))
        assert f"item 0 has {SHAPES.partition(' has ')[2]}{RESIZE}" in str(caught.value)
        lists = next(iter(DataLoader(data, 4, collate_fn=list)))
        assert [picture.shape[1:] for picture, _ in lists] == [(height, width) for width, height in SIZES]
