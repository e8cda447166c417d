"""The room itself: its names, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tartools.train


def test_importing_the_room_imports_no_torch() -> None:
    program = "import sys, tartools.train; print(sorted({'torch', 'numpy', 'pyarrow', 'webdataset'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_every_name_is_there() -> None:
    for name in tartools.train.__all__:
        assert getattr(tartools.train, name).__name__.split(".")[-1] == name and name in dir(tartools.train)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tartools.train.nothing  # noqa: B018
