"""States go through torch.save and torch.load with their defaults, JSON and DCP; others are refused with a sentence."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from tartools.errors import TarToolsError
from tartools.train import (
    ObjectStream,
    StatefulSampler,
    StorageReader,
    StorageWriter,
    TableDataset,
    WebDataset,
    loader,
    stream_map,
)
from tests.conftest import Run, make_samples, make_tar
from tests.tiers import also

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than cores
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata calls it
    pytest.mark.filterwarnings("ignore:torch.distributed is"),  # DCP, in one process
]
COUNT = 21


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, run: Run) -> Path:
    for number in range(3):
        Path(f"{number}.tar").write_bytes(make_tar(make_samples(COUNT // 3, 100 * number)))
    assert run("tarindex", "0.tar", "1.tar", "2.tar", "-o", "t.parquet").status == 0
    Path("objects").mkdir()
    for number in range(COUNT):
        Path(f"objects/{number:02d}").write_bytes(b"%02d" % number)
    return tmp_path


def key(sample: dict[str, Any]) -> str:
    return str(sample["__key__"])


def keys(samples: list[dict[str, Any]]) -> list[str]:
    return [key(sample) for sample in samples]


def name(_: bytes, url: str) -> str:
    return url[-2:]


class Kind(NamedTuple):
    """How to make what has a state: an iterable, and what has the state of it."""

    make: Callable[[int], tuple[Any, Any]]
    workers: bool = True


def both(loader: Any) -> tuple[Any, Any]:
    return loader, loader


def stateful(data: Any, workers: int, size: int | None = 4, **options: Any) -> tuple[Any, Any]:
    return both(StatefulDataLoader(data, size, num_workers=workers, **options))


def by_sampler(workers: int) -> tuple[Any, Any]:
    data = TableDataset("t.parquet", "__key__")
    return stateful(data, workers, 1, batch_sampler=StatefulSampler(data, 3, batch_size=4))


def plain_sampler(workers: int) -> tuple[Any, Any]:
    data = TableDataset("t.parquet", "__key__")
    sampler = StatefulSampler(data, np.int64(3), batch_size=4, length=np.int64(30))  # type: ignore[arg-type]
    return DataLoader(data, batch_sampler=sampler), sampler


SHUFFLED: dict[str, Any] = {"shuffle": 6, "seed": np.int32(5)}
KINDS = {
    "loader": Kind(lambda workers: both(loader("t.parquet", 4, num_workers=workers, collate_fn=keys))),
    "loader, buckets": Kind(
        lambda workers: both(
            loader(
                "t.parquet",
                4,
                bucket=np.arange(COUNT) % 2,
                max_cost=(np.ones(COUNT), np.float32(3)),
                seed=np.int64(7),
                num_workers=workers,
                collate_fn=keys,
            )
        )
    ),
    "loader, blocks": Kind(
        lambda workers: both(loader("t.parquet", 4, shuffle="blocks", num_workers=workers, collate_fn=keys))
    ),
    "DataLoader, StatefulSampler": Kind(plain_sampler, workers=False),
    "StatefulDataLoader, StatefulSampler": Kind(by_sampler),
    "StatefulDataLoader, WebDataset": Kind(lambda workers: stateful(WebDataset("{0..2}.tar").map(key), workers)),
    "StatefulDataLoader, shuffled": Kind(
        lambda workers: stateful(WebDataset("{0..2}.tar", **SHUFFLED).map(key), workers)
    ),
    "StatefulDataLoader, batched": Kind(
        lambda workers: stateful(WebDataset("{0..2}.tar", **SHUFFLED).map(key).listed(4), workers, None)
    ),
    "StatefulDataLoader, table": Kind(lambda workers: stateful(WebDataset("t.parquet", **SHUFFLED).map(key), workers)),
    "StatefulDataLoader, repeated": Kind(
        lambda workers: stateful(WebDataset("{0..2}.tar", **SHUFFLED).map(key).with_epoch(30), workers)
    ),
    "StatefulDataLoader, resampled": Kind(
        lambda workers: stateful(WebDataset("{0..2}.tar", resampled=True).map(key).with_epoch(20), workers)
    ),
    "WebDataset": Kind(lambda _: both(WebDataset("{0..2}.tar").map(key)), workers=False),
    "WebDataset, shuffled": Kind(lambda _: both(WebDataset("{0..2}.tar", **SHUFFLED).map(key)), workers=False),
    "StatefulDataLoader, ObjectStream": Kind(
        lambda workers: stateful(ObjectStream("objects", name, shuffle=True, seed=np.int64(2)), workers)  # type: ignore[arg-type]
    ),
    "ObjectStream": Kind(lambda _: both(ObjectStream("objects", name, shuffle=True)), workers=False),
    "stream_map": Kind(lambda _: both(stream_map(key, "t.parquet", chunk_size=6_000)), workers=False),
    "StatefulDataLoader, stream_map": Kind(
        lambda _: stateful(stream_map(key, "{0..2}.tar", chunk_size=6_000), 0), workers=False
    ),
}


def by_torch(state: Any, _: Any) -> Any:
    torch.save({"data": state}, "saved.pt")
    return torch.load("saved.pt")["data"]  # weights_only=True


def by_json(state: Any, _: Any) -> Any:
    return json.loads(json.dumps(state, allow_nan=False))


def by_dcp(state: Any, fresh: Any) -> Any:
    dcp.save({"data": state}, storage_writer=StorageWriter("saved"))
    loaded = {"data": fresh}
    dcp.load(loaded, storage_reader=StorageReader("saved"))
    return loaded["data"]


SAVED = {"torch": by_torch, "JSON": by_json, "DCP": by_dcp}
CASES = [(name, workers) for name, kind in KINDS.items() for workers in (0, 1, 2) if kind.workers or not workers]
QUICK = {(name, 0) for name in KINDS} | {("loader", 2), ("StatefulDataLoader, shuffled", 2)}


@pytest.mark.parametrize(
    "case",
    [*sorted(QUICK), *also(*(case for case in CASES if case not in QUICK))],
    ids=str,
)
def test_states_go_through_all_formats(case: tuple[str, int]) -> None:
    """At the begin, in the middle and at the end of an epoch the state is the same behind each, and goes on there."""
    kind, workers = case
    make = KINDS[kind].make
    data, _ = make(workers)
    whole = [str(batch) for batch in data]
    following = [str(batch) for batch in data]
    for stop in (0, len(whole) // 2, len(whole)):
        data, owner = make(workers)
        iterator = iter(data)
        assert [str(batch) for batch in islice(iterator, stop)] == whole[:stop]
        if stop == len(whole):
            assert not [*iterator]
        state = owner.state_dict()
        del iterator
        for through in SAVED.values():
            data, owner = make(workers)
            loaded = through(state, owner.state_dict() if through is by_dcp else None)
            assert loaded == state and only_plain(loaded)
            if through is by_json:
                data, owner = make(workers)
                owner.load_state_dict(loaded)
                rest = [str(batch) for batch in data]
                assert rest == whole[stop:] or (stop == len(whole) and rest == following)


def only_plain(value: Any) -> bool:
    """True if *value* has no class but those of JSON."""
    if type(value) is dict:
        return all(type(name) is str and only_plain(item) for name, item in value.items())
    return all(map(only_plain, value)) if type(value) is list else type(value) in (int, float, str, bool, type(None))


REFUSED: dict[str, tuple[Callable[[], Any], int]] = {
    "loader": (lambda: loader("t.parquet", 4, collate_fn=keys), 2),
    "WebDataset": (lambda: WebDataset("{0..2}.tar").map(key), 9),
    "WebDataset, shuffled": (lambda: WebDataset("{0..2}.tar", shuffle=6).map(key), 9),
    "WebDataset, table": (lambda: WebDataset("t.parquet", shuffle=6).map(key), 9),
    "ObjectStream": (lambda: ObjectStream("objects", name), 9),
    "stream_map": (lambda: stream_map(key, "t.parquet", chunk_size=6_000, workers=1), 9),
}


def begun(kind: str) -> Any:
    """Return the state of *kind* in mid-epoch."""
    make, stop = REFUSED[kind]
    data = make()
    iterator = iter(data)
    assert len([*islice(iterator, stop)]) == stop
    return data.state_dict()


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the keys that lead to each value in *value*."""
    yield place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        yield from places(item, (*place, name))


