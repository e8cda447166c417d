"""The examples in the docstrings of the public names run, on local shards in the place of buckets."""

from __future__ import annotations

import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import webdataset
from PIL import Image, ImageOps

import tartools
import tartools.train
from tests.conftest import Run, make_tar
from tests.train.test_objects_pages import ImageFolder
from tests.train.test_stream_docs import picture

LOCAL = {"s3://bucket/": "bucket/", "gs://bucket/": "bucket/", "{000..147}": "{000..001}", "range(148)": "range(2)"}
LOCAL |= {', engine="ray"': "", "run/model.pt": "run.pt"}  # tests of Ray are in modules of their own


def blocks() -> list[Any]:
    """Return (name, code) of all public names that have examples."""
    public = [getattr(tartools, name) for name in tartools.__all__]
    public += [getattr(tartools.train, name) for name in tartools.train.__all__]
    found = []
    for value in public:
        name, text = value.__name__, inspect.getdoc(value) or ""
        code = "\n".join(textwrap.dedent(block) for block in re.findall(r"(?:^ {4}.*\n)+", f"{text}\n", re.MULTILINE))
        found += [pytest.param(code, id=name)] if code else []
    return found


@pytest.fixture
def names(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the names that the examples use, in a folder with what they read."""
    monkeypatch.chdir(tmp_path)
    for where in ("bucket/train", "photos/one"):
        Path(where).mkdir(parents=True)
        for n in range(3):
            Path(where, f"{n:04d}.jpg").write_bytes(picture(n))
    for shard in ("train-000", "train-001", "in-000", "in-001"):
        fields = ("cls", b"1"), ("jpg", picture(7)), ("score", b"0.7")
        Path(f"{shard}.tar").write_bytes(
            make_tar([(f"{shard}/{n:02d}.{field}", data) for n in range(60) for field, data in fields])
        )
    assert run("tarindex", "-f", "score", "train-{000..001}.tar", "-o", "bucket/train.parquet").status == 0
    assert run("tar2zip", "train-000.tar", "-o", "bucket/photos.zip").status == 0
    data = tartools.train.TableDataset("train-{000..001}.tar", table="train.parquet")
    loader = tartools.train.loader("train.parquet", 64, fields=("jpg;png", "cls"), decode="torchrgb8")
    torch.save(loader.state_dict(), "loader.pt")
    return {
        "__name__": "examples", "tartools": tartools, "torch": torch, "numpy": numpy, "wds": webdataset, "Image": Image,
        "ImageOps": ImageOps, "ImageFolder": ImageFolder, "model": torch.nn.Linear(2, 2), "data": data, "decode": len,
        "label": str, "augment": numpy.array, "picture": Image.new("RGB", (4, 4)),
        "flipped": lambda sample: {"__key__": sample.key, "cls": "1"},
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("code", blocks())
def test_the_examples_run(code: str, names: dict[str, Any]) -> None:
    for far, near in LOCAL.items():
        code = code.replace(far, near)
    exec(compile(code, "<docstring>", "exec"), names)
