"""What a store says it has stored is compared with what was sent; and servers that know no checksums, no conditions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tartools.storage.objects import s3, uploads
from tests.storage.objects import fake_s3
from tests.storage.objects.conftest import WRITTEN
from tests.storage.objects.faults import Fault
from tests.storage.objects.inside import Inside
from tests.storage.objects.test_writing import BIG, PART, SMALL, refused, write

OTHER = b"somebody else's"
sizes = pytest.mark.parametrize("data", [SMALL, BIG], ids=["small", "parts"])
CHANGED = r"the server stored other data than were sent \(\S+.*, not .*\)"


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MIN_PART_BYTES", PART)
    monkeypatch.setattr(fake_s3, "SMALLEST_PART", PART)
    monkeypatch.setattr(s3, "_unconditional", set())


# ---- checksums of S3 ----


@sizes
@pytest.mark.parametrize(
    "fault",
    [Fault(header="content-encoding", no_encoding=True, times=None), Fault(header="transfer-encoding", status=411)],
    ids=["stores the framing", "411"],
)
def test_an_old_server_behind_tls(fault: Fault, data: bytes, encrypted: Inside, certificate: Path) -> None:
    """It knows no trailers: what is stored is what was sent, and the checksum is in a header."""
    encrypted.environ(AWS_CA_BUNDLE=str(certificate))
    encrypted.server.faults = [fault]
    assert write(encrypted, "s3", data) == (0, b"", "")
    assert encrypted.server.objects["out"] == data
    sent = [request.headers for request in encrypted.server.asked("PUT")]
    assert len(sent) == -(-len(data) // PART) and all("content-md5" in headers for headers in sent)
    assert not any("x-amz-trailer" in headers or "x-amz-sdk-checksum-algorithm" in headers for headers in sent)


@sizes
def test_amazon_gets_crcs(data: bytes, empty: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """All requests of an upload in parts have them: Amazon refuses to complete one that lacks some."""
    monkeypatch.setattr(s3, "_checksum_parameter", lambda endpoint, setting: s3.CRC32)
    assert write(empty, "s3", data) == (0, b"", "")
    assert empty.server.objects == {"out": data}
    for request in empty.server.asked("PUT"):
        assert "x-amz-checksum-crc32" in request.headers and "content-md5" not in request.headers


def test_whose_checksum_a_server_gets(inside: Inside) -> None:
    amazon = "https://s3.eu-central-1.amazonaws.com", "https://b.vpce-1a.s3.us-east-1.vpce.amazonaws.com:443"
    for endpoint in (*amazon, "https://s3.cn-north-1.amazonaws.com.cn"):
        assert s3._checksum_parameter(endpoint, "") == s3.CRC32
        assert s3._checksum_parameter(endpoint, "when_required") == ""
    for endpoint in ("http://127.0.0.1:7480", "https://amazonaws.com.example.org", "https://minio.example.org/"):
        assert s3._checksum_parameter(endpoint, "when_supported") == s3.MD5
    inside.environ(AWS_REQUEST_CHECKSUM_CALCULATION="WHEN_REQUIRED")
    assert write(inside, "s3", SMALL) == (0, b"", "")
    assert not any("content-md5" in request.headers for request in inside.server.requests)


@pytest.mark.parametrize(("status", "code"), [(411, "MissingContentLength"), (501, "NotImplemented"), (400, "Bad")])
def test_a_server_that_refuses_checksums(status: int, code: str, empty: Inside) -> None:
    """The message names the setting that leaves them out; an error without a text has none."""
    body = f"<Error><Code>{code}</Code><Message/></Error>".encode()
    empty.server.faults = [Fault(header="content-md5", status=status, body=body, times=None)]
    advice = "if it does not support checksums, set AWS_REQUEST_CHECKSUM_CALCULATION=when_required"
    for data in (SMALL, BIG):
        refused(write(empty, "s3", data), empty.server, "s3", f"the server refuses: {status} {code}; {advice}")
    empty.environ(AWS_REQUEST_CHECKSUM_CALCULATION="when_required")
    assert write(empty, "s3", SMALL) == (0, b"", "")


@sizes
def test_data_that_are_damaged_on_the_way_are_sent_again(data: bytes, empty: Inside) -> None:
    empty.server.faults = [fault := Fault(method="PUT", taken=1000)]
    assert write(empty, "s3", data) == (0, b"", "")
    assert (fault.played, empty.server.objects) == (1, {"out": data})


# ---- what was stored ----


@sizes
@pytest.mark.parametrize(("scheme", "force"), [("s3", False), ("s3", True), ("gs", False), ("gs", True)])
def test_a_store_that_has_other_bytes(scheme: str, force: bool, data: bytes, empty: Inside) -> None:
    """As many of them: only a checksum shows that."""
    method = "POST" if scheme == "gs" and data is SMALL else "PUT"
    empty.server.faults = [fault := Fault(method=method, broken=True)]
    options = ["--force"] * force
    refused(write(empty, scheme, data, *options), empty.server, scheme, CHANGED)
    assert fault.played == 1


@pytest.mark.parametrize(
    ("scheme", "data"),
    [("s3", SMALL), ("ais", SMALL), ("ais", BIG), ("http", SMALL)],
    ids=["s3", "ais", "parts", "web"],
)
def test_a_store_that_has_fewer_bytes(scheme: str, data: bytes, empty: Inside) -> None:
    """And gives no checksum. Of a web server nothing can be removed."""
    empty.server.faults = [Fault(taken=1000, headers={"ETag": ""}, method="PUT")]
    empty.environ(AWS_REQUEST_CHECKSUM_CALCULATION="when_required")
    size = rf"the server stored other data than were sent \(\d+ bytes, not {len(data)} bytes\)"
    before = data[:1000] if scheme == "http" else None
    refused(write(empty, scheme, data), empty.server, scheme, size, before)


def test_etags_that_are_no_md5(empty: Inside) -> None:
    """Of objects that a key encrypts, and of servers that count versions: then sizes are compared."""
    digits = '"' + 32 * "0" + '"'
    kinds: list[dict[str, str]] = [
        {"ETag": digits, "x-amz-server-side-encryption": "aws:kms"},
        {"ETag": digits, "x-amz-server-side-encryption": "aws:kms:dsse"},
        {"ETag": digits, "x-amz-server-side-encryption-customer-algorithm": "AES256"},
        {"ETag": '"0x8DC5"'},
        {"ETag": '"' + 32 * "0" + '-1"'},
    ]
    for headers in kinds:
        empty.server.faults = [Fault(method="PUT", headers=headers)]
        assert write(empty, "s3", SMALL, "--force") == (0, b"", ""), headers
        assert empty.server.requests[-1].method == "GET"
    empty.server.faults = [Fault(method="PUT", headers={"ETag": digits})]
    done = write(empty, "s3", SMALL, "--force")
    assert done.status == 1 and re.search(CHANGED, done.stderr)


def test_an_object_that_is_proved_takes_no_more_requests(empty: Inside) -> None:
    write(empty, "s3", SMALL, "--force")
    assert [request.method for request in empty.server.requests] == ["PUT"]
    empty.server.requests.clear()
    write(empty, "s3", BIG, "--force")
    assert sorted(request.method for request in empty.server.requests) == ["POST", "POST", "PUT", "PUT", "PUT"]


def test_a_store_that_has_nothing(empty: Inside) -> None:
    """It says that it does."""
    what = "the server accepted the object, but does not have it"
    for scheme, method in (("s3", "GET"), ("http", "HEAD"), ("ais", "HEAD")):
        empty.server.faults = [Fault(method=method, delete=True), Fault(method="PUT", headers={"ETag": ""})]
        refused(write(empty, scheme, SMALL, "--force"), empty.server, scheme, what)


def test_who_may_only_write(empty: Inside) -> None:
    """Nothing is compared that may not be read."""
    for scheme in WRITTEN:
        denied: list[Fault] = [Fault(method=m, status=403, code="AccessDenied", times=None) for m in ("GET", "HEAD")]
        empty.server.faults = [*denied, Fault(method="PUT", headers={"ETag": ""}, times=None)]
        assert write(empty, scheme, SMALL, "--force") == (0, b"", ""), scheme
        assert empty.server.objects == {"out": SMALL}
        empty.server.objects.clear()


# ---- conditions ----


def unknown(scheme: str, status: int, code: str = "NotImplemented") -> list[Fault]:
    """Return faults of a server that does not know conditional writes."""
    how: dict[str, Any] = {"status": status, "code": code, "times": None}
    return [Fault(has="ifGenerationMatch", **how)] if scheme == "gs" else [Fault(header="if-none-match", **how)]


@sizes
@pytest.mark.parametrize(("scheme", "status"), [("s3", 501), ("s3", 400), ("gs", 501), ("gs", 400), ("http", 501)])
def test_a_server_that_knows_no_conditions(scheme: str, status: int, data: bytes, empty: Inside) -> None:
    """It is asked whether the object exists, and gets it without the condition; an object that exists stays."""
    empty.server.faults = unknown(scheme, status, "InvalidArgument" if status == 400 else "NotImplemented")
    assert write(empty, scheme, data) == (0, b"", "")
    assert empty.server.objects == {"out": data}
    empty.server.objects["out"] = OTHER
    refused(write(empty, scheme, data), empty.server, scheme, "already exists; --force replaces it", OTHER)
    assert write(empty, scheme, data, "--force") == (0, b"", "")
    assert empty.server.objects == {"out": data}


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_an_object_that_appears_before_such_a_server_gets_it(scheme: str, empty: Inside) -> None:
    how = unknown(scheme, 501)
    how[0].times = 1
    how[0].replace = OTHER
    empty.server.faults = how
    refused(write(empty, scheme, SMALL), empty.server, scheme, "already exists; --force replaces it", OTHER)


def test_such_a_server_is_asked_once(empty: Inside) -> None:
    """Each of many objects would else be sent twice."""
    empty.server.faults = unknown("s3", 501)
    for _ in range(3):
        assert write(empty, "s3", SMALL) == (0, b"", "")
        empty.server.objects.clear()
    assert sum("if-none-match" in request.headers for request in empty.server.asked("PUT")) == 1


# ---- refusals before the body of a request: `Expect: 100-continue` ----


@pytest.fixture(params=[False, True], ids=["plain", "TLS"])
def bodies(request: pytest.FixtureRequest, certificate: Path) -> Inside:
    """Return commands in this process, and a server without objects, with TLS or not."""
    inside: Inside = request.getfixturevalue("encrypted" if request.param else "empty")
    inside.server.objects.clear()
    inside.environ(AWS_CA_BUNDLE=str(certificate), TARTOOLS_TIMEOUT="20")
    return inside


@sizes
@pytest.mark.parametrize(
    "fault",
    [
        {"header": "if-none-match", "status": 501, "code": "NotImplemented", "times": None},
        {"method": "PUT", "status": 503, "code": "SlowDown", "times": 2},
    ],
    ids=["501", "503"],
)
def test_a_server_that_answers_before_it_has_the_body(fault: dict[str, Any], data: bytes, bodies: Inside) -> None:
    """And waits for the body nevertheless: the next request has to use another connection."""
    bodies.server.faults = [early := Fault(early=True, **fault)]
    assert write(bodies, "s3", data) == (0, b"", "")
    assert (early.played, bodies.server.objects) == (fault["times"] or 1, {"out": data})


def test_an_object_that_appears_before_a_body_is_read(bodies: Inside) -> None:
    bodies.environ(TARTOOLS_TRIES="1")
    exists = Fault(header="if-none-match", early=True, replace=OTHER, status=412, code="PreconditionFailed")
    bodies.server.faults = [exists]
    refused(write(bodies, "s3", SMALL), bodies.server, "s3", "already exists; --force replaces it", OTHER)
    assert write(bodies, "s3", SMALL, "--force") == (0, b"", "")
    assert (exists.played, bodies.server.objects) == (1, {"out": SMALL})


def test_connections_are_used_again(bodies: Inside) -> None:
    """As long as no request on them is refused."""
    for _ in range(3):
        assert write(bodies, "s3", SMALL, "--force") == (0, b"", "")
    assert bodies.server.connections == 1


@pytest.mark.parametrize(
    "fault", [{"no_match": True}, {"status": 412, "code": "InvalidRequest"}], ids=["ignored", "412"]
)
def test_an_object_that_appears_while_parts_are_sent(fault: dict[str, Any], empty: Inside) -> None:
    """Servers may ignore the condition of the request that makes the object, or have a name of their own for it."""
    appears = Fault(method="PUT", has="partNumber=2", replace=OTHER)
    empty.server.faults = [appears, Fault(method="POST", has="uploadId", times=None, **fault)]
    refused(write(empty, "s3", BIG), empty.server, "s3", "already exists; --force replaces it", OTHER)
    assert appears.played == 1
