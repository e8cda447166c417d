"""stream_map on a Ray cluster: what is lost there is done again; errors; an early end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, Run, make_tar
from tests.processes import PATIENCE, until
from tests.run.conftest import Cluster, without_ray
from tests.tiers import exhaustive, in_both
from tests.train.losing import archive, lose_two


@exhaustive
def test_two_of_four_workers_are_killed(
    tmp_path: Path, cluster: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All results come exactly once, in order and as they are ready."""
    monkeypatch.chdir(tmp_path)
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

def say(*words):
    with open("said", "a") as said:  # Ray prints what it likes
        print(*words, file=said)

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
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "program.py", *["thorough"] * thorough],
        cwd=tmp_path,
        env=without_ray() | {"RAY_ADDRESS": cluster.address, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0 and "Exception ignored" not in done.stderr, done.stderr
    keys = [f"{n:02d}" for n in range(7)]
    said = (tmp_path / "said").read_text().splitlines()
    assert said[:2] == [f"True {keys}", "ValueError no such colour in sample '07' of in.tar"]
    assert said[2].startswith("in.tar: chunk 1 of 1: was lost by Ray: WorkerCrashedError" * thorough)
    assert said[3:] == ["one"]
    until((tmp_path / "ended").exists)
