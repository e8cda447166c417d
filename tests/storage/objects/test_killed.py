"""Commands that are ended while they write, and Python programs that do not close what they write.

Nothing appears, nothing is left pending, and commands die of the signal. Their input is held open, so that they cannot
come to their end; when they have come so far as a test wants, the server knows by the requests that it has seen. The
programs write a shard and a file, of two parts and a bit, unless told otherwise.
"""

from __future__ import annotations

import gc
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tartools
from tartools.commands import tarcat
from tartools.errors import StorageError
from tartools.storage.objects import uploads
from tests.conftest import BIN, Result, make_samples, make_tar, members_of, python, running
from tests.processes import until
from tests.storage.objects import fake_s3
from tests.storage.objects.conftest import WRITTEN
from tests.storage.objects.faults import Fault, FaultServer
from tests.storage.objects.inside import Inside
from tests.storage.objects.wire import Request
from tests.tiers import by_turns

PATIENCE = 60.0  # seconds, after which something that has to come is taken not to
SMALL = make_tar([(f"{n}.bin", random.Random(n).randbytes(1 << 20)) for n in range(4)])  # more than a pipe holds
BIG = make_tar([(f"{n:02d}.bin", random.Random(n).randbytes(1 << 20)) for n in range(34)])  # three parts
HASTY = f"import {uploads.__name__} as uploads; uploads.ABORT_SECONDS = 1.0\n"
HASTY += f"from {tarcat.__name__} import tarcat; tarcat()"
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
IN_PARTS = pytest.mark.parametrize("scheme", ["s3", "gs", "ais"])


class Recorded(list[Request]):
    """Requests, which somebody waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = threading.Condition()

    def append(self, request: Request) -> None:
        """Add one of which the body has not been received yet."""
        with self.changed:
            super().append(request)
            self.changed.notify_all()

    def __setitem__(self, place: Any, request: Any) -> None:
        with self.changed:
            super().__setitem__(place, request)
            self.changed.notify_all()


@pytest.fixture
def watched(faulty: FaultServer) -> FaultServer:
    """Return a server whose requests can be waited for, with an older object `out`."""
    faulty.requests = Recorded()
    faulty.objects["out"] = b"old"
    return faulty


def wait_until(server: FaultServer, holds: Callable[[], object]) -> None:
    """Wait until *holds*, which is looked at when a request has come, and now and then."""
    assert isinstance(server.requests, Recorded)
    until = time.monotonic() + PATIENCE
    with server.requests.changed:
        while not holds():
            assert time.monotonic() < until, server.requests
            server.requests.changed.wait(0.05)


def sent(server: FaultServer, least: int = 5 << 20) -> int:
    """Return how many bodies of at least so many bytes the server has received."""
    return sum(request.body.size >= least for request in server.requests)


class Writer:
    """A command that writes, and whose input stays open until somebody lets it end."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._feeding: threading.Thread | None = None

    def feed(self, data: bytes, *, end: bool = False) -> None:
        """Begin to write *data* to its input, and then to `end` that."""
        self._feeding = threading.Thread(target=self._feed, args=(data, end))
        self._feeding.start()

    def _feed(self, data: bytes, end: bool) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(data)
            self.process.stdin.flush()
            if end:
                self.end()
        except BrokenPipeError:
            pass  # it has been ended

    def end(self) -> None:
        """Let its input end."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def is_fed(self) -> bool:
        """Tell whether it has read everything, but for what a pipe holds."""
        assert self._feeding is not None
        return not self._feeding.is_alive()

    def died(self) -> tuple[int, str]:
        """Wait until it has ended; return how, and what it said."""
        assert self.process.stderr is not None and self._feeding is not None
        status = self.process.wait(PATIENCE)
        self._feeding.join()
        return status, self.process.stderr.read().decode()


@contextmanager
def started(server: FaultServer, *command: str, hasty: bool = False, **env: str) -> Iterator[Writer]:
    """Run *command*, the name of one of ours and its arguments; a *hasty* tarcat gives up within a second."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    start = [sys.executable, "-c", HASTY] if hasty else [BIN / command[0]]
    with running([*start, *command[1:]], env=server.env | env, **pipes) as process:
        try:
            yield Writer(process)
        finally:
            process.kill()
            assert process.stdin is not None
            try:
                process.stdin.close()
            except BrokenPipeError:
                pass


def copying(server: FaultServer, scheme: str, **options: Any) -> Any:
    """Run tarcat, which replaces the object `out` by what it is fed."""
    return started(server, "tarcat", "--force", "-o", server.url(scheme, "out"), **options)


Moment = Callable[[FaultServer, Writer], object]
MOMENTS: dict[str, tuple[bytes, Moment]] = {  # what is fed but for its end, and when the signal comes
    "before anything was sent": (SMALL, lambda server, writer: writer.is_fed()),
    **{f"request {n}": (BIG, lambda server, writer, n=n: len(server.requests) >= n) for n in (1, 2, 3)},
    "between parts": (BIG, lambda server, writer: sent(server) == 2),
}


@by_turns("scheme")
@pytest.mark.parametrize("scheme", WRITTEN)
@pytest.mark.parametrize("number", [*SIGNALS, signal.SIGKILL])
@pytest.mark.parametrize("moment", MOMENTS)
def test_in_the_middle(moment: str, scheme: str, number: signal.Signals, watched: FaultServer) -> None:
    """Just when a request arrives, be it that which begins the upload; or while nothing is under way."""
    data, comes = MOMENTS[moment]
    if scheme == "http" and data == BIG:
        scheme = "s3"  # a web server is sent all at once
    with copying(watched, scheme) as writer:
        writer.feed(data[:-1_000_000])
        wait_until(watched, lambda: comes(watched, writer))
        writer.process.send_signal(number)
        assert writer.died() == (-number, "")
    assert watched.objects == {"out": b"old"}
    assert data == BIG or sent(watched, 1) == 0
    if not moment.startswith("request") or number != signal.SIGKILL:
        assert watched.pending == (number == signal.SIGKILL and data == BIG)


