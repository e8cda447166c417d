"""tarsort: a stable permutation, whatever the memory; members of one key joined; nothing lost without a word."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tartools.commands.tarsort import tarsort
from tartools.storage import openfiles
from tests.archives import END, entry
from tests.commands.test_conservation import peak_memory
from tests.conftest import Run, has_end, keys_in, make_samples, make_tar, members_of
from tests.properties.test_model import Members
from tests.tiers import also


def labelled(values: list[str], field: str = "cls") -> Members:
    """Return samples k00, k01, ... with these values of *field*, and a second field that tells them apart."""
    return [
        member
        for number, value in enumerate(values)
        for member in ((f"k{number:02d}.{field}", value.encode()), (f"k{number:02d}.txt", b"%d" % number))
    ]


def order_of(archive: bytes, field: str = "cls") -> list[str]:
    """Return the values of *field* in the order of the archive."""
    return [payload.decode() for name, payload in members_of(archive) if name.endswith("." + field)]


def keys_of(archive: bytes) -> list[str]:
    """Return the keys in the order of the archive, each as often as it begins a sample."""
    keys = [name.split(".")[0] for name, _ in members_of(archive)]
    return [key for at, key in enumerate(keys) if at == 0 or key != keys[at - 1]]


@pytest.mark.parametrize("options", [[], ["-r"], ["-s", "cls", "-S", "int"], ["-S", "shuffle"], ["-S", "version"]])
def test_same_bytes_at_any_memory(run: Run, tmp_path: Path, options: list[str]) -> None:
    numbers = random.Random(5).sample(range(2500), 2500)
    archive = make_tar([member for number in numbers for member in make_samples(1, number)])
    (tmp_path / "a.tar").write_bytes(archive)
    out = run("tarsort", *options, "a.tar").output()
    assert sorted(members_of(out)) == make_samples(2500)
    assert run("tarsort", *options, "-M", "64K", "a.tar").stdout == out
    assert run("tarsort", *options, "-M", "1e6", stdin=archive).stdout == out


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ("text", "b a10 a2 B", "B a10 a2 b"),
        ("int", "10 9 -3 +4 0 -20 123456789012345678901234567890", "-20 -3 0 +4 9 10 123456789012345678901234567890"),
        ("int", f"{10**127} 0 {10**126}", f"0 {10**126} {10**127}"),
        ("float", "1e3 2.5 -inf -1 .5 inf -1e-3", "-inf -1 -1e-3 .5 2.5 1e3 inf"),
        ("version", "v10 v9 v9.1 w1 v v09", "v v09 v9 v9.1 v10 w1"),
    ],
)
def test_sort_types(run: Run, kind: str, values: str, expected: str) -> None:
    archive = make_tar(labelled(values.split()))
    assert order_of(run("tarsort", "-s", "cls", "-S", kind, stdin=archive).stdout) == expected.split()
    assert order_of(run("tarsort", "-s", "cls", "-S", kind, "-r", stdin=archive).stdout) == expected.split()[::-1]


def test_equal_numbers_in_different_spelling_are_equal(run: Run) -> None:
    archive = make_tar(labelled(["7", " 007\n", "+7", "-0", "0", "7.0"]))
    done = run("tarsort", "-s", "cls", "-S", "float", "-r", stdin=archive)
    assert order_of(done.stdout, "txt") == ["0", "1", "2", "5", "3", "4"]


def test_a_place_in_json_the_size_and_names_without_case(run: Run) -> None:
    documents = [json.dumps({"size": [width, 1]}) for width in (300, 20, 1000)]
    archive = make_tar(labelled(documents, "Meta.json"))
    done = run("tarsort", "-s", "meta.json:size.0", "-S", "int", stdin=archive)
    assert order_of(done.stdout, "txt") == ["1", "0", "2"]
    run("tarsort", "-s", "meta.json:size.0", "-S", "int", "--verbatim", stdin=archive).failure()
    sizes = make_tar([("a.bin", bytes(20000)), ("b.bin", bytes(3000)), ("c.bin", bytes(100000))])
    assert keys_of(run("tarsort", "-s", "__size__", stdin=sizes).stdout) == ["b", "a", "c"]


def test_shuffle_depends_on_seed_and_position_alone(run: Run, tmp_path: Path) -> None:
    members = make_samples(200)
    (tmp_path / "a.tar").write_bytes(make_tar(members[:100]))
    (tmp_path / "b.tar").write_bytes(make_tar(members[100:]))
    one = run("tarsort", "-S", "shuffle", "--seed", 7, stdin=make_tar(members)).stdout
    assert run("tarsort", "-S", "shuffle", "--seed", 7, "a.tar", "b.tar").stdout == one
    assert sorted(members_of(one)) == members
    assert members_of(one) != members
    assert run("tarsort", "-S", "shuffle", "--seed", 8, "a.tar", "b.tar").stdout != one
    # written down once: the same permutation on any machine and Python
    few = run("tarsort", "-S", "shuffle", "--seed", 7, stdin=make_tar(make_samples(10))).stdout
    assert [int(key) for key in keys_of(few)] == SEED_7


SEED_7 = [9, 1, 8, 5, 2, 3, 4, 6, 0, 7]


def test_missing_values(run: Run) -> None:
    members = [("a.cls", b"2"), ("b.txt", b"-"), ("c.cls", b"1"), ("d.txt", b"-"), ("README", b"?")]
    archive = make_tar(members)
    said = run("tarsort", "-s", "cls", stdin=archive).failure()
    assert "stdin: sample 'b' has no cls to sort by (its fields: txt); --missing" in said
    for options, expected in (
        (["--missing", "first"], "b d README c a"),
        (["--missing", "last"], "c a b d README"),
        (["--missing", "first", "-r"], "b d README a c"),
        (["--missing", "last", "-r", "-u", "first"], "a c b d README"),
    ):
        assert keys_of(run("tarsort", "-s", "cls", *options, stdin=archive).stdout) == expected.split()


@pytest.mark.parametrize(
    ("kind", "value"),
    [("int", "1.5"), ("int", ""), ("int", "1_000"), ("int", "\u0663"), ("float", "nan"), ("float", "0x1p3")],
)
def test_a_value_of_another_type_is_a_failure(run: Run, tmp_path: Path, kind: str, value: str) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar(labelled(["1", value, "2"])))
    said = run("tarsort", "-s", "cls", "-S", kind, "a.tar", "-o", "out.tar").failure()
    assert f"a.tar: sample 'k01': cannot sort by cls as {kind}" in said
    assert os.listdir(tmp_path) == ["a.tar"]


def test_an_input_that_changes_meanwhile_is_a_failure(run: Run, tmp_path: Path) -> None:
    for name in ("a.tar", "b.tar"):
        (tmp_path / name).write_bytes(make_tar([(f"{name[0]}.txt", bytes(5000))]))
    said = run("tarsort", "a.tar", "pipe:touch a.tar; cat b.tar", "-o", "out.tar").failure()
    assert "a.tar: this file changed while it was read" in said
    assert sorted(os.listdir(tmp_path)) == ["a.tar", "b.tar"]
    streamed = run("tarsort", "a.tar", "pipe:cat a.tar > c.tar; mv c.tar a.tar; cat b.tar")
    assert streamed.status == 1
    assert "changed" in streamed.stderr
    assert not has_end(streamed.stdout)
    assert "a.tar: No such file" in run("tarsort", "a.tar", "pipe:rm a.tar; cat b.tar").failure()


def test_temporary_files_go_to_tmpdir_and_leave_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("c.bin", bytes(20_000_000)), ("a.txt", b"1")]))
    (tmp_path / "b.tar").write_bytes(make_tar([("b.txt", b"2")]))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = run("tarsort", "--tmpdir", "scratch", "pipe:cat a.tar", "pipe:ls -l /proc/$PPID/fd >&2; cat b.tar")
    assert (done.status, keys_of(done.stdout), os.listdir(scratch)) == (0, ["a", "b", "c"], [])
    if sys.platform == "linux":
        files = [line for line in done.stderr.splitlines() if " (deleted)" in line]
        assert files
        assert all(f"{scratch}/" in line for line in files)
    said = run("tarsort", "--tmpdir", "nowhere", stdin=make_tar(make_samples(3))).failure()
    assert "nowhere: cannot make a temporary file" in said


def test_members_that_are_not_together_or_get_new_headers(run: Run, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT, pax_headers={"SCHILY.x": "1"}) as archive:
        for name in ("b.jpg", "dir", "b.cls", "a.jpg"):
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE if name == "dir" else tarfile.REGTYPE
            archive.addfile(info)
    out = run("tarsort", "a.tar").output()
    assert [name for name, _ in members_of(out)] == ["a.jpg", "b.jpg", "b.cls"]
    assert out.count(b"SCHILY.x=1") == 3
    assert out == run("tarcat", stdin=out).stdout


def test_the_first_of_several_fields(run: Run) -> None:
    archive = make_tar([("a.cls", b"3"), ("b.label", b"1"), ("b.cls", b"9"), ("c.LABEL", b"2")])
    assert keys_of(run("tarsort", "-s", "label;cls", stdin=archive).stdout) == ["b", "c", "a"]
    assert run("tarsort", "-s", "label;cls", "-r", "-S", "int", stdin=archive).status == 0


def test_pieces_that_come_from_disk_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [(f"k{n * 7919 % 3001:04d}.txt", bytes([n % 251]) * (n % 1500)) for n in range(3001)]
    source, out = tmp_path / "in.tar", tmp_path / "out.tar"
    source.write_bytes(make_tar(samples))
    asked: list[tuple[int, int]] = []
    advise = os.posix_fadvise

    def spy(fd: int, start: int, count: int, advice: int) -> None:
        asked.append((start, count))
        advise(fd, start, count, advice)

    monkeypatch.setattr(os, "posix_fadvise", spy)
    monkeypatch.setattr(openfiles, "COLD_READ_SECONDS", -1)  # whatever comes is too slow
    assert tarsort.main([str(source), "-o", str(out)]) == 0
    assert members_of(out.read_bytes()) == sorted(samples)
    assert 0 < len(asked) < len(samples)  # the first MiB shows that it is


@pytest.mark.parametrize("options", [[], *also(["-u", "first"])])
def test_many_samples_of_one_value_take_no_memory(options: list[str], run: Run, tmp_path: Path) -> None:
    archive = b"".join(entry(b"%06d.cls" % n, b"7") for n in range(60_000)) + END
    archive += bytes(-len(archive) % 10240)
    (tmp_path / "a.tar").write_bytes(archive)
    line = ["tarsort", "-s", "cls", "-M", "64K", "a.tar", "-o", "b.tar", *options]
    assert peak_memory(line, "", tmp_path) < 34e6  # a list of them all takes 16 MB more
    assert ((tmp_path / "b.tar").read_bytes() == archive) is not bool(options)


def test_a_lone_surrogate_is_no_text_to_sort_by(run: Run) -> None:
    done = run(
        "tarsort", "-s", "json:a", stdin=make_tar([("n1.json", b'{"a": "x\\ud800"}'), ("n2.json", b'{"a": "x"}')])
    )
    assert done.status == 1 and not has_end(done.stdout)
    assert re.fullmatch(r"tarsort: stdin: sample 'n1': cannot sort by json:a: .*'\\ud800'.*\n", done.stderr)


LARGE_VALUES = """
import sys, tarfile
for n in range({count}):
    info = tarfile.TarInfo("%06d.txt" % n)
    info.size = 700_000
    value = b"%06d" % (n * 7919 % {count}) + b"x" * 699_994
    sys.stdout.buffer.write(info.tobuf(tarfile.GNU_FORMAT) + value + bytes(416))
