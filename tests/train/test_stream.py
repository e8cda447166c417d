"""Streaming: each sample once an epoch, for any number of shards, ranks and workers; orders; webdataset's stages."""

from __future__ import annotations

import copy
import gzip
import json
import os
import pickle
import random
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed
import torch.multiprocessing
import webdataset
from torch.utils.data import DataLoader

import tartools
from tartools.errors import SampleError, StorageError, UsageError
from tartools.train import WebDataset, samples, sharedmemory
from tartools.train.cursor import ShardSlice
from tartools.train.ranks import ReaderId
from tartools.train.sharedmemory import SentList
from tartools.train.slices import SliceReader, by_number
from tests.archives import END, entry
from tests.conftest import Run, make_samples, make_tar
from tests.shards.test_macos import COUNT, macos_archives
from tests.storage.objects.faults import FaultServer
from tests.tiers import also, by_turns
from tests.train.conftest import be_rank
from tests.train.test_zips import kept

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than cores
    pytest.mark.filterwarnings("ignore:rank . gets about"),  # of a few shards, of which some are compressed
]
Sample = dict[str, Any]


def varied(seed: int, count: int = 60, format: int = tarfile.USTAR_FORMAT) -> bytes:
    """Return an archive of samples of one to three members, of all sizes, with long names if *format* has them."""
    draw = random.Random(seed)
    members = []
    for number in range(count):
        key = f"{seed}/{'x' * draw.choice([1, 120 if format == tarfile.PAX_FORMAT else 2])}{number:04d}"
        fields = ("jpg", "cls", "json")[: draw.randint(1, 3)]
        members += [(f"{key}.{field}", draw.randbytes(draw.choice([0, 1, 512, 700, 5000]))) for field in fields]
    return make_tar(members, format)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the current directory, with shards of all kinds."""
    for number in range(3):
        Path(f"{number}.tar").write_bytes(varied(number))
    Path("pax.tar").write_bytes(varied(5, 80, tarfile.PAX_FORMAT))
    Path("packed.tgz").write_bytes(gzip.compress(varied(6)))
    Path("large.tar").write_bytes(
        make_tar([(f"{n}.{field}", random.Random(n).randbytes(700_000 * n)) for n in range(5) for field in ("a", "b")])
    )
    Path("none.tar").write_bytes(make_tar([]))
    return tmp_path


def read(urls: str | Sequence[str]) -> list[Sample]:
    """Return what `tartools.read` finds, as webdataset has it."""
    return [{"__key__": s.key, "__url__": s.shard, **dict(s.items())} for s in tartools.read(urls)]


def keys(found: Iterable[Sample]) -> list[str]:
    return [sample["__key__"] for sample in found]


def shares(urls: Any, readers: int, epoch: int = 0, **options: Any) -> list[list[Sample]]:
    """Return what each of so many *readers* gets."""
    source = samples(urls, **options)
    return [list(SliceReader(source.urls, source.slices((epoch, 0), ReaderId(n, readers)))) for n in range(readers)]


URLS: list[Any] = [
    "0.tar",
    "pax.tar",
    "packed.tgz",
    "large.tar",
    ["0.tar", "packed.tgz", "pax.tar"],
    ["{0..2}.tar", "large.tar", "none.tar", "packed.tgz"],
    "pipe:cat 1.tar",
]


@pytest.mark.parametrize("urls", URLS, ids=str)
def test_each_sample_has_one_reader(urls: Any, folder: Path) -> None:
    every = read(urls)
    whole = list(samples(urls))
    assert whole == every and [list(sample) for sample in whole] == [list(sample) for sample in every]
    assert all(type(value) is bytes for sample in whole for name, value in sample.items() if name[:2] != "__")
    for readers in (1, 2, 3, 7, 16):
        for shuffle in (False, True):
            found = shares(urls, readers, shuffle=shuffle)
            assert sorted(keys([sample for share in found for sample in share])) == sorted(keys(every))
    if urls in ("0.tar", "pax.tar"):  # each gets something, and parts are in order
        found = shares(urls, 7)
        assert all(found) and [sample for share in found for sample in share] == every


def test_a_table_is_dealt_by_rows(run: Run, folder: Path) -> None:
    assert run("tarindex", "0.tar", "pax.tar", "-o", "t.parquet").status == 0
    every = read(["0.tar", "pax.tar"])
    for readers in (1, 3, 16):
        found = shares("t.parquet", readers)
        assert [(s["__key__"], s.get("jpg")) for share in found for s in share] == [
            (s["__key__"], s.get("jpg")) for s in every
        ]
        assert {len(share) for share in found} <= {140 // readers, 140 // readers + 1}
    assert sorted(keys([*chain(*shares(["t.parquet", "2.tar"], 3))])) == sorted(keys(every + read("2.tar")))


def test_an_archive_in_a_payload_does_not_cut(folder: Path) -> None:
    """Its headers look like those of members, and are in the way of every cut."""
    inner = varied(9, 30)
    members = [(f"{n}.{field}", data) for n in range(9) for field, data in (("tar", inner), ("cls", b"%d" % n))]
    Path("nested.tar").write_bytes(make_tar(members))
    for readers in (2, 5, 8):
        assert [*chain(*shares("nested.tar", readers))] == read("nested.tar")
    # one without an end goes on with the next member of the sample that holds it: this is found out
    inner = inner[: -len(inner) % 512 or None].rstrip(b"\0")
    inner += bytes(-len(inner) % 512)
    Path("bad.tar").write_bytes(make_tar([("a.tar", inner), ("a.cls", b"1"), ("b.cls", b"1"), ("b.txt", b"")]))
    with pytest.raises(StorageError, match=r"^bad.tar: at byte \d+: no sample begins here.*tarindex"):
        shares("bad.tar", 2)


def test_a_global_header_keeps_a_shard_whole(folder: Path) -> None:
    record = b"17 comment=hello\n"
    Path("g.tar").write_bytes(entry(b"pax_global_header", record, b"g") + varied(1))
    assert [len(share) for share in shares("g.tar", 3)] == [60, 0, 0]


def test_a_shard_that_changes_while_a_slice_of_it_is_read(folder: Path) -> None:
    begun = iter(SliceReader(["0.tar"], by_number([ShardSlice(0, 0, 2)])))
    next(begun)
    os.utime("0.tar", ns=(0, 1))
    with pytest.raises(StorageError, match=r"0\.tar: this file changed while it was read"):
        list(begun)


def test_objects_are_cut_too(server: FaultServer) -> None:
    data = varied(3, 400)
    server.objects.update({"a.tar": data, "a.tgz": gzip.compress(data)})
    for url in (server.url("http", "a.tar"), server.url("s3", "a.tar"), server.url("http", "a.tgz")):
        every = read(url)
        assert len(every) == 400
        found = shares(url, 3)
        assert [*chain(*found)] == every and (all(found) or url.endswith("tgz"))


@pytest.mark.parametrize("count", [100, *also(1000)])
def test_many_shards(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(count):
        (tmp_path / f"{number:04d}.tar").write_bytes(entry(b"%d.cls" % number, b"1") + END)
    urls = str(tmp_path / "*.tar")
    every = [str(number) for number in range(count)]
    assert keys(list(samples(urls))) == every
    data = samples(urls, shuffle=True)
    loader = DataLoader(data, batch_size=None, num_workers=2)
    first = keys(list(loader))
    data.set_epoch(1)
    second = keys(list(loader))
    assert sorted(first, key=int) == sorted(second, key=int) == every
    assert first != second and every not in (first, second)
    shares = []
    for rank in range(2):
        be_rank(monkeypatch, rank, 2)
        shares.append(keys(list(DataLoader(WebDataset(urls, shuffle=50), batch_size=None, num_workers=2))))
    assert [len(share) for share in shares] == [count // 2] * 2 and sorted(shares[0] + shares[1], key=int) == every


@pytest.mark.parametrize("method", ["fork", *also("forkserver", "spawn")])
def test_workers_agree_on_the_epoch(method: str, folder: Path) -> None:
    """torch starts them anew in each epoch, or keeps them; the order of shards is that of the epoch that was set."""
    urls = [f"{number}.tar" for number in range(3)]
    every = sorted(keys(read(urls)))
    data = WebDataset(urls, shuffle=20, seed=1)
    loader = DataLoader(data, batch_size=None, num_workers=2 if method == "fork" else 1, multiprocessing_context=method)
    first = keys(list(loader))
    assert sorted(first) == every

    def in_epoch(data: WebDataset, loader: DataLoader[Any], epoch: int) -> list[str]:
        data.set_epoch(epoch)
        return keys(list(loader))

    second = in_epoch(data, loader, 1)
    assert sorted(second) == every and second != first
    if method == "fork":
        epochs = [first, second, in_epoch(data, loader, 2)]
        assert all(sorted(epoch) == every for epoch in epochs) and len({tuple(epoch) for epoch in epochs}) == 3
        assert [in_epoch(data, loader, epoch) for epoch in (1, 1, 2)] == [epochs[1], *epochs[1:]]
        assert keys(list(DataLoader(WebDataset(urls, 20, 1), batch_size=None, num_workers=2))) == first
        assert keys(list(DataLoader(WebDataset(urls, 20, 2), batch_size=None, num_workers=2))) != first
        other = pickle.loads(pickle.dumps(WebDataset(urls, 20, 1)))
        kept = DataLoader(other, batch_size=None, num_workers=2, persistent_workers=True)
        assert [in_epoch(other, kept, epoch) for epoch in range(3)] == epochs


def rank(number: int, numbers: Sequence[int], sets: Sequence[tuple[list[str], WebDataset]]) -> None:
    """What one of two ranks does: it iterates with such *numbers* of workers, and writes the keys that it got."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{Path('place').absolute()}", rank=number, world_size=2
    )
    found = []
    for workers in numbers:
        for urls, data in sets:
            loader = DataLoader(data, batch_size=None, num_workers=workers)
            found += [(urls, keys(list(loader))) for _ in range(2)]
    torch.distributed.destroy_process_group()
    Path(f"rank-{number}").write_text(json.dumps(found))


