"""The cache of remote objects: each byte once, never a stale or damaged one, whoever is killed, within its budget."""

from __future__ import annotations

import fcntl
import os
import random
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tartools.storage.objects import cache
from tests.commands.test_nothing_left import small_files
from tests.conftest import BIN, Run, clean_environment, make_tar
from tests.storage.objects.faults import READ, Fault, FaultServer
from tests.tiers import by_turns

BLOCK = cache.CACHE_BLOCK_BYTES
DATA = make_tar([(f"{n}.bin", random.Random(n).randbytes(400_000)) for n in range(12)])  # not a whole number of blocks
NAME = "a.tar"


@pytest.fixture
def env(faulty: FaultServer, tmp_path: Path) -> dict[str, str]:
    faulty.objects[NAME] = DATA
    return {**faulty.env, "TARTOOLS_CACHE": f"{tmp_path}/cache:1G"}


def ranges(server: FaultServer) -> list[range]:
    """Return the ranges that were asked for so far, but those of a byte, which only ask for the version."""
    asked = [re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range", "")) for request in server.asked("GET")]
    return [range(int(found[1]), int(found[2]) + 1) for found in asked if found and found[2] != "0"]


def blocks(tmp_path: Path) -> list[Path]:
    return [
        path for path in (tmp_path / "cache").rglob("*") if cache.ENTRY_NAME.fullmatch(path.name) and path.is_file()
    ]


@pytest.mark.parametrize("scheme", READ)
@by_turns("scheme")
def test_what_was_read_is_not_fetched_again(
    scheme: str, run: Run, faulty: FaultServer, env: dict[str, str], tmp_path: Path
) -> None:
    first = run("tarcat", "-v", faulty.url(scheme, NAME), env=env)
    asked = len(ranges(faulty))
    again = run("tarcat", "-v", faulty.url(scheme, NAME), env=env)
    assert first.stdout == again.stdout == DATA and asked == len(ranges(faulty)) > 0
    size = f"{len(DATA) / 1e6:.1f} MB"
    assert f"tarcat: cache: 0 B were there, {size} fetched, {size} of them kept\n" in first.stderr
    assert f"tarcat: cache: {size} were there, 0 B fetched, 0 B of them kept\n" in again.stderr
    assert len(blocks(tmp_path)) == -(-len(DATA) // BLOCK)
    (folder,) = (tmp_path / "cache").iterdir()
    assert folder.name == cache.CACHE_FOLDER and not folder.stat().st_mode & 0o77  # nobody else may read it


@pytest.mark.parametrize("scheme", ["s3", "gs", "ais", "http"])
@by_turns("scheme")
def test_another_version_is_another_entry(scheme: str, run: Run, faulty: FaultServer, env: dict[str, str]) -> None:
    url = faulty.url(scheme, NAME)
    assert run("tarcat", url, env=env).stdout == DATA
    faulty.objects[NAME] = other = make_tar([("x.bin", b"other")])
    assert run("tarcat", url, env=env).stdout == other
    faulty.objects[NAME] = DATA
    assert run("tarcat", url, env=env).stdout == DATA


def test_a_version_that_a_server_does_not_tell_is_not_kept(
    run: Run, faulty: FaultServer, env: dict[str, str], tmp_path: Path
) -> None:
    faulty.faults = [Fault(NAME, headers={"ETag": "", "Last-Modified": ""}, times=None)]
    for _ in range(2):
        assert run("tarcat", faulty.url("http", NAME), env=env).stdout == DATA
    assert not blocks(tmp_path)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: b"", lambda data: data[:1000] + b"\0\0" + data[1002:]]
)
def test_a_damaged_block_is_fetched_again(
    damage: Callable[[bytes], bytes], run: Run, faulty: FaultServer, env: dict[str, str], tmp_path: Path
) -> None:
    assert run("tarcat", faulty.url("s3", NAME), env=env).stdout == DATA
    before = {path: path.read_bytes() for path in blocks(tmp_path)}
    asked = len(ranges(faulty))
    (broken := blocks(tmp_path)[1]).write_bytes(damage(before[broken]))
    broken.with_name("object.json").write_bytes(damage(b"{}")[:1])
    assert run("tarcat", faulty.url("s3", NAME), env=env).stdout == DATA
    assert len(ranges(faulty)) == asked + 1
    assert {path: path.read_bytes() for path in blocks(tmp_path)} == before
    assert run("tartools", "cache", env=env).stdout.endswith(b" s3://b/a.tar\n")


