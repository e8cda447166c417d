"""Workers that are no forks, as Python 3.14 and macOS start them: what they can be given, and how a program begins."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from tartools.train import ObjectDataset, TableDataset, WebDataset, ZipDataset, loader
from tests.conftest import Result, Run, make_tar, start
from tests.tiers import also

COUNT = 12
SCRIPT = """
import multiprocessing
import tartools.train
from torch.utils.data import DataLoader


def number(text):
    return int(text)


def main():
    for batch in tartools.train.loader("{0..1}.tar", 4, fields="txt cls", table="t.parquet", num_workers=1):
        print(*(int(cls) for _, cls in batch))
    data = tartools.train.WebDataset("{0..1}.tar", shuffle=5).decode("pil").to_tuple("cls", "txt")
    for numbers, _ in DataLoader(data.map_tuple(number, None).batched(4), batch_size=None, num_workers=1):
        print(*numbers.tolist())


"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    for shard in range(2):
        numbers = range(shard * COUNT // 2, (shard + 1) * COUNT // 2)
        members = [(f"{n}.{name}", b"%d" % n) for n in numbers for name in ("txt", "cls")]
        Path(f"{shard}.tar").write_bytes(make_tar(members))
    return tmp_path


def program(end: str) -> Result:
    Path("train.py").write_text(SCRIPT + end)
    return start(sys.executable, "train.py")


@pytest.mark.parametrize("method", ["forkserver", *also("spawn")])
def test_a_guarded_script(method: str) -> None:
    done = program(f"if __name__ == '__main__':\n    multiprocessing.set_start_method('{method}')\n    main()\n")
    assert done.status == 0, done.stderr
    assert sorted(map(int, done.stdout.split())) == sorted([*range(COUNT)] * 2)


@pytest.mark.parametrize("method", ["forkserver", *also("spawn")])
def test_a_script_without_a_guard_is_told_of_it(method: str) -> None:
    done = program(f"multiprocessing.set_start_method('{method}', force=True)\nmain()\n")
    guard = (
        f'workers that are started by {method} import the program: put what it runs below `if __name__ == "__main__":`'
    )
    assert done.status == 1 and done.stdout == b""
    assert f"\nRuntimeError: {guard}\n" in done.stderr  # in the worker
    last = done.stderr.rstrip().splitlines()[-1]
    said = re.escape(f"an error of its own, which is above: {guard})")
    assert re.search(rf"^RuntimeError: .*{said}(; 2 batches .*)?$", last)  # it may end before it is asked for some


@pytest.mark.filterwarnings("ignore:Got pickle error", "ignore:.*fork.*:DeprecationWarning")
def test_a_lambda_is_named(run: Run) -> None:
    assert run("tar2zip", "0.tar", "-o", "a.zip").status == 0
    no = lambda value: value  # noqa: E731

    def torchs(data: Any) -> Any:
        return DataLoader(data, batch_size=None, num_workers=1, multiprocessing_context="forkserver")

    def ours(**options: Any) -> Any:
        return loader("0.tar", 4, num_workers=1, multiprocessing_context="forkserver", **options)

    makes: list[tuple[str, Callable[[], Any]]] = [
        ("transform", lambda: ours(transform=no)),
        ("transform", lambda: ours(fields="txt cls", transform=(str, no))),
        ("decode", lambda: ours(decode=["pil", no])),
        ("collate_fn", lambda: ours(collate_fn=no)),
        ("worker_init_fn", lambda: ours(worker_init_fn=no)),
        ("transform", lambda: torchs(TableDataset("0.tar", transform=no))),
        ("transform", lambda: torchs(ZipDataset("a.zip", transform=no))),
        ("transform", lambda: torchs(ObjectDataset("0.tar", no))),
        ("transform", lambda: torchs(WebDataset("0.tar", transforms=no))),
        ("what map calls", lambda: torchs(WebDataset("0.tar").map(no))),
        ("what map_tuple calls", lambda: torchs(WebDataset("0.tar", fields="txt cls").map_tuple(no, None))),
    ]
    for what, make in makes:
        with pytest.raises(TypeError) as failure:
            next(iter(make()))
        assert str(failure.value).startswith(
            f"{what} can't be sent to workers: test_a_lambda_is_named.<locals>.<lambda> is"
        )
    assert len([*loader("0.tar", 3, transform=no, num_workers=1, multiprocessing_context="fork")]) == 2
