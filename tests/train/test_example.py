"""The example that the README names: it learns, and goes on after it was killed as if nothing had happened."""

from __future__ import annotations

import re
import runpy
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.conftest import ROOT, start

EXAMPLE = str(ROOT / "examples/train_shapes.py")
FEW = ("--pictures", "128", "--epochs", "2", "--save-every", "3")


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., list[str]]]:
    """Return a function that runs the example here, and returns the lines that it prints."""

    def trained(folder: Path, *options: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", [EXAMPLE, str(folder), *FEW, *options])
        runpy.run_path(EXAMPLE, run_name="__main__")
        found = capsys.readouterr()
        assert found.err == ""
        return found.out.splitlines()

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums of floats depend on it
    yield trained
    torch.set_num_threads(threads)


def killed(folder: Path) -> list[str]:
    """Return the lines that the example prints until it is killed after five batches."""
    done = start(sys.executable, EXAMPLE, folder, *FEW, "--kill-after", 5, env={"OMP_NUM_THREADS": "1"})
    assert (done.status, done.stderr) == (-signal.SIGKILL, "")
    return done.stdout.decode().splitlines()


def test_a_run_that_was_killed_ends_as_one_that_was_not(trained: Callable[..., list[str]], tmp_path: Path) -> None:
    whole = trained(tmp_path / "a")
    assert len(whole) == 9
    for epoch in (whole[:4], whole[4:8]):
        keys = [key for line in epoch for key in line.split(": ")[1].split(",")]
        assert sorted(keys) == [f"{n:09d}" for n in range(128)]
    assert whole[0] != whole[4]
    assert killed(tmp_path / "b") == whole[:5]
    again = trained(tmp_path / "b", "--workers", "1")
    assert again == whole[3:]  # from the checkpoint after three batches on, in the middle of an epoch
    assert re.fullmatch(r"of 32 pictures that it has not seen, it names \d+; sum of weights [-\d.]+", again[-1])
    shards = [{path.name: path.read_bytes() for path in (tmp_path / name).glob("*.tar")} for name in "ab"]
    assert shards[0] == shards[1] and len(shards[0]) == 2
