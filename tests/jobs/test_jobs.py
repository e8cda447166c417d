"""What is run for an item, and what a log says: the functions alone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tartools import jobs
from tartools.errors import StorageError, UsageError
from tartools.jobs import Ended, Task

HOSTILE = [
    "it's.tar",
    'two "words".tar',
    "$(touch ran).tar",
    "`touch ran`.tar",
    "a; touch ran;.tar",
    "a\ntouch ran\n.tar",
    "a&touch ran&.tar",
    "a|touch ran.tar",
    "${IFS}>ran",
    "\\",
    "-rf",
    "#",
    "~",
    "ä ö\udcff.tar",
]


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("in/train-01.tar.gz", ("in/train-01.tar", "train-01.tar.gz", "train-01.tar")),
        ("gs://b.c/plain", ("gs://b.c/plain", "plain", "plain")),
        ("a.b/c", ("a.b/c", "c", "c")),
        ("0", ("0", "0", "0")),
        ("dir/", ("dir/", "", "")),
        (".tar", ("", ".tar", "")),
        ("two\nlines.tar", ("two\nlines", "two\nlines.tar", "two\nlines")),
    ],
)
def test_places(item: str, expected: tuple[str, str, str]) -> None:
    assert tuple(jobs.filled(f"{place}", item) for place in ("{.}", "{/}", "{/.}")) == expected
    assert jobs.filled("x-{}-{}={.}", item) == f"x-{item}-{item}={expected[0]}"


def test_places_as_in_gnu_parallel() -> None:
    """Of its manual: {} {.} {/} {/.}, and nothing else in braces."""
    assert jobs.filled("{..}{//}{#}{1}", "a/b.c") == "{..}{//}{#}{1}"


@pytest.mark.parametrize("item", HOSTILE, ids=ascii)
@pytest.mark.parametrize(
    "line", ["printf %s {}", "printf %s '{}'", 'printf %s "{}"', "printf '%s' \"$(printf %s {})\""]
)
def test_a_word_for_a_shell_gets_the_item_as_one_word(item: str, line: str) -> None:
    try:
        filled = jobs.filled(line, item)
    except UsageError:
        assert "$(" in line  # a place inside quotes that are not its own
        return
    done = subprocess.run(["bash", "-c", filled], capture_output=True, check=True)
    assert done.stdout == item.encode("utf-8", "surrogateescape")


@pytest.mark.parametrize("item", HOSTILE, ids=ascii)
def test_a_word_for_no_shell_gets_the_item_as_it_is(item: str) -> None:
    assert jobs.filled("s3://b/x-{}.tar", item) == f"s3://b/x-{item}.tar"


@pytest.mark.parametrize("item", HOSTILE, ids=ascii)
def test_a_line_does_in_a_shell_what_the_words_say(item: str) -> None:
    (task,) = jobs.tasks_of([item], ["printf", r"%s\n", "{}", "bash -c {}", ""], "", force=False)
    line = jobs.shell_line(task)
    assert "\n" not in line
    done = subprocess.run(["bash", "-c", line.encode("utf-8", "surrogateescape")], capture_output=True, check=True)
    assert done.stdout.decode("utf-8", "surrogateescape") == "".join(f"{word}\n" for word in task.words[2:])


def test_a_line_replaces_what_is_there() -> None:
    assert jobs.shell_line(Task("a", ("true", "a b"), force=True)) == "TARTOOLS_FORCE=1 true 'a b'"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-o", "x-{}"], "x-{}"),
        (["-ox-{}"], "x-{}"),
        (["--output", "x-{/.}"], "x-{/.}"),
        (["--output=x-{.}.tar"], "x-{.}.tar"),
        (["-o", "fixed.tar"], ""),
        (["-o", "pipe:cat > {}"], ""),
        (["-o"], ""),
        (["--other", "{}"], ""),
        (["-o", "same.tar", "--output", "x-{}"], "x-{}"),
        (["-vo", "x-{}"], "x-{}"),
        (["-zvox-{}"], "x-{}"),
        (["-ro", "x-{}"], "x-{}"),
        (["-to", "x-{}"], ""),
        (["-o", "x-{}/"], ""),
        (["-ox-{}/"], ""),
    ],
)
def test_the_output_of_a_command(words: list[str], expected: str) -> None:
    assert jobs.output_in(["tarcat", "in-{}.tar", *words]) == expected


@pytest.mark.parametrize(
    "program", [["tarsplit"], ["bin/tarsplit", "-z"], ["python3", "-m", "tartools", "tarsplit", "-n", "1"]]
)
def test_a_prefix_is_no_output(program: list[str]) -> None:
    """It gets the item as it is, nevertheless."""
    assert jobs.output_in([*program, "in-{}.tar", "-o", "x-{}"]) == ""
    (task,) = jobs.tasks_of(["it's"], [*program, "-vo", "o d/{}-"], "", force=False)
    assert (task.output, task.words[-1]) == ("", "o d/it's-")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("tarproc -p 4 -c true", 4),
        ("tarproc -Sp 4", 4),
        ("tarproc -p4", 4),
        ("tarproc -vp 4", 4),
        ("tarproc -qzp4", 4),
        ("tarcat -z p4", 1),
        ("tarcat -op4", 1),
        ("tarproc --parallel 4", 4),
        ("tarproc --parallel=4", 4),
        ("tarproc -p 0", 0),
        ("tarproc -c true", 1),
        ("/usr/bin/tarproc -p 4", 4),
        ("python3 -m tartools tarproc -p 4", 4),
        ("python -m other tarproc -p 4", None),
        ("mkdir -p 4", None),
        ("tarproc -p x", 1),
    ],
)
def test_the_workers_of_a_command(words: str, expected: int | None) -> None:
    assert jobs.workers_in(words.split(), ["tarproc", "tarcat"]) == expected


@pytest.mark.parametrize("items", [["a/x.tar", "b/x.tar"], ["a/x.tar", "a/x.tar"]])
def test_two_items_with_one_output_are_refused(items: list[str]) -> None:
    with pytest.raises(UsageError, match=r"'[ab]/x.tar'( and 'a/x.tar'|, twice,) would both write 'out-x.tar'"):
        jobs.tasks_of(items, ["tarcat", "{}", "-o", "out-{/}"], "", force=False)


def test_an_item_that_another_one_writes_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'out-x.tar' is an item, and what 'x.tar' writes"):
        jobs.tasks_of(["out-x.tar", "x.tar"], ["tarcat", "{}", "-o", "out-{}"], "", force=False)


@pytest.mark.parametrize("command", [["grep", "-o", "{}"], ["sort", "-o", "{}", "{}"], ["x", "-o{}"]])
def test_an_output_that_is_the_item_is_none(command: list[str]) -> None:
    (task,) = jobs.tasks_of(["a.txt"], command, "", force=False)
    assert task.output == ""


@pytest.mark.parametrize("item", HOSTILE, ids=ascii)
@pytest.mark.parametrize(
    "words", [["-o", "o d/{}.tar"], ["-oo d/{}.tar"], ["--output=o d/{}.tar"], ["-vo", "o d/{}.tar"], ["-voo d/{}.tar"]]
)
def test_the_output_is_the_same_in_the_command(words: list[str], item: str) -> None:
    (task,) = jobs.tasks_of([item], ["tarcat", *words], "", force=False)
    assert task.output == f"o d/{item}.tar"
    assert task.words[-1].endswith(task.output)


@pytest.mark.parametrize("line", ["./run-{}", "echo $(({} + 1))", "echo ${x:-{}}", "let y={}", "echo # {}", "((y={}))"])
def test_nothing_of_an_item_is_run(line: str, tmp_path: Path) -> None:
    for item in ("$(touch pwn)", "x;touch${IFS}pwn", "a\ntouch pwn\n#", "a[$(touch pwn)]"):
        try:
            (task,) = jobs.tasks_of([item], ["bash", "-c", line], "", force=False)
        except UsageError:
            continue
        subprocess.run(task.words, cwd=tmp_path, capture_output=True, check=False)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("bash -c ./x-{}", True),
        ("env A=1 /bin/sh -euc ./x-{}", True),
        ("bash -c -e ./x-{}", True),
        ("bash -c -- ./x-{}", True),
        ("bash -c true ./x-{}", False),
        ("su me -c ./x-{}", True),
        ("tarproc -p 2 -c ./x-{}", True),
        ("tarproc -Sc ./x-{}", True),
        ("tarproc -c./x-{}", True),
        ("tarproc -qc./x-{}", True),
        ("tarproc --command ./x-{}", True),
        ("tarproc --command=./x-{}", True),
        ("tarproc -c true ./x-{}", False),
        ("tarproc -c true -o ./x-{}", False),
        ("tarproc -c true -osrc ./x-{}", False),
        ("python -m tartools tarproc -c ./x-{}", True),
        ("tarsplit --post ./x-{}", True),
        ("tarsplit --post=./x-{}", True),
        ("tarcat pipe:./x-{}", True),
        ("tarcat -o pipe:./x-{}", True),
        ("tarcat -opipe:./x-{}", True),
        ("tarcat -vopipe:./x-{}", True),
        ("tarcat --output=pipe:./x-{}", True),
        ("wc -c ./x-{}", False),
        ("gzip -c ./x-{}", False),
        ("xz -dc ./x-{}", False),
        ("tool --config=./x-{}", False),
        ("./bash-{} -c ./x-{}", False),
    ],
)
def test_what_is_a_line_for_a_shell(words: str, line: bool) -> None:
    (task,) = jobs.tasks_of(["a b"], words.split(), "", force=False)
    assert task.words[-1] == words.rsplit(maxsplit=1)[1].replace("{}", "'a b'" if line else "a b")


@pytest.mark.parametrize("words", [["bash", "-lc", "{}"], ["tarcat", "pipe:{}"], ["tarproc", "--command={}"]])
def test_a_line_that_is_all_an_item(words: list[str]) -> None:
    (task,) = jobs.tasks_of(["a | b"], words, "", force=False)
    assert task.words[-1] == words[-1].replace("{}", "a | b")


def test_items_may_be_lines() -> None:
    (task,) = jobs.tasks_of(["echo $((1 + 2))"], ["bash", "-c", "{}"], "", force=False)
    assert task.words == ("bash", "-c", "echo $((1 + 2))")


@pytest.mark.parametrize("number", [1, 2, 3, 7, 10, 15])
def test_parts_are_disjoint_and_complete(number: int) -> None:
    tasks = jobs.tasks_of(map(str, range(10)), ["true"], "", force=False)
    parts = [jobs.part_of(tasks, f"{k}/{number}") for k in range(1, number + 1)]
    assert sorted(task for part in parts for task in part) == sorted(tasks)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("part", ["0/3", "4/3", "1/0", "1", "a/b", "1/2/3", "-1/3", "", "²/3"])
def test_what_is_no_part(part: str) -> None:
    with pytest.raises(UsageError, match="--only"):
        jobs.part_of([], part)


def test_the_last_record_of_an_item_counts() -> None:
    task = Task("ä\udcff\n", ("true",), "out")
    lines = jobs.record(task, Ended(1, "failed", said="x"), 0) + jobs.record(task, Ended(0), 1)
    assert lines.count(b"\n") == 2
    (said,) = jobs.last_records(lines, "log").values()
    assert (said["item"], said["status"], said["time"]) == (task.item, "done", 1)


@pytest.mark.parametrize("length", range(1, 60, 7))
def test_a_record_that_was_cut_is_passed_over(length: int) -> None:
    one = jobs.record(Task("a", ("true",)), Ended(0), 0)
    two = jobs.record(Task("b", ("true",)), Ended(0), 0)
    assert set(jobs.last_records(one + two[:length], "log")) == {("a", "")}
    assert set(jobs.last_records(two[:length] + b"\n" + one, "log")) == {("a", "")}


def test_commands_with_one_log_are_told_apart() -> None:
    tasks = [Task("a", ("true",), output) for output in ("x-a", "y-a")]
    log = jobs.record(tasks[0], Ended(1, "failed"), 0) + jobs.record(tasks[1], Ended(0), 1)
    found = jobs.last_records(log, "log")
    assert {key: said["status"] for key, said in found.items()} == {("a", "x-a"): "failed", ("a", "y-a"): "done"}
    assert jobs.report_lines(jobs.report_of(found.values()))[0] == "2 items: 1 done, 1 failed, 2 tries"


def altered(old: str, new: str) -> bytes:
    """Return a record with *new* in place of *old*."""
    line = jobs.record(Task("a", ("true",)), Ended(0), 0).decode()
    assert old in line
    return line.replace(old, new).encode()


@pytest.mark.parametrize(
    "line",
    [
        *(b"hello", b"[]", b'{"other": 1}', b"1", b'{"item": "a"}'),
        *(altered('"tries": 1', f'"tries": {value}') for value in ("null", '"x"', "1e999", "[]", "0.5")),
        *(altered('"seconds": 0', f'"seconds": {value},"x":0') for value in ("NaN", "1e999", "-Infinity", '"x"')),
        altered('"seconds": 0', f'"seconds": {"9" * 400},"x":0'),
        altered('"item": "a"', '"item": 7'),
        altered('"output": ""', '"output": []'),
        altered('"host": ""', '"host": null'),
    ],
)
def test_what_is_no_log(line: bytes) -> None:
    good = jobs.record(Task("a", ("true",)), Ended(0), 0)
    with pytest.raises(StorageError, match="log: line 2 is no record of a job"):
        jobs.last_records(good + line + b"\n", "log")


def test_a_report() -> None:
    def record(item: str, seconds: float, failure: str = "", said: str = "") -> dict[str, object]:
        return json.loads(jobs.record(Task(item, ("x",)), Ended(1, failure, seconds, 2, "here", said), 0))

    records = [
        record("a", 1),
        record("b", 5, "was ended by SIGKILL", "one\n last \n\n"),
        record("c", 2),
        record("d", 0),
    ]
    assert jobs.report_lines(jobs.report_of(records)) == [
        "4 items: 3 done, 1 failed, 8 tries",
        "8.0 s in all; an item 2.0 s (median), 5.0 s at most",
        "hosts: here 4",
        "slowest: b: 5.0 s",
        "slowest: c: 2.0 s",
        "slowest: a: 1.0 s",
        "failed: b: was ended by SIGKILL: last",
    ]
    assert jobs.report_lines(jobs.report_of([])) == ["0 items: 0 done, 0 failed, 0 tries"]


ON_A_NODE = """
import _thread, os, signal, threading, time
from tartools.cluster import _on_a_node
from tartools.jobs import Task

