"""The parser of command lines: it gives what Typer would give, and says what Typer would say."""

from __future__ import annotations

import inspect
import os
import re
import string
from collections import defaultdict
from typing import Annotated, Any

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.core import TyperCommand

from tartools.cli import Command, declare
from tartools.cli.declare import REQUIRED, Declared
from tartools.cli.options import MAX_DEFAULT_WORKERS, count_workers, implicit_workers
from tartools.cli.parse import LETTERS, LETTERS_ELSEWHERE, parse
from tartools.cli.plainpage import plain_text
from tartools.commands import load, names
from tests.conftest import ROOT, python
from tests.tiers import in_both

COMMANDS = {name: load(name) for name in names()}
GOOD = {
    "FORMAT": "csv",
    "LO:HI:STEP": "1:9:2",
    "BYTES": "1e9",
    "SECONDS": "2.5",
    "N": "3",
    "K": "4",
    "SHARE": "0.1",
    "LO:HI": "0:.9",
    "BITS": "6",
    "PARTS": "a:0.9,b:0.1",
    "LIST": "0 2",
    "NAME": "gbk",
}
COUNT = Annotated[int, declare.Option("-c N", "Stop after N samples.")]
ODD = [
    "",
    " 7",
    *["-", "--", "-1", "0", "1e3", "1.5", "-x", "--no", "=", "=5", "a=b", "٣", "nan", "inf", "64K", "1:2", "json"],
]


def ours(command: Command, line: list[str], interspersed: bool | None = None) -> dict[str, Any] | str:
    """Return what our parser gives, or says."""
    mixed = command.interspersed if interspersed is None else interspersed
    try:
        given = parse(line, command.parameters.values(), interspersed=mixed)
    except ValueError as error:
        return str(error)
    return "about" if given.keys() & {"usage", "help", "version"} else given


