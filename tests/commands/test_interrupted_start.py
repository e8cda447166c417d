"""SIGINT while a command is imported ends it as it ends other programs: silently, and a shell sees 130."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.test_every_command import COMMANDS
from tests.conftest import BIN, clean_environment
from tests.tiers import in_both

# A finder of modules that finds nothing, but sends the signal when the module AT is looked for.
SENDER = """
import os, sys

class Sender:
    def find_spec(name, path=None, target=None):
        if name == os.environ.get("AT"):
            os.kill(os.getpid(), 2)

sys.meta_path.insert(0, Sender)
"""
MODULES = ("tartools.cli", "tartools.cli.optionvalues", "tartools.storage", "tartools.samples.account")


def interrupted(command: list[str], at: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run *command* with SIGINT at the import of *at*."""
    (folder / "sitecustomize.py").write_text(SENDER)
    environment = clean_environment() | {"PYTHONPATH": str(folder), "AT": at}
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", COMMANDS)
@in_both
def test_a_command_dies_of_it(name: str, thorough: bool, tmp_path: Path) -> None:
    """At the import of its own module, and of others: of all of them, or of one."""
    own, number = f"tartools.commands.{name}", list(COMMANDS).index(name)
    for at in (own, *MODULES, "nothing") if thorough else (own, MODULES[number % len(MODULES)]):
        done = interrupted([str(BIN / name), "--version"], at, tmp_path)
        if at == "nothing":
            assert (done.returncode, done.stderr) == (0, "")
        else:
            assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", ""), at


@pytest.mark.parametrize("start", [[str(BIN / "tartools")], [sys.executable, "-m", "tartools"]], ids=["script", "-m"])
def test_tartools_dies_of_it(start: list[str], tmp_path: Path) -> None:
    for at in ("pkgutil", "tartools.commands.tarcat", "tartools.cli"):
        done = interrupted([*start, "tarcat", "--version"], at, tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", ""), at


def test_a_shell_sees_130(tmp_path: Path) -> None:
    line = f"{BIN / 'tarcat'} --version; echo $?"
    assert interrupted(["bash", "-c", line], "tartools.cli", tmp_path).stdout == "130\n"


def test_what_is_ignored_stays_ignored(tmp_path: Path) -> None:
    line = f"trap '' INT; {BIN / 'tarcat'} --version; echo $?"
    done = interrupted(["bash", "-c", line], "tartools.cli", tmp_path)
    assert (done.stdout.splitlines()[-1], done.stderr) == ("0", "")


@pytest.mark.parametrize("script", ["program.py", "tarball.py", "report"])
def test_a_program_that_imports_us_keeps_its_handler(script: str, tmp_path: Path) -> None:
    (tmp_path / script).write_text(
        "import signal, tartools\n"
        "from tartools.commands.tarcat import tarcat\n"
        "tartools.read\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
    )
    done = interrupted([sys.executable, str(tmp_path / script)], "nothing", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
