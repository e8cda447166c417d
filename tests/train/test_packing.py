"""`pack`: any dataset to shards and their table; the same bytes in every run, also in one that was stopped."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import logging
import multiprocessing
import os
import signal
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, Subset

import tartools
from tartools.errors import SampleError, StorageError, UsageError
from tartools.train import TableDataset, pack
from tests.conftest import BIN, has_end, members_of
from tests.processes import until
from tests.storage.objects.faults import FaultServer

COUNT = 50


class Folder(Dataset[Any]):
    """What torchvision's ImageFolder has: `samples`, (path, class), a loader and transforms."""

    def __init__(self, root: Path, watch: Callable[[], None] | None = None) -> None:
        self.samples = [(str(root / f"{n % 3}" / f"{n:03d}.JPG"), n % 3) for n in range(COUNT)]
        self.loader = Image.open
        self.target_transform: Callable[[int], Any] | None = None
        self.watch = watch
        for n, (path, _) in enumerate(self.samples):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_bytes(payload(n))

    def __len__(self) -> int:
        if self.watch is not None:
            self.watch()
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("original files are not opened")


def payload(n: int) -> bytes:
    """Return bytes that no decoder would take: they are copied as they are."""
    return bytes([n]) * (700 * (n % 9))


def expected(order: list[int]) -> list[tuple[str, bytes]]:
    return [
        (f"{n:09d}.{field}", value) for n in order for field, value in (("jpg", payload(n)), ("cls", b"%d" % (n % 3)))
    ]


