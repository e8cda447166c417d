"""How commands of tarjob are started on this machine, and how their results are handed over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tartools.run import guard, localjobs, ray
from tartools.run.tasks import Task
from tartools.samples.account import Jobs
from tartools.storage import children
from tests.conftest import Run, make_samples, make_tar
from tests.processes import PATIENCE

SEEN = (
    "ps -o pid=,sid=,pgid= -p $$ | xargs -n1 | uniq | wc -l; grep -E 'Sig(Blk|Ign)' /proc/self/status;"
    'ls /proc/self/fd > "$0.fds"; xargs < "$0.fds"; printf "<%s>" "$TARJOB_ITEM" "$@"'
)
LAST = 0x180000000  # two signals of the C library, which a program resets before it uses them


def test_what_a_command_inherits(shell: Run, tmp_path: Path) -> None:
    """It inherits neither descriptors nor signals that Python ignores, and leads a session and a group."""
    (tmp_path / "seen.sh").write_text(SEEN)
    fds = "exec 7</dev/null 8>&1 9<&0"
    done = shell(f"{fds}; TMPDIR=$PWD tarjob -s 'a b' -- bash seen.sh {{}} é")
    assert done.status == 0, done.stderr
    ours = done.stdout.decode().splitlines()
    assert (ours[0], ours[-1]) == ("1", "<a b><a b><é>")
    masks = [int(line.split()[1], 16) & ~LAST for line in ours[1:3]]
    assert masks == [0, 0]
    assert ours[3] == "0 1 2 3"  # the last is the folder that ls reads
    assert len(ours) == 5


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
    assert why == {
        "plain": "can't be run: plain: Exec format error",
        "other": "can't be run: other: No such file or directory",
        "barred": "can't be run: barred: Permission denied",
        "none": "can't be run: none: No such file or directory",
        "./none": "can't be run: ./none: No such file or directory",
        "a\0b": "can't be run: embedded null byte",
    }


def test_results_that_wait_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whoever takes them slowly, not more commands run ahead than the window has room for."""
    monkeypatch.setattr(localjobs, "WINDOW", 5)
    tasks = [Task(str(number), ("touch", str(number))) for number in range(40)]
    options = {"retries": 0, "timeout": None, "fail_fast": False}
    taken = 0
    with closing(localjobs.run_tasks(tasks, Jobs(len(tasks), 0), 2, **options)) as results:  # type: ignore[arg-type]
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
        ("tarjob -s a -- false", "tarjob: a: ended with status 1"),
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
    said = shell(f'{sys.executable} -c "{ignoring}" {line}').failure()
    assert message in said
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
    """The guard stays until the command has ended: Ray may kill this process meanwhile."""
    stopped, left = threading.Event(), []

    class SlowChild(children.Child):
        def __init__(self, *words: Any, **options: Any) -> None:
            super().__init__(*words, **options)
            os.kill(os.getpid(), signal.SIGINT)
            assert stopped.wait(PATIENCE)

    class WatchedSessions(localjobs.Sessions):
        def stop(self) -> None:
            super().stop()
            stopped.set()

    class WatchedGuard(guard.Guard):
        def close(self) -> None:
            left.append(self.marked())
            super().close()

    monkeypatch.setattr(guard, "Child", SlowChild)
    monkeypatch.setattr(localjobs, "Guard", WatchedGuard)
    monkeypatch.setattr(localjobs, "PATIENCE", 0.5)
    monkeypatch.setattr(ray, "Sessions", WatchedSessions)
    before = signal.getsignal(signal.SIGINT), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        with pytest.raises(KeyboardInterrupt):
            ray._on_a_node(Task("a", ("sh", "-c", "trap '' TERM; sleep 1000")), str(tmp_path), 0, None)
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.pthread_sigmask(signal.SIG_SETMASK, before[1])
    assert left == [set()]
