"""tarjob on a Ray cluster: what is lost there is done again, and nothing runs on."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import cast

import pytest

from tartools.run import ray as ray_engine
from tartools.samples.account import Account
from tartools.storage.pool import call_in_window
from tests.conftest import BIN, Result, make_samples, make_tar, members_of
from tests.processes import PATIENCE, until
from tests.run.conftest import Cluster, records, started, without_ray
from tests.tiers import also, exhaustive

TarJob = Callable[..., Result]
SLOTS = 5  # cores of the cluster


def commands(folder: Path) -> dict[int, list[str]]:
    """Return the words of the processes that work in *folder*, by number, but for Ray's own and this one."""
    found = {}
    for process in Path("/proc").iterdir():
        try:
            other = process.name.isdigit() and process.name != str(os.getpid())
            if other and (process / "cwd").readlink() == folder:
                words = (process / "cmdline").read_text().split("\0")
                if words != [""] and not words[0].startswith("ray::") and "tarjob" not in words[1]:
                    found[int(process.name)] = words
        except OSError:
            continue  # it has ended, or is somebody else's
    return found


def waiting(folder: Path) -> list[int]:
    """Return the numbers of those that wait for `closed`."""
    return [number for number, words in commands(folder).items() if words[0] == "flock"]


def parent(number: int) -> int:
    """Return the number of the parent of process *number*."""
    return int(re.search(r"^PPid:\t(\d+)", Path(f"/proc/{number}/status").read_text(), re.MULTILINE)[1])  # type: ignore[index]


@contextmanager
def closed(folder: Path) -> Iterator[None]:
    """Have `flock -s gate` wait in *folder* while the block runs."""
    with (folder / "gate").open("w") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        yield