@IN_PARTS
def test_while_the_upload_begins(scheme: str, watched: FaultServer) -> None:
    """The server has begun it, but its answer is late: when it comes the upload is dropped."""
    held = Fault(method="POST", trickle=(1, 3600), body=b"{}" if scheme == "gs" else None)
    watched.faults = [held]
    with copying(watched, scheme) as writer:
        writer.feed(BIG[:-1_000_000])
        wait_until(watched, lambda: watched.pending)
        writer.process.send_signal(signal.SIGTERM)
        watched.release()
        assert writer.died() == (-signal.SIGTERM, "")
    assert (watched.objects, watched.pending) == ({"out": b"old"}, 0)


@pytest.mark.parametrize("scheme", WRITTEN)
def test_while_the_object_appears(scheme: str, watched: FaultServer) -> None:
    """It is complete, and only the answer is missing: it is all there, and the command dies nevertheless."""
    late: dict[str, Any] = {"trickle": (1, 3600)}
    watched.faults = {
        "s3": [Fault(method="POST", has="uploadId", **late)],
        "gs": [Fault(method="PUT", skip=2, **late)],
        "http": [Fault(method="PUT", late=True)],  # whose answer is its head
        "ais": [Fault(method="POST", has="uploadId", body=b"done", **late)],
    }[scheme]
    with copying(watched, scheme) as writer:
        writer.feed(BIG, end=True)
        wait_until(watched, lambda: watched.objects["out"] == BIG)
        writer.process.send_signal(signal.SIGINT)
        watched.release()
        assert writer.died() == (-signal.SIGINT, "")
    assert (watched.objects, watched.pending) == ({"out": BIG}, 0)


def test_while_the_server_says_nothing() -> None:
    """They wait a while for requests under way, all at once here, and then drop what the server will tell them of."""
    with ExitStack() as stack:
        running = []
        for scheme in WRITTEN:
            server = stack.enter_context(FaultServer())
            server.requests = Recorded()
            server.objects["out"] = b"old"
            server.faults = [Fault(method="PUT", silent=True, times=None)]
            writer = stack.enter_context(copying(server, scheme, hasty=True, TARTOOLS_TIMEOUT="3600"))
            writer.feed(BIG, end=True)
            running.append((server, writer))
        for server, writer in running:
            wait_until(server, partial(server.asked, "PUT"))
            writer.process.send_signal(signal.SIGTERM)
        for server, writer in running:
            assert writer.died() == (-signal.SIGTERM, "")
            assert (server.objects, server.pending) == ({"out": b"old"}, 0)


@by_turns("scheme")
@pytest.mark.parametrize("scheme", WRITTEN)
def test_shards_that_were_complete_stay(scheme: str, watched: FaultServer) -> None:
    watched.objects.clear()
    archive = make_tar(make_samples(7)).rstrip(b"\0")
    with started(watched, "tarsplit", "-n", "2", "-o", watched.url(scheme, "part")) as writer:
        writer.feed(archive + bytes(-len(archive) % 512))
        wait_until(watched, lambda: len(watched.objects) == 3)
        writer.process.send_signal(signal.SIGTERM)
        assert writer.died() == (-signal.SIGTERM, "")
    names = [f"part-{n:06d}.tar" for n in range(3)]
    assert (sorted(watched.objects), watched.pending) == (names, 0)
    assert [m for name in names for m in members_of(watched.objects[name])] == make_samples(6)


@by_turns("data")
@pytest.mark.parametrize("scheme", WRITTEN)
@pytest.mark.parametrize("data", [SMALL, BIG], ids=["small", "big"])
def test_somebody_writes_it_meanwhile(scheme: str, data: bytes, watched: FaultServer) -> None:
    """What came into being behind the first look is not replaced, and is found at the end."""
    watched.objects.clear()
    with started(watched, "tarcat", "-o", url := watched.url(scheme, "out")) as writer:
        writer.feed(data)
        wait_until(watched, writer.is_fed)
        watched.objects["out"] = b"somebody else's"
        writer.end()
        assert writer.died() == (1, f"tarcat: {url}: already exists; --force replaces it\n")
    assert (watched.objects, watched.pending) == ({"out": b"somebody else's"}, 0)


PART = 256 << 10
BULK = bytes(range(256)) * 2400  # bytes: two parts and a bit
PROGRAM = f"""
import os, sys
import tartools
from tartools.storage.objects import uploads

uploads.MIN_PART_BYTES = {PART}
shard, file = tartools.TarWriter(sys.argv[1]), tartools.open(sys.argv[2], "wb")
bulk = bytes(range(256)) * 2400

def write():
    shard.write({{"__key__": "a", "bin": bulk}})
    shard.write({{"__key__": "b", "bin": b"1"}})
    file.write(bulk)
"""


def schemes(test: Callable[..., None]) -> Callable[..., None]:
    """Run *test* on each of the servers that are written to, by turns, and on files."""
    return by_turns("scheme")(pytest.mark.parametrize("scheme", [*WRITTEN, "path"])(test))


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
def here(empty: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """Return the folder `files`, and a server that this process finds, and sends small parts to."""
    monkeypatch.setattr(uploads, "MIN_PART_BYTES", PART)
    monkeypatch.setattr(fake_s3, "SMALLEST_PART", PART)
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
    until(lambda: here.all == NOTHING)  # a thread of the server may have collected it, and still be at it


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
