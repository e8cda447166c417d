"""Writing to stores that fail: the object is whole, or there is one line that says why, and it is not there.

"Not there" means: an object of that name is as it was before, and no upload is left pending.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tartools.storage.objects import uploads
from tests.conftest import Result, Run, make_samples, make_tar, members_of
from tests.storage.objects import fake_s3
from tests.storage.objects.conftest import WRITTEN
from tests.storage.objects.faults import Fault, FaultServer
from tests.storage.objects.inside import Inside
from tests.storage.objects.sites import Site
from tests.tiers import by_turns

PART = 256 << 10  # bytes of a part, in this process
SMALL = make_tar(make_samples(5))
BIG = make_tar([(f"{n:02d}.bin", random.Random(n).randbytes(100_000)) for n in range(7)])  # three parts
HUGE = make_tar(
    [(f"{n:02d}.bin", random.Random(n).randbytes(1 << 20)) for n in range(33)]
)  # three parts of any process
OTHER = b"somebody else's"


class Step(NamedTuple):
    """A request that writing *data* in *scheme* takes, and a fault that fits it alone."""

    scheme: str
    name: str
    data: bytes
    fault: Fault

    def fails(self, **how: Any) -> Fault:
        """Return a fault of this request."""
        return replace(self.fault, **how)


STEPS = [
    Step("s3", "put", SMALL, Fault(method="PUT")),
    Step("s3", "begin", BIG, Fault(method="POST", has="?uploads")),
    Step("s3", "part", BIG, Fault(method="PUT", has="partNumber=1")),
    Step("s3", "last part", BIG, Fault(method="PUT", has="partNumber=3")),
    Step("s3", "complete", BIG, Fault(method="POST", has="uploadId")),
    Step("gs", "put", SMALL, Fault(method="POST", has="uploadType=media")),
    Step("gs", "begin", BIG, Fault(method="POST", has="uploadType=resumable")),
    Step("gs", "part", BIG, Fault(method="PUT")),
    Step("gs", "complete", BIG, Fault(method="PUT", skip=2)),
    Step("http", "put", BIG, Fault(method="PUT")),
    Step("azure", "put", SMALL, Fault(method="PUT")),
    Step("azure", "part", BIG, Fault(method="PUT", has="blockid=MDAwMDEt")),
    Step("azure", "complete", BIG, Fault(method="PUT", has="comp=blocklist")),
    Step("ais", "put", SMALL, Fault(method="PUT")),
    Step("ais", "put by the proxy", SMALL, Fault(method="PUT", proxy=True)),
    Step("ais", "begin", BIG, Fault(method="POST")),
    Step("ais", "part", BIG, Fault(method="PUT", has="partNumber=1")),
    Step("ais", "last part", BIG, Fault(method="PUT", has="partNumber=3")),
    Step("ais", "complete", BIG, Fault(method="POST", has="uploadId")),
]
TROUBLE: dict[str, dict[str, Any]] = {
    "busy twice": {"status": 503, "code": "SlowDown", "times": 2},
    "too many requests": {"status": 429, "code": "SlowDown"},
    "reset before the reply": {"dropped": True},
    "cut while it is sent": {"receive": 1000},
    "silence": {"silent": True},
}
FOR_EVER: dict[str, dict[str, Any]] = {
    r"the server is busy \(503[^()]*\)": {"status": 503, "code": "SlowDown", "times": None},
    "the connection was dropped": {"dropped": True, "times": None},
}


each = pytest.mark.parametrize("step", STEPS, ids=[f"{step.scheme}-{step.name}" for step in STEPS])
schemes = pytest.mark.parametrize("scheme", WRITTEN)
sizes = pytest.mark.parametrize("data", [SMALL, BIG], ids=["small", "big"])


@pytest.fixture
def inside(empty: Inside, monkeypatch: pytest.MonkeyPatch) -> Inside:
    """Return commands in this process, which send small parts."""
    monkeypatch.setattr(uploads, "MIN_PART_BYTES", PART)
    monkeypatch.setattr(fake_s3, "SMALLEST_PART", PART)
    return empty


def write(inside: Inside, scheme: str, data: bytes, *options: str) -> Result:
    """Run tarcat, which writes *data* to the object `out`."""
    Path("in").write_bytes(data)
    return inside.run("tarcat", *options, "-o", inside.server.url(scheme, "out"), "in")


def refused(done: Result, server: FaultServer, scheme: str, message: str, before: bytes | None = None) -> None:
    """Check that *done* failed with a line that matches *message*, and that all is as it was *before*."""
    assert done.status == 1, done
    assert re.fullmatch(rf"tarcat: {re.escape(server.url(scheme, 'out'))}: {message}\n", done.stderr), done.stderr
    assert (server.objects.get("out"), server.pending) == (before, 0)


# ---- what passes ----


@by_turns("trouble")
@each
@pytest.mark.parametrize("trouble", TROUBLE)
def test_what_passes_is_tried_again(step: Step, trouble: str, inside: Inside) -> None:
    if trouble == "silence":
        inside.environ(TARTOOLS_TIMEOUT="1")
    inside.server.faults = [fault := step.fails(**TROUBLE[trouble])]
    assert write(inside, step.scheme, step.data) == (0, b"", "")
    assert fault.played == fault.times
    assert (inside.server.objects, inside.server.pending) == ({"out": step.data}, 0)


@by_turns("message")
@each
@pytest.mark.parametrize("message", FOR_EVER)
def test_what_does_not_pass_ends(step: Step, message: str, inside: Inside) -> None:
    inside.server.objects["out"] = b"old"
    inside.server.faults = [fault := step.fails(**FOR_EVER[message])]
    done = write(inside, step.scheme, step.data, "--force")
    refused(done, inside.server, step.scheme, rf"{message} \(3 tries\)", b"old")
    if "busy" in message and step.name == "part":  # tries are counted anew while other parts get through
        assert 3 <= fault.played <= 6
    else:
        assert fault.played == 3


@by_turns("data", "what")
@pytest.mark.parametrize(("data", "what"), [(SMALL, "came"), (HUGE, "was taken")], ids=["small", "huge"])
@schemes
def test_a_server_that_says_nothing_ever(data: bytes, what: str, scheme: str, inside: Inside) -> None:
    inside.environ(TARTOOLS_TIMEOUT="0.5", TARTOOLS_TRIES="2")
    inside.server.faults = [Fault(method=method, silent=True, times=None) for method in ("PUT", "POST")]
    if data == HUGE:
        uploads.MIN_PART_BYTES = len(HUGE)  # more than the system holds for a connection
    done = write(inside, scheme, data)
    refused(done, inside.server, scheme, rf"no byte {what} for 0\.5 seconds \(2 tries\)")


@pytest.mark.parametrize("kept", [0, 1 << 16, PART - 1])
def test_google_keeps_less_than_was_sent(kept: int, inside: Inside) -> None:
    inside.server.faults = [Fault(method="PUT", taken=kept, skip=n) for n in range(2)]
    assert write(inside, "gs", BIG) == (0, b"", "")
    assert (inside.server.objects, inside.server.pending) == ({"out": BIG}, 0)


def test_google_has_lost_what_it_had(inside: Inside) -> None:
    """After the second part it has less than the first: what would follow has the wrong place."""
    inside.server.faults = [Fault(method="PUT", skip=1, status=308, headers={"Range": "bytes=0-99"})]
    done = write(inside, "gs", BIG)
    refused(done, inside.server, "gs", "the server has lost a part of the upload")


def test_s3_fails_with_status_200(inside: Inside) -> None:
    inside.server.faults = [Fault(method="POST", has="uploadId", status=200, code="InternalError")]
    assert write(inside, "s3", BIG) == (0, b"", "")
    assert (inside.server.objects, inside.server.pending) == ({"out": BIG}, 0)


# ---- what was done, but nobody heard of it ----


@each
@pytest.mark.parametrize("force", [(), ("--force",)], ids=["", "force"])
def test_a_reply_that_is_lost(force: tuple[str, ...], step: Step, inside: Inside) -> None:
    """The object is as it should be, or the message says that it may be: never that somebody else was there before."""
    inside.server.objects.update({"out": b"old"} if force else {})
    inside.server.faults = [fault := step.fails(lost=True, headers={})]
    done = write(inside, step.scheme, step.data, *force)
    assert fault.played == 1
    assert inside.server.objects == {"out": step.data}
    assert inside.server.pending == (step.name == "begin")  # of which we never learned the name
    if step.scheme == "http" and not force:
        message = "exists now; an earlier try, which had no response, may have written it"
        assert done == (1, b"", f"tarcat: {inside.server.url('http', 'out')}: {message}\n")
    else:
        assert done == (0, b"", "")


@by_turns("size")
@pytest.mark.parametrize("step", [STEPS[0], STEPS[4], STEPS[5], STEPS[9]], ids=["s3", "s3 in parts", "gs", "http"])
@pytest.mark.parametrize("size", [1, 20_480, len(BIG), 50_000_000])
def test_somebody_is_faster_while_a_server_is_busy(step: Step, size: int, inside: Inside) -> None:
    """The second try meets an object that is not what the first has written: nothing says that it is."""
    other = bytes(size)
    inside.server.faults = [step.fails(status=503, replace=other)]
    done = write(inside, step.scheme, step.data)
    if step.scheme == "http":
        message = "exists now; an earlier try, which had no response, may have written it"
        refused(done, inside.server, "http", message, other)
    else:
        refused(done, inside.server, step.scheme, "already exists; --force replaces it", other)


@pytest.mark.parametrize("scheme", ["s3", "gs", "ais"])
def test_an_upload_that_the_server_has_dropped(scheme: str, inside: Inside) -> None:
    inside.server.faults = [
        Fault(method="PUT", status=404, code="NoSuchUpload", times=None),
        Fault(method="DELETE", status=404, code="NoSuchUpload", times=None),
    ]
    done = write(inside, scheme, BIG)
    assert done.status == 1 and done.stderr.count("\n") == 1
    if scheme != "ais":  # which says it in other words
        assert done.stderr.endswith(f" {inside.server.url(scheme, 'out')}: the server has dropped the upload\n")
    assert inside.server.objects == {}


# ---- who may do what, and where ----


@schemes
@sizes
def test_what_may_not_be_read_may_be_written(scheme: str, data: bytes, inside: Inside) -> None:
    inside.server.faults = [Fault(method=m, status=403, code="AccessDenied", times=None) for m in ("GET", "HEAD")]
    assert write(inside, scheme, data) == (0, b"", "")
    assert (inside.server.objects, inside.server.pending) == ({"out": data}, 0)


@by_turns("code")
@schemes
@sizes
@pytest.mark.parametrize("code", ["AccessDenied", ""])
def test_what_may_not_be_written(scheme: str, data: bytes, code: str, inside: Inside) -> None:
    inside.server.faults = [Fault(method=m, status=403, code=code, times=None) for m in ("PUT", "POST")]
    done = write(inside, scheme, data)
    refused(done, inside.server, scheme, r"no permission to write \(\w+\)")
    if scheme not in ("http", "ais") or data == SMALL:
        assert len(inside.server.asked("PUT")) + len(inside.server.asked("POST")) == 1


@pytest.mark.parametrize("scheme", ["s3", "gs", "ais"])
@sizes
@by_turns("options")
@pytest.mark.parametrize("options", [(), ("--force",)], ids=["", "force"])
def test_no_such_bucket(scheme: str, data: bytes, options: tuple[str, ...], inside: Inside) -> None:
    Path("in").write_bytes(data)
    done = inside.run("tarcat", *options, "-o", f"{scheme}://none/out", "in")
    assert done == (1, b"", f"tarcat: {scheme}://none/out: no such bucket: none\n")


def test_a_web_server_without_such_a_place(inside: Inside) -> None:
    Path("in").write_bytes(SMALL)
    done = inside.run("tarcat", "-o", f"{inside.server.base}/none/out?signature=SECRET", "in")
    url = f"{inside.server.base}/none/out?…"
    what = "the folder does not exist, or the server does not accept uploads (PUT): 404 Not Found"
    assert done == (1, b"", f"tarcat: {url}: cannot write: {what}\n")


@pytest.mark.parametrize("status", [405, 501])
def test_a_web_server_that_takes_nothing(status: int, inside: Inside) -> None:
    inside.server.faults = [Fault(method="PUT", status=status, times=None)]
    refused(write(inside, "http", BIG), inside.server, "http", r"the server does not accept uploads \(PUT\): .*")


def test_pythons_web_server_takes_nothing(plain: Site, run: Run) -> None:
    """It does not wait for the body before it says so, and hangs up."""
    said = run("tarcat", "-o", plain.url("out.tar"), stdin=HUGE, env=plain.env).failure()
    assert re.fullmatch(r"tarcat: http:\S+: the server does not accept uploads \(PUT\): [^\n]*\n", said)


@pytest.mark.parametrize("status", [307, 308])
@sizes
def test_a_body_goes_where_it_is_sent(status: int, data: bytes, inside: Inside) -> None:
    place = {"Location": "elsewhere?token=1"}
    inside.server.faults = [Fault("out", method="PUT", status=status, headers=place)]
    assert write(inside, "http", data) == (0, b"", "")
    assert inside.server.objects == {"elsewhere": data}


@pytest.mark.parametrize("status", [301, 302, 303])
def test_a_redirect_that_is_none_for_bodies(status: int, inside: Inside) -> None:
    inside.server.faults = [Fault(method="PUT", status=status, headers={"Location": "elsewhere"})]
    done = write(inside, "http", SMALL)
    refused(done, inside.server, "http", rf"redirected \({status}\) to \S+; use that address")
    assert inside.server.objects == {}


def test_a_redirect_in_a_circle(inside: Inside) -> None:
    inside.server.faults = [Fault(method="PUT", status=307, headers={"Location": "out"}, times=None)]
    refused(write(inside, "http", SMALL), inside.server, "http", "too many redirects")


def test_only_the_web_server_itself_can_say_that_it_exists(inside: Inside) -> None:
    inside.server.faults = [Fault(method="HEAD", status=403, times=None), Fault(method="PUT", replace=OTHER)]
    done = write(inside, "http", SMALL)
    refused(done, inside.server, "http", "already exists; --force replaces it", OTHER)


def test_a_web_server_that_heeds_no_conditions(inside: Inside) -> None:
    """What came into being meanwhile is found by a last look."""
    inside.server.faults = [Fault(method="HEAD", skip=1, replace=OTHER), Fault(method="PUT", no_match=True)]
    done = write(inside, "http", SMALL)
    refused(done, inside.server, "http", "already exists; --force replaces it", OTHER)


# ---- what is refused, and which shards stay; that each command does so: `test_nothing_left` ----


@schemes
def test_what_exists_is_refused_before_anything_is_read(scheme: str, inside: Inside) -> None:
    objects, url = inside.server.objects, inside.server.url(scheme, "out")
    Path("in").write_bytes(SMALL)
    line = ("tarcat", "-o", url, "pipe:touch was-read; cat in")
    objects["out"] = b"old"
    assert inside.run(*line) == (1, b"", f"tarcat: {url}: already exists; --force replaces it\n")
    assert (Path("was-read").exists(), objects) == (False, {"out": b"old"})
    assert (inside.run(*line, "--force"), objects) == ((0, b"", ""), {"out": SMALL})


@schemes
def test_an_output_that_is_an_input(scheme: str, inside: Inside) -> None:
    url = inside.server.url(scheme, "out")
    inside.server.objects["out"] = SMALL
    assert inside.run("tarcat", "--force", "-o", url, url) == (1, b"", f"tarcat: {url}: this output is also an input\n")
    assert inside.server.objects == {"out": SMALL}


@schemes
def test_tarsplit_keeps_what_was_complete(scheme: str, inside: Inside) -> None:
    Path("in").write_bytes(SMALL)
    inside.server.faults = [Fault(name="out-000002.tar", method=m, status=403, times=None) for m in ("PUT", "POST")]
    done = inside.run("tarsplit", "-n", "2", "-o", inside.server.url(scheme, "out"), "in")
    urls = [inside.server.url(scheme, f"out-{n:06d}.tar") for n in range(3)]
    assert (done.status, done.stdout.decode().split()) == (1, urls[:2])
    assert done.stderr.startswith(f"tarsplit: {urls[2]}: no permission to write (")
    shards = inside.server.objects
    assert [m for n in range(2) for m in members_of(shards[f"out-{n:06d}.tar"])] == make_samples(4)
    assert (sorted(shards), inside.server.pending) == (["out-000000.tar", "out-000001.tar"], 0)


@pytest.mark.parametrize("scheme", ["s3", "gs", "ais", "azure"])
def test_an_object_that_is_gone_already_counts_as_removed(scheme: str, inside: Inside) -> None:
    Path("in").write_bytes(SMALL)
    name = "out-000007.tar"
    inside.server.objects[name] = b"old"
    inside.server.faults = [Fault(name=name, method="DELETE", lost=True), Fault(name=name, method="DELETE", status=503)]
    done = inside.run("tarsplit", "--force", "-o", inside.server.url(scheme, "out"), "in")
    url = inside.server.url(scheme, name)
    assert (done.status, done.stderr) == (0, f"tarsplit: {url}: removed, because this run did not write it\n")
    assert sorted(inside.server.objects) == ["out-000000.tar"]


@pytest.mark.parametrize("scheme", ["s3", "gs", "ais", "azure"])
def test_old_shards_that_may_not_be_removed_are_named(scheme: str, inside: Inside) -> None:
    Path("in").write_bytes(SMALL)
    for number in (7, 8):
        inside.server.objects[f"out-{number:06d}.tar"] = b"old"
    inside.server.faults = [Fault(name="out-000007.tar", method="DELETE", status=403, times=None)]
    done = inside.run("tarsplit", "--force", "-o", inside.server.url(scheme, "out"), "in")
    first, second = (inside.server.url(scheme, f"out-{number:06d}.tar") for number in (7, 8))
    stays, gone = done.stderr.splitlines()
    assert done.status == 1
    assert stays.startswith(f"tarsplit: {first}: is of an earlier run, and stays: no permission to remove (")
    assert gone == f"tarsplit: {second}: removed, because this run did not write it"
    assert sorted(inside.server.objects) == ["out-000000.tar", "out-000007.tar"]


def test_old_shards_on_a_web_server_are_named(inside: Inside) -> None:
    Path("in").write_bytes(SMALL)
    old = {f"out-{number:06d}.tar": b"old" for number in range(5)}
    inside.server.objects.update(old)
    done = inside.run("tarsplit", "--force", "-n", "2", "-o", inside.server.url("http", "out"), "in")
    urls = [inside.server.url("http", name) for name in old]
    assert (done.status, done.stdout.decode().split()) == (1, urls[:3])
    why = "is of an earlier run, and stays: nothing is removed from web servers"
    assert done.stderr.splitlines() == [f"tarsplit: {url}: {why}" for url in urls[3:]]
    assert sorted(inside.server.objects) == sorted(old)
    inside.server.faults = [Fault(method="HEAD", status=405, times=None)]
    done = inside.run("tarsplit", "--force", "-n", "2", "-o", inside.server.url("http", "out"), "in")
    assert done.status == 0 and done.stderr.startswith("tarsplit: shards of an earlier run may be left: ")


@by_turns("data")
@schemes
@sizes
def test_nothing_appears_when_what_comes_before_fails(scheme: str, data: bytes, inside: Inside) -> None:
    Path("in").write_bytes(data)
    Path("cut").write_bytes(data[: len(data) // 4])
    output = ["-o", inside.server.url(scheme, "out")]
    for done in (
        inside.run("tarproc", "-c", "[ $TAR_INDEX != 4 ]", *output, "in"),
        inside.run("tarcat", *output, "cut"),
        inside.run("tarcat", *output, "in", "no.tar", "in"),
        inside.run("tarcat", *output, "in", inside.server.url(scheme, "no.tar")),
    ):
        assert done.status == 1 and done.stderr.count("\n") == 1
        assert (inside.server.objects, inside.server.pending) == ({}, 0)
