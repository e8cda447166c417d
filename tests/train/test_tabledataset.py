"""`TableDataset` and `loader`: every sample once, in the order that is asked for, or an error with URL and byte."""

from __future__ import annotations

import os
import pickle
import random
import resource
import shutil
import tarfile
import threading
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data._utils.pin_memory import pin_memory
from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]

import tartools
from tartools.errors import SampleError, StorageError
from tartools.storage import openfiles
from tartools.storage.objects import requests_at_once
from tartools.train import StatefulSampler, TableDataset, loader
from tartools.train.fieldchooser import FieldChooser
from tartools.train.sharedmemory import SentBuffer, SharedBuffers
from tartools.train.tabledataset import TableBatch
from tartools.train.tabledataset import table_of as indexed
from tests.conftest import FILES, Run, make_tar, open_descriptors
from tests.storage.objects.faults import Fault, FaultServer
from tests.tiers import also, by_turns, exhaustive

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
def table_of(run: Run, tmp_path: Path) -> Callable[..., str]:
    """Return a function that makes shards of samples of some kinds, and their table."""

    def make(*kinds: str) -> str:
        for kind in kinds:
            (tmp_path / f"{kind}.tar").write_bytes(make_tar(members(kind), tarfile.PAX_FORMAT))
        run("tarindex", *(f"{kind}.tar" for kind in kinds), "-o", "t.parquet").output()
        return "t.parquet"

    return make


class Rooms(list[bytearray]):
    """Rooms for batches, of the sizes that are asked for."""

    def of(self, size: int) -> memoryview:
        self.append(bytearray(size))
        return memoryview(self[-1])


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
    rooms = Rooms()
    for some in (rows, list(range(COUNT)), [7]):
        assert data.__getitems__(some) == [expected[n] for n in some]
        for batch in (data.batch(some), data.batch(some, rooms.of)):
            assert [list(sample.items()) for sample in batch] == [list(expected[n].items()) for n in some]
            assert [batch[n] for n in range(len(batch))] == [expected[n] for n in some]
    for fields in ("cls", ("jpg;seg.png", "cls", "__key__"), "seg.PNG;jpg __url__"):
        tuples = [FieldChooser(fields)(sample) for sample in expected]
        for batch in (data_of(fields).batch(rows), data_of(fields).batch(rows, rooms.of)):
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
                list(data_of("jpg").batch(rows, rooms.of))
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


