"""Joined tables: samples whose members are in several sets of shards, beside the copies that tarjoin makes of them."""

from __future__ import annotations

import json
import os
import random
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tartools
from tartools.errors import StorageError
from tartools.tables import verified
from tartools.tables.verified import VerifiedReader
from tests.archives import BLOCK, END
from tests.conftest import Result, Run, keys_in, make_tar, members_of
from tests.conftest import run as forked
from tests.storage.objects.faults import FaultServer
from tests.tables.conftest import replaced
from tests.tiers import also

Samples = list[tuple[str, list[tuple[str, bytes]]]]  # keys, fields with payloads
seeds = pytest.mark.parametrize("seed", [0, 1, *also(*range(2, 12))])
__all__ = ["forked"]  # a fixture: commands of their own processes, with an environment
ENGINES = ("duckdb", "polars", "pandas")


def write_shards(folder: Path, name: str, samples: Samples, count: int, format: int = tarfile.PAX_FORMAT) -> list[str]:
    """Write *samples* to *count* shards, NAME-0.tar and so on, in turns; return their names."""
    names = []
    for number in range(count):
        members = [(f"{key}.{field}", data) for key, fields in samples[number::count] for field, data in fields]
        (folder / f"{name}-{number}.tar").write_bytes(make_tar(members, format))
        names.append(f"{name}-{number}.tar")
    return names


def done(result: Result) -> bytes:
    """Return stdout of a run that ended with status 0; tarjoin says on stderr what had no partner."""
    assert result.status == 0, result.stderr
    return result.stdout


def random_set(dice: random.Random, keys: list[str], fields: tuple[str, ...], share: float) -> Samples:
    """Return samples of a *share* of *keys*, in some order, each with some of *fields*, of all sizes."""
    chosen = [key for key in keys if dice.random() < share]
    if dice.random() < 0.5:
        dice.shuffle(chosen)
    sizes = [0, 0, 1, 511, 512, 513, 3000, 70_000]
    return [
        (key, [(field, dice.randbytes(dice.choice(sizes))) for field in fields[: dice.randrange(1, len(fields) + 1)]])
        for key in chosen
    ]


@pytest.fixture
def world(tmp_path: Path, run: Run) -> Callable[[int], None]:
    """Return a function that writes random sets A, B and C, their tables, and the joins as tables and as copies."""

    def world(seed: int) -> None:
        dice = random.Random(seed)
        keys = [f"{'x' * dice.choice([1, 1, 1, 120])}/{number:04d}" for number in range(60)]
        for name, fields, share in (
            ("a", ("jpg", "cls", "json"), 0.9),
            ("b", ("npy", "b.txt"), 0.8),
            ("c", ("seg.png", "xml"), 0.6),
        ):
            shards = write_shards(
                tmp_path,
                name,
                random_set(dice, keys, fields, share),
                dice.choice([1, 2, 3]),
            )
            run("tarindex", *shards, "-o", f"{name}.parquet").output()
        done(run("tarjoin", "a.parquet", "b.parquet", "-o", "ab.parquet"))
        done(run("tarjoin", "a.parquet", "b.parquet", "-o", "ab.tar"))
        done(run("tarjoin", "--left", "ab.parquet", "c.parquet", "-o", "abc.parquet"))
        done(run("tarjoin", "--left", "ab.tar", "c.parquet", "-o", "abc.tar"))

    return world


# ---- as the copy ----


@seeds
def test_all_commands_give_the_bytes_of_the_copy(
    run: Run, tmp_path: Path, world: Callable[[int], None], seed: int
) -> None:
    world(seed)
    copy = (tmp_path / "abc.tar").read_bytes()
    assert run("tarcat", "ab.parquet").output() == (tmp_path / "ab.tar").read_bytes()
    assert run("tarcat", "abc.parquet").output() == copy
    for command in (
        ("tarsort",),
        ("tarsort", "-S", "shuffle", "--seed", seed),
        ("tarsort", "-s", "__size__", "-S", "int"),
        ("tarfilter", "-S", "has('xml') and size('npy') > 600"),
        ("tarfilter", "--share", "0:0.4"),
        ("tarcat", "-f", "npy jpg seg.png"),
        ("tarproc", "-c", "true"),
        ("tar2tsv", "-f", "__key__ __size__"),
        ("tarmix", "1"),
    ):
        name, *words = command
        assert run(name, *words, "abc.parquet").output() == run(name, *words, "abc.tar").output(), command
    for name in ("abc.parquet", "abc.tar"):
        run("tarsplit", "-s", "100e3", "-o", f"{name}-split", name).output()
    of_table, of_copy = (sorted(tmp_path.glob(f"{name}-split*.tar")) for name in ("abc.parquet", "abc.tar"))
    assert [path.read_bytes() for path in of_table] == [path.read_bytes() for path in of_copy]
    assert run("tardiff", "abc.parquet", "abc.tar").status == 0
    assert run("tarcheck", "--quiet", "ab.parquet", "--ignore", "suffix-lies").status in (0, 1)


