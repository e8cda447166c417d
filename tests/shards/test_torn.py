"""Samples whose members are apart in a shard: every command that reads says so once, and goes on as before."""

from __future__ import annotations

import gzip
import json
import os
import warnings
from pathlib import Path

import pytest

import tartools
from tartools.errors import shown
from tests.archives import END, entry
from tests.commands.test_tarstat import cut_up
from tests.conftest import Run, make_tar, members_of
from tests.tiers import by_turns

TORN = [("1.jpg", b"a"), ("2.jpg", b"b"), ("1.cls", b"5"), ("2.cls", b"6")]
WHAT = (
    ": {}: the key {!r} comes back after other samples, so its members are read as separate samples; "
    "tarsort, or tar --sort=name, brings the members of a key together\n"
)
COMMANDS = [
    ["tarcat"],
    ["tarcat", "-c", "3"],
    ["tarcat", "--shuffle", "2", "--seed", "1"],
    ["tarcat", "--interleave", "2"],
    ["tarsplit", "-n", "1", "-o", "part-"],
    ["tarsplit", "--shards", "2", "-o", "part-"],
    ["tarsort", "-S", "shuffle", "--seed", "4"],
    ["tarsort", "-s", "__size__"],
    ["tarproc", "-c", "true"],
    ["tarpcat"],
    ["tarpcat", "--unordered"],
    ["tarshow", "-x", "jpg", "--html", "page.html"],
    ["tarshow", "-x", "jpg"],
    ["tar2tsv"],
    ["tar2tsv", "-c", "4"],
    ["tarfirst"],
    ["tarstat"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_each_command_says_it_once_and_ends_well(run: Run, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "torn.tar").write_bytes(make_tar(TORN))
    done = run(*command, "torn.tar")
    assert (done.status, done.stderr) == (0, command[0] + WHAT.format("torn.tar", "1"))
    if command[0] != "tarsplit" and "--html" not in command:
        run(*command, "-q", "torn.tar").output()


def test_every_shard_may_be_the_one_and_only_the_first_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sound.tar").write_bytes(make_tar([("1.jpg", b""), ("1.cls", b""), ("2.jpg", b"")]))
    (tmp_path / "torn.tar").write_bytes(make_tar([("3.jpg", b""), ("9 x.jpg", b""), ("4.jpg", b""), ("9 x.cls", b"")]))
    (tmp_path / "also.tar").write_bytes(make_tar(TORN))
    expected = WHAT.format("torn.tar", "9 x")
    for command in (["tarcat"], ["tarpcat"], ["tarpcat", "-p", "1", "--unordered"], ["tarstat"], ["tar2tsv"]):
        done = run(*command, "sound.tar", "torn.tar", "also.tar")
        assert (done.status, done.stderr) == (0, command[0] + expected)
    done = run("tarcat", "sound.tar", "also.tar", "-o", "both.tar", "--rekey", "{index:03d}")
    assert (done.status, done.stderr) == (0, "tarcat" + WHAT.format("also.tar", "1"))  # its keys are in sound.tar too
    assert len(members_of((tmp_path / "both.tar").read_bytes())) == 7


@pytest.mark.parametrize("command", ["tarcat", "tarpcat", "tarsplit", "tar2tsv", "tarstat"])
def test_pipes_and_compressed_shards(run: Run, tmp_path: Path, command: str) -> None:
    # 6 MB of payloads that do not shrink: beyond 4 MiB a forked process decompresses
    filler = [(f"f{n}.bin", os.urandom(1 << 20)) for n in range(6)]
    torn = gzip.compress(make_tar([TORN[0], *filler, *TORN[1:]]), 1)
    (tmp_path / "torn.tgz").write_bytes(torn)
    options = ["-n", "99", "-o", "part-", "--force"] if command == "tarsplit" else []
    for name, url, stdin in (
        ("torn.tgz", "torn.tgz", b""),
        ("stdin", "-", torn),
        (shown("pipe:cat torn.tgz"), "pipe:cat torn.tgz", b""),
    ):
        done = run(command, *options, url, stdin=stdin)
        assert (done.status, done.stderr) == (0, command + WHAT.format(name, "1")), name


def test_who_joins_them_says_nothing(run: Run) -> None:
    out = run("tarsort", stdin=make_tar(TORN)).output()
    assert [name for name, _ in members_of(out)] == ["1.jpg", "1.cls", "2.jpg", "2.cls"]


def test_what_is_sound_is_passed_without_a_word(run: Run) -> None:
    for members in (
        [("b.jpg", b""), ("b.cls", b""), ("a.jpg", b""), ("c.jpg", b"")],  # not in order of keys
        [("a.jpg", b""), ("a/1.jpg", b""), ("aa.jpg", b""), ("A.jpg", b""), ("README", b"")],
    ):
        done = run("tarcat", stdin=make_tar(members))
        assert (done.status, done.stderr, members_of(done.stdout)) == (0, "", members)
    same = make_tar([("a.jpg", b"")]) + make_tar([("a.cls", b"")])  # two archives in one stream: nothing between
    assert run("tarstat", stdin=same).stderr == ""


@pytest.mark.parametrize("keys", ["ascending", "others"])
@pytest.mark.parametrize("count", [9_999, 10_000])
def test_the_first_ten_thousand_samples_are_looked_at(run: Run, keys: str, count: int) -> None:
    numbers = list(range(count) if keys == "ascending" else range(count, 0, -1))
    first = f"{numbers[0]:06d}"
    data = b"".join(entry(b"%06d.cls" % n, b"") for n in numbers) + entry(first.encode() + b".txt", b"") + END
    done = run("tarcat", stdin=data)
    assert (done.status, len(members_of(done.stdout))) == (0, count + 1)
    assert done.stderr == ("tarcat" + WHAT.format("stdin", first) if count < 10_000 else "")


PART = 256 << 10  # bytes of a piece


@by_turns("apart")
@pytest.mark.parametrize("apart", [30, 1_500])
@pytest.mark.parametrize("command", [["tar2tsv"], ["tarstat"], ["tarsort", "-s", "__size__"]], ids=" ".join)
def test_processes_that_read_pieces_say_the_same(run: Run, tmp_path: Path, command: list[str], apart: int) -> None:
    keys = [b"%06d" % n for n in range(3_000)]
    members = [entry(key + b".cls", b"5") for key in keys]
    members.insert(40 + apart, entry(keys[40] + b".txt", b""))  # in the same piece, or many pieces later
    (tmp_path / "0.tar").write_bytes(b"".join(members[:20]) + END)
    (tmp_path / "1.tar").write_bytes(b"".join(members) + END)
    (tmp_path / "2.tar").write_bytes(b"".join(entry(b"%d.x" % (n % 9), b"") for n in range(50)) + END)
    name, *arguments = command
    status, out, said, forks = cut_up(tmp_path, PART, *arguments, "0.tar", "1.tar", "2.tar", command=name)
    assert (status, out, f"{said[0]}\n") == run(*command, "0.tar", "1.tar", "2.tar", real=True)
    assert said == [name + WHAT.format("1.tar", "000040").rstrip("\n")]
    assert forks > 8, "what comes back is no reason to read with one process"


def test_pieces_behind_the_first_ten_thousand_samples(tmp_path: Path) -> None:
    keys = [b"%06d" % n for n in range(10_000)]
    late = [b"x", b"y", b"x", b"z", keys[0]]
    (tmp_path / "1.tar").write_bytes(b"".join(entry(key + b".cls", b"5") for key in (*keys, *late)) + END)
    status, out, said, forks = cut_up(tmp_path, PART, "--json", "1.tar")
    assert (status, json.loads(out)["samples"], said) == (0, len(keys) + len(late), [])
    assert forks > 8


def test_programs_get_a_python_warning(tmp_path: Path) -> None:
    (tmp_path / "torn.tar").write_bytes(make_tar(TORN))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [sample.key for sample in tartools.read(str(tmp_path / "torn.tar"))] == ["1", "2", "1", "2"]
    [warning] = caught
    assert warning.category is UserWarning
    assert f": {warning.message}\n" == WHAT.format(tmp_path / "torn.tar", "1")


ELSEWHERE = (
    "; other members of this key are elsewhere in the shard: "
    "tarsort, or tar --sort=name, brings the members of a key together\n"
)


@pytest.mark.parametrize("apart", [1, 5_000])  # in the same MiB, or 7 MiB later
def test_a_missing_value_that_is_elsewhere(run: Run, tmp_path: Path, apart: int) -> None:
    others = b"".join(entry(b"f%05d.cls" % n, b"6" * 600) for n in range(apart))
    torn = entry(b"1.jpg", b"") + others + entry(b"1.cls", b"5") + END
    (tmp_path / "torn.tar").write_bytes(torn)
    failed = "tar2tsv: {}: sample '1' has no value for 'cls'; its fields are: jpg"
    for options in ([], ["-c", "1"]):
        done = run("tar2tsv", "-f", "cls", *options, "torn.tar")
        expected = "tar2tsv" + WHAT.format("torn.tar", "1") + failed.format("torn.tar") + ELSEWHERE
        assert (done.status, done.stderr) == (1, expected)
    done = run("tar2tsv", "-f", "jpg", "torn.tar")  # the first that lacks it is another one
    assert done.stderr.endswith(
        "sample 'f00000' has no value for 'jpg'; its fields are: cls (--fill STR writes STR instead)\n"
    )
    if apart == 1:  # what a pipe has brought is looked at, and it is not waited for more
        done = run("tar2tsv", "-f", "cls", stdin=torn)
        expected = "tar2tsv" + WHAT.format("stdin", "1") + failed.format("stdin") + ELSEWHERE
        assert (done.status, done.stderr) == (1, expected)


def test_a_missing_value_that_was_before(run: Run, tmp_path: Path) -> None:
    (tmp_path / "torn.tar").write_bytes(make_tar(TORN))
    done = run("tar2tsv", "-f", "jpg", "torn.tar")
    assert (done.status, done.stdout) == (1, b"__key__\tjpg\n1\ta\n2\tb\n")
    assert done.stderr.endswith("sample '1' has no value for 'jpg'; its fields are: cls" + ELSEWHERE)


def test_a_missing_value_that_is_nowhere(run: Run, tmp_path: Path) -> None:
    (tmp_path / "lacks.tar").write_bytes(make_tar([("1.jpg", b"a"), ("2.jpg", b"b"), ("2.cls", b"6")]))
    (tmp_path / "more.tar").write_bytes(make_tar([("1.cls", b"5")]))  # another shard
    (tmp_path / "cut.tar").write_bytes(make_tar([("1.jpg", b"a"), ("2.jpg", b"b" * 9999)])[:9000])
    hint = "sample '1' has no value for 'cls'; its fields are: jpg (--fill STR writes STR instead)\n"
    assert run("tar2tsv", "-f", "cls", "lacks.tar", "more.tar").stderr == "tar2tsv: lacks.tar: " + hint
    assert run("tar2tsv", "-f", "cls", "cut.tar").stderr == "tar2tsv: cut.tar: " + hint


def test_tarfirst_names_a_key_that_is_apart(run: Run) -> None:
    apart = "the key '1' comes back in stdin, so its members are apart: tarsort, or tar --sort=name, brings"
    for options in (
        ["-S", "int(cls) == 5", "-f", "jpg"],
        ["-k", "1", "-f", "txt"],
        ["-S", "has('cls') and has('jpg')"],
    ):
        assert apart in run("tarfirst", *options, stdin=make_tar(TORN)).failure().splitlines()[1]
    done = run("tarfirst", "-k", "3", "-f", "jpg", stdin=make_tar([*TORN, ("3.cls", b"")]))
    assert "apart" not in done.stderr.splitlines()[1]  # not the reason


def test_archives_joined_in_one_file_are_looked_at_apart(run: Run, tmp_path: Path) -> None:
    """`cat a.tar a.tar`: the keys of the second archive are those of the first; so in workers, for a large file."""
    one = make_tar([(f"{n}.txt", b"x" * 9000) for n in range(4000)])
    (tmp_path / "a.tar").write_bytes(one + one)
    for line in (("tarcat", "-c", "9"), ("tarcat", "-o", "b.tar"), ("tarstat", "-p", "2")):
        assert run(*line, "a.tar").stderr == ""
