"""The room itself: its names, and what importing it costs."""

from __future__ import annotations

import pytest

import tartools.train
from tartools.errors import how_to_install
from tests.conftest import ROOT, python
from tests.schedule import needs_torch


def test_importing_the_room_imports_no_torch() -> None:
    program = "import sys, tartools.train; print(sorted({'torch', 'numpy', 'pyarrow', 'webdataset'} & {*sys.modules}))"
    assert python(program) == (0, b"[]\n", "")


@needs_torch
def test_every_name_is_there() -> None:
    for name in tartools.train.__all__:
        assert getattr(tartools.train, name).__name__.split(".")[-1] == name and name in dir(tartools.train)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tartools.train.nothing  # noqa: B018


def test_without_torch_each_name_says_what_to_install() -> None:
    program = """
import sys, tartools.train
sys.modules["torch"] = None
for name in tartools.train.__all__:
    try:
        getattr(tartools.train, name)
    except ModuleNotFoundError as error:
        print(error)
"""
    done = python(program)
    hint = f"tartools.train.{{}} needs torch: {how_to_install('torch')}"
    without = ("checkpoint",)
    said = [hint.format(name) for name in tartools.train.__all__ if name not in without]
    assert (done.status, done.stdout.decode().splitlines()) == (0, said)


def test_without_torch_its_tests_are_skipped_and_say_so() -> None:
    program = "import sys, pytest; sys.modules['torch'] = None; sys.exit(pytest.main(sys.argv[1:]))"
    paths = ["tests/train/test_sampler.py", "tests/train/test_cache.py", "tartools/train/tabledataset.py"]
    done = python(program, "-q", "-p", "no:cacheprovider", *paths, folder=ROOT)
    said = [line for line in done.stdout.decode().splitlines() if line.startswith("SKIPPED")]
    assert done.status == 0 and all(line.endswith(": needs torch") for line in said), done.stdout
    assert [line.split()[2].partition(":")[0] for line in said] == [paths[0], paths[2], paths[1], paths[1]]
