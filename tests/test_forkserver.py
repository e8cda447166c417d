"""Commands that are forked (`tests.forkserver`) are those that are started: every command, in both ways."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.commands.test_every_command import COMMANDS
from tests.conftest import BIN, ROOT, Result, Run, clean_environment, make_tar, python
from tests.forkclient import Forks
from tests.processes import until
from tests.tiers import also

# What a command hands on to a shell: numbers of descriptors, signals, limits, groups, variables, directory, umask.
# Once it has read more than a pipe holds, it has done all it does at the start. Zeros may follow the end of an archive.
SEEN = r"""
exec 3>&1 > seen
{ cat in.tar; head -c 1000000 /dev/zero; } >&3
ls /proc/$PPID/fd; grep -E '^(Umask|Threads|Uid|Gid|Sig[BCI]|Cap)' /proc/$PPID/status
ps -o pgid=,sid=,ni= -p $PPID; env | sort; pwd; umask; ulimit -a
"""


def both(run: Run, folder: Path, *line: str, **options: bytes) -> Result:
    """Run *line* in both ways, in *folder*, as it is; return what came of it, which has to be the same."""
    before = set(folder.iterdir())
    found = []
    for real in (True, False):
        done = run(*line, real=real, **options)
        made = sorted(set(folder.iterdir()) - before)
        files = [path for top in made for path in ([top] if top.is_file() else sorted(top.rglob("*")))]
        found.append((done, [(path, path.is_file() and path.read_bytes()) for path in files]))
        for top in made:
            shutil.rmtree(top) if top.is_dir() else top.unlink()
    assert found[0] == found[1]
    return found[0][0]


FEW = ("tarcat", "tarstat", "tarindex", "tarcreate")  # of each kind of server, and that of most imports


@pytest.mark.parametrize("name", [*FEW, *also(*sorted({*COMMANDS} - {*FEW}))])
def test_every_command(name: str, run: Run, tmp_path: Path) -> None:
    case = COMMANDS[name]
    given = "plan.tsv" if case.reads == "plan" else "in.tar"
    (tmp_path / given).write_bytes(case.content)
    (tmp_path / "cut.tar").write_bytes(case.content[:700])
    good = both(run, tmp_path, name, *case.arguments, given)
    assert (good.status, good.stderr) == (0, "") and bool(good.stdout) == case.prints
    if name in FEW[1:]:
        return
    for option in ("--help", "--version"):
        done = both(run, tmp_path, name, option)
        assert (done.status, done.stderr) == (0, "") and done.stdout
    assert both(run, tmp_path, name, "--no-such-option").status == 2
    missing = os.fsdecode(b"no\xff\n.tar")
    if case.reads:
        assert both(run, tmp_path, name, *case.arguments, stdin=case.content) == good
        assert both(run, tmp_path, name, *case.arguments, missing).status == case.trouble
    if case.reads == "tar":
        assert both(run, tmp_path, name, *case.arguments, "cut.tar").status == case.trouble


def test_what_commands_inherit(run: Run, tmp_path: Path) -> None:
    """A variable that is set, and one that is not; a umask of the test's own."""
    (tmp_path / "in.tar").write_bytes(COMMANDS["tarcat"].content)
    (tmp_path / "look").write_text(SEEN)
    seen = []
    old = os.umask(0o027)
    try:
        for real in (True, False):
            run("tarcat", "pipe:. ./look", env={"OURS": "a b é", "TZ": "Asia/Tokyo"}, real=real).output()
            seen.append((tmp_path / "seen").read_text())
    finally:
        os.umask(old)
    assert seen[0] == seen[1]
    assert "OURS=a b é\n" in seen[0] and "\nUmask:\t0027\n" in seen[0]


def test_what_commands_inherit_from_a_shell(shell: Run, tmp_path: Path) -> None:
    """In a pipeline, and where a shell has closed stderr or set a limit, which makes them real."""
    (tmp_path / "in.tar").write_bytes(COMMANDS["tarcat"].content)
    (tmp_path / "look").write_text(SEEN)
    for line in ("cat in.tar | {} | cat", "{} 2>&-", "(ulimit -n 50; {})", "umask 077; cd /; cd ~-; TZ=GMT {}", "{} &"):
        seen = []
        for real in (True, False):
            shell(line.format("tarcat 'pipe:. ./look'"), real=real).output()
            seen.append((tmp_path / "seen").read_text())
            (tmp_path / "seen").unlink()
        assert seen[0] == seen[1], line


