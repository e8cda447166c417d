"""Archives that split(1) has cut: their parts are read as one shard, and what is wrong with them is said."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import subprocess
from pathlib import Path

import pytest

import tartools
from tartools.errors import StorageError, shown
from tartools.storage.expand import expand
from tartools.storage.split import join_split_parts, parse_part
from tartools.storage.url import Url, parts_of
from tests.commands.test_tarcheck import zstd
from tests.conftest import Run, make_tar
from tests.tiers import also

SAMPLES = [
    member
    for n in range(24)
    for member in ((f"{n:06d}.cls", b"%d" % n), (f"{n:06d}.txt", b"%d word" % n * (n * 37 % 400 + 1)))
]
WHOLE = make_tar(SAMPLES)
PACKED = gzip.compress(WHOLE, 0, mtime=0)
NAMES = {
    "letters": ("x.tar.gz.part", "aa", "ab", "ac", "ad", "ae"),
    "no mark": ("x.tar.gz", "aa", "ab", "ac", "ad", "ae"),
    "three letters": ("x.tgz.", "aaa", "aab", "aac", "aad", "aae"),
    "capitals": ("x.TAR.GZ.PART", "AA", "AB", "AC", "AD", "AE"),
    "numbers from 0": ("x.tgz-part-", "00", "01", "02", "03", "04"),
    "underscore": ("x.tar.gz_", "00", "01", "02", "03", "04"),
    "numbers from 1": ("x.tar.", "001", "002", "003", "004", "005"),
    "without zeros": ("x.tar.zst.part", "8", "9", "10", "11", "12"),
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in `tmp_path`."""
    monkeypatch.chdir(tmp_path)