def shards(folder: Path) -> dict[str, bytes]:
    """Return the shards in *folder* by name."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.tar"))}


def members(folder: Path) -> list[tuple[str, bytes]]:
    found = shards(folder).values()
    assert all(map(has_end, found))
    return [member for shard in found for member in members_of(shard)]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "pictures")


def test_original_files_in_any_number_of_workers(folder: Folder, tmp_path: Path) -> None:
    outputs = [tmp_path / name for name in "abc"]
    for output, workers in zip(outputs, (0, 1, 2), strict=True):
        output.mkdir()
        torch.manual_seed(5)
        table = pack(folder, f"{output}/train", max_size=50_000, workers=workers)
        assert torch.rand(1) == torch.rand(1, generator=torch.Generator().manual_seed(5))  # nothing was drawn
        assert table == f"{output}/train.parquet"
        assert sorted(os.listdir(output)) == [*shards(output), "train.parquet"]
    assert shards(outputs[0]) == shards(outputs[1]) == shards(outputs[2])
    assert members(outputs[0]) == expected([*range(COUNT)])
    sizes = [len(shard) for shard in shards(outputs[0]).values()]
    assert max(sizes) <= 50_000 and min(sizes[:-1]) > 35_000
    data = TableDataset(table, fields=("jpg", "cls"))
    assert [data[n] for n in range(COUNT)] == [(payload(n), b"%d" % (n % 3)) for n in range(COUNT)]
    names = [f"train-{n:06d}.tar" for n in range(len(sizes))]
    subprocess.run([BIN / "tarindex", *names, "-o", "x.parquet"], cwd=outputs[2], check=True)
    assert tartools.Table(table).arrow.to_pylist() == tartools.Table(f"{outputs[2]}/x.parquet").arrow.to_pylist()


def test_a_seed_is_an_order(folder: Folder, tmp_path: Path) -> None:
    found = {}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        (tmp_path / name).mkdir()
        pack(folder, f"{tmp_path / name}/", max_count=20, seed=seed)
        found[name] = shards(tmp_path / name)
        assert [len(members_of(shard)) for shard in found[name].values()] == [40, 40, 20]
        assert (tmp_path / name / "samples.parquet").exists()
    assert found["a"] == found["b"] != found["c"]
    order = [int(key[:9]) for key, _ in members(tmp_path / "a")[::2]]
    assert sorted(order) == [*range(COUNT)] and members(tmp_path / "a") == expected(order)
    assert order[:8] == [11, 24, 26, 8, 42, 44, 45, 46]  # on every machine


def test_a_shard_is_filled_to_its_last_byte(tmp_path: Path) -> None:
    pack([{"a": 1, "b": 2, "c": 3}] * 4, f"{tmp_path}/x", max_size=10_240)  # nine members, and the end
    assert [len(members_of(shard)) for shard in shards(tmp_path).values()] == [9, 3]


@pytest.mark.parametrize(
    ("output", "table"), [("a-%02d.tar", "a"), ("%02d.tar", "samples"), ("-%02d.tar", "samples"), ("a", "a")]
)
def test_the_table_is_named_as_the_shards(output: str, table: str, tmp_path: Path) -> None:
    assert pack([{"a": 1}], f"{tmp_path}/{output}") == f"{tmp_path}/{table}.parquet"


def test_labels_and_subsets_of_folders(folder: Folder, tmp_path: Path) -> None:
    folder.target_transform = "abc".__getitem__
    pack(Subset(Subset(folder, range(10, 30)), [3, 5]), str(tmp_path / "%02d.tar"))
    assert members_of((tmp_path / "00.tar").read_bytes()) == [
        *(("000000000.jpg", payload(13)), ("000000000.txt", b"b")),
        *(("000000001.jpg", payload(15)), ("000000001.txt", b"a")),
    ]


class Stopping(Folder):
    """One that waits for ever before the 32nd label."""

    given = 0

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.target_transform = self._label

    def _label(self, value: int) -> int:
        self.given += 1
        if self.given == 32:
            signal.pause()
        return value


def test_a_killed_run_is_started_again(folder: Folder, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    whole.mkdir()
    out.mkdir()
    pack(folder, f"{whole}/train", max_count=10, seed=3)
    stopping = Stopping(tmp_path / "pictures")
    options = {"max_count": 10, "seed": 3}
    process = multiprocessing.get_context("fork").Process(target=pack, args=(stopping, f"{out}/train"), kwargs=options)
    process.start()
    until(lambda: len(shards(out)) == 3 or not process.is_alive())
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert [*shards(out)] == [*shards(whole)][:3] and not (out / "train.parquet").exists()
    before = {path.name: path.stat().st_mtime_ns for path in out.glob("*.tar")}
    with caplog.at_level(logging.INFO, "tartools.train"):
        pack(folder, f"{out}/train", max_count=10, seed=3, workers=1)
    assert shards(out) == shards(whole)
    assert {name: (out / name).stat().st_mtime_ns for name in before} == before
    assert [text.rpartition(": ")[2] for text in caplog.messages] == ["is there, 10 samples"] * 3 + [
        "written, 10 samples"
    ] * 2
    for name in ("train-000001.tar", "train-000004.tar"):  # what somebody removed is made again
        (out / name).unlink()
    assert pack(folder, f"{out}/train", max_count=10, seed=3) == f"{out}/train.parquet"
    assert shards(out) == shards(whole)
    data = TableDataset(f"{out}/train.parquet", fields=("jpg",))
    assert b"".join(data[n][0] for n in range(COUNT)) == b"".join(p for key, p in members(whole) if key.endswith("jpg"))


def test_other_shards_are_not_taken_for_these(folder: Folder, tmp_path: Path) -> None:
    output = str(tmp_path / "train")
    pack(folder, output, max_count=20)
    other = r"train-000000.tar: holds other samples than would be written now"
    for options in (
        {"max_count": 10},
        {"max_count": 30},
        {"max_count": 20, "seed": 1},
        {"max_count": 20, "max_size": 20480},
    ):
        with pytest.raises(StorageError, match=other):
            pack(folder, output, **options)  # type: ignore[arg-type]
    with pytest.raises(StorageError, match=r"train.parquet: is a table of 50 samples, and the dataset has 40"):
        pack(Subset(folder, range(40)), output, max_count=20)
    (tmp_path / "train.parquet").unlink()
    with pytest.raises(StorageError, match=r"train-000002.tar: exists, and is not one of these shards"):
        pack(Subset(folder, range(40)), output, max_count=20)
    assert not (tmp_path / "train.parquet").exists()
    with pytest.raises(UsageError, match="compressed"):
        pack(folder, str(tmp_path / "x.tar.zst"))
    with pytest.raises(ValueError, match="empty"):
        pack([], str(tmp_path / "x"))
    assert members(tmp_path) == expected([*range(COUNT)])


def test_objects_on_a_server_need_no_disk(server: FaultServer, tmp_path: Path) -> None:
    held: list[int] = []

    def watch() -> None:
        """Note the bytes of the open files of this process that have no name."""
        total = 0
        for fd in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):  # that of the listing is closed
                about = os.fstat(fd)
                total += about.st_size if stat.S_ISREG(about.st_mode) and not about.st_nlink else 0
        held.append(total)

    folder = Folder(tmp_path / "pictures", watch)
    (tmp_path / "local").mkdir()
    pack(folder, f"{tmp_path}/local/train", max_size="50KB", seed=9)
    before = held[0]  # of other tests
    held.clear()
    table = pack(folder, server.url("s3", "d/train"), max_size="50KB", seed=9)
    assert len(held) > COUNT and max(held) - before <= 2 * 50_000
    found = {name.removeprefix("d/"): data for name, data in server.objects.items() if name.endswith(".tar")}
    assert found == shards(tmp_path / "local")
    del server.objects["d/train-000001.tar"]
    sent = len(server.requests)
    assert pack(folder, server.url("s3", "d/train"), max_size="50KB", seed=9) == table
    assert {name.removeprefix("d/"): data for name, data in server.objects.items() if name.endswith(".tar")} == found
    written = {
        request.target.partition("?")[0].rpartition("/")[2]
        for request in server.requests[sent:]
        if request.method in ("PUT", "POST")
    }
    assert written == {"train-000001.tar", "train.parquet"}
    assert sorted(sample["__key__"] for sample in TableDataset(table)) == [f"{n:09d}" for n in range(COUNT)]  # type: ignore[attr-defined]


RED = np.zeros((6, 5, 3), np.uint8) + np.array([200, 10, 10], np.uint8)


def packed(items: list[Any], output: Path, **options: Any) -> list[tuple[str, bytes]]:
    """Return the members that *items* become."""
    output.mkdir(parents=True, exist_ok=True)
    pack(items, f"{output}/x", **options)
    return [(name.partition(".")[2], payload) for name, payload in members(output)]


def test_what_values_become(tmp_path: Path) -> None:
    array, picture = np.arange(6, dtype=np.float32).reshape(2, 3), Image.fromarray(RED)
    found = packed(
        [
            (picture, 3),
            (torch.from_numpy(array), torch.tensor(2)),
            (array, array),
            ("a text", "label"),
            (picture.convert("RGBA"), {"boxes": [[1, 2.5]]}),
            {"__key__": "k", "image": picture, "seg.png": picture, "label": np.int64(4), "score": 0.5, "emb": array,
             "meta": {"a": 1}, "raw": b"\0", "ok": True, "caption": "ü"},
        ],
        tmp_path / "a",
    )  # fmt: skip
    assert [name for name, _ in found] == [
        *("png", "cls", "npy", "cls", "npy", "label.npy", "txt", "label.txt", "png", "json"),
        *("image.png", "seg.png", "label", "score", "emb.npy", "meta.json", "raw", "ok", "caption"),
    ]
    values = [payload for _, payload in found]
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(values[0]))), RED)
    assert (
        np.array_equal(np.load(io.BytesIO(values[2]), allow_pickle=False), array)
        and values[2] == values[4] == values[5]
    )
    assert Image.open(io.BytesIO(values[8])).mode == "RGBA"
    assert json.loads(values[9]) == {"boxes": [[1, 2.5]]}
    assert [values[n] for n in (1, 3, 6, 7, 12, 13, 16, 17, 18)] == [
        *(b"3", b"2", b"a text", b"label", b"4", b"0.5", b"\0", b"1", "ü".encode()),
    ]


def test_text_of_compressed_fields_is_compressed(tmp_path: Path) -> None:
    array = np.arange(3)
    item = {"txt.gz": "hello", "json.gz": {"a": 1}, "cls.gz": 7, "npy.gz": array, "bin.gz": gzip.compress(b"raw")}
    found = dict(packed([item], tmp_path / "a"))
    unpacked = {name: gzip.decompress(data) for name, data in found.items()}
    assert np.array_equal(np.load(io.BytesIO(unpacked.pop("npy.gz"))), array)
    assert unpacked == {"txt.gz": b"hello", "json.gz": b'{"a": 1}', "cls.gz": b"7", "bin.gz": b"raw"}


@pytest.mark.parametrize(("kind", "form"), [("jpg", "JPEG"), ("png", "PNG"), ("webp", "WEBP")])
def test_formats_of_pictures(kind: str, form: str, tmp_path: Path) -> None:
    items = [(Image.fromarray(RED), 1), (RED, 2), (RED[:, :, 0], 3), (Image.fromarray(RED).convert("P"), 4)]
    found = packed(items, tmp_path / kind, encode=kind)
    assert found == packed(items, tmp_path / "again", encode=kind, workers=2)
    assert [name for name, _ in found] == [kind, "cls"] * 4
    for _, payload in found[::2]:
        picture = Image.open(io.BytesIO(payload))
        assert picture.format == form and abs(np.asarray(picture.convert("RGB"))[3, 3, 0].astype(int) - 200) < 6


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ((np.array([object()]), 1), "TypeError: field 'npy': Object arrays cannot be saved"),
        ((RED, {1, 2}), "TypeError: cannot write values of type set"),
        ((RED, 1, 2), "TypeError: an item is a dict, or a picture and its label; not tuple"),
        ((1, RED), "TypeError: the first of two is a picture, an array or text; not int"),
        ({}, "a sample '000000001' has no fields"),
    ],
)
def test_an_item_that_can_not_be_written(item: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(SampleError, match="^item 1 of the dataset: " + said.replace("a sample", "sample")):
        pack([(RED, 1), item], str(tmp_path / "x"), workers=1 if item == {} else 0)
    assert os.listdir(tmp_path) == []


def test_shards_are_as_recorded(tmp_path: Path) -> None:
    """The same items give the same bytes in every release: else a run could not be resumed by another one."""
    pack(
        [{"txt": f"text {n}", "cls": n, "meta": {"n": n}} for n in range(100)],
        str(tmp_path / "x"),
        max_count=60,
        seed=0,
    )
    digests = [hashlib.sha256(shard).hexdigest()[:16] for shard in shards(tmp_path).values()]
    assert digests == ["f4b731b53718d3c1", "e0605e730977ed5f"]


def test_writer_and_pack_write_the_same_of_tensors(tmp_path: Path) -> None:
    item: dict[str, Any] = {
        "cls": torch.tensor(3),
        "json": {"loss": torch.tensor(0.5), "at": np.arange(2)},
        "x.npy": torch.arange(3.0, requires_grad=True),
        "npz": {"a": torch.ones(2)},
        "mp.gz": [torch.tensor(1)],
        "ten": torch.zeros(2, 2),
        "pth": {"a": torch.arange(2)},
    }
    tartools.write([{"__key__": "000000000", **item}], tmp_path / "a.tar")
    pack([item], tmp_path / "b")
    assert members_of((tmp_path / "a.tar").read_bytes()) == members_of((tmp_path / "b-000000.tar").read_bytes())
    (sample,) = tartools.read(tmp_path / "a.tar")
    assert torch.load(sample.open("pth"), weights_only=True)["a"].tolist() == [0, 1]
    with pytest.raises(SampleError, match="field 'pth': this would be unpickled"):
        TableDataset(tmp_path / "b.parquet", decode="basic")[0]
    with pytest.raises(TypeError, match=r"'npy': .*BFloat16"):
        tartools.write([{"__key__": "a", "npy": torch.zeros(1, dtype=torch.bfloat16)}], tmp_path / "c.tar")
