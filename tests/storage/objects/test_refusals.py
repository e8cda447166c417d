"""What a store refuses: one line that says which it is, at once, and one request."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.storage.objects.conftest import make_site
from tests.storage.objects.faults import SCHEMES, Fault, FaultServer
from tests.storage.objects.inside import OBJECT, Inside

MISSING, BUCKET = "no such object", "no such bucket: nowhere"
WRONG = r"the server does not accept the credentials \({}\)"
REFUSED = [
    ("s3", 403, "InvalidAccessKeyId", WRONG.format("InvalidAccessKeyId")),
    ("s3", 403, "SignatureDoesNotMatch", WRONG.format("SignatureDoesNotMatch")),
    ("s3", 400, "ExpiredToken", WRONG.format("ExpiredToken")),
    ("s3", 403, "AccessDenied", r"no permission to (read|list) \(AccessDenied\)"),
    ("s3", 404, "NoSuchKey", MISSING),
    ("gs", 403, "forbidden", r"no permission to (read|list) \(forbidden\)"),
    ("gs", 404, "notFound", MISSING),
    ("ais", 401, "token required", "[^\n]*AIS_AUTHN_TOKEN[^\n]*"),
    ("ais", 403, "not allowed", r"no permission to (read|list) \(Forbidden\)"),
    ("ais", 404, "ais://b/a.tar does not exist", MISSING),
    ("http", 401, "", r"the server does not accept the credentials, or requires some \(Unauthorized\)"),
    ("http", 403, "", r"no permission to read \(Forbidden\)"),
    ("http", 404, "", MISSING),
    ("http", 410, "", MISSING),
]


def test_what_a_server_refuses(inside: Inside) -> None:
    for scheme, status, code, reason in REFUSED:
        url = inside.server.url(scheme, OBJECT)
        inside.server.faults = [Fault(OBJECT, status=status, code=code, times=None)]
        done = inside.copy(scheme)
        assert (done.status, done.data) == (1, None), done
        assert re.fullmatch(rf"tarcat: {re.escape(url)}: {reason}\n", done.stderr), done
        assert inside.starts() == [0], (scheme, status)


def test_what_a_server_refuses_to_list(inside: Inside) -> None:
    for scheme, status, code, reason in REFUSED:
        if scheme == "http" or reason == MISSING:
            continue
        inside.server.faults = [Fault(status=status, code=code, times=None)]
        done = inside.run("tarcat", f"{scheme}://b/*.tar")
        assert done.status == 1
        assert re.fullmatch(rf"tarcat: {scheme}://b/[^ ]*: {reason}\n", done.stderr), done
        assert len(inside.server.requests) == 1
        inside.server.requests.clear()


def test_what_is_refused_later(inside: Inside) -> None:
    """Permission that is taken away, and a token that has expired, while an object is read."""
    for scheme in SCHEMES:
        for status in (401, 403) if scheme != "gs" else (403,):
            url = inside.server.url(scheme, OBJECT)
            inside.server.faults = [Fault(OBJECT, start=2000, status=status, code="AccessDenied", times=None)]
            done = inside.copy(scheme)
            assert (done.status, done.data) == (1, None), done
            assert re.fullmatch(rf"tarcat: {re.escape(url)}: [^\n]*(permission|credentials|token)[^\n]*\n", done.stderr)
            assert inside.starts().count(2000) == 1, (scheme, status)


@pytest.mark.parametrize("scheme", ["s3", "gs", "ais"])
def test_a_bucket_that_is_not_there(scheme: str, inside: Inside) -> None:
    for name in (OBJECT, "*.tar"):
        done = inside.run("tarcat", f"{scheme}://nowhere/{name}")
        assert (done.status, done.stdout) == (1, b"")
        assert re.fullmatch(rf"tarcat: {scheme}://nowhere/[^ ]*: {BUCKET}\n", done.stderr), done
        assert len(inside.server.requests) == 1
        inside.server.requests.clear()


def test_a_bucket_that_is_not_there_to_moto(request: pytest.FixtureRequest, run: Run) -> None:
    site = make_site(request, "s3")
    for name in (OBJECT, "*.tar"):
        done = run("tarcat", f"s3://nowhere/{name}", env=site.env)
        assert done[:2] == (1, b"")
        assert re.fullmatch(rf"tarcat: s3://nowhere/[^ ]*: {BUCKET}\n", done.stderr), done


def test_google_wants_credentials_where_there_are_none(faulty: FaultServer, run: Run) -> None:
    """As a process: google.auth leaves a connection open when it gives up."""
    faulty.faults = [Fault(status=401, code="authError", times=None)]
    for name in (OBJECT, "*.tar"):
        done = run("tarcat", f"gs://b/{name}", env=faulty.env)
        assert done[:2] == (1, b"")
        assert re.fullmatch(r"tarcat: gs://b/[^ ]*: no usable Google credentials: [^\n]+\n", done.stderr), done
    assert len(faulty.requests) == 2


# ---- nobody who could ask ----


@pytest.fixture
def nobody(faulty: FaultServer, tmp_path: Path) -> dict[str, str]:
    """Return the environment of who has no credentials; what hands them out in a cloud hangs up on each request."""
    faulty.faults = [Fault(dropped=True, times=None)]
    here = faulty.base.removeprefix("http://")
    return {
        "HOME": str(tmp_path / "nobody"),
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{here}",
        "GCE_METADATA_HOST": here,
        "GCE_METADATA_IP": here,
        "CLOUDSDK_CONFIG": str(tmp_path / "none"),
    }


@pytest.mark.parametrize(
    ("url", "more", "said"),
    [
        ("s3://b/a.tar", {}, "no AWS credentials: [^\n]+AWS_PROFILE[^\n]+"),
        ("s3://b/a.tar", {"AWS_PROFILE": "nobody"}, "no AWS credentials: [^\n]+nobody[^\n]+"),
        ("s3://b/a.tar", {"AWS_ACCESS_KEY_ID": "AKIA"}, "no AWS credentials: [^\n]+"),
        ("s3://b/a.tar", {"AWS_ENDPOINT_URL": "127.0.0.1:1"}, "the endpoint [^\n]*"),
        ("gs://b/a.tar", {}, "no usable Google credentials: [^\n]+"),
        ("gs://b/a.tar", {"GOOGLE_APPLICATION_CREDENTIALS": "none"}, "no usable Google credentials: [^\n]+"),
        ("gs://b/a.tar", {"GOOGLE_APPLICATION_CREDENTIALS": "bad.json"}, "no usable Google credentials: [^\n]+"),
        ("ais://b/a.tar", {}, "set AIS_ENDPOINT to the URL of the AIStore proxy"),
    ],
)
def test_no_credentials(
    url: str, more: dict[str, str], said: str, nobody: dict[str, str], faulty: FaultServer, run: Run, tmp_path: Path
) -> None:
    """Libraries may ask around for them; we try none of that again, which would take a minute."""
    (tmp_path / "bad.json").write_text('{"type": "service_account"}')
    done = run("tarcat", url, env=nobody | more, timeout=60)
    assert done[:2] == (1, b"")
    assert re.fullmatch(rf"tarcat: {url}: {said}\n", done.stderr), done.stderr
    assert len(faulty.requests) <= 3
