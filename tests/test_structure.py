"""The shape of the code: who may import, open, print and exit; what a start costs; what every command must have."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

from tartools import manual
from tests.conftest import ROOT, clean_environment, make_samples, make_tar

PACKAGE = ROOT / "tartools"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
README = (ROOT / "README.md").read_text()
MODULES = sorted(PACKAGE.rglob("*.py"))
COMMANDS = manual.names()

# Everything may import errors and account. A name stands for the module and what is in it; "=name" for it alone.
ARROWS: dict[str, tuple[str, ...]] = {
    "__init__": ("=library", "=mapping", "=sample"),
    "__main__": ("=manual", "=demo", "=commands", "=cli"),
    "account": (),
    "cli": ("=stages.report", "=process"),
    "commands": (
        *("=cli", "stages", "=shards", "show", "=sample", "=values", "storage", "=compression", "tar"),
        *("=numbering", "=sortkeys", "=plan", "=sources", "=pieces", "=places", "=jobs", "=running", "=cluster"),
    ),
    "codec": (),
    "compression": ("=codec", "=storage.names"),
    "demo": ("commands", "=cli"),
    "errors": (),
    "streams": (),
    "externalsort": ("=storage.scratch", "tar"),
    "cluster": ("=jobs", "=running", "=storage", "=storage.interrupts", "=storage.programs", "=storage.streams"),
    "jobs": ("=storage.command",),
    "library": ("=shards", "=shardwriter", "=storage", "=storage.files", "=storage.interrupts", "=sample"),
    "manual": ("commands", "=cli", "=templates"),
    "mapping": ("=shards", "=storage", "=sample", "=cluster"),
    "numbering": ("=compression", "=storage.names"),
    "pieces": ("=shards", "=sample", "tar", "storage"),
    "process": (),
    "plan": ("=sample", "=sources", "=values", "storage", "tar"),
    "running": ("=jobs", "=stages.ordered", "=storage", "=storage.programs"),
    "sample": ("tar",),
    "places": ("=sample", "tar", "=storage.scratch"),
    "shards": ("=sample", "=shardwriter", "tar", "=compression", "storage"),
    "shardwriter": ("=sample", "tar", "=compression", "storage"),
    "show": ("show", "=sample", "tar", "=values", "=stages.ordered", "=stages.report"),
    "sortkeys": ("=sample", "=values"),
    "sources": ("=sample", "tar", "storage"),
    "stages": (
        "=sample",
        "tar",
        "=values",
        "=compression",
        "=storage.scratch",
        "=sortkeys",
        "=externalsort",
        "=places",
    ),
    "stages.report": ("=process",),
    "storage": ("storage",),
    "tar": ("tar",),
    "templates": (),
    "values": ("=sample",),
}
LEAVES = ("=errors", "=account", "=streams")
OPENERS = {"open", "os.open", "io.open", "os.fdopen", "io.FileIO", "FileIO", "subprocess.Popen", "Popen"}
PATH_OPENERS = {"read_text", "write_text", "read_bytes", "write_bytes"}
LIMIT_OF_FILES, LIMIT_OF_FUNCTIONS = 350, 60  # lines
REMOTE = (
    *("boto3", "botocore", "requests", "urllib3", "google.auth", "smart_open"),
    *(f"tartools.storage.{name}" for name in ("s3", "gs", "ais", "web", "requesting", "ranges", "uploads")),
)
HEAVY = ("webdataset", "numpy", "rich", "PIL", "pydantic", "simpleeval", "soundfile", "ray", *REMOTE)


def module_name(path: Path) -> str:
    """Return the dotted name of a module below the package: `storage.local`, `storage`, `__init__`."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


def is_module(name: str) -> bool:
    place = PACKAGE.joinpath(*name.split("."))
    return place.is_dir() or place.with_suffix(".py").is_file()


def imports_of(path: Path) -> Iterator[str]:
    """Yield the modules of the package that *path* imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (a.name.removeprefix("tartools.") for a in node.names if a.name.startswith("tartools."))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "tartools":
                yield from (alias.name for alias in node.names)
            elif node.module and node.module.startswith("tartools."):
                module = node.module.removeprefix("tartools.")
                for alias in node.names:
                    inner = f"{module}.{alias.name}"
                    yield inner if is_module(inner) else module


def matches(module: str, rule: str) -> bool:
    return module == rule[1:] if rule.startswith("=") else f"{module}.".startswith(f"{rule}.")


def allowed(importer: str, module: str) -> bool:
    room = importer if importer in ARROWS else importer.partition(".")[0]
    if importer.startswith("commands.") and module.startswith("commands._"):
        return True
    return any(matches(module, rule) for rule in (*ARROWS[room], *LEAVES))


def calls_in(path: Path) -> Iterator[tuple[str, int]]:
    """Yield (what is called, line) for the calls in *path*; of a method of some object only `.name`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            yield name, node.lineno
            if isinstance(node.func, ast.Attribute):
                yield f".{node.func.attr}", node.lineno


