"""Outputs that wait for a reader: a signal ends the wait."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tartools.storage.interrupts import deferred_signals, handled_signals
from tests.conftest import BIN, make_samples, make_tar, running

WAIT = "wait_for_partner"  # where Linux waits for the other end of a fifo
LINES = ["tarcat -o fifo in.tar", "tar2tsv -o fifo in.tar", "tarsort -o fifo in.tar"]


@pytest.mark.skipif(not Path("/proc/self/wchan").exists(), reason="this system does not tell where a process waits")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("line", LINES)
def test_a_fifo_that_nobody_reads(line: str, number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "in.tar").write_bytes(make_tar(make_samples(3)))
    os.mkfifo(tmp_path / "fifo")
    name, *arguments = line.split()
    with running([BIN / name, *arguments], cwd=tmp_path, stderr=subprocess.PIPE) as process:
        waits = Path(f"/proc/{process.pid}/wchan")
        while waits.read_text() != WAIT:
            assert process.poll() is None
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        assert (process.returncode, said) == (-number, b"")
    assert sorted(os.listdir(tmp_path)) == ["fifo", "in.tar"]


class CameError(Exception):
    """What the handlers of these tests raise."""


@pytest.fixture
def came(request: pytest.FixtureRequest) -> list[int]:
    """Return the list of the signals that were handled; their handlers raise, and set others, as ours do."""
    found: list[int] = []

    def handler(number: int, _: object) -> None:
        found.append(number)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        raise CameError

    for number in (signal.SIGTERM, signal.SIGHUP):
        old = signal.signal(number, handler)
        request.addfinalizer(lambda number=number, old=old: signal.signal(number, old))
    return found


def test_signals_are_handled_again_inside_a_block_that_defers_them(came: list[int]) -> None:
    with pytest.raises(CameError), deferred_signals(), deferred_signals(), handled_signals():
        signal.raise_signal(signal.SIGTERM)
        pytest.fail("it was deferred")
    assert came == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN  # what the handler has set stays


def test_a_signal_that_was_deferred_ends_the_wait_before_it_begins(came: list[int]) -> None:
    with pytest.raises(CameError), deferred_signals():
        signal.raise_signal(signal.SIGTERM)
        assert came == []
        with handled_signals():
            pytest.fail("it would wait")
    assert came == [signal.SIGTERM]


def test_after_the_wait_signals_are_deferred_again(came: list[int]) -> None:
    with pytest.raises(CameError), deferred_signals():
        with handled_signals():
            pass
        signal.raise_signal(signal.SIGTERM)
        assert came == []
    assert came == [signal.SIGTERM]
