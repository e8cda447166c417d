"""Values that commands take from the columns of a table, in place of the samples."""

from __future__ import annotations

import datetime
import json
import os
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.commands.conftest import Inside
from tests.conftest import Result, Run, make_tar

JSON = (b'{"w": 3, "tags": ["x", "y"], "on": true}', b'{"w": 4.5, "tags": []}', b'{"w": 5, "on": false}')
SHARDS = {
    "a.tar": [("a/0.cls", b"7\n"), ("a/0.txt", b"tab\there\n"), ("a/0.json", JSON[0]), ("a/1.json", JSON[1])],
    "sub/b.tar": [("b/0.cls", b"8"), ("b/0.txt", "ü".encode()), ("b/0.json", JSON[2])],
}
SPEC = "cls txt json:w json:tags json:on"


@pytest.fixture
def table(run: Run, tmp_path: Path) -> Path:
    """The table `t.parquet` of the shards above, with columns of values."""
    (tmp_path / "sub").mkdir()
    for name, members in SHARDS.items():
        (tmp_path / name).write_bytes(make_tar(members))
    assert run("tarindex", "-f", SPEC, *SHARDS, "-o", "t.parquet") == (0, b"", "")
    return tmp_path / "t.parquet"


def rows(run: Run, *arguments: object) -> list[list[str]]:
    return [line.split("\t") for line in run("tar2tsv", *arguments).output().decode().splitlines()]


def without_shards(table: Path) -> None:
    for name in SHARDS:
        (table.parent / name).unlink()


@pytest.mark.parametrize("form", ["--jsonl", "--csv", "--no-key"])
def test_all_from_columns(form: str, table: Path, run: Run) -> None:
    """The same as from the shards, but for numbers, which have their types; no shard is there any more."""
    spec = "__index__ __shard__ __size__ n=cls txt json:w json:tags json:on class;cls"
    line = ("tar2tsv", form, "--fill", "NA", "-f", spec)
    whole = run(*line, *SHARDS)
    without_shards(table)
    found = run(*line, "t.parquet")
    assert (whole.status, whole.stderr) == (found.status, found.stderr) == (0, "")
    if form != "--jsonl":
        assert found.stdout == whole.stdout.replace(b"\t3\t", b"\t3.0\t").replace(b"\t5\t", b"\t5.0\t").replace(
            b",3,", b",3.0,"
        ).replace(b",5,", b",5.0,")
        return
    expected = [json.loads(each) for each in whole.stdout.splitlines()]
    for row in expected:
        for name in ("n", "class;cls"):
            row[name] = row[name] if row[name] == "NA" else int(row[name])
    assert [json.loads(each) for each in found.stdout.splitlines()] == expected


def test_columns_that_only_the_table_has(table: Path, run: Run) -> None:
    made = table.parent / "made.parquet"
    duckdb.sql(
        f"COPY (SELECT * EXCLUDE (__members__, cls), length(__key__) / 2 AS score FROM '{table}' "
        f"ORDER BY __key__ DESC) TO '{made}'"
    )
    assert rows(run, "-f", "score cls", "--fill", "-", "made.parquet") == [  # cls is read
        ["__key__", "score", "cls"],
        ["b/0", "1.5", "8"],
        ["a/1", "1.5", "-"],
        ["a/0", "1.5", "7"],
    ]
    without_shards(table)
    assert rows(run, "-f", "score", "made.parquet")[1] == ["b/0", "1.5"]
    assert rows(run, "made.parquet") == [["__key__"], ["b/0"], ["a/1"], ["a/0"]]


def test_types_of_other_programs(table: Path, run: Run) -> None:
    found = pq.read_table(table).select(["__shard__", "__begin__", "__end__", "__key__"]).slice(0, 1)
    columns = {
        "single": pa.array([0.1], pa.float32()),
        "small": pa.array([7], pa.uint8()),
        "large": pa.array([2**63], pa.uint64()),
        "bytes": pa.array([b"\0\xff"]),
        "day": pa.array([datetime.date(2026, 1, 2)]),
        "price": pa.array([Decimal("1.50")]),
        "word": pa.array(["x"]).dictionary_encode(),
        "place": pa.array(
            [{"x": 1, "days": [datetime.date(2026, 1, 2)]}],
            pa.struct([("x", pa.int64()), ("days", pa.list_(pa.date32()))]),  # older pyarrow sorts the names
        ),
        "long": pa.array(["ü"], pa.large_string()),
        "big": pa.array([1e300]),
    }
    for name, column in columns.items():
        found = found.append_column(name, column)
    key = found.column("__key__").cast(pa.binary())
    found = found.set_column(3, "__key__", key)
    pq.write_table(found, table.parent / "other.parquet")
    without_shards(table)
    text = ["a/0", "0.1", "7", "9223372036854775808", "00ff", "2026-01-02", "1.50", "x"]
    text += ['{"x": 1, "days": ["2026-01-02"]}', "ü", "1e+300"]
    assert rows(run, "--no-header", "-f", " ".join(columns), "other.parquet") == [text]
    done = run("tar2tsv", "--jsonl", "-f", " ".join(columns), "other.parquet")
    assert done.status == 0, done
    assert list(json.loads(done.stdout).values())[1:] == [0.1, 7, 2**63, *text[4:8], json.loads(text[8]), "ü", 1e300]


