"""tarfilter: what is chosen, errors, and what columns of tables say. Nothing is lost: `test_shards_and_tables`."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.archives import picture
from tests.commands.conftest import Inside
from tests.commands.test_tardedup import keys_in
from tests.conftest import Run, make_samples, make_tar, members_of
from tests.properties.test_model import Members


def some(count: int, first: int = 0) -> Members:
    """Return samples of several kinds: not all have a caption, and classes come back."""
    members: Members = []
    for number in range(first, first + count):
        key = f"{'x/' * (number % 3)}{number:04d}"
        members += [(f"{key}.cls", b"%d\n" % (number % 11)), (f"{key}.json", b'{"w": %d}' % (number % 13))]
        if number % 4:
            members.append((f"{key}.txt", b"w" * (number % 7)))
        if number % 5 == 0:
            members.append((f"{key}.png", picture("PNG", 1 + number % 9, 5)))
    return members


def numbers_in(content: bytes) -> list[int]:
    """Return the numbers of the samples in an archive of `some`."""
    return [int(key[-4:]) for key in keys_in(content)]


KEYS = [f"{number:06d}" for number in range(40)] + ["train/n01440764/ü", "a"]
HALF = ["000002", "000005", "000006", "000008", "000010", "000023", "000034", "000035", "000038", "train/n01440764/ü"]
FIFTH = ["000005", "000010", "000011", "000012", "000013", "000019", "000025", "000036"]


def test_recorded_sets_of_keys(run: Run) -> None:
    """As any other machine and release of Python finds them; in any order of the samples."""
    for keys in (KEYS, KEYS[::-1]):
        archive = make_tar([(f"{key}.cls", b"1") for key in keys])
        for options, found in (("--share 0.5:0.75", HALF), ("--sample 0.2 --seed 7", FIFTH)):
            chosen = run("tarfilter", *options.split(), stdin=archive).output()
            assert sorted(keys_in(chosen)) == sorted(found)


def test_columns_that_only_the_table_has(run: Run, tmp_path: Path) -> None:
    """They keep their types; null is a missing value."""
    (tmp_path / "a.tar").write_bytes(make_tar(some(30)))
    run("tarindex", "a.tar", "-o", "t.parquet").output()
    table = pq.read_table(tmp_path / "t.parquet")
    scores = [None if number == 7 else number / 30 for number in range(30)]
    pq.write_table(table.append_column("score", pa.array(scores)), tmp_path / "s.parquet")
    wanted = [number for number in range(30) if number != 7 and number / 30 > 0.5]
    assert numbers_in(run("tarfilter", "-S", "score > 0.5", "--ignore-errors", "s.parquet").output()) == wanted
    mixed = run("tarfilter", "-S", "score > 0.5 and len(txt) >= 0", "--ignore-errors", "s.parquet").output()
    assert numbers_in(mixed) == [number for number in wanted if number % 4]
    run("tarfilter", "-S", "not has('score')", "s.parquet", "-o", "no.parquet").output()
    assert pq.read_table(tmp_path / "no.parquet").column("score").to_pylist() == [None]
    done = run("tarfilter", "-S", "score > 0.5", "s.parquet")
    assert done.status == 1 and "sample 'x/0007' has no 'score'; its fields are: cls json txt" in done.stderr


def test_what_columns_say_is_not_read(run: Run, tmp_path: Path) -> None:
    """The shard is gone, and a table of it is still filtered."""
    (tmp_path / "a.tar").write_bytes(make_tar(some(30)))
    run("tarindex", "-f", "cls", "a.tar", "-o", "t.parquet").output()
    (tmp_path / "a.tar").unlink()
    for line in (["-S", "int(cls) == 3"], ["--fields-present", "txt"], ["-S", "size('txt') > 2 or not has('cls')"]):
        line = [*line, "--ignore-errors"] if line[0] == "-S" else line
        run("tarfilter", *line, "t.parquet", "-o", "o.parquet", "--force").output()
        assert 0 < pq.read_table(tmp_path / "o.parquet").num_rows < 30


ERRORS = [
    ([], 2, "no condition: give -S"),
    (["-S", "cls ="], 2, "not an expression"),
    (["-S", "match('(', cls)"], 2, "not a regular expression: '('"),
    (["--share", "0.5"], 2, "write LO:HI"),
    (["--share", "0.9:0.1"], 2, "no key is in the range"),
    (["--share", "0:1.5"], 2, "not a number from 0 to 1: '1.5'"),
    (["--share", "0:1e-3"], 2, "not a number from 0 to 1"),
    (["--sample", "1/0"], 2, "not a number from 0 to 1: '1/0'"),
    (["--sample", "0.5", "--ignore-errors"], 2, "--ignore-errors needs -S"),
    (["--fields-present", "x=jpg"], 2, "--fields-present takes names of fields"),
    (["--fields-present", ""], 2, "--fields-present takes names of fields"),
    (["--share", "0:1", "--rest", "./o.tar"], 2, "./o.tar: -o and --rest are one file"),
    (["--share", "0:1", "--rest", "a.tar"], 1, "a.tar: "),
    (["--share", "0:1", "--rest", "r.parquet", "-z"], 2, "-z excludes"),
    (["--keys", "nope.txt"], 1, "nope.txt: No such file"),
    (["--keys", "-"], 2, "--keys takes the name of a file"),
    (["--keys", "empty.txt"], 1, "empty.txt: the list of keys is empty"),
    (["-S", "nope == '1'"], 1, "a.tar: sample '0000' has no 'nope'; its fields are: cls json png"),
    (["-S", "meta.json > 1"], 1, "its fields are: cls json png (for a name with a dot write field('meta.json'))\n"),
    (
        ["-S", "nope.strip()"],
        1,
        "its fields are: cls json png (--ignore-errors treats EXPR as false for such samples)\n",
    ),
    (["-S", "1.5 ** 1e308 > 1"], 1, "sample '0000': 1.5 ** 1e308 > 1: Numerical result out of range"),
    (["-S", "size('txt') > 1"], 1, "a.tar: sample '0000' has no 'txt'"),
    (["-S", "png.width > 1"], 1, "(write width('png'); for a name with a dot write field('png.width'))"),
    (["-S", "int(txt) > 1", "--fields-present", "txt"], 1, "a.tar: sample 'x/0001': int(txt) > 1: invalid literal"),
    (["-S", "cls > 1"], 1, "sample '0000': cls > 1: 'cls > 1' compares text with a number; int() and"),
    (["-S", "png == 'x'"], 1, "a.tar: sample '0000', field 'png': not UTF-8"),
    (["-S", "width('cls') > 1"], 1, "a.tar: sample '0000': width('cls') > 1: width('cls'): "),
    (["-S", "match('(a|aa)+$', 'a' * 99 + 'b')", "--ignore-errors"], 1, "takes over 1 s"),
]


@pytest.mark.parametrize(("line", "status", "message"), ERRORS, ids=str)
def test_errors(line: list[str], status: int, message: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar(some(10)))
    (tmp_path / "empty.txt").write_text("\n")
    rest = [] if "--rest" in line else ["--rest", "r.tar"]
    done = run("tarfilter", *line, *rest, "a.tar", "-o", "o.tar")
    assert (done.status, done.stdout, done.stderr.count("\n")) == (status, b"", 1)
    assert done.stderr.startswith("tarfilter: ") and message in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["a.tar", "empty.txt"]


def test_words_behind_a_missing_one(run: Run) -> None:
    """A word that some sample has is not called missing, also behind one that none has; with --verbatim case counts."""
    archive = make_tar([("a.jpg", b"1"), ("b.txt", b"1")])
    done = run("tarfilter", "--fields-present", "nope jpg", stdin=archive)
    assert "no sample had nope;" in done.stderr
    assert members_of(run("tarfilter", "--fields-present", "JPG", stdin=archive).stdout) == [("a.jpg", b"1")]
    assert members_of(run("tarfilter", "--verbatim", "--fields-present", "JPG", stdin=archive).stdout) == []


def test_patterns_are_checked_one_by_one(run: Run) -> None:
    """The steps of one evaluation, which three long patterns exceed, are no limit of the patterns of an expression."""
    archive = make_tar([("a.txt", b"1")])
    ors = " or ".join(f"match('{letter * 9000}', key)" for letter in "bcd")
    assert run("tarfilter", "-S", f"not ({ors})", stdin=archive) == (0, archive, "")
    assert run("tarfirst", "-S", ors, stdin=archive).failure(1, lines=1).startswith("tarfirst: ")


def test_groups_are_read_of_chosen_samples_alone(run: Run) -> None:
    members = [
        (f"{n}.{field}", value) for n in range(9) for field, value in (("cls", b"%d" % (n % 3)), ("n", b"%d" % n))
    ]
    archive = make_tar([*members, ("b.cls", b"\xff"), ("b.n", b"9")])
    line = ("tarfilter", "--share", "0:1", "--group", "cls", "-S", "key != 'b'")
    done = run(*line, stdin=archive)
    assert (done.status, done.stderr) == (0, "") and members_of(done.stdout) == members
    assert "sample 'b', field 'cls': not UTF-8" in run(*line[:-2], stdin=archive).stderr


def test_names_of_files_in_a_list_of_keys_are_told(run: Run, tmp_path: Path) -> None:
    """With --invert they would let everything through."""
    (tmp_path / "k.txt").write_text("a.txt\n")
    archive = make_tar([("a.txt", b"1"), ("b.txt", b"2")])
    said = "no sample had 1 of the 1 keys; the first is 'a.txt' (keys have no suffix: 'a')\n"
    assert run("tarfilter", "--keys", "k.txt", "--invert", stdin=archive).stderr == f"tarfilter: {said}"
    (tmp_path / "k.txt").write_text("c\n")
    said = "no sample had 1 of the 1 keys; the first is 'c'\n"
    assert run("tarfilter", "--keys", "k.txt", "--invert", stdin=archive).stderr == f"tarfilter: {said}"


def test_the_report_says_what_each_output_got(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar(some(10)))
    for suffix in ("tar", "parquet"):
        line = ["tarfilter", "-v", "--share", "0:0.3", "a.tar", "-o", f"o.{suffix}", "--rest", f"r.{suffix}"]
        chosen, others, totals = run(*line).stderr.splitlines()
        counts = [len(keys_in(run("tarcat", f"{name}.{suffix}").output())) for name in "or"]
        assert 0 < counts[0] < counts[1]
        assert chosen == f"tarfilter: o.{suffix}: {counts[0]} sample{'s' * (counts[0] > 1)}"
        assert others == f"tarfilter: r.{suffix}: {counts[1]} samples"
        assert totals.startswith(f"tarfilter: {sum(counts)} samples in, {sum(counts)} out, ")
    piped = run("tarfilter", "-v", "--share", "0:1", "--rest", "none.tar", "a.tar")
    assert piped.stderr.startswith(f"tarfilter: stdout: {sum(counts)} samples\ntarfilter: none.tar: 0 samples\n")


def test_missing_false_takes_every_failure_of_values_as_false(run: Run) -> None:
    archive = make_tar([("a.txt", b"1"), ("b.txt", b"no"), ("c.txt", b"\xff"), ("d.cls", b"1"), ("e.txt", b"2")])
    line = ["tarfilter", "-S", "int(txt) > 0", "--ignore-errors"]
    assert keys_in(run(*line, stdin=archive).output()) == ["a", "e"]
    assert keys_in(run(*line, "--invert", stdin=archive).output()) == ["b", "c", "d"]


def test_what_no_sample_had_is_told(run: Run, tmp_path: Path) -> None:
    archive = make_tar(make_samples(3))
    lines = {"jgp": ["--fields-present", "jgp"], "csl": ["-S", "csl == '1' or has('txt')", "--ignore-errors"]}
    for lost, options in lines.items():
        done = run("tarfilter", *options, stdin=archive)
        said = f"tarfilter: no samples selected (of 3); no sample had {lost}; the fields were: cls jpg\n"
        assert (done.status, done.stderr) == (0, said)
    (tmp_path / "keys").write_text("000001\nz\ny\n")
    done = run("tarfilter", "--keys", "keys", stdin=archive)
    assert done.stderr == "tarfilter: no sample had 2 of the 3 keys; the first is 'y'\n"
    assert (done.status, keys_in(done.stdout)) == (0, ["000001"])


@pytest.mark.parametrize("form", ["tar", "parquet"])
def test_nothing_chosen_is_told_with_the_values_there_are(form: str, inside: Inside, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar(make_samples(30)))
    inside("tarindex", "-f", "cls", "a.tar", "-o", "a.parquet").output()
    none = "tarfilter: no samples selected (of 30)"
    values = f"{none}; values of cls: {', '.join(repr(str(n)) for n in range(10))}\n"
    for source in ("a.tar", "a.parquet"):
        for line, said in (
            (["-S", "cls == 'autum'"], values),
            (["-S", "cls == 'autum'", "--rest", f"r.{form}"], values),
            (["-S", "cls == 'autum' or key == 'x'"], values),
            (["-S", "size('jpg') < 0"], f"{none}\n"),
            (["-S", "len(cls) == 1", "--invert"], f"{none}\n"),
            (["--sample", "0"], f"{none}\n"),
            (["-S", "cls == '7'"], ""),
            (["-q", "-S", "cls == 'autum'"], ""),
        ):
            assert inside("tarfilter", *line, source, "-o", f"o.{form}", "--force") == (0, b"", said)
    done = inside("tarfilter", "-S", "cls == 'autum'", stdin=make_tar([(f"{n}.cls", b"%d" % n) for n in range(13)]))
    assert (done.status, members_of(done.stdout)) == (0, [])
    assert done.stderr == "tarfilter: no samples selected (of 13)\n"  # 13 values are many
    assert inside("tarfilter", "-S", "cls == '1'", stdin=make_tar([])).stderr == ""


def test_neighbours_with_one_key_are_a_failure(run: Run, tmp_path: Path) -> None:
    """What stood between them goes elsewhere."""
    members = [("a.txt", b"1"), ("b.cls", b"2"), ("a.cls", b"3")]
    done = run("tarfilter", "-q", "-S", "match('a', key)", stdin=make_tar(members))
    assert done.status == 1 and "two samples with the key 'a' side by side" in done.stderr
