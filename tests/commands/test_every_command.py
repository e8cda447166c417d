"""What every command must do, whatever it is for: one table of commands, one test for each promise."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

from tartools.cli import Command
from tests.archives import entry, header
from tests.conftest import ROOT, Result, Run, has_end, make_samples, make_tar, members_of, python
from tests.tiers import by_turns


class Case(NamedTuple):
    """How to run a command on one input, which is named behind the *arguments* or is stdin.

    It *reads* what is in there: a tar, or a plan; not so a command that only looks at names, which "" stands for.
    """

    arguments: tuple[str, ...]
    writes_tar: bool = False
    content: bytes = make_tar(make_samples(5))
    reads: str = "tar"
    trouble: int = 1  # its exit status after a failure or an omission
    prints: bool = True  # something on stdout


COMMANDS = {
    "tarcat": Case((), writes_tar=True),
    "tarsplit": Case(("-o", "part")),
    "tarsort": Case((), writes_tar=True),
    "tarproc": Case(("-c", "true"), writes_tar=True),
    "tarpcat": Case((), writes_tar=True),
    "tarshow": Case(("-f", "cls")),
    "tarstat": Case(()),
    "tar2tsv": Case(("-f", "cls")),
    "tar2jsonl": Case(()),
    "tar2tfrecord": Case(()),
    "tar2zip": Case(()),
    "tar2folder": Case(("-o", "part"), prints=False),
    "tar2parquet": Case(()),
    "tarfilter": Case(("--share", "0:1"), writes_tar=True),
    "tarfirst": Case(("-f", "cls")),
    "tarcheck": Case((), content=make_tar([("a.cls", b"1"), ("b.cls", b"2")]), reads=""),  # damage is what it prints
    "tardedup": Case((), writes_tar=True),
    "tarmix": Case(("1",), writes_tar=True),
    "tardiff": Case(("--digest",), trouble=2),
    "tarjoin": Case(("--left", "--with", str(Path(__file__).with_name("header.tsv"))), writes_tar=True),
    "tarcreate": Case((), writes_tar=True, content=b"__key__\tcls\na\t1\nb\t2\n", reads="plan"),
    "tarindex": Case(("-o", "-"), reads=""),
    "tarjob": Case(("--spec", "1", "--", "head", "-c{}"), reads=""),
    "tarls": Case((), reads=""),
    "tarbench": Case(("--dry-run",), reads=""),
}
OPENERS = [name for name, case in COMMANDS.items() if case.reads]
READERS = [name for name, case in COMMANDS.items() if case.reads == "tar"]
each = pytest.mark.parametrize("name", COMMANDS)
each_printer = pytest.mark.parametrize("name", [name for name, case in COMMANDS.items() if case.prints])
each_looker = pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"tarjob"}))  # which says what its commands say
each_opener = pytest.mark.parametrize("name", OPENERS)
each_reader = pytest.mark.parametrize("name", READERS)


Main = Callable[..., Result]


def command(name: str) -> Command:
    """Return the command *name*."""
    found = getattr(importlib.import_module(f"tartools.commands.{name}"), name)
    assert isinstance(found, Command)
    return found


@pytest.fixture
def main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Main:
    """Return a function that runs a command in this process, in `tmp_path`."""
    monkeypatch.chdir(tmp_path)

    def main(name: str, *arguments: str) -> Result:
        status = command(name).main(arguments)
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return Result(status, out, err.decode())

    return main


@pytest.fixture
def given(tmp_path: Path) -> Callable[[str], str]:
    """Return a function that makes the good input of a command, and returns its name."""

    def given(name: str) -> str:
        path = tmp_path / ("in.tsv" if COMMANDS[name].reads == "plan" else "in.tar")
        path.write_bytes(COMMANDS[name].content)
        return path.name

    return given


def remove_parts(folder: Path) -> None:
    """Remove the outputs that are called part, files and folders."""
    for path in folder.glob("part*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def failed(done: Result, name: str, status: int | None = None) -> str:
    """Check that *done* failed with one line, and that no archive came to its end; return the line."""
    assert done[0] == (COMMANDS[name].trouble if status is None else status), done
    assert re.fullmatch(rf"{name}: [^\n]+\n", done[2]), done
    assert not has_end(done[1])
    return done[2]


def test_the_table_is_complete() -> None:
    scripts = re.search(r"\[project\.scripts\](.*?)\n\[", (ROOT / "pyproject.toml").read_text(), re.DOTALL)
    assert scripts is not None
    assert sorted(re.findall(r"^(\w+) =", scripts[1], re.MULTILINE)) == sorted([*COMMANDS, "tartools"])


@each_opener
def test_a_good_input_by_name_and_from_stdin(name: str, run: Run, given: Callable[[str], str], tmp_path: Path) -> None:
    case = COMMANDS[name]
    by_name = run(name, *case.arguments, given(name))
    remove_parts(tmp_path)
    dash = run(name, *case.arguments, "-", stdin=case.content)
    remove_parts(tmp_path)
    bare = run(name, *case.arguments, stdin=case.content)
    assert by_name == dash == bare
    assert (bare.status, bare.stderr) == (0, "")
    assert bool(bare.stdout) == case.prints
    if case.writes_tar:
        assert has_end(bare.stdout)


BAD = {"empty": b"", "a byte": b"\xff", "garbage": b"\xff\xfegarbage\0" * 300, "text": b"hello, this is text\n" * 100}


@each_reader
@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_no_archive(name: str, content: bytes, main: Main) -> None:
    Path("bad.tar").write_bytes(content)
    line = failed(main(name, *COMMANDS[name].arguments, "bad.tar"), name)
    assert re.match(rf"{name}: bad.tar: at byte \d+: ", line)
    assert os.listdir() == ["bad.tar"]


@each_opener
@pytest.mark.parametrize("content", [b"", b"__key__\tcls\na\n" * 90], ids=["empty", "garbage"])
def test_bad_stdin(name: str, content: bytes, run: Run) -> None:
    line = failed(run(name, *COMMANDS[name].arguments, stdin=content), name)
    assert line.startswith(f"{name}: stdin: ")


@each_opener
def test_a_directory(name: str, main: Main, shell: Run) -> None:
    Path("d").mkdir()
    assert "directory" in failed(main(name, *COMMANDS[name].arguments, "d"), name)
    if name == "tarcat":
        shell("tarcat < d", real=True).failure()
    assert os.listdir() == ["d"]


@each_looker
def test_a_missing_file(name: str, main: Main) -> None:
    done = main(name, *COMMANDS[name].arguments, "nope.tar")
    assert failed(done, name) == f"{name}: nope.tar: No such file or directory\n"
    assert os.listdir() == []


@each_reader
def test_one_of_two_missing_is_found_before_anything_is_written(
    name: str, main: Main, given: Callable[[str], str]
) -> None:
    done = main(name, *COMMANDS[name].arguments, given(name), "nope.tar")
    assert (failed(done, name), done.stdout) == (f"{name}: nope.tar: No such file or directory\n", b"")
    assert os.listdir() == [given(name)]


UNPRIVILEGED = """
import contextlib, importlib, io, os, sys
command = getattr(importlib.import_module(f"tartools.commands.{sys.argv[1]}"), sys.argv[1])
with contextlib.redirect_stderr(io.StringIO()):  # imports what it needs while this user can read it
    assert command.main([*sys.argv[2:-1], "missing"]) == command.trouble
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
sys.exit(command.main(sys.argv[2:]))
"""


@each_opener
@by_turns("name")
def test_no_permission(name: str, tmp_path: Path, given: Callable[[str], str]) -> None:
    path = tmp_path / given(name)
    path.chmod(0)
    with TemporaryDirectory() as place:  # into which others may write, by its absolute path too
        os.chmod(place, 0o777)
        shutil.move(path, place)
        done = python(UNPRIVILEGED, name, *COMMANDS[name].arguments, path.name, folder=place)
        assert (done.status, done.stderr) == (COMMANDS[name].trouble, f"{name}: {path.name}: Permission denied\n")
        assert os.listdir(place) == [path.name]


@each_printer
def test_a_reader_that_has_gone(name: str, shell: Run, given: Callable[[str], str]) -> None:
    line = (
        f"mkfifo pipe; exec 3<> pipe 4> pipe 3<&-; {name} {' '.join(COMMANDS[name].arguments)} {given(name)} >&4 4>&-"
    )
    assert shell(f"{{ {line}; }} 2> said; echo $?; grep -v '^bash' said") == (1, b"141\n", "")


@pytest.mark.parametrize(
    "name", sorted({*READERS, "tarproc -p 4"} - {"tarsplit", "tarshow", "tarstat", "tardiff", "tar2folder"})
)
def test_the_shell_sees_141(name: str, shell: Run, tmp_path: Path) -> None:
    """Of each command that prints as much as a sample has; it leaves no temporary files."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "in.tar").write_bytes(make_tar([(f"{key}.cls", os.urandom(1 << 20).hex().encode()) for key in "ab"]))
    arguments = " ".join(COMMANDS[name.split(maxsplit=1)[0]].arguments)
    line = f"TMPDIR=tmp {name} {arguments} in.tar | head -c 1000 | wc -c; echo ${{PIPESTATUS[0]}}"
    assert shell(line) == (0, b"1000\n141\n", "")
    assert os.listdir(tmp_path / "tmp") == []


