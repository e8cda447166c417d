"""Checkpoints: what was saved is loaded, at any URL; what fails leaves the one before, which loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tartools.errors import StorageError
from tartools.storage import seekable
from tartools.storage.objects import uploads
from tartools.train import checkpoint
from tests.storage.objects.faults import SCHEMES, Fault, FaultServer
from tests.tiers import also, by_turns

PLACES = ["s3", "path", *also(*(scheme for scheme in SCHEMES if scheme != "s3"))]


def state(seed: int) -> dict[str, torch.Tensor]:
    """Return what a model has: 7.5 MB, and something small."""
    made = torch.Generator().manual_seed(seed)
    return {f"layer{n}": torch.randn(625, 1000, generator=made) for n in range(3)} | {"step": torch.tensor(seed)}


def save(url: str, seed: int) -> None:
    with checkpoint.writer(url) as file:
        torch.save(state(seed), file)


def has(url: str, seed: int) -> bool:
    """Tell whether *url* loads, and has what was saved of *seed*."""
    with checkpoint.reader(url) as file:
        found: dict[str, Any] = torch.load(file, weights_only=True)
    return found.keys() == state(seed).keys() and all(map(torch.equal, found.values(), state(seed).values()))


@pytest.fixture(params=PLACES)
def url(request: pytest.FixtureRequest, server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return where a checkpoint is to be."""
    monkeypatch.setattr(uploads, "PART", 5 << 20)
    place = str(request.param)
    return str(tmp_path / "model.pt") if place == "path" else server.url(place, "model.pt")


def test_what_was_saved_is_loaded(url: str, server: FaultServer) -> None:
    save(url, 1)
    assert has(url, 1)
    save(url, 2)
    server.requests.clear()
    assert has(url, 2)
    asked = [request for request in server.requests if request.method == "GET" and (request.start or 0) > 0]
    near_end = [request for request in asked if (request.start or 0) >= 7_500_000 - seekable.TAIL]
    assert len(near_end) == (url[0] != "/")  # the directory, which torch reads piece by piece, is one range
    assert len(asked) <= 6  # of 256 KiB, and twice as many each time
    assert server.pending == 0


def test_the_format_before_is_saved_and_loaded(url: str) -> None:
    with checkpoint.writer(url) as file:
        torch.save(state(1), file, _use_new_zipfile_serialization=False)
    assert has(url, 1)


def test_an_exception_leaves_the_one_before(url: str, server: FaultServer, tmp_path: Path) -> None:
    save(url, 1)
    with pytest.raises(KeyError), checkpoint.writer(url) as file:
        torch.save(state(2), file)
        raise KeyError
    assert has(url, 1)
    server.faults = [Fault(method="PUT", status=403, skip=url[:2] in ("s3", "ai"), code="AccessDenied")]
    if url[0] != "/":
        with pytest.raises(StorageError, match=r"model\.pt: "):
            save(url, 3)
        assert server.faults[0].played == 1
    server.faults = []
    assert has(url, 1)
    assert server.pending == 0 and [path.name for path in tmp_path.iterdir()] == ["model.pt"] * (url[0] == "/")


@pytest.mark.parametrize("scheme", SCHEMES)
@by_turns("scheme")
def test_damage_is_a_failure(scheme: str, server: FaultServer) -> None:
    url = server.url(scheme, "model.pt")
    save(url, 1)
    good = server.objects["model.pt"]
    server.faults = [
        Fault("model.pt", "GET", start=262144, cut=1000),
        Fault("model.pt", "GET", start=786432, status=503),
    ]
    assert has(url, 1)
    replaced = pytest.raises(StorageError, match=r"model\.pt: (at byte \d+: )?was (replaced|deleted)")
    with replaced, checkpoint.reader(url) as file:
        file.read(10)
        server.objects["model.pt"] = bytes(len(good))
        file.seek(0)
        torch.load(file, weights_only=True)
    server.objects.clear()
    with pytest.raises(StorageError, match="no such object"), checkpoint.reader(url):
        pass
