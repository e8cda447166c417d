"""Damage, servers and workers that fail: an exception in the process that trains, never a shorter epoch."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, get_worker_info

from tartools.errors import StorageError, TarFormatError, TruncatedError
from tartools.train import WebDataset, samples
from tests.conftest import Run, make_samples, make_tar
from tests.storage.objects import inside
from tests.storage.objects.faults import Fault, FaultServer

COUNT = 120  # samples in each shard


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make three shards in the current directory."""
    monkeypatch.chdir(tmp_path)
    for number in range(3):
        Path(f"{number}.tar").write_bytes(make_tar(make_samples(COUNT, COUNT * number)))
    return tmp_path


@contextmanager
def failing(kind: type[Exception], text: str) -> Iterator[None]:
    """Check that the block fails; let go of the iterator that the frames hold, so that its workers end now."""
    with pytest.raises(kind, match=text) as failure:
        yield
    traceback.clear_frames(failure.tb)


def everything(urls: str, workers: int) -> list[str]:
    """Iterate with so many *workers*; return the keys. An exception has to come out here."""
    loader = DataLoader(samples(urls), batch_size=None, num_workers=workers)
    return [sample["__key__"] for sample in loader]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("urls", ["{0..2}.tar", "1.tar"])
def test_damage_is_an_exception(urls: str, workers: int, run: Run) -> None:
    sound = Path("1.tar").read_bytes()
    at = sound.index(b"000200.jpg")
    Path("1.tar").write_bytes(sound[: at + 700])
    with failing(TruncatedError, rf"1\.tar: at byte {at + 700}: the input ends inside the payload"):
        everything(urls, workers)
    flipped = bytearray(sound)
    flipped[at + 3] ^= 1
    Path("1.tar").write_bytes(flipped)
    with failing(TarFormatError, rf"1\.tar: at byte {at}: header checksum does not match"):
        everything(urls, workers)

    Path("1.tar").write_bytes(sound)
    data = samples(urls)  # which looks for all shards
    Path("1.tar").unlink()
    with failing(StorageError, r"1\.tar: No such file"):
        list(DataLoader(data, batch_size=None, num_workers=workers))
    with failing(StorageError, r"1\.tar: No such file"):
        samples(urls)


def test_a_shard_that_was_replaced_by_one_of_the_same_size(run: Run) -> None:
    assert run("tarindex", "{0..2}.tar", "-o", "t.parquet").status == 0
    other = make_tar([(name.replace("0001", "0009"), data) for name, data in make_samples(COUNT, COUNT)])
    assert len(other) == Path("1.tar").stat().st_size
    Path("1.tar").write_bytes(other)
    for workers in (0, 2):
        with failing(StorageError, r"1\.tar: (at byte \d+: )?.*row \d+ of t\.parquet"):
            everything("t.parquet", workers)


def kill(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["__key__"] == "000150":
        info = get_worker_info()
        assert info is not None
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


def test_a_worker_that_is_killed() -> None:
    loader = DataLoader(WebDataset("{0..2}.tar").map(kill), batch_size=None, num_workers=2)
    with failing(RuntimeError, r"killed by signal: Killed|exited unexpectedly"):
        list(loader)


def test_a_server_that_drops_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one try misses the next one brings; if none does, it is an exception with the byte."""
    data = make_tar(make_samples(400))
    monkeypatch.setattr(inside.retry, "FIRST_PAUSE", 0.0005)
    monkeypatch.setenv("TARTOOLS_TRIES", "3")
    with FaultServer() as server:
        server.objects["a.tar"] = data
        url = server.url("http", "a.tar")
        every = everything(url, 0)
        assert len(every) == 400
        server.faults = [Fault("a.tar", cut=100_000, reset=True, times=2), Fault("a.tar", dropped=True)]
        assert sorted(everything(url, 2)) == sorted(every)
        server.faults = [Fault("a.tar", cut=100_000, reset=True, times=1), Fault("a.tar", dropped=True, times=None)]
        with failing(StorageError, rf"{url}: at byte \d+: "):
            everything(url, 0)
