"""`tarfirst -k` and `-i` of tables: what they write is what they write of the shards, and they read nothing else."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import Run, make_tar
from tests.tables.test_tables import as_before

SIZE = 2048  # bytes of each sample
MEMBERS = [[(f"{key}.cls", b"%d" % n), (f"{key}.txt", b"text %d" % n)] for n, key in enumerate("abcdefgh")]
EXTRA = [("d.png", b"png"), ("b.cls", b"9"), ("i.cls", b"8")]


@pytest.fixture
def tables(run: Run, tmp_path: Path) -> tuple[str, str]:
    """Return two tables, of 8 samples in 3 row groups, and of 3; two samples have the key b, and two d."""
    (tmp_path / "a.tar").write_bytes(make_tar([member for sample in MEMBERS for member in sample]))
    (tmp_path / "b.tar").write_bytes(make_tar(EXTRA))
    for name in "ab":
        assert run("tarindex", f"{name}.tar", "-o", f"{name}.parquet").status == 0
    pq.write_table(pq.read_table(tmp_path / "a.parquet"), tmp_path / "a.parquet", row_group_size=3)
    return "a.parquet", "b.parquet"


def test_nothing_else_is_read(run: Run, tables: tuple[str, str], tmp_path: Path) -> None:
    """All other samples are destroyed."""
    shard = tmp_path / "a.tar"
    content = shard.read_bytes()
    as_before(shard, bytes(5 * SIZE) + content[5 * SIZE : 6 * SIZE] + bytes(len(content) - 6 * SIZE))
    assert run("tarfirst", "-k", "f", "-f", "txt", *tables) == (0, b"text 5", "")
    assert run("tarfirst", "-i", "5", "-f", "txt", *tables) == (0, b"text 5", "")
    said = run("tarfirst", "-i", "4", *tables).failure()
    assert said.startswith(f"tarfirst: a.tar: at byte {4 * SIZE}: ") and "(row 4 of a.parquet; " in said


def test_keys_that_the_table_does_not_tell(run: Run, tables: tuple[str, str], tmp_path: Path) -> None:
    rows = pq.read_table(tmp_path / "a.parquet")
    pq.write_table(rows.drop_columns(["__key__"]), tmp_path / "none.parquet")
    keys = [None if row % 2 else key for row, key in enumerate(rows.column("__key__").to_pylist())]
    pq.write_table(rows.set_column(3, "__key__", pa.array(keys)), tmp_path / "some.parquet")
    for name in ("none.parquet", "some.parquet"):
        assert run("tarfirst", "-k", "f", "-f", "txt", name) == (0, b"text 5", "")


def test_among_shards(run: Run, tables: tuple[str, str], tmp_path: Path) -> None:
    """A shard before the table, or a shard that is called as a table: all samples are read, with the same result."""
    assert run("tarfirst", "-i", "4", "-f", "txt", "b.tar", "a.parquet") == (0, b"text 1", "")
    (tmp_path / "b.tar").rename(tmp_path / "shard.parquet")
    assert run("tarfirst", "-k", "i", "shard.parquet") == (0, b"8", "")
