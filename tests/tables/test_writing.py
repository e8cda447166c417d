"""Tables that other commands than tarindex write: they list what the same command line would write as a shard."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tartools.tables import inputs
from tests.archives import END, entry
from tests.commands.test_conservation import peak_memory
from tests.conftest import Run, make_tar
from tests.tables.conftest import Indexed, replaced
from tests.tiers import exhaustive


def some(count: int, first: int = 0) -> bytes:
    """Return an archive of samples whose classes come back, in an order that is not that of the keys."""
    members = []
    for number in range(first, first + count):
        key = f"{number * 7919 % 1000:04d}"
        members += [(f"{key}.txt", b"%d" % number * (number % 700)), (f"{key}.cls", b"%d" % (number % 11))]
        members += [(f"{key}.json", b'{"w": %d, "half": %d.5}' % (number % 13, number))]
    return make_tar(members)


@pytest.mark.parametrize(
    "line",
    [
        ["tarcat", "--slice", "3:90:4"],
        ["tarcat", "--interleave", "3", "--shuffle", "5", "-c", "100"],
        ["tarpcat", "-p", "2"],
        ["tarsort", "-s", "cls", "-S", "int", "-r", "-u", "first"],
        ["tarfilter", "--share", "0:0.5"],
    ],
    ids=" ".join,
)
def test_rows_are_taken_over(line: list[str], run: Run, tmp_path: Path) -> None:
    """With their columns, which are null where a table lacks them. (What comes: `test_shards_and_tables`.)"""
    for name, count, first in (("a", 60, 0), ("b", 1, 60), ("c", 80, 61)):
        (tmp_path / f"{name}.tar").write_bytes(some(count, first))
    run("tarindex", "-f", "cls json:w", "a.tar", "b.tar", "-o", "ab.parquet").output()
    run("tarindex", "c.tar", "-o", "c.parquet").output()
    run(*line, "ab.parquet", "c.parquet", "-o", "out.parquet").output()
    whole = [row for name in ("ab", "c") for row in pq.read_table(tmp_path / f"{name}.parquet").to_pylist()]
    places = {(row["__shard__"], row["__begin__"]): row for row in whole}
    for row in pq.read_table(tmp_path / "out.parquet").to_pylist():
        old = places[row["__shard__"], row["__begin__"]]
        assert {**dict.fromkeys(["cls", "json:w"]), **old} == row
    run(*line, "a.tar", "b.tar", "ab.parquet", "-o", "shards.parquet").output()
    assert {*pq.read_table(tmp_path / "shards.parquet").column("__shard__").to_pylist()} <= {"a.tar", "b.tar"}


@pytest.mark.parametrize(
    "options", [["-n", "30"], ["-s", "40000"], ["--shards", "7"], ["-n", "9", "--max-shards", "3", "--start", "5"]]
)
def test_parts_of_a_table(options: list[str], run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(some(200))
    run("tarsort", "-S", "shuffle", "a.tar", "-o", "t.parquet").output()
    run("tarcat", "t.parquet", "-o", "t.tar").output()
    (tmp_path / "tables").mkdir()
    (tmp_path / "shards").mkdir()
    made = run("tarsplit", *options, "t.parquet", "-o", "tables/part-%03d.parquet").output().decode()
    whole = run("tarsplit", *options, "t.tar", "-o", "shards/part-%03d.tar").output().decode()
    assert made.replace("tables/", "shards/").replace(".parquet", ".tar") == whole
    for table, shard in zip(made.split(), whole.split(), strict=True):
        assert run("tarcat", table).output() == (tmp_path / shard).read_bytes()
        assert pq.read_table(tmp_path / table).column("__shard__").to_pylist()[0] == "../a.tar"
    assert len(os.listdir(tmp_path / "tables")) == len(os.listdir(tmp_path / "shards"))


def test_rows_with_one_key(run: Run, tmp_path: Path) -> None:
    """Members of one sample in two shards: a shard joins them, a table can't; equal ones are chosen from by -u."""
    (tmp_path / "a.tar").write_bytes(make_tar([("x.txt", b"a"), ("y.txt", b"b")]))
    (tmp_path / "b.tar").write_bytes(make_tar([("x.cls", b"1"), ("y.cls", b"2")]))
    done = run("tarsort", "a.tar", "b.tar", "-o", "t.parquet")
    assert done.status == 1 and "2 rows have the key 'x', and a table can't list their members as one" in done.stderr
    assert not (tmp_path / "t.parquet").exists()
    run("tarindex", "a.tar", "b.tar", "a.tar", "-o", "t.parquet").output()
    assert "3 rows have the key 'x'" in run("tarsort", "-u", "first", "t.parquet", "-o", "u.parquet").failure()
    run("tarindex", "a.tar", "a.tar", "-o", "aa.parquet").output()
    run("tarsort", "-u", "first", "aa.parquet", "-o", "u.parquet").output()
    assert run("tarcat", "u.parquet").output() == run("tarcat", "a.tar").output()
    assert (
        run("tarsort", "-u", "first", "t.parquet").output() == run("tarsort", "-u", "first", "a.tar", "b.tar").output()
    )


