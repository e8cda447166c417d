"""tarstat, through the installed command: what it tells, that it is true, and that no cut of the input changes it."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import tarfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.archives import END, entry, pax, picture
from tests.conftest import BIN, Run, make_samples, make_tar, python
from tests.processes import on_terminal
from tests.shards.counted import PROGRAM
from tests.tiers import in_both


def facts(run: Run, *arguments: object, stdin: bytes = b"") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("tarstat", "--json", *arguments, stdin=stdin).output())
    size = found["bytes"]
    assert size["payloads"] + size["headers"] + size["padding"] + size["other"] == size["archives"]
    assert min(size.values()) >= 0
    return found


def field(found: dict[str, Any], name: str) -> dict[str, Any]:
    [one] = [each for each in found["fields"] if each["field"] == name]
    return dict(one)


def test_what_python_counts(run: Run, tmp_path: Path) -> None:
    dice = random.Random(5)
    members = []
    for n in range(500):
        members.append((f"{n:05d}.cls", b"%d\n" % dice.randrange(9)))
        if dice.random() < 0.9:
            members.append((f"{n:05d}.bin", bytes(int(dice.lognormvariate(6, 2)) % 50_000)))
        if dice.random() < 0.1:
            members.append((f"{n:05d}.Meta.json", b"{}"))
    (tmp_path / "a.tar").write_bytes(make_tar(members, tarfile.GNU_FORMAT))
    found = facts(run, "a.tar")
    assert (found["samples"], found["members"]) == (500, len(members))
    sizes = sorted(len(payload) for name, payload in members if name.endswith(".bin"))
    told = field(found, "bin")
    assert (told["members"], told["missing"], told["bytes"]) == (len(sizes), 500 - len(sizes), sum(sizes))
    assert (told["sizes"]["min"], told["sizes"]["max"]) == (sizes[0], sizes[-1])
    for percent, name in ((5, "p5"), (50, "median"), (95, "p95")):
        true = sizes[-(-percent * len(sizes) // 100) - 1]
        assert 0.99 * true <= told["sizes"][name] <= true and (true > 255 or told["sizes"][name] == true)
    assert sum(told["histogram"]) == len(sizes)
    classes = Counter(payload.decode().strip() for name, payload in members if name.endswith(".cls"))
    assert field(found, "cls")["classes"]["counts"] == classes
    shapes = Counter(
        " ".join(name.partition(".")[2] for name, _ in members if name.startswith(f"{n:05d}.")) for n in range(500)
    )
    assert {" ".join(each["fields"]): each["samples"] for each in found["combinations"]} == shapes


def varied(dice: random.Random, count: int) -> bytes:
    """Return an archive whose samples are of many kinds."""
    parts = []
    for n in range(count):
        key = b"%06d" % n
        kind = dice.randrange(40)
        parts.append(entry(key + b".cls", b"%d\n" % dice.randrange(30)))
        parts.append(entry(key + b".txt", b"x" * dice.randrange(3000)))
        if kind < 4:
            parts.append(entry(key + b".opt%d" % kind, b"y"))
        elif kind == 4:
            parts.append(entry(key + b".txt", b"twice"))
        elif kind == 5:
            parts.append(entry(key + b".png", picture("PNG", 1 + n % 7, 3) if n % 2 else b"none"))
        elif kind == 6:
            parts.append(entry(b"dir/", kind=b"5"))
        elif kind == 7:
            parts.append(pax((b"path", b"long" * 50 + b"%d.bin" % n)) + entry(b"z", b"1"))
        elif kind == 8:
            parts.append(END)
        elif kind == 9:
            parts.append(entry(b"plain%d" % n, b"no dot"))
    return b"".join(parts) + END


def cut_up(folder: Path, size: int, *arguments: str, command: str = "tarstat") -> tuple[int, bytes, list[str], int]:
    """Return status, stdout, lines on stderr and forks of *command* with pieces of *size* bytes."""
    done = python(PROGRAM, f"pieces {size}", command, *arguments, folder=folder)
    *said, forks = done.stderr.splitlines()
    return done.status, done.stdout, said, int(forks)


@in_both
def test_neither_pieces_nor_processes_change_anything(thorough: bool, tmp_path: Path) -> None:
    dice = random.Random(9)
    for number, count in enumerate((300, 5, 120, 0, 40)):
        (tmp_path / f"{number}.tar").write_bytes(varied(dice, count))
    (tmp_path / "z.tgz").write_bytes(gzip.compress(varied(dice, 100)))
    shards = ["0.tar", "1.tar", "2.tar", "z.tgz", "3.tar", "4.tar", "1.tar"]
    arguments = ["--json", "--decode", "--classes", "txt", *shards]
    status, whole, said, forks = cut_up(tmp_path, 1 << 30, *arguments)
    assert (status, said, forks) == (0, [], 0)
    found = json.loads(whole)
    assert found["samples"] > 570
    assert found["shards"]["smallest"] == {"url": "3.tar", "samples": 0, "bytes": 0}
    assert field(found, "txt")["members"] > field(found, "txt")["samples"]
    assert field(found, "png")["pictures"]["broken"] > 0
    assert found["bytes"]["other"] > 0
    for size, options in ((1 << 15, []), (9000, ["-p", "7"])) if thorough else ((1 << 15, ["-p", "7"]),):
        status, cut, said, forks = cut_up(tmp_path, size, *options, *arguments)
        assert (status, cut, said) == (0, whole, [])
        assert forks > 10
    assert cut_up(tmp_path, 5000, "-p", "1", *arguments) == (0, whole, [], 0)


def test_links_are_counted_over_all_processes(run: Run, tmp_path: Path) -> None:
    """The first, which is told at once, is in what this process reads itself; others are not."""
    for name in "ab":
        (tmp_path / f"{name}.tar").write_bytes(entry(b"a.cls", b"1") + entry(b"link", kind=b"2") + END)
    (tmp_path / "c.tar").write_bytes(make_tar(make_samples(3)))
    for command in ("tarstat", "tar2tsv"):
        alone = run(command, *["pipe:cat a.tar"] * 2, "pipe:cat c.tar")
        assert alone.status == 1 and alone.stderr.count("\n") == 2, alone.stderr
        assert run(command, "pipe:cat a.tar", "b.tar", "c.tar").stderr == alone.stderr


def test_headers_that_are_governed_or_long_add_up(run: Run) -> None:
    samples = [entry(b"%d.cls" % n, b"x" * n) for n in range(9)]
    governed = b"".join([*samples[:4], pax((b"uname", b"me"), kind=b"g"), *samples[4:]]) + END
    assert facts(run, stdin=governed)["members"] == 9
    long = make_tar([(f"{'d' * 150}/{n}.cls", b"1") for n in range(5)], tarfile.PAX_FORMAT)
    assert facts(run, stdin=long)["bytes"]["headers"] == 5 * 3 * 512


@pytest.mark.parametrize(("different", "told"), [(1000, 1000), (1001, None)])
def test_at_most_a_thousand_are_told_one_by_one(run: Run, tmp_path: Path, different: int, told: int | None) -> None:
    archives = {
        "classes.tar": [(f"{n:05d}.cls", b"%d" % (n % different)) for n in range(1040)],
        "fields.tar": [(f"{n // 4:05d}.f{n % different}", b"") for n in range(1040)],
        "combinations.tar": [
            (f"{n:05d}.f{f}", b"") for n in range(1040) for f in range(11) if (n % different) + 1 >> f & 1
        ],
    }
    for name, members in archives.items():
        (tmp_path / name).write_bytes(make_tar(members))
    classes = field(facts(run, "classes.tar"), "cls")["classes"]
    assert classes["values"] == told
    assert (classes["counts"] is None) == (told is None)
    fields = facts(run, "fields.tar")["fields"]
    assert (fields and len(fields)) == told
    found = facts(run, "combinations.tar")
    assert (found["combinations"] and len(found["combinations"])) == told
    assert sum(each["samples"] + each["missing"] for each in found["fields"]) == 1040 * len(found["fields"])
    many = [b"more than 1,000" in run("tarstat", name).stdout for name in archives]
    assert many == [told is None] * 3


def test_a_field_that_a_whole_shard_lacks(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("a.cls", b"1"), ("a.bin", b"x")]))
    (tmp_path / "b.tar").write_bytes(make_tar([("b.cls", b"1"), ("c.cls", b"1")]))
    for shards, key in ((("a.tar", "b.tar"), "b"), (("b.tar", "a.tar"), "b"), (("a.tar", "a.tar"), None)):
        told = field(facts(run, *shards), "bin")
        assert (told["missing"], told["missing_in"]) == (2 if key else 0, key)


@pytest.mark.parametrize("seconds", ["long", float("nan"), float("inf"), None, True])
def test_lengths_of_a_table_that_are_no_numbers(seconds: object, run: Run, tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "a.tar").write_bytes(make_tar([("a.mp3", b"1"), ("b.mp3", b"1")]))
    run("tarindex", "a.tar", "-o", "a.parquet").output()
    rows = pq.read_table(tmp_path / "a.parquet").append_column("mp3.seconds", pa.array([seconds] * 2))
    pq.write_table(rows.append_column("mp3.broken", pa.nulls(2, pa.string())), tmp_path / "t.parquet")
    assert run("tarstat", "--hours", "t.parquet").status == 0


def test_a_table_beside_the_shards_that_it_lists(run: Run, tmp_path: Path) -> None:
    """It is no shard, and is counted as none, also if all of its shards are named too; an empty shard is one."""
    (tmp_path / "a.tar").write_bytes(make_tar([("a.cls", b"1")]))
    (tmp_path / "empty.tar").write_bytes(make_tar([]))
    run("tarindex", "-f", "cls", "a.tar", "-o", "a.parquet").output()
    for names, shards, samples in (("a.tar a.parquet empty.tar", 2, 2), ("a.parquet", 1, 1), ("a.tar empty.tar", 2, 1)):
        told = facts(run, *names.split())
        assert (told["shards"]["count"], told["samples"]) == (shards, samples), names


def test_which_fields_have_classes(run: Run) -> None:
    members = [("a.cls", b"1"), ("a.cls.top", b"x\n"), ("a.Label", b"cat"), ("a.txt", b"t"), ("b.label", b"y" * 257)]
    archive = make_tar(members)
    found = facts(run, stdin=archive)
    assert [each["field"] for each in found["fields"] if "classes" in each] == ["cls", "cls.top"]
    found = facts(run, "--classes", "label", stdin=archive)
    assert [each["field"] for each in found["fields"] if "classes" in each] == ["cls", "cls.top", "Label", "label"]
    assert field(found, "cls.top")["classes"]["counts"] == {"x": 1}
    assert field(found, "label")["classes"] == {"values": 0, "counts": {}, "long": 1}
    said = run("tarstat", "--classes", "split label", stdin=archive).failure()
    assert said == "tarstat: no sample had the field split; the fields were: cls cls.top Label txt label\n"


def test_an_archive_without_samples(run: Run) -> None:
    assert facts(run, stdin=bytes(10240)) == {
        "samples": 0,
        "members": 0,
        "bytes": {"archives": 10240, "payloads": 0, "headers": 0, "padding": 0, "other": 10240},
        "shards": {
            "count": 1,
            "samples": {"min": 0, "median": 0, "max": 0},
            "bytes": {"min": 0, "median": 0, "max": 0},
            "smallest": {"url": "stdin", "samples": 0, "bytes": 0},
            "largest": {"url": "stdin", "samples": 0, "bytes": 0},
        },
        "fields": [],
        "combinations": [],
    }


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="only Linux says what was read")
def test_large_payloads_are_not_read(tmp_path: Path) -> None:
    size = 300 << 10  # what is above 1 MiB is never in memory
    with (tmp_path / "a.tar").open("wb") as file:
        for n in range(64):
            file.write(entry(b"%d.cls" % n, b"%d" % n))
            file.write(entry(b"%d.bin" % n, bytes(size))[:512])
            file.seek(size, os.SEEK_CUR)
        file.write(END)
    program = """
