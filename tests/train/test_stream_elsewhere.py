"""A stream that stops goes on with other numbers of workers and ranks: together they have had each sample once."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from tartools.errors import UsageError
from tartools.train import WebDataset
from tests.conftest import Run, make_samples, make_tar
from tests.tiers import also, exhaustive, in_both
from tests.train import test_stream_resume
from tests.train.test_stream_resume import MIXED, PIPELINES, key

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than cores
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata calls it
]
folder = test_stream_resume.folder
Make = Callable[[], WebDataset]


def flat(items: list[Any]) -> list[str]:
    return [name for item in items for name in (item if isinstance(item, list) else [item])]


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[str], list[Any]]]:
    """Return what lets each of *count* ranks take *most* items, and returns these and the states, as JSON."""

    def of(make: Make, count: int, most: int | None, state: Any = None) -> tuple[list[str], list[Any]]:
        had, states = [], []
        for number in range(count):
            monkeypatch.setenv("RANK", str(number))
            monkeypatch.setenv("WORLD_SIZE", str(count))
            data = make()
            if state is not None:
                data.load_state_dict(state)
            had += flat([*islice(iter(data), most)])
            states.append(json.loads(json.dumps(data.state_dict())))
        return had, states

    return of


MAKES: dict[str, Make] = {name: PIPELINES[name] for name in ("plain", "one", "pipe", "shuffled", "stages", "table")} | {
    "many": lambda: WebDataset("s-*.tar", shuffle=3).map(key).batched(2, list),
}


@in_both
@pytest.mark.parametrize("name", MAKES)
def test_other_numbers_of_ranks(thorough: bool, name: str, ranks: Any, run: Run) -> None:
    """Stop after each number of items, or some, and again some items later."""
    if name == "table":
        assert run("tarindex", "0.tar", "1.tar", "-o", "t.parquet").status == 0
    for number in range(17) if name == "many" else ():
        Path(f"s-{number:02d}.tar").write_bytes(make_tar(make_samples(2, 2 * number)))
    make = MAKES[name]
    every = sorted(flat(list(make())))
    assert len(set(every)) == len(every) >= 8
    for count, others, step in ((1, 3, 1), (2, 1, 1), (3, 2, 3), (2, 5, 3)) if thorough else ((1, 3, 7), (2, 5, 5)):
        for stop in range(0, len(every) // count + 2, step):
            first, states = ranks(make, count, stop)
            second, between = ranks(make, others, stop % 4, states)
            third, _ = ranks(make, count + stop % 2, None, between)
            assert sorted(first + second + third) == every, (count, others, stop)
        same, _ = ranks(make, others, None, between)
        assert sorted(first + second + same) == every


def test_the_rest_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one shard, of which one reader has had a part, each of three gets about a third of what is left."""
    Path("long.tar").write_bytes(make_tar([(f"{number:03d}.cls", b"1") for number in range(300)]))
    begun = WebDataset("long.tar").map(key)
    shares = [[*islice(iter(begun), 60)]]
    monkeypatch.setenv("WORLD_SIZE", "3")
    for number in range(3):
        monkeypatch.setenv("RANK", str(number))
        data = WebDataset("long.tar").map(key)
        data.load_state_dict(begun.state_dict())
        shares.append(list(data))
    assert [*chain(*shares)] == [f"{number:03d}" for number in range(300)]
    assert all(65 <= len(share) <= 95 for share in shares[1:])


@pytest.mark.parametrize("workers", [(2, 1), *also((0, 3), (3, 1), (1, 0), (3, 0))], ids=str)
@pytest.mark.parametrize(("ranks", "stop"), [(1, 4), pytest.param(2, 2, marks=exhaustive)])
def test_loaders(workers: tuple[int, int], ranks: int, stop: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks stop, and one or two others go on: all have had the epoch, and the next ones are whole."""
    before, after = workers

    def make() -> WebDataset:
        return WebDataset(MIXED, shuffle=6).map(key)

    def loader(data: WebDataset, workers: int) -> StatefulDataLoader[Any]:
        return StatefulDataLoader(data, batch_size=3, num_workers=workers)

    every = sorted(make())
    had, states = [], []
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
        begun = loader(make(), before)
        iterator = iter(begun)
        had += [name for batch in islice(iterator, stop) for name in batch]
        states.append(begun.state_dict())
        del iterator
    rest, following, again = [], [], []
    for number in range(ranks):
        monkeypatch.setenv("RANK", str(number))
        monkeypatch.setenv("WORLD_SIZE", str(ranks))
        data = make()
        data.load_state_dict(states)
        going = loader(data, after) if ranks == 2 else DataLoader(data, batch_size=2, num_workers=after)
        rest += [*chain(*going)]
        following += [*chain(*going)]  # it is not resumed a second time
        data.set_epoch(1)
        again += [*chain(*going)]
        if after:
            with pytest.raises(UsageError, match="the workers of a loader know where they are"):
                data.state_dict()
    assert sorted(had + rest) == sorted(following) == sorted(again) == every


def test_states_that_do_not_do(ranks: Any) -> None:
    make = PIPELINES["shuffled"]
    _, states = ranks(make, 3, 5)
    said = r"states of readers 0, 2 of 3 \(ranks times workers\), and this is reader 0 of 2: give .* the states of all"
    with pytest.raises(UsageError, match=said):
        ranks(make, 2, None, [states[0], states[2]])
    with pytest.raises(UsageError, match="these states are of different epochs"):
        make().load_state_dict([states[0], states[1], states[2] | {"epoch": 4}])
    with pytest.raises(UsageError, match="not a state of a WebDataset"):
        make().load_state_dict({"epoch": 4})
    for name, said in ("unknown", "may hold samples"), ("epochs", "as many ranks and workers"):
        _, states = ranks(PIPELINES[name], 2, 5)
        with pytest.raises(UsageError, match=said):
            ranks(PIPELINES[name], 3, None, states)
    loader = StatefulDataLoader(make(), None, num_workers=1, snapshot_every_n_steps=4)
    _ = [*islice(loader, 5)]
    with pytest.raises(UsageError, match="snapshot_every_n_steps=1"):
        make().load_state_dict(loader.state_dict())
