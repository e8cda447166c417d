"""Objects that change while they are read: never a mix of two versions, whatever the server says about versions."""

from __future__ import annotations

import time
from email.utils import formatdate

import pytest

import tartools
from tartools.errors import StorageError
from tartools.storage.objects import fetch_range
from tests.conftest import has_end, make_tar
from tests.storage.objects.faults import SCHEMES, Fault
from tests.storage.objects.inside import OBJECT, RANGE, Inside
from tests.tiers import also, by_turns

OLD = make_tar([(f"{n}.old", b"%d" % n * (n * 131)) for n in range(7)])
NEW = {
    "as long": make_tar([(f"{n}.old", b"#" * (n * 131)) for n in range(7)]),
    "longer": make_tar([(f"{n}.new", b"%d" % n * (n * 500)) for n in range(7)]),
    "shorter": make_tar([("1.new", b"1")])[:3072],
    "empty": b"",
}
SIZE = len(OLD)
STARTS = range(0, SIZE, RANGE)
VERSIONS = {"s3": "ETag", "gs": "x-goog-generation", "ais": "ais-checksum-value", "http": "ETag", "azure": "ETag"}
AT = r"(at byte \d+: )?"
each = pytest.mark.parametrize("scheme", SCHEMES)


@pytest.fixture(params=[False, True], ids=["one", "ahead"])
def inside(request: pytest.FixtureRequest, empty: Inside) -> Inside:
    """Return commands in this process, and a server that has `OLD`."""
    empty.server.objects[OBJECT] = OLD
    if request.param:
        empty.ahead()
    return empty


def test_the_versions_are_what_they_should_be() -> None:
    assert len(NEW["longer"]) > len(NEW["as long"]) == SIZE > len(NEW["shorter"])
    assert NEW["as long"][:512] == OLD[:512]  # as are all headers


@by_turns("ignored")
@pytest.mark.parametrize("first", [1, *also(3)])
@pytest.mark.parametrize("ignored", [False, True], ids=["", "ignoring conditions"])
@pytest.mark.parametrize("new", NEW.values(), ids=NEW)
def test_replaced_between_two_ranges(new: bytes, ignored: bool, first: int, inside: Inside) -> None:
    """At ranges behind the *first*; *ignored* are If-Match and the like, so that the new version is sent."""
    for scheme in SCHEMES:
        url = inside.server.url(scheme, OBJECT)
        for start in STARTS[first::4]:
            inside.server.objects[OBJECT] = OLD
            inside.server.faults = [Fault(OBJECT, start=start, replace=new)]
            if ignored:
                inside.server.faults[0].no_match = True
                inside.server.faults.append(Fault(OBJECT, method="GET", no_match=True, times=None))
            inside.copy(scheme).refused(url, f"{AT}(was replaced|was deleted) while it was being read")
            inside.server.objects[OBJECT] = OLD
            inside.server.faults[0].played = 0
            done = inside.run("tarcat", url)
            assert done.status == 1 and OLD.startswith(done.stdout) and len(done.stdout) <= start
            assert not has_end(done.stdout)


def test_replaced_where_the_connection_was_cut(inside: Inside) -> None:
    new = NEW["as long"]
    for scheme in SCHEMES:
        url = inside.server.url(scheme, OBJECT)
        for start, cut in ((0, 600), (3000, 1), (9000, 999)):
            inside.server.objects[OBJECT] = OLD
            again = Fault(OBJECT, start=start + cut, replace=new)
            inside.server.faults = [Fault(OBJECT, start=start, cut=cut), again]
            inside.copy(scheme).refused(url, f"{AT}(was replaced|was deleted) while it was being read")


def test_deleted_between_two_ranges(inside: Inside) -> None:
    for scheme in SCHEMES:
        url = inside.server.url(scheme, OBJECT)
        for start in STARTS[1::3]:
            inside.server.objects[OBJECT] = OLD
            inside.server.faults = [Fault(OBJECT, start=start, delete=True)]
            inside.copy(scheme).refused(url, f"{AT}was deleted while it was being read")


def test_every_range_but_the_first_is_pinned(inside: Inside) -> None:
    """The server is told which version is wanted."""
    version = inside.server.bucket.version(OBJECT)
    for scheme in ("s3", "http", "gs"):
        inside.server.requests.clear()
        assert inside.copy(scheme) == (0, OLD, "")
        wanted = [r.query.get("generation") or r.headers.get("if-match") for r in inside.server.requests]
        pinned = str(version.generation) if scheme == "gs" else f'"{version.etag}"'
        assert wanted == [None] + [pinned] * (len(STARTS) - 1)


def test_replaced_while_it_is_open(inside: Inside) -> None:
    for scheme in SCHEMES:
        inside.server.objects[OBJECT] = OLD
        with tartools.open(inside.server.url(scheme, OBJECT)) as file:
            assert file.read(100) == OLD[:100]
            inside.server.objects[OBJECT] = NEW["as long"]
            file.seek(5000)
            with pytest.raises(StorageError, match="while it was being read"):
                file.read(1)


# ---- servers that say less about versions ----


