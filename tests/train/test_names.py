"""Paths of pathlib wherever a path or a URL goes, and what is said of other things."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tartools
from tartools import train
from tests.conftest import Run, make_samples, make_tar

A, T, Z = Path("a.tar"), Path("t.parquet"), Path("a.zip")


def written() -> int:
    with train.checkpoint.writer(Path("m.pt")) as file:
        torch.save([1, 2], file)
    with train.checkpoint.reader(Path("m.pt")) as file:
        return len(torch.load(file, weights_only=True)) - 1


def packed() -> int:
    return len(tartools.Table(Path(train.pack([{"cls": 1}], Path("packed")))))


def opened() -> int:
    with tartools.open(Path("new"), "wb") as file:
        file.write(b"1")
    with tartools.open(Path("new")) as file:
        return len(file.read())


def numbered() -> int:
    with tartools.ShardWriter(Path("numbered")) as writer:
        writer.write({"__key__": "a", "cls": 1})
    return len(writer.shards)


def table() -> int:
    made = tartools.Table(T)
    tartools.Table.from_arrow(made.arrow, T).write(Path("u.parquet"))
    return len(tartools.Table(Path("u.parquet")))


WAYS: dict[str, Callable[[], int]] = {
    "read": lambda: len([*tartools.read(A)]) + len([*tartools.read([A, "a.tar"])]) - 2,
    "write": lambda: len([*tartools.read([tartools.write(tartools.read(A), Path("b.tar")) or "b.tar"])]),
    "map_samples": lambda: tartools.map_samples(lambda sample: sample, A, Path("c.tar")),
    "open": opened,
    "ShardWriter": numbered,
    "table": table,
    "loader": lambda: len([*train.loader(T, 1)]),
    "kept": lambda: len(train.TableDataset(A, table=Path("kept.parquet"))),
    "stream": lambda: len([*train.WebDataset(A)]),
    "samples": lambda: len([*train.samples([A])]),
    "zip": lambda: len(train.ZipDataset(Z)),
    "objects": lambda: len(train.ObjectDataset(A)),
    "list_urls": lambda: len([*train.list_urls([A])]),
    "open_urls": lambda: len([file.close() for _, file in train.open_urls([A])]),
    "stream_map": lambda: len([*train.stream_map(len, [A])]),
    "checkpoint": written,
    "pack": packed,
}


@pytest.fixture(autouse=True)
def folder(run: Run) -> None:
    A.write_bytes(make_tar(make_samples(1)))
    assert run("tarindex", "a.tar", "-o", "t.parquet").status == run("tar2zip", "a.tar", "-o", "a.zip").status == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_path(way: str) -> None:
    assert WAYS[way]() == 1


@pytest.mark.parametrize("call", [tartools.read, tartools.Table, train.loader, train.ObjectDataset, train.WebDataset])
def test_a_path_that_was_a_url(call: Any) -> None:
    with pytest.raises(
        TypeError, match=r"^a Path can't be a URL, because it makes one slash of two: give 's3:/b/a.tar'"
    ):
        call(Path("s3://b/a.tar"), *([4] if call is train.loader else []))
    with pytest.raises(TypeError, match=r"^a path or a URL is text or a pathlib.Path, not int"):
        call(4, *([4] if call is train.loader else []))


def test_other_datasets_are_told_what_reads_them() -> None:
    message = r"^a table or shards are expected, not {}, which {}\(data, batch_size=64\) reads"
    for data, reader in ((train.ZipDataset("a.zip"), "loader"), (train.ObjectDataset("a.tar"), "loader")):
        with pytest.raises(TypeError, match=message.format(type(data).__name__, reader)):
            train.TableDataset(data)  # type: ignore[arg-type]
        assert len(list(train.loader(data, batch_size=64))) == 1
    for call in (lambda data: train.loader(data, 4), train.TableDataset):
        with pytest.raises(TypeError, match=message.format("WebDataset", "DataLoader")):
            call(train.WebDataset("a.tar"))