@pytest.mark.parametrize("folder", ["", "v1.2/", "imagenet-1.0/train.x/"])
def test_dots_in_the_names_of_folders(folder: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(
        make_tar([(f"{folder}{n}.{f}", b"%d" % n) for n in range(9) for f in ("cls", "x.y")])
    )
    run("tarindex", "a.tar", "-o", "t.parquet").output()
    batch = TableDataset("t.parquet").batch([3, 1, 8])
    assert isinstance(batch, TableBatch)
    assert [(sample["__key__"], sample["x.y"]) for sample in batch] == [(f"{folder}{n}", b"%d" % n) for n in (3, 1, 8)]


@pytest.mark.parametrize("method", ["forkserver", *also("spawn")])
def test_other_processes(method: str, table_of: Callable[..., str]) -> None:
    table_of("plain")
    data = TableDataset("t.parquet", "cls", ())
    assert len(pickle.dumps(data)) < 1000 and data[3] == (3,)
    raw = loader(TableDataset("t.parquet", "cls"), 20, shuffle=False, num_workers=1, multiprocessing_context=method)
    found = list(raw)
    assert all(isinstance(batch, TableBatch) and isinstance(batch.bulk.data, memoryview) for batch in found)
    assert [int(number) for batch in found for (number,) in batch] == list(range(COUNT))
    assert list(pickle.loads(pickle.dumps(found[0]))) == list(found[0])


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
        with pytest.raises(ValueError, match=r"^the state belongs to other data: other shards"):
            loader(other, 6).load_state_dict(state)
    without = {name: value for name, value in state.items() if name != "data"}
    with pytest.raises(ValueError, match="not a state of a StatefulSampler like this one"):
        loader("t.parquet", 6).load_state_dict(without)
    for data in (range(COUNT), [0] * COUNT):
        with pytest.raises(ValueError, match="other data"):
            StatefulSampler(data, batch_size=6).load_state_dict(state)
    few = StatefulSampler(range(3)).state_dict()  # nothing is known of these but their length
    StatefulSampler([0] * 3).load_state_dict(few)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("batch_size", [None, 9])
@by_turns("workers")
def test_torchdatas_loader(workers: int, batch_size: int | None, table_of: Callable[..., str]) -> None:
    table_of("plain")
    data = TableDataset("t.parquet", "cls", (), itemgetter(0))

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


def collated(samples: list[Any]) -> Iterator[Any]:
    return [int(number) for (number,) in samples]  # type: ignore[return-value]


def test_collation(table_of: Callable[..., str]) -> None:
    table_of("plain")
    for workers in (0, 1):
        options: Any = {"shuffle": False, "num_workers": workers}
        found = list(loader("t.parquet", 30, fields="cls", collate_fn=collated, **options))
        assert found == [list(range(30)), list(range(30, 60)), [60]]
        batch = next(iter(loader("t.parquet", 30, fields="__key__ cls", decode="basic", **options)))
        assert batch[0][2] == "plain/002" and batch[1].tolist() == list(range(30))


def test_rooms_are_used_again_when_their_batch_is_dropped(table_of: Callable[..., str]) -> None:
    rooms = SharedBuffers()
    first, second = rooms.take(1000), rooms.take(1000)
    lease = pickle.loads(ForkingPickler.dumps(SentBuffer(first)))
    assert isinstance(lease, memoryview) and lease[-1] == first[-1] == 1
    assert first is not second and len(lease) > 1000
    lease = lease[:10]  # a payload keeps it
    if not (child := os.fork()):
        del lease
        os._exit(0)
    os.waitpid(child, 0)
    assert not any(rooms.take(10) is room for room in (first, second))
    del lease
    assert first[-1] == 0 and rooms.take(900) is first
    table_of("plain", "large")
    expected = [FieldChooser()(sample) for sample in tartools.read(["plain.tar", "large.tar"])]
    for held in (lambda batch: batch, list, iter):  # who has no more than an iterator keeps the batch
        batches = list(map(held, loader("t.parquet", 3, shuffle=False, num_workers=2, persistent_workers=True)))
        assert [sample for batch in batches for sample in batch] == expected


# ---- more shards than may be open ----

EACH = 10
MANY = pytest.mark.parametrize("many", [100, pytest.param(1000, marks=exhaustive)], indirect=True)


@pytest.fixture
def many(run: Run, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Return a table of so many shards of 10 samples; row n has the key n."""
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
def test_a_batch_of_more_shards_than_may_be_open(many: str) -> None:
    data = TableDataset(many)
    rows = list(range(0, len(data), 7))
    rooms = Rooms()
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(open_descriptors()) + 40, FILES[1]))
    for batch in (data.batch(rows), data.batch(rows, rooms.of), data.table[rows]):
        assert [sample["cls"] for sample in batch] == [b"%d" % row for row in rows]
    assert len(rooms) == 1 and len(data.batch(rows).bulk.fields) == 1  # type: ignore[union-attr]


@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")  # no accelerator
@pytest.mark.parametrize("many", [70], indirect=True)
def test_pinned_memory_leaves_batches_as_they_are(many: str) -> None:
    rows = list(range(0, 700, 70))
    batch = TableDataset(many).batch(rows)
    assert isinstance(batch, TableBatch) and pin_memory(batch) is batch
    assert pin_memory(list(batch)) == list(batch)  # which a batch is that has something unusual
    few = tartools.Table(many).take(rows)
    parts = [rows[:4], rows[4:8], rows[8:]]
    for workers in (0, 1):
        assert rows_of(loader(few, 4, shuffle=False, pin_memory=True, num_workers=workers)) == parts


@pytest.mark.parametrize("many", [13], indirect=True)
def test_files_that_were_slow_once_are_not_taken_to_be_so_for_ever(many: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, now, asked = TableDataset(many), [0.0], []

    def clock() -> float:
        now[0] += 1.0 if len(asked) == 0 else 0.0
        return now[0]

    monkeypatch.setattr(openfiles, "perf_counter", clock)
    monkeypatch.setattr(openfiles.os, "posix_fadvise", lambda *_: asked.append(number), raising=False)
    monkeypatch.setattr(openfiles.os, "POSIX_FADV_WILLNEED", 3, raising=False)
    for number in range(2 * openfiles.READS_BEFORE_ADVICE):
        assert [int(sample["cls"]) for sample in data.batch([number])] == [number]
    assert asked == list(range(1, openfiles.READS_BEFORE_ADVICE + 1))


# ---- columns as fields ----

TWELVE = 12
CAPTIONS = [None if n % 4 == 1 else f"new {n}" for n in range(TWELVE)]
LARGE = [None if n % 4 == 1 else 2**60 + n for n in range(TWELVE)]  # too large for a float
VECTORS = [[n, n + 0.5] for n in range(TWELVE)]


@pytest.fixture(scope="module", params=["small", "large", "odd"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the URL of a table with columns; in shards of odd samples, names are long."""
    folder = tmp_path_factory.mktemp("columns")
    key = "x" * 120 if request.param == "odd" else "x"
    size = 30_000 if request.param == "large" else 3
    members = [(f"{key}{n:02d}.{f}", b"%d" % n * size) for n in range(TWELVE) for f in ("cls", "txt")]
    (folder / "a.tar").write_bytes(make_tar(members, tarfile.PAX_FORMAT))
    rows = indexed(folder / "a.tar").arrow
    new = {"score": range(TWELVE), "caption": CAPTIONS, "vector": VECTORS, "cls": LARGE, "label": ["cat", "dog"] * 6}
    for name, column in new.items():
        rows = rows.append_column(name, pa.array(column))
    tartools.Table.from_arrow(rows).write(folder / "t.parquet")
    return str(folder / "t.parquet")


def test_columns_are_fields_of_each_sample(url: str) -> None:
    whole = TableDataset(url)
    data = TableDataset(url, columns=["score", "caption", "vector", "cls"])
    rows = [5, 3, 3, 11, 0]
    for found in (data.__getitems__(rows), [data[row] for row in rows], list(data.batch(rows))):
        for row, sample in zip(rows, found, strict=True):
            vector, stored = sample.pop("vector"), whole[row]
            assert isinstance(vector, np.ndarray) and vector.tolist() == VECTORS[row]
            other = {} if LARGE[row] is None else {"caption": CAPTIONS[row], "cls": LARGE[row]}
            assert sample == {**stored, "score": row, **other} and type(sample["score"]) is int
    batch = data.batch(rows)
    assert [one["score"] for one in batch] == rows == [batch[n]["score"] for n in range(len(rows))]
    assert data[-1]["score"] == TWELVE - 1
    assert list(TableDataset(url, columns={"TXT": "caption"}).batch(rows)) == [
        {**whole[row], "txt": CAPTIONS[row] or whole[row]["txt"]} for row in rows
    ]


@pytest.mark.parametrize("unit", ["s", "us", "ns"])
def test_times_without_a_value_are_no_field(unit: str, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("a.cls", b"1"), ("b.cls", b"2")]))
    rows = indexed(tmp_path / "a.tar").arrow.append_column("t", pa.array([None, 5], pa.timestamp(unit)))
    tartools.Table.from_arrow(rows).write(tmp_path / "t.parquet")
    first, second = list(TableDataset(str(tmp_path / "t.parquet"), columns="t"))
    assert "t" not in first and second["t"] is not None