def without_version(scheme: str, **more: str) -> Fault:
    """Return what takes the version from all answers of *scheme*, and puts *more* headers there."""
    headers = {VERSIONS[scheme]: "", "Last-Modified": ""} | {k.replace("_", "-"): v for k, v in more.items()}
    return Fault(OBJECT, times=None, headers=headers)


@each
def test_no_version_is_one_stream(scheme: str, inside: Inside) -> None:
    """What nothing pins is not asked for in parts; a cut that happens to it is told."""
    inside.server.faults = [without_version(scheme)]
    assert inside.copy(scheme) == (0, OLD, "")
    asked = [request.headers.get("range") for request in inside.server.asked("GET")]
    assert asked[1:] == [None]  # of the first one only the headers were of interest
    for cut in (1, 700, SIZE - 1):
        cutting = without_version(scheme)
        cutting.cut, cutting.skip, cutting.method = cut, 1, "GET"
        inside.server.faults = [cutting, without_version(scheme)]
        url = inside.server.url(scheme, OBJECT)
        inside.copy(scheme).refused(url, rf"{AT}the connection was dropped, and the server gives no .*")


@each
def test_no_version_and_replaced(scheme: str, inside: Inside) -> None:
    """By what is longer, shorter and as long, at each request: what is written is one of them."""
    for new in NEW.values():
        for skip in range(3):
            inside.server.objects[OBJECT] = OLD
            replacing = without_version(scheme)
            replacing.replace, replacing.skip, replacing.times = new, skip, 1
            inside.server.faults = [replacing, without_version(scheme)]
            done = inside.copy(scheme)
            assert done.data in (OLD, new + bytes(-len(new) % 10_240), None) and (done.status == 0) == (
                done.data is not None
            )


def test_a_weak_tag_is_no_version(inside: Inside) -> None:
    """It stays the same when bytes change that somebody thinks do not matter (RFC 9110, 8.8.1)."""
    inside.server.faults = [without_version("http", ETag='W/"1"')]
    assert inside.copy("http") == (0, OLD, "")
    assert len(inside.server.asked("GET")) == 2
    assert all("if-match" not in request.headers for request in inside.server.requests)


def test_a_date_is_a_version_if_it_is_old(inside: Inside) -> None:
    """RFC 9110, 8.8.2.2: one that is a minute older than the answer is as good as a tag."""
    now = time.time()
    old, recent = formatdate(now - 3600, usegmt=True), formatdate(now - 2, usegmt=True)
    inside.server.faults = [without_version("http", Last_Modified=old)]
    assert inside.copy("http") == (0, OLD, "")
    conditions = [request.headers.get("if-unmodified-since") for request in inside.server.requests]
    assert conditions == [None] + [old] * (len(STARTS) - 1)
    cutting = without_version("http", Last_Modified=old)
    cutting.start, cutting.cut, cutting.times = 4000, 321, 1
    inside.server.faults.insert(0, cutting)
    assert inside.copy("http") == (0, OLD, "")
    inside.server.requests.clear()
    inside.server.faults = [without_version("http", Last_Modified=recent)]
    assert inside.copy("http") == (0, OLD, "")
    assert len(inside.server.asked("GET")) == 2


def test_another_date_is_another_version(inside: Inside) -> None:
    url = inside.server.url("http", OBJECT)
    first, second = (without_version("http", Last_Modified=formatdate(n * 1e8, usegmt=True)) for n in (3, 4))
    first.times = 3
    inside.server.faults = [first, second]
    inside.copy("http").refused(url, f"{AT}was replaced while it was being read")
    refusing = Fault(OBJECT, start=4000, status=412)
    inside.server.faults = [refusing, without_version("http", Last_Modified=formatdate(3e8, usegmt=True))]
    inside.copy("http").refused(url, f"{AT}was replaced while it was being read")


@each
def test_a_version_that_comes_and_goes(scheme: str, inside: Inside) -> None:
    """Servers behind one name that do not agree: some give a version, some do not."""
    url = inside.server.url(scheme, OBJECT)
    without = without_version(scheme)
    without.skip = 2
    inside.server.faults = [without]
    inside.copy(scheme).refused(url, f"{AT}was replaced while it was being read")
    without = without_version(scheme)
    without.times = 1
    inside.server.faults = [without]
    assert inside.copy(scheme) == (0, OLD, "")


@each
def test_a_part_without_a_version_begins_anew(scheme: str, inside: Inside) -> None:
    """Of an object of which only the size is known: what comes behind a cut may belong to another version."""
    url, new = inside.server.url(scheme, OBJECT), NEW["as long"]
    for replaced in (None, new):
        inside.server.objects[OBJECT] = OLD
        cutting, then = without_version(scheme), without_version(scheme)
        cutting.cut, cutting.times, cutting.start, then.start, then.replace = 700, 1, 1000, 1000, replaced
        inside.server.faults = [cutting, then]
        inside.starts()
        assert fetch_range(url, 1000, 4000, f"{SIZE} ") == (replaced or OLD)[1000:4000]
        assert inside.starts() == [1000, 1000]
