"""What is run for an item, how it is started here, and the log and report of it: the functions alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tartools.errors import StorageError, UsageError
from tartools.run import guard, localjobs, ray, tasks
from tartools.run import log as logs
from tartools.run.tasks import Task, TaskResult
from tartools.samples.account import Jobs
from tartools.storage import children
from tests.conftest import Run, make_samples, make_tar
from tests.processes import PATIENCE, until

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
    assert tasks.find_output_pattern(["tarcat", "in-{}.tar", *words]) == expected


@pytest.mark.parametrize(
    "program", [["tarsplit"], ["bin/tarsplit", "-z"], ["python3", "-m", "tartools", "tarsplit", "-n", "1"]]
)
def test_a_prefix_is_no_output(program: list[str]) -> None:
    """It gets the item as it is, nevertheless."""
    assert tasks.find_output_pattern([*program, "in-{}.tar", "-o", "x-{}"]) == ""
    (task,) = tasks.make_tasks(["it's"], [*program, "-vo", "o d/{}-"], "", force=False)
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
    assert tasks.parse_workers(words.split(), ["tarproc", "tarcat"]) == expected


@pytest.mark.parametrize("command", [["grep", "-o", "{}"], ["sort", "-o", "{}", "{}"], ["x", "-o{}"]])
def test_an_output_that_is_the_item_is_none(command: list[str]) -> None:
    (task,) = tasks.make_tasks(["a.txt"], command, "", force=False)
    assert task.output == ""


@pytest.mark.parametrize("item", HOSTILE, ids=ascii)
@pytest.mark.parametrize(
    "words", [["-o", "o d/{}.tar"], ["-oo d/{}.tar"], ["--output=o d/{}.tar"], ["-vo", "o d/{}.tar"], ["-voo d/{}.tar"]]
)
def test_the_output_is_the_same_in_the_command(words: list[str], item: str) -> None:
    (task,) = tasks.make_tasks([item], ["tarcat", *words], "", force=False)
    assert task.output == f"o d/{item}.tar"
    assert task.words[-1].endswith(task.output)


@pytest.mark.parametrize("part", ["0/3", "4/3", "1/0", "1", "a/b", "1/2/3", "-1/3", "", "²/3", 5000 * "1" + "/3"])
def test_what_is_no_part(part: str) -> None:
    with pytest.raises(UsageError, match="--only"):
        tasks.take_part([], part)


ON_A_NODE = """
import _thread, os, signal, threading, time
from tartools.run.ray import _run_on_node
from tartools.run.tasks import Task

def run(*words):
    return _run_on_node(Task("a", words, "out"), os.getcwd(), 0, None).status
"""


def on_a_node(program: str, tmp_path: Path) -> str:
    """Return what *program* prints, in a process of its own, since a task of Ray's moves to its folder."""
    command = [sys.executable, "-c", ON_A_NODE + program]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout


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


