"""Stdin and stdout."""

from __future__ import annotations

import os

from tartools.errors import UsageError
from tartools.storage.local import FileInput, OpenOutput
from tartools.storage.streams import FileSink, InputFile


def open_read(url: str) -> FileInput:
    """Return stdin as input. Raises: OSError if it is closed."""
    return FileInput(InputFile(0, url))


def open_write(url: str, force: bool) -> OpenOutput:
    """Return stdout as output. Raises: UsageError if it is a terminal."""
    if os.isatty(1):
        raise UsageError("stdout is a terminal, which cannot show a tar archive: use -o FILE, > FILE or a pipe")
    return open_text()


def open_text() -> OpenOutput:
    """Return stdout as output, also if it is a terminal: for what people can read."""
    return OpenOutput(FileSink(1, "stdout"))
