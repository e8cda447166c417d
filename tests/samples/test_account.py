"""The account: a run that loses a sample does not end well."""

from __future__ import annotations

from pathlib import Path

import pytest

from tartools.samples.account import Account, RepeatedKeyDetector
from tartools.shards.reading import check_shards
from tests.conftest import has_end, make_samples, make_tar, members_of, python

LOSING = """
import sys
from tartools.commands.tarcat import tarcat
from tartools.stages import select

def losing(samples, *_, **__):
    for number, sample in enumerate(samples):
        if number != 1:
            yield sample

select.select_by_specs = losing
sys.argv = ["tarcat", "-f", "jpg", "a.tar", "-o", "b.tar"]
tarcat()
"""


def test_a_command_whose_stage_loses_a_sample_fails(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar(make_samples(3)))
    said = python(LOSING, folder=tmp_path).failure()
    assert "AssertionError: 3 samples were read, but only 2 are accounted for" in said
    kept = (tmp_path / "b.tar").read_bytes()
    assert has_end(kept) and members_of(kept)[0] == make_samples(3)[0]


@pytest.mark.parametrize("booked", ["samples_out", "left_out", "joined", "dropped"])
def test_each_way_a_sample_can_go_is_counted(booked: str) -> None:
    account = Account()
    account.samples_in = 2
    account.samples_out = 1
    with pytest.raises(AssertionError, match=r"^2 samples were read, but only 1 are accounted for$"):
        account.report_totals()
    setattr(account, booked, getattr(account, booked) + 1)
    account.report_totals()


@pytest.mark.parametrize(
    ("count", "said"), [(0, []), (1, ["no samples selected (of 1)"]), (2, ["no samples selected (of 2)"])]
)
def test_if_nothing_was_chosen_of_something_that_is_told(count: int, said: list[str]) -> None:
    told: list[str] = []
    account = Account(told.append)
    account.samples_in = account.left_out = count
    account.report_totals()
    assert told == said


def test_progress_is_of_all_that_was_named_first(tmp_path: Path) -> None:
    """tardiff reads its two sides one after the other, and a table is made of several groups of shards."""
    urls = [str(tmp_path / name) for name in ("a.tar", "b.tar")]
    for url in urls:
        Path(url).write_bytes(make_tar(make_samples(3)))
    account = Account()
    size = check_shards(urls, account)
    assert size == sum(Path(url).stat().st_size for url in urls)
    assert check_shards(urls[:1], account) == Path(urls[0]).stat().st_size
    assert (account.progress.shards, account.progress.expected) == (2, size)


def test_a_key_that_comes_back_among_ascending_ones() -> None:
    back: list[bytes] = []
    first = RepeatedKeyDetector(back.append)
    for keys in ([b"b"], [b"a"], [b"b", b"c"], [b"c", b"d"]):  # the last pair is of neighbours
        first.add(keys)
    assert back == [b"b"]
