"""map_shards on a Ray cluster, in a program of its own: functions of its own file go to the nodes by value."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT, Run, make_samples, make_tar
from tests.processes import PATIENCE, until
from tests.run.conftest import Cluster, without_ray
from tests.tiers import exhaustive, in_both
from tests.train.losing import archive, lose_two

SAY = """
def say(*words):
    with open("said", "a") as said:  # Ray prints what it likes
        print(*words, file=said)
"""
BEGIN = """
import os, signal, sys
import tartools

pairs = [(f"in-{n:02d}.tar", f"out-{n:02d}.tar") for n in range(12)]

def same(sample):
    return sample

def work(source, output):
    with open("calls", "a") as calls:
        print(source, file=calls, flush=True)
    if source == "in-04.tar" and not os.path.exists("good"):
        raise ValueError("in-04.tar is bad")
    if source == "in-07.tar" and not os.path.exists("lost"):
        open("lost", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    tartools.map_samples(same, source, output, force=True)
    if source == "in-09.tar":  # it is done, but nobody hears of it
        os.kill(os.getpid(), signal.SIGKILL)

def run(**options):
    return tartools.map_shards(work, pairs, engine="ray", **options)
"""
FIRST = """
try:
    run(address=sys.argv[1], workers=3)
except ExceptionGroup as group:
    say(group.message)
    for error in group.exceptions:
        say(isinstance(error, ValueError), "in-04.tar is bad" in str(error), error.__notes__)
"""
SECOND = """
import warnings
open("good", "w").close()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always", UserWarning)
    say(run(cpus=64))
say([str(warning.message) for warning in caught if "cores" in str(warning.message)])
say(run())
"""


def said(folder: Path, text: str, cluster: Cluster, *arguments: str) -> list[str]:
    """Return what a program says that runs in *folder*, and is told of *cluster* by its argument and by RAY_ADDRESS."""
    (folder / "program.py").write_text(SAY + text)
    done = subprocess.run(
        [sys.executable, "program.py", cluster.address, *arguments],
        cwd=folder,
        env=without_ray() | {"RAY_ADDRESS": cluster.address, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0 and "Exception ignored" not in done.stderr, done.stderr
    return (folder / "said").read_text().splitlines()


@in_both
def test_shards_are_made_on_a_cluster(thorough: bool, tmp_path: Path, cluster: Cluster) -> None:
    """One fails, a worker is lost before its output is there and one after that; what is missing is made in turn."""
    for n in range(12):
        (tmp_path / f"in-{n:02d}.tar").write_bytes(make_tar(make_samples(5, 5 * n)))
    assert said(tmp_path, BEGIN + FIRST, cluster) == [
        "1 of 12 shards failed: out-04.tar",
        "True True ['in the call for out-04.tar']",
    ]
    assert sorted(path.name for path in tmp_path.glob("out-*")) == [f"out-{n:02d}.tar" for n in range(12) if n != 4]
    for path in tmp_path.glob("out-*"):
        assert path.read_bytes() == (tmp_path / path.name.replace("out", "in")).read_bytes()
    calls = sorted((tmp_path / "calls").read_text().split())
    assert calls == sorted([f"in-{n:02d}.tar" for n in range(12)] + ["in-07.tar"])

    if not thorough:
        return
    for name in ("calls", "said"):
        (tmp_path / name).unlink()
    assert said(tmp_path, BEGIN + SECOND, cluster) == [
        "['out-04.tar']",
        "['item requests 64 cores; the largest node has 2, using 2']",
        "[]",
    ]
    assert (tmp_path / "calls").read_text() == "in-04.tar\n"


STOPPED = """
import time

def work(source, output):
    try:
        os.kill(driver, signal.SIGINT)
        while True:
            time.sleep(0.1)
    finally:
        open("ended", "w").close()

driver = os.getpid()
pairs = pairs[:1]
try:
    run()
except KeyboardInterrupt:
    say("interrupted")
"""


def test_an_interrupt_ends_the_tasks(tmp_path: Path, cluster: Cluster) -> None:
    assert said(tmp_path, BEGIN + STOPPED, cluster) == ["interrupted"]
    until((tmp_path / "ended").exists)
    assert not list(tmp_path.glob("out-*"))


@exhaustive
def test_two_of_four_workers_are_killed(tmp_path: Path, cluster: Cluster, run: Run) -> None:
    """All results come exactly once, in order and as they are ready."""
    (tmp_path / "a.tar").write_bytes(archive(1, 100))
    (tmp_path / "b.tar").write_bytes(archive(2, 45))
    assert run("tarindex", "b.tar", "a.tar", "-o", "t.parquet").status == 0
    environment = without_ray() | {"RAY_ADDRESS": cluster.address}
    lose_two(tmp_path, "ray", environment, ["a.tar", "t.parquet"])


PROGRAM = """
import os, signal, sys, time
from tartools.train import stream_map

class Own:
    "A class of the main program."
    def __init__(self, key):
        self.key = key

def own(sample):
    if sample["__key__"] == "07":
        raise ValueError("no such colour")
    return Own(sample["__key__"])

def killing(sample):
    os.kill(os.getpid(), signal.SIGKILL)

def endless(sample):
    if sample["__key__"] == "one":
        return "one"
    try:
        open("begun", "w").close()
        while True:
            time.sleep(0.05)
    finally:
        open("ended", "w").close()

def failing(*arguments, **options):
    try:
        for one in stream_map(*arguments, engine="ray", **options):
            found.append(one)
    except Exception as error:
        return error

found = []
error = failing(own, "in.tar", workers=2)
say(all(type(one) is Own for one in found), [one.key for one in found])
say(type(error).__name__, error, error.__notes__[0])
say(failing(killing, "in.tar", retries=1) if "thorough" in sys.argv else "")
results = iter(stream_map(endless, ["one.tar", "in.tar"], engine="ray", workers=2))
say(next(results))
while not os.path.exists("begun"):
    time.sleep(0.05)
results.close()
left = iter(stream_map(own, ["one.tar", "in.tar"], engine="ray", workers=1))
next(left)
"""


@in_both
def test_classes_of_the_program_errors_and_an_early_end(thorough: bool, tmp_path: Path, cluster: Cluster) -> None:
    """And, if *thorough*, a function that kills all workers."""
    (tmp_path / "in.tar").write_bytes(make_tar([(f"{n:02d}.cls", b"1") for n in range(12)]))
    (tmp_path / "one.tar").write_bytes(make_tar([("one.cls", b"1")]))
    keys = [f"{n:02d}" for n in range(7)]
    found = said(tmp_path, PROGRAM, cluster, *["thorough"] * thorough)
    assert found[:2] == [f"True {keys}", "ValueError no such colour in sample '07' of in.tar"]
    assert found[2].startswith("in.tar: chunk 1 of 1: was lost by Ray: WorkerCrashedError" * thorough)
    assert found[3:] == ["one"]
    until((tmp_path / "ended").exists)
