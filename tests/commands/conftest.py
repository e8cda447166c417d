"""Commands run in this process, thousands of times a minute, with pipes or files for stdin and stdout."""

from __future__ import annotations

import importlib
import io
import os
import resource
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tartools.cli import Command
from tests.conftest import Result

Inside = Callable[..., Result]
FITS = 1 << 15  # bytes that any pipe holds, without somebody at its other end


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Inside]:
    """Return a function that runs a command in this process, in `tmp_path`: `inside("tarcat", "-c", "3", stdin=data)`.

    *stdin* comes by a pipe; stdout goes to a pipe, or to a file of this name. Where no more than 32 KiB come out,
    *short* is quicker.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Command, "_parse", remembering(Command._parse))  # takes ten times as long as a short run
    with ThreadPoolExecutor(2) as others:

        def inside(
            name: str, *arguments: str, stdin: bytes = b"", stdout: str | None = None, short: bool = False
        ) -> Result:
            command = getattr(importlib.import_module(f"tartools.commands.{name}"), name)
            reading = None
            with ExitStack() as streams:
                source, end = os.pipe()
                streams.enter_context(standing(0, source))
                if len(stdin) > FITS:
                    others.submit(feed, end, stdin)
                else:
                    feed(end, stdin)
                if stdout is not None:
                    streams.enter_context(standing(1, os.open(stdout, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)))
                else:
                    end, sink = os.pipe()
                    reading = None if short else others.submit(read_all, end)
                    streams.enter_context(standing(1, sink))
                said = io.StringIO()
                monkeypatch.setattr(sys, "stderr", said)
                limits = resource.getrlimit(resource.RLIMIT_NOFILE)
                streams.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)  # tarsplit raises it
                status = command.main(list(arguments))
            if stdout is not None:
                return Result(status, Path(stdout).read_bytes(), said.getvalue())
            return Result(status, reading.result() if reading else read_all(end), said.getvalue())

        yield inside


@pytest.fixture
def made(inside: Inside) -> Callable[[str, bytes], Result]:
    """Return a function that gives tarcreate a file `in` of some bytes, by an option; stdout stands for its output."""

    def made(option: str, content: bytes) -> Result:
        Path("in").write_bytes(content)
        done = inside("tarcreate", option, "in", "-o", "out.tar", short=True)
        output = Path("out.tar")
        found = output.read_bytes() if output.exists() else b""
        output.unlink(missing_ok=True)
        return done._replace(stdout=found)

    return made


def remembering(parse: Callable[[Command, list[str]], Any]) -> Callable[[Command, list[str]], Any]:
    """Return *parse*, which does its work once for each command line."""
    known: dict[tuple[str, ...], Any] = {}

    def parsed(command: Command, arguments: list[str]) -> Any:
        line = (command.name, *arguments)
        if line not in known:
            known[line] = parse(command, arguments)
        return known[line]

    return parsed


@contextmanager
def standing(number: int, fd: int) -> Iterator[None]:
    """Have *fd* stand for the standard stream *number* in the block, and close it behind that."""
    saved = os.dup(number)
    os.dup2(fd, number)
    os.close(fd)
    try:
        yield
    finally:
        os.dup2(saved, number)
        os.close(saved)


def feed(fd: int, content: bytes) -> None:
    """Write *content* to the pipe *fd* as far as anybody reads it, and close it."""
    with suppress(BrokenPipeError), open(fd, "wb", buffering=0) as file:
        view = memoryview(content)
        while view:
            view = view[file.write(view) :]


def read_all(fd: int) -> bytes:
    """Return what comes through the pipe *fd*, and close it."""
    with open(fd, "rb") as file:
        return file.read()