@each_printer
def test_a_stdout_that_takes_nothing(name: str, shell: Run, given: Callable[[str], str]) -> None:
    failed(shell(f"{name} {' '.join(COMMANDS[name].arguments)} {given(name)} > /dev/full"), name)


# Where a shell has closed a stream, the command is really started, which takes its time.


@each_printer
@by_turns("name")
def test_a_closed_stdout(name: str, shell: Run, given: Callable[[str], str]) -> None:
    failed(shell(f"{name} {' '.join(COMMANDS[name].arguments)} {given(name)} >&-"), name)


@each
@by_turns("name")
def test_a_closed_stdin(name: str, shell: Run, given: Callable[[str], str]) -> None:
    arguments = " ".join(COMMANDS[name].arguments)
    assert bool(shell(f"{name} {arguments} {given(name)} <&-").output()) == COMMANDS[name].prints
    if name in OPENERS:
        failed(shell(f"{name} {arguments} <&-"), name)


@each
@by_turns("name")
def test_a_closed_stderr(name: str, shell: Run, given: Callable[[str], str]) -> None:
    arguments = " ".join(COMMANDS[name].arguments)
    assert name.encode() not in shell(f"{name} -v {arguments} {given(name)} 2>&-").output()
    assert shell(f"{name} {arguments} nope.tar 2>&-") == (COMMANDS[name].trouble, b"", "")


