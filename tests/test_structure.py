"""The shape of the code: who may import, open, print and exit; what a start imports; what every command must have."""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from pathlib import Path
from zipfile import ZipFile

import pytest

from tartools import commands
from tartools.__main__ import USAGE_STATUS, main
from tartools.cli import manual
from tests.commands.test_every_command import COMMANDS as TRIED
from tests.conftest import ROOT, Result, Run, make_samples, make_tar, python, start
from tests.schedule import needs_torch

PACKAGE = ROOT / "tartools"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
MODULES = sorted(PACKAGE.rglob("*.py"))
COMMANDS = commands.names()

# what several stages count and sort by
NO_STAGES = {"shares", "summary", "combinations", "evengroups", "externalsort", "samplefiles", "sortrecords"}
OPENERS = {"open", "os.open", "io.open", "os.fdopen", "io.FileIO", "FileIO", "subprocess.Popen", "Popen"}
PATH_OPENERS = {"read_text", "write_text", "read_bytes", "write_bytes"}
STARTERS = re.compile(r"Popen$|subprocess\.\w+$|os\.(fork|forkpty|posix_spawnp?|system|popen|exec\w+|spawn\w+)$")
MAY_OPEN = {  # besides storage: module or room, and what it may call
    "cli.process": r"open|os\.open",  # standard streams that were closed
    "run": r"subprocess\.Popen",
    "shards.forks": r".*",  # the pipes of forks
    "cli.manual": r".*",  # the project's own files
    "commands._man": r".*",  # a man page; on a terminal the process becomes man
    "commands._demo": r".*",  # the pictures it makes
}
SHARED = {  # names of functions that several modules have: each is one of its kind
    *("exists", "open_read", "open_write", "remove", "object_at", "page", "one_commit"),  # schemes of URLs
    *("parts", "plain_lines"),  # reports
    *("samples", "main"),  # sources of samples, programs
}
LEAVES = {"errors", "schemes"}  # modules that all may import
LIMIT_OF_FILES, LIMIT_OF_FUNCTIONS, LIMIT_OF_ROOMS = 500, 60, 12  # lines, lines, folders
REMOTE = (
    *("boto3", "botocore", "requests", "urllib3", "certifi", "google.auth", "smart_open"),
    *(
        f"tartools.storage.objects.{name}"
        for name in ("s3", "gs", "azure", "ais", "hf", "sftp", "web", "http", "ranges", "uploads")
    ),
)
# Modules whose distribution has another name.
DISTRIBUTIONS = {"PIL": "pillow", "google": "google-auth", "backports": "backports.zstd"}
DISTRIBUTIONS |= {
    "azure.identity": "azure-identity",
    "azure.core.exceptions": "azure-identity",
    "gcp_storage_emulator": "gcp-storage-emulator",
    "xdist": "pytest-xdist",
    "_pytest": "pytest",
    "yaml": "pyyaml",
    "google.protobuf": "protobuf",
    "google.protobuf.message": "protobuf",
    "google.protobuf.unknown_fields": "protobuf",
    "google_crc32c": "google-crc32c",
}
STANDARD_LATER = {"compression"}  # in the standard library from Python 3.14
HEAVY = (
    *("google.protobuf", "google_crc32c", "pyarrow", "webdataset", "numpy", "rich", "PIL", "pydantic", "regex"),
    *("soundfile", "av", "ray", "torch", "huggingface_hub"),
    *REMOTE,
)
LIGHT = ("typer", "click", "inspect", "subprocess", "tempfile")  # which ordinary runs do without, too


def module_name(path: Path) -> str:
    """Return the dotted name of a module below the package: `storage.local`, `storage`, `__init__`."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


NAMES = {module_name(path): path for path in MODULES}


@functools.cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of *path*. Several tests walk it: do not change it."""
    return ast.parse(path.read_text())


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Return all nodes of the syntax tree of *path*."""
    return list(ast.walk(parsed(path)))


def imports_in(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, list[str]]]:
    """Yield (module, names taken from it) for the imports among *nodes*; a relative module begins with a dot."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or ""), [alias.name for alias in node.names]


