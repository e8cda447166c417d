"""tarstat of tables: the same facts as of the shards, without opening one; values that commands take from columns."""

from __future__ import annotations

import datetime
import json
import os
import random
import tarfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tartools.samples.account import Account
from tartools.shards.reading import Reading, read_batches
from tartools.tables.tablesamples import table_batches
from tests.archives import END, entry, picture
from tests.commands.conftest import Inside
from tests.conftest import Result, Run, make_tar
from tests.tables.conftest import replaced
from tests.tiers import also

FIELDS = ("jpg", "cls", "seg.png", "cls.fine", "ü.txt")


def anything(seed: int, count: int = 300) -> bytes:
    """Return a random archive: long names, fields in any order, empty payloads, long values, lone members."""
    draw = random.Random(seed)
    members = []
    for number in range(count):
        key = f"{draw.choice(['a', 'b/c', 'x' * 120])}/{seed}-{number:04d}"
        if draw.random() < 0.02 * (seed % 3):
            members.append((key, bytes(draw.choice([0, 5, 513]))))
            continue
        fields = [field for field in FIELDS if draw.random() < 0.9] or ["cls"]
        if draw.random() < 0.2:
            draw.shuffle(fields)
        for field in fields:
            value = b"%d\n" % draw.randrange(9) if field.startswith("cls") else bytes(draw.choice([0, 1, 600, 5000]))
            members.append((f"{key}.{field}", value if draw.random() < 0.95 else b"long" * 100))
    return make_tar(members, tarfile.PAX_FORMAT if seed % 2 else tarfile.GNU_FORMAT)


def facts(run: Run, *arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("tarstat", "--json", *arguments).output())
    return found


def same(of_table: dict[str, Any], of_shards: dict[str, Any]) -> None:
    """Compare all facts, but for the bytes of shards that belong to no sample."""
    size = of_shards["bytes"]
    size["archives"] -= size.pop("other")
    assert of_table["bytes"].pop("other") == 0
    assert of_table == of_shards


def indexed(run: Run, *arguments: object) -> None:
    assert run("tarindex", *arguments, "-o", "t.parquet") == (0, b"", "")


@pytest.mark.parametrize("seed", [0, *also(1, 2, 3)])
def test_the_same_facts(seed: int, run: Run, tmp_path: Path) -> None:
    shards = [f"{number}.tar" for number in range(4)]
    for number, name in enumerate(shards):
        (tmp_path / name).write_bytes(anything(4 * number + seed))
    indexed(run, "-f", "cls cls.fine", *shards)
    whole, quiet = facts(run, *shards), run("tarstat", "-q", "--json", "t.parquet")
    found = run("tarstat", "--json", "t.parquet")
    assert found.stderr == (
        "tarstat: t.parquet: not counted, because there are no columns for them: "
        "pictures of jpg seg.png (tarindex --pictures)\n"
    )
    assert quiet == found._replace(stderr="")
    for field in whole["fields"]:
        field.pop("pictures", None)
    same(json.loads(found.stdout), whole)
    assert run("tarstat", "-q", "t.parquet").output().startswith(b"shards: 4\nsamples: 1200\n")


def test_pictures(run: Run, tmp_path: Path) -> None:
    draw = random.Random(1)
    sizes: list[tuple[int, int] | None] = [(draw.randrange(20, 30), 40) for _ in range(50)]
    sizes[7] = sizes[30] = None
    members = [
        member
        for n, size in enumerate(sizes)
        for member in (
            (f"{n:03d}.cls", b"%d" % (n % 3)),
            (f"{n:03d}.jpg", picture("JPEG", *size) if size else b"no picture"),
        )
    ]
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    whole = facts(run, "a.tar")
    indexed(run, "-f", "cls", "--pictures", "a.tar")
    (tmp_path / "a.tar").rename(tmp_path / "elsewhere")
    same(facts(run, "t.parquet"), whole)
    assert run("tarstat", "--decode", "t.parquet").stderr.startswith("tarstat: a.tar: ")  # it reads them


def test_a_field_that_a_sample_has_twice(run: Run, tmp_path: Path) -> None:
    """Its row can't describe it, so the sample is read."""
    archive = entry(b"a.txt", b"1") + entry(b"b.one", b"1") + entry(b"b.txt", b"22") + entry(b"b.one", b"3" * 600)
    (tmp_path / "a.tar").write_bytes(archive + entry(b"b.bin", b"4") + entry(b"c.txt", b"5") + END)
    indexed(run, "a.tar")
    whole = facts(run, "a.tar")
    same(facts(run, "t.parquet"), whole)
    assert whole["members"] == 6