def changed(state: Any, place: tuple[Any, ...], value: Any) -> Any:
    """Return a copy of *state* with *value* at *place*."""
    if not place:
        return value
    result = copy.copy(state)
    result[place[0]] = changed(state[place[0]], place[1:], value)
    return result


ODD: list[Any] = [-1, 7, 1 << 70, 1.5, True, None, "0.tar", "/etc/passwd", [], {}, [3, 4], {"reader": [0, 1]}]


@pytest.mark.parametrize("kind", REFUSED)
def test_a_damaged_state_is_refused_or_harmless(kind: str) -> None:
    """With any value in the place of any other, there is a sentence, or what comes is of the data."""
    make, _ = REFUSED[kind]
    state, every, refused = begun(kind), {*map(str, make())}, 0
    for place in places(state):
        for value in ODD:
            data = make()
            try:
                data.load_state_dict(changed(state, place, value))
                assert {*map(str, data)} <= every or kind == "loader"  # whose batches begin elsewhere
            except TarToolsError as error:
                refused += 1
                assert str(error) and len(str(error)) < 300
    assert refused > 30


@pytest.mark.parametrize("kind", REFUSED)
def test_states_of_others_are_refused(kind: str) -> None:
    make, _ = REFUSED[kind]
    state = begun(kind)
    assert state["version"] == 1
    for other in (3, "0.tar", None, {"weight": torch.ones(1)}, {"version": 1}, *({"reader": 1}, {"_snapshot": 3})):
        with pytest.raises(ValueError, match="this is not a state of "):
            make().load_state_dict(other)
    with pytest.raises(ValueError, match="this state has version 2, and this tartools reads versions up to 1: use "):
        make().load_state_dict(state | {"version": 2})
    del state["version"]  # as earlier ones are
    make().load_state_dict(state)