@seeds
def test_chains_of_joins_are_equal_tables(run: Run, tmp_path: Path, world: Callable[[int], None], seed: int) -> None:
    world(seed)
    done(run("tarjoin", "ab.parquet", "c.parquet", "-o", "left.parquet"))
    done(run("tarjoin", "b.parquet", "c.parquet", "-o", "bc.parquet"))
    done(run("tarjoin", "a.parquet", "bc.parquet", "-o", "right.parquet"))
    assert (tmp_path / "left.parquet").read_bytes() == (tmp_path / "right.parquet").read_bytes()
    assert {"__shard_2__", "__shard_3__", "__members_3__"} <= set(pq.read_table(tmp_path / "left.parquet").column_names)


@pytest.mark.parametrize("options", [("-f", "npy"), ("-x", "b.txt"), ("-f", "npy b.txt"), ("-x", "npy"), ("-f", "NPY")])
def test_chosen_members_alone(run: Run, tmp_path: Path, world: Callable[[int], None], options: tuple[str, str]) -> None:
    world(3)
    done(run("tarjoin", *options, "a.parquet", "b.parquet", "-o", "some.parquet"))
    assert run("tarcat", "some.parquet").output() == done(run("tarjoin", *options, "a.parquet", "b.parquet"))


@pytest.mark.parametrize("options", [("-f", "json"), ("-f", "jpg"), ("-x", "txt jpg")])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_field_that_is_there_twice_is_not_passed_over(
    run: Run, tmp_path: Path, options: tuple[str, str], position: int
) -> None:
    fields = ["jpg", "json"]
    fields[position:position] = ["txt", "txt"]
    (tmp_path / "a.tar").write_bytes(make_tar([(f"{key}.cls", b"1") for key in "uvw"]))
    members = [(f"u.{field}", b"1") for field in ("jpg", "txt", "json")] + [(f"v.{field}", b"2") for field in fields]
    (tmp_path / "b.tar").write_bytes(make_tar(members))
    run("tarindex", "a.tar", "-o", "a.parquet").output()
    run("tarindex", "b.tar", "-o", "b.parquet").output()
    result = run("tarjoin", *options, "a.parquet", "b.parquet", "-o", "some.parquet")
    assert (result.status, "the chosen members of row 1 of B are not side by side" in result.stderr) == (1, True)
    assert not (tmp_path / "some.parquet").exists()


def test_patterns_of_shards_are_indexed_first(run: Run, tmp_path: Path, world: Callable[[int], None]) -> None:
    world(4)
    done(run("tarjoin", "a-*.tar", "b-*.tar", "-o", "again.parquet"))
    assert (tmp_path / "again.parquet").read_bytes() == (tmp_path / "ab.parquet").read_bytes()


def test_rows_in_any_order_and_by_sql(run: Run, tmp_path: Path, world: Callable[[int], None]) -> None:
    world(5)
    run("tarsort", "-S", "shuffle", "abc.parquet", "-o", "shuffled.parquet").output()
    assert run("tarcat", "shuffled.parquet").output() == run("tarsort", "-S", "shuffle", "abc.tar").output()
    run("tarfilter", "-S", "has('xml')", "abc.parquet", "-o", "some.parquet").output()
    assert run("tarcat", "some.parquet").output() == run("tarfilter", "-S", "has('xml')", "abc.tar").output()