def test_pipelines_are_forks_and_end_as_real_ones(shell: Run, tmp_path: Path) -> None:
    (tmp_path / "in.tar").write_bytes(make_tar([("a.x", bytes(3 << 20)), ("b.x", bytes(3 << 20))]))
    lines = {
        "tarcat in.tar | head -c 1000 | wc -c; echo ${PIPESTATUS[0]}": b"1000\n141\n",
        "{ tarcat 'pipe:kill -9 $PPID'; } 2> /dev/null; echo $?": b"137\n",
        "tarcat missing.tar; tarcat -Y; tarcat --version > /dev/full; echo $?": b"1\n",
        "cat in.tar | tarcat | tarsort | cmp - in.tar && echo the same": b"the same\n",
        "tarcat < <(tarcat in.tar) | cmp - in.tar && echo the same": b"the same\n",
    }
    for line, out in lines.items():
        done = shell(line)
        assert (done, done.stdout) == (shell(line, real=True), out)
    parent = 'echo $$; tarcat "pipe:ps -o ppid= -p \\$PPID >&2; cat in.tar" > /dev/null'
    for real in (True, False):
        done = shell(parent, real=real)
        assert (done.stdout.strip() == done.stderr.strip().encode()) is real


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_what_a_shell_started_is_passed_on(number: int, shell: Run, tmp_path: Path) -> None:
    (tmp_path / "in.tar").write_bytes(COMMANDS["tarcat"].content)
    job = "tarcat 'pipe:echo $PPID > pid; cat in.tar; kill -{} $(cat stub); exec sleep 1000' -o out.tar"
    (tmp_path / "job").write_text(f"echo $$ > stub; exec {job.format(int(number))}")
    done = shell("bash job; echo $?; kill -0 $(cat pid)")
    assert "No such process" in done.stderr
    assert done.stdout == b"%d\n" % (128 + number)
    assert not (tmp_path / "out.tar").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL, signal.SIGSEGV])
def test_a_signal(number: signal.Signals, run: Run, tmp_path: Path) -> None:
    assert both(run, tmp_path, "tarcat", f"pipe:kill -{number} $PPID; cat") == (-number, b"", "")


def test_what_takes_too_long(run: Run, tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run("tarcat", "pipe:echo $PPID > pid; exec sleep 1000", timeout=1)
    with pytest.raises(subprocess.TimeoutExpired):
        run("tarcat", "pipe:echo $PPID > pid; exec 2> /dev/null; exec sleep 1000", timeout=1)


def test_what_needs_a_start(forks: Forks) -> None:
    """What an interpreter looks at when it starts, and what is not in a request."""
    environment = clean_environment()
    assert forks.can([BIN / "tarcat"], environment)
    assert not forks.can(["/bin/true"], environment)
    for more in ({"PYTHONPATH": "."}, {"LC_ALL": "C"}, {"LD_PRELOAD": "x.so"}):
        assert not forks.can([BIN / "tarcat"], environment | more)
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert not forks.can([BIN / "tarcat"], environment)
    finally:
        signal.signal(signal.SIGHUP, old)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        assert not forks.can([BIN / "tarcat"], environment)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert forks.can([BIN / "tarcat"], environment)


def test_nothing_is_left_of_tests_that_are_killed(tmp_path: Path) -> None:
    program = """
import os
from tests.conftest import clean_environment
from tests.forkclient import Forks
forks = Forks(clean_environment())
print(forks.folder("tarcat"), flush=True)
os.kill(os.getpid(), 9)
"""
    killed = python(program, folder=ROOT, env={"TMPDIR": str(tmp_path)})
    assert killed.status == -signal.SIGKILL and killed.stdout.startswith(os.fsencode(tmp_path))
    until(lambda: not any(tmp_path.iterdir()), "the folder is removed")
