"""Runs works: ours and its peers in turn, round by round, each a whole process; tells wall, CPU, memory and sizes.

The memory of a command is never less than what this process holds (some 20 MB): Linux counts what a process was before
it became another program. So nothing large is imported here, or made here.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from tests.bench.data import SETS, home, samples_in
from tests.bench.works import Line, Work

ROOT = Path(__file__).parents[2]
MEMORY = Path("/dev/shm")  # a file system in memory, where there is one
KIB = 1 if sys.platform == "darwin" else 1024  # bytes in the unit of ru_maxrss
PACKAGES = {"bsdtar": "libarchive-tools", "pigz": "pigz", "gzip": "gzip", "xargs": "findutils", "nginx": "nginx-light"}
PATIENCE = 5.0  # seconds that an interrupted command has to clean up


class LineError(Exception):
    """A line ended with a status other than 0, so what it took says nothing."""


class Round(NamedTuple):
    """One run: seconds of wall and CPU (of all processes), MB of the largest process, bytes written to $OUT."""

    wall: float
    cpu: float
    memory: float
    size: int = 0


@dataclass
class Measured:
    """What came of a work: the rounds of each line, by its name, and why a peer has none."""

    work: Work
    scale: float
    rounds: dict[str, list[Round]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    failure: str = ""

    def median(self, name: str, figure: str = "wall") -> float:
        """Return the median of a figure of the line *name*, which was run."""
        return float(statistics.median(getattr(each, figure) for each in self.rounds[name]))

    def samples(self, line: Line) -> int:
        """Return the samples that the time of *line* is told for, 1 if it is told for all of them."""
        return samples_in(line.of, self.scale) if line.of else 1

    def ratio(self, peer: Line, figure: str = "wall") -> float | None:
        """Return the median of the ratios of ours to *peer*, round by round; None if there is none to be had."""
        share = self.samples(peer) / self.samples(self.work.ours) if figure == "wall" else 1.0
        pairs = zip(self.rounds.get(self.work.ours.name, ()), self.rounds.get(peer.name, ()), strict=False)
        found = [(getattr(ours, figure), getattr(theirs, figure)) for ours, theirs in pairs]
        ratios = [share * ours / theirs for ours, theirs in found if ours > 0 and theirs > 0]
        return statistics.median(ratios) if ratios else None


class Bench:
    """Runs works on data sets of *scale* below *folder*, in *runs* rounds; *tell* is given a line about progress.

    Outputs go below *place*, by default where there is room: in memory, or else beside the data. A line of training
    takes *seconds*, and what it prepares.
    """

    def __init__(
        self,
        folder: Path,
        scale: float,
        runs: int,
        tell: Callable[[str], None],
        place: Path | None = None,
        seconds: float = 1.0,
    ) -> None:
        self._folder, self._scale, self._runs, self._tell, self._place = folder.absolute(), scale, runs, tell, place
        self._out = Path()
        self._home = home(self._folder, scale)
        # As tests.conftest has it, which would bring pytest, and its memory.
        self._env = {k: v for k, v in os.environ.items() if not k.startswith(("TARTOOLS_", "GOPEN_"))}
        self._env |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "LC_ALL": "C.UTF-8"}
        self._env |= {name: str(self._home / each.path) for name, each in SETS.items()}
        self._env |= {f"{name}_COUNT": str(samples_in(name, scale)) for name in SETS}
        self._env["READERS"] = str(Path(__file__).with_name("readers.py"))
        self._env |= {"SCALE": str(scale), "OBJECTS": str(max(20, round(1000 * scale)))}
        self._seconds = seconds
        self._loading: subprocess.Popen[str] | None = None

    def close(self) -> None:
        """End the process that lines of training are run in."""
        if self._loading:
            stop(self._loading)
            self._loading.communicate()

    def measure(self, work: Work) -> Measured:
        """Run *work*. A line that fails ends it, and is told as its `failure`."""
        measured = Measured(work, self._scale)
        try:
            sizes = [self._size_of(name) for name in work.sets]
            if work.ours.told:
                self._level(work)
                self._rounds(measured)
            else:
                with self._output(sum(sizes)):
                    self._rounds(measured)
        except LineError as failed:
            measured.failure = f"{work.name}: {failed}"
        return measured

    def _rounds(self, measured: Measured) -> None:
        work, lines = measured.work, []
        for line in work.lines:
            if remedy := self._missing(line):
                measured.missing[line.name] = f"not installed; {remedy}"
            else:
                lines.append(line)
        if work.ours not in lines:
            raise LineError(measured.missing[work.ours.name])
        for line in lines:
            if not line.rounds and not line.told:
                self._timed(work, line)
            if line is work.ours and work.check:
                self._run("its check", work.check)
        for number in range(self._runs):
            for line in [each for each in lines if not each.rounds or number < each.rounds]:
                try:
                    done = self._timed(work, line)
                except LineError as failed:
                    if line is work.ours or line.needs in ("", *PACKAGES):
                        raise
                    lines.remove(line)  # a library that fails is no failure of the work
                    measured.rounds.pop(line.name, None)
                    measured.missing[line.name] = f"failed: {failed}"
                else:
                    measured.rounds.setdefault(line.name, []).append(done)

    def _missing(self, line: Line) -> str:
        """Return how to get a program or library that *line* needs and that is not there, else ""."""
        if line.needs and line.needs not in PACKAGES and not installed(line.needs):
            return f"pip install {line.needs}"
        text, path = f"{line.needs} {line.line}", f"{self._env['PATH']}{os.pathsep}/usr/sbin"
        for program, package in PACKAGES.items():
            if re.search(rf"(?<![\w./-]){program}\b", text) and not shutil.which(program, path=path):
                return f"Debian has it in {package}"
        return ""

    def _size_of(self, name: str) -> int:
        """Return the bytes of the data set *name*, which is made if it is not there."""
        path = self._home / SETS[name].path
        if not path.exists():
            self._tell(f"making {path}")
            words = [sys.executable, "-m", "tests.bench.data", str(self._folder), str(self._scale), name]
            self._run(f"the data set {name}", f"exec {shlex.join(words)}")
        return size_below(path)

    @contextmanager
    def _output(self, size: int) -> Iterator[None]:
        """Make $OUT for as long as this lasts; in memory there is room if it is for twice *size*."""
        roomy = MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 2 * size
        place = self._place or (MEMORY if roomy else self._home)
        self._out = Path(tempfile.mkdtemp(prefix="tartools-bench-", dir=place.absolute()))
        self._env["OUT"] = str(self._out)
        try:
            yield
        finally:
            shutil.rmtree(self._out)

    def _level(self, work: Work) -> None:
        """Let all runs of *work* begin alike: its data just read, as much memory just freed.

        Memory that has been free for seconds is taken back by the host of a virtual machine, and files that nobody
        reads go to disk: both cost whoever comes next, several times what the run itself takes.
        """
        part = bytearray(1 << 20)
        size = 0
        for path in [self._home / SETS[name].path for name in work.sets]:
            for each in path.iterdir() if path.is_dir() else [path]:
                if not each.is_file():  # a pipe can be read only once
                    continue
                with each.open("rb", buffering=0) as file:
                    while count := file.readinto(part):
                        size += count
        if any("$OUT" in line.line for line in work.lines):
            room = self._out / "room"
            with room.open("wb", buffering=0) as file:
                while size > 0:
                    size -= file.write(part)
            room.unlink()

    def _timed(self, work: Work, line: Line) -> Round:
        """Run *line* with an empty $OUT; what its `less` takes is taken off."""
        if line.told:
            return self._told(line)
        started = Round(0, 0, 0)
        if line.less:
            self._empty()
            started = self._run(line.name, line.less)
        self._empty()
        if line.before:
            self._run(line.name, line.before)
        self._level(work)
        done = self._run(line.name, line.line)
        return Round(done.wall - started.wall, done.cpu - started.cpu, done.memory, size_below(self._out))

    def _told(self, line: Line) -> Round:
        """Have *line* run by the process of `tests.bench.loading`; return what 1,000 of its units take."""
        if not self._loading:
            self._loading = subprocess.Popen(
                [sys.executable, "-m", "tests.bench.loading", str(self._seconds)],
                **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True},
                env=self._env,
                cwd=ROOT,
                process_group=0,
            )
        asked, answers = self._loading.stdin, self._loading.stdout
        assert asked is not None
        assert answers is not None
        asked.write(Template(line.line).substitute(self._env) + "\n")
        asked.flush()
        found = json.loads(answers.readline() or '{"error": "its process has ended"}')
        if "error" in found:
            raise LineError(f"{line.name}: {found['error']}")
        return Round(*(found[name] * 1000 / found["count"] for name in ("wall", "cpu")), memory=0)

    def _empty(self) -> None:
        for path in self._out.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def _run(self, name: str, line: str) -> Round:
        """Run *line* in bash, and wait for it. Raises: LineError, with the last line of its stderr."""
        command = ["bash", "-o", "pipefail", "-c", line]
        with tempfile.TemporaryFile() as said:
            start = time.perf_counter()
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=self._env, cwd=ROOT, process_group=0
            )
            try:
                _, status, usage = os.wait4(process.pid, 0)
            except BaseException:
                stop(process)
                raise
            wall = time.perf_counter() - start
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                said.seek(0)
                last = said.read().decode(errors="replace").rstrip().rpartition("\n")[2]
                raise LineError(f"{name}: status {process.returncode}: {last or line}")
        return Round(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * KIB / 1e6)


def installed(distribution: str) -> bool:
    """Return whether the Python package is there."""
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def stop(process: subprocess.Popen[Any]) -> None:
    """End the process group of *process*, and wait until nothing of it is left."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + PATIENCE
        try:
            os.killpg(process.pid, number)
            while time.monotonic() < until:
                process.poll()
                os.killpg(process.pid, 0)  # is there anybody left?
                time.sleep(0.02)
        except ProcessLookupError:
            return


def size_below(path: Path) -> int:
    """Return the bytes of the file *path*, or of all files in the folder."""
    return sum(each.stat().st_size for each in (path.iterdir() if path.is_dir() else [path]))
