"""tarsplit: shards of bounded size, none of them torn, none of them mixed up with older ones."""

from __future__ import annotations

import gzip
import os
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from tests.conftest import Run, has_end, make_samples, make_tar, members_of

SAMPLES = make_samples(100)
ARCHIVE = make_tar(SAMPLES)


def listed(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def joined(folder: Path, names: list[str]) -> list[tuple[str, bytes]]:
    return [member for name in names for member in members_of((folder / name).read_bytes())]


@pytest.mark.parametrize("size", [20_480, 51_200, 60_000, 300_000])
def test_s_is_never_exceeded(run: Run, tmp_path: Path, size: int) -> None:
    done = run("tarsplit", "-s", size, "-o", "a", stdin=ARCHIVE)
    names = listed(tmp_path)
    sizes = [(tmp_path / name).stat().st_size for name in names]
    assert done.status == 0 and joined(tmp_path, names) == SAMPLES and len(names) > 1
    assert max(sizes) <= size
    for first, second in pairwise(names):  # and no shard could have taken one sample more
        more = members_of((tmp_path / first).read_bytes()) + members_of((tmp_path / second).read_bytes())[:2]
        assert len(make_tar(more)) > size


def test_one_sample_larger_than_s_gets_a_shard_of_its_own(run: Run, tmp_path: Path) -> None:
    archive = make_tar([("a.x", b"1"), ("b.x", bytes(100_000)), ("c.x", b"3")])
    assert run("tarsplit", "-s", "20K", "-o", "a", stdin=archive).status == 0
    assert [len(members_of((tmp_path / n).read_bytes())) for n in listed(tmp_path)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("options", "first"),
    [
        (["-o", "imagenet_train"], "imagenet_train-000000.tar"),
        (["-o", "imagenet_train", "-z"], "imagenet_train-000000.tgz"),
        (["-o", "train.tar.zst"], "train-000000.tar.zst"),
        (["-o", "d/"], "d/000000.tar"),
        (["-o", "a%03d.tar"], "a000.tar"),
        (["-o", "a-{shard:02d}.tgz"], "a-00.tgz"),
        (["-o", "a-{shard}.tar", "--start", "7"], "a-7.tar"),
        (["-o", "file:a"], "file:a-000000.tar"),
    ],
)
def test_names(run: Run, tmp_path: Path, options: list[str], first: str) -> None:
    (tmp_path / "d").mkdir()
    assert run("tarsplit", *options, stdin=ARCHIVE).output().decode() == first + "\n"
    assert run("tarcat", first).stdout == ARCHIVE


def test_maxshards_stops_reading(run: Run, shell: Run, tmp_path: Path) -> None:
    damaged = ARCHIVE[:60_000] + b"garbage" * 1000
    assert run("tarsplit", "-n", 10, "--max-shards", 2, "-o", "a", stdin=damaged).stdout.split() == [
        b"a-000000.tar",
        b"a-000001.tar",
    ]
    (tmp_path / "x.tar").write_bytes(ARCHIVE)
    shell("tarsplit -n 10 --max-shards 1 -o b 'pipe:cat x.tar; yes'").output()
    assert run("tarsplit", "--max-shards", 0, "-o", "c", stdin=ARCHIVE).stdout == b""


def test_maxshards_with_a_size_accounts_for_the_sample_that_did_not_fit(run: Run) -> None:
    done = run("tarsplit", "-v", "-s", 20_480, "--max-shards", 1, "-o", "a", stdin=ARCHIVE)
    assert done.status == 0 and " 1 left out" in done.stderr


def test_shards_of_an_earlier_run_stop_it_before_reading(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a-000007.tar").write_bytes(b"old")
    (tmp_path / "a-7.tar").write_bytes(b"no name of ours")
    done = run("tarsplit", "-n", 50, "-o", "a", "nosuch.tar")
    assert (done.status, done.stderr) == (1, "tarsplit: a-000007.tar: already exists; --force replaces it\n")
    done = run("tarsplit", "-n", 50, "-o", "a", "--force", stdin=ARCHIVE)
    assert (done.status, done.stderr) == (0, removed("a-000007.tar"))
    assert listed(tmp_path) == ["a-000000.tar", "a-000001.tar", "a-7.tar"]
    done = run("tarsplit", "-o", "a", stdin=ARCHIVE, env={"TARTOOLS_FORCE": "1"})
    assert (done.status, done.stderr) == (0, removed("a-000001.tar"))


def removed(*names: str) -> str:
    return "".join(f"tarsplit: {name}: removed, because this run did not write it\n" for name in names)


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        (["-n", 50], []),
        (["-n", 50, "--start", 3], [0, 1, 2]),
        (["-n", 10, "--max-shards", 2], []),
        (["-n", 50, "--max-shards", 3, "--start", 3], [0, 1, 2, 6, 7, 1_000_000]),
        (["-n", 50, "--max-shards", 4, "--start", 0], [4, 5, 6, 7, 1_000_000]),
        (["--shards", 2], []),
        (["-n", 50, "--post", "test -e a-000007.tar && test -e a-1000000.tar"], []),
    ],
)
def test_force_replaces_the_set(run: Run, tmp_path: Path, options: list[object], kept: list[int]) -> None:
    others = ["a-0000009.tar", "a-7.tar", "a-x-000007.tar", "a-000007.tgz", "b-000007.tar", "a-000007.tar.zst"]
    old = [*range(8), 1_000_000]
    for name in (*others, *(f"a-{number:06d}.tar" for number in old)):
        (tmp_path / name).write_bytes(b"old")
    (tmp_path / "a-000009.tar").mkdir()
    os.mkfifo(tmp_path / "a-000010.tar")
    (tmp_path / "x.tar").write_bytes(ARCHIVE)
    done = run("tarsplit", "--force", "-o", "a", *options, "x.tar")
    new = done.stdout.decode().split()
    assert done.status == 0 and joined(tmp_path, new) == SAMPLES[: 40 if 10 in options else 200] and len(new) == 2
    gone = [name for number in old if number not in kept and (name := f"a-{number:06d}.tar") not in new]
    assert done.stderr == removed(*gone) and gone
    stay = [*others, "a-000009.tar", "a-000010.tar", "x.tar", *(f"a-{number:06d}.tar" for number in kept)]
    assert listed(tmp_path) == sorted([*new, *stay])
    assert all((tmp_path / f"a-{number:06d}.tar").read_bytes() == b"old" for number in kept)


