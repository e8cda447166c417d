"""Servers that are busy, silent, cut connections, or answer something else than they were asked.

The right bytes, or an error that names URL and byte. What may pass is tried again, and not sooner than the server says;
what will not is told at once. Connections are cut at all kinds of bytes of an archive, in the first range and in later
ones, received by the reader itself or by threads: once is nothing, and never is a part the whole.
"""

from __future__ import annotations

import gc
import gzip
import itertools
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tartools
from tartools.errors import StorageError
from tartools.storage import seekable
from tartools.storage.objects import retry
from tests.commands.test_damage import NEEDED, WHOLE, regions
from tests.commands.test_every_command import COMMANDS, READERS
from tests.conftest import Run, has_end, make_samples, make_tar, members_of
from tests.storage.objects.faults import READ, Fault, FaultServer
from tests.storage.objects.inside import OBJECT, RANGE, Inside
from tests.tiers import by_turns

STARTS = range(0, len(WHOLE), RANGE)
each = pytest.mark.parametrize("scheme", READ)


# ---- what may pass ----


BUSY: list[tuple[dict[str, Any], str]] = [  # and what is said of it in the end
    *(
        ({"status": status, "code": code}, rf"the server is busy \({status}.*\)")
        for status, code in ((503, "SlowDown"), (500, "InternalError"), (408, "RequestTimeout"), (429, ""), (502, ""))
    ),
    ({"dropped": True}, "the connection was dropped"),
]


@each
def test_a_server_that_is_busy_or_hangs_up_instead_of_an_answer(scheme: str, inside: Inside) -> None:
    url = inside.server.url(scheme, OBJECT)
    for what, said in BUSY:
        for start in (0, 3000):
            inside.server.faults = [Fault(OBJECT, start=start, times=2, **what)]
            assert inside.copy(scheme) == (0, WHOLE, ""), what
            assert inside.starts() == sorted([*STARTS, start, start])
            inside.server.faults = [Fault(OBJECT, start=start, times=None, **what)]
            inside.copy(scheme).refused(url, rf"at byte {start}: {said} \(3 tries\)")
            assert inside.starts().count(start) >= 3  # those that others pass by are no tries: `retry.Attempts`


@by_turns("scheme", "start", "status")
@pytest.mark.parametrize(("scheme", "start", "status"), [(s, n * 1000, 429 + n % 2 * 74) for n, s in enumerate(READ)])
def test_a_server_that_says_when_to_come_back(scheme: str, start: int, status: int, inside: Inside) -> None:
    inside.server.faults = [Fault(OBJECT, start=start, status=status, headers={"Retry-After": "1"})]
    assert inside.copy(scheme) == (0, WHOLE, "")
    refused, given = (request.at for request in inside.server.requests if request.start == start)
    assert given - refused >= 1
    inside.server.faults = [Fault(OBJECT, start=start, status=status, headers={"Retry-After": "soon"})]
    assert inside.copy(scheme) == (0, WHOLE, "")


def test_a_date_to_come_back_at(inside: Inside) -> None:
    when = time.time() + 1
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(when))
    inside.server.faults = [Fault(OBJECT, start=0, status=503, headers={"Retry-After": date})]
    assert inside.copy("http") == (0, WHOLE, "")
    assert time.time() >= int(when)


@by_turns("ahead")
@each
def test_a_server_that_says_nothing(scheme: str, ahead: bool, inside: Inside) -> None:
    """Neither an answer nor, in the middle of one, more of it: once, then for ever."""
    inside.environ(TARTOOLS_TIMEOUT="0.5", TARTOOLS_TRIES="5")
    inside.server.faults = [Fault(OBJECT, start=1000, silent=True), Fault(OBJECT, start=4000, stall=True, cut=333)]
    assert inside.copy(scheme) == (0, WHOLE, "")
    inside.environ(TARTOOLS_TRIES="2")
    what: dict[str, Any] = {"silent": True} if ahead else {"stall": True, "cut": 333}
    inside.server.faults = [Fault(OBJECT, start=4000, times=None, **what)]
    url = inside.server.url(scheme, OBJECT)
    inside.copy(scheme).refused(url, r"at byte 4000: no byte came for 0.5 seconds \(2 tries\)")