@pytest.mark.parametrize("versions", [True, False])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_join_of_any_engine(
    run: Run, tmp_path: Path, world: Callable[[int], None], engine: str, versions: bool
) -> None:
    """A plain JOIN makes such a table: with members and versions, or with shards and bytes alone."""
    world(6)
    columns = ["shard", "begin", "end", *(["version", "members"] if versions else [])]
    a, b = (str(tmp_path / name) for name in ("a.parquet", "b.parquet"))
    target = str(tmp_path / "sql.parquet")
    if engine == "duckdb":
        names = ", ".join(f"b.__{name}__ AS __{name}_2__" for name in columns)
        own = ", ".join(f"a.__{name}__" for name in ("key", *columns))
        duckdb.sql(
            f"COPY (SELECT {own}, {names} FROM '{a}' a JOIN '{b}' b USING (__key__) ORDER BY a.__shard__, a.__begin__) "
            f"TO '{target}' (FORMAT parquet)"
        )
    elif engine == "polars":
        first = pl.read_parquet(a).select([f"__{name}__" for name in ("key", *columns)])
        second = pl.read_parquet(b).select("__key__", *(pl.col(f"__{n}__").alias(f"__{n}_2__") for n in columns))
        first.join(second, on="__key__", maintain_order="left").sort("__shard__", "__begin__").write_parquet(target)
    else:
        columns = [name for name in columns if name != "members"]  # which pandas makes dicts of
        first = pd.read_parquet(a, columns=[f"__{name}__" for name in ("key", *columns)])
        second = pd.read_parquet(b, columns=[f"__{name}__" for name in ("key", *columns)])
        second = second.rename(columns={f"__{name}__": f"__{name}_2__" for name in columns})
        for frame in (first, second):
            for name in frame.columns:
                if isinstance(frame[name].dtype, pd.CategoricalDtype):
                    frame[name] = frame[name].astype(str)
        first.merge(second, on="__key__").sort_values(["__shard__", "__begin__"]).to_parquet(target)
    expected = tarjoin_by_shard(run)
    assert run("tarcat", "sql.parquet").output() == expected
    assert [sample.key for sample in tartools.Table(target)] == keys_in_order(expected)


def tarjoin_by_shard(run: Run) -> bytes:
    """Return the copy, with the samples of A in the order of their shards and bytes."""
    run("tarsort", "-s", "__shard__", "-S", "text", "a.parquet", "-o", "a-sorted.parquet").output()
    return done(run("tarjoin", "a-sorted.parquet", "b.parquet"))


def keys_in_order(archive: bytes) -> list[str]:
    """Return the keys of the samples of *archive*; of fields such as b.txt the key ends at the first dot."""
    keys = [
        name.rpartition("/")[0] + "/" + name.rpartition("/")[2].partition(".")[0] for name, _ in members_of(archive)
    ]
    return [key for number, key in enumerate(keys) if not number or keys[number - 1] != key]


# ---- which parts are read ----


