"""tarpcat: tarcat's bytes, whatever is read at once."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.commands.test_conservation import peak_memory
from tests.conftest import BIN, Result, Run, has_end, make_samples, make_tar, members_of, python, start
from tests.processes import alive
from tests.shards.counted import PROGRAM
from tests.tiers import also, by_turns


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ten shards, plain and compressed, of different lengths."""
    folder = tmp_path_factory.mktemp("packed")
    for k, suffix in enumerate(["tar", "tgz", "tar.zst", "tar.bz2", "tar.lz4", "tar.xz", "tar", "tgz", "tar", "tgz"]):
        members = make_samples(20 + 30 * (k % 3), 1000 * k)
        start(BIN / "tarcat", "-o", f"s{k}.{suffix}", folder=folder, stdin=make_tar(members)).output()
    return folder


@pytest.fixture
def shards(packed: Path, tmp_path: Path) -> list[str]:
    """Copies of the ten shards, in `tmp_path`."""
    shutil.copytree(packed, tmp_path, dirs_exist_ok=True)
    return sorted(path.name for path in packed.iterdir())


@pytest.mark.parametrize("workers", [0, 1, 3, 16])
@pytest.mark.parametrize("memory", ["1", "100K", "256M"])
@by_turns("memory")
def test_the_bytes_are_those_of_tarcat(run: Run, shards: list[str], workers: int, memory: str) -> None:
    assert run("tarpcat", "-p", workers, "-M", memory, *shards).output() == run("tarcat", *shards).stdout


@pytest.mark.parametrize(
    "options",
    [
        ["--interleave", "3"],
        ["--interleave", "20", "--skip", "7"],
        ["--shuffle", "50", "--seed", "4"],
        ["--slice", "3:200:7", "-f", "cls"],
        ["-c", "77", "--rekey", "{shard}/{index:05d}"],
        ["-c", "0"],
        ["-x", "jpg", "-z"],
    ],
    ids=" ".join,
)
def test_all_options_of_tarcat_give_the_same(run: Run, shards: list[str], options: list[str]) -> None:
    expected = run("tarcat", *options, *shards).stdout
    for name in ("tarpcat", "tarcat"):
        assert run(name, "-p", 4, "-M", "50K", *options, *shards) == (0, expected, "")


def test_unordered_writes_every_sample_once_and_whole(run: Run, shards: list[str]) -> None:
    done = run("tarpcat", "-v", "--unordered", "-p", 3, *shards)
    assert done.status == 0 and has_end(done.stdout)
    found, expected = members_of(done.stdout), members_of(run("tarcat", *shards).stdout)
    assert sorted(found) == sorted(expected)
    assert [name[:-4] for name, _ in found[::2]] == [name[:-4] for name, _ in found[1::2]]
    assert done.stderr.startswith(f"tarpcat: {len(found) // 2} samples in, {len(found) // 2} out, ")


@pytest.mark.parametrize("options", [["-p", "4"], ["-p", "4", "--unordered"]], ids=" ".join)
def test_count_stops_all_readers(shell: Run, tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar(make_samples(50)))
    endless = "pipe:echo $$ >> pids; cat a.tar; while :; do cat a.tar; done #"
    done = shell(f"tarpcat {' '.join(options)} -c 120 --rekey '{{index}}' '{endless}'{{1..6}} | tar t | wc -l")
    assert (done.status, done.stdout.split(), done.stderr) == (0, [b"240"], "")
    for pid in (tmp_path / "pids").read_text().split():
        assert not alive(int(pid))


@pytest.mark.parametrize("options", [[], ["--unordered"]], ids=["ordered", "unordered"])
def test_a_command_that_has_given_nothing_yet_is_ended_too(run: Run, tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar(make_samples(5)))
    (tmp_path / "cut.tar").write_bytes(make_tar(make_samples(5, 10))[:3000])
    silent = "pipe:echo $$ > pid; exec sleep 1000"
    done = run("tarpcat", "-p", 4, *options, "a.tar", "pipe:until test -s pid; do :; done; cat cut.tar", silent)
    assert done.status == 1 and "at byte 3000" in done.stderr
    assert not alive(int((tmp_path / "pid").read_text()))


def test_memory_is_what_the_budget_says(run: Run, tmp_path: Path) -> None:
    names = [f"s{k}.tgz" for k in range(3)]
    for k, name in enumerate(names):
        members = [(f"{k}-{n:03d}.bin", os.urandom(1000) + bytes(499_000)) for n in range(120)]
        assert run("tarcat", "-o", name, stdin=make_tar(members)).status == 0
    assert peak_memory(["tarpcat", "-p", "3", "-M", "8M", *names], "", tmp_path) < 100_000_000


@pytest.mark.parametrize("options", [[], ["-p", "3", "-M", "100K"], ["--interleave", "3"]], ids=" ".join)
def test_what_commands_give_is_read_ahead_too(run: Run, shards: list[str], options: list[str]) -> None:
    out = run("tarpcat", *options, *(f"pipe:cat {name}" for name in shards)).output()
    assert out == run("tarcat", *(options if "--interleave" in options else []), *shards).stdout


