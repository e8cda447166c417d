"""Commands as inputs and outputs: `pipe:COMMAND`, and `GOPEN_<SCHEME>` templates.

A command runs in `sh`, in a session of its own, so that all its processes can be ended.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import select
import shlex
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import IO

from tartools.errors import StorageError, UsageError, concealed
from tartools.storage.interrupts import deferred_signals
from tartools.storage.streams import FileSink, enlarge
from tartools.storage.url import PIPE

# what changes the meaning of quotes, or of quoted text: arithmetic, expansions, comments
_NESTED = re.compile(r"`|<<|\$'|\(\(|\$\[|\$\{[^}]*\{|\blet\b|(?<!\S)#")
PATIENCE = 2.0  # seconds between SIGTERM and SIGKILL


def fill(template: str, word: str) -> str:
    r"""Return *template* with each `{}`, its quotes included, replaced by *word* as one shell word; see `fill_all`.

    >>> fill("gsutil cat '{}'", "gs://b/it's.tar")
    'gsutil cat \'gs://b/it\'"\'"\'s.tar\''
    """
    return fill_all(template, {"{}": word})


def fill_all(template: str, words: Mapping[str, str]) -> str:
    """Return *template* with each key of *words*, its quotes included, replaced by its value as one shell word.

    A word of harmless characters may stand anywhere. Any other may not become part of a quoted string: it could end the
    string, or the shell could run commands in it.

    Raises: UsageError for such a word inside a quoted string.
    """
    place = "|".join(map(re.escape, words))
    alone = re.compile(rf"""'(?:{place})'|"(?:{place})"|(?:{place})""")
    if all(shlex.quote(word) == word for word in words.values()):
        return alone.sub(lambda found: words[found[0].strip("'\"")], template)
    quoted = re.compile(rf"""\\.|'[^']*'|"(?:\\.|[^"\\])*"|{place}|['"]""", re.DOTALL)

    def put(found: re.Match[str]) -> str:
        part = found[0]
        if alone.fullmatch(part) and not _NESTED.search(template):
            return shlex.quote(words[part.strip("'\"")])
        unclosed = part[part.find("$(") :].count(")") < part.count("$(")
        if re.search(place, part) or part in "'\"" or unclosed or _NESTED.search(template):
            raise UsageError(
                f"for this name, {{}} has to stand alone, or alone in quotes: {concealed(template)}",
                url=next(iter(words.values())),
            )
        return part

    return quoted.sub(put, template)