def run(*words):
    return _on_a_node(Task("a", words, "out"), os.getcwd(), 0, None).status
"""


def on_a_node(program: str, tmp_path: Path) -> str:
    """Return what *program* prints, in a process of its own, since a task of Ray's moves to its folder."""
    command = [sys.executable, "-c", ON_A_NODE + program]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize("program", ["tarproc", "bash"])
def test_an_output_that_is_there_when_ray_tries_again(program: str, tmp_path: Path) -> None:
    """It is done again, whatever the command: the try that wrote it may have failed."""
    (tmp_path / program).symlink_to("/bin/bash")
    (tmp_path / "out").write_text("before")
    said = on_a_node(f"print(run('./{program}', '-c', 'echo \"$TARTOOLS_FORCE\" >out'))", tmp_path)
    assert (said, (tmp_path / "out").read_text()) == ("0\n", "1\n")


CANCELLED = """
def cancel():  # as Ray does
    while not os.path.exists("begun"):
        time.sleep(0.01)
    _thread.interrupt_main()

signal.signal(signal.SIGINT, signal.SIG_IGN)
threading.Thread(target=cancel).start()
try:
    run("bash", "-c", "grep SigIgn /proc/$$/status >ignored; touch begun; exec sleep 1000")
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_worker_that_was_started_where_interrupts_are_ignored_can_cancel(tmp_path: Path) -> None:
    assert on_a_node(CANCELLED, tmp_path) == "interrupted\n"
    assert int((tmp_path / "ignored").read_text().split()[1], 16) >> (signal.SIGINT - 1) & 1 == 0