def test_columns_that_a_table_lacks(indexed: Indexed, run: Run, tmp_path: Path) -> None:
    """They can't come from nowhere: tarindex says so, and does not leave them out in silence."""
    indexed([("x.png", b""), ("x.cls", b"1")])
    for options, name in (
        (["-f", "cls"], "cls"),
        (["--hash", "png"], "png.blake2b"),
        (["--dhash", "png"], "png.dhash"),
        (["--pictures"], "png.width"),
        (["--decode"], "png.width"),
    ):
        why = f"this table has no column {name!r}; name its shards, to look into samples"
        assert run("tarindex", *options, "t.parquet", "-o", "new.parquet") == (2, b"", f"tarindex: t.parquet: {why}\n")
    assert not (tmp_path / "new.parquet").exists()
    run("tarindex", "-f", "cls", "--pictures", "a.tar", "-o", "u.parquet").output()
    run("tarindex", "-f", "cls", "--pictures", "u.parquet", "a.tar", "-o", "new.parquet").output()
    rows = pq.read_table(tmp_path / "new.parquet")
    assert rows.column("cls").to_pylist() == [1, 1] and rows.column("png.broken").to_pylist() == ["it is empty"] * 2


def test_tables_of_tables(run: Run, tmp_path: Path) -> None:
    """Columns of all, in types that hold the values of all; shards, never tables, by names that fit the new place."""
    for name, value in (("a", b"1"), ("b", b"2.5"), ("c", b"word")):
        (tmp_path / f"{name}.tar").write_bytes(make_tar([(f"{name}.cls", value), (f"{name}.{name}", b"")]))
        (tmp_path / name).mkdir()
        run("tarindex", "-f", "cls", f"{name}.tar", "-o", f"{name}/t.parquet").output()
    (tmp_path / "none.tar").write_bytes(make_tar([]))
    run("tarindex", "none.tar", "-o", "none.parquet").output()
    for tables, kind, values in (("ab", "double", [1.0, 2.5]), ("abc", "string", ["1", "2.5", "word"])):
        inputs = [f"{name}/t.parquet" for name in tables]
        run("tarindex", "none.parquet", *inputs, "-o", "all.parquet", "--force").output()
        rows = pq.read_table(tmp_path / "all.parquet")
        assert str(rows.schema.field("cls").type) == kind
        assert rows.column("cls").to_pylist() == values
        assert rows.column("__shard__").to_pylist() == [f"{name}.tar" for name in tables]
        assert rows.column("__members__").to_pylist()[0]["b"] is None
        assert run("tarcat", "all.parquet").output() == run("tarcat", *(f"{name}.tar" for name in tables)).output()


def place(offset: object, size: object) -> dict[str, dict[str, object]]:
    return {"txt": {"offset": offset, "size": size}}


@pytest.mark.parametrize(
    ("name", "values", "what"),
    [
        ("__index__", [-1, 0], "__index__ has values that are not uint64"),
        ("__index__", ["a", "b"], "__index__ has values that are not uint64"),
        ("__key__", [b"\xff", b"b"], "__key__ has values that are not string"),
        ("__members__", [{"txt": 1}] * 2, "__members__ has values that are not places"),
        ("__members__", [place(512, "x")] * 2, "not all __members__ are numbers"),
    ],
)
def test_values_that_cannot_be_taken_over(
    name: str, values: list[object], what: str, indexed: Indexed, run: Run, tmp_path: Path
) -> None:
    table = indexed([("a.txt", b"1"), ("b.txt", b"2")])
    pq.write_table(replaced(table, name, values), tmp_path / "o.parquet")
    for command in ("tarcat", "tarsort"):
        said = run(command, "o.parquet", "-o", "new.parquet").failure(lines=1)
        assert said.startswith(f"{command}: o.parquet: rows 0 to 1: {what}")
    assert not (tmp_path / "new.parquet").exists()


def test_a_row_without_a_key(indexed: Indexed, run: Run, tmp_path: Path) -> None:
    """Its sample has one, so a shard is sorted by those of the samples; a table can't be."""
    table = indexed([("b.txt", b"1"), ("c.txt", b"2"), ("a.txt", b"3")])
    pq.write_table(replaced(table, "__key__", ["b", None, "a"]), tmp_path / "o.parquet")
    assert run("tarsort", "o.parquet").output() == run("tarsort", "a.tar").output()
    done = run("tarsort", "o.parquet", "-o", "new.parquet")
    assert (done.status, done.stderr) == (1, "tarsort: one of rows 0 to 2 has no __key__ to sort by\n")


