"""Training over joined tables: the samples, batches and states that a copy would give, and only the shards it needs."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tartools
from tartools.errors import StorageError
from tartools.train import TableDataset, WebDataset, loader
from tests.conftest import Run, make_tar
from tests.storage.objects.faults import FaultServer
from tests.tiers import also

COUNT = 61
SIZES = {"small": 500, "large": 30_000}  # of which payloads are read one by one

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*fork.*:DeprecationWarning", "ignore:This DataLoader will create:UserWarning"
)


@pytest.fixture
def made(run: Run, tmp_path: Path) -> Callable[..., None]:
    """Return a function that writes sets A and B, `joined.parquet`, and `copy.parquet` of the copy."""

    def made(kind: str = "small", left: bool = False) -> None:
        draw = random.Random(3)
        keys = [f"d/{n:03d}" for n in range(COUNT)]
        a = [
            (f"{k}.{field}", data)
            for k in keys
            for field, data in (("jpg", draw.randbytes(SIZES[kind])), ("cls", b"7"))
        ]
        of_b = [key for key in keys if not left or key[-1] != "3"]
        draw.shuffle(of_b)
        b = [
            (f"{k}.{field}", data) for k in of_b for field, data in (("npy", draw.randbytes(700)), ("txt", k.encode()))
        ]
        (tmp_path / "a.tar").write_bytes(make_tar(a))
        (tmp_path / "b-0.tar").write_bytes(make_tar(b[:60]))
        (tmp_path / "b-1.tar").write_bytes(make_tar(b[60:]))
        words = ["--left"] if left else []
        assert run("tarjoin", *words, "a.tar", "b-*.tar", "-o", "joined.parquet").status == 0
        assert run("tarjoin", *words, "a.tar", "b-*.tar", "-o", "copy.tar").status == 0
        run("tarindex", "copy.tar", "-o", "copy.parquet").output()

    return made


def without_url(sample: dict[str, Any]) -> list[tuple[str, Any]]:
    return [item for item in sample.items() if item[0] != "__url__"]


def samples_of(batches: Any) -> list[Any]:
    return [without_url(sample) for batch in batches for sample in batch]


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("kind", list(SIZES))
def test_batches_are_those_of_the_copy(made: Callable[..., None], kind: str, left: bool) -> None:
    made(kind, left)
    joined, copy = TableDataset("joined.parquet"), TableDataset("copy.parquet")
    rows = random.Random(1).choices(range(COUNT), k=40)
    assert joined.table.bulk(rows) is not None
    for some in (rows, list(range(COUNT)), [3], [13, 13]):
        expected = [without_url(sample) for sample in copy.batch(some)]
        assert [without_url(sample) for sample in joined.batch(some)] == expected
        in_room = joined.batch(some, lambda size: memoryview(bytearray(size)))
        assert [without_url(sample) for sample in in_room] == expected
        assert [without_url(joined[row]) for row in some] == expected
    assert {sample["__url__"] for sample in joined.batch(rows)} == {"a.tar"}
    for fields in ("cls", "npy;jpg __key__", "jpg", *([] if left else ["jpg npy", "txt;npy"])):
        expected = list(TableDataset("copy.parquet", fields).batch(rows))
        assert list(TableDataset("joined.parquet", fields).batch(rows)) == expected, fields
    assert len(TableDataset("joined.parquet", "npy", missing="skip")) == (COUNT - 6 if left else COUNT)


@pytest.mark.parametrize("method", ["fork", *also("spawn", "forkserver")])
@pytest.mark.parametrize("workers", [0, 2, *also(1, 3)])
def test_cover_and_exact_resume(made: Callable[..., None], workers: int, method: str) -> None:
    made()
    context = method if workers else None

    def of(world: int, rank: int, url: str = "joined.parquet") -> Any:
        return loader(url, 7, seed=1, rank=rank, world_size=world, num_workers=workers, multiprocessing_context=context)

    whole = samples_of(of(1, 0))
    assert len({json.dumps(sample[0]) for sample in whole}) == COUNT
    assert whole == samples_of(of(1, 0, "copy.parquet"))
    ranks = [samples_of(of(2, rank)) for rank in range(2)]
    assert sorted(map(repr, {repr(sample) for rank in ranks for sample in rank})) == sorted(map(repr, map(repr, whole)))
    begun = of(1, 0)
    batches = iter(begun)
    first = samples_of(next(batches) for _ in range(3))
    state = json.loads(json.dumps(begun.state_dict()))
    del batches
    again = of(1, 0)
    again.load_state_dict(state)
    assert first + samples_of(again) == whole
    shared = []
    for rank in range(2):  # the rest of the epoch on two ranks
        other = of(2, rank)
        other.load_state_dict(state)
        shared += samples_of(other)
    assert {repr(sample) for sample in shared} == {repr(sample) for sample in whole[21:]}


def test_streams_over_joined_tables(made: Callable[..., None]) -> None:
    made(left=True)
    of_joined = [without_url(sample) for sample in WebDataset("joined.parquet", shuffle=0)]
    assert of_joined == [without_url(sample) for sample in WebDataset("copy.tar", shuffle=0)]


def test_of_other_sets_nothing_is_opened(made: Callable[..., None], tmp_path: Path) -> None:
    made()
    expected = list(TableDataset("copy.parquet", "jpg cls").batch(list(range(COUNT))))
    for path in tmp_path.glob("b-*.tar"):
        path.unlink()
    data = TableDataset("joined.parquet", "jpg cls")
    assert list(data.batch(list(range(COUNT)))) == expected
    assert [data[row] for row in range(COUNT)] == expected
    (tmp_path / "a.tar").unlink()
    with pytest.raises(StorageError, match=r"a\.tar"):
        TableDataset("joined.parquet", "jpg cls")[0]


def test_of_other_sets_nothing_is_requested(made: Callable[..., None], run: Run, server: FaultServer) -> None:
    made()
    for name in ("a.tar", "b-0.tar", "b-1.tar"):
        server.objects[name] = Path(name).read_bytes()
    urls = [server.url("s3", name) for name in ("a.tar", "b-0.tar", "b-1.tar")]
    run("tarindex", urls[0], "-o", "far-a.parquet", env=server.env).output()
    run("tarindex", *urls[1:], "-o", "far-b.parquet", env=server.env).output()
    assert run("tarjoin", "far-a.parquet", "far-b.parquet", "-o", "far.parquet", env=server.env).status == 0
    before = {name: len(server.asked("GET", name)) for name in server.objects}
    copy = TableDataset("copy.parquet", "npy txt")
    data = TableDataset("far.parquet", "npy txt")
    assert list(data.batch(list(range(COUNT)))) == list(copy.batch(list(range(COUNT))))
    assert len(server.asked("GET", "a.tar")) == before["a.tar"]
    assert len(server.asked("GET", "b-0.tar")) > before["b-0.tar"]
    both = TableDataset("far.parquet")
    assert [without_url(sample) for sample in both.batch([5, 2, 9])] == [
        without_url(sample) for sample in TableDataset("copy.parquet").batch([5, 2, 9])
    ]


def test_a_replaced_set_is_refused_by_state_and_by_reading(made: Callable[..., None], run: Run, tmp_path: Path) -> None:
    made()
    begun = loader("joined.parquet", 7, seed=1, rank=0, world_size=1)
    next(iter(begun))
    state = begun.state_dict()
    (tmp_path / "b-0.tar").write_bytes((tmp_path / "b-0.tar").read_bytes() + bytes(10240))
    with pytest.raises(StorageError, match=r"b-0\.tar.*join again"):
        list(TableDataset("joined.parquet").batch(list(range(COUNT))))
    assert run("tarjoin", "a.tar", "b-*.tar", "-o", "again.parquet").status == 0
    other = loader("again.parquet", 7, seed=1, rank=0, world_size=1)
    with pytest.raises(ValueError, match="other data"):
        other.load_state_dict(state)
    assert tartools.Table("joined.parquet").digest() != tartools.Table("again.parquet").digest()


def test_parts_as_files_by_ranges(made: Callable[..., None], run: Run, server: FaultServer) -> None:
    big = random.Random(1).randbytes(3 << 20)
    server.objects["v.tar"] = make_tar([("k.mp4", big), ("k.cls", b"1")])
    server.objects["t.tar"] = make_tar([("k.txt", b"a caption")])
    urls = [server.url("s3", name) for name in ("v.tar", "t.tar")]
    assert run("tarjoin", *urls, "-o", "vt.parquet", env=server.env).status == 0
    before = len(server.asked("GET", "v.tar"))

    def middle(file: Any) -> bytes:
        file.seek(1 << 20)
        return bytes(file.read(10))

    data = TableDataset("vt.parquet", "mp4 txt", {"mp4": "file"}, (middle, None))
    assert data[0] == (big[1 << 20 :][:10], "a caption")
    received = sum(len(big) for request in server.asked("GET", "v.tar")[before:] if "range" not in request.headers)
    assert received == 0
