"""tarindex, and tables where shards may stand: the same bytes as from the shards, or a failure that says where."""

from __future__ import annotations

import os
import random
import re
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tartools.errors import how_to_install, shown
from tests.archives import END, entry, header, pax
from tests.conftest import Run, has_end, make_samples, make_tar, members_of, python
from tests.tables.conftest import Indexed, replaced


def anything(seed: int, count: int = 60) -> bytes:
    """Return a random archive: long names, empty and large payloads, samples without some fields, lone members."""
    draw = random.Random(seed)
    members: list[tuple[str, bytes]] = []
    for number in range(count):
        key = f"{draw.choice(['a', 'b/c', 'x' * 120])}/{number:04d}"
        if draw.random() < 0.1:
            members.append((key, draw.randbytes(draw.choice([0, 5, 513]))))
            continue
        fields = [field for field in ("jpg", "cls", "seg.png", "ü.txt") if draw.random() < 0.8] or ["cls"]
        sizes = [0, 1, 511, 512, 513, 70_000, 300_000] if draw.random() < 0.3 else [0, 1, 40]
        members += [(f"{key}.{field}", draw.randbytes(draw.choice(sizes))) for field in fields]
    return make_tar(members, tarfile.PAX_FORMAT if seed % 2 else tarfile.GNU_FORMAT)


def test_the_columns(run: Run, tmp_path: Path) -> None:
    members = [("a.jpg", b"x" * 700), ("a.cls", b"7\n"), ("a.json", b'{"w": 1, "tags": ["x"]}'), ("n/b.cls", b"8")]
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.tar").write_bytes(make_tar(members))
    spec = "cls json:w n=json:tags jpg;cls"
    run("tarindex", "-f", spec.replace(" jpg;cls", ""), "data/a.tar", "-o", "data/t.parquet").output()
    found = pq.read_table(tmp_path / "data/t.parquet").to_pylist()
    about = os.stat(tmp_path / "data/a.tar")
    assert found[0] == {
        "__shard__": "a.tar",
        "__version__": f"{about.st_size} {about.st_mtime_ns}",
        "__index__": 0,
        "__key__": "a",
        "__begin__": 0,
        "__end__": 3584,
        "__members__": {
            "jpg": {"offset": 512, "size": 700},
            "cls": {"offset": 2048, "size": 2},
            "json": {"offset": 3072, "size": 23},
        },
        "cls": 7,
        "json:w": 1,
        "n": ["x"],
    }
    assert (found[1]["__index__"], found[1]["__begin__"], found[1]["json:w"]) == (1, 3584, None)
    assert found[1]["__members__"] == {"jpg": None, "cls": {"offset": 4096, "size": 1}, "json": None}
    data = (tmp_path / "data/a.tar").read_bytes()
    for name, payload in members:
        row = next(row for row in found if name.startswith(row["__key__"] + "."))
        place = row["__members__"][name.rpartition(".")[2]]
        assert data[place["offset"] : place["offset"] + place["size"]] == payload


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([b"1", b"-2"], "int64"),
        ([b"1", b"2.50"], "double"),
        ([b"1", b"two"], "string"),
        ([b"007", b"8"], "string"),
        ([b"9" * 30, b"8"], "string"),
        ([b"9223372036854775807", b"8"], "int64"),
        ([b"9223372036854775808", b"8"], "string"),
        ([b"%d" % (2**60 + 1), b"0.5"], "double"),
    ],
)
def test_types_of_values(values: list[bytes], kind: str, indexed: Indexed) -> None:
    column = indexed([(f"{n}.cls", value) for n, value in enumerate(values)], "-f", "cls").column("cls")
    assert str(column.type) == kind
    if kind == "string":
        assert column.to_pylist() == [value.decode() for value in values]
    else:
        assert column.to_pylist() == [(int if kind == "int64" else float)(value) for value in values]


def by_duckdb(table: Path, made: Path) -> None:
    duckdb.sql(f"COPY (SELECT cls, __end__, __shard__, __begin__ FROM '{table}' ORDER BY hash(__key__)) TO '{made}'")


def by_polars(table: Path, made: Path) -> None:
    frame = polars.read_parquet(table).drop("__members__").with_columns(polars.col("__begin__").cast(polars.Int32))
    frame.reverse().write_parquet(made)


def by_arrow(table: Path, made: Path) -> None:
    rows = pq.read_table(table)
    order = random.Random(3).choices(range(len(rows)), k=100)  # some of them twice, some not at all
    order = [number for number, before in zip(order, [-1, *order], strict=False) if number != before]
    pq.write_table(rows.take(order).select(["__key__", "__shard__", "__begin__", "__end__"]), made)


