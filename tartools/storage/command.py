"""Commands as inputs and outputs: `pipe:COMMAND`, and `GOPEN_<SCHEME>` templates.

A command runs in `sh`, in a process group of its own, so that nothing of it is left when we stop.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Iterator
from typing import IO

from tartools.errors import StorageError, UsageError, concealed
from tartools.storage.names import PIPE
from tartools.storage.streams import FileSink, enlarge

_PLACE = re.compile(r"""'\{\}'|"\{\}"|\{\}""")
_NESTED = re.compile(r"`|<<|\$'")  # what else changes the meaning of quotes
_QUOTED = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*"|\{\}|['"]""", re.DOTALL)
PATIENCE = 2.0  # seconds between asking a command to end and making it


def fill(template: str, word: str) -> str:
    r"""Return *template* with each `{}`, its quotes included, replaced by *word* as one shell word.

    A word of harmless letters may stand anywhere. Another one may not become part of a quoted string, which it could
    end, or in which a shell would run what is in it.

    Raises: UsageError for a word that would.

    >>> fill("gsutil cat '{}'", "gs://b/it's.tar")
    'gsutil cat \'gs://b/it\'"\'"\'s.tar\''
    """
    quoted = shlex.quote(word)
    if quoted == word:
        return _PLACE.sub(word, template)

    def put(found: re.Match[str]) -> str:
        part = found[0]
        if _PLACE.fullmatch(part) and not _NESTED.search(template):
            return quoted
        unclosed = part[part.find("$(") :].count(")") < part.count("$(")
        if "{}" in part or part in "'\"" or unclosed or _NESTED.search(template):
            raise UsageError(f"for such a name, {{}} has to stand alone or alone in quotes: {template}", url=word)
        return part

    return _QUOTED.sub(put, template)


def start(command: str, **streams: IO[bytes] | int | None) -> subprocess.Popen[bytes]:
    """Start *command* in `sh`, in its own process group, with the default action for SIGPIPE.

    A signal that comes meanwhile waits until there is something to end.
    """
    process: subprocess.Popen[bytes] | None = None
    try:
        with _signals_wait():
            process = subprocess.Popen(["sh", "-c", command], process_group=0, bufsize=0, **streams)  # type: ignore[call-overload]
    except BaseException:
        if process is not None:
            stop(process, signal.SIGKILL)
        raise
    assert process is not None
    return process


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """Keep signal handlers written in Python from running while the block does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: old for number in numbers if callable(old := signal.getsignal(number))}
    for number in handlers:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, old in handlers.items():
            signal.signal(number, old)
        if came:
            signal.raise_signal(came[0])


def stop(process: subprocess.Popen[bytes], first: int = signal.SIGTERM) -> None:
    """End *process* and all of its group: by signal *first*, after two seconds by SIGKILL."""
    for number in (first, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            continue
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # what the command left running
        return


def describe(status: int) -> str:
    """Return how a command ended, in words."""
    if status >= 0:
        return f"ended with status {status}"
    return f"was ended by {signal.Signals(-status).name}"


def run(template: str, word: str) -> None:
    """Run *template*, with *word* for its `{}`; what it prints goes to stderr.

    Raises: StorageError if it fails.
    """
    process = start(fill(template, word), stdin=subprocess.DEVNULL, stdout=2)
    try:
        status = process.wait()
    except BaseException:
        stop(process)
        raise
    if status:
        raise StorageError(f"the command for this shard {describe(status)}: {concealed(template)}", url=word)


class CommandInput:
    """What a command writes to its stdout. Its end is the end only if the command's status is 0."""

    file: io.FileIO | None = None
    start = 0

    def __init__(self, command: str, url: str) -> None:
        self._url = url
        self._process = start(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert isinstance(self._process.stdout, io.FileIO)
        self._output = self._process.stdout
        enlarge(self._output.fileno())

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes; 0 at the end. Raises: StorageError if the command failed."""
        count = self._output.readinto(view) or 0
        if not count and (status := self._process.wait()):
            raise StorageError(f"the command {describe(status)}", url=self._url)
        return count

    def skip(self, count: int, /) -> None:
        """Never asked for: there is no file."""
        raise AssertionError("only files are skipped in")

    def cancel(self) -> None:
        """End the command."""
        stop(self._process)

    def close(self) -> None:
        """Close the pipe; a command that writes on gets SIGPIPE, and SIGTERM after two seconds."""
        self._output.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE)
        stop(self._process)

    def __del__(self) -> None:
        process: subprocess.Popen[bytes] | None = getattr(self, "_process", None)
        if process is not None and process.returncode is None:
            stop(process)


def open_read(url: str) -> CommandInput:
    """Return what the command of a `pipe:` URL writes."""
    return CommandInput(url.removeprefix(PIPE), url)


class CommandOutput:
    """What a command reads from its stdin. It is told of the end only when there is one."""

    streaming = False

    def __init__(self, command: str, url: str) -> None:
        self._process = start(command, stdin=subprocess.PIPE)
        assert self._process.stdin is not None
        with self._process.stdin as pipe:
            self.sink = FileSink(os.dup(pipe.fileno()), url)  # one owner of the descriptor
        enlarge(self.sink.fileno())
        self._open = True

    def commit(self) -> None:
        """Close the pipe and wait. Raises: StorageError if the command failed."""
        self.sink.close()
        if status := self._process.wait():
            raise StorageError(f"the command {describe(status)}", url=self.sink.url)
        self._open = False

    def abort(self) -> None:
        """Kill the command *before* its stdin ends, so that it can't take half an archive for a whole one."""
        if self._open:
            self._open = False
            stop(self._process, signal.SIGKILL)
            self.sink.close()


def open_write(url: str, force: bool) -> CommandOutput:
    """Return the stdin of the command of a `pipe:` URL."""
    return CommandOutput(url.removeprefix(PIPE), url)