@pytest.mark.parametrize(
    ("options", "archive"),
    [(["-n", 10], ARCHIVE[:100_000]), (["-n", 10, "--post", "test {} != a-000002.tar"], ARCHIVE)],
)
def test_a_failed_run_removes_no_old_shards(run: Run, tmp_path: Path, options: list[object], archive: bytes) -> None:
    names = [f"a-{number:06d}.tar" for number in range(20)]
    for name in names:
        (tmp_path / name).write_bytes(b"old")
    done = run("tarsplit", "--force", "-o", "a", *options, stdin=archive)
    assert done.status == 1 and done.stdout and "removed" not in done.stderr
    assert listed(tmp_path) == names and (tmp_path / names[-1]).read_bytes() == b"old"


def test_an_input_without_samples_replaces_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a-000003.tar").write_bytes(b"old")
    assert run("tarsplit", "--force", "-o", "a", stdin=make_tar([])).failure() == (
        "tarsplit: no samples in the input; no shards written\n"
        "tarsplit: a-000003.tar: is of an earlier run, and stays: nothing was written to replace it\n"
    )
    assert run("tarsplit", "--force", "-o", "a", "--max-shards", 0, stdin=ARCHIVE) == (0, b"", "")
    assert listed(tmp_path) == ["a-000003.tar"]