@pytest.mark.parametrize("fields", ["score caption;txt", "cls score", "txt;caption __key__", "score label"])
def test_chosen_among_fields_and_columns(fields: str, url: str) -> None:
    rows = list(range(TWELVE))
    stored = TableDataset(url).__getitems__(rows)

    def of(row: int, name: str) -> Any:
        column = {"score": row, "caption": CAPTIONS[row], "label": ("cat", "dog")[row % 2]}.get(name)
        return stored[row].get(name) if column is None else column

    expected = [
        tuple(
            next(value for name in names.split(";") if (value := of(row, name)) is not None) for names in fields.split()
        )
        for row in rows
    ]
    columns = [name for name in ("score", "caption", "label") if name in fields]
    data = TableDataset(url, fields, columns=columns)
    assert list(data.batch(rows)) == expected == [data[row] for row in rows]


@pytest.mark.parametrize("method", ["", "fork", *also("forkserver")])
@pytest.mark.filterwarnings("error:The given NumPy array is not writable")
def test_columns_in_batches_of_a_loader(method: str, url: str) -> None:
    options: dict[str, Any] = {"columns": ["score", "vector", "label"], "shuffle": False}
    options |= {"num_workers": 1, "multiprocessing_context": method} if method else {}
    decoded = loader(url, 5, fields="score vector label", classes={"label": ["dog", "cat"]}, **options)
    scores, vectors, labels = (torch.cat(part) for part in zip(*decoded, strict=True))
    assert scores.tolist() == list(range(TWELVE)) and vectors.tolist() == VECTORS and labels.tolist() == [1, 0] * 6
    raw = list(loader(url, 5, fields="__key__ score", **options | {"columns": "score"}))
    assert [score for batch in raw for _, score in batch] == list(range(TWELVE))
    assert all(isinstance(batch, TableBatch) for batch in raw) or "x" * 120 in raw[0][0][0]


