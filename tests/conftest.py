"""What the tests share: the installed commands as processes, and archives made and read by Python's tarfile."""

from __future__ import annotations

import gc
import io
import os
import re
import resource
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests import schedule
from tests.forkclient import Forks
from tests.tiers import take_turns

ROOT = Path(__file__).parent.parent
BIN = Path(os.path.abspath(sys.executable)).parent
FILES = resource.getrlimit(resource.RLIMIT_NOFILE)


class Result(NamedTuple):
    """How a process ended."""

    status: int
    stdout: bytes
    stderr: str

    def output(self) -> bytes:
        """Return stdout of a process that ended well and said nothing; fail for any other."""
        assert self == (0, self.stdout, "")
        return self.stdout

    def failure(self, status: int = 1, *, lines: int | None = None) -> str:
        """Return what a process has said, in so many *lines*, that failed and wrote nothing; fail for any other."""
        assert self == (status, b"", self.stderr)
        assert lines in (None, self.stderr.count("\n"))
        return self.stderr


Run = Callable[..., Result]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Return what distributes the tests among workers, if there are some."""
    return schedule.Schedule(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """Let the schedule decide about all paths, not only those below this folder; begin as a terminal's shell would."""
    config.pluginmanager.register(schedule)
    sys.executable = os.path.abspath(sys.executable)  # as what we start has it, by whatever path Python was called
    os.environ["TARTOOLS_FSYNC"] = "0"  # for commands in this process, as for others
    # nohup ignores SIGHUP, and `&` of a script SIGINT and SIGQUIT: so would all that the tests start
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which tests are in which tier."""
    take_turns(items)


@pytest.fixture(autouse=True)
def _same_limit() -> Iterator[None]:
    """Take back what a test has made of the limit of open files, which Ray raises: forks have that of the beginning."""
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, FILES)


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Give what commands are forked from."""
    forks = Forks(clean_environment())
    yield forks
    forks.stop()


@pytest.fixture
def run(tmp_path: Path, forks: Forks) -> Run:
    """Return a function that runs an installed command in `tmp_path`: `run("tarcat", "-c", 3, stdin=data)`.

    It is a fork of a process that has imported the commands (`tests.forkserver`), which a test can't tell from one that
    was started, but for the time. With `real=True` it is started.
    """

    def run(
        name: str,
        *arguments: object,
        stdin: bytes = b"",
        env: dict[str, str] | None = None,
        timeout: float = 120,
        real: bool = False,
    ) -> Result:
        command = [BIN / name, *map(str, arguments)]
        environment = clean_environment() | (env or {})
        if real or not forks.can(command, environment):
            start = partial(subprocess.run, capture_output=True, check=False)
        else:
            start = forks.run
        done = start(command, input=stdin, cwd=tmp_path, env=environment, timeout=timeout)
        return Result(done.returncode, done.stdout, done.stderr.decode())

    return run


@pytest.fixture
def shell(tmp_path: Path, forks: Forks) -> Run:
    """Return a function that runs a line of bash in `tmp_path`, with the installed commands first in PATH.

    They are forks, as those of `run`, where what the shell gives them allows that, and *real* is not said.
    """

    def shell(
        line: str, *, stdin: bytes = b"", env: dict[str, str] | None = None, timeout: float = 120, real: bool = False
    ) -> Result:
        environment = clean_environment() | (env or {})
        if not real and str(BIN) in environment["PATH"]:
            environment["PATH"] = f"{forks.folder(line)}{os.pathsep}{environment['PATH']}"
        return start("bash", "-c", line, folder=tmp_path, env=environment, stdin=stdin, timeout=timeout)

    return shell


def start(
    *command: object,
    folder: Path | str | None = None,
    env: dict[str, str] | None = None,
    stdin: bytes = b"",
    timeout: float = 120,
) -> Result:
    """Run *command* in *folder*, with *env* added to a clean environment."""
    environment = clean_environment() | (env or {})
    words = [word if isinstance(word, bytes) else str(word) for word in command]
    done = subprocess.run(
        words, input=stdin, capture_output=True, cwd=folder, env=environment, timeout=timeout, check=False
    )
    return Result(done.returncode, done.stdout, done.stderr.decode())


def python(program: str, *arguments: object, **options: Any) -> Result:
    """Run *program*, which is Python, in a process of its own, with the *options* of `start`."""
    return start(sys.executable, "-c", program, *arguments, **options)


@pytest.fixture
def duckdb_command(tmp_path: Path) -> dict[str, str]:
    """Return an environment whose PATH has a `duckdb` that runs SQL by -c, as the program of DuckDB does."""
    script = f"#!{sys.executable}\nimport sys, duckdb\nassert sys.argv[1] == '-c'\nduckdb.sql(sys.argv[2])\n"
    folder = tmp_path / ".programs"
    folder.mkdir()
    (folder / "duckdb").write_text(script)
    (folder / "duckdb").chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{clean_environment()['PATH']}"}


@contextmanager
def running(command: Sequence[str | Path], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run *command*, with the *options* of Popen; when the block is left it is over, killed if need be."""
    with subprocess.Popen(command, env=clean_environment() | options.pop("env", {}), **options) as process:
        try:
            yield process
        finally:
            process.kill()


def open_descriptors() -> set[str]:
    """Return the descriptors that are open here, but for those that only garbage of other tests holds."""
    gc.collect()
    return set(os.listdir("/dev/fd"))


def clean_environment() -> dict[str, str]:
    """Return the environment without our own settings, and with the installed commands first in PATH."""
    without = ("TARTOOLS_", "GOPEN_", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")  # these change when Python writes
    kept = {k: v for k, v in os.environ.items() if not k.startswith(without)}
    kept["TARTOOLS_FSYNC"] = "0"  # test_nothing_left alone waits for the disk
    return kept | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "LC_ALL": "C.UTF-8"}


def make_tar(members: Sequence[tuple[str, bytes]], format: int = tarfile.USTAR_FORMAT) -> bytes:
    """Return a tar archive of regular *members*, as Python's tarfile writes it."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as archive:
        for name, payload in members:
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.mode, info.uid = len(payload), 1577836800, 0o640, 1234
            archive.addfile(info, io.BytesIO(payload))
    return file.getvalue()


def make_samples(count: int, start: int = 0) -> list[tuple[str, bytes]]:
    """Return the members of *count* samples with fields cls (a digit) and jpg (some bytes)."""
    return [
        member
        for n in range(start, start + count)
        for member in ((f"{n:06d}.cls", b"%d" % (n % 10)), (f"{n:06d}.jpg", bytes([n % 251]) * (n * 37 % 3000)))
    ]


def members_of(archive: bytes) -> list[tuple[str, bytes]]:
    """Return the regular members of *archive* as (name, payload), as Python's tarfile reads them."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return [(info.name, opened.extractfile(info).read()) for info in opened if info.isreg()]  # type: ignore[union-attr]


def keys_in(archive: bytes) -> list[str]:
    """Return the keys of the samples in *archive*, each once, in order."""
    return list(dict.fromkeys(re.sub(r"\.[^/]*$", "", name) for name, _ in members_of(archive)))


def has_end(archive: bytes) -> bool:
    """Tell whether *archive* ends as archives of ours do: zero blocks, to a multiple of 10,240 bytes."""
    return len(archive) % 10240 == 0 and len(archive) > 0 and not archive[-1024:].strip(b"\0")
