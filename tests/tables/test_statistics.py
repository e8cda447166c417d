"""tarstat of tables: the same facts as of the shards, without opening one."""

from __future__ import annotations

import json
import random
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.archives import END, entry, picture
from tests.conftest import Run, make_tar
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
    plain = run("tarstat", "-q", "t.parquet")
    assert plain.status == 0 and plain.stdout.startswith(b"shards: 4\nsamples: 1200\n")


def test_no_shard_is_opened(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(anything(3))  # without lone members, of which a table does not tell the size
    indexed(run, "-f", "cls cls.fine", "a.tar")
    before = run("tarstat", "-q", "--json", "t.parquet")
    (tmp_path / "a.tar").unlink()
    assert before.status == 0 and run("tarstat", "-q", "--json", "t.parquet") == before


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
