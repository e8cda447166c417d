"""A Ray cluster for the tests of tarjob, and tarjob without the settings of whoever runs the tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, Result, Run, clean_environment
from tests.processes import PATIENCE

FRUGAL = {"RAY_enable_metrics_collection": "0", "RAY_USAGE_STATS_ENABLED": "0"}  # a node starts in three quarters


class Cluster:
    """Three nodes of Ray's at *address*, with 1, 2 and 2 cores."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._orders, self._answers = process.stdin, process.stdout
        self.address = self._answer()

    def lose_a_node(self) -> None:
        """Kill a node that is not the head, with all that runs there."""
        self._orders.write("\n")
        self._orders.flush()
        self._answer()

    def replace_it(self) -> None:
        """Wait until there are three nodes again."""
        self._answer()

    def _answer(self) -> str:
        line = self._answers.readline()
        assert line, "the cluster has ended"
        return line.strip()


@contextmanager
def started(others: int, **environment: str) -> Iterator[Cluster]:
    """Give a cluster of a head and *others*, started with *environment*. At the end nothing of it is left."""
    folder = tempfile.mkdtemp(prefix="r", dir="/tmp")  # the names of sockets are short
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.run.nodes", str(others)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env=without_ray() | {"RAY_TMPDIR": folder} | FRUGAL | environment,
    )
    try:
        yield Cluster(process)
    finally:
        process.communicate(timeout=PATIENCE)  # the end of its stdin ends it
        shutil.rmtree(folder)


def records(log: Path) -> list[dict[str, Any]]:
    """Return the lines of *log* that say how an item ended."""
    said = [json.loads(line) for line in log.read_text().splitlines()]
    return [each for each in said if each["status"] != "waiting"]


def without_ray() -> dict[str, str]:
    """Return the environment without settings of Ray's, and with the installed commands first in PATH."""
    return {name: value for name, value in clean_environment().items() if not name.startswith("RAY_")}


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Give the Ray cluster of all tests; its `address` is for --address, or RAY_ADDRESS.

    One worker runs all tests that use it: see `tests.schedule`.
    """
    with started(2) as cluster:
        yield cluster


@pytest.fixture
def tarjob(run: Run) -> Callable[..., Result]:
    """Return a function that runs tarjob in `tmp_path`, with RAY_ADDRESS unset unless *env* has it."""

    def tarjob(*arguments: object, **options: object) -> Result:
        return run("tarjob", *arguments, **options)

    return tarjob


@pytest.fixture(autouse=True)
def _here_without_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go to `tmp_path`, and unset what somebody has set for a Ray of theirs."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("RAY_"):
            monkeypatch.delenv(name)