class Strict(TyperCommand):
    """A Typer command that refuses an option given twice, unless it adds up."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for option in order:
            if order.count(option) > 1 and option.nargs == 1 and not getattr(option, "multiple", False):
                raise typer.BadParameter(f"{'/'.join(option.opts)} is given twice")
        return super().parse_args(ctx, args)


def parameter(one: Declared) -> inspect.Parameter:
    """Return the parameter that declares *one* to Typer."""

    def judged(text: str) -> Any:
        try:
            return one.value(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    def about(wanted: bool) -> None:
        if wanted:
            raise typer.Exit

    value: dict[str, Any] = {"parser": None if one.repeats else judged, "metavar": one.metavar}
    flag: dict[str, Any] = {"envvar": one.option.envvar or None, "show_envvar": False}
    flag |= {"is_eager": True, "callback": about} if one.name in ("usage", "version") else {}
    argument = typer.Argument() if not one.names else typer.Option(*one.names, **(flag if one.is_flag else value))
    kind: Any = bool if one.is_flag else list[str] | None if one.repeats else str | None
    default = inspect.Parameter.empty if one.default is REQUIRED else False if one.is_flag else None
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(one.name, keyword, default=default, annotation=Annotated[kind, argument])


def theirs(command: Command, line: list[str]) -> dict[str, Any] | str:
    """Return what Typer gives, or says."""
    given: list[dict[str, Any]] = []
    every = [one for one in command.parameters.values() if one.name != "help"]
    behind = next((one for one in every if one.option.behind and "--" in line), None)

    def values(**options: Any) -> None:
        given.append({name: one for name, one in options.items() if not (one is None or one is False or one == [])})

    parameters = [parameter(one) for one in every if not one.option.behind]
    values.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    values.__annotations__ = {each.name: each.annotation for each in parameters}
    application = typer.Typer(add_completion=False, rich_markup_mode=None)
    settings = {"help_option_names": ["--help"], "allow_interspersed_args": command.interspersed}
    application.command(cls=Strict, context_settings=settings)(values)
    try:
        application(line[: line.index("--")] if behind else line, standalone_mode=False)
    except typer.TyperException as error:
        return str(getattr(error, "format_message", error.__str__)())
    rest = {behind.name: line[line.index("--") + 1 :]} if behind else {}
    return given[0] | rest if given else "about"


def joined(parts: list[list[str]]) -> list[str]:
    return [word for part in parts for word in part]


def good_value(one: Declared) -> str:
    return one.choices[-1] if one.choices else GOOD.get(one.metavar, "word")


@st.composite
def spelled(draw: st.DrawFn, one: Declared, value: st.SearchStrategy[str]) -> list[str]:
    """Return words that give the option *one* a value, in any of the ways there are."""
    name = draw(st.sampled_from(one.option.names))
    if one.is_flag:
        return [name]
    text = draw(value)
    attached = f"{name}={text}" if name.startswith("--") else name + text
    return draw(st.sampled_from([[name, text], [attached]]))


def any_line(command: Command) -> st.SearchStrategy[list[str]]:
    """Lines of all kinds, most of them wrong somewhere."""
    every = [one for one in command.parameters.values() if one.option.names]
    known = st.sampled_from(every).flatmap(lambda one: spelled(one, st.just(good_value(one)) | st.sampled_from(ODD)))
    letters = "".join(name[1] for one in every for name in one.option.names if name[1] != "-")
    bundle = st.text(letters + "Z5=", min_size=1, max_size=4).map(lambda text: [f"-{text}"])
    names = st.sampled_from([name for one in every for name in one.option.names]).map(lambda name: [name])
    word = st.sampled_from(["a.tar", "b", *ODD]).map(lambda text: [text])
    return st.lists(known | known | bundle | word | names, max_size=6).map(joined)


@st.composite
def well_formed(draw: st.DrawFn, command: Command) -> list[str]:
    """Return a line without a mistake: each option at most once, its value good."""
    every = [one for one in command.parameters.values() if one.option.names]
    chosen = draw(st.lists(st.sampled_from(every), unique_by=lambda one: one.name, max_size=8))
    chosen += [one for one in every if one.default is REQUIRED and one not in chosen]
    parts = [draw(spelled(one, st.just(good_value(one)))) for one in chosen]
    single = any(not one.repeats for one in command.parameters.values() if not one.option.names)
    words = draw(st.lists(st.sampled_from(["a.tar", "-", "b c"]), max_size=1 if single else 3))
    behind = draw(st.booleans())
    line = joined(parts)
    return [*line, "--", *words] if behind else [*line, *words]


@pytest.mark.parametrize("name", COMMANDS)
@in_both
def test_the_parser_agrees_with_typer(name: str, thorough: bool) -> None:
    """It takes all that is well formed, or says what Typer says."""
    command = COMMANDS[name]
    wild = st.tuples(any_line(command), st.sampled_from(["", "1", "0", "yes", "maybe"]), st.just(False))
    good = st.tuples(well_formed(command), st.just(""), st.just(True))

    @settings(max_examples=120 if thorough else 18, deadline=None)
    @given(wild | wild | good)
    def agrees(case: tuple[list[str], str, bool]) -> None:
        line, force, well = case
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TARTOOLS_FORCE", force)
            found = ours(command, line)
            assert same(found, theirs(command, line))
        assert not well or found == "about" or not isinstance(found, str)

    agrees()


def same(found: dict[str, Any] | str, values: dict[str, Any] | str) -> bool:
    """Tell whether both parsers gave the same, types included, or said it; other options are likened below."""
    if isinstance(found, dict) and isinstance(values, dict):
        return repr(sorted(found.items())) == repr(sorted(values.items()))  # nan is nan
    said, typers = str(found), str(values).partition(" (Possible")[0].partition(" Did you")[0]
    if said.endswith(" (write a COMMAND with options after --, or in quotes after -c)"):
        letter = typers.removeprefix("No such option: -")  # the word is named, of which Typer names an unknown letter
        return said.startswith(typers) or (len(letter) == 1 and letter in said.split()[3])
    return re.split(r" \(Possible|; (?:here|elsewhere) it is ", said)[0] == typers


def test_a_difference_would_be_seen() -> None:
    line = ["--spec", "a", "tarcat", "-o", "x"]
    command = COMMANDS["tarjob"]
    assert ours(command, line) == theirs(command, line) == {"spec": "a", "words": ["tarcat", "-o", "x"]}
    assert ours(command, line, interspersed=True) != theirs(command, line)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--ratio", "No such option: --ratio"),
        ("--coun", "No such option: --coun (Possible options: --count)"),
        ("--file", "No such option: --file (Possible options: --files-from)"),
        ("--=5", "No such option: --"),
        ("--v", "No such option: --v (Possible options: --verbatim, --verbose, --version)"),
        ("--no-such-option", "No such option: --no-such-option"),
    ],
)
def test_an_unknown_option_is_likened_only_to_near_ones(word: str, message: str) -> None:
    assert ours(COMMANDS["tarcat"], [word, "3"]) == message


def test_words_behind_the_dashes_are_an_argument_of_their_own() -> None:
    line = ["a.tar", "-p2", "--", "-p", "--", "x"]
    expected = {"inputs": ["a.tar"], "parallel": 2, "words": ["-p", "--", "x"]}
    assert ours(COMMANDS["tarproc"], line) == theirs(COMMANDS["tarproc"], line) == expected
    assert ours(COMMANDS["tarcat"], ["--", "-p"]) == {"inputs": ["-p"]}


def test_an_option_is_named_in_messages_as_help_does() -> None:
    assert ours(COMMANDS["tarproc"], ["--keepdir=3"]) == "Option '--keep-dir' does not take a value."
    assert ours(COMMANDS["tarproc"], ["-s", "--keepdir"]) == {"script": "--keepdir"}  # a value is none


def test_whole_numbers() -> None:
    good = {"12": 12, "1e3": 1000, "2.5e1": 25, "5.0": 5, "-3": -3, "1e0": 1, "1_000": 1000}
    assert {text: declare.whole_number(text) for text in good} == good
    for text in ("", "x", "1.5", "1e-1", "nan", "inf", "1e999999999", "0x10", "1e3.5"):
        with pytest.raises(ValueError, match="not a whole number: '"):
            declare.whole_number(text)


def test_annotations_may_be_made_when_they_are_asked_for() -> None:
    """From Python 3.14 on a class has them so (PEP 649), and not among its variables."""
    lazy = type("Lazy", (type,), {"__annotations__": property(lambda _: {"count": COUNT})})
    group = lazy("Some", (declare.Group,), {"count": None})
    assert "__annotations__" not in vars(group) and declare.type_hints(group) == {"count": COUNT}


@pytest.mark.parametrize("name", ["tarcat", "tarsort", "tarsplit", "tar2tsv"])
def test_no_annotation_is_compiled_at_the_start(name: str) -> None:
    """A NamedTuple compiles annotations that are strings: 0.1 ms each class, and 0.7 ms more for the first."""
    program = f"""