@by_turns("scheme", "fault")
@pytest.mark.parametrize(
    ("scheme", "fault"), [("http", Fault(stall=True, cut=700, times=None)), ("s3", Fault(silent=True, times=None))]
)
def test_a_run_ends_though_the_server_says_nothing(scheme: str, fault: Fault, faulty: FaultServer, run: Run) -> None:
    faulty.objects[OBJECT] = WHOLE
    faulty.faults = [fault]
    url = faulty.url(scheme, OBJECT)
    done = run("tarcat", url, env=faulty.env | {"TARTOOLS_TIMEOUT": "1", "TARTOOLS_TRIES": "2"}, timeout=60)
    assert done.status == 1 and not has_end(done.stdout)
    assert re.fullmatch(rf"tarcat: {url}: at byte \d+: no byte came for 1 seconds \(2 tries\)\n", done.stderr)
    first, second = faulty.asked("GET")
    assert second.at - first.at >= 1


def test_a_server_that_is_not_there(inside: Inside, faulty: FaultServer) -> None:
    """Port 1 of this machine, where nobody listens."""
    here = "http://127.0.0.1:1"
    inside.environ(AWS_ENDPOINT_URL=here, STORAGE_EMULATOR_HOST=here, AIS_ENDPOINT=here)
    for url in ("s3://b/a.tar", "gs://b/a.tar", "ais://b/a.tar", f"{here}/a.tar"):
        done = inside.run("tarcat", url)
        assert done.status == 1
        assert re.fullmatch(
            rf"tarcat: {url}: at byte 0: cannot connect to 127\.0\.0\.1:1\b.*\(3 tries\)\n", done.stderr
        ), done
    assert faulty.requests == []


# ---- what will not ----


@each
def test_a_refusal_is_not_tried_again(scheme: str, inside: Inside) -> None:
    url = inside.server.url(scheme, OBJECT)
    for status in (400, 402, 405, 418, 501, 505):
        inside.server.faults = [Fault(OBJECT, status=status, code="Whatever", times=None)]
        inside.copy(scheme).refused(url, rf"[^\n]*{status}[^\n]*")
        assert inside.starts() == [0]


def test_redirects(inside: Inside) -> None:
    """They are followed, for every range; not for ever, and not to what is no web server."""
    inside.server.objects["other"] = WHOLE
    url = inside.server.url("http", OBJECT)
    faults = inside.server.faults = [Fault(OBJECT, status=302, headers={"Location": "other"}, times=None)]
    assert inside.copy("http") == (0, WHOLE, "")
    assert [len(inside.server.asked("GET", name)) for name in (OBJECT, "other")] == [len(STARTS)] * 2
    faults[0].headers = {"Location": OBJECT}
    inside.copy("http").refused(url, "(at byte 0: )?too many redirects")
    for nowhere in ("ftp://127.0.0.1/x", "http://", "file:///etc/passwd", "//"):
        faults[0].headers = {"Location": nowhere}
        assert inside.copy("http").status == 1
        assert "passwd" not in inside.copy("http").stderr
    faults[0].headers = {}
    inside.copy("http").refused(url, r"redirected \(302\) without an address")


# ---- ranges ----


@pytest.mark.parametrize("coding", ["gzip", "br", "identity"])
def test_bytes_are_taken_as_they_are(coding: str, inside: Inside) -> None:
    """Whatever the store says of how they are coded: shards are often kept with `Content-Encoding: gzip`."""
    inside.server.objects["a.tgz"] = gzip.compress(WHOLE, 0)
    inside.server.faults = [Fault(headers={"Content-Encoding": coding}, times=None)]
    for scheme in READ:
        assert inside.copy(scheme) == (0, WHOLE, "")
        assert inside.copy(scheme, "a.tgz") == (0, WHOLE, "")
        assert len(inside.starts()) == 2 * len(STARTS)


