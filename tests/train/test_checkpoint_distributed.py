"""torch.distributed.checkpoint at URLs: what was saved is loaded, and a save that fails leaves the one before."""

from __future__ import annotations

import multiprocessing
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from tartools.train import StorageReader, StorageWriter
from tests.storage.objects.faults import Fault, FaultServer
from tests.tiers import also

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),  # of torch's threads that write
]
WHOLE = torch.arange(4000.0).reshape(40, 100)


def one_rank(rank: int, meet: str, url: str) -> None:
    """Save rows of `WHOLE` as one of two ranks, and load columns."""
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    rows, columns = distribute_tensor(WHOLE, mesh, [Shard(0)]), distribute_tensor(0 * WHOLE, mesh, [Shard(1)])
    dcp.save({"w": rows}, storage_writer=StorageWriter(url))
    found = {"w": columns}
    dcp.load(found, storage_reader=StorageReader(url))
    assert torch.equal(found["w"].full_tensor(), WHOLE)
    dist.destroy_process_group()


def state(seed: int) -> dict[str, Any]:
    """Return what a model has."""
    made = torch.Generator().manual_seed(seed)
    return {"layers": {f"{n}": torch.randn(100, 1000, generator=made) for n in range(5)}, "step": seed}


def save(url: str, seed: int, threads: int = 1) -> None:
    dcp.save(state(seed), storage_writer=StorageWriter(url, thread_count=threads), no_dist=True)


def has(url: str, seed: int, reader: Any = StorageReader) -> bool:
    """Tell whether *url* has what was saved of *seed*."""
    found = {"layers": {f"{n}": torch.zeros(100, 1000) for n in range(5)}, "step": -1}
    dcp.load(found, storage_reader=reader(url), no_dist=True)
    wanted = state(seed)
    layers: Any = found["layers"]
    return found["step"] == seed and all(torch.equal(layers[name], wanted["layers"][name]) for name in layers)


@pytest.mark.parametrize("scheme", ["s3", "path", *also("gs", "ais")])
def test_the_last_save_that_ended_well(scheme: str, server: FaultServer, tmp_path: Path) -> None:
    url = str(tmp_path / "run" / "1") if scheme == "path" else server.url(scheme, "run/1")
    other = url + "0"
    for place in (other, url):
        save(place, 1)
        assert has(place, 1)
    save(url, 2, threads=3)
    assert has(url + "/", 2) and has(other, 1)
    here = sorted(path.name for path in Path(url).iterdir()) if scheme == "path" else []
    names = here or sorted(name[6:] for name in server.objects if name.startswith("run/1/"))
    assert names[0] == ".metadata" and len(names) == 4
    assert all(re.fullmatch(r"__0_[0-9a-f-]+_[012]\.distcp", name) for name in names[1:])
    with pytest.raises(dcp.api.CheckpointException, match="overwrite=False"):
        dcp.save(state(3), storage_writer=StorageWriter(url, overwrite=False), no_dist=True)
    if scheme == "path":
        assert has(url, 2, dcp.FileSystemReader)
        return
    for has_name in ("metadata", "distcp"):
        server.faults = [Fault(has=has_name, method=method, status=403, times=None) for method in ("PUT", "POST")]
        for threads in (1, 3):
            with pytest.raises(dcp.api.CheckpointException, match=r"run/1/|were not written"):
                save(url, 3, threads)
        assert sum(fault.played for fault in server.faults) > 0
    server.faults = []
    assert has(url, 2)
    save(url, 4)
    assert has(url, 4) and sum(name.startswith("run/1/") for name in server.objects) == 2  # nothing is left over
    server.requests.clear()
    assert has(url, 4)
    assert len(server.asked("GET")) <= 9  # of each of the two files its version, its end, and ranges


def test_damage_is_a_failure(server: FaultServer) -> None:
    url = server.url("s3", "run")
    save(url, 1)
    data = next(name for name in server.objects if name.endswith(".distcp"))
    server.objects[data] = server.objects[data][:-5000]
    with pytest.raises(dcp.api.CheckpointException, match="too short"):
        has(url, 1)
    del server.objects[data]
    with pytest.raises(dcp.api.CheckpointException, match=re.escape(f"s3://b/{data}: no such object")):
        has(url, 1)


def test_two_ranks(server: FaultServer, tmp_path: Path) -> None:
    url = server.url("s3", "run")
    start = multiprocessing.get_context("fork").Process
    ranks = [start(target=one_rank, args=(rank, str(tmp_path / "meet"), url)) for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(120)
    assert [rank.exitcode for rank in ranks] == [0, 0]
    assert len([name for name in server.objects if re.fullmatch(r"run/__[01]_.*\.distcp", name)]) == 2
    found = {"w": torch.zeros(40, 100)}
    dcp.load(found, storage_reader=StorageReader(url), no_dist=True)
    assert torch.equal(found["w"], WHOLE)
