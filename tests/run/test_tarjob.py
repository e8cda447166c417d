"""tarjob on this machine: what is done, what is not done again, what is said of it, and what becomes of failures."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from operator import itemgetter
from pathlib import Path

import pytest

from tartools.commands.tarjob import tarjob as command
from tests.conftest import BIN, Result, Run, make_samples, make_tar, members_of, running
from tests.processes import on_terminal, until
from tests.run.conftest import records
from tests.run.test_tasks import HOSTILE
from tests.tiers import also, by_turns

ONE = ("-j", 1)  # at a time: so the order is that of the items
STUB = '#!/bin/sh\nln -- "$1" "$3"\n'  # a tarsort that costs nothing


def program(path: Path, text: str) -> None:
    """Make the program *path*."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def lines(done: Result) -> list[str]:
    """Return what was printed, sorted."""
    return sorted(done.stdout.decode().splitlines())


# ---- items ----


def test_the_item_is_the_last_word_of_a_command_without_places(tarjob: Run) -> None:
    assert tarjob("--spec", "{a,b}", *ONE, "echo", "-n", "x", "--") == (0, b"x -- ax -- b", "")


def test_files(tarjob: Run, tmp_path: Path) -> None:
    for name in ("b.tar", "a.tar", "*[1].tar", "c.txt"):
        (tmp_path / name).touch()
    assert tarjob("--spec", "*.tar", *ONE, "--", "echo") == (0, b"*[1].tar\na.tar\nb.tar\n", "")
    assert tarjob("--spec", "*[1].tar", *ONE, "--", "echo") == (0, b"*[1].tar\n", "")
    assert tarjob("--spec", "*.zip", "--", "echo") == (1, b"", "tarjob: *.zip: no file matches\n")


@pytest.mark.parametrize(("option", "data"), [((), b"a b\n\n{1..2}\n"), (("-0",), b"a b\0{1..2}\0")])
def test_lists(option: tuple[str, ...], data: bytes, tarjob: Run, tmp_path: Path) -> None:
    (tmp_path / "list").write_bytes(data)
    words = (*option, *ONE, "--", "printf", "<%s>")
    assert tarjob("-T", "list", *words) == (0, b"<a b><1><2>", "")
    assert tarjob("-T", "-", *words, stdin=data) == (0, b"<a b><1><2>", "")
    assert tarjob("--spec", "0", "-T", "list", "-T", "-", *words, stdin=b"3") == (0, b"<0><a b><1><2><3>", "")
    assert tarjob("-T", "/dev/null", *words) == (1, b"", "tarjob: /dev/null: the list of files is empty\n")
    assert tarjob("-T", "-", "--", "cat", "-", "/dev/null", "{}", stdin=b"/dev/null") == (0, b"", "")  # nothing is left


def test_a_command_gets_the_item_as_it_is(tarjob: Run, tmp_path: Path) -> None:
    """As a word, as a part of one, and in its environment: quotes, substitutions, newlines and odd bytes."""
    items = [os.fsencode(item) for item in HOSTILE]
    data = b"".join(item + b"\0" for item in items)
    for words in (
        ("printf", r"%s\0", "{}"),
        ("printf", r"%s\0"),
        ("bash", "-c", r"""printf '%s\0' "$1" """, "_", "{}"),
        ("bash", "-c", r"""printf '%s\0' "$TARJOB_ITEM" """),
        ("python3", "-Ic", "import os; os.write(1, os.environb[b'TARJOB_ITEM'] + bytes(1))"),
    ):
        assert tarjob("-0", "-T", "-", *ONE, "--", *words, stdin=data) == (0, data, "")
    parts = tarjob("-0", "-T", "-", *ONE, "--", "printf", r"<%s>\0", "x-{}-{}", stdin=data).stdout
    assert parts == b"".join(b"<x-%b-%b>\0" % (item, item) for item in items)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "words",
    [
        ("bash", "-c", "printf '%s' {}"),
        ("bash", "-c"),
        ("tarproc", "--command", "./x-{}", "in.tar", "-o", "x"),
        ("tarcat", "in.tar", "-o", "pipe:./up-{}"),
    ],
)
@pytest.mark.parametrize("options", [(), ("--dry-run",), ("--engine", "ray", "--address", "127.0.0.1:1")])
@by_turns("options")
def test_items_that_a_shell_would_read_as_code_are_refused(
    options: tuple[str, ...], words: tuple[str, ...], tarjob: Run, tmp_path: Path
) -> None:
    """All of the run is, before anything is begun."""
    items = ["a", "a;touch pwned;.tar", "b"]
    done = tarjob(*options, "-0", "-T", "-", "--", *words, stdin="".join(f"{item}\0" for item in items).encode())
    assert (done.status, done.stdout, os.listdir(tmp_path)) == (2, b"", [])
    assert re.fullmatch(
        r"""tarjob: a;touch pwned;\.tar: a shell would read this item as code in .*: write "\$TARJOB_ITEM" .*\n""",
        done.stderr,
    )


