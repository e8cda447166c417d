"""`TableDataset` and `loader`: every sample once, in the order that is asked for, or an error with URL and byte."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]

import tartools
from tartools.errors import SampleError
from tartools.train import StatefulSampler, TableDataset, loader
from tartools.train.fieldchooser import FieldChooser
from tartools.train.sharedmemory import ReceivedBuffer, SharedBuffers
from tartools.train.tabledataset import TableBatch
from tests.conftest import Run, make_tar
from tests.tiers import also, by_turns

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*fork.*:DeprecationWarning",
    "ignore:This DataLoader will create:UserWarning",  # more workers than cores
    "ignore:.*set_vital:UserWarning",  # which torchdata calls
)
COUNT = 61


def members(kind: str) -> list[tuple[str, bytes]]:
    """Return the members of samples that are all alike, or large, or differ in what they have."""
    draw = random.Random(5)
    found = []
    for number in range(COUNT):
        key = f"{kind}/{number:03d}" if kind != "odd" or number % 3 else f"{'x' * 120}/{number:03d}"
        size = draw.randrange(20_000, 40_000) if kind == "large" else draw.choice([0, 1, 511, 512, 513, 2000])
        sample = [(f"{key}.jpg", draw.randbytes(size)), (f"{key}.cls", b"%d" % number)]
        if kind in ("varied", "odd", "large") and number % 4 == 1:
            sample = [(f"{key}.seg.PNG", b"png%d" % number), *sample[1:], (f"{key}.json", b"{}")]
        found += sample[::-1] if kind == "varied" and number % 5 == 2 else sample
    return found


@pytest.fixture
def table_of(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that makes shards of samples of some kinds, and their table."""
    monkeypatch.chdir(tmp_path)

    def make(*kinds: str) -> str:
        for kind in kinds:
            (tmp_path / f"{kind}.tar").write_bytes(make_tar(members(kind), tarfile.PAX_FORMAT))
        run("tarindex", *(f"{kind}.tar" for kind in kinds), "-o", "t.parquet").output()
        return "t.parquet"

    return make


def keys(batches: Any) -> list[str]:
    return [sample["__key__"] for batch in batches for sample in batch]


@pytest.mark.parametrize("kind", ["plain", "large", "varied", "odd"])
def test_batches_are_what_the_table_has(kind: str, table_of: Callable[..., str]) -> None:
    table = tartools.Table(table_of(kind))
    expected = [FieldChooser()(sample) for sample in tartools.read(f"{kind}.tar")]
    rows = random.Random(2).choices(range(COUNT), k=100)
    assert (table.bulk(rows) is None) == (kind == "odd")
    data = TableDataset("t.parquet")
    assert len(data) == COUNT and [data[n] for n in range(COUNT)] == expected
    rooms: list[bytearray] = []

    def room_of(size: int) -> memoryview:
        rooms.append(bytearray(size))
        return memoryview(rooms[-1])

    for some in (rows, list(range(COUNT)), [7]):
        assert data.__getitems__(some) == [expected[n] for n in some]
        for batch in (data.batch(some), data.batch(some, room_of)):
            assert [list(sample.items()) for sample in batch] == [list(expected[n].items()) for n in some]
            assert [batch[n] for n in range(len(batch))] == [expected[n] for n in some]
    for fields in ("cls", ("jpg;seg.png", "cls", "__key__"), "seg.PNG;jpg __url__"):
        tuples = [FieldChooser(fields)(sample) for sample in expected]
        for batch in (data_of(fields).batch(rows), data_of(fields).batch(rows, room_of)):
            assert list(batch) == [tuples[n] for n in rows]
    assert data_of("cls", ()).__getitems__(rows) == [(n,) for n in rows]
    if kind != "plain":
        lacking = next(n for n in range(COUNT) if "jpg" not in expected[n])
        have = " ".join(name for name in expected[lacking] if not name.startswith("__"))
        said = f"sample '{expected[lacking]['__key__']}': has no field 'jpg'; its fields are: {have}$"
        for rows in ([0, lacking], [lacking]):
            with pytest.raises(SampleError, match=said):
                data_of("jpg").__getitems__(rows)
            with pytest.raises(SampleError, match=said):
                list(data_of("jpg").batch(rows, room_of))
        with pytest.raises(SampleError, match="has no field 'label'; its fields are: "):
            data_of("cls label")[0]