def test_wrong_columns(url: str) -> None:
    with pytest.raises(KeyError, match=r"the table has no column 'size'; it has .* score caption vector cls label"):
        TableDataset(url, columns="score size")
    with pytest.raises(ValueError, match="no field is called '__key__'; name one: "):
        loader(url, 4, columns=["__key__"])
    with pytest.raises(TypeError, match=r"^columns are names"):
        TableDataset(url, columns=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^give columns to the dataset"):
        loader(TableDataset(url), 4, columns="score")
    with pytest.raises(SampleError, match=r"has no field 'caption'; its fields are: cls txt score$"):
        TableDataset(url, "caption", columns="caption score").__getitems__([1])
    assert TableDataset(url, "key", columns={"key": "__key__"})[0][0].endswith("00")
    data = TableDataset(url, "score", columns="score caption")
    again = pickle.loads(pickle.dumps(data))  # without them
    assert len(pickle.dumps(data)) < 1200 and again[7] == (7, "new 7")


# ---- over a server: as few requests as can be, the same samples, or an error with the byte ----


ROWS, NAME = 400, "a.tar"
DRAW = random.Random(1)
BINS = [DRAW.randbytes(9000) for _ in range(ROWS)]
WHOLE = make_tar([m for n in range(ROWS) for m in ((f"{n}.bin", BINS[n]), (f"{n}.cls", b"%d" % n))])
SIZE = 9216 + 1024 + 512  # of a sample


@pytest.fixture
def server(server: FaultServer, run: Run, monkeypatch: pytest.MonkeyPatch) -> FaultServer:
    """Return a server that has a shard, whose table is `t.parquet` here."""
    monkeypatch.setenv("TARTOOLS_TRIES", "3")
    server.objects[NAME] = WHOLE
    run("tarindex", server.url("http", NAME), "-o", "t.parquet").output()
    server.requests.clear()
    return server


def asked(server: FaultServer) -> list[int]:
    """Return how many bytes each request asked for, and forget the requests."""
    assert server.asked("GET", NAME) == server.requests
    found = [request.headers["range"].removeprefix("bytes=").split("-") for request in server.requests]
    server.requests.clear()
    return [int(end) - int(begin) + 1 for begin, end in found]


def test_requests(server: FaultServer) -> None:
    data = TableDataset("t.parquet", "cls", ())
    rows = next(iter(StatefulSampler(data, 3, batch_size=64)))
    assert data.__getitems__(rows) == [(n,) for n in rows]
    sizes = asked(server)
    assert len(sizes) <= 64 <= 3 * requests_at_once()  # three round trips at most, if all go at once that may
    assert 64 * SIZE <= sum(sizes) <= 1.1 * 64 * SIZE
    assert data.__getitems__(range(100, 164)) == [(n,) for n in range(100, 164)]
    assert asked(server) == [64 * SIZE]


def test_many_bytes_come_by_many_connections(server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for most, times in ((32, 5), (2, 2), (1, 1)):
        monkeypatch.setenv("TARTOOLS_READAHEAD", str(most))
        data = TableDataset("t.parquet", "bin", ())
        assert data.__getitems__(range(ROWS)) == [(value,) for value in BINS]
        begins = sorted(request.start or 0 for request in server.requests)
        assert (len(begins), sum(asked(server))) == (times, ROWS * SIZE)
        server.faults = [Fault(NAME, start=begin, cut=700) for begin in begins]
        assert data.__getitems__(range(ROWS)) == [(value,) for value in BINS]
        assert sorted(request.start or 0 for request in server.requests) == [
            place for begin in begins for place in (begin, begin + 700)
        ]
        server.requests.clear()


def test_nothing_is_written_to_the_room_behind_an_error(server: FaultServer) -> None:
    table = tartools.Table("t.parquet")
    table.bulk(range(ROWS))
    begin, *_ = sorted(request.start or 0 for request in server.requests)[1:]
    end = begin + (1 << 20) // SIZE * SIZE
    stalled = Fault(NAME, start=begin, cut=700, stall=True)
    server.faults = [Fault(NAME, start=0, status=403), stalled]
    room, failures = bytearray(ROWS * SIZE), []

    def read() -> None:
        try:
            table.bulk(range(ROWS), lambda size: memoryview(room)[:size])
        except StorageError as error:
            failures.append((error.offset, bytes(room[begin:end])))

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    while not stalled.played and reading.is_alive():
        reading.join(0.01)
    reading.join(0.2)  # it can't be over: a request is under way
    server.release()
    reading.join(60)
    assert failures == [(0, WHOLE[begin:end])]
