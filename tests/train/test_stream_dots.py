"""WebDataset(dots="last"): the samples of `tartools.read(dots="last")`, once each, for any readers."""

from __future__ import annotations

import gzip
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import tartools
from tartools.errors import UsageError
from tartools.train import WebDataset
from tests.conftest import Run, make_tar
from tests.tiers import also
from tests.train.conftest import be_rank

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:rank . gets about"),
]


@pytest.fixture(autouse=True)
def shards(tmp_path: Path) -> list[str]:
    """Make shards whose names have several dots; of one sample up to the first dot there are up to nine."""
    names = [
        [f"s{shard}.0/Track {n // 9}.{n}.v2.{field}" for n in range(80) for field in ("cls", "txt")] for shard in (0, 1)
    ]
    archives = [make_tar([(name, name.encode()) for name in part]) for part in names]
    Path("0.tar").write_bytes(archives[0])
    Path("1.tgz").write_bytes(gzip.compress(archives[1]))
    return ["0.tar", "1.tgz"]


def found(sample: dict[str, Any]) -> tuple[str, str, str]:
    return sample["__key__"], sample["cls"].decode(), sample["txt"].decode()


def wanted(urls: list[str]) -> list[tuple[str, str, str]]:
    samples = tartools.read(urls, dots="last")
    return [(sample.key, sample["cls"].decode(), sample["txt"].decode()) for sample in samples]


def test_the_samples_of_read(shards: list[str]) -> None:
    samples = wanted(shards)
    assert samples[0] == ("s0.0/Track 0_0_v2", "s0.0/Track 0.0.v2.cls", "s0.0/Track 0.0.v2.txt")
    assert len({key for key, *_ in samples}) == len(samples) == 160
    assert [*WebDataset(shards, dots="last").map(found)] == samples
    assert {key for key, *_ in map(tuple, WebDataset(shards, dots="first").map(keyed))} == {
        f"s{shard}.0/Track {n}" for shard in (0, 1) for n in range(9)
    }


def keyed(sample: dict[str, Any]) -> tuple[str]:
    return (sample["__key__"],)


@pytest.mark.parametrize("readers", [(1, 2), (3, 0), *also((2, 3), (4, 1))], ids=str)
def test_each_sample_comes_once(readers: tuple[int, int], shards: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, workers = readers
    every = []
    for rank in range(ranks):
        be_rank(monkeypatch, rank, ranks)
        data = WebDataset(shards, dots="last").map(found)
        every.append([*DataLoader(data, None, num_workers=workers)])
    assert sorted(map(tuple, chain(*every))) == sorted(wanted(shards))


def test_a_state_of_other_dots_is_refused(shards: list[str]) -> None:
    begun = WebDataset(shards, dots="last")
    next(iter(begun))
    for dots in ("first", "last"):
        data = WebDataset(shards, dots=dots)  # type: ignore[arg-type]
        if dots == "last":
            data.load_state_dict(begun.state_dict())
        else:
            with pytest.raises(UsageError):
                data.load_state_dict(begun.state_dict())


def test_tables_and_other_values_are_errors(run: Run) -> None:
    assert run("tarindex", "0.tar", "-o", "t.parquet").status == 0
    with pytest.raises(UsageError, match="dots='last' is for shards, and this is a table"):
        next(iter(WebDataset("t.parquet", dots="last")))
    with pytest.raises(ValueError, match="dots is 'first' or 'last', not None"):
        WebDataset("0.tar", dots=None)  # type: ignore[arg-type]