def test_small_samples_take_no_slow_path(
    run: Run, tmp_path: Path, world: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 400
    draw = random.Random(1)
    a = [(f"{n:05d}", [("jpg", draw.randbytes(700)), ("cls", b"1")]) for n in range(count)]
    b = [(key, [("npy", draw.randbytes(900))]) for key, _ in a]
    draw.shuffle(b)
    for name, samples in (("a", a), ("b", b)):
        run(
            "tarindex", *write_shards(tmp_path, name, samples, 2, tarfile.USTAR_FORMAT), "-o", f"{name}.parquet"
        ).output()
    done(run("tarjoin", "a.parquet", "b.parquet", "-o", "ab.parquet"))
    slow: list[int] = []
    read_parts_alone = VerifiedReader._read_parts_alone

    def counted(self: VerifiedReader, rows: Any) -> Iterator[Any]:
        slow.extend(range(len(rows)))
        return read_parts_alone(self, rows)

    monkeypatch.setattr(VerifiedReader, "_read_parts_alone", counted)
    table = tartools.Table(tmp_path / "ab.parquet")
    assert len(list(table)) == count
    monkeypatch.setattr(tartools.tables.localshards, "SMALL_SAMPLES_BYTES", 5000)  # each window has two or three
    assert len(list(tartools.Table(tmp_path / "ab.parquet"))) == count
    assert slow == []
    assert table.bulk(range(count)) is not None


def test_of_sets_without_a_wanted_field_nothing_is_opened(
    run: Run, tmp_path: Path, world: Callable[[int], None]
) -> None:
    world(7)
    for path in tmp_path.glob("b-*.tar"):
        path.unlink()
    table = tartools.Table(tmp_path / "ab.parquet").with_fields(["jpg", "cls"])
    copies = {sample.key: sample for sample in tartools.read(tmp_path / "ab.tar")}
    for sample in table:
        assert sample.get("cls") == copies[sample.key].get("cls")
    with pytest.raises(StorageError, match=r"b-0\.tar"):
        tartools.Table(tmp_path / "ab.parquet")[0]


# ---- damage ----


@pytest.fixture
def joined(run: Run, tmp_path: Path) -> pa.Table:
    """Return the rows of `ab.parquet`: ten samples, in a.tar and, in the same order, in b.tar."""
    for name, fields in (("a", ("jpg", "cls")), ("b", ("npy", "txt"))):
        samples: Samples = [
            (f"{n:02d}", [(field, f"{field} {n}".encode() * 200) for field in fields]) for n in range(10)
        ]
        write_shards(tmp_path, name, samples, 1, tarfile.USTAR_FORMAT)
        (tmp_path / f"{name}-0.tar").rename(tmp_path / f"{name}.tar")
        run("tarindex", f"{name}.tar", "-o", f"{name}.parquet").output()
    done(run("tarjoin", "a.parquet", "b.parquet", "-o", "ab.parquet"))
    return pq.read_table(tmp_path / "ab.parquet")


def damage(path: Path, kind: str, begin: int, end: int) -> None:
    """Damage the sample in bytes *begin* to *end* of the shard at *path*; its time stays, unless it is replaced."""
    stat = path.stat()
    content = bytearray(path.read_bytes())
    if kind == "header":
        content[begin + 148] ^= 1
    elif kind == "cut":
        del content[end - BLOCK :]
    elif kind == "key":
        content[begin : begin + 1] = b"9"
        content[begin + 148 : begin + 156] = b" " * 8
        content[begin + 148 : begin + 156] = b"%06o\0 " % sum(content[begin : begin + BLOCK])
    elif kind == "missing":
        path.unlink()
        return
    path.write_bytes(content)
    if kind not in ("replaced", "cut"):
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize("kind", ["header", "cut", "key", "missing", "replaced"])
def test_damage_names_the_shard_of_its_set(run: Run, tmp_path: Path, joined: pa.Table, kind: str) -> None:
    row = joined.slice(4, 1).to_pylist()[0]
    damage(tmp_path / "b.tar", kind, row["__begin_2__"], row["__end_2__"])
    result = run("tarcat", "ab.parquet")
    assert result.status == 1
    assert "b.tar" in result.stderr
    assert "row" in result.stderr
    whole = kind in ("header", "key")
    if whole:
        assert f"byte {row['__begin_2__']}" in result.stderr
        assert "row 4 of ab.parquet" in result.stderr
    if kind != "missing":
        assert "tarjoin" in result.stderr  # what to do
    assert keys_in(result.stdout + END) == [f"{n:02d}" for n in range(4 if whole else 0)]
    table = tartools.Table(tmp_path / "ab.parquet")
    with pytest.raises(StorageError, match=r"b\.tar"):
        table[4]
    checked = run("tarcheck", "ab.parquet")
    assert checked.status == 1
    assert b"b.tar" in checked.stdout


@pytest.mark.parametrize("kind", ["header", *also("cut", "key", "missing")])
def test_damage_on_a_server_names_the_shard_of_its_set(
    forked: Run, run: Run, tmp_path: Path, joined: pa.Table, kind: str
) -> None:
    row = joined.slice(4, 1).to_pylist()[0]
    with FaultServer() as server:
        for name in ("a.tar", "b.tar"):
            server.objects[name] = (tmp_path / name).read_bytes()
            forked("tarindex", server.url("http", name), "-o", f"far-{name[0]}.parquet", env=server.env).output()
        done(forked("tarjoin", "far-a.parquet", "far-b.parquet", "-o", "far.parquet", env=server.env))
        table = pq.read_table(tmp_path / "far.parquet")
        pq.write_table(table.drop_columns(["__version__", "__version_2__"]), tmp_path / "far.parquet")
        damage(tmp_path / "b.tar", kind, row["__begin_2__"], row["__end_2__"])
        if kind == "missing":
            del server.objects["b.tar"]
        else:
            server.objects["b.tar"] = (tmp_path / "b.tar").read_bytes()
        result = forked("tarcat", "far.parquet", env=server.env)
        assert result.status == 1
        assert server.url("http", "b.tar") in result.stderr
        assert set(keys_in(result.stdout + END)) <= {f"{n:02d}" for n in range(4)}
        if kind in ("header", "key"):
            assert f"byte {row['__begin_2__']}" in result.stderr
            assert "row 4 of far.parquet" in result.stderr
        assert server.errors == []


def test_names_relative_to_tables_in_other_folders(run: Run, tmp_path: Path, joined: pa.Table) -> None:
    copy = done(run("tarjoin", "a.tar", "b.tar"))
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / f"{name}.tar").rename(tmp_path / name / f"{name}.tar")
        run("tarindex", f"{name}/{name}.tar", "-o", f"{name}/{name}.parquet").output()
    (tmp_path / "both").mkdir()
    done(run("tarjoin", "a/a.parquet", "b/b.parquet", "-o", "both/ab.parquet"))
    table = pq.read_table(tmp_path / "both" / "ab.parquet")
    assert table.column("__shard__")[0].as_py() == "../a/a.tar"
    assert table.column("__shard_2__")[0].as_py() == "../b/b.tar"
    assert run("tarcat", "both/ab.parquet").output() == copy
    tartools.Table(tmp_path / "both" / "ab.parquet").take([3, 1]).write(tmp_path / "two.parquet")
    written = pq.read_table(tmp_path / "two.parquet")
    assert {os.path.normpath(name) for name in written.column("__shard_2__").to_pylist()} == {"b/b.tar"}
    assert keys_in(run("tarcat", "two.parquet").output()) == ["03", "01"]


