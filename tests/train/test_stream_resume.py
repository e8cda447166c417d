"""A stream that stops after any batch goes on with the next one: alone, by StatefulDataLoader, with other readers."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from tartools import Table
from tartools.errors import UsageError
from tartools.train import WebDataset
from tests.conftest import Run, make_samples, make_tar
from tests.storage.objects.faults import FaultServer
from tests.tiers import also, exhaustive, in_both
from tests.train.conftest import be_rank

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than cores
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata calls it
    pytest.mark.filterwarnings("ignore:rank . gets about"),  # of a few shards, of which one is compressed
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    for number in range(3):
        Path(f"{number}.tar").write_bytes(make_tar(make_samples(7 + number, 100 * number)))
    Path("3.tgz").write_bytes(gzip.compress(make_tar(make_samples(6, 300))))
    dotted = [(f"g{n // 4}.{n}.{n % 3}.{field}", b"%d" % n) for n in range(30) for field in ("cls", "txt")]
    Path("dots.tar").write_bytes(make_tar(dotted))
    large = [(f"9{n}.{field}", os.urandom(600_000 * n)) for n in range(4) for field in ("jpg", "cls")]
    Path("4.tar").write_bytes(make_tar([*large, *make_samples(9, 400)]))
    return tmp_path


MIXED = ["{0..2}.tar", "3.tgz", "4.tar"]


def twice(samples: Iterator[Any]) -> Iterator[Any]:
    """A stage that nobody knows: it holds a sample, and gives more than it gets."""
    for sample in samples:
        yield sample["__key__"]
        yield sample["__key__"] + " again"


def key(sample: dict[str, Any]) -> str:
    return str(sample["__key__"])


Make = Callable[[], WebDataset]
PIPELINES: dict[str, Make] = {
    "plain": lambda: WebDataset(MIXED).map(key),
    "one": lambda: WebDataset("4.tar", fields="__key__", empty_check=True).map(key_of),
    "pipe": lambda: WebDataset("pipe:cat 1.tar").map(key),
    "shuffled": lambda: WebDataset(MIXED, shuffle=7, seed=3).map(key),
    "stages": lambda: (
        WebDataset(MIXED, shuffle=1)
        .select(lambda sample: int(sample["__key__"]) % 3)
        .map(key)
        .shuffle(10, initial=3)
        .map(str)
        .batched(4, collation_fn=list)
    ),
    "unknown": lambda: WebDataset(MIXED, shuffle=1).compose(twice).shuffle(5),
    "epochs": lambda: WebDataset(MIXED, shuffle=5).map(key).with_epoch(60),
    "resampled": lambda: WebDataset(MIXED, shuffle=5, resampled=True).map(key).with_epoch(30),
    "dots": lambda: WebDataset(["dots.tar", "1.tar"], shuffle=7, seed=3, dots="last").map(key),
    "table": lambda: WebDataset(["t.parquet", "2.tar"], shuffle=4).map(key),
}


def key_of(values: tuple[str]) -> str:
    return values[0]


@in_both
@pytest.mark.parametrize("name", PIPELINES)
def test_in_one_process_after_every_item(thorough: bool, name: str, run: Run) -> None:
    """Or after each fifth."""
    make = PIPELINES[name]
    if name == "table":
        assert run("tarindex", "0.tar", "1.tar", "-o", "t.parquet").status == 0
    data = make()
    data.set_epoch(2)
    whole = list(data)
    data.set_epoch(3)
    following = list(data)
    assert len(whole) >= 7
    for stop in {*range(0, len(whole) + 1, 1 if thorough else 5), len(whole)}:
        begun = make()
        begun.set_epoch(2)
        iterator = iter(begun)
        assert list(islice(iterator, stop)) == whole[:stop]
        state = json.loads(json.dumps(begun.state_dict()))
        resumed = make()
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        again = iter(resumed)
        assert resumed.state_dict() == state
        assert list(again) == whole[stop:]
        if not stop % 2:
            assert list(resumed) == following  # each iteration is the next epoch
        resumed.set_epoch(3)
        assert list(resumed) == following  # the next epoch is whole


def test_the_bytes_before_are_not_read_again(server: FaultServer) -> None:
    """A shard on a server is asked for from the batch of samples on, in which it stopped."""
    data = make_tar([(f"{number:03d}.bin", os.urandom(100_000)) for number in range(60)])
    server.objects["a.tar"] = data
    url = server.url("http", "a.tar")
    begun = WebDataset(url).map(key)
    iterator = iter(begun)
    assert [*islice(iterator, 40)][-1] == "039"
    server.requests.clear()
    resumed = WebDataset(url).map(key)
    resumed.load_state_dict(begun.state_dict())
    assert list(resumed) == [f"{number:03d}" for number in range(40, 60)]
    starts = [request.start for request in server.requests]
    assert max(start or 0 for start in starts) > 2_500_000
    assert all(start is None or start < 600 or start > 2_500_000 for start in starts)


@pytest.mark.parametrize("workers", [0, 2, *also(1, 3)])
def test_stateful_data_loader(workers: int) -> None:
    def loader() -> StatefulDataLoader[Any]:
        data = WebDataset(MIXED, shuffle=6).map(key)
        return StatefulDataLoader(data, batch_size=4, num_workers=workers)

    begun = loader()
    whole = list(begun)
    begun.dataset.set_epoch(1)  # type: ignore[attr-defined]
    following = list(begun)
    assert sorted(chain(*whole)) == sorted(chain(*following)) and whole != following
    for stop in range(0, len(whole) + 1, 1 if workers == 0 else 4):
        begun = loader()
        iterator = iter(begun)
        assert list(islice(iterator, stop)) == whole[:stop]
        state = begun.state_dict()
        resumed = loader()
        resumed.load_state_dict(state)
        assert list(resumed) == whole[stop:]
        if stop % 8 == 0:
            resumed.dataset.set_epoch(1)  # type: ignore[attr-defined]
            assert list(resumed) == following


def test_states_of_other_data() -> None:
    data = WebDataset("0.tar", shuffle=5)
    next(iter(data))
    state = data.state_dict()
    for other in (WebDataset("1.tar", 5), WebDataset("0.tar", 5, 1), WebDataset("0.tar", 6), WebDataset("0.tar")):
        with pytest.raises(UsageError, match="other shards, another seed or another shuffle"):
            other.load_state_dict(state)
    data.load_state_dict(state | {"reader": [1, 4]})
    with pytest.raises(UsageError, match=r"readers 1 of 4 \(ranks times workers\), and this is reader 0 of 1: give"):
        iter(data)
    data.load_state_dict({})
    assert len(list(data)) == 7


def test_states_of_other_shards_of_the_same_names(run: Run) -> None:
    assert run("tarindex", "0.tar", "1.tar", "-o", "t.parquet").status == 0
    Table("t.parquet").take(slice(None, None, -1)).write("reversed.parquet")
    for name, other in (("t.parquet", Path("reversed.parquet").read_bytes()), ("0.tar", make_tar(make_samples(60)))):
        begun = WebDataset(name)
        assert next(iter(begun))["__key__"] == "000000"
        state = begun.state_dict()
        os.utime(name)  # a copy of the same bytes is the same
        WebDataset(name).load_state_dict(state)
        Path(name).write_bytes(other)
        with pytest.raises(UsageError, match="this state is that of other shards"):
            WebDataset(name).load_state_dict(state)


# ---- other numbers of workers and ranks ----


def flat(items: list[Any]) -> list[str]:
    return [name for item in items for name in (item if isinstance(item, list) else [item])]


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[str], list[Any]]]:
    """Return what lets each of *count* ranks take *most* items, and returns these and the states, as JSON."""

    def of(make: Make, count: int, most: int | None, state: Any = None) -> tuple[list[str], list[Any]]:
        had, states = [], []
        for number in range(count):
            be_rank(monkeypatch, number, count)
            data = make()
            if state is not None:
                data.load_state_dict(state)
            had += flat([*islice(iter(data), most)])
            states.append(json.loads(json.dumps(data.state_dict())))
        return had, states

    return of


MAKES: dict[str, Make] = {
    name: PIPELINES[name] for name in ("plain", "one", "pipe", "shuffled", "stages", "table", "dots")
} | {
    "many": lambda: WebDataset("s-*.tar", shuffle=3).map(key).batched(2, list),
}


@in_both
@pytest.mark.parametrize("name", MAKES)
def test_other_numbers_of_ranks(thorough: bool, name: str, ranks: Any, run: Run) -> None:
    """Stop after each number of items, or some, and again some items later: together all have had each sample once."""
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
    for number in range(3):
        be_rank(monkeypatch, number, 3)
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
    for rank in range(2):
        be_rank(monkeypatch, rank, 2)
        begun = loader(make(), before)
        iterator = iter(begun)
        had += [name for batch in islice(iterator, stop) for name in batch]
        states.append(begun.state_dict())
        del iterator
    rest, following, again = [], [], []
    for number in range(ranks):
        be_rank(monkeypatch, number, ranks)
        data = pickle.loads(pickle.dumps(make()))
        data.load_state_dict(states)
        going = loader(data, after) if ranks == 2 else DataLoader(data, batch_size=2, num_workers=after)
        for epoch, found in (0, rest), (0, following), (1, again):  # it is not resumed a second time
            torch.manual_seed(1)  # who does that gets the same chance in workers
            data.set_epoch(epoch)
            found += chain(*going)
        if after:
            with pytest.raises(UsageError, match="the workers of a loader know where they are"):
                data.state_dict()
            data = pickle.loads(pickle.dumps(data))  # with the state, which was used
            data.set_epoch(0)
            monkeypatch.setattr("multiprocessing.process._process_counter", iter(range(1, 99)))  # as in another program
            assert ranks > 1 or sorted(chain(*DataLoader(data, 2, num_workers=1))) == every
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