PLAIN = ["a", "00147", "in/train-01.tar.gz", "s3://bucket/x_1+y.tar", "a=b,c:d@e%f", "-x"]


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
    assert tuple(tasks.fill_pattern(f"{place}", item) for place in ("{.}", "{/}", "{/.}")) == expected
    assert tasks.fill_pattern("x-{}-{}={.}", item) == f"x-{item}-{item}={expected[0]}"
    assert tasks.fill_pattern("{..}{//}{#}{1}", item) == "{..}{//}{#}{1}"  # and nothing else in braces


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("bash -c ./x-{}", True),
        ("bash -lc ./x-{}", True),
        ("env A=1 /bin/sh -euc ./x-{}", True),
        ("timeout 9 nice zsh -ic ./x-{}", True),
        ("bash -c -e ./x-{}", True),
        ("bash -c -- ./x-{}", True),
        ("fish --command ./x-{}", True),
        ("fish --command=./x-{}", True),
        ("su me -lc ./x-{}", True),
        ("xargs -I% sh -c ./x-{}", True),
        ("python -c {}", True),
        ("wc -c ./x-{}", True),  # more than there need be
        ("tarproc -p 2 -c ./x-{}", True),
        ("tarproc -Sc ./x-{}", True),
        ("tarproc -c./x-{}", True),
        ("tarproc -qc./x-{}", True),
        ("tarproc --command ./x-{}", True),
        ("tarproc --command=./x-{}", True),
        ("python -m tartools tarproc -Sc ./x-{}", True),
        ("tarsplit --post ./x-{}", True),
        ("tarsplit --post=./x-{}", True),
        ("sbatch --wrap=./x-{}", True),
        ("tarcat pipe:./x-{}", True),
        ("tarcat -o pipe:./x-{}", True),
        ("tarcat -vopipe:./x-{}", True),
        ("tarcat --output=pipe:./x-{}", True),
        ("eval echo ./x-{}", True),
        ("ssh -p 22 host wc ./x-{}", True),
        ("bash -c", True),  # the item is appended
        ("bash -c true ./x-{}", False),
        ("bash -c true _ {}", False),
        ("./bash-{} -lc ./x", False),
        ("tarproc -c true -o ./x-{}", False),
        ("tarproc -c true --output=./x-{}", False),
        ("tarproc -s ./x-{}", False),
        ("xz -dc ./x-{}", False),
        ("tar -xzcf ./x-{}", False),
        ("tool --config=./x-{}", False),
        ("tarcat {} -o {/}", False),
        ("printf %s", False),
    ],
)
def test_which_words_a_shell_reads(words: str, expected: bool) -> None:
    command = words.split() if "{" in words else [*words.split(), "{}"]
    code = tasks.find_shell_code(command)
    assert code == ([next(word for word in reversed(command) if "{" in word)] if expected else [])


@pytest.mark.parametrize("item", [*HOSTILE, "", "a b", "\t", "é", "*", "?", "a\0b"], ids=ascii)
def test_items_that_are_refused_in_code(item: str) -> None:
    if item == "-rf":  # an option perhaps, but no code
        tasks.check_item(item, ["wc {}"])
        return
    tasks.check_item(item, [])
    with pytest.raises(UsageError, match=re.escape('write "$TARJOB_ITEM" instead of {}')) as error:
        tasks.check_item(item, ["wc {}"])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("item", PLAIN)
