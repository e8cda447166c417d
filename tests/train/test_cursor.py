"""The typed position of a stream: what it says, what its state looks like, what is refused, and states saved before."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tartools.errors import TarFormatError
from tartools.train import WebDataset
from tartools.train.cursor import Cursor, HeldSamples, Position, Remainder, ShardSlice, ShuffleCursor, cursors_of
from tartools.train.ranks import ReaderId
from tartools.train.states import StateError
from tests.conftest import make_samples, make_tar
from tests.train.conftest import be_rank

SHARDS = 3
pytestmark = pytest.mark.filterwarnings("ignore:rank . gets about")  # of two shards of different sizes


@pytest.fixture(autouse=True)
def _shards(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar(make_samples(30)))
    (tmp_path / "b.tar").write_bytes(make_tar(make_samples(10, 100)))


def key(sample: dict[str, Any]) -> str:
    return str(sample["__key__"])


def twice(samples: Iterator[Any]) -> Iterator[Any]:
    for sample in samples:
        yield key(sample)
        yield key(sample) + " again"


# ---- states that were saved before there was a Cursor, by the commit ebcf121c: they load, and are still made ----

PIPELINES: dict[str, Callable[[], WebDataset]] = {
    "plain": lambda: WebDataset(["a.tar", "b.tar"]).map(key),
    "shuffled": lambda: WebDataset(["a.tar", "b.tar"], shuffle=6, seed=5).map(key),
    "counted": lambda: WebDataset(["a.tar", "b.tar"]).compose(twice),
    "repeated": lambda: WebDataset(["a.tar", "b.tar"], shuffle=4).map(key).with_epoch(90),
}
DIGEST = {
    "plain": "7c5539f10c2bfad80839d761348b7df6510e081cdd76c71fe2f01b89cfa7b55b",
    "shuffled": "c01f76cff4b196286f42aa964c975eab9511c72a61d30390d1a55dfbc958eef5",
    "counted": "7c5539f10c2bfad80839d761348b7df6510e081cdd76c71fe2f01b89cfa7b55b",
    "repeated": "8742eb21b07a8f2ecb753a23c303a38ad259b48b4ee3a8e98fc3d77c21b68c59",
}
COUNTS = {"plain": [0, 9, 9], "shuffled": [0, 9, 9], "counted": [0, 9, 9], "repeated": [1, 55, 15]}
PLACES: dict[str, dict[str, Any]] = {
    "plain": {"position": [0, [0, 0, 1, 17920, None, "", 0, False]], "shuffle": None},
    "shuffled": {
        "position": [0, None],
        "shuffle": [9, 14, [11, 1, 2, 13, 12], [0, [0, 0, 1, 28160, None, "", 0, False]]],
    },
    "counted": {"position": None, "shuffle": None},
    "repeated": {
        "position": [0, [0, 0, 1, 24064, None, "", 0, False]],
        "shuffle": [15, 6, [3, 2, 4], [0, [0, 0, 1, 38400, None, "", 0, False]]],
    },
}
LEFT = [
    [[[0, 5], [[0, 0, 1, 0, None, "", 0, False]]], [[9, 7, 2], [[1, 0, 1, 0, None, "", 0, False]]]],
    [[0, 0, 1, 24064, None, "", 0, False]],
]
LEFT_STATE: dict[str, Any] = {"version": 1, "data": DIGEST["shuffled"], "reader": [0, 1], "epoch": 0}
LEFT_STATE |= {"counts": [0, 3, 3], "position": [0, None], "shuffle": [0, 0, [], [0, None]], "left": LEFT}


def saved(name: str) -> dict[str, Any]:
    """Return a saved state."""
    state = {"version": 1, "data": DIGEST[name], "reader": [0, 1], "epoch": 0, "counts": COUNTS[name]}
    return state | PLACES[name] | {"left": None}


@pytest.mark.parametrize("name", PIPELINES)
def test_states_that_were_saved_before_still_load(name: str) -> None:
    whole = [*PIPELINES[name]()]
    data = PIPELINES[name]()
    data.load_state_dict(saved(name))
    assert [*data] == whole[COUNTS[name][1] :]


def test_what_other_readers_left_in_a_saved_state_still_loads() -> None:
    """Two readers stopped, and one went on and stopped: it has two shuffle buffers of theirs and a part of a shard."""
    data = PIPELINES["shuffled"]()
    data.load_state_dict(LEFT_STATE)
    items = [*data]
    assert items[:5] == ["000005", "000000", "000102", "000107", "000109"]
    assert sorted(items[5:]) == [f"{number:06d}" for number in range(12, 30)]


@pytest.mark.parametrize("name", PIPELINES)
def test_the_layout_of_version_1(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever changes it gives it a new version, and says what becomes of the states above."""
    data = PIPELINES[name]()
    iterator = iter(data)
    assert len([*islice(iterator, COUNTS[name][1])]) == COUNTS[name][1]
    assert data.state_dict() == saved(name)
    states = []
    for rank in range(2):
        be_rank(monkeypatch, rank, 2)
        begun = PIPELINES["shuffled"]()
        assert len([*islice(iter(begun), 7)]) == 7
        states.append(begun.state_dict())
    be_rank(monkeypatch, 0, 1)
    data = PIPELINES["shuffled"]()
    data.load_state_dict(states)
    assert len([*islice(iter(data), 3)]) == 3
    assert data.state_dict() == LEFT_STATE