@each
def test_ranges_are_ignored(scheme: str, ahead: bool, inside: Inside) -> None:
    ignored = Fault(OBJECT, method="GET", no_range=True, times=None)
    inside.server.faults = [ignored]
    assert inside.copy(scheme) == (0, WHOLE, "")
    assert len(inside.server.asked("GET")) == 1
    for cut in (0, 1, 511, 5000, 10_239):  # it begins anew, and what was there already is passed by
        inside.server.requests.clear()
        inside.server.faults = [Fault(OBJECT, method="GET", no_range=True, cut=cut), ignored]
        assert inside.copy(scheme) == (0, WHOLE, "")
        assert len(inside.server.asked("GET")) == 2
    inside.server.objects["a.tgz"] = gzip.compress(WHOLE)  # which is shorter than a range
    inside.server.faults = [Fault("a.tgz", "GET", no_range=True, cut=200), Fault("a.tgz", no_range=True, times=None)]
    assert inside.copy(scheme, "a.tgz") == (0, WHOLE, "")


@each
def test_ranges_are_ignored_from_the_second_on(scheme: str, inside: Inside) -> None:
    ignored = inside.server.faults = [Fault(OBJECT, method="GET", no_range=True, skip=1, times=None)]
    reason = r"at byte 1000: the server ignored the range of the request \(3 tries\)"
    inside.copy(scheme).refused(inside.server.url(scheme, OBJECT), reason)
    ignored[0] = Fault(OBJECT, method="GET", no_range=True, skip=1, times=2)
    assert inside.copy(scheme) == (0, WHOLE, "")


IGNORED, OTHER = "the server ignored the range of the request", "the server sent another range than the requested one"
REPLACED, WHICH = "was replaced while it was being read", "206 response without Content-Range"
MORE = "the server sent more bytes than it stated"


def place(first: int, last: int, size: object = len(WHOLE)) -> dict[str, Any]:
    """Return what makes a lie of Content-Range."""
    return {"headers": {"Content-Range": f"bytes {first}-{last}/{size}"}}


class Lie(NamedTuple):
    """What a server says of a range that begins at a byte, and what comes of it: reasons, or "" for the right bytes."""

    told: Callable[[int], dict[str, Any]]
    once: str = ""  # of a later range
    always: str = ""
    first: str = ""  # of the first range, once or always


LIES = {
    "a part from elsewhere": Lie(lambda at: place(at + 500, at + 1499), always=IGNORED),
    "a part that is longer": Lie(lambda at: place(at, at + 1999)),  # but has as many bytes as were asked for
    "a part of something longer": Lie(lambda at: place(at, at + 999, 20_480), REPLACED, REPLACED, REPLACED),
    "a part of something shorter": Lie(lambda at: place(at, at + 999, 4096), REPLACED, REPLACED, REPLACED),
    "a part of nobody knows what": Lie(lambda at: place(at, at + 999, "*")),
    "no part at all": Lie(lambda at: {"headers": {"Content-Range": "bytes */10240"}}, WHICH, WHICH, WHICH),
    "nonsense": Lie(lambda at: {"headers": {"Content-Range": f"{at}-"}}, WHICH, WHICH, WHICH),
    "a number beyond all": Lie(lambda at: place(at, at + 999, "9" * 5000), WHICH, WHICH, WHICH),
    "a part without a place": Lie(lambda at: {"headers": {"Content-Range": ""}}, WHICH, WHICH, WHICH),
    "a page": Lie(lambda at: {"body": b"Welcome!", "headers": {"Content-Range": ""}}, WHICH, WHICH, WHICH),
    "more": Lie(lambda at: {"body": WHOLE[at : at + 2000]}, always=OTHER),
    "much more": Lie(lambda at: {"body": WHOLE[at:] * 100}, always=OTHER),
    "more, in chunks": Lie(lambda at: {"body": WHOLE[at : at + 2000], "framing": "chunked"}, MORE, MORE, MORE),
    "more, without an end": Lie(lambda at: {"body": WHOLE[at : at + 2000], "framing": "close"}, MORE, MORE, MORE),
    "more than its length": Lie(lambda at: {"body": WHOLE[at : at + 2000], "headers": {"Content-Length": "1000"}}),
    "less": Lie(lambda at: {"body": WHOLE[at : at + 500]}, always=OTHER),
    "less, in chunks": Lie(lambda at: {"body": WHOLE[at : at + 500], "framing": "chunked"}),  # so the rest is asked for
    "less, without an end": Lie(lambda at: {"body": WHOLE[at : at + 500], "framing": "close"}),
    "nothing": Lie(lambda at: {"body": b""}, always=OTHER),
}