@pytest.mark.parametrize("shell", ["bash", "dash", "zsh"])
def test_items_that_are_accepted_mean_nothing_to_a_shell(item: str, shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    tasks.check_item(item, ["printf '%s' {}"])
    for line in ("printf -- %s {}", "printf -- %s '{}'", 'printf -- %s "{}"', 'printf -- %s "$(printf -- %s {})"'):
        done = subprocess.run([shell, "-c", tasks.fill_pattern(line, item)], capture_output=True, check=True)
        assert os.fsdecode(done.stdout) == item


def test_the_last_record_of_an_item_counts() -> None:
    task = Task("ä\udcff\n", ("true",), "out")
    lines = logs.encode_result(task, TaskResult(1, "failed", stderr="x"), 0) + logs.encode_result(
        task, TaskResult(0), 1
    )
    assert lines.count(b"\n") == 2
    (said,) = logs.parse_log(lines, "log").values()
    assert (said["item"], said["status"], said["time"]) == (task.item, "done", 1)


@pytest.mark.parametrize("length", range(1, 60, 7))
def test_a_record_that_was_cut_is_passed_over(length: int) -> None:
    one = logs.encode_result(Task("a", ("true",)), TaskResult(0), 0)
    two = logs.encode_result(Task("b", ("true",)), TaskResult(0), 0)
    assert set(logs.parse_log(one + two[:length], "log")) == {("a", "", "")}
    assert set(logs.parse_log(two[:length] + b"\n" + one, "log")) == {("a", "", "")}


def altered(old: str, new: str) -> bytes:
    """Return a record with *new* in place of *old*."""
    line = logs.encode_result(Task("a", ("true",)), TaskResult(0), 0).decode()
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
    good = logs.encode_result(Task("a", ("true",)), TaskResult(0), 0)
    with pytest.raises(StorageError, match="log: line 2 is not a record of tarjob --log"):
        logs.parse_log(good + line + b"\n", "log")


def test_a_report() -> None:
    def record(item: str, seconds: float, failure: str = "", said: str = "") -> dict[str, object]:
        return json.loads(logs.encode_result(Task(item, ("x",)), TaskResult(1, failure, seconds, 2, "here", said), 0))

    records = [
        record("a", 1),
        record("b", 5, "was ended by SIGKILL", "one\n last \n\n"),
        record("c", 2),
        record("d", 0),
    ]
    assert logs.report_of_log(records) == [
        "4 items: 3 done, 1 failed, 8 tries",
        "8.0 s in all; an item 2.0 s (median), 5.0 s at most",
        "hosts: here 4",
        "slowest: b: 5.0 s",
        "slowest: c: 2.0 s",
        "slowest: a: 1.0 s",
        "failed: b: was ended by SIGKILL: last",
    ]
    assert logs.report_of_log([]) == ["0 items: 0 done, 0 failed, 0 tries"]


SEEN = (
    "ps -o pid=,sid=,pgid= -p $$ | xargs -n1 | uniq | wc -l; grep -E 'Sig(Blk|Ign)' /proc/self/status;"
    'ls /proc/self/fd > "$0.fds"; xargs < "$0.fds"; printf "<%s>" "$TARJOB_ITEM" "$@"'
)
WITH_BLOCKED = "import os, signal as s, sys; s.pthread_sigmask(s.SIG_BLOCK, [15]); os.execvp(sys.argv[1], sys.argv[1:])"
LAST = 0x180000000  # two signals of the C library, which a program resets before it uses them


def test_what_a_command_inherits(shell: Run, tmp_path: Path) -> None:
    """It inherits neither descriptors nor signals that Python ignores or we block, and leads a session and a group."""
    (tmp_path / "seen.sh").write_text(SEEN)
    fds = "exec 7</dev/null 8>&1 9<&0"
    out = shell(f"{fds}; TMPDIR=$PWD python3 -c '{WITH_BLOCKED}' tarjob --spec 'a b' -- bash seen.sh {{}} é").output()
    ours = out.decode().splitlines()
    assert (ours[0], ours[-1]) == ("1", "<a b><a b><é>")
    masks = [int(line.split()[1], 16) & ~LAST for line in ours[1:3]]
    assert masks == [0, 0]
    assert ours[3] == "0 1 2 3"  # the last is the folder that ls reads
    assert len(ours) == 5
    mask = "python3 -c 'import signal as s; exit(s.SIGTERM in s.pthread_sigmask(s.SIG_BLOCK, []))'"
    line = f"""python3 -c '{WITH_BLOCKED}' tarproc -c "{mask}" """
    assert shell(line, stdin=make_tar([("a.txt", b"1")])).output() == make_tar([("a.txt", b"1")])


def test_how_a_start_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").touch(mode=0o755)
    (tmp_path / "plain").write_text("echo x\n")
    (tmp_path / "other").write_text("#!/nothing/there\n")
    for name in ("plain", "other"):
        (tmp_path / name).chmod(0o755)
    (tmp_path / "barred").touch(mode=0o644)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with closing(localjobs.Sessions()) as starts:
        why = {name: starts.run([name], {}).failure for name in ("plain", "other", "barred", "none", "./none", "a\0b")}
        assert starts.run(["true", "x" * 3_000_000], {}).failure == "can't be run: true: Argument list too long"
        assert starts.run(["true"], {}).status == 0
        assert not os.pread(starts._guard._list.fileno(), 99, 0).strip()  # it ends nothing that has another's number
    assert why == {
        "plain": "can't be run: plain: Exec format error",
        "other": "can't be run: other: No such file or directory",
        "barred": "can't be run: barred: Permission denied",
        "none": "can't be run: none: No such file or directory",
        "./none": "can't be run: ./none: No such file or directory",
        "a\0b": "can't be run: embedded null byte",
    }


def test_results_that_wait_are_few(tmp_path: Path) -> None:
    """Of whoever takes them slowly, not more commands run ahead than the window has room for."""
    tasks = [Task(str(number), ("touch", str(number))) for number in range(40)]
    taken = 0
    jobs = Jobs(len(tasks), 0)
    with (
        localjobs.open_local_engine(2, 0, None) as engine,
        closing(localjobs.run_tasks(tasks, engine, 2, jobs, fail_fast=False, window=5)) as results,
    ):
        for task, result in results:
            assert result is not None
            assert result.failure == ""
            assert (tmp_path / task.item).exists()
            if taken % 10 == 0:
                subprocess.run(["sleep", "0.1"], check=True)
            assert len(list(tmp_path.iterdir())) <= taken + 5
            taken += 1
    assert taken == len(tasks)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("tarjob --spec a -- false", "tarjob: a: ended with status 1"),
        ("tarproc -c 'exit 3' in.tar -o out.tar", "ended with status 3"),
        ("tarcat 'pipe:cat in.tar; exit 3' -o out.tar", "status 3"),
    ],
)
def test_a_failure_is_seen_where_ends_of_processes_are_ignored(
    line: str, message: str, shell: Run, tmp_path: Path
) -> None:
    """Who starts us may ignore SIGCHLD, which we inherit: the system then tells nobody how a process has ended."""
    (tmp_path / "in.tar").write_bytes(make_tar(make_samples(2)))
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execvp(sys.argv[1], sys.argv[1:])"
    )
    assert message in shell(f'{sys.executable} -c "{ignoring}" {line}').failure()
    assert not (tmp_path / "out.tar").exists()