# ---- the record ----

counts = st.integers(0, (1 << 63) - 1)
slices = st.builds(
    lambda shard, number, more, begin, size, key, skip, rows: ShardSlice(
        shard,
        number,
        number + more,
        begin,
        None if size is None else begin + size,
        key,
        skip,
        rows and size is not None,
    ),
    *(st.integers(0, SHARDS - 1), st.integers(0, 99), st.integers(1, 99), st.integers(0, 1 << 50)),
    *(st.none() | st.integers(0, 1 << 50), st.text(), counts, st.booleans()),
)
positions = st.builds(Position, counts, st.none() | slices)
numbers = st.lists(st.integers(0, 999), unique=True, max_size=5)
shuffles = st.builds(ShuffleCursor, counts, st.integers(1000, 2000), numbers, positions)
held = st.builds(HeldSamples, numbers, st.lists(slices, max_size=3))
remainders = st.builds(Remainder, st.lists(held, max_size=3), st.lists(slices, max_size=3))
readers = st.builds(lambda number, more: ReaderId(number, number + more), st.integers(0, 99), st.integers(1, 99))
cursors = st.builds(
    Cursor,
    *(st.text(), readers, counts, counts, counts, counts),
    *(st.none() | positions, st.none() | shuffles, st.none() | remainders),
)


@settings(max_examples=60, deadline=None)
@given(cursors)
def test_a_cursor_survives_its_state(cursor: Cursor) -> None:
    """Also through JSON, which has no tuples."""
    state = cursor.as_state()
    assert json.loads(json.dumps(state)) == state
    assert Cursor.from_state(state, SHARDS) == cursor


CURSOR = Cursor(
    "digest",
    ReaderId(1, 4),
    epoch=2,
    total=7,
    yielded=7,
    position=Position(0, ShardSlice(2, begin=512)),
    shuffle=ShuffleCursor(7, 9, [3, 8], Position(1)),
    remainder=Remainder([HeldSamples([4, 1], [ShardSlice(0)])], [ShardSlice(1), ShardSlice(2)]),
)
DAMAGED: list[tuple[str, Any]] = [
    ("reader", [4, 4]),
    ("counts", [0, 7]),
    ("counts", [0, 7, -1]),
    ("position", [0, ["/etc/passwd", 0, 1, 0, None, "", 0, False]]),
    ("position", [0, [SHARDS, 0, 1, 0, None, "", 0, False]]),  # a shard that there is not
    ("position", [0, [0, 1, 1, 0, None, "", 0, False]]),  # slice 1 of 1
    ("position", [0, [0, 0, 1, 9, 8, "", 0, False]]),  # which ends before it begins
    ("position", [0, [0, 0, 1, 0, None, "", 0, True]]),  # rows without an end
    ("shuffle", [7, 9, [3, 3], [1, None]]),
    ("shuffle", [7, 9, [3, 9], [1, None]]),  # a sample that was not read
    ("left", [[[[4, 1], [[SHARDS, 0, 1, 0, None, "", 0, False]]]], []]),
    ("left", [[], None]),
]


@pytest.mark.parametrize(("name", "value"), DAMAGED)
def test_a_damaged_state_is_refused_by_the_name_of_its_value(name: str, value: Any) -> None:
    state = CURSOR.as_state()
    assert Cursor.from_state(state, SHARDS) == CURSOR
    with pytest.raises(StateError, match=f"this state of a WebDataset.* is damaged: its '{name}' is "):
        Cursor.from_state(state | {name: value}, SHARDS)


def test_the_cursors_in_a_state_of_a_loader() -> None:
    state = CURSOR.as_state()
    workers = {f"worker_{n}": {"dataset_state": CURSOR._replace(reader=ReaderId(n, 2)).as_state()} for n in range(2)}
    snapshot = {"_snapshot": {"_worker_snapshots": workers}, "_steps_since_snapshot": 0}
    found = cursors_of([snapshot, {"dataset_state": state}, [state]], SHARDS)
    assert [cursor.reader for cursor in found] == [(0, 2), (1, 2), (1, 4), (1, 4)]
    assert cursors_of({}, SHARDS) == []
    with pytest.raises(StateError, match="these states are of different epochs"):
        cursors_of([state, state | {"epoch": 0}], SHARDS)


@pytest.mark.parametrize("name", ["plain", "shuffled", "counted"])
def test_the_state_of_a_resume_that_failed(name: str) -> None:
    """It resumes once the shard is there again; a shuffle buffer that was not filled has the cursor that was loaded."""
    archive = Path("a.tar").read_bytes()
    Path("a.tar").write_bytes(archive[:20_000] + b"damaged!" * 64 + archive[20_512:])
    data = PIPELINES[name]()
    data.load_state_dict(saved(name))
    with pytest.raises(TarFormatError):
        list(data)
    state = data.state_dict()
    assert name != "shuffled" or state == saved(name)  # its buffer needs the damaged sample before it yields one
    taken = state["counts"][1] - COUNTS[name][1]
    Path("a.tar").write_bytes(archive)
    resumed = PIPELINES[name]()
    resumed.load_state_dict(state)
    assert [*resumed] == [*PIPELINES[name]()][COUNTS[name][1] + taken :]
