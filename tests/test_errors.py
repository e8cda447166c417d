"""What messages say to do."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tartools.errors import how_to_install
from tests.conftest import start


def test_how_to_install_where_this_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert how_to_install("pyarrow", "smart_open[ssh]") == f"{sys.executable} -m pip install pyarrow 'smart_open[ssh]'"
    prefix = tmp_path / "pipx/venvs/tartools"
    prefix.mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(sys, "executable", f"{prefix}/bin/my python")
    assert how_to_install("ray") == f"'{prefix}/bin/my python' -m pip install ray"
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else found(name))
    assert how_to_install("ray") == f"uv pip install --python '{prefix}/bin/my python' ray"
    (prefix / "pipx_metadata.json").touch()
    assert how_to_install("torch", "pyarrow") == "pipx inject tartools torch pyarrow"


def test_the_command_is_one(tmp_path: Path) -> None:
    """As far as that can be told without a network."""
    done = start("sh", "-c", how_to_install("--dry-run", "--no-index", "--no-deps", "pytest"), folder=tmp_path)
    assert done.status == 0 and b"already satisfied: pytest" in done.stdout, done
