"""Processes that the tests look at: whether they run, and what they show on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from tests.conftest import Result, clean_environment, running

PATIENCE = 120.0  # seconds, after which something that has to come is taken not to


def until(holds: Callable[[], object], what: str = "") -> None:
    """Wait until *holds*."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"in vain: {what}"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Tell whether the process *pid* runs; a zombie does not."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, check=False).stdout
    return bool(state.strip()) and not state.startswith((b"Z", b"X"))


def on_terminal(
    command: Sequence[str | Path], folder: Path, *, columns: int = 80, env: dict[str, str] | None = None
) -> Result:
    """Return what *command* shows on a terminal of so many *columns*, with CR LF, and what it says on stderr.

    It can read no keys from there: stdin is empty, and no terminal is that of its session.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    kept = {name: value for name, value in clean_environment().items() if name not in ("NO_COLOR", "COLUMNS")}
    environment = kept | {"TERM": "xterm-256color"} | (env or {})
    streams = {"stdin": subprocess.DEVNULL, "stdout": theirs, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, **streams) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # what Linux says when nobody has the other end open
            while part := os.read(ours, 1 << 16):
                shown += part
        os.close(ours)
        assert process.stderr is not None
        said = process.stderr.read().decode()
    return Result(process.returncode, shown, said)


def meanwhile(folder: Path, line: str, change: Callable[[], object]) -> Result:
    """Run *line* in *folder*; when its first byte has come out, and not much more can, *change* something; go on."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "bufsize": 0}
    with running(["bash", "-c", f"exec {line}"], cwd=folder, **pipes) as process:
        assert process.stdout
        first = process.stdout.read(1)
        change()
        out, err = process.communicate(timeout=120)
    return Result(process.returncode, first + out, err.decode())
