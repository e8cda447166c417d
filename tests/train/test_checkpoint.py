"""Checkpoints, of a file or of torch.distributed: what was saved is loaded, at any URL; a failure leaves what was."""

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

from tartools.errors import StorageError
from tartools.storage import seekable
from tartools.storage.objects import uploads
from tartools.train import StorageReader, StorageWriter, checkpoint
from tests.storage.objects.faults import SCHEMES, Fault, FaultServer
from tests.tiers import also, by_turns

PLACES = ["s3", "path", *also(*(scheme for scheme in SCHEMES if scheme != "s3"))]


def state(seed: int) -> dict[str, Any]:
    """Return what a model has: 7.5 MB, and something small."""
    made = torch.Generator().manual_seed(seed)
    return {"layers": {f"{n}": torch.randn(625, 1000, generator=made) for n in range(3)}, "step": seed}


def equal(found: dict[str, Any], seed: int) -> bool:
    """Tell whether *found* is `state(seed)`."""
    layers, wanted = found["layers"], state(seed)["layers"]
    same = found.keys() == state(seed).keys() and layers.keys() == wanted.keys() and found["step"] == seed
    return same and all(map(torch.equal, layers.values(), wanted.values()))


def save(url: str, seed: int) -> None:
    with checkpoint.writer(url) as file:
        torch.save(state(seed), file)


def has(url: str, seed: int) -> bool:
    """Tell whether *url* loads, and has what was saved of *seed*."""
    with checkpoint.reader(url) as file:
        return equal(torch.load(file, weights_only=True), seed)


@pytest.fixture(params=PLACES)
def url(request: pytest.FixtureRequest, server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return where a checkpoint is to be."""
    monkeypatch.setattr(uploads, "MIN_PART_BYTES", 5 << 20)
    place = str(request.param)
    return str(tmp_path / "model.pt") if place == "path" else server.url(place, "model.pt")


def test_what_was_saved_is_loaded(url: str, server: FaultServer) -> None:
    save(url, 1)
    assert has(url, 1)
    save(url, 2)
    server.requests.clear()
    assert has(url, 2)
    asked = [request for request in server.requests if request.method == "GET" and (request.start or 0) > 0]
    near_end = [request for request in asked if (request.start or 0) >= 7_500_000 - seekable.TAIL_BYTES]
    assert len(near_end) == (url[0] != "/")  # the directory, which torch reads piece by piece, is one range
    assert len(asked) <= 6  # of 256 KiB, and twice as many each time
    assert server.pending == 0


def test_the_format_before_is_saved_and_loaded(url: str) -> None:
    with checkpoint.writer(url) as file:
        torch.save(state(1), file, _use_new_zipfile_serialization=False)
    assert has(url, 1)


def test_an_exception_leaves_the_one_before(url: str, server: FaultServer, tmp_path: Path) -> None:
    save(url, 1)
    with pytest.raises(KeyError), checkpoint.writer(url) as file:
        torch.save(state(2), file)
        raise KeyError
    assert has(url, 1)
    server.faults = [Fault(method="PUT", status=403, skip=url[:2] in ("s3", "ai"), code="AccessDenied")]
    if url[0] != "/":
        with pytest.raises(StorageError, match=r"model\.pt: "):
            save(url, 3)
        assert server.faults[0].played == 1
    server.faults = []
    assert has(url, 1)
    assert server.pending == 0 and [path.name for path in tmp_path.iterdir()] == ["model.pt"] * (url[0] == "/")


@pytest.mark.parametrize("scheme", SCHEMES)
@by_turns("scheme")
def test_damage_is_a_failure(scheme: str, server: FaultServer) -> None:
    url = server.url(scheme, "model.pt")
    save(url, 1)
    good = server.objects["model.pt"]
    server.faults = [
        Fault("model.pt", "GET", start=262144, cut=1000),
        Fault("model.pt", "GET", start=786432, status=503),
    ]
    assert has(url, 1)
    replaced = pytest.raises(StorageError, match=r"model\.pt: (at byte \d+: )?was (replaced|deleted)")
    with replaced, checkpoint.reader(url) as file:
        file.read(10)
        server.objects["model.pt"] = bytes(len(good))
        file.seek(0)
        torch.load(file, weights_only=True)
    server.objects.clear()
    with (
        pytest.raises(StorageError, match="404 Not Found" if scheme == "http" else "no such object"),
        checkpoint.reader(url),
    ):
        pass


distributed = pytest.mark.filterwarnings(
    "ignore:torch.distributed is disabled",
    "ignore::pytest.PytestUnhandledThreadExceptionWarning",  # of torch's threads that write
)
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


def save_parts(url: str, seed: int, threads: int = 1) -> None:
    dcp.save(state(seed), storage_writer=StorageWriter(url, thread_count=threads), no_dist=True)


def has_parts(url: str, seed: int, reader: Any = StorageReader) -> bool:
    """Tell whether *url* has what `save_parts` saved of *seed*."""
    found = state(0)
    dcp.load(found, storage_reader=reader(url), no_dist=True)
    return equal(found, seed)


@distributed
@pytest.mark.parametrize("scheme", ["s3", "path", *also("gs", "ais")])
def test_the_last_save_that_ended_well(scheme: str, server: FaultServer, tmp_path: Path) -> None:
    url = str(tmp_path / "{1,1}") if scheme == "path" else server.url(scheme, "run/1")
    other = str(tmp_path / "1") if scheme == "path" else url + "0"  # whose files are others, whatever braces say
    for place in (other, url):
        save_parts(place, 1)
        assert has_parts(place, 1)
    save_parts(url, 2, threads=3)
    assert has_parts(url + "/", 2) and has_parts(other, 1)
    here = sorted(path.name for path in Path(url).iterdir()) if scheme == "path" else []
    names = here or sorted(name[6:] for name in server.objects if name.startswith("run/1/"))
    assert names[0] == ".metadata" and len(names) == 4
    assert all(re.fullmatch(r"__0_[0-9a-f-]+_[012]\.distcp", name) for name in names[1:])
    with pytest.raises(dcp.api.CheckpointException, match="overwrite=False"):
        dcp.save(state(3), storage_writer=StorageWriter(url, overwrite=False), no_dist=True)
    if scheme == "path":
        assert has_parts(url, 2, dcp.FileSystemReader)
        return
    for has_name in ("metadata", "distcp"):
        server.faults = [Fault(has=has_name, method=method, status=403, times=None) for method in ("PUT", "POST")]
        for threads in (1, 3):
            with pytest.raises(dcp.api.CheckpointException, match=r"run/1/|were not written"):
                save_parts(url, 3, threads)
        assert sum(fault.played for fault in server.faults) > 0
    server.faults = []
    assert has_parts(url, 2)
    save_parts(url, 4)
    assert has_parts(url, 4) and sum(name.startswith("run/1/") for name in server.objects) == 2  # nothing is left over
    server.requests.clear()
    assert has_parts(url, 4)
    assert len(server.asked("GET")) <= 9  # of each of the two files its version, its end, and ranges


@distributed
def test_damage_of_a_part_is_a_failure(server: FaultServer) -> None:
    url = server.url("s3", "run")
    save_parts(url, 1)
    data = next(name for name in server.objects if name.endswith(".distcp"))
    server.objects[data] = server.objects[data][:-5000]
    with pytest.raises(dcp.api.CheckpointException, match="too short"):
        has_parts(url, 1)
    del server.objects[data]
    with pytest.raises(dcp.api.CheckpointException, match=re.escape(f"s3://b/{data}: no such object")):
        has_parts(url, 1)


@distributed
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
