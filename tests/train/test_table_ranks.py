"""Ranks of torch.distributed: processes that share an epoch without being told more than that."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tartools.train import Order
from tests.conftest import Run, make_tar

COUNT = 43
PROGRAM = """
import json, sys
import torch.distributed as dist
from tartools.train import loader

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
found, states = [], [None, None]
batches = loader("t.parquet", 5, fields="cls", decode=(), seed=6, num_workers=rank)
for (labels,) in batches:
    found.append(labels.tolist())
    if len(found) == 2:
        break
dist.all_gather_object(states, batches.state_dict())
assert states[0] == states[1] and states[0]["done"] == 20
batches = loader("t.parquet", 4, fields="cls", decode=())
batches.load_state_dict(states[0])
found += [labels.tolist() for (labels,) in batches]
print(json.dumps([found, batches.state_dict()]))
"""


def test_two_ranks_that_stop_and_go_on(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([(f"{n:02d}.cls", b"%d" % n) for n in range(COUNT)]))
    assert run("tarindex", "a.tar", "-o", "t.parquet").status == 0
    line = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    running = [
        subprocess.Popen([*line, str(rank), str(tmp_path / "meet")], cwd=tmp_path, stdout=subprocess.PIPE)
        for rank in range(2)
    ]
    answers = [json.loads(process.communicate()[0]) for process in running]
    assert [process.returncode for process in running] == [0, 0]
    (first, state), (second, other) = answers
    assert state == other and [len(found) for found in first] == [5, 5, 4, 4, 4]
    steps = zip(first, second, strict=True)
    assert [label for step in steps for labels in step for label in labels] == list(Order(range(COUNT), 6))
    order = Order(range(COUNT), 0)
    order.load_state_dict(state)
    assert order.epoch == 1 and len(order) == COUNT