@contextmanager
def running(folder: Path, cluster: Cluster, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Give tarjob, which runs on *cluster*. At the end nothing may run in *folder*."""
    process = subprocess.Popen(
        [BIN / "tarjob", "--engine", "ray", "--address", cluster.address, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=without_ray(),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        until(lambda: not commands(folder))


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Return `tmp_path` with a small shard."""
    (tmp_path / "in.tar").write_bytes(make_tar(make_samples(3)))
    return tmp_path


# ---- what is lost ----


@pytest.mark.parametrize("items", [12, *also(200)])
@pytest.mark.parametrize("lost", ["a node", *also("a worker")])
def test_what_is_lost_is_done_again(lost: str, items: int, shards: Path, cluster: Cluster) -> None:
    """Half of them are done; when as many of the others as can have begun, some are lost, and begin once more.

    What they write appears whole, and only if it is not there.
    """
    count = 2 if lost == "a node" else 1  # of items
    write = "cp in.tar part-{}-$$ && ln part-{}-$$ out-{}.tar && rm part-{}-$$"
    line = f"echo {{}} >> begun; test {{}} -le {items // 2} || flock -s gate true; {write}"
    with running(
        shards, cluster, "-v", "--log", "log", "--spec", f"{{1..{items}}}", "--", "bash", "-c", line
    ) as process:
        with closed(shards):
            until(lambda: len(waiting(shards)) == SLOTS)
            before = set(waiting(shards))
            if lost == "a worker":
                os.kill(parent(parent(min(before))), signal.SIGKILL)
            else:
                cluster.lose_a_node()
            until(lambda: len(before & commands(shards).keys()) == SLOTS - count)
            if lost == "a node":
                cluster.replace_it()
            until(lambda: len(waiting(shards)) == SLOTS)
        printed, said = process.communicate(timeout=PATIENCE)
    assert (printed, process.returncode) == ("", 0), said
    assert re.fullmatch(rf"tarjob: {items} items: {items} done, 0 failed, .*\n", said)
    everything = {str(n) for n in range(1, items + 1)}
    begun = Counter((shards / "begun").read_text().split())
    assert set(begun) == everything
    assert sum(begun.values()) == items + count
    assert {said["item"] for said in records(shards / "log")} == everything
    assert {(shards / f"out-{n}.tar").read_bytes() for n in everything} == {(shards / "in.tar").read_bytes()}
    assert sum(path.name.startswith(("out-", "part-")) for path in shards.iterdir()) == items


@exhaustive
def test_an_item_that_kills_its_worker(tarjob: TarJob, cluster: Cluster) -> None:
    """Ray gives up at last, and the others are done."""
    line = "test {} != 2 || kill -s KILL $PPID; echo {}"
    done = tarjob("--engine", "ray", "--address", cluster.address, "--spec", "{1..4}", "--", "bash", "-c", line)
    assert done.status == 1
    assert sorted(done.stdout.split()) == [b"1", b"3", b"4"]
    assert re.fullmatch(r"tarjob: 2: was lost by Ray: .*\n", done.stderr)


@exhaustive
def test_a_command_that_is_killed_with_its_node(shards: Path) -> None:
    """That is no failure of the item: a worker whose node was lost kills its commands, and then ends."""
    node = r"$(sed -n 's/^PPid:\t//p' /proc/$PPID/status)"
    line = f"test -e begun || {{ touch begun; kill -s KILL {node} $$; }}"
    with (
        started(1) as cluster,
        running(shards, cluster, "--cpus", 2, "--spec", 1, "--", "bash", "-c", line) as process,  # not on the head
    ):
        until((shards / "begun").exists)
        cluster.lose_a_node()
        assert process.communicate(timeout=PATIENCE) == ("", "")
        assert process.returncode == 0


def test_an_output_that_a_lost_try_has_left_is_replaced(shards: Path, tarjob: TarJob, cluster: Cluster) -> None:
    """Nobody knows whether it is whole."""
    line = "if test -e out-{}; then tarcat in.tar -o out-{}; else echo part > out-{}; kill -s KILL $PPID; fi"
    done = tarjob(
        "--engine", "ray", "--address", cluster.address, "-o", "out-{}", "--spec", 1, "--", "bash", "-c", line
    )
    assert done == (0, b"", "")
    assert (shards / "out-1").read_bytes() == (shards / "in.tar").read_bytes()


# ---- tarjob is ended ----


@exhaustive
def test_the_driver_is_killed(shards: Path, cluster: Cluster, tarjob: TarJob) -> None:
    """Two are done, three have read half of their input. There is no part of an output; the second run does three."""
    command = ["--", "tarcat", "in.tar", "rest-{}", "-o", "out-{}.tar"]
    rests = [shards / f"rest-{n}" for n in range(1, 6)]
    for rest in rests[:2]:
        rest.symlink_to("in.tar")
    for rest in rests[2:]:
        os.mkfifo(rest)
    with running(shards, cluster, "--spec", "{1..5}", *command) as process:
        writers = [rest.open("wb") for rest in rests[2:]]  # which waits for the reader
        until(lambda: len(list(shards.glob("out-*"))) == 2)
        process.kill()
        until(lambda: not commands(shards))
        for writer in writers:
            writer.close()
    assert sorted(path.name for path in shards.glob("[!.]*.tar")) == ["in.tar", "out-1.tar", "out-2.tar"]
    before = [(shards / f"out-{n}.tar").stat() for n in (1, 2)]
    for rest in rests[2:]:
        rest.unlink()
        rest.symlink_to("in.tar")
    done = tarjob("-v", "--engine", "ray", "--address", cluster.address, "--spec", "{1..5}", *command)
    assert done.status == 0
    assert done.stderr.startswith("tarjob: 5 items: 3 done, 2 already done, 0 failed, ")
    assert [(shards / f"out-{n}.tar").stat() for n in (1, 2)] == before
    for n in range(1, 6):
        assert members_of((shards / f"out-{n}.tar").read_bytes()) == 2 * make_samples(3)


@pytest.mark.parametrize("number", [signal.SIGINT, *also(signal.SIGTERM)])
def test_a_signal_ends_all_that_runs(number: signal.Signals, tmp_path: Path, cluster: Cluster) -> None:
    line = "(sleep 1000; true) & trap 'echo {} >> asked; exit' TERM; sleep 1000 & wait"
    with running(tmp_path, cluster, "--log", "log", "--spec", "{1..9}", "--", "bash", "-c", line) as process:
        until(lambda: sum(words[0] == "sleep" for words in commands(tmp_path).values()) == 2 * SLOTS)
        process.send_signal(number)
        said = "tarjob: 0 of 9 items done\n" if number == signal.SIGINT else ""
        assert process.communicate(timeout=PATIENCE) == ("", said)
        assert commands(tmp_path) == {}
    assert process.returncode == -number
    assert len((tmp_path / "asked").read_text().split()) == SLOTS  # SIGTERM first, so that they can clean up
    assert records(tmp_path / "log") == []


def test_commands_begin_as_in_a_shell(tmp_path: Path, tarjob: TarJob, cluster: Cluster) -> None:
    """The item is in the environment; no signal is blocked, nor ignored. Ray blocks some in what it starts."""
    items = ["it's $(touch ran)\n", "\udcff"]
    line = """grep -E '^Sig(Blk|Ign):' /proc/self/status; printf '%s\\0' "$TARJOB_ITEM" """
    where = ["--engine", "ray", "--address", cluster.address, "-j", 1]
    data = b"".join(os.fsencode(item) + b"\0" for item in items)
    done = tarjob(*where, "-0", "-T", "-", "--", "bash", "-c", line, stdin=data)
    signals = b"SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n"
    assert done == (0, b"".join(signals + os.fsencode(item) + b"\0" for item in items), "")
    assert os.listdir(tmp_path) == []


# ---- how items end ----


def test_failures(tmp_path: Path, tarjob: TarJob, cluster: Cluster) -> None:
    """The address is that of RAY_ADDRESS; the directory is that of tarjob."""
    line = "test {} != 3 || { echo why >&2; exit 7; }; pwd > at-{}; echo {}"
    rules = ["-v", "--retries", 1, "--timeout", 1000, "--log", "log", "--spec", "{1..6}"]
    done = tarjob(*rules, "--", "bash", "-c", line, env={"RAY_ADDRESS": cluster.address})
    assert done.status == 1
    assert sorted(done.stdout.split()) == [b"1", b"2", b"4", b"5", b"6"]
    failed, last = done.stderr.splitlines()
    assert failed == "tarjob: 3: ended with status 7 after 2 tries: why"
    assert last.startswith("tarjob: 6 items: 5 done, 1 failed, ")
    assert {(tmp_path / f"at-{n}").read_text() for n in (1, 2, 4, 5, 6)} == {f"{tmp_path}\n"}
    log = {said["item"]: said for said in records(tmp_path / "log")}
    assert [(log[n]["exit"], log[n]["tries"], log[n]["stderr"]) for n in "13"] == [(0, 1, ""), (7, 2, "why\n")]
    assert {said["host"] for said in log.values()} == {os.uname().nodename}


@exhaustive
def test_a_timeout(tmp_path: Path, tarjob: TarJob, cluster: Cluster) -> None:
    """Of what would never end."""
    rules = ["--retries", 1, "--timeout", 1, "--log", "log", "--spec", 4]
    done = tarjob(*rules, "--", "bash", "-c", "exec sleep 1000 # {}", env={"RAY_ADDRESS": cluster.address})
    assert done == (1, b"", "tarjob: 4: took longer than 1 seconds and was stopped after 2 tries\n")
    (said,) = records(tmp_path / "log")
    assert (said["exit"], said["tries"], said["stderr"]) == (None, 2, "")


def test_fail_fast(tmp_path: Path, tarjob: TarJob, cluster: Cluster) -> None:
    """No more are begun than run at a time, of which one fails."""
    (tmp_path / "items").write_text("\n".join(map(str, range(100))))
    line = "echo {} >> begun; exit 1"
    where = ["--engine", "ray", "--address", cluster.address]
    said = tarjob(*where, "--fail-fast", "-j", 2, "-T", "items", "--", "bash", "-c", line).failure()
    assert len((tmp_path / "begun").read_text().split()) <= 3
    assert said.splitlines()[-1].endswith("items were not begun, because of --fail-fast")


# ---- cores, and tasks at a time ----


@pytest.mark.parametrize(
    ("asked", "given", "said"),
    [
        (0, 8, ""),
        (1, 1, ""),
        (0.5, 0.5, ""),
        (8, 8, ""),
        (9, 8, "item requests 9 cores; the largest node has 8, using 8"),
    ],
)
def test_the_cores_of_an_item(asked: float, given: float, said: str) -> None:
    """In place of Ray: one that has three nodes, the largest of which is lost."""
    nodes = [{"Alive": cores < 64, "Resources": {"CPU": cores}} for cores in (4.0, 8.0, 64.0)]
    ray = cast("ModuleType", SimpleNamespace(nodes=lambda: nodes))
    warnings: list[str] = []
    assert ray_engine.limit_cores(ray, asked, Account(warnings.append)) == given
    assert warnings == [said] * bool(said)


@exhaustive
def test_cores(tmp_path: Path, tarjob: TarJob, cluster: Cluster) -> None:
    """A command that asks for more than any node has gets a whole one, and so does one that asks for all."""
    (tmp_path / "in.tar").write_bytes(make_tar(make_samples(1)))
    where = ["--engine", "ray", "--address", cluster.address]
    command = ["-c", "true", "in.tar", "-o", "out-{}.tar"]
    done = tarjob(*where, "--spec", "{1..4}", "--", "tarproc", "-p", 16, *command)
    assert done == (0, b"", "tarjob: item requests 16 cores; the largest node has 2, using 2\n")
    assert tarjob(*where, "--spec", "{5..8}", "--", "tarproc", "-p", 0, *command) == (0, b"", "")
    assert len(list(tmp_path.glob("out-*.tar"))) == 8


@exhaustive
def test_cores_that_an_item_asks_for(tmp_path: Path, cluster: Cluster) -> None:
    """Of nodes with 1, 2 and 2, those that have 2 take one item each."""
    line = "flock -s gate true; : {}"
    with running(tmp_path, cluster, "--cpus", 2, "--spec", "{1..9}", "--", "bash", "-c", line) as process:
        with closed(tmp_path):
            until(lambda: len(waiting(tmp_path)) == 2)
            parents = {parent(parent(parent(number))) for number in waiting(tmp_path)}
            assert len(parents) == 2  # Ray's process for a node, twice
        assert process.communicate(timeout=PATIENCE) == ("", "")


def test_tasks_at_a_time() -> None:
    """Ray knows of a thousand at most. In its place: one that ends a task when it knows of so many, and all at last."""
    known: deque[Future[int]] = deque()
    most = 0

    def begin(number: int) -> SimpleNamespace:
        nonlocal most
        future: Future[int] = Future()
        known.append(future)
        most = max(most, len(known))
        for _ in range(len(known) if number == 2499 else len(known) == 1000):
            known.popleft().set_result(0)
        return SimpleNamespace(future=lambda: future)

    options = SimpleNamespace(options=lambda num_cpus: SimpleNamespace(remote=begin))
    ray = cast(ModuleType, SimpleNamespace(remote=lambda work: options))
    tasks: ray_engine.RayTasks[int, int] = ray_engine.RayTasks(ray, int, 1)
    done = list(call_in_window(range(2500), tasks, ray_engine.MAX_TASKS_IN_FLIGHT, ordered=False))
    assert sorted((item, answer()) for item, answer in done) == [(n, 0) for n in range(2500)]
    assert most == 1000


# ---- no cluster ----


def test_ray_is_not_installed(tmp_path: Path, tarjob: TarJob) -> None:
    (tmp_path / "ray.py").write_text("raise ImportError\n")
    said = tarjob("--engine", "ray", "--spec", 1, "--", "true", env={"PYTHONPATH": str(tmp_path)}).failure(2)
    assert re.fullmatch(r"tarjob: Ray is not installed: \S+/python[\d.]* -m pip install ray\n", said)


@pytest.mark.parametrize("address", ["127.0.0.1:1", *also("[::1]:1", "ray://[::1]:1")])
def test_nothing_listens(address: str, tarjob: TarJob) -> None:
    """Without IPv6 the reason is another one, but it is said as soon."""
    said = tarjob("--engine", "ray", "--address", address, "--spec", 1, "--", "true").failure()
    assert re.fullmatch(rf"tarjob: {re.escape(address)}: cannot connect: (?!.*Ray).*\n", said)


@exhaustive
def test_the_token(tarjob: TarJob) -> None:
    right, wrong = "right" * 8, "wrong" * 8
    tokens = {"RAY_AUTH_MODE": "token"}
    with started(0, RAY_AUTH_TOKEN=right, **tokens) as guarded:
        where = ["--engine", "ray", "--address", guarded.address, "--spec", 1, "--", "echo"]
        assert tarjob(*where, env=tokens | {"RAY_AUTH_TOKEN": right}) == (0, b"1\n", "")
        for env in ({}, tokens | {"RAY_AUTH_TOKEN": wrong}, tokens | {"RAY_AUTH_TOKEN_PATH": "nowhere"}):
            said = (
                f"tarjob: {guarded.address}: this Ray cluster refuses our token: "
                "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH\n"
            )
            assert tarjob(*where, env=env) == (1, b"", said)
