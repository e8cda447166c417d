"""Warnings of data that training takes, but as nobody wants it: torn samples, and ranks of unequal shares."""

from __future__ import annotations

import gzip
import warnings
from pathlib import Path

import pytest

from tartools import Table
from tartools.train import TableDataset, WebDataset, loader
from tests.conftest import Run, make_samples, make_tar
from tests.train.conftest import be_rank

TORN = [("a.jpg", b"1"), ("b.jpg", b"2"), ("a.cls", b"1"), ("b.cls", b"2")]
SAID = r"^0.tar: the key '[ab]' comes back after other samples, so its members are read as separate samples; tarsort"


@pytest.mark.filterwarnings("ignore:.*comes back")
def test_torn_samples_of_a_table(run: Run) -> None:
    """Also where the table was made before, in any order of rows; samples that come twice are none."""
    Path("0.tar").write_bytes(make_tar(TORN))
    Path("1.tar").write_bytes(make_tar([("a.jpg", b"1"), ("a.cls", b"2")]))
    assert run("tarindex", "0.tar", "1.tar", "-o", "t.parquet").status == 0
    Table("t.parquet").take([3, 0, 4, 1, 2]).write("shuffled.parquet")
    for source in ("t.parquet", "shuffled.parquet", Table("t.parquet")):
        data = loader(source, 2)
        with pytest.warns(UserWarning, match=SAID) as caught:
            assert len(list(data)) == 3
        assert len(caught) == 1
        with warnings.catch_warnings(action="error"):
            list(data)  # told once
    for rows in ([0, 0, 1, 4], [4, 4]):
        with warnings.catch_warnings(action="error"):
            list(loader(Table("t.parquet").take(rows), 2))


def test_torn_samples_of_shards() -> None:
    Path("0.tar").write_bytes(make_tar(TORN))
    for make in (lambda: list(WebDataset("0.tar")), lambda: TableDataset("0.tar")):
        with pytest.warns(UserWarning, match=SAID):
            make()


def read_by_ranks(urls: str, count: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the warnings of *count* ranks that read an epoch, and begin another."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for rank in range(count):
            be_rank(monkeypatch, rank, count)
            data = WebDataset(urls)
            list(data)
            data.set_epoch(1)
            next(iter(data), None)
    return [str(warning.message) for warning in caught]


def test_unequal_shares_of_ranks(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """A compressed shard is read by one rank; plain shards and tables are cut; sizes count where shards are not."""
    Path("plain.tar").write_bytes(make_tar(make_samples(30)))
    for number in range(3):
        Path(f"{number}.tgz").write_bytes(gzip.compress(make_tar(make_samples(9, 10 * number))))
    for number in range(16):
        Path(f"s-{number:02d}.tar").write_bytes(make_tar(make_samples(3, 100 * number)))
        size = 200 if number == 4 else 1
        Path(f"u-{number:02d}.tar").write_bytes(make_tar(make_samples(size, 200 * number)))
    assert run("tarindex", "plain.tar", "-o", "t.parquet").status == 0
    for equal in ("plain.tar", "t.parquet", "s-{00..15}.tar", "{0..1}.tgz"):
        assert read_by_ranks(equal, 2, monkeypatch) == []
    assert read_by_ranks("0.tgz", 1, monkeypatch) == []
    for unequal, said in (
        (
            "0.tgz",
            "rank 1 gets about 0% of the share of rank 0, and ranks that wait for each other stop with ",
        ),
        ("{0..2}.tgz", "rank 1 gets about 5"),
        ("u-{00..15}.tar", "rank 1 gets about "),
    ):
        (message,) = read_by_ranks(unequal, 2, monkeypatch)
        assert message.startswith(said) and "unpack compressed shards, make more and smaller ones (tarsplit)" in message