sys.stdout.buffer.write(bytes(10240))
"""


@pytest.mark.parametrize("piped", [True, False])
def test_large_values_count_by_their_bytes(piped: bool, tmp_path: Path) -> None:
    """150 samples, of which each sorts by 700 kB."""
    feeder = LARGE_VALUES.format(count=150)
    line = ["tarsort", "-s", "txt", "-M", "2M", "-o", "out.tar"]
    if not piped:
        with open(tmp_path / "in.tar", "wb") as file:
            subprocess.run([sys.executable, "-c", feeder], stdout=file, check=True)
        line, feeder = [*line, "in.tar"], ""
    assert peak_memory(line, feeder, tmp_path) < (2 << 20) + 100_000_000
    with tarfile.open(tmp_path / "out.tar") as archive:
        firsts = [archive.extractfile(info).read(6) for info in archive]  # type: ignore[union-attr]
    assert firsts == [b"%06d" % n for n in range(150)]


def test_members_of_one_key_become_one_sample(run: Run, tmp_path: Path) -> None:
    (tmp_path / "images.tar").write_bytes(make_tar([("b.jpg", b"B"), ("a.jpg", b"A"), ("README", b"1")]))
    (tmp_path / "labels.tar").write_bytes(
        make_tar([("a.cls", b"1"), ("b.cls", b"2"), ("a.txt", b"t"), ("README", b"2"), ("a", b"lone")])
    )
    done = run("tarsort", "-v", "images.tar", "labels.tar")
    assert done.status == 0
    assert [name for name, _ in members_of(done.stdout)] == [
        *("README", "README", "a.jpg", "a.cls", "a.txt", "a", "b.jpg", "b.cls")
    ]
    assert "8 samples in, 5 out, 3 joined," in done.stderr
    other = run("tarsort", "-v", "-s", "txt", "--missing", "last", "images.tar", "labels.tar")
    assert "8 samples in, 8 out," in other.stderr


def test_many_parts_of_one_sample(run: Run, tmp_path: Path) -> None:
    for number in range(150):
        payload = bytes([number]) * (3 if number else 2_000_000)
        (tmp_path / f"{number:03d}.tar").write_bytes(make_tar([(f"a.{number}", payload), (f"b{number:03d}.x", b"1")]))
    done = run("tarsort", "-v", "*.tar")
    assert "300 samples in, 151 out, 149 joined" in done.stderr
    found = members_of(done.stdout)
    assert [name for name, _ in found[:150]] == [f"a.{number}" for number in range(150)]
    assert [len(payload) for _, payload in found[:150]] == [2_000_000] + 149 * [3]


def test_a_field_twice_is_a_failure_unless_one_is_chosen(run: Run, tmp_path: Path) -> None:
    (tmp_path / "one.tar").write_bytes(make_tar([("z.jpg", b"0"), ("a.jpg", b"1"), ("a.cls", b"1"), ("b", b"1")]))
    (tmp_path / "two.tar").write_bytes(make_tar([("a.cls", b"2"), ("a.txt", b"2"), ("b", b"2"), ("z.jpg", b"9")]))
    said = run("tarsort", "one.tar", "two.tar", "-o", "out.tar").failure()
    assert "'a'" in said
    assert "'cls' twice (from one.tar and two.tar)" in said and "--rekey" in said
    assert said.count("\n") == 1
    assert sorted(os.listdir(tmp_path)) == ["one.tar", "two.tar"]
    first = run("tarsort", "-v", "-u", "first", "one.tar", "two.tar")
    assert members_of(first.stdout) == [("a.jpg", b"1"), ("a.cls", b"1"), ("a.txt", b"2"), ("b", b"1"), ("z.jpg", b"0")]
    assert "6 samples in, 3 out, 2 left out, 1 joined" in first.stderr
    last = run("tarsort", "-v", "-u", "last", "one.tar", "two.tar")
    assert members_of(last.stdout) == [("a.jpg", b"1"), ("a.cls", b"2"), ("a.txt", b"2"), ("b", b"2"), ("z.jpg", b"9")]
    assert "6 samples in, 3 out, 2 left out, 1 joined" in last.stderr


def test_a_field_twice_in_one_sample(run: Run) -> None:
    archive = make_tar([("a.jpg", b"1"), ("a.jpg", b"2"), ("a.cls", b"3")])
    assert "'jpg' twice (from stdin)" in run("tarsort", stdin=archive).failure()
    assert members_of(run("tarsort", "-u", "last", stdin=archive).stdout) == [("a.jpg", b"2"), ("a.cls", b"3")]
    assert members_of(run("tarsort", "-S", "shuffle", stdin=archive).stdout) == members_of(archive)


def test_keys_as_numbers(run: Run, tmp_path: Path) -> None:
    archive = make_tar([("10.x", b"1"), ("9.x", b"2"), ("09.x", b"3"), ("10.y", b"4")])
    done = run("tarsort", "-S", "int", stdin=archive)
    assert [name for name, _ in members_of(done.stdout)] == ["9.x", "09.x", "10.x", "10.y"]
    (tmp_path / "a.tar").write_bytes(archive)
    assert run("tarsort", "-S", "int", "a.tar").output() == done.stdout
    kept = run("tarsort", "-v", "-S", "int", "-u", "first", stdin=archive)
    assert [name for name, _ in members_of(kept.stdout)] == ["9.x", "10.x", "10.y"]
    assert "4 samples in, 2 out, 1 left out, 1 joined" in kept.stderr


def test_verbatim_values_of_a_table_are_those_of_its_shards(run: Run, tmp_path: Path) -> None:
    """A column of a table lacks the final newline, by which values differ with --verbatim: the samples are read."""
    (tmp_path / "a.tar").write_bytes(make_tar([("a.txt", b"x\n"), ("b.txt", b"x"), ("c.txt", b"x\n"), ("d.txt", b"w")]))
    run("tarindex", "-f", "txt", "a.tar", "-o", "a.parquet").output()
    for options, keys in (
        (["--verbatim"], "dbac"),
        ([], "dabc"),
        (["--verbatim", "-u", "first"], "dba"),
        (["-u", "first"], "da"),
    ):
        for name in ("a.tar", "a.parquet"):
            assert keys_in(run("tarsort", "-s", "txt", *options, name).output()) == [*keys], (options, name)
