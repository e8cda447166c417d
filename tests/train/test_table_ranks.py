"""Ranks of torch.distributed: processes that share an epoch without being told more than that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch.distributed
import torch.multiprocessing

import tartools
from tartools.train import StatefulSampler, loader
from tests.conftest import Run, make_tar

COUNT = 43


def rank(number: int) -> None:
    """What one of two ranks does: it stops after two batches, and goes on; it writes its labels and its state."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{Path('place').absolute()}", rank=number, world_size=2
    )
    found, states = [], [None, None]
    batches: Any = loader("t.parquet", 5, fields="cls", decode="basic", seed=6, num_workers=number)
    for (labels,) in batches:
        found.append(labels.tolist())
        if len(found) == 2:
            break
    torch.distributed.all_gather_object(states, batches.state_dict())
    assert states[0] == states[1] and states[0]["done"] == 20  # type: ignore[index]
    batches = loader("t.parquet", 4, fields="cls", decode="basic")
    batches.load_state_dict(states[0])
    found += [labels.tolist() for (labels,) in batches]
    torch.distributed.destroy_process_group()
    Path(f"rank-{number}").write_text(json.dumps([found, batches.state_dict()]))


def test_two_ranks_that_stop_and_go_on(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.tar").write_bytes(make_tar([(f"{n:02d}.cls", b"%d" % n) for n in range(COUNT)]))
    assert run("tarindex", "a.tar", "-o", "t.parquet").status == 0
    torch.multiprocessing.start_processes(rank, nprocs=2, start_method="fork")
    (first, state), (second, other) = (json.loads(Path(f"rank-{number}").read_text()) for number in range(2))
    assert state == other and [len(found) for found in first] == [5, 5, 4, 4, 4]
    steps = zip(first, second, strict=True)
    assert [label for step in steps for labels in step for label in labels] == list(StatefulSampler(range(COUNT), 6))
    order = StatefulSampler(tartools.Table("t.parquet"), 0)
    order.load_state_dict(state)
    assert order.epoch == 1 and len(order) == COUNT
