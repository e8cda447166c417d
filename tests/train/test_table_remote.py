"""`TableDataset` and `loader` over a server: as few requests as can be, the same samples, or an error with the byte."""

from __future__ import annotations

import random
import threading

import pytest

import tartools
from tartools.errors import StorageError
from tartools.storage.objects import requests_at_once
from tartools.train import StatefulSampler, TableDataset
from tests.conftest import Run, make_tar
from tests.storage.objects.faults import Fault, FaultServer

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
COUNT, NAME = 400, "a.tar"
DRAW = random.Random(1)
BINS = [DRAW.randbytes(9000) for _ in range(COUNT)]
WHOLE = make_tar([m for n in range(COUNT) for m in ((f"{n}.bin", BINS[n]), (f"{n}.cls", b"%d" % n))])
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
        assert data.__getitems__(range(COUNT)) == [(value,) for value in BINS]
        begins = sorted(request.start or 0 for request in server.requests)
        assert (len(begins), sum(asked(server))) == (times, COUNT * SIZE)
        server.faults = [Fault(NAME, start=begin, cut=700) for begin in begins]
        assert data.__getitems__(range(COUNT)) == [(value,) for value in BINS]
        assert sorted(request.start or 0 for request in server.requests) == [
            place for begin in begins for place in (begin, begin + 700)
        ]
        server.requests.clear()


def test_nothing_is_written_to_the_room_behind_an_error(server: FaultServer) -> None:
    table = tartools.Table("t.parquet")
    table.bulk(range(COUNT))
    begin, *_ = sorted(request.start or 0 for request in server.requests)[1:]
    end = begin + (1 << 20) // SIZE * SIZE
    stalled = Fault(NAME, start=begin, cut=700, stall=True)
    server.faults = [Fault(NAME, start=0, status=403), stalled]
    room, failures = bytearray(COUNT * SIZE), []

    def read() -> None:
        try:
            table.bulk(range(COUNT), lambda size: memoryview(room)[:size])
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