class Child:
    """A program in a session of its own. None of its processes is left once it has ended.

    Its process group is killed before the program is reaped: until then no other group can have the same number. It has
    a session, because a background group that reads a password from the terminal would be stopped for ever; without a
    terminal it fails at once. A signal that comes while it starts is handled after the start.
    """

    def __init__(self, arguments: Sequence[str], **options: object) -> None:
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        try:
            with deferred_signals():
                self._process = subprocess.Popen(arguments, start_new_session=True, bufsize=0, **options)  # type: ignore[call-overload]
        except BaseException:
            if self._process is not None:
                self.end(signal.SIGKILL)
            raise

    @property
    def pid(self) -> int:
        """The number of the process, its group and its session."""
        return self._started.pid

    @property
    def _started(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def stdin(self) -> IO[bytes] | None:
        """Our end of its stdin, if that is a pipe."""
        return self._started.stdin

    @property
    def stdout(self) -> IO[bytes] | None:
        """Our end of its stdout, if that is a pipe."""
        return self._started.stdout

    @property
    def running(self) -> bool:
        """Tell whether it has not been reaped yet; always False in a fork of the process that started it."""
        return self._process is not None and self._process.returncode is None and os.getpid() == self._owner

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to all of the group, if the program has not been reaped yet."""
        with self._lock:
            if self.running:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, number)

    def wait(self, seconds: float | None = None) -> int | None:
        """Wait for the end, kill what the program left, and return its status; None after *seconds*."""
        if not self.has_ended(seconds):
            return None
        self.kill()
        return self._started.wait() if os.getpid() == self._owner else 0

    def end(self, first: int = signal.SIGTERM) -> None:
        """End all its processes: by signal *first*, after two seconds by SIGKILL."""
        self.kill(first)
        if self.wait(PATIENCE) is None:
            self.kill()
            self.wait()

    def has_ended(self, seconds: float | None) -> bool:
        """Wait up to *seconds* for the end, without reaping if the system can do that; tell whether it has ended.

        Processes that it left run until `wait` or `kill` is called.
        """
        if not self.running:
            return True
        try:
            if seconds is not None:
                fd = os.pidfd_open(self.pid)
                try:
                    poll = select.poll()
                    poll.register(fd, select.POLLIN)
                    return bool(poll.poll(seconds * 1000))
                finally:
                    os.close(fd)
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        except (ChildProcessError, ProcessLookupError):
            return True  # another thread reaped it meanwhile
        except (AttributeError, OSError):  # not Linux, or an old kernel
            try:
                self._started.wait(seconds)
            except subprocess.TimeoutExpired:
                return False
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)  # at once: the number is hardly used again yet
        return True


def describe(status: int) -> str:
    """Return in words how a command ended."""
    if status >= 0:
        return f"ended with status {status}"
    known = {number.value: number.name for number in signal.Signals}
    return f"was ended by {known.get(-status, f'signal {-status}')}"


def run(template: str, word: str) -> None:
    """Run *template*, with *word* for its `{}`; what it prints goes to stderr.

    Raises: StorageError if it fails.
    """
    child = Child(["sh", "-c", fill(template, word)], stdin=subprocess.DEVNULL, stdout=2)
    try:
        status = child.wait()
    except BaseException:
        child.end()
        raise
    if status:
        raise StorageError(f"the command for this shard {describe(status)}: {concealed(template)}", url=word)


class CommandInput:
    """The stdout of a command. At its end, a status other than 0 is a failure."""

    file: io.FileIO | None = None
    start = 0

    def __init__(self, command: str, url: str) -> None:
        self._url = url
        self._child = Child(["sh", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert isinstance(self._child.stdout, io.FileIO)
        self._output = self._child.stdout
        enlarge(self._output.fileno())

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes; 0 at the end. Raises: StorageError if the command failed."""
        count = self._output.readinto(view) or 0
        if not count and (status := self._child.wait()):
            raise StorageError(f"the command {describe(status)}", url=self._url)
        return count

    def fileno(self) -> int:
        """Return the descriptor, which a fork of this process can read too."""
        return self._output.fileno()

    def cancel(self) -> bool:
        """End the command, which ends a `readinto` in another thread."""
        self._child.end()
        return True

    def close(self) -> None:
        """Close the pipe; a command that goes on writing gets SIGPIPE, and SIGTERM after two seconds."""
        self._output.close()
        if self._child.wait(PATIENCE) is None:
            self._child.end()

    def __del__(self) -> None:
        child: Child | None = getattr(self, "_child", None)
        if child is not None and child.running:
            child.end()


def open_read(url: str) -> CommandInput:
    """Return the stdout of the command of a `pipe:` URL."""
    return CommandInput(url.removeprefix(PIPE), url)


class CommandOutput:
    """The stdin of a command. It ends at `commit` only."""

    streaming = False

    def __init__(self, command: str, url: str) -> None:
        self._child = Child(["sh", "-c", command], stdin=subprocess.PIPE)
        assert self._child.stdin is not None
        with self._child.stdin as pipe:
            self.sink = FileSink(os.dup(pipe.fileno()), url)  # so that the descriptor has one owner
        enlarge(self.sink.fileno())
        self._open = True

    def commit(self) -> None:
        """Close the pipe and wait. Raises: StorageError if the command failed."""
        self.sink.close()
        if status := self._child.wait():
            raise StorageError(f"the command {describe(status)}", url=self.sink.url)
        self._open = False

    def abort(self) -> None:
        """Kill the command *before* its stdin ends, so that it can't take a part of an archive for all of it."""
        if self._open:
            self._open = False
            self._child.end(signal.SIGKILL)
            self.sink.close()


def open_write(url: str, force: bool) -> CommandOutput:
    """Return the stdin of the command of a `pipe:` URL."""
    return CommandOutput(url.removeprefix(PIPE), url)
