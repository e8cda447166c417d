"""What a command says when the system gives it too little: one line."""

from __future__ import annotations

import signal
import tarfile
from pathlib import Path

import pytest

from tartools.cli import process
from tartools.commands.tarls import tarls
from tests.conftest import Run, make_samples, make_tar, python


def test_too_little_memory(shell: Run, tmp_path: Path) -> None:
    """A value of 60 MiB is to be in memory as text."""
    info = tarfile.TarInfo("a.txt")
    info.size = 60 << 20
    with (tmp_path / "a.tar").open("wb") as file:
        file.write(info.tobuf())
        file.truncate(512 + info.size + 1024)
    assert shell("ulimit -v 100000; tar2tsv -f txt a.tar -o out.tsv") == (1, b"", "tar2tsv: out of memory\n")
    assert not (tmp_path / "out.tsv").exists()


@pytest.mark.parametrize("line", ["tarproc -p 2 -c true a.tar -o out.tar", "tarjob -p 2 -s '{1..2}' -- touch"])
def test_no_more_threads(line: str, shell: Run, tmp_path: Path) -> None:
    """The stack of a thread takes 1 GB of the addresses, of which there are fewer."""
    (tmp_path / "a.tar").write_bytes(make_tar(make_samples(3)))
    done = shell(f"ulimit -s 1000000; ulimit -v 400000; {line}")
    assert (done.status, done.stdout, [path.name for path in tmp_path.iterdir()]) == (1, b"", ["a.tar"])
    name = line.partition(" ")[0]
    assert done.stderr == f"{name}: can't start new thread: no more processes or memory are allowed (see ulimit -a)\n"


def test_a_signal_that_was_swallowed_is_told_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(process, "came", [signal.SIGTERM])
    assert tarls.main([__file__, "--all"]) == process.SIGNALLED + signal.SIGTERM


def test_what_is_registered_for_the_exit(tmp_path: Path) -> None:
    """The interpreter is not taken apart at the end, but does what it was asked to do before."""
    (tmp_path / "in.tar").write_bytes(make_tar(make_samples(1)))
    program = "import atexit, sys\nfrom tartools.commands.tarls import tarls\n"
    program += "atexit.register(print, 'first')\natexit.register(print, 'last')\ntarls()"
    out = python(program, tmp_path / "in.tar").output()
    assert out.splitlines()[-2:] == [b"last", b"first"] and out.count(b"last") == 1