def test_members_without_a_field_are_not_joined(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("k", b"no field")]))
    (tmp_path / "b.tar").write_bytes(make_tar([("k.txt", b"t")]))
    done(run("tarjoin", "a.tar", "b.tar", "-o", "ab.parquet"))
    result = run("tarcat", "ab.parquet")
    assert (result.status, "a member without a field, which can't be joined" in result.stderr) == (1, True)


def test_values_that_only_the_members_have_are_read(run: Run, tmp_path: Path, joined: pa.Table) -> None:
    """A field of the second set is one of the samples, though the first lists others."""
    lines = run("tar2tsv", "-f", "__key__ txt", "ab.parquet").output().decode().splitlines()
    assert lines[3].split("\t") == ["02", "txt 2" * 200]
    assert (
        run("tarfilter", "-S", "has('npy') and not has('png')", "ab.parquet").output()
        == run("tarcat", "ab.parquet").output()
    )


def test_rows_that_come_twice(run: Run, tmp_path: Path, joined: pa.Table) -> None:
    """Equal keys side by side are one sample to a parser: such rows are read one by one."""
    pq.write_table(
        pa.concat_tables([joined.slice(2, 1), joined.slice(2, 1), joined.slice(5, 2)]), tmp_path / "r.parquet"
    )
    assert [sample.key for sample in tartools.Table(tmp_path / "r.parquet")] == ["02", "02", "05", "06"]
    result = run("tarcat", "r.parquet")
    assert (result.status, "02" in result.stderr) == (1, True)  # an archive can't hold them side by side


@pytest.mark.parametrize("by", [BLOCK, 2 * BLOCK, 3 * BLOCK, "member", "sample"])
def test_a_part_that_is_elsewhere_is_never_passed_on(run: Run, tmp_path: Path, joined: pa.Table, by: int | str) -> None:
    """Also where another header is there: at the next member, and at the next sample."""
    rows = joined.to_pylist()
    begins, ends = [row["__begin_2__"] for row in rows], [row["__end_2__"] for row in rows]
    if by == "member":
        begins[4] = rows[4]["__members_2__"]["txt"]["offset"] - BLOCK
    elif by == "sample":
        begins[4], ends[4] = begins[5], ends[5]
    else:
        begins[4] += int(by)
        ends[4] += int(by)
    moved = replaced(replaced(joined, "__begin_2__", begins, pa.uint64()), "__end_2__", ends, pa.uint64())
    for names in (moved.column_names, [n for n in moved.column_names if "members" not in n]):
        pq.write_table(moved.select(names), tmp_path / "moved.parquet")
        result = run("tarcat", "moved.parquet")
        if by == "member" and "__members__" not in names:  # a part of fewer members is what this row lists
            assert result.status == 0
            continue
        assert result.status == 1, by
        assert "row 4 of moved.parquet" in result.stderr
        assert "b.tar" in result.stderr
        assert keys_in(result.stdout + END) == [f"{n:02d}" for n in range(4 if "__members__" not in names else 0)]


def test_a_part_that_ends_within_a_payload_is_found(run: Run, tmp_path: Path) -> None:
    """The header of B's first member would be taken for payload of A, and all would parse."""
    make = {
        "a": [("k.jpg", b"j" * BLOCK)],
        "b": [("k.npy", b""), ("k.txt", b"t")],
    }
    for name, members in make.items():
        (tmp_path / f"{name}.tar").write_bytes(make_tar(members))
        run("tarindex", f"{name}.tar", "-o", f"{name}.parquet").output()
    done(run("tarjoin", "a.parquet", "b.parquet", "-o", "ab.parquet"))
    table = pq.read_table(tmp_path / "ab.parquet")
    cut = replaced(table, "__end__", [BLOCK], pa.uint64())
    for names in (cut.column_names, [n for n in cut.column_names if "members" not in n]):
        pq.write_table(cut.select(names), tmp_path / "cut.parquet")
        result = run("tarcat", "cut.parquet")
        assert result.status == 1
        assert "a.tar" in result.stderr


