"""Remote shards from the local disk, by `cache=`: in this process and in workers, however they are started."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from tests.conftest import make_tar
from tests.schedule import needs_torch
from tests.storage.objects.faults import FaultServer
from tests.tiers import also

pytestmark = needs_torch
SHARDS = {f"{n}.tar": make_tar([(f"{n}-{k}.txt", bytes([k]) * 50_000) for k in range(30)]) for n in range(2)}


@pytest.fixture
def server(server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> FaultServer:
    server.objects.update(SHARDS)
    monkeypatch.setenv("TARTOOLS_CACHE", "")  # what `cache=` sets goes after the test
    return server


def data_bytes(server: FaultServer) -> int:
    """Return how many requests for more than a byte were made."""
    return sum(request.headers.get("range") not in (None, "bytes=0-0") for request in server.asked("GET"))


@pytest.mark.parametrize("method", ["fork", *also("forkserver", "spawn")])
def test_a_second_epoch(method: str, server: FaultServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import tartools.train

    urls = [server.url("http", name) for name in SHARDS]
    data = tartools.train.loader(
        urls,
        10,
        fields="txt",
        shuffle=False,
        cache=f"{tmp_path}/cache:1G",
        num_workers=2,
        multiprocessing_context=method,
    )
    expected = [bytes([k]) * 50_000 for _ in SHARDS for k in range(30)]
    caplog.set_level(logging.INFO, "tartools.train")
    for epoch in range(2):
        asked = data_bytes(server)
        assert [payload for batch in data for (payload,) in batch] == expected
        assert data_bytes(server) == asked or not epoch
    said = re.compile(r"cache: (\d\S* \w+) were there, (\d\S* \w+) fetched, (\d\S* \w+) of them kept")
    assert caplog.messages and all(map(said.fullmatch, caplog.messages))


def test_web_dataset_takes_the_names_of_webdataset(server: FaultServer, tmp_path: Path) -> None:
    import tartools.train

    urls = [server.url("http", name) for name in SHARDS]
    for _ in range(2):
        data = tartools.train.WebDataset(urls, cache_dir=str(tmp_path / "cache"), cache_size=10**9)
        asked = data_bytes(server)
        assert sum(len(sample["txt"]) for sample in data) == 60 * 50_000
    assert data_bytes(server) == asked > 0
