"""`tartools man`: pages as plain text, in a pipe and without man; man(1) on a terminal. Lines about installation."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tartools import commands
from tartools.cli import installation, manual, plainpage
from tests.conftest import ROOT, Run
from tests.processes import on_terminal

PAGES = sorted(ROOT.glob("man/man*/*"))
SCRIPT = [sys.executable, "-m", "tartools", "man"]


def words_of(text: str) -> list[str]:
    """Return the words of a page without its running title and footer, and without typography."""
    return text.translate({0x2212: "-", 0x2010: "-", 0x201C: '"', 0x201D: '"', 0x2018: "'", 0x2019: "'"}).split()


@pytest.mark.skipif(not shutil.which("mandoc"), reason="mandoc is not installed")
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_plain_text_has_the_words_that_mandoc_shows(path: Path) -> None:
    page = re.sub(r"^\.TS\n.*?^\.TE\n", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)  # mandoc draws rules
    line = ["mandoc", "-T", "utf8", "-O", "width=200"]
    shown = subprocess.run(line, input=page, capture_output=True, text=True, check=True).stdout
    plain = re.sub(r".\x08", "", shown)  # bold and underlined letters
    assert words_of(plainpage.plain_text(page, 80)) == words_of("\n".join(plain.splitlines()[1:-1]))


def test_no_line_is_wider_than_asked_except_literal_ones() -> None:
    page = ".SH NAME\nx \\- " + "word " * 60 + "\n.nf\n" + "y" * 50 + "\n.fi\n.TP\n\\fB\\-v\\fR\nmore\n"
    lines = plainpage.plain_text(page, 40).splitlines()
    assert [line for line in lines if len(line) > 40] == ["    " + "y" * 50]
    assert lines[-2:] == ["    -v", "        more"]


def test_a_table_of_a_page() -> None:
    page = ".TS\nl l.\na\tb\n_\nlong\tc\n.TE\n"
    assert plainpage.plain_text(page, 80) == "    a     b\n    long  c\n"


def test_a_page_in_a_pipe_is_text(run: Run) -> None:
    shown = run("tartools", "man", "tarsort", env={"COLUMNS": "70"}).output().decode()
    assert shown == plainpage.plain_text((ROOT / "man/man1/tarsort.1").read_text(), 70)
    overview = run("tartools", "man", env={"COLUMNS": "500"}).output().decode()
    assert overview.startswith("NAME\n    tartools - ") and max(map(len, overview.splitlines())) <= 110


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tarsrot"], "no command is called 'tarsrot'; did you mean tarsort"),
        (["x"], "no command is called 'x'; there are tartools, tar2folder, "),
        (["demo"], "demo has no man page; write tartools demo --help"),
    ],
)
def test_a_name_without_a_page(words: list[str], message: str, run: Run) -> None:
    done = run("tartools", "man", *words)
    assert (done.status, done.stdout) == (2, b"") and done.stderr.startswith(f"tartools man: {message}")


def test_pages_that_are_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(plainpage.sys, "prefix", str(tmp_path))
    monkeypatch.setattr(plainpage, "__file__", str(tmp_path / "a/b/c.py"))
    monkeypatch.setattr("importlib.metadata.files", lambda name: None)
    assert plainpage.find_page("tarcat") is None


def test_on_a_terminal_man_shows_the_page(tmp_path: Path) -> None:
    (tmp_path / "man").write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    (tmp_path / "man").chmod(0o755)
    done = on_terminal([*SCRIPT, "tarcat"], tmp_path, env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    option = b"<-l>" if sys.platform == "linux" else b""
    assert (done.status, done.stderr) == (0, "")
    assert done.stdout.startswith(option + b"</") and done.stdout.endswith(b"/man1/tarcat.1>")


def test_on_a_terminal_without_man_the_text_is_shown(tmp_path: Path) -> None:
    done = on_terminal([*SCRIPT, "tarcat"], tmp_path, env={"PATH": str(tmp_path)})
    assert (done.status, done.stderr) == (0, "")
    text = plainpage.plain_text((ROOT / "man/man1/tarcat.1").read_text(), 80)
    assert done.stdout.decode().replace("\r\n", "\n").split() == text.split()


# ---- how to install: in one place ----


# the beginnings of lines that install what needs a clone in any case: the tests, and the benchmark beside other loaders
ALWAYS_IN_A_CLONE = ("python3 -m venv .venv", ".venv/bin/pip", "python -m venv peers/")


def made_lines(text: str) -> list[str]:
    """Return the lines of *text* that `installation` makes."""
    lines = [match[0] for match in installation.PAGE_LINE.finditer(text)]
    return lines + [match[0] for match in installation.MANUAL_LINE.finditer(text)]


def test_pages_say_how_to_install_in_made_lines_only() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *PAGES]
    every = {path: path.read_text() for path in pages if "adr" not in path.parts}
    assert sum(len(made_lines(text)) for text in every.values()) >= 12
    for path, text in every.items():
        for line in made_lines(text):
            text = text.replace(line, "")
        left = re.findall(r".*(?:pip|pipx|uv tool|uv pip) install .*(?:tartools\[|'?\.\[|tartools\b).*", text)
        assert [line for line in left if not line.lstrip("$> ").startswith(ALWAYS_IN_A_CLONE)] == [], path


def test_one_switch_changes_all_pages() -> None:
    for text in manual_files().values():
        in_clone, published = (installation.with_install_lines(text, published=switch) for switch in (False, True))
        assert text == (published if installation.PUBLISHED else in_clone)
        for line in made_lines(in_clone):
            assert ".[" in line or "install ." in line
        for line in made_lines(published):
            assert "tartools" in line and ".[" not in line and "clone" not in line
        assert installation.with_install_lines(published, published=False) == in_clone


def manual_files() -> dict[str, str]:
    """Return the generated pages by path."""
    made = manual.generated_files([commands.load(name) for name in commands.names()], [])
    return {name: text for name, text in made.items() if name.endswith((".md", ".7"))}


def test_the_sentences() -> None:
    assert installation.install_sentence("train", published=False) == (
        "Install: in a clone of tartools, `pip install '.[train]'`, into the environment in which you train."
    )
    assert installation.install_sentence("hf", published=True).startswith("Install: `pipx install 'tartools[hf]'` (or")
    assert installation.requirement(".", published=True) == "tartools"