def data_of(fields: Any, decode: Any = None) -> TableDataset:
    return TableDataset("t.parquet", fields, decode)


@pytest.mark.parametrize("workers", [0, 1, *also(3)])
def test_every_sample_comes_once(workers: int, table_of: Callable[..., str]) -> None:
    table_of("plain", "large", "varied")
    rows = list(StatefulSampler(range(3 * COUNT), seed=1, rank=0, world_size=1))
    whole = [FieldChooser()(sample) for sample in tartools.Table("t.parquet")[rows]]
    for world in (1, 2):
        epochs: list[list[list[Any]]] = []
        for _ in range(2):
            ranks = []
            for rank in range(world):
                batches = loader("t.parquet", 7, seed=1, rank=rank, world_size=world, num_workers=workers)
                batches.set_epoch(len(epochs))
                assert len(batches) == (27, 13)[world - 1]  # the last of the 13 takes one sample along
                ranks.append([list(batch) for batch in batches])
            steps = max(map(len, ranks))
            epochs.append([batches[step] for step in range(steps) for batches in ranks])
        assert [sample for batch in epochs[0] for sample in batch] == whole
        assert sorted(keys(epochs[1])) == sorted(keys(epochs[0])) and keys(epochs[1]) != keys(epochs[0])


@pytest.mark.parametrize("method", ["forkserver", *also("spawn")])
def test_other_processes(method: str, table_of: Callable[..., str]) -> None:
    table_of("plain")
    data = TableDataset("t.parquet", "cls", ())
    assert len(pickle.dumps(data)) < 1000 and data[3] == (3,)
    raw = loader(TableDataset("t.parquet", "cls"), 20, shuffle=False, num_workers=1, multiprocessing_context=method)
    found = list(raw)
    assert all(isinstance(batch, TableBatch) and isinstance(batch.bulk.data, ReceivedBuffer) for batch in found)
    assert [int(number) for batch in found for (number,) in batch] == list(range(COUNT))


def test_states_of_other_data_are_refused(table_of: Callable[..., str], tmp_path: Path) -> None:
    table_of("plain")
    table = tartools.Table("t.parquet")
    batches = loader("t.parquet", 6)
    next(iter(batches))
    state = batches.state_dict()
    Path("moved").mkdir()
    for name in ("plain.tar", "t.parquet"):
        shutil.copy2(name, "moved")
    table.write("written.parquet")
    table.take(slice(None, None, -1)).write("reversed.parquet")
    rows = table.arrow
    for source in ("t.parquet", "written.parquet", "moved/t.parquet", str(tmp_path / "t.parquet"), "plain.tar"):
        loader(source, 7).load_state_dict(state)  # the same samples
    for same in (table, table.take(range(COUNT)), tartools.Table.from_arrow(rows)):
        loader(same, 7).load_state_dict(state)
    others = [
        "reversed.parquet",
        table.take([*range(COUNT - 1), 0]),
        tartools.Table.from_arrow(rows.set_column(1, "__version__", [pa.array(["1000000 5"] * COUNT)])),
        tartools.Table.from_arrow(rows.drop_columns("__version__")),
    ]
    assert rows.column_names[1] == "__version__"
    Path("plain.tar").write_bytes(Path("plain.tar").read_bytes())
    os.utime("plain.tar", ns=(1, 1))
    for other in [*others, "plain.tar"]:
        with pytest.raises(ValueError, match=r"^the state is that of other data: other shards"):
            loader(other, 6).load_state_dict(state)
    without = {name: value for name, value in state.items() if name != "data"}
    with pytest.raises(ValueError, match="not a state of a StatefulSampler like this one"):
        loader("t.parquet", 6).load_state_dict(without)
    for data in (range(COUNT), [0] * COUNT):
        with pytest.raises(ValueError, match="other data"):
            StatefulSampler(data, batch_size=6).load_state_dict(state)
    StatefulSampler([0] * 3).load_state_dict(
        StatefulSampler(range(3)).state_dict()
    )  # nothing is known of these but their length


