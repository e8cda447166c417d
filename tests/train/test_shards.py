"""Shards in place of a table: the table is made first, and can be kept."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import pytest

import tartools
from tartools.errors import StorageError, TruncatedError, UsageError
from tartools.train import TableDataset, loader
from tartools.train.fieldchooser import FieldChooser
from tests.conftest import Run, make_samples, make_tar


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Go to a folder with three shards, of which the second has no samples."""
    for name, count in (("a.tar", 5), ("b.tar", 0), ("c.tar", 7)):
        Path(name).write_bytes(make_tar([(f"{name[0]}{path}", data) for path, data in make_samples(count)]))
    return tmp_path


def samples(*urls: str) -> list[Any]:
    return [FieldChooser()(sample) for sample in tartools.read(list(urls))]


def all_of(data: TableDataset) -> list[Any]:
    return data.__getitems__(range(len(data)))


@pytest.mark.parametrize("source", ["{a,b,c}.tar", ["a.tar", "b.tar", "c.tar"], ["a.tar", "t.parquet"]], ids=repr)
def test_shards_are_indexed(source: Any, folder: Path, run: Run) -> None:
    assert run("tarindex", "b.tar", "c.tar", "-o", "t.parquet").status == 0
    expected = samples("a.tar", "b.tar", "c.tar")
    data = TableDataset(source)
    assert all_of(data) == expected and all_of(pickle.loads(pickle.dumps(data))) == expected
    batches = loader(source, 5, shuffle=False, num_workers=1)
    assert [sample for batch in batches for sample in batch] == expected
    assert {*os.listdir()} == {"a.tar", "b.tar", "c.tar", "t.parquet"}


def test_the_table_is_kept(folder: Path) -> None:
    names = ["a.tar", "b.tar", "c.tar"]
    assert all_of(TableDataset(names, table="t.parquet")) == samples(*names)
    before = os.stat("t.parquet")
    assert all_of(TableDataset(names, table="t.parquet")) == samples(*names)
    assert os.stat("t.parquet").st_ino == before.st_ino  # as it was
    Path("a.tar").write_bytes(make_tar([("new.cls", b"1")]))
    Path("d.tar").write_bytes(make_tar([("d.cls", b"2")]))
    for urls in ([*names, "d.tar"], ["d.tar", "a.tar"], names[::-1]):
        assert all_of(TableDataset(urls, table="t.parquet")) == samples(*urls)
        assert all_of(TableDataset("t.parquet")) == samples(*urls)


def rank(number: int, gate: Any) -> None:
    """What a rank does: it makes the table when all are there, and writes what it found."""
    gate.wait()
    table = TableDataset("{a,b,c}.tar", table="sets/t.parquet").table
    Path(f"said-{number}").write_text(f"{len(table)} {table.digest()} {[sample.key for sample in table]}")


def test_ranks_that_make_one_table_together(folder: Path) -> None:
    """Fresh, and when shards have changed: none fails, and all have the same rows."""
    Path("sets").mkdir()
    for count in (12, 8):
        fork = multiprocessing.get_context("fork")
        gate = fork.Barrier(2)
        ranks = [fork.Process(target=rank, args=(number, gate)) for number in range(2)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(60)
        assert [process.exitcode for process in ranks] == [0] * 2
        said = {Path(f"said-{number}").read_text() for number in range(2)}
        assert len(said) == 1 and said.pop().split()[0] == str(count)
        Path("c.tar").write_bytes(make_tar(make_samples(3)))
    assert os.listdir("sets") == ["t.parquet"]


def test_a_rank_of_another_machine_was_faster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TableDataset(["a.tar", "c.tar"], table="t.parquet")
    before = os.stat("t.parquet")
    monkeypatch.setattr("tartools.storage.exists", lambda _: False)  # as it was when this rank looked
    for urls in (["a.tar", "c.tar"], ["c.tar", "a.tar"]):
        assert all_of(TableDataset(urls, table="t.parquet")) == samples(*urls)
        assert (os.stat("t.parquet").st_ino == before.st_ino) == (urls[0] == "a.tar")


def test_messages_name_options_as_python_has_them(folder: Path, run: Run) -> None:
    with pytest.raises(StorageError, match=r"^a.tar: already exists; force=True replaces it$"):
        tartools.write([], "a.tar")
    done = run("tarcat", "a.tar", "-o", "c.tar")
    assert (done.status, done.stderr) == (1, "tarcat: c.tar: already exists; --force replaces it\n")
    with tarfile.open("a.tar") as file:
        end = file.getmembers()[-1].offset_data + 512
    os.truncate("a.tar", end)
    with pytest.raises(TruncatedError, match=r"\(then use lax=True\)$"):
        list(tartools.read("a.tar"))


def test_what_is_no_source(folder: Path) -> None:
    table = tartools.Table.from_arrow(TableDataset("a.tar").table.arrow)
    assert all_of(TableDataset(table)) == samples("a.tar")
    for wrong, kept in ((table, "t.parquet"), ([], None)):
        with pytest.raises(ValueError, match="already" if kept else "no shard and no table is named"):
            TableDataset(wrong, table=kept)
    table.write("t.parquet")
    with pytest.raises(ValueError, match=r"this is a table: t.parquet"):
        TableDataset("t.parquet", table="u.parquet")
    with pytest.raises(ValueError, match="this is a TableDataset"):
        loader(TableDataset("a.tar"), 2, fields="cls")
    with pytest.raises(UsageError):
        TableDataset("pipe:cat a.tar")
    Path("cut.tar").write_bytes(Path("a.tar").read_bytes()[:2000])
    for kept in (None, "v.parquet"):
        with pytest.raises(TruncatedError, match=r"cut.tar: at byte \d+"):
            TableDataset(["a.tar", "cut.tar"], table=kept)
    assert not Path("v.parquet").exists()