def imports_of(path: Path) -> Iterator[str]:
    """Yield the modules of the package that *path* imports."""
    for module, names in imports_in(nodes_of(path)):
        assert not module.startswith("."), f"{path}: relative import"
        if module.partition(".")[0] != "tartools" or (module, names) == ("tartools", ["TYPE_CHECKING"]):
            continue  # a constant that is set before anything is imported
        module = module.removeprefix("tartools").removeprefix(".")
        for inner in [f"{module}.{name}".removeprefix(".") for name in names] or [module]:
            yield inner if inner in NAMES else module or "__init__"


def libraries_of(paths: Iterable[Path]) -> set[str]:
    """Return the top-level modules that *paths* import from neither the project nor the standard library."""
    modules = {module for path in paths for module, _ in imports_in(nodes_of(path))}
    found = {module if module in DISTRIBUTIONS else module.partition(".")[0] for module in modules}
    return found - sys.stdlib_module_names - STANDARD_LATER - {"tartools", "tests", ""}


def room_of(module: str) -> str:
    return module.partition(".")[0]


@functools.cache
def arrows() -> dict[str, set[str]]:
    """Return the table of ARCHITECTURE.md: which packages a package may import. Everything may import LEAVES."""
    table = ARCHITECTURE.partition("| package | may import |")[2].partition("\n\n")[0]
    rows = [[re.findall(r"`(\w+)`", cell) for cell in row.split("|")[1:3]] for row in table.splitlines()[2:]]
    return {room: {*targets, *LEAVES, room} for (room,), targets in rows}