LARGE = ["l0.tgz", "l1.tar.bz2", "l2.tar.xz", "l3.tar.zst", "l4.tar.lz4", "l5.tgz"]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with compressed shards of some size, and a plain and a small one."""
    folder = tmp_path_factory.mktemp("large")
    for k, name in enumerate([*LARGE, "plain.tar", "small.tgz"]):
        count = 5 if name == "small.tgz" else 40
        members = [(f"{k}-{n:03d}.bin", bytes(60_000) + os.urandom(20_000)) for n in range(count)]
        start(BIN / "tarcat", "-o", name, folder=folder, stdin=make_tar(members)).output()
    return folder


def counted(folder: Path, *arguments: object) -> Result:
    """Run tarpcat; the last line of stderr is the number of processes that it forks: threads read the shards."""
    return python(PROGRAM, "count", "tarpcat", *arguments, folder=folder)


def tarcat(folder: Path, *arguments: object) -> bytes:
    return start(BIN / "tarcat", *arguments, folder=folder).stdout


@pytest.mark.parametrize("workers", [1, 2, 16])
@pytest.mark.parametrize("memory", ["1", "1M", "256M"])
@by_turns("workers")
def test_each_compressed_shard_has_a_thread(large: Path, workers: int, memory: str) -> None:
    names = [*LARGE[:3], "plain.tar", "small.tgz", *LARGE[3:]]
    done = counted(large, "-p", workers, "-M", memory, *names)
    assert (done.status, done.stderr) == (0, "0\n")
    assert done.stdout == tarcat(large, *names)


@pytest.mark.parametrize(
    "options", [["--interleave", "4"], ["--slice", "50:200:3"], *also(["-c", "99"], ["--shuffle", "10"])], ids=" ".join
)
def test_threads_and_options(large: Path, options: list[str]) -> None:
    done = counted(large, "-p", 3, "-M", "2M", *options, "plain.tar", *LARGE)
    assert done.status == 0 and done.stdout == tarcat(large, *options, "plain.tar", *LARGE)


@pytest.mark.parametrize("workers", [3, *also(1)])
def test_unordered_from_threads(large: Path, workers: int) -> None:
    names = ["plain.tar", *LARGE, "small.tgz"]
    done = counted(large, "--unordered", "-p", workers, *names)
    assert (done.status, done.stderr) == (0, "0\n") and has_end(done.stdout)
    assert sorted(members_of(done.stdout)) == sorted(members_of(tarcat(large, *names)))
    assert counted(large, "--unordered", "-c", 30, *names).status == 0


@pytest.mark.parametrize("options", [[], ["--unordered"]], ids=["ordered", "unordered"])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("trouble", ["cut", "damaged"])
@by_turns("workers", "options")
def test_one_bad_shard_among_threads(large: Path, trouble: str, workers: int, options: list[str]) -> None:
    data = (large / LARGE[2]).read_bytes()
    middle = len(data) // 2
    bad = {"cut": data[:middle], "damaged": data[:middle] + b"damaged" + data[middle + 7 :]}[trouble]
    (large / "bad").write_bytes(bad)
    names = [*LARGE[:2], "bad", *LARGE[3:]]
    done = counted(large, "-p", workers, *options, *names)
    assert done.status == 1 and done.stderr.startswith("tarpcat: bad: ") and done.stderr.count("\n") == 2
    assert not has_end(done.stdout)
    if not options:
        assert done.stdout == tarcat(large, *names)


def test_what_threads_spill_is_gone_at_the_end(large: Path, tmp_path: Path) -> None:
    assert counted(large, "-M", 1, "--tmpdir", tmp_path, *LARGE).status == 0
    assert counted(large, "-M", 1, "--tmpdir", tmp_path, "-c", 60, *LARGE).status == 0
    assert os.listdir(tmp_path) == []
    done = counted(large, "-M", 1, "--tmpdir", tmp_path / "nosuch", *LARGE)
    assert done.status == 1 and "nosuch" in done.stderr


def test_tables_from_commands_are_read_where_they_end(run: Run, shards: list[str]) -> None:
    """The thread that reads ahead finds out what it is, and the table is read from the same stream."""
    assert run("tarindex", "s0.tar", "-o", "a.parquet").status == 0
    done = run("tarpcat", "-p", 2, "pipe:cat a.parquet", "s1.tgz", "pipe:cat a.parquet")
    assert done == (0, run("tarcat", "s0.tar", "s1.tgz", "s0.tar").stdout, "")
    assert run("tarpcat", "--unordered", "-p", 2, "pipe:cat a.parquet") == (0, run("tarcat", "s0.tar").stdout, "")
    failed = run("tarpcat", "-p", 2, "pipe:cat a.parquet; exit 3")
    assert failed == (1, b"", "tarpcat: pipe:cat …: the command ended with status 3\n")