def test_every_room_has_its_arrows() -> None:
    rooms = {module_name(path).partition(".")[0] for path in MODULES}
    assert rooms == {room.partition(".")[0] for room in ARROWS}


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_follow_the_arrows(path: Path) -> None:
    importer = module_name(path)
    assert [module for module in imports_of(path) if not allowed(importer, module)] == []


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_only_storage_opens(path: Path) -> None:
    room = module_name(path).partition(".")[0]
    if room in ("storage", "manual", "demo"):  # manual writes the project's own files, the demo its pictures
        return
    found = [
        f"{call} in line {line}"
        for call, line in calls_in(path)
        if (call in OPENERS or call.removeprefix(".") in PATH_OPENERS)
        and not (room == "process" and call in ("open", "os.open"))  # standard streams that came closed
    ]
    assert found == []


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_only_commands_and_report_print(path: Path) -> None:
    name = module_name(path)
    if name in ("stages.report", "cli", "process", "manual", "demo", "__main__") or name.startswith("commands."):
        return
    text = ast.unparse(ast.parse(path.read_text()))
    assert "sys.stdout" not in text and "sys.stderr" not in text
    assert "print" not in {call for call, _ in calls_in(path)}


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_only_a_process_exits(path: Path) -> None:
    if module_name(path) in (
        "process",
        "manual",
        "__main__",
        "storage.forked",
        "storage.children",
    ):  # the last one ends a fork of ours
        return
    assert not {"sys.exit", "exit", "os._exit", "quit"} & {call for call, _ in calls_in(path)}


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_files_and_functions_are_short(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= LIMIT_OF_FILES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert (node.end_lineno or 0) - node.lineno < LIMIT_OF_FUNCTIONS, node.name


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_every_module_has_a_docstring(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("arguments", [["small.tar", "-o", "out.tar"], ["--help"]], ids=["run", "help"])
def test_a_trivial_run_imports_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "small.tar").write_bytes(make_tar(make_samples(3)))
    program = (
        "import sys\n"
        "from tartools.commands.tarcat import tarcat\n"
        f"status = tarcat.main({arguments!r})\n"
        f"sys.exit(' '.join(sorted(set(sys.modules) & {set(HEAVY)!r})) or status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_no_command_imports_for_files_what_remote_urls_need(tmp_path: Path) -> None:
    """All of them, one after the other, in one process; what they want to write goes to files."""
    (tmp_path / "a.tar").write_bytes(make_tar(make_samples(3)))
    (tmp_path / "plan.tsv").write_text("__key__\tcls\na\t1\n")
    runs = {
        "tarcat": ["a.tar", "-o", "1.tar"],
        "tarcreate": ["plan.tsv", "-o", "2.tar"],
        "tarfirst": ["-f", "cls", "a.tar"],
        "tarjob": ["-s", "a", "--", "tarcat", "{}.tar", "-o", "8.tar"],
        "tarls": ["a.tar"],
        "tarpcat": ["-p", "2", "a.tar", "-o", "3.tar"],
        "tarproc": ["-c", "true", "a.tar", "-o", "4.tar"],
        "tarshow": ["a.tar"],
        "tarsort": ["a.tar", "-o", "5.tar"],
        "tarstat": ["a.tar"],
        "tarsplit": ["-o", "6", "a.tar"],
        "tar2tsv": ["-f", "cls", "a.tar", "-o", "7.tsv"],
    }
    assert sorted(runs) == sorted(COMMANDS)
    program = f"""
import importlib, sys
for name, arguments in {runs!r}.items():
    assert getattr(importlib.import_module(f"tartools.commands.{{name}}"), name).main(arguments) == 0, name
    needless = sorted(set(sys.modules) & {set(REMOTE)!r})
    assert not needless, f"{{name}} imports {{needless}}"
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_tartools_itself_imports_nothing_heavy() -> None:
    program = f"import sys, tartools; sys.exit(' '.join(sorted(set(sys.modules) & {set(HEAVY) | {'typer'}!r})) or 0)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_scripts_are_the_commands() -> None:
    assert PROJECT["project"]["scripts"] == {name: f"tartools.commands.{name}:{name}" for name in COMMANDS}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_complete(name: str) -> None:
    command = manual.load(name)
    assert command.name == name
    assert "\nExamples:\n  " in command.manual
    assert f"| `{name}` | {command.summary} |" in README
    assert f"`{name}`" in (ROOT / "CHANGELOG.md").read_text()
    assert f".BR {name} (1)" in (ROOT / "man/tartools.7").read_text()
    for place in (
        f"man/{name}.1",
        f"completions/bash/{name}",
        f"completions/zsh/_{name}",
        f"completions/fish/{name}.fish",
    ):
        assert (ROOT / place).is_file()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_help(name: str) -> None:
    arguments, options = manual.options(manual.load(name))
    assert [option for option in (*arguments, *options) if not option.help.endswith((".", "?"))] == []


# Letters that mean two things in two commands, as the predecessors fixed them. There are to be no others.
AMBIGUOUS = {
    "-c": {"--count", "--command"},
    "-i": {"--index", "--interactive"},
    "-s": {"--size", "--sortkey", "--script", "--spec"},
    "-S": {"--sorttype", "--subdirs", "--select"},
}


def test_one_letter_means_one_thing() -> None:
    meanings: dict[str, set[str]] = {}
    for name in COMMANDS:
        for option in manual.options(manual.load(name))[1]:
            short = [spelled for spelled in option.names if not spelled.startswith("--")]
            for letter in short:
                meanings.setdefault(letter, set()).update(set(option.names) - set(short))
    assert {letter: long for letter, long in meanings.items() if len(long) > 1} == AMBIGUOUS


def test_installed_pages_and_completions_are_those_there_are() -> None:
    shared = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    pages = {f"man/{path.name}": f"share/man/man{path.suffix[1:]}/{path.name}" for path in (ROOT / "man").iterdir()}
    completions = {
        "completions/bash": "share/bash-completion/completions",
        "completions/zsh": "share/zsh/site-functions",
        "completions/fish": "share/fish/vendor_completions.d",
    }
    assert shared == pages | completions


def test_a_wheel_brings_pages_and_completions(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    (wheel,) = tmp_path.iterdir()
    names = {name.partition(".data/data/share/")[2] for name in ZipFile(wheel).namelist()}
    expected = {f"man/man1/{name}.1" for name in COMMANDS} | {"man/man7/tartools.7"}
    expected |= {f"bash-completion/completions/{name}" for name in COMMANDS}
    expected |= {f"zsh/site-functions/_{name}" for name in COMMANDS}
    expected |= {f"fish/vendor_completions.d/{name}.fish" for name in COMMANDS}
    assert names - {""} == expected


def run_module(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = clean_environment() | {"COLUMNS": "100"}
    command = [sys.executable, "-m", "tartools", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=os.sep)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_runs_by_name(name: str) -> None:
    done = run_module(name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: {name} ")
    assert run_module(name, "--no-such-option").returncode == 2


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_the_module_lists_the_commands(arguments: tuple[str, ...]) -> None:
    done = run_module(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    for name in COMMANDS:
        assert f"  {name}" in done.stdout and manual.load(name).summary in done.stdout
    assert "  demo" in done.stdout


def test_an_unknown_name_gets_suggestions() -> None:
    done = run_module("tarcta")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tartools: no command is called 'tarcta'; did you mean ")
    assert "tarcat" in done.stderr and done.stderr.count("\n") == 1
    assert "there are " in run_module("xyz").stderr


def test_the_module_tells_the_version() -> None:
    done = run_module("--version")
    assert (done.returncode, done.stdout) == (0, f"tartools {PROJECT['project']['version']}\n")


@pytest.mark.parametrize("page", sorted((ROOT / "docs/adr").iterdir()), ids=lambda path: path.stem)
def test_a_decision_has_its_three_parts(page: Path) -> None:
    text = page.read_text()
    assert text.startswith(f"# {int(page.name[:4])}. ")
    assert [part in text for part in ("**Context.**", "**Decision.**", "**Consequences.**")] == [True] * 3


def test_the_architecture_page_names_what_there_is() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    expected = {path.name for place in ("*.py", "tar/*.py", "storage/*.py") for path in PACKAGE.glob(place)}
    assert {name for name in expected - {"__init__.py"} if f"`{name}`" not in text} == set()
    for room in PACKAGE.iterdir():
        assert room.suffix or room.name.startswith("__") or f"`{room.name}/`" in text, room


def test_the_table_of_arrows_has_every_module() -> None:
    table = (ROOT / "ARCHITECTURE.md").read_text().partition("| module | imports |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`([a-z0-9_]+)`", "".join(row.split("|")[1] for row in table.splitlines()[2:])))
    assert named == {room.partition(".")[0] for room in ARROWS} - {"errors", "account", "streams", "__init__"}