def failed(done: Result) -> str:
    assert (done.status, done.stderr.count("\n")) == (1, 1)
    return done.stderr


def test_values_that_are_missing(table: Path, run: Run) -> None:
    done = run("tar2tsv", "-f", "cls", "t.parquet")
    assert done.stdout == b"__key__\tcls\na/0\t7\n"
    assert failed(done) == (
        "tar2tsv: t.parquet: row 1 (sample 'a/1') has no value in the column 'cls' (--fill STR writes STR instead)\n"
    )
    assert failed(run("tar2tsv", "-f", "nope", "t.parquet")) == (
        "tar2tsv: t.parquet: no sample has 'nope'; the fields and columns are: cls txt json json:w json:tags json:on "
        "(--fill STR writes STR instead)\n"
    )
    said = failed(run("tar2tsv", "-f", "nope", "--fill", "-", "t.parquet"))
    assert "no sample had a value for nope; the fields were: cls txt json" in said
    found = pq.read_table(table)
    pq.write_table(found.append_column("none", pa.nulls(3, pa.int64())), table)
    said = failed(run("tar2tsv", "-f", "none", "--fill", "-", "t.parquet"))
    assert "no sample had a value for none; the fields were: cls txt json:w json:tags json:on none" in said


def test_a_table_without_keys(table: Path, run: Run) -> None:
    """The samples have them; with some of them null too."""
    found = pq.read_table(table)
    keys = found.column("__key__").to_pylist()
    pq.write_table(found.drop_columns(["__key__"]), table.parent / "none.parquet")
    some = found.set_column(3, "__key__", pa.array([keys[0], None, keys[2]]))
    pq.write_table(some, table.parent / "some.parquet")
    for name in ("none.parquet", "some.parquet"):
        assert rows(run, "--fill", "-", "-f", "cls", name) == rows(run, "--fill", "-", "-f", "cls", "t.parquet")
    without_shards(table)
    assert rows(run, "--no-key", "--no-header", "--fill", "-", "-f", "cls", "none.parquet") == [["7"], ["-"], ["8"]]


def test_a_table_from_a_pipe_and_a_part_of_it(table: Path, run: Run) -> None:
    expected = rows(run, "-f", "__shard__ json:w", "t.parquet")
    without_shards(table)
    done = run("tar2tsv", "-f", "__shard__ json:w", stdin=table.read_bytes())
    assert [line.split("\t") for line in done.stdout.decode().splitlines()] == expected
    done = run("tar2tsv", "-v", "-c", 2, "-f", "__shard__ json:w", "t.parquet")
    assert [line.split("\t") for line in done.stdout.decode().splitlines()] == expected[:3]
    assert done.stderr.startswith("tar2tsv: 2 samples in, 2 out, ")


@pytest.mark.usefixtures("many_parts")
def test_many_rows_are_not_read_by_workers(table: Path, inside: Inside) -> None:
    """A large table is no shard that could be cut up; all of its rows come, in order."""
    count = 9000
    noise = pa.array([os.urandom(80) for _ in range(count)])
    columns = {"__shard__": ["a.tar"] * count, "__begin__": [0] * count, "__end__": [512] * count}
    pq.write_table(pa.table(columns | {"n": range(count), "noise": noise}), table.parent / "large.parquet")
    without_shards(table)
    assert rows(inside, "--no-key", "--no-header", "-f", "n", "large.parquet") == [[str(n)] for n in range(count)]


OTHERS = {
    "number": pa.array([1, 2, 3]),
    "text": pa.array(["x", "y", "z"]),
    "lists": pa.array([[1], [], [2]]),
    "null": pa.nulls(3),
    "huge": pa.array([2**64 - 1, 2**63, 1], pa.uint64()),
    "bytes": pa.array([b"\xff", b"", b"x"]),
    "times": pa.array([datetime.timedelta(1), None, datetime.timedelta(2)]),
    "not UTF-8": pa.array([b"\xff", b"\xfe", b"x"]).view(pa.string()),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_columns_of_no_use(kind: str, table: Path, run: Run) -> None:
    """Whatever is in a column: a result, or one line that says what is wrong."""
    found = pq.read_table(table)
    for name in ("__key__", "__shard__", "__begin__", "__members__", "cls"):
        place = found.schema.get_field_index(name)
        pq.write_table(found.set_column(place, name, OTHERS[kind]), table.parent / "bad.parquet")
        for line in (["tarstat", "-q"], ["tar2tsv", "--fill", "-", "-f", "__shard__ __size__ cls"]):
            done = run(*line, "bad.parquet")
            assert done.status in (0, 1) and done.stderr.count("\n") == done.status, (name, line, done)
