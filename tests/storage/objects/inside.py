"""Commands in this process, on small objects that are read by still smaller ranges: some hundred runs a second.

    inside = Inside(server, tmp_path, monkeypatch, capfdbinary)
    inside.ahead()                     # threads receive ranges ahead, which they else do on slow networks only
    assert inside.copy("s3") == (0, data, "")

What is told by clocks and sizes elsewhere is small here: ranges of `RANGE` bytes, and hardly a pause between tries.
"""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tartools.storage.objects import gs, http, pacing, ranges, retry, s3
from tests.commands.test_every_command import command
from tests.conftest import Result
from tests.storage.objects.faults import FaultServer

RANGE = 1000  # bytes
OBJECT = "a.tar"


class Copied(NamedTuple):
    """What came of `tarcat -o out.tar`: *data* is the output, None if none appeared."""

    status: int
    data: bytes | None
    stderr: str

    def refused(self, url: str, reason: str) -> None:
        """Check that this is a failure of one line, which matches *reason* behind the URL."""
        assert (self.status, self.data) == (1, None), self
        assert re.fullmatch(rf"tarcat: {re.escape(url)}: {reason}\n", self.stderr), self


class Inside:
    """Runs commands in this process, in *folder*, with *server* in the environment."""

    def __init__(
        self, server: FaultServer, folder: Path, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[bytes]
    ) -> None:
        self.server = server
        self._folder = folder
        self._patch = monkeypatch
        self._capture = capture
        monkeypatch.chdir(folder)
        monkeypatch.setattr(ranges, "RANGE_BYTES", RANGE)
        monkeypatch.setattr(retry, "FIRST_BACKOFF", 0.0005)
        self.environ(TARTOOLS_TRIES="3", **server.env)

    def environ(self, **settings: str) -> None:
        """Set variables of the environment."""
        for name, value in settings.items():
            self._patch.setenv(name, value)
        self._forget()

    def drop(self, name: str) -> None:
        """Take a variable from the environment."""
        self._patch.delenv(name)
        self._forget()

    def _forget(self) -> None:
        pacing._pacers.clear()  # a server that was busy
        for cached in (
            s3._connection_of,
            http._connections,
            gs._credentials_for,
        ):  # of another environment
            cached.cache_clear()

    def ahead(self) -> None:
        """Let threads receive ranges ahead from the second range on."""
        look_ahead(self._patch)

    def run(self, name: str, *arguments: str) -> Result:
        """Run the command *name*."""
        pacing._pacers.clear()
        status = command(name).main(arguments)
        sys.stdout.flush()
        for thread in threading.enumerate():  # of a run that failed some may still ask for their ranges
            if "(_run)" in thread.name:
                thread.join()
        out, err = self._capture.readouterr()
        return Result(status, out, err.decode())

    def copy(self, scheme: str, name: str = OBJECT) -> Copied:
        """Copy an object to a file, by tarcat."""
        out = self._folder / "out.tar"
        out.unlink(missing_ok=True)
        done = self.run("tarcat", "-o", "out.tar", self.server.url(scheme, name))
        assert done.stdout == b""
        data = out.read_bytes() if out.exists() else None
        assert [path.name for path in self._folder.iterdir()] == ["out.tar"] * (data is not None)
        return Copied(done.status, data, done.stderr)

    def starts(self) -> list[int]:
        """Return, sorted, the first byte of each range that was asked for since the last time."""
        asked = [request.start for request in self.server.requests if request.method == "GET"]
        self.server.requests.clear()
        return sorted(start for start in asked if start is not None)


def look_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let threads receive ranges ahead, as many as the settings allow, as if the network were slow."""
    begin = ranges.RangedInput.__init__

    def init(self: ranges.RangedInput, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)
        self._pace.window = self._pace.max_window

    monkeypatch.setattr(ranges.RangedInput, "__init__", init)