def test_the_budget_holds(run: Run, faulty: FaultServer, env: dict[str, str], tmp_path: Path) -> None:
    """What is kept stays, unless the least recently used is to go. Files of others are neither counted nor removed."""
    (tmp_path / "cache").mkdir()
    (other := tmp_path / "cache/other").write_bytes(bytes(10 * BLOCK))
    faulty.objects["b.tar"] = DATA
    env["TARTOOLS_CACHE"] = f"{tmp_path}/cache:3200K"

    def kept() -> tuple[list[Path], int]:
        assert run("tarcat", faulty.url("s3", NAME), env=env).stdout == DATA
        assert run("tarcat", faulty.url("s3", "b.tar"), env=env).stdout == DATA
        return sorted(blocks(tmp_path)), sum(path.stat().st_size for path in blocks(tmp_path))

    first, size = kept()
    assert len(first) == 3 and size <= 3200 << 10
    assert kept() == (first, size)
    env["TARTOOLS_CACHE_EVICT"] = "old"
    last, size = kept()
    assert size <= 3200 << 10 and last and not set(first) & set(last)
    assert other.stat().st_size == 10 * BLOCK
    with cache.cache_of(env["TARTOOLS_CACHE"])._lock_count() as counts:
        fork = os.dup(counts)  # as a fork of this process has it
    with open(other.parent / cache.CACHE_FOLDER / "used", "rb") as file, open(fork):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("damage", [None, b"", bytes(20), b"  12", b"x" * 20, b"%20d" % 0 + b"1"])
def test_the_budget_holds_without_the_count(
    damage: bytes | None, run: Run, faulty: FaultServer, env: dict[str, str], tmp_path: Path
) -> None:
    """The file with the count was removed, or a power cut left something else in it: what is kept is measured."""
    env["TARTOOLS_CACHE"] = f"{tmp_path}/cache:3200K"
    used = tmp_path / "cache" / cache.CACHE_FOLDER / "used"
    for number in range(3):
        faulty.objects[f"{number}.tar"] = DATA
        assert run("tarcat", faulty.url("s3", f"{number}.tar"), env=env).stdout == DATA
        assert sum(path.stat().st_size for path in blocks(tmp_path)) <= 3200 << 10
        assert int(used.read_bytes()) == sum(path.stat().st_size for path in blocks(tmp_path))
        used.unlink()
        if damage is not None:
            used.write_bytes(damage)


