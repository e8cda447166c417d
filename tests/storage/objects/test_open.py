"""`tartools.open`: URLs as Python files, which do what a local file does, and fetch no more than is read."""

from __future__ import annotations

import csv
import gc
import io
import json
import mmap
import os
import random
import zipfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image

import tartools
from tartools.errors import StorageError
from tartools.storage import seekable
from tartools.storage.objects import ranges
from tests.storage.objects import servers
from tests.storage.objects.conftest import WRITTEN
from tests.storage.objects.faults import SCHEMES, FaultServer
from tests.storage.objects.inside import Inside
from tests.tiers import by_turns

open_url: Any = tartools.open  # whose files are none to a type checker, where it wants an IO[bytes]
DATA = random.Random(0).randbytes(100_000) + b"\n".join(b"line %d" % n for n in range(3000))
FIRST, RANGE = 300, 10_000  # bytes of the first range behind a seek, and of all but the first ones, in this process
each = pytest.mark.parametrize("scheme", SCHEMES)


@pytest.fixture
def here(empty: Inside, monkeypatch: pytest.MonkeyPatch) -> FaultServer:
    """Return a server that this process finds, which asks it for small ranges."""
    monkeypatch.setattr(seekable, "FIRST_RANGE_BYTES", FIRST)
    monkeypatch.setattr(seekable, "TAIL_BYTES", 2000)
    monkeypatch.setattr(seekable, "MAX_SKIPPED_BYTES", 2000)
    monkeypatch.setattr(ranges, "RANGE_BYTES", RANGE)
    return empty.server


@pytest.fixture(params=[*SCHEMES, "plain", "path", "file"])
def place(request: pytest.FixtureRequest, here: FaultServer, tmp_path: Path) -> Iterator[Callable[[bytes], str]]:
    """Return a function that puts bytes somewhere, and returns their URL; "plain" is a server without ranges."""

    def put(data: bytes) -> str:
        if request.param in SCHEMES:
            here.objects["object"] = data
            return here.url(request.param, "object")
        (tmp_path / "object").write_bytes(data)
        return {"plain": f"{base}/object", "path": "object", "file": f"file://{tmp_path}/object"}[request.param]

    with servers.plain(str(tmp_path)) as base:
        yield put


@pytest.fixture(params=[*WRITTEN, "path"])
def written(request: pytest.FixtureRequest, here: FaultServer) -> Iterator[str]:
    """Return the URL of something that is written by the test, and is then read as it was written."""
    yield here.url(request.param, "new") if request.param in SCHEMES else "new"
    assert here.pending == 0


def read(url: str) -> bytes:
    """Return all of *url*."""
    with tartools.open(url) as file:
        return file.read()


# ---- as a local file ----


def attempt(work: Callable[[], Any]) -> Any:
    """Return what *work* returns, or what kind of trouble it meets."""
    try:
        return work()
    except (OSError, ValueError, TypeError) as error:
        return OSError if isinstance(error, OSError) else type(error)


