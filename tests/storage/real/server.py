"""A real server for the trials: how it is started and ended, how it is addressed, what it can't do."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

START_TIMEOUT = 180.0  # seconds; Ceph takes 30 on an idle machine


@dataclass
class Refusal:
    """A request that a server refuses, and what our message must say of it.

    `arguments` are those of tarcat; `{base}` in them is the base of the server. `message` is a regular expression.
    """

    title: str
    arguments: Sequence[str]
    message: str
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Server:
    """A server that runs. Objects are `BASE/NAME`, and commands find it with `env` in their environment."""

    version: str
    base: str
    env: dict[str, str]
    get: Callable[[str], bytes | None]  # by another client than ours, by the name behind the base; None: no object
    make_folder: Callable[[str], object] = lambda name: None  # where the server does not make folders by itself
    lacks: Mapping[str, str] = field(default_factory=dict)  # trials that can't be made there, and why
    refusals: Sequence[Refusal] = ()
    secrets: Sequence[str] = ()  # texts that no message may have
    version_seconds: float = 0.0  # after which a new object has a version that never names other bytes
    quoted: bool = False  # names are escaped in URLs
    limited: Mapping[str, str] = field(default_factory=dict)  # to reach it with at most ten requests a second

    def url(self, name: str) -> str:
        """Return the URL of the object `name`, which may be a pattern."""
        return f"{self.base}/{quote(name, safe='/{},.%*?[]') if self.quoted else name}"


class FileServer(Server):
    """A server of the folder `files` of this machine, which has the folders that trials write to.

    In its URLs the letters `escaped` are written as %XX.
    """

    def __init__(self, version: str, base: str, env: dict[str, str], files: Path, *, escaped: str, **more: Any) -> None:
        super().__init__(version, base, env, self._read, self._make_folders, **more)
        self._files = files
        self._escaped = escaped

    def url(self, name: str) -> str:
        pattern = rf"(?!%0\dd)[{self._escaped}]"  # %06d stays a number
        return super().url(re.sub(pattern, lambda found: f"%{ord(found[0]):02X}", name))

    def _read(self, name: str) -> bytes | None:
        path = self._files / name
        return path.read_bytes() if path.exists() else None

    def _make_folders(self, name: str) -> None:
        for below in ("b", "deep/er/and"):
            (self._files / name / below).mkdir(parents=True)


def require(package: str, *programs: str) -> None:
    """Skip the test if a program is not installed; `package`: what has them."""
    for program in programs:
        if shutil.which(program, path="/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin") is None:
            pytest.skip(f"{program} is not installed: {package}")


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Processes:
    """The processes of a server, which write their logs to `folder`, and end when the block ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[tuple[str, subprocess.Popen[bytes]]] = []

    def start(self, name: str, *command: object, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a process in the foreground, with the log NAME.log."""
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*map(str, command)], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, env=env
            )
        self._processes.append((name, process))
        return process

    def run(self, *command: object, env: Mapping[str, str] | None = None) -> str:
        """Run a command to its end; return its stdout. Raises: RuntimeError with its stderr if it fails."""
        done = subprocess.run(
            [*map(str, command)], capture_output=True, text=True, cwd=self.folder, env=env, check=False, timeout=300
        )
        if done.returncode:
            raise RuntimeError(f"{command}: {done.stderr}")
        return done.stdout

    def wait_for(self, port: int, ready: Callable[[], bool] = lambda: True) -> None:
        """Wait until a server listens on `port` and is ready. Raises: RuntimeError if a process has ended."""
        until = time.monotonic() + START_TIMEOUT
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                if ready():
                    return
            for name, process in self._processes:
                if process.poll() is not None:
                    raise RuntimeError(f"{name} ended: {(self.folder / f'{name}.log').read_text()[-2000:]}")
            if time.monotonic() > until:
                raise RuntimeError(f"nothing listens on port {port}")
            time.sleep(0.2)

    def stop(self) -> None:
        """End the processes, the last one first."""
        for _, process in reversed(self._processes):
            process.terminate()
        for _, process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def processes(folder: Path) -> Iterator[Processes]:
    """Give the processes of a server with files in `folder`; they end when the block does."""
    folder.mkdir(parents=True, exist_ok=True)
    group = Processes(folder)
    try:
        yield group
    finally:
        group.stop()
