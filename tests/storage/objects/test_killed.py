"""Commands that are ended while they write: nothing appears, nothing is left pending, and they die of the signal.

The input is held open, so that they cannot come to their end; when they have come so far as a test wants, the server
knows by the requests that it has seen.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest

from tartools.commands import tarcat
from tartools.storage.objects import uploads
from tests.conftest import BIN, make_samples, make_tar, members_of, running
from tests.storage.objects.conftest import WRITTEN
from tests.storage.objects.faults import Fault, FaultServer
from tests.storage.objects.wire import Request
from tests.tiers import by_turns

PATIENCE = 60.0  # seconds, after which something that has to come is taken not to
SMALL = make_tar([(f"{n}.bin", random.Random(n).randbytes(1 << 20)) for n in range(4)])  # more than a pipe holds
BIG = make_tar([(f"{n:02d}.bin", random.Random(n).randbytes(1 << 20)) for n in range(34)])  # three parts
HASTY = f"import {uploads.__name__} as uploads; uploads.PATIENCE = 1.0\n"
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