def test_torchs_own_loader(table_of: Callable[..., str]) -> None:
    table_of("plain")
    data = TableDataset("t.parquet", "cls", (), _first)
    whole = list(StatefulSampler(data, 4))
    order = StatefulSampler(data, 4, batch_size=8)
    had: list[int] = []
    for step, batch in enumerate(DataLoader(data, batch_sampler=order, num_workers=2)):
        had += batch.tolist()
        if step == 2:
            state = order.state_dict(taken=step + 1)
            break
    single = StatefulSampler(data, batch_size=None)
    single.load_state_dict(state)
    assert had + [int(n) for n in DataLoader(data, sampler=single, batch_size=None)] == whole


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("batch_size", [None, 9])
@by_turns("workers")
def test_torchdatas_loader(workers: int, batch_size: int | None, table_of: Callable[..., str]) -> None:
    table_of("plain")
    data = TableDataset("t.parquet", "cls", (), _first)

    def made() -> Any:
        order = StatefulSampler(data, 4, batch_size=batch_size)
        ways = {"batch_sampler": order} if batch_size else {"sampler": order, "batch_size": 9}
        return StatefulDataLoader(data, num_workers=workers, **ways)

    both = made()
    epochs = [[batch.tolist() for batch in both] for _ in range(2)]
    assert epochs[0] != epochs[1]
    for taken in range(0, len(epochs[0]) + 1, 3 if workers else 1):
        batches = made()
        run = iter(batches)
        had = [next(run).tolist() for _ in range(taken)]
        rest = made()
        rest.load_state_dict(pickle.loads(pickle.dumps(batches.state_dict())))
        assert had + [batch.tolist() for batch in rest] == epochs[0]
        assert [batch.tolist() for batch in rest] == epochs[1]


def _first(values: tuple[int]) -> int:
    return values[0]


def collated(samples: list[Any]) -> Iterator[Any]:
    return [int(number) for (number,) in samples]  # type: ignore[return-value]


def test_collation(table_of: Callable[..., str]) -> None:
    table_of("plain")
    for workers in (0, 1):
        found = list(loader("t.parquet", 30, fields="cls", shuffle=False, collate_fn=collated, num_workers=workers))
        assert found == [list(range(30)), list(range(30, 60)), [60]]
        batch = next(
            iter(loader("t.parquet", 30, fields="__key__ cls", decode="basic", shuffle=False, num_workers=workers))
        )
        assert batch[0][2] == "plain/002" and batch[1].tolist() == list(range(30))


def test_rooms_are_used_again_when_their_batch_is_dropped(table_of: Callable[..., str]) -> None:
    rooms = SharedBuffers()
    first, second = rooms.take(1000), rooms.take(1000)
    lease = ReceivedBuffer(first)
    assert first is not second and len(lease.view()) > 1000
    assert not any(rooms.take(10) is room for room in (first, second))
    del lease
    assert rooms.take(900) is first
    table_of("plain", "large")
    expected = [FieldChooser()(sample) for sample in tartools.read(["plain.tar", "large.tar"])]
    for kept in (True, False):
        batches, found = [], []
        for batch in loader("t.parquet", 3, shuffle=False, num_workers=2, persistent_workers=True):
            batches.append(batch) if kept else found.extend(batch)
        assert [sample for batch in batches for sample in batch] + found == expected
