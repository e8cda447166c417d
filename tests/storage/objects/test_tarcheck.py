"""tarcheck of shards on servers: what it finds in the same files, side by side; what is missing, what just fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.archives import BLOCK, END, entry
from tests.conftest import Run
from tests.storage.objects.faults import SCHEMES, Fault, FaultServer
from tests.tiers import by_turns


def samples(number: int) -> bytes:
    """Return ten samples of two fields, each of which fills 2 KiB."""
    keys = [b"%d-%d" % (number, n) for n in range(10)]
    return b"".join(entry(key + b".txt", b"x" * 90) + entry(key + b".cls", b"1") for key in keys)


FLIPPED = bytearray(samples(2) + END)
FLIPPED[3 * 4 * BLOCK + 3] ^= 0x55
SHARDS = {
    "sound.tar": samples(0) + END,
    "cut.tar": samples(1)[:-700],
    "flipped.tar": bytes(FLIPPED),
    "twice.tar": samples(0)[: 4 * BLOCK] + samples(3) + END,
}
NAMES = ["sound.tar", "cut.tar", "missing.tar", "flipped.tar", "twice.tar"]


@pytest.fixture
def server(faulty: FaultServer, tmp_path: Path) -> FaultServer:
    """Return a server that has the shards, as the current folder has."""
    faulty.objects.update(SHARDS)
    for name, content in SHARDS.items():
        (tmp_path / name).write_bytes(content)
    return faulty


def found(run: Run, *arguments: str, base: str = "", env: dict[str, str] | None = None) -> dict[str, Any]:
    """Return what --json says, with names in place of URLs that begin with *base*."""
    done = run("tarcheck", "--json", *arguments, env=env)
    assert (done.status, done.stderr) == (1, "")
    said = done.stdout.decode().replace(base, "").replace("No such file or directory", "no such object")
    facts: dict[str, Any] = json.loads(said)
    return facts


@by_turns("scheme")
@pytest.mark.parametrize("scheme", SCHEMES)
def test_findings_are_those_of_the_same_files(scheme: str, server: FaultServer, run: Run) -> None:
    here = found(run, *NAMES)
    codes = {each["code"]: each["places"] for each in here["findings"]}
    assert {*codes} == {"cut-shard", "bad-header", "missing-shard", "key-in-two-shards"}
    assert codes["key-in-two-shards"][0]["what"] == "also at byte 0 of sound.tar"
    assert codes["missing-shard"] == [{"shard": "missing.tar", "byte": None, "key": "", "what": "no such object"}]
    urls = [server.url(scheme, name) for name in NAMES]
    for parallel in ("1", "3") if scheme == "http" else ("3",):
        assert found(run, "-p", parallel, *urls, base=server.url(scheme, ""), env=server.env) == here


def test_what_is_fixed_is_the_same_too(server: FaultServer, run: Run, tmp_path: Path) -> None:
    scheme = "s3"
    urls = [server.url(scheme, name) for name in NAMES]
    here = run("tarcheck", "--fix", "-o", "here.tar", *NAMES)
    there = run("tarcheck", "--fix", "-o", "there.tar", *urls, env=server.env)
    said = there.stderr.replace(server.url(scheme, ""), "").replace("no such object", "No such file or directory")
    assert said == here.stderr and "missing.tar: No such file or directory\n" in said
    assert there.status == here.status == 1
    content = (tmp_path / "here.tar").read_bytes()
    assert (tmp_path / "there.tar").read_bytes() == content and len(content) > 36 * 4 * BLOCK
    assert run("tarcheck", "there.tar").status == 0


@pytest.mark.parametrize(
    ("what", "said"), [({"status": 403}, "no permission"), ({"dropped": True}, "twice.tar"), ({"status": 500}, "500")]
)
def test_what_is_not_the_fault_of_a_shard_ends_the_run(
    what: dict[str, Any], said: str, server: FaultServer, run: Run
) -> None:
    urls = [server.url("s3", name) for name in ("sound.tar", "twice.tar")]
    server.faults = [Fault("twice.tar", times=None, **what)]
    for parallel in ("1", "2"):
        done = run("tarcheck", "-p", parallel, *urls, env=server.env | {"TARTOOLS_TRIES": "1"})
        assert (done.status, done.stdout, len(done.stderr.splitlines())) == (1, b"", 1)
        assert "twice.tar" in done.stderr and said in done.stderr


def test_none_is_there(server: FaultServer, run: Run) -> None:
    done = run("tarcheck", server.url("s3", "a.tar"), "b.tar", env=server.env)
    assert (done.status, done.stdout, done.stderr) == (1, b"", "tarcheck: s3://b/a.tar: no such object\n")
