"""tarsplit: shards of bounded size, none of them torn, none of them mixed up with older ones."""

from __future__ import annotations

import gzip
import os
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


def test_n_gives_shards_of_n_samples_and_prints_their_names(run: Run, tmp_path: Path) -> None:
    done = run("tarsplit", "-v", "-n", 30, "-o", "a", stdin=ARCHIVE)
    names = [f"a-{k:06d}.tar" for k in range(4)]
    assert (done.status, done.stdout.decode().split()) == (0, names)
    assert listed(tmp_path) == names and joined(tmp_path, names) == SAMPLES
    assert [len(members_of((tmp_path / name).read_bytes())) for name in names] == [60, 60, 60, 20]
    assert all(has_end((tmp_path / name).read_bytes()) for name in names)
    assert done.stderr.startswith("tarsplit: 100 samples in, 100 out, ")


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


def test_n_and_s_together(run: Run, tmp_path: Path) -> None:
    assert run("tarsplit", "-n", 10, "-s", 20_480, "-o", "a", stdin=ARCHIVE).status == 0
    found = [members_of((tmp_path / name).read_bytes()) for name in listed(tmp_path)]
    assert [m for members in found for m in members] == SAMPLES
    assert max(map(len, found)) <= 20 and max((tmp_path / n).stat().st_size for n in listed(tmp_path)) <= 20_480


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
    done = run("tarsplit", *options, stdin=ARCHIVE)
    assert (done.status, done.stdout.decode()) == (0, first + "\n")
    assert run("tarcat", first).stdout == ARCHIVE


@pytest.mark.parametrize("options", [["-o", "a.tar", "-z"], ["-o", "a%d%d.tar"], [], ["-o", "a", "--remove"]])
def test_usage_errors(run: Run, tmp_path: Path, options: list[str]) -> None:
    done = run("tarsplit", *options, stdin=ARCHIVE)
    assert done.status == 2 and done.stderr.count("\n") == 1 and listed(tmp_path) == []


def test_maxshards_stops_reading(run: Run, shell: Run, tmp_path: Path) -> None:
    damaged = ARCHIVE[:60_000] + b"garbage" * 1000
    assert run("tarsplit", "-n", 10, "--maxshards", 2, "-o", "a", stdin=damaged).stdout.split() == [
        b"a-000000.tar",
        b"a-000001.tar",
    ]
    (tmp_path / "x.tar").write_bytes(ARCHIVE)
    done = shell("tarsplit -n 10 --maxshards 1 -o b 'pipe:cat x.tar; yes'")
    assert (done.status, done.stderr) == (0, "")
    assert run("tarsplit", "--maxshards", 0, "-o", "c", stdin=ARCHIVE).stdout == b""


def test_maxshards_with_a_size_accounts_for_the_sample_that_did_not_fit(run: Run) -> None:
    done = run("tarsplit", "-v", "-s", 20_480, "--maxshards", 1, "-o", "a", stdin=ARCHIVE)
    assert done.status == 0 and " 1 left out" in done.stderr


