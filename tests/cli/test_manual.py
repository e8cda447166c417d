"""Man pages and completions: fresh, clean, and true to the declarations."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import pytest

from tartools import cli
from tartools.cli import manual
from tartools.commands import _manual, load, names
from tartools.samples.account import Account
from tests.conftest import BIN, ROOT, Run, make_tar, start

NAMES = names()
PAGES = sorted((ROOT / "man").glob("man*/*"))
BASH, ZSH, FISH = (sorted((ROOT / "completions" / shell).iterdir()) for shell in ("bash", "zsh", "fish"))


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not shutil.which(program), reason=f"{program} is not installed")


def output_of(*command: object) -> str:
    """Return what *command* prints, on stdout and stderr, with ours in PATH: fish completes only what is there."""
    done = start(*command)
    return done.stdout.decode() + done.stderr


def made() -> cli.Command:
    """Return a command with one option of each kind."""

    def tarmake(
        *,
        account: Account,
        source: cli.Inputs,
        needed: Annotated[str, cli.Option("-o --needed URL", "It's [needed]: a\\b.")],
        mood: Annotated[Literal["good", "bad"], cli.Option("--mood", "How it is.")] = "good",
        kind: Annotated[Literal["x", "y"] | None, cli.Option("-k --kind", "What kind.")] = None,
        number: Annotated[int, cli.Option("--number N", "How many.", minimum=1)] = 3,
        folder: Annotated[str | None, cli.Option("--folder DIR", "Where.")] = None,
    ) -> None:
        """Do nothing."""

    return cli.command("Make.\n\n.5 of it\n\n  a  b\n\nExamples:\n  Count:\n    tarmake 'a' | wc\n")(tarmake)


def test_everything_generated_is_fresh() -> None:
    assert manual.stale_files(ROOT, _manual.generate_files()) == []


def test_check_names_what_is_stale(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert start(sys.executable, "-m", "tartools.commands._manual", tmp_path).status == 0
    files, folder = _manual.generate_files(), str(tmp_path)
    assert manual.main([folder, "--check"], files) == 0
    (tmp_path / "man/man1/tarcat.1").write_text("old")
    (tmp_path / "completions/zsh/_tarold").write_text("of a command that has gone")
    assert manual.main([folder, "--check"], files) == 1
    said = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in said] == ["completions/zsh/_tarold", "man/man1/tarcat.1"]
    assert (tmp_path / "man/man1/tarcat.1").read_text() == "old"
    assert manual.main([folder], files) == 0
    assert manual.stale_files(tmp_path, files) == [] and not (tmp_path / "completions/zsh/_tarold").exists()


def test_the_lists_of_commands_are_written() -> None:
    """In README, pyproject.toml and tartools(7); a file that has lost its list is an error."""
    text = '[project.scripts]\ntartools = "x"\ntarold = "y"\n\n[tool]\n'
    assert manual.update_command_list(text, "pyproject.toml", {"tarmake": "Make."}) == (
        '[project.scripts]\ntartools = "x"\ntarmake = "tartools.commands.tarmake:tarmake"\n\n[tool]\n'
    )
    for name in manual.COMMAND_LISTS:
        with pytest.raises(ValueError, match=f"{name} has no list of commands"):
            manual.update_command_list("no list\n", name, {"tarmake": "Make."})


def test_options_are_read_from_the_declaration() -> None:
    arguments, options = manual.options_of(made())
    assert [argument.metavar for argument in arguments] == ["[SHARD]..."]
    found = {option.names[-1]: option for option in options}
    said = {name: (option.names, option.metavar, option.help, option.choices) for name, option in found.items()}
    assert said["--needed"] == (("-o", "--needed"), "URL", "It's [needed]: a\\b.", ())
    assert said["--mood"] == (("--mood",), "good|bad", "How it is. Default: good.", ("good", "bad"))
    assert said["--kind"] == (("-k", "--kind"), "x|y", "What kind.", ("x", "y"))
    assert found["--number"].help == "How many. At least 1. Default: 3."
    assert found["--files-from"].repeats and not found["--needed"].repeats
    assert found["--lax"].metavar == "" and found["-h"].names == ("-h",)
    completed = {name: manual.completion_kind(option) for name, option in found.items()}
    assert (completed["--needed"], completed["--folder"], completed["--number"]) == (
        manual.COMPLETES_FILES,
        manual.COMPLETES_DIRECTORIES,
        manual.COMPLETES_NOTHING,
    )


def test_a_page_has_its_parts_in_order() -> None:
    page = manual.man_page(made(), NAMES)
    parts = "NAME, SYNOPSIS, DESCRIPTION, OPTIONS, SHARED OPTIONS, EXIT STATUS, ENVIRONMENT, EXAMPLES, SEE ALSO"
    assert ", ".join(re.findall(r"^\.SH (.*)$", page, re.MULTILINE)) == parts
    assert "\n\\&.5 of it\n" in page
    assert "\n.nf\n.RS 4\na  b\n.RE\n.fi\n" in page
    assert "\nCount:\n.nf\n.RS 4\ntarmake \\(aqa\\(aq | wc\n.RE\n.fi\n" in page
    own, shared = page.partition(".SH OPTIONS")[2].split(".SH SHARED OPTIONS")
    assert "needed" in own and "quiet" in shared and "SHARD" in own and "quiet" not in own
    assert "a\\eb" in page
    assert r"\fB\-k\fR, \fB\-\-kind\fR \fIx|y\fR" in page


def test_the_page_of_tarcat_tells_of_the_other_tarcat() -> None:
    text = (ROOT / "man/man1/tarcat.1").read_text().replace("\\-", "-")
    assert "/usr/sbin/tarcat" in text and "python -m tartools tarcat" in text


@pytest.mark.parametrize("name", NAMES)
def test_page_and_completions_have_every_option_that_help_has(name: str, run: Run) -> None:
    text = run(name, "--help", env={"COLUMNS": "200"}).stdout.decode().partition("\nOptions:\n")[2]
    spelled = {
        one
        for line in re.findall(r"^  (-.*?)(?:  |$)", text, re.MULTILINE)
        for one in re.findall(r"(?<!\S)-[-\w]+", line)
    }
    declared = {name for option in manual.options_of(load(name))[1] for name in option.names}
    assert spelled == declared


@needs("mandoc")
def test_pages_are_clean(tmp_path: Path) -> None:
    """One with every kind of option, too."""
    (tmp_path / "tarmake.1").write_text(manual.man_page(made(), NAMES))
    assert output_of("mandoc", "-T", "lint", "-W", "warning", *PAGES, tmp_path / "tarmake.1") == ""


@needs("shellcheck")
def test_bash_completions_are_clean(tmp_path: Path) -> None:
    (tmp_path / "tarmake").write_text(manual.bash_completion(made()))
    assert output_of("shellcheck", "-s", "bash", *BASH, tmp_path / "tarmake") == ""


def complete(file: Path, name: str, words: Sequence[str]) -> list[str]:
    """Return what bash offers for the last of *words*."""
    program = (
        'source "$1"; name=$2; shift 2; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
        '"_tartools_$name"; printf "%s\\n" "${COMPREPLY[@]}"; complete -p "$name" >/dev/null'
    )
    return start("bash", "-c", program, "bash", file, name, *words, env={**os.environ}).output().decode().split()


def test_bash_completes(tmp_path: Path) -> None:
    file = tmp_path / "tarmake"
    file.write_text(manual.bash_completion(made()))
    assert complete(file, "tarmake", ["tarmake", "--ki"]) == ["--kind"]
    assert complete(file, "tarmake", ["tarmake", "--mood", ""]) == ["good", "bad"]
    assert complete(file, "tarmake", ["tarmake", "-k", "x"]) == ["x"]
    assert complete(file, "tarmake", ["tarmake", "--number", "-"]) == []
    assert complete(file, "tarmake", ["tarmake", "a"]) == []  # readline's own: names of files


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """An archive, of whose fields two are such as one would type."""
    path = tmp_path / "a b.tar"
    names = ("v1.0/n01.jpg", "v1.0/n01.seg.png", ".hid.den", "README", "n02.jpg", "n02.$(touch gotcha)", "n03.x;y")
    path.write_bytes(make_tar([(name, b"") for name in names]))
    return path


def test_bash_completes_fields(shard: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = ROOT / "completions/bash/tar2tsv"
    assert complete(file, "tar2tsv", ["tar2tsv", str(shard), "-f", ""]) == ["jpg", "seg.png"]
    assert complete(file, "tar2tsv", ["tar2tsv", str(shard), "--fields", "s"]) == ["seg.png"]
    assert complete(file, "tar2tsv", ["tar2tsv", "no.tar", "-f", ""]) == []
    assert complete(ROOT / "completions/bash/tarsort", "tarsort", ["tarsort", str(shard), "-s", "j"]) == ["jpg"]
    monkeypatch.setenv("HOME", str(shard.parent))
    monkeypatch.chdir(shard.parent)
    for typed in (r"a\ b.tar", "'a b.tar'", '"a b.tar"', r"~/a\ b.tar", "~/'a b.tar'"):
        assert complete(file, "tar2tsv", ["tar2tsv", typed, "-f", "s"]) == ["seg.png"], typed
    assert not (shard.parent / "gotcha").exists()


@pytest.fixture
def table(run: Run, shard: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table with fields and columns, one of which nobody would type. The commands are in PATH."""
    members = [("a.jpg", b"1"), ("a.json", b'{"score": 1}'), ("a.cls", b"1")]
    (shard.parent / "a.tar").write_bytes(make_tar(members))
    spec = "cls json:score $(touch${IFS}gotcha)=cls"
    assert run("tarindex", "-f", spec, "a.tar", "-o", "a b.parquet").status == 0
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(shard.parent)
    return shard.parent / "a b.parquet"


