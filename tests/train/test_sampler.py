"""What comes when is a function of seed, epoch and position; ranks share it exactly, and go on exactly."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tartools
from tartools.errors import SampleError
from tartools.train import StatefulSampler as Sampler
from tartools.train.epochorder import draw_by_share, make_order_key, permute
from tests.conftest import Run, make_tar
from tests.train.conftest import be_rank


def epoch_of(orders: list[Sampler]) -> list[list[Any]]:
    """Return what each rank has in the next epoch."""
    return [list(order) for order in orders]


def in_steps(ranks: list[list[list[int]]]) -> list[int]:
    """Return the rows of all ranks in the order of the epoch."""
    steps = max(map(len, ranks))
    return [row for step in range(steps) for batches in ranks for row in (batches[step] if step < len(batches) else [])]


def test_permutations_are_the_same_everywhere() -> None:
    assert permute(np.arange(8), 1000, make_order_key(7, 2)).tolist() == [265, 784, 512, 826, 34, 355, 397, 129]
    few = permute(np.array([0, 1, 10**11]), 10**12, make_order_key(7, 2))
    assert few.tolist() == [621521091832, 173622542360, 330786940269]
    assert draw_by_share(np.arange(6), np.cumsum([1.0, 2.0, 4.0]), make_order_key(7, 2)).tolist() == [2, 0, 0, 2, 2, 1]
    assert next(iter(Sampler(range(1000), seed=3, batch_size=5))) == [196, 654, 70, 163, 324]
    for count in (0, 1, 2, 3, 10, 17, 1000):
        for key in range(20):
            assert sorted(permute(np.arange(count), count, key).tolist()) == list(range(count))


def test_permutations_are_uniform() -> None:
    found = Counter(tuple(permute(np.arange(4), 4, make_order_key(seed, 0)).tolist()) for seed in range(2400))
    assert len(found) == 24 and min(found.values()) > 60 and max(found.values()) < 140  # 100 each, 4 sigma


@pytest.mark.parametrize("batch_size", [None, 1, 3, 8])
@pytest.mark.parametrize("shuffle", [True, False])
def test_each_sample_comes_once(batch_size: int | None, shuffle: bool) -> None:
    for length in (0, 1, 7, 24, 25, 26, 50):
        alone = list(Sampler(range(length), 5, shuffle, rank=0, world_size=1))
        for world in (1, 2, 3, 5):
            options: dict[str, Any] = {"batch_size": batch_size, "world_size": world}
            orders = [Sampler(range(length), 5, shuffle, rank=r, **options) for r in range(world)]
            counts = [len(order) for order in orders]
            epochs = [epoch_of(orders) for _ in range(2)]
            assert [len(batches) for batches in epochs[0]] == counts
            if batch_size is None:
                rows = [row for step in range(max(counts)) for batches in epochs[0] for row in batches[step : step + 1]]
                assert max(counts) - min(counts) <= 1
            else:
                rows = in_steps(epochs[0])
                sizes = {len(batch) for batches in epochs[0] for batch in batches[:-1]}
                assert sizes <= {batch_size} and (len(set(counts)) == 1 or length < world)
                taken = 0 < length % (world * batch_size) < world  # by the step before
                assert max((len(batches[-1]) for batches in epochs[0] if batches), default=0) <= batch_size + taken
            assert rows == alone
            assert (epochs[0] == epochs[1]) == (not shuffle or length < 2)
            for order in orders:
                order.set_epoch(0)
            assert epoch_of(orders) == epochs[0]


def test_what_does_not_fill_a_step_is_left_out_if_asked_for() -> None:
    alone = list(Sampler(range(50), 1, rank=0, world_size=1))
    for world in (1, 2, 3):
        orders = [Sampler(range(50), 1, batch_size=4, rank=r, world_size=world, drop_last=True) for r in range(world)]
        steps = 50 // (4 * world)
        assert [len(order) for order in orders] == [steps] * world
        assert in_steps(epoch_of(orders)) == alone[: steps * 4 * world]


def test_fewer_samples_than_ranks(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tartools.train"):
        ranks = [list(Sampler(range(1), batch_size=2, rank=r, world_size=2)) for r in range(2)]
    assert ranks == [[[0]], []]
    assert caplog.messages == ["1 sample left for 2 ranks: rank 1 has no batch"]


@pytest.mark.parametrize("shuffle", ["global", False])
def test_going_on_with_other_ranks_and_batches(shuffle: str | bool) -> None:
    whole = list(Sampler(range(53), 9, shuffle, rank=0, world_size=1))
    for world, size in ((1, 4), (2, 3), (3, 5)):
        for taken in range(-(-53 // (world * size)) + 1):
            orders = [Sampler(range(53), 9, shuffle, batch_size=size, rank=r, world_size=world) for r in range(world)]
            runs = [iter(order) for order in orders]
            had = in_steps([[batch for _, batch in zip(range(taken), run, strict=False)] for run in runs])
            states = [order.state_dict(taken=taken) for order in orders]
            assert all(state == states[0] for state in states) and len({*had}) == len(had)
            ahead = [order.state_dict() for order in orders]
            assert ahead == states or len(had) == 53  # nothing was asked for in advance
            for other, other_size in ((1, 7), (2, 3), (4, None)):
                rest = []
                for rank in range(other):
                    order = Sampler(range(53), 0, shuffle, batch_size=other_size, rank=rank, world_size=other)
                    order.load_state_dict(states[0])
                    order.set_epoch(order.epoch)
                    rest.append([batch if other_size else [batch] for batch in order])
                    assert order.epoch == 1
                assert had + in_steps(rest) == whole


def test_epochs() -> None:
    order = Sampler(range(20), 2, batch_size=6)
    first, second = list(order), list(order)
    assert order.epoch == 2 and first != second
    order.set_epoch(0)
    run = iter(order)
    assert [next(run), next(run)] == first[:2]
    assert list(order) == second  # the next epoch: a loop that stops after two batches has others each time
    order.set_epoch(1)
    assert list(order) == second
    order.set_epoch(0)
    assert [batch for _, batch in zip(first, order, strict=False)] == first  # it is left after the last batch
    order.set_epoch(0)
    assert list(order) == first
    for state in (order.state_dict(taken=1), order.state_dict()):
        order.load_state_dict(state)
        assert order.state_dict() == state
    order.load_state_dict({**order.state_dict(), "epoch": 1, "done": 12})
    order.set_epoch(1)
    assert list(order) == second[2:]


def test_states_of_other_orders_are_refused() -> None:
    state = Sampler(range(20)).state_dict()
    for other, message in (
        (Sampler(range(21)), "of an order with samples 20, and here it is 21"),
        (Sampler(range(20), shuffle=False), "with shuffle 'global', and here it is False"),
        (Sampler(range(20), weights=[1.0] * 20), "not a state of a StatefulSampler like this one"),
    ):
        with pytest.raises(ValueError, match=message):
            other.load_state_dict(state)
    Sampler(range(20), shuffle="global").load_state_dict(state)  # which True stands for
    weighted = Sampler(range(3), weights=[1, 2, 3])
    with pytest.raises(ValueError, match="with weights"):
        weighted.load_state_dict(Sampler(range(3), weights=[1, 2, 4]).state_dict())


@pytest.mark.parametrize(
    ("environment", "rows"),
    [
        ({}, [0, 1, 2, 3]),
        ({"RANK": "1", "WORLD_SIZE": "2"}, [1, 3]),
        ({"RANK": "1"}, [0, 1, 2, 3]),
        ({"WORLD_SIZE": "2"}, [0, 1, 2, 3]),
    ],
)
def test_ranks(environment: dict[str, str], rows: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the two alone is no world of ranks: nothing is left out."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert list(Sampler(range(4), shuffle=False)) == rows
    assert list(Sampler(range(4), shuffle=False, rank=0, world_size=1)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "wrong",
    [
        {"shuffle": "all"},
        {"shuffle": None},
        {"rank": 1},
        {"rank": 2, "world_size": 2},
        {"batch_size": 0},
        {"length": 5, "shuffle": False},
        {"length": 0},
        {"weights": [1, 2]},
        {"weights": [0] * 9},
        {"weights": [-1] + [1] * 8},
        {"weights": [1] * 9, "shuffle": False},
    ],
)
def test_wrong_arguments(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Sampler(range(9), **wrong)


@pytest.fixture
def table(run: Run, tmp_path: Path) -> tartools.Table:
    """Return a table of 200 samples of 2,560 bytes in three shards, with a column `cls`."""
    for number, count in enumerate((120, 50, 30)):
        members = [
            (f"{number}/{n:03d}.{f}", b"%d" % n * (300 * (f == "txt") + 1)) for n in range(count) for f in FIELDS
        ]
        (tmp_path / f"{number}.tar").write_bytes(make_tar(members))
    assert run("tarindex", "-f", "cls", "0.tar", "1.tar", "2.tar", "-o", "t.parquet").status == 0
    return tartools.Table("t.parquet")


FIELDS = ("cls", "txt")


def test_blocks(table: tartools.Table) -> None:
    orders = [Sampler(table, 4, "blocks", block="20K", window=2, batch_size=7, rank=r, world_size=2) for r in range(2)]
    epochs = [in_steps(epoch_of(orders)) for _ in range(3)]
    for rows in epochs:
        assert sorted(rows) == list(range(200)) and rows != sorted(rows)
    assert len({*map(tuple, epochs)}) == 3
    numbers, begins, ends = table.places()
    assert {*(ends - begins).tolist()} <= {2048, 2560}
    for rows in epochs:  # 20 samples of two runs, and then those of two others
        near = [np.unique(numbers[part] * 100 + begins[part] // 20480) for part in np.split(np.array(rows[:40]), 2)]
        assert all(len(runs) <= 6 for runs in near)
    (alone,) = epoch_of([Sampler(table, 4, "blocks", block=20480, window=2, batch_size=50, rank=0, world_size=1)])
    assert in_steps([list(alone)]) == epochs[0]
    state = orders[0].state_dict(taken=5)
    order = Sampler(table, 0, "blocks", block="20K", window=2)
    order.load_state_dict(state)
    assert list(order) == epochs[2][70:]
    with pytest.raises(ValueError, match="block 20480, and here it is 4000000"):
        Sampler(table, 4, "blocks", window=2).load_state_dict(state)
    rows = np.array(list(Sampler(table, 4, "blocks", block="20K", window=100)))  # shuffled within windows:
    assert (np.diff(rows) == 1).mean() < 0.1  # where runs alone are permuted, most have their neighbours beside them


def test_blocks_of_a_shuffled_table_are_its_rows(table: tartools.Table) -> None:
    for wrong in ({"window": -1}, {"block": 0}):  # of which one went on for ever
        with pytest.raises(ValueError, match="a block has 1 byte or more, and a window 1 block or more"):
            Sampler(table, 4, "blocks", **wrong)
    mixed = table.take(np.random.default_rng(1).permutation(200))
    assert sorted(Sampler(mixed, 4, "blocks")) == list(range(200))
    assert len(set(Sampler(mixed, 4, "blocks")._rows._starts.tolist())) > 190  # type: ignore[attr-defined]


def test_weights(table: tartools.Table) -> None:
    drawn: dict[str, Any] = {"length": 2000, "replacement": True}
    by_column = Sampler(table, 1, weights="cls", **drawn, batch_size=10)
    rows = in_steps([list(by_column)])
    labels = table.column("cls")
    assert len(rows) == 2000 and 0 not in labels[rows]
    expected, found = labels / labels.sum() * 2000, np.bincount(rows, minlength=200)
    assert np.abs(found - expected).max() < 6 * np.sqrt(expected.max())
    shares = Sampler(table, 1, weights={"0.tar": 0.2, "[12].tar": 0.8}, **drawn)
    assert abs(sum(row < 120 for row in shares) - 400) < 80
    ranks = [Sampler(table, 1, weights="cls", **drawn, batch_size=5, rank=r, world_size=2) for r in range(2)]
    assert in_steps(epoch_of(ranks)) == rows
    other = Sampler(table, 1, weights="cls", **drawn, batch_size=4)
    other.load_state_dict(ranks[0].state_dict(taken=7))
    assert in_steps([list(other)]) == rows[70:]
    with pytest.raises(SampleError, match=r"2\.tar: no pattern of weights"):
        Sampler(table, weights={"[01].tar": 1})
    with pytest.raises(ValueError, match=r"two patterns match 0\.tar"):
        Sampler(table, weights={"0*": 1, "*": 1})
    with pytest.raises(ValueError, match="no shard matches '9'"):
        Sampler(table, weights={"*": 1, "9": 1})


@pytest.mark.parametrize("wrong", ["RANK", "WORLD_SIZE"])
@pytest.mark.parametrize("text", ["x", "", "1.0"])
def test_what_is_no_number_is_named(wrong: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, text if name == wrong else "1")
    with pytest.raises(ValueError, match=rf"^the environment has {wrong}={text}, which is not a whole number$"):
        list(Sampler(range(4)))
    be_rank(monkeypatch, 2, 2)
    with pytest.raises(ValueError, match=r"RANK=2 and WORLD_SIZE=2"):
        list(Sampler(range(4)))
