"""docs/training/webdataset.md: all code runs, on local shards: ours and, beside it, that for webdataset."""

from __future__ import annotations

import gc
import json
import re
from pathlib import Path
from typing import Any

import pytest
import webdataset
from PIL import Image

from tests.archives import encoded
from tests.conftest import ROOT, Run, make_tar
from tests.guides import program
from tests.schedule import needs_torch

pytestmark = needs_torch
PAGE = (ROOT / "docs/training/webdataset.md").read_text()


def picture(number: int) -> bytes:
    return encoded(Image.new("RGB", (32, 24), (number, 0, 0)), "jpeg")


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return four shards in the current directory."""
    monkeypatch.chdir(tmp_path)
    for shard in range(4):
        members = [
            (f"{number:06d}.{field}", data)
            for number in range(50 * shard, 50 * shard + 50)
            for field, data in (
                ("jpg", picture(number)),
                ("cls", b"%d" % (number % 10)),
                ("json", b'{"width": 32}'),
            )
        ]
        Path(f"train-{shard:06d}.tar").write_bytes(make_tar(members))
    return [f"train-{shard:06d}.tar" for shard in range(4)]


def blocks(kind: str) -> list[str]:
    """Return the code blocks of the page of this kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
def test_every_block_runs(run: Run, shards: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("tarindex", *shards, "-o", "train.parquet").status == 0
    names, rest = program(blocks("python"), "page_webdataset", tmp_path, monkeypatch)
    try:
        assert len(rest) > 12
        for block in rest:
            exec(block, names)
    finally:
        names.clear()  # functions of the page refer to it: only now workers of loaders can end
        gc.collect()


def flipped(picture: Any) -> Any:
    return picture[:, ::-1].copy()


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # this machine may have two processors
@pytest.mark.filterwarnings("ignore:unclosed file", "ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves them
def test_what_stands_beside_them_runs_with_webdataset(shards: list[str]) -> None:
    names: dict[str, Any] = {"wds": webdataset, "json": json, "url": shards[0], "urls": shards, "keep": bool}
    names["augment"] = flipped
    assert len(blocks("py")) == 7
    for block in blocks("py"):
        exec(compile(block, block.strip().splitlines()[0], "exec"), names)
        assert next(iter(names.popitem()[1]))
    gc.collect()
