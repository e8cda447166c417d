"""Loose objects, stopped and resumed: what comes before and after is the epoch, by a state and by `StatefulSampler`."""

from __future__ import annotations

import json
from itertools import chain, islice
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from tartools.train import ObjectDataset, ObjectStream, StatefulSampler
from tests.storage.objects.faults import FaultServer
from tests.tiers import exhaustive, in_both

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than cores
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata calls it
]
COUNT = 23


@pytest.fixture
def wanted(server: FaultServer) -> list[str]:
    """Put objects on the server; return their URLs, in order."""
    server.objects.update({f"o{n:02d}": b"%d" % n for n in range(COUNT)})
    return [f"gs://b/o{n:02d}" for n in range(COUNT)]


def stream(**options: Any) -> ObjectStream:
    return ObjectStream("gs://b/o", name_of, **options)


def name_of(data: bytes, url: str) -> str:
    assert data == b"%d" % int(url[-2:])
    return url


def ranked(monkeypatch: pytest.MonkeyPatch, rank: int, world: int) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(world))


@in_both
@pytest.mark.parametrize("shuffle", [False, True])
def test_stream_after_every_item(thorough: bool, shuffle: bool, wanted: list[str]) -> None:
    """Or after some."""
    data = stream(shuffle=shuffle, seed=5)
    data.set_epoch(2)
    whole = list(data)
    assert sorted(whole) == wanted and (whole == wanted) == (not shuffle)
    for stop in range(COUNT + 1) if thorough else (0, 1, 12, COUNT):
        begun = stream(shuffle=shuffle, seed=5)
        begun.set_epoch(2)
        assert list(islice(DataLoader(begun, None), stop)) == whole[:stop]
        state = json.loads(json.dumps(begun.state_dict()))
        resumed = stream(shuffle=shuffle)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        resumed.set_epoch(2)  # as a loop over epochs does
        assert list(DataLoader(resumed, None)) == whole[stop:]
        assert list(resumed) == whole
        resumed.load_state_dict(state)
        resumed.set_epoch(0)
        assert resumed.state_dict()["epoch"] == 0
        assert list(resumed) == list(stream(shuffle=shuffle, seed=5))


@in_both
@pytest.mark.parametrize("drop_last", [False, True])
def test_stream_with_other_ranks_and_workers(
    thorough: bool, drop_last: bool, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranked(monkeypatch, 0, 1)
    whole = list(stream(shuffle=True))
    changes = ((3, 5, 1, 2), (2, 4, 3, 0), (1, 7, 2, 3), (2, 11, 1, 0))
    for before, stop, after, workers in changes if thorough else changes[:2]:
        had, states = [], []
        for rank in range(before):
            ranked(monkeypatch, rank, before)
            data = stream(shuffle=True, drop_last=drop_last)
            had.append(list(islice(data, stop)))
            states.append(data.state_dict())
        assert list(chain(*zip(*had, strict=True))) == whole[: before * stop]
        rest: list[list[str]] = []
        for rank in range(after):
            ranked(monkeypatch, rank, after)
            data = stream(shuffle=True, drop_last=drop_last)
            data.load_state_dict(states[rank % before])
            fork = "fork" if workers else None
            loader: Any = DataLoader(data, None, num_workers=workers, multiprocessing_context=fork)
            rest.append(list(loader))
            if after == 1 and not drop_last:
                assert sorted(loader) == wanted  # the next one, of the same epoch, is whole
        left = COUNT - before * stop
        left -= left % (after * max(workers, 1)) if drop_last else 0
        assert sorted(chain(*rest)) == sorted(whole[before * stop :][:left])


@pytest.mark.parametrize(("workers", "batch"), [(0, 4), (2, 3), pytest.param(3, None, marks=exhaustive)])
def test_stream_by_stateful_data_loader(workers: int, batch: int | None, wanted: list[str]) -> None:
    def loader() -> Any:
        fork = "fork" if workers else None
        return StatefulDataLoader(
            stream(shuffle=True, seed=2), batch, num_workers=workers, multiprocessing_context=fork
        )

    whole = list(loader())
    assert sorted(chain(*whole) if batch else whole) == wanted
    for stop in (1, len(whole) - 2) if workers else range(len(whole)):
        begun = loader()
        steps = iter(begun)
        assert [next(steps) for _ in range(stop)] == whole[:stop]
        state = begun.state_dict()
        del steps
        resumed = loader()
        resumed.load_state_dict(state)
        assert list(resumed) == whole[stop:]
        assert list(resumed) == whole  # the next one, of the same epoch, is whole


def test_states_of_others_are_refused(server: FaultServer, wanted: list[str]) -> None:
    state = stream().state_dict()
    numbered = StatefulSampler(ObjectDataset("gs://b/o")).state_dict()
    with pytest.raises(ValueError, match="not a state of an ObjectStream"):
        stream().load_state_dict({"seed": 1})
    with pytest.raises(ValueError, match="an order with shuffle False, and here it is 'global'"):
        stream(shuffle=True).load_state_dict(state)
    other = stream()
    other.load_state_dict(state | {"reader": [1, 2], "workers": 2})
    with pytest.raises(ValueError, match=r"reader 1 of 2 \(ranks times workers\): go on with as many"):
        iter(other)
    server.objects["o00"] = b"0 "
    with pytest.raises(ValueError, match=r"other data: other .* or versions of them"):
        stream().load_state_dict(state)
    with pytest.raises(ValueError, match="the state is that of other data"):
        StatefulSampler(ObjectDataset("gs://b/o")).load_state_dict(numbered)