def test_a_length_that_is_not_a_number_closes_the_connection(inside: Inside) -> None:
    """At once: the garbage collector would complain of a connection that it has to close."""
    inside.server.faults = [Fault(OBJECT, headers={"Content-Length": "many"}, times=None)]
    reason = "botocore: the server sent a Content-Length that is not a number"
    inside.copy("s3").refused(inside.server.url("s3", OBJECT), reason)
    gc.collect()


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_server_that_answers_something_else(lie: Lie, inside: Inside) -> None:
    cases = ((3000, 1, lie.once), (3000, None, lie.always), (0, 1, lie.first), (0, None, lie.first))
    for scheme, (start, times, reason) in itertools.product(READ, cases):
        inside.server.faults = [Fault(OBJECT, method="GET", start=start, times=times, **lie.told(start))]
        done = inside.copy(scheme)
        assert inside.server.faults[0].played
        if reason:
            done.refused(inside.server.url(scheme, OBJECT), rf"(at byte \d+: )?{reason}( \(3 tries\))?")
        else:
            assert done == (0, WHOLE, ""), (scheme, start, times)


MIB = 1 << 20


def cuts() -> Iterator[int]:
    """Yield the bytes to cut at: before, in, between and behind all parts of `WHOLE`, and around ranges."""
    borders = {at + by for at in STARTS for by in (-1, 0, 1)}
    yield from sorted({*regions(), *borders, NEEDED, len(WHOLE) - 1} - {-1})


def cut_at(cut: int, reset: bool, *, once: bool) -> list[Fault]:
    """Return faults that let nobody get the byte *cut*, or only who asks twice."""
    start = cut // RANGE * RANGE
    if once:
        return [Fault(OBJECT, start=start, cut=cut - start, reset=reset)]
    again = [Fault(OBJECT, start=cut, cut=0, reset=reset, times=None)]
    return [Fault(OBJECT, start=start, cut=cut - start, reset=reset, times=None), *again]


def failed_at(stderr: str, url: str, name: str = "tarcat", tries: int = 3) -> int:
    """Check that *stderr* is the line about a connection that was cut too often; return the byte."""
    found = re.fullmatch(
        rf"{name}: {re.escape(url)}: at byte (\d+): the connection was dropped \({tries} tr(y|ies)\)\n", stderr
    )
    assert found, stderr
    return int(found[1])