def test_classes_that_are_asked_for(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(anything(3))
    (tmp_path / "b.tar").write_bytes(anything(6))
    indexed(run, "-f", "cls", "a.tar", "b.tar")
    whole = facts(run, "--classes", "cls.fine", "a.tar", "b.tar")
    same(facts(run, "--classes", "cls.fine", "t.parquet"), whole)
    (tmp_path / "b.tar").unlink()
    assert run("tarstat", "--classes", "cls.FINE", "t.parquet").stderr.startswith("tarstat: b.tar: ")
    said = run("tarstat", "--classes", "nope", "-q", "t.parquet").failure()
    assert "no sample had the field nope; the fields were: jpg " in said


def test_rows_in_another_order_and_of_other_programs(run: Run, tmp_path: Path) -> None:
    """The table lists some samples twice; without __members__ or keys, samples are read."""
    (tmp_path / "a.tar").write_bytes(make_tar([(f"{n:03d}.txt", bytes(n)) for n in range(100)]))
    (tmp_path / "b.tar").write_bytes(make_tar([(f"b{n:03d}.cls", b"%d" % n) for n in range(10)]))
    indexed(run, "-f", "cls", "a.tar", "b.tar")
    table = pq.read_table(tmp_path / "t.parquet").take([105, 3, 104, 3, 50, 104])
    pq.write_table(table, tmp_path / "some.parquet")
    found = facts(run, "some.parquet")
    assert (found["samples"], found["bytes"]["payloads"]) == (6, 3 + 3 + 3 + 50)
    assert found["shards"]["smallest"] == {"url": "b.tar", "samples": 3, "bytes": 3072}
    assert found["fields"][0]["classes"]["counts"] == {"4": 2, "5": 1}
    for column in ("__members__", "__key__"):
        pq.write_table(table.drop_columns([column]), tmp_path / "other.parquet")
        assert facts(run, "other.parquet") == found


def test_tables_with_different_fields(run: Run, tmp_path: Path) -> None:
    """Samples that have all fields of one lack those of the other: they are listed."""
    (tmp_path / "a.tar").write_bytes(make_tar([(f"a{n}.{field}", b"1") for n in range(9) for field in ("txt", "cls")]))
    (tmp_path / "b.tar").write_bytes(make_tar([(f"b{n}.txt", b"1") for n in range(3)]))
    indexed(run, "-f", "cls", "a.tar")
    assert run("tarindex", "b.tar", "-o", "u.parquet").status == 0
    same(facts(run, "t.parquet", "u.parquet"), facts(run, "a.tar", "b.tar"))
    same(facts(run, "u.parquet", "t.parquet"), facts(run, "b.tar", "a.tar"))


def test_tables_among_shards(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("a.txt", b"1")]))
    (tmp_path / "b.tar").write_bytes(make_tar([("b.txt", b"2"), ("c.txt", b"3")]))
    indexed(run, "b.tar")
    found = facts(run, "t.parquet", "a.tar")
    assert found["shards"]["count"] == 2
    assert [found["shards"][each]["url"] for each in ("smallest", "largest")] == ["a.tar", "b.tar"]
    assert facts(run, "t.parquet", "t.parquet")["samples"] == 4


def test_numbers_that_cannot_be(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([(f"{n}.txt", b"1") for n in range(9)]))
    indexed(run, "a.tar")
    table = pq.read_table(tmp_path / "t.parquet")
    ends = table.column("__end__").to_pylist()
    ends[4] = 512
    pq.write_table(replaced(table, "__end__", ends, pa.uint64()), tmp_path / "t.parquet")
    assert "the sample cannot begin at 4096 and end at 512" in run("tarstat", "t.parquet").failure(lines=1)
    places = table.column("__members__").to_pylist()
    for offset, size in ((4096, 1), (4608, 513)):
        places[4]["txt"] = {"offset": offset, "size": size}
        pq.write_table(replaced(table, "__members__", places), tmp_path / "t.parquet")
        said = run("tarstat", "t.parquet").failure(lines=1)
        assert "not all members of the sample are in bytes 4096 to 5120 (row 4 of t.parquet" in said


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
        "brief": pa.array([1], pa.duration("ns")),
        "late": pa.array([[10**8]], pa.list_(pa.date32())),
    }
    for name, column in columns.items():
        found = found.append_column(name, column)
    key = found.column("__key__").cast(pa.binary())
    found = found.set_column(3, "__key__", key)
    pq.write_table(found, table.parent / "other.parquet")
    without_shards(table)
    text = ["a/0", "0.1", "7", "9223372036854775808", "00ff", "2026-01-02", "1.50", "x"]
    text += ['{"x": 1, "days": ["2026-01-02"]}', "ü", "1e+300", "1", '["<value out of range: 100000000>"]']
    assert rows(run, "--no-header", "-f", " ".join(columns), "other.parquet") == [text]
    out = run("tar2tsv", "--jsonl", "-f", " ".join(columns), "other.parquet").output()
    last = json.loads(text[8]), "ü", 1e300, "1", json.loads(text[-1])
    assert list(json.loads(out).values())[1:] == [0.1, 7, 2**63, *text[4:8], *last]


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
    assert "no sample had a value for none; the fields were: cls txt json json:w json:tags json:on none" in said


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
    "late": pa.array([10**8, 1, 2], pa.date32()),
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


def test_columns_of_described_rows_are_those_of_the_samples(run: Run, tmp_path: Path) -> None:
    shard, table = tmp_path / "a.tar", str(tmp_path / "t.parquet")
    shard.write_bytes(anything(1))
    indexed(run, "a.tar")
    account = Account()
    read = [sample for batch in read_batches([str(shard)], account, Reading()) for sample in batch]
    with open(table, "rb") as file:
        described = 0
        for batch in table_batches(table, file, account, columns=("__key__", "__members__")):
            for part in batch.with_known_fields():
                for same in part.combinations():
                    described += len(same) * (part.columns is not None)
                    for column in same.columns if part.columns is not None else ():
                        chosen = [sample for sample in read if sample.raw_key in same.keys]
                        members = [sample.member(column.name, verbatim=True) for sample in chosen]
                        assert column.payloads() == [member.read() for member in members if member]
                        assert column.sizes == [member.size for member in members if member]
    assert 200 < described < len(read)
