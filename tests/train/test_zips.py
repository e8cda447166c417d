"""`ZipDataset`: samples of zip files by number, in any process, and damage told."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import DataLoader

from tartools.errors import SampleError, StorageError, TarFormatError
from tartools.train import ZipDataset
from tests.archives import encoded
from tests.commands.test_zip import of_zip, with_mode, zipped
from tests.storage.objects.faults import FaultServer
from tests.tiers import also

COUNT = 60
MEMBERS = [
    (f"photos/{n:03d}.{field}", payload)
    for n in range(COUNT)
    for field, payload in (("jpg", bytes([n]) * (n * 37)), ("cls", b"%d" % (n % 7)))
]


def kept(value: Any) -> Any:
    """Return *value*: what DataLoader is given to leave batches as they are."""
    return value


def expected(url: str) -> list[dict[str, Any]]:
    fields = dict(MEMBERS)
    keys = [f"photos/{n:03d}" for n in range(COUNT)]
    return [{"__key__": key, "__url__": url, "jpg": fields[key + ".jpg"], "cls": fields[key + ".cls"]} for key in keys]


@pytest.fixture
def archive(tmp_path: Path) -> str:
    """A zip file of the 60 samples, with deflated members."""
    path = tmp_path / "photos.zip"
    path.write_bytes(zipped([("photos/", b""), *MEMBERS], zipfile.ZIP_DEFLATED))
    return str(path)


def test_samples_by_number(archive: str, tmp_path: Path) -> None:
    data = ZipDataset(archive)
    assert (len(data), [data[n] for n in range(COUNT)]) == (COUNT, expected(archive))
    assert data.__getitems__([7, 59, 7, 0]) == [expected(archive)[n] for n in (7, 59, 7, 0)]
    assert data[-1] == expected(archive)[-1]
    for wrong in (COUNT, -COUNT - 1):
        with pytest.raises(IndexError):
            data[wrong]
    other = tmp_path / "other.zip"
    other.write_bytes(zipped([("x.jpg", b"1"), ("README", b"2"), ("x.cls", b"3")]))
    with pytest.warns(UserWarning, match=r"other.zip: the key 'x' comes back after other samples"):
        both = ZipDataset([str(tmp_path / "{photos,other}.zip")], fields=("__key__",))
    assert [key for (key,) in (both[n] for n in range(len(both)))] == [
        *(sample["__key__"] for sample in expected(archive)),
        *("x", "README", "x"),
    ]


def test_the_directory_is_read_once(archive: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []

    class Counted(zipfile.ZipFile):
        def __init__(self, file: Any) -> None:
            opened.append(file)
            super().__init__(file)

    monkeypatch.setattr(zipfile, "ZipFile", Counted)
    data = ZipDataset(archive)
    assert [data[n] for n in range(COUNT)] == expected(archive)
    again = pickle.loads(pickle.dumps(data))
    assert again.__getitems__(range(COUNT)) == expected(archive)
    assert len(opened) == 2


def test_decoded_fields(tmp_path: Path) -> None:
    picture = encoded(Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3)), "png")
    (tmp_path / "a.zip").write_bytes(zipped([("cats/a.png", picture), ("cats/b.png", picture)]))
    data = ZipDataset(
        str(tmp_path / "a.zip"), ("png", "__key__"), "rgb8", transform=(None, lambda key: key.partition("/")[0])
    )
    picture, label = data[1]
    assert (picture.shape, picture.dtype, picture.sum(), label) == ((4, 4, 3), np.uint8, 48 * 47 // 2, "cats")
    with pytest.raises(SampleError, match=r"a.zip: sample 'cats/a': has no field 'jpg'; its fields are: png$"):
        ZipDataset(str(tmp_path / "a.zip"), ("jpg",))[0]


@pytest.mark.parametrize("method", ["fork", *also("spawn", "forkserver")])
def test_workers_have_files_of_their_own(method: str, archive: str) -> None:
    data = ZipDataset(archive)
    assert data[3] == expected(archive)[3]  # the file is open before the workers start
    assert len(pickle.dumps(data)) < 1000
    loader = DataLoader(data, batch_size=7, num_workers=2, multiprocessing_context=method, collate_fn=kept)
    assert [sample for batch in loader for sample in batch] == expected(archive)


def test_one_request_a_sample(server: FaultServer) -> None:
    content = zipped(MEMBERS)
    server.objects["photos.zip"] = content
    url = server.url("s3", "photos.zip")
    data = ZipDataset(url)
    assert len(data) == COUNT
    before = len(server.requests)
    assert data.__getitems__([50, 3, 20, 3]) == [expected(url)[n] for n in (50, 3, 20, 3)]
    assert len(server.requests) - before == 4
    assert pickle.loads(pickle.dumps(data))[9] == expected(url)[9]
    server.objects["photos.zip"] = content.replace(b"photos", b"fotos2")
    with pytest.raises(StorageError, match=r"photos.zip: .*was replaced"):
        data[0]
    with pytest.raises(StorageError, match=r"photos.zip: .*was changed or replaced"):
        pickle.loads(pickle.dumps(data))[0]


def test_a_changed_file_is_told(archive: str) -> None:
    data = ZipDataset(archive)
    assert data[0] == expected(archive)[0]
    os.utime(archive, (1, 1))
    for again in (data, pickle.loads(pickle.dumps(data))):
        with pytest.raises(StorageError, match=r"photos.zip: was changed or replaced since this dataset was made"):
            again[1]


def test_a_file_of_the_same_size_and_time_is_told_by_its_directory(archive: str) -> None:
    """Before a process that is started for a worker has read it."""
    data, path = ZipDataset(archive), Path(archive)
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b"photos/", b"fotos2/"))
    os.utime(archive, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert ZipDataset(archive)[0]["__key__"].startswith("fotos2/")
    with pytest.raises(StorageError, match=r"photos.zip: was changed or replaced since this dataset was made"):
        pickle.loads(pickle.dumps(data))[1]


def test_what_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(zipped([("a.jpg", b"1"), (with_mode("b.jpg", 0o120777), b"a.jpg")]))
    with pytest.raises(SampleError, match=r"a.zip: the member 'b.jpg' is a symbolic link, which has no payload"):
        ZipDataset(str(tmp_path / "a.zip"))
    (tmp_path / "b.zip").write_bytes(content := zipped(MEMBERS)[:-1])
    with pytest.raises(TarFormatError, match=f"b.zip: at byte {len(content)}: this zip file is truncated: its end"):
        ZipDataset(str(tmp_path / "b.zip"))


def test_members_far_apart(tmp_path: Path) -> None:
    """Adjacent in the directory, but not in the file, as after an update."""
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("b.jpg", b"2" * 100_000)
        file.writestr("a.jpg", b"1" * 70_000)
        file.writestr("c.jpg", b"3" * 200_000)
        info = zipfile.ZipInfo("a.cls")
        info.extra = b"\xfe\xca\x78\x00" + bytes(120)  # more than what is read ahead
        file.writestr(info, b"7")
        file.filelist.sort(key=lambda info: info.filename)
    data = ZipDataset(str(path), fields=("jpg",))
    assert [member for member, _ in of_zip(path.read_bytes())] == ["a.cls", "a.jpg", "b.jpg", "c.jpg"]
    assert [data[n][0] for n in range(3)] == [b"1" * 70_000, b"2" * 100_000, b"3" * 200_000]
    assert ZipDataset(str(path), fields=("cls",))[0] == (b"7",)