@pytest.mark.parametrize("writer", [by_duckdb, by_polars, by_arrow])
def test_tables_of_other_programs(
    writer: Callable[[Path, Path], None], indexed: Indexed, run: Run, tmp_path: Path
) -> None:
    samples = [m for n in range(50) for m in ((f"{n}.cls", b"%d" % n), (f"{n}.bin", bytes([n]) * n * 300))]
    places = indexed(samples, "-f", "cls").column("__begin__").to_pylist()
    writer(tmp_path / "t.parquet", tmp_path / "made.parquet")
    order = pq.read_table(tmp_path / "made.parquet").column("__begin__").to_pylist()
    expected = [m for begin in order for m in samples[2 * places.index(begin) : 2 * places.index(begin) + 2]]
    assert members_of(run("tarcat", "made.parquet").output()) == expected


def test_a_data_set_that_was_moved(run: Run, tmp_path: Path) -> None:
    (tmp_path / "old/shards").mkdir(parents=True)
    (tmp_path / "old/shards/a.tar").write_bytes(anything(7))
    run("tarindex", "old//shards/a.tar", "-o", "old/t.parquet").output()
    (tmp_path / "old").rename(tmp_path / "new")
    assert run("tarcat", "new/t.parquet").output() == run("tarcat", "new/shards/a.tar").output()
    run("tarindex", str(tmp_path / "new/shards/a.tar"), "-o", "out.parquet").output()
    assert pq.read_table(tmp_path / "out.parquet").column("__shard__").to_pylist()[0] == "new/shards/a.tar"


def test_a_table_that_was_moved_alone(indexed: Indexed, run: Run, tmp_path: Path) -> None:
    indexed(anything(7))
    (tmp_path / "else").mkdir()
    (tmp_path / "t.parquet").rename(tmp_path / "else/t.parquet")
    why = "its shards are named relative to its folder: keep them together, or make it again: tarindex"
    said = f"tarcat: else/a.tar: at byte 0: No such file or directory (row 0 of else/t.parquet; {why})\n"
    assert run("tarcat", "else/t.parquet") == (1, b"", said)
    (tmp_path / "else/a.tar").write_bytes(anything(8))
    assert "tarindex --update makes the table again" in run("tarcat", "else/t.parquet").stderr


def test_shards_that_cannot_be_read_in_parts(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar(make_samples(3)))
    subprocess.run(["gzip", "-k", "a.tar"], cwd=tmp_path, check=True)
    done = run("tarindex", "a.tar.gz", "-o", "t.parquet")
    what = "is compressed, so it can't be read in parts; tarcat a.tgz -o a.tar unpacks a shard"
    assert (done.status, done.stderr) == (1, f"tarindex: a.tar.gz: {what}\n")
    nowhere = "a table can't list these samples, because they are in no file or object: copy them to one first"
    for inputs in (["pipe:cat a.tar"], [], ["-"]):
        for line in (["tarindex"], ["tarcat"], ["tarpcat"], ["tarsort"], ["tarsplit", "-n", "2"]):
            name = shown(inputs[0]) if inputs else "stdin"
            done = run(*line, *inputs, "-o", "t.parquet", stdin=make_tar(make_samples(1)))
            assert (done.status, done.stdout, done.stderr) == (2, b"", f"{line[0]}: {name}: {nowhere}\n"), line
    assert run("tarindex", "a.tar").status == 2
    assert not (tmp_path / "t.parquet").exists()


def changed(table: pa.Table, name: str, row: int, value: object) -> pa.Table:
    column = table.column(name).to_pylist()
    column[row] = value
    number = pa.uint64() if isinstance(value, int) and value >> 63 == 1 else pa.int64()
    kind = table.schema.field(name).type if value is None or isinstance(value, str) else number
    return replaced(table, name, column, kind)