from tartools.commands.tarstat import tarstat
def read():
    return int(open("/proc/self/io").readline().split()[1])
before = read()
tarstat.main(["-p", "1", "a.tar"])
print(read() - before)
"""
    done = python(program, folder=tmp_path)
    *lines, count = done.stdout.decode().splitlines()
    assert done.status == 0 and "class cls 63: 1" in lines
    assert int(count) < 16 * size


def drawn_on(folder: Path, *arguments: str, **options: Any) -> str:
    """Return what tarstat writes to a terminal."""
    return on_terminal([BIN / "tarstat", *arguments], folder, **options).output().decode().replace("\r\n", "\n")


def hostile() -> Sequence[tuple[str, bytes]]:
    """Return members of two samples that would do things to a terminal, and are wider than it."""
    return [
        ("\x1b]0;owned\x07.jpg", b"\xff\xd8\xff broken"),
        ("\x1b]0;owned\x07.[red]" + "very-long-" * 9 + "\x1b[2J", b"x" * 70000),
        ("b.jpg", picture("JPEG", 640, 480)),
        ("b.cls", b"\x1b[31mred" + b"z" * 200),
        ("b.\xff", b"1"),
    ]


@pytest.mark.parametrize("columns", [80, 44, 30, 200])
def test_tables_fit_a_terminal(tmp_path: Path, columns: int) -> None:
    for name in ("a.tar", "b.tar"):
        (tmp_path / name).write_bytes(make_tar([*hostile(), *make_samples(30)], tarfile.PAX_FORMAT))
    drawn = drawn_on(tmp_path, "a.tar", "b.tar", columns=columns)
    assert set(re.findall("\x1b(\\[[0-9;]*[a-zA-Z])?", drawn)) <= {"[0m", "[1m", "[2m", "[36m"}
    text = re.sub("\x1b\\[[0-9;]*m", "", drawn)
    assert max(map(len, text.splitlines())) <= columns
    assert text.startswith("2 shards, 64 samples, 130 members, ") or columns < 50
    for heading in ("Archives", "Fields", "Sizes", "Pictures", "Classes", "Samples", "Shards"):
        assert f"\n{heading[: 7 if columns < 50 else 8]}" in text
    assert ("█" in text and "▁" in text) or columns < 50
    for line in re.findall(r"^(?:cls|jpg) .*$", text, re.MULTILINE):
        assert re.fullmatch(r"\S+( +(-|[\d,.]+( ([kM]?B|%))?))+(  +[ ▁-█▉-▏]+)?", line), line  # no number is cut
    assert "different sizes" not in text and "640 x 480" in text


def test_a_terminal_gets_twenty_keys(tmp_path: Path) -> None:
    members = [(f"{n:03d}.{kind}", b"none") for n in range(100) for kind in ("jpg", "cls") if kind == "jpg" or n % 4]
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    text = re.sub("\x1b\\[[0-9;]*m", "", drawn_on(tmp_path, "a.tar"))
    rows = text.splitlines()
    for heading, keys, more in (("Broken jpg", range(20), 80), ("Without cls", range(0, 80, 4), 5)):
        first = rows.index(heading) + 1
        assert rows[first : first + 20] == [f"{key:03d}" for key in keys]
        assert rows[first + 20] == f"and {more} more; --json has all"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_escape_codes_where_nobody_wants_them(tmp_path: Path, name: str, value: str) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar(hostile(), tarfile.PAX_FORMAT))
    drawn = drawn_on(tmp_path, "a.tar", env={name: value})
    assert "\x1b" not in drawn and "█" in drawn


def test_nothing_hostile_is_piped(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar(hostile(), tarfile.PAX_FORMAT))
    out = run("tarstat", "a.tar").output()
    assert out.decode().replace("\n", "").isprintable()
    assert b"\nclass cls \\x1b[31mredzzz" in out
    assert "█" not in out.decode()
    assert facts(run, "a.tar")["fields"][1]["field"].endswith("\x1b[2J")