NUMBERS = pa.array([1 << 63], pa.uint64()), pa.array([-1], pa.int64())


@pytest.mark.parametrize(
    ("values", "together"),
    [
        ([pa.array([each]) for each in (7, b"\xff", True, ["x"], 0.5)], ["7", "ff", "true", '["x"]', "0.5"]),
        (NUMBERS, [float(1 << 63), -1.0]),  # Arrow's promotion would give int64, which does not hold them
        ([pa.array([each.to_pylist()], pa.list_(each.type)) for each in NUMBERS], [[float(1 << 63)], [-1.0]]),
        ([pa.array([["x"]], kind) for kind in (pa.large_list(pa.large_string()), pa.list_(pa.string()))], [["x"]] * 2),
    ],
    ids=["text", "doubles", "lists of doubles", "lists of text"],
)
def test_values_of_several_types_become(
    values: list[pa.Array], together: list[object], indexed: Indexed, run: Run, tmp_path: Path
) -> None:
    table = indexed([("a.txt", b"1")])
    for number, value in enumerate(values):
        pq.write_table(table.append_column("x", value), tmp_path / f"{number}.parquet")
    assert run("tarcat", *(f"{number}.parquet" for number in range(len(values))), "-o", "all.parquet") == (0, b"", "")
    assert pq.read_table(tmp_path / "all.parquet").column("x").to_pylist() == together


@pytest.mark.parametrize("chunk", [1, 3, 50, 1000])
@pytest.mark.parametrize("rows", [1, 7, 40])
def test_each_place_has_its_row(chunk: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "POSITIONS_IN_CHUNK", chunk)
    dice = random.Random(chunk)
    for count in (0, 1, 5, 60, 300):
        positions = [dice.randrange(rows) for _ in range(count)]
        by_row = inputs.places_by_row(positions)
        found: dict[int, int] = {}
        for first in range(0, rows, 6):
            before = -1
            for numbers, places in inputs.places_between(by_row, first, min(first + 6, rows)):
                assert 0 < len(places) <= chunk
                assert [before, *places.tolist()] == sorted({before, *places.tolist()})
                before = int(places[-1])
                assert not set(places.tolist()) & found.keys()
                found.update(zip(places.tolist(), (first + numbers).tolist(), strict=True))
        assert len(by_row) == count
        assert [found[place] for place in range(count)] == positions


JSON = [
    ("[1, 2]", "[2.5]", "list<element: double>"),
    ('{"a": 1}', '{"a": 0.5, "b": ["x"]}', "struct<a: double, b: list<element: string>>"),
    ('[{"a": 1}]', '[{"b": true}]', "list<element: struct<a: int64, b: bool>>"),
    ("[1]", '["x"]', "string"),
    ('{"a": 1}', '{"a": [1]}', "string"),
    ('{"a": 1}', "[1]", "string"),
]


@pytest.mark.parametrize(("one", "other", "kind"), JSON)
def test_tables_together_have_the_types_that_one_table_has(
    one: str, other: str, kind: str, run: Run, tmp_path: Path
) -> None:
    for name, value in (("a", one), ("b", other)):
        (tmp_path / f"{name}.tar").write_bytes(make_tar([(f"{name}.json", b'{"v": %b}' % value.encode())]))
        assert run("tarindex", "-f", "json:v", f"{name}.tar", "-o", f"{name}.parquet") == (0, b"", "")
    assert run("tarindex", "-f", "json:v", "a.tar", "b.tar", "-o", "ab.parquet") == (0, b"", "")
    assert run("tarcat", "a.parquet", "b.parquet", "-o", "joined.parquet") == (0, b"", "")
    assert str(pq.read_table(tmp_path / "joined.parquet").schema.field("json:v").type) == kind
    assert pq.read_table(tmp_path / "joined.parquet").equals(pq.read_table(tmp_path / "ab.parquet"))


@exhaustive
def test_memory_does_not_grow_with_the_number_of_shards(tmp_path: Path) -> None:
    """A shard takes its name and version, not a record batch."""
    names = [f"{number}.tar" for number in range(4000)]
    for name in names:
        (tmp_path / name).write_bytes(entry(b"a.cls", b"1") + END)
    peaks = []
    for count in (1000, 2000, 4000):
        (tmp_path / "list").write_text("".join(name + "\n" for name in names[:count]))
        line = ["tarindex", "-p", "1", "-T", "list", "-o", "t.parquet", "--force"]
        peaks.append(peak_memory(line, "", tmp_path))
    assert peaks[2] - peaks[0] < 3000 * 4500, peaks