SHARDS = make_tar([m for n in range(8) for m in ((f"{n}.txt", b"%d" % n * 600), (f"{n}.cls", b"1"))])
SIZE = 2560  # of each sample there


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("__begin__", 3 * SIZE + 512, "not a tar archive|checksum"),
        ("__begin__", 3 * SIZE + 1536, "samples begin and end elsewhere|not one sample|the key"),
        ("__begin__", 2 * SIZE, "one sample|elsewhere|the key"),
        ("__begin__", -512, "cannot begin at -512"),
        ("__begin__", None, "__begin__ is null"),
        ("__end__", 3 * SIZE + 1536, "elsewhere|one sample"),
        ("__end__", 5 * SIZE, "one sample|elsewhere"),
        ("__end__", 3 * SIZE + 700, "no member begins at this byte|inside"),
        ("__end__", 1 << 40, "cannot begin at 7680 and end at 1099511627776 of a shard of 30720 bytes"),
        ("__end__", 3 * SIZE, "cannot begin at 7680 and end at 7680"),
        ("__end__", (1 << 64) - 1, "__end__ is 18446744073709551615, which is not a place in a shard"),
        ("__key__", "", "the key of the sample there is '3', not ''"),
        ("__key__", "9", "the key of the sample there is '3', not '9'"),
        ("__shard__", None, "__shard__ is not the name of a shard"),
        ("__shard__", "b.tar", "No such file|changed since"),
        ("__shard__", "pipe:touch made", "a table may not name a command: pipe:touch …"),
        ("__shard__", "-", "a table may not name stdin"),
    ],
)
@pytest.mark.parametrize("keyed", [True, False])
def test_rows_that_are_wrong(
    name: str, value: object, what: str, keyed: bool, indexed: Indexed, run: Run, tmp_path: Path
) -> None:
    if not keyed and name == "__key__":
        return
    table = changed(indexed(SHARDS).drop_columns(["__members__"]), name, 3, value)
    pq.write_table(table if keyed else table.drop_columns(["__key__"]), tmp_path / "bad.parquet")
    done = run("tarcat", "bad.parquet")
    if done.status == 0:  # a row may name some of a sample's members only: these are its bytes
        assert set(members_of(done.stdout)) <= set(members_of(SHARDS)) and name in ("__begin__", "__end__")
        return
    assert done.status == 1 and re.search(what, done.stderr) and re.search(r"\brow 3\b", done.stderr), done.stderr
    assert done.stderr.count("\n") == 1 and not has_end(done.stdout)
    assert SHARDS[: 3 * SIZE].startswith(done.stdout)
    assert not (tmp_path / "made").exists()


def as_before(path: Path, content: bytes) -> None:
    """Overwrite *path*, and give it the time that it had."""
    about = os.stat(path)
    path.write_bytes(content)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))


def test_a_shard_that_was_written_again(indexed: Indexed, run: Run, tmp_path: Path) -> None:
    """With another time; all that may be changed at the old one: `test_reading`."""
    indexed(SHARDS)
    about = os.stat(tmp_path / "a.tar")
    os.utime(tmp_path / "a.tar", ns=(about.st_atime_ns, about.st_mtime_ns + 1))
    said = "this file was changed, or copied without its time, since the table was made"
    assert run("tarcat", "t.parquet").failure().startswith(f"tarcat: a.tar: at byte 0: {said} (row 0 of")


