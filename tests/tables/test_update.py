"""`tarindex --update`: shards that have not changed are not read again."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import pytest

from tests.conftest import Run, make_tar
from tests.tables.test_tables import good, rows_of

COUNT = 50


def shard(number: int, samples: int = 4, size: int = 900) -> bytes:
    members = []
    for sample in range(samples):
        members += [(f"{number:02d}{sample}.txt", b"x" * size), (f"{number:02d}{sample}.cls", b"%d" % number)]
    return make_tar(members)


def shards(folder: Path) -> list[str]:
    names = [f"{number:02d}.tar" for number in range(COUNT)]
    for number, name in enumerate(names):
        (folder / name).write_bytes(shard(number, samples=number % 4 + 1))
    return names


def told(run: Run, *line: str) -> str:
    done = run(*line)
    assert done.status == 0, done
    return done.stderr


def test_one_of_fifty_changed(run: Run, tmp_path: Path) -> None:
    names = shards(tmp_path)
    good(run, "tarindex", "-f", "cls", *names, "-o", "old.parquet")
    (tmp_path / "17.tar").write_bytes(shard(17, samples=30, size=100))
    said = told(run, "tarindex", "-v", "-f", "cls", "--update", "old.parquet", *names, "-o", "new.parquet")
    assert said.startswith("tarindex: old.parquet: shards taken over: 49, read: 1, dropped: 0\n")
    good(run, "tarindex", "-f", "cls", *names, "-o", "fresh.parquet")
    assert (tmp_path / "new.parquet").read_bytes() == (tmp_path / "fresh.parquet").read_bytes()


def test_shards_that_came_and_went(run: Run, tmp_path: Path) -> None:
    names = shards(tmp_path)
    good(run, "tarindex", *names[:40], "-o", "t.parquet")
    os.unlink(tmp_path / names[3])
    os.unlink(tmp_path / names[5])
    wanted = [name for name in reversed(names) if name not in ("03.tar", "05.tar")]
    said = told(run, "tarindex", "--update", "t.parquet", *wanted, "-o", "t.parquet", "--force")
    assert said == "tarindex: t.parquet: shards taken over: 38, read: 10, dropped: 2\n"
    good(run, "tarindex", *wanted, "-o", "fresh.parquet")
    assert rows_of(tmp_path / "t.parquet").equals(rows_of(tmp_path / "fresh.parquet"))


def test_without_names_the_shards_are_those_of_the_table(run: Run, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    names = shards(tmp_path / "data")
    good(run, "tarindex", *(f"data/{name}" for name in names), "-o", "data/t.parquet")
    os.unlink(tmp_path / "data/49.tar")
    (tmp_path / "data/01.tar").write_bytes(shard(1, samples=9))
    said = told(run, "tarindex", "--update", "data/t.parquet", "-o", "data/t.parquet", "--force")
    assert said == "tarindex: data/t.parquet: shards taken over: 48, read: 1, dropped: 1\n"
    assert good(run, "tarcat", "data/t.parquet") == good(run, "tarcat", *(f"data/{name}" for name in names[:-1]))


@pytest.mark.parametrize("choose", ["__index__ > 0", "__index__ < 1 OR __index__ > 1"])
def test_a_table_that_lacks_rows_of_a_shard(choose: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(shard(1))
    good(run, "tarindex", "a.tar", "-o", "t.parquet")
    duckdb.sql(f"COPY (FROM '{tmp_path}/t.parquet' WHERE {choose}) TO '{tmp_path}/few.parquet'")
    said = told(run, "tarindex", "--update", "few.parquet", "a.tar", "-o", "new.parquet")
    assert "taken over: 0, read: 1" in said
    assert rows_of(tmp_path / "new.parquet").equals(rows_of(tmp_path / "t.parquet"))


def test_columns(run: Run, tmp_path: Path) -> None:
    """A column that is asked for and not there has all shards read; one that nobody asks for is told about."""
    names = shards(tmp_path)[1:4]
    good(run, "tarindex", *names, "-o", "plain.parquet")
    said = told(run, "tarindex", "-f", "cls", "--update", "plain.parquet", *names, "-o", "cls.parquet")
    assert "taken over: 0, read: 3" in said
    assert rows_of(tmp_path / "cls.parquet").column("cls").to_pylist() == [1, 1, 2, 2, 2, 3, 3, 3, 3]
    (tmp_path / names[0]).write_bytes(shard(7, samples=1))
    said = told(run, "tarindex", "--update", "cls.parquet", *names, "-o", "new.parquet")
    assert said.splitlines()[1] == (
        "tarindex: cls.parquet: no option names these columns, which are null in shards read now: cls"
    )
    assert rows_of(tmp_path / "new.parquet").column("cls").to_pylist() == [None, 2, 2, 2, 3, 3, 3, 3]
    done = run("tarindex", "--update", "cls.parquet", names[0], f"./{names[0]}", "-o", "x.parquet")
    assert (done.status, done.stderr) == (2, f"tarindex: {names[0]}: named twice, which --update does not allow\n")