@each
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_and_version(name: str, option: str, main: Main) -> None:
    done = main(name, option)
    assert (done.status, done.stderr) == (0, "")
    text = done.stdout.decode()
    assert text.startswith(f"Usage: {name} ")
    assert command(name).summary in text
    for shared in ("--quiet", "--verbose", "--progress"):
        assert shared in text
    assert ("--version" in text) == (option == "--help")  # -h has what is special to the command
    about = main(name, "--version")
    assert (about.status, about.stderr) == (0, "") and re.fullmatch(rb"tartools \d+\.\d+\.\d+\n", about.stdout)


USAGE = {
    "unknown option": ["--no-such-option"],
    "unknown letter": ["-Y"],
    "flag twice": ["--quiet", "--quiet"],
    "flag twice, two spellings": ["-v", "--verbose"],
    "value for a flag": ["--quiet=1"],
}


@each
@pytest.mark.parametrize("arguments", USAGE.values(), ids=USAGE)
def test_usage_errors(name: str, arguments: list[str], main: Main, given: Callable[[str], str]) -> None:
    done = main(name, *arguments, *COMMANDS[name].arguments, given(name))
    assert f"{name} --help" in failed(done, name, status=2)
    assert (done.stdout, os.listdir()) == (b"", [given(name)])


@each_opener
def test_verbose_ends_with_the_account(name: str, main: Main, given: Callable[[str], str]) -> None:
    done = main(name, "-v", *COMMANDS[name].arguments, given(name))
    assert done.status == 0
    found = re.fullmatch(
        rf"{name}: (\d+) samples in, (\d+) out(?:, (\d+) left out)?, [\d.]+ k?B, [\d.]+ [kM]?B/s\n", done.stderr
    )
    assert found is not None, done.stderr
    came, went, left = (int(number or 0) for number in found.groups())
    assert came == went + left
    assert went > 0


