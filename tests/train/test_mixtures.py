"""Exact shares, schedules, lengths, batches of samples that are alike: what comes, how often, and on from any state."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tartools
from tartools.errors import SampleError
from tartools.train import StatefulSampler as Sampler
from tartools.train import loader
from tartools.train.batching import halve_batches
from tartools.train.epochorder import ShareOrder, Weighting
from tartools.train.tabledataset import table_of
from tests.conftest import make_tar
from tests.train.test_loading import Squares, flat
from tests.train.test_sampler import in_steps

SIZES = {"a": 70, "b": 20, "c": 11}  # samples of the sources
COUNT = sum(SIZES.values())
WIDTHS = [(100, 300, 300, 500)[n % 4] for n in range(COUNT)]
TOKENS = [n * 37 % 50 + 1 for n in range(COUNT)]
SHARES = {"*a.tar": 0.5, "*b.tar": 0.3, "*c.tar": 0.2}
FIXED = {"*a.tar": 4, "*b.tar": 0, "*c.tar": 2}
SCHEDULE = [(0, {"*a.tar": 1}), (42, {"*a.tar": 1, "*b.tar": 3}), (132, {"*b.tar": 1, "*c.tar": 1})]
ORDERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "shares": {"weights": SHARES},
    "column": {"weights": "tokens", "length": 150},
    "drawn": {"weights": SHARES, "replacement": True},
    "length": {"length": 30},
    "schedule": {"weights": SCHEDULE},
    "fixed": {"weights": FIXED, "per_batch": True},
    "changing": {"weights": [(0, FIXED), (90, {"*a.tar": 1, "*b.tar": 5})], "per_batch": True, "length": 75},
    "bucket": {"bucket": {"width": [200, 400]}},
    "near": {"bucket": "width", "shuffle": "blocks", "block": "2K"},
    "stored": {"bucket": "width", "shuffle": False, "drop_last": True},
    "one-source": {"bucket": "__source__", "weights": SHARES},
    "cost": {"max_cost": ("tokens", 90)},
    "both": {"max_cost": ("tokens", 70), "bucket": ["xy"[n % 2] for n in range(COUNT)], "weights": SHARES},
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tartools.Table:
    """Return a table of the samples of three shards, with columns `width` and `tokens`."""
    folder = tmp_path_factory.mktemp("mixtures")
    for name, count in SIZES.items():
        (folder / f"{name}.tar").write_bytes(make_tar([(f"{name}{n:02d}.cls", b"%d" % n) for n in range(count)]))
    rows = table_of([folder / f"{name}.tar" for name in SIZES]).arrow
    rows = rows.append_column("width", pa.array(WIDTHS)).append_column("tokens", pa.array(TOKENS))
    tartools.Table.from_arrow(rows).write(folder / "t.parquet")
    return tartools.Table(folder / "t.parquet")


def sources(rows: Any) -> dict[str, int]:
    """Return how many of *rows* are of each source."""
    return dict(Counter("a" if row < 70 else "b" if row < 90 else "c" for row in rows))


def epochs_of(table: Any, count: int, size: int | None = None, **options: Any) -> list[list[Any]]:
    """Return the first epochs of an order for one rank."""
    order = Sampler(table, 5, batch_size=size, rank=0, world_size=1, **options)
    return [list(order) for _ in range(count)]


def test_shares_are_exact_in_each_epoch(table: tartools.Table) -> None:
    epochs = epochs_of(table, 40, weights=SHARES)
    assert [sources(rows) for rows in epochs] == [{"a": 51, "b": 30, "c": 20}] * 40  # of 50.5, 30.3, 20.2
    for rows in epochs:
        counts = np.bincount(rows, minlength=COUNT)
        assert {*counts[:70]} == {0, 1} and {*counts[70:90]} == {1, 2} and {*counts[90:]} == {1, 2}
    assert len({frozenset(rows) for rows in epochs}) > 30 and len({*map(tuple, epochs)}) == 40
    each = np.bincount(flat(epochs), minlength=COUNT)
    assert np.ptp(each[:70]) <= 3 and np.ptp(each[70:90]) <= 3 and np.ptp(each[90:]) <= 3
    first = [sources(rows[:50])["a"] for rows in epochs]  # sources are mixed
    assert min(first) > 15 and max(first) < 36


def test_an_epoch_of_another_length_takes_other_samples(table: tartools.Table) -> None:
    short = epochs_of(table, 4, length=25)
    assert all(len({*rows}) == 25 for rows in short)
    assert len({*flat(short)}) > 80  # drawn each on its own, they would be 69
    long = np.bincount(epochs_of(table, 1, length=250)[0])
    assert {*long.tolist()} == {2, 3} and long.sum() == 250
    assert sorted(epochs_of(table, 1, length=COUNT)[0]) == list(range(COUNT))


def test_a_schedule_counts_samples_of_all_epochs(table: tartools.Table) -> None:
    rows = flat(epochs_of(table, 2, weights=SCHEDULE))
    parts = [rows[:42], rows[42:COUNT], rows[COUNT:132], rows[132:]]
    assert [sources(part) for part in parts] == [{"a": 42}, {"a": 15, "b": 44}, {"a": 8, "b": 23}, {"b": 35, "c": 35}]
    assert len({*flat(parts[:2])} & {*range(70)}) == 57  # no sample of the first part again
    assert {*Counter(row for row in flat(parts[:2]) if row >= 70).values()} == {2, 3}


def test_fixed_numbers_in_each_batch(table: tartools.Table) -> None:
    for batches in epochs_of(table, 2, 6, weights=FIXED, per_batch=True):
        assert len(batches) == COUNT // 6
        assert [[*map(sources, (batch[:4], batch[4:]))] for batch in batches] == [[{"a": 4}, {"c": 2}]] * 16
        assert {*Counter(flat(batches)).values()} == {1, 2, 3}  # 64 of 70, 32 of 11
        assert sum(row >= 90 for row in flat(batches)) == 32
    first = {row for batches in epochs_of(table, 20, 6, weights=FIXED, per_batch=True) for row in batches[0][:4]}
    assert len(first) > 35  # others in each epoch
    (batches, again) = epochs_of(table, 2, 6, **ORDERS["changing"])
    assert [sources(batch) for batch in (*batches, *again)] == [{"a": 4, "c": 2}] * 15 + [{"a": 1, "b": 5}] * 9


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_rows_come_as_often_as_their_weights_say(data: st.DataObject) -> None:
    source = np.array(data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=40)))
    weights = data.draw(st.lists(st.floats(0, 9) | st.just(1.0), min_size=len(source), max_size=len(source)))
    known = np.unique(source)
    here = np.array(weights)
    here[[int(np.flatnonzero(source == one)[0]) for one in known]] += 0.5  # no source is without a weight
    shares = np.zeros(3)
    shares[known] = data.draw(st.lists(st.floats(0.01, 1), min_size=len(known), max_size=len(known)))
    length, seed, epoch = data.draw(st.integers(1, 99)), data.draw(st.integers(0, 9)), data.draw(st.integers(0, 9))
    order = ShareOrder(Weighting(source, here, [(0, shares)]), length)
    rows = order.rows(np.arange(length), seed, epoch)
    some = data.draw(st.lists(st.integers(0, length - 1)))
    assert order.rows(np.array(some, int), seed, epoch).tolist() == rows[some].tolist()
    of = np.bincount(source[rows], minlength=3)
    exact = shares / shares.sum() * length
    assert (np.abs(of - exact) < 1).all()
    expected = of[source] * here / np.bincount(source, here, 3)[source]
    found = np.bincount(rows, minlength=len(source))
    assert (found >= np.floor(expected - 1e-9)).all() and (found <= np.ceil(expected + 1e-9)).all()


@pytest.mark.parametrize("name", ORDERS)
def test_going_on_in_the_middle_of_an_epoch(name: str, table: tartools.Table) -> None:
    """Through `loader`: what ranks have before a stop and others after it is, in order, what one rank has."""
    rows = {sample.key: number for number, sample in enumerate(table)}
    options = {"seed": 5, "fields": "__key__", **ORDERS[name]}

    def batches_of(batches: Any) -> list[list[int]]:
        return [[rows[key] for (key,) in batch] for batch in batches]

    alone = loader(table, 6, **options)
    epochs = [flat(batches_of(alone)) for _ in range(2)]
    partial = "fixed" in name or "changing" in name or "drop_last" in options  # a step that is not whole is left out
    for world, taken, other, workers in ((1, 3, 2, 1), (2, 0, 3, 0), (3, 2, 1, 0), (3, 10**9, 2, 0), (2, 5, 7, 0)):
        for epoch in range(2):
            ranks = [loader(table, 6, **options, rank=rank, world_size=world) for rank in range(world)]
            had, whole = [], [len(one) for one in ranks]
            for one in ranks:
                one.set_epoch(epoch)
                whole[len(had)] = len(one)
                had.append(batches_of(batch for _, batch in zip(range(taken), one, strict=False)))
            assert len({*whole}) == 1 and [min(taken, count) for count in whole] == [*map(len, had)]
            states = [one.state_dict() for one in ranks]
            assert states == [states[0]] * world
            if states[0]["epoch"] != epoch:
                assert in_steps(had) == epochs[epoch] or partial
                continue
            rest = []
            for rank in range(other):
                one = loader(table, 6, **options | {"seed": 0}, rank=rank, world_size=other, num_workers=workers)
                one.load_state_dict(states[0])
                count = len(one)
                rest.append(batches_of(one))
                assert len(rest[-1]) == count - states[0]["steps"]
            found = in_steps(had) + in_steps(rest)
            assert len({*map(len, rest)}) == 1 or len(in_steps(rest)) < other
            assert found == epochs[epoch][: len(found)]
            assert partial or len(found) == len(epochs[epoch])


def test_batches_are_alike_and_within_the_budget(table: tartools.Table) -> None:
    for batches in epochs_of(table, 3, 6, bucket={"width": [200, 400]}):
        assert all(len({*np.digitize(np.array(WIDTHS)[batch], [200, 400]).tolist()}) == 1 for batch in batches)
        assert sorted(flat(batches)) == list(range(COUNT))
        assert Counter(map(len, batches)) == {6: 16, 2: 2, 1: 1}  # of 26, 50, 25
    first, second = epochs_of(table, 2, 6, bucket={"width": [200, 400], "tokens": None})
    assert {*map(frozenset, first)} == {*map(frozenset, second)} and first != second
    (labelled,) = epochs_of(table, 1, 6, bucket="width")
    assert all(len({WIDTHS[row] for row in batch}) == 1 for batch in labelled)
    for most in (50, 90):
        (batches,) = epochs_of(table, 1, 8, max_cost=(np.array(TOKENS), most))
        sums = [sum(TOKENS[row] for row in batch) for batch in batches]
        assert max(sums) <= most and max(map(len, batches)) <= 8 and sorted(flat(batches)) == list(range(COUNT))
        assert np.mean(sums) > 0.6 * most
        (full,) = epochs_of(table, 1, 8, max_cost=(np.array(TOKENS), most), drop_last=True)
        assert len(full) == len(batches) - 1  # a batch to which no other sample fits is full
    (sourced,) = epochs_of(table, 1, 6, weights=SHARES, bucket="__source__")
    assert all(len(sources(batch)) == 1 for batch in sourced) and sources(flat(sourced)) == {"a": 51, "b": 30, "c": 20}


def test_batches_of_neighbours_come_near_each_other(table: tartools.Table) -> None:
    (stored,) = epochs_of(table, 1, 6, bucket="width", shuffle=False)
    assert [batch[-1] for batch in stored] == sorted(batch[-1] for batch in stored)
    assert all(batch == sorted(batch) for batch in stored) and sorted(flat(stored)) == list(range(COUNT))
    (full,) = epochs_of(table, 1, 6, bucket="width", shuffle=False, drop_last=True)
    assert full == [batch for batch in stored if len(batch) == 6]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_ranks_share_batches_evenly(data: st.DataObject) -> None:
    count, size = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 7))
    costs = data.draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    labels = data.draw(st.lists(st.sampled_from("xyz"), min_size=count, max_size=count))
    world, drop, most = data.draw(st.integers(1, 5)), data.draw(st.booleans()), data.draw(st.integers(9, 30))
    options: dict[str, Any] = {"bucket": labels, "max_cost": (costs, most), "batch_size": size, "drop_last": drop}
    orders = [Sampler(range(count), 1, rank=rank, world_size=world, **options) for rank in range(world)]
    lengths = [len(order) for order in orders]
    ranks = [list(order) for order in orders]
    found = in_steps(ranks)
    assert lengths == [len(batches) for batches in ranks] and len({*found}) == len(found)
    for batch in flat(ranks):
        of = [labels[row] for row in batch]
        assert len({*of}) == 1 and len(batch) <= size and sum(costs[row] for row in batch) <= most
    (alone,) = [[*Sampler(range(count), 1, rank=0, world_size=1, **options)]]
    assert flat(alone)[: len(found)] == found
    if drop:
        assert lengths == [len(alone) // world] * world
    else:
        assert sorted(found) == list(range(count))
        assert len({*lengths}) == 1 or max(map(len, flat(ranks))) == 1  # nothing to split


def test_only_the_last_step_is_split() -> None:
    bounds = np.array([0, 4, 8, 12, 16, 20, 24, 25, 26])
    for world in (1, 2, 3, 4, 5, 7, 8, 9, 26, 30):
        found = halve_batches(bounds, world).tolist()
        assert ({*found} >= {*bounds.tolist()} and (len(found) - 1) % world == 0) or found == list(range(27))
        steps = 8 // world * world
        assert 26 - bounds[steps] < world or found[: steps + 1] == bounds[: steps + 1].tolist()


def test_states_of_other_mixtures_are_refused(table: tartools.Table) -> None:
    states = {name: Sampler(table, batch_size=6, **options).state_dict() for name, options in ORDERS.items()}
    for name, options in ORDERS.items():
        for other, state in states.items():
            order = Sampler(table, batch_size=6, **options)
            if other == name:
                order.load_state_dict(state)
            else:
                with pytest.raises(ValueError, match=r"not a state of a Stateful|is of an order with"):
                    order.load_state_dict(state)
    with pytest.raises(ValueError, match=r"an order with batch_size 6, and here it is 5"):
        Sampler(table, batch_size=5, **ORDERS["cost"]).load_state_dict(states["cost"])


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"length": 0}, "^length, of an epoch, is 1 or more, not 0"),
    ({"length": 9, "shuffle": "blocks"}, "^with weights or a length samples are drawn from all"),
    ({"replacement": True}, "^replacement and per_batch say how weights are met: give these"),
    (
        {"weights": [(5, SHARES)]},
        r"^a schedule of weights begins at sample 0 and continues at .*, not at \[5\]",
    ),
    ({"weights": [(0, SHARES), (0, SHARES)]}, r"not at \[0, 0\]"),
    ({"weights": [(0, 0.5)]}, "^a schedule of weights is like"),
    ({"weights": SCHEDULE, "replacement": True}, "^with replacement shares are met on average"),
    ({"weights": SHARES, "per_batch": True}, "^with per_batch weights are whole numbers whose sum is batch_size, 6: "),
    ({"weights": [(0, FIXED), (9, FIXED)], "per_batch": True}, "^with per_batch shares begin with a batch of 6"),
    ({"bucket": [1, 2]}, r"^bucket is one label for each of 101 samples, not \(2,\)"),
    ({"bucket": {"width": [3, 2]}}, r"^buckets of 'width' begin at increasing numbers, not at \[3, 2\]"),
    ({"max_cost": ("tokens", 40)}, "^the sample of row 4 costs 49, and a batch may cost from 0 to 40$"),
    ({"max_cost": ([1.0, float("nan")] + [0] * 99, 40)}, "^the sample of row 1 costs nan, and"),
    ({"max_cost": 40}, "^max_cost is a column and the most that a batch costs"),
    ({"max_cost": (["a"] * COUNT, 40)}, "^max_cost has a number for each of 101 samples, not <U1"),
    ({"bucket": "width", "per_batch": True, "weights": FIXED}, "^bucket and max_cost, or per_batch, need a batch_size"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_wrong_mixtures(wrong: dict[str, Any], message: str, table: tartools.Table) -> None:
    with pytest.raises(ValueError, match=message):
        loader(table, 6, **wrong)


def test_what_needs_a_batch_size_or_a_table(table: tartools.Table) -> None:
    for options in (ORDERS["cost"], ORDERS["bucket"], ORDERS["fixed"]):
        with pytest.raises(ValueError, match="need a batch_size"):
            Sampler(table, **options)
    for name, what in (("schedule", "weights"), ("bucket", "bucket"), ("cost", "max_cost")):
        with pytest.raises(ValueError, match=f"{what} by name needs a table: this is a Squares"):
            loader(Squares(), 4, **ORDERS[name])
    with pytest.raises(ValueError, match="max_cost by name needs a table: this is a Squares"):
        loader(Squares(), 4, max_cost=[*ORDERS["cost"]["max_cost"]])  # type: ignore[arg-type]
    with pytest.raises(SampleError, match="no pattern of weights matches this shard"):
        loader(table, 4, bucket="__source__")
    assert len(loader(Squares(), 4, bucket=[n % 2 for n in range(23)])) == 6
