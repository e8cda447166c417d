"""How many workers commands may have, with -p and without it: one rule for all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tartools.commands.tarjob import concurrent_items
from tartools.run import localjobs
from tartools.samples.account import Account
from tartools.shards import forks, workers
from tests.commands.conftest import Inside, inside
from tests.conftest import make_samples, make_tar

__all__ = ["inside"]  # a fixture
MOST = forks.MAX_FORKS - 1
DEFAULT, IMPLICIT = 8, 4
OPTION = [
    "tarcheck --ignore suffix-lies,empty-field a.tar",
    "tardedup a.tar -o o.tar",
    "tardedup a.tar -o o.parquet",
    "tardiff a.tar a.tar",
    "tardiff --digest a.tar",
    "tarindex a.tar -o o.parquet",
    "tarstat a.tar",
]
NO_OPTION = [
    "tarcat a.tar -o o.parquet",
    "tarsort -s cls a.tar -o o.tar",
    "tarsort -s cls a.tar -o o.parquet",
    "tarsplit --shards 2 a.tar -o o",
    "tar2tsv -f cls a.tar",
    "tarfilter -S 'int(cls)>=0' a.tar -o o.parquet",
]


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[int]]:
    """Limits of workers in each reading, on a machine of 64 cores. No worker may start: inputs are small."""
    seen: list[int] = []
    plan_tasks = workers.plan_tasks

    def planned(urls: Any, size: Any, max_workers: int, **more: Any) -> Any:
        seen.append(max_workers)
        return plan_tasks(urls, size, max_workers, **more)

    def started(*_: object) -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
    monkeypatch.setattr(workers, "plan_tasks", planned)
    monkeypatch.setattr(workers, "Fork", started)
    (tmp_path / "a.tar").write_bytes(make_tar(make_samples(9)))
    yield seen


@pytest.mark.parametrize(
    ("option", "expected"), [((), DEFAULT), (("-p", "0"), MOST), (("-p", "3"), 3), (("-p", "11"), 11)]
)
@pytest.mark.parametrize("line", OPTION)
def test_a_command_with_the_option(
    line: str, option: tuple[str, ...], expected: int, inside: Inside, limits: list[int]
) -> None:
    assert inside(*line.split(), *option).status == 0
    assert {*limits} == {expected}


@pytest.mark.parametrize("line", NO_OPTION)
def test_a_command_without_the_option_has_at_most_four(line: str, inside: Inside, limits: list[int]) -> None:
    assert inside(*line.replace("'", "").split()).status == 0
    assert {*limits} == {IMPLICIT}


@pytest.mark.parametrize(
    ("jobs", "cores", "count", "expected"),
    [
        (None, None, 100, DEFAULT),
        (None, 1, 100, DEFAULT),
        (None, 1, 3, 3),
        (None, 16, 100, 64 // 16),
        (None, 0, 100, 1),
        (None, 100, 100, 1),
        (0, None, 100, 64),
        (0, 16, 100, 64),
        (12, None, 100, 12),
    ],
)
def test_items_of_tarjob_at_a_time(
    jobs: int | None, cores: int | None, count: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
    monkeypatch.setattr(localjobs, "max_commands_at_once", lambda: 1000)
    assert concurrent_items(jobs, cores, count, Account()) == expected