import sys, typing
compiled = []
def hook(event, about):
    if event == "compile" and about[1] == "<string>" and not about[0].startswith(b"lambda"):  # namedtuple's own
        compiled.append(about[0])
sys.addaudithook(hook)
import tartools.commands.{name}
sys.exit(str(compiled) if compiled else 0)
"""
    python(program).output()


LETTERS_DECLARED: dict[str, set[str]] = defaultdict(set)  # letter -> the long options that it stands for
for one in (one for command in COMMANDS.values() for one in command.parameters.values()):
    for letter in (name for name in one.names if not name.startswith("--") and name != "-h"):
        LETTERS_DECLARED[letter] |= {name for name in one.names if name.startswith("--") and name != "--jobs"}
ALL_LETTERS = [f"-{letter}" for letter in string.ascii_letters + string.digits]


@pytest.mark.parametrize(
    ("name", "word", "option"),
    [
        ("tarshow", "-n", "-c --count N"),
        ("tarshow", "-n5", "-c --count N"),
        ("tarproc", "-n", "--count N"),
        ("tarproc", "-n5", "--count N"),
        ("tarsort", "-n", "-S --sort-type text|int|float|version|shuffle"),
        ("tarsort", "-k", "-s --sort-key FIELD"),
        ("tarjoin", "-k", "--key-column COLUMN"),
        ("tarcreate", "-k", "--key-column COLUMN"),
        ("tarfirst", "-i", "--index N"),
        ("tarjob", "-s", "--spec ITEMS"),
        ("tarjob", "-n", "--dry-run"),
        ("tarindex", "-j", "-p --parallel N"),
        ("tarbench", "-p", "--workers LIST"),
        ("tarproc", "-P", "-p --parallel N"),
        ("tarfilter", "-e", "-S --select EXPR"),
        ("tarsplit", "-b", "-s --size BYTES"),
        ("tarstat", "-f", "--classes NAMES"),
        ("tarcheck", "-u", "--drop-duplicates"),
    ],
)
def test_a_letter_of_another_program_leads_to_the_option_here(name: str, word: str, option: str) -> None:
    assert ours(COMMANDS[name], [word, "5"]) == f"No such option: {word[:2]}; here it is {option}"


def test_a_letter_without_a_counterpart_is_explained() -> None:
    assert ours(COMMANDS["tarcat"], ["-k", "5"]) == (
        "No such option: -k; elsewhere it is --key, and there is no such option here"
    )
    assert ours(COMMANDS["tarls"], ["-s", "5"]) == (
        "No such option: -s; elsewhere it is --sort-key or --size or --script, and there is no such option here"
    )
    assert ours(COMMANDS["tarcat"], ["-Z"]) == "No such option: -Z"


@pytest.mark.parametrize("name", COMMANDS)
def test_each_letter_is_an_option_or_is_explained(name: str) -> None:
    """A letter that some command has is taken here, or leads to an option of this command, or there is none."""
    options = {spelled: one for one in COMMANDS[name].parameters.values() for spelled in one.names}
    for letter in ALL_LETTERS:
        said = ours(COMMANDS[name], [letter, "1"])
        if letter in options:
            assert not str(said).startswith("No such option"), letter
            continue
        assert isinstance(said, str)
        refused, _, hint = said.partition("; ")
        assert refused == f"No such option: {letter}"
        if hint.startswith("here it is "):
            option = options[hint.split()[3]]
            assert hint == f"here it is {' '.join([*option.names, option.metavar]).strip()}"
        elif letter in LETTERS_DECLARED:
            assert hint == f"elsewhere it is {' or '.join(LETTERS[letter])}, and there is no such option here"
            assert LETTERS_DECLARED[letter].isdisjoint(options), letter
        else:
            assert hint == "", letter


def test_the_letters_that_are_explained_are_those_that_commands_have() -> None:
    assert {letter: set(long) for letter, long in LETTERS.items()} == LETTERS_DECLARED


def test_letters_of_other_programs_are_not_taken() -> None:
    """Each letter of the table helps in some command that lacks it, for each of its options, and these exist."""
    helped = {
        (letter, said.partition("; here it is ")[2])
        for name in COMMANDS
        for letter in ALL_LETTERS
        if "; here it is " in (said := str(ours(COMMANDS[name], [letter, "1"])))
    }
    for letter, options in LETTERS_ELSEWHERE.items():
        for option in options:
            assert any(letter == typed and option in hint.split() for typed, hint in helped), (letter, option)


def manual_section(title: str) -> str:
    """Return the plain text of a section of tartools(7)."""
    text = plain_text((ROOT / "man/man7/tartools.7").read_text(), 1000).partition(f"\n{title}\n")[2]
    return re.split(r"\n(?=[A-Z])", text)[0]


def test_the_manual_has_the_table_of_letters() -> None:
    rows = re.findall(r"^ +(-\w)(  .*)", manual_section("LETTERS"), re.MULTILINE)
    listed: dict[str, set[str]] = defaultdict(set)
    for letter, row in rows:
        listed[letter] |= {*re.findall(r"--[\w-]+", row)}
    assert listed == LETTERS_DECLARED | {"-h": set()}


def test_the_manual_says_how_many_workers_commands_have() -> None:
    section = " ".join(manual_section("PARALLEL WORK").split())
    common = re.search(r"one per core, up to 8, as in sort\(1\): (.*?)\.", section)
    others = re.search(r"Three commands have another default.*?: (.*?)\.", section)
    assert common and others
    defaults = {
        name: str(option.option.default or option.default)
        for name in names()
        for option in load(name).parameters.values()
        if "--parallel" in option.names
    }
    jobs = defaults.pop("tarjob")
    assert jobs == "cores / -p of COMMAND, up to 8" and f"up to {MAX_DEFAULT_WORKERS}" in jobs
    shared = {name for name, default in defaults.items() if default == f"one per core, up to {MAX_DEFAULT_WORKERS}"}
    assert set(re.findall(r"tar\w+", common[1])) == {*shared, "tarjob"}
    assert {name: default for name, default in defaults.items() if name not in shared} == {
        "tarcat": "one after the other",
        "tarpcat": "4",
        "tarproc": "1",
    }
    assert re.findall(r"tar\w+", others[1]) == ["tarproc", "tarcat", "tarpcat"]


@pytest.mark.parametrize(("cores", "default", "implicit"), [(1, 1, 1), (3, 3, 3), (8, 8, 4), (64, 8, 4)])
def test_one_rule_says_how_many_workers(
    cores: int, default: int, implicit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores), raising=False)
    assert [count_workers(parallel) for parallel in (None, 0, 1, 20)] == [default, cores, 1, 20]
    assert implicit_workers() == implicit
