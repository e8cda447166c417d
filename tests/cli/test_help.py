"""Help: `-h` fits two screens, `--help` has everything, and neither is wider than a terminal of 80 columns."""

from __future__ import annotations

import re

import pytest

from tartools import commands
from tests.conftest import Run

SCREENS_LINES, COLUMNS = 48, 80  # two terminals of 24 lines
ALL = [*commands.names(), *commands.BUILTINS]


def help_of(name: str, option: str, run: Run, columns: int = COLUMNS) -> list[str]:
    words = ["tartools", name] if name in commands.BUILTINS else [name]
    return run(*words, option, env={"COLUMNS": str(columns)}).output().decode().splitlines()


def examples_in(manual: str) -> list[str]:
    """Return the examples of a docstring: a purpose and command lines each."""
    return [f"  {text.rstrip()}" for text in re.split(r"^  (?=\S)", manual, flags=re.MULTILINE)[1:]]


@pytest.mark.parametrize("option", ["-h", "--help"])
@pytest.mark.parametrize("name", ALL)
def test_no_line_is_wider_than_a_terminal(name: str, option: str, run: Run) -> None:
    for columns in (COLUMNS, 200):
        assert [line for line in help_of(name, option, run, columns) if len(line) > COLUMNS] == []


@pytest.mark.parametrize("name", ALL)
def test_the_short_help_fits_two_screens(name: str, run: Run) -> None:
    """It has the usage, the summary, each option, and the first two examples as the docstring has them."""
    command = commands.load(name)
    lines = help_of(name, "-h", run)
    assert len(lines) <= SCREENS_LINES
    assert lines[0].startswith(f"Usage: {command.name} [OPTIONS]") and lines[2] == f"  {command.summary}"
    text = "\n".join(lines)
    for option in command.parameters.values():
        if option.name not in ("version", "usage", "help"):
            assert all(re.search(rf"(?<![\w-]){re.escape(word)}(?!\w)", text) for word in option.names), option.names
    examples = examples_in(command.manual.partition("\nExamples:\n")[2])
    shown = text.partition("  Examples:\n")[2]
    flat = [line.strip() for line in shown.splitlines()]
    wanted = [line.strip() for example in examples[:2] for line in example.splitlines()]
    assert len(examples) >= 2 and flat[: len(wanted)] == wanted and flat[len(wanted)] == ""
    assert f"{command.name} --help" in text


@pytest.mark.parametrize("name", ALL)
def test_all_help_has_every_option_and_all_of_the_docstring(name: str, run: Run) -> None:
    command = commands.load(name)
    text = "\n".join(help_of(name, "--help", run))
    squeezed = re.sub(r"\s", "", text)  # Typer fills lines, and breaks them at hyphens too
    assert [line for line in command.manual.splitlines() if re.sub(r"\s", "", line) not in squeezed] == []
    for option in command.parameters.values():
        assert all(spelled in text for spelled in option.names)


def test_commands_of_tartools_itself_have_no_progress_and_no_totals(run: Run) -> None:
    ends = {"--progress": "", "-v": "--verbose", "-q": "--quiet"}
    for name in commands.BUILTINS:
        for option, elsewhere in ends.items():
            done = run("tartools", name, option)
            assert (done.status, done.stdout) == (2, b"")
            hint = f"; elsewhere it is {elsewhere}, and there is no such option here" if elsewhere else ""
            assert done.stderr == f"tartools {name}: No such option: {option}{hint} (see tartools {name} --help)\n"


def test_the_cache_takes_a_url_only_to_clear_it(run: Run) -> None:
    done = run("tartools", "cache", "s3://bucket/a.tar")
    assert (done.status, done.stderr) == (
        2,
        "tartools cache: URL goes with --clear (see tartools cache --help)\n",
    )
