"""The pages on Dataflux, AIStore and CORTX: what they show of ours runs as printed."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tests.archives import encoded
from tests.conftest import ROOT, clean_environment
from tests.guides import program
from tests.storage.objects import servers
from tests.storage.objects.faults import FaultServer
from tests.storage.objects.memory import Bucket
from tests.storage.objects.sites import environment

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def picture(number: int) -> bytes:
    return encoded(Image.new("RGB", (8, 6), (number, 9, 9)), "png")


def blocks(page: str, kind: str) -> list[str]:
    """Return the code of *kind* on *page* that is ours."""
    text = (ROOT / "docs/training" / page).read_text()
    found = re.findall(rf"^```{kind}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    theirs = re.compile(r"dataflux|aistore|cortx_pytorch|AISIterDataset")
    assert len([block for block in found if theirs.search(block)]) >= (kind == "python") * 2
    return [block for block in found if not theirs.search(block)]


Ran = Callable[..., tuple[list[dict[str, Any]], list[str]]]


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ran:
    """Return a function that runs our Python of a page, one block after the other.

    It returns the names that each leaves, and what is printed. Options are names of buckets, and what stands for them.
    """

    def ran(page: str, **replaced: str) -> tuple[list[dict[str, Any]], list[str]]:
        found = blocks(page, "python")
        for name, other in replaced.items():
            found = [block.replace(f"://{name}/", f"://{other}/") for block in found]
        names, rest = program(found, f"page_{Path(page).stem}", tmp_path, monkeypatch)
        left, printed = [], io.StringIO()
        for block in rest:
            with contextlib.redirect_stdout(printed):
                exec(block, names)
            left.append(dict(names))
        return left, printed.getvalue().splitlines()

    return ran


def test_dataflux(server: FaultServer, ran: Ran) -> None:
    made = {f"train/{n % 3}/{n}.png": picture(n) for n in range(70)}
    server.objects.update(made)
    left, printed = ran("dataflux.md", bucket="b")
    assert (left[0]["name"], left[0]["size"]) == ("gs://b/train/0/0.png", len(made["train/0/0.png"]))
    assert printed[:70] == [f"{len(made[name])} bytes" for name in sorted(made)]
    assert [line.partition("]")[0] for line in printed[70:72]] == ["torch.Size([64, 6, 8, 3", "torch.Size([6, 6, 8, 3"]
    numbers = sorted(int(re.sub(r"\D", "", line)) for line in printed[72:])
    assert numbers == [35, 35, 35, 35]  # each of two workers has half, in each of two epochs
    assert torch.equal(left[3]["model"].weight, left[3]["read_state_dict"]["weight"])
    assert "checkpoints/epoch0.ckpt" in server.objects and "checkpoints/step-100/.metadata" in server.objects
    assert len(left) == 5


def test_aistore(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    with servers.aistore() as proxy:
        for name, value in environment("ais", proxy.base).items():
            monkeypatch.setenv(name, value)
        for bucket in ("bucket1", "aws:bucket2"):
            held = proxy.buckets[bucket] = Bucket()
            held.objects |= {f"train/{bucket[-1]}-{n}": b"%d" % n for n in range(5)} | {"other": b"x"}
        left, printed = ran("aistore.md")
        urls = [f"ais://bucket1/train/1-{n}" for n in range(5)] + [f"aws://bucket2/train/2-{n}" for n in range(5)]
        assert [url for url, _ in left[0]["dataset"].objects] == urls
        assert printed == ["10 objects", *urls]
        assert (left[0]["url"], left[0]["content"]) == (urls[-1], b"4")
        assert (left[2]["url"], left[2]["data"]) == (urls[-1], b"4")


TORCHVISION = """
from types import SimpleNamespace
from tests.train.test_objects_pages import ImageFolder
datasets = SimpleNamespace(ImageFolder=ImageFolder)
"""


class ImageFolder:
    """What is asked of torchvision's: the files of a folder of classes, with the class of each."""

    def __init__(self, root: str) -> None:
        classes = sorted(path.name for path in Path(root).iterdir())
        self.samples = [(str(path), classes.index(path.parent.name)) for path in sorted(Path(root).glob("*/*"))]
        self.loader, self.target_transform = Image.open, None

    def __len__(self) -> int:
        return len(self.samples)


def test_cortx(server: FaultServer, ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(10):
        path = tmp_path / "imagenet-val" / str(n % 2) / f"{n}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(n))
    (block,) = blocks("cortx.md", "sh")
    line = block.replace("testbucket", "b").replace("-s 1e8", "-s 15e3")
    subprocess.run(["bash", "-euo", "pipefail", "-c", line], cwd=tmp_path, env=clean_environment(), check=True)
    shards = [name for name in server.objects if name.endswith(".tar")]
    assert len(shards) > 1
    monkeypatch.chdir(tmp_path)
    (tmp_path / "torchvision.py").write_text(TORCHVISION)  # also for workers that are started
    left, printed = ran("cortx.md", testbucket="b")
    values = [(round(float(x[0, 0, 0]) * 255), int(y)) for x, y in left[0]["dataset"]]
    assert sorted(values) == [(n, n % 2) for n in range(10)]
    assert [line.partition("]")[0] for line in printed if "Size" in line][:2] == ["torch.Size([10, 3, 224, 224"] * 2
    assert left[1]["table"] == "s3://b/packed/val.parquet" and "packed/val-000000.tar" in server.objects
    for name in ("dataloader", "dataset"):
        found = [
            (round(float(x[0, 0, 0]) * 255), int(y))
            for images, labels in left[2 if name == "dataloader" else 3][name]
            for x, y in zip(images, labels, strict=True)
        ]
        assert sorted(found) == [(n, n % 2) for n in range(10)]