def cut(data: bytes, prefix: str, *tokens: str) -> list[str]:
    """Write *data* as files of equal size; return their names."""
    step = -(-len(data) // len(tokens))
    names = [prefix + token for token in tokens]
    for number, name in enumerate(names):
        Path(name).write_bytes(data[number * step : (number + 1) * step])
    return names


def mixed(names: list[str], seed: int = 1) -> list[str]:
    return random.Random(seed).sample(names, len(names))


def given(way: str, prefix: str, names: list[str]) -> tuple[list[str], bytes]:
    """Return arguments and stdin that name the parts: mixed, by a wildcard, braces or a list."""
    if way == "list":
        return ["-T", "-"], "".join(f"{name}\n" for name in mixed(names)).encode()
    if way == "braces":
        return [f"{prefix}{{{','.join(name.removeprefix(prefix) for name in mixed(names, 2))}}}"], b""
    return ([f"{prefix}*"] if way == "wildcard" else mixed(names, 3)), b""


@pytest.mark.parametrize("way", ["wildcard", "braces", "list", "arguments"])
@pytest.mark.parametrize("name", NAMES)
def test_parts_are_read_as_one_shard(name: str, way: str, run: Run) -> None:
    """In the order of their numbers, also 8, 9, 10, whatever the order and the way in which they are named."""
    prefix, *tokens = NAMES[name]
    if name == "without zeros":  # from 8 on: 1 to 7 are there, too
        tokens = [*map(str, range(1, 13))]
    names = cut(PACKED, prefix, *tokens)
    words, stdin = given(way, prefix, names)
    assert run("tarcat", *words, stdin=stdin).output() == WHOLE
    checked = run("tarcheck", "--json", *words, stdin=stdin)
    assert (checked.status, json.loads(checked.stdout)["shards"]) == (0, 1)


@pytest.mark.parametrize("options", [["-b", "700"], ["-b", "40"], ["-d", "-b", "700"], ["-d", "-b", "40"]])
def test_what_the_real_split_makes_of_many_parts(options: list[str], run: Run) -> None:
    """Behind yz comes zaaa, behind 89 comes 9000."""
    Path("x").write_bytes(PACKED)
    subprocess.run(["split", *options, "x", "x.tar.gz."], check=True)
    names = sorted(path.name for path in Path().glob("x.tar.gz.*"))
    (url,) = expand(["x.tar.gz.*"])
    assert parts_of(url) == names and len(names) > (90 if "-d" in options else 60)
    assert len(names) > 650 or "40" not in options
    for name in (names[0], names[-2], *(name for name in names if name.endswith((".zaaa", ".9000")))):
        data = Path(name).read_bytes()
        Path(name).unlink()
        said = run("tarcat", "x.tar.gz.*", "-o", "o.tar").failure()
        assert f", {name.rpartition('.')[2]!r}, is missing: " in said or name.endswith(".00"), said
        Path(name).write_bytes(data)
    assert run("tarcat", "x.tar.gz.*").output() == WHOLE


def test_several_archives_and_shards_stay_in_order(run: Run) -> None:
    """Each archive takes the place of the first of its parts."""
    parts = {}
    for name in "abc":
        parts[name] = cut(
            make_tar([(f"{name}{n}.txt", bytes(900)) for n in range(9)]), f"{name}.tar.", "00", "01", "02"
        )
    Path("d.tar").write_bytes(make_tar([("d.txt", b"d")]))
    names = [
        parts["b"][2],
        "d.tar",
        parts["a"][1],
        parts["b"][0],
        *parts["c"],
        parts["b"][1],
        parts["a"][2],
        parts["a"][0],
    ]
    rows = run("tar2tsv", "--no-header", "-f", "__shard__", *names).output().decode().split()
    keys = [f"{name}{n}" for name in "bdac" for n in range(9) if name != "d" or not n]
    assert rows[::2] == [key if key[0] != "d" else "d" for key in keys]
    assert rows[1::2] == [f"{key[0]}.tar" for key in keys]


READING = {
    "tarsort": "tarsort -S shuffle --seed 4",
    "tarfilter": "tarfilter --share 0.1:0.7",
    "tarmix": "tarmix 1",
    "tarpcat": "tarpcat -p 3 --rekey {shard}/{index:04d}",
    "tarcat": "tarcat --shuffle 5 --rekey {shard}/{index:04d}",
    "tardedup": "tardedup",
    "tarproc": "tarproc -c true",
    "tar2jsonl": "tar2jsonl",
    "tarstat": "tarstat --json",
    "tarcheck --fix": "tarcheck --fix -o fixed.tar",
}


@pytest.mark.parametrize("line", READING.values(), ids=[*READING])
def test_commands_give_what_they_give_for_the_whole_archive(line: str, run: Run) -> None:
    """Also those that read twice."""
    Path("whole").mkdir()
    Path("whole/x.tar").write_bytes(WHOLE)
    cut(WHOLE, "x.tar.part", "aa", "ab", "ac", "ad")
    whole = run(*line.split(), "whole/x.tar")
    fixed = Path("fixed.tar").read_bytes() if "fixed" in line else b""
    done = run(*line.split(), "x.tar.part*", *(["--force"] if fixed else []))
    assert (done.status, done.stderr) == (whole.status, whole.stderr.replace("whole/x.tar", "x.tar.part*"))
    out = done.stdout.replace(b"x.tar.part*", b"whole/x.tar")
    assert out.replace(b'"url": "x.tar"', b'"url": "whole/x.tar"') == whole.stdout
    assert not fixed or Path("fixed.tar").read_bytes() == fixed


LETTERS = ("aa", "ab", "ac", "ad")
ALL = "name all parts, 'x.tar.part*'"
STDIN = "(an archive by itself is read from stdin: < x.tar.part"
SPLIT = "of an archive that was split"
FAULTS = {
    "gap": (
        ["x.tar.partaa", "x.tar.partad"],
        f"these are the parts aa, ad {SPLIT}, and a part, 'ab', is missing: {ALL} {STDIN}aa)",
    ),
    "no first": (
        ["x.tar.partab", "x.tar.partac"],
        f"these are the parts ab, ac {SPLIT}, and the first part, 'aa', is missing: {ALL} {STDIN}ab)",
    ),
    "alone": (
        ["x.tar.partac"],
        f"this is part 'ac' {SPLIT}, and the first part, 'aa', is missing: {ALL} {STDIN}ac)",
    ),
    "twice": (["x.tar.partab", "x.tar.partaa", "x.tar.partab"], "part 'ab' is named twice"),
    "two kinds": (
        ["x.tar.partaa", "x.tar.partab", "x.tar.00"],
        "its parts have names of two kinds, x.tar.partaa and x.tar.00: name those of one kind, 'x.tar.part*'",
    ),
    "two marks": (
        ["x.tar.partaa", "x.tar.ab"],
        "its parts have names of two kinds, x.tar.partaa and x.tar.ab: name those of one kind, 'x.tar.part*'",
    ),
    "the archive, too": (
        ["x.tar", "x.tar.partaa", "x.tar.partab"],
        "both the archive and its parts are named: leave one of the two out",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_parts_that_are_not_whole_are_refused(fault: str, run: Run) -> None:
    names, reason = FAULTS[fault]
    cut(WHOLE, "x.tar.part", *LETTERS)
    for name in ("x.tar", "x.tar.00", "x.tar.ab"):
        Path(name).write_bytes(WHOLE)
    for command in ("tarcat", *(["tarstat", "tarsort"] if fault == "gap" else [])):
        assert run(command, *names).failure() == f"{command}: x.tar: {reason}\n"
    with pytest.raises(StorageError, match=r"^x\.tar: "):
        tartools.read(names)
    found = json.loads(run("tarcheck", "--json", *names).stdout)["findings"]
    (missing,) = [each for each in found if each["code"] == "missing-part"]
    assert (missing["count"], missing["places"][0]["what"]) == (1, reason)


def test_a_missing_part_is_not_one_of_another_archive(run: Run) -> None:
    cut(WHOLE, "x.tar.part", *LETTERS)
    Path("x.tar.zst").write_bytes(zstd(WHOLE))
    names = ["x.tar.zst", *(f"x.tar.part{letters}" for letters in LETTERS[1:])]
    found = json.loads(run("tarcheck", "--json", *names).stdout)["findings"]
    (missing,) = [each for each in found if each["code"] == "missing-part"]
    assert [place["shard"] for place in missing["places"]] == [names[1]]


@pytest.mark.parametrize("number", [0, 1, 3, *also(2)])
@pytest.mark.parametrize("packed", [False, True])
def test_damage_is_told_by_part_and_byte(packed: bool, number: int, run: Run) -> None:
    """A header, or in compressed data any byte: its part is named, and the byte in it, wherever it is read."""
    data = gzip.compress(WHOLE, 6, mtime=0) if packed else WHOLE
    names = cut(data, "x.tar.gz." if packed else "x.tar.part", *(("00", "01", "02", "03") if packed else LETTERS))
    part = bytearray(Path(names[number]).read_bytes())
    place = part.index(b"ustar") - 257 if not packed else len(part) // 2
    if packed:
        part[place : place + 40] = b"\xff" * 40
    else:
        part[place] ^= 1
    Path(names[number]).write_bytes(part)
    pattern = f"{names[0][:-2]}*"
    for line in ("tarcat", "tarsort", "tarpcat -p 2", "tarpcat -p 2 --unordered"):
        said = run(*line.split(), pattern, "-o", "out.tar").failure(lines=1)
        if packed:
            assert said.startswith(f"{line.split(maxsplit=1)[0]}: {pattern}: at byte ")
            assert f" of {names[number]})" in said or "damaged" not in said, said
        else:
            what = "header checksum does not match" if number else "this is not a tar archive"
            assert said.endswith(f": {what} (byte {place} of {names[number]})\n"), said
    found = json.loads(run("tarcheck", "--json", pattern).stdout)["findings"]
    code = "bad-compressed" if packed else "bad-header"
    (damage,) = [each for each in found if each["code"] == code]
    assert f"{names[number]})" in damage["places"][0]["what"] and damage["places"][0]["shard"] == pattern


def test_parts_that_end_too_early(run: Run) -> None:
    """A lost last part, a first one alone, an empty or shortened one: each is said, with what to type."""
    names = cut(WHOLE, "x.tar.part", *LETTERS)
    size = Path(names[0]).stat().st_size
    said = run("tarcat", *names[:3], "-o", "o.tar").failure(lines=1)
    assert said.startswith(f"tarcat: x.tar.part*: at byte {3 * size}: the input ends ")
    assert said.endswith(f" (byte {size} of x.tar.partac; is a part behind 'ac' missing?)\n")
    said = run("tarcat", names[0], "-o", "o.tar").failure(lines=1)
    assert said.endswith(" (this is part 'aa' of an archive that was split; name all parts: 'x.tar.part*')\n")
    numbers = cut(WHOLE, "y.tar.", "00", "01", "02")
    said = run("tarcat", *numbers[1:], "-o", "o.tar").failure(lines=1)  # 01 may be the first
    assert said.endswith(" of y.tar.01; is a part before '01' missing?)\n")
    Path(names[1]).write_bytes(Path(names[1]).read_bytes()[:-512])
    said = run("tarcat", *names, "-o", "o.tar").failure(lines=1)
    assert " of x.tar.partac)" in said or " of x.tar.partad)" in said
    Path(names[2]).unlink()
    said = run("tarcat", *names, "-o", "o.tar").failure(lines=1)
    assert said == "tarcat: x.tar.partac: No such file or directory\n"
    assert not Path("o.tar").exists()


def test_checksums_of_parts_are_compared(run: Run) -> None:
    names = cut(PACKED, "x.tar.gz.part", *LETTERS)
    lines = [f"{hashlib.sha256(Path(name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    Path("SUMS").write_text("".join(lines))
    words = "--check-sums", "SUMS", "x.tar.gz.part*"
    assert run("tarcat", *words).output() == WHOLE
    assert b"checksum" not in run("tarcheck", "-q", *words).stdout
    Path("SUMS").write_text("".join([*lines[:2], lines[3].replace("partad", "partac"), lines[3]]))
    said = run("tarcat", *words, "-o", "o.tar").failure(lines=1)
    assert said.startswith("tarcat: x.tar.gz.partac: SHA256 is ")
    found = json.loads(run("tarcheck", "--json", *words).stdout)["findings"]
    assert [each["places"][0]["what"][:16] for each in found if each["code"] == "checksum-differs"] == [
        "x.tar.gz.partac:"
    ]
    Path("SUMS").write_text("".join(lines[:3]))
    assert (
        run("tarcat", *words, "-o", "o.tar").failure() == "tarcat: SUMS: this list has no checksum of x.tar.gz.partad\n"
    )


def test_a_table_cannot_list_them(run: Run) -> None:
    cut(WHOLE, "x.tar.part", *LETTERS)
    reason = "x.tar.part*: a table can't list samples of an archive that was split; tarcat or tarsplit copies it"
    for line in ("tarindex x.tar.part* -o t.parquet", "tarcat x.tar.part* -o t.parquet"):
        assert run(*line.split()).failure() == f"{line.split(maxsplit=1)[0]}: {reason}\n"


def test_an_output_is_no_part_of_the_input(run: Run) -> None:
    names = cut(WHOLE, "x.tar.part", *LETTERS)
    said = run("tarcat", "x.tar.part*", "-o", names[2], "--force").failure()
    assert said == f"tarcat: {names[2]}: this output is also the input {names[2]}\n"


def test_commands_for_each_file_get_the_parts(run: Run) -> None:
    names = cut(WHOLE, "x.tar.part", *LETTERS)
    run("tarjob", "--spec", "x.tar.part*", "-o", "{}.copy", "--", "cp", "{}", "{}.copy")
    assert sorted(path.name for path in Path().glob("*.copy")) == [f"{name}.copy" for name in names]


def test_python_reads_them_as_one(run: Run) -> None:
    cut(PACKED, "x.tar.gz.part", *LETTERS)
    samples = list(tartools.read("x.tar.gz.part*"))
    assert len(samples) == 24 and {sample.shard for sample in samples} == {"x.tar.gz"}


@pytest.mark.parametrize("where", ["list", "table", "server's list"])
def test_nobody_else_can_name_such_a_shard(where: str, run: Run, tmp_path: Path) -> None:
    """The name that is made of its parts would be a way around the rules for lists and tables."""
    Path("a.tar").write_bytes(WHOLE)
    name = "split:\0pipe:touch ran{a,b}"
    if where == "table":
        import pyarrow as pa
        import pyarrow.parquet as pq

        run("tarindex", "a.tar", "-o", "t.parquet").output()
        table = pq.read_table("t.parquet")
        column = pa.array([name] * len(table)).cast(table.schema.field("__shard__").type)
        pq.write_table(table.set_column(table.schema.get_field_index("__shard__"), "__shard__", column), "t.parquet")
        said = run("tarcat", "t.parquet", "-o", "o.tar").failure()
        assert said == "tarcat: t.parquet: row 0: __shard__ is not the name of a shard\n"
    else:
        Path("list").write_text(f"{name}\n")
        done = run("tarcat", "-T", "list" if where == "list" else "pipe:cat list", "-o", "o.tar")
        assert done.failure(2).endswith(": name the parts of an archive themselves\n")
    assert not Path("rana").exists() and not Path("ran").exists() and not Path("o.tar").exists()


@pytest.mark.parametrize(
    "name",
    [
        *(
            "x.tar",
            "x.tar.gz",
            "x.tar.xz",
            "x.tar.gz.md",
            "x.tar.asc",
            "x.tar.zstd",
            "x.tar.lz4",
            "x-000001.tar",
            "x.zip.001",
        ),
        *("x.tar.gz2", "x.tar.partial", "x.tar.idx", "x.tar.json", "x.tar.part", "tar.aa", "x.tar.gz.sha256"),
    ],
)
def test_what_is_no_part(name: str) -> None:
    assert parse_part(name) is None
    assert expand([name, "y.tar"]) == [name, "y.tar"]


def test_years_are_no_parts(run: Run) -> None:
    """Archives of years stay apart, and so do those of days; a part of many behind 999 does not."""
    for name in ("x.tar.2021", "x.tar.2022", "x.tar.20230101"):
        Path(name).write_bytes(make_tar([(f"{name[-2:]}.txt", b"")]))
    assert expand(["x.tar.*"]) == ["x.tar.2021", "x.tar.2022", "x.tar.20230101"]
    assert json.loads(run("tarstat", "--json", "x.tar.*").stdout)["shards"]["count"] == 3
    (url,) = expand([f"y.tar.{number:04d}" for number in range(1200)])
    assert len(parts_of(url)) == 1200


def test_each_part_may_have_a_signature() -> None:
    """It stays with its part, whatever is in it, and no message shows it."""
    urls = [Url(f"https://host/x.tar.part{token}?sig={{1,2}}&n={token}") for token in ("ab", "aa")]
    (url,) = join_split_parts(urls)
    assert parts_of(url) == urls[::-1]
    assert shown(url) == "https://host/x.tar.part*"
