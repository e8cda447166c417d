"""A server for what trains in this process, and an end of its workers."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path

import pytest

from tartools.storage.objects import gs, http, retry, s3
from tests.storage.objects.faults import FaultServer


def end_workers() -> None:
    """End the workers of loaders that failed, which tracebacks hold: they have open what this process has open.

    The garbage collector would close their queues first, and each would wait for five seconds before it looks around.
    """
    if multiprocessing.active_children():
        for held in gc.get_objects():
            if hasattr(type(held), "_shutdown_workers"):
                held._shutdown_workers()
        gc.collect()
        for child in multiprocessing.active_children():
            child.join(30)


def be_rank(monkeypatch: pytest.MonkeyPatch, number: int, count: int) -> None:
    """Be the rank *number* of *count* by the environment, as torchrun has it."""
    monkeypatch.setenv("RANK", str(number))
    monkeypatch.setenv("WORLD_SIZE", str(count))


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go to `tmp_path`."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def no_workers_left() -> Iterator[None]:
    """Leave no process behind: the servers that all tests share would wait for them at the end."""
    yield
    end_workers()
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
        monkeypatch.setattr(retry, "FIRST_BACKOFF", 0.0005)
        for cached in (s3._connection_of, http._connections, gs._credentials_for):  # of another environment
            cached.cache_clear()
        yield server
        end_workers()
    assert server.errors == []