@pytest.mark.parametrize("numbers", [(0, 2), *also((1, 3))], ids=str)
def test_two_ranks(numbers: Sequence[int], folder: Path) -> None:
    names = (["0.tar"], ["{0..2}.tar", "packed.tgz"])
    sets = [(urls, WebDataset(urls, shuffle=10).select(bool)) for urls in names]  # before there are ranks
    torch.multiprocessing.start_processes(rank, (numbers, sets), nprocs=2, start_method="fork")
    ranks = [json.loads(Path(f"rank-{number}").read_text()) for number in range(2)]
    assert len(ranks[0]) == 8
    for (urls, one), (same, other) in zip(*ranks, strict=True):
        assert urls == same and one and other and sorted(one + other) == sorted(keys(read(urls)))


@pytest.mark.parametrize("workers", [0, *also(3)])
def test_equal_numbers_of_batches(workers: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of different sizes: `with_epoch` gives each rank as many full batches, and repeats samples for it."""
    urls = ["0.tar", "pax.tar", "1.tar"]
    batches: list[list[Any]] = []
    for rank in range(2):
        be_rank(monkeypatch, rank, 2)
        data = WebDataset(urls, shuffle=10).to_tuple("__key__").listed(4, partial=False)
        steps = data.with_epoch(36 // max(workers, 1))
        batches.append(list(DataLoader(steps, batch_size=None, num_workers=workers)))
    assert [len(batch) for share in batches for batch in share] == [4] * 72
    had = {key for share in batches for batch in share for (key,) in batch}
    readers = 2 * max(workers, 1)  # each leaves out what does not fill a batch
    assert had <= {*keys(read(urls))} and len(had) >= 200 - 3 * readers
    with pytest.raises(UsageError, match=r"with_epoch can't give 5 items, because reader 1 of 2 .* has none"):
        list(WebDataset("packed.tgz").with_epoch(5))


def test_resampled(folder: Path) -> None:
    data = WebDataset("{0..2}.tar", resampled=True, seed=4).with_epoch(1000)
    first = keys(list(data))
    data.set_epoch(1)
    second = keys(list(data))
    assert len(first) == len(second) == 1000 and first != second
    assert set(first) <= set(keys(read("{0..2}.tar"))) and first[:60] != first[60:120]
    data.set_epoch(0)
    assert keys(list(data)) == first


# ---- stages ----


@pytest.fixture
def pictures() -> list[tuple[bytes, int]]:
    """Make the shards a-0.tar and a-1.tar of 10 samples; return their payloads."""
    for number in range(2):
        Path(f"a-{number}.tar").write_bytes(make_tar(make_samples(10, 10 * number)))
    return [(sample["jpg"], int(sample["cls"])) for sample in tartools.read("a-{0..1}.tar")]


def test_the_fluid_interface(pictures: list[tuple[bytes, int]]) -> None:
    data = WebDataset("a-{0..1}.tar")
    plain = data.decode(only=["cls"]).to_tuple("png;jpg", "cls")
    assert list(plain) == pictures
    assert list(plain.map_tuple(len, lambda number: -number)) == [(len(a), -b) for a, b in pictures]
    assert [s["n"] for s in data.rename(n="cls")] == [b"%d" % b for _, b in pictures]
    assert len(list(data.select(lambda sample: sample["cls"] == b"3"))) == 2
    assert [list(batch[1]) for batch in plain.batched(8)] == [
        [number for _, number in pictures[first : first + 8]] for first in (0, 8, 16)
    ]
    assert [len(batch) for batch in plain.listed(8, partial=False)] == [8, 8]
    shuffled = list(plain.shuffle(1000))
    assert shuffled != pictures and sorted(shuffled) == sorted(pictures)
    assert [len(batch[1]) for batch in plain.batched(4).with_epoch(3)] == [4, 4, 4]
    assert len(plain.with_length(20)) == 20 == len(pickle.loads(pickle.dumps(plain)))
    assert list(data.repeat(2).to_tuple("cls")) == [(b"%d" % b,) for _, b in [*pictures, *pictures]]


def test_the_keywords(pictures: list[tuple[bytes, int]]) -> None:
    whole = [(len(a), b) for a, b in pictures]
    assert list(WebDataset("a-{0..1}.tar", fields="png;jpg cls", decode="basic", transform=(len, None))) == whole
    assert list(WebDataset("a-{0..1}.tar", extensions="png;JPG cls", decoder="basic", transforms=(len, None))) == whole
    for one, other in ("fields", "extensions"), ("decode", "decoder"), ("transform", "transforms"):
        with pytest.raises(TypeError, match=f"{one} and {other} are one thing"):
            WebDataset("a-0.tar", **{one: len, other: len})  # type: ignore[arg-type]
    orders = [list(WebDataset("a-{0..1}.tar", shuffle).to_tuple("cls")) for shuffle in (True, 1000, 1, False)]
    assert orders[0] == orders[1] != orders[3] and sorted(orders[0]) == sorted(orders[3])
    assert orders[2] in (orders[3], orders[3][10:] + orders[3][:10])  # shards alone
    with pytest.raises(SampleError, match=r"^a-0.tar: sample '000000': has no field 'txt'; its fields are: cls jpg$"):
        list(WebDataset("a-0.tar", fields="txt"))


def test_a_pipeline_of_webdataset(pictures: list[tuple[bytes, int]]) -> None:
    pipeline = webdataset.DataPipeline(
        samples("a-{0..1}.tar"), webdataset.decode(only=["cls"]), webdataset.to_tuple("jpg", "cls")
    )
    loaders: list[Callable[[], Iterator[Any]]] = [
        lambda: iter(pipeline),
        lambda: iter(webdataset.WebLoader(pipeline, batch_size=None, num_workers=2)),
    ]
    for loader in loaders:
        assert sorted(map(tuple, loader())) == sorted(pictures)


@pytest.mark.parametrize("field", ["pyd", "pickle", "pkl", "pth", "pt", "npy"])
def test_nothing_is_unpickled(field: str, tmp_path: Path) -> None:
    array = tmp_path / "a.npy"
    np.save(array, np.array([{"a": 1}]), allow_pickle=True)
    data = array.read_bytes() if field == "npy" else pickle.dumps(os.getcwd)
    (tmp_path / "a.tar").write_bytes(make_tar([(f"k.{field}", data)]))
    url = str(tmp_path / "a.tar")
    for data in (WebDataset(url).decode(), WebDataset(url, decode="pil"), WebDataset(url).decode("pil")):
        with pytest.raises(SampleError, match=rf"^{url}: sample 'k': field '{field}': "):
            list(data)
    with pytest.raises((SampleError, ValueError), match=r"unpickled|No decoder|allow_pickle"):
        list(WebDataset(url).xdecode())


# ---- batches that cross from workers in one buffer are what they are without workers ----


SIZES = (0, 100, sharedmemory.MIN_BUFFER_BYTES - 1, sharedmemory.MIN_BUFFER_BYTES, 30_000, 200_000)


@pytest.fixture
def shard() -> None:
    """Make a shard of 40 samples of all sizes, `a.tar`."""
    sizes = random.Random(1)
    members = [
        (f"{number:03d}.{field}", sizes.randbytes(size))
        for number in range(40)
        for field, size in (("cls", number % 9), ("jpg", sizes.choice(SIZES)))
    ]
    Path("a.tar").write_bytes(make_tar(members))


def nested(samples: list[Any]) -> Any:
    """Collate to lists in a dict."""
    return {
        "all": [{"of": sample, "pair": (sample["jpg"], 1)} for sample in samples],
        "sizes": np.array([len(sample["jpg"]) for sample in samples]),
    }


def types(value: Any) -> Any:
    """Return *value* with the types of all that is in it."""
    if isinstance(value, dict):
        return type(value), [(name, types(item)) for name, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [types(item) for item in value]
    return type(value), value.tolist() if hasattr(value, "tolist") else value


WAYS: dict[str, Callable[[], WebDataset]] = {
    "dicts": lambda: WebDataset("a.tar").listed(6),
    "tuples": lambda: WebDataset("a.tar", fields="jpg cls __key__").batched(6),
    "nested": lambda: WebDataset("a.tar").batched(6, nested),
    "small": lambda: WebDataset("a.tar", fields="cls __key__").batched(6),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("as_it_is", [False, True])
@by_turns("as_it_is")
@pytest.mark.usefixtures("shard")
def test_what_crosses_is_what_was_sent(way: str, as_it_is: bool) -> None:
    """Without *as_it_is*, torch makes tensors of arrays, in copies of lists."""
    options: Any = {"collate_fn": kept} if as_it_is else {}
    alone = [*map(types, DataLoader(WAYS[way](), None, **options))]
    for _ in range(2):
        assert [*map(types, DataLoader(WAYS[way](), None, num_workers=1, **options))] == alone
    assert len(alone) == 7


def test_the_buffer_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = SentList([b"a" * 200_000, [b"b", (b"c" * 5000,)], {"d": b"d" * 70_000}])
    plain = [*batch]
    for other in (pickle.loads(pickle.dumps(batch)), copy.deepcopy(batch), copy.copy(batch)):
        assert other == plain
    assert sharedmemory._buffers._buffers == []  # only a queue takes one
    sent = [ForkingPickler.dumps(batch) for _ in range(2)]
    first, second = sharedmemory._buffers._buffers
    assert all(len(one) < 5000 for one in sent)
    got = [pickle.loads(one) for one in sent]
    assert [*map(types, got)] == [types(plain)] * 2
    assert types(pickle.loads(ForkingPickler.dumps(batch))) == types(plain)
    assert [*map(id, sharedmemory._buffers._buffers)] == [id(first), id(second)]
    sharedmemory._buffers._buffers.clear()
    monkeypatch.setattr(sharedmemory, "SHARED_MEMORY_FOLDER", "/proc")  # a file system that is full
    assert types(pickle.loads(ForkingPickler.dumps(batch))) == types(plain)
    assert sharedmemory._buffers._buffers == []


def test_archives_of_macos_have_whole_samples(tmp_path: Path) -> None:
    def whole(url: str) -> list[Sample]:
        return [{name: value for name, value in sample.items() if name != "__url__"} for sample in WebDataset(url)]

    clean, mac, _ = macos_archives("v1.2/")
    Path("clean.tar").write_bytes(clean)
    Path("mac.tar").write_bytes(mac)
    assert whole("mac.tar") == whole("clean.tar") and len(whole("mac.tar")) == COUNT