def operations(count: int, size: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield methods of files and what they are called with, at random."""
    dice = random.Random(1)
    for _ in range(count):
        name = dice.choice(["seek", "seek", "read", "read", "readinto", "readline", "tell", "readlines", "read1"])
        arguments: tuple[Any, ...] = ()
        if name == "seek":
            whence = dice.choice([os.SEEK_SET, os.SEEK_CUR, os.SEEK_END])
            arguments = dice.randint(-size, 2 * size) if dice.random() < 0.3 else dice.randint(-2000, 2000), whence
        elif name in ("read", "readline", "readlines"):
            arguments = (dice.choice([0, 1, 10, 299, 1000, 5000]),)
        elif name == "read1":
            arguments = (0,)
        elif name == "readinto":
            arguments = (bytearray(dice.choice([0, 1, 700, 4000])),)
        yield name, arguments


def test_it_does_what_a_local_file_does(place: Callable[[bytes], str], tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(DATA)
    with open("model", "rb") as model, open_url(place(DATA)) as file:
        assert (file.readable(), file.seekable(), file.writable()) == (True, True, False)
        for number, (name, arguments) in enumerate(operations(500, len(DATA))):
            expected = attempt(partial(getattr(model, name), *arguments))
            copies = [bytearray(len(a)) if isinstance(a, bytearray) else a for a in arguments]
            found = attempt(partial(getattr(file, name), *copies))
            assert (found, copies, file.tell()) == (expected, list(arguments), model.tell()), (number, name, arguments)
        model.seek(-5000, os.SEEK_END)
        file.seek(-5000, os.SEEK_END)
        assert list(file) == list(model)
    assert file.closed
    for work in (file.read, file.tell, lambda: file.seek(0)):
        with pytest.raises(ValueError, match="closed"):
            work()


def test_the_ends_of_a_file(place: Callable[[bytes], str]) -> None:
    with open_url(place(DATA)) as file:
        size = len(DATA)
        assert file.seek(0, os.SEEK_END) == size and file.read() == b""
        assert file.seek(-3, os.SEEK_END) == size - 3 and file.read(10) == DATA[-3:] and file.tell() == size
        assert file.seek(10, os.SEEK_CUR) == size + 10 and file.read(1) == b"" and file.tell() == size + 10
        assert file.seek(size - 1) == size - 1 and file.read() == DATA[-1:]
        for offset, whence in ((-1, os.SEEK_SET), (-size - 1, os.SEEK_END), (-size - 1, os.SEEK_CUR)):
            with pytest.raises(OSError, match=r"begin|Invalid argument"):
                file.seek(offset, whence)
        assert file.tell() == size
        assert file.seek(0) == 0 and file.read() == DATA


@pytest.mark.parametrize("size", [0, 1, RANGE, RANGE + 1])
def test_sizes(size: int, place: Callable[[bytes], str]) -> None:
    url = place(DATA[:size])
    assert read(url) == DATA[:size]
    with open_url(url) as file:
        assert file.seek(0, os.SEEK_END) == size
        assert file.seek(-size, os.SEEK_CUR) == 0
        assert file.readinto(room := bytearray(size + 5)) == size
        assert room == DATA[:size] + bytes(5)


def test_a_command_is_read_to_its_end() -> None:
    file = open_url("pipe:printf 'one\\ntwo\\n'")
    assert not file.seekable()
    assert file.readlines() == [b"one\n", b"two\n"]
    file.close()
    with pytest.raises(StorageError, match="status 3"), open_url("pipe:echo 1; exit 3") as file:
        file.read()


# ---- what libraries do with it ----


@by_turns("place")
def test_zipfile_reads(place: Callable[[bytes], str]) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(50):
            archive.writestr(f"{number}.bin", DATA[number * 100 : number * 100 + 5000])
    with open_url(place(made.getvalue())) as file, zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        assert archive.read("7.bin") == DATA[700:5700]
        assert len(archive.namelist()) == 50


@by_turns("written")
def test_zipfile_writes(written: str) -> None:
    with open_url(written, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(5):
            archive.writestr(f"{number}.bin", DATA[number:])
        with archive.open("large.bin", "w") as member:
            member.write(DATA)
    with zipfile.ZipFile(io.BytesIO(read(written))) as archive:
        assert archive.testzip() is None
        assert [archive.read(f"{number}.bin") for number in range(5)] == [DATA[number:] for number in range(5)]
        assert archive.read("large.bin") == DATA


@by_turns("written")
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "BMP", "GIF"])
def test_pillow(form: str, written: str) -> None:
    picture = Image.frombytes("RGB", (100, 80), DATA[: 3 * 100 * 80])
    with open_url(written, "wb") as file:
        picture.save(file, form)
    kept = io.BytesIO()
    picture.save(kept, form)
    assert read(written) == kept.getvalue()
    with open_url(written) as file, Image.open(file) as found, Image.open(kept) as expected:
        assert (found.format, found.size) == (form, (100, 80))
        assert found.tobytes() == expected.tobytes()


@by_turns("written")
@pytest.mark.parametrize("form", ["TIFF", "PDF"])
def test_what_goes_back_to_write_is_refused(form: str, written: str) -> None:
    with pytest.raises(io.UnsupportedOperation, match="seek"), open_url(written, "wb") as file:
        Image.new("RGB", (100, 80)).save(file, form)
    with pytest.raises(StorageError, match=r"no such object|No such file|404 Not Found"):
        open_url(written)


@by_turns("written")
def test_numpy(written: str) -> None:
    array = np.frombuffer(DATA[:80_000], dtype="<u2").reshape(200, 200)
    with open_url(written, "wb") as file:
        np.save(file, array)
        np.save(file, array.T)
    with open_url(written) as file:
        for expected in (array, array.T):
            assert np.array_equal(np.load(file), expected)
        assert file.read() == b""


@by_turns("written")
def test_text(written: str) -> None:
    rows = [["a", "ü\n,"], ["1", "€"]] * 5000
    with open_url(written, "wb") as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        csv.writer(text).writerows(rows)
        text.flush()
        text.detach()
    with io.TextIOWrapper(open_url(written), encoding="utf-8", newline="") as text:
        assert list(csv.reader(text)) == rows
        text.seek(0)
        assert text.readline() == 'a,"ü\n'
        place = text.tell()
        assert text.readline() == ',"\r\n'
        text.seek(place)
        assert text.readline() == ',"\r\n'


@by_turns("written")
def test_text_that_is_closed(written: str) -> None:
    with io.TextIOWrapper(open_url(written, "wb"), encoding="utf-8") as text:
        json.dump({"ü": [1, 2]}, text, ensure_ascii=False)
    assert read(written) == '{"ü": [1, 2]}'.encode()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python 3.13 tells of it, others do not
@pytest.mark.parametrize("block", [False, True])
def test_text_that_is_forgotten(block: bool, written: str) -> None:
    """A wrapper that is forgotten closes what it wraps, of which we must not make an object."""
    file = open_url(written, "wb")
    io.TextIOWrapper(file, encoding="utf-8").write("half of it")
    gc.collect()
    with pytest.raises(StorageError, match="not written: a wrapper of this file was dropped before it was closed"):
        with file if block else nullcontext():
            pass
        file.close()
    with pytest.raises(StorageError, match=r"no such object|No such file|404 Not Found"):
        open_url(written)


def test_text_in_a_block_that_fails(written: str) -> None:
    with pytest.raises(ZeroDivisionError), open_url(written, "wb") as file:
        text = io.TextIOWrapper(file, encoding="utf-8")
        text.write("half of it")
        1 / 0  # noqa: B018
    with pytest.raises(StorageError, match=r"no such object|No such file|404 Not Found"):
        open_url(written)
    assert text.closed


# ---- what it costs ----


@each
def test_the_end_of_a_huge_object_costs_one_range(scheme: str, here: FaultServer, tmp_path: Path) -> None:
    size = 10 << 30
    with open("huge", "wb+") as made:
        made.truncate(size)
        made.seek(size - 1000)
        made.write(DATA[:1000])
        made.flush()
        here.objects["huge"] = cast("bytes", mmap.mmap(made.fileno(), size, access=mmap.ACCESS_READ))
    with open_url(here.url(scheme, "huge")) as file:
        file.seek(-1024, os.SEEK_END)
        assert file.read() == bytes(24) + DATA[:1000]
        asked = [request.headers["range"] for request in here.asked("GET")]
        assert asked[:1] == ["bytes=0-3"]
        assert asked[1:] == [f"bytes={size - seekable.TAIL_BYTES}-{size - 1}"]
        file.seek(-seekable.TAIL_BYTES, os.SEEK_END)
        assert file.read(10) == bytes(10)  # kept
        assert len(here.asked("GET")) == 1 + 1
        file.seek(size // 2)
        assert file.read(10) == bytes(10)
    here.objects.clear()


@each
def test_the_first_range_is_a_quarter_of_a_megabyte(scheme: str, here: FaultServer, monkeypatch: Any) -> None:
    monkeypatch.undo()
    for name, value in here.env.items():
        monkeypatch.setenv(name, value)
    here.objects["object"] = DATA * 20
    with open_url(here.url(scheme, "object")) as file:
        file.seek(-1024, os.SEEK_END)
        assert file.read() == DATA[-1024:]
        end = 20 * len(DATA)
        assert [r.headers["range"] for r in here.asked("GET")][1:] == [f"bytes={end - (64 << 10)}-{end - 1}"]
        file.seek(1000)
        assert file.read(10) == DATA[1000:1010]
        assert here.asked("GET")[-1].headers["range"] == f"bytes=1000-{1000 + (256 << 10) - 1}"
        file.seek(300_000)
        assert file.read(10) == (DATA * 3)[300_000:300_010]
        assert [r.start for r in here.asked("GET")] == [0, end - (64 << 10), 1000, 1000 + (256 << 10)]  # read on


@each
def test_one_member_of_a_zip_costs_little(scheme: str, here: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARTOOLS_READAHEAD", "1")  # several connections, on a busy machine, read further ahead
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for number in range(100):
            archive.writestr(f"{number:02d}.bin", random.Random(number).randbytes(20_000))
    here.objects["zip"] = made.getvalue()
    with open_url(here.url(scheme, "zip")) as file, zipfile.ZipFile(file) as archive:
        assert archive.read("50.bin") == random.Random(50).randbytes(20_000)
    fetched = sum(request.start is not None for request in here.asked("GET"))
    assert fetched == 13 and fetched * RANGE < len(made.getvalue()) / 10


@each
def test_reading_from_end_to_end_takes_each_byte_once(scheme: str, here: FaultServer) -> None:
    """Ranges double from `FIRST` on, but only up to the usual size; the very first is that of four bytes."""
    here.objects["object"] = DATA
    assert read(here.url(scheme, "object")) == DATA
    asked = sorted((r.start or 0, int(r.headers["range"].partition("-")[2]) + 1) for r in here.asked("GET"))
    assert [begin for begin, _ in asked[2:]] == [end for _, end in asked[1:-1]]
    lengths = [end - begin for begin, end in asked]
    assert lengths[:7] == [4, 300, 600, 1200, 2400, 4800, 9600] and set(lengths[7:-1]) == {RANGE}


def test_a_server_without_ranges_is_asked_once_more(tmp_path: Path) -> None:
    (tmp_path / "object").write_bytes(DATA)
    with servers.plain(str(tmp_path)) as base, open_url(f"{base}/object") as file:
        (tmp_path / "object").unlink()  # all of it is here
        for place in (100_000, 0, len(DATA) - 7):
            file.seek(place)
            assert file.read() == DATA[place:]


# ---- what is wrong ----


@each
def test_what_is_not_there(scheme: str, here: FaultServer) -> None:
    with pytest.raises(StorageError, match=r"no such object|404 Not Found"):
        open_url(here.url(scheme, "object"))
    with pytest.raises(StorageError, match="No such file or directory"):
        open_url("object")


def test_modes_and_what_they_do_not_allow(here: FaultServer) -> None:
    url = here.url("s3", "new")
    with pytest.raises(ValueError, match="mode is 'rb' or 'wb', not 'r'"):
        open_url(url, "r")
    with open_url(url, "wb") as file:
        assert (file.readable(), file.seekable(), file.writable()) == (False, False, True)
        for work in (file.read, file.fileno, lambda: file.seek(0), file.truncate):
            with pytest.raises(io.UnsupportedOperation):
                work()
        assert (file.write(b"12"), file.tell(), file.write(bytearray(b"3")), file.tell()) == (2, 2, 1, 3)
        file.writelines([b"4", memoryview(b"56")])
        file.write(np.array([[1, 2], [3, 4]], dtype="<u2"))
        assert file.tell() == 14
    assert here.objects["new"] == b"123456\1\0\2\0\3\0\4\0"
    with open_url(url) as reading, pytest.raises(io.UnsupportedOperation):
        reading.write(b"1")
