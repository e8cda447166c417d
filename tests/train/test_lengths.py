"""Lengths of sounds and videos, which `tarindex --facts` stores, as buckets and costs of batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from tartools.train import loader
from tests.conftest import Run, make_tar
from tests.media import make_sound, make_video

SECONDS = [0.25 * number for number in range(1, 17)]


@pytest.fixture
def table(run: Run, tmp_path: Path) -> str:
    members = [
        member
        for number, seconds in enumerate(SECONDS)
        for member in (
            (f"{number:02d}.flac", make_sound(seconds, "FLAC", 8000 if number % 2 else 16000)),
            (f"{number:02d}.mp4", make_video(number + 5, 25 if number % 4 else 10, (32, 32))),
        )
    ]
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    run("tarindex", "--facts", "a.tar", "-o", "t.parquet").output()
    return str(tmp_path / "t.parquet")


def batches(table: str, **order: object) -> list[list[int]]:
    """Return the numbers of the samples in each batch."""
    data = loader(table, 8, fields="__key__", transform=lambda row: int(row[0]), collate_fn=list, **order)  # type: ignore[arg-type]
    return list(data)


def test_batches_have_sounds_of_about_one_length(table: str) -> None:
    made = batches(table, bucket={"flac.seconds": [1.0, 2.0, 3.0]})
    assert sorted(number for batch in made for number in batch) == list(range(16))
    assert len(made) == 4
    for batch in made:
        assert len({min(int(SECONDS[number]), 3) for number in batch}) == 1


def test_batches_have_up_to_so_many_seconds(table: str) -> None:
    made = batches(table, max_cost=("flac.seconds", 6))
    assert sorted(number for batch in made for number in batch) == list(range(16))
    assert all(sum(SECONDS[number] for number in batch) <= 6 for batch in made)
    assert len(made) < 9  # 34 seconds in all


@pytest.mark.parametrize(("column", "group"), [("flac.rate", 2), ("mp4.fps", 4)])
def test_rates_are_buckets(column: str, group: int, table: str) -> None:
    for batch in batches(table, bucket=column):
        assert len({number % group == 0 for number in batch}) == 1


def test_a_length_that_is_not_known_is_an_error(run: Run, tmp_path: Path) -> None:
    members = [("0.flac", make_sound(1, "FLAC")), ("1.flac", b"no sound")]
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    run("tarindex", "--facts", "a.tar", "-o", "t.parquet").output()
    with pytest.raises(ValueError, match="the sample of row 1 costs nan, and a batch may cost from 0 to 6"):
        batches(str(tmp_path / "t.parquet"), max_cost=("flac.seconds", 6))
    line = ["tarfilter", "-S", "seconds('flac') > 0", "--ignore-errors", "t.parquet", "-o", "good.parquet"]
    run(*line).output()
    assert batches(str(tmp_path / "good.parquet"), max_cost=("flac.seconds", 6)) == [[0]]
