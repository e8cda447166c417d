"""Python programs that do not close what they write: nothing appears, nothing is left pending.

Each writes a shard and a file, of two parts and a bit, unless told otherwise.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest

import tartools
from tartools.errors import StorageError
from tartools.storage.objects import uploads
from tests.conftest import Result, members_of, python
from tests.storage.objects import fake_s3
from tests.storage.objects.conftest import WRITTEN
from tests.storage.objects.faults import Fault, FaultServer
from tests.storage.objects.inside import Inside
from tests.tiers import by_turns

pytestmark = by_turns("scheme")
PART = 256 << 10
BULK = bytes(range(256)) * 2400  # bytes: two parts and a bit
PROGRAM = f"""
import os, sys
import tartools
from tartools.storage.objects import uploads

uploads.PART = {PART}
shard, file = tartools.TarWriter(sys.argv[1]), tartools.open(sys.argv[2], "wb")
bulk = bytes(range(256)) * 2400

def write():
    shard.write({{"__key__": "a", "bin": bulk}})
    shard.write({{"__key__": "b", "bin": b"1"}})
    file.write(bulk)
"""
schemes = pytest.mark.parametrize("scheme", [*WRITTEN, "path"])


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "PART", PART)
    monkeypatch.setattr(fake_s3, "SMALLEST_PART", PART)


class Places:
    """The objects on a server, and the files in a folder: those of the scheme "path"."""

    def __init__(self, server: FaultServer, folder: Path) -> None:
        self.server, self.folder = server, folder
        folder.mkdir()

    def url(self, scheme: str, name: str) -> str:
        """Return where *name* is."""
        return str(self.folder / name) if scheme == "path" else self.server.url(scheme, name)

    @property
    def all(self) -> tuple[dict[str, bytes], int]:
        """What there is, hidden files too, and how many uploads are pending."""
        files = {path.name: path.read_bytes() for path in self.folder.iterdir()}
        return self.server.objects | files, self.server.pending


@pytest.fixture
def here(empty: Inside, tmp_path: Path) -> Places:
    """Return the folder `files`, and a server that this process finds."""
    return Places(empty.server, tmp_path / "files")


def run_program(places: Places, scheme: str, ending: str) -> Result:
    """Run `PROGRAM` with *ending* behind it; it writes the objects `shard` and `file`."""
    return python(PROGRAM + ending, places.url(scheme, "shard"), places.url(scheme, "file"), env=places.server.env)


NOTHING: tuple[dict[str, bytes], int] = {}, 0


# ---- in this process ----


def into_shard(url: str, **options: bool) -> tartools.TarWriter:
    """Return a writer of samples that has begun to write."""
    writer = tartools.TarWriter(url, **options)
    writer.write({"__key__": "a", "bin": BULK})
    writer.write({"__key__": "b", "bin": b"1"})
    return writer


def into_file(url: str, **options: bool) -> tartools.storage.seekable.WritableFile:
    """Return a file that has begun to be written."""
    file = tartools.open(url, "wb", **options)
    file.write(BULK)
    return file


kinds = pytest.mark.parametrize("begin", [into_shard, into_file], ids=["shard", "file"])
Begin = Callable[..., tartools.TarWriter]


@schemes
@kinds
@pytest.mark.parametrize("circle", [False, True], ids=["", "in a circle"])
def test_what_is_forgotten(circle: bool, begin: Begin, scheme: str, here: Places) -> None:
    held: list[object] = [begin(here.url(scheme, "out"))]
    held += [held] * circle
    assert here.server.pending == (scheme not in ("http", "path"))
    del held
    gc.collect()
    assert here.all == NOTHING


@schemes
@kinds
def test_an_exception_in_the_block(begin: Begin, scheme: str, here: Places) -> None:
    for error in (ValueError, KeyboardInterrupt, GeneratorExit):
        with pytest.raises(error), begin(here.url(scheme, "out")):
            raise error
        assert here.all == NOTHING


@schemes
@pytest.mark.parametrize("begin", [tartools.TarWriter, into_shard, into_file], ids=["opened", "shard", "file"])
def test_what_exists(begin: Begin, scheme: str, here: Places) -> None:
    """A shard is refused when it is opened, unless by force."""
    with tartools.open(here.url(scheme, "out"), "wb", force=True) as file:
        file.write(b"one")
    with pytest.raises(StorageError, match="already exists; force=True replaces it"):
        begin(here.url(scheme, "out"))
    assert here.all == ({"out": b"one"}, 0)
    begin(here.url(scheme, "out"), force=True).close()
    assert len(here.all[0]["out"]) >= 10240 and here.all[1] == 0


@schemes
@kinds
def test_only_the_first_end_counts(begin: Begin, scheme: str, here: Places) -> None:
    writer = begin(here.url(scheme, "out"))
    writer.abort()
    writer.close()
    writer.abort()
    assert here.all == NOTHING
    writer = begin(here.url(scheme, "out"))
    writer.close()
    whole = here.all[0]["out"]
    writer.close()
    writer.abort()
    with writer:
        pass
    assert here.all == ({"out": whole}, 0)
    assert whole == BULK or members_of(whole) == [("a.bin", BULK), ("b.bin", b"1")]


@schemes
@kinds
def test_an_end_that_fails(begin: Begin, scheme: str, here: Places) -> None:
    writer = begin(here.url(scheme, "out"))
    here.server.faults = [Fault(method=method, status=403, times=None) for method in ("PUT", "POST")]
    there = NOTHING
    if scheme == "path":
        (here.folder / "out").write_bytes(b"somebody was faster")
        there = {"out": b"somebody was faster"}, 0
    with pytest.raises(StorageError, match=r"no permission to write|already exists"):
        writer.close()
    writer.close()
    assert here.all == there


@schemes
def test_what_is_closed_is_closed(scheme: str, here: Places) -> None:
    file, shard = into_file(here.url(scheme, "file")), into_shard(here.url(scheme, "shard"))
    for writer in (file, shard):
        writer.close()
    with pytest.raises(ValueError, match="closed"):
        file.write(b"1")
    with pytest.raises(ValueError, match="closed"):
        shard.write({"__key__": "c", "bin": b"1"})
    assert file.closed and here.all[0]["file"] == BULK


# ---- programs that end ----


@schemes
@pytest.mark.parametrize(
    ("ending", "status"),
    [("write()", 0), ("write(); sys.exit(3)", 3), ("write(); raise ValueError", 1), ("sys.exit()", 0)],
    ids=["end", "exit", "exception", "empty"],
)
def test_a_program_that_ends(ending: str, status: int, scheme: str, here: Places) -> None:
    done = run_program(here, scheme, ending)
    assert done.status == status
    assert done.stderr.splitlines()[-1:] == (["ValueError"] if status == 1 else []), done.stderr
    assert here.all == NOTHING


@schemes
def test_a_fork_that_ends_leaves_its_parent_alone(scheme: str, here: Places) -> None:
    """Its copies of the writers end with it, be it by exit or because they are forgotten."""
    ending = """
import gc, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forks where there are threads
write()
for end in (sys.exit, os._exit):
    if not os.fork():
        if end is os._exit:
            del shard, file
            gc.collect()
        end(0)
    assert os.wait()[1] == 0
shard.write({"__key__": "c", "bin": bulk})
shard.close()
file.close()
"""
    run_program(here, scheme, ending).output()
    found, pending = here.all
    assert [name for name, _ in members_of(found["shard"])] == ["a.bin", "b.bin", "c.bin"]
    assert (found["file"], pending) == (BULK, 0)