def against_the_arrows(module: str, imported: Iterable[str], table: dict[str, set[str]]) -> list[str]:
    """Return `module -> other` for the modules that *module* imports and may not import by *table*."""
    allowed = table.get(room_of(module), LEAVES)
    return [f"{module} -> {other}" for other in imported if room_of(other) not in allowed]


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Return modules in *graph* that import each other, each the next one, if there are such."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def calls_in(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    """Yield (what is called, line) for the calls among *nodes*; `.name` too if it is a method or in a module."""
    for node in nodes:
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node.lineno
            if isinstance(node.func, ast.Attribute):
                yield f".{node.func.attr}", node.lineno


@functools.cache
def calls_of(path: Path) -> list[tuple[str, int]]:
    return list(calls_in(nodes_of(path)))


def opens(call: str) -> bool:
    return call in OPENERS or call.removeprefix(".") in PATH_OPENERS


def long_functions(nodes: Iterable[ast.AST]) -> list[str]:
    """Return the functions among *nodes*, nested and async ones too, that are longer than the limit."""
    return [
        f"{node.name} in line {node.lineno}"
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > LIMIT_OF_FUNCTIONS
    ]


def test_the_rooms_are_those_of_the_table() -> None:
    assert {room_of(module) for module in NAMES} == {*arrows(), *LEAVES}
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    files = {path.name for path in PACKAGE.iterdir() if path.is_file()}
    assert folders == {*arrows()} - {"__init__", "__main__"} and len(folders) <= LIMIT_OF_ROOMS
    assert files == {"__init__.py", "__main__.py", "errors.py", "schemes.py", "py.typed"}


def test_the_arrows_of_the_table_make_no_circle() -> None:
    assert circle({room: targets - {room} for room, targets in arrows().items()}) == []


def test_imports_follow_the_arrows() -> None:
    wrong = [against_the_arrows(module, imports_of(path), arrows()) for module, path in NAMES.items()]
    assert list(chain.from_iterable(wrong)) == []


def test_the_format_knows_streams_but_no_urls() -> None:
    used = {module for name, path in NAMES.items() if room_of(name) == "tar" for module in imports_of(path)}
    assert {module for module in used if room_of(module) == "storage"} == {"storage.streams"}


def test_an_import_against_the_arrows_is_found() -> None:
    table = {"tar": {"tar", "storage", "errors"}}
    assert against_the_arrows("tar.reader", ["errors", "tar.header", "storage.url"], table) == []
    assert against_the_arrows("tar.reader", ["storage", "samples.sample"], table) == ["tar.reader -> samples.sample"]
    assert against_the_arrows("errors", ["storage"], table) == ["errors -> storage"]


def test_no_modules_import_each_other() -> None:
    assert circle({module: set(imports_of(path)) - {module} for module, path in NAMES.items()}) == []


def test_imports_are_found_wherever_they_are(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        "from tartools import errors, read\nimport tartools.tar.header\nimport os.path, PIL.Image\n"
        "async def f():\n    from tartools.storage import url, no_module\n    import numpy as np\n"
    )
    assert sorted(imports_of(file)) == ["__init__", "errors", "storage", "storage.url", "tar.header"]
    assert libraries_of([file]) == {"PIL", "numpy"}


def test_no_command_imports_another_and_no_stage_another() -> None:
    wrong = []
    for module, path in NAMES.items():
        room, _, name = module.partition(".")
        if room not in ("commands", "stages"):
            continue
        folder = name.rpartition(".")[0] or name  # the modules of one stage may import each other
        others = [m.partition(".")[2] for m in imports_of(path) if room_of(m) == room and m != room]
        others = [m for m in others if room == "commands" or m not in NO_STAGES]
        wrong += [f"{module} -> {m}" for m in others if not m.startswith(("_", f"{folder}.")) and m != folder]
    assert wrong == []


def test_only_the_data_set_decides_whether_samples_or_rows_travel() -> None:
    """See ADR 27. A module that names one kind of pass could ask which it has."""
    kinds = {"SamplePass", "RowPass"}
    naming = {
        name
        for name, path in NAMES.items()
        if any(kinds & set(names) for _, names in imports_in(nodes_of(path)))
        or any(isinstance(node, ast.Attribute) and node.attr in kinds for node in nodes_of(path))
    }
    assert naming == {"shards.dataset"}


def test_only_storage_opens() -> None:
    wrong = []
    for name, path in NAMES.items():
        if room_of(name) != "storage":
            allowed = MAY_OPEN.get(name, r"\Z") + "|" + MAY_OPEN.get(room_of(name), r"\Z")
            calls = [(call, line) for call, line in calls_of(path) if opens(call) and not re.fullmatch(allowed, call)]
            wrong += [f"{name}: {call} in line {line}" for call, line in calls]
    assert wrong == []


def test_only_three_start_processes() -> None:
    starting = {name for name, path in NAMES.items() if any(STARTERS.search(call) for call, _ in calls_of(path))}
    others = {name for name in starting if room_of(name) != "run"}
    assert others == {"storage.children", "shards.forks", "commands._demo", "commands._man"}


def test_only_commands_and_progress_print() -> None:
    wrong = []
    for name, path in NAMES.items():
        if name == "__main__" or room_of(name) in ("cli", "commands"):
            continue
        streams = (n for n in nodes_of(path) if isinstance(n, ast.Attribute) and n.attr in ("stdout", "stderr"))
        wrong += [f"{name}: line {n.lineno}" for n in streams if ast.unparse(n).startswith("sys.")]
        wrong += [f"{name}: print in line {line}" for call, line in calls_of(path) if call == "print"]
    assert wrong == []


def test_only_a_process_exits() -> None:
    ends = ("cli.process", "commands._manual", "__main__", "shards.forks")  # a process, a fork of ours
    exits = {"sys.exit", "exit", "os._exit", "quit"}
    found = {name: [call for call, _ in calls_of(path) if call in exits] for name, path in NAMES.items()}
    assert {name: calls for name, calls in found.items() if calls and name not in ends} == {}


def test_calls_are_found() -> None:
    program = "async def f():\n    def g(p):\n        p.read_text(), os.open(p, 0)\n    subprocess.run(['a'])\n"
    calls = list(calls_in(ast.walk(ast.parse(program))))
    assert [call for call, _ in calls if opens(call)] == [".read_text", "os.open"]
    assert [call for call, _ in calls if STARTERS.search(call)] == ["subprocess.run"]


def test_files_and_functions_are_short() -> None:
    lines = {name: path.read_text().count("\n") for name, path in NAMES.items()}
    assert {name: count for name, count in lines.items() if count > LIMIT_OF_FILES} == {}
    functions = {name: long_functions(nodes_of(path)) for name, path in NAMES.items()}
    assert {name: found for name, found in functions.items() if found} == {}


@pytest.mark.parametrize("define", ["def f():", "async def f():", "class C:\n def f(self):", "def g():\n def f():"])
def test_a_long_function_is_found(define: str) -> None:
    indent = " " * (define.count("\n") + 1)
    body = f"\n{indent}pass" * (LIMIT_OF_FUNCTIONS - 1)
    assert long_functions(ast.walk(ast.parse(define + body)))[1:] == []
    names = [found.split()[0] for found in long_functions(ast.walk(ast.parse(f"{define}{body}\n{indent}pass")))]
    assert "f" in names


def test_every_module_has_a_docstring() -> None:
    assert [name for name, path in NAMES.items() if not ast.get_docstring(parsed(path))] == []


def test_what_is_imported_is_declared_and_the_other_way_round() -> None:
    project = PROJECT["project"]
    ours = {"test", "test-frameworks", "site"}
    optional = [lines for extra, lines in project["optional-dependencies"].items() if extra not in ours]
    declared = {distribution(line) for line in (*project["dependencies"], *chain.from_iterable(optional))}
    imported = {DISTRIBUTIONS.get(name, name) for name in libraries_of(MODULES)}
    assert declared == imported


def test_what_the_tests_import_is_declared() -> None:
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    lines = (*project["dependencies"], *extras["test"], *extras["test-frameworks"])
    declared = {distribution(line) for line in lines}
    imported = {DISTRIBUTIONS.get(name, name) for name in libraries_of(sorted((ROOT / "tests").rglob("*.py")))}
    assert imported - declared == set()


def distribution(requirement: str) -> str:
    """Return the distribution that *requirement* names, without extras, versions and markers."""
    return re.split(r"[\[<>=; ]", requirement)[0]


ORDINARY = [
    *("tarcat a.tar -c1e3 -o 1.tar", "tarsort a.tar -M 1M -o 2.tar", "tarsplit -n 2 -o 3 a.tar"),
    "tar2tsv -f cls a.tar -o 4.tsv",
]


@pytest.mark.parametrize(
    ("lines", "heavy"), [(ORDINARY, HEAVY + LIGHT), (["tarcat --help"], HEAVY)], ids=["run", "help"]
)
def test_an_ordinary_run_imports_nothing_heavy(lines: list[str], heavy: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar(make_samples(3)))
    program = f"""