def test_a_parquet_file_that_is_no_table(run: Run, tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", "b"]}), tmp_path / "x.parquet")
    said = run("tarcat", "x.parquet").failure()
    assert "this Parquet file is not a table of samples: it has no column __shard__" in said
    names = ["__shard__", "__begin__", "__end__", "cls", "cls"]
    pq.write_table(pa.Table.from_arrays([pa.array([1])] * 5, names), tmp_path / "x.parquet")
    assert run("tarcat", "x.parquet").failure().endswith("this table has two columns with the name cls\n")


@pytest.mark.parametrize(
    "members",
    [
        entry(b"a.jpg") + header(b"d/", kind=b"5") + entry(b"a.cls"),
        pax((b"uname", b"me"), kind=b"g") + entry(b"a.jpg", b"1") + entry(b"a.cls", b"2"),
    ],
    ids=["a folder between them", "a global header before them"],
)
def test_members_apart_or_governed_are_refused(members: bytes, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(members + END)
    said = run("tarindex", "a.tar", "-o", "t.parquet").failure(lines=1)
    assert "a.tar: sample 'a', with 'jpg', is not in one piece with its own headers" in said


def test_more_shards_than_files_may_be_open(tmp_path: Path) -> None:
    for n in range(90):
        (tmp_path / f"{n}.tar").write_bytes(SHARDS[: SIZE - 512 * (n == 80)])
    rows = {"__shard__": [f"{n}.tar" for n in range(90)], "__begin__": [0] * 90, "__end__": [SIZE] * 90}
    pq.write_table(pa.table(rows), tmp_path / "t.parquet")
    few = "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (60, 60)); from tartools.commands.tarcat import tarcat"
    said = python(f"{few}; tarcat()", "t.parquet", folder=tmp_path).failure()
    assert said.startswith("tarcat: 80.tar: at byte 0: the shard ends before this sample does (row 80 of")


def test_a_row_that_goes_on_to_the_end_of_the_archive(indexed: Indexed, run: Run, tmp_path: Path) -> None:
    table = indexed(SHARDS)
    pq.write_table(changed(table, "__end__", 7, 8 * SIZE + 1024).take([7, 0]), tmp_path / "bad.parquet")
    said = run("tarcat", "bad.parquet").failure()
    assert f"a.tar: at byte {7 * SIZE}: this is not one sample (row 0 of bad.parquet" in said
    for size in (-1, (1 << 63) - 1):
        places = [{"txt": {"offset": n * SIZE + 512, "size": size}} for n in range(8)]
        pq.write_table(replaced(table, "__members__", places), tmp_path / "bad.parquet")
        assert "not all members of the sample are in bytes 0 to 2560 (row 0" in run("tarcat", "bad.parquet").failure()


@pytest.mark.parametrize(
    "line", [["tarcat", "t.parquet"], ["tarindex", "a.tar", "-o", "u.parquet"]], ids=lambda line: line[0]
)
def test_without_pyarrow(line: list[str], indexed: Indexed, tmp_path: Path) -> None:
    indexed(SHARDS)
    name, *arguments = line
    program = f"import sys; sys.modules['pyarrow'] = None; from tartools.commands.{name} import {name}; {name}()"
    done = python(program, *arguments, folder=tmp_path)
    assert done == (1, b"", f"{name}: Parquet files need pyarrow: {how_to_install('pyarrow')}\n")
    assert not (tmp_path / "u.parquet").exists()


NO_LIBRARY = """
import sys
class Finder:
    def find_spec(self, name, *_):
        if name == "pyarrow":
            raise ImportError("libarrow.so: failed to map segment")
sys.meta_path.insert(0, Finder())
"""
FAIL = """
import pyarrow.parquet
def fail(*_, **__):
    raise pyarrow.ArrowMemoryError("malloc of size 64000 failed")
"""


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (NO_LIBRARY, "pyarrow can't be imported: libarrow.so: failed to map segment"),
        (FAIL + "pyarrow.parquet.ParquetFile.iter_batches = fail", "out of memory"),
        (FAIL + "from tartools.tables import schema; schema.encode_texts = fail", "out of memory"),
    ],
)
def test_too_little_memory(before: str, said: str, indexed: Indexed, tmp_path: Path) -> None:
    """It is neither a package that is missing, nor a table that is damaged."""
    indexed(SHARDS)
    program = before + "\nfrom tartools.commands.tarcat import tarcat; tarcat()"
    assert python(program, "t.parquet", folder=tmp_path) == (1, b"", f"tarcat: {said}\n")


# ---- `tarfirst -k` and `-i` of tables: what they write is what they write of the shards; nothing else is read ----


EACH = 2048  # bytes of each sample
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
    as_before(shard, bytes(5 * EACH) + content[5 * EACH : 6 * EACH] + bytes(len(content) - 6 * EACH))
    assert run("tarfirst", "-k", "f", "-f", "txt", *tables) == (0, b"text 5", "")
    assert run("tarfirst", "--index", "5", "-f", "txt", *tables) == (0, b"text 5", "")
    said = run("tarfirst", "--index", "4", *tables).failure()
    assert said.startswith(f"tarfirst: a.tar: at byte {4 * EACH}: ") and "(row 4 of a.parquet; " in said


def test_keys_that_the_table_does_not_tell(run: Run, tables: tuple[str, str], tmp_path: Path) -> None:
    rows = pq.read_table(tmp_path / "a.parquet")
    pq.write_table(rows.drop_columns(["__key__"]), tmp_path / "none.parquet")
    keys = [None if row % 2 else key for row, key in enumerate(rows.column("__key__").to_pylist())]
    pq.write_table(rows.set_column(3, "__key__", pa.array(keys)), tmp_path / "some.parquet")
    for name in ("none.parquet", "some.parquet"):
        assert run("tarfirst", "-k", "f", "-f", "txt", name) == (0, b"text 5", "")
    pq.write_table(rows.set_column(3, "__key__", rows.column("__index__")), tmp_path / "none.parquet")
    assert run("tarfirst", "-k", "f", "none.parquet").failure().endswith("row 0: __key__ is not text\n")
    (tmp_path / "shard.parquet").write_bytes(make_tar(EXTRA))  # no table
    assert run("tarfirst", "-k", "i", "shard.parquet") == (0, b"8", "")
