"""Which iteration resumes, and which epoch it is of: what workers find out by what they share with the trainer."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from tartools.train.loading import keep_batch
from tartools.train.ranks import ReaderId, ReaderRank, SharedEpoch, SingleResume
from tests.tiers import also, exhaustive
from tests.train.conftest import be_rank

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores


class Asking(IterableDataset[Any]):
    """Yields once for each reader what it is told: the epoch, whether it resumes, and which reader it is."""

    def __init__(self, loads: bool = False) -> None:
        self.epoch, self.resume, self.rank, self.loads = SharedEpoch(), SingleResume(), ReaderRank(), loads

    def __iter__(self) -> Iterator[Any]:
        if self.loads:
            self.resume.load()
        yield self.epoch.begin(), self.resume.begin(), tuple(self.rank.reader())


def loaded(data: Asking, workers: int, **options: Any) -> DataLoader[Any]:
    """Return a loader that leaves tuples as they are."""
    return DataLoader(data, None, num_workers=workers, collate_fn=keep_batch, **options)


def epochs(data: Asking, workers: int, count: int, **options: Any) -> list[list[tuple[int, bool]]]:
    """Return what *count* iterations tell their readers: epoch, and whether they resume."""
    loader = loaded(data, workers, **options)
    result = []
    for _ in range(count):
        torch.manual_seed(1)  # a program that does this gives workers of all epochs the same seeds
        result.append([told[:2] for told in loader])
    return result


@pytest.mark.parametrize("method", ["fork", *also("spawn", "forkserver")])
def test_one_iteration_resumes(method: str) -> None:
    """Nothing tells the dataset of the trainer that workers have begun: the first ones leave a note for later ones."""
    data = Asking()
    told = epochs(data, 2, 2, multiprocessing_context=method)
    assert data.resume.in_workers
    data.epoch.number = 5
    data.resume.load()
    assert not data.resume.in_workers
    told += epochs(data, 2, 3, multiprocessing_context=method)
    assert data.resume.in_workers
    assert told == [[(epoch, epoch in (0, 5))] * 2 for epoch in (0, 1, 5, 6, 7)]


def test_without_workers_the_iterator_takes_the_state() -> None:
    data = Asking()
    assert epochs(data, 0, 2) == [[(0, True)], [(1, True)]] and not data.resume.in_workers


def test_a_state_that_a_worker_loads_is_for_its_iteration() -> None:
    """StatefulDataLoader calls load_state_dict in the workers."""
    assert epochs(Asking(loads=True), 1, 3) == [[(epoch, True)] for epoch in range(3)]


def test_workers_that_persist_resume_as_one_iteration() -> None:
    """Their copies of the dataset forget the state themselves, as without workers."""
    assert epochs(Asking(), 1, 3, persistent_workers=True) == [[(epoch, True)] for epoch in range(3)]


def test_a_copy_in_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on with the epoch, and does not resume where the original was used; processes count from 1 again."""
    data = Asking()
    unused = pickle.dumps(data)
    assert epochs(data, 1, 3)[-1] == [(2, False)]
    for pickled, told in (pickle.dumps(data), [(2, False)]), (unused, [(0, True)]):
        monkeypatch.setattr("multiprocessing.process._process_counter", iter(range(1, 99)))
        assert epochs(pickle.loads(pickled), 1, 1) == [told]


def test_two_iterations_at_a_time() -> None:
    """The workers of each agree on an epoch, and the two have different ones."""
    data = Asking()
    first, second = (iter(loaded(data, 2)) for _ in range(2))
    assert sorted({epoch for epoch, _, _ in first} | {epoch + 10 for epoch, _, _ in second}) in ([0, 11], [1, 10])


def test_more_epochs_than_are_tracked() -> None:
    data = Asking()
    assert [epoch for ((epoch, _),) in epochs(data, 0, 20)] == [*range(20)]
    data.epoch.number = 3
    assert data.epoch.number == 3 and [epoch for epoch, _, _ in data] == [3] and data.epoch.number == 3


def test_which_reader_a_process_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbours are on other ranks: reader 0 is worker 0 of rank 0, reader 1 is worker 0 of rank 1."""
    for variable in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    data = Asking()
    assert ReaderRank().reader() == (0, 1) and ReaderRank((1, 3)).reader() == ReaderId(1, 3)
    be_rank(monkeypatch, 1, 2)
    assert ReaderRank().reader() == (1, 2) and ReaderRank((0, 1)).reader() == (0, 1)
    assert sorted(reader for _, _, reader in loaded(data, 2)) == [(1, 4), (3, 4)]


@exhaustive
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_worker_that_is_no_fork_has_the_rank_of_its_parent(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the rank is not in the environment."""
    be_rank(monkeypatch, 2, 3)
    loader = loaded(Asking(), 1, multiprocessing_context=method, worker_init_fn=forget_rank)
    assert [reader for _, _, reader in islice(loader, 1)] == [(2, 3)]


def forget_rank(_: int) -> None:
    del os.environ["RANK"]
