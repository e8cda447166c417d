"""The room itself: its names, and what importing it costs."""

from __future__ import annotations

import pytest

import tartools.train
from tests.conftest import python
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
    hint = "tartools.train.{} needs torch: pip install 'tartools[train]'"
    without = ("checkpoint", "chosen")
    said = [hint.format(name) for name in tartools.train.__all__ if name not in without]
    assert (done.status, done.stdout.decode().splitlines()) == (0, said)
