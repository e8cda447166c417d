"""Commands that write several outputs, or compare several inputs, on servers: as if all were here."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tartools import storage
from tartools.storage.objects import ranges
from tests.archives import BLOCK, END, entry
from tests.conftest import BIN, Result, Run, make_samples, make_tar, running
from tests.storage.objects.faults import SCHEMES, Fault, FaultServer
from tests.storage.objects.inside import Inside
from tests.storage.objects.test_killed import Recorded, wait_until
from tests.tiers import also, by_turns

MEMBERS = [(f"{n:02d}.{field}", b"%d" % (n % 3)) for n in range(10) for field in ("cls", "txt")]
WHOLE = make_tar(MEMBERS)
OTHER = make_tar([(name, b"new") if name == "07.cls" else (name, data) for name, data in MEMBERS[4:]])
CUT = 10_000  # bytes


def here(run: Run, tmp_path: Path, *line: object, status: int = 0) -> tuple[bytes, dict[str, bytes]]:
    """Run a command on local files; return its stdout and its outputs, which are removed."""
    for name, content in (("a.tar", WHOLE), ("b.tar", OTHER)):
        (tmp_path / name).write_bytes(content)
    done = run(*line)
    assert (done.status, done.stderr) == (status, "")
    found = sorted(tmp_path.rglob("out*"))
    return done.stdout, {str(path.relative_to(tmp_path)): path.read_bytes() for path in found}


@by_turns("scheme")
@pytest.mark.parametrize("scheme", SCHEMES)
def test_tarfilter_with_rest(scheme: str, empty: Inside, run: Run, tmp_path: Path) -> None:
    objects, url = empty.server.objects, empty.server.url(scheme, "")
    objects["a.tar"] = WHOLE
    line = ["-S", "int(cls) > 0"]
    _, made = here(run, tmp_path, "tarfilter", *line, "a.tar", "-o", "out1.tar", "--rest", "out2.tar")
    done = empty.run("tarfilter", *line, f"{url}a.tar", "-o", f"{url}out1.tar", "--rest", f"{url}out2.tar")
    assert done == (0, b"", "")
    assert objects == made | {"a.tar": WHOLE} and len(made) == 2
    done = empty.run("tarfilter", *line, f"{url}a.tar", "-o", f"{url}n.tar", "--rest", f"{url}out2.tar")
    assert done.status == 1 and "out2.tar: already exists" in done.stderr and "n.tar" not in objects
    done = empty.run("tarfilter", *line, f"{url}a.tar", "-o", f"{url}t.parquet", "--rest", f"{url}r.parquet")
    assert done == (0, b"", "")
    for table, shard in (("t.parquet", "out1.tar"), ("r.parquet", "out2.tar")):
        assert empty.run("tarcat", f"{url}{table}").stdout == objects[shard]
    objects["a.tar"] = WHOLE[:CUT]
    done = empty.run("tarfilter", *line, f"{url}a.tar", "-o", f"{url}new1.tar", "--rest", f"{url}new2.tar")
    assert done.status == 1 and "at byte 10000" in done.stderr and not [name for name in objects if "new" in name]


@by_turns("scheme")
@pytest.mark.parametrize("scheme", SCHEMES)
def test_tardiff(scheme: str, empty: Inside, run: Run, tmp_path: Path) -> None:
    objects, url = empty.server.objects, empty.server.url(scheme, "")
    objects |= {"a.tar": WHOLE, "b.tar": OTHER}
    for name in ("out.tar", "out.parquet"):
        said, made = here(run, tmp_path, "tardiff", "--list-keys", "a.tar", "b.tar", "-o", name, status=1)
        assert empty.run("tardiff", "--list-keys", f"{url}a.tar", f"{url}b.tar", "-o", f"{url}{name}") == (1, said, "")
        read = "out.tar" if name == "out.tar" else None
        assert read is None or objects[read] == made[read]
    assert empty.run("tarcat", f"{url}out.parquet").stdout == objects["out.tar"]
    assert empty.run("tardiff", f"{url}a.tar", str(tmp_path / "a.tar")).status == 0
    objects["b.tar"] = OTHER[:CUT]
    done = empty.run("tardiff", f"{url}a.tar", f"{url}b.tar", "-o", f"{url}new.tar")
    assert done.status == 2 and "b.tar: at byte 10000" in done.stderr and "new.tar" not in objects


SPLITS = [
    ["--parts", "x:0.7,y:0.3", "-n", "4", "-o", "out-{part}-{shard:03d}.tar"],
    ["--parts", "x:0.7,y:0.3", "--stratify", "cls", "-o", "out/{part}.tar"],
    ["--by", "cls", "-n", "4", "-o", "out/{cls}/{shard:03d}.tar"],
]


@by_turns("scheme")
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("line", SPLITS, ids=" ".join)
def test_tarsplit_into_parts(line: list[str], scheme: str, empty: Inside, run: Run, tmp_path: Path) -> None:
    objects, url = empty.server.objects, empty.server.url(scheme, "")
    objects["a.tar"] = WHOLE
    (tmp_path / "out").mkdir()
    said = run("tarsplit", *line, stdin=WHOLE).stdout.decode().split()
    out = empty.run("tarsplit", *line[:-1], f"{url}{line[-1]}", f"{url}a.tar").output()
    assert out.decode().split() == [f"{url}{name}" for name in said]
    assert objects == {name: (tmp_path / name).read_bytes() for name in said} | {"a.tar": WHOLE}
    again = empty.run("tarsplit", *line[:-1], f"{url}{line[-1]}", f"{url}a.tar")
    assert again.status == 1 and "already exists; --force replaces it" in again.stderr
    before = dict(objects)
    objects["a.tar"] = WHOLE[:CUT]
    done = empty.run("tarsplit", *line[:-1], f"{url}{line[-1]}".replace("out", "new"), "--force", f"{url}a.tar")
    assert done.status == 1 and "at byte 10000" in done.stderr
    named = {name.removeprefix(url) for name in done.stdout.decode().split()}
    assert objects.keys() == before.keys() | named


def ten(number: int) -> bytes:
    """Return ten samples of two fields, each of which fills 2 KiB, without an end."""
    keys = [b"%d-%d" % (number, n) for n in range(10)]
    return b"".join(entry(key + b".txt", b"x" * 90) + entry(key + b".cls", b"1") for key in keys)


FLIPPED = bytearray(ten(2) + END)
FLIPPED[3 * 4 * BLOCK + 3] ^= 0x55
SHARDS = {
    "sound.tar": ten(0) + END,
    "cut.tar": ten(1)[:-700],
    "flipped.tar": bytes(FLIPPED),
    "twice.tar": ten(0)[: 4 * BLOCK] + ten(3) + END,
}
NAMES = ["sound.tar", "cut.tar", "missing.tar", "flipped.tar", "twice.tar"]


@pytest.fixture
def damaged(faulty: FaultServer, tmp_path: Path) -> FaultServer:
    """Return a server that has the shards, as the current folder has."""
    faulty.objects.update(SHARDS)
    for name, content in SHARDS.items():
        (tmp_path / name).write_bytes(content)
    return faulty


def found(run: Run, *arguments: str, base: str = "", env: dict[str, str] | None = None) -> dict[str, Any]:
    """Return what --json says, with names in place of URLs that begin with *base*."""
    done = run("tarcheck", "--json", *arguments, env=env)
    assert (done.status, done.stderr) == (1, "")
    said = done.stdout.decode().replace(base, "")
    for words in ("No such file or directory", "404 Not Found"):
        said = said.replace(words, "no such object")
    facts: dict[str, Any] = json.loads(said)
    return facts


@by_turns("scheme")
@pytest.mark.parametrize("scheme", SCHEMES)
def test_findings_are_those_of_the_same_files(scheme: str, damaged: FaultServer, run: Run) -> None:
    here = found(run, *NAMES)
    codes = {each["code"]: each["places"] for each in here["findings"]}
    assert {*codes} == {"cut-shard", "bad-header", "missing-shard", "key-in-two-shards"}
    assert codes["key-in-two-shards"][0]["what"] == "also at byte 0 of sound.tar"
    assert codes["missing-shard"] == [{"shard": "missing.tar", "byte": None, "key": "", "what": "no such object"}]
    urls = [damaged.url(scheme, name) for name in NAMES]
    for parallel in ("1", "3") if scheme == "http" else ("3",):
        assert found(run, "-p", parallel, *urls, base=damaged.url(scheme, ""), env=damaged.env) == here


def test_what_is_fixed_is_the_same_too(damaged: FaultServer, run: Run, tmp_path: Path) -> None:
    scheme = "s3"
    urls = [damaged.url(scheme, name) for name in NAMES]
    here = run("tarcheck", "--fix", "-o", "here.tar", *NAMES)
    there = run("tarcheck", "--fix", "-o", "there.tar", *urls, env=damaged.env)
    said = there.stderr.replace(damaged.url(scheme, ""), "").replace("no such object", "No such file or directory")
    assert said == here.stderr and "missing.tar: No such file or directory\n" in said
    assert there.status == here.status == 1
    content = (tmp_path / "here.tar").read_bytes()
    assert (tmp_path / "there.tar").read_bytes() == content and len(content) > 36 * 4 * BLOCK
    assert run("tarcheck", "there.tar").status == 0


@pytest.mark.parametrize(
    ("what", "said"), [({"status": 403}, "no permission"), ({"dropped": True}, "twice.tar"), ({"status": 500}, "500")]
)
def test_what_is_not_the_fault_of_a_shard_ends_the_run(
    what: dict[str, Any], said: str, damaged: FaultServer, run: Run
) -> None:
    urls = [damaged.url("s3", name) for name in ("sound.tar", "twice.tar")]
    damaged.faults = [Fault("twice.tar", times=None, **what)]
    for parallel in ("1", "2"):
        done = run("tarcheck", "-p", parallel, *urls, env=damaged.env | {"TARTOOLS_TRIES": "1"})
        assert (done.status, done.stdout, len(done.stderr.splitlines())) == (1, b"", 1)
        assert "twice.tar" in done.stderr and said in done.stderr


FOURTEEN = {f"{number:02d}.tar": make_tar(make_samples(4 + number, 100 * number)) for number in range(14)}


@pytest.fixture
def server(faulty: FaultServer) -> FaultServer:
    """Return a server that has the shards, whose requests can be waited for."""
    faulty.objects.update(FOURTEEN)
    faulty.requests = Recorded()
    return faulty


def stat(run: Run, server: FaultServer, scheme: str, workers: int) -> Result:
    urls = [server.url(scheme, name) for name in FOURTEEN]
    return run("tarstat", "-v", "--json", "-p", workers, *urls, env=server.env)


def check_same(one: Result, several: Result) -> None:
    """Check that two runs ended alike, whatever time they took."""
    rate = re.compile(r", [\d.]+ .?B/s$", re.MULTILINE)
    assert several._replace(stderr=rate.sub("", several.stderr)) == one._replace(stderr=rate.sub("", one.stderr))


@by_turns("scheme")
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("workers", [3, 40, *also(2, 16)])
def test_all_workers_find_what_one_does(scheme: str, workers: int, server: FaultServer, run: Run) -> None:
    one = stat(run, server, scheme, 1)
    assert one.status == 0 and '"samples": 147,' in one.stdout.decode()
    asked = len(server.requests)
    check_same(one, stat(run, server, scheme, workers))
    assert len(server.requests) == 2 * asked  # nothing was asked for twice


@by_turns("scheme")
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["tarstat", "tarcheck"])
def test_they_ask_at_once(name: str, scheme: str, server: FaultServer) -> None:
    """The first shard is not answered before the last is asked for."""
    server.faults = [Fault("00.tar", silent=True)]
    urls = [server.url(scheme, name) for name in FOURTEEN]
    with running([BIN / name, "-p", "3", *urls], stdout=subprocess.PIPE, env=server.env) as process:
        wait_until(server, partial(server.asked, name="12.tar"))
        server.release()
        assert process.communicate(timeout=60)[0].startswith(b"shards: 14\nsamples: 147\n")


@by_turns("scheme")
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_worker_is_as_patient_as_one_process(scheme: str, server: FaultServer, run: Run) -> None:
    whole = stat(run, server, scheme, 1)
    server.faults = [Fault("05.tar", cut=700), Fault("09.tar", status=503)]
    check_same(whole, stat(run, server, scheme, 4))


FAILURES: dict[str, dict[str, Any]] = {
    "not there": {"status": 404, "times": None},
    "forbidden": {"status": 403, "times": None},
    "no archive": {"replace": b"nothing of the kind" * 100},
    "cut": {"replace": FOURTEEN["07.tar"][:3000]},
}


@by_turns("scheme")
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


@by_turns("scheme")
def test_workers_share_what_may_be_held_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "budget", threading.Semaphore(ranges.MAX_SHARED_RANGES))
    storage.share_memory(4)
    assert [ranges.budget.acquire(blocking=False) for _ in range(9)] == [True] * 8 + [False]