def test_a_disk_without_room_or_folder_is_no_failure(
    run: Run, faulty: FaultServer, env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_files(BLOCK // 2):
        assert run("tarcat", faulty.url("s3", NAME), env=env, real=True).stdout == DATA
    assert not [path for path in blocks(tmp_path) if path.stat().st_size > BLOCK]
    monkeypatch.setattr(cache, "MIN_FREE_BYTES", 1 << 62)
    assert not cache.cache_of(env["TARTOOLS_CACHE"]).reserve(1)
    for _ in range(2):
        assert run("tarcat", faulty.url("s3", NAME), env={**env, "TARTOOLS_CACHE": "/dev/null/x:1G"}).stdout == DATA


@pytest.mark.parametrize("text", ["/nvme", ":5G", "/nvme:", "/nvme:much"])
def test_a_wrong_setting_is_said(text: str, run: Run, faulty: FaultServer, env: dict[str, str]) -> None:
    done = run("tarcat", faulty.url("s3", NAME), env={**env, "TARTOOLS_CACHE": text})
    assert done.status == 2 and "TARTOOLS_CACHE is a folder and its size, such as /nvme/cache:500GB" in done.stderr


def started(faulty: FaultServer, env: dict[str, str]) -> subprocess.Popen[bytes]:
    words = [BIN / "tarcat", faulty.url("s3", NAME)]
    return subprocess.Popen(words, env=clean_environment() | env, stdout=subprocess.PIPE)


def test_many_processes_fetch_each_byte_once(faulty: FaultServer, env: dict[str, str]) -> None:
    running = [started(faulty, env) for _ in range(8)]
    assert [process.communicate(timeout=120)[0] == DATA for process in running] == [True] * 8
    bytes_asked: Counter[int] = Counter()
    for asked in ranges(faulty):
        bytes_asked.update(range(asked.start // BLOCK, -(-min(asked.stop, len(DATA)) // BLOCK)))
    assert bytes_asked == dict.fromkeys(range(-(-len(DATA) // BLOCK)), 1)


def test_a_killed_process_leaves_nothing_that_is_taken_for_whole(
    run: Run, faulty: FaultServer, env: dict[str, str], tmp_path: Path
) -> None:
    """Nor does one that waited for it fail."""
    faulty.faults = [Fault(NAME, method="GET", skip=1, cut=BLOCK + 1000, stall=True)]  # the first asks for the version
    first = started(faulty, env)
    while not ranges(faulty):
        time.sleep(0.01)
    second = started(faulty, env)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert second.communicate(timeout=120)[0] == DATA
    assert run("tarcat", faulty.url("s3", NAME), env=env).stdout == DATA
    assert not [path for path in blocks(tmp_path) if path.name.endswith(".part")]


def test_resets_lose_little(run: Run, faulty: FaultServer, env: dict[str, str]) -> None:
    faulty.faults = [Fault(NAME, "GET", skip=1, cut=3_500_000, reset=True, trickle=(BLOCK, 0.03), times=2)]
    assert run("tarcat", faulty.url("s3", NAME), env=env).stdout == DATA
    assert [asked.start >= BLOCK for asked in ranges(faulty)] == [False, False, True]


def test_ranges_for_a_table_come_from_the_cache(run: Run, faulty: FaultServer, env: dict[str, str]) -> None:
    url = faulty.url("s3", NAME)
    assert run("tarindex", "-o", "t.parquet", url, env=env).status == 0
    first = run("tarsort", "-S", "shuffle", "t.parquet", env=env)
    asked = len(ranges(faulty))
    assert run("tarsort", "-S", "shuffle", "t.parquet", env=env) == first and first.status == 0
    assert len(ranges(faulty)) == asked and sum(map(len, ranges(faulty))) == len(DATA)


def test_it_is_listed_and_cleared(run: Run, faulty: FaultServer, env: dict[str, str], tmp_path: Path) -> None:
    faulty.objects["b.tar"] = other = make_tar([("x.bin", b"other")])
    a, b = faulty.url("s3", NAME), faulty.url("http", "b.tar")
    assert run("tarcat", a, b, env=env).status == 0
    listed = run("tartools", "cache", env=env)
    lines = dict(reversed(line.rsplit(maxsplit=1)) for line in listed.stdout.decode().splitlines())
    assert listed.status == 0 and set(lines) == {a, b}
    assert re.fullmatch(r" +4\.8 MB +4\.8 MB  \d{4}-\d\d-\d\d \d\d:\d\d", lines[a])
    assert re.fullmatch(r"tartools cache: 4\.8 MB of 1\.\d GB in \S+/cache/tartools-cache-1\n", listed.stderr)
    assert "cache: 0 B removed\n" in run("tartools", "cache", "--clear", b[:-1], env=env).stderr  # not what begins so
    assert run("tartools", "cache", "--clear", b, env=env).status == 0
    assert run("tartools", "cache", env=env).stdout.decode().split()[-1] == a
    assert run("tarcat", f"{b}?signature=secret", env=env).status == 0
    assert run("tartools", "cache", env=env).stdout.decode().count(f"  {b}?…\n") == 1
    assert "secret" not in run("tartools", "cache", "--clear", f"{b}?signature=secret", env=env).stderr
    assert run("tartools", "cache", env=env).stdout.decode().split()[-1] == a
    assert run("tartools", "cache", "--clear", env=env).stderr == "tartools cache: 4.8 MB removed\n"
    assert not blocks(tmp_path) and run("tartools", "cache", env=env).stdout == b""
    assert run("tarcat", b, env=env).stdout == other
    assert run("tartools", "cache").status == 1 and run("tartools", "cache", "--all", env=env).status == 2


def test_what_it_did_not_make_is_not_counted_or_removed(run: Run, env: dict[str, str], tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "cache" / cache.CACHE_FOLDER / "ab", tmp_path / "elsewhere"
    for each in (folder / "mine", elsewhere):
        each.mkdir(parents=True)
        (each / "7").write_bytes(b"mine")
    (folder / ("0" * 38)).symlink_to(elsewhere)
    assert run("tartools", "cache", env=env).stdout == b""
    assert run("tartools", "cache", "--clear", env=env).stderr == "tartools cache: 0 B removed\n"
    assert [(each / "7").read_bytes() for each in (folder / "mine", elsewhere)] == [b"mine"] * 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_not_read(
    run: Run, faulty: FaultServer, env: dict[str, str], tmp_path: Path
) -> None:
    assert run("tarcat", faulty.url("s3", NAME), env=env).status == 0
    os.chown(tmp_path / "cache" / cache.CACHE_FOLDER, 1234, 1234)
    assert "(this folder belongs to another user)" in run("tarcat", faulty.url("s3", NAME), env=env).failure(2)


def test_more_bytes_than_were_stated_are_a_failure(
    run: Run, faulty: FaultServer, env: dict[str, str], tmp_path: Path
) -> None:
    """Nobody knows which of them are the right ones, so none is kept."""
    url = faulty.url("http", NAME)
    faulty.faults = [Fault(NAME, "GET", skip=1, body=DATA + b"x", framing="chunked", times=None)]
    done = run("tarcat", url, "-o", "out.tar", env=env)
    assert done == (1, b"", f"tarcat: {url}: at byte {len(DATA)}: the server sent more bytes than it stated\n")
    assert not blocks(tmp_path)