@by_turns("ahead")
@each
def test_a_cut_that_passes(scheme: str, ahead: bool, inside: Inside) -> None:
    for number, cut in enumerate(list(cuts())[:: 3 if ahead else 2]):
        reset = number % 2 == 1
        inside.server.faults = cut_at(cut, reset, once=True)
        assert inside.copy(scheme) == (0, WHOLE, ""), cut
        (again,) = set(found := inside.starts()) - set(STARTS) or {cut // RANGE * RANGE}
        assert sorted({*STARTS, again}) == sorted(set(found)) and len(found) == len(STARTS) + 1, cut
        assert cut // RANGE * RANGE <= again <= cut if reset else again == cut  # what a reset brought may be lost


@by_turns("ahead")
@each
def test_a_cut_that_does_not_pass(scheme: str, ahead: bool, inside: Inside) -> None:
    url = inside.server.url(scheme, OBJECT)
    for number, cut in enumerate(list(cuts())[::5]):
        reset = number % 2 == 1
        inside.server.faults = cut_at(cut, reset, once=False)
        done = inside.copy(scheme)
        assert (done.status, done.data) == (1, None), cut
        at = failed_at(done.stderr, url)
        assert cut // RANGE * RANGE <= at <= cut if reset else at == cut
        to_stdout = inside.run("tarcat", url)
        assert to_stdout._replace(stdout=b"") == (1, b"", done.stderr) or reset
        assert WHOLE.startswith(to_stdout.stdout) and len(to_stdout.stdout) <= cut
        assert len(to_stdout.stdout) % 512 == 0 and not has_end(to_stdout.stdout)


@each
def test_a_connection_that_is_cut_all_the_time(scheme: str, inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    inside.server.faults = [Fault(OBJECT, method="GET", cut=97, times=None)]
    url = inside.server.url(scheme, OBJECT)
    assert failed_at(inside.copy(scheme).stderr, url) == 3 * 97
    monkeypatch.setattr(
        retry, "PROGRESS_BYTES", 97
    )  # bytes that count as progress, of which there are 256 KiB otherwise
    inside.starts()
    assert inside.copy(scheme) == (0, WHOLE, "")
    assert inside.starts() == sorted(at for start in STARTS for at in range(start, min(start + RANGE, 10240), 97))


@each
def test_a_cut_behind_the_last_byte_is_none(scheme: str, inside: Inside) -> None:
    for reset in (False, True):
        inside.server.faults = [Fault(OBJECT, start=10_000, cut=240, reset=reset)]
        assert inside.copy(scheme) == (0, WHOLE, "")
        assert inside.starts() == list(STARTS) or reset


@each
def test_chunks_without_an_end(scheme: str, inside: Inside) -> None:
    """The body is chunked, and the connection ends before the last chunk: once, always, from the first range on."""
    for start in (0, 3000):
        for cut in (600, RANGE):  # the second takes nothing away that was asked for
            inside.server.faults = [Fault(OBJECT, start=start, framing="chunked", cut=cut)]
            assert inside.copy(scheme) == (0, WHOLE, "")
        inside.server.faults = [
            Fault(OBJECT, method="GET", framing="chunked", cut=600, skip=start // RANGE, times=None)
        ]
        done = inside.copy(scheme)
        assert (done.status, done.data) == (1, None)
        first = min(start, RANGE)  # threads ask in any order
        assert first <= failed_at(done.stderr, inside.server.url(scheme, OBJECT)) <= start + 3 * 600


def test_a_body_that_says_nothing_of_its_length(inside: Inside) -> None:
    """The end of such a body is where the connection ends: only the archive tells that something is missing."""
    inside.server.objects["a.tgz"] = zipped = gzip.compress(WHOLE, mtime=0)
    for cut in list(cuts())[::4]:
        inside.server.faults = [Fault(OBJECT, no_range=True, framing="close", cut=cut, times=None)]
        done = inside.copy("http")
        if cut < NEEDED:
            assert (done.status, done.data) == (1, None)
            assert re.fullmatch(rf"tarcat: \S+{OBJECT}: at byte {cut}: [^\n]+\n", done.stderr), (cut, done)
        else:
            assert done == (0, WHOLE, "")
    for cut in range(0, len(zipped), 41):
        inside.server.faults = [Fault("a.tgz", no_range=True, framing="close", cut=cut, times=None)]
        done = inside.copy("http", "a.tgz")
        assert (done.status, done.data) == (1, None)
        assert re.fullmatch(r"tarcat: \S+a\.tgz: at byte \d+: [^\n]+\n", done.stderr), (cut, done)


@each
def test_one_shard_of_several_is_cut(scheme: str, inside: Inside, tmp_path: Path) -> None:
    parts = [make_tar(make_samples(4, start=10 * n)) for n in range(3)]
    for number, part in enumerate(parts):
        inside.server.objects[f"{number}.tar"] = part
        (tmp_path / f"{number}.tar").write_bytes(part)
    urls = [inside.server.url(scheme, f"{n}.tar") for n in range(3)]
    here = inside.run("tarcat", *(f"{n}.tar" for n in range(3)))
    assert here.status == 0
    for command in (["tarcat"], ["tarpcat", "-p", "2"], ["tarsort"]):
        inside.server.faults = [Fault(f"{n}.tar", start=1000, cut=100) for n in range(3)]
        assert inside.run(*command, *urls) == here
        assert [fault.played for fault in inside.server.faults] == [1, 1, 1]
        inside.server.faults = [Fault("1.tar", start=1000, cut=0, times=None)]
        done = inside.run(*command, "-o", "out.tar", *urls)
        assert done[:2] == (1, b"") and failed_at(done.stderr, urls[1], command[0]) == 1000
        assert not (tmp_path / "out.tar").exists()


@each
def test_a_value_of_a_new_sample_is_cut(scheme: str, inside: Inside, tmp_path: Path) -> None:
    inside.server.objects["1.jpg"] = bytes(range(256)) * 8
    url = inside.server.url(scheme, "1.jpg")
    (tmp_path / "plan.tsv").write_text(f"__key__\t@jpg\na\t{url}\n")
    inside.server.faults = [Fault("1.jpg", start=1000, cut=300)]
    assert members_of(inside.run("tarcreate", "plan.tsv").output()) == [("a.jpg", inside.server.objects["1.jpg"])]
    inside.server.faults = [Fault("1.jpg", start=1000, cut=0, times=None)]
    done = inside.run("tarcreate", "plan.tsv")
    assert done.status == 1 and not has_end(done.stdout)
    assert f"{url}: at byte 1000: the connection was dropped (3 tries)" in done.stderr and done.stderr.count("\n") == 1


@each
def test_a_file_that_is_cut(scheme: str, inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seekable, "TAIL_BYTES", 100)
    monkeypatch.setattr(seekable, "MAX_SKIPPED_BYTES", 100)
    url = inside.server.url(scheme, OBJECT)
    inside.server.faults = [Fault(OBJECT, start=0, cut=0, skip=1), Fault(OBJECT, start=3500, cut=700)]
    with tartools.open(url) as file:
        assert file.read(2000) == WHOLE[:2000]
        file.seek(3500)
        assert file.read() == WHOLE[3500:]
        inside.server.faults = [Fault(OBJECT, start=5000, cut=0, times=None)]
        file.seek(5000)
        with pytest.raises(StorageError, match=r"at byte 5000: the connection was dropped \(3 tries\)"):
            file.read(1)
        inside.server.faults = []
        file.seek(-500, 2)
        assert file.read() == WHOLE[-500:]


# ---- as processes, by ranges of 8 MiB ----

LARGE = make_tar([(f"{n:02d}.bin", random.Random(n).randbytes(MIB)) for n in range(18)])  # three ranges


@by_turns("scheme")
@each
def test_large_objects_that_do_not_come(scheme: str, faulty: FaultServer, run: Run, tmp_path: Path) -> None:
    faulty.objects["large.tar"] = LARGE
    url = faulty.url(scheme, "large.tar")
    cut = 16 * MIB + 700_000
    faulty.faults = [
        Fault("large.tar", start=16 * MIB, cut=700_000, times=None),
        Fault("large.tar", start=cut, cut=0, times=None),
    ]
    done = run("tarcat", url, env=faulty.env | {"TARTOOLS_TRIES": "1"})
    assert done.stderr == f"tarcat: {url}: at byte {cut}: the connection was dropped (1 try)\n"
    assert done.status == 1 and LARGE.startswith(done.stdout) and not has_end(done.stdout)
    assert run("tarcat", "-o", "out.tar", url, env=faulty.env | {"TARTOOLS_TRIES": "1"}) == done._replace(stdout=b"")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "scheme"), [(name, READ[n % 5]) for n, name in enumerate(READERS)])
def test_every_command_says_what_was_cut(name: str, scheme: str, faulty: FaultServer, run: Run, tmp_path: Path) -> None:
    data = make_tar(make_samples(5))
    faulty.objects[OBJECT] = data
    faulty.faults = [Fault(OBJECT, start=0, cut=1100, times=None), Fault(OBJECT, start=1100, cut=0, times=None)]
    url = faulty.url(scheme, OBJECT)
    arguments = ("-f", "nope") if name == "tarfirst" else COMMANDS[name].arguments
    done = run(name, *arguments, url, env=faulty.env | {"TARTOOLS_TRIES": "1"})
    assert done.status == COMMANDS[name].trouble and not has_end(done.stdout)
    assert failed_at(done.stderr, url, name, tries=1) == 1100
    assert list(tmp_path.iterdir()) == []
