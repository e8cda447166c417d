"""A server for what trains in this process, and an end of its workers."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Iterator
from multiprocessing import forkserver

import pytest

from tartools.storage.objects import retry, s3, s3client
from tests.storage.objects.faults import FaultServer


@pytest.fixture(autouse=True)
def no_workers_left() -> Iterator[None]:
    """End the workers of loaders that failed, which the traceback held: they have open what this process has open.

    Otherwise the servers that all tests share would wait for them at the end.
    """
    yield
    if multiprocessing.active_children():
        gc.collect()
        for child in multiprocessing.active_children():
            child.join(30)
    forkserver._forkserver._stop()  # type: ignore[attr-defined]  # it has the environment of the test that began it
    left = multiprocessing.active_children()
    for child in left:
        child.kill()
    assert not left


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultServer]:
    """Give a server that this process finds under its schemes, and that fails as its `faults` say."""
    with FaultServer() as server:
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(retry, "FIRST_PAUSE", 0.0005)
        for cached in (*vars(s3).values(), *vars(s3client).values()):  # its clients know the environment of before
            if hasattr(cached, "cache_clear"):
                cached.cache_clear()
        yield server
    assert server.errors == []
