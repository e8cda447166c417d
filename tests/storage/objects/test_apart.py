"""tarstat and tarcheck, whose workers ask servers for several shards at once, and say what one worker says."""

from __future__ import annotations

import re
import subprocess
from functools import partial
from typing import Any

import pytest

from tartools import storage
from tartools.storage.objects import ranges
from tests.conftest import BIN, Result, Run, make_samples, make_tar, running
from tests.storage.objects.faults import SCHEMES, Fault, FaultServer
from tests.storage.objects.test_killed import Recorded, wait_until
from tests.tiers import also, by_turns

pytestmark = by_turns("scheme")
SHARDS = {f"{number:02d}.tar": make_tar(make_samples(4 + number, 100 * number)) for number in range(14)}


@pytest.fixture
def server(faulty: FaultServer) -> FaultServer:
    """Return a server that has the shards, whose requests can be waited for."""
    faulty.objects.update(SHARDS)
    faulty.requests = Recorded()
    return faulty


def stat(run: Run, server: FaultServer, scheme: str, workers: int) -> Result:
    urls = [server.url(scheme, name) for name in SHARDS]
    return run("tarstat", "-v", "--json", "-p", workers, *urls, env=server.env)


def check_same(one: Result, several: Result) -> None:
    """Check that two runs ended alike, whatever time they took."""
    rate = re.compile(r", [\d.]+ .?B/s$", re.MULTILINE)
    assert several._replace(stderr=rate.sub("", several.stderr)) == one._replace(stderr=rate.sub("", one.stderr))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("workers", [3, 40, *also(2, 16)])
def test_all_workers_find_what_one_does(scheme: str, workers: int, server: FaultServer, run: Run) -> None:
    one = stat(run, server, scheme, 1)
    assert one.status == 0 and '"samples": 147,' in one.stdout.decode()
    asked = len(server.requests)
    check_same(one, stat(run, server, scheme, workers))
    assert len(server.requests) == 2 * asked  # nothing was asked for twice


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["tarstat", "tarcheck"])
def test_they_ask_at_once(name: str, scheme: str, server: FaultServer) -> None:
    """The first shard is not answered before the last is asked for."""
    server.faults = [Fault("00.tar", silent=True)]
    urls = [server.url(scheme, name) for name in SHARDS]
    with running([BIN / name, "-p", "3", *urls], stdout=subprocess.PIPE, env=server.env) as process:
        wait_until(server, partial(server.asked, name="12.tar"))
        server.release()
        assert process.communicate(timeout=60)[0].startswith(b"shards: 14\nsamples: 147\n")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_worker_is_as_patient_as_one_process(scheme: str, server: FaultServer, run: Run) -> None:
    whole = stat(run, server, scheme, 1)
    server.faults = [Fault("05.tar", cut=700), Fault("09.tar", status=503)]
    check_same(whole, stat(run, server, scheme, 4))


FAILURES: dict[str, dict[str, Any]] = {
    "not there": {"status": 404, "times": None},
    "forbidden": {"status": 403, "times": None},
    "no archive": {"replace": b"nothing of the kind" * 100},
    "cut": {"replace": SHARDS["07.tar"][:3000]},
}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", FAILURES)
def test_failures_are_told_as_by_one(scheme: str, name: str, server: FaultServer, run: Run) -> None:
    server.faults = [Fault("07.tar", **FAILURES[name])]
    one = stat(run, server, scheme, 1)
    assert one.status == 1 and one.stdout == b"" and one.stderr.count("07.tar") == 1
    asked = len(server.asked(name="07.tar"))
    check_same(one, stat(run, server, scheme, 4))
    again = len(server.asked(name="07.tar")) - asked
    assert again == asked or name in ("no archive", "cut")  # what is wrong with an archive, one process finds


def test_workers_share_what_may_be_held_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "budget", ranges.Budget(ranges.BUDGET))
    storage.share_memory(4)
    assert ranges.budget.take(ranges.BUDGET // 4) and not ranges.budget.take(1)