@pytest.mark.parametrize("number", [3, 12])
def test_parts(number: int, tarjob: Run) -> None:
    parts = [lines(tarjob("--spec", "{0..9}", "--only", f"{k}/{number}", "--", "echo")) for k in range(1, number + 1)]
    assert parts == [[*"0123456789"[k::number]] for k in range(number)]


def test_parts_are_the_same_when_some_are_done(tarjob: Run, tmp_path: Path) -> None:
    (tmp_path / "out-0").write_text("done")
    done = tarjob("-v", "--spec", "{0..9}", "--only", "1/3", "--dry-run", "--", "cp", "x", "-o", "out-{}")
    assert lines(done) == ["cp x -o out-3", "cp x -o out-6", "cp x -o out-9"]
    assert done.stderr.startswith("tarjob: 4 items: 0 done, 1 already done, 0 failed, ")


# ---- what is done already ----


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), ("-o", "out/{/}")),
        (("-o", "out/{/}"), ("-o", "out/{/}")),
        (("-oout/{/.}.tar",), ("--output=out/{/.}.tar",)),
    ],
)
def test_what_is_there_is_not_done_again(
    options: tuple[str, ...], words: tuple[str, ...], tarjob: Run, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    for n in range(4):
        (tmp_path / f"in/{n}.tar").write_bytes(make_tar(make_samples(n + 1)))
    (tmp_path / "out/2.tar").write_bytes(b"older")
    line = ("-v", *options, "--spec", "in/*.tar", "--", "tarcat", *words, "{}")
    assert "4 items: 3 done, 1 already done, 0 failed, " in tarjob(*line).stderr
    assert members_of((tmp_path / "out/3.tar").read_bytes()) == make_samples(4)
    assert (tmp_path / "out/2.tar").read_bytes() == b"older"
    again = tarjob(*line)
    assert (again.status, again.stdout) == (0, b"")
    assert "4 items: 0 done, 4 already done, 0 failed, " in again.stderr
    assert tarjob("--redo", *line).status == 0
    assert members_of((tmp_path / "out/2.tar").read_bytes()) == make_samples(3)


@pytest.mark.parametrize(
    "words",
    [
        ("tarsplit", "-n", "1", "in-{}.tar", "-o", "sq-{}/"),
        ("tarsplit", "-n", "1", "in-{}.tar", "-osq-{}"),
        (sys.executable, "-m", "tartools", "tarsplit", "-n", "1", "in-{}.tar", "-o", "sq-{}"),
        ("bash", "-c", "tarsplit -n 1 in-{}.tar -o sq-{}/; : $0 $1", "-o", "sq-{}/"),
    ],
)
def test_shards_that_a_stopped_run_has_left_are_not_done(words: tuple[str, ...], tarjob: Run, tmp_path: Path) -> None:
    (tmp_path / "in-1.tar").write_bytes(make_tar(make_samples(3)))
    (tmp_path / "sq-1").mkdir()
    done = tarjob("-v", "--spec", 1, "--", *words)
    assert (done.status, len(list(tmp_path.glob("sq-1*/*0*.tar")) + list(tmp_path.glob("sq-1*0*.tar")))) == (0, 3)
    assert done.stderr.startswith("tarjob: 1 item: 1 done, 0 failed, ")


def test_a_directory_shows_nothing(tarjob: Run, tmp_path: Path) -> None:
    """Neither by its name nor by its URL; it is not replaced either."""
    (tmp_path / "out-1").mkdir()
    for pattern in ("out-{}", f"file:{tmp_path}/out-{{}}"):
        assert tarjob("-o", pattern, "--spec", 1, "--", "bash", "-c", "echo {}$TARTOOLS_FORCE") == (0, b"1\n", "")


@pytest.mark.parametrize("pattern", ["out", "pipe:cat > {}", "out-{}/"])
def test_a_pattern_that_shows_nothing(pattern: str, tarjob: Run) -> None:
    said = tarjob("-o", pattern, "--spec", "a", "--", "true").failure(2)
    assert said.startswith(f"tarjob: -o '{pattern}' can't show what is done: ")


@pytest.mark.parametrize(
    ("items", "output", "message"),
    [
        ("{a,b}/x.tar", "out-{/}", "'b/x.tar' and 'a/x.tar' would both write 'out-x.tar'"),
        ("a/{x,x}.tar", "out-{/}", "'a/x.tar', twice, would both write 'out-x.tar'"),
        ("{out-,}x.tar", "out-{}", "'out-x.tar' is an item, and the output of 'x.tar'"),
    ],
)
def test_two_items_with_one_output(items: str, output: str, message: str, tarjob: Run, tmp_path: Path) -> None:
    assert tarjob("--spec", items, "--", "touch", "-o", output).failure(2).startswith(f"tarjob: {message}")
    assert os.listdir(tmp_path) == []


def test_an_output_that_was_promised_and_is_not_there(tarjob: Run, tmp_path: Path) -> None:
    line = "test {} = 2 || touch out-{}"
    done = tarjob("-o", "out-{}", "--retries", 1, "--log", "log", "--spec", "{1..3}", "--", "bash", "-c", line)
    assert done == (1, b"", "tarjob: 2: ended well, but its output out-2 is missing after 2 tries\n")
    assert {said["item"]: said["status"] for said in records(tmp_path / "log")} == {
        "1": "done",
        "2": "failed",
        "3": "done",
    }


def test_what_the_log_says_has_failed_is_done_again(tarjob: Run, tmp_path: Path) -> None:
    """The command writes in place, and leaves half of it when it fails; the next time it does better."""
    line = "echo $TARTOOLS_FORCE,$(cat fixed) > out-{}; test {} != 2 || test -e fixed"
    options = ("-v", "-o", "out-{}", "--spec", "{1..3}", "--", "bash", "-c", line)
    assert tarjob("--log", "log", *options).status == 1
    assert [(tmp_path / f"out-{n}").read_text() for n in (1, 2, 3)] == [",\n"] * 3
    assert "0 done, 3 already done, 0 failed" in tarjob(*options).stderr  # nobody knows, without the log
    (tmp_path / "fixed").write_text("now")
    done = tarjob("--log", "log", *options)
    assert done.status == 0
    assert "1 done, 2 already done, 0 failed" in done.stderr
    assert [(tmp_path / f"out-{n}").read_text() for n in (1, 2, 3)] == [",\n", "1,now\n", ",\n"]
    assert "0 done, 3 already done, 0 failed" in tarjob("--log", "log", *options).stderr


def test_a_log_may_be_that_of_two_commands(tarjob: Run, tmp_path: Path) -> None:
    def run(name: str, line: str) -> str:
        output = f"{name}-{{}}"
        words = ("-v", "--log", "log", "-o", output, "--spec", "{1..3}", "--", "bash", "-c", f"echo > {output}; {line}")
        return tarjob(*words).stderr

    assert "2 done, 1 failed" in run("a", "test {} != 2")
    assert "3 done, 0 failed" in run("b", "true")
    assert tarjob("--summarize", "log").stdout.startswith(b"6 items: 5 done, 1 failed, 6 tries\n")
    assert "1 done, 2 already done, 0 failed" in run("a", "true")
    assert tarjob("--summarize", "log").stdout.startswith(b"6 items: 6 done, 0 failed, 6 tries\n")


def test_no_engine_is_asked_when_there_is_nothing_to_do(tarjob: Run, tmp_path: Path) -> None:
    (tmp_path / "out-1").write_text("done")
    words = ("-v", "--engine", "ray", "--address", "127.0.0.1:1", "--spec", 1, "--", "tarcat", "in-{}", "-o", "out-{}")
    done = tarjob(*words)
    assert (done.status, done.stdout) == (0, b"")
    said, counts = done.stderr.splitlines()
    assert said == "tarjob: nothing to do: 1 item was done before (--redo does them again)"
    assert counts.startswith("tarjob: 1 item: 0 done, 1 already done, 0 failed, ")


def test_an_output_without_bytes_is_not_done(tarjob: Run, tmp_path: Path) -> None:
    """It is replaced, even by a command that replaces nothing unasked."""
    (tmp_path / "in.tar").write_bytes(make_tar(make_samples(3)))
    (tmp_path / "out-1").touch()
    (tmp_path / "out-2").write_text("done")
    done = tarjob("-v", "--log", "log", "--spec", "{1..2}", "--", "tarcat", "in.tar", "-o", "out-{}")
    assert (done.status, done.stdout) == (0, b"")
    assert "2 items: 1 done, 1 already done, 0 failed" in done.stderr
    assert members_of((tmp_path / "out-1").read_bytes()) == make_samples(3)
    assert (tmp_path / "out-2").read_text() == "done"


# ---- failures ----


def test_retries(tarjob: Run, tmp_path: Path) -> None:
    line = "echo {} >> tried; echo $TARTOOLS_FORCE; echo bad >&2; test $(grep -c {} tried) -gt {}"
    done = tarjob("--retries", 2, "--log", "log", *ONE, "--spec", "{0..3}", "--", "bash", "-c", line)
    assert done == (1, b"\n1\n1\n", "tarjob: 3: ended with status 1 after 3 tries: bad\n")
    said = [(said["item"], said["tries"], said["status"]) for said in records(tmp_path / "log")]
    assert sorted(said, key=itemgetter(0)) == [  # the next item may have failed once before a result is taken
        ("0", 1, "done"),
        *(("1", 1, "failed"), ("1", 2, "done")),
        *(("2", 1, "failed"), ("2", 2, "failed"), ("2", 3, "done")),
        *(("3", 1, "failed"), ("3", 2, "failed"), ("3", 3, "failed")),
    ]
    assert tarjob("--summarize", "log").stdout.startswith(b"4 items: 3 done, 1 failed, 9 tries\n")


def test_what_a_failed_try_has_written_is_replaced_by_the_next(tarjob: Run, tmp_path: Path) -> None:
    """tarproc -e skip writes its output, and ends with status 1."""
    (tmp_path / "in-0").write_bytes(make_tar(make_samples(3)))
    words = ("tarproc", "-e", "skip", "-c", "test -e ../../once || ! touch $OLDPWD/once", "in-{}", "-o", "out-{}")
    words = (*words[:4], f"test $TAR_INDEX != 1 || test -e {tmp_path}/once || ! touch {tmp_path}/once", *words[5:])
    assert tarjob("--retries", 1, "--spec", 0, "--", *words).status == 0
    assert members_of((tmp_path / "out-0").read_bytes()) == make_samples(3)


def test_a_timeout(tarjob: Run, tmp_path: Path) -> None:
    """What ends has all the time that it may need; what is to be stopped would never end."""
    assert tarjob("--timeout", 1000, "--log", "log", "--spec", 1, "--", "echo") == (0, b"1\n", "")
    line = "echo begun >&2; exec sleep 1000 # {}"
    for seconds in (1, 5, 25):  # enough to begin in, on a machine that is busy too
        done = tarjob("--timeout", seconds, "--log", "log", "--spec", 2, "--", "bash", "-c", line)
        if "begun" in done.stderr:
            break
    assert done == (1, b"", f"tarjob: 2: took longer than {seconds} seconds and was stopped: begun\n")
    said = {said["item"]: (said["status"], said["exit"], said["stderr"]) for said in records(tmp_path / "log")}
    assert said == {"1": ("done", 0, ""), "2": ("failed", None, "begun\n")}


def test_the_first_failure_can_be_the_last(tarjob: Run, tmp_path: Path) -> None:
    line = "touch begun-{}; test {} != 3"
    done = tarjob("--fail-fast", *ONE, "-v", "--log", "log", "--spec", "{1..9}", "--", "bash", "-c", line)
    assert done.status == 1
    assert done.stderr.splitlines()[:2] == [
        "tarjob: 3: ended with status 1",
        "tarjob: 6 items were not begun, because of --fail-fast",
    ]
    assert sorted(path.name for path in tmp_path.glob("begun-*")) == ["begun-1", "begun-2", "begun-3"]
    assert [said["item"] for said in records(tmp_path / "log")] == ["1", "2", "3"]
    done = tarjob("--fail-fast", *ONE, "-o", "out-{}", "--spec", "{1..9}", "--", "true")  # it makes no output
    assert "tarjob: 8 items were not begun, because of --fail-fast\n" in done.stderr


@pytest.mark.parametrize(
    ("line", "failure"),
    [
        ("kill -9 $$", "was ended by SIGKILL"),
        ("exit 255", "ended with status 255"),
        ("head -c 16777217 /dev/zero", "printed more than 16,777,216 bytes, which is the limit: have it w"),
        ("yes", "printed more than 16,777,216 bytes, which is the limit: have it write a file (-o)\n"),
        ("printf 'a\\n\\e[31mb\\377 \\n\\n' >&2; exit 1", "ended with status 1: \\x1b[31mb\ufffd\n"),
    ],
)
def test_how_items_fail(line: str, failure: str, tarjob: Run) -> None:
    assert tarjob("--spec", "x", "--", "bash", "-c", line).failure(lines=1).startswith(f"tarjob: x: {failure}")


def test_a_program_that_is_not_there_is_said_once(tarjob: Run, tmp_path: Path) -> None:
    (tmp_path / "text").touch()
    for words, place in (
        (("{1..9}", "--", "no-such"), "no-such: there is"),
        (("{1..9}", "--", "./text"), "./text: this is"),
        (("text", "b.tar", "--", "echo"), "b.tar: there is"),  # what an unquoted *.tar gives
    ):
        said = tarjob("--spec", *words).failure(2)
        assert said.startswith(f"tarjob: {place}")
        assert said.endswith("; if the shell has expanded SPEC, quote it\n")


def test_programs_that_depend_on_the_item(tarjob: Run, tmp_path: Path) -> None:
    program(tmp_path / "run-1", "#!/bin/sh\necho $0 $#\n")
    program(tmp_path / "run-2", "echo no interpreter is named\n")
    done = tarjob(*ONE, "--spec", "{1..3}", "--", "./run-{}")
    assert (done.status, done.stdout) == (1, b"./run-1 0\n")
    assert done.stderr.splitlines() == [
        "tarjob: 2: can't be run: ./run-2: Exec format error",
        "tarjob: 3: can't be run: ./run-3: No such file or directory",
    ]


# ---- dry runs ----


def test_a_dry_run_prints_what_is_run(tarjob: Run, shell: Run, tmp_path: Path) -> None:
    items = [item for item in HOSTILE if "{" not in item]
    data = b"".join(os.fsencode(item) + b"\0" for item in items)
    program = r"""printf '%s\0' "$TARJOB_ITEM" "$1$2" """
    words = ("-0", "-T", "-", *ONE, "--", "bash", "-c", program, "_", "", "bash -c {.}")
    done = tarjob(*words[:3], "--dry-run", *words[3:], stdin=data)
    assert (done.status, done.stderr, done.stdout.count(b"\n")) == (0, "", len(items))
    assert os.listdir(tmp_path) == []
    expected = tarjob(*words, stdin=data).stdout
    assert expected.count(b"\0") == 2 * len(items)
    assert shell("bash", stdin=done.stdout) == (0, expected, "")
    assert shell("xargs -d '\\n' -n 1 bash -c", stdin=done.stdout) == (0, expected, "")


def test_a_dry_run_leaves_out_what_is_done(tarjob: Run, tmp_path: Path) -> None:
    (tmp_path / "out-1").write_text("done")
    words = ("--dry-run", "--log", "log", "--spec", "{1..2}", "--", "tarcat", "in {}.tar", "-o", "out-{}")
    assert tarjob(*words) == (0, b"tarcat 'in 2.tar' -o out-2\n", "")
    redone = b"TARTOOLS_FORCE=1 tarcat 'in 1.tar' -o out-1\nTARTOOLS_FORCE=1 tarcat 'in 2.tar' -o out-2\n"
    assert tarjob("--redo", *words) == (0, redone, "")
    assert os.listdir(tmp_path) == ["out-1"]


def test_a_dry_run_on_a_terminal_escapes(tmp_path: Path) -> None:
    """In a pipe it stays as it is; see above."""
    (tmp_path / "items").write_bytes(b"\x1b]0;title\x07 \xff\xc3\xa4\0")
    words = [BIN / "tarjob", "--dry-run", "-0", "-T", "items", "--", "echo", "{}", "a\tb"]
    shown = on_terminal(words, tmp_path).output()
    assert shown.expandtabs() == b"echo '\\x1b]0;title\\x07 \\udcff\xc3\xa4' 'a\tb'\r\n".expandtabs()


# ---- how many at a time ----


def at_once(tmp_path: Path) -> int:
    """Return how many commands were under way at most, of those that wrote + and - when they began and ended."""
    most = now = 0
    for sign in (tmp_path / "signs").read_text().split():
        now += 1 if sign == "+" else -1
        most = max(most, now)
    return most


@pytest.mark.parametrize("number", [1, 3])
def test_so_many_at_a_time(number: int, tarjob: Run, tmp_path: Path) -> None:
    """Each waits until so many have begun, and there are never more."""
    line = f'echo + >> signs; until test "$(grep -c + signs)" -ge {number}; do sleep 0.01; done; echo - >> signs'
    assert tarjob("-j", number, "--spec", "{1..9}", "--", "bash", "-c", f"{line} # {{}}") == (0, b"", "")
    assert at_once(tmp_path) == number


@pytest.mark.parametrize("parallel", ["-p{}", *also("--parallel={}")])
def test_cores_are_divided_by_those_of_the_command(parallel: str, tarjob: Run, tmp_path: Path) -> None:
    """A tarproc that asks for all of them, one way or the other, is alone."""
    program(tmp_path / "bin/tarproc", "#!/bin/sh\necho + >> signs; sleep 0.05; echo - >> signs\n")
    cores = len(os.sched_getaffinity(0))
    path = {"PATH": f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}"}
    for number in (0, cores, 10 * cores):
        words = ("--spec", "{1..4}", "--", "tarproc", parallel.format(number), "-c", "true", "{}")
        assert tarjob(*words, env=path) == (0, b"", "")
    assert at_once(tmp_path) == 1


@pytest.mark.parametrize(("files", "allowed"), [(64, "4 items"), (50, "1 item")])
def test_no_more_than_files_can_be_opened(files: int, allowed: str, shell: Run) -> None:
    done = shell(f"ulimit -n {files}; tarjob -j 50 --spec '{{1..60}}' -- echo")
    assert (done.status, lines(done)) == (0, sorted(map(str, range(1, 61))))
    assert done.stderr == f"tarjob: the limit of open files (ulimit -n) allows {allowed} at a time, not 50\n"


FULL = """
import resource, sys, tempfile
from tartools.commands.tarjob import tarjob
tempfile.gettempdir()  # which writes a file once
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
sys.exit(tarjob.main(["-j", "1", "--spec", "{1..2}", "--", "touch", "ran-{}"]))
"""


def test_what_can_not_be_written_down_is_not_begun(shell: Run, tmp_path: Path) -> None:
    """As on a full disk: no file can become longer."""
    said = shell(f"{sys.executable} -", stdin=FULL.encode()).failure()
    assert said == "".join(f"tarjob: {n}: can't be run: touch: File too large\n" for n in (1, 2))
    assert os.listdir(tmp_path) == []


# ---- what is printed ----


def test_what_a_command_prints_is_in_one_piece(tarjob: Run) -> None:
    line = "for n in 1 2 3 4 5; do echo {}; sleep 0.01; done"
    done = tarjob("-j", 4, "--spec", "{1..8}", "--", "bash", "-c", line)
    printed = done.stdout.decode().split()
    assert sorted(printed[::5]) == [str(n) for n in range(1, 9)]
    assert printed == [item for item in printed[::5] for _ in range(5)]


def test_sixteen_megabytes_are_passed_on(tarjob: Run) -> None:
    most = 16 << 20
    done = tarjob("--spec", most, "--", "head", "/dev/zero", "-c")
    assert (done.status, done.stdout == bytes(most), done.stderr) == (0, True, "")


# ---- what is said ----


def test_the_log(tarjob: Run, tmp_path: Path) -> None:
    line = "printf '%3000s' {} >&2; test {} != 2"
    for _ in range(2):
        assert tarjob("--log", "log", *ONE, "--spec", "{1..2}", "--", "bash", "-c", line, "-o", "out-{}").status == 1
    said = records(tmp_path / "log")
    assert [each["item"] for each in said] == ["1", "2"] * 2
    for each in said:
        failed = each["item"] == "2"
        assert 0 <= each.pop("seconds") < 60
        assert each.pop("time") > 1.7e9
        assert each == {
            "item": each["item"],
            "status": "failed" if failed else "done",
            "exit": int(failed),
            "failure": "ended with status 1" if failed else "",
            "tries": 1,
            "host": os.uname().nodename,
            "output": f"out-{each['item']}",
            "stderr": each["item"].rjust(2048),
        }


def test_what_an_interrupted_run_has_not_done_is_in_the_report(tmp_path: Path, tarjob: Run) -> None:
    """Killed when two are done, one has failed, one is running and two wait. Then it is run again."""
    line = "test {} != 2 || exit 3; test {} != 4 || { test -e go || { touch begun; exec sleep 1000; }; }; echo > out-{}"
    words = ("-j", "1", "--log", "log", "-o", "out-{}", "--spec", "{1..6}", "--", "bash", "-c", line)
    with running([BIN / "tarjob", *words], cwd=tmp_path, stderr=subprocess.DEVNULL):
        until((tmp_path / "begun").exists)
    report = tarjob("--summarize", "log")
    assert (report.status, report.stderr) == (1, "")
    first, *_, failed, waiting = report.stdout.decode().splitlines()
    assert first == "6 items: 2 done, 1 failed, 3 not done, 3 tries"
    assert (failed, waiting) == ("failed: 2: ended with status 3", "not done: {4..6}")
    (tmp_path / "go").touch()
    (tmp_path / "out-5").write_text("by somebody else")
    assert tarjob(*words).status == 1
    assert tarjob("--summarize", "log").stdout.startswith(b"6 items: 5 done, 1 failed, 5 tries\n")


def test_signatures_stay_out_of_the_log_and_of_messages(tarjob: Run, tmp_path: Path) -> None:
    """Those of the item, of other URLs in what a command prints, and the rest of one whose beginning is cut off."""
    items = b"https://h/a.tar?X-Sig=first&x=1\nhttps://h/a.tar?X-Sig=second\n"
    line = """
        test "${TARJOB_ITEM%first*}" = "$TARJOB_ITEM" || printf 'https://h/%3000s&X-Sig=third' x | tr ' ' x >&2
        echo " GET ${TARJOB_ITEM#https://h} failed, and 'https://o/b?X-Sig=other' too" >&2
        exit 3
    """
    words = ("-T", "-", *ONE, "--log", "log", "-o", "out-{/}", "--", "bash", "-c", line, "_")
    done = tarjob(*words, stdin=items)
    failed = "tarjob: https://h/a.tar?…: ended with status 3: "
    said = "GET /a.tar?… failed, and 'https://o/b?…' too\n"
    assert (done.status, done.stdout) == (1, b"")
    assert done.stderr == f"{failed}… {said}{failed}{said}"
    log = (tmp_path / "log").read_text()
    assert "Sig" not in log
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600
    assert len({each["query"] for each in records(tmp_path / "log")}) == 2  # so that they are told apart
    report = tarjob("--summarize", "log").stdout.decode()
    assert report.startswith("2 items: 0 done, 2 failed, 2 tries\n")
    assert report.count("failed: https://h/a.tar?…: ended with status 3: ") == 2


def test_failures_of_signed_items_are_remembered(tarjob: Run, tmp_path: Path) -> None:
    """Their outputs exist, so that only the log tells; another signature is another item."""
    words = ("-v", "--log", "log", "-o", "out-{/}", "--spec", "https://h/a?s={1..2}", "--", "bash", "-c")
    line = 'echo > "out-${TARJOB_ITEM##*/}"; test "$TARJOB_ITEM" = "https://h/a?s=1"'
    assert "2 items: 1 done, 1 failed" in tarjob(*words, line).stderr
    again = tarjob(*words, 'test "$TARJOB_ITEM" = "https://h/a?s=2"')
    assert (again.status, sorted(os.listdir(tmp_path))) == (0, ["log", "out-a?s=1", "out-a?s=2"])
    assert "2 items: 1 done, 1 already done, 0 failed" in again.stderr


def test_a_log_that_was_cut_is_gone_on_with(tarjob: Run, tmp_path: Path) -> None:
    log = tmp_path / "log"
    tarjob("--log", "log", *ONE, "--spec", "{1..2}", "--", "true")
    log.write_bytes(log.read_bytes()[:-50])
    assert tarjob("--log", "log", "--spec", "3", "--", "true") == (0, b"", "")
    assert tarjob("--summarize", "log").stdout.startswith(b"3 items: 2 done, 0 failed, 1 not done, 2 tries\n")


def test_a_log_that_cannot_be_written_or_is_none(tarjob: Run, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello\n")
    for log, message in (
        ("text/log", "text/log: Not a directory"),
        (".", ".: is a directory, not a shard (tarcreate --folder makes a shard from it)"),
        ("text", "text: line 1 is not a record of tarjob --log"),
    ):
        assert tarjob("--log", log, "--spec", "{1..2}", "--", "touch", "ran-{}") == (1, b"", f"tarjob: {message}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_a_log_can_be_a_pipe(shell: Run) -> None:
    done = shell("tarjob --log /dev/fd/3 --spec '{1..2}' -- true 3>&1 | wc -l")
    assert (done.status, done.stdout.strip(), done.stderr) == (0, b"4", "")  # two lines for each item


def test_the_account(tarjob: Run) -> None:
    done = tarjob("-v", "--spec", "{1..3}", "--", "bash", "-c", "test {} != 2")
    assert re.fullmatch(
        r"tarjob: 2: ended with status 1\ntarjob: 3 items: 2 done, 1 failed, \d+\.\d s, \S+/s\n", done.stderr
    )
    assert tarjob("-q", "--spec", "1", "--", "false").stderr == "tarjob: 1: ended with status 1\n"


def test_progress(shell: Run, tmp_path: Path) -> None:
    """It is said from the second second on: an item waits for that."""
    line = 'test {} != 2 && { test {} != 3 || while ! grep -q "so far" said; do sleep 0.05; done; }'
    shell(f"tarjob --progress -j 1 --spec '{{1..4}}' -- bash -c '{line}' 2> said").failure()
    said = (tmp_path / "said").read_text()
    assert re.search(r"^tarjob: 1 done, 1 running, 1 failed, 1 left, \S+/s so far, \d+ s to go$", said, re.MULTILINE)


# ---- the man page ----


@pytest.mark.parametrize(("variable", "first"), [("SLURM_ARRAY_TASK_ID", 1), ("JOB_COMPLETION_INDEX", 0)])
def test_the_lines_for_those_who_start_many(variable: str, first: int, shell: Run, tmp_path: Path) -> None:
    """All of the eight together do all shards, each once."""
    (line,) = (text for text in command.manual.replace("\\\n", " ").splitlines() if variable in text)
    program(tmp_path / "bin/tarsort", STUB)
    for n in range(148):
        (tmp_path / f"in-{n:03d}.tar").write_text(str(n))
    assert "#SBATCH --array=1-8\n" in command.manual
    path = f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}"
    for index in range(first, first + 8):
        before = {path.name for path in tmp_path.glob("out-*.tar")}
        assert shell(f"PATH={path}:$PATH\n{line}", env={variable: str(index)}) == (0, b"", "")
        now = {path.name for path in tmp_path.glob("out-*.tar")}
        assert len(now - before) in (18, 19)
    assert [(tmp_path / f"out-{n:03d}.tar").read_text() for n in range(148)] == [str(n) for n in range(148)]


@pytest.mark.parametrize("count", [10_000, *also(100_000)])
def test_many_items(count: int, tarjob: Run) -> None:
    spec = f"{{1..{count}}}"
    done = tarjob("--spec", spec, "--dry-run", "--", "tarsort", "in-{}.tar", "-o", "out-{}.tar")
    assert (done.status, done.stdout.count(b"\n"), done.stderr) == (0, count, "")
    half = count // 2
    assert tarjob("--spec", spec, "--only", f"777/{half}", *ONE, "--", "echo") == (0, b"777\n%d\n" % (half + 777), "")


def test_what_a_stopped_run_has_not_done_is_a_few_lines(tarjob: Run, tmp_path: Path) -> None:
    items = [f"in-{number:03d}.tar" for number in range(150)] + [f"x{number**2}" for number in range(50)]
    lines = (f'{{"item": "{item}", "status": "waiting", "time": 1.0, "output": ""}}\n' for item in items)
    (tmp_path / "log").write_text("".join(lines))
    report = tarjob("--summarize", "log").stdout.decode().splitlines()
    assert report[0] == "200 items: 0 done, 0 failed, 200 not done, 0 tries"
    assert report[1:3] == ["not done: in-{000..149}.tar", "not done: x{0..1}"]
    assert len(report) == 22 and report[-1] == "not done: 30 more lines; the log has all"


def test_a_shard_that_is_cut_gets_advice(tarjob: Run, tmp_path: Path) -> None:
    (tmp_path / "in.tar").write_bytes(make_tar(make_samples(3))[:1300])
    said = tarjob("--spec", "in.tar", "--", "tarcat", "{}", "-o", "{}.zst.tar").stderr
    assert "in.tar: at byte 1300: " in said and said.endswith("(tarcheck --fix recovers the intact samples)\n")
