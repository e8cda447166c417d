"""`tartools skill`: it names every command, and no option that does not exist; its recipes run."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from tartools import commands
from tests.conftest import Run, keys_in, start

MAX_PAGE_BYTES = 10_000


@pytest.fixture
def page(run: Run) -> str:
    return run("tartools", "skill").output().decode()


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def test_it_has_a_head_and_is_one_page(page: str) -> None:
    assert re.match(r"---\nname: tartools\ndescription: [^:]+\n---\n\n# tartools\n", page)
    assert len(page.encode()) < MAX_PAGE_BYTES


def test_it_names_every_command_with_its_summary(page: str) -> None:
    for name in (*commands.names(), *commands.BUILTINS):
        shown = f"tartools {name}" if name in commands.BUILTINS else name
        assert f"- `{shown}`: {commands.load(name).summary}\n" in page


def options_in(line: str) -> list[tuple[str, str]]:
    """Return (command, option) for the options of tartools' commands in a line of the shell."""
    found, name = [], ""
    for word in shlex.split(line.replace("|", " | ").replace(";", " ; "), posix=True):
        if word in commands.names():
            name = word
        elif word in ("|", ";", "--"):
            name = ""
        elif name and word.startswith("-") and word != "-":
            found.append((name, word))
    return found


def test_no_option_is_named_that_does_not_exist(page: str) -> None:
    spelled = {
        name: {spelling for option in commands.load(name).parameters.values() for spelling in option.names}
        for name in commands.names()
    }
    used = [pair for block in blocks(page, "sh") for line in block.splitlines() for pair in options_in(line)]
    assert len(used) > 20
    assert [(name, option) for name, option in used if option not in spelled[name]] == []
    every = set().union(*spelled.values())
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    assert {*re.findall(r"(?<![\w-])--?[a-z][\w-]*", prose, re.IGNORECASE)} <= every | {"-o", "-S"}


def test_the_ten_recipes_run_in_the_demo(page: str, shell: Run, tmp_path: Path) -> None:
    (lines,) = blocks(page, "sh")
    assert [int(number) for number in re.findall(r"^# (\d+)\. ", lines, re.MULTILINE)] == list(range(1, 11))
    demo = tmp_path / "shapes"
    assert start(sys.executable, "-m", "tartools", "demo", demo).status == 0
    done = shell(f"cd shapes\nset -eo pipefail\n{lines}")
    assert done.status == 0, done.stderr
    assert len(keys_in((demo / "chosen.tar").read_bytes())) == 20
    assert len(keys_in((demo / "others.tar").read_bytes())) == 40
    assert len([*demo.glob("small/*.tar")]) == 4 and (demo / "train.parquet").is_file()


def test_the_program_runs(page: str, shell: Run, tmp_path: Path) -> None:
    demo = tmp_path / "shapes"
    assert start(sys.executable, "-m", "tartools", "demo", demo).status == 0
    (program,) = blocks(page, "python")
    printed = start(sys.executable, "-c", program, folder=demo).output().decode()
    assert printed.splitlines()[0] == "(16, 3, 224, 224) torch.int64"