def test_an_old_shard_that_cannot_be_removed_is_named(run: Run, tmp_path: Path) -> None:
    for name in ("d0", "d1", "d2", "d3"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.tar").write_bytes(b"old")
    post = "rm d1/x.tar d3/x.tar && mkdir d1/x.tar"  # what has gone by itself is fine
    done = run("tarsplit", "--force", "-o", "d%d/x.tar", "--post", post, stdin=ARCHIVE)
    first, *rest = done.stderr.splitlines(keepends=True)
    assert first.startswith("tarsplit: d1/x.tar: is of an earlier run, and stays: ")
    assert (done.status, "".join(rest)) == (1, removed("d2/x.tar", "d3/x.tar"))


@pytest.mark.parametrize(("first", "then", "now"), [(6, 11, "more"), (11, 6, "fewer")])
def test_an_input_that_changes_between_its_two_reads(run: Run, tmp_path: Path, first: int, then: int, now: str) -> None:
    for count in (first, then):
        (tmp_path / f"{count}.tar").write_bytes(make_tar(make_samples(count)))
    command = f"if test -e flag; then cat {then}.tar; else touch flag; cat {first}.tar; fi; : {{}}"
    done = run("tarsplit", "--shards", 3, "-o", "s", "foo://x", env={"GOPEN_FOO": command})
    why = f"the input has changed: there were {first} samples when they were counted, now {now}"
    assert (done.status, done.stderr) == (1, f"tarsplit: {why}\n")
    assert len(list(tmp_path.glob("s-*.tar"))) <= 3


def test_shards_needs_enough_samples(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(ARCHIVE)
    done = run("tarsplit", "--shards", 101, "-o", "a", "x.tar")
    assert (done.status, done.stderr) == (1, "tarsplit: 100 samples are too few for 101 shards\n")
    assert listed(tmp_path) == ["x.tar"]


def test_shards_of_inputs_that_can_be_read_once(run: Run, shell: Run, tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(ARCHIVE)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "x.tgz").write_bytes(gzip.compress(ARCHIVE))
    lines = [
        "cat x.tar | tarsplit -v --shards 3 -o a/",
        "tarsplit -v --shards 3 -o a/ < x.tar",
        "tarsplit -v --shards 3 -o a/ < x.tgz",
        "cat x.tgz | tarsplit -v --shards 3 -o a/ --tmpdir tmp",
        "tarsplit -v --shards 3 -o a/ 'pipe:cat x.tar' --tmpdir tmp",
        "(head -c 512 > /dev/null; tarsplit -v --shards 3 -o a/) < junk.tar",
    ]
    (tmp_path / "junk.tar").write_bytes(bytes(512) + ARCHIVE)
    for line in lines:
        (tmp_path / "a").mkdir()
        done = shell(line)
        names = [f"a/00000{number}.tar" for number in range(3)]
        assert (done.status, done.stdout.decode().split()) == (0, names), done.stderr
        assert joined(tmp_path, names) == SAMPLES and [p.name for p in (tmp_path / "tmp").iterdir()] == []
        assert [len(members_of((tmp_path / name).read_bytes())) for name in names] == [68, 66, 66]
        assert done.stderr.startswith("tarsplit: 100 samples in, 100 out, ")
        shutil.rmtree(tmp_path / "a")


def test_shards_of_several_inputs_of_both_kinds(shell: Run, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.tar").write_bytes(make_tar(SAMPLES[60 * number : 60 * number + 60]))
    out = shell("cat 1.tar | tarsplit --shards 4 -o a 0.tar - 'pipe:cat 2.tar'").output()
    assert joined(tmp_path, out.decode().split()) == SAMPLES[:180]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("head -c 50000 x.tar | tarsplit --shards 2 -o a", "tarsplit: stdin: at byte 50000: "),
        ("tarsplit --shards 2 -o a 'pipe:cat x.tar; exit 3'", "tarsplit: pipe:cat … x.tar: the command ended"),
        ("cat x.tar | tarsplit --shards 2 -o a --tmpdir nosuch", "tarsplit: nosuch: cannot make a temporary file"),
    ],
)
def test_nothing_is_written_of_a_copy_that_fails(line: str, message: str, shell: Run, tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(ARCHIVE)
    assert shell(line).failure(lines=1).startswith(message)
    assert listed(tmp_path) == ["x.tar"]


def test_post_runs_for_each_shard_with_its_name_quoted(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "it's a;dir"
    folder.mkdir()
    done = run("tarsplit", "-n", 50, "-o", f"{folder.name}/", "--post", "echo '{}' {}; cat {} >> all", stdin=ARCHIVE)
    names = [f"{folder.name}/00000{k}.tar" for k in range(2)]
    assert (done.status, done.stdout.decode().splitlines()) == (0, names)
    assert done.stderr.splitlines() == [f"{name} {name}" for name in names]
    assert (tmp_path / "all").read_bytes() == b"".join((tmp_path / name).read_bytes() for name in names)


def test_a_failing_post_stops_before_its_shard_is_named(run: Run, tmp_path: Path) -> None:
    done = run("tarsplit", "-n", 30, "-o", "a", "--post", "test {} != a-000001.tar", "--remove", stdin=ARCHIVE)
    assert (done.status, done.stdout) == (1, b"a-000000.tar\n")
    assert done.stderr.startswith("tarsplit: a-000001.tar: the command for this shard ended with status 1")
    assert listed(tmp_path) == ["a-000001.tar"]


@pytest.mark.parametrize(
    ("post", "why"),
    [("> d/p-000001.tar", "d/p-000001.tar: already exists; --force replaces it"), ("rm -r d", "No such file")],
)
@pytest.mark.parametrize("count", [10, 40])  # shards are committed while others are written, and at the end
def test_a_shard_that_cannot_get_its_name(run: Run, tmp_path: Path, post: str, why: str, count: int) -> None:
    command = f"test {{}} != d/p-000000.tar || {post}"
    done = run("tarsplit", "-n", count, "-o", "d/p", "--post", command, stdin=ARCHIVE)
    assert (done.status, done.stdout) == (1, b"d/p-000000.tar\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith("tarsplit: d/p-000001.tar: ") and why in line
    assert [path.name for path in tmp_path.glob("d/*")] in ([], sorted(["p-000000.tar", "p-000001.tar"]))
    assert not any(path.stat().st_size for path in tmp_path.glob("d/p-000001.tar"))


def test_pipes_can_be_shards(run: Run, tmp_path: Path) -> None:
    done = run("tarsplit", "-n", 50, "-o", "pipe:gzip > a%d.tgz", stdin=ARCHIVE)
    assert (done.status, done.stdout) == (0, b"pipe:gzip > a0.tgz\npipe:gzip > a1.tgz\n")
    parts = [gzip.decompress((tmp_path / name).read_bytes()) for name in ("a0.tgz", "a1.tgz")]
    assert all(has_end(part) for part in parts)  # compressed once, not twice
    assert members_of(parts[0]) + members_of(parts[1]) == SAMPLES


@pytest.mark.parametrize(
    ("pattern", "there"),
    [("file:a", "a-000007.tar"), ("d%d/x.tar", "d7/x.tar"), ("{shard:02d}x/y/z.tar", "07x/y/z.tar")],
)
def test_every_kind_of_pattern_sees_older_shards(run: Run, tmp_path: Path, pattern: str, there: str) -> None:
    old = tmp_path / there
    old.parent.mkdir(parents=True, exist_ok=True)
    old.write_bytes(ARCHIVE)
    assert "already exists" in run("tarsplit", "-n", 50, "-o", pattern, stdin=ARCHIVE).failure()
    done = run("tarsplit", "--force", "-n", 5, "--start", 7, "-o", pattern, there)
    assert done.status == 1 and "also the input" in done.stderr and old.read_bytes() == ARCHIVE