import importlib, sys
for name, *arguments in map(str.split, {lines!r}):
    assert getattr(importlib.import_module(f"tartools.commands.{{name}}"), name).main(arguments) == 0, name
sys.exit(" ".join(sorted(set(sys.modules) & {{*{heavy!r}}})) or 0)
"""
    assert python(program, folder=tmp_path)[::2] == (0, "")


@needs_torch  # of all commands, tarbench does
def test_no_command_imports_for_files_what_remote_urls_need(tmp_path: Path) -> None:
    """All of them, one after the other, in one process; what they want to write goes to files."""
    runs = {}
    for name, case in TRIED.items():
        source = f"{name}.{'tsv' if case.reads == 'plan' else 'tar'}"
        (tmp_path / source).write_bytes(case.content)
        output = ["-o", f"out-{name}"] if case.writes_tar or (name.startswith("tar2") and case.prints) else []
        runs[name] = [[*case.arguments, source, *output]]
    runs["tarfilter"] += [["-S", "int(cls) > 0", "tarfilter.tar", "-o", "chosen.parquet"]]
    runs["tarsort"] += [["-S", "shuffle", "tarsort.tar", "-o", "mixed.parquet"]]
    runs["tarpcat"] += [["-p", "2", "tarpcat.tar", "tarcat.tar", "--rekey", "{index}", "-o", "two.tar"]]
    assert sorted(runs) == sorted(COMMANDS)
    program = f"""
