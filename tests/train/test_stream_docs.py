"""docs/training/webdataset.md: all code of ours runs, on local shards."""

from __future__ import annotations

import gc
import io
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.conftest import ROOT, Run, make_tar

PAGE = (ROOT / "docs/training/webdataset.md").read_text()


def picture(number: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (32, 24), (number, 0, 0)).save(file, "jpeg")
    return file.getvalue()


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
def test_every_block_runs(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert run("tarindex", "train-{000000..000003}.tar", "-o", "train.parquet").status == 0
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) > 12
    names: dict[str, Any] = {"__name__": "page"}
    try:
        for block in blocks:
            exec(compile(block, block.strip().splitlines()[0], "exec"), names)
    finally:
        names.clear()  # functions of the page refer to it: only now workers of loaders can end
        gc.collect()
