"""The small store that tarbench starts: what our reader of Cloud Storage gets from it is what the files are."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from tartools.errors import StorageError
from tartools.storage import files, serving
from tartools.storage.contents import contents
from tartools.storage.names.listing import ls
from tartools.storage.objects.fetch import fetched

COUNT = 1100  # more than a page of a listing


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Serve a folder from a thread."""
    (tmp_path / "many").mkdir()
    for n in range(COUNT):
        (tmp_path / "many" / f"{n:04d} %?.bin").write_bytes(b"%d" % n * (n % 3))
    made = serving.listening()
    host, port = made.getsockname()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://{host}:{port}")
    watched, alive = os.pipe()
    thread = threading.Thread(target=serving.serve, args=(made, str(tmp_path), 0.0, watched))
    thread.start()
    yield tmp_path
    os.close(alive)
    thread.join()
    os.close(watched)


def test_no_name_leads_out_of_the_folder(folder: Path) -> None:
    inside = folder / "many" / "0001 %?.bin"
    server = urlsplit(os.environ["STORAGE_EMULATOR_HOST"])
    for name in ("many/../many/0001 %?.bin", "../" * 9 + str(inside)[1:], "./" + "many", "many//0001 %?.bin", "a\0b"):
        for path in ("/download/storage/v1/b/bench/o/{}?alt=media", "/storage/v1/b/bench/o/{}"):
            with closing(HTTPConnection(server.hostname or "", server.port)) as connection:
                connection.request("GET", path.format(quote(name, safe="")))
                answer = connection.getresponse()
                assert (answer.status, b"No such object" in answer.read()) == (404, True), name


def test_objects_are_the_files(folder: Path) -> None:
    (folder / "large.bin").write_bytes(bytes(range(256)) * 20_000)
    found = [*ls("gs://bench/many/")]
    assert [entry.url for entry in found] == [f"gs://bench/many/{n:04d} %?.bin" for n in range(COUNT)]
    assert [*contents(found)] == [b"%d" % n * (n % 3) for n in range(COUNT)]
    (large,) = ls("gs://bench/large.bin")
    assert (large.size, large.version) == (5_120_000, str((folder / "large.bin").stat().st_mtime_ns))
    version = f"{large.size} {large.version}"
    assert fetched(large.url, 1_000_000, 1_000_300, version) == (bytes(range(256)) * 3)[64:364]
    with files.reading(large.url) as file:
        assert file.read() == (folder / "large.bin").read_bytes()
    (folder / "large.bin").write_bytes(b"other")
    with pytest.raises(StorageError, match=r"^gs://bench/large\.bin: at byte 0: was replaced since"):
        fetched(large.url, 0, 10, version)
    with pytest.raises(StorageError, match=r"^gs://bench/none: "):
        files.reading("gs://bench/none").read()