import importlib, sys
for name, lines in {runs!r}.items():
    for line in lines:
        assert getattr(importlib.import_module(f"tartools.commands.{{name}}"), name).main(line) == 0, line
    needless = sorted(set(sys.modules) & {set(REMOTE)!r})
    assert not needless, f"{{name}} imports {{needless}}"
"""
    assert python(program, folder=tmp_path)[::2] == (0, "")


def test_tartools_itself_imports_nothing_heavy() -> None:
    program = f"import sys, tartools; sys.exit(' '.join(sorted(set(sys.modules) & {set(HEAVY) | {'typer'}!r})) or 0)"
    python(program).output()


def test_scripts_are_the_commands() -> None:
    own = {"tartools": "tartools.__main__:run"}
    assert PROJECT["project"]["scripts"] == {name: f"tartools.commands.{name}:{name}" for name in COMMANDS} | own


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_complete(name: str) -> None:
    command = commands.load(name)
    assert command.name == name
    assert "\nExamples:\n  " in command.manual
    assert f"| `{name}` | {command.summary} |" in README
    assert f"`{name}`" in (ROOT / "CHANGELOG.md").read_text()
    assert f".BR {name} (1)" in (ROOT / "man/man7/tartools.7").read_text()
    arguments, options = manual.options_of(command)
    assert [option for option in (*arguments, *options) if not option.help.endswith((".", "?"))] == []


# Letters with several meanings, as the package tarproc has them, and -S --select. No others are allowed.
AMBIGUOUS = {
    "-c": {"--count", "--command"},
    "-s": {"--size", "--sort-key", "--script"},
    "-S": {"--sort-type", "--subdirs", "--select"},
}
SAME = {"--jobs": "--parallel"}  # an older name of the same option


def test_one_letter_means_one_thing() -> None:
    meanings: dict[str, set[str]] = {}
    for name in COMMANDS:
        for option in manual.options_of(commands.load(name))[1]:
            short = [spelled for spelled in option.names if not spelled.startswith("--")]
            for letter in short:
                meanings.setdefault(letter, set()).update({SAME.get(n, n) for n in option.names} - set(short))
    assert {letter: long for letter, long in meanings.items() if len(long) > 1} == AMBIGUOUS


# What a long option means in all commands that have it, where their helps differ.
MEANINGS = {
    "--class": "the field for the class, which is the name of a folder",
    "--count": "stop after N samples",
    "--decode": "decode payloads to find those that are broken",
    "--dots": "the dot that ends a key in names with several",
    "--dry-run": "only print what would be done",
    "--exclude": "fields to drop",
    "--fields": "fields or columns to take",
    "--files-from": "read more names from FILE",
    "--for": "the tool that shall read what is written or checked",
    "--format": "format of the input that is no tar",
    "--group": "all samples of one value of a field go the same way",
    "--html": "write a page for a browser",
    "--json": "print JSON",
    "--key-column": "the column with the keys",
    "--memory": "most bytes of memory",
    "--null": "names end with NUL",
    "--output": "where the result goes",
    "--parallel": "how many at a time",
    "--rekey": "give samples new keys",
    "--report": "list samples, and why",
    "--rows": "the table of rows beside a folder's files",
    "--rest": "write the other samples to URL",
    "--select": "samples for which EXPR is true",
    "--sums": "checksums of shards, as sha256sum prints them: to a file, of tarls to stdout",
    "--skip-special": "skip links and special files silently",
    "--timeout": "kill a command that takes longer",
    "--unordered": "without regard to order",
    "--verbatim": "match names by exact case",
}


def test_a_long_option_has_one_meaning_and_one_form() -> None:
    forms: dict[str, set[tuple[bool, tuple[str, ...]]]] = {}
    helps: dict[str, set[str]] = {}
    for option in (one for name in COMMANDS for one in manual.options_of(commands.load(name))[1]):
        for name in option.names:
            if name.startswith("--"):
                forms.setdefault(name, set()).add((option.metavar == "", option.choices))
                helps.setdefault(name, set()).add(option.help)
    assert {name for name, found in forms.items() if len(found) > 1} <= {
        "--for",
        "--format",
        "--sums",
    }  # of their own files
    assert {name for name, found in helps.items() if len(found) > 1} == {*MEANINGS}


def test_other_spellings_are_taken_and_not_shown() -> None:
    for name in COMMANDS:
        declared = commands.load(name).parameters.values()
        shown = {spelled for one in declared for spelled in one.option.names}
        for one in declared:
            for alias in one.option.aliases:
                assert alias not in shown
                assert alias not in (ROOT / f"man/man1/{name}.1").read_text().replace("\\-", "-").split()


def test_a_wheel_brings_pages_and_completions(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    (wheel,) = tmp_path.iterdir()
    names = {name.partition(".data/data/share/")[2] for name in ZipFile(wheel).namelist()}
    expected = {f"man/man1/{name}.1" for name in COMMANDS} | {"man/man7/tartools.7"}
    completed = [*COMMANDS, "tartools"]
    expected |= {f"bash-completion/completions/{name}" for name in completed}
    expected |= {f"zsh/site-functions/_{name}" for name in completed}
    expected |= {f"fish/vendor_completions.d/{name}.fish" for name in completed}
    assert names - {""} == expected


def run_module(*arguments: str) -> Result:
    return start(sys.executable, "-m", "tartools", *arguments, folder=os.sep, env={"COLUMNS": "100"})


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_runs_by_name(name: str, run: Run) -> None:
    assert run("tartools", name, "--help").output().decode().startswith(f"Usage: {name} ")


def test_the_module_lists_the_commands(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    listed = run_module("--help").output().decode()
    for name in COMMANDS:
        assert f"  {name}" in listed and commands.load(name).summary in listed
    assert "  demo" in listed
    assert run_module("--version").output().decode() == f"tartools {PROJECT['project']['version']}\n"
    for option in ("-h", "--help"):
        assert main([option]) == 0
        assert capsys.readouterr() == (listed, "")


def test_the_script_does_what_the_module_does(shell: Run) -> None:
    for words in ("", "--help", "--version", "tarls --help", "tarcta", "completion", "completion fish"):
        assert shell(f"tartools {words}", env={"COLUMNS": "100"}) == run_module(*words.split())
    assert run_module("tarcat", "--no-such-option").status == USAGE_STATUS  # that of the command


def test_a_stdout_that_takes_nothing(shell: Run, tmp_path: Path) -> None:
    for name, more in (("tartools", ""), ("tartools completion", "bash"), ("tartools demo", "new")):
        assert shell(f"{name} {more} > /dev/full") == (1, b"", f"{name}: stdout: No space left on device\n")
    assert shell("tartools >&-").stderr == "tartools: stdout: Bad file descriptor\n"
    assert shell("touch x; tartools demo x").stderr == f"tartools demo: {tmp_path}/x: File exists\n"
    assert shell("(tartools; echo $? >&2) | true").stderr in ("141\n", "0\n")  # who was first


def test_the_public_names_are_listed() -> None:
    program = (
        "import tartools as t; print(*(n for n in dir(t) if n[0] != '_'), t.__version__); "
        "print('__version__' in dir(t))"
    )
    done = python(program)
    names = "Sample ShardWriter Table TarWriter map_samples map_shards open read train write"
    assert done == (0, f"{names} {PROJECT['project']['version']}\nTrue\n".encode(), "")


def test_an_unknown_name_gets_suggestions(capsys: pytest.CaptureFixture[str]) -> None:
    done = run_module("tarcta")
    assert (done.status, done.stdout) == (USAGE_STATUS, b"")
    assert done.stderr.startswith("tartools: no command is called 'tarcta'; did you mean ")
    assert "tarcat" in done.stderr and done.stderr.count("\n") == 1
    assert main(["xyz"]) == main([""]) == USAGE_STATUS
    assert re.fullmatch("(tartools: no command is called '(xyz)?'; there are .*\n){2}", capsys.readouterr().err)


def test_a_name_stands_for_one_thing() -> None:
    """No two modules have one name, no two classes, and no two functions but those that kinds of modules share."""
    paths = [path for path in PACKAGE.rglob("*.py") if path.stem not in ("__init__", "__main__")]
    modules = Counter(path.stem for path in paths)
    kinds = ast.ClassDef | ast.FunctionDef
    defined = {(node.name, path) for path in paths for node in parsed(path).body if isinstance(node, kinds)}
    names = Counter(name for name, _ in defined if name not in SHARED and name[0] != "_")
    assert [name for name, count in [*modules.items(), *names.items()] if count > 1] == []


def test_a_constant_has_one_place() -> None:
    """No two modules define a constant of one name: a limit is named after what it limits."""
    places: dict[str, set[str]] = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for node in parsed(path).body:
            targets = node.targets if isinstance(node, ast.Assign) else getattr(node, "target", None) and [node.target]
            for target in targets or ():
                for name in ast.walk(target):
                    if isinstance(name, ast.Name) and re.fullmatch(r"_?[A-Z][A-Z0-9_]+", name.id):
                        places[name.id.lstrip("_")].add(str(path.relative_to(PACKAGE)))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_the_constants_that_docstrings_name_exist() -> None:
    """A name in capitals between backticks is a constant, or a text such as an environment variable."""
    texts, words = {}, set()
    for path in PACKAGE.rglob("*.py"):
        nodes = nodes_of(path)
        has_docstring = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        texts[path] = "\n".join(ast.get_docstring(node) or "" for node in nodes if isinstance(node, has_docstring))
        words |= {node.id for node in nodes if isinstance(node, ast.Name)}
        strings = (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
        words |= {word for text in strings if "\n" not in text for word in re.findall(r"\w+", text)}
    named = {
        (path.stem, name) for path, text in texts.items() for name in re.findall(r"`(?:\w+\.)?([A-Z_]{3,})`", text)
    }
    assert {(module, name) for module, name in named if name not in words} == set()


def test_the_paths_that_the_documents_name_exist() -> None:
    missing = [
        f"{page}: {path}"
        for page in ("ARCHITECTURE.md", "CONTRIBUTING.md")
        for path in re.findall(r"`([\w/.]+/[\w/.]*|\w+\.(?:py|md|toml))`", (ROOT / page).read_text())
        if not any((folder / path).exists() for folder in (ROOT, PACKAGE, PACKAGE / "storage"))
    ]
    assert missing == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs/adr").iterdir()), ids=lambda path: path.stem)
def test_a_decision_has_its_parts_and_names_the_modules_that_it_governs(page: Path) -> None:
    text = page.read_text()
    assert text.startswith(f"# {int(page.name[:4])}. ")
    assert [part in text for part in ("**Context.**", "**Decision.**", "**Consequences.**")] == [True] * 3
    lines = re.findall(r"\*\*Governs\*\* (.+?)\n\n", text, re.DOTALL)
    paths = [path for line in lines for path in re.findall(r"`([^`]+)`", line)]
    assert paths and [path for path in paths if not (ROOT / path).exists()] == []


def test_decisions_are_few() -> None:
    assert len([*(ROOT / "docs/adr").iterdir()]) <= 32


@pytest.mark.parametrize("room", sorted({*arrows()} - {"__init__", "__main__"}))
def test_a_room_says_where_to_begin(room: str) -> None:
    assert f"`{room}/`" in ARCHITECTURE
    text = " ".join((ast.get_docstring(parsed(PACKAGE / room / "__init__.py")) or "").split())
    assert "Begin reading at `" in text