@pytest.mark.parametrize("form", ["local", "remote"])
def test_a_replaced_set_is_told_with_what_to_do(forked: Run, tmp_path: Path, joined: pa.Table, form: str) -> None:
    with FaultServer() as server:
        for name in ("a.tar", "b.tar", "a.parquet", "b.parquet", "ab.parquet"):
            server.objects[name] = (tmp_path / name).read_bytes()
        folder = "" if form == "local" else server.url("s3", "")
        env = server.env if form == "remote" else {}
        for name in ("a", "b"):
            forked("tarindex", f"{folder}{name}.tar", "-o", f"{form}-{name}.parquet", env=env).output()
        done(forked("tarjoin", f"{form}-a.parquet", f"{form}-b.parquet", "-o", f"{form}.parquet", env=env))
        copy = done(forked("tarjoin", "a.tar", "b.tar"))
        assert forked("tarcat", f"{form}.parquet", env=env).output() == copy
        other = (tmp_path / "b.tar").read_bytes() + bytes(10240)
        (tmp_path / "b.tar").write_bytes(other)
        server.objects["b.tar"] = other
        result = forked("tarcat", f"{form}.parquet", env=env)
        assert result.status == 1
        assert "b.tar" in result.stderr
        assert "join again (tarjoin)" in result.stderr
        assert server.errors == []


@pytest.mark.parametrize("remote", ["a", "b", "ab"])
def test_local_and_remote_sets_mixed(forked: Run, tmp_path: Path, world: Callable[[int], None], remote: str) -> None:
    world(8)
    with FaultServer() as server:
        for path in tmp_path.glob("*-*.tar"):
            server.objects[path.name] = path.read_bytes()
        for name in "ab":
            shards = sorted(path.name for path in tmp_path.glob(f"{name}-*.tar"))
            urls = [server.url("s3", shard) if name in remote else shard for shard in shards]
            forked("tarindex", *urls, "-o", f"mixed-{name}.parquet", env=server.env).output()
        done(forked("tarjoin", "mixed-a.parquet", "mixed-b.parquet", "-o", "mixed.parquet", env=server.env))
        assert forked("tarcat", "mixed.parquet", env=server.env).output() == (tmp_path / "ab.tar").read_bytes()
        shuffled = forked("tarsort", "-S", "shuffle", "mixed.parquet", env=server.env).output()
        assert shuffled == forked("tarsort", "-S", "shuffle", "ab.tar").output()
        assert server.errors == []


def test_large_samples_of_local_and_remote_sets(forked: Run, tmp_path: Path) -> None:
    large = {f"k{n}": random.Random(n).randbytes(3 << 20) for n in range(4)}
    near = {"k3": bytes(100), "z": random.Random(9).randbytes(6 << 20)}  # a window of the first ones has no local part
    (tmp_path / "far.tar").write_bytes(make_tar([(f"{key}.jpg", data) for key, data in large.items()]))
    (tmp_path / "near.tar").write_bytes(make_tar([("z.jpg", b"small")]))
    (tmp_path / "b.tar").write_bytes(make_tar([(f"{key}.npy", data) for key, data in near.items()]))
    with FaultServer() as server:
        server.objects["far.tar"] = (tmp_path / "far.tar").read_bytes()
        forked("tarindex", server.url("http", "far.tar"), "near.tar", "-o", "a.parquet", env=server.env).output()
        forked("tarindex", "b.tar", "-o", "b.parquet").output()
        line = ("tarjoin", "--left", "a.parquet", "b.parquet", "-o")
        done(forked(*line, "joined.parquet", env=server.env))
        done(forked(*line, "copy.tar", env=server.env))
        copy = (tmp_path / "copy.tar").read_bytes()
        assert done(forked("tarcat", "joined.parquet", env=server.env)) == copy
        assert server.errors == []
    last = tartools.Table(tmp_path / "joined.parquet")[4]  # which is local, and larger than a window
    assert dict(last.items()) == {"jpg": b"small", "npy": near["z"]}