def test_what_runs_on_writes_into_no_other_output(tarjob: Run, tmp_path: Path) -> None:
    """A process that left its session has the file of its command, which is then used for no other one."""
    wait = "until [ -e {0} ]; do sleep 0.01; done"
    late = f"setsid sh -c 'touch begun; {wait.format('go')}; echo late; echo late >&2; touch said' &"
    (tmp_path / "one").write_text(f"{late} {wait.format('begun')}; echo first")
    (tmp_path / "two").write_text(f"touch go; {wait.format('said')}; echo second; echo why >&2; exit 3")
    (tmp_path / "three").write_text("printf third")
    (tmp_path / "four").write_text("exit 4")
    names = ("one", "two", "three", "four", "three")
    (tmp_path / "list").write_text("".join(f"{name}\n" for name in names))
    done = tarjob("-T", "list", "-j", 1, "--", "sh")
    said = "tarjob: two: ended with status 3: why\ntarjob: four: ended with status 4\n"
    assert (done.status, done.stdout, done.stderr) == (1, b"first\nthirdthird", said)


def test_a_worker_of_ray_is_told_to_end_while_a_command_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The guard stays until the command is known: Ray may kill this process meanwhile."""
    sessions: list[localjobs.Sessions] = []
    seen = []

    class KnownSessions(localjobs.Sessions):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            sessions.append(self)

    class SlowChild(children.Child):
        def __init__(self, *words: Any, **options: Any) -> None:
            super().__init__(*words, **options)
            os.kill(os.getpid(), signal.SIGINT)
            until(lambda: sessions[0].stopped)
            seen.append("started")

    class WatchedGuard(guard.Guard):
        def close(self) -> None:
            seen.append("closed")
            super().close()

    monkeypatch.setattr(guard, "Child", SlowChild)
    monkeypatch.setattr(localjobs, "Guard", WatchedGuard)
    monkeypatch.setattr(ray, "Sessions", KnownSessions)
    before = signal.getsignal(signal.SIGINT), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        with pytest.raises(KeyboardInterrupt):
            ray._run_on_node(Task("a", ("sleep", "1000")), str(tmp_path), 0, None)
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.pthread_sigmask(signal.SIG_SETMASK, before[1])
    assert seen == ["started", "closed"]
