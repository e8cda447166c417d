"""Commands that leave their process group, as timeout(1) does, or their session: they are ended like all others."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import BIN, Run, make_samples, make_tar, running
from tests.processes import PATIENCE, until
from tests.run.test_ended import MARK, alive
from tests.tiers import by_turns

pytestmark = pytest.mark.skipif(
    not (Path("/proc/self/stat").exists() and shutil.which("timeout") and shutil.which("setsid")),
    reason="needs /proc, timeout and setsid",
)
WAYS = ["timeout 900 sh -c", "timeout 900 setsid -w sh -c", "true; timeout 900 sh -c"]
WORK = 'touch "$FOLDER/begun-$$"; sleep 1000; true'
LINES: dict[str, Callable[[str], list[str]]] = {
    "tarcat": lambda command: ["tarcat", f"pipe:{command}"],
    "tarcat -o": lambda command: ["tarcat", "in.tar", "-o", f"pipe:{command}"],
    "tarpcat": lambda command: ["tarpcat", "-p", "2", f"pipe:{command}", f"pipe:{command}"],
    "tarsplit --post": lambda command: ["tarsplit", "-n", "1", "-o", "shard", "--post", command, "in.tar"],
    "tarproc -s": lambda command: ["tarproc", "-s", "script", "in.tar"],
    "tarproc -c": lambda command: ["tarproc", "-c", command, "in.tar"],
}


@by_turns("last")
@pytest.mark.parametrize("way", ["sh -c", *WAYS, "setsid sh -c", "(setsid sh -c"])
@pytest.mark.parametrize("last", ["cat > part && mv part whole", "cat > part; mv part whole"])
def test_what_reads_a_failed_output_never_sees_its_end(way: str, last: str, run: Run, tmp_path: Path) -> None:
    """The last two have ended at once, while what they have started reads."""
    (tmp_path / "in.tar").write_bytes(make_tar([("a.x", bytes(3 << 20)), ("b.x", b"1")])[:-10240])
    end = " <&3 & ) 3<&0" if way.startswith("(") else ""
    run("tarcat", "in.tar", "-o", f"pipe:{way} {shlex.quote(last)}{end}", env={MARK: str(tmp_path)}).failure()
    assert alive(tmp_path) == {}
    assert not (tmp_path / "whole").exists()


@by_turns("number", "way")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("line", LINES)
def test_a_signal_ends_them(line: str, way: str, number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "in.tar").write_bytes(make_tar(make_samples(3)))
    command = f"{way} {shlex.quote(WORK)}"
    (tmp_path / "script").write_text(command)
    name, *words = LINES[line](command)
    with running(
        [BIN / name, *words],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={MARK: str(tmp_path), "FOLDER": str(tmp_path)},
    ) as process:
        until(lambda: len(list(tmp_path.glob("begun-*"))) == 1 + (name == "tarpcat"))
        process.send_signal(number)
        assert process.communicate(timeout=PATIENCE)[1] == b""
    assert process.returncode == -number
    assert alive(tmp_path) == {}


@pytest.mark.parametrize("option", [["-c"], ["--shell", "sh", "-c"]])
def test_they_do_not_outlive_a_tarproc_that_ends_well(option: list[str], run: Run, tmp_path: Path) -> None:
    """What the commands of samples leave in groups of their own, in a long-lived shell and in new ones."""
    data = make_tar(make_samples(3))
    command = (
        f"timeout 900 sleep 1000 & echo $! >> {tmp_path}/begun; until grep -q timeout /proc/$!/cmdline; do :; done"
    )
    assert run("tarproc", *option, command, stdin=data, env={MARK: str(tmp_path)}) == (0, data, "")
    assert len((tmp_path / "begun").read_text().split()) == 3
    assert alive(tmp_path) == {}


def test_what_takes_too_long_is_ended_with_all_that_it_has_started(run: Run, tmp_path: Path) -> None:
    data = make_tar(make_samples(2))
    for option in (["-c"], ["--shell", "sh", "-c"]):
        command = "timeout 900 setsid -w sh -c 'sleep 1000; true'; true"
        done = run("tarproc", "-e", "skip", "--timeout", 1, *option, command, stdin=data, env={MARK: str(tmp_path)})
        assert done.stderr.count("took longer than 1 seconds and was killed") == 2
        assert alive(tmp_path) == {}


def test_processes_with_strange_names_are_found(tmp_path: Path) -> None:
    """The name of a process may contain anything, and is in the line that tells its parent and its session."""
    (tmp_path / "in.tar").write_bytes(make_tar(make_samples(1)))
    rename = r"printf 'x) S 1 1\n\377 (' > /proc/self/comm; touch begun; read -r < fifo"
    os.mkfifo(tmp_path / "fifo")
    command = f"cd {tmp_path}; exec env -i setsid -w bash -c {shlex.quote(rename)}"
    with running(
        [BIN / "tarproc", "--shell", "sh", "-c", f"{{ {command}; }} & wait", "in.tar"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
    ) as process:
        until((tmp_path / "begun").exists)
        fifo = os.open(tmp_path / "fifo", os.O_WRONLY)
        process.kill()
    try:
        until(lambda: not _read_by_anybody(fifo))
    finally:
        os.close(fifo)


def _read_by_anybody(fifo: int) -> bool:
    """Tell whether a process has the other end of *fifo* open."""
    try:
        os.write(fifo, b"x")
    except BrokenPipeError:
        return False
    return True