def test_samples_too_large_to_be_put_together(
    run: Run, tmp_path: Path, world: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    world(9)
    monkeypatch.setattr(verified, "MAX_JOINED_SAMPLE_BYTES", 1000)
    monkeypatch.setattr(tartools.tables.localshards, "MAX_WALKED_BYTES", 600)
    assert run("tarcat", "abc.parquet").output() == (tmp_path / "abc.tar").read_bytes()
    table, copies = tartools.Table(tmp_path / "abc.parquet"), list(tartools.read(tmp_path / "abc.tar"))
    assert [dict(sample.items()) for sample in table] == [dict(sample.items()) for sample in copies]


# ---- what is refused ----


def test_what_a_joined_table_can_not_be(run: Run, tmp_path: Path, joined: pa.Table) -> None:
    def refused(*words: object, status: int = 2) -> str:
        result = run("tarjoin", *words, "-o", "no.parquet")
        assert result.status == status, words
        assert not (tmp_path / "no.parquet").exists()
        return result.stderr

    assert "-x leaves out fields of B" in refused("--prefer", "b", "a.parquet", "b.parquet")
    assert "can't rename" in refused("-f", "array=npy", "a.parquet", "b.parquet")
    assert "choose one of several" in refused("-f", "npy;npz", "a.parquet", "b.parquet")
    assert "no sample of B has jpeg; the fields: npy txt" in refused("-f", "jpeg", "a.parquet", "b.parquet", status=1)
    run("tarindex", "-f", "cls", "a.tar", "-o", "a-cls.parquet").output()
    assert "A and B both have the field 'cls'" in refused("a-cls.parquet", "a-cls.parquet")
    assert "has the field 'cls' in A and in B (-x cls leaves out that of B)" in refused(
        "a.parquet", "a.parquet", "-f", "cls", status=1
    )
    update = run("tarindex", "--update", "ab.parquet", "-o", "new.parquet")
    assert (update.status, "update the table of each set, and tarjoin them again" in update.stderr) == (2, True)
    apart = [("k.a", b"1"), ("k.b", b"2"), ("k.c", b"3")]
    (tmp_path / "apart.tar").write_bytes(make_tar([(name.replace("k", "00"), data) for name, data in apart]))
    assert "not side by side" in refused("-f", "a c", "a.parquet", "apart.tar", status=1)


def test_one_field_in_two_sets_is_found_when_the_table_is_opened(run: Run, tmp_path: Path, joined: pa.Table) -> None:
    """Tables that SQL made can have it; each reader says the row."""
    first = joined.slice(0, 3).to_pylist()
    members = [{"txt": row["__members__"]["jpg"], "cls": row["__members__"]["cls"]} for row in first]
    place = pa.struct([("offset", pa.uint64()), ("size", pa.uint64())])
    kind = pa.struct([("txt", place), ("cls", place)])
    pq.write_table(replaced(joined.slice(0, 3), "__members__", members, kind), tmp_path / "twice.parquet")
    result = run("tarcat", "twice.parquet")
    assert result.status == 1
    assert "the sample has the field 'txt' in two sets of shards" in result.stderr
    with pytest.raises(StorageError, match="in two sets of shards"):
        tartools.Table(tmp_path / "twice.parquet")[0]


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("__begin_2__", [None, 0, 0], "row 0: only one of __shard_2__ and __begin_2__ is null"),
        ("__end_2__", [512, 1 << 40, 0], "the sample cannot begin at"),
        ("__shard_2__", ["b.tar", "", "b.tar"], "row 1: __shard_2__ is not the name of a shard"),
        ("__shard_2__", ["../../etc/passwd", "pipe:id", "b.tar"], "pipe:id"),
    ],
)
def test_invalid_columns_of_a_further_set(
    run: Run, tmp_path: Path, joined: pa.Table, column: str, values: list[Any], message: str
) -> None:
    kind = pa.string() if "shard" in column else pa.uint64()
    rows = joined.slice(0, 3)
    rows = rows.drop_columns(["__version_2__"]) if "shard" in column else rows
    pq.write_table(replaced(rows, column, values, kind), tmp_path / "wrong.parquet")
    result = run("tarcat", "wrong.parquet")
    assert result.status == 1
    assert message in result.stderr


def test_a_set_without_a_column_it_needs(run: Run, tmp_path: Path, joined: pa.Table) -> None:
    pq.write_table(joined.drop_columns(["__end_2__"]), tmp_path / "wrong.parquet")
    result = run("tarcat", "wrong.parquet")
    assert (result.status, "has the column __shard_2__, but no __end_2__" in result.stderr) == (1, True)


# ---- counts, and the order of B ----


def test_partners_are_counted_as_for_the_copy(run: Run, tmp_path: Path, joined: pa.Table) -> None:
    (tmp_path / "c.tar").write_bytes(make_tar([(f"{n:02d}.json", b"{}") for n in (3, 4, 77)]))
    for output in ("c.parquet", "copy.tar"):
        said = run("tarjoin", "a.parquet", "c.tar", "-o", output).stderr
        assert "8 samples of A had no partner in B (left out)" in said
        assert "1 sample of B had none in A" in said
    (tmp_path / "d.tar").write_bytes(make_tar([("77.json", b"{}")]))
    result = run("tarjoin", "a.parquet", "d.tar", "-o", "d.parquet")
    assert (result.status, "no key of A is in B" in result.stderr) == (1, True)


def test_another_order_of_b_is_said_with_the_reads_it_costs(run: Run, tmp_path: Path, joined: pa.Table) -> None:
    (tmp_path / "back.tar").write_bytes(make_tar([(f"{n:02d}.json", b"{}") for n in reversed(range(10))]))
    said = run("tarjoin", "a.parquet", "back.tar", "-o", "back.parquet").stderr
    assert "in the order of A they take 10 reads, in their own 1" in said
    assert "order" not in run("tarjoin", "a.parquet", "b.parquet", "-o", "again.parquet").stderr


