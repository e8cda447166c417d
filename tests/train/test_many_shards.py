"""`loader` over more shards than may be open, an epoch that is left anywhere, and batches for accelerators."""

from __future__ import annotations

import pickle
import resource
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data._utils.pin_memory import pin_memory

import tartools
from tartools.storage import openfiles
from tartools.train import TableDataset, loader
from tartools.train.sharedmemory import ReceivedBuffer, SentBuffer, SharedBuffers
from tartools.train.tabledataset import TableBatch
from tests.conftest import Run, make_tar, open_descriptors
from tests.tiers import exhaustive

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*fork.*:DeprecationWarning",
    "ignore:This DataLoader will create:UserWarning",  # more workers than cores
    "ignore:.*pin_memory.*:UserWarning",  # no accelerator
)
EACH = 10
MANY = pytest.mark.parametrize("table", [100, pytest.param(1000, marks=exhaustive)], indirect=True)


@pytest.fixture
def table(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """Return a table of so many shards of 10 samples; row n has the key n."""
    monkeypatch.chdir(tmp_path)
    shards = request.param
    for first in range(0, shards * EACH, EACH):
        members = [(f"{n:04d}.cls", b"%d" % n) for n in range(first, first + EACH)]
        (tmp_path / f"{first // EACH:03d}.tar").write_bytes(make_tar(members))
    assert run("tarindex", f"{{000..{shards - 1:03d}}}.tar", "-o", "t.parquet").status == 0
    return "t.parquet"


def rows_of(batches: Any) -> list[list[int]]:
    """Return the rows of each batch, which are the keys and the payloads of its samples."""
    found = []
    for batch in batches:
        found.append([int(sample["__key__"]) for sample in batch])
        assert [int(sample["cls"]) for sample in batch] == found[-1]
    return found


@MANY
def test_a_batch_of_more_shards_than_may_be_open(table: str) -> None:
    data = TableDataset(table)
    rows = list(range(0, len(data), 7))
    rooms: list[bytearray] = []

    def room_of(size: int) -> memoryview:
        rooms.append(bytearray(size))
        return memoryview(rooms[-1])

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(open_descriptors()) + 40, limits[1]))
    try:
        for batch in (data.batch(rows), data.batch(rows, room_of), data.table[rows]):
            assert [sample["cls"] for sample in batch] == [b"%d" % row for row in rows]
        assert len(rooms) == 1 and len(data.batch(rows).bulk.fields) == 1  # type: ignore[union-attr]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("table", [70], indirect=True)
def test_pinned_memory_leaves_batches_as_they_are(table: str) -> None:
    rows = list(range(0, 700, 70))
    batch = TableDataset(table).batch(rows)
    assert isinstance(batch, TableBatch) and pin_memory(batch) is batch
    assert pin_memory(list(batch)) == list(batch)  # which a batch is that has something unusual
    few = tartools.Table(table).take(rows)
    for workers in (0, 1):
        assert rows_of(loader(few, 4, shuffle=False, pin_memory=True, num_workers=workers)) == [
            rows[:4],
            rows[4:8],
            rows[8:],
        ]


def test_rooms_of_batches_that_nobody_looks_at_are_used_again() -> None:
    room = SharedBuffers().take(1000)
    lease = pickle.loads(ForkingPickler.dumps(SentBuffer(room)))
    assert isinstance(lease, ReceivedBuffer) and lease.view()[-1] == room[-1] == 1
    del lease
    assert room[-1] == 0


@pytest.mark.parametrize("table", [13], indirect=True)
def test_files_that_were_slow_once_are_not_taken_to_be_so_for_ever(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, now, asked = TableDataset(table), [0.0], []

    def clock() -> float:
        now[0] += 1.0 if len(asked) == 0 else 0.0
        return now[0]

    monkeypatch.setattr(openfiles, "perf_counter", clock)
    monkeypatch.setattr(openfiles.os, "posix_fadvise", lambda *_: asked.append(number), raising=False)
    monkeypatch.setattr(openfiles.os, "POSIX_FADV_WILLNEED", 3, raising=False)
    for number in range(2 * openfiles.ASKED):
        assert [int(sample["cls"]) for sample in data.batch([number])] == [number]
    assert asked == list(range(1, openfiles.ASKED + 1))