OFFERED = ["cls", "jpg", "json", "json:score"]  # of the table


def test_bash_completes_columns(table: Path) -> None:
    for name, option, typed, offered in (("tar2tsv", "-f", "", OFFERED), ("tarsort", "-s", "js", OFFERED[2:])):
        assert complete(ROOT / "completions/bash" / name, name, [name, str(table), option, typed]) == offered
    assert not (table.parent / "gotcha").exists()


@pytest.mark.parametrize("what", ["damaged", "without pyarrow", "without tartools"])
def test_bash_is_silent_if_columns_cannot_be_read(what: str, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if what == "damaged":
        table.write_bytes(table.read_bytes()[:500])
    elif what == "without pyarrow":
        (table.parent / "pyarrow.py").write_text("raise ImportError\n")
        monkeypatch.setenv("PYTHONPATH", str(table.parent))
    else:
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert complete(ROOT / "completions/bash/tar2tsv", "tar2tsv", ["tar2tsv", str(table), "-f", ""]) == []


def by_fish(program: str) -> list[str]:
    """Return what fish offers at the end of *program*, without descriptions."""
    return [line.split("\t")[0] for line in output_of("fish", "--no-config", "-c", program).splitlines()]


def fields_of(word: str, shell: str) -> list[str]:
    """Return what *shell* offers for `-f` of tar2tsv behind *word*, as it is typed."""
    if shell == "fish":
        return by_fish(f"source '{ROOT}/completions/fish/tar2tsv.fish'; complete -C \"tar2tsv {word} -f \"")
    program = (  # the completion system is not there in a script: what would be offered is printed
        "_arguments() { :; }; compdef() { :; }; compadd() { shift; print -l -- $@; }; "
        'source "$1"; words=(tar2tsv "$2" -f ""); _tartools_fields'
    )
    return output_of("zsh", "-f", "-c", program, "zsh", ROOT / "completions/zsh/_tar2tsv", word).split()


@pytest.mark.parametrize("shell", [pytest.param(name, marks=needs(name)) for name in ("zsh", "fish")])
def test_other_shells_complete_fields_and_columns(shell: str, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(table.parent))
    assert fields_of(f"'{table}'", shell) == OFFERED
    for typed in (f"'{table.parent}/a b.tar'", *(["~/'a b.tar'"] if shell == "fish" else ["~/a\\ b.tar"])):
        assert fields_of(typed, shell) == ["jpg", "seg.png"]
    assert shell == "fish" or fields_of(f"{table.parent}/a\\ b.tar", shell) == ["jpg", "seg.png"]


COMPLETED = [  # words behind tartools, the last of them to be completed; what is offered
    (["tarc"], ["tarcat", "tarcheck", "tarcreate"]),
    (["tarcat", "--shu"], ["--shuffle"]),
    (["tarsort", "--sort-type", "fl"], ["float"]),
    (["completion", "z"], ["zsh"]),
    (["man", "tarc"], ["tarcat", "tarcheck", "tarcreate"]),
    (["tar2tsv", "{shard}", "-f", "s"], ["seg.png"]),
]


@pytest.mark.parametrize("shell", ["bash", pytest.param("fish", marks=needs("fish"))])
@pytest.mark.parametrize(("words", "offered"), COMPLETED)
def test_what_follows_tartools_is_completed(shell: str, words: list[str], offered: list[str], shard: Path) -> None:
    place = f"'{shard}'" if shell == "fish" else shard
    typed = ["tartools", *(word.format(shard=place) for word in words)]
    if shell == "bash":
        assert complete(ROOT / "completions/bash/tartools", "tartools", typed) == offered
    else:
        program = f'set -p fish_complete_path {ROOT}/completions/fish; complete -C "{" ".join(typed)}"'
        assert by_fish(program) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_the_command_prints_switches_completion_on(shell: str, tmp_path: Path) -> None:
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    lines = output_of(BIN / "tartools", "completion", shell)
    assert lines.startswith("# Add these lines to ~/.") and f"start a new {shell}:" in lines
    program, options = {
        "bash": ("complete -p tartools tarcat", ["--norc"]),
        "zsh": ("print $_comps[tartools] $_comps[tarcat]", ["-f"]),
        "fish": ("complete -C 'tarcat --shu'", ["--no-config"]),
    }[shell]
    found = output_of("env", f"HOME={tmp_path}", shell, *options, "-c", f"{lines}\n{program}").split()
    expected = {"bash": "_tartools_tartools", "zsh": "_tartools", "fish": "--shuffle"}[shell]
    assert expected in found


def test_bash_completions_load() -> None:
    for file in BASH:
        assert "--help" in complete(file, file.name, [file.name, "--h"]), file


@needs("zsh")
def test_zsh_completions_load() -> None:
    program = f'fpath=("{ROOT}/completions/zsh" $fpath); autoload -Uz compinit; compinit -D -u\n'
    for file in ZSH:
        assert output_of("zsh", "-n", file) == ""
        program += f"autoload +X {file.name} && print $_comps[{file.name.removeprefix('_')}]\n"
    assert output_of("zsh", "-f", "-c", program).split() == [file.name for file in ZSH]


@needs("fish")
def test_fish_completions_load_and_complete() -> None:
    program = "".join(f"source '{file}'; complete -C '{file.stem} --hel'\n" for file in FISH)
    assert by_fish(program) == ["--help"] * len(FISH)


@needs("fish")
def test_fish_completes_choices(tmp_path: Path) -> None:
    (tmp_path / "tarmake.fish").write_text(manual.fish_completion(made()))
    assert {*by_fish(f"source '{tmp_path}/tarmake.fish'; complete -C 'tarmake --mood '")} == {"good", "bad"}