def test_repeated_keys_and_rows_without_keys(run: Run, tmp_path: Path, joined: pa.Table) -> None:
    twice = pa.concat_tables([pq.read_table(tmp_path / "b.parquet")] * 2)
    pq.write_table(twice, tmp_path / "twice.parquet")
    result = run("tarjoin", "a.parquet", "twice.parquet", "-o", "no.parquet")
    assert (result.status, "B has the key '00' twice" in result.stderr) == (1, True)
    for side, other in (("A", "b"), ("B", "a")):
        name = "a" if side == "A" else "b"
        rows = pq.read_table(tmp_path / f"{name}.parquet")
        pq.write_table(replaced(rows, "__key__", [None] * 10, pa.string()), tmp_path / "no-keys.parquet")
        words = ["no-keys.parquet", f"{other}.parquet"] if side == "A" else [f"{other}.parquet", "no-keys.parquet"]
        result = run("tarjoin", *words, "-o", "no.parquet")
        assert (result.status, f"of {side} has no __key__" in result.stderr) == (1, True)


def test_many_rows_that_do_not_fit_into_memory(run: Run, tmp_path: Path) -> None:
    count = 3000
    for name, field in (("a", "cls"), ("b", "txt")):
        members = [(f"{n * 7919 % count:05d}.{field}", b"%d" % n) for n in range(count)]
        (tmp_path / f"{name}.tar").write_bytes(make_tar(members))
    done(run("tarjoin", "-M", "100k", "a.tar", "b.tar", "-o", "small.parquet"))
    done(run("tarjoin", "a.tar", "b.tar", "-o", "large.parquet"))
    assert (tmp_path / "small.parquet").read_bytes() == (tmp_path / "large.parquet").read_bytes()
    assert pq.read_table(tmp_path / "small.parquet").num_rows == count


# ---- facts, and values without shards ----


def test_counts_of_a_joined_table_come_from_columns(run: Run, tmp_path: Path, joined: pa.Table) -> None:
    run("tarcat", "ab.parquet", "-o", "ab.tar").output()
    of_copy = json.loads(run("tarstat", "--json", "ab.tar").stdout)
    for path in ("a.tar", "b.tar"):
        (tmp_path / path).rename(tmp_path / f"moved-{path}")  # nothing is read
    of_table = json.loads(done(run("tarstat", "--json", "ab.parquet")))
    for name in ("samples", "members", "combinations"):
        assert of_table[name] == of_copy[name], name
    for ours, of_samples in zip(of_table["fields"], of_copy["fields"], strict=True):
        of_samples.pop("pictures", None)  # there is no column for these
        of_samples.pop("classes", None)
        assert ours == of_samples


@pytest.mark.parametrize("form", ["jsonl", "tsv", "csv", "parquet"])
def test_values_without_shards_become_columns(run: Run, tmp_path: Path, joined: pa.Table, form: str) -> None:
    rows = [{"key": f"{n:02d}", "score": n / 4, "name": f"n{n}"} for n in range(0, 10, 2)]
    if form == "jsonl":
        for row in rows:
            row["clip"] = [float(row["score"]), 1.0]  # type: ignore[assignment,arg-type]
        (tmp_path / "s.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif form == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "s.parquet")
    else:
        separator = "\t" if form == "tsv" else ","
        lines = ["key", "score", "name"], *(map(str, row.values()) for row in rows)
        (tmp_path / f"s.{form}").write_text("".join(separator.join(line) + "\n" for line in lines))
    done(run("tarjoin", "--left", "ab.parquet", f"s.{form}", "-o", "abv.parquet"))
    table = pq.read_table(tmp_path / "abv.parquet")
    expected = [n / 4 if n % 2 == 0 else None for n in range(10)]
    assert table.column("score").to_pylist() == expected
    assert table.column("name").to_pylist() == [f"n{n}" if n % 2 == 0 else None for n in range(10)]
    assert pa.types.is_float64(table.schema.field("score").type)
    if form == "jsonl":
        assert table.column("clip").to_pylist()[2] == [0.5, 1.0]
    assert run("tarcat", "abv.parquet").output() == run("tarcat", "ab.parquet").output()
    done(run("tarjoin", "-f", "points=score", "a.parquet", f"s.{form}", "-o", "few.parquet"))
    assert pq.read_table(tmp_path / "few.parquet").column("points").to_pylist() == expected[::2]
    result = run("tarjoin", "abv.parquet", f"s.{form}", "-o", "no.parquet")
    assert (result.status, "both have the column 'score'" in result.stderr) == (2, True)