@each
def test_quiet_says_nothing_but_trouble(name: str, main: Main, given: Callable[[str], str]) -> None:
    done = main(name, "-q", *COMMANDS[name].arguments, given(name))
    assert (done.status, done.stderr) == (0, "")
    failed(main(name, "-q", *COMMANDS[name].arguments, "nope.tar"), name)


@each
def test_progress_goes_to_stderr_only(name: str, run: Run, given: Callable[[str], str], tmp_path: Path) -> None:
    line = [*COMMANDS[name].arguments, given(name)]
    plain = run(name, *line)
    remove_parts(tmp_path)
    done = run(name, "--progress", *line)
    assert (done.status, done.stdout) == (0, plain.stdout)
    assert re.fullmatch(rf"({name}: [^\n]+\n)*", done.stderr), done.stderr  # from the second second on


@each_reader
def test_an_archive_without_samples(name: str, main: Main) -> None:
    Path("empty.tar").write_bytes(bytes(10240))
    done = main(name, *COMMANDS[name].arguments, "empty.tar")
    if name == "tarfirst":
        failed(done, name)
        return
    said = "tarsplit: no samples in the input; no shards written\n" if name == "tarsplit" else ""
    assert (done.status, done.stderr) == (0, said)
    assert sorted(os.listdir()) == ["empty.tar", *["part"] * (name == "tar2folder")]
    if name in ("tarstat", "tar2parquet"):
        first, last = (b"shards: 1\nsamples: 0\n", b"") if name == "tarstat" else (b"PAR1", b"PAR1")
        assert done.stdout.startswith(first) and done.stdout.endswith(last)
        return
    printed = {"tardiff": b"0" * 64 + b"\n", "tar2zip": b"PK\5\6" + bytes(18), "tar2tsv": b"__key__\tcls\n"}
    assert done.stdout == printed.get(name, bytes(10240) if COMMANDS[name].writes_tar else b"")


@each_reader
def test_links_are_reported_and_the_rest_is_complete(name: str, main: Main) -> None:
    Path("s.tar").write_bytes(
        header(b"d/", kind=b"5") + header(b"link", kind=b"2") + entry(b"a.cls", b"1") + entry(b"b.cls") + bytes(1024)
    )
    done = main(name, *COMMANDS[name].arguments, "s.tar")
    assert done.status == COMMANDS[name].trouble
    assert re.fullmatch(rf"{name}: s.tar: link: a symbolic link .*--skip-special.*\n", done.stderr)
    if COMMANDS[name].writes_tar:
        assert (has_end(done.stdout), members_of(done.stdout)) == (True, [("a.cls", b"1"), ("b.cls", b"")])
    remove_parts(Path())
    quiet = main(name, "--skip-special", *COMMANDS[name].arguments, "s.tar")
    assert (quiet.status, quiet.stdout, quiet.stderr) == (0, done.stdout, "")


@each_reader
def test_the_shared_ways_to_name_inputs(name: str, main: Main) -> None:
    """Braces, wildcards and lists mean the same everywhere."""
    for letter in "ab":
        Path(f"{letter}.tar").write_bytes(make_tar([(f"{letter}.cls", letter.encode())]))
    Path("list").write_text("{a,b}.tar\n")
    runs = []
    for inputs in (["a.tar", "b.tar"], ["{a,b}.tar"], ["?.tar"], ["-T", "list"], ["file:a.tar", "pipe:cat b.tar"]):
        remove_parts(Path())
        runs.append(main(name, *COMMANDS[name].arguments, *inputs))
    assert all(done == runs[0] for done in runs)
    assert (runs[0].status, runs[0].stderr) == (0, "")