def test_shards_of_an_earlier_run_stop_it_before_reading(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a-000007.tar").write_bytes(b"old")
    (tmp_path / "a-7.tar").write_bytes(b"no name of ours")
    done = run("tarsplit", "-n", 50, "-o", "a", "nosuch.tar")
    assert (done.status, done.stderr) == (1, "tarsplit: a-000007.tar: already exists; --force replaces it\n")
    done = run("tarsplit", "-n", 50, "-o", "a", "--force", stdin=ARCHIVE)
    assert (done.status, done.stderr) == (0, "tarsplit: left of an earlier run: a-000007.tar\n")
    assert listed(tmp_path) == ["a-000000.tar", "a-000001.tar", "a-000007.tar", "a-7.tar"]
    assert run("tarsplit", "-o", "a", stdin=ARCHIVE, env={"TARTOOLS_FORCE": "1"}).status == 0


def test_an_input_is_never_an_output(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a-000000.tar").write_bytes(ARCHIVE)
    done = run("tarsplit", "--force", "-n", 50, "-o", "a", "a-000000.tar")
    assert done.status == 1 and "also the input" in done.stderr
    assert (tmp_path / "a-000000.tar").read_bytes() == ARCHIVE


@pytest.mark.parametrize("shards", [1, 3, 7, 100])
def test_shards_differ_by_one_sample_at_most(run: Run, tmp_path: Path, shards: int) -> None:
    (tmp_path / "x.tar").write_bytes(ARCHIVE)
    assert run("tarsplit", "--shards", shards, "-o", "a", "x.tar").status == 0
    names = [name for name in listed(tmp_path) if name != "x.tar"]
    counts = [len(members_of((tmp_path / name).read_bytes())) // 2 for name in names]
    assert len(counts) == shards and max(counts) - min(counts) <= 1 and joined(tmp_path, names) == SAMPLES


@pytest.mark.parametrize(("first", "then", "now"), [(6, 11, "more"), (11, 6, "fewer")])
def test_an_input_that_changes_between_its_two_reads(run: Run, tmp_path: Path, first: int, then: int, now: str) -> None:
    for count in (first, then):
        (tmp_path / f"{count}.tar").write_bytes(make_tar(make_samples(count)))
    command = f"if test -e flag; then cat {then}.tar; else touch flag; cat {first}.tar; fi; : {{}}"
    done = run("tarsplit", "--shards", 3, "-o", "s", "foo://x", env={"GOPEN_FOO": command})
    why = f"the input has changed: there were {first} samples when they were counted, now {now}"
    assert (done.status, done.stderr) == (1, f"tarsplit: {why}\n")
    assert len(list(tmp_path.glob("s-*.tar"))) <= 3


def test_shards_needs_inputs_that_can_be_read_twice_and_enough_samples(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(ARCHIVE)
    assert run("tarsplit", "--shards", 2, "-o", "a", stdin=ARCHIVE).status == 2
    assert run("tarsplit", "--shards", 2, "-o", "a", "pipe:cat x.tar").status == 2
    done = run("tarsplit", "--shards", 101, "-o", "a", "x.tar")
    assert (done.status, done.stderr) == (1, "tarsplit: 100 samples are too few for 101 shards\n")
    assert listed(tmp_path) == ["x.tar"]


def test_post_runs_for_each_shard_with_its_name_quoted(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "it's a;dir"
    folder.mkdir()
    done = run("tarsplit", "-n", 50, "-o", f"{folder.name}/", "--post", "echo '{}' {}; cat {} >> all", stdin=ARCHIVE)
    names = [f"{folder.name}/00000{k}.tar" for k in range(2)]
    assert (done.status, done.stdout.decode().splitlines()) == (0, names)
    assert done.stderr.splitlines() == [f"{name} {name}" for name in names]
    assert (tmp_path / "all").read_bytes() == b"".join((tmp_path / name).read_bytes() for name in names)


def test_remove_follows_a_post_that_succeeded(run: Run, tmp_path: Path) -> None:
    done = run("tarsplit", "-n", 50, "-o", "a", "--post", "cat {} >> all", "--remove", stdin=ARCHIVE)
    assert (done.status, done.stdout.split()) == (0, [b"a-000000.tar", b"a-000001.tar"])
    assert listed(tmp_path) == ["all"]


def test_a_failing_post_stops_before_its_shard_is_named(run: Run, tmp_path: Path) -> None:
    done = run("tarsplit", "-n", 30, "-o", "a", "--post", "test {} != a-000001.tar", "--remove", stdin=ARCHIVE)
    assert (done.status, done.stdout) == (1, b"a-000000.tar\n")
    assert done.stderr.startswith("tarsplit: a-000001.tar: the command for this shard ended with status 1")
    assert listed(tmp_path) == ["a-000001.tar"]


def test_damage_leaves_only_whole_shards_that_were_named(run: Run, tmp_path: Path) -> None:
    done = run("tarsplit", "-n", 10, "-o", "a", stdin=ARCHIVE[:100_000])
    assert done.status == 1 and "at byte 100000" in done.stderr and done.stdout
    assert listed(tmp_path) == done.stdout.decode().split()
    assert all(has_end((tmp_path / name).read_bytes()) for name in listed(tmp_path))


def test_pipes_can_be_shards(run: Run, tmp_path: Path) -> None:
    done = run("tarsplit", "-n", 50, "-o", "pipe:gzip > a%d.tgz", stdin=ARCHIVE)
    assert (done.status, done.stdout) == (0, b"pipe:gzip > a0.tgz\npipe:gzip > a1.tgz\n")
    parts = [gzip.decompress((tmp_path / name).read_bytes()) for name in ("a0.tgz", "a1.tgz")]
    assert all(has_end(part) for part in parts)  # compressed once, not twice
    assert members_of(parts[0]) + members_of(parts[1]) == SAMPLES


def test_no_samples_give_no_shards(run: Run, tmp_path: Path) -> None:
    assert run("tarsplit", "-o", "a", stdin=make_tar([])) == (0, b"", "")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("pattern", "there"),
    [("file:a", "a-000007.tar"), ("d%d/x.tar", "d7/x.tar"), ("{shard:02d}x/y/z.tar", "07x/y/z.tar")],
)
def test_every_kind_of_pattern_sees_older_shards(run: Run, tmp_path: Path, pattern: str, there: str) -> None:
    old = tmp_path / there
    old.parent.mkdir(parents=True, exist_ok=True)
    old.write_bytes(ARCHIVE)
    done = run("tarsplit", "-n", 50, "-o", pattern, stdin=ARCHIVE)
    assert done.status == 1 and "already exists" in done.stderr
    done = run("tarsplit", "--force", "-n", 5, "--start", 7, "-o", pattern, there)
    assert done.status == 1 and "also the input" in done.stderr and old.read_bytes() == ARCHIVE
